"""Valid images and masks that are warned of."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.inspections import records_of, split_of

from data_utils.analysis.data_warnings import Findings, find_warnings
from data_utils.analysis.inspection import total_pixels
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import AnnotationSummary
from tasks.classes.reader import ClassReader

CLASSES = ClassMap(("sky", "land"), (0, 1), None)


def warnings_of(*splits, class_map: ClassMap = CLASSES) -> list[str]:
    """The warnings of splits whose classes have no names."""
    records = [split_records for _, split_records in splits]
    reader = ClassReader(class_map)
    return list(find_warnings(Findings(splits, records, total_pixels(splits), reader, DataConfig(), has_names=False)))


def mode_warnings(modes: list[str]) -> list[str]:
    """The warnings of images of these types of pixels."""
    inspection, records = split_of(*[{0: 10, 1: 10}] * 4)
    inspection.modes = Counter(modes)
    return warnings_of((inspection, records))


@pytest.mark.parametrize("modes", [["RGB", "L"], ["I;16", "uint16 x 3", "F"]], ids=["8 bits", "deeper"])
def test_images_of_8_bits_or_deeper_ones_alone_are_not_warned_of(modes):
    assert mode_warnings(modes) == []


@pytest.mark.parametrize(
    ("modes", "counts"),
    [(["L", "I;16", "I;16"], "I;16: 2, L: 1"), (["uint8 x 3", "float32 x 3"], "uint8 x 3: 1, float32 x 3: 1")],
    ids=["pictures", "arrays"],
)
def test_images_of_8_bits_among_deeper_ones_are_warned_of(modes, counts):
    (line,) = mode_warnings(modes)
    assert line.startswith(f"images of 8 bits and of more bits are mixed ({counts})")


def values(folder: Path, masks: list[list[int]]) -> Path:
    """A data set of images of 10 x 10 whose masks are stripes of these values, one for each row."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number, rows in enumerate(masks):
        mask = np.repeat(np.uint8(rows), 10).reshape(10, 10)
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
        Image.fromarray(np.full((10, 10), number, np.uint8)).save(folder / "images" / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("masks", "flags", "line"),
    [
        ([[0, 1] * 5] * 2, {}, "2 images are very few (1 for training and 1 for validation): the score will be luck"),
        ([[0] * 3 + [9] * 4 + [255] * 3] * 6, {}, "255 became a class, with 30% of all mask pixels"),
        ([[0] * 3 + [1] * 4 + [255] * 3] * 6, {}, "255 counts nowhere, as unlabeled, and 30% of all mask pixels"),
        ([[0, 1] * 5] * 6, {"classes": "0=a,1=b,2=dog"}, "no mask holds dog, which --classes names"),
    ],
)
def test_masks_with_a_likely_mistake_are_warned_of(tmp_path, masks, flags, line):
    warnings = load_info(values(tmp_path / "data", masks), **flags).warnings
    assert any(text.startswith(line) for text in warnings), warnings


@pytest.mark.parametrize(
    ("masks", "flags"),
    [
        ([[0, 1] * 5] * 6, {}),
        ([[0, 255] * 5] * 6, {}),
        ([[0, 128] * 4 + [255] * 2] * 6, {}),
        ([[0] * 5 + [1] * 4 + [255]] * 6, {}),
        ([[0] * 3 + [9] * 4 + [255] * 3] * 6, {"ignore_index": "255"}),
        ([[0] * 3 + [9] * 4 + [255] * 3] * 6, {"classes": "0=a,9=b,255=c"}),
    ],
)
def test_masks_without_a_likely_mistake_are_not_warned_of(tmp_path, masks, flags):
    warnings = load_info(values(tmp_path / "data", masks), **flags).warnings
    assert not [text for text in warnings if "255" in text or "few" in text or "holds" in text]


