"""Named points of images: the files that list them, read and written in the same format."""
