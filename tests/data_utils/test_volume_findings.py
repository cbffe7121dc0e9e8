"""To which spacing volumes are resampled, how, and which spacing stands for a volume that cannot be used."""

import numpy as np

from data_utils.analysis.volume_findings import VolumeFindings, target_spacing


def test_a_coarse_axis_becomes_no_finer_than_the_coarsest_of_the_others():
    spacings = np.array([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 2.0]])
    assert target_spacing(spacings) == (2.0, 1.0, 2.0)


def test_a_volume_without_spacing_has_the_median_of_the_others():
    findings = VolumeFindings.of(np.array([[0, 0, 0], [2, 1, 1], [4, 1, 3]], float), [])
    assert findings.usable_spacings().tolist() == [[3, 1, 2], [2, 1, 1], [4, 1, 3]]
