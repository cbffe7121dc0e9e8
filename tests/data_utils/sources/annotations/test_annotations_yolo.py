"""YOLO segmentation: polygons in shares of the image's size, names from data.yaml; no text file means background.

Modules: data_utils/sources/annotations/yolo.py.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from support.annotations import drawing_error, error_of, loaded, masks

from data_utils.bits import unpack_bits
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_mask
from train_utils.check_data import check_data

SIZE = (40, 64)  # (H, W): shares of 1/64 and 1/40 are whole pixels
LIST = "names: [car, dog]\n"
TREE = "0 0.25 0.25 0.5 0.25 0.5 0.75 0.25 0.75\n"  # pixels 16 to 32 across, 10 to 30 down


def write(root: Path, images: str, labels: str, texts: dict[str, str | None], size: tuple[int, int] = SIZE) -> None:
    """An image for each stem, and its text file where there is a text."""
    for stem, text in texts.items():
        for folder in (images, labels):
            (root / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size[::-1], (9, 8, 7)).save(root / images / f"{stem}.jpg")
        if text is not None:
            (root / labels / f"{stem}.txt").write_text(text)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three training images, one of them without objects and one without a file, and one to validate on."""
    write(tmp_path, "images/train", "labels/train", {"a": TREE, "b": None, "c": ""})
    write(tmp_path, "images/val", "labels/val", {"d": TREE.replace("0 ", "1 ", 1)})
    (tmp_path / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\n" + LIST)
    return tmp_path


def test_polygons_are_filled_at_the_size_of_the_image_and_without_any_it_is_background(folder):
    train, val = loaded(folder)
    expected = np.zeros(SIZE, np.uint8)
    expected[10:31, 16:33] = 1  # with their outline
    for name, mask in masks(train).items():
        np.testing.assert_array_equal(mask, expected if name == "a.jpg" else np.zeros(SIZE))
    np.testing.assert_array_equal(masks(val)["d.jpg"], 2 * expected)
    (folder / "labels/train/a.txt").write_text(TREE.replace("0 ", "1.0 ", 1))  # a class with a point
    assert masks(loaded(folder)[0])["a.jpg"].max() == 2


def test_any_polygon_is_filled_as_pillow_fills_it(folder):
    rng = np.random.default_rng(0)
    shares = rng.uniform(-0.1, 1.1, 14).round(6)  # some outside the image
    (folder / "labels/train/a.txt").write_text(f"1 {' '.join(map(str, shares))}\n\n")
    picture = Image.new("L", SIZE[::-1])
    points = (shares.reshape(-1, 2) * SIZE[::-1]).ravel().tolist()
    ImageDraw.Draw(picture).polygon(points, fill=2, outline=2)
    np.testing.assert_array_equal(masks(loaded(folder)[0])["a.jpg"], np.asarray(picture))


@pytest.mark.parametrize("is_first", [True, False], ids=["small one first", "large one first"])
@pytest.mark.parametrize("large", ["0 0 0 1 0 1 1 0 1\n", "0 0 0 0 1 1 1 1 0\n"], ids=["one way round", "the other"])
def test_smaller_objects_lie_on_larger_ones(folder, large, is_first):
    small = TREE.replace("0 ", "1 ", 1)
    (folder / "labels/train/a.txt").write_text(small + large if is_first else large + small)
    mask = masks(loaded(folder)[0])["a.jpg"]
    assert mask[20, 20] == 2
    assert mask[5, 5] == 1


SETTINGS = {  # data.yaml -> images and labels of both splits
    "list": ("path: ../datasets/x\ntrain: images/train\nval: images/val\n" + LIST, "images/{}", "labels/{}", "val"),
    "dict": ("train: images/train\nval: images/val\nnames:\n  1: dog\n  0: car\n", "images/{}", "labels/{}", "val"),
    "roboflow": ("train: ../train/images\nval: ../valid/images\nnc: 2\n" + LIST, "{}/images", "{}/labels", "valid"),
    "no paths": (LIST, "images/{}", "labels/{}", "valid"),
    "validation": (LIST, "{}/images", "{}/labels", "validation"),
    "two folders up": ("train: ../../site/train\nval: ../../site/val\n" + LIST, "site/{}", "site/{}", "val"),
    "quoted keys": (
        '"train": images/train\n"val": images/val\n"names" : [car, dog]\n',
        "images/{}",
        "labels/{}",
        "val",
    ),
    "beside": ("train: train\nval: val\n" + LIST, "{}", "{}", "val"),
    "path of another machine": (
        "path: ../datasets/x\ntrain: site/train\nval: site/val\n" + LIST,
        "site/{}",
        "site/{}",
        "val",
    ),
    "absolute paths of another machine": (
        "train: /datasets/x/train\nval: /datasets/x/val\n" + LIST,
        "images/{}",
        "labels/{}",
        "val",
    ),
    "list files": ("train: train.txt\nval: val.txt\n" + LIST, "images/{}", "labels/{}", "val"),
}


@pytest.mark.parametrize(("settings", "images", "labels", "val"), SETTINGS.values(), ids=SETTINGS)
def test_splits_are_found_as_tools_lay_them_out(tmp_path, settings, images, labels, val):
    write(tmp_path, images.format("train"), labels.format("train"), {"a": TREE, "b": TREE})
    write(tmp_path, images.format(val), labels.format(val), {"c": TREE})
    (tmp_path / "data.yaml").write_text(settings)
    for split, stems in (("train", "ab"), ("val", "c")):  # as CVAT writes them
        lines = [f"data/images/{split}/{stem}.jpg\n" for stem in stems]
        (tmp_path / f"{split}.txt").write_text("".join(lines))
    splits = loaded(tmp_path)
    assert [[*masks(split)] for split in splits] == [["a.jpg", "b.jpg"], ["c.jpg"]]
    assert all(mask.any() for split in splits for mask in masks(split).values())
    assert splits[0].metadata.classes == ((0, "background"), (1, "car"), (2, "dog"))


def test_a_list_of_images_that_are_not_there_names_the_folder(folder):
    (folder / "data.yaml").write_text("train: train.txt\nval: images/val\n" + LIST)
    (folder / "train.txt").write_text("/other/x.jpg\n")
    message = f"{folder}: 1 file without partner: /other/x.jpg: listed in train.txt"
    assert error_of(folder).startswith(message)


def test_images_of_training_are_not_validated_on(folder):
    (folder / "data.yaml").write_text("train: images/train\nval: images/train\n" + LIST)
    train, val = loaded(folder)
    assert len(train) + len(val) == 3
    assert not {*masks(train)} & {*masks(val)}


BAD_LINES = {
    "box": ("0 0.5 0.5 0.2 0.2", "line 2 is a box (5 numbers): the data set is for detection"),
    "class": ("2 0 0 1 0 1 1", "line 2 is of class 2, classes are 0 to 1"),
    "fraction": ("0.5 0 0 1 0 1 1", "line 2 is of class 0.5, classes are 0 to 1"),
    "two points": ("0 0.1 0.1", "line 2: polygon has 2 coordinates up to 0.1, expected 3 pairs or more"),
    "text": ("0 0 0 1 0 1 x", "line 2: polygon has points that are not pairs of numbers"),
    "pixels": ("0 0 0 31 0 31 12", "line 2: polygon has a coordinate of 31; they are shares of the size"),
    "NaN": ("0 0 0 1 0 1 nan", "line 2: polygon has 6 coordinates up to nan, expected 3 pairs"),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_is_no_polygon_is_named(folder, line, message):
    file = folder / "labels/train/a.txt"
    file.write_text(f"\n{line}\n{TREE}")
    assert drawing_error(loaded(folder)[0], "a.jpg").startswith(f"{file}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("names: [", "data.yaml cannot be read as YAML (while parsing"),
        ("names: 3", "data.yaml: its names are 3, expected a list of texts"),
        ("train: x", "no masks in"),  # it is not YOLO's
        ("names: {0: car, 2: dog}", "data.yaml: its names are ['car', None], expected a list of"),
        ("names: [car, car]", "two classes are called car"),
        ("train: [images/train, images/val]\n" + LIST, "gives a list for train"),
        ("kpt_shape: [17, 3]\n" + LIST, "data.yaml has kpt_shape: its text files hold boxes and points"),
    ],
)
def test_a_mistake_in_the_settings_is_a_one_line_error(folder, content, message):
    (folder / "data.yaml").write_text(content)
    assert message.replace("data.yaml", str(folder / "data.yaml")) in error_of(folder)


def test_a_label_file_without_image_is_named(folder):
    # a data set with a label file too many, and the list of classes that LabelImg leaves there
    (folder / "labels/train/x.txt").write_text(TREE)
    (folder / "labels/train/classes.txt").write_text("car\ndog\n")
    message = error_of(folder)
    assert "1 file without partner: x.txt: label file without image" in message
    assert "--allow-unpaired" in message


def test_the_report_counts_images_with_objects_and_objects_of_each_class(folder):
    for text in (folder / "labels").rglob("a.txt"):
        text.write_text(text.read_text().replace(" ", "\t"))
    report, count = check_data(DataConfig(str(folder)))
    assert count == 0
    assert "annotations: YOLO; 2 images with objects, 2 without" in report
    assert {"         1  car", "         1  dog"} <= {*report.splitlines()}


@pytest.mark.parametrize(("names", "value"), [("background\ncar\n", 0), ("car\nbackground\n", 1)])
def test_a_class_called_background_is_the_background(tmp_path, names, value):
    # two images of the first class in classes.txt, which is to be written
    write(tmp_path, "images", "labels", {"a": TREE, "b": TREE})
    (tmp_path / "classes.txt").write_text(names)
    train, _ = loaded(tmp_path)
    assert train.metadata.classes == ((0, "background"), (1, "car"))
    assert read_mask(train[0]["target"], "").max() == value


def test_the_path_in_the_settings_is_where_images_and_labels_are(tmp_path):
    write(tmp_path / "data", "images/train", "labels/train", {"a": TREE})
    write(tmp_path / "data", "images/val", "labels/val", {"b": TREE})
    (tmp_path / "images/train").mkdir(parents=True)  # of something else
    (tmp_path / "data.yaml").write_text("path: data\ntrain: ../images/train\nval: images/val\n" + LIST)
    splits = loaded(tmp_path)
    images = [tmp_path / "data/images/train/a.jpg", tmp_path / "data/images/val/b.jpg"]
    assert [Path(split[0]["image"]) for split in splits] == images
    assert all(masks(split).popitem()[1].any() for split in splits)


OVERLAPPING = TREE.replace("0 ", "1 ", 1) + "0 0 0 1 0 1 1 0 1\n" + "1 0 0 0.1 0 0.1 0.1\n"  # dogs on a large car


@pytest.mark.parametrize(
    ("bit_of_value", "truths"),
    [
        ({1: 2, 2: 0}, [5, 4, 5]),
        ({2: 1}, [2, 0, 2]),
        ({1: 9, 2: 30}, [2**30 + 2**9, 2**9, 2**30 + 2**9]),
    ],
    ids=["both", "one", "high bits"],
)
def test_classes_that_overlap_have_a_bit_each(folder, bit_of_value, truths):
    (folder / "labels/train/a.txt").write_text(OVERLAPPING)
    truth, unknown = unpack_bits(loaded(folder)[0][0]["target"].render_classes(bit_of_value))
    assert [truth[20, 20], truth[35, 60], truth[1, 3]] == truths
    assert not unknown.any()


def test_the_only_file_that_names_classes_may_have_any_name(folder):
    (folder / "data.yaml").rename(folder / "coco8-seg.yaml")  # as Ultralytics calls its own
    assert masks(loaded(folder)[1])["d.jpg"].max() == 2
    (folder / "other.yaml").write_text(LIST)
    assert "text files of YOLO lie in labels/ beside images/, with a data.yaml or classes.txt" in error_of(folder)
