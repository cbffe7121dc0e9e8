"""The class of each pixel."""
