"""labelme files: shapes filled as its own export fills them, classes by name, images beside, apart or in the file.

Modules: data_utils/sources/annotations/labelme.py, data_utils/sources/annotations/labelme_mask.py,
data_utils/sources/annotations/polygons.py.
"""

import io
import json
import math
import os
import pickle
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from annotations import error_of, loaded
from conftest import unnoticed_changes
from PIL import Image, ImageDraw

from data_utils import pack
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.validate import check_data
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from data_utils.sources.annotations import labelme
from data_utils.sources.annotations.labelme_mask import LabelmeMask
from runtime.errors import DataError
from tasks.overlapping import unpack_bits

SIZE = (60, 80)  # (H, W)


def shape(label: str, points: list, kind: str | None = "polygon", **more) -> dict:
    return {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}} | more


def png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return b64encode(file.getvalue()).decode()


def write(folder: Path, stem: str, shapes: list[dict], images: Path | None = None, **fields) -> Path:
    """<stem>.json in `folder`, as labelme writes it, and <stem>.png in `images`, by default beside it."""
    images = folder if images is None else images
    for path in (folder, images):
        path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(map(ord, stem)))
    Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(images / f"{stem}.png")
    content = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": f"{stem}.png", "imageData": None}
    content |= {"imageHeight": SIZE[0], "imageWidth": SIZE[1]} | fields
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=2))
    return folder / f"{stem}.json"


def masks(root: Path, **settings) -> dict[str, np.ndarray]:
    records = [record for split in loaded(root, **settings) for record in split]
    return {record["name"]: read_mask(record["target"], record["name"]) for record in records}


def drawn(tmp_path: Path, *shapes: dict) -> np.ndarray:
    """The mask of an image with these shapes, called a, b, c, ...: values 1, 2, 3."""
    write(tmp_path, "x", [*shapes])
    write(tmp_path, "y", [shape(label, [[0, 0], [1, 1], [1, 0]]) for label in "abc"])
    return masks(tmp_path, task="classes")["x.png"]


def pillow(draw) -> np.ndarray:
    picture = Image.new("L", SIZE[::-1])
    draw(ImageDraw.Draw(picture))
    return np.asarray(picture)


POLYGON = [[10.4, 5.2], [50.7, 8.9], [40.1, 50.3], [12.6, 44.0]]
SHAPES = {  # shape -> what Pillow draws for it
    "polygon": (shape("a", POLYGON), lambda pen: pen.polygon(list(map(tuple, POLYGON)), fill=1, outline=1)),
    "no type": (shape("a", POLYGON, None), lambda pen: pen.polygon(list(map(tuple, POLYGON)), fill=1, outline=1)),
    "rectangle": (
        shape("a", [[40.2, 30.8], [10.9, 12.1]], "rectangle"),  # from the lower right corner
        lambda pen: pen.rectangle([10.9, 12.1, 40.2, 30.8], fill=1, outline=1),
    ),
    "turned rectangle": (
        shape("a", [[30, 10], [50, 30], [30, 50], [10, 30]], "rectangle"),
        lambda pen: pen.polygon([(30, 10), (50, 30), (30, 50), (10, 30)], fill=1, outline=1),
    ),
    "circle": (
        shape("a", [[40, 30], [49, 18]], "circle"),
        lambda pen: pen.ellipse([25, 15, 55, 45], fill=1, outline=1),  # 9, 12, 15
    ),
    "line": (shape("a", [[5, 5], [60, 40]], "line"), lambda pen: pen.line([5, 5, 60, 40], fill=1, width=10)),
    "linestrip": (
        shape("a", [[5, 5], [60, 40], [10, 50]], "linestrip"),
        lambda pen: pen.line([5, 5, 60, 40, 10, 50], fill=1, width=10, joint="curve"),
    ),
    "point": (shape("a", [[30.5, 20]], "point"), lambda pen: pen.ellipse([25.5, 15, 35.5, 25], fill=1, outline=1)),
}


