"""Regions: unions of labels, written as a mask of labels."""
