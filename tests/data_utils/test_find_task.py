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


def test_masks_are_sampled_from_the_first_to_the_last():
    for dims, count in ((2, 20), (3, 4)):
        records = Masks([numbered(3)] * 60, dims)
        reading_of_numbers(records)
        assert len(records.read) == count
        assert records.read[0] == 0
        assert records.read[-1] == 59


def test_a_mask_that_cannot_be_read_is_passed_over():
    records = Masks([numbered(8), numbered(9), numbered(10)])
    records.records.insert(1, {"image": "", "target": "nowhere.png", "name": "gone"})
    assert reading_of_numbers(records) == "objects"


def test_more_than_three_values_in_one_of_three_masks_call_for_a_closer_look():
    assert not holds_many_values(Masks([numbered(2)] * 3 + [numbered(9)]))
    assert holds_many_values(Masks([numbered(2), numbered(2), numbered(3)]))
    colors = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    assert not holds_many_values(Masks([colors]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, {}),
        ({"classes": "0=no,1=a"}, None),
        ({"ignore_index": "3"}, None),
        ({"task": "classes"}, None),
        ({"regions": "a=1"}, None),
        ({}, {"metadata": Metadata(classes=((0, "no"),))}),
        ({}, {"group_sizes": np.array([8])}),
        ({}, {"metadata": Metadata(task="objects")}),
    ],
)
def test_numbers_are_in_doubt_only_where_nothing_says_what_they_are(settings, said):
    records = Masks([numbered(9, broken=number == 0) for number in range(8)])
    vars(records).update(said or {})
    lines = task_warnings(records, DataConfig(**settings))
    assert len(lines) == (not settings and not said)


def test_a_flag_says_the_task_before_the_records_do_and_these_before_their_masks():
    records = Masks([numbered(3)])
    records.metadata = Metadata(task="overlapping")
    assert find_task(records, DataConfig(task="classes")) == "classes"
    assert find_task(records, DataConfig()) == "overlapping"
    assert find_task(records, DataConfig(regions="a=1")) == "regions"
    doubtful = Masks([numbered(9)] * 8)
    assert find_task(doubtful, DataConfig()) == "classes"


class Kept(Masks):
    """Masks with a key, under which is kept what they are."""

    def __init__(self, masks: list[np.ndarray], digest: str) -> None:
        super().__init__(masks)
        self.digest = digest


def test_what_is_kept_of_one_data_set_is_not_that_of_another():
    objects = Kept([numbered(highest) for highest in range(11, 19)], "a data set of objects")
    classes = Kept([numbered(3)] * 8, "a data set of classes")
    assert [find_task(records, DataConfig()) for records in (objects, classes)] == ["objects", "classes"]
    large = np.repeat(np.arange(1, 4), 20)[None]
    readers = [ObjectReader().with_records(records) for records in (objects, Kept([large], "three large objects"))]
    assert [reader.smallest for reader in readers] == [1, 10]
    objects.read.clear()
    assert find_task(objects, DataConfig()) == "objects"
    assert len(objects.read) == 1


def test_what_is_known_of_masks_without_a_key_is_not_kept():
    objects, classes = Masks([numbered(highest) for highest in range(11, 19)]), Masks([numbered(3)] * 8)
    assert [find_task(records, DataConfig()) for records in (objects, classes)] == ["objects", "classes"]
    large = Masks([np.repeat(np.arange(1, 4), 20)[None]])
    assert [ObjectReader().with_records(records).smallest for records in (objects, large)] == [1, 10]


class Rendered(RenderedMask):
    """Numbers that annotations may not be asked for."""

    def render(self) -> np.ndarray:
        raise AssertionError


def test_masks_of_annotations_and_no_masks_at_all_are_classes():
    records = ListRecords([{"image": "", "target": Rendered(), "name": "a"}] * 8)
    assert find_task(records, DataConfig()) == find_task(Masks([]), DataConfig()) == "classes"
    assert task_warnings(records, DataConfig()) == task_warnings(Masks([]), DataConfig()) == ()


def test_a_task_that_the_records_or_the_flags_do_not_fit_is_one_line():
    records = Masks([numbered(3)])
    with pytest.raises(
        DataError, match=r"^--task landmarks: somewhere holds masks, and no points; leave the flag out$"
    ):
        find_task(records, DataConfig("somewhere", task="landmarks"))
    with pytest.raises(SettingsError, match=r"^--regions is for --task regions, and --task is classes; leave one out$"):
        find_task(records, DataConfig(regions="a=1", task="classes"))
    assert find_task(records, DataConfig(regions="a=1", task="regions")) == "regions"
