"""Small rules of images and volumes on their way to the network: what is turned, cropped around, and of which range.

Modules: data_utils/analysis/validate.py, data_utils/loading/draws.py, data_utils/loading/image_input.py,
data_utils/analysis/dataset_info.py, data_utils/sources/holdout.py.
"""

import numpy as np
import pytest
from conftest import load_info, write_folder
from volumes import write_msd

from data_utils.analysis.validate import name_values, odd_channels
from data_utils.class_map import ClassMap
from data_utils.image_io.windowed import WindowedArray
from data_utils.loading.draws import Draw, draw, pack_draws
from data_utils.loading.image_input import ImageInput, fit_channels
from data_utils.sources.holdout import hold_out_shards
from data_utils.sources.records import StreamRecords
from runtime.errors import DataError, ImageError
from unet.config import Preprocess


def test_images_of_other_channels_than_most_are_named():
    channels = {3: ["a", "b"], 4: ["c"], 1: ["d", "e", "f"]}
    assert odd_channels(channels, grey_fits=True) == ["c: has 4 channels, most others have 3"]
    assert odd_channels(channels, grey_fits=False) == [
        "a: has 3 channels, most others have 1",
        "b: has 3 channels, most others have 1",
        "c: has 4 channels, most others have 1",
    ]
    assert odd_channels({1: ["a"]}, grey_fits=True) == odd_channels({}, grey_fits=False) == []


@pytest.mark.parametrize(
    ("augment", "turned"), [("none", False), ("mirror", False), ("basic", False), ("strong", True)]
)
def test_only_strong_augmentation_shows_turned_images(tmp_path, augment, turned):
    info = load_info(write_folder(tmp_path, 3, seed=0, size=(8, 8)), augment=augment)
    assert info.preprocess().turned is turned


def test_volumes_are_cropped_around_what_is_not_background(tmp_path):
    info = load_info(write_msd(tmp_path, cases=3, shape=(6, 7, 8)), crop_size=(4, 4, 4))
    names = info.reader.class_map.names
    assert info.train.class_locations
    for locations in info.train.class_locations.values():
        assert 0 < len(locations) < len(names)


def draws_of(strength: str, spacing: tuple[float, float, float], count: int = 300) -> list[Draw]:
    return [
        draw((0, index), strength=strength, seed=0, size=(8, 9, 10), channels=1, spacing=spacing)
        for index in range(count)
    ]


def test_volumes_are_mirrored_left_and_right_alone_unless_augmentation_is_strong():
    signs = {"basic": set(), "strong": set()}
    for strength, seen in signs.items():
        for drawn in draws_of(strength, (1.0, 1.0, 1.0)):
            seen.add(tuple(np.sign(np.diag(drawn.matrix)).astype(int).tolist()))  # of offsets (x, y, z)
    assert signs["basic"] == {(1, 1, 1), (-1, 1, 1)}
    assert len(signs["strong"]) == 8


def test_thick_slices_are_turned_only_within_their_plane_and_keep_their_resolution():
    resolutions = []
    for drawn in draws_of("basic", (5.0, 1.0, 1.0)):
        turns_out_of_plane = [*drawn.matrix[2, :2], *drawn.matrix[:2, 2]]
        assert turns_out_of_plane == [0, 0, 0, 0]
        assert 0.8 <= drawn.matrix[2, 2] <= 1.25 and 0.7 <= drawn.gamma <= 1.5
        if drawn.resolution:
            resolutions.append(drawn.resolution)
    assert 50 < len(resolutions) < 100  # one time in four
    assert {resolution[0] for resolution in resolutions} == {1.0}
    assert all(0.5 <= share <= 1 for resolution in resolutions for share in resolution[1:])


