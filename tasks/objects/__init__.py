"""Numbered objects, which may touch."""
