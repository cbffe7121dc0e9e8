"""VOC and what CVAT and labelme export as such: lists, names of classes and colors."""

from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of, loaded, masks
from support.mask_folders import SIZE, rows, save

from data_utils import pack
from data_utils.config import DataConfig
from train_utils.dataset import load_dataset_info

VOC = rows(0, 1, 15, 255)


def voc(
    root: Path, names: list[str], lists: dict[str, list[str]], mask: np.ndarray = VOC, palette: bool = True
) -> Path:
    for name in names:
        save(root / "JPEGImages" / f"{name}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(root / "SegmentationClass" / f"{name}.png", mask, palette)
    for name, listed in lists.items():
        file = root / "ImageSets/Segmentation" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in listed))
    return root


OWN = ["2007_000032", "2007_000039", "2011_003276"]


def test_lists_of_voc_may_be_written_on_windows(tmp_path):
    root = voc(tmp_path, ["a/1", "a/2"], {"train": [r"a\1"], "val": [r"a\2"]})
    for file in root.glob("ImageSets/*/*.txt"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    train, val = loaded(root)
    assert [*masks(train), *masks(val)] == ["a/1.jpg", "a/2.jpg"]


def test_images_of_the_challenge_have_its_lists_and_its_classes(tmp_path):
    root = voc(tmp_path, OWN, {"train": OWN[:1], "val": OWN[2:], "trainval": [OWN[0], OWN[2]]})
    save(root / "JPEGImages" / "extra.jpg", np.zeros((*SIZE, 3), np.uint8))  # in no list, and without mask
    train, val = loaded(root)
    assert [*masks(train)] == ["2007_000032.jpg"]
    assert [*masks(val)] == ["2011_003276.jpg"]
    np.testing.assert_array_equal(masks(train)["2007_000032.jpg"], VOC)
    class_map = load_dataset_info(DataConfig(str(root))).reader.class_map
    assert len(class_map) == 21
    assert class_map.ignore_value == 255
    assert (class_map.names[1], class_map.names[15]) == ("aeroplane", "person")
    (root / "ImageSets/Segmentation/train.txt").write_text("\n".join(OWN))
    (line,) = [line for line in load_dataset_info(DataConfig(str(root))).warnings if "also train" in line]
    assert "such as 2011_003276.jpg" in line


@pytest.mark.parametrize("lists", [{}, {"default": ["a", "b"]}, {"trainval": ["a", "b"]}])
def test_one_list_or_none_is_split_by_the_seed(tmp_path, lists):
    train, val = loaded(voc(tmp_path, ["a", "b"], lists))
    assert sorted([*masks(train), *masks(val)]) == ["a.jpg", "b.jpg"]
    assert train.metadata.classes == ()  # files of somebody else: the values are the classes


COLORED = np.zeros((*SIZE, 3), np.uint8)
COLORED[:5] = (128, 0, 64)
COLORS_OF_CVAT = "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncell:128,0,64::\n"


def test_classes_of_cvat_are_the_colors_that_a_file_names(tmp_path):
    # three images of CVAT, whose masks hold the colors that labelmap.txt names
    root = voc(tmp_path, ["a", "b", "c d"], {"train": ["a", '"c d"'], "val": ["b"]}, COLORED, palette=False)
    (root / "labelmap.txt").write_text(COLORS_OF_CVAT)
    info = load_dataset_info(DataConfig(str(root)))
    assert info.reader.class_map.names == ("background", "cell")
    assert info.reader.class_map.values == ((0, 0, 0), (128, 0, 64))
    assert len(info.train) == 2
    assert info.reader.class_pixels[1] == 3 * 5 * SIZE[1]


def test_classes_are_named_where_only_two_folders_are_there(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1))
    (root / "class_names.txt").write_text("_background_\ncell\nrare\n")
    assert load_dataset_info(DataConfig(str(root))).reader.class_map.names == ("background", "cell", "rare")


@pytest.mark.parametrize("masks", ["SegmentationClass", "SegmentationClassAug"])
def test_splits_may_lie_below_two_folders_named_as_in_voc(tmp_path, masks):
    for split in ("train", "val"):
        save(tmp_path / "JPEGImages" / split / f"{split}.png", np.zeros((*SIZE, 3), np.uint8))
        save(tmp_path / masks / split / f"{split}.png", VOC)
    assert [[record["name"] for record in split] for split in loaded(tmp_path)] == [["train.png"], ["val.png"]]


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


def test_voc_files_that_are_missing_are_named(tmp_path):
    # a list of four names, of which one has no image and one no mask
    root = voc(tmp_path, OWN, {"train": [*OWN, "2009_000001"], "val": OWN[:1]})
    (root / "SegmentationClass" / f"{OWN[1]}.png").unlink()
    message = error_of(root)
    assert f"2 files without partner: {OWN[1]}.jpg: image without mask; 2009_000001: no image" in message
    assert "--allow-unpaired" in message


def test_the_folder_above_that_of_voc_is_told_which_one_is_meant(tmp_path):
    root = voc(tmp_path / "VOC2012", OWN, {})
    (root / "Annotations").mkdir()
    (root / "Annotations" / f"{OWN[0]}.xml").write_text("<annotation><object><bndbox/></object></annotation>")
    assert "did you mean --dataset" in error_of(tmp_path)


def test_the_list_test_of_voc_is_read_where_it_is_named(tmp_path):
    lists = {"train": ["a"], "val": ["b"], "test": ["c"], "test_small": ["d"]}
    root = voc(tmp_path, [*"abcd"], lists)
    assert [[*masks(split)] for split in loaded(root, val_split="test")] == [["a.jpg"], ["c.jpg"]]
