"""Tables and rules of the classes that images are labeled for: where they lie, and which images they speak of.

Modules: data_utils/sources/label_files.py.
"""

import pytest
from support.data_sets import load_info
from support.partly_labeled import CLASSES, labels_by_name, write_bands
from support.volumes import write_msd

from data_utils.config import DataConfig
from data_utils.sources.label_files import ImageLabels, LabelFiles, read_label_files, with_labels
from data_utils.sources.load import load_records

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


def test_a_table_of_a_split_lies_beside_its_images(outer_splits):
    (outer_splits / "train" / "classes.csv").write_text("image,classes\na,car\nb,car\n")
    train, val = load_records(DataConfig(str(outer_splits)))
    assert train.label_set(1) == ("car",)
    assert val.label_set(1) is None
    assert val.metadata.unlisted == ()


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


def test_labels_have_a_key_of_all_they_are(three_records):
    label_lists = ([CAR, DOG, CAR_AGAIN], [CAR, DOG, DOG], [CAR, CAT, CAR_AGAIN], [CAR, DOG, None])
    keys = {with_labels(three_records, labels).digest for labels in label_lists}
    assert len(keys | {three_records.digest}) == 5


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


@pytest.mark.parametrize("folder", ["", "images"], ids=["above", "images"])
def test_a_list_of_all_names_where_all_images_lie_is_no_rule(ruled_sites, folder):
    (ruled_sites / folder / "classes.txt").write_text("dog\ncat")
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES
