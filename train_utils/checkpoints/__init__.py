"""The checkpoints of a run: complete ones to resume from, and its best model."""
