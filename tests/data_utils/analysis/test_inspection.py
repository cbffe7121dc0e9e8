"""The inspection of a split: values of all masks together, problems, and what the cache keeps.

Modules: data_utils/analysis/inspection.py, data_utils/analysis/findings.py.
"""

import numpy as np
import pytest
from support.inspections import PICTURE, split_of

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import (
    SplitInspection,
    inspect_split,
    pixels_by_labels,
    total_pixels,
)
from data_utils.analysis.problems import Problem
from data_utils.class_map import ClassMap
from data_utils.sources.records import ALL, ListRows, Metadata, Records
from runtime.cache import load_value, store_value
from runtime.errors import DataError
from tasks.classes.reader import ClassReader


def test_greys_beside_colors_are_colors_and_numbers_are_refused():
    greys = split_of({0: 5, 7: 1}, kind="greys")
    colors = split_of({(0, 0, 0): 4, (7, 0, 0): 6}, kind="colors")
    assert total_pixels([greys, colors]) == {(0, 0, 0): 9, (7, 7, 7): 1, (7, 0, 0): 6}
    with pytest.raises(DataError, match=r"^0 is a color mask and 0 one of numbers"):  # the first of each
        total_pixels([split_of({0: 3, 7: 2}, {0: 1}), colors])


def test_masks_with_values_of_no_class_become_problems():
    split = split_of({0: 3, 1: 2}, {0: 3, 9: 1}, {0: 2, 9: 3}, {5: 1})
    split.exclude_unreadable(ClassReader(ClassMap(("sky", "land"), (0, 1), None)))
    assert set(split.problems) == {1, 2, 3}
    assert split.members.tolist() == [0, -1, -1, -1]
    kind, text = split.problems[2]
    assert kind == "unknown mask value"
    assert text.startswith("2: mask values 9 belong to no class; classes are 0, 1; name them in --classes")


def test_skipping_is_offered_where_something_is_left():
    line = r"^1 of 2 pairs cannot be used: a: is empty; --on-bad-sample skip trains without"
    two = split_of({0: 1}, {0: 1})
    two.problems[0] = Problem("kind", "a: is empty")
    with pytest.raises(DataError, match=line):
        two.raise_problems()
    two.raise_problems(skips=True)
    one = split_of({0: 1})
    one.problems[0] = Problem("kind", "a: is empty")
    with pytest.raises(DataError, match=r"^1 of 1 pairs cannot be used: a: is empty$"):
        one.raise_problems(skips=True)


def test_pixels_are_counted_for_each_set_of_classes_that_images_are_labeled_for():
    mask = np.array([[0, 1]], np.uint8)
    rows = ListRows([{"image": mask, "target": mask, "name": str(number)} for number in range(4)])
    metadata = Metadata(label_sets={("a",): "classes.csv", (): "classes.csv"})
    records = Records(rows, metadata, label_numbers=np.array([ALL, 0, 1, 0], np.int32))
    split = inspect_split(records, "reading", Rules())
    store_value("key", split.found)
    remembered = SplitInspection.restored(load_value("key"), records)
    for each in (split, remembered):
        assert each.members.tolist() == [0, 1, 2, 1]
        assert [content.labeled_for for content in each.contents] == [None, ("a",), ()]
        assert pixels_by_labels([each]) == {None: {0: 1, 1: 1}, ("a",): {0: 2, 1: 2}, (): {0: 1, 1: 1}}


def test_masks_of_few_values_may_hold_too_many_together():
    records = []
    for number in range(3):
        target = np.arange(100 * number, 100 * number + 20, dtype=np.uint16).reshape(4, 5)
        for row in range(5):
            records.append({"image": PICTURE, "target": target + 20 * row, "name": f"{number}.{row}"})
    with pytest.raises(
        DataError, match=r"the masks up to 2\.2 hold more than 255 values: 0, 1, 2.* numbers of objects"
    ):
        inspect_split(Records(ListRows(records)), "reading", Rules())
