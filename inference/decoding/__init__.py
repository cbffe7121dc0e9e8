"""From logits to what a file holds."""
