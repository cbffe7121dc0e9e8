"""Classes that overlap in images: masks and objects of each class, and what their reader tells the task.

Modules: data_utils/analysis/checks.py, data_utils/sources/overlapping.py, tasks/overlapping/reader.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of
from support.data_sets import load_info, unnoticed_changes
from support.folders import touch
from support.overlaps import NAMES, SIZE, labels_of, planes, scene, targets_of, true_masks, write_mask, write_overlaps

from data_utils.config import DataConfig
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.sources.load import load_records
from data_utils.sources.overlapping import (
    class_bits,
    class_folders,
    open_channels,
    open_class_folders,
)
from data_utils.sources.records import Records
from runtime.errors import DataError
from train_utils.check_data import check_data


@pytest.fixture
def folders(tmp_path) -> Path:
    """train/ with 4 and val/ with 2 images, and a folder of masks for each class."""
    write_overlaps(tmp_path / "train", 4, seed=0)
    write_overlaps(tmp_path / "val", 2, seed=1)
    return tmp_path


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("folders", NAMES),
        ("pages", ("class 1", "class 2", "class 3")),
        ("channels", ("class 1", "class 2", "class 3")),
    ],
    ids=["folders", "pages", "channels"],
)
def test_a_mask_for_each_class_is_found_in_any_layout(tmp_path, layout, names):
    write_overlaps(tmp_path, 6, seed=0, layout=layout)
    for folder in ("images", "masks"):
        (tmp_path / folder / "!.txt").touch()
    info = load_info(tmp_path)
    assert info.config.task == "overlapping"
    assert info.warnings == ()
    assert info.reader.class_names == names
    masks = dict(zip([f"{number:02}.png" for number in range(6)], true_masks(6, 0), strict=True))
    for record in [*info.train.records, *info.val.records]:
        target = info.reader.read(record, SIZE)
        assert (planes(target.truth) == masks[record["name"]]).all()
        assert (target.known == 7).all()
        assert target.truth.dtype == np.int32


def test_shares_and_overlap_are_counted(folders):
    reader = load_info(folders).reader
    masks = np.stack(true_masks(4, 0) + true_masks(2, 1))
    assert reader.class_pixels == tuple(masks.sum(axis=(0, 2, 3)).tolist())
    overlap = (masks.sum(axis=1) > 1).sum() / masks.any(axis=1).sum()
    assert reader.overlap == pytest.approx(overlap)
    report, problems = check_data(DataConfig(str(folders)))
    assert problems == 0
    assert f"{100 * overlap:7.3f} %  of the pixels of any class have several" in report


def test_classes_are_chosen_in_the_order_of_the_flag_and_joined_by_one_name(folders):
    blue, green, red = np.moveaxis(np.stack(true_masks(4, 0)), 1, 0)
    for classes, expected in (("red,blue", (red, blue)), ("1=cold,2=warm,3=warm", (blue, green | red))):
        targets = targets_of(folders, classes=classes)
        assert (np.stack([planes(target.truth, 2) for target in targets]) == np.stack(expected, axis=1)).all()


def test_a_class_without_a_mask_is_unknown_and_a_joined_one_is_known_where_another_mask_shows_it(folders):
    (folders / "train" / "masks" / "green" / "02.png").unlink()
    targets = targets_of(folders)
    assert [np.unique(target.known).tolist() for target in targets] == [[7], [7], [0b101], [7]]
    assert (planes(targets[2].truth)[1] == 0).all()
    assert planes(targets[2].truth)[0].any()
    joined = targets_of(folders, classes="1=cold,2=warm,3=warm")[2]
    red = true_masks(4, 0)[2][2]
    assert (joined.known == np.where(red, 0b11, 0b01)).all()
    assert (planes(joined.truth, 2)[1] == red).all()


def test_a_value_to_ignore_is_unknown_for_its_class_alone(folders):
    mask = true_masks(4, 0)[1][0].astype(np.uint8)
    mask[:5] = 9
    write_mask(folders / "train" / "masks" / "blue", "01.png", mask)
    assert "01.png: mask of one class holds 0, 1, 9, expected 0 and one other value; several classes" in error_of(
        folders
    )
    known_bits = targets_of(folders, ignore_index="9")[1].known
    assert (known_bits[:5] == 0b110).all()
    assert (known_bits[5:] == 7).all()


def test_masks_of_two_sizes_are_a_one_line_error(folders):
    write_mask(folders / "train" / "masks" / "red", "01.png", np.zeros((20, 28), np.uint8))
    assert "01.png: is 20 x 28, but " in error_of(folders)


def test_masks_below_folders_of_sites_stay_classes(tmp_path):
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for number in range(3):
            image, masks = scene(rng)
            write_mask(tmp_path / "images" / site, f"{number}.png", image)
            write_mask(tmp_path / "masks" / site, f"{number}.png", labels_of(masks))
    info = load_info(tmp_path)
    assert info.config.task == "classes"
    assert info.reader.class_map.values == (0, 1, 2, 3)


def test_classes_are_the_folders_of_all_splits_in_natural_order(tmp_path):
    touch(tmp_path / "train", "images/a.png", "masks/c10/a.png", "masks/c2/a_x.png", "masks/c2/a_y.png")
    touch(tmp_path / "val", "images/b.png", "masks/c10/b.png", "masks/c3/b.png")
    train, val = load_records(DataConfig(str(tmp_path), task="overlapping", allow_unpaired=True))
    assert train.metadata.classes == ((1, "c2"), (2, "c3"), (3, "c10"))
    assert val.metadata.classes == train.metadata.classes
    assert [Path(file.path).parent.name for file in val[0]["target"].files] == ["", "c3", "c10"]


@pytest.mark.parametrize("kind", ["channels", "folders"])
def test_masks_or_images_of_classes_without_partner_are_named_or_left_out_by_a_flag(tmp_path, kind):
    touch(tmp_path, "images/s/a.png", "images/b.png", "masks/s/a.npy", "masks/z.npy", "c/s/a.png", "c/y.png")

    def opened(**settings) -> Records:
        config = DataConfig(**settings)
        if kind == "channels":
            return open_channels(tmp_path / "images", tmp_path / "masks", (None, None), config)
        return open_class_folders(tmp_path / "images", tmp_path, ["c"], IMAGE_SUFFIXES, config)

    mask = {"channels": "z.npy", "folders": "c/y.png"}[kind]
    line = f"2 files without partner: b.png: image without mask; {mask}: mask without image"
    with pytest.raises(DataError, match=line):
        opened()
    records = opened(allow_unpaired=True)
    assert [record["name"] for record in records] == ["s/a.png"]
    assert len(records.metadata.unpaired) == 2
    assert records.rows.image_folders == {(f"{tmp_path}/images", "s")}


def test_masks_have_the_suffix_of_the_flag_where_others_lie_beside_them(tmp_path):
    names = ("a_m.png", "z_m.png", "notes.png")
    touch(tmp_path, "images/a.png", *(f"masks/{folder}/{name}" for folder in ("c", "d", ".hidden") for name in names))
    images, masks = tmp_path / "images", tmp_path / "masks"
    config = DataConfig(mask_suffix="_m", allow_unpaired=True)
    assert class_folders(images, masks, IMAGE_SUFFIXES, config) == ["c", "d"]
    (record,) = open_class_folders(images, masks, ["c", "d"], IMAGE_SUFFIXES, config)
    assert [file.path for file in record["target"].files] == [f"{masks}/c/a_m.png", f"{masks}/d/a_m.png"]
    (record,) = open_channels(images, masks / "c", (0, 1), config)
    assert [file.path for file in record["target"].files] == [f"{masks}/c/a_m.png"] * 2


@pytest.fixture
def channel_files(tmp_path) -> list[Path]:
    """Two empty images, and their empty masks of channels or pages."""
    return touch(tmp_path, "images/a.png", "images/b.png", "masks/a.npy", "masks/b.npy")


def records_of_channels(folder: Path, pages: tuple[int | None, ...], **settings) -> Records:
    return open_channels(folder / "images", folder / "masks", pages, DataConfig(**settings))


@pytest.mark.parametrize("pages", [(None, None), (0, 1)])
def test_the_key_of_channels_or_pages_changes_with_all_they_are(tmp_path, channel_files, pages):
    assert unnoticed_changes(channel_files, lambda: records_of_channels(tmp_path, pages).digest) == []
    other_pages = {(None, None): (0, 1), (0, 1): (1, 0)}[pages]
    keys = [
        records_of_channels(tmp_path, pages).digest,
        records_of_channels(tmp_path, pages, ignore_index="9").digest,
        records_of_channels(tmp_path, pages, classes="2=a").digest,
        records_of_channels(tmp_path, (*pages, pages[1])).digest,
        records_of_channels(tmp_path, other_pages).digest,
    ]
    for file in channel_files[1::2]:
        file.rename(file.with_stem("c"))
    keys.append(records_of_channels(tmp_path, pages).digest)
    assert len(set(keys)) == 6


@pytest.mark.usefixtures("channel_files")
@pytest.mark.parametrize("pages", [(None, None), (0, 1)])
def test_classes_beyond_the_channels_or_pages_are_refused(tmp_path, pages):
    with pytest.raises(DataError, match=r"^--classes names 3, but the masks have 2 pages or channels, from 1$"):
        records_of_channels(tmp_path, pages, classes="1=a,3=b,4=c")


def test_folders_of_masks_are_no_classes_where_the_task_is_another(folders):
    assert "image without mask" in error_of(folders, task="classes")


@pytest.mark.parametrize(
    ("channels", "dtype", "is_color"),
    [(2, "uint8", False), (3, "uint8", True), (4, "uint8", True), (5, "uint8", False), (4, "float32", False)],
)
def test_an_array_is_a_color_unless_classes_are_said_to_overlap(tmp_path, channels, dtype, is_color):
    for number in range(2):
        write_mask(tmp_path / "images", f"{number}.png", np.zeros((6, 8), np.uint8))
        (tmp_path / "masks").mkdir(exist_ok=True)
        np.save(tmp_path / "masks" / f"{number}.npy", np.zeros((6, 8, channels), dtype))
    classes = tuple((number, f"class {number}") for number in range(1, channels + 1))
    for task in (None, "overlapping"):
        train, _ = load_records(DataConfig(str(tmp_path), task=task))
        assert train.metadata.classes == (() if is_color and task is None else classes)


def test_more_classes_than_bits_are_refused(tmp_path):
    write_overlaps(tmp_path, 2, seed=0)
    for number in range(29):
        for image in ("00.png", "01.png"):
            write_mask(tmp_path / "masks" / f"c{number}", image, np.zeros(SIZE, np.uint8))
    assert "32 classes beside the background, and --task overlapping takes 1 to 31" in error_of(tmp_path)
    assert len(class_bits(tuple((value, f"c{value}") for value in range(31)))) == 31
    assert class_bits(((1, "cold"), (2, "cold"), (3, "warm"))) == {1: 0, 2: 0, 3: 1}
    assert set(class_bits(tuple((value, f"c{value % 3}") for value in range(40))).values()) == {0, 1, 2}
    with pytest.raises(DataError, match=r"^0 classes beside the background, and --task overlapping takes 1 to 31; ch"):
        class_bits(((0, "background"),))


def test_one_mask_for_each_image_is_no_overlapping_data_set(tmp_path):
    write_overlaps(tmp_path, 3, seed=0, layout="labels")
    assert "has one mask for each image" in error_of(tmp_path, task="overlapping")


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
def test_objects_keep_what_lies_below_others_and_without_the_task_are_classes_of_their_uppermost(tmp_path, kind):
    write_annotations(tmp_path, kind, box(8, 12, 6, 12))
    exclusive = load_info(tmp_path)
    info = load_info(tmp_path, task="overlapping")
    assert exclusive.config.task == "classes"
    assert info.train.records.metadata.task == "overlapping"
    assert info.reader.class_names == ("car", "wheel")
    car, wheel = planes(info.reader.read(info.train.records[0], SIZE).truth, 2)
    assert (car & wheel).sum() >= 6 * 8
    filled = np.zeros(SIZE, bool)
    filled[4:20, 4:28] = True
    assert (filled & ~car).sum() == 0
    assert (car & ~filled).sum() <= 2 * sum(SIZE)
    uppermost = exclusive.reader.read(exclusive.train.records[0], SIZE).mask
    assert (uppermost == np.where(wheel, 2, car)).all()


@pytest.mark.parametrize("task", ["classes", "objects"])
@pytest.mark.parametrize("kind", ["coco", "labelme", "yolo"])
def test_much_overlap_is_warned_of_and_little_is_not(tmp_path, kind, task):
    write_annotations(tmp_path / "much", kind, box(8, 12, 6, 12))
    (warning,) = [line for line in load_info(tmp_path / "much", task=task).warnings if "overlapping" in line]
    assert 8 <= int(warning.partition("%")[0]) <= 14
    assert "--task overlapping learns all classes" in warning
    assert warning in check_data(DataConfig(str(tmp_path / "much")))[0]
    write_annotations(tmp_path / "little", kind, box(40, 24, 6, 12))
    assert not any("overlapping" in line for line in load_info(tmp_path / "little").warnings)


def test_crowds_are_unknown_for_their_class(tmp_path):
    write_annotations(tmp_path, "coco", box(8, 12, 6, 12))
    content = json.loads((tmp_path / "annotations.json").read_text())
    content["annotations"][1]["iscrowd"] = 1
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    info = load_info(tmp_path, task="overlapping")
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
