"""Cityscapes and VOC, whose masks are files in folders of their own; and what is said of folders that hold nothing.

Modules: data_utils/sources/annotations/cityscapes.py, data_utils/sources/annotations/voc.py.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from annotations import error_of, loaded, masks
from conftest import unnoticed_changes
from PIL import Image

from data_utils import pack
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.validate import check_data
from data_utils.config import DataConfig
from data_utils.sources.annotations.cityscapes import EvaluatedIds, find
from data_utils.sources.annotations.find import holds_masks

SIZE = (12, 20)


def save(path: Path, pixels: np.ndarray, palette: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    if palette:
        picture.putpalette([value % 256 for value in range(7, 775)])
    picture.save(path)


def rows(*values: int) -> np.ndarray:
    """(H, W) uint8 with the values in rows, one after the other."""
    return np.resize(np.repeat(np.array(values, np.uint8), SIZE[1]), SIZE)


IDS = rows(0, 1, 7, 8, 26, 33, 34, 255)


def cityscapes(root: Path, *splits: str, nested: bool = True, train_ids: bool = False) -> Path:
    """Two images of each split, in two cities, as the benchmark's archives hold them."""
    for split in splits:
        for city in ("aachen", "zurich"):
            images = root / "leftImg8bit" / split / city if nested else root / split
            ids = root / "gtFine" / split / city if nested else root / split
            name = f"{city}_000000_000019"
            save(images / f"{name}_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
            save(ids / f"{name}_gtFine_labelIds.png", IDS)
            save(ids / f"{name}_gtFine_color.png", np.zeros((*SIZE, 3), np.uint8))
            (ids / f"{name}_gtFine_polygons.json").write_text('{"imgHeight": 12, "imgWidth": 20, "objects": []}')
            if train_ids:
                save(ids / f"{name}_gtFine_labelTrainIds.png", rows(0, 1, 13, 18, 255))
    return root


@pytest.mark.parametrize("nested", [True, False])
def test_cityscapes_ids_that_are_not_evaluated_are_ignored(tmp_path, nested):
    cityscapes(tmp_path, "train", "val", "test", nested=nested)
    train, val = loaded(tmp_path)
    prefix = "aachen/" if nested else ""
    name = f"{prefix}aachen_000000_000019_leftImg8bit.png"
    assert len(train) == 2
    assert len(val) == 2
    assert train[0]["name"] == name
    np.testing.assert_array_equal(masks(train)[name], rows(255, 255, 7, 8, 26, 33, 255, 255))
    info = load_dataset_info(DataConfig(str(tmp_path)))
    assert len(info.reader.class_map) == 19
    assert info.reader.class_map.ignore_value == 255
    name_of_value = dict(zip(info.reader.class_map.values, info.reader.class_map.names, strict=True))
    assert name_of_value[7] == "road"
    assert name_of_value[8] == "sidewalk"
    assert name_of_value[26] == "car"
    assert name_of_value[33] == "bicycle"
    assert "annotations: Cityscapes; 4 images" in check_data(DataConfig(str(tmp_path)))[0]


def test_cityscapes_training_ids_are_taken_where_all_masks_have_them(tmp_path):
    cityscapes(tmp_path, "train", "val", train_ids=True)
    train, _ = loaded(tmp_path)
    assert isinstance(train[0]["target"], str)
    assert train[0]["target"].endswith("_labelTrainIds.png")
    info = load_dataset_info(DataConfig(str(tmp_path)))
    name_of_value = dict(zip(info.reader.class_map.values, info.reader.class_map.names, strict=True))
    assert name_of_value[0] == "road"
    assert name_of_value[13] == "car"
    assert name_of_value[18] == "bicycle"
    assert info.reader.class_map.ignore_value == 255
    next(tmp_path.glob("gtFine/val/*/*_labelTrainIds.png")).unlink()
    assert load_dataset_info(DataConfig(str(tmp_path))).reader.class_map.values[0] == 7


def test_cityscapes_training_ids_alone_are_enough(tmp_path):
    cityscapes(tmp_path, "train", "val", train_ids=True)
    for ids in tmp_path.glob("gtFine/*/*/*_labelIds.png"):
        ids.unlink()
    info = load_dataset_info(DataConfig(str(tmp_path)))
    assert len(info.train) == 2
    assert len(info.val) == 2
    assert info.reader.class_map.values == tuple(range(19))


def test_cityscapes_images_without_mask_are_named(tmp_path):
    cityscapes(tmp_path, "train", "val")
    next(tmp_path.glob("gtFine/train/zurich/*_labelIds.png")).unlink()
    assert "zurich_000000_000019_leftImg8bit.png: image without mask; --allow-unpaired" in error_of(tmp_path)
    assert len(loaded(tmp_path, allow_unpaired=True)[0]) == 1


def test_cityscapes_stand_in_natural_order_and_files_without_partner_are_those_of_both_kinds(tmp_path):
    images = tmp_path / "leftImg8bit" / "train" / "bern"
    ids = tmp_path / "gtFine" / "train" / "bern"
    for number in (10, 9, 2, 30, 4, 33, 31, 32):
        save(images / f"{number}_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
    for number in (10, 9, 2, 8, 7, 11, 6, 5):
        save(ids / f"{number}_gtFine_labelIds.png", IDS)
    for name in (images / "5_leftImg8bit.txt", ids / "6_gtFine_labelIds.json", images / "1_leftImg8bit_old.png"):
        name.write_text("no picture")
    train, val = loaded(tmp_path, allow_unpaired=True, val_fraction=0.34)
    assert train.records is val.records
    assert [record["name"] for record in train.records] == [f"bern/{n}_leftImg8bit.png" for n in (2, 9, 10)]
    assert train.unpaired == (
        *(f"bern/{number}_leftImg8bit.png: image without mask" for number in (30, 31, 32, 33, 4)),
        *(f"bern/{number}_gtFine_labelIds.png: mask without image" for number in (11, 5, 6, 7, 8)),
    )


def test_cityscapes_packed_holds_only_what_is_evaluated(tmp_path, monkeypatch):
    folder, out = cityscapes(tmp_path / "data", "train", "val"), tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["pack", str(folder), str(out)])
    pack.main()
    for split in loaded(out):
        assert all((mask == rows(255, 255, 7, 8, 26, 33, 255, 255)).all() for mask in masks(split).values())
    info = load_dataset_info(DataConfig(str(out), classes=str(out / "classes.json")))
    assert info.reader.class_map.names[0] == "road"
    assert info.reader.class_map.ignore_value == 255


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


def test_voc_takes_its_lists_and_its_own_names_for_its_own_files(tmp_path):
    root = voc(tmp_path, OWN, {"train": OWN[:1], "val": OWN[2:], "trainval": [OWN[0], OWN[2]]})
    save(root / "JPEGImages" / "2008_000001.jpg", np.zeros((*SIZE, 3), np.uint8))  # in no list
    train, val = loaded(root)
    assert [*masks(train)] == ["2007_000032.jpg"]
    assert [*masks(val)] == ["2011_003276.jpg"]
    np.testing.assert_array_equal(masks(train)["2007_000032.jpg"], VOC)
    info = load_dataset_info(DataConfig(str(root)))
    assert len(info.reader.class_map) == 21
    assert info.reader.class_map.ignore_value == 255
    assert info.reader.class_map.names[1] == "aeroplane"
    assert info.reader.class_map.names[15] == "person"
    assert "annotations: VOC; 2 images with objects, 0 without" in check_data(DataConfig(str(root)))[0]


def test_the_key_of_the_content_changes_with_each_file(tmp_path):
    root = voc(tmp_path / "voc", [*"abcd"], {})
    files = [*root.glob("JPEGImages/*"), *root.glob("SegmentationClass/*")]
    assert len(files) == 8
    assert unnoticed_changes(files, lambda: loaded(root)[0].digest) == []
    root = cityscapes(tmp_path / "cityscapes", "train", "val")
    files = [*root.glob("leftImg8bit/*/*/*"), *root.glob("gtFine/*/*/*_labelIds.png")]
    assert len(files) == 8
    assert unnoticed_changes(files, lambda: [split.digest for split in loaded(root)]) == []


@pytest.mark.parametrize(
    "names", [["2007_000032", "a", "b"], ["a", "b", "2007_000032"], ["1907_000032", "1907_000033"]]
)
def test_images_of_which_only_some_are_called_like_those_of_voc_are_not_its_own(tmp_path, names):
    assert loaded(voc(tmp_path, names, {}))[0].classes == ()


def test_voc_masks_of_0_and_1_mean_background_and_foreground_unless_a_file_names_them(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1), palette=False)
    class_map = load_dataset_info(DataConfig(str(root))).reader.class_map
    assert class_map.names == ("background", "foreground")
    assert class_map.values == (0, 1)
    assert class_map.ignore_value is None
    (root / "class_names.txt").write_text("__ignore__\n_background_\ncat\n")
    assert load_dataset_info(DataConfig(str(root))).reader.class_map.names == ("background", "cat")


