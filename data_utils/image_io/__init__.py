"""The one reader of image files, and their writers: whole pictures, windows of large ones, pages of TIFFs."""
