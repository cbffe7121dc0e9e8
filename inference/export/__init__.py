"""A trained model for other programs."""
