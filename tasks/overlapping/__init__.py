"""Classes that may overlap: several for each pixel."""