@pytest.mark.parametrize("is_named", [False, True])
def test_voc_masks_of_0_and_255_beside_masks_of_0_and_1_are_said_to_be_ignored_in_part(tmp_path, is_named):
    root = voc(tmp_path, [*"abcd"], {}, rows(0, 1), palette=False)
    save(root / "SegmentationClass" / "b.png", rows(0, 255))
    if is_named:
        (root / "class_names.txt").write_text("_background_\ncat\n")
    info = load_dataset_info(DataConfig(str(root)))
    assert info.reader.class_map.values == (0, 1)
    assert info.reader.class_map.ignore_value == 255
    assert any(line.startswith("some masks hold 1 (masks: 3, the first is ") for line in info.warnings)


def test_images_of_voc_2007_are_known_by_their_annotations(tmp_path):
    root = voc(tmp_path, ["000032", "000033"], {"train": ["000032"], "val": ["000033"]})
    assert loaded(root)[0].classes == ()
    page = "<annotation><source><database>The VOC2007 Database</database></source></annotation>"
    (root / "Annotations" / "000032.xml").write_text(page)
    assert loaded(root)[0].classes[15] == (15, "person")
    (root / "Annotations" / "000032.xml").unlink()
    os.mkfifo(root / "Annotations" / "000032.xml")
    assert loaded(root)[0].classes == ()


