"""Masks drawn from the objects of a COCO file: equal to those of pycocotools, one object upon another."""

import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as rle_masks
from pycocotools.coco import COCO
from support.annotations import error_of, loaded, masks
from support.coco_files import SIZE, VALUES, box, disc, entry, runs, write_coco, write_crowded_splits, write_splits

from data_utils.sources.annotations.coco_mask import CocoMask, encode, run_lengths
from tasks.overlapping import unpack_bits


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_splits(tmp_path)


def test_masks_are_those_of_pycocotools_pixel_for_pixel(folder):
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


@pytest.fixture
def overlapping_target(tmp_path) -> CocoMask:
    """A cat below an ant of its size, and a crowd of bees that reaches below both."""
    objects = [entry(1, 1, 7, [box(4, 4, 9, 9)]), entry(2, 1, 3, [box(8, 4, 9, 9)])]
    objects.append(entry(3, 1, 90, [box(2, 2, 20, 4)], iscrowd=1))
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 1)
    write_coco(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    return loaded(tmp_path)[0][0]["target"]


def test_the_later_one_of_two_objects_of_one_size_lies_on_top(overlapping_target):
    mask = overlapping_target.render()
    assert mask[8, 5] == 2
    assert mask[8, 10] == 1


def test_masks_are_stored_row_by_row(overlapping_target):
    assert overlapping_target.render().flags.c_contiguous
    assert overlapping_target.render_objects()[0].flags.c_contiguous


def test_crowds_lie_below_all_objects(overlapping_target):
    mask = overlapping_target.render()
    assert mask[5, 10] == 1
    assert mask[3, 3] == 255


def test_objects_are_numbered_with_the_values_of_their_classes(overlapping_target):
    numbers, values = overlapping_target.render_objects()
    assert values.tolist() == [0, 255, 2, 1]
    assert numbers[8, 5] == 2
    assert numbers[8, 10] == 3
    assert numbers[3, 3] == 1


def test_overlapping_classes_have_a_bit_each(overlapping_target):
    truth, unknown = unpack_bits(overlapping_target.render_classes({1: 0, 2: 2, 3: 1}))
    assert truth[8, 10] == 5
    assert truth[5, 10] == 5
    assert unknown[5, 10] == 2
    assert unknown[3, 3] == 2


def test_overlapping_classes_that_are_not_asked_for_have_no_bit(overlapping_target):
    truth, unknown = unpack_bits(overlapping_target.render_classes({2: 0}))
    assert truth[8, 10] == 1
    assert truth[8, 15] == 0
    assert not unknown.any()


def test_a_class_is_known_where_an_object_of_it_lies_on_a_crowd_of_it(tmp_path):
    objects = [entry(1, 1, 3, [box(2, 2, 20, 15)], iscrowd=1), entry(2, 1, 3, [box(5, 5, 4, 4)])]
    write_coco(tmp_path / "train/annotations.json", objects, tmp_path / "train", 1)
    write_coco(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    truth, unknown = unpack_bits(loaded(tmp_path)[0][0]["target"].render_classes({1: 0}))
    assert truth[6, 6] == 1
    assert unknown[6, 6] == 0
    assert truth[3, 3] == 0
    assert unknown[3, 3] == 1


def test_objects_of_one_class_share_its_bit_whichever_that_is(tmp_path):
    objects = [entry(1, 1, 3, [box(1, 1, 4, 4)]), entry(2, 1, 3, [box(20, 9, 4, 4)])]
    write_coco(tmp_path / "train/annotations.json", objects, tmp_path / "train", 1)
    write_coco(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    truth, unknown = unpack_bits(loaded(tmp_path)[0][0]["target"].render_classes({1: 20}))
    assert truth[2, 2] == truth[10, 21] == 2**20
    assert truth.sum() == 32 * 2**20
    assert not unknown.any()


def test_an_image_may_have_more_than_255_objects(tmp_path):
    boxes = [box(2 * (i % 20), 2 * (i // 20), 1, 1) for i in range(240)]
    objects = [entry(i, 1, 3, [points]) for i, points in enumerate([*boxes, *boxes[:60]])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 2)
    train, val = loaded(tmp_path)
    numbers, values = next(record for record in [*train, *val] if record["name"] == "1.png")["target"].render_objects()
    assert numbers.max() == 300
    assert len(values) == 301


def test_an_image_whose_size_the_file_does_not_say_has_a_mask_of_its_own_size(tmp_path):
    file = write_coco(tmp_path / "annotations.json", [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path)
    content = json.loads(file.read_text())
    for image in content["images"]:
        del image["height"], image["width"]
    file.write_text(json.dumps(content))
    train, val = loaded(tmp_path)
    assert (masks(train) | masks(val))["1.png"].shape == SIZE


def test_a_picture_may_be_smaller_than_the_file_says_by_8_times(tmp_path):
    height, width = SIZE
    size = {"height": 8 * height, "width": 8 * width}
    write_coco(tmp_path / "annotations.json", [entry(1, 1, 3, [box(9, 9, 72, 72)])], tmp_path, **size)
    train, val = loaded(tmp_path)
    mask = (masks(train) | masks(val))["1.png"]
    assert mask.shape == (8 * height, 8 * width)
    assert mask.sum() == 72 * 72


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


def test_a_size_of_which_the_file_says_one_side_is_that_of_the_picture(tmp_path):
    objects = [entry(1, 1, 3, [box(9, 9, 9, 9)])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, height=SIZE[0], width=0)
    assert masks(loaded(tmp_path)[0]).popitem()[1].shape == SIZE


def test_outlines_are_read_up_to_a_million_pixels_outside(tmp_path):
    objects = [entry(1, 1, 3, [[0, 0, 999_000, 0, 0, 999_000]]), entry(2, 2, 3, [box(500, 500, 9, 9)])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path)
    train, val = loaded(tmp_path)
    masks_by_name = masks(train) | masks(val)
    assert masks_by_name["1.png"].all()
    assert not masks_by_name["2.png"].any()


def test_outlines_a_million_pixels_outside_are_refused(tmp_path):
    write_coco(tmp_path / "annotations.json", [entry(1, 1, 3, [[0, 0, 1_000_000, 0, 0, 9]])], tmp_path)
    assert "polygon 1 has a coordinate that is NaN, infinite or far outside" in error_of(tmp_path)


@pytest.mark.parametrize("size", [(10, 100), (100, 10)])
def test_an_outline_far_around_a_long_picture_covers_it(size):
    far = 900_000
    assert rle_masks.area(encode([[-far, -far, far, -far, far, far, -far, far]], *size, "a")) == 1000


def test_an_edge_to_a_corner_far_outside_is_drawn_where_it_crosses_the_picture():
    height, width = 20, 30
    far = [[-900_000, 0], [2, 0], [602_002, 900_000]]  # to the left, and down along x = 2 + 2 y / 3
    mask = rle_masks.decode(encode([[side for corner in far for side in corner]], height, width, "a"))
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    edge = 2 + 2 * y / 3
    assert mask[x < edge - 1].all()
    assert not mask[x > edge + 1].any()


@pytest.mark.parametrize(("text", "lengths"), [("0", [0]), ("o0", [31])])
def test_run_lengths_are_read_from_text(text, lengths):
    assert run_lengths(text) == lengths


@pytest.mark.parametrize("character", ["/", "p"])
def test_a_character_beside_those_of_run_lengths_is_named(character):
    with pytest.raises(ValueError, match=f"'{character}' is no part of one here"):
        run_lengths(f"0{character}0")


def test_a_run_length_of_more_than_13_characters_is_refused():
    assert run_lengths(12 * "P" + "0") == [0]
    with pytest.raises(ValueError, match="'0' is no part of one here"):
        run_lengths(13 * "P" + "0")


def test_a_run_of_no_pixels_is_no_mistake(tmp_path):
    whole = [0, SIZE[0] * SIZE[1]]
    write_coco(tmp_path / "annotations.json", [entry(1, 1, 3, {"size": [*SIZE], "counts": whole})], tmp_path)
    train, val = loaded(tmp_path)
    assert (masks(train) | masks(val))["1.png"].all()
