"""DICOM: series of slices as volumes, segmentations and structure sets as their labels."""
