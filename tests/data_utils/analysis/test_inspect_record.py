"""One look at an image and its mask, at a volume and its label, and at points: what is found, and what is a problem.

Modules: data_utils/analysis/inspect_record.py, data_utils/analysis/problems.py.
"""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.inspections import inspected
from support.volumes import write_volume

from data_utils.analysis.inspect_record import Inspection
from data_utils.analysis.problems import Problem, merge_equal
from data_utils.image_io.formats import Box, PointSource, VolumeFile
from data_utils.image_io.rasters import Raster
from data_utils.point_states import ABSENT, PRESENT
from data_utils.sources.points.spaces import PIXELS


def write_mask(folder: Path, name: str, mask: np.ndarray, **options) -> dict:
    """A record of a black picture and a mask in a file."""
    Image.fromarray(mask).save(folder / name, **options)
    return {"image": np.zeros(mask.shape[:2], np.uint8), "target": str(folder / name), "name": "a"}


NUMBERS = np.array([[0, 9], [9, 9]], np.uint8)
GREYS = np.repeat(NUMBERS[:, :, None], 3, axis=2)
COLORS = GREYS + np.array([[[0, 7, 0], [0, 0, 0]]], np.uint8)


@pytest.mark.parametrize(
    ("mask", "kind"), [(NUMBERS, "numbers"), (GREYS, "greys"), (COLORS, "colors")], ids=["numbers", "greys", "colors"]
)
def test_values_are_numbers_or_greys_or_colors_as_they_are_stored(tmp_path, mask, kind):
    assert inspected(write_mask(tmp_path, "a.png", mask)).kind == kind


@pytest.mark.parametrize("value", [np.nan, np.inf, -2e30])
@pytest.mark.parametrize(("suffix", "is_large"), [("tif", False), ("npy", False), ("npy", True)])
def test_a_pixel_that_counts_as_infinite_is_named(tmp_path, monkeypatch, value, suffix, is_large):
    if is_large:
        monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    image = np.zeros((48, 32), np.float32)
    record = write_mask(tmp_path, "mask.png", image.astype(np.uint8)) | {"image": str(tmp_path / f"a.{suffix}")}
    for pixel, is_named in ((1e29, False), (value, True)):
        image[40, 5] = pixel
        np.save(tmp_path / "a.npy", image)
        Image.fromarray(image).save(tmp_path / "a.tif")
        problem = inspected(record, windows=is_large)
        assert isinstance(problem, Problem) is is_named
    assert problem.kind == "image cannot be read"
    assert problem.text.startswith("a: has pixels that are not numbers (NaN or infinite)")


def test_a_mask_of_a_photograph_that_exif_turns_is_refused_with_a_word_on_exif(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    record = write_mask(tmp_path, "mask.png", np.zeros((20, 30), np.uint8)) | {"image": str(tmp_path / "a.jpg")}
    kind, text = inspected(record)
    assert kind == "mask and image differ in proportions"
    assert text.startswith("a: image is 30 x 20, its mask 20 x 30 (height x width)")
    assert "EXIF" in text


def test_a_jpeg_of_three_values_has_invented_some(tmp_path):
    blocks = np.repeat(np.repeat(np.array([[128, 255], [255, 0]], np.uint8), 16, axis=0), 16, axis=1)
    record = write_mask(tmp_path, "three.jpg", blocks, quality=100)
    kind, text = inspected(record)
    assert kind == "lossy mask"
    assert "a: mask is a JPEG with the values 0, 128, 255; comp" in text
    assert inspected(record, takes_jpeg=True).pixels == {0: 256, 128: 256, 255: 512}


NOWHERE = VolumeFile(("nowhere.nii",))
POINTS = PointSource("points.csv", PIXELS, np.array([[3.0, 2.0]]), np.array([PRESENT]), (40, 10))


@pytest.mark.parametrize(
    ("image", "target", "kind"),
    [
        ("nowhere.png", np.zeros((2, 2), np.uint8), "image cannot be read"),
        (np.zeros((2, 2), np.uint8), "nowhere.png", "mask cannot be read"),
        (NOWHERE, VolumeFile(("label.nii",)), "image cannot be read"),
        (VolumeFile(("image.nii",)), NOWHERE, "label cannot be read"),
        ("nowhere.png", POINTS, "image cannot be read"),
        (NOWHERE, POINTS, "image cannot be read"),
        (np.zeros((16, 20), np.uint8), POINTS, "points of an image of another shape"),
    ],
)
def test_an_image_that_cannot_be_read_is_told_from_its_target(tmp_path, monkeypatch, image, target, kind):
    monkeypatch.chdir(tmp_path)
    for name in ("image.nii", "label.nii"):
        write_volume(tmp_path / name, np.zeros((3, 4, 5), np.uint8))
    problem = inspected({"image": image, "target": target, "name": "a"})
    assert problem.kind == kind
    assert problem.text.startswith("a")


def test_an_image_that_is_damaged_behind_its_header_is_found_where_images_are_decoded(tmp_path):
    record = write_mask(tmp_path, "mask.png", NUMBERS) | {"image": str(tmp_path / "image.png")}
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (2, 2, 3), np.uint8)).save(record["image"])
    assert inspected(record, decodes=True).channels == 3
    content = Path(record["image"]).read_bytes()
    Path(record["image"]).write_bytes(content[:45])
    assert isinstance(inspected(record), Inspection)
    assert inspected(record, decodes=True).kind == "image cannot be read"


