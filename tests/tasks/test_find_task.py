"""The task of a data set: by what it is recognized, and where it is in doubt.

Modules: tasks/find_task.py.
"""

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.objects import Masks, numbered, write_discs

from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Metadata, Records
from tasks.find_task import AMBIGUOUS_READING, find_task, reading_of_masks
from train_utils.check_data import check_data

NOTHING = np.zeros((2, 2), np.uint8)
COLORS = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("masks", "reading"),
    [
        ([numbered(8), numbered(9), numbered(10)], "objects"),
        ([numbered(7), numbered(8), numbered(9)], AMBIGUOUS_READING),  # few sets of classes have ten values
        ([numbered(10 + number % 4) for number in range(8)], "objects"),  # as many differ as half of the masks
        ([numbered(10 + number % 3) for number in range(8)], AMBIGUOUS_READING),
        ([numbered(10 + number, broken=number == 0) for number in range(10)], "objects"),  # nine of ten are whole
        ([numbered(10, broken=True)] * 8, AMBIGUOUS_READING),  # a tenth more pieces than numbers
        ([numbered(256)] * 2, "objects"),  # no class has such a value
        ([numbered(255)] * 2, AMBIGUOUS_READING),
        ([numbered(256), NOTHING], "objects"),  # a mask without any object says nothing
        ([NOTHING], "classes"),
        ([numbered(2)] * 3 + [numbered(9)], "classes"),  # the first three decide whether there are many values
        ([numbered(2), numbered(2), numbered(3)], AMBIGUOUS_READING),
        ([COLORS], "classes"),
    ],
)
def test_masks_number_objects_where_their_highest_values_differ_and_are_many(masks, reading):
    assert reading_of_masks(Masks(masks)) == reading


def test_a_mask_that_cannot_be_read_is_passed_over():
    first, *others = Masks([numbered(8), numbered(9), numbered(10)])
    records = Records(ListRows([first, {"image": "", "target": "nowhere.png", "name": "gone"}, *others]))
    assert reading_of_masks(records) == "objects"


def test_numbers_are_in_doubt_where_no_flag_says_what_they_are():
    doubtful = Masks([numbered(9, broken=number == 0) for number in range(8)])
    task, (warning,) = find_task(doubtful, DataConfig())
    assert task == "classes"
    assert "--task objects" in warning
    for settings in ({"classes": "0=no,1=a"}, {"ignore_index": "3"}, {"task": "classes"}, {"regions": "a=1"}):
        assert find_task(doubtful, DataConfig(**settings))[1] == ()


@pytest.mark.parametrize(
    ("settings", "task"),
    [({"task": "classes"}, "classes"), ({}, "overlapping"), ({"regions": "a=1"}, "regions")],
    ids=["flag", "records", "regions"],
)
def test_a_flag_says_the_task_before_the_records_do(settings, task):
    records = Masks([numbered(3)])
    records.metadata = Metadata(task="overlapping")
    assert find_task(records, DataConfig(**settings)) == (task, ())


class Kept(Masks):
    """Masks with a key, under which is kept what they are."""

    def __init__(self, masks: list[np.ndarray], digest: str) -> None:
        super().__init__(masks)
        self.digest = digest


OBJECTS = [numbered(highest) for highest in range(11, 19)]
CLASSES = [numbered(3)] * 8


def test_the_task_that_is_kept_of_one_data_set_is_not_that_of_another():
    records = [Kept(OBJECTS, "a data set of objects"), Kept(CLASSES, "a data set of classes")]
    assert [find_task(each, DataConfig())[0] for each in records] == ["objects", "classes"]


DOUBT = "give --task objects if they do, and --task classes if they are classes"


def test_equally_many_objects_in_all_images_may_be_classes(tmp_path):
    """A folder of label images of five objects each."""
    five_objects = write_discs(tmp_path, [20, 21, 22, 23], seed=0)
    for file in (five_objects / "masks").iterdir():
        ids = np.array(Image.open(file))
        Image.fromarray(np.where(ids > 5, 0, ids)).save(file)
    report, problems = check_data(DataConfig(dataset=str(five_objects)))
    assert "to check: the numbers in the masks may count objects" in report
    assert report.count("to check: ") == 1
    assert report.endswith("no problems, but 1 to check, see above")
    assert DOUBT in report
    assert not problems
    assert sum(DOUBT in warning for warning in load_info(five_objects).warnings) == 1


@pytest.mark.parametrize(
    ("metadata", "group_sizes"),
    [
        (Metadata(classes=((0, "no"),)), None),
        (Metadata(), np.array([8])),
        (Metadata(task="objects"), None),
    ],
    ids=["classes", "stream", "task"],
)
def test_numbers_are_in_no_doubt_where_the_records_say_what_they_are(metadata, group_sizes):
    rows = Masks([numbered(9, broken=number == 0) for number in range(8)]).rows
    rows.group_sizes = group_sizes
    assert find_task(Records(rows, metadata), DataConfig())[1] == ()
