"""classes.csv and classes.txt: which classes an image is labeled for, and what is wrong with such files.

Modules: data_utils/sources/label_files.py, data_utils/sources/class_lists.py, data_utils/targets/label_sets.py,
data_utils/targets/bits.py, data_utils/analysis/label_sets.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import load_info
from inspections import split_of
from overlaps import SIZE as OVERLAPS
from overlaps import write_overlaps
from PIL import Image
from volumes import case, write_msd, write_nifti

from data_utils.analysis.check_data import check_data
from data_utils.analysis.content import content_key
from data_utils.analysis.label_sets import label_set_warnings, read_labels
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.crop import crop_window
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources.class_lists import Row, Table, read_table
from data_utils.sources.folder import FolderRecords
from data_utils.sources.label_files import ImageLabels, LabelFiles, read_label_files, with_labels
from data_utils.sources.load import load_records
from data_utils.sources.volumes import Case, Description, VolumeRecords
from data_utils.targets.classes import PartlyLabeledReader
from data_utils.targets.label_sets import LabelSets
from runtime.errors import DataError

SIZE = (12, 16)
CLASSES = "0=background,1=car,2=dog,3=person"


def write(folder: Path, names: list[str], values: tuple[int, ...] = (0, 1, 2, 3)) -> Path:
    """Images of these names below images/, and their masks, a band of rows for each value."""
    rng = np.random.default_rng(0)
    mask = np.repeat(np.array(values, np.uint8), SIZE[0] // len(values))[:, None].repeat(SIZE[1], axis=1)
    for name in names:
        for kind, pixels in (("images", rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)), ("masks", mask)):
            file = folder / kind / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    return folder


def test_a_row_speaks_of_an_image_or_of_a_page_of_a_file_that_lies_with_it():
    table = Table(Path("/data/classes.csv"), {})
    keys = ("a", "left/b", "stack_0002", "right/stack_0003", "images/s/t_0004", "deck_0001", "deck")
    for line, key in enumerate(keys, start=2):
        table.rows[key] = Row(line, f"{key}.tif", frozenset())
    lines = {}
    for image, name in (
        ("/data/images/a.png", "images/a.png"),
        ("/data/left/b.png", "left/b.png"),
        ("/data/right/b.png", "right/b.png"),
        ("/data/images/stack.tif", "images/stack_0002.tif"),
        ("/data/right/stack.tif", "stack_0003"),
        ("/data/left/stack.tif", "stack_0003"),
        ("/data/images/s/t.tif", "s/t_0004.tif"),
        ("/data/images/deck.tif", "deck_0001.tif"),  # a row of the file comes before one of a page
    ):
        row = table.find(image, name)
        lines[image, name] = row and row.line
    assert list(lines.values()) == [2, 3, None, 4, 5, None, 6, 8]


def labels(folder: Path, **settings) -> dict[str, tuple[str, ...] | None]:
    """What each image of both splits is labeled for, by its name."""
    labels_of_image = {}
    for records in load_records(DataConfig(str(folder), **settings)):
        for i in range(len(records)):
            assert records[i].get("labeled") == records.labeled(i)
            labels_of_image[records.name(i)] = records.labeled(i)
    return labels_of_image


def info(folder: Path, **settings):
    return load_info(folder, val_fraction=0.34, classes=CLASSES, **settings)


def flags(folder: Path, **settings) -> dict[str, list[int]]:
    """The classes that each image is labeled for, by index."""
    data = info(folder, **settings)
    flags_of_image = {}
    for split in (data.train, data.val):
        for i in range(len(split)):
            flags_of_image[split.records.name(i)] = list(data.reader.labeled_classes(split.records.labeled(i)))
    return flags_of_image


LISTS = {
    "names in a cell": "image,classes\na.png,car\nb.png,dog;person\nc.png,\n",
    "other separators": "image,classes\na.png,car\nb.png,dog|person\nc.png\n",
    "names in cells": "image,classes\na.png,car\nb.png,dog,person\nc.png,\n",
    "quoted": 'image,classes\n"a.png","car"\n"b.png","dog,person"\n"c.png",""\n',
    "from a spreadsheet": "\ufeffImage;Classes;;\r\na.png;car;\r\nb.png;dog, person;\r\nc.png;;\r\n\r\n;;\r\n",
    "tabs": "image\tclasses\na\tcar\nb\tdog\tperson\nc\n",
    "columns": "image,car,dog,person\na,1,0,0\nb,0,1,1\nc,0,0,0\n",
    "columns with words": "Filename,person,dog,car,\na.png,no,No,YES,\n./b.png,x,True\nc.png,,,\n",
    "other words": "image,car,dog,person\na,true,0.0,n\nb,-,y,1.0\nc,false,N,No\n",
    "titles in quotes": '"file","labels"\n"a.png","car"\n"b.png","dog,person"\n"c.png",""\n',
    "from Windows": "image,classes\nimages\\a.png,car\nimages\\b.png,dog;person\nimages\\c.png,\n",
    "without endings": "image,classes\nimages/a,car\nimages/b,person;dog;dog\nc,\n",
}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_a_table_says_it_in_one_column_or_in_one_for_each_class(tmp_path, text):
    folder = write(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text(text, encoding="utf-8")
    assert labels(folder) == {"a.png": ("car",), "b.png": ("dog", "person"), "c.png": ()}
    (folder / "classes.csv").rename(folder / "images" / "classes.csv")
    if "images/" not in text and "images\\" not in text:
        assert flags(folder) == {"a.png": [1], "b.png": [2, 3], "c.png": []}


def test_a_table_lies_beside_the_images_of_a_split_or_above_all_splits(tmp_path):
    for split in ("train", "val"):
        write(tmp_path / "outer" / split, ["a", "b"])
    write(tmp_path / "inner", ["train/a", "train/b", "val/a", "val/b"])
    table = "image,classes\n{}a,car\n{}b,dog\n{}a,person\n"
    (tmp_path / "outer" / "classes.csv").write_text(table.format("train/images/", "train/images/", "val/images/"))
    (tmp_path / "inner" / "classes.csv").write_text(table.format("train/", "train/", "val/"))
    for folder in ("outer", "inner"):
        train, val = load_records(DataConfig(str(tmp_path / folder)))
        assert [train.labeled(i) for i in range(2)] == [("car",), ("dog",)]
        assert [val.labeled(i) for i in range(2)] == [("person",), None]
        assert val.metadata.unlisted == ("b.png",)
        assert train.metadata.unlisted == ()
    (tmp_path / "outer" / "classes.csv").rename(tmp_path / "outer" / "train" / "classes.csv")
    with pytest.raises(DataError, match=r"names images that are not there: line 2: 'train/images/a'"):
        load_records(DataConfig(str(tmp_path / "outer")))
    (tmp_path / "outer" / "train" / "classes.csv").write_text("image,classes\na,car\nb,car\n")
    train, val = load_records(DataConfig(str(tmp_path / "outer")))
    assert train.labeled(1) == ("car",)
    assert val.labeled(1) is None
    assert val.metadata.unlisted == ()


def test_a_table_in_one_folder_of_images_speaks_of_its_images_alone(tmp_path):
    write(tmp_path, ["left/a", "left/b", "right/c", "right/d"])
    (tmp_path / "images" / "right" / "classes.csv").write_text("image,classes\nc,car\nd,dog\n")
    expected = {"right/c.png": ("car",), "right/d.png": ("dog",), "left/a.png": None, "left/b.png": None}
    assert labels(tmp_path) == expected


def test_a_folder_has_a_rule(tmp_path):
    write(tmp_path, ["site_a/a", "site_b/b", "site_b/deep/c", "site_c/e", "d"])
    (tmp_path / "site_a").mkdir()
    (tmp_path / "site_a" / "classes.txt").write_text("car\t dog \n\n")
    (tmp_path / "images" / "site_b" / "classes.txt").write_text("person")
    expected = {"site_a/a.png": ("car", "dog"), "site_b/b.png": ("person",), "site_b/deep/c.png": ("person",)}
    expected |= {"site_c/e.png": None}
    assert labels(tmp_path) == expected | {"d.png": None}
    assert [records.metadata.unlisted for records in load_records(DataConfig(str(tmp_path)))] == [(), ()]
    # a list of all names where all images lie is none, and a row comes before a rule
    for place in ("", "images"):
        (tmp_path / place / "classes.txt").write_text("dog\ncat")
    (tmp_path / "classes.csv").write_text("image,classes\nsite_b/b.png,car\n")
    assert labels(tmp_path) == expected | {"site_b/b.png": ("car",), "d.png": None}
    assert {*load_records(DataConfig(str(tmp_path)))[0].metadata.unlisted} <= {"d.png", "site_c/e.png"}


def test_a_table_comes_before_what_the_annotations_say(tmp_path):
    records, _ = load_records(DataConfig(str(write(tmp_path, ["a", "b", "c"])), val_fraction=0.34))
    annotated = with_labels(records, [ImageLabels(("car",), "annotations")] * len(records))
    assert [annotated.labeled(i) for i in range(len(records))] == [("car",)] * len(records)
    name = records.name(0)
    (tmp_path / "classes.csv").write_text(f"image,classes\n{name},dog\n")
    (split,) = read_label_files([annotated], tmp_path)
    assert [split.labeled(i) for i in range(len(records))] == [("dog",), ("car",)]
    assert split.metadata.label_sets == {("dog",): f"{tmp_path / 'classes.csv'}: line 2", ("car",): "annotations"}


def test_labels_have_the_place_that_says_them_first_and_a_key_of_all_they_are(tmp_path):
    records, _ = load_records(DataConfig(str(write(tmp_path, ["a", "b", "c", "d"])), val_fraction=0.25))
    car = ImageLabels(("car",), "first")
    again = ImageLabels(("car",), "second")
    dog = ImageLabels(("dog",), "third")
    cat = ImageLabels(("cat",), "third")
    labeled_records = with_labels(records, [car, dog, again])
    assert labeled_records.metadata.label_sets == {("car",): "first", ("dog",): "third"}
    other_records = [records, with_labels(records, [car, dog, dog]), with_labels(records, [car, cat, again])]
    other_records += [with_labels(records, [car, dog, None])]
    assert len({each.digest for each in (labeled_records, *other_records)}) == 5
    assert with_labels(records, [None] * 3) is records
    assert with_labels(records, [None] * 3, ["a.png"]).metadata.unlisted == ("a.png",)


def test_a_rule_lies_above_the_images_of_a_split_unless_images_have_no_rules(tmp_path):
    for split in ("train", "val"):
        write(tmp_path / split, ["a", "b"])
    (tmp_path / "train" / "classes.txt").write_text("car")
    train, val = load_records(DataConfig(str(tmp_path)))
    assert [train.labeled(0), val.labeled(0)] == [("car",), None]
    val.metadata = replace(val.metadata, has_rules=False)
    plain = read_label_files([train.records, val], tmp_path)
    assert [records.labeled(0) for records in plain] == [None, None]


def test_the_first_file_of_a_volume_of_several_is_its_image(tmp_path):
    files = tuple(str(tmp_path / "images" / f"v_{channel:04}.nii.gz") for channel in range(2))
    (tmp_path / "classes.csv").write_text("image,classes\nv_0000.nii.gz,car\n")
    records = VolumeRecords([Case("v", files, "masks/v.nii.gz")], None, Description())
    (labeled,) = read_label_files([records], tmp_path)
    assert labeled.labeled(0) == ("car",)


def test_a_row_speaks_of_one_page_of_a_file_and_others_are_unlisted(tmp_path):
    (tmp_path / "classes.csv").write_text("image,classes\nstack_0002.tif,car\n")
    pages = [(0, 0), (1, 1)]
    records = FolderRecords(tmp_path / "images", tmp_path / "masks", [("stack.tif", "stack.tif")], [pages], [])
    (labeled,) = read_label_files([records], tmp_path)
    assert [labeled.labeled(i) for i in range(2)] == [None, ("car",)]
    assert labeled.metadata.unlisted == ("stack_0001.tif",)


def test_a_column_of_several_may_be_a_class_that_is_called_classes(tmp_path):
    (tmp_path / "classes.csv").write_text("image,classes,car\na,1,0\nb,yes,1\n")
    table = read_table(tmp_path / "classes.csv")
    assert [row.classes for row in table.rows.values()] == [("classes",), ("car", "classes")]


def test_a_rule_of_a_site_lies_in_a_folder_of_its_name_up_to_the_root(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "classes.txt").write_text("car")
    files = LabelFiles(tmp_path, reads_rules=True)
    images = tmp_path / "train" / "images"
    found = files.find(f"{images}/site/day/a.png", "site/day/a.png")
    assert found == ImageLabels(("car",), str(tmp_path / "site" / "classes.txt"))
    assert files.find(f"{images}/other/a.png", "other/a.png") is None


def test_label_files_beside_images_outside_the_data_set_are_not_read(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "classes.txt").write_text("car")
    (tmp_path / "classes.csv").write_text("image,classes\na.png,car\n")
    files = LabelFiles(tmp_path / "data", reads_rules=True)
    assert files.find(f"{tmp_path}/site/a.png", "site/a.png") is None
    assert files.tables == []


HOSTILE = {
    "empty": (b"", "its first line is '', expected image,classes"),
    "another table": (b"name,r,g,b\ncar,1,2,3\n", "its first line is 'name,r,g,b', expected image,classes"),
    "another first column": (b"class,value\ncar,1\n", "its first line is 'class,value', expected image,classes"),
    "no classes": (b"image\na.png\n", "its first line is 'image' alone"),
    "no classes behind a comma": (b"image,\na.png,\n", "its first line is 'image' alone"),
    "no rows": (b"image,classes\n", "names no image"),
    "no name": (b"image,classes\n,car\n", "line 2 names no image"),
    "spaces alone": (b"image,classes\n , \na,car\n", "line 2 names no image"),
    "twice": (b"image,classes\na.png,car\n\na,dog\n", "lines 2 and 4 both speak of 'a'"),
    "a column twice": (b"image,car,car\na,1,1\n", "column 3 is called 'car'"),
    "a column without name": (b"image,,car\na,1,1\n", "column 2 is called ''"),
    "another value": (b"image,car,dog\na,1,maybe\n", "line 2 has 'maybe' for dog, expected 1 or 0"),
    "a long row": (b"image,car,dog\na,1,1,1\n", "line 2 has 4 cells, the first line 3"),
    "no image": (b"image,classes\na,car\nimg_b.png,car\n", "names images that are not there: line 3: 'img_b.png'"),
    "a mistyped image": (b"image,classes\nimage/a,car\n", "line 2: 'image/a'; did you mean images/a?"),
    "two other images": (b"image,classes\nimage/a,car\nx,car\n", "line 3: 'x'; did you mean images/a?"),
    "no images": (
        b"image,classes\n1,car\n" + b"x" * 81 + b",car\n3,car\n4,car\n",
        f"names images that are not there: line 2: '1'; line 3: {'x' * 80!r}; line 4: '3'; ...",
    ),
    "an open quote": (b'image,classes\na,"car\n', "is no line of a table"),
    "a long cell": (b"image,classes\na," + b"x" * 200_000 + b"\n", "is no line of a table (field larger"),
    "bytes": (b"image,classes\n\xff\xfe,car\n", "cannot be read as text"),
    "half a character": (b"image,classes\n\xed\xa0\x80,car\n", "cannot be read as text"),
    "zeros": (b"image,classes\n" + b"\0" * 40 + b"\n", ""),
    "up": (b"image,classes\n../../etc/passwd,car\n", "names images that are not there: line 2: '../../etc/passwd'"),
    "an unknown class": (b"image,classes\na,car;dgo\n", "line 2: no class is called 'dgo'; the classes are background"),
    "an unknown column": (b"image,car,cat\na,1,1\n", "no class is called 'cat'; the classes are background, car"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_table_that_cannot_be_understood_is_one_line(tmp_path, content, message):
    folder = write(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_bytes(content)
    with pytest.raises(DataError) as raised:
        info(folder)
    text = str(raised.value)
    assert message in text
    assert "classes.csv" in text
    assert "\n" not in text
    assert len(text) < 500


def test_a_folder_or_two_tables_or_an_ambiguous_row_is_one_line(tmp_path):
    folder = write(tmp_path / "data", ["x/a", "y/a", "b"])
    (folder / "classes.csv").mkdir()
    with pytest.raises(DataError, match=r"classes\.csv cannot be read as text"):
        labels(folder)
    (folder / "classes.csv").rmdir()
    (folder / "classes.csv").write_text("image,classes\na,car\n")
    with pytest.raises(DataError, match=r"line 2: 'a' is the name of .*x/a.png and of .*y/a.png; write the folder too"):
        labels(folder)
    (folder / "images" / "classes.csv").write_text("image,classes\nx/a,car\n")
    inner = folder / "images" / "classes.csv"
    with pytest.raises(DataError, match=f"^{inner} and {folder / 'classes.csv'} speak of the same images; keep one$"):
        labels(folder)
    (folder / "images" / "classes.csv").unlink()
    (folder / "classes.csv").unlink()
    (folder / "images" / "x" / "classes.txt").write_text("\n")
    with pytest.raises(DataError, match=r"x/classes\.txt is empty; write the classes"):
        labels(folder)


def test_a_row_may_speak_of_an_image_that_is_not_used(tmp_path):
    folder = write(tmp_path, ["train/a", "train/b", "val/c", "test/d"])
    (folder / "masks" / "train" / "b.png").unlink()
    (folder / "images" / "train" / "b.png").rename(folder / "images" / "train" / "b.PNG")
    (folder / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,car\ntest/d,car\n")
    assert labels(folder, allow_unpaired=True) == {"a.png": ("car",), "c.png": ("car",)}


CLASS_MAP = ClassMap(("background", "car", "pet"), (0, 1, 2), None, joined=((3, 2),))


def sets_of(names: dict[tuple[str, ...], str], class_map: ClassMap, file_classes=()) -> LabelSets:
    return LabelSets.of(names, class_map.names, class_map.values_by_class(), file_classes, class_map.background)


def test_names_are_those_of_classes_values_or_what_the_data_set_calls_them():
    names = {("car",): "a", ("1",): "b", ("pet",): "c", ("dog",): "d", ("cat", "dog"): "e", ("2", "3"): "f"}
    file_classes = ((2, "dog"), (3, "cat"), (9, "bird"))  # the last is left out by --classes
    sets = sets_of({**names, ("car", "cat", "dog"): "g", ("bird", "car"): "h"}, CLASS_MAP, file_classes)
    car, pet, none = (False, True, False), (False, False, True), (False, False, False)
    # a joined class needs all that it joins
    assert [sets.flags_of(key) for key in names] == [car, car, pet, none, pet, pet]
    assert sets.flags_of(("car", "cat", "dog")) == sets.flags_of(None) == (True, True, True)
    assert sets.flags_of(("bird", "car")) == car
    assert sets.where == "a"
    with pytest.raises(DataError, match="h: no class is called 'brid'; the classes are background, car, pet; did you"):
        sets_of({("brid",): "h"}, CLASS_MAP, file_classes)


@pytest.mark.parametrize("names", [(), ("background",), ("background", "car")], ids=str)
def test_the_background_is_unknown_where_a_class_is(names):
    assert sets_of({names: "a"}, CLASS_MAP).flags_of(names)[0] is False


def test_the_background_is_known_where_all_other_classes_are():
    unnamed = ClassMap(("0", "1", "2"), (0, 1, 2), None)
    assert sets_of({("1", "2"): "a"}, unnamed).are_complete


def test_a_first_class_that_is_no_background_is_unknown_where_it_is_not_labeled():
    streets = ClassMap(("road", "car"), (0, 1), None)
    assert sets_of({("car",): "a"}, streets).flags_of(("car",)) == (False, True)


@pytest.fixture
def twelve_images(tmp_path):
    """Twelve images of four classes in bands; and those where a third is labeled for car, and a third not for it."""
    folder = write(tmp_path, [f"{i:02}" for i in range(12)])
    plain = info(folder, crop_size=(4, 4))
    rows = [f"{i:02},{('car', 'dog;person', 'car;dog;person')[i % 3]}" for i in range(12)]
    (folder / "classes.csv").write_text("image,classes\n" + "\n".join(rows))
    return plain, info(folder, crop_size=(4, 4))


@pytest.fixture
def car_sample(twelve_images):
    """The data set, its training images, and the index and the target of one that is labeled for car alone."""
    _, data = twelve_images
    dataset = TrainingDataset(data.train, data, data.preprocess())
    index = next(i for i in range(len(data.train)) if data.train.records.labeled(i) == ("car",))
    return data, dataset, index, dataset.samples.load(index)[1]


def test_pixels_count_only_where_their_class_is_labeled(twelve_images):
    plain, data = twelve_images
    assert len(set(plain.reader.class_pixels)) == 1
    band = SIZE[0] // 4 * SIZE[1]
    assert data.reader.class_pixels == (4 * band, 8 * band, 8 * band, 8 * band)


def test_keys_change_with_what_images_are_labeled_for(twelve_images):
    plain, data = twelve_images
    assert data.reader.key != plain.reader.key
    assert content_key([plain.train.records]) != content_key([data.train.records])


def test_a_data_set_says_which_file_labels_images_for_some_classes(twelve_images, tmp_path):
    _, data = twelve_images
    assert f"labeled for some of these only ({tmp_path / 'classes.csv'}: line " in str(data)


def test_a_target_knows_the_class_that_its_image_is_labeled_for(car_sample):
    data, _, index, target = car_sample
    assert np.flatnonzero(data.reader.label_sets.flags[int(target.label_set)]).tolist() == [1]
    assert np.unique(data.reader.known_labels(target)).tolist() == [1, 255]
    with data.reader.open_window(data.train.records[index]) as opened:
        assert opened.read(SIZE, ((0, 4), (0, 4))).label_set == int(target.label_set)


def test_crops_are_chosen_among_what_their_image_is_labeled_for(car_sample):
    data, dataset, index, target = car_sample

    def are_chosen(labels: np.ndarray) -> bool:
        for seed in range(20):
            window = dataset.samples.choose_window(index, target, (4, 4), np.random.default_rng(seed))
            if crop_window(labels, 255, (4, 4), np.random.default_rng(seed)) != window:
                return False
        return True

    assert are_chosen(data.reader.known_labels(target))
    assert not are_chosen(target.mask)


def test_a_filler_is_labeled_for_nothing(car_sample):
    _, dataset, _, _ = car_sample
    filler = dataset[Slot(0, 0, (4, 4), filler=True)][1]
    assert filler.label_set == 0
    assert (filler.mask == 255).all()


def test_an_image_that_is_labeled_for_nothing_is_unknown(tmp_path):
    folder = write(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text("image,classes\na,\nb,car\nc,car;dog;person\n")
    data = info(folder)
    for split in (data.train, data.val):
        for record in split.records:
            mask = data.reader.read(record, SIZE).mask
            assert (mask == 255).all() == (record["name"] == "a.png")
    assert any(line.startswith("1 images are labeled for no class") for line in data.warnings)


def test_what_only_a_damaged_mask_is_labeled_for_cannot_be_scored(tmp_path):
    write(tmp_path / "train", ["a", "b"])
    write(tmp_path / "val", ["c"])
    write(tmp_path / "val", ["d"], (0, 9))
    (tmp_path / "classes.csv").write_text("image,classes\na,car;dog;person\nb,car\nc,car;person\nd,dog\n")
    warnings = load_info(tmp_path, classes=CLASSES, on_bad_sample="skip").warnings
    assert "no validation image is labeled for dog, which cannot be scored" in warnings


def test_the_report_on_the_data_says_what_is_labeled(tmp_path):
    write(tmp_path / "train", ["a", "b", "c", "d"])
    write(tmp_path / "val", ["e", "f"])
    (tmp_path / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,\ne,car\nf,car\n")
    report, problems = check_data(DataConfig(str(tmp_path), classes="0=background,1=car,2=dog", ignore_index="3"))
    assert problems == 0
    assert "images that are labeled for each class, of 6\n         1   16.667 %  background" in report
    assert "\n         4   66.667 %  car\n         2   33.333 %  dog\n" in report
    assert "labeled pixels: 75.000 %" in report
    for line in (
        "1 images have no row in classes.csv, and count as labeled for all classes: d.png",
        "1 images are labeled for no class, and teach and score nothing: c.png",
        "no validation image is labeled for dog, which cannot be scored",
    ):
        assert f"to check: {line}" in report


def test_a_table_of_one_split_is_reported_and_damaged_masks_are_not_counted(tmp_path):
    write(tmp_path / "train", ["a", "b", "c", "d", "damaged"])
    write(tmp_path / "val", ["e", "f"])
    table = "image,classes\na,car\nb,car\nc,car;dog;person\nd,\ndamaged,\n"
    (tmp_path / "train" / "classes.csv").write_text(table)
    for name in ("b", "damaged"):
        (tmp_path / "train" / "masks" / f"{name}.png").write_bytes(b"")
    report, _ = check_data(DataConfig(str(tmp_path), classes=CLASSES))
    assert "images that are labeled for each class, of 5\n         3   60.000 %  background\n" in report
    assert "to check: 1 images are labeled for no class, and teach and score nothing: d.png" in report


def test_label_files_of_both_splits_reach_the_reader_with_names_of_classes():
    train = split_of({0: 1, 1: 2}, label_sets={("a",): "train"}, classes=((1, "a"),))
    val = split_of({0: 5}, label_sets={("a",): "val", ("b",): "val"})
    reader = SimpleNamespace(partly_labeled=lambda *said: said)
    sets = {("a",): "train", ("b",): "val"}
    assert read_labels(reader, [train, val]) == (sets, ((1, "a"),), {None: {0: 6, 1: 2}})
    assert read_labels(reader, [split_of({0: 1})]) is reader


def test_classes_that_no_image_is_labeled_for_are_named_where_both_splits_could_be_read():
    split = split_of({0: 1, 1: 2}, label_sets={("a",): "train"})
    reader = SimpleNamespace(class_names=("a", "b"), labeled_classes=lambda labeled_for: [0], background=None)
    assert label_set_warnings([split], reader) == ()
    assert len(label_set_warnings([split, split], reader)) == 2


def test_images_without_a_row_are_named_whatever_else_is_made_of_the_records(tmp_path):
    write(tmp_path / "train", ["a", "b", "c", "d"])
    write(tmp_path / "val", ["e", "f"])
    (tmp_path / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,person\n")
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("e.png\n")
    for settings, listed in (({"place": False}, "3 images"), ({"exclude": str(excluded)}, "2 images")):
        warnings = load_info(tmp_path, classes=CLASSES, **settings).warnings
        assert any(line.startswith(f"{listed} have no row in classes.csv") for line in warnings), settings


def test_volumes_with_a_channel_for_each_class_are_labeled_too(tmp_path):
    for seed in range(4):
        image, label = case(seed)
        write_nifti(tmp_path / "images" / f"c{seed}.nii.gz", image)
        channels = np.stack([label > 0, label > 1], axis=-1).astype(np.uint8)
        write_nifti(tmp_path / "masks" / f"c{seed}.nii.gz", channels)
    (tmp_path / "classes.csv").write_text("image,classes\nc1,class 1\nc3,class 2\n")
    expected = {"c0": None, "c1": ("class 1",), "c2": None, "c3": ("class 2",)}
    assert labels(tmp_path, val_fraction=0.5) == expected


def test_volumes_and_their_slices_are_labeled_too(tmp_path):
    write_msd(tmp_path, 3)
    (tmp_path / "classes.csv").write_text("image,classes\nscan_00,front\nscan_01.nii.gz,front\n")
    for dims, count in ((3, 1), (2, 16)):
        labels_by_name = labels(tmp_path, dims=dims)
        assert len(labels_by_name) == 3 * count
        for name, names in labels_by_name.items():
            assert names == (None if name.startswith("scan_02") else ("front",)), name
    data = load_info(tmp_path)
    numbers = {}
    for split in (data.train, data.val):
        for i in range(len(split)):
            # locations of a class are kept where the volume is labeled for it
            numbers[split.records.name(i)] = len(split.class_locations[i])
    assert numbers == {"scan_00": 1, "scan_01": 1, "scan_02": 2}


def test_classes_that_overlap_are_unknown_where_an_image_is_not_labeled_for_them(tmp_path):
    write_overlaps(tmp_path, 6, seed=0)
    plain = load_info(tmp_path)
    first, second, third = plain.reader.names
    rows = [f"{number:02},{first if number % 2 else f'{second};{third}'}" for number in range(6)]
    (tmp_path / "classes.csv").write_text("image,classes\n" + "\n".join(rows))
    data = load_info(tmp_path)
    pixels = np.zeros(3, int)
    for split, plain_split in ((data.train, plain.train), (data.val, plain.val)):
        for record, plain_record in zip(split.records, plain_split.records, strict=True):
            target = data.reader.read(record, OVERLAPS)
            whole = plain.reader.read(plain_record, OVERLAPS)
            bits = 1 if int(record["name"][:2]) % 2 else 6
            assert (target.known == bits).all()
            assert (target.truth == whole.truth & bits).all()
            pixels += [(target.truth >> bit & 1).sum() for bit in range(3)]
    assert data.reader.class_pixels == tuple(pixels.tolist()) != plain.reader.class_pixels
    assert data.reader.shares == pytest.approx(tuple(pixels / (3 * OVERLAPS[0] * OVERLAPS[1])))
    assert "labeled for some of these only" in str(data)
    assert data.reader.key != plain.reader.key
    report, _ = check_data(DataConfig(str(tmp_path)))
    assert f"         3   50.000 %  {first}" in report
    for name, share in zip(data.reader.names, data.reader.shares, strict=True):  # of what is known
        assert f"  {100 * share:7.3f} %  {name}" in report


def test_the_weights_of_classes_and_the_sets_of_labels_reach_the_task():
    label_sets = LabelSets(((True, True), (True, False)), {("a",): 1})
    class_map = ClassMap(("a", "b"), (1, 2), None)
    reader = PartlyLabeledReader(class_map, class_pixels=(30, 10), label_sets=label_sets)
    task = reader.task("ce", ["auto"])
    assert task.names == ("a", "b")
    assert task.loss == "ce"
    assert task.class_weights.tolist() == pytest.approx([(2 / 3) ** 0.5, 2**0.5])
    assert task.flags.tolist() == [[True, True], [True, False]]
    assert reader.task("dice", None).class_weights.tolist() == [1, 1]


def test_a_region_is_unknown_where_an_image_is_not_labeled_for_all_of_it(tmp_path):
    folder = write(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text("image,classes\na,1\nb,2;3\nc,1;2;3\n")
    data = load_info(folder, val_fraction=0.34, regions="whole=1+2+3;pets=2+3")
    known_of_image = {}
    for split in (data.train, data.val):
        for record in split.records:
            known_of_image[record["name"]] = set(np.unique(data.reader.read(record, SIZE).known).tolist())
    assert known_of_image == {"a.png": {0}, "b.png": {2}, "c.png": {3}}
    labeled = [data.reader.labeled_in_map(labels) for labels in (("1",), ("2", "3"), None)]
    assert labeled == [set(), {2, 3}, {1, 2, 3}]
    band = SIZE[0] // 4 * SIZE[1]
    assert data.reader.class_pixels == (3 * band, 2 * 2 * band)
