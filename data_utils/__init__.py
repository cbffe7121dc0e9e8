"""Images and masks as tensors: reading files, finding data sets, what is known of them, batches of them."""
