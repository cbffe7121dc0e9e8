"""Cityscapes: the ids that the benchmark evaluates, in folders of cities."""

from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of, loaded, masks
from support.mask_folders import SIZE, rows, save

from data_utils.config import DataConfig
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info

IDS = rows(0, 1, 7, 8, 26, 33, 34, 255)


def cityscapes(root: Path, *splits: str, nested: bool = True, train_ids: bool = False) -> Path:
    """Two images of each split, in two cities, as the benchmark's archives hold them."""
    for split in splits:
        for city in ("aachen", "zurich"):
            images = root / "leftImg8bit" / split / city if nested else root / split
            ids = root / "gtFine" / split / city if nested else root / split
            name = f"{city}_000000_000019"
            save(images / f"{name}_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
            save(ids / f"{name}_gtFine_labelIds.png", IDS)
            save(ids / f"{name}_gtFine_color.png", np.zeros((*SIZE, 3), np.uint8))
            (ids / f"{name}_gtFine_polygons.json").write_text('{"imgHeight": 12, "imgWidth": 20, "objects": []}')
            if train_ids:
                save(ids / f"{name}_gtFine_labelTrainIds.png", rows(0, 1, 13, 18, 255))
    return root


EVALUATED = rows(255, 255, 7, 8, 26, 33, 255, 255)


@pytest.mark.parametrize(("nested", "prefix"), [(True, "aachen/"), (False, "")])
def test_cityscapes_classes_are_the_19_of_the_benchmark_and_other_ids_are_ignored(tmp_path, nested, prefix):
    train, val = loaded(cityscapes(tmp_path, "train", "val", "test", nested=nested))
    name = f"{prefix}aachen_000000_000019_leftImg8bit.png"
    assert len(train) == len(val) == 2
    assert train[0]["name"] == name
    np.testing.assert_array_equal(masks(train)[name], EVALUATED)
    config = DataConfig(str(tmp_path))
    class_map = load_dataset_info(config).reader.class_map
    assert dict(zip(class_map.values, class_map.names, strict=True)) == CITYSCAPES
    assert class_map.ignore_value == 255
    assert "annotations: Cityscapes; 4 images" in check_data(config)[0]


@pytest.mark.parametrize("folder", ["leftImg8bit", "gtFine"])
def test_one_archive_of_cityscapes_may_be_unpacked_a_level_higher(tmp_path, folder):
    root = cityscapes(tmp_path, "train", "val")
    for split in ("train", "val"):
        (root / folder / split).rename(root / split)
    (root / folder).rmdir()
    assert list(map(len, loaded(root))) == [2, 2]


def test_cityscapes_training_ids_are_taken_where_all_masks_have_them(tmp_path):
    train, _ = loaded(cityscapes(tmp_path, "train", "val", train_ids=True))
    assert isinstance(train[0]["target"], str)
    assert train[0]["target"].endswith("_labelTrainIds.png")
    class_map = load_dataset_info(DataConfig(str(tmp_path))).reader.class_map
    name_of_value = dict(zip(class_map.values, class_map.names, strict=True))
    assert [name_of_value[value] for value in (0, 13, 18)] == ["road", "car", "bicycle"]
    assert class_map.ignore_value == 255
    next(tmp_path.glob("gtFine/val/*/*_labelTrainIds.png")).unlink()
    assert load_dataset_info(DataConfig(str(tmp_path))).reader.class_map.values[0] == 7


def test_a_cityscapes_image_without_mask_is_named(tmp_path):
    cityscapes(tmp_path, "train", "val")
    next(tmp_path.glob("gtFine/train/zurich/*_labelIds.png")).unlink()
    message = error_of(tmp_path)
    assert "zurich_000000_000019_leftImg8bit.png: image without mask" in message
    assert "--allow-unpaired" in message
    assert len(loaded(tmp_path, allow_unpaired=True)[0]) == 1


def test_masks_of_cityscapes_alone_are_named_as_such(tmp_path):
    cityscapes(tmp_path, "train", "val")
    message = error_of(tmp_path / "gtFine")
    assert "only masks; give the folder that holds leftImg8bit and gtFine" in message


CITYSCAPES = {7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"}
CITYSCAPES |= {20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"}
CITYSCAPES |= {27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"}


def test_ids_of_cityscapes_that_are_not_evaluated_are_ignored_beyond_a_byte_too(tmp_path):
    """A license plate has the id -1."""
    ids = [*range(-1, 35), 256 + 7]
    np.save(tmp_path / "a_gtFine_labelIds.npy", np.array([ids], np.int16))
    rendered = EvaluatedIds(str(tmp_path / "a_gtFine_labelIds.npy")).render()
    assert rendered.tolist() == [[number if number in CITYSCAPES else 255 for number in ids]]
