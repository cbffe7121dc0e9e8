"""Masks of indices into palettes: where palettes differ between files, their colors are the classes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.formats import format_of
from support.prediction import true_labels

from data_utils.config import DataConfig
from data_utils.image_io.formats import PageFile
from data_utils.pack import pack
from tasks.classes.reader import ClassReader
from train_utils.check_data import check_data

COLORS = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0]], np.uint8)
RED, GREEN = (255, 0, 0), (0, 255, 0)


def indexed(classes: np.ndarray, palette: np.ndarray, padding: int = 0) -> Image.Image:
    """A picture of indices into a palette (n, 3), whose color for class i is COLORS[i], with a fill of grey."""
    numbers = [int((palette == color).all(axis=1).argmax()) for color in COLORS]
    mask = Image.fromarray(np.uint8(numbers)[classes], "P")
    mask.putpalette([*palette.ravel().tolist(), *[77] * padding])
    return mask


def write(folder: Path, save: Callable[[int, np.ndarray], Image.Image], suffix: str = "png") -> Path:
    """Six pairs in a split for training and one for validation; the masks hold background, red and green."""
    for number in range(6):
        split = folder / ("val" if number == 5 else "train")
        for kind in ("images", "masks"):
            (split / kind).mkdir(parents=True, exist_ok=True)
        classes = np.random.default_rng(number).integers(0, 3, (4, 5)).repeat(4, axis=0).repeat(4, axis=1)
        Image.fromarray(COLORS[classes]).save(split / "images" / f"{number}.png")
        save(number, classes).save(split / "masks" / f"{number}.{suffix}")
    return folder


def in_an_order_of_its_own(number: int, classes: np.ndarray) -> Image.Image:
    return indexed(classes, COLORS[[0, 2, 1]] if number % 2 else COLORS)


def last_in_another_order(number: int, classes: np.ndarray) -> Image.Image:
    return indexed(classes, COLORS[[1, 0, 2]] if number == 5 else COLORS)


def of_another_length(number: int, classes: np.ndarray) -> Image.Image:
    return indexed(classes, COLORS, padding=3 * (number % 2))


def with_other_unused_colors(number: int, classes: np.ndarray) -> Image.Image:
    return indexed(classes, np.vstack([COLORS, [[9, 9, number]]]))


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif"])
@pytest.mark.parametrize("save", [in_an_order_of_its_own, last_in_another_order])
def test_colors_are_the_classes_where_palettes_differ(tmp_path, save, suffix):
    info = load_info(write(tmp_path, save, suffix))
    assert info.reader.class_map.values == ((0, 0, 0), GREEN, RED)
    assert any(line.startswith("the palettes of the masks differ: ") for line in info.warnings)
    for record in [*info.train.records, *info.val.records]:
        colors = np.asarray(Image.open(record["image"]))
        indices = info.reader.read(record, colors.shape[:2]).main
        assert (np.array(info.reader.class_map.values)[indices] == colors).all()


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif"])
@pytest.mark.parametrize("save", [of_another_length, with_other_unused_colors])
def test_numbers_are_the_classes_where_used_colors_agree(tmp_path, save, suffix):
    info = load_info(write(tmp_path, save, suffix))
    assert info.reader.class_map.values == (0, 1, 2)
    assert not any("palettes" in line for line in info.warnings)


def test_classes_are_named_by_the_colors_of_palettes(tmp_path):
    classes = "#000000=none,#ff0000=red,#00ff00=green"
    numbered = load_info(write(tmp_path / "folder", of_another_length))
    info = load_info(tmp_path / "folder", classes=classes)
    assert info.reader.class_pixels[1] > 0
    assert info.warnings == ()
    pack(numbered.train.records, tmp_path / "packed", "train")
    pack(numbered.val.records, tmp_path / "packed", "val")
    stream = load_info(tmp_path / "packed", classes=classes, streaming=True, crop_size=(8, 8))
    assert stream.reader.class_map == info.reader.class_map


def test_numbers_that_are_named_stay_classes_with_a_line(tmp_path):
    folder = write(tmp_path, in_an_order_of_its_own)
    report, problems = check_data(DataConfig(str(folder), classes="0=none,1=red,2=green"))
    assert problems == 0
    assert "1 is #ff0000 in 0.png and #00ff00 in 1.png; but the classes are named by numbers" in report


def test_a_true_mask_with_a_palette_is_compared_by_its_colors(tmp_path):
    class_map = load_info(write(tmp_path, in_an_order_of_its_own)).reader.class_map
    for file in ("0.png", "1.png"):
        mask = PageFile(tmp_path / "train" / "masks" / file)
        colors = np.array(class_map.values)[true_labels(mask, format_of(ClassReader(class_map)))]
        assert (colors == np.asarray(Image.open(tmp_path / "train" / "images" / file))).all()
