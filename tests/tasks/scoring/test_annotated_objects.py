"""Objects from annotations, with --task objects: COCO, labelme and YOLO tell them apart, and name their classes.

Modules: tasks/classes/reader.py, inference/true_masks.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_sets import load_info
from support.formats import object_format
from support.in_process import run_predict
from support.prediction import true_labels

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.image_io.formats import PageFile
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from data_utils.sources.load import load_records
from inference.true_masks import TruthFolder
from runtime.errors import DataError
from tasks.find_task import find_task
from tasks.job import Job, MaskFile
from tasks.objects.labels import label_classes, label_numbers
from tasks.objects.reader import ObjectReader
from unet import UNet
from unet.config import Preprocess, UNetConfig

SIZE = (20, 30)
# two cats that touch, and a dog: (left, top, right, bottom)
BOXES = {"cat": [(2, 2, 10, 10), (10, 2, 18, 10)], "dog": [(20, 12, 28, 18)]}
NAMES = ("a.png", "b.png", "c.png")


def find_truth(folder: Path, objects: tuple[str, ...], name: str) -> MaskFile | None:
    """The true objects of the image `name`, given the model's classes of objects."""
    job = Job(source=PageFile(name), size=None, root=Path("out"), stem=Path(name))
    try:
        return TruthFolder(folder, UNetConfig(), object_format(*objects)).with_truths([job])[0].truth
    except DataError as error:
        if "has no mask for 1 input" in str(error):
            return None
        raise


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


@pytest.mark.parametrize(("task", "expected"), [(None, "classes"), ("objects", "objects")])
@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_annotations_are_classes_unless_objects_are_asked_for(tmp_path, write, task, expected):
    write(tmp_path)
    config = DataConfig(dataset=str(tmp_path), task=task)
    assert find_task(load_records(config)[0], config) == (expected, ())


@pytest.fixture(scope="module", params=FORMATS.values(), ids=FORMATS)
def info(request, tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """The data set in one of the formats, with the task of objects."""
    folder = tmp_path_factory.mktemp("objects")
    request.param(folder)
    return load_info(folder, task="objects")


def test_touching_objects_of_one_class_have_numbers_of_their_own(info):
    target = info.reader.read(info.train.records[0], SIZE, SIZE)
    numbers = {int(target.ids[place]) for place in ((5, 5), (5, 15), (15, 24))}
    assert len(numbers) == 3
    assert 0 not in numbers
    assert target.ids[15, 5] == 0
    assert [target.mask[place] for place in ((5, 5), (5, 15), (15, 24), (15, 5))] == [1, 1, 2, 0]


def test_objects_of_classes_that_are_not_chosen_are_background(tmp_path):
    write_coco(tmp_path)
    info = load_info(tmp_path, task="objects", classes="dog")
    target = info.reader.read(info.train.records[0], SIZE)
    assert info.reader.task("ce", None).classes.names == ("background", "dog")
    assert target.ids[5, 5] == target.mask[5, 5] == 0
    assert target.mask[15, 24] == 1


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
    target = info.reader.read(record, SIZE, window=((4, 10), (3, 30)))
    whole = info.reader.read(record, SIZE)
    np.testing.assert_array_equal(target.ids, whole.ids[4:10, 3:30])


def test_annotations_without_objects_are_refused_in_a_line():
    record = {"image": "a.png", "target": EvaluatedIds("a_labelIds.png"), "name": "a.png"}
    with pytest.raises(DataError, match="these annotations tell no objects apart; leave out --task objects"):
        ObjectReader().ids(record)


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def annotated(request, tmp_path) -> Path:
    """A folder of annotations in one of the formats."""
    request.param(tmp_path)
    return tmp_path


def test_annotations_are_the_truth_of_predicted_objects(annotated):
    true = find_truth(annotated, ("dog", "cat"), "a")
    labels = true.render()
    numbers, classes = label_numbers(labels), label_classes(labels)
    assert len(np.unique(numbers)) == 4
    assert set(classes[numbers == 0]) == {0}
    assert classes[5, 5] == classes[5, 14] == 2
    assert classes[15, 24] == 1
    assert numbers[5, 5] != numbers[5, 14]
    np.testing.assert_array_equal(true_labels(true, object_format("dog", "cat")), labels)


def saved(folder: Path, task: dict | None, outputs: int, **preprocess) -> Path:
    """A model that answers at random."""
    torch.manual_seed(0)
    config = UNetConfig(1, outputs, base_channels=2, depth=1, task=task, preprocess=Preprocess(**preprocess))
    UNet(config).save_pretrained(folder)
    return folder


def confusion(model: Path, root: Path, output: Path, truth: Path) -> list[list[int]]:
    """The confusion matrix of the images of a data set."""
    images = root / "images" if (root / "images").is_dir() else root
    result = run_predict("--model", model, "--input", images, "--output", output, "--truth", truth)
    assert result.returncode == 0, result.stderr
    report = json.loads((output / "metrics.json").read_text())
    assert report["images"] == len(NAMES)
    return report["confusion_matrix"]


def test_annotations_score_a_model_of_classes_as_masks_do(annotated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    names, values = ("dog", "background", "cat"), (7, 0, 9)  # in another order than in the annotations
    model = saved(folder / "model", None, 3, class_names=names, class_values=values)
    own_values = load_records(DataConfig(dataset=str(annotated)))[0][0]["target"].render()
    mask = np.array([0, 9, 7], np.uint8)[own_values]
    for name in NAMES:
        (folder / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask).save(folder / "masks" / name)
    by_masks = confusion(model, annotated, folder / "a", folder / "masks")
    assert confusion(model, annotated, folder / "b", annotated) == by_masks
    assert sum(map(sum, by_masks)) == len(NAMES) * mask.size


@pytest.mark.parametrize("names", [("dog", "cat"), ("animal",)], ids=["two classes", "one class"])
def test_annotations_score_a_model_of_objects(annotated, tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("scored")
    task = {"name": "objects", "classes": ["background", *names], "smallest": 1}
    model = saved(folder / "model", task, len(names) + 2)
    images = annotated / "images" if (annotated / "images").is_dir() else annotated
    result = run_predict("--model", model, "--input", images, "--output", folder / "out", "--truth", annotated)
    assert result.returncode == 0, result.stderr
    assert json.loads((folder / "out" / "metrics.json").read_text())["images"] == len(NAMES)


def test_the_background_of_annotations_is_unknown_to_a_model_of_outside_ignore(annotated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    model = saved(folder / "model", None, 2, class_names=("cat", "dog"), class_values=(1, 2), outside_class=255)
    images = annotated / "images" if (annotated / "images").is_dir() else annotated
    result = run_predict("--model", model, "--input", images, "--output", folder / "out", "--truth", annotated)
    assert result.returncode == 0, result.stderr
    scored = np.sum(json.loads((folder / "out" / "metrics.json").read_text())["confusion_matrix"])
    assert 0 < scored < len(NAMES) * np.prod(SIZE) / 2


def test_a_class_that_the_model_does_not_know_is_named(annotated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    model = saved(folder / "model", None, 3, class_names=("background", "cat", "cow"), class_values=(0, 1, 2))
    images = annotated / "images" if (annotated / "images").is_dir() else annotated
    result = run_predict("--model", model, "--input", images, "--output", folder / "out", "--truth", annotated)
    assert result.returncode == 1
    assert result.stderr.count("is annotated with dog, which is no class of the model") == len(NAMES), result.stderr
