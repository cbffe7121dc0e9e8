"""Images and masks as tensors: reading files, finding data sets, inspecting them, making batches."""
