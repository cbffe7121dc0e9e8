"""Classes chosen by name, joined, and what becomes of the others: in masks, models and scores.

Modules: data_utils/class_names.py, data_utils/class_map.py, tasks/classes/reader.py.
"""

from pathlib import Path

import numpy as np
import pytest
from support.data_sets import load_info
from support.in_process import Run, run_train
from support.labelme_files import shape, write_labelme

from data_utils.class_map import ClassMap, resolve_classes
from data_utils.class_names import named_classes, parse_classes
from data_utils.config import DataConfig
from inference.predictor import Predictor
from runtime.errors import CheckpointError, DataError
from train_utils.check_data import check_data
from unet import UNet

FILE_CLASSES = ((0, "background"), (1, "car"), (2, "dog"), (3, "person"))
MASK = np.uint8([[0, 1, 2], [3, 3, 255]])
TINY = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--max-steps", "1", "--num-workers", "0"]
TINY += ["--tracker", "none"]


def class_map(flag: str | None, outside: str | None = None, file_classes=FILE_CLASSES, ignore=None) -> ClassMap:
    """The class map of masks of 0 to 3 and 255, as the flags choose it."""
    config = DataConfig(classes=flag, outside=outside)
    classes = named_classes(flag, file_classes, config.outside_rule)
    return resolve_classes(dict.fromkeys((0, 1, 2, 3, 255), 10), classes, ignore, config.outside_rule)


CHOICES = [
    ("person", None, ("background", "person"), (0, 3), [[0, 0, 0], [1, 1, 255]]),
    ("person,car", None, ("background", "person", "car"), (0, 3, 1), [[0, 2, 0], [1, 1, 255]]),
    ("person", "ignore", ("background", "person"), (0, 3), [[0, 255, 255], [1, 1, 255]]),
    (None, "ignore", ("car", "dog", "person"), (1, 2, 3), [[255, 0, 1], [2, 2, 255]]),
    ("0=bg,3=thing,2=thing", "ignore", ("bg", "thing"), (0, 3), [[0, 255, 1], [1, 1, 255]]),
    ("2=dog,3=person", "background", ("background", "dog", "person"), (0, 2, 3), [[0, 0, 1], [2, 2, 255]]),
    ("0=bg,1=a,2=a,3=a", None, ("bg", "a"), (0, 1), [[0, 1, 1], [1, 1, 255]]),
]


@pytest.mark.parametrize(("flag", "outside", "names", "values", "indices"), CHOICES)
def test_classes_are_chosen_or_joined(flag, outside, names, values, indices):
    classes = class_map(flag, outside)
    assert classes.names == names
    assert classes.values == values
    np.testing.assert_array_equal(classes.encode(MASK, "m"), np.uint8(indices))
    for value, index in zip(MASK.ravel().tolist(), np.ravel(indices).tolist(), strict=True):
        assert classes.index_of(value) == index


def test_several_values_are_ignored_beside_given_classes():
    classes = class_map("1=car,2=dog", ignore="0,3,255", file_classes=())
    np.testing.assert_array_equal(classes.encode(MASK, "m"), np.uint8([[255, 0, 1], [255, 255, 255]]))


def test_colors_are_joined():
    red, green, blue = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    classes = parse_classes("#ff0000=warm,#00ff00=warm,#0000ff=cold")
    class_map = resolve_classes({red: 1, green: 1, blue: 1}, classes, None)
    np.testing.assert_array_equal(class_map.encode(np.uint8([[red, green, blue]]), "m"), [[0, 0, 1]])
    np.testing.assert_array_equal(class_map.decode(np.uint8([[0, 1]])), [[red, blue]])


@pytest.mark.parametrize(
    ("flag", "outside", "file_classes", "reason"),
    [
        ("persn", None, FILE_CLASSES, "no class is called 'persn'; the classes are background, car, dog, person; did"),
        ("person", None, (), "--classes person chooses classes by name, but this data set names none; give VALUE=NAME"),
        ("person", "ignore", ((7, "road"), (24, "person")), "1 class, expected 2 to 255"),
        (None, "ignore", (), "--outside ignore needs --classes; to ignore a mask value, give --ignore-index VALUE"),
    ],
)
def test_a_wrong_choice_is_a_one_line_error(flag, outside, file_classes, reason):
    with pytest.raises(DataError) as error:
        class_map(flag, outside, file_classes)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def labelme_folder(folder: Path) -> Path:
    """Four images with a car, a dog and a person each, as labelme files."""
    for number in range(4):
        shapes = []
        for position, label in enumerate(("car", "dog", "person")):
            left = 2 + 10 * position
            shapes.append(shape(label, [[left, 4 + number], [left + 6, 15]], "rectangle"))
        write_labelme(folder, str(number), shapes)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelme_folder(tmp_path_factory.mktemp("chosen") / "data")


@pytest.fixture(scope="module")
def person_run(data, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on one of three classes."""
    folder = tmp_path_factory.mktemp("person") / "run"
    run = run_train(folder, "--dataset", data, "--classes", "person", *TINY)
    assert run.exit_code == 0, run.output
    return run


def test_a_model_of_chosen_classes_keeps_them_and_is_compared_with_them(person_run, data):
    preprocess = person_run.config["preprocess"]
    assert preprocess["class_names"] == ["background", "person"]
    assert preprocess["class_values"] == [0, 3]
    assert preprocess["outside_class"] == 0
    assert preprocess["joined_values"] == []
    truth = load_info(data).val.records[0]["target"].render()
    model = UNet.from_pretrained(person_run.folder / "model")
    classes = ClassMap.from_preprocess(model.config.preprocess, 2)
    np.testing.assert_array_equal(classes.encode(truth, "truth"), truth == 3)
    mask, _ = Predictor.from_pretrained(person_run.folder / "model")(np.zeros((60, 80, 3), np.uint8))
    assert set(np.unique(mask)) <= {0, 3}


def test_a_run_on_chosen_classes_does_not_go_on_with_others(person_run, data):
    with pytest.raises(CheckpointError, match="the checkpoint's classes is"):
        run_train(person_run.folder, "--dataset", data, "--classes", "person,dog", *TINY, "--resume", "auto")


def test_pixels_of_joined_classes_are_counted_together_and_of_ignored_ones_not(data):
    apart = load_info(data).reader.class_pixels
    joined = load_info(data, classes="0=background,1=animal,2=animal,3=person").reader
    assert joined.class_pixels == (apart[0], apart[1] + apart[2], apart[3])
    ignored = load_info(data, classes="person", outside="ignore").reader
    assert ignored.class_pixels == (apart[0], apart[3])


def test_the_report_says_which_pixels_are_ignored(data):
    report, problems = check_data(DataConfig(str(data), classes="person", outside="ignore"))
    assert problems == 0
    assert "%  (ignored)" in report
    assert "%  person" in report