@pytest.mark.parametrize("lists", [{}, {"default": ["a", "b"]}, {"trainval": ["a", "b"]}])
def test_one_list_or_none_is_split_by_the_seed(tmp_path, lists):
    train, val = loaded(voc(tmp_path, ["a", "b"], lists))
    assert sorted([*masks(train), *masks(val)]) == ["a.jpg", "b.jpg"]
    assert train.classes == ()  # files of somebody else: the values are the classes


def test_no_image_is_trained_and_validated_on(tmp_path):
    root = voc(tmp_path / "a", ["a", "b", "c"], {"trainval": ["a", "b", "c"], "val": ["c"], "test": ["b"]})
    train, val = loaded(root)
    assert len(train) + len(val) == 3
    assert not {*masks(train)} & {*masks(val)}
    assert "has no split train, only val" in error_of(voc(tmp_path / "b", ["a", "b"], {"val": ["a", "b"]}))
    assert "has no split train, only one, two" in error_of(
        voc(tmp_path / "c", ["a", "b"], {"one": ["a"], "two": ["b"]})
    )


def test_cvat_names_the_colors(tmp_path):
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask[:5] = (128, 0, 64)
    root = voc(tmp_path, ["a", "b", "c d"], {"train": ["a", '"c d"'], "val": ["b"]}, mask, palette=False)
    label_map = root / "labelmap.txt"
    label_map.write_text("# label:color_rgb:parts:actions\nbackground:0,0,0::\ncell:128,0,64::\n")
    info = load_dataset_info(DataConfig(str(root)))
    assert info.reader.class_map.names == ("background", "cell")
    assert info.reader.class_map.values == ((0, 0, 0), (128, 0, 64))
    assert len(info.train) == 2
    assert info.reader.class_pixels[1] == 3 * 5 * SIZE[1]
    label_map.write_text("background:0,0,0::\ncell\n")
    assert f"{label_map}: line 2 is 'cell', expected name:red,green,blue" in error_of(root)
    for file in (root / "SegmentationClass").iterdir():
        save(file, rows(0, 1))
    label_map.write_text("background:0,0,0::\ncell:128,0,64::\n")
    assert load_dataset_info(DataConfig(str(root))).reader.class_map.values == (0, 1)


def test_colors_that_are_packed_can_be_streamed(tmp_path, monkeypatch):
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask[:5] = (128, 0, 64)
    lists = {"train": ["a", "b"], "val": ["c"]}
    root, out = voc(tmp_path / "data", ["a", "b", "c"], lists, mask, palette=False), tmp_path / "out"
    (root / "labelmap.txt").write_text("background:0,0,0::\ncell:128,0,64::\n")
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


