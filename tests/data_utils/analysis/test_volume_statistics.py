"""Statistics of volumes: the spacing that they are resampled to, and how they are normalized."""

import numpy as np
import pytest
from support.volumes import ANISOTROPIC, volume_config, write_decathlon

from data_utils.analysis.inspection import SplitInspection
from data_utils.analysis.normalization import Normalization
from data_utils.analysis.volume_statistics import measure_foreground, target_spacing, volume_normalization
from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import load_records
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info


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


def normalization_of(values: list[np.ndarray], modality: str | None = None, **settings) -> Normalization:
    """The normalization of volumes whose labeled voxels have these values, (n, C) each."""
    inspection = SplitInspection.empty(len(values), 3)
    inspection.channels[:] = [volume_values.shape[1] for volume_values in values]
    inspection.foreground = measure_foreground(values)
    return volume_normalization(inspection, modality, DataConfig(**settings))


# of two volumes of one channel, of which the first has labeled voxels from 0 to 200
TWO_VOLUMES = [np.arange(201, dtype=np.float32)[:, None], np.zeros((0, 1), np.float32)]


@pytest.mark.parametrize("modality", ["CT", "ct"])
def test_ct_is_clipped_to_the_percentiles_of_labeled_voxels(modality):
    normalization = normalization_of(TWO_VOLUMES, modality)
    assert normalization.clip == (1, 199)
    assert normalization.mean == (100,)
    assert normalization.std == pytest.approx((58.0230,), abs=1e-4)
    assert not normalization.standardize


@pytest.mark.parametrize("modality", [None, "MRI", "PET, CT"])
def test_volumes_that_are_no_ct_are_standardized(modality):
    normalization = normalization_of(TWO_VOLUMES, modality)
    assert normalization.mean == (0,)
    assert normalization.std == (1,)
    assert normalization.clip is None
    assert normalization.standardize


def test_a_flag_chooses_the_normalization_whatever_the_modality():
    assert normalization_of(TWO_VOLUMES, "CT", normalization="z-score").standardize
    assert normalization_of(TWO_VOLUMES, "MRI", normalization="ct").clip == (1, 199)


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
    normalization = normalization_of([np.full((5, 1), 7, np.float32)], "CT")
    assert normalization.clip is None
    assert normalization.mean == (7,)
    assert normalization.std == (1,)


def test_unlabeled_voxels_cannot_be_measured():
    with pytest.raises(DataError, match="is measured on labeled voxels, but there are none"):
        normalization_of([np.zeros((0, 1), np.float32)], "CT")


VALUES_OF_CHANNELS = {channels: np.zeros((2, channels), np.float32) for channels in (1, 2)}


def test_volumes_of_other_channels_are_an_error():
    with pytest.raises(DataError, match="volumes have 1 and 2 channels; --check-data lists them"):
        normalization_of([VALUES_OF_CHANNELS[channels] for channels in (2, 1, 2)])


@pytest.mark.parametrize(("channels", "mean"), [((2, 1, 2), (0, 0)), ((1, 2, 1), (0,))])
def test_volumes_have_the_channels_of_most_where_others_are_skipped(channels, mean):
    assert normalization_of([VALUES_OF_CHANNELS[count] for count in channels], on_bad_sample="skip").mean == mean
