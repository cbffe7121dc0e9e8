"""Masks drawn from the objects of a COCO file: equal to those of pycocotools, one object upon another."""

import numpy as np
import pytest
from pycocotools import mask as rle_masks
from pycocotools.coco import COCO
from support.annotations import error_of, loaded, masks
from support.coco_files import SIZE, VALUES, box, disc, entry, runs, write_coco, write_crowded_splits, write_splits

from data_utils.bits import unpack_bits


def test_masks_are_those_of_pycocotools_pixel_for_pixel(tmp_path):
    folder = write_splits(tmp_path)
    train, val = loaded(folder)
    official = COCO(folder / "annotations/instances_train2017.json")
    masks_by_name = masks(train)
    assert [*masks_by_name] == ["1.png", "2.png", "3.png"]
    assert [*masks(val)] == ["1.png", "2.png"]
    for number in (1, 2, 3):
        expected = np.zeros(SIZE, np.uint8)
        objects = official.loadAnns(official.getAnnIds(number))
        for found in sorted(objects, key=lambda found: -int(official.annToMask(found).sum())):
            expected[official.annToMask(found) == 1] = VALUES[found["category_id"]]
        np.testing.assert_array_equal(masks_by_name[f"{number}.png"], expected)
    assert set(np.unique(masks_by_name["2.png"])) == {0, 1, 2, 3}
    assert not masks_by_name["3.png"].any()


def test_random_run_lengths_are_decoded_as_pycocotools_does(tmp_path):
    rng = np.random.default_rng(0)
    objects, expected = [], []
    for number in range(1, 31):
        mask = (rng.random(SIZE) < rng.random()).astype(np.uint8)
        counts = rle_masks.encode(np.asfortranarray(mask))["counts"].decode()
        objects.append(entry(number, number, 3, {"size": [*SIZE], "counts": counts if number % 2 else runs(mask)}))
        expected.append(mask)
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 30)
    (tmp_path / "val").mkdir()
    write_coco(tmp_path / "val" / "annotations.json", [], tmp_path / "val", 1)
    masks_by_name = masks(loaded(tmp_path)[0])
    for number, mask in enumerate(expected, 1):
        np.testing.assert_array_equal(masks_by_name[f"{number}.png"], mask)


def test_crowds_are_ignored_where_no_object_lies_on_them(tmp_path):
    mask = masks(loaded(write_crowded_splits(tmp_path))[0])["1.png"]
    assert (mask[8:12, 10:14] == 1).all()
    assert ((mask == 255) == (disc(10, 15, 8) == 1) & (mask != 1)).all()
    assert (mask == 255).any()


def test_smaller_objects_lie_on_top_whatever_area_the_file_says(tmp_path):
    objects = [entry(1, 1, 3, [box(10, 10, 3, 3)], area=5000), entry(2, 1, 7, [box(5, 5, 15, 12)], area=1)]
    write_coco(tmp_path / "annotations.json", objects, tmp_path / "images")
    train, val = loaded(tmp_path)
    mask = (masks(train) | masks(val))["1.png"]
    assert mask[11, 11] == 1
    assert mask[6, 6] == 2


def test_objects_are_numbered_with_the_values_of_their_classes_which_have_a_bit_each(tmp_path):
    """A cat below an ant of its size, and a crowd of bees that reaches below both."""
    objects = [entry(1, 1, 7, [box(4, 4, 9, 9)]), entry(2, 1, 3, [box(8, 4, 9, 9)])]
    objects.append(entry(3, 1, 90, [box(2, 2, 20, 4)], iscrowd=1))
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 1)
    write_coco(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    target = loaded(tmp_path)[0][0]["target"]
    numbers, values = target.render_objects()
    assert values.tolist() == [0, 255, 2, 1]
    assert [numbers[8, 5], numbers[8, 10], numbers[3, 3]] == [2, 3, 1]
    truth, unknown = unpack_bits(target.render_classes({1: 0, 2: 2, 3: 1}))
    assert truth[8, 10] == truth[5, 10] == 5
    assert unknown[5, 10] == unknown[3, 3] == 2


def test_a_class_is_known_where_an_object_of_it_lies_on_a_crowd_of_it(tmp_path):
    objects = [entry(1, 1, 3, [box(2, 2, 20, 15)], iscrowd=1), entry(2, 1, 3, [box(5, 5, 4, 4)])]
    write_coco(tmp_path / "train/annotations.json", objects, tmp_path / "train", 1)
    write_coco(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    truth, unknown = unpack_bits(loaded(tmp_path)[0][0]["target"].render_classes({1: 0}))
    assert truth[6, 6] == 1
    assert unknown[6, 6] == 0
    assert truth[3, 3] == 0
    assert unknown[3, 3] == 1


def test_nothing_is_drawn_of_an_object_outside_of_the_picture(tmp_path):
    objects = [entry(1, 1, 3, [box(-90, 5, 9, 9)]), entry(2, 1, 3, [box(4, 4, 3, 3)])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 2)
    train, val = loaded(tmp_path)
    assert (masks(train) | masks(val))["1.png"].sum() == 9


def test_an_image_may_have_more_than_255_objects(tmp_path):
    boxes = [box(2 * (i % 20), 2 * (i // 20), 1, 1) for i in range(240)]
    objects = [entry(i, 1, 3, [points]) for i, points in enumerate([*boxes, *boxes[:60]])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 2)
    train, val = loaded(tmp_path)
    numbers, values = next(record for record in [*train, *val] if record["name"] == "1.png")["target"].render_objects()
    assert numbers.max() == 300
    assert len(values) == 301


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((216, 360), "the file gives it 216 x 360 pixels (height x width), but the picture has 24 x 40"),
        ((40, 24), "image is 24 x 40, its mask 40 x 24 (height x width); they differ in proportions"),
    ],
    ids=["9 times", "turned"],
)
def test_a_picture_of_another_size_than_the_file_says_is_refused(tmp_path, size, message):
    write_coco(tmp_path / "annotations.json", [], tmp_path, height=size[0], width=size[1])
    assert message in error_of(tmp_path)
