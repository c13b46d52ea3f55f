"""How weights enter and leave: Hugging Face folders, the hub, GGUF files; in by streaming, out atomically."""
