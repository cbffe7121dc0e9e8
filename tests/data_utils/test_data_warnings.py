"""What is said of a data set before the first step, and what only a flag can bring about."""

from dataclasses import replace
from types import SimpleNamespace

from inspections import split_of

from data_utils.analysis import data_warnings
from data_utils.analysis.data_warnings import find_warnings
from data_utils.analysis.inspection import total_pixels
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig


def test_only_a_flag_can_name_classes_by_mistake_and_what_a_reader_warns_of_is_said():
    class_map = ClassMap(("a", "b", "c"), (0, 1, 2), None)
    reader = SimpleNamespace(class_map=class_map, warnings=lambda splits: (f"{len(splits)} splits",))
    splits = [split_of(*[{0: 10, 1: 10, 255: 90}] * 4)]
    all_records = [records for _, records in splits]

    def lines(has_names: bool, **settings) -> tuple[str, ...]:
        config = DataConfig(**settings)
        return find_warnings(splits, all_records, total_pixels(splits), reader, config, has_names=has_names)

    assert lines(has_names=True) == ("1 splits",)
    (line, _) = lines(has_names=True, classes="0=a,1=b,2=c")
    assert line.startswith("no mask holds c, which --classes names")
    class_map = replace(class_map, ignore_value=255)
    reader.class_map = class_map
    assert lines(has_names=False)[0].startswith("255 counts nowhere")
    assert not [line for line in lines(has_names=False, ignore_index="255") if line.startswith("255")]


def test_borders_are_looked_for_where_masks_hold_classes_without_names(monkeypatch):
    monkeypatch.setattr(data_warnings, "border_warnings", lambda inspected, pixels: (f"{len(pixels)} borders",))
    splits = [split_of({0: 10, 1: 10})]
    all_records = [records for _, records in splits]
    class_map = ClassMap(("a", "b"), (0, 1), None)
    for reader_map, has_names, expected in ((class_map, False, True), (class_map, True, False), (None, False, False)):
        reader = SimpleNamespace(class_map=reader_map, warnings=lambda splits: ())
        pixels = total_pixels(splits)
        lines = find_warnings(splits, all_records, pixels, reader, DataConfig(), has_names=has_names)
        assert ("2 borders" in lines) is expected


def test_what_is_wrong_between_and_in_both_splits_is_looked_for(monkeypatch):
    for name in ("overlap_warnings", "place_warnings"):
        monkeypatch.setattr(data_warnings, name, lambda splits, name=name: (f"{name}: {len(splits)}",))
    monkeypatch.setattr(
        data_warnings, "label_set_warnings", lambda inspected, reader: (f"label sets: {len(inspected)}",)
    )
    splits = [split_of({0: 10, 1: 10}), split_of({0: 10, 1: 10})]
    all_records = [records for _, records in splits]
    reader = SimpleNamespace(class_map=None, warnings=lambda splits: (f"reader: {len(splits)}",))
    lines = find_warnings(splits, all_records, total_pixels(splits), reader, DataConfig(), has_names=False)
    assert lines == ("label sets: 2", "overlap_warnings: 2", "place_warnings: 2", "reader: 2")
