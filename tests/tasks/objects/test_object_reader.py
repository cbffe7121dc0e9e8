"""Objects of a data set: which numbers of masks are objects, of which classes and shapes, and what a report counts.

Modules: tasks/objects/reader.py.
"""

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageFilter
from scipy.ndimage import label
from support.data_sets import load_info
from support.objects import Masks, numbered, picture, write_discs
from support.prediction import true_labels

from data_utils.config import DataConfig
from data_utils.image_io.formats import Box, PageFile, RenderedMask, SceneWindow
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources.records import ListRows, Records
from runtime.errors import SettingsError
from tasks import new_format
from tasks.objects.labels import label_numbers
from tasks.objects.loss import Objects
from tasks.objects.reader import ObjectReader, object_shapes
from train_utils.check_data import check_data
from unet.config import UNetConfig

COUNTS = [3, 5, 8, 9, 12, 14, 17]
TWO_CLASSES = ((9, "a"), (7, "b"))  # the values of a mask, in the order of the classes


def test_numbers_that_are_ignored_may_be_those_of_no_object():
    reader = ObjectReader((2**32 - 1,))
    target = reader.target_from_mask(np.array([[0, 2**32 - 1, 5]]), "a")
    assert target.ids.tolist() == [[0, 0, 5]]
    assert target.mask.tolist() == [[0, 255, 1]]
    assert reader.find_problem([0, 5, 2**32 - 1]) is None


def test_the_detail_that_objects_keep_counts_the_pixels_of_each(tmp_path):
    info = load_info(write_discs(tmp_path, COUNTS, seed=0))
    assert info.reader.smallest > 1
    kept = [info.reader.detail_kept(info.train.records, scale) for scale in (1, 0.5, 0.25)]
    assert kept[0] == 1
    assert kept[0] > kept[1] > kept[2] > 0


def test_colors_of_a_mask_are_numbers():
    colors = np.array([[[0, 0, 0], [1, 0, 0], [0, 0, 1]]], np.uint8)
    assert ObjectReader().target_from_mask(colors, "a").ids.tolist() == [[0, 1, 65536]]


def test_ignored_numbers_of_a_volume_stay_in_its_voxels():
    volume = np.array([[[0, 9, 2]]], np.int32)
    reader = ObjectReader.from_records(None, {}, (), DataConfig(ignore_index="9"))
    assert reader.target_from_volume(volume, "a").ids.tolist() == [[[0, 0, 2]]]
    assert volume.tolist() == [[[0, 9, 2]]]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (DataConfig(ignore_index="#ff0000"), "--ignore-index #ff0000: expected numbers of objects"),
        (DataConfig(outside="ignore"), "--outside ignore: objects .* leave it out"),
    ],
    ids=["a color is no number", "objects need a background"],
)
def test_settings_that_objects_cannot_use_are_refused(config, line):
    with pytest.raises(SettingsError, match=line):
        ObjectReader.from_records(None, {}, (), config)


class DrawnObjects(RenderedMask):
    """Objects of the mask values 7, 9, 300 and 255, a pixel each."""

    def render(self) -> np.ndarray:
        return np.array([[7, 9, 300, 0, 255]])

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[1, 2, 3, 0, 4]]), np.array([0, 7, 9, 300, 255])


@pytest.mark.parametrize("outside", [0, 255], ids=["background", "ignored"])
def test_objects_of_other_classes_are_none(outside):
    record = {"image": "", "target": DrawnObjects(), "name": "mask"}
    target = ObjectReader(classes=TWO_CLASSES, outside=outside).read(record, (1, 5))
    assert target.mask.tolist() == [[2, 1, outside, 0, 255]]
    assert target.ids.tolist() == [[1, 2, 0, 0, 0]]


def test_objects_are_told_apart_in_blocks_of_a_scene_too():
    block = SceneWindow(DrawnObjects(), "mask", (1, 5), Box(0, 1, 1, 4))
    target = ObjectReader(classes=TWO_CLASSES).read({"image": "", "target": block, "name": "mask"}, (1, 3))
    assert target.mask.tolist() == [[1, 0, 0]]
    assert target.ids.tolist() == [[2, 0, 0]]


