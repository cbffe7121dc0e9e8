"""Valid images and masks that are warned of before training starts.

Modules: data_utils/analysis/checks.py, tasks/classes/check.py.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.coco_files import box, entry, write_coco
from support.data_sets import load_info
from support.folders import write_folder
from support.hostile_volumes import nrrd
from support.inspections import findings_of, split_of
from support.picture_folders import write_pictures

from data_utils.analysis.checks import find_warnings
from data_utils.analysis.inspection import SplitInspection
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from tasks.classes.reader import ClassReader
from train_utils.check_data import check_data

CLASSES = ClassMap(("sky", "land"), (0, 1), None)
TWO = {0: 10, 1: 10}


def warnings_of(*splits: SplitInspection, class_map: ClassMap = CLASSES) -> list[str]:
    """The warnings of splits whose classes have no names."""
    return list(find_warnings(findings_of(*splits, reader=ClassReader(class_map))))


def test_a_folder_mask_beside_another_of_as_many_files_may_be_the_field_of_view(tmp_path):
    folder = write_folder(tmp_path / "training", 4, seed=0, values=(0, 1))
    (folder / "masks").rename(folder / "mask")
    assert load_info(tmp_path).warnings == ()
    write_pictures(folder, *(f"1st_manual/{number}.gif" for number in range(4)))
    (line,) = load_info(tmp_path).warnings
    assert line.startswith(f"the masks are those of {folder}/mask; 1st_manual/ beside it holds as many files")


@pytest.mark.parametrize(
    ("modes", "counts"),
    [
        (["RGB", "L"], None),
        (["I;16", "uint16 x 3", "F"], None),
        (["L", "I;16", "I;16"], "I;16: 2, L: 1"),
        (["uint8 x 3", "float32 x 3"], "uint8 x 3: 1, float32 x 3: 1"),
    ],
)
def test_images_of_8_bits_among_deeper_ones_are_warned_of(modes, counts):
    training = split_of(*[TWO] * len(modes), modes=modes)
    lines = [line for line in warnings_of(training, split_of(*[{0: 9}] * 4, modes=modes[:1] * 4)) if "bits" in line]
    assert len(lines) == (counts is not None)


def values(folder: Path, masks: list[list[int]]) -> Path:
    """A data set of images of 10 x 10 whose masks are stripes of these values, one for each row."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number, rows in enumerate(masks):
        mask = np.repeat(np.uint8(rows), 10).reshape(10, 10)
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
        Image.fromarray(np.full((10, 10), number, np.uint8)).save(folder / "images" / f"{number}.png")
    return folder


ROWS = [0] * 3 + [9] * 4 + [255] * 3


@pytest.mark.parametrize(
    ("masks", "flags", "line"),
    [
        ([[0, 1] * 5] * 2, {}, "2 images are very few (1 for training and 1 for validation): the score will be luck"),
        ([ROWS] * 6, {}, "255 became a class, with 30% of all mask pixels"),
        ([[0] * 3 + [1] * 4 + [255] * 3] * 6, {}, "255 counts nowhere, as unlabeled, and 30% of all mask pixels"),
        ([[0, 1] * 5] * 6, {"classes": "0=a,1=b,2=dog"}, "no mask holds dog, which --classes names"),
        (
            [[0, 1] * 5] * 6,
            {"classes": "0=a,1=b,-2=c"},
            "predict.py cannot write the mask values -2: a mask that it writes holds 0 to 65535; store other numbers,"
            " such as 0, 1, 2, or give --ignore-index=-2 if nobody labeled these pixels",
        ),
        ([[0, 255] * 5] * 6, {}, None),
        ([[0, 128] * 4 + [255] * 2] * 6, {}, None),
        ([[0] * 5 + [1] * 4 + [255]] * 6, {}, None),
        ([ROWS] * 6, {"ignore_index": "255"}, None),
        ([ROWS] * 6, {"classes": "0=a,9=b,255=c"}, None),
    ],
)
def test_masks_with_a_likely_mistake_are_warned_of_and_others_are_not(tmp_path, masks, flags, line):
    warnings = load_info(values(tmp_path / "data", masks), **flags).warnings
    if line is None:
        assert not [text for text in warnings if "255" in text or "few" in text or "holds" in text]
    else:
        assert any(text.startswith(line) for text in warnings), warnings


@pytest.mark.parametrize(("task", "kind"), [("overlapping", "masks/cell"), ("objects", "masks")])
def test_masks_without_background_may_be_drawn_in_their_alpha_channel(tmp_path, task, kind):
    (tmp_path / kind).mkdir(parents=True)
    images = values(tmp_path / "values", [[0, 255] * 5] * 6) / "images"
    images.rename(tmp_path / "images")
    for index in range(6):
        Image.new("RGBA", (10, 10), (255, 255, 255, index)).save(tmp_path / kind / f"{index}.png")
    warnings = load_info(tmp_path, task=task).warnings
    assert any("alpha channel" in line for line in warnings), warnings


@pytest.mark.parametrize(("validation", "is_said"), [(1, True), (2, False)])
def test_the_score_of_a_single_validation_volume_is_said_to_be_luck(validation, is_said):
    lines = warnings_of(split_of(*[TWO] * 4, dims=3), split_of(*[TWO] * validation, dims=3))
    assert [line.startswith("the score will be that of a single validation") for line in lines] == [True] * is_said


