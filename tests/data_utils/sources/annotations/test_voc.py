"""VOC and what CVAT and labelme export as such: lists, names of classes and colors.

Modules: data_utils/sources/annotations/voc.py.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of, loaded, masks
from support.data_sets import unnoticed_changes
from support.mask_folders import SIZE, rows, save

from data_utils import pack
from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig

VOC = rows(0, 1, 15, 255)


def voc(
    root: Path, names: list[str], lists: dict[str, list[str]], mask: np.ndarray = VOC, palette: bool = True
) -> Path:
    for name in names:
        save(root / "JPEGImages" / f"{name}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(root / "SegmentationClass" / f"{name}.png", mask, palette)
    (root / "Annotations").mkdir()
    for name, listed in lists.items():
        file = root / "ImageSets/Segmentation" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in listed))
    return root


OWN = ["2007_000032", "2007_000039", "2011_003276"]


@pytest.fixture
def own_voc(tmp_path) -> Path:
    """Images of the challenge in its lists, and another one without mask."""
    root = voc(tmp_path, OWN, {"train": OWN[:1], "val": OWN[2:], "trainval": [OWN[0], OWN[2]]})
    save(root / "JPEGImages" / "extra.jpg", np.zeros((*SIZE, 3), np.uint8))
    return root


def test_lists_of_voc_may_be_written_on_windows(tmp_path):
    root = voc(tmp_path, ["a/1", "a/2"], {"train": [r"a\1"], "val": [r"a\2"]})
    for file in root.glob("ImageSets/*/*.txt"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    train, val = loaded(root)
    assert [*masks(train), *masks(val)] == ["a/1.jpg", "a/2.jpg"]


def test_splits_of_voc_are_those_of_its_lists(own_voc):
    train, val = loaded(own_voc)
    assert [*masks(train)] == ["2007_000032.jpg"]
    assert [*masks(val)] == ["2011_003276.jpg"]
    np.testing.assert_array_equal(masks(train)["2007_000032.jpg"], VOC)


def test_classes_of_voc_are_those_of_the_challenge_for_its_own_images(own_voc):
    class_map = load_dataset_info(DataConfig(str(own_voc))).reader.class_map
    assert len(class_map) == 21
    assert class_map.ignore_value == 255
    assert class_map.names[1] == "aeroplane"
    assert class_map.names[15] == "person"


def test_the_report_counts_images_of_voc_with_objects(own_voc):
    assert "annotations: VOC; 2 images with objects, 0 without" in check_data(DataConfig(str(own_voc)))[0]


def test_a_change_of_each_file_of_voc_is_noticed(tmp_path):
    root = voc(tmp_path, [*"abcd"], {})
    files = [*root.glob("JPEGImages/*"), *root.glob("SegmentationClass/*")]
    assert len(files) == 8
    assert unnoticed_changes(files, lambda: loaded(root)[0].digest) == []


@pytest.mark.parametrize(
    "names",
    [
        ["2007_000032", "a", "b"],
        ["a", "b", "2007_000032"],
        ["1907_000032", "1907_000033"],
        ["2007_0000321", "2007_0000322"],
    ],
)
def test_images_are_not_those_of_voc_where_some_have_other_names(tmp_path, names):
    assert loaded(voc(tmp_path, names, {}))[0].metadata.classes == ()


@pytest.fixture
def binary_voc(tmp_path) -> Path:
    """Four images whose masks hold 0 and 1."""
    return voc(tmp_path, [*"abcd"], {}, rows(0, 1), palette=False)


def test_voc_masks_of_0_and_1_hold_background_and_foreground(binary_voc):
    class_map = load_dataset_info(DataConfig(str(binary_voc))).reader.class_map
    assert class_map.names == ("background", "foreground")
    assert class_map.values == (0, 1)
    assert class_map.ignore_value is None


def test_voc_masks_of_0_and_1_hold_the_classes_that_a_file_names(binary_voc):
    (binary_voc / "class_names.txt").write_text("__ignore__\n_background_\ncat\n")
    assert load_dataset_info(DataConfig(str(binary_voc))).reader.class_map.names == ("background", "cat")


@pytest.mark.parametrize("files", [{}, {"class_names.txt": "_background_\ncat\n"}], ids=["without names", "named"])
def test_a_voc_mask_of_another_encoding_is_warned_of(binary_voc, files):
    save(binary_voc / "SegmentationClass" / "b.png", rows(0, 255))
    for name, text in files.items():
        (binary_voc / name).write_text(text)
    info = load_dataset_info(DataConfig(str(binary_voc)))
    assert info.reader.class_map.values == (0, 1)
    assert info.reader.class_map.ignore_value == 255
    assert any(line.startswith("some masks hold 1 (masks: 3, the first is ") for line in info.warnings)


@pytest.fixture
def voc_2007(tmp_path) -> Path:
    return voc(tmp_path, ["000032", "000033"], {"train": ["000032"], "val": ["000033"]})


def test_images_of_voc_2007_are_known_by_their_annotations(voc_2007):
    assert loaded(voc_2007)[0].metadata.classes == ()
    page = "<annotation><source><database>The VOC2007 Database</database></source></annotation>"
    (voc_2007 / "Annotations" / "000032.xml").write_text(page)
    assert loaded(voc_2007)[0].metadata.classes[15] == (15, "person")


def test_a_pipe_is_no_annotation_of_voc_2007(voc_2007):
    os.mkfifo(voc_2007 / "Annotations" / "000032.xml")
    assert loaded(voc_2007)[0].metadata.classes == ()


@pytest.mark.parametrize("lists", [{}, {"default": ["a", "b"]}, {"trainval": ["a", "b"]}])
def test_one_list_or_none_is_split_by_the_seed(tmp_path, lists):
    train, val = loaded(voc(tmp_path, ["a", "b"], lists))
    assert sorted([*masks(train), *masks(val)]) == ["a.jpg", "b.jpg"]
    assert train.metadata.classes == ()  # files of somebody else: the values are the classes


def test_no_image_of_voc_is_in_both_splits(tmp_path):
    root = voc(tmp_path, ["a", "b", "c"], {"trainval": ["a", "b", "c"], "val": ["c"], "test": ["b"]})
    train, val = loaded(root)
    assert len(train) + len(val) == 3
    assert not {*masks(train)} & {*masks(val)}


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"val": ["a", "b"]}, "has no split train, only val"),
        ({"one": ["a"], "two": ["b"]}, "has no split train, only one, two"),
    ],
    ids=["one list", "two lists"],
)
def test_lists_without_one_for_training_are_refused(tmp_path, lists, message):
    assert message in error_of(voc(tmp_path, ["a", "b"], lists))


COLORED = np.zeros((*SIZE, 3), np.uint8)
COLORED[:5] = (128, 0, 64)
COLORS_OF_CVAT = "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncell:128,0,64::\n"


@pytest.fixture
def cvat(tmp_path) -> Path:
    """Three images of CVAT, whose masks hold the colors that labelmap.txt names."""
    root = voc(tmp_path, ["a", "b", "c d"], {"train": ["a", '"c d"'], "val": ["b"]}, COLORED, palette=False)
    (root / "labelmap.txt").write_text(COLORS_OF_CVAT)
    return root


def test_classes_of_cvat_are_the_colors_that_a_file_names(cvat):
    info = load_dataset_info(DataConfig(str(cvat)))
    assert info.reader.class_map.names == ("background", "cell")
    assert info.reader.class_map.values == ((0, 0, 0), (128, 0, 64))
    assert len(info.train) == 2
    assert info.reader.class_pixels[1] == 3 * 5 * SIZE[1]


def test_classes_of_cvat_are_numbers_where_masks_hold_numbers(cvat):
    for file in (cvat / "SegmentationClass").iterdir():
        save(file, rows(0, 1))
    assert load_dataset_info(DataConfig(str(cvat))).reader.class_map.values == (0, 1)


def test_colors_that_are_packed_can_be_streamed(tmp_path, monkeypatch):
    lists = {"train": ["a", "b"], "val": ["c"]}
    root, out = voc(tmp_path / "data", ["a", "b", "c"], lists, COLORED, palette=False), tmp_path / "out"
    (root / "labelmap.txt").write_text(COLORS_OF_CVAT)
    monkeypatch.setattr("sys.argv", ["pack", str(root), str(out)])
    pack.main()
    settings = DataConfig(str(out), classes=str(out / "classes.json"), streaming=True, image_size=SIZE)
    info = load_dataset_info(settings)
    assert info.reader.class_map.values == ((0, 0, 0), (128, 0, 64))
    assert info.reader.class_map.ignore_value is None
    assert info.reader.class_pixels[1] == 2 * 5 * SIZE[1]


def test_class_names_txt_names_the_values(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1, 2, 255))
    (root / "class_names.txt").write_text("__ignore__\n_background_\ncat\ndog\n")
    info = load_dataset_info(DataConfig(str(root)))
    assert info.reader.class_map.names == ("background", "cat", "dog")
    assert info.reader.class_map.ignore_value == 255


@pytest.fixture
def two_missing(tmp_path) -> Path:
    """A list of four names, of which one has no image and one no mask."""
    root = voc(tmp_path, OWN, {"train": [*OWN, "2009_000001"], "val": OWN[:1]})
    (root / "SegmentationClass" / f"{OWN[1]}.png").unlink()
    return root


def test_voc_files_that_are_missing_are_named(two_missing):
    message = error_of(two_missing)
    assert f"2 files without partner: 2009_000001: no image; {OWN[1]}: no mask" in message
    assert "--allow-unpaired" in message


def test_voc_files_that_are_missing_are_left_out_on_request(two_missing):
    train, _ = loaded(two_missing, allow_unpaired=True)
    assert len(train) == 2
    assert train.metadata.unpaired == ("2009_000001: no image", f"{OWN[1]}: no mask")
    assert train.annotations.annotated == 2
    assert train.annotations.empty == 0


@pytest.mark.parametrize("lacking", ["JPEGImages", "SegmentationClass"])
def test_one_of_the_folders_of_voc_alone_is_no_data_set(tmp_path, lacking):
    root = voc(tmp_path, ["a", "b"], {})
    (root / lacking).rename(root / "other")
    assert "has no folder of images; looked for" in error_of(root)


def test_lists_of_voc_may_be_called_in_capitals_and_have_blank_lines(tmp_path):
    root = voc(tmp_path, [*"abc"], {"Train": ["a", "  ", "b"], "VAL": ["", "c"]})
    assert [[*masks(split)] for split in loaded(root)] == [["a.jpg", "b.jpg"], ["c.jpg"]]


def test_hidden_lists_of_voc_are_passed_over(tmp_path):
    root = voc(tmp_path, [*"ab"], {"default": ["a", "b"], "._default": ["what a Mac leaves behind"]})
    assert sorted([*masks(loaded(root)[0]), *masks(loaded(root)[1])]) == ["a.jpg", "b.jpg"]


def test_two_formats_in_one_folder_are_both_named(tmp_path):
    root = voc(tmp_path, ["a", "b"], {})
    (root / "annotations.json").write_text("{}")
    assert f"holds annotations of 2 formats: COCO ({root / 'annotations.json'}), VOC (" in error_of(root)


def test_masks_of_png_come_before_others_of_voc(tmp_path):
    root = voc(tmp_path, ["a", "b"], {})
    for name in "ab":
        save(root / "SegmentationClassPNG" / f"{name}.png", rows(0, 2))
    assert {int(mask.max()) for split in loaded(root) for mask in masks(split).values()} == {2}


def test_the_list_test_of_voc_is_read_where_it_is_named(tmp_path):
    lists = {"train": ["a"], "val": ["b"], "test": ["c"], "test_small": ["d"]}
    root = voc(tmp_path, [*"abcd"], lists)
    assert [[*masks(split)] for split in loaded(root, val_split="test")] == [["a.jpg"], ["c.jpg"]]


@pytest.fixture
def unlisted(tmp_path) -> Path:
    """Three images without lists, of which one has no mask."""
    root = voc(tmp_path, [*"abc"], {})
    (root / "SegmentationClass/b.png").unlink()
    return root


def test_an_unlisted_image_of_voc_without_mask_is_named(unlisted):
    assert "1 file without partner: b: no mask" in error_of(unlisted)
    assert "--allow-unpaired" in error_of(unlisted)


def test_an_unlisted_image_of_voc_without_mask_is_left_out_on_request(unlisted):
    train, val = loaded(unlisted, allow_unpaired=True)
    assert sorted([*masks(train), *masks(val)]) == ["a.jpg", "c.jpg"]
    assert train.annotations.annotated == 2
    assert train.annotations.empty == 0


@pytest.mark.parametrize(
    "line", ["cell", "cell:256,0,64::", "cell:128,256,64::", "cell:128,0,256::", "cell:128,0::", "cell:-1,0,0::"]
)
def test_a_color_of_cvat_has_three_numbers_up_to_255(tmp_path, line):
    root = voc(tmp_path, ["a", "b"], {})
    (root / "labelmap.txt").write_text(f"background:0,0,0::\n{line}\n")
    assert f"{root / 'labelmap.txt'}: line 2 is '{line}', expected name:red,green,blue" in error_of(root)


def test_classes_of_cvat_are_in_the_order_of_its_list_where_masks_have_a_palette(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1, 2))
    label_map = "# colors\n\nbackground:0,0,0::\n\ncell :128,255,64::\n# more\nnucleus:9,9,9::\n"
    (root / "labelmap.txt").write_text(label_map)
    assert loaded(root)[0].metadata.classes == ((0, "background"), (1, "cell"), (2, "nucleus"))


def test_blank_lines_of_class_names_txt_are_no_classes(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1, 2))
    (root / "class_names.txt").write_text("__ignore__\n_background_ \n\n cat\n  \ndog\n")
    assert loaded(root)[0].metadata.classes == ((0, "background"), (1, "cat"), (2, "dog"))


VOC_NAMES = ["background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"]
VOC_NAMES += ["diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train"]
VOC_NAMES += ["tvmonitor"]


def test_values_of_voc_have_the_names_of_the_challenge(tmp_path):
    assert loaded(voc(tmp_path, OWN, {}))[0].metadata.classes == tuple(enumerate(VOC_NAMES))


def test_masks_of_cvat_with_a_fourth_channel_hold_colors(tmp_path):
    mask = np.full((*SIZE, 4), 255, np.uint8)
    mask[..., :3] = (0, 0, 0)
    mask[:5, :, :3] = (128, 0, 64)
    root = voc(tmp_path, ["a", "b"], {}, mask, palette=False)
    (root / "labelmap.txt").write_text("background:0,0,0::\ncell:128,0,64::\n")
    assert loaded(root)[0].metadata.classes == (((0, 0, 0), "background"), ((128, 0, 64), "cell"))


def test_another_name_of_a_class_is_noticed(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1))
    digests = set()
    for name in ("cat", "dog"):
        (root / "class_names.txt").write_text(f"__ignore__\n_background_\n{name}\n")
        digests.add(loaded(root)[0].digest)
    assert len(digests) == 2
