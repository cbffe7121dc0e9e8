"""A folder for each image, with a mask for each of its objects."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info, unnoticed_changes

from data_utils.config import DataConfig
from data_utils.sources.annotations import one_object_masks
from data_utils.sources.load import load_records
from runtime.errors import DataError
from tasks.find_task import find_task

SIZE = (20, 30)


def write_set(root: Path, counts: dict[str, int]) -> dict[str, np.ndarray]:
    """A folder for each image, with so many masks; returns the numbers that are to be read."""
    expected = {}
    for name, count in counts.items():
        ids = np.zeros(SIZE, np.uint16)
        for kind in ("images", "masks"):
            (root / name / kind).mkdir(parents=True)
        for number in range(1, count + 1):
            mask = np.zeros(SIZE, np.uint8)
            mask[2 * number : 2 * number + 3, 3:9] = 255  # each overlaps the one before
            ids[mask > 0] = number
            Image.fromarray(mask).save(root / name / "masks" / f"m{number}.png")
        Image.fromarray(np.zeros(SIZE, np.uint8)).save(root / name / "images" / f"{name}.png")
        expected[name] = ids
    return expected


def test_one_object_masks_are_numbered_in_the_order_of_their_names(tmp_path):
    expected = write_set(tmp_path, {"s2": 3, "s10": 0, "s1": 7})
    records = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    assert [record["name"] for record in records] == ["s1.png", "s2.png", "s10.png"]
    for record in records:
        ids, values = record["target"].render_objects()
        assert np.array_equal(ids, expected[Path(record["name"]).stem])
        assert np.array_equal(record["target"].render(), ids)
        assert values.tolist() == [0] + [1] * int(ids.max())


def test_one_object_masks_are_one_class_if_the_task_is_classes(tmp_path):
    expected = write_set(tmp_path, {"a": 3, "b": 2, "c": 7, "d": 1})
    info = load_info(tmp_path, task="classes")
    assert info.reader.class_map.values == (0, 1)
    for record in [*info.train.records, *info.val.records]:
        assert np.array_equal(info.reader.read(record, SIZE).main, expected[Path(record["name"]).stem] > 0)


def test_one_object_masks_of_different_sizes_are_refused(tmp_path):
    write_set(tmp_path, {"a": 3})
    Image.fromarray(np.zeros((30, 20), np.uint8)).save(tmp_path / "a" / "masks" / "m9.png")
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    with pytest.raises(DataError, match=r"its masks m1\.png and m9\.png have different sizes, 20 x 30 and 30 x 20"):
        record["target"].render()


def test_a_smoothed_mask_of_one_object_is_refused(tmp_path):
    write_set(tmp_path, {"a": 1})
    mask = Image.open(tmp_path / "a" / "masks" / "m1.png")
    mask.save(tmp_path / "a" / "masks" / "m1.jpg")  # values near 0 would be the object's
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    with pytest.raises(DataError, match=r"m1\.jpg: mask of one class holds 0, 1, .*smoothed edges or JPEG"):
        record["target"].render()


def digest_of(folder: Path) -> str:
    return one_object_masks.open_records(folder, allow_unpaired=False).digest


def test_a_change_of_each_of_the_one_object_masks_is_noticed(tmp_path):
    write_set(tmp_path, {"a": 2, "b": 1})
    assert unnoticed_changes(sorted(tmp_path.rglob("*.png")), lambda: digest_of(tmp_path)) == []


def test_folders_of_one_object_masks_without_image_are_named(tmp_path):
    write_set(tmp_path, {"a": 2, "b": 1})
    (tmp_path / "c" / "images").mkdir(parents=True)
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match=r"c: has no image; d: has no image"):
        digest_of(tmp_path)


def test_one_mask_of_the_name_of_its_image_is_not_that_of_an_object(tmp_path):
    write_set(tmp_path, {"a": 1, "b": 1, "c": 1})
    for name in "abc":
        masks = tmp_path / name / "masks"
        (masks / "m1.png").rename(masks / f"{name}.png")
    config = DataConfig(dataset=str(tmp_path))
    assert find_task(load_records(config)[0], config) == ("classes", ())


def test_a_folder_of_masks_for_each_image_is_for_objects(tmp_path):
    write_set(tmp_path, {"a": 4, "b": 6, "c": 5})
    config = DataConfig(dataset=str(tmp_path))
    train, val = load_records(config)
    assert find_task(train, config) == ("objects", ())
    assert {record["name"] for record in (*train, *val)} == {"a.png", "b.png", "c.png"}