@pytest.mark.parametrize(("found", "expected"), SHAPES.values(), ids=SHAPES)
def test_shapes_are_filled_as_labelme_fills_them(tmp_path, found, expected):
    mask = drawn(tmp_path, found)
    np.testing.assert_array_equal(mask, pillow(expected))
    assert 50 < mask.sum() < 3000


def test_a_circle_holds_the_pixels_within_its_radius(tmp_path):
    mask = drawn(tmp_path, shape("a", [[40, 30], [49, 42]], "circle"))
    distance = np.array([[math.hypot(x - 40, y - 30) for x in range(SIZE[1])] for y in range(SIZE[0])])
    assert (mask[distance < 14.5] == 1).all()
    assert not mask[distance > 15.5].any()


def test_a_mask_shape_is_stamped_at_its_corner_and_cut_at_the_border(tmp_path):
    stamp = np.zeros((10, 12), bool)
    stamp[2:, 3:] = True
    inside = shape("b", [[20, 30], [31, 39]], "mask", mask=png(stamp))
    beyond = shape("c", [[75, 55], [86, 64]], "mask", mask=png(stamp))
    expected = np.zeros(SIZE, np.uint8)
    expected[32:40, 23:32] = 2
    expected[57:, 78:] = 3
    np.testing.assert_array_equal(drawn(tmp_path, inside, beyond), expected)
    inside["points"].reverse()
    np.testing.assert_array_equal(drawn(tmp_path, inside, beyond), expected)


def test_a_mask_shape_may_be_twice_as_large_as_the_picture(tmp_path):
    stamp = png(np.ones((2 * SIZE[0], 2 * SIZE[1]), bool))
    assert (drawn(tmp_path, shape("b", [[0, 0], [9, 9]], "mask", mask=stamp)) == 2).all()


@pytest.mark.parametrize("level", [1, 2, 127, 128, 255])
def test_a_mask_shape_is_what_is_not_0_whether_it_is_stored_as_1_or_as_255(tmp_path, level):
    stamp = np.zeros((10, 12), np.uint8)
    stamp[2:, 3:] = level
    mask = drawn(tmp_path, shape("b", [[20, 30], [31, 39]], "mask", mask=png(stamp)))
    expected = np.zeros(SIZE, np.uint8)
    expected[32:40, 23:32] = 2
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("name", ["background", "_background_", "__background__"])
def test_a_shape_called_background_is_background_also_where_labels_txt_does_not_list_it(tmp_path, name):
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    outer = shape("b", [[0, 0], [60, 50]], "rectangle")
    mask = drawn(tmp_path, outer, shape(name, [[30, 10], [40, 20]], "rectangle"))
    assert mask[15, 35] == 0
    assert mask[5, 5] == 2


def test_later_shapes_lie_on_earlier_ones(tmp_path):
    big, small = shape("a", [[0, 0], [60, 50]], "rectangle"), shape("b", [[10, 10], [20, 20]], "rectangle")
    assert drawn(tmp_path, big, small)[15, 15] == 2
    assert (drawn(tmp_path, small, big)[0:50, 0:60] == 1).all()


def test_ignored_regions_and_background_keep_their_meaning(tmp_path):
    mask = drawn(
        tmp_path,
        shape("b", [[0, 0], [60, 50]], "rectangle"),
        shape("__ignore__", [[10, 10], [20, 20]], "rectangle"),
        shape("_background_", [[30, 10], [40, 20]], "rectangle"),
    )
    assert mask[15, 15] == 255
    assert mask[15, 35] == 0
    assert mask[5, 5] == 2
    info = load_dataset_info(DataConfig(str(tmp_path)))
    assert info.reader.class_map.names == ("background", "a", "b", "c")
    assert info.reader.class_map.ignore_value == 255


BOX = [[5, 5], [40, 40]]


