"""Mean and standard deviation of training images, and the spacing and the normalization of volumes."""

import numpy as np
import pytest
import tifffile
from support.inspections import PICTURE
from support.rasters import write_raster
from support.volumes import ANISOTROPIC, case, volume_config, write_decathlon, write_nifti

from data_utils.analysis.normalization import (
    Normalization,
    measure_foreground,
    measure_normalization,
    target_spacing,
    volume_normalization,
)
from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info


def normalization_of_images(*images: np.ndarray, bad=(), **settings) -> Normalization:
    records = Records(ListRows([{"image": image, "target": PICTURE, "name": "a"} for image in images]))
    return measure_normalization(records, DataConfig(**settings), bad)


CONSTANT = np.full((4, 5, 2), 7, np.uint8)
CONSTANT[:2, :, 1] = 17
COLOR = np.uint8([[[10, 20, 30]]])
GREY = np.full((1, 3, 1), 50, np.uint8)
CONSTANT_FLOAT = np.full((89, 48), 0.1, np.float32)
LACKING = np.ma.MaskedArray(np.full((2, 2, 2), 7, np.uint8), [[[False, True]] * 2] * 2)
OF_3, OF_4 = (np.full((2, 2, channels), channels, np.uint8) for channels in (3, 4))
INFINITE = np.full((2, 2), np.nan, np.float32)
DIM = np.tile(np.uint16([100, 110]), 10_000)[None]
HOT = DIM.copy()
HOT[0, :4] = 65535  # counts as 110 + 4 * 10
BRIGHT_BYTES = np.array(DIM, np.uint8)
BRIGHT_BYTES[0, :4] = 255


@pytest.mark.parametrize(
    ("images", "settings", "mean", "std"),
    [
        ([CONSTANT], {}, (7, 12), (1, 5)),
        ([CONSTANT_FLOAT], {}, (0.1,), (1,)),
        ([COLOR, GREY], {}, (40, 42.5, 45), (300**0.5, 168.75**0.5, 75**0.5)),
        ([LACKING], {}, (7, 0), (1, 1)),
        ([HOT], {}, (105.009,), (5.0398,)),
        ([BRIGHT_BYTES], {}, (105.03,), (5.4308,)),
        ([OF_4, OF_3, OF_3], {"on_bad_sample": "skip"}, (3, 3, 3), (1, 1, 1)),
        ([INFINITE, np.ones((2, 2), np.uint8)], {"on_bad_sample": "skip"}, (1,), (1,)),
    ],
    ids=["constant", "fraction", "grey beside color", "no data", "hot pixels", "bytes", "other channels", "unreadable"],
)
def test_mean_and_deviation_are_those_of_all_pixels_that_are_known(images, settings, mean, std):
    normalization = normalization_of_images(*images, **settings)
    assert normalization.mean == pytest.approx(mean, rel=1e-4)
    assert normalization.std == pytest.approx(std, rel=1e-4)


@pytest.mark.parametrize(
    ("images", "line"),
    [([OF_4, OF_3, OF_3], "images have 3 and 4 channels"), ([INFINITE], "a: has pixels that are not numbers")],
)
def test_images_that_cannot_be_measured_are_an_error(images, line):
    with pytest.raises(DataError, match=line):
        normalization_of_images(*images)


def test_128_images_that_the_seed_draws_are_measured_but_for_bad_ones():
    images = [np.full((1, 1), number, np.uint8) for number in range(200)]
    drawn = np.random.default_rng(5).permutation(200)[:128]
    assert normalization_of_images(*images, seed=5).mean == pytest.approx((drawn.mean(),))
    assert normalization_of_images(*images, seed=5, bad=drawn[:9].tolist()).mean == pytest.approx((drawn[9:].mean(),))


def test_a_large_image_is_measured_on_windows_from_its_first_to_its_last_row_and_column(tmp_path, monkeypatch):
    pixels = np.arange(90 * 70, dtype=np.uint16).reshape(90, 70)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", tile=(16, 16))
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 16)
    image = str(tmp_path / "a.tif")
    assert normalization_of_images(image, crop_size=(8, 8)).mean == pytest.approx((pixels.mean(),))  # it is small
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    windows = [pixels[top : top + 16, left : left + 16] for top in (0, 24, 49, 74) for left in (0, 18, 36, 54)]
    normalization = normalization_of_images(image, crop_size=(8, 8))
    assert normalization.mean == pytest.approx((np.mean(windows),))
    assert normalization.std == pytest.approx((np.std(windows),))


@pytest.mark.parametrize("corner", [0, 52])
def test_places_without_data_in_one_window_of_a_large_image_do_not_count(tmp_path, monkeypatch, corner):
    pixels = np.full((1, 60, 60), 7, np.uint8)
    pixels[0, corner : corner + 8, corner : corner + 8] = 99
    path = write_raster(tmp_path / "a.tif", pixels, nodata=99, tiled=True, blockxsize=16, blockysize=16)
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 16)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    assert normalization_of_images(str(path), crop_size=(8, 8)) == Normalization((7,), (1,), ("uint8",))


