"""Regions: unions of labels, which of them are refused, and what their reader tells the task.

Modules: tasks/overlapping/reader.py.
"""

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.overlaps import SIZE, planes, targets_of, write_overlaps

from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from runtime.errors import DataError, SettingsError, UserError
from tasks.overlapping.reader import RegionReader, parse_regions

BRATS = "whole=1+2+3;core=2+3;active=3"


def test_regions_are_unions_of_labels(tmp_path):
    """What is known of four images with regions that lie within each other."""
    write_overlaps(tmp_path, 4, seed=0, layout="labels")
    nested_regions = load_info(tmp_path, regions=BRATS)
    for record in nested_regions.train.records:
        labels = np.array(Image.open(record["target"]))
        target = nested_regions.reader.read(record, SIZE)
        assert (planes(target.truth) == np.stack([labels > 0, labels > 1, labels > 2])).all()
        assert (target.known == 7).all()


def test_an_ignored_label_is_unknown_in_all_regions(tmp_path):
    write_overlaps(tmp_path, 4, seed=0, layout="labels")
    for mask in (tmp_path / "masks").iterdir():
        labels = np.array(Image.open(mask))
        labels[:4] = 255
        Image.fromarray(labels).save(mask)
    target = targets_of(tmp_path, regions=BRATS)[0]
    assert (target.known[:4] == 0).all()
    assert (target.truth[:4] == 0).all()
    assert (target.known[4:] == 7).all()
    with pytest.raises(DataError, match="whole holds 255, which is no value of the masks"):
        load_info(tmp_path, regions="whole=255+1")


def test_values_outside_of_the_classes_are_unknown_if_they_are_to_be_ignored(tmp_path):
    write_overlaps(tmp_path, 4, seed=0, layout="labels")
    named = {"regions": "whole=1+2;core=2", "classes": "0=background,1=edema,2=core"}
    reader = load_info(tmp_path, **named, outside="ignore").reader
    labels = np.array([[0, 1, 2, 3]])
    assert planes(reader.target_from_mask(labels, "mask").known, 2).tolist() == 2 * [[[True, True, True, False]]]
    # a model's config keeps the value for true masks
    assert reader.to_preprocess()["ignore_value"] == 3
    as_background = load_info(tmp_path, **named, outside="background").reader
    assert (as_background.target_from_mask(labels, "mask").known == 3).all()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "has 0 regions"),
        ("whole", "'whole' is no NAME=VALUE"),
        ("whole=1+x", "'x' is no mask value"),
        ("whole=1+0", "whole holds 0, the background"),
        ("whole=1+1", "whole lists a value twice"),
        ("a=1+#010203", "a holds colors"),
        ("a=1;a=2", "two regions are called a"),
        ("whole=1+2;inner=1", "whole would be written as 1, which inner holds too"),
        ("active=3+4;core=2+1+3", "active would be written as 3, which core holds too"),
        (";".join(f"r{number}={number}" for number in range(1, 33)), "has 32 regions"),
    ],
)
def test_regions_that_cannot_be_are_a_one_line_error(text, line):
    with pytest.raises(SettingsError) as error:
        parse_regions(text)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["whole=1+7", "whole=-1", f"a={10**30}", "a=1;b=2;c=99999999999"])
def test_regions_of_values_that_no_mask_holds_are_a_one_line_error(tmp_path, text):
    write_overlaps(tmp_path, 3, seed=0, layout="labels")
    with pytest.raises(UserError, match="--regions"):
        load_info(tmp_path, regions=text)


def test_a_task_that_does_not_agree_with_regions_is_refused(tmp_path):
    write_overlaps(tmp_path, 3, seed=0, layout="labels")
    with pytest.raises(SettingsError, match="--regions is for --task regions"):
        load_info(tmp_path, regions=BRATS, task="classes")
    with pytest.raises(SettingsError, match="--task regions needs the regions"):
        load_info(tmp_path, task="regions")


def test_a_reader_of_regions_takes_labels_of_other_values_for_background():
    reader = RegionReader(*zip(*parse_regions(BRATS), strict=True))
    values = np.array([[0, 1, 2], [3, 4, 60000]], np.uint16)
    assert reader.target_from_mask(values, "mask").truth.tolist() == [[0, 1, 3], [7, 0, 0]]
    with pytest.raises(DataError, match="is a color mask"):
        reader.target_from_mask(np.zeros((2, 2, 3), np.uint8), "mask")


def test_a_task_of_regions_has_the_sides_and_weights_of_its_reader():
    pixels = {value: 5 for value in (0, 1, 2, 3, 7, 8, 9)}
    config = DataConfig(regions="a=1+2;b=3", swap="a=b", ignore_index="9,8,7")
    reader = RegionReader.from_records(None, pixels, (), config).with_pixels(
        {None: {0: 100, 1: 10, 2: 20, 3: 10, 9: 7}}
    )
    assert reader.class_pixels == (30, 10)
    task = reader.task("ce", ["auto"])
    assert task.regions == reader.regions
    assert task.partners == (1, 0)
    assert task.mirrors
    assert task.class_weights.tolist() == pytest.approx([(2 / 3) ** 0.5, 2**0.5])


def test_regions_are_labeled_by_the_names_of_their_labels():
    labels = ClassMap(("background", "edema", "core"), (0, 1, 2), None)
    reader = RegionReader(("whole", "inner"), ((1, 2), (2,)), class_map=labels)
    names = [("core",), ("core", "edema"), ("swelling", "inner"), (), ("whole",)]
    pixels = {None: {0: 1, 1: 10, 2: 5}, ("core",): {0: 1, 1: 3, 2: 7}}
    partly = reader.partly_labeled(dict.fromkeys(names, "t"), ((1, "swelling"),)).with_pixels(pixels)
    assert partly.class_pixels == (15, 12)
    assert [tuple(partly.labeled_classes(name)) for name in names] == [(1,), (0, 1), (1,), (), (0,)]


def test_all_ignored_values_are_unknown_and_kept_for_prediction():
    reader = RegionReader(("whole", "core"), ((3, 1), (1,)), ignored=(9, 8))
    target = reader.target_from_volume(np.array([[0, 1, 3, 8, 9]]), "mask")
    assert target.truth.tolist() == [[0, 3, 1, 0, 0]]
    assert target.known.tolist() == [[3, 3, 3, 0, 0]]
    preprocess = reader.to_preprocess()
    assert preprocess["class_values"] == (3, 1)
    assert preprocess["ignore_value"] == 9
    assert preprocess["joined_values"] == ((8, 255),)


def test_regions_of_colors_are_refused():
    with pytest.raises(DataError, match=r"^--regions: the masks hold colors, .*; regions are of numbers$"):
        RegionReader.from_records(None, {(0, 0, 0): 5, (9, 0, 0): 5}, (), DataConfig(regions="whole=1"))
