"""Mean and standard deviation of training images, and the spacing and the normalization of volumes."""

import numpy as np
import pytest
import tifffile
from support.inspections import PICTURE
from support.rasters import write_raster
from support.volumes import ANISOTROPIC, volume_config, write_decathlon

from data_utils.analysis import normalization as normalization_module
from data_utils.analysis.normalization import (
    Normalization,
    channel_statistics,
    channel_sums,
    measure_foreground,
    measure_normalization,
    read_sample,
    target_spacing,
    volume_normalization,
)
from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info


def test_a_constant_channel_is_divided_by_one():
    image = np.zeros((4, 5, 2), np.uint8)
    image[..., 0] = 7
    image[:2, :, 1] = 10
    mean, std = channel_statistics([channel_sums(image)])
    assert mean == (7, 5)
    assert std == (1, 5)


@pytest.mark.parametrize("corner", [0, 52])
def test_places_without_data_in_one_window_of_a_large_image_do_not_count(tmp_path, monkeypatch, corner):
    pixels = np.full((1, 60, 60), 7, np.uint8)
    pixels[0, corner : corner + 8, corner : corner + 8] = 99
    path = write_raster(tmp_path / "a.tif", pixels, nodata=99, tiled=True, blockxsize=16, blockysize=16)
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 16)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    sample = read_sample(str(path), "a")
    assert len(sample) > 60
    assert channel_statistics([channel_sums(sample)]) == ((7,), (1,))
    assert channel_sums(sample).pixel_type == "uint8"


def test_a_channel_without_data_has_the_mean_0_and_is_divided_by_one():
    image = np.ma.MaskedArray(np.full((2, 2, 2), 7, np.uint8), [[[False, True]] * 2] * 2)
    assert channel_statistics([channel_sums(image)]) == ((7, 0), (1, 1))


def test_a_grey_image_among_color_images_counts_in_every_channel():
    color = np.zeros((1, 1, 3), np.uint8)
    color[0, 0] = 10, 20, 30
    grey = np.full((1, 3, 1), 50, np.uint8)
    mean, std = channel_statistics([channel_sums(color), channel_sums(grey)])
    assert mean == (40, 42.5, 45)
    assert std == pytest.approx((300**0.5, 168.75**0.5, 75**0.5))


def test_other_numbers_of_channels_are_an_error_unless_they_are_skipped():
    images = [np.full((2, 2, channels), channels, np.uint8) for channels in (4, 3, 3)]
    sums = [channel_sums(image) for image in images]
    with pytest.raises(DataError, match="3 and 4 channels"):
        channel_statistics(sums)
    assert channel_statistics(sums, skip=True) == ((3, 3, 3), (1, 1, 1))


def test_a_large_image_is_measured_on_windows_from_its_first_to_its_last_row_and_column(tmp_path, monkeypatch):
    pixels = np.arange(90 * 70, dtype=np.uint16).reshape(90, 70)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", tile=(16, 16))
    monkeypatch.setattr(normalization_module, "SIDE", 16)
    assert read_sample(str(tmp_path / "a.tif"), "a").shape == (90, 70, 1)  # it is small
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    sample = read_sample(str(tmp_path / "a.tif"), "a")
    assert sample.shape == (16 * 16, 16, 1)
    windows = sample.reshape(4, 4, 16, 16)
    tops = [int(window[0, 0]) // 70 for window in windows[:, 0]]
    lefts = [int(window[0, 0]) % 70 for window in windows[0]]
    assert tops == [0, 24, 49, 74]
    assert lefts == [0, 18, 36, 54]
    assert windows[-1, -1, -1, -1] == pixels[-1, -1]


@pytest.fixture
def measured_images(monkeypatch):
    """Which of 200 images are measured, with a seed and without bad images."""
    records = ListRecords([{"image": np.full((1, 1), i, np.uint8), "target": PICTURE, "name": "a"} for i in range(200)])

    def measure(seed: int, bad: tuple[int, ...] = ()) -> set[int]:
        indices: list[int] = []

        def noted_sums(image: np.ndarray):
            indices.append(image.item())
            return channel_sums(image)

        monkeypatch.setattr(normalization_module, "channel_sums", noted_sums)
        measure_normalization(records, DataConfig(seed=seed), bad)
        assert len(set(indices)) == len(indices)
        return set(indices)

    return measure


def test_128_images_that_the_seed_draws_are_measured(measured_images):
    assert len(measured_images(seed=0)) == 128
    assert measured_images(seed=0) == measured_images(seed=0)
    assert measured_images(seed=0) != measured_images(seed=1)


def test_bad_images_are_not_measured(measured_images):
    images = measured_images(seed=0)
    bad = (min(images), max(images))
    assert measured_images(seed=0, bad=bad) == images - set(bad)


def test_an_image_that_cannot_be_measured_is_left_out_where_bad_ones_are_skipped():
    images = [np.full((2, 2, channels), channels, np.uint8) for channels in (3, 4, 3)]
    records = ListRecords([{"image": image, "target": PICTURE, "name": "a"} for image in images])
    assert measure_normalization(records, DataConfig(on_bad_sample="skip"), ()).mean == (3, 3, 3)
    bad = np.full((2, 2), np.nan, np.float32)
    records = ListRecords([{"image": image, "target": PICTURE, "name": "a"} for image in (bad, np.ones((2, 2)))])
    assert measure_normalization(records, DataConfig(on_bad_sample="skip"), ()).mean == (1,)
    with pytest.raises(DataError, match="a: has pixels that are not numbers"):
        measure_normalization(records, DataConfig(), ())


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
    channels = np.array([volume_values.shape[1] for volume_values in values])
    return volume_normalization(channels, measure_foreground(values), modality, DataConfig(**settings))


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