def test_voc_files_that_are_missing_are_named(tmp_path):
    root = voc(tmp_path, OWN, {"train": [*OWN, "2009_000001"], "val": OWN[:1]})
    (root / "SegmentationClass" / f"{OWN[1]}.png").unlink()
    assert f"2 files without partner: 2009_000001: no image; {OWN[1]}: no mask; --allow-unpaired" in error_of(root)
    train, _ = loaded(root, allow_unpaired=True)
    assert len(train) == 2
    assert train.unpaired == ("2009_000001: no image", f"{OWN[1]}: no mask")
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


def test_two_formats_in_one_folder_are_both_named(tmp_path):
    root = voc(tmp_path, ["a", "b"], {})
    (root / "annotations.json").write_text("{}")
    assert f"holds annotations of 2 formats: COCO ({root / 'annotations.json'}), VOC (" in error_of(root)


def test_a_folder_of_nothing_says_that_annotations_are_looked_for(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "notes.json").write_text("{}")
    assert "for annotations of COCO, labelme, YOLO, VOC or Cityscapes, and for volumes in imagesTr" in error_of(
        tmp_path
    )
    save(tmp_path / "images/a.png", rows(0))
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/a.xml").write_text("<annotation/>")
    assert "found only .xml, looked for .bmp" in error_of(tmp_path)
    assert "(or annotations of COCO" in error_of(tmp_path)


def test_masks_of_png_come_before_others_of_voc(tmp_path):
    root = voc(tmp_path, ["a", "b"], {})
    for name in "ab":
        save(root / "SegmentationClassPNG" / f"{name}.png", rows(0, 2))
    assert {int(mask.max()) for split in loaded(root) for mask in masks(split).values()} == {2}


def test_the_list_test_of_voc_is_read_where_it_is_named(tmp_path):
    lists = {"train": ["a"], "val": ["b"], "test": ["c"], "test_small": ["d"]}
    root = voc(tmp_path, [*"abcd"], lists)
    assert [[*masks(split)] for split in loaded(root, val_split="test")] == [["a.jpg"], ["c.jpg"]]


def test_without_lists_an_image_of_voc_without_mask_is_named(tmp_path):
    root = voc(tmp_path, [*"abc"], {})
    (root / "SegmentationClass/b.png").unlink()
    assert "1 files without partner: b: no mask; --allow-unpaired" in error_of(root)
    train, val = loaded(root, allow_unpaired=True)
    assert sorted([*masks(train), *masks(val)]) == ["a.jpg", "c.jpg"]
    assert train.annotations.annotated == 2
    assert train.annotations.empty == 0


@pytest.mark.parametrize(
    "line", ["cell:256,0,64::", "cell:128,256,64::", "cell:128,0,256::", "cell:128,0::", "cell:-1,0,0::"]
)
def test_a_color_of_cvat_has_three_numbers_up_to_255(tmp_path, line):
    root = voc(tmp_path, ["a", "b"], {})
    (root / "labelmap.txt").write_text(f"background:0,0,0::\n{line}\n")
    assert f"{root / 'labelmap.txt'}: line 2 is '{line}', expected name:red,green,blue" in error_of(root)


def test_classes_of_cvat_are_in_the_order_of_its_list_where_masks_have_a_palette(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1, 2))
    label_map = "# colors\n\nbackground:0,0,0::\n\ncell :128,255,64::\n# more\nnucleus:9,9,9::\n"
    (root / "labelmap.txt").write_text(label_map)
    assert loaded(root)[0].classes == ((0, "background"), (1, "cell"), (2, "nucleus"))


def test_blank_lines_of_class_names_txt_are_no_classes(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1, 2))
    (root / "class_names.txt").write_text("__ignore__\n_background_\n\ncat\n  \ndog\n")
    assert loaded(root)[0].classes == ((0, "background"), (1, "cat"), (2, "dog"))


