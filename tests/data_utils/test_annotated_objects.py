"""Objects from annotations, with --task objects: COCO, labelme and YOLO tell them apart, and name their classes.

Modules: inference/outputs/object_masks.py, inference/true_masks.py, data_utils/sources/annotations/one_object_masks.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import load_info, unnoticed_changes
from PIL import Image

from data_utils.config import DataConfig
from data_utils.sources.annotations import one_object_masks
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from data_utils.sources.load import load_records
from data_utils.targets.find import find_task
from data_utils.targets.objects import ObjectReader
from inference.outputs.jobs import ImageJob
from inference.outputs.object_tables import IMAGE_COLUMNS
from inference.outputs.objects import ObjectFormat
from inference.true_masks import open_true_masks
from runtime.errors import DataError
from tasks.matching import classes_of, numbers_of

SIZE = (20, 30)
# two cats that touch, and a dog: (left, top, right, bottom)
BOXES = {"cat": [(2, 2, 10, 10), (10, 2, 18, 10)], "dog": [(20, 12, 28, 18)]}
NAMES = ("a.png", "b.png", "c.png")


def corners(box: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    left, top, right, bottom = box
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def objects() -> list[tuple[str, tuple[int, int, int, int]]]:
    return [(name, box) for name, boxes in BOXES.items() for box in boxes]


def write_images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(NAMES):
        Image.fromarray(np.random.default_rng(index).integers(0, 255, SIZE, np.uint8)).save(folder / name)


def write_coco(root: Path) -> None:
    write_images(root / "images")
    images = [{"id": i, "file_name": name, "height": SIZE[0], "width": SIZE[1]} for i, name in enumerate(NAMES)]
    annotations = []
    for image in images:
        for name, box in objects():
            polygon = [number for corner in corners(box) for number in corner]
            entry = {"id": len(annotations), "image_id": image["id"], "category_id": 1 + (name == "dog")}
            annotations.append(entry | {"segmentation": [polygon], "iscrowd": 0})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_train.json").write_text(json.dumps(content))


def write_yolo(root: Path) -> None:
    write_images(root / "images")
    (root / "labels").mkdir()
    lines = []
    for name, box in objects():
        shares = [f"{x / SIZE[1]} {y / SIZE[0]}" for x, y in corners(box)]
        lines.append(f"{int(name == 'dog')} {' '.join(shares)}")
    for name in NAMES:
        (root / "labels" / name).with_suffix(".txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text("train: images\nval: images\nnames: [cat, dog]\n")


def write_labelme(root: Path) -> None:
    write_images(root)
    shapes = [{"label": name, "points": corners(box), "shape_type": "polygon"} for name, box in objects()]
    for name in NAMES:
        content = {"shapes": shapes, "imagePath": name, "imageHeight": SIZE[0], "imageWidth": SIZE[1]}
        (root / name).with_suffix(".json").write_text(json.dumps(content))


FORMATS = {"COCO": write_coco, "YOLO": write_yolo, "labelme": write_labelme}


@pytest.mark.parametrize("kind", FORMATS)
def test_annotations_are_classes_unless_objects_are_asked_for(kind, tmp_path):
    FORMATS[kind](tmp_path)
    for task, expected in ((None, "classes"), ("objects", "objects")):
        config = DataConfig(dataset=str(tmp_path), task=task)
        assert find_task(load_records(config)[0], config) == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_touching_objects_of_one_class_have_numbers_of_their_own(kind, tmp_path):
    FORMATS[kind](tmp_path)
    info = load_info(tmp_path, task="objects")
    task = info.reader.task("ce", None)
    assert task.classes.names == ("background", "cat", "dog")
    assert info.reader.describe() == "numbered objects of the classes cat, dog"
    target = info.reader.read(info.train.records[0], SIZE, SIZE)
    places = [target.ids[5, 5], target.ids[5, 15], target.ids[15, 24]]
    assert len(set(places)) == 3
    assert 0 not in places
    assert target.ids[15, 5] == 0
    assert [target.mask[place] for place in ((5, 5), (5, 15), (15, 24), (15, 5))] == [1, 1, 2, 0]
    assert sum(info.reader.class_pixels[1:]) == info.reader.class_pixels[1] + info.reader.class_pixels[2] > 0
    smaller = info.reader.read(info.train.records[0], SIZE, (10, 15))
    assert smaller.ids.shape == (10, 15)
    assert len(np.unique(smaller.ids)) == 4


def test_classes_choose_the_objects(tmp_path):
    write_coco(tmp_path)
    info = load_info(tmp_path, task="objects", classes="dog")
    target = info.reader.read(info.train.records[0], SIZE)
    assert info.reader.task("ce", None).classes.names == ("background", "dog")
    assert target.ids[5, 5] == target.mask[5, 5] == 0
    assert target.mask[15, 24] == 1
    ignoring = load_info(tmp_path, task="objects", classes="dog", outside="ignore").reader
    assert ignoring.read(info.train.records[0], SIZE).mask[5, 5] == 255


def test_shapes_of_a_group_are_one_object(tmp_path):
    write_labelme(tmp_path)
    for name in NAMES:
        file = (tmp_path / name).with_suffix(".json")
        content = json.loads(file.read_text())
        for shape in content["shapes"][:2]:
            shape["group_id"] = 4
        file.write_text(json.dumps(content))
    info = load_info(tmp_path, task="objects")
    ids = info.reader.read(info.train.records[0], SIZE).ids
    assert ids[5, 5] == ids[5, 15] != ids[15, 24]


def test_a_window_of_a_drawn_mask_holds_its_objects(tmp_path):
    write_yolo(tmp_path)
    info = load_info(tmp_path, task="objects")
    record = info.train.records[0]
    with info.reader.open_window(record) as windows:
        target = windows.read(SIZE, ((4, 10), (3, 30)))
    whole = info.reader.read(record, SIZE)
    np.testing.assert_array_equal(target.ids, whole.ids[4:10, 3:30])


def test_annotations_without_objects_are_refused_in_a_line():
    record = {"image": "a.png", "target": EvaluatedIds("a_labelIds.png"), "name": "a.png"}
    with pytest.raises(DataError, match="these annotations tell no objects apart; leave out --task objects"):
        ObjectReader().ids(record)


@pytest.mark.parametrize("write", [write_coco, write_yolo, write_labelme])
def test_annotations_are_the_truth_of_predictions(tmp_path, write):
    write(tmp_path)
    truths = open_true_masks(tmp_path, None, [Path("a")], (), ("dog", "cat"))
    true = truths.find(Path("a"), Path("a"), 0, 1)
    labels = true.render()
    numbers, classes = numbers_of(labels), classes_of(labels)
    assert len(np.unique(numbers)) == 4
    assert set(classes[numbers == 0]) == {0}
    assert classes[5, 5] == classes[5, 14] == 2
    assert classes[15, 24] == 1
    assert numbers[5, 5] != numbers[5, 14]
    target = ObjectFormat(("background", "dog", "cat")).reader_of(true).of_mask(labels, "a")
    np.testing.assert_array_equal(target.mask, classes)
    one_class = open_true_masks(tmp_path, None, [Path("a")], (), ("animal",)).find(Path("a"), Path("a"), 0, 1)
    assert set(classes_of(one_class.render()).ravel()) == {0, 1}
    assert truths.find(Path("z"), Path("z"), 0, 1) is None
    assert truths.missing == ["z"]


def test_masks_that_do_not_say_classes_are_no_truth_of_several(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="masks do not say the classes of objects; give a folder of COCO or labelme"):
        open_true_masks(tmp_path, None, [Path("a")], (), ("dog", "cat"))


def test_names_that_two_images_have_are_told_apart_by_their_folders(tmp_path):
    write_coco(tmp_path)
    file = tmp_path / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    for image, folder in zip(content["images"], ("x", "y"), strict=False):
        (tmp_path / "images" / folder).mkdir()
        (tmp_path / "images" / image["file_name"]).rename(tmp_path / "images" / folder / "a.png")
        image["file_name"] = f"{folder}/a.png"
    file.write_text(json.dumps(content))
    truths = open_true_masks(tmp_path, None, [], (), ("cat", "dog"))
    assert truths.find(Path("a"), Path("a"), 0, 1) is None
    first, second = (truths.find(Path(stem), Path(stem), 0, 1) for stem in ("x/a", "y/a"))
    assert first.source != second.source


def test_classes_of_written_objects_are_read_with_them(tmp_path):
    job = ImageJob(image=tmp_path / "in.png", size=(1, 4), output=tmp_path / "out")
    Image.fromarray(np.array([[0, 1, 2, 2]], np.uint16)).save(tmp_path / "out.png")
    table = tmp_path / "out.objects.csv"
    header = ",".join(IMAGE_COLUMNS)
    table.write_text(f"{header}\n1,dog,1,0,1,0,1,1,2,0.9\n2,cat,2,0,2.5,0,2,1,4,0.8\n")
    written = ObjectFormat(("background", "cat", "dog")).written_mask(job)
    assert classes_of(written.render()).tolist() == [[0, 2, 1, 1]]
    assert numbers_of(written.render()).tolist() == [[0, 1, 2, 2]]
    for row in ("1,bird,1,0,1,0,1,1,2,0.9", "3,dog,1,0,1,0,1,1,2,0.9", "-1,dog,1,0,1,0,1,1,2,0.9"):
        table.write_text(f"{header}\n{row}\n")
        with pytest.raises(DataError, match=r"out.objects.csv: object -?[13] is not one of .*out.png"):
            written.render()


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


def test_a_folder_of_one_object_masks_is_numbered_in_the_order_of_their_names(tmp_path):
    expected = write_set(tmp_path, {"s2": 3, "s10": 0, "s1": 11 - 4})
    records = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    assert [record["name"] for record in records] == ["s1.png", "s2.png", "s10.png"]
    for record in records:
        ids, values = record["target"].render_objects()
        assert np.array_equal(ids, expected[Path(record["name"]).stem])
        assert np.array_equal(record["target"].render(), ids)
        assert values.tolist() == [0] + [1] * int(ids.max())
    assert one_object_masks.images_of_set(tmp_path) == [
        (name, tmp_path / name / "images" / f"{name}.png") for name in ("s1", "s2", "s10")
    ]
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "s2" / "masks" / "m9.png")
    with pytest.raises(DataError, match=r"its masks m1\.png and m9\.png have different sizes, 20 x 30 and 4 x 5"):
        records[1]["target"].render()
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(tmp_path / "s2" / "images" / "other.png")
    assert one_object_masks.images_of_set(tmp_path) == []
    assert one_object_masks.images_of_set(tmp_path / "s1") == []
    with pytest.raises(DataError, match="holds 2 images, expected the one that masks/ belongs to"):
        one_object_masks.open_records(tmp_path, allow_unpaired=False)


def test_the_key_of_one_object_masks_changes_with_each_file(tmp_path):
    write_set(tmp_path, {"a": 2, "b": 1})
    files = sorted(tmp_path.rglob("*.png"))

    def key() -> str:
        return one_object_masks.open_records(tmp_path, allow_unpaired=False).digest

    assert unnoticed_changes(files, key) == []
    before = key()
    (tmp_path / "a" / "masks" / "m2.png").rename(tmp_path / "a" / "masks" / "m3.png")
    assert key() != before
    (tmp_path / "a" / "masks" / "m3.png").rename(tmp_path / "a" / "masks" / "m\udce9.png")  # no UTF-8
    assert key() != before
    (tmp_path / "c" / "images").mkdir(parents=True)
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match=r"c: has no image; d: has no image"):
        key()


def test_one_object_masks_may_be_colors_and_many_and_hidden_files_are_none(tmp_path):
    names = {"a": 0, "b": 1}
    write_set(tmp_path, names)
    masks = tmp_path / "a" / "masks"
    picture = np.zeros((*SIZE, 3), np.uint8)
    for number in range(1, 301):
        row, column = divmod(number, SIZE[1])
        picture[:] = 0
        picture[row, column, number % 3] = 9  # in one of the three channels
        Image.fromarray(picture).save(masks / f"m{number}.png", compress_level=0)
    (masks / "._m1.png").write_bytes(b"what a Mac leaves behind")
    (record, _) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    numbers = np.zeros(SIZE, np.uint16)
    numbers.flat[1:301] = range(1, 301)
    assert np.array_equal(record["target"].render(), numbers)


def test_folders_of_one_object_masks_are_a_set_where_the_first_five_hold_images_and_masks(tmp_path):
    for split in ("train", "val", "other"):
        write_set(tmp_path / split, {name: 1 for name in "abcdef"})
    splits = one_object_masks.find(tmp_path, ())
    assert splits == {name: (tmp_path / name, tmp_path / name) for name in ("train", "val")}
    assert one_object_masks.find(tmp_path / "other", ()) == {"train": (tmp_path / "other", tmp_path / "other")}
    (tmp_path / "train/f/masks/m1.png").unlink()
    (tmp_path / "train/f/masks").rmdir()
    assert one_object_masks.find(tmp_path, ()) == splits
    with pytest.raises(DataError, match=r"1 files without partner: f: has no masks; --allow-unpaired"):
        one_object_masks.open_records(tmp_path / "train", allow_unpaired=False)
    opened = one_object_masks.load(tmp_path, splits, allow_unpaired=True)["train"]()
    assert len(opened) == 5
    assert opened.metadata.unpaired == ("f: has no masks",)
    (tmp_path / "val/c/masks").rename(tmp_path / "val/c/labels")
    assert one_object_masks.find(tmp_path, ()) == {"train": splits["train"]}
    assert {*one_object_masks.find(tmp_path, ("train", "other"))} == {"train", "other"}
    assert one_object_masks.images_of_set(tmp_path / "val") == []
    (tmp_path / "empty").mkdir()
    assert one_object_masks.find(tmp_path / "empty", ()) == {}
    (tmp_path / "other/b/images/b.png").unlink()
    assert one_object_masks.images_of_set(tmp_path / "other") == []


def test_a_folder_of_one_object_masks_that_is_gone_or_holds_too_many_is_one_line(tmp_path, monkeypatch):
    write_set(tmp_path, {"a": 1})
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    folder = tmp_path / "a" / "masks"
    monkeypatch.setattr(one_object_masks, "picture_names", lambda _: ["m1.png"] * 65_536)
    with pytest.raises(DataError, match=f"{folder}: holds 65,536 masks, at most 65,535 are read"):
        record["target"].render()
    monkeypatch.undo()
    (folder / "m1.png").unlink()
    folder.rmdir()
    with pytest.raises(DataError, match=rf"{folder} cannot be read \(No such file or directory\)"):
        record["target"].render()