@pytest.mark.parametrize(("training", "validation"), [(1, 1), (2, 1)])
def test_fewer_than_four_images_of_both_splits_are_very_few(training, validation):
    splits = split_of(*[{0: 10, 1: 10}] * training), split_of(*[{0: 10, 1: 10}] * validation)
    (line,) = warnings_of(*splits)
    counts = f"({training} for training and {validation} for validation)"
    assert line.startswith(f"{training + validation} images are very few {counts}: the score will be luck")


@pytest.mark.parametrize(("validation", "is_said"), [(1, True), (2, False)])
def test_the_score_of_a_single_validation_volume_is_said_to_be_luck(validation, is_said):
    volume = {0: 10, 1: 10}
    lines = warnings_of(split_of(*[volume] * 4, dims=3), split_of(*[volume] * validation, dims=3))
    assert [line.startswith("the score will be that of a single validation") for line in lines] == [True] * is_said


@pytest.mark.parametrize(("ignored_pixels", "is_said"), [(20, False), (21, True)])
def test_ignored_pixels_are_much_from_a_fifth_on(ignored_pixels, is_said):
    class_map = ClassMap(("sky", "land"), (0, 1), 255)
    lines = warnings_of(split_of(*[{0: 50, 1: 50 - ignored_pixels, 255: ignored_pixels}] * 4), class_map=class_map)
    assert [line.startswith("255 counts nowhere, as unlabeled, and 21% of all") for line in lines] == [True] * is_said


@pytest.mark.parametrize(("largest", "is_said"), [(99, True), (100, False), (200, False)])
def test_255_among_classes_is_suspect_where_the_others_are_below_a_hundred(largest, is_said):
    class_map = ClassMap(("a", "b", "c"), (0, largest, 255), None)
    lines = warnings_of(split_of(*[{0: 50, largest: 40, 255: 10}] * 4), class_map=class_map)
    assert [line.startswith("255 became a class, with 10% of all mask pixels") for line in lines] == [True] * is_said
    assert warnings_of(split_of(*[{0: 50, 255: 10}] * 4), class_map=ClassMap(("a", "b"), (0, 255), None)) == []


def split_with_rare_class(pixels: int) -> tuple:
    """A split of 100,010 pixels, of which so many are of the class 1."""
    return split_of({0: 50_000}, {0: 49_990 - pixels, 1: pixels}, {0: 5}, {0: 5})


def test_a_class_is_rare_below_a_ten_thousandth_of_the_pixels():
    (line,) = warnings_of(split_with_rare_class(9))
    assert "became classes: 1 (pixels: 9; masks: 1, the first is 1); if they" in line


FIVE_CLASSES = ClassMap(("a", "b", "c", "d", "in no mask"), (0, 1, 2, 3, 4), None)


@pytest.fixture
def training():
    """A split of two masks of four classes, of which d is rare."""
    return split_of({0: 50_000, 1: 100, 2: 9_000}, {0: 50_000, 3: 1})


def test_classes_that_training_masks_alone_hold_are_named_unless_they_are_rare(training):
    validation = split_of({0: 20_000, 2: 100}, {0: 100})
    lines = warnings_of(training, validation, class_map=FIVE_CLASSES)
    assert len(lines) == 2
    assert lines[0].startswith("no validation mask holds b, which cannot be scored")
    assert lines[1].startswith("rare mask values")


def test_masks_of_other_sizes_and_crowds_are_counted():
    inspection, records = split_of(*[{0: 10, 1: 10}] * 4)
    inspection.resized_masks = 3
    other, _ = split_of(*[{0: 10, 1: 10}] * 2)
    other.resized_masks = 1
    summary = AnnotationSummary("COCO", 3, 1, {"cat": 4, "dog": 2}, crowds=5)
    lines = warnings_of((inspection, records), (other, records_of(2, annotations=summary)))
    assert lines[0].startswith("5 of 11 annotated objects are crowds (iscrowd 1)")
    assert lines[1].startswith("4 of 6 masks have another size than their images")
    assert len(lines) == 2
