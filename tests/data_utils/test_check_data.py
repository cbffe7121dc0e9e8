"""The report of --check-data: sizes, classes, spacings, annotations, and the problems at its end."""

from collections import Counter

import numpy as np
from conftest import load_info, write_splits
from inspections import records_of, split_of
from PIL import Image
from rasterio.transform import from_origin
from rasters import write_raster

from data_utils.analysis.check_data import (
    check_data,
    describe,
    describe_annotations,
    list_problems,
    most_common,
    name_values,
    odd_channels,
)
from data_utils.analysis.inspect_volumes import VolumeInspection, VolumeSplitInspection
from data_utils.analysis.inspection import SplitInspection
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import AnnotationSummary


def test_sizes_modes_and_classes_are_described_with_their_shares():
    inspection, _ = split_of({0: 3, 9: 1}, {0: 3, 9: 1}, {0: 1})
    inspection.sizes[2] = 0  # it cannot be used
    inspection.sizes[1] = 6, 7
    other, _ = split_of({0: 4}, {0: 4})
    other.modes["RGB"] = 9
    lines = describe([inspection, other], {255: 1, 0: 300, 9: 99}, {0: "sky", 255: "(ignored)"})
    assert lines == [
        "sizes (height x width): 4 x 5: 3, 6 x 7: 1",
        "image modes: RGB: 9, L: 5",
        "classes: mask value, pixels",
        "         0   75.000 %  sky",
        "         9   24.750 %  (no class)",
        "       255    0.250 %  (ignored)",
    ]
    lines = describe([inspection], {0: 96, 1: 1, 2: 1, 3: 1, 4: 1}, {0: "sky"})
    assert lines[-2:] == ["         0   96.000 %  sky", "    others    4.000 %  (4 values of no class)"]
    assert len(describe([inspection], {0: 97, 1: 1, 2: 1, 3: 1}, {0: "sky"})) == 2 + 1 + 4
    assert describe([SplitInspection.of_count(1)], {}, {}) == []
    assert describe([inspection], {0: 1}, {})[-1].startswith("image modes")


def test_the_ten_most_common_sizes_are_listed():
    sizes = Counter({(number, 2): number for number in range(1, 12)})
    text = most_common(sizes)
    assert text.startswith("11 x 2: 11, 10 x 2: 10, ")
    assert text.endswith(", 2 x 2: 2, ...")
    assert most_common(Counter({(3, 4): 2})) == "3 x 4: 2"


def test_spacings_are_described_with_three_digits():
    inspection = VolumeSplitInspection.of_count(2)
    size = (3, 4, 5)
    for number, spacing in enumerate(((2.50049, 1, 1), (2.5, 1, 1.0004))):
        foreground = np.empty((0, 1))
        volume = VolumeInspection(size, size, "uint8", "numbers", {}, spacing=spacing, foreground=foreground)
        inspection.add(number, volume)
    lines = describe([inspection], {}, {})
    assert lines[0] == "sizes (depth x height x width): 3 x 4 x 5: 2"
    assert lines[1] == "spacings in mm along z, y, x: 2.5 x 1 x 1: 2"


def test_annotations_are_described_over_both_splits():
    train = records_of(1, annotations=AnnotationSummary("COCO", 3, 1, {"cat": 4, "dog": 2}))
    val = records_of(1, annotations=AnnotationSummary("COCO", 2, 2, {"dog": 10}))
    assert describe_annotations(train, val) == [
        "annotations: COCO; 5 images with objects, 3 without",
        "objects of each class",
        "         4  cat",
        "        12  dog",
    ]
    assert describe_annotations(records_of(1), records_of(1)) == []
    empty = records_of(1, annotations=AnnotationSummary("YOLO", 0, 2, {}))
    assert describe_annotations(empty, val)[0] == "annotations: YOLO and COCO; 2 images with objects, 4 without"
    assert len(describe_annotations(empty, records_of(1))) == 1