@pytest.mark.parametrize(("flag", "outside"), [(None, 0), ("background", 0), ("ignore", 255)])
def test_a_flag_says_where_objects_of_other_classes_count(flag, outside):
    reader = ObjectReader.from_records(None, {}, ((0, "none"), (9, "a")), DataConfig(classes="a", outside=flag))
    assert reader == ObjectReader((), ((9, "a"),), outside)


@pytest.mark.parametrize(
    ("reader", "class_pixels"),
    [
        (ObjectReader(ignored=(9,)), (50, 25)),  # a number may be 255, and ignored ones count nowhere
        (ObjectReader(classes=((9, "a"),)), (70, 30)),  # as a class 255 is of pixels that count nowhere
        (ObjectReader(classes=((9, "a"),), outside=255), (50, 30)),
    ],
    ids=["a number", "a class", "others unknown"],
)
def test_pixels_of_value_255_count_as_those_of_a_number_alone(reader, class_pixels):
    assert reader.with_pixels({None: {0: 50, 7: 20, 9: 30, 255: 5}}).class_pixels == class_pixels


def test_black_is_the_background_of_objects_that_are_numbered_by_color():
    reader = ObjectReader().with_pixels({None: {(0, 0, 0): 50, (7, 0, 0): 20, (0, 0, 9): 30}})
    assert reader.class_pixels == (50, 50)


def test_a_reader_of_objects_tells_its_task():
    reader = ObjectReader(classes=TWO_CLASSES, smallest=7, fills_holes=True, class_pixels=(10, 0, 30))
    task = reader.task("ce", ["auto"])
    assert task.smallest == 7
    assert task.fills_holes
    assert task.classes.names == ("background", "a", "b")
    assert task.classes.class_weights.tolist() == pytest.approx([(4 / 3) ** 0.5, 1, (4 / 9) ** 0.5])


def test_label_images_of_32_bits_are_numbered_anew_in_crops(tmp_path):
    """Their numbers are larger than 20 million."""
    folder = write_discs(tmp_path, COUNTS, seed=3)
    for file in (folder / "masks").iterdir():
        ids = np.array(Image.open(file)).astype(np.uint32)
        tifffile.imwrite(file.with_suffix(".tif"), np.where(ids > 0, ids + 20_000_000, 0).astype(np.uint32))
        file.unlink()
    info = load_info(folder, crop_size=(16, 24), augment="strong")
    assert info.config.task == "objects"
    dataset = TrainingDataset(info.train, info, info.preprocess())
    for index in range(len(dataset)):
        ids = dataset[Slot(index, 0, (16, 24))][1].ids
        assert ids.dtype.itemsize == 4
        assert int(ids.max()) <= 16 * 24
        assert sorted(set(ids.ravel().tolist()) | {0}) == list(range(int(ids.max()) + 1))


def test_crops_of_large_label_images_are_numbered_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 1000)
    ids = np.zeros((60, 80), np.int32)
    ids[::2, ::2] = np.arange(1, 30 * 40 + 1).reshape(30, 40)  # more than classes may be
    for name, values in (("images", picture(ids)), ("masks", ids)):
        (tmp_path / name).mkdir()
        for index in range(3):
            np.save(tmp_path / name / f"{index}.npy", values)
    info = load_info(tmp_path, task="objects", crop_size=(16, 16))
    background, objects = info.train.class_locations[0]
    assert (ids[tuple(background.T)] == 0).all()
    assert (ids[tuple(objects.T)] > 0).all()
    target = TrainingDataset(info.train, info, info.preprocess())[Slot(0, 0, (16, 16))][1]
    assert int(target.ids.max()) == 64
    assert target.mask.sum() == 64


