"""Landmarks: named points of an image."""
