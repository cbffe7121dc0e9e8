"""What review.py says: which masks look wrong to models that have not trained on them."""