def test_numbers_that_no_object_can_have_are_a_problem(tmp_path):
    for index, file in enumerate(sorted((write_discs(tmp_path, COUNTS, seed=0) / "masks").iterdir())):
        ids = np.array(Image.open(file)).astype(np.uint32)
        numbers = np.where(ids > 0, 2**31, 0) if index == 6 else ids
        tifffile.imwrite(file.with_suffix(".tif"), numbers.astype(np.uint32))
        file.unlink()
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert problems == 1
    assert "06.png: mask holds 2,147,483,648, but the numbers of objects are 1 to" in report


@pytest.mark.parametrize(
    ("mask", "smallest"),
    [
        (np.repeat(np.arange(1, 101), np.arange(11, 111))[None], 5),  # the percentile lies just below 12
        (np.repeat(np.arange(1, 202), [1, *[40] * 200])[None], 20),
        (numbered(3), 1),
    ],
    ids=["11 to 110 pixels", "a speck among 40 pixels", "one pixel"],
)
def test_the_smallest_prediction_is_half_of_the_hundredth_smallest_object(mask, smallest):
    assert object_shapes(Masks([mask]), ObjectReader())["smallest"] == smallest


RING = np.pad([[0]], 2, constant_values=1)


@pytest.mark.parametrize(("count", "are_filled"), [(20, True), (19, False)])
def test_a_hole_in_every_twentieth_object_is_taken_for_a_mistake(count, are_filled):
    mask = np.concatenate([RING, *(np.full((5, 5), number) for number in range(2, count + 1))])
    assert object_shapes(Masks([mask]), ObjectReader())["fills_holes"] == are_filled


def test_an_object_in_the_hole_of_another_leaves_the_hole():
    mask = RING.copy()
    mask[2, 2] = 2
    shapes = object_shapes(Masks([3 * mask]), ObjectReader())  # a number that is not there lies between
    assert shapes == {"smallest": 1, "fills_holes": False}


SIDE = 48