def test_problems_of_four_files_are_a_one_line_error_whatever_their_values():
    texts = [f"{name}.png: mask values {number}7, 9{number} belong to no class" for number, name in enumerate("abcd")]
    assert merge_equal(texts) == ["4 files (a.png, b.png, c.png, ...): mask values 07, 90 belong to no class"]
    assert merge_equal(texts[:3]) == texts[:3]
    assert merge_equal([f"all.json: object {number} is no polygon" for number in range(4)]) == [
        "all.json: object 0 is no polygon"
    ]


# large images, whose masks are read in strips


def write_pair(folder: Path, mask: np.ndarray) -> dict:
    """A record of a tiled TIFF and a mask of it."""
    image = np.zeros((*mask.shape[:2], 3), np.uint8)
    tifffile.imwrite(folder / "image.tif", image, photometric="rgb", tile=(32, 32))
    photometric = "rgb" if mask.ndim == 3 else "minisblack"
    tifffile.imwrite(folder / "mask.tif", mask, photometric=photometric, tile=(32, 32))
    return {"image": str(folder / "image.tif"), "target": str(folder / "mask.tif"), "name": "a"}


@pytest.fixture
def in_strips(monkeypatch):
    """All TIFFs are read in strips of 32 rows of 64 pixels."""
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    monkeypatch.setattr("data_utils.image_io.windowed.STRIP_PIXELS", 64 * 32)


@pytest.fixture
def large_mask(tmp_path, in_strips):
    """A record of a mask of three values, and the mask."""
    mask = np.random.default_rng(0).choice(np.uint8([0, 0, 0, 5]), (160, 64))
    mask[150, 7] = 9
    return write_pair(tmp_path, mask), mask


def test_the_strips_of_a_mask_hold_what_all_of_it_does_and_places_from_all_over(large_mask):
    record, mask = large_mask
    values, counts = np.unique(mask, return_counts=True)
    for windows in (False, True):
        found = inspected(record, windows=windows)
        assert found.pixels == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert inspected(record).class_locations is None
    for value in (0, 5):
        places = found.class_locations[value]
        assert len(places) == 64
        assert (mask[tuple(places.T)] == value).all()
        assert places[:, 0].min() < 40
        assert places[:, 0].max() > 120


def test_no_more_of_a_large_image_and_its_mask_is_in_memory_than_a_strip(large_mask, monkeypatch):
    heights = []
    pixels = Raster.pixels

    def note(tiff: Raster, box: Box | None = None) -> np.ndarray:
        read = pixels(tiff, box)
        heights.append(len(read))
        return read

    monkeypatch.setattr(Raster, "pixels", note)
    inspected(large_mask[0], windows=True)
    assert max(heights) == 32


