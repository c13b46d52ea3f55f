"""The engine that lets the model answer, and the records it returns."""
