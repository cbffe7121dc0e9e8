"""What the network answers about a pixel: the loss of an answer, and its scores."""
