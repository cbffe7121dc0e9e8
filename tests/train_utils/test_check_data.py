"""The report of --check-data: sizes, classes, spacings, annotations, and the problems at its end."""

from functools import partial

import numpy as np
import pytest
from PIL import Image
from rasterio.transform import from_origin
from support.coco_files import CATEGORIES, box, entry, write_coco
from support.data_sets import load_info
from support.folders import write_folder, write_splits
from support.labelme_files import shape, write_labelme
from support.points import write_annotated_dots
from support.rasters import feature, scene, square, write_geojson, write_raster
from support.volumes import CASE_NAMES, LPS, RAS, case, volume_config, write_decathlon, write_nifti

from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from train_utils.check_data import check_data, describe_classes, list_problems


def test_classes_are_described_with_their_shares_of_the_pixels():
    class_map = ClassMap(("sky", "land"), (0, 7), 255)
    assert describe_classes({255: 1, 0: 300, 9: 99}, class_map) == [
        "classes: mask value, pixels",
        "         0   75.000 %  sky",
        "         9   24.750 %  (no class)",
        "       255    0.250 %  (ignored)",
    ]


def test_a_value_of_255_without_a_class_is_named_with_its_flag(tmp_path):
    write_folder(tmp_path, 4, seed=0, values=(1, 255))
    report, problems = check_data(DataConfig(str(tmp_path), classes="0=background,1=cell"))
    assert problems == 4
    assert "give --ignore-index 255 if it means unlabeled" in report


UNPAIRED = {"file without partner": ["a.png: has no mask"]}
WITHOUT_UNPAIRED = "--allow-unpaired trains without the files that have no partner"
WITHOUT_BAD = "--on-bad-sample skip trains without the files that cannot be used"


@pytest.mark.parametrize(
    ("problems", "flags"),
    [
        (UNPAIRED | {"lossy": []}, [WITHOUT_UNPAIRED]),
        ({"file without partner": [], "lossy": ["b: y"]}, [WITHOUT_BAD]),
        ({"lossy": ["b: y"]}, [WITHOUT_BAD]),
        (UNPAIRED | {"lossy": ["b: y"]}, [WITHOUT_UNPAIRED, WITHOUT_BAD]),
        ({"classes": ["of all"]}, []),  # no file alone has these
        ({"too many mask values": ["of all"]}, []),
    ],
    ids=["unpaired", "lossy", "lossy alone", "both", "classes", "values"],
)
def test_problems_end_with_the_flags_that_train_without_them(problems, flags):
    lines = list_problems(problems, 0)
    assert lines[0] == f"problems: {sum(map(len, problems.values()))}"
    assert [line for line in lines if line.startswith("--")] == flags
    assert lines[len(lines) - len(flags) :] == flags


def test_the_check_names_masks_of_one_class_beside_damaged_ones(tmp_path):
    """Two splits, each with a file without partner; one mask is damaged, and all others hold 7."""
    write_splits(tmp_path, 2, 2)
    for split in ("train", "val"):
        (tmp_path / split / "images" / "cell_01.png").rename(tmp_path / split / "images" / f"{split}.png")
        (tmp_path / split / "masks" / "cell_00.png").write_bytes(b"")
    Image.fromarray(np.full((40, 56), 7, np.uint8)).save(tmp_path / "train" / "masks" / "cell_00.png")
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert "mask cannot be read: 1" in report
    assert "all pixels of all masks hold 7" in report
    assert problems == 5


def test_empty_masks_beside_others_of_jpeg_are_no_problem_of_their_own(tmp_path):
    write_splits(tmp_path, 2, 2)
    for mask in tmp_path.glob("*/masks/*.png"):
        with Image.open(mask) as picture:
            shown = Image.new("L", picture.size) if "00" in mask.name else picture
            shown.save(mask.with_suffix(".jpg"))
        mask.unlink()
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 2
    assert "lossy mask: 2" in report


def test_the_check_names_masks_of_colors_beside_those_of_numbers(tmp_path):
    write_splits(tmp_path, 2, 2)
    colors = np.zeros((40, 56, 3), np.uint8)
    colors[:20] = 200, 0, 0
    Image.fromarray(colors).save(tmp_path / "val" / "masks" / "cell_00.png")
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert "cell_00.png is a color mask and cell_00.png one of numbers" in report
    assert problems == 1


