"""Text in and out of token ids: tokenizers, from folders and from GGUF files, and their chat templates."""