def squares(seed: int, count: int) -> np.ndarray:
    """(H, W) uint8: so many squares of 1 that do not touch."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    places = np.random.default_rng(seed).permutation(16)[:count]
    for row, column in zip(*np.divmod(places, 4), strict=True):
        mask[12 * row + 1 : 12 * row + 10, 12 * column + 1 : 12 * column + 10] = 1
    return mask


def with_specks(seed: int) -> np.ndarray:
    mask = squares(seed, 1)
    mask[0, ::6] |= 1
    return mask


def write(folder: Path, masks: list[np.ndarray]) -> Path:
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number, mask in enumerate(masks):
        noise = np.random.default_rng(number).integers(0, 99, mask.shape).astype(np.uint8)
        Image.fromarray(noise + 100 * (mask > 0).astype(np.uint8)).save(folder / "images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
    return folder


PIECES: dict[str, tuple[Callable[[int], np.ndarray], str | None]] = {
    "0 and 1": (lambda seed: squares(seed, 5), None),
    "0 and 255, a few empty": (lambda seed: 255 * squares(seed, 3 * (seed % 3)), None),
    "some ignored": (lambda seed: squares(seed, 4) + 99 * (squares(seed, 5) - squares(seed, 4)), "99"),
}


@pytest.mark.parametrize(("mask", "ignored"), PIECES.values(), ids=PIECES)
def test_the_pieces_of_one_value_are_objects(tmp_path, mask, ignored):
    folder = write(tmp_path, [mask(seed) for seed in range(6)])
    info = load_info(folder, task="objects", ignore_index=ignored)
    assert any("each connected piece is an object" in line and "--task classes" in line for line in info.warnings)
    for record in [*info.train.records, *info.val.records]:
        values = np.asarray(Image.open(record["target"]))
        target = info.reader.read(record, values.shape)
        pieces, count = label((values > 0) & (values != 99))
        assert len(np.unique(target.ids * 1000 + pieces)) == count + 1  # the same pieces, numbered in any order
        assert ((target.mask == 255) == (values == 99)).all()
    report, problems = check_data(DataConfig(str(folder), task="objects", ignore_index=ignored))
    assert problems == 0
    assert "each connected piece is an object" in report


@pytest.mark.parametrize(
    "mask",
    [
        lambda seed: squares(seed, 1),
        with_specks,
        lambda seed: squares(seed, 5) * (1 + (np.indices((SIDE, SIDE))[0] > 20).astype(np.uint8)),
    ],
    ids=["one piece", "one piece and specks", "two numbers"],
)
def test_a_number_of_one_piece_and_several_numbers_are_objects_as_they_are(tmp_path, mask):
    info = load_info(write(tmp_path, [mask(seed) for seed in range(6)]), task="objects")
    assert not any("connected piece" in line for line in info.warnings)
    for record in [*info.train.records, *info.val.records]:
        values = np.asarray(Image.open(record["target"]))
        assert (info.reader.read(record, values.shape).ids == values).all()


def test_the_pieces_of_volumes_are_objects(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    for number in range(4):
        volume = np.stack([np.zeros((SIDE, SIDE)), *[squares(number, 4)] * 3, *[squares(9, 1)] * 3], axis=2)
        for kind, voxels in (("images", 90 * volume.astype(np.float32)), ("masks", volume.astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / kind / f"{number}.nii.gz")
    info = load_info(tmp_path, task="objects", crop_size=(4, 32, 32))
    ids = info.reader.ids(info.train.records[0])
    pieces, count = label(ids > 0, np.ones((3, 3, 3)))
    assert 4 <= count == ids.max()
    assert len(np.unique(ids * 1000 + pieces)) == count + 1


def test_the_pieces_of_true_masks_are_objects_of_such_a_model(tmp_path):
    values = squares(0, 5)
    Image.fromarray(values).save(tmp_path / "a.png")
    config = UNetConfig(num_classes=3, task=Objects(in_pieces=True).to_config())
    output_format = new_format(config)
    pieces = true_labels(PageFile(tmp_path / "a.png"), output_format)
    assert len(np.unique(label_numbers(pieces))) == 6


def test_check_data_counts_objects(tmp_path):
    write_discs(tmp_path, [3, 5, 8, 9], seed=0)
    ids = np.zeros((48, 64), np.uint16)
    ids[2:6, 2:6], ids[2:6, 6:10], ids[20:24, 20:30], ids[40:42, 40:42] = 1, 2, 900, 900
    Image.fromarray(ids).save(tmp_path / "masks" / "00.png")
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert problems == 0, report
    other_masks = [np.array(Image.open(file)) for file in sorted((tmp_path / "masks").iterdir())[1:]]
    total = 3 + sum(int(values.max()) for values in other_masks)
    assert f"objects: {total} in 4 of 4 images;" in report
    assert "sizes of objects in pixels: 16 to " in report
    assert ") touch another object" in report
    assert "holes in predictions filled" in report
    assert "to check: in 1 image a number names several pieces, which count as one object: 00.png" in report


@pytest.mark.parametrize(
    ("suffix", "line"), [(".jpg", "mask is a JPEG with"), (".png", "pieces of objects have 4 pixels at most")]
)
def test_binary_masks_that_were_smoothed_are_no_numbers_of_objects(tmp_path, suffix, line):
    write_discs(tmp_path, [3, 5, 8, 9], seed=0)
    for file in sorted((tmp_path / "masks").iterdir()):
        mask = Image.fromarray(255 * (np.array(Image.open(file)) > 0).astype(np.uint8))
        file.unlink()
        mask.filter(ImageFilter.GaussianBlur(1)).save(file.with_suffix(suffix))
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert line in report
    assert bool(problems) == (suffix == ".jpg")


def test_the_report_counts_objects_of_masks_that_can_be_read():
    # the first is among the problems
    records = Records(ListRows([{"image": "", "target": "nowhere.png", "name": "gone"}, *Masks([numbered(3)])]))
    lines = ObjectReader().describe_records([records, Masks([numbered(2)])])
    assert lines[0] == "objects: 5 in 2 of 2 images; 2.5 an image, 3 at most"