def test_tilts_are_of_fifteen_degrees_and_zooms_of_a_quarter():
    angles = []
    zooms = []
    for index in range(400):
        matrix = draw((1, index), strength="basic", seed=0, size=(20, 30), channels=3).matrix
        zooms.append(1 / np.sqrt(abs(np.linalg.det(matrix))))
        angles.append(abs(np.degrees(np.arctan2(matrix[1, 0], matrix[1, 1]))))
    assert 14.5 < max(angles) <= 15 and 0.8 <= min(zooms) < 0.805 and 1.23 < max(zooms) <= 1.25


def test_the_numbers_of_a_draw_are_packed_in_their_order():
    drawn = Draw(
        np.array([[1.0, 2.0], [3.0, 4.0]]), np.arange(18.0).reshape(2, 3, 3), gain=5.0, shift=np.array([6.0, 7.0])
    )
    numbers = pack_draws([drawn, Draw()], channels=2)
    assert numbers.shape == (2, 4 + 18 + 4)
    assert numbers[0].tolist() == [1, 2, 3, 4, *range(18), 5, 5, 6, 7]
    assert numbers[1].tolist() == [1, 0, 0, 1, *[0] * 18, 1, 1, 0, 0]


def test_whether_pixels_are_from_0_to_1_is_asked_of_the_whole_image():
    preprocess = Preprocess(detect_unit_range=True)
    pixels = np.zeros((300, 2, 1), np.uint8)
    pixels[:290] = 1
    image = ImageInput(WindowedArray(pixels), preprocess, 1)
    assert image.strip(0, 3).max() == image.whole().max() == 255
    assert image.strip(290, 300).max() == 0
    pixels[299] = 2  # in another part than the rows that are asked for
    image = ImageInput(WindowedArray(pixels), preprocess, 1)
    assert image.strip(0, 3).max() == 1 and image.whole()[0, 0, 0] == 1
    image = ImageInput(WindowedArray(pixels), Preprocess(), 1)
    assert image.strip(0, 3).max() == 1


def test_channels_are_repeated_or_reduced_where_that_loses_nothing():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    assert fit_channels(grey, 1) is grey
    repeated = fit_channels(grey, 3)
    assert repeated.shape == (2, 3, 3) and (repeated == grey).all()
    assert np.array_equal(fit_channels(repeated, 1), grey)
    color = repeated.copy()
    color[0, 0, 2] += 1
    with pytest.raises(ImageError, match=r"a\.png: has 3 channels, the model takes 1; convert the image"):
        fit_channels(color, 1, "a.png")
    with pytest.raises(ImageError, match="has 3 channels, the model takes 4"):
        fit_channels(color, 4)


class Stream(StreamRecords):
    """Files of records that are never read."""

    def part(self, chosen: np.ndarray) -> "Stream":
        return Stream(self.files, self.groups[chosen], self.group_sizes[chosen])

    def _read_group(self, group: int) -> None:
        raise AssertionError

    def __getitem__(self, index: int) -> dict:
        raise AssertionError


@pytest.mark.parametrize(
    ("sizes", "fraction", "held_out"),
    [((10, 10), 0.01, 10), ((10, 10), 1.0, 10), ((10, 10, 10, 10), 0.25, 10), ((10, 10, 10, 10), 0.26, 20)],
)
def test_whole_files_of_a_stream_are_held_out_and_one_is_left_to_train_on(sizes, fraction, held_out):
    groups = np.array([(number, 0) for number in range(len(sizes))])
    for seed in range(3):
        train, val = hold_out_shards(Stream(["a", "b", "c", "d"], groups, np.array(sizes)), fraction, seed)
        assert (len(val), len(train)) == (held_out, sum(sizes) - held_out)
        assert not set(train.groups[:, 0]) & set(val.groups[:, 0])
    with pytest.raises(DataError, match="a stream of 1 file has no file to validate on"):
        hold_out_shards(Stream(["a"], groups[:1], np.array([10])), fraction, 0)


def test_each_mask_value_is_named_by_its_class_or_as_ignored():
    class_map = ClassMap(("sky", "land"), (0, 9), 255)
    assert name_values({0: 4, 9: 3, 255: 2, 7: 1}, class_map) == {0: "sky", 9: "land", 255: "(ignored)"}
