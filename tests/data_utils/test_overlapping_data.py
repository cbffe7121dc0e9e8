"""Data sets whose classes overlap: how they are found, read and refused.

Modules: data_utils/sources/overlapping.py, data_utils/image_io/class_masks.py, data_utils/targets/overlapping.py,
data_utils/targets/regions.py, data_utils/targets/find.py, data_utils/analysis/overlap_warnings.py,
data_utils/sources/class_volumes.py.
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
from annotations import error_of, loaded
from conftest import unnoticed_changes
from overlaps import NAMES, SIZE, labels_of, scene, write_mask, write_overlaps
from PIL import Image
from rasters import write_raster
from volumes import case, write_nifti

from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.overlap_warnings import overlap_warnings
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.class_masks import ClassMask, LayeredMask, binary, combined
from data_utils.image_io.formats import ClassLayers
from data_utils.image_io.volumes import read_volume
from data_utils.sources.class_volumes import ChannelVolumeRecords, by_channel, find_class_volumes
from data_utils.sources.folder import masks_by_stem
from data_utils.sources.load import load_records
from data_utils.sources.overlapping import (
    NO_LAYOUT,
    ChannelRecords,
    ClassLayout,
    class_bits,
    class_folders,
    find_class_layout,
    find_overlapping,
    open_channels,
    open_class_folders,
)
from data_utils.sources.records import ListRecords, Metadata
from data_utils.sources.volumes import Case, Description, VolumeRecords
from data_utils.targets.label_sets import LabelSets
from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.regions import RegionReader, parse_regions
from data_utils.targets.sides import Sides
from runtime.errors import DataError, SettingsError, UserError
from tasks.overlapping import OverlapTarget, pack_bits, unpack_bits
from tasks.regions import Region

BRATS = "whole=1+2+3;core=2+3;active=3"
SIDED = Sides((1, 0), False, "")


def info_of(folder: Path, **settings):
    return load_dataset_info(DataConfig(str(folder), **settings))


def targets_of(folder: Path, **settings) -> list[OverlapTarget]:
    """The targets of all training records."""
    info = info_of(folder, **settings)
    return [info.reader.read(record, SIZE) for record in info.train.records]


def planes(bits: np.ndarray, classes: int = 3) -> np.ndarray:
    return np.stack([bits >> bit & 1 for bit in range(classes)]).astype(bool)


def true_masks(count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [scene(rng)[1] for _ in range(count)]


@pytest.fixture
def folders(tmp_path) -> Path:
    """train/ with 4 and val/ with 2 images, and a folder of masks for each class."""
    write_overlaps(tmp_path / "train", 4, seed=0)
    write_overlaps(tmp_path / "val", 2, seed=1)
    return tmp_path


@pytest.mark.parametrize("layout", ["folders", "pages", "channels"])
def test_a_mask_for_each_class_is_found_in_folders_pages_and_channels(tmp_path, layout):
    write_overlaps(tmp_path, 6, seed=0, layout=layout)
    for folder in ("images", "masks"):
        (tmp_path / folder / "!.txt").touch()
    info = info_of(tmp_path)
    assert info.config.task == "overlapping"
    assert info.warnings == ()
    assert info.reader.names == (NAMES if layout == "folders" else ("class 1", "class 2", "class 3"))
    masks = dict(zip([f"{number:02}.png" for number in range(6)], true_masks(6, 0), strict=True))
    for records in (info.train.records, info.val.records):
        for record in records:
            target = info.reader.read(record, SIZE)
            assert (planes(target.truth) == masks[record["name"]]).all()
            assert (target.known == 7).all()
            assert target.truth.dtype == np.int32


@dataclass(frozen=True)
class Layers(LayeredMask):
    """A mask of 100 pixels in one row with any class, of which the first ones have two; with fewer it is damaged.

    The two classes are not neighbors.
    """

    shared: int

    def render(self) -> np.ndarray:
        raise AssertionError

    def render_classes(self, bit_of):
        assert bit_of == {2: 0, 4: 1, 5: 2}
        if self.shared < 0:
            raise DataError("damaged")
        truth = np.array([5] * self.shared + [1] * (100 - self.shared) + [0] * 50)
        return pack_bits(truth[None], np.zeros_like(truth)[None])


@pytest.mark.parametrize(
    ("train", "val", "share"),
    [
        ([1, 1], [1], None),
        ([1, 1], [2], "1%"),
        ([0], [9], "4%"),
        ([], [9], "9%"),
        ([-1, 6], [], "6%"),  # a damaged mask is named elsewhere
        ([0] * 32 + [90] * 32, [], "45%"),  # 32 masks from the first to the last
        ([90] + [0] * 64, [], "3%"),
    ],
)
def test_classes_that_share_more_than_a_hundredth_of_their_pixels_are_said(train, val, share):
    splits = []
    for counts in (train, val):
        records = ListRecords([{"image": "", "target": Layers(count), "name": "a"} for count in counts])
        records.metadata = Metadata(classes=((0, "background"), (2, "a"), (4, "nowhere"), (5, "b")))
        splits.append(records)
    line = (
        f"{share} of the labeled pixels lie in objects of several classes, and count as the uppermost one;"
        " --task overlapping learns all classes of a pixel"
    )
    assert overlap_warnings(splits) == ((line,) if share else ())


def test_shares_and_overlap_are_counted(folders):
    reader = info_of(folders).reader
    masks = np.stack(true_masks(4, 0) + true_masks(2, 1))
    assert reader.class_pixels == tuple(masks.sum(axis=(0, 2, 3)).tolist())
    overlap = (masks.sum(axis=1) > 1).sum() / masks.any(axis=1).sum()
    assert reader.overlap == pytest.approx(overlap)
    report, problems = check_data(DataConfig(str(folders)))
    assert problems == 0
    assert f"{100 * overlap:7.3f} %  of the pixels of any class have several" in report


def test_shares_are_of_the_pixels_of_which_a_class_is_known():
    values = pack_bits(np.array([0b01, 0b11, 0, 0b10]), np.array([0, 0, 0b10, 0b01])).tolist()
    reader = OverlapReader(("a", "b")).with_pixels(dict(zip(values, (10, 20, 30, 40), strict=True)))
    assert reader.class_pixels == (30, 60)
    assert reader.shares == (30 / 60, 60 / 70)
    assert reader.overlap == 20 / 70
    assert reader.describe_pixels()[1:3] == ["   50.000 %  a", "   85.714 %  b"]
    assert OverlapReader(("a", "b")).with_pixels({0: 10}).overlap == 0


def test_what_a_mask_or_the_labels_of_an_image_leave_open_is_in_no_share_and_is_shown():
    is_a, unknown_a = pack_bits(np.array([1, 0]), np.array([0, 1])).tolist()
    reader = OverlapReader(("a", "b"), values=((1,), (2,)))
    reader = reader.partly_labeled({("a",): "t"}, (), {("a",): {is_a: 10, unknown_a: 30, 0: 10}})
    assert reader.class_pixels == (10, 0)
    assert reader.shares == (0.5, 0)
    truth_in_pictures = reader.shown_truth(OverlapTarget(np.array([[1, 0]], np.int32), np.array([[3, 2]], np.int32)))
    truth, unknown = unpack_bits(truth_in_pictures)
    assert truth.tolist() == [[1, 0]]
    assert (unknown & 3).tolist() == [[0, 1]]


def test_detail_is_measured_of_what_an_image_is_labeled_for_and_a_small_mask_keeps_a_pixel():
    sets = LabelSets(((True, True), (True, False)), {("a",): 1})
    reader = OverlapReader(("a", "b"), label_sets=sets)
    thin = np.zeros((8, 8), np.int64)
    thin[:, :4] = 1
    thin[3] |= 2  # gone at a quarter of the size
    small = np.full((1, 8), 1, np.int64)
    records = [{"image": "", "target": mask, "name": "m", "labeled": ("a",)} for mask in (thin, small)]
    assert reader.detail_kept(records, 0.25) == 1
    assert reader.detail_kept([{**record, "labeled": None} for record in records], 0.25) == 0.5


def test_classes_are_chosen_joined_and_ordered_by_the_flag(folders):
    blue, green, red = np.moveaxis(np.stack(true_masks(4, 0)), 1, 0)
    targets = targets_of(folders, classes="red,blue")
    assert (np.stack([planes(target.truth, 2) for target in targets]) == np.stack([red, blue], axis=1)).all()
    joined = targets_of(folders, classes="1=cold,2=warm,3=warm")
    expected = np.stack([blue, green | red], axis=1)
    assert (np.stack([planes(target.truth, 2) for target in joined]) == expected).all()
    assert "no class is called purple" in error_of(folders, classes="purple")


def test_a_class_without_a_mask_is_unknown_for_that_image(folders):
    (folders / "train" / "masks" / "green" / "02.png").unlink()
    targets = targets_of(folders)
    assert [np.unique(target.known).tolist() for target in targets] == [[7], [7], [0b101], [7]]
    assert (planes(targets[2].truth)[1] == 0).all()
    assert planes(targets[2].truth)[0].any()
    joined = targets_of(folders, classes="1=cold,2=warm,3=warm")[2]
    red = true_masks(4, 0)[2][2]
    assert (joined.known == np.where(red, 0b11, 0b01)).all()
    assert (planes(joined.truth, 2)[1] == red).all()
    (folders / "train" / "masks" / "red" / "02.png").unlink()
    (only_red,) = {tuple(np.unique(target.known).tolist()) for target in targets_of(folders, classes="red")[2:3]}
    assert only_red == (0,)


def test_an_image_without_any_mask_is_named(folders):
    for name in NAMES:
        (folders / "train" / "masks" / name / "02.png").unlink()
    assert "02.png: image without mask" in error_of(folders)
    assert len(info_of(folders, allow_unpaired=True).train) == 3


def test_a_value_to_ignore_is_unknown_for_its_class_alone(folders):
    mask = true_masks(4, 0)[1][0].astype(np.uint8)
    mask[:5] = 9
    write_mask(folders / "train" / "masks" / "blue", "01.png", mask)
    assert "01.png: mask of one class holds 0, 1, 9, expected 0 and one other value" in error_of(folders)
    known_bits = targets_of(folders, ignore_index="9")[1].known
    assert (known_bits[:5] == 0b110).all()
    assert (known_bits[5:] == 7).all()


@pytest.mark.parametrize("width", [3, 28])
def test_a_color_to_ignore_is_unknown_and_any_other_color_is_the_class(width):
    mask = np.zeros((20, width, 3), np.uint8)
    mask[4:8] = (200, 10, 30)
    mask[:4] = (128, 128, 128)
    mask[8:10] = (9, 8, 7)
    is_class, is_ignored = binary(mask, "m.png", [(9, 8, 7), 128, -1, 256])
    assert is_class[4:8].all()
    assert is_class.sum() == 4 * width
    assert is_ignored[:4].all()
    assert is_ignored[8:10].all()
    assert is_ignored.sum() == 6 * width
    grey, ignored = binary(mask[:8, :, 0], "m.png", [(128, 128, 128)])
    assert grey[4:].all()
    assert ignored[:4].all()
    assert not (grey[:4].any())
    assert not (ignored[4:].any())


def test_masks_of_two_sizes_are_one_line(folders):
    write_mask(folders / "train" / "masks" / "red", "01.png", np.zeros((20, 28), np.uint8))
    assert "01.png: is 20 x 28, but " in error_of(folders)


def test_masks_below_folders_of_sites_stay_classes(tmp_path):
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for number in range(3):
            image, masks = scene(rng)
            write_mask(tmp_path / "images" / site, f"{number}.png", image)
            write_mask(tmp_path / "masks" / site, f"{number}.png", labels_of(masks))
    info = info_of(tmp_path)
    assert info.config.task == "classes"
    assert info.reader.class_map.values == (0, 1, 2, 3)


def test_masks_of_several_values_in_several_folders_are_no_classes_of_their_own(folders):
    for mask in (folders / "train" / "masks").rglob("*.png"):
        values = np.array(Image.open(mask))
        values[::2] //= 2
        Image.fromarray(values).save(mask)
    assert "have no mask" in error_of(folders)


def test_folders_are_classes_where_more_than_half_of_the_images_have_masks_in_two(folders):
    config = DataConfig(str(folders))
    images = folders / "train" / "images"
    masks = folders / "train" / "masks"
    assert [folder.name for folder in class_folders(images, masks, config)] == list(NAMES)
    for name in NAMES[1:]:
        (masks / name / "00.png").unlink()
    assert len(class_folders(images, masks, config)) == 3  # three of four images
    for name in NAMES[1:]:
        (masks / name / "01.png").unlink()
    assert class_folders(images, masks, config) == []


@pytest.mark.parametrize("layout", ["folders", "pages", "channels"])
def test_records_are_others_with_another_ignored_value_or_other_classes(tmp_path, layout):
    write_overlaps(tmp_path / "train", 4, seed=0, layout=layout)
    write_overlaps(tmp_path / "val", 2, seed=1, layout=layout)
    classes = "blue" if layout == "folders" else "1=blue"
    digests = set()
    for settings in ({}, {"ignore_index": "9"}, {"ignore_index": "9", "classes": classes}):
        records, _ = load_records(DataConfig(str(tmp_path), task="overlapping", **settings))
        digests.add(records.digest)
    assert len(digests) == 3
    assert None not in digests


def test_what_one_of_two_masks_of_a_class_shows_is_known():
    truth, unknown = unpack_bits(
        combined(
            [
                ClassMask(np.array([[0, 1, 1]]), 0, "first"),
                ClassMask(np.array([[9, 9, 0]]), 0, "second"),
            ],
            ignored=[9],
        )
    )
    assert truth.tolist() == [[0, 1, 1]]
    assert unknown.tolist() == [[1, 0, 0]]


def touch(folder: Path, *names: str) -> list[Path]:
    """Empty files."""
    files = [folder / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return files


def test_classes_are_the_folders_of_all_splits_in_natural_order(tmp_path):
    touch(tmp_path / "train", "images/a.png", "masks/c10/a.png", "masks/c2/a_x.png", "masks/c2/a_y.png")
    touch(tmp_path / "val", "images/b.png", "masks/c10/b.png", "masks/c3/b.png")
    config = DataConfig(str(tmp_path), task="overlapping", allow_unpaired=True)
    train, val = load_records(config)
    assert train.metadata.classes == val.metadata.classes == ((1, "c2"), (2, "c3"), (3, "c10"))
    assert [Path(file.path).parent.name for file in val[0]["target"].files] == ["", "c3", "c10"]
    c2 = tmp_path / "train" / "masks" / "c2"
    assert masks_by_stem(c2, {"a": ""}, "_y") == {"a": "a_y.png"}
    assert masks_by_stem(tmp_path / "none", {"a": ""}, None) == {}
    touch(tmp_path / "c4", "a_m.png")
    assert masks_by_stem(tmp_path / "c4", {"a": ""}, None) == {"a": "a_m.png"}
    assert masks_by_stem(tmp_path / "c4", {"a": ""}, "") == {"a_m": "a_m.png"}


def test_the_first_mask_by_the_name_of_its_folder_says_how_masks_hold_their_classes(tmp_path):
    for folder in ("images/a", "images/b", "masks/a", "masks/b"):
        (tmp_path / folder).mkdir(parents=True)
    config = DataConfig(str(tmp_path))
    np.save(tmp_path / "masks" / "b" / "1.npy", np.zeros((4, 5, 2), np.uint8))
    assert find_overlapping(tmp_path, (), config) == {}  # there is no image
    write_mask(tmp_path / "images" / "a", "0.png", np.zeros((4, 5), np.uint8))
    assert [*find_overlapping(tmp_path, (), config)] == ["train"]
    write_mask(tmp_path / "masks" / "a", "0.png", np.zeros((4, 5), np.uint8))
    assert find_overlapping(tmp_path, (), config) == {}
    (tmp_path / "masks" / "a" / "0.png").unlink()
    (tmp_path / "masks" / "b" / "1.npy").unlink()
    assert find_overlapping(tmp_path, (), config) == {}


def test_channels_are_those_of_the_masks_of_each_split(tmp_path):
    for split, name in (("train", "a"), ("val", "b")):
        touch(tmp_path / split, f"images/{name}.png", f"masks/{name}.npy")
        np.save(tmp_path / split / "masks" / f"{name}.npy", np.zeros((4, 5, 2), np.uint8))
    openers = find_overlapping(tmp_path, (), DataConfig(str(tmp_path)))
    images = {split: [record["image"] for record in opened()] for split, opened in openers.items()}
    assert images == {"train": [f"{tmp_path}/train/images/a.png"], "val": [f"{tmp_path}/val/images/b.png"]}


def test_files_without_partner_are_named_or_left_out_where_classes_are_folders_or_channels(tmp_path):
    touch(tmp_path, "images/s/a.png", "images/b.png", "masks/s/a.npy", "masks/z.npy", "c/s/a.png", "c/y.png")
    images = tmp_path / "images"
    channels = partial(open_channels, images, tmp_path / "masks", ClassLayout((), 2))
    folders = partial(open_class_folders, images, [tmp_path / "c"])
    for opened, line in (
        (channels, "b.png: image without mask; z.npy: mask without image"),
        (folders, "b.png: image without mask; c/y.png: mask without image"),
    ):
        with pytest.raises(DataError, match=f"2 files without partner: {line}"):
            opened(DataConfig())
        records = opened(DataConfig(allow_unpaired=True))
        assert [record["name"] for record in records] == ["s/a.png"]
        assert len(records.metadata.unpaired) == 2
        assert records.image_folders() == {(str(images) + "/" * (opened is channels), "s")}
    touch(tmp_path, "d/w.png")
    with pytest.raises(DataError, match=r"images: 3 files without partner: .*d/w\.png: mask without image$"):
        open_class_folders(images, [tmp_path / "d"], DataConfig(allow_unpaired=True))  # nothing would be left


def test_masks_have_the_suffix_of_the_flag_where_others_lie_beside_them(tmp_path):
    names = ("a_m.png", "z_m.png", "notes.png")
    touch(tmp_path, "images/a.png", *(f"masks/{folder}/{name}" for folder in ("c", "d", ".hidden") for name in names))
    images, masks = tmp_path / "images", tmp_path / "masks"
    folders = [masks / "c", masks / "d"]
    config = DataConfig(mask_suffix="_m", allow_unpaired=True)
    assert class_folders(images, masks, config) == folders
    (record,) = open_class_folders(images, folders, config)
    assert [file.path for file in record["target"].files] == [f"{folder}/a_m.png" for folder in folders]
    (record,) = open_channels(images, folders[0], ClassLayout((0, 1), 2), config)
    assert [file.path for file in record["target"].files] == [f"{folders[0]}/a_m.png"] * 2


@pytest.mark.parametrize("pages", [(), (0, 1)])
def test_records_of_channels_and_pages_have_a_key_of_all_they_are_and_know_what_is_ignored(tmp_path, pages):
    files = touch(tmp_path, "images/a.png", "images/b.png", "masks/a.npy", "masks/b.npy")

    def records(class_count: int = 2, **settings) -> ChannelRecords:
        layout = ClassLayout(pages, class_count)
        return open_channels(tmp_path / "images", tmp_path / "masks", layout, DataConfig(**settings))

    assert unnoticed_changes(files, lambda: records().digest) == []
    keys = [records().digest, records(ignore_index="9").digest, records(classes="2=a").digest, records(3).digest]
    assert records(ignore_index="9")[0]["target"].ignored == (9,)
    with pytest.raises(DataError, match=r"^--classes names 3, but the masks have 2 pages or channels, from 1$"):
        records(classes="1=a,3=b,4=c")
    pages = (1, 0) if pages else (0, 1)
    keys.append(records().digest)
    for file in files[1::2]:
        file.rename(file.with_stem("c"))
    keys.append(records().digest)
    assert len(set(keys)) == 6


def test_the_key_of_folders_of_classes_changes_with_each_file(tmp_path):
    files = touch(tmp_path, "images/a.png", "images/b.png", "c/a.png", "c/b.png", "d/b.png")

    def key() -> str:
        return open_class_folders(tmp_path / "images", [tmp_path / "c", tmp_path / "d"], DataConfig()).digest

    keys = [key()]
    assert unnoticed_changes(files, key) == []
    files[2].rename(tmp_path / "d" / "a.png")
    keys.append(key())
    files[-1].rename(tmp_path / "c" / "a.png")
    keys.append(key())
    assert len(set(keys)) == 3


def test_a_file_of_masks_is_a_color_or_damaged_or_a_stack_or_has_a_class_in_each_channel(tmp_path):
    image = tmp_path / "image.png"
    write_mask(tmp_path, "image.png", np.zeros((4, 5), np.uint8))
    write_mask(tmp_path, "color.png", np.zeros((4, 5, 4), np.uint8))
    (damaged,) = touch(tmp_path, "damaged.png")
    stack = tmp_path / "stack.tif"
    tifffile.imwrite(stack, np.zeros((2, 4, 5), np.uint8), photometric="minisblack")
    raster = write_raster(tmp_path / "raster.tif", np.zeros((3, 4, 5), np.uint16))
    assert find_class_layout(tmp_path / "color.png", image, explicit=False) == NO_LAYOUT
    assert find_class_layout(tmp_path / "color.png", image, explicit=True) == ClassLayout((), 3)
    assert find_class_layout(damaged, image, explicit=True) == NO_LAYOUT
    assert find_class_layout(stack, stack, explicit=True) == NO_LAYOUT
    assert find_class_layout(stack, image, explicit=False) == ClassLayout([0, 1], 2)
    assert find_class_layout(raster, image, explicit=False) == ClassLayout((), 3)
    tifffile.imwrite(tmp_path / "one.tif", np.zeros((4, 5), np.uint8), photometric="minisblack")
    assert find_class_layout(stack, tmp_path / "one.tif", explicit=False) == ClassLayout([0, 1], 2)


@pytest.mark.parametrize("ending", ["npy", "tif"])
@pytest.mark.parametrize(
    ("channels", "dtype", "is_color"),
    [(1, "uint8", True), (2, "uint8", False), (3, "uint8", True), (3, "uint16", False), (5, "uint8", False)],
)
def test_an_array_of_three_channels_of_a_byte_is_a_color(tmp_path, ending, channels, dtype, is_color):
    write_mask(tmp_path, "image.png", np.zeros((4, 5), np.uint8))
    pixels = np.zeros((4, 6, channels), dtype)
    file = tmp_path / f"mask.{ending}"
    if ending == "npy":
        np.save(file, pixels if channels > 1 else pixels[..., 0])
    else:
        write_raster(file, np.moveaxis(pixels, 2, 0))
    expected = NO_LAYOUT if is_color else ClassLayout((), channels)
    assert find_class_layout(file, tmp_path / "image.png", explicit=False) == expected
    np.save(tmp_path / "alpha.npy", np.zeros((4, 6, 4), np.uint8))
    assert find_class_layout(tmp_path / "alpha.npy", tmp_path / "image.png", explicit=False) == NO_LAYOUT


def test_colors_are_classes_where_the_task_says_so_and_folders_where_it_says_nothing_else(folders, tmp_path):
    (folders / "train" / "masks" / "notes").mkdir()
    folders_of_classes = class_folders(folders / "train" / "images", folders / "train" / "masks", DataConfig())
    assert [folder.name for folder in folders_of_classes] == list(NAMES)
    assert "have no mask" in error_of(folders, task="classes")
    touch(folders / "train" / "images" / "site", "a.png")
    assert class_folders(folders / "train" / "images", folders / "train" / "masks", DataConfig()) == []
    for number in range(2):
        write_mask(tmp_path / "colors" / "images", f"{number}.png", np.zeros((4, 5), np.uint8))
        write_mask(tmp_path / "colors" / "masks", f"{number}.png", np.zeros((4, 5, 3), np.uint8))
    train, _ = load_records(DataConfig(str(tmp_path / "colors"), task="overlapping"))
    assert train.metadata.classes == ((1, "class 1"), (2, "class 2"), (3, "class 3"))
    assert load_records(DataConfig(str(tmp_path / "colors")))[0].metadata.task is None


@pytest.mark.parametrize("odd", ["several values", "damaged", "a mask beside the folders"])
def test_one_mask_of_several_values_or_that_cannot_be_read_does_not_make_folders_others(folders, odd):
    masks = folders / "train" / "masks"
    if odd == "several values":
        write_mask(masks / "blue", "00.png", np.arange(40, dtype=np.uint8).reshape(5, 8))
    elif odd == "damaged":
        for file in masks.rglob("*.png"):
            file.write_bytes(b"")
    else:
        touch(masks, "00.png")
    folders_of_classes = class_folders(folders / "train" / "images", masks, DataConfig())
    assert [folder.name for folder in folders_of_classes] == ([] if odd == "a mask beside the folders" else list(NAMES))


def test_more_classes_than_bits_are_refused(tmp_path):
    write_overlaps(tmp_path, 2, seed=0)
    for number in range(29):
        for image in ("00.png", "01.png"):
            write_mask(tmp_path / "masks" / f"c{number}", image, np.zeros(SIZE, np.uint8))
    assert "32 classes beside the background, and --task overlapping takes 1 to 31" in error_of(tmp_path)
    assert len(class_bits(tuple((value, f"c{value}") for value in range(31))).names) == 31
    assert class_bits(((1, "cold"), (2, "cold"), (3, "warm"))) == (("cold", "warm"), {1: 0, 2: 0, 3: 1})
    with pytest.raises(DataError, match=r"^0 classes beside the background, and --task overlapping takes 1 to 31; ch"):
        class_bits(((0, "background"),))


def test_one_mask_for_each_image_is_no_overlapping_data_set(tmp_path):
    write_overlaps(tmp_path, 3, seed=0, layout="labels")
    assert "has one mask for each image" in error_of(tmp_path, task="overlapping")


# annotations


def box(left: int, top: int, width: int, height: int) -> list[list[int]]:
    right, bottom = left + width, top + height
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def write_annotations(folder: Path, kind: str, inner: list[list[int]]) -> Path:
    """Two images, each with a box of `car` and a box `inner` of `wheel`, in the files of a format."""
    objects = (("car", box(4, 4, 24, 16)), ("wheel", inner))
    for number in (1, 2):
        image = np.random.default_rng(number).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
        write_mask(folder / "images", f"{number}.png", image)
        if kind == "labelme":
            shapes = [{"label": label, "points": points, "shape_type": "polygon"} for label, points in objects]
            (folder / "images" / f"{number}.json").write_text(json.dumps({"shapes": shapes}))
        if kind == "yolo":
            (folder / "labels").mkdir(exist_ok=True)
            lines = []
            for index, (_, points) in enumerate(objects):
                shares = np.array(points) / (SIZE[1], SIZE[0])
                lines.append(f"{index} {' '.join(map(str, shares.ravel()))}")
            (folder / "labels" / f"{number}.txt").write_text("\n".join(lines))
            (folder / "data.yaml").write_text("train: images\nnames: [car, wheel]\n")
    if kind == "coco":
        categories = [{"id": 5, "name": "car"}, {"id": 9, "name": "wheel"}]
        images = [{"id": n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1]} for n in (1, 2)]
        annotations = []
        for number in (1, 2):
            for category, (_, points) in zip((5, 9), objects, strict=True):
                outline = [np.ravel(points).tolist()]
                annotations.append({"image_id": number, "category_id": category, "segmentation": outline})
        content = {"images": images, "categories": categories, "annotations": annotations}
        (folder / "annotations.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", ["coco", "labelme", "yolo"])
def test_objects_keep_what_lies_below_others(tmp_path, kind):
    write_annotations(tmp_path, kind, box(8, 12, 6, 12))
    exclusive, info = info_of(tmp_path), info_of(tmp_path, task="overlapping")
    assert (exclusive.config.task, info.reader.names) == ("classes", ("car", "wheel"))
    assert info.train.records.metadata.task == "overlapping"
    record = info.train.records[0]
    uppermost = exclusive.reader.read(exclusive.train.records[0], SIZE).mask
    car, wheel = planes(info.reader.read(record, SIZE).truth, 2)
    assert (car & wheel).sum() >= 6 * 8
    assert (uppermost == np.where(wheel, 2, car)).all()
    filled = np.zeros(SIZE, bool)
    filled[4:20, 4:28] = True
    assert (filled & ~car).sum() == 0
    assert (car & ~filled).sum() <= 2 * sum(SIZE)
    alone = info_of(tmp_path, task="overlapping", classes="wheel")
    assert (planes(alone.reader.read(alone.train.records[0], SIZE).truth, 1)[0] == wheel).all()
    assert alone.train.records.digest != info.train.records.digest


@pytest.mark.parametrize("kind", ["coco", "labelme", "yolo"])
def test_much_overlap_is_said_and_little_is_not(tmp_path, kind):
    write_annotations(tmp_path / "much", kind, box(8, 12, 6, 12))
    write_annotations(tmp_path / "none", kind, box(40, 24, 6, 12))
    (warning,) = [line for line in info_of(tmp_path / "much").warnings if "overlapping" in line]
    share = int(warning.partition("%")[0])
    assert 8 <= share <= 14
    assert "--task overlapping learns all classes" in warning
    assert warning in check_data(DataConfig(str(tmp_path / "much")))[0]
    assert not [line for line in info_of(tmp_path / "none").warnings if "overlapping" in line]


def test_crowds_are_unknown_for_their_class(tmp_path):
    write_annotations(tmp_path, "coco", box(8, 12, 6, 12))
    content = json.loads((tmp_path / "annotations.json").read_text())
    content["annotations"][1]["iscrowd"] = 1
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    info = info_of(tmp_path, task="overlapping")
    targets = {
        record["name"]: info.reader.read(record, SIZE) for record in (info.train.records[0], info.val.records[0])
    }
    crowd = targets["1.png"].known == 0b01
    assert crowd.sum() >= 6 * 12
    assert (planes(targets["1.png"].truth, 2)[1] == 0).all()
    assert (targets["2.png"].known == 0b11).all()


def test_labelme_shapes_of_background_and_ignored_ones_change_all_classes(tmp_path):
    write_annotations(tmp_path, "labelme", box(8, 12, 6, 12))
    for file in (tmp_path / "images").glob("*.json"):
        shapes = json.loads(file.read_text())["shapes"]
        shapes.append({"label": "_background_", "points": box(8, 12, 2, 4), "shape_type": "polygon"})
        shapes.append({"label": "__ignore__", "points": box(20, 8, 4, 4), "shape_type": "polygon"})
        file.write_text(json.dumps({"shapes": shapes}))
    target = targets_of(tmp_path, task="overlapping")[0]
    assert (target.truth[12:17, 8:11] == 0).all()
    assert (target.known[12:17, 8:11] == 0b11).all()
    assert (target.known[8:13, 20:25] == 0).all()
    assert (target.truth[8:13, 20:25] == 0).all()


# volumes


def write_volumes(folder: Path, count: int, *, by_channel: bool = False) -> list[np.ndarray]:
    """images/ and labels of two classes that overlap; the labels, (2, x, y, z) bool each."""
    labels = []
    for seed in range(count):
        image, label = case(seed)
        class_masks = np.stack([label > 0, label > 1])
        write_nifti(folder / "images" / f"c{seed}.nii.gz", image)
        if by_channel:
            write_nifti(folder / "masks" / f"c{seed}.nii.gz", np.moveaxis(class_masks, 0, -1).astype(np.uint8))
        else:
            for name, values in zip(("inner", "whole"), class_masks[::-1], strict=True):
                write_nifti(folder / "masks" / name / f"c{seed}.nii.gz", values.astype(np.uint8))
        labels.append(class_masks)
    return labels


@pytest.mark.parametrize("by_channel", [False, True])
def test_volumes_have_a_label_or_a_channel_for_each_class(tmp_path, by_channel):
    labels = write_volumes(tmp_path, 4, by_channel=by_channel)
    info = info_of(tmp_path)
    assert info.config.task == "overlapping"
    assert info.train.records.dims == 3
    assert info.reader.names == (("class 1", "class 2") if by_channel else ("inner", "whole"))
    record = info.train.records[0]
    _, header = read_volume(record["image"], record["name"])
    target = info.reader.read_volume(record, header)
    expected = labels[int(record["name"][1:])].transpose(0, 3, 2, 1)
    assert (planes(target.truth, 2) == (expected if by_channel else expected[::-1])).all()
    assert (target.known == 3).all()


def touch_volumes(folder: Path, *names: str) -> list[Path]:
    """Empty files of volumes."""
    files = []
    for name in names:
        file = folder / f"{name}.nii.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        files.append(file)
    return files


def test_volumes_and_their_classes_are_in_natural_order_and_the_classes_are_those_of_all_splits(tmp_path):
    touch_volumes(tmp_path / "train", "images/v10", "images/v2", "masks/c10/v10", "masks/c10/v2", "masks/c2/v10")
    touch_volumes(tmp_path / "val", "images/v1", "masks/c10/v1", "masks/c3/v1")
    openers = find_class_volumes(tmp_path, (), DataConfig(str(tmp_path), task="overlapping"))
    records = {split: opened() for split, opened in openers.items()}
    assert [record["name"] for record in records["train"]] == ["v2", "v10"]
    for split in ("train", "val"):
        assert records[split].metadata.classes == ((1, "c2"), (2, "c3"), (3, "c10"))


def test_what_the_flags_say_of_volumes_reaches_a_split_without_the_first_class(tmp_path):
    touch_volumes(tmp_path / "train", "images/v", "masks/a/v", "masks/b/v")
    touch_volumes(tmp_path / "val", "images/v", "images/w", "masks/b/v", "masks/b/x")
    touch_volumes(tmp_path / "train", "masks/a/y")
    (tmp_path / "train/masks/notes").mkdir()
    config = DataConfig(str(tmp_path), task="overlapping", spacing=(2.0, 1.0, 1.0), ignore_index="9")
    openers = find_class_volumes(tmp_path, (), config)
    lines = (
        f"{tmp_path}/val/images/w.nii.gz: image without mask",
        f"{tmp_path}/val/masks/b/x.nii.gz: mask without image",
    )
    with pytest.raises(DataError, match=f"2 files without partner: {lines[0]}; {lines[1]}"):
        openers["val"]()
    records = find_class_volumes(tmp_path, (), replace(config, allow_unpaired=True))["val"]()
    assert records.metadata.classes == ((1, "a"), (2, "b"))
    assert records.spacing == (2.0, 1.0, 1.0)
    assert records.metadata.unpaired == lines
    assert [record["name"] for record in records] == ["v"]
    assert records[0]["target"].layers.ignored == (9,)
    records = find_class_volumes(tmp_path, (), replace(config, allow_unpaired=True))["train"]()
    assert records.metadata.unpaired == (f"{tmp_path}/train/masks/a/y.nii.gz: mask without image",)


def test_the_file_of_the_spacing_counts_for_a_split_without_the_first_class(tmp_path):
    touch_volumes(tmp_path / "train", "images/v", "masks/a/v", "masks/b/v")
    touch_volumes(tmp_path / "val", "images/v", "masks/b/v")
    (tmp_path / "spacing.json").write_text("[3, 2, 1.5]")
    openers = find_class_volumes(tmp_path, (), DataConfig(str(tmp_path), task="overlapping"))
    assert [openers[split]().spacing for split in ("train", "val")] == [(3.0, 2.0, 1.5), (3.0, 2.0, 1.5)]


def test_labels_beside_folders_of_labels_or_in_one_split_alone_are_no_classes(tmp_path):
    for split in ("train", "val"):
        touch_volumes(tmp_path / split, "images/v", "masks/a/v", "masks/b/v")
    config = DataConfig(str(tmp_path))
    assert [*find_class_volumes(tmp_path, (), config)] == ["train", "val"]
    with pytest.raises(DataError, match=r"images/v\.nii\.gz has no mask of its name"):
        load_records(DataConfig(str(tmp_path), task="classes"))
    touch_volumes(tmp_path / "val", "masks/v")
    assert find_class_volumes(tmp_path, (), config) == {}


@pytest.mark.parametrize(("task", "is_split"), [(None, True), ("overlapping", True), ("classes", False)])
def test_channels_of_labels_are_classes_unless_the_task_is_another(tmp_path, task, is_split):
    write_volumes(tmp_path, 1, by_channel=True)
    file = str(tmp_path / "masks" / "c0.nii.gz")
    volumes = VolumeRecords([Case("c0", (file,), file)], None, Description())
    config = DataConfig(task=task)
    assert isinstance(by_channel(volumes, config), ChannelVolumeRecords) is is_split
    empty = VolumeRecords([], None, Description())
    assert by_channel(empty, config) is empty


def test_a_first_label_that_cannot_be_read_is_named_where_all_labels_are(tmp_path):
    touch_volumes(tmp_path, *(f"{folder}/{name}" for folder in ("images", "masks") for name in "vw"))
    train, val = load_records(DataConfig(str(tmp_path)))
    assert (len(train), len(val), train.metadata.task) == (1, 1, None)


@pytest.mark.parametrize(("task", "is_found"), [("overlapping", True), (None, False)])
def test_one_folder_of_labels_is_a_class_where_the_task_says_so(tmp_path, task, is_found):
    touch_volumes(tmp_path, "images/v", "masks/c/v")
    assert bool(find_class_volumes(tmp_path, (), DataConfig(str(tmp_path), task=task))) is is_found


def test_the_key_of_volumes_of_classes_changes_with_each_file_and_with_what_is_made_of_them(tmp_path):
    files = touch_volumes(
        tmp_path, *(f"{folder}/{name}" for folder in ("images", "masks/a", "masks/b") for name in "vw")
    )

    def key(**settings) -> str:
        config = DataConfig(str(tmp_path), task="overlapping", **settings)
        (opened,) = find_class_volumes(tmp_path, (), config).values()
        return opened().digest

    assert unnoticed_changes(files, key) == []
    channels = [file.rename(file.with_name(f"{name}_0000.nii.gz")) for file, name in zip(files, "vw", strict=False)]
    channels += touch_volumes(tmp_path, "images/v_0001", "images/w_0001")
    assert unnoticed_changes(channels, key) == []
    keys = [key(), key(ignore_index="9"), key(classes="a"), key(classes="b,a"), key(spacing=(2.0, 1.0, 1.0))]
    (tmp_path / "masks" / "b" / "w.nii.gz").rename(tmp_path / "masks" / "b" / "x.nii.gz")
    keys.append(key(allow_unpaired=True))
    assert len(set(keys)) == 6


def test_channels_of_a_label_are_others_with_another_ignored_value_or_other_classes(tmp_path):
    (file,) = map(str, touch_volumes(tmp_path, "v"))
    volumes = VolumeRecords([Case("v", (file,), file)], None, Description())
    layers = {}
    for settings in ({}, {"ignore_index": "9,7"}, {"classes": "class 2"}):
        records = ChannelVolumeRecords(volumes, 2, DataConfig(**settings))
        layers[records.digest] = records[0]["target"].layers
    assert list(layers.values()) == [
        ClassLayers((0, 1)),
        ClassLayers((0, 1), ignored=(9, 7)),
        ClassLayers((None, 0)),
    ]


@pytest.mark.parametrize(("image_folder", "are_classes"), [("images", True), ("images/c2", False)])
def test_folders_of_labels_are_classes_unless_images_lie_in_folders_too(tmp_path, image_folder, are_classes):
    for folder in ("masks/c10", "masks/c2", image_folder):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("a.nii.gz", "notes.txt"):
            (tmp_path / folder / name).touch()
    assert bool(find_class_volumes(tmp_path, (), DataConfig(str(tmp_path)))) is are_classes


def test_volumes_of_both_splits_have_a_class_for_each_channel(tmp_path):
    for split in ("train", "val"):
        write_volumes(tmp_path / split, 1, by_channel=True)
    for records in load_records(DataConfig(str(tmp_path))):
        assert records.metadata.classes == ((1, "class 1"), (2, "class 2"))


def test_a_volume_without_a_label_of_a_class_is_unknown_for_it(tmp_path):
    write_volumes(tmp_path, 4)
    (tmp_path / "masks" / "inner" / "c1.nii.gz").unlink()
    info = info_of(tmp_path)
    known_of_volume = {}
    for records in (info.train.records, info.val.records):
        for record in records:
            _, header = read_volume(record["image"], record["name"])
            known_of_volume[record["name"]] = np.unique(info.reader.read_volume(record, header).known).tolist()
    assert known_of_volume == {"c0": [3], "c1": [0b10], "c2": [3], "c3": [3]}
    (tmp_path / "masks" / "whole" / "c1.nii.gz").unlink()
    assert "c1.nii.gz: image without mask" in error_of(tmp_path)
    assert sum(map(len, load_records(DataConfig(str(tmp_path), allow_unpaired=True)))) == 3


# regions


def test_regions_are_unions_of_labels(tmp_path):
    write_overlaps(tmp_path, 4, seed=0, layout="labels")
    info = info_of(tmp_path, regions=BRATS)
    assert info.config.task == "regions"
    assert info.reader.describe() == f"regions {BRATS.replace(';', ', ')}"
    for record in info.train.records:
        labels = np.array(Image.open(record["target"]))
        truth = planes(info.reader.read(record, SIZE).truth)
        assert (truth == np.stack([labels > 0, labels > 1, labels > 2])).all()
    assert (info.reader.read(info.train.records[0], SIZE).known == 7).all()
    assert len(info.reader.class_pixels) == 3
    assert info.reader.class_pixels[0] > info.reader.class_pixels[2] > 0


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
        info_of(tmp_path, regions="whole=255+1")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "has 0 regions"),
        ("whole", "'whole' is no NAME=VALUE"),
        ("=1+2", "'=1+2' is no NAME=VALUE"),
        ("whole=", "'whole=' is no NAME=VALUE"),
        ("whole=1+x", "'x' is no mask value"),
        ("whole=1++2", "'' is no mask value"),
        ("whole=1+0", "whole holds 0, the background"),
        ("whole=1+1", "whole lists a value twice"),
        ("a=1+#010203", "a holds colors"),
        ("a=1;a=2", "two regions are called a"),
        ("whole=1+2;inner=1", "whole and inner would both be written as 1"),
        ("active=3;core=2+1+3", "active would be written as 3, which core holds too"),
        (";".join(f"r{number}={number}" for number in range(1, 33)), "has 32 regions"),
    ],
)
def test_regions_that_cannot_be_are_one_line(text, line):
    with pytest.raises(SettingsError) as error:
        parse_regions(text)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["whole=1+7", "whole=-1", f"a={10**30}", "a=1;b=2;c=99999999999"])
def test_regions_of_values_that_no_mask_holds_are_one_line(tmp_path, text):
    write_overlaps(tmp_path, 3, seed=0, layout="labels")
    with pytest.raises(UserError, match="--regions"):
        info_of(tmp_path, regions=text)


def test_a_task_and_regions_must_agree(tmp_path):
    write_overlaps(tmp_path, 3, seed=0, layout="labels")
    with pytest.raises(SettingsError, match="--regions is for --task regions"):
        info_of(tmp_path, regions=BRATS, task="classes")
    with pytest.raises(SettingsError, match="--task regions needs the regions"):
        info_of(tmp_path, task="regions")


def test_a_reader_of_regions_takes_labels_of_other_values_for_background():
    reader = RegionReader(parse_regions(BRATS))
    values = np.array([[0, 1, 2], [3, 4, 60000]], np.uint16)
    assert reader.of_mask(values, "mask").truth.tolist() == [[0, 1, 3], [7, 0, 0]]
    with pytest.raises(DataError, match="is a color mask"):
        reader.of_mask(np.zeros((2, 2, 3), np.uint8), "mask")


def test_targets_of_regions_are_kept_apart_by_all_that_they_depend_on():
    readers = [
        RegionReader(parse_regions("whole=1+2")),
        RegionReader(parse_regions("whole=1+3")),
        RegionReader(parse_regions("whole=1+2"), ignored=(9,)),
    ]
    assert len({reader.key for reader in readers}) == len(readers)


def test_a_data_set_of_masks_is_loaded_as_before(tmp_path):
    write_overlaps(tmp_path, 4, seed=0, layout="labels")
    train, _ = loaded(tmp_path)
    assert train.metadata.task is None
    assert isinstance(train[0]["target"], str)


@pytest.mark.parametrize(
    ("channels", "dtype", "is_color"),
    [(2, "uint8", False), (3, "uint8", True), (4, "uint8", True), (5, "uint8", False), (4, "float32", False)],
)
def test_an_array_of_three_or_four_channels_of_8_bits_is_a_color_unless_classes_are_said_to_overlap(
    tmp_path, channels, dtype, is_color
):
    mask = tmp_path / "mask.npy"
    np.save(mask, np.zeros((6, 8, channels), dtype))
    assert find_class_layout(mask, tmp_path / "image.png", explicit=True) == ClassLayout((), channels)
    expected = NO_LAYOUT if is_color else ClassLayout((), channels)
    assert find_class_layout(mask, tmp_path / "image.png", explicit=False) == expected


def test_a_reader_of_overlapping_classes_hands_on_values_sides_and_weights():
    classes = ((1, "a"), (2, "b"), (3, "a"))
    reader = OverlapReader.of_values({}, classes, DataConfig())
    assert reader.values == ((1, 3), (2,))
    assert reader.partly_labeled({("a", "2"): "t"}, (), {}) is reader
    partly = reader.partly_labeled({("3", "one"): "t"}, ((1, "one"),), {})
    assert partly.labeled_classes(("3", "one")) == [0]
    task = OverlapReader(("a", "b")).task("ce", None)  # where a model is all that is known
    assert (task.partners, task.mirrors) == ((0, 1), True)
    reader = OverlapReader(("a", "b"), class_pixels=(30, 10), sides=SIDED)
    task = reader.task("ce", ["auto"])
    assert (task.partners, task.mirrors) == ((1, 0), False)
    assert task.class_weights.tolist() == pytest.approx([(2 / 3) ** 0.5, 2**0.5])
    unknown = int(pack_bits(np.array(0), np.array(2)))
    assert reader.is_empty(0)
    assert reader.is_empty(unknown)
    assert not reader.is_empty(1)
    text = "classes that may overlap a, b"
    assert reader.describe() == text
    assert OverlapReader(("a", "b"), overlap=0.25).describe() == f"{text} (25.0% of their pixels have several)"


def test_a_reader_of_regions_hands_on_its_classes_sides_and_weights():
    pixels = {value: 5 for value in (0, 1, 2, 3, 7, 8, 9)}
    config = DataConfig(regions="a=1+2;b=3", swap="a=b", ignore_index="9,8,7")
    reader = RegionReader.of_values(pixels, (), config)
    assert reader.ignored == (9, 8, 7)
    assert reader.describe() == "regions a=1+2, b=3, ignored 9, 8, 7"
    reader = reader.with_pixels({0: 100, 1: 10, 2: 20, 3: 10, 9: 7})
    assert reader.class_pixels == (30, 10)
    task = reader.task("ce", ["auto"])
    assert (task.partners, task.mirrors, task.regions) == ((1, 0), True, reader.regions)
    assert task.class_weights.tolist() == pytest.approx([(2 / 3) ** 0.5, 2**0.5])
    off = RegionReader((Region("left", (1,)), Region("right", (2,))), sides=SIDED).task("ce", None)
    assert (off.partners, off.mirrors) == ((1, 0), False)


def test_regions_are_labeled_by_the_names_of_their_labels():
    labels = ClassMap(("background", "edema", "core"), (0, 1, 2), None)
    reader = RegionReader((Region("whole", (1, 2)), Region("inner", (2,))), class_map=labels)
    sets = {("core",): "t", ("core", "edema"): "t", ("swelling", "inner"): "t"}
    assert reader.partly_labeled({("core", "edema"): "t"}, (), {None: {0: 1}}) is reader
    assert reader.labeled_in_map(None) is None
    pixels = {None: {0: 1, 1: 10, 2: 5}, ("core",): {0: 1, 1: 3, 2: 7}}
    reader = reader.partly_labeled({**sets, (): "t", ("whole",): "t"}, ((1, "swelling"),), pixels)
    assert [tuple(reader.labeled_classes(names)) for names in sets] == [(1,), (0, 1), (1,)]
    assert [reader.labeled_in_map(names) for names in (*sets, (), ("whole",))] == [{2}, {1, 2}, {2}, set(), {1, 2}]
    assert reader.class_pixels == (15, 12)
    assert reader.describe() == "regions whole=1+2, inner=2, some images labeled for some of these only (t)"


def test_all_ignored_values_are_unknown_and_kept_for_prediction():
    reader = RegionReader((Region("whole", (3, 1)), Region("core", (1,))), ignored=(9, 8))
    target = reader.of_label_volume(np.array([[0, 1, 3, 8, 9]]), "mask")
    assert target.truth.tolist() == [[0, 3, 1, 0, 0]]
    assert target.known.tolist() == [[3, 3, 3, 0, 0]]
    assert reader.to_preprocess() == {
        "class_names": ("whole", "core"),
        "class_values": (3, 1),
        "ignore_value": 9,
        "joined_values": ((8, 255),),
    }


def test_regions_may_stand_apart_and_are_of_numbers_of_which_0_may_be_ignored():
    assert parse_regions(" whole = 1+2 ; ") == (Region("whole", (1, 2)),)
    with pytest.raises(DataError, match=r"^--regions: the masks hold colors, .*; regions are of numbers$"):
        RegionReader.of_values({(0, 0, 0): 5, (9, 0, 0): 5}, (), DataConfig(regions="whole=1"))
    reader = RegionReader.of_values({0: 5, 1: 5, 2: 5}, (), DataConfig(regions="whole=1+2", ignore_index="0"))
    assert reader.ignored == (0,)
    assert reader.with_pixels({2: 5}).class_pixels == (5,)
    labels = ((0, "background"), (1, "a"), (2, "a"))  # two values of one name are no ignored ones
    config = DataConfig(regions="whole=1+2", outside="ignore")
    joined = RegionReader.of_values({0: 5, 1: 5, 2: 5, 3: 5}, labels, config)
    assert (joined.ignored, joined.class_map.outside) == ((), 255)


def test_as_many_regions_as_bits_are_read_and_each_is_compared_with_all_before_it():
    regions = parse_regions(";".join(f"r{number}={number}" for number in range(1, 32)))
    assert len(regions) == 31
    with pytest.raises(SettingsError, match="a and c would both be written as 1"):
        parse_regions("a=1;b=2;c=1+2")
