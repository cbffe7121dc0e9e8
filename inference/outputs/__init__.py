"""The files that prediction writes: masks, overlays, probabilities."""