def test_classes_are_the_names_in_their_order_or_in_that_of_labels_txt(tmp_path):
    for split, labels in (("train", "zb"), ("val", "ay")):
        for stem in "12":
            write(tmp_path / split, stem, [shape(label, BOX, "rectangle") for label in labels])
    train, val = loaded(tmp_path)
    assert train.classes == val.classes == ((0, "background"), (1, "a"), (2, "b"), (3, "y"), (4, "z"))
    (tmp_path / "labels.txt").write_text("__ignore__\n_background_\nz\n y \nb\n\na\n")
    train, val = loaded(tmp_path)
    assert train.classes == val.classes == ((0, "background"), (1, "z"), (2, "y"), (3, "b"), (4, "a"))
    assert read_mask(train[0]["target"], "")[20, 20] == 3
    (tmp_path / "labels.txt").write_text("z\ny\nb\n")
    message = f"{tmp_path / 'val' / '1.json'}: shape 1 is called 'a', which labels.txt does not list"
    assert message in error_of(tmp_path)


SPLITS = ("train", "val")
PLACES = {  # JSON files -> images
    "beside": ("", ""),
    "beside in images": ("images", "images"),
    "apart": ("labels", "images"),
    "annotations": ("annotations", "imgs"),
    "json": ("json", "images"),
    "images above": ("json", ""),
}


