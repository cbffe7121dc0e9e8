"""By what the task of a data set is recognized.

Modules: data_utils/targets/find.py.
"""

import numpy as np
import pytest
from objects import Masks, numbered

from data_utils.config import DataConfig
from data_utils.image_io.formats import RenderedMask
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.find import AMBIGUOUS_READING, find_task, holds_many_values, reading_of_numbers, task_warnings
from data_utils.targets.objects import ObjectReader
from runtime.errors import DataError, SettingsError

NOTHING = np.zeros((2, 2), np.uint8)


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
