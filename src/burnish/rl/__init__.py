"""The learning: advantages, losses, packing, the optimizer and the training loop."""
