"""Tables and rules of the classes that images are labeled for: where they lie, and which images they speak of.

Modules: data_utils/sources/label_files.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.data_sets import load_info
from support.partly_labeled import CLASSES, labels_by_name, write_bands
from support.volumes import case, write_msd, write_nifti

from data_utils.config import DataConfig
from data_utils.sources.folder import FolderRecords
from data_utils.sources.label_files import ImageLabels, LabelFiles, read_label_files, with_labels
from data_utils.sources.load import load_records
from data_utils.sources.volumes import Case, Description, VolumeRecords
from runtime.errors import DataError

ROWS = "image,classes\n{train}a,car\n{train}b,dog\n{val}a,person\n"


@pytest.fixture
def outer_splits(tmp_path):
    """Two splits, each with images and masks of its own."""
    for split in ("train", "val"):
        write_bands(tmp_path / split, ["a", "b"])
    return tmp_path


@pytest.fixture
def inner_splits(tmp_path):
    """Two splits below one folder of images and one of masks."""
    return write_bands(tmp_path, ["train/a", "train/b", "val/a", "val/b"])


@pytest.mark.parametrize(
    ("layout", "train", "val"),
    [("outer_splits", "train/images/", "val/images/"), ("inner_splits", "train/", "val/")],
)
def test_a_table_lies_above_all_splits(request, layout, train, val):
    folder = request.getfixturevalue(layout)
    (folder / "classes.csv").write_text(ROWS.format(train=train, val=val))
    training, validation = load_records(DataConfig(str(folder)))
    assert [training.label_set(i) for i in range(2)] == [("car",), ("dog",)]
    assert [validation.label_set(i) for i in range(2)] == [("person",), None]
    assert training.metadata.unlisted == ()
    assert validation.metadata.unlisted == ("b.png",)


def test_a_table_above_several_folders_is_read_once(inner_splits):
    (inner_splits / "classes.csv").write_text(ROWS.format(train="train/", val="val/"))
    files = LabelFiles(inner_splits, reads_rules=False)
    table = files.folder_table(inner_splits / "images" / "train")
    assert files.folder_table(inner_splits / "images" / "val") is table


def test_a_table_of_a_split_lies_beside_its_images(outer_splits):
    (outer_splits / "train" / "classes.csv").write_text("image,classes\na,car\nb,car\n")
    train, val = load_records(DataConfig(str(outer_splits)))
    assert train.label_set(1) == ("car",)
    assert val.label_set(1) is None
    assert val.metadata.unlisted == ()


def test_a_table_of_a_split_does_not_speak_of_its_folder(outer_splits):
    (outer_splits / "train" / "classes.csv").write_text(ROWS.format(train="train/images/", val="val/images/"))
    with pytest.raises(DataError, match=r"names images that are not there: line 2: 'train/images/a'"):
        load_records(DataConfig(str(outer_splits)))


def test_a_table_in_one_folder_of_images_speaks_of_its_images_alone(tmp_path):
    write_bands(tmp_path, ["left/a", "left/b", "right/c", "right/d"])
    (tmp_path / "images" / "right" / "classes.csv").write_text("image,classes\nc,car\nd,dog\n")
    expected = {"right/c.png": ("car",), "right/d.png": ("dog",), "left/a.png": None, "left/b.png": None}
    assert labels_by_name(tmp_path) == expected


@pytest.fixture
def ruled_sites(tmp_path):
    """Folders of sites, of which two have a rule."""
    write_bands(tmp_path, ["site_a/a", "site_b/b", "site_b/deep/c", "site_c/e", "d"])
    (tmp_path / "site_a").mkdir()
    (tmp_path / "site_a" / "classes.txt").write_text("car\t dog \n\n")
    (tmp_path / "images" / "site_b" / "classes.txt").write_text("person")
    return tmp_path


LABELS_OF_SITES = {
    "site_a/a.png": ("car", "dog"),
    "site_b/b.png": ("person",),
    "site_b/deep/c.png": ("person",),
    "site_c/e.png": None,
    "d.png": None,
}


def test_a_rule_speaks_of_the_images_of_its_folder(ruled_sites):
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES


def test_images_without_a_rule_are_not_unlisted(ruled_sites):
    assert [records.metadata.unlisted for records in load_records(DataConfig(str(ruled_sites)))] == [(), ()]


@pytest.mark.parametrize("folder", ["", "images"], ids=["above", "images"])
def test_a_list_of_all_names_where_all_images_lie_is_no_rule(ruled_sites, folder):
    (ruled_sites / folder / "classes.txt").write_text("dog\ncat")
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES


def test_a_row_comes_before_a_rule(ruled_sites):
    (ruled_sites / "classes.csv").write_text("image,classes\nsite_b/b.png,car\n")
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES | {"site_b/b.png": ("car",)}
    train, _ = load_records(DataConfig(str(ruled_sites)))
    assert {*train.metadata.unlisted} <= {"d.png", "site_c/e.png"}


def test_a_table_comes_before_the_annotations(tmp_path):
    records, _ = load_records(DataConfig(str(write_bands(tmp_path, ["a", "b", "c"])), val_fraction=0.34))
    annotated = with_labels(records, [ImageLabels(("car",), "annotations")] * len(records))
    assert [annotated.label_set(i) for i in range(len(records))] == [("car",)] * len(records)
    name = records.name(0)
    (tmp_path / "classes.csv").write_text(f"image,classes\n{name},dog\n")
    (split,) = read_label_files([annotated], tmp_path)
    assert [split.label_set(i) for i in range(len(records))] == [("dog",), ("car",)]
    assert split.metadata.label_sets == {("dog",): f"{tmp_path / 'classes.csv'}: line 2", ("car",): "annotations"}


CAR = ImageLabels(("car",), "first")
CAR_AGAIN = ImageLabels(("car",), "second")
DOG = ImageLabels(("dog",), "third")
CAT = ImageLabels(("cat",), "third")


@pytest.fixture
def three_records(tmp_path):
    """Records of three images without labels."""
    records, _ = load_records(DataConfig(str(write_bands(tmp_path, ["a", "b", "c", "d"])), val_fraction=0.25))
    return records


def test_labels_have_the_place_that_says_them_first(three_records):
    labeled = with_labels(three_records, [CAR, DOG, CAR_AGAIN])
    assert labeled.metadata.label_sets == {("car",): "first", ("dog",): "third"}


def test_labels_have_a_key_of_all_they_are(three_records):
    label_lists = ([CAR, DOG, CAR_AGAIN], [CAR, DOG, DOG], [CAR, CAT, CAR_AGAIN], [CAR, DOG, None])
    keys = {with_labels(three_records, labels).digest for labels in label_lists}
    assert len(keys | {three_records.digest}) == 5


def test_records_without_labels_stay_as_they_are(three_records):
    assert with_labels(three_records, [None] * 3) is three_records
    assert with_labels(three_records, [None] * 3, ["a.png"]).metadata.unlisted == ("a.png",)


@pytest.fixture
def ruled_split(outer_splits):
    """Two splits, of which that of training has a rule."""
    (outer_splits / "train" / "classes.txt").write_text("car")
    return outer_splits


def test_a_rule_lies_above_the_images_of_a_split(ruled_split):
    train, val = load_records(DataConfig(str(ruled_split)))
    assert train.label_set(0) == ("car",)
    assert val.label_set(0) is None


def test_a_rule_is_not_read_where_images_have_no_rules(ruled_split):
    train, val = load_records(DataConfig(str(ruled_split)))
    val.metadata = replace(val.metadata, has_rules=False)
    splits = read_label_files([train.records, val], ruled_split)
    assert [records.label_set(0) for records in splits] == [None, None]


def test_the_first_file_of_a_volume_of_several_is_its_image(tmp_path):
    files = tuple(str(tmp_path / "images" / f"v_{channel:04}.nii.gz") for channel in range(2))
    (tmp_path / "classes.csv").write_text("image,classes\nv_0000.nii.gz,car\n")
    records = VolumeRecords([Case("v", files, "masks/v.nii.gz")], None, Description())
    (labeled,) = read_label_files([records], tmp_path)
    assert labeled.label_set(0) == ("car",)


def test_pages_of_a_file_without_a_row_are_unlisted(tmp_path):
    (tmp_path / "classes.csv").write_text("image,classes\nstack_0002.tif,car\n")
    pages = [(0, 0), (1, 1)]
    records = FolderRecords(tmp_path / "images", tmp_path / "masks", [("stack.tif", "stack.tif")], [pages], [])
    (labeled,) = read_label_files([records], tmp_path)
    assert [labeled.label_set(i) for i in range(2)] == [None, ("car",)]
    assert labeled.metadata.unlisted == ("stack_0001.tif",)


def test_a_rule_of_a_site_lies_in_a_folder_of_its_name_up_to_the_root(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "classes.txt").write_text("car")
    files = LabelFiles(tmp_path, reads_rules=True)
    images = tmp_path / "train" / "images"
    labels = files.find(f"{images}/site/day/a.png", "site/day/a.png")
    assert labels == ImageLabels(("car",), str(tmp_path / "site" / "classes.txt"))
    assert files.find(f"{images}/other/a.png", "other/a.png") is None


def test_label_files_beside_images_outside_the_data_set_are_not_read(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "classes.txt").write_text("car")
    (tmp_path / "classes.csv").write_text("image,classes\na.png,car\n")
    files = LabelFiles(tmp_path / "data", reads_rules=True)
    assert files.find(f"{tmp_path}/site/a.png", "site/a.png") is None
    assert files.tables == []


def test_a_row_may_speak_of_an_image_that_is_not_used(tmp_path):
    folder = write_bands(tmp_path, ["train/a", "train/b", "val/c", "test/d"])
    (folder / "masks" / "train" / "b.png").unlink()
    (folder / "images" / "train" / "b.png").rename(folder / "images" / "train" / "b.PNG")
    (folder / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,car\ntest/d,car\n")
    assert labels_by_name(folder, allow_unpaired=True) == {"a.png": ("car",), "c.png": ("car",)}


@pytest.mark.parametrize(
    ("settings", "count"), [({"place": False}, 3), ({"exclude": "excluded.txt"}, 2)], ids=["no place", "excluded"]
)
def test_images_without_a_row_are_named_whatever_else_is_made_of_the_records(tmp_path, monkeypatch, settings, count):
    monkeypatch.chdir(tmp_path)
    write_bands(tmp_path / "data" / "train", ["a", "b", "c", "d"])
    write_bands(tmp_path / "data" / "val", ["e", "f"])
    (tmp_path / "data" / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,person\n")
    (tmp_path / "excluded.txt").write_text("e.png\n")
    warnings = load_info(tmp_path / "data", classes=CLASSES, **settings).warnings
    assert any(line.startswith(f"{count} images have no row in classes.csv") for line in warnings)


def test_volumes_with_a_channel_for_each_class_are_labeled_too(tmp_path):
    for seed in range(4):
        image, label = case(seed)
        write_nifti(tmp_path / "images" / f"c{seed}.nii.gz", image)
        channels = np.stack([label > 0, label > 1], axis=-1).astype(np.uint8)
        write_nifti(tmp_path / "masks" / f"c{seed}.nii.gz", channels)
    (tmp_path / "classes.csv").write_text("image,classes\nc1,class 1\nc3,class 2\n")
    expected = {"c0": None, "c1": ("class 1",), "c2": None, "c3": ("class 2",)}
    assert labels_by_name(tmp_path, val_fraction=0.5) == expected


@pytest.fixture(scope="module")
def labeled_volumes(tmp_path_factory):
    """Three volumes of 16 slices, of which two are labeled for the class front alone."""
    folder = write_msd(tmp_path_factory.mktemp("msd"), 3)
    (folder / "classes.csv").write_text("image,classes\nscan_00,front\nscan_01.nii.gz,front\n")
    return folder


def test_volumes_are_labeled_too(labeled_volumes):
    assert labels_by_name(labeled_volumes, dims=3) == {"scan_00": ("front",), "scan_01": ("front",), "scan_02": None}


def test_slices_of_volumes_are_labeled_as_their_volumes(labeled_volumes):
    labels_of_volume = {}
    for name, labels in labels_by_name(labeled_volumes, dims=2).items():
        labels_of_volume.setdefault(name.rpartition("_")[0], []).append(labels)
    assert labels_of_volume == {"scan_00": [("front",)] * 16, "scan_01": [("front",)] * 16, "scan_02": [None] * 16}


def test_places_of_classes_are_remembered_where_their_volume_is_labeled_for_them(labeled_volumes):
    data = load_info(labeled_volumes)
    classes_with_places = {}
    for split in (data.train, data.val):
        for i in range(len(split)):
            classes_with_places[split.records.name(i)] = len(split.class_locations[i])
    assert classes_with_places == {"scan_00": 1, "scan_01": 1, "scan_02": 2}
