"""The task of a data set: by what it is recognized, and where it is in doubt.

Modules: data_utils/targets/find.py.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder
from support.in_process import parsed
from support.launches import TINY
from support.objects import Masks, numbered, write_discs

from data_utils.analysis.check_data import check_data
from data_utils.config import DataConfig
from data_utils.image_io import windowed
from data_utils.image_io.formats import RenderedMask
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.find import (
    AMBIGUOUS_READING,
    count_pieces,
    find_task,
    holds_many_values,
    reading_of_numbers,
    task_warnings,
)
from data_utils.targets.objects import ObjectReader
from runtime.errors import DataError, SettingsError

NOTHING = np.zeros((2, 2), np.uint8)
COUNTS = [3, 5, 8, 9, 12, 14, 17]


@pytest.mark.parametrize(
    ("masks", "reading"),
    [
        ([numbered(8), numbered(9), numbered(10)], "objects"),
        ([numbered(7), numbered(8), numbered(9)], AMBIGUOUS_READING),  # few sets of classes have ten values
        ([numbered(10), numbered(11)], AMBIGUOUS_READING),  # three highest values differ
        ([numbered(10 + number % 4) for number in range(8)], "objects"),  # as many differ as half of the masks
        ([numbered(10 + number % 3) for number in range(8)], AMBIGUOUS_READING),
        ([numbered(10 + number % 10) for number in range(20)], "objects"),
        ([numbered(10 + number % 9) for number in range(20)], AMBIGUOUS_READING),
        ([numbered(10 + number, broken=number == 0) for number in range(10)], "objects"),  # nine of ten are whole
        ([numbered(10 + number, broken=number < 2) for number in range(10)], AMBIGUOUS_READING),
        ([numbered(10, broken=True)] * 8, AMBIGUOUS_READING),  # a tenth more pieces than numbers
        ([numbered(9, broken=True)] * 8, "classes"),
        ([numbered(256)] * 2, "objects"),  # no class has such a value
        ([numbered(255)] * 2, AMBIGUOUS_READING),
        ([numbered(255), numbered(300)], AMBIGUOUS_READING),
        ([numbered(256), NOTHING], "objects"),  # a mask without any object says nothing
        ([NOTHING], "classes"),
    ],
)
def test_masks_number_objects_where_their_highest_values_differ_and_are_many(masks, reading):
    assert reading_of_numbers(Masks(masks)) == reading


@pytest.mark.parametrize(("dims", "count"), [(2, 20), (3, 4)], ids=["images", "volumes"])
def test_masks_are_sampled_from_the_first_to_the_last(dims, count):
    records = Masks([numbered(3)] * 60, dims)
    reading_of_numbers(records)
    assert len(records.read) == count
    assert records.read[0] == 0
    assert records.read[-1] == 59


def test_a_mask_that_cannot_be_read_is_passed_over():
    records = Masks([numbered(8), numbered(9), numbered(10)])
    records.records.insert(1, {"image": "", "target": "nowhere.png", "name": "gone"})
    assert reading_of_numbers(records) == "objects"


COLORS = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([numbered(2)] * 3 + [numbered(9)], False),
        ([numbered(2), numbered(2), numbered(3)], True),
        ([COLORS], False),
    ],
    ids=["in the fourth", "in the third", "colors"],
)
def test_more_than_three_values_in_one_of_three_masks_are_many(masks, expected):
    assert holds_many_values(Masks(masks)) is expected


def test_the_first_rows_of_a_large_mask_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(windowed, "LARGE_IMAGE_PIXELS", 20)
    monkeypatch.setattr(windowed, "STRIP_PIXELS", 8)
    np.save(tmp_path / "a.npy", np.arange(20, dtype=np.uint8).reshape(5, 4) // 4)
    records = ListRecords([{"image": "", "target": str(tmp_path / "a.npy"), "name": "a"}])
    assert not holds_many_values(records)
    monkeypatch.setattr(windowed, "STRIP_PIXELS", 16)
    assert holds_many_values(records)


@pytest.fixture
def doubtful() -> Masks:
    """Masks that may number objects or classes."""
    return Masks([numbered(9, broken=number == 0) for number in range(8)])


def test_numbers_are_in_doubt_where_nothing_says_what_they_are(doubtful):
    assert len(task_warnings(doubtful, DataConfig())) == 1


@pytest.mark.parametrize(
    "settings", [{"classes": "0=no,1=a"}, {"ignore_index": "3"}, {"task": "classes"}, {"regions": "a=1"}]
)
def test_numbers_are_in_no_doubt_where_a_flag_says_what_they_are(doubtful, settings):
    assert len(task_warnings(doubtful, DataConfig(**settings))) == 0


@pytest.mark.parametrize(
    "attributes",
    [
        {"metadata": Metadata(classes=((0, "no"),))},
        {"group_sizes": np.array([8])},
        {"metadata": Metadata(task="objects")},
    ],
    ids=["classes", "stream", "task"],
)
def test_numbers_are_in_no_doubt_where_the_records_say_what_they_are(doubtful, attributes):
    vars(doubtful).update(attributes)
    assert len(task_warnings(doubtful, DataConfig())) == 0


@pytest.mark.parametrize(
    ("settings", "task"),
    [({"task": "classes"}, "classes"), ({}, "overlapping"), ({"regions": "a=1"}, "regions")],
    ids=["flag", "records", "regions"],
)
def test_a_flag_says_the_task_before_the_records_do(settings, task):
    records = Masks([numbered(3)])
    records.metadata = Metadata(task="overlapping")
    assert find_task(records, DataConfig(**settings)) == task


def test_masks_in_doubt_hold_classes():
    assert find_task(Masks([numbered(9)] * 8), DataConfig()) == "classes"


class Kept(Masks):
    """Masks with a key, under which is kept what they are."""

    def __init__(self, masks: list[np.ndarray], digest: str) -> None:
        super().__init__(masks)
        self.digest = digest


OBJECTS = [numbered(highest) for highest in range(11, 19)]
CLASSES = [numbered(3)] * 8
LARGE = np.repeat(np.arange(1, 4), 20)[None]  # three large objects


def test_the_task_that_is_kept_of_one_data_set_is_not_that_of_another():
    records = [Kept(OBJECTS, "a data set of objects"), Kept(CLASSES, "a data set of classes")]
    assert [find_task(each, DataConfig()) for each in records] == ["objects", "classes"]


def test_the_size_of_objects_that_is_kept_of_one_data_set_is_not_that_of_another():
    records = [Kept(OBJECTS, "a data set of objects"), Kept([LARGE], "three large objects")]
    assert [ObjectReader().with_records(each).smallest for each in records] == [1, 10]


def test_the_task_that_is_kept_is_not_looked_for_again():
    objects = Kept(OBJECTS, "a data set of objects")
    find_task(objects, DataConfig())
    objects.read.clear()
    assert find_task(objects, DataConfig()) == "objects"
    assert len(objects.read) == 1


def test_the_size_of_objects_that_is_kept_is_not_measured_again():
    large = Kept([LARGE], "three large objects")
    ObjectReader().with_records(large)
    large.read.clear()
    assert ObjectReader().with_records(large).smallest == 10
    assert large.read == []


def test_the_task_of_masks_without_a_key_is_not_kept():
    assert [find_task(Masks(masks), DataConfig()) for masks in (OBJECTS, CLASSES)] == ["objects", "classes"]


def test_the_size_of_objects_of_masks_without_a_key_is_not_kept():
    assert [ObjectReader().with_records(Masks(masks)).smallest for masks in (OBJECTS, [LARGE])] == [1, 10]


class Rendered(RenderedMask):
    """Numbers that annotations may not be asked for."""

    def render(self) -> np.ndarray:
        raise AssertionError


@pytest.mark.parametrize(
    "records",
    [ListRecords([{"image": "", "target": Rendered(), "name": "a"}] * 8), Masks([])],
    ids=["annotations", "no masks"],
)
def test_masks_that_are_not_looked_at_hold_classes(records):
    assert find_task(records, DataConfig()) == "classes"
    assert task_warnings(records, DataConfig()) == ()


def test_a_task_of_points_is_refused_where_records_hold_masks():
    line = r"^--task landmarks: somewhere holds masks, and no points; leave the flag out$"
    with pytest.raises(DataError, match=line):
        find_task(Masks([numbered(3)]), DataConfig("somewhere", task="landmarks"))


def test_a_task_of_its_own_is_refused_beside_regions():
    with pytest.raises(SettingsError, match=r"^--regions is for --task regions, and --task is classes; leave one out$"):
        find_task(Masks([numbered(3)]), DataConfig(regions="a=1", task="classes"))


def test_a_task_of_regions_may_be_named_beside_them():
    assert find_task(Masks([numbered(3)]), DataConfig(regions="a=1", task="regions")) == "regions"


def task_of(folder: Path, **settings) -> str:
    config = DataConfig(dataset=str(folder), **settings)
    return find_task(load_records(config)[0], config)


@pytest.fixture(scope="module")
def label_images(tmp_path_factory):
    """A folder of label images of discs."""
    return write_discs(tmp_path_factory.mktemp("discs"), COUNTS, seed=0)


def test_label_images_number_objects(label_images):
    assert task_of(label_images) == "objects"


@pytest.mark.parametrize(
    "settings", [{"classes": "0=background,1=cell"}, {"ignore_index": "3"}, {"task": "classes"}], ids=str
)
def test_label_images_hold_classes_with_a_flag(label_images, settings):
    assert task_of(label_images, **settings) == "classes"


def test_masks_of_areas_hold_classes(tiny_folder):
    assert task_of(tiny_folder) == "classes"


def test_masks_of_areas_number_objects_with_a_flag(tmp_path):
    assert task_of(write_folder(tmp_path / "areas", 6, 0, values=(0, 7)), task="objects") == "objects"


def test_masks_of_several_pieces_a_value_are_classes(tmp_path):
    write_discs(tmp_path / "labels", COUNTS, seed=0)
    for file in (tmp_path / "labels" / "masks").iterdir():
        values = np.array(Image.open(file)) % 7  # the highest one still differs
        Image.fromarray(values.astype(np.uint8)).save(file)
    assert task_of(tmp_path / "labels") == "classes"


@pytest.mark.parametrize(
    ("mask", "values", "pieces"),
    [
        ([[1, 0, 2], [0, 1, 2]], 2, 2),
        ([[1, 0, 0, 1]], 1, 2),
        ([[1, 1, 2, 2]], 2, 2),
        ([[0, 0], [0, 0]], 0, 0),
        ([[[1, 0], [0, 0]], [[0, 0], [0, 1]]], 1, 1),
    ],
    ids=["corner", "apart", "side", "nothing", "corner of a volume"],
)
def test_pieces_touch_through_sides_or_corners(mask, values, pieces):
    assert count_pieces(np.array(mask)) == (values, pieces)


def test_the_flag_of_the_task_is_empty_unless_it_is_given():
    assert parsed(*TINY).task is None
    assert parsed("--task", "objects", *TINY).task == "objects"


DOUBT = "give --task objects if they do, and --task classes if they are classes"


@pytest.fixture(scope="module")
def five_objects(tmp_path_factory):
    """A folder of label images of five objects each."""
    folder = write_discs(tmp_path_factory.mktemp("five"), [20, 21, 22, 23], seed=0)
    for file in (folder / "masks").iterdir():
        ids = np.array(Image.open(file))
        Image.fromarray(np.where(ids > 5, 0, ids)).save(file)
    return folder


def test_equally_many_objects_in_all_images_may_be_classes(five_objects):
    report, problems = check_data(DataConfig(dataset=str(five_objects)))
    assert "to check: the numbers in the masks may count objects" in report
    assert report.count("to check: ") == 1
    assert report.endswith("no problems, but 1 to check, see above")
    assert DOUBT in report
    assert not problems
    assert sum(DOUBT in warning for warning in load_info(five_objects).warnings) == 1


@pytest.mark.parametrize(
    "settings", [{"task": "classes"}, {"task": "objects"}, {"classes": "0=no,1=a,2=b,3=c,4=d,5=e"}], ids=str
)
def test_a_report_is_in_no_doubt_where_a_flag_says_the_task(five_objects, settings):
    assert DOUBT not in check_data(DataConfig(dataset=str(five_objects), **settings))[0]


def test_too_many_values_for_classes_may_be_objects(tmp_path):
    write_discs(tmp_path, [9] * 6, seed=0)
    ids = np.zeros((48, 64), np.uint16)
    ids[::2, ::2] = np.arange(1, 24 * 32 + 1).reshape(24, 32)  # more than classes may be
    for index in range(1, 6):
        Image.fromarray(ids).save(tmp_path / "masks" / f"{index:02}.png")
    with pytest.raises(DataError, match=r"more than 255 values: .*; the numbers in the masks may count objects"):
        load_info(tmp_path)
