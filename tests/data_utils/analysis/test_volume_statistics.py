"""Statistics of volumes: the spacing that they are resampled to, and how they are normalized."""

import json

import numpy as np
import pytest
from support.volumes import ANISOTROPIC, volume_config, write_decathlon

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.volume_statistics import VolumeStatistics, target_spacing
from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import load_records
from runtime.errors import DataError


@pytest.mark.parametrize("labeled", [5, 0], ids=["labeled voxels", "no labeled voxel"])
def test_statistics_are_stored_and_read_again(labeled):
    values = [np.arange(2 * labeled, dtype=np.float32).reshape(labeled, 2)] * 2
    statistics = VolumeStatistics.from_volumes(np.array([[2, 1, 1], [0, 0, 0]], float), values)
    again = VolumeStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    assert again.spacings.tolist() == statistics.spacings.tolist()
    assert again.channels == {2: 2}
    assert again.foreground == statistics.foreground
    assert (again.foreground is None) == (labeled == 0)


@pytest.mark.parametrize(
    ("spacings", "target"),
    [
        ([[1.0, 1.0, 1.0], [2.0, 0.5, 0.8], [3.0, 0.8, 0.8]], (2.0, 0.8, 0.8)),
        ([[3.0, 1.0, 1.0]] * 9 + [[1.0, 1.0, 1.0]] * 2, (3, 1, 1)),
        ([[1.0, 1.0, 1 / 3]], (1, 1, 0.333333)),
    ],
    ids=["median", "three times", "a third"],
)
def test_axes_of_alike_spacings_have_the_median(spacings, target):
    assert target_spacing(np.array(spacings)) == target


@pytest.mark.parametrize(
    ("spacings", "target"),
    [
        ([[6.0, 1.0, 1.0]] * 9 + [[2.0, 1.0, 1.0]] * 2, (2, 1, 1)),
        ([[float(z), 0.7, 0.7] for z in (1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5)], (2.0, 0.7, 0.7)),
        ([[0.1, 0.7, 0.7], *[[5.0, 0.7, 0.7]] * 3], (pytest.approx(1.57), 0.7, 0.7)),
    ],
    ids=["two of eleven", "one to five", "one of four"],
)
def test_an_axis_beyond_three_times_the_finest_has_the_spacing_of_the_finest_tenth(spacings, target):
    assert target_spacing(np.array(spacings)) == target


@pytest.fixture
def statistics():
    """Statistics of two volumes of one channel, of which the first has labeled voxels from 0 to 200."""
    values = [np.arange(201, dtype=np.float32)[:, None], np.zeros((0, 1), np.float32)]
    return VolumeStatistics.from_volumes(np.ones((2, 3)), values)


@pytest.mark.parametrize("modality", ["CT", "ct"])
def test_ct_is_clipped_to_the_percentiles_of_labeled_voxels(statistics, modality):
    assert statistics.foreground.clip == (1, 199)
    normalization = statistics.normalization(modality, DataConfig())
    assert normalization.clip == (1, 199)
    assert normalization.mean == (100,)
    assert normalization.std == pytest.approx((58.0230,), abs=1e-4)
    assert not normalization.standardize


@pytest.mark.parametrize("modality", [None, "MRI", "PET, CT"])
def test_volumes_that_are_no_ct_are_standardized(statistics, modality):
    normalization = statistics.normalization(modality, DataConfig())
    assert normalization.mean == (0,)
    assert normalization.std == (1,)
    assert normalization.clip is None
    assert normalization.standardize


def test_a_flag_chooses_the_normalization_whatever_the_modality(statistics):
    assert statistics.normalization("CT", DataConfig(normalization="z-score")).standardize
    assert statistics.normalization("MRI", DataConfig(normalization="ct")).clip == (1, 199)


@pytest.fixture(scope="module")
def anisotropic_ct(tmp_path_factory):
    """A folder of four volumes of CT with voxels of 4 x 0.75 x 0.5 mm."""
    return write_decathlon(tmp_path_factory.mktemp("ct"), affine=ANISOTROPIC)


def test_normalization_of_ct_is_measured_on_labeled_voxels_of_the_training_split(anisotropic_ct):
    train, _ = load_records(volume_config(anisotropic_ct))
    pairs = [(read_volume(r["image"], "a")[0], read_label_volume(r["target"], "a")[0]) for r in train]
    labeled = np.concatenate([voxels[mask > 0] for voxels, mask in pairs]).astype(np.float64)
    preprocess = load_dataset_info(volume_config(anisotropic_ct)).preprocess()
    assert preprocess.clip == pytest.approx(np.percentile(labeled, [0.5, 99.5]))
    assert preprocess.mean[0] == pytest.approx(labeled.mean())
    assert preprocess.std[0] == pytest.approx(labeled.std())
    assert not preprocess.standardize


def test_preprocessing_has_the_spacing_and_classes_of_the_volumes(anisotropic_ct):
    preprocess = load_dataset_info(volume_config(anisotropic_ct)).preprocess()
    assert preprocess.spacing == (4.0, 0.75, 0.5)
    assert preprocess.class_names[1] == "liver"


def test_constant_voxels_are_not_clipped():
    constant = VolumeStatistics.from_volumes(np.ones((1, 3)), [np.full((5, 1), 7, np.float32)])
    normalization = constant.normalization("CT", DataConfig())
    assert normalization.clip is None
    assert normalization.mean == (7,)
    assert normalization.std == (1,)


def test_unlabeled_voxels_cannot_be_measured():
    unlabeled = VolumeStatistics.from_volumes(np.ones((1, 3)), [np.zeros((0, 1), np.float32)])
    assert unlabeled.foreground is None
    with pytest.raises(DataError, match="is measured on labeled voxels, but there are none"):
        unlabeled.normalization("CT", DataConfig())


VALUES_OF_CHANNELS = {channels: np.zeros((2, channels), np.float32) for channels in (1, 2)}


def test_volumes_of_other_channels_are_an_error():
    statistics = VolumeStatistics.from_volumes(
        np.ones((3, 3)), [VALUES_OF_CHANNELS[channels] for channels in (2, 1, 2)]
    )
    assert statistics.channels == {2: 2, 1: 1}
    assert statistics.foreground is None
    with pytest.raises(DataError, match="volumes have 1 and 2 channels; --check-data lists them"):
        statistics.normalization(None, DataConfig())


@pytest.mark.parametrize(("channels", "mean"), [((2, 1, 2), (0, 0)), ((1, 2, 1), (0,))])
def test_volumes_have_the_channels_of_most_where_others_are_skipped(channels, mean):
    statistics = VolumeStatistics.from_volumes(np.ones((3, 3)), [VALUES_OF_CHANNELS[count] for count in channels])
    assert statistics.normalization(None, DataConfig(on_bad_sample="skip")).mean == mean
