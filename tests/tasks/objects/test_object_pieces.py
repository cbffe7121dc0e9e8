"""Masks of one value as targets of objects: their connected pieces are the objects.

Modules: tasks/objects/reader.py, tasks/objects/write.py.
"""

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import label
from support.data_sets import load_info

from data_utils.config import DataConfig
from data_utils.image_io.formats import PageFile
from tasks.objects.labels import label_numbers
from tasks.objects.loss import Objects
from tasks.objects.write import ObjectFormat
from tasks.scoring.masks import open_mask
from train_utils.check_data import check_data
from unet.config import UNetConfig

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
    config = UNetConfig(2, task=Objects(in_pieces=True).to_config())
    output_format = ObjectFormat.from_config(config)
    mask = PageFile(tmp_path / "a.png")
    with open_mask(mask, output_format.reader) as pieces:
        assert len(np.unique(label_numbers(pieces.labels()))) == 6
