"""A run on disk: its folder, which one process owns at a time, and the checkpoints it resumes from."""
