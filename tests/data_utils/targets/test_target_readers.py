"""What a reader of targets makes of a file is kept for that reader alone; what none can read is one line.

Modules: data_utils/targets/reader.py.
"""

import numpy as np
import pytest

from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Metadata, Records
from data_utils.targets.label_sets import LabelSets
from runtime.cache import digest
from runtime.errors import DataError
from tasks.classes.reader import ClassReader
from tasks.find_task import find_named_classes
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.objects.reader import ObjectReader

TWO = ClassMap(("a", "b"), (1, 2), None)


def test_targets_of_readers_are_told_apart_in_the_cache():
    numbers_by_set = [{("a",): 1}, {("b",): 1}]
    readers = [
        ClassReader(TWO),
        ClassReader(ClassMap(("a", "b"), (2, 1), None)),
        *(ClassReader(TWO, label_sets=LabelSets(((True, True), (True, False)), numbers)) for numbers in numbers_by_set),
        PointReader(Landmarks(("a", "b")), (0, 1)),
        PointReader(Landmarks(("a", "b")), (1, 0)),
    ]
    assert len(set(map(digest, readers))) == len(readers)


def test_points_have_no_named_classes():
    records = Records(ListRows([]), Metadata(classes=((0, "background"), (1, "cell"))))
    assert find_named_classes(records, DataConfig(task="landmarks", classes="nose,tail")) == ()
    assert find_named_classes(records, DataConfig(task="classes")) == ((0, "background"), (1, "cell"))
    assert find_named_classes(records, DataConfig(task="classes", outside="ignore")) == [(1, "cell")]


@pytest.mark.parametrize(
    ("mask", "labeled", "kept"),
    [
        ([0, 0, 1, 1], None, 1.0),
        ([0, 1, 1, 1], None, 0.0),  # halved and doubled: 1, 1, 1, 1
        ([0, 0, 0, 1, 0, 0], None, 0.5),  # halved and doubled: 0, 0, 1, 1, 0, 0
        ([0, 1, 1], None, 0.0),  # half of it is one pixel: 1, 1, 1
        ([0, 1, 1, 1], ("b",), 1.0),
        ([0, 1, 1, 1], (), 0.0),
        ([0, 9, 1, 1], None, 1.0),
    ],
    ids=[
        "all",
        "a part",
        "a rare class, twice as large",
        "an odd width",
        "of a labeled class",
        "of no class",
        "beside what is ignored",
    ],
)
def test_detail_of_masks_is_what_is_left_of_known_pixels(mask, labeled, kept):
    class_map = ClassMap(("a", "b"), (0, 1), 9)
    record = {"image": "", "target": np.array([mask], np.uint8), "name": "m"}
    sets = LabelSets(((True, True), (False, True), (False, False)), {("b",): 1, (): 2})
    if labeled is not None:
        record["labeled"] = labeled
    assert ClassReader(class_map, label_sets=sets).detail_kept([record], 0.5) == kept


def test_points_are_not_read_from_masks_and_some_targets_are_labeled_as_a_whole():
    with pytest.raises(DataError, match=r"^masks_of_cells: masks hold no points, which --task landmarks needs"):
        PointReader.from_records(None, {0: 1}, (), DataConfig("masks_of_cells"))
    places = {("a",): "classes.txt", ("b",): "classes.csv"}
    with pytest.raises(DataError, match=r"^classes\.txt: images of this task are labeled as a whole; remove it"):
        ObjectReader().partly_labeled(places, ())
    assert PointReader(Landmarks(("a",)), (0,)).detail_kept([], 0.5) == 1
