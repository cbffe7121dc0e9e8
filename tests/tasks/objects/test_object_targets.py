"""Objects as targets: which numbers of a mask are objects, of which classes, and which count nowhere.

Modules: tasks/objects/reader.py.
"""

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.data_sets import load_info
from support.objects import picture, write_discs

from data_utils.config import DataConfig
from data_utils.image_io.formats import RenderedMask
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import TrainingDataset
from runtime.errors import DataError, SettingsError
from tasks.objects.reader import ObjectReader
from train_utils.check_data import check_data

COUNTS = [3, 5, 8, 9, 12, 14, 17]
TWO_CLASSES = ((9, "a"), (7, "b"))  # the values of a mask, in the order of the classes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0, -3]], np.int32), "mask holds -3, but the numbers of objects are 1 to 2,147,483,647"),
        (np.array([[0, 2**31]], np.int64), "mask holds 2,147,483,648"),
    ],
)
def test_numbers_that_no_object_has_are_refused(values, message):
    with pytest.raises(DataError, match=f"a.tif: {message}"):
        ObjectReader().target_from_mask(values, "a.tif")


def test_numbers_that_are_ignored_may_be_those_of_no_object():
    reader = ObjectReader((2**32 - 1,))
    target = reader.target_from_mask(np.array([[0, 2**32 - 1, 5]]), "a")
    assert target.ids.tolist() == [[0, 0, 5]]
    assert target.mask.tolist() == [[0, 255, 1]]
    assert reader.find_problem([0, 5, 2**32 - 1]) is None


def test_colors_of_a_mask_are_numbers():
    colors = np.array([[[0, 0, 0], [1, 0, 0], [0, 0, 1]]], np.uint8)
    assert ObjectReader().target_from_mask(colors, "a").ids.tolist() == [[0, 1, 65536]]


@pytest.fixture
def reader_without_nine():
    """A reader that ignores the number 9."""
    return ObjectReader.from_values({}, (), DataConfig(ignore_index="9"))


def test_ignored_numbers_count_nowhere(reader_without_nine):
    target = reader_without_nine.target_from_mask(np.array([[0, 9, 2]], np.uint8), "a")
    assert target.mask.tolist() == [[0, 255, 1]]
    assert target.ids.tolist() == [[0, 0, 2]]


def test_ignored_numbers_of_a_volume_stay_in_its_voxels(reader_without_nine):
    volume = np.array([[[0, 9, 2]]], np.int32)
    assert reader_without_nine.target_from_volume(volume, "a").ids.tolist() == [[[0, 0, 2]]]
    assert volume.tolist() == [[[0, 9, 2]]]


def test_a_color_is_no_number_to_be_ignored():
    with pytest.raises(SettingsError, match="--ignore-index #ff0000: expected numbers of objects"):
        ObjectReader.from_values({}, (), DataConfig(ignore_index="#ff0000"))


class DrawnObjects(RenderedMask):
    """Objects of the mask values 7, 9, 300 and 255, a pixel each."""

    def render(self) -> np.ndarray:
        return np.array([[7, 9, 300, 0, 255]])

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[1, 2, 3, 0, 4]]), np.array([0, 7, 9, 300, 255])


@pytest.mark.parametrize("outside", [0, 255], ids=["background", "ignored"])
def test_objects_of_other_classes_are_none(outside):
    record = {"image": "", "target": DrawnObjects(), "name": "mask"}
    target = ObjectReader(classes=TWO_CLASSES, outside=outside).read(record, (1, 5))
    assert target.mask.tolist() == [[2, 1, outside, 0, 255]]
    assert target.ids.tolist() == [[1, 2, 0, 0, 0]]


@pytest.mark.parametrize(("flag", "outside"), [(None, 0), ("background", 0), ("ignore", 255)])
def test_a_flag_says_where_objects_of_other_classes_count(flag, outside):
    reader = ObjectReader.from_values({}, ((0, "none"), (9, "a")), DataConfig(outside=flag))
    assert reader == ObjectReader((), ((9, "a"),), outside)