def test_problems_are_listed_with_the_flags_that_train_without_them():
    assert list_problems({"a": []}, 0) == ["no problems"]
    assert list_problems({"a": []}, 2) == ["no problems, but 2 to check, see above"]
    lines = list_problems({"file without partner": ["a.png: has no mask"], "lossy": []}, 0)
    remedy = "--allow-unpaired trains without the files that have no partner"
    assert lines == ["problems: 1", "  file without partner: 1", "    a.png: has no mask", remedy]
    skip = "--on-bad-sample skip trains without the files that cannot be used"
    assert list_problems({"lossy": ["a: is lossy"]}, 0)[-1] == skip
    assert remedy not in list_problems({"file without partner": [], "lossy": ["a: is lossy"]}, 0)
    for kind in ("classes", "too many mask values"):  # no file alone has these
        assert list_problems({kind: ["of all"]}, 0)[-1] == "    of all"
    report = list_problems({"file without partner": ["a: x"], "lossy": ["b: y"]}, 0)
    assert report[0] == "problems: 2"
    assert report[-2:] == [remedy, skip]
    many = [f"{name}: is {name * 3}" for name in "abcdefghijklmnopqrstuvwxyz"]
    assert list_problems({"lossy": many}, 0)[2:-1] == [f"    {text}" for text in many[:20]] + ["    ..."]


def test_a_report_ends_with_its_problems(tmp_path):
    folder = tmp_path / "data"
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for number in range(6):
            picture = np.full((8, 8, 3) if kind == "images" else (8, 8), number % 2, np.uint8)
            Image.fromarray(picture).save(folder / kind / f"{number}.png")
    report, problems = check_data(DataConfig(str(folder), val_fraction=0.34))
    assert problems == 0
    assert report.startswith(f"{folder}: 4 training images, 2 validation images")
    (folder / "masks" / "9.png").write_bytes(b"")
    Image.fromarray(np.zeros((8, 11), np.uint8)).save(folder / "masks" / "3.png")
    report, problems = check_data(DataConfig(str(folder), val_fraction=0.34))
    assert problems == 2
    assert "  file without partner: 1" in report
    assert "  mask and image differ in proportions: 1" in report
    report, problems = check_data(DataConfig(str(folder), val_fraction=0.34, allow_unpaired=True))
    assert problems == 1
    assert "file without partner" not in report


def test_the_check_names_unpaired_files_of_both_splits_and_masks_of_one_class_beside_damaged_ones(tmp_path):
    write_splits(tmp_path, 2, 2)
    for split in ("train", "val"):
        (tmp_path / split / "images" / "cell_01.png").rename(tmp_path / split / "images" / f"{split}.png")
        (tmp_path / split / "masks" / "cell_00.png").write_bytes(b"")
    Image.fromarray(np.full((40, 56), 7, np.uint8)).save(tmp_path / "train" / "masks" / "cell_00.png")
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert "file without partner: 3" in report
    assert "train.png" in report
    assert "val.png" in report
    assert "mask cannot be read: 1" in report
    assert "all pixels of all masks hold 7" in report
    assert problems == 5


def test_the_check_looks_at_places_of_both_splits(tmp_path):
    for split, left, shift in (("train", 500_000, 0), ("val", 500_080, 4)):
        for kind, bands, offset in (("images", 3, 0), ("masks", 1, shift)):
            pixels = np.tile(np.arange(8, dtype=np.uint8) % 2, (bands, 8, 1))
            grid = from_origin(left + offset, 5_000_000, 10, 10)
            write_raster(tmp_path / split / kind / f"{split}.tif", pixels, transform=grid)
    report, _ = check_data(DataConfig(str(tmp_path)))
    assert "1 of 1 validation images touch training images in the world: val.tif and train.tif" in report
    shifted = "1 masks are shifted against their images by a part of a pixel, val.tif by +0.40 to the right"
    assert shifted in report
    assert any(line.startswith(shifted) for line in load_info(tmp_path).warnings)


def test_images_of_other_channels_than_most_are_named():
    channels = {3: ["b", "a"], 4: ["c"], 1: ["d", "e", "f"]}
    assert odd_channels(channels, grey_fits=True) == ["c: has 4 channels, most others have 3"]
    assert odd_channels(channels, grey_fits=False) == [
        "a: has 3 channels, most others have 1",
        "b: has 3 channels, most others have 1",
        "c: has 4 channels, most others have 1",
    ]
    assert odd_channels({1: ["a"]}, grey_fits=True) == odd_channels({}, grey_fits=False) == []


def test_each_mask_value_is_named_by_its_class_or_as_ignored():
    class_map = ClassMap(("sky", "land"), (0, 9), 255)
    assert name_values({0: 4, 9: 3, 255: 2, 7: 1}, class_map) == {0: "sky", 9: "land", 255: "(ignored)"}
