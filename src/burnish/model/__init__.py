"""The one model definition that samples and trains."""