@pytest.mark.parametrize(("pixels", "is_rare"), [(9, True), (11, False)])
def test_a_class_is_rare_below_a_ten_thousandth_of_the_pixels(pixels, is_rare):
    split = split_of({0: 50_000}, {0: 49_990 - pixels, 1: pixels}, {0: 5}, {0: 5})
    lines = warnings_of(split)
    assert ["became classes: 1 (pixels: 9; masks: 1, the first is 1); if they" in line for line in lines] == [
        True
    ] * is_rare


def test_classes_that_training_masks_alone_hold_are_named_unless_they_are_rare():
    five = ClassMap(("a", "b", "c", "d", "in no mask"), (0, 1, 2, 3, 4), None)
    training = split_of({0: 50_000, 1: 100, 2: 9_000}, {0: 50_000, 3: 1})
    lines = warnings_of(training, split_of({0: 20_000, 2: 100}, {0: 100}), class_map=five)
    assert len(lines) == 2
    assert lines[0].startswith("no validation mask holds b, which cannot be scored")
    assert lines[1].startswith("rare mask values")


def test_classes_that_validation_masks_alone_hold_are_named():
    (line,) = warnings_of(split_of(*[{0: 100}] * 4), split_of(*[TWO] * 2))
    assert line.startswith("no training mask holds land, which cannot be learned")


def test_masks_of_other_sizes_and_crowds_are_counted():
    training = split_of(*[TWO] * 4)
    training.resized_masks = 3
    validation = split_of(*[TWO] * 2, annotations="COCO")
    validation.objects.update({1: 4, 2: 2, 255: 5})
    validation.resized_masks = 1
    lines = warnings_of(training, validation)
    assert lines[0].startswith("5 of 11 annotated objects are crowds (iscrowd 1)")
    assert lines[1].startswith("4 of 6 masks have another size than their images")
    assert len(lines) == 2


def test_a_rare_value_is_warned_of_unless_it_has_a_meaning(tmp_path):
    stray = write_folder(tmp_path / "data", 12, seed=0, values=(0, 1))
    mask = np.array(Image.open(stray / "masks" / "cell_03.png"))
    mask[0, 0] = 37
    Image.fromarray(mask).save(stray / "masks" / "cell_03.png")
    (line,) = load_info(stray).warnings
    assert "0.01% of all mask pixels, became classes: 37 (pixels: 1; masks: 1, the first is cell_03.png);" in line
    assert "to check: rare mask values, each less than 0.01%" in check_data(DataConfig(str(stray)))[0]
    assert load_info(stray, ignore_index="37").warnings == ()
    (line,) = load_info(stray, classes="0=a,1=b,37=c").warnings
    assert line.startswith("no validation mask holds c, which cannot be scored; choose the validation images")


def test_a_rare_class_that_annotations_name_gives_no_warning(tmp_path):
    objects = [entry(1, 1, 3, [box(5, 5, 1, 1)]), *(entry(10 + i, i, 7, [box(2, 2, 9, 9)]) for i in range(1, 13))]
    write_coco(tmp_path / "annotations.json", objects, images=tmp_path / "images", count=12)
    assert "rare mask values" not in " ".join(load_info(tmp_path).warnings)


@pytest.mark.parametrize(
    ("masks", "settings", "count"),
    [
        ([(0, 1), (0, 255)], {}, 1),
        ([(0, 1), (0, 255), (1,), (255,)], {}, 1),
        ([(0, 1), (0, 255)], {"classes": "0=ground,1=cell"}, 1),  # 255 is ignored then, too
        ([(0, 1), (0, 255)], {"ignore_index": "255"}, 0),  # somebody has said what it means
        ([(0, 1), (0, 255)], {"classes": "0=ground,1=cell,255=cell"}, 0),
        ([(0, 1, 2), (0, 255)], {}, 0),  # several classes, and masks that are ignored in part
        ([(0, 1), (0, 1, 255)], {}, 0),
    ],
)
def test_two_encodings_of_a_class_are_told_from_ignored_pixels(tmp_path, masks, settings, count):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    for index in range(12):
        mask = np.resize(np.repeat(np.array(masks[index % len(masks)], np.uint8), 56), (40, 56))
        Image.fromarray(mask).save(folder / "masks" / f"cell_{index:02}.png")
    lines = load_info(folder, **settings).warnings
    assert sum(line.startswith("some masks hold 1 (masks: ") for line in lines) == count


def test_images_of_another_depth_than_the_others_are_warned_of(tmp_path):
    folder = write_folder(tmp_path / "data", 6, seed=0)
    Image.fromarray(np.full((40, 56), 4000, np.uint16)).save(folder / "images" / "cell_02.png")
    info = load_info(folder)
    (line,) = info.warnings
    assert "(RGB: 5, I;16: 1)" in line
    assert info.normalization.pixel_types == ("uint16", "uint8")


@pytest.mark.parametrize(("value", "is_warned_of"), [(1, False), (2, True)])
def test_a_segment_of_3d_slicer_with_another_value_in_another_file_is_warned_of(tmp_path, value, is_warned_of):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for number, liver in enumerate((1, value)):
        segments = f"Segment0_Name:=liver\nSegment0_LabelValue:={liver}\nSegment1_Name:=spleen\n"
        nrrd(tmp_path / "images" / f"{number}.nrrd")
        label = nrrd(tmp_path / "masks" / f"{number}.seg.nrrd", more=f"{segments}Segment1_LabelValue:={3 - liver}\n")
        label.write_bytes(label.read_bytes()[:-24] + bytes([0, 1, 2] * 8))
    warnings = load_info(tmp_path).warnings
    assert any("the segment liver of 3D Slicer has the value " in text for text in warnings) is is_warned_of
