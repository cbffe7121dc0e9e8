"""Images and masks as tensors; knows nothing of models or of how training is launched."""
