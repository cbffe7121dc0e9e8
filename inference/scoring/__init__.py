"""Comparing predictions with the truth."""
