"""From records to batches: transforms, crops, augmentation, the order of the images, loaders."""
