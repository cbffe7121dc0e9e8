"""What looks like a mistake in a data set is said before training starts.

Module: data_utils/analysis/data_warnings.py.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.coco_files import box, entry, write_coco
from support.data_sets import load_info
from support.folders import write_folder

from data_utils.config import DataConfig
from runtime.errors import DataError
from train_utils.check_data import check_data


def test_good_masks_give_no_warning(tmp_path):
    assert load_info(write_folder(tmp_path / "data", 12, seed=0, values=(0, 1))).warnings == ()


@pytest.fixture
def stray(tmp_path) -> Path:
    """A data set of two values and one pixel of a third."""
    folder = write_folder(tmp_path / "data", 12, seed=0, values=(0, 1))
    mask = np.array(Image.open(folder / "masks" / "cell_03.png"))
    mask[0, 0] = 37
    Image.fromarray(mask).save(folder / "masks" / "cell_03.png")
    return folder


def test_a_rare_value_is_warned_of(stray):
    (line,) = load_info(stray).warnings
    assert "0.01% of all mask pixels, became classes: 37 (pixels: 1; masks: 1, the first is cell_03.png);" in line
    assert "to check: rare mask values, each less than 0.01%" in check_data(DataConfig(str(stray)))[0]


def test_a_rare_value_that_is_ignored_gives_no_warning(stray):
    assert load_info(stray, ignore_index="37").warnings == ()


def test_a_rare_class_that_annotations_name_gives_no_warning(tmp_path):
    objects = [entry(1, 1, 3, [box(5, 5, 1, 1)]), *(entry(10 + i, i, 7, [box(2, 2, 9, 9)]) for i in range(1, 13))]
    write_coco(tmp_path / "annotations.json", objects, images=tmp_path / "images", count=12)
    assert "rare mask values" not in " ".join(load_info(tmp_path).warnings)
    report, _ = check_data(DataConfig(str(tmp_path)))
    assert "         1  ant" in report
    assert "rare mask values" not in report


def test_a_named_class_that_no_validation_mask_holds_is_warned_of(stray):
    (line,) = load_info(stray, classes="0=a,1=b,37=c").warnings
    assert line.startswith("no validation mask holds c, which cannot be scored; choose the validation images")


@pytest.mark.parametrize(
    ("masks", "settings", "count"),
    [
        ([(0, 1), (0, 255)], {}, 1),
        ([(0, 1), (0, 255), (1,), (255,)], {}, 1),
        ([(0, 1), (0, 255)], {"classes": "0=ground,1=cell"}, 1),  # 255 is ignored then, too
        ([(0, 1), (0, 255)], {"ignore_index": "255"}, 0),  # somebody has said what it means
        ([(0, 1, 2), (0, 255)], {}, 0),  # several classes, and masks that are ignored in part
        ([(0, 1), (0, 1, 255)], {}, 0),
        ([(0, 1)], {}, 0),
        ([(0, 255)], {}, 0),
    ],
)
def test_two_encodings_of_a_class_are_told_from_ignored_pixels(tmp_path, masks, settings, count):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    for index in range(12):
        mask = np.resize(np.repeat(np.array(masks[index % len(masks)], np.uint8), 56), (40, 56))
        Image.fromarray(mask).save(folder / "masks" / f"cell_{index:02}.png")
    lines = load_info(folder, **settings).warnings
    assert sum(line.startswith("some masks hold 1 (masks: ") for line in lines) == count


def test_images_of_another_depth_than_the_others_are_warned_of(tmp_path):
    folder = write_folder(tmp_path / "data", 6, seed=0)
    Image.fromarray(np.full((40, 56), 4000, np.uint16)).save(folder / "images" / "cell_02.png")
    info = load_info(folder)
    (line,) = info.warnings
    assert "(RGB: 5, I;16: 1)" in line
    assert info.normalization.pixel_types == ("uint16", "uint8")


def test_swapped_folders_are_guessed(tmp_path):
    folder = write_folder(tmp_path, 12, seed=0)
    (folder / "images").rename(folder / "x")
    (folder / "masks").rename(folder / "images")
    (folder / "x").rename(folder / "masks")
    with pytest.raises(DataError, match="are images and masks swapped"):
        load_info(folder)
    assert "swapped" in check_data(DataConfig(str(folder)))[0]
