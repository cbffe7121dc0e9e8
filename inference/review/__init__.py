"""Which masks look wrong, by a model that has not trained on them."""