CITYSCAPES = {7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"}
CITYSCAPES |= {20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"}
CITYSCAPES |= {27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"}


def test_ids_of_cityscapes_have_the_names_of_the_benchmark_and_a_license_plate_is_ignored(tmp_path):
    root = cityscapes(tmp_path, "train", "val")
    assert loaded(root)[0].classes == tuple(CITYSCAPES.items())
    ids = [*range(-1, 35), 256 + 7]
    np.save(tmp_path / "a_gtFine_labelIds.npy", np.array([ids], np.int16))
    rendered = EvaluatedIds(str(tmp_path / "a_gtFine_labelIds.npy")).render()
    assert rendered.tolist() == [[number if number in CITYSCAPES else 255 for number in ids]]
    cityscapes(tmp_path, "train", "val", train_ids=True)
    assert loaded(root)[0].classes == tuple(enumerate(CITYSCAPES.values()))


def test_masks_of_cityscapes_without_image_are_named_and_endings_may_be_capitals(tmp_path):
    root = cityscapes(tmp_path, "train", "val")
    folder = root / "leftImg8bit/train"
    (folder / "aachen/aachen_000000_000019_leftImg8bit.png").unlink()
    file = folder / "zurich/zurich_000000_000019_leftImg8bit.png"
    file.rename(file.with_suffix(".PNG"))
    line = "aachen/aachen_000000_000019_gtFine_labelIds.png: mask without image"
    assert f"{folder}: 1 files without partner: {line}; --allow-unpaired" in error_of(root)
    train, _ = loaded(root, allow_unpaired=True)
    assert train.unpaired == (line,)
    assert train.annotations.annotated == 1
    assert train.annotations.empty == 0
    assert train.image_folders() == {(f"{folder}", "zurich")}
    assert [record["name"] for record in train] == ["zurich/zurich_000000_000019_leftImg8bit.PNG"]


VOC_NAMES = ["background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"]
VOC_NAMES += ["diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train"]
VOC_NAMES += ["tvmonitor"]


def test_values_of_voc_have_the_names_of_the_challenge(tmp_path):
    assert loaded(voc(tmp_path, OWN, {}))[0].classes == tuple(enumerate(VOC_NAMES))


def test_masks_of_cvat_with_a_fourth_channel_hold_colors(tmp_path):
    mask = np.full((*SIZE, 4), 255, np.uint8)
    mask[..., :3] = (0, 0, 0)
    mask[:5, :, :3] = (128, 0, 64)
    root = voc(tmp_path, ["a", "b"], {}, mask, palette=False)
    (root / "labelmap.txt").write_text("background:0,0,0::\ncell:128,0,64::\n")
    assert loaded(root)[0].classes == (((0, 0, 0), "background"), ((128, 0, 64), "cell"))


def test_pictures_of_two_cities_may_have_one_name_and_the_split_test_is_read_where_it_is_named(tmp_path):
    for split in ("train", "test"):
        for city in ("bern", "ulm"):
            save(tmp_path / "leftImg8bit" / split / city / "1_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
            save(tmp_path / "gtFine" / split / city / "1_gtFine_labelIds.png", IDS)
    for split in loaded(tmp_path, val_split="test"):
        assert [record["name"] for record in split] == ["bern/1_leftImg8bit.png", "ulm/1_leftImg8bit.png"]


def test_cityscapes_without_splits_and_masks_beside_the_folder_of_images_are_found(tmp_path):
    cityscapes(tmp_path / "one", "")
    one = tmp_path / "one"
    assert find(one, ()) == {"train": (one / "leftImg8bit", one / "gtFine")}
    for split in ("train", "val"):
        save(tmp_path / "two/leftImg8bit" / split / "1_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
        save(tmp_path / "two" / split / "1_gtFine_labelIds.png", IDS)
    two = tmp_path / "two"
    assert find(two, ()) == {split: (two / "leftImg8bit" / split, two / split) for split in ("train", "val")}


def test_the_key_of_the_content_changes_with_the_names_of_the_classes(tmp_path):
    root = voc(tmp_path, ["a", "b"], {}, rows(0, 1))
    digests = set()
    for name in ("cat", "dog"):
        (root / "class_names.txt").write_text(f"__ignore__\n_background_\n{name}\n")
        digests.add(loaded(root)[0].digest)
    assert len(digests) == 2


def test_masks_of_one_split_are_enough_and_a_split_may_have_any_name_that_is_given(tmp_path):
    for split in ("train", "val", "holdout"):
        for kind in ("images", "masks"):
            save(tmp_path / split / kind / "a.png", rows(0))
    (tmp_path / "val/masks/a.png").unlink()
    assert holds_masks(tmp_path, ())
    (tmp_path / "train/masks/a.png").unlink()
    assert not holds_masks(tmp_path, ())
    assert holds_masks(tmp_path, ("train", "holdout"))
