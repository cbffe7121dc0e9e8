"""Targets: what the network learns for each image, from files to arrays."""