@pytest.mark.parametrize(
    ("reader", "class_pixels"),
    [
        (ObjectReader(ignored=(9,)), (50, 25)),  # a number may be 255, and ignored ones count nowhere
        (ObjectReader(classes=((9, "a"),)), (70, 30)),  # as a class 255 is of pixels that count nowhere
        (ObjectReader(classes=((9, "a"),), outside=255), (50, 30)),
    ],
    ids=["a number", "a class", "others unknown"],
)
def test_pixels_of_value_255_count_as_those_of_a_number_alone(reader, class_pixels):
    assert reader.with_pixels({0: 50, 7: 20, 9: 30, 255: 5}).class_pixels == class_pixels


def test_a_reader_of_objects_tells_its_task():
    reader = ObjectReader(classes=TWO_CLASSES, smallest=7, fills_holes=True, class_pixels=(10, 0, 30))
    task = reader.task("ce", ["auto"])
    assert task.smallest == 7
    assert task.fills_holes
    assert task.classes.names == ("background", "a", "b")
    assert task.classes.class_weights.tolist() == pytest.approx([(4 / 3) ** 0.5, 1, (4 / 9) ** 0.5])


def test_targets_of_objects_are_kept_apart_by_all_that_they_depend_on():
    readers = [
        ObjectReader(),
        ObjectReader(ignored=(9,)),
        ObjectReader(classes=((2, "cell"),)),
        ObjectReader(outside=255),
    ]
    assert len({reader.key for reader in readers}) == len(readers)


def test_label_images_of_32_bits_are_numbered_anew_in_crops(tmp_path):
    """Their numbers are larger than 20 million."""
    folder = write_discs(tmp_path, COUNTS, seed=3)
    for file in (folder / "masks").iterdir():
        ids = np.array(Image.open(file)).astype(np.uint32)
        tifffile.imwrite(file.with_suffix(".tif"), np.where(ids > 0, ids + 20_000_000, 0).astype(np.uint32))
        file.unlink()
    info = load_info(folder, crop_size=(16, 24), augment="strong")
    assert info.config.task == "objects"
    dataset = TrainingDataset(info.train, info, info.preprocess())
    for index in range(len(dataset)):
        ids = dataset[Slot(index, 0, (16, 24))][1].ids
        assert ids.dtype.itemsize == 4
        assert int(ids.max()) <= 16 * 24
        assert sorted(set(ids.ravel().tolist()) | {0}) == list(range(int(ids.max()) + 1))


def test_crops_of_large_label_images_are_numbered_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 1000)
    ids = np.zeros((60, 80), np.int32)
    ids[::2, ::2] = np.arange(1, 30 * 40 + 1).reshape(30, 40)  # more than classes may be
    for name, values in (("images", picture(ids)), ("masks", ids)):
        (tmp_path / name).mkdir()
        for index in range(3):
            np.save(tmp_path / name / f"{index}.npy", values)
    info = load_info(tmp_path, task="objects", crop_size=(16, 16))
    background, objects = info.train.class_locations[0]
    assert (ids[tuple(background.T)] == 0).all()
    assert (ids[tuple(objects.T)] > 0).all()
    target = TrainingDataset(info.train, info, info.preprocess())[Slot(0, 0, (16, 16))][1]
    assert int(target.ids.max()) == 64
    assert target.mask.sum() == 64


def test_numbers_that_no_object_can_have_are_a_problem(tmp_path):
    for index, file in enumerate(sorted((write_discs(tmp_path, COUNTS, seed=0) / "masks").iterdir())):
        ids = np.array(Image.open(file)).astype(np.uint32)
        numbers = np.where(ids > 0, 2**31, 0) if index == 6 else ids
        tifffile.imwrite(file.with_suffix(".tif"), numbers.astype(np.uint32))
        file.unlink()
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert problems == 1
    assert "06.png: mask holds 2,147,483,648, but the numbers of objects are 1 to" in report
