"""What a run keeps of itself: complete checkpoints to resume from, and its best model."""
