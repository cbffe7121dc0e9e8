"""Finding masks that look wrong, by a model that was not trained on them."""
