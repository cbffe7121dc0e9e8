"""To which spacing volumes are resampled, which stands for one that cannot be used, and how all are normalized."""

import json

import numpy as np
import pytest

from data_utils.analysis.volume_statistics import VolumeStatistics, target_spacing
from data_utils.config import DataConfig
from runtime.errors import DataError


def test_a_coarse_axis_becomes_no_finer_than_the_coarsest_of_the_others():
    spacings = np.array([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 2.0]])
    assert target_spacing(spacings) == (2.0, 1.0, 2.0)


def test_a_volume_without_spacing_has_the_median_of_the_others():
    statistics = VolumeStatistics.of(np.array([[0, 0, 0], [2, 1, 1], [4, 1, 3], [9, 1, 2]], float), [])
    assert statistics.usable_spacings().tolist() == [[4, 1, 2], [2, 1, 1], [4, 1, 3], [9, 1, 2]]


@pytest.mark.parametrize("labeled", [5, 0], ids=["labeled voxels", "no labeled voxel"])
def test_statistics_are_stored_and_read_again(labeled):
    values = [np.arange(2 * labeled, dtype=np.float32).reshape(labeled, 2)] * 2
    statistics = VolumeStatistics.of(np.array([[2, 1, 1], [0, 0, 0]], float), values)
    again = VolumeStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    assert again.spacings.tolist() == statistics.spacings.tolist()
    assert again.channels == {2: 2}
    assert again.foreground == statistics.foreground
    assert (again.foreground is None) == (labeled == 0)


def test_an_axis_is_coarse_beyond_three_times_the_finest():
    alike = np.array([[3.0, 1.0, 1.0]] * 9 + [[1.0, 1.0, 1.0]] * 2)
    assert target_spacing(alike) == (3, 1, 1)
    coarse = np.array([[6.0, 1.0, 1.0]] * 9 + [[2.0, 1.0, 1.0]] * 2)
    assert target_spacing(coarse) == (2, 1, 1)  # that of the finest tenth
    assert target_spacing(np.array([[1.0, 1.0, 1 / 3]])) == (1, 1, 0.333333)


def test_ct_is_clipped_to_the_percentiles_of_labeled_voxels_and_other_volumes_are_standardized():
    values = [np.arange(201, dtype=np.float32)[:, None], np.zeros((0, 1), np.float32)]
    statistics = VolumeStatistics.of(np.ones((2, 3)), values)
    assert statistics.foreground.clip == (1, 199)
    assert statistics.channels == {1: 2}
    config = DataConfig()
    for modality in ("CT", "ct"):
        normalization = statistics.normalization(modality, config)
        assert (normalization.clip, normalization.mean, normalization.standardize) == ((1, 199), (100,), False)
        assert normalization.std == pytest.approx((58.0230,), abs=1e-4)
    for modality in (None, "MRI"):
        normalization = statistics.normalization(modality, config)
        assert normalization[:2] == ((0,), (1,))
        assert normalization.clip is None
        assert normalization.standardize
    assert statistics.normalization("CT", DataConfig(normalization="z-score")).standardize
    assert statistics.normalization("MRI", DataConfig(normalization="ct")).clip == (1, 199)


def test_constant_voxels_are_not_clipped_and_unlabeled_ones_cannot_be_measured():
    constant = VolumeStatistics.of(np.ones((1, 3)), [np.full((5, 1), 7, np.float32)])
    normalization = constant.normalization("CT", DataConfig())
    assert (normalization.clip, normalization.mean, normalization.std) == (None, (7,), (1,))
    unlabeled = VolumeStatistics.of(np.ones((1, 3)), [np.zeros((0, 1), np.float32)])
    assert unlabeled.foreground is None
    with pytest.raises(DataError, match="is measured on labeled voxels, but there are none"):
        unlabeled.normalization("CT", DataConfig())


def test_volumes_of_other_channels_are_an_error_unless_they_are_skipped():
    values = [np.zeros((2, channels), np.float32) for channels in (2, 1, 2)]
    statistics = VolumeStatistics.of(np.ones((3, 3)), values)
    assert statistics.channels == {2: 2, 1: 1}
    assert statistics.foreground is None
    with pytest.raises(DataError, match="volumes have 1 and 2 channels; --check-data lists them"):
        statistics.normalization(None, DataConfig())
    assert statistics.normalization(None, DataConfig(on_bad_sample="skip")).mean == (0, 0)
    mostly_grey = VolumeStatistics.of(np.ones((3, 3)), [values[1], values[0], values[1]])
    assert mostly_grey.normalization(None, DataConfig(on_bad_sample="skip")).mean == (0,)