def test_the_check_names_a_flag_that_no_landmark_has(tmp_path):
    write_annotated_dots(tmp_path, "labelme")
    report, problems = check_data(DataConfig(str(tmp_path), swap="nose=trunk"))
    assert "trunk" in report
    assert problems == 1


SHIFTED = "1 mask is shifted against its image by a part of a pixel, val.tif by +0.40 to the right"


def test_the_check_names_places_that_touch_between_splits_and_masks_that_are_shifted(tmp_path):
    """Two neighboring images in the world, of which the mask of the second is shifted by 4 m."""
    for split, left, shift in (("train", 500_000, 0), ("val", 500_080, 4)):
        for kind, bands, offset in (("images", 3, 0), ("masks", 1, shift)):
            pixels = np.tile(np.arange(8, dtype=np.uint8) % 2, (bands, 8, 1))
            grid = from_origin(left + offset, 5_000_000, 10, 10)
            write_raster(tmp_path / split / kind / f"{split}.tif", pixels, transform=grid)
    report, _ = check_data(DataConfig(str(tmp_path)))
    assert "1 of 1 validation images touch training images in the world: val.tif and train.tif" in report
    assert SHIFTED in report
    assert any(line.startswith(SHIFTED) for line in load_info(tmp_path).warnings)


def test_the_check_names_all_problems_of_volumes_at_once(tmp_path):
    """Four volumes with a problem each: cut off, half numbers, elsewhere, and not numbers."""
    write_decathlon(tmp_path)
    images, labels = tmp_path / "imagesTr", tmp_path / "labelsTr"
    (images / f"{CASE_NAMES[0]}.nii.gz").write_bytes(b"\x1f\x8b")
    write_nifti(labels / f"{CASE_NAMES[1]}.nii.gz", case(1)[1] * 0.5, LPS)
    write_nifti(labels / f"{CASE_NAMES[2]}.nii.gz", case(2)[1], RAS)
    write_nifti(images / f"{CASE_NAMES[3]}.nii.gz", np.full((12, 10, 8), np.nan, np.float32), LPS)
    report, problems = check_data(volume_config(tmp_path))
    assert problems >= 4
    assert all(f"    {name}" in report for name in CASE_NAMES)
    assert "label holds 0.5" in report
    assert "the affines of image and label differ" in report
    assert "(NaN or infinite)" in report


def test_the_check_describes_volumes_by_their_sizes_and_spacings(tmp_path):
    write_decathlon(tmp_path)
    write_nifti(tmp_path / "imagesTr" / f"{CASE_NAMES[3]}.nii.gz", case(3)[0].astype(np.float32), LPS)
    report, problems = check_data(volume_config(tmp_path))
    assert problems == 0
    assert "no problems" in report
    assert "3 training volumes, 1 validation volume" in report
    assert "sizes (depth x height x width): 8 x 10 x 12: 4" in report
    assert "spacings in mm along z, y, x: 1 x 1 x 1: 4" in report


@pytest.mark.parametrize("channels", [1, 3])
def test_the_check_names_volumes_of_other_channels(tmp_path, channels):
    write_decathlon(tmp_path, channels=channels)
    two_channels = np.stack([case(0)[0]] * 2, axis=3)
    write_nifti(tmp_path / "imagesTr" / f"{CASE_NAMES[1]}.nii.gz", two_channels, LPS)
    assert f"brain_002: has 2 channels, most others have {channels}" in check_data(volume_config(tmp_path))[0]


def test_the_check_names_each_split_whose_masks_hold_too_many_values_together(tmp_path):
    write_splits(tmp_path, 2, 2)
    for split in ("train", "val"):
        for number in range(2):
            values = np.arange(40 * 56, dtype=np.uint16).reshape(40, 56) // 12 + 1000 * number
            Image.fromarray(values).save(tmp_path / split / "masks" / f"cell_0{number}.png")
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert "too many mask values: 2" in report
    assert problems == 2