@pytest.mark.parametrize(("files", "images"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("split", ["", "above", "below"])
def test_files_are_found_beside_the_images_and_apart(tmp_path, files, images, split):
    if split == "below":
        parts = [(tmp_path / (files or "images") / part, tmp_path / (images or "images") / part) for part in SPLITS]
    else:
        parts = [(tmp_path / part / files, tmp_path / part / images) for part in (SPLITS if split else [""])]
    for folder, pictures in parts:
        for stem in "ab":
            write(folder, stem, [shape("cell", BOX, "rectangle")], pictures)
    splits = loaded(tmp_path)
    assert [len(part) for part in splits] == ([2, 2] if split else [1, 1])
    for part in splits:
        for record in part:
            assert read_mask(record["target"], "").sum() == 36 * 36
            assert read_image(record["image"]).shape == (*SIZE, 3)


def test_the_image_may_have_another_name_or_be_in_the_file(tmp_path):
    write(tmp_path / "json", "a", [shape("cell", BOX, "rectangle")], tmp_path / "images", imagePath="..\\images\\p.png")
    (tmp_path / "images" / "a.png").rename(tmp_path / "images" / "p.png")
    pixels = np.full((*SIZE, 3), 7, np.uint8)
    write(tmp_path / "json", "b", [shape("cell", BOX, "rectangle")], tmp_path / "images", imageData=png(pixels))
    (tmp_path / "images" / "b.png").unlink()
    records = {record["name"]: record for split in loaded(tmp_path) for record in split}
    assert [*sorted(records)] == ["b.json", "p.png"]
    np.testing.assert_array_equal(read_image(records["b.json"]["image"]), pixels)
    assert all(read_mask(record["target"], "").any() for record in records.values())
    write(tmp_path / "json", "c", [], tmp_path / "elsewhere")
    assert "1 files without partner: c.json: no image of its name; --allow-unpaired" in error_of(tmp_path)


@pytest.mark.parametrize("splits", [("",), SPLITS])
def test_a_file_that_is_not_labelmes_does_not_hide_the_others(tmp_path, splits):
    for split in splits:
        for stem in "bc":
            write(tmp_path / split, stem, [shape("cell", BOX, "rectangle")])
    other = write(tmp_path / splits[-1], "a", [])
    other.write_text("{}")
    if len(splits) > 1:  # nothing else in this split
        for file in (tmp_path / "val").glob("[bc].*"):
            file.unlink()
    assert f"{other} is no labelme file: it has no list of shapes" in error_of(tmp_path)


def test_a_file_whose_shapes_stand_behind_a_large_image_is_recognized(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)
    for stem in "ab":
        file = write(tmp_path, stem, [shape("cell", BOX, "rectangle")], imageData=png(noise))
        file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert file.stat().st_size > 2**20
    assert sorted(masks(tmp_path)) == ["a.png", "b.png"]


def test_several_files_for_one_image_are_refused(tmp_path):
    for stem in "abcd":
        write(tmp_path, stem, [shape("cell", BOX, "rectangle")], imagePath="a.png")
    for stem in "bc":
        (tmp_path / f"{stem}.png").unlink()
    message = f"{tmp_path}: 1 images have several labelme files: a.png (a.json; b.json; c.json); keep one of each"
    assert message in error_of(tmp_path, allow_unpaired=True)


def test_images_without_a_file_are_named_or_left_out(tmp_path):
    for stem in "abc":
        write(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "b.json").unlink()
    assert "1 files without partner: b.png: image without labelme file; --allow-unpaired" in error_of(tmp_path)
    assert sorted(masks(tmp_path, allow_unpaired=True)) == ["a.png", "c.png"]


def test_the_size_may_be_left_out(tmp_path):
    write(tmp_path, "a", [shape("cell", BOX, "rectangle")], imageHeight=None, imageWidth=None)
    write(tmp_path, "b", [])
    assert masks(tmp_path)["a.png"].shape == SIZE
    for height, width in ((0, SIZE[1]), (SIZE[0], -1), ("9", SIZE[1]), (SIZE[0], "9")):  # no size at all
        write(tmp_path, "a", [shape("cell", BOX, "rectangle")], imageHeight=height, imageWidth=width)
        assert masks(tmp_path)["a.png"].shape == SIZE


BAD_SHAPES = {
    "two points": (shape("cell", BOX), "shape 2 (cell): polygon has 2 points, at least 3 are needed"),
    "circle": (shape("cell", [[1, 1]], "circle"), "shape 2 (cell): circle has 1 points, at least 2 are needed"),
    "unknown": (shape("cell", BOX, "spline"), "shape 2 (cell) is a spline; supported are polygon, rectangle"),
    "NaN": (shape("cell", [[1, 1], [5, math.nan], [9, 9]]), "shape 2 (cell): polygon has a coordinate that is NaN"),
    "three numbers": (shape("cell", [[1, 1, 5]], "line"), "shape 2 (cell): line has 3 coordinates, an odd number"),
    "far to the left": (
        shape("cell", [[1, 1], [-1e6, 5], [9, 9]]),
        "shape 2 (cell): polygon has a coordinate that is NaN, infinite or far outside the image",
    ),
    "too few corners": (shape("cell", BOX, "oriented_rectangle"), "shape 2 (cell): oriented_rectangle has 2 points"),
    "a wide mask": (
        shape("cell", BOX, "mask", mask=png(np.ones((1, 161), bool))),
        "shape 2 (cell) cannot be read (its mask of 161 x 1 pixels is larger than the picture)",
    ),
    "a tall mask": (
        shape("cell", BOX, "mask", mask=png(np.ones((121, 1), bool))),
        "shape 2 (cell) cannot be read (its mask",
    ),
    "no points": (shape("cell", None), "shape 2 (cell): polygon has"),
    "no mask": (shape("cell", BOX, "mask"), "shape 2 (cell) cannot be read"),
    "bad mask": (shape("cell", BOX, "mask", mask="AAAA"), "shape 2 (cell) cannot be read"),
}


@pytest.mark.parametrize(("wrong", "message"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_a_bad_shape_is_named_and_its_image_can_be_skipped(tmp_path, wrong, message):
    good = shape("cell", BOX, "rectangle")
    for split in ("train", "val"):
        for stem in "abc":
            write(tmp_path / split, stem, [good])
    file = write(tmp_path / "train", "b", [good, wrong])
    assert f"1 of 3 pairs cannot be used: {file}: {message}" in error_of(tmp_path)
    report, count = check_data(DataConfig(str(tmp_path)))
    assert count == 1
    assert message in report
    assert [*load_dataset_info(DataConfig(str(tmp_path), on_bad_sample="skip")).train.bad] == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"a": 1}', "is no labelme file"),
        ('{"shapes": [5]}', "is no labelme file"),
        ("[]", "cannot be read as JSON"),
    ],
)
def test_a_damaged_file_is_that_images_problem(tmp_path, content, message):
    for stem in "abcd":
        write(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "c.json").write_text(content)
    assert f"{tmp_path / 'c.json'} {message}" in error_of(tmp_path)


DAMAGED_IMAGES = {
    "no picture": ({"imageData": "AAAA"}, "c.json: image cannot be read (empty, not an image"),
    "no base64": ({"imageData": "A"}, "c.json: imageData cannot be read (Invalid base64"),
    "a number": ({"imageData": 5}, "c.json: imageData cannot be read (argument should be"),
    "cut off": (None, "c.json cannot be read as JSON (Unterminated string"),
}


@pytest.mark.parametrize(("fields", "message"), DAMAGED_IMAGES.values(), ids=DAMAGED_IMAGES)
def test_a_damaged_embedded_image_is_that_images_problem(tmp_path, fields, message):
    image = {"imageData": png(np.full((*SIZE, 3), 7, np.uint8))}
    for split in ("train", "val"):
        for stem in "abc":
            file = write(tmp_path / split, stem, [shape("cell", BOX, "rectangle")], **image)
            file.with_suffix(".png").unlink()
    file = write(tmp_path / "train", "c", [shape("cell", BOX, "rectangle")], **(fields or image))
    file.with_suffix(".png").unlink()
    if fields is None:
        text = file.read_text()
        file.write_text(text[: text.index("imageData") + 40])
    assert "1 of 3 pairs cannot be used: " in error_of(tmp_path)
    assert message in error_of(tmp_path)
    report, count = check_data(DataConfig(str(tmp_path)))
    assert count == 1
    assert message in report
    info = load_dataset_info(DataConfig(str(tmp_path), on_bad_sample="skip"))
    assert [*info.train.bad] == [2]
    assert pickle.loads(pickle.dumps(info.train.records))[0] == info.train.records[0]


def test_the_report_counts_objects_once_for_each_group(tmp_path):
    box = [shape("cell", BOX, "rectangle"), shape("cell", [[1, 1], [3, 3]], "rectangle")]
    write(tmp_path, "a", box)
    write(tmp_path, "b", [part | {"group_id": 0} for part in box] + [shape("dot", [[9, 9]], "point")])
    write(tmp_path, "c", [])
    report, count = check_data(DataConfig(str(tmp_path), task="classes"))  # points may be landmarks too
    assert count == 0
    assert "annotations: labelme; 2 images with objects, 1 without" in report
    assert {"         3  cell", "         1  dot"} <= {*report.splitlines()}


def test_changed_files_are_noticed_and_records_are_small(tmp_path):
    for stem in "abcd":
        file = write(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    train, _ = loaded(tmp_path)
    assert len(pickle.dumps(train[0]["target"])) < 500
    assert pickle.loads(pickle.dumps(train))[0] == train[0]
    before = load_dataset_info(DataConfig(str(tmp_path)))
    write(tmp_path, file.stem, [shape("nucleus", BOX, "rectangle")])
    after = load_dataset_info(DataConfig(str(tmp_path)))
    assert before.reader.class_map.names == ("background", "cell")
    assert after.reader.class_map.names == ("background", "cell", "nucleus")
    assert after.reader.class_pixels[2] == 36 * 36


def test_the_key_of_the_content_changes_with_each_file(tmp_path):
    for stem in "abcd":
        write(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    files = [*tmp_path.iterdir()]
    assert len(files) == 8
    assert unnoticed_changes(files, lambda: loaded(tmp_path)[0].digest) == []


def test_packed_it_is_the_same_data_set(tmp_path, monkeypatch):
    folder, out = tmp_path / "data", tmp_path / "out"
    for split in ("train", "val"):
        for stem in "ab":
            write(
                folder / split, stem, [shape("cell", BOX, "rectangle")], imageData=png(np.full((*SIZE, 3), 9, np.uint8))
            )
        (folder / split / "b.png").unlink()
    monkeypatch.setattr("sys.argv", ["pack", str(folder), str(out)])
    pack.main()
    for ours, packed in zip(loaded(folder), loaded(out), strict=True):
        for record, stored in zip(ours, packed, strict=True):
            np.testing.assert_array_equal(read_mask(stored["target"], ""), read_mask(record["target"], ""))
            np.testing.assert_array_equal(read_image(stored["image"]), read_image(record["image"]))


LEAST = {"polygon": 3, "rectangle": 2, "oriented_rectangle": 4, "rotation": 4, "circle": 2, "line": 2, "linestrip": 2}


@pytest.mark.parametrize(("kind", "least"), LEAST.items())
def test_each_kind_of_shape_takes_so_many_points(tmp_path, kind, least):
    corners = [[5, 5], [50, 9], [40, 50], [9, 40]]
    file = write(tmp_path, "x", [shape("a", corners[:least], kind)])
    mask = LabelmeMask(str(file), str(file.with_suffix(".png")), {"a": 1})
    assert mask.render().any()
    write(tmp_path, "x", [shape("a", corners[: least - 1], kind)])
    with pytest.raises(DataError, match=rf"{kind} has {least - 1} points, at least {least} are needed"):
        mask.render()


def test_a_mask_shape_lies_at_the_nearest_pixel(tmp_path):
    stamp = png(np.ones((4, 5), bool))
    mask = drawn(tmp_path, shape("b", [[20.6, 30.7], [24.6, 33.7]], "mask", mask=stamp))
    assert np.argwhere(mask == 2).min(axis=0).tolist() == [31, 21]


def test_groups_are_told_apart_by_their_labels_and_0_is_one(tmp_path):
    boxes = [[[x, 5], [x + 8, 12]] for x in (5, 20, 35, 50)]
    shapes = [shape(label, box, "rectangle") for label, box in zip("aabb", boxes, strict=True)]
    file = write(tmp_path, "x", [part | {"group_id": 0} for part in shapes])
    numbers, values = LabelmeMask(str(file), str(file.with_suffix(".png")), {"a": 1, "b": 2}).render_objects()
    assert [int(numbers[8, x + 2]) for x in (5, 20, 35, 50)] == [1, 1, 2, 2]
    assert values.tolist() == [0, 1, 2]


def test_a_shape_on_an_ignored_region_makes_its_own_class_known_there(tmp_path):
    shapes = [shape("__ignore__", [[0, 0], [40, 40]], "rectangle"), shape("a", [[10, 10], [20, 20]], "rectangle")]
    file = write(tmp_path, "x", shapes)
    mask = LabelmeMask(str(file), str(file.with_suffix(".png")), {"a": 1, "b": 2, "__ignore__": 255})
    truth, unknown = unpack_bits(mask.render_classes({1: 0, 2: 1}))
    assert truth[15, 15] == 1
    assert unknown[15, 15] == 2
    assert truth[5, 5] == 0
    assert unknown[5, 5] == 3
    assert truth[50, 50] == 0
    assert unknown[50, 50] == 0


def test_the_size_in_the_file_must_be_that_of_the_picture_or_up_to_8_times(tmp_path):
    height, width = SIZE
    write(tmp_path, "a", [shape("cell", BOX, "rectangle")], imageHeight=8 * height, imageWidth=8 * width)
    write(tmp_path, "b", [])
    assert masks(tmp_path)["a.png"].shape == (8 * height, 8 * width)
    file = write(tmp_path, "a", [shape("cell", BOX, "rectangle")], imageHeight=9 * height, imageWidth=9 * width)
    assert f"{file}: the file gives it 540 x 720 pixels (height x width)" in error_of(tmp_path)
    write(tmp_path, "a", [shape("cell", BOX, "rectangle")], imageHeight=width, imageWidth=height)
    assert "60 x 80" in error_of(tmp_path)
    assert "80 x 60" in error_of(tmp_path)


@pytest.mark.parametrize("folder", ["json", "jsons", "labelme", "labels", "annotations"])
def test_files_lie_in_a_folder_of_any_of_these_names_and_endings_may_be_capitals(tmp_path, folder):
    file = write(tmp_path / folder, "a", [shape("cell", BOX, "rectangle")], tmp_path / "images")
    file.rename(file.with_suffix(".JSON"))
    assert labelme.find(tmp_path, ()) == {"train": (tmp_path / "images", tmp_path / folder)}


def test_labels_txt_of_the_data_set_comes_before_that_of_a_split(tmp_path):
    for split in ("train", "val"):
        write(tmp_path / split, "a", [shape("b", BOX, "rectangle"), shape("a", BOX, "rectangle")])
    (tmp_path / "train/labels.txt").write_text("b\na\n")
    assert loaded(tmp_path)[1].classes == ((0, "background"), (1, "b"), (2, "a"))
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    assert loaded(tmp_path)[1].classes == ((0, "background"), (1, "a"), (2, "b"), (3, "c"))
    (tmp_path / "labels.txt").write_text("a\nb\na\n")
    assert f"{tmp_path / 'labels.txt'}: two classes are called a" in error_of(tmp_path)


def test_a_file_names_an_image_beside_itself_before_one_in_the_folder_of_all(tmp_path):
    for folder in ("", "site"):
        write(tmp_path / folder, "x", [shape("cell", BOX, "rectangle")], imagePath="p.png")
        (tmp_path / folder / "x.png").rename(tmp_path / folder / "p.png")
    contents = labelme.read_contents(tmp_path)
    assert labelme.named_image((tmp_path, tmp_path), "site/x.json", contents["site/x.json"]) == "site/p.png"
    assert labelme.named_image((tmp_path, tmp_path), "x.json", contents["x.json"]) == "p.png"


def test_objects_of_files_that_are_left_out_are_not_counted(tmp_path):
    for stem in "abc":
        write(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "c.png").unlink()
    summary = loaded(tmp_path, allow_unpaired=True)[0].annotations
    assert summary.annotated == 2
    assert summary.empty == 0
    assert summary.instances == {"cell": 2}


def test_background_takes_objects_and_classes_away_and_other_classes_change_nothing(tmp_path):
    whole, hole = [[0, 0], [40, 40]], [[10, 10], [20, 20]]
    shapes = [shape("a", whole, "rectangle"), shape("background", hole, "rectangle"), shape("b", BOX, "rectangle")]
    shapes.append(shape("__ignore__", [[30, 30], [35, 35]], "rectangle"))
    file = write(tmp_path, "x", shapes)
    mask = LabelmeMask(str(file), str(file.with_suffix(".png")), {"a": 1, "b": 2, "background": 0, "__ignore__": 255})
    truth, unknown = unpack_bits(mask.render_classes({1: 1}))  # b is not asked for
    assert truth[15, 15] == 0
    assert truth[7, 7] == 2
    assert truth[32, 32] == 0
    assert unknown[15, 15] == 0
    assert unknown[7, 7] == 0
    assert unknown[32, 32] == 2
    write(tmp_path, "x", [*shapes[:2], shape("background", [[30, 30], [35, 35]], "rectangle")])
    numbers, values = mask.render_objects()
    assert values.tolist() == [0, 1]
    assert numbers[15, 15] == 0
    assert numbers[7, 7] == 1
    assert numbers[32, 32] == 0


def test_the_size_of_a_mask_is_that_of_the_image_in_the_file(tmp_path):
    pixels = np.zeros((*SIZE, 3), np.uint8)
    sizes = {"imageHeight": None, "imageWidth": None}
    file = write(tmp_path, "x", [shape("a", BOX, "rectangle")], imageData=png(pixels), **sizes)
    assert LabelmeMask(str(file), "", {"a": 1}).render().shape == SIZE
    write(tmp_path, "x", [shape("a", BOX, "rectangle")], **sizes)
    with pytest.raises(DataError, match=r"x\.json has no image file beside it, and holds none"):
        LabelmeMask(str(file), "", {"a": 1}).render()


@pytest.mark.parametrize(("others", "is_found"), [(2, True), (3, False)])
def test_a_folder_is_known_by_its_first_three_files(tmp_path, others, is_found):
    write(tmp_path, "z", [shape("cell", BOX, "rectangle")])
    for number in range(others):
        (tmp_path / f"{number}.json").write_text("{}")
    assert bool(labelme.find(tmp_path, ())) == is_found


def test_files_of_one_name_in_two_folders_belong_to_the_images_in_folders_of_the_same_name(tmp_path):
    for site, label in (("north", "a"), ("south", "b")):
        shapes = [shape(label, BOX, "rectangle")]
        write(tmp_path / "json" / site, "x", shapes, tmp_path / "images" / site, imagePath="scan.png")
    values = {name: int(mask.max()) for name, mask in masks(tmp_path).items()}
    assert values == {"north/x.png": 1, "south/x.png": 2}


def test_what_is_kept_of_files_is_not_that_of_others_of_their_size_and_time(tmp_path):
    for stem, label in (("a", "cat"), ("b", "dog")):
        file = write(tmp_path / stem, stem, [shape(label, BOX, "rectangle")])
        os.utime(file, ns=(10**18, 10**18))
        assert labelme.read_contents(tmp_path / stem)[f"{stem}.json"].objects == {label: 1}


def test_an_image_in_a_file_is_called_by_the_path_of_the_file(tmp_path):
    for folder in ("x", "y"):
        image = {"imageData": png(np.zeros((*SIZE, 3), np.uint8))}
        write(tmp_path / folder, "a", [shape("cell", BOX, "rectangle")], **image)
        (tmp_path / folder / "a.png").unlink()
    assert sorted(masks(tmp_path)) == ["x/a.json", "y/a.json"]


def test_a_pipe_and_a_file_that_is_gone_are_not_labelmes(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    assert not labelme.is_labelme(tmp_path / "a.json")
    assert not labelme.is_labelme(tmp_path / "b.json")
    with pytest.raises(DataError, match=r"b\.json cannot be read as JSON \("):
        LabelmeMask(str(tmp_path / "b.json"), "", {}).render()


def test_labels_txt_may_lie_beside_the_files(tmp_path):
    for stem in "ab":
        write(tmp_path / "json", stem, [shape("a", BOX, "rectangle")], tmp_path / "images")
    (tmp_path / "json/labels.txt").write_text("b\na\n")
    assert loaded(tmp_path)[0].classes == ((0, "background"), (1, "b"), (2, "a"))


def test_a_group_and_a_shape_of_one_number_are_two_objects_and_points_are_counted_apart(tmp_path):
    shapes = [shape("a", BOX, "rectangle", group_id=1), shape("a", BOX, "rectangle"), shape("a", BOX, "line")]
    write(tmp_path, "x", [*shapes, shape("b", [[9, 9]], "point")])
    contents = labelme.read_contents(tmp_path)["x.json"]
    assert contents == ({"a": 3, "b": 1}, "x.png", False, 1, 3)


def test_a_file_may_have_more_than_255_objects_and_labels_may_be_numbers(tmp_path):
    shapes = [shape(7, [[5 + i % 60, 5 + i // 60]], "point") for i in range(300)]
    file = write(tmp_path, "x", shapes)
    numbers, values = LabelmeMask(str(file), str(file.with_suffix(".png")), {"7": 1}).render_objects()
    assert numbers.max() == 300
    assert len(values) == 301


def test_classes_that_share_a_bit_are_unknown_where_shapes_are_ignored(tmp_path):
    file = write(tmp_path, "x", [shape("__ignore__", BOX, "rectangle")])
    mask = LabelmeMask(str(file), str(file.with_suffix(".png")), {"a": 1, "b": 2, "__ignore__": 255})
    truth, unknown = unpack_bits(mask.render_classes({1: 0, 2: 0}))
    assert unknown[20, 20] == 1
    assert not truth.any()


def test_one_split_alone_and_a_split_that_is_named_have_folders_of_their_own(tmp_path):
    for split in ("train", "holdout"):
        write(tmp_path / split / "json", "a", [shape("cell", BOX, "rectangle")], tmp_path / split / "images")
    folders = {split: (tmp_path / split / "images", tmp_path / split / "json") for split in ("train", "holdout")}
    assert labelme.find(tmp_path, ()) == {"train": folders["train"]}
    assert labelme.find(tmp_path, ("train", "holdout")) == folders