def test_strips_of_grey_in_a_color_mask_hold_colors(tmp_path, in_strips):
    mask = np.zeros((96, 64, 3), np.uint8)
    mask[:32, :7] = 9
    mask[64:, :5] = 9
    mask[40, 50] = 200, 9, 9
    found = inspected(write_pair(tmp_path, mask), windows=True)
    ground = 96 * 64 - 32 * 7 - 32 * 5 - 1
    assert found.kind == "colors"
    assert found.pixels == {(0, 0, 0): ground, (9, 9, 9): 32 * 12, (200, 9, 9): 1}
    assert set(found.class_locations[9, 9, 9][:, 0] // 32) == {0, 2}


def test_values_are_too_many_over_all_strips(tmp_path, in_strips):
    numbers = np.arange(32 * 64).reshape(32, 64) % 200
    record = write_pair(tmp_path, np.concatenate([numbers, 200 + numbers]).astype(np.uint16))
    assert inspected(record, windows=True).kind == "too many mask values"
    objects = inspected(record, has_classes=False, windows=True)
    assert len(objects.pixels) == 400
    numbers = np.arange(32 * 64, dtype=np.uint16).reshape(32, 64)
    found = inspected(write_pair(tmp_path, numbers), has_classes=False, windows=True)
    assert {value: len(places) for value, places in found.class_locations.items()} == {0: 1, 1: 64}  # any object


@pytest.mark.parametrize(("size", "is_resized"), [((64, 96), False), ((32, 48), True), ((32, 40), None)])
def test_masks_of_large_images_have_their_proportions(tmp_path, in_strips, size, is_resized):
    record = write_pair(tmp_path, np.zeros((64, 96), np.uint8))
    tifffile.imwrite(record["target"], np.zeros(size, np.uint8), photometric="minisblack", tile=(32, 32))
    for windows in (False, True):
        found = inspected(record, windows=windows)
        if is_resized is None:
            assert found.kind == "mask and image differ in proportions"
        else:
            assert found.is_resized is is_resized


# volumes


def volume_record(folder: Path, image: np.ndarray, label: np.ndarray, **options) -> dict:
    """A record of voxels (z, y, x), which are written first."""
    files = (write_volume(folder / "i.nii", image), write_volume(folder / "l.nii", label, **options))
    image_file, label_file = (VolumeFile((str(file),)) for file in files)
    return {"image": image_file, "target": label_file, "name": "a"}


def test_a_look_at_a_volume_finds_its_size_its_values_and_their_places(tmp_path):
    label = np.zeros((3, 4, 5), np.uint8)
    label[0, 1, 2] = label[2, 3, 4] = label[2, 0, 0] = 7
    label[1, 1, 1] = 255
    label[1, 3, 0] = 2
    found = inspected(volume_record(tmp_path, np.arange(60, dtype=np.float32).reshape(3, 4, 5), label))
    assert (found.size, found.spacing, found.kind, found.is_resized) == ((3, 4, 5), (2, 1, 1), "numbers", False)
    assert found.pixels == {0: 55, 2: 1, 7: 3, 255: 1}
    assert found.class_locations[7].tolist() == [[0, 1, 2], [2, 0, 0], [2, 3, 4]]
    assert found.class_locations[2].tolist() == [[1, 3, 0]]
    background = found.class_locations[0]
    assert len({tuple(voxel) for voxel in background.tolist()}) == 55
    assert not label[tuple(background.T)].any()
    assert found.foreground.ravel().tolist() == [7, 35, 40, 59]  # of 7, 2, 7, 7: neither 0 nor 255 is a label


def test_a_label_of_many_values_is_a_problem_where_these_are_classes(tmp_path):
    label = np.arange(300, dtype=np.int16).reshape(3, 10, 10)
    record = volume_record(tmp_path, label, label)
    assert inspected(record).kind == "too many mask values"
    assert len(inspected(record, has_classes=False).pixels) == 300


# points


@pytest.mark.parametrize(("name", "values"), [("a", [32, 33, 51]), ("b", [0, 35, 8])])
def test_a_look_at_a_volume_with_points_finds_their_voxels_and_its_brightness(tmp_path, name, values):
    file = write_volume(tmp_path / "a.nii", np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    source = PointSource("points.csv", "RAS", np.array([[3.0, 2.0, 2.0]]), np.array([PRESENT]))
    found = inspected({"image": VolumeFile((str(file),)), "target": source, "name": name})
    assert {number: places.tolist() for number, places in found.class_locations.items()} == {1: [[1, 2, 3]]}
    assert found.foreground[:3, 0].tolist() == values  # the same on every start


def test_points_of_a_large_image_are_located_where_it_is_read_in_windows(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((10, 8), np.uint8))
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 80)
    positions = np.array([[3.4, 1.6], [99, -3], [5, 5], [-2, 99]], float)
    source = PointSource("points.csv", PIXELS, positions, np.array([PRESENT, PRESENT, ABSENT, PRESENT]))
    record = {"image": str(tmp_path / "a.npy"), "target": source, "name": "a"}
    locations = inspected(record, windows=True).class_locations
    # the pixel nearest to each present one, within 10 x 8
    assert {number: pixels.tolist() for number, pixels in locations.items()} == {1: [[2, 3]], 2: [[0, 7]], 4: [[9, 0]]}
    assert inspected(record).class_locations is None
