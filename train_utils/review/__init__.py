"""The review of masks: which masks look wrong to models that have not trained on them."""
