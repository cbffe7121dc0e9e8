"""Scores of written predictions against their truth."""
