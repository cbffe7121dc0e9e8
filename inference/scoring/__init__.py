"""Scores of predictions against true masks: by pixels, and by how the boundaries lie."""