def test_each_image_of_other_channels_than_most_is_a_problem(tmp_path):
    for number, bands in enumerate((5, 3, 3, 5, 3)):
        write_raster(tmp_path / "images" / f"{number}.tif", np.zeros((bands, 8, 8), np.uint8))
        write_raster(tmp_path / "masks" / f"{number}.tif", np.eye(8, dtype=np.uint8)[None])
    report, problems = check_data(DataConfig(str(tmp_path), val_fraction=0.2))
    assert "number of channels: 2" in report
    assert problems == 2


def write_coco_of(folder, *boxes):
    objects = [entry(number, number, 3, [box(*sides)]) for number, sides in enumerate(boxes, 1)]
    write_coco(folder / "annotations.json", objects, folder, len(boxes), CATEGORIES)


def write_labelme_of(folder, *boxes):
    for number, (x, y, width, height) in enumerate(boxes):
        write_labelme(folder, f"{number}", [shape("cat", [[x, y], [x + width, y], [x + width, y + height]])])


def write_yolo_of(folder, *boxes):
    for kind in ("images", "labels"):
        (folder / kind).mkdir()
    (folder / "classes.txt").write_text("cat\n")
    for number, sides in enumerate(boxes):
        Image.fromarray(np.zeros((50, 50), np.uint8)).save(folder / "images" / f"{number}.png")
        shares = " ".join(str(side / 50) for side in box(*sides))
        (folder / "labels" / f"{number}.txt").write_text(f"0 {shares}\n")


def write_polygons_of(folder, *boxes, crs: str | None = "EPSG:32633"):
    for number, (left, top, side, _) in enumerate(boxes):
        write_raster(folder / "images" / f"{number}.tif", scene(number)[0])
        write_geojson(folder / "labels" / f"{number}.geojson", [feature(square(left, top, side))], crs)


INSIDE = (5, 5, 10, 10)


@pytest.mark.parametrize(
    ("write", "other_box", "expected"),
    [
        (write_coco_of, (0.1, 0.2, 0.5, 0.5), "pixels from"),
        (write_labelme_of, (0.1, 0.2, 0.5, 0.5), "pixels from"),
        (write_labelme_of, (500, 500, 9, 9), "pixels from"),
        (write_yolo_of, (60, 60, 9, 9), "shares of width and height"),
        (write_polygons_of, (9e4, 9e4, 9, 9), "longitude, then latitude"),
        (partial(write_polygons_of, crs=None), INSIDE, "longitude, then latitude"),
    ],
    ids=["shares in COCO", "shares in labelme", "outside", "beyond the shares", "elsewhere", "meters without crs"],
)
def test_objects_that_cover_no_pixels_are_to_check(tmp_path, write, other_box, expected):
    write(tmp_path, *[other_box] * 4)
    (line,) = [line for line in check_data(DataConfig(str(tmp_path)))[0].splitlines() if "annotated objects" in line]
    assert line.startswith("to check: the 4 annotated objects cover ")
    assert expected in line


@pytest.mark.parametrize("task", ["classes", "objects", "overlapping"])
def test_annotations_without_any_object_are_to_check(tmp_path, task):
    write_coco(tmp_path / "annotations.json", [], tmp_path, 4, CATEGORIES)
    assert "to check: 4 images have no object at all" in check_data(DataConfig(str(tmp_path), task=task))[0]


def test_objects_that_cover_no_pixels_are_to_check_where_classes_overlap(tmp_path):
    write_coco_of(tmp_path, *[(0.1, 0.2, 0.5, 0.5)] * 4)
    report, _ = check_data(DataConfig(str(tmp_path), task="overlapping"))
    assert "to check: the 4 annotated objects cover 4 pixels in all" in report
    assert "in all" not in check_data(DataConfig(str(tmp_path), task="overlapping", classes="bee"))[0]


@pytest.mark.parametrize("write", [write_coco_of, write_labelme_of, write_yolo_of, write_polygons_of])
def test_an_image_whose_objects_lie_outside_is_to_check(tmp_path, write):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    write(inside, *[INSIDE] * 4)
    assert "to check" not in check_data(DataConfig(str(inside)))[0]
    write(outside, *[INSIDE] * 3, (75, 75, 9, 9))
    assert "to check: the masks of 1 of 4 images with objects are empty" in check_data(DataConfig(str(outside)))[0]
