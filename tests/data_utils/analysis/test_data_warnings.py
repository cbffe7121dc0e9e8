"""Warnings of a data set before the first step, and those that a flag brings about."""

from dataclasses import replace

import pytest
from support.inspections import split_of

from data_utils.analysis import data_warnings
from data_utils.analysis.data_warnings import find_warnings
from data_utils.analysis.inspection import total_pixels
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig


class ReaderWithWarning:
    """Stands in for a reader: warns of the number of splits."""

    def __init__(self, class_map: ClassMap | None) -> None:
        self.class_map = class_map

    def warnings(self, splits) -> tuple[str, ...]:
        return (f"reader: {len(splits)}",)


def warnings_of(splits: list, class_map: ClassMap | None, *, has_names: bool = False, **settings) -> tuple[str, ...]:
    all_records = [records for _, records in splits]
    config = DataConfig(**settings)
    reader = ReaderWithWarning(class_map)
    return find_warnings(splits, all_records, total_pixels(splits), reader, config, has_names=has_names)


TWO_CLASSES = ClassMap(("a", "b"), (0, 1), None)
THREE_CLASSES = ClassMap(("a", "b", "c"), (0, 1, 2), None)


@pytest.fixture
def unknown_borders():
    """A split of masks of two values, most of whose pixels hold 255."""
    return [split_of(*[{0: 10, 1: 10, 255: 90}] * 4)]


def test_a_reader_warns_of_its_splits(unknown_borders):
    assert warnings_of(unknown_borders, THREE_CLASSES, has_names=True) == ("reader: 1",)


def test_a_class_that_a_flag_alone_names_is_warned_of(unknown_borders):
    (line, _) = warnings_of(unknown_borders, THREE_CLASSES, has_names=True, classes="0=a,1=b,2=c")
    assert line.startswith("no mask holds c, which --classes names")


def test_a_value_that_counts_nowhere_is_warned_of_without_a_flag(unknown_borders):
    class_map = replace(THREE_CLASSES, ignore_value=255)
    assert warnings_of(unknown_borders, class_map)[0].startswith("255 counts nowhere")
    lines = warnings_of(unknown_borders, class_map, ignore_index="255")
    assert not [line for line in lines if line.startswith("255")]


@pytest.mark.parametrize(
    ("class_map", "has_names", "are_looked_for"),
    [(TWO_CLASSES, False, True), (TWO_CLASSES, True, False), (None, False, False)],
    ids=["values", "names", "no classes"],
)
def test_borders_are_looked_for_where_masks_hold_classes_without_names(
    monkeypatch, class_map, has_names, are_looked_for
):
    monkeypatch.setattr(data_warnings, "border_warnings", lambda inspected, pixels: (f"{len(pixels)} borders",))
    lines = warnings_of([split_of({0: 10, 1: 10})], class_map, has_names=has_names)
    assert ("2 borders" in lines) is are_looked_for


def test_warnings_are_of_both_splits(monkeypatch):
    for name in ("overlap_warnings", "place_warnings"):
        monkeypatch.setattr(data_warnings, name, lambda splits, name=name: (f"{name}: {len(splits)}",))
    monkeypatch.setattr(
        data_warnings, "label_set_warnings", lambda inspected, reader: (f"label sets: {len(inspected)}",)
    )
    lines = warnings_of([split_of({0: 10, 1: 10}), split_of({0: 10, 1: 10})], None)
    assert lines == ("label sets: 2", "overlap_warnings: 2", "place_warnings: 2", "reader: 2")
