"""The names of the files that prediction writes, beside their stems."""

MASK, OVERLAY, PROBABILITIES = ".png", ".overlay.png", ".npy"  # extensions of outputs
LEGEND = f"legend{OVERLAY}"
OF_VOLUMES = {MASK: ".nii.gz", PROBABILITIES: ".probabilities.nii.gz"}  # what stands for them where inputs are volumes