@pytest.mark.parametrize(
    ("spacings", "target"),
    [
        ([[1.0, 1.0, 1.0], [2.0, 0.5, 0.8], [3.0, 0.8, 0.8]], (2.0, 0.8, 0.8)),
        ([[3.0, 1.0, 1.0]] * 9 + [[1.0, 1.0, 1.0]] * 2, (3, 1, 1)),
        ([[1.0, 1.0, 1 / 3]], (1, 1, 0.333333)),
        ([[6.0, 1.0, 1.0]] * 9 + [[2.0, 1.0, 1.0]] * 2, (2, 1, 1)),
        ([[float(z), 0.7, 0.7] for z in (1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5)], (2.0, 0.7, 0.7)),
        ([[0.1, 0.7, 0.7], *[[5.0, 0.7, 0.7]] * 3], (pytest.approx(1.57), 0.7, 0.7)),
    ],
    ids=["median", "three times", "a third", "coarse, two of eleven", "coarse, one to five", "coarse, one of four"],
)
def test_axes_have_the_median_spacing_and_coarse_ones_that_of_the_finest_tenth(spacings, target):
    assert target_spacing(np.array(spacings)) == target


def normalization_of(values: list[np.ndarray], modality: str | None = None, **settings) -> Normalization:
    """The normalization of volumes whose labeled voxels have these values, (n, C) each."""
    channels = np.array([volume_values.shape[1] for volume_values in values])
    return volume_normalization(channels, measure_foreground(values), modality, DataConfig(**settings))


# of two volumes of one channel, of which the first has labeled voxels from 0 to 200
TWO_VOLUMES = [np.arange(201, dtype=np.float32)[:, None], np.zeros((0, 1), np.float32)]
STANDARDIZED = Normalization((0.0,), (1.0,), (), standardize=True)
CLIPPED = Normalization((100.0,), (pytest.approx(58.0230, abs=1e-4),), (), (1.0, 199.0))


@pytest.mark.parametrize(
    ("modality", "flag", "normalization"),
    [
        ("CT", None, CLIPPED),
        ("ct", None, CLIPPED),
        ("MRI", "ct", CLIPPED),
        (None, None, STANDARDIZED),
        ("PET, CT", None, STANDARDIZED),
        ("CT", "z-score", STANDARDIZED),
    ],
)
def test_ct_is_clipped_to_the_percentiles_of_labeled_voxels_and_other_volumes_are_standardized(
    modality, flag, normalization
):
    assert normalization_of(TWO_VOLUMES, modality, normalization=flag) == normalization


def test_normalization_of_ct_is_measured_on_labeled_voxels_of_the_training_split(tmp_path):
    anisotropic_ct = write_decathlon(tmp_path, affine=ANISOTROPIC)
    train, _ = load_records(volume_config(anisotropic_ct))
    pairs = [(read_volume(r["image"], "a")[0], read_label_volume(r["target"], "a")[0]) for r in train]
    labeled = np.concatenate([voxels[mask > 0] for voxels, mask in pairs]).astype(np.float64)
    preprocess = load_dataset_info(volume_config(anisotropic_ct)).preprocess()
    assert preprocess.clip == pytest.approx(np.percentile(labeled, [0.5, 99.5]))
    assert preprocess.mean[0] == pytest.approx(labeled.mean())
    assert preprocess.std[0] == pytest.approx(labeled.std())
    assert not preprocess.standardize
    assert preprocess.spacing == (4.0, 0.75, 0.5)
    assert preprocess.class_names[1] == "liver"


def test_voxels_of_255_are_labeled_if_labels_hold_nothing_else(tmp_path):
    normalizations = []
    for highest in (1, 255):
        for seed in range(3):
            image, label = case(seed)
            write_nifti(tmp_path / f"{highest}" / "images" / f"{seed}.nii", image)
            write_nifti(tmp_path / f"{highest}" / "masks" / f"{seed}.nii", ((label > 0) * highest).astype(np.uint8))
        config = volume_config(tmp_path / f"{highest}", normalization="ct", crop_size=(8, 8, 8))
        normalizations.append(load_dataset_info(config).normalization)
    assert normalizations[0] == normalizations[1]


def test_constant_voxels_are_not_clipped_and_unlabeled_ones_cannot_be_measured():
    assert normalization_of([np.full((5, 1), 7, np.float32)], "CT") == Normalization((7.0,), (1.0,), ())
    with pytest.raises(DataError, match="is measured on labeled voxels, but there are none"):
        normalization_of([np.zeros((0, 1), np.float32)], "CT")


def test_volumes_of_other_channels_are_an_error_unless_they_are_skipped():
    volumes = [np.zeros((2, count), np.float32) for count in (2, 1, 2)]
    with pytest.raises(DataError, match="volumes have 1 and 2 channels; --check-data lists them"):
        normalization_of(volumes)
    assert normalization_of(volumes, on_bad_sample="skip").mean == (0, 0)
