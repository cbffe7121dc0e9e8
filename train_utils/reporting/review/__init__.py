"""The review of masks: which look wrong to models that have not trained on them."""
