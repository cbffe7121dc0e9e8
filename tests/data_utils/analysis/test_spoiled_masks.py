"""Masks with invented values on their borders end in one line; masks of thin or rare classes do not."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter
from support.data_sets import load_info
from support.launches import ROOT

from data_utils.analysis.spoiled_masks import BorderCounts
from data_utils.config import DataConfig
from runtime.errors import DataError
from train_utils.check_data import check_data

DATA = ROOT.parent / "shared" / "data"
SIDE = 96
Spoil = Callable[[Image.Image], Image.Image]


def shapes(seed: int, values: Sequence[int] = (255,), side: int = SIDE) -> Image.Image:
    """A mask of filled circles and rectangles on 0."""
    rng = np.random.default_rng(seed)
    mask = Image.new("L", (side, side), 0)
    draw = ImageDraw.Draw(mask)
    for number in range(6):
        value = values[number % len(values)]
        x, y = rng.integers(0, side, 2).tolist()
        radius = int(rng.integers(side // 10, side // 4))
        box = (x - radius, y - radius, x + radius, y + radius // (1 + number % 2))
        if number % 2:
            draw.ellipse(box, fill=value)
        else:
            draw.rectangle(box, fill=value)
    return mask


def lines(seed: int, values: Sequence[int], count: int) -> Image.Image:
    """A mask of lines one pixel thick on 0."""
    rng = np.random.default_rng(seed)
    mask = Image.new("L", (SIDE, SIDE), 0)
    draw = ImageDraw.Draw(mask)
    for number in range(count):
        ends = rng.integers(0, SIDE, 4).tolist()
        draw.line(ends, fill=values[number % len(values)])
    return mask


def write(folder: Path, masks: Sequence[Image.Image | np.ndarray]) -> Path:
    """A data set of grey noise with these masks, written as PNG."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number, mask in enumerate(masks):
        pixels = np.asarray(mask)
        image = rng.integers(0, 256, pixels.shape[:2], np.uint8)
        Image.fromarray(image).save(folder / "images" / f"{number:02}.png")
        Image.fromarray(pixels).save(folder / "masks" / f"{number:02}.png")
    return folder


def resaved(quality: int, kind: str = "jpeg") -> Spoil:
    """Compresses a mask and decodes it again."""

    def spoil(mask: Image.Image) -> Image.Image:
        file = io.BytesIO()
        mask.convert("RGB" if kind == "webp" else mask.mode).save(file, kind, quality=quality)
        return Image.open(file).convert(mask.mode)

    return spoil


def half(method: Image.Resampling) -> Spoil:
    return lambda mask: mask.resize((mask.width // 2, mask.height // 2), method)


SPOILED: dict[str, tuple[Sequence[int], Spoil]] = {
    "soft edges of 84": ((84,), half(Image.Resampling.LANCZOS)),
    "0, 64, 128, 191, 255": ((255,), half(Image.Resampling.BOX)),
    "enlarged": ((255,), lambda mask: mask.resize((250, 250), Image.Resampling.BILINEAR)),
    "blurred": ((255,), lambda mask: mask.filter(ImageFilter.GaussianBlur(2))),
    "turned": ((60, 120, 240), lambda mask: mask.rotate(17, Image.Resampling.BICUBIC)),
    "several classes, soft": ((60, 120, 200), half(Image.Resampling.BOX)),
    "JPEG 75": ((255,), resaved(75)),
    "JPEG 75 of 84": ((84,), resaved(75)),
    "JPEG 90, several classes": ((50, 100, 200), resaved(90)),
    "WebP": ((255,), resaved(80, "webp")),
    "colors, soft": ((255,), lambda mask: half(Image.Resampling.BOX)(Image.merge("RGB", [mask, mask, shapes(9)]))),
    "colors, JPEG": ((255,), lambda mask: resaved(90)(Image.merge("RGB", [mask, shapes(8), shapes(9)]))),
}


@pytest.mark.parametrize(("values", "spoil"), SPOILED.values(), ids=SPOILED)
def test_invented_values_end_in_a_one_line_error_that_mends_them(tmp_path, values, spoil):
    write(tmp_path / "data", [spoil(shapes(seed, values)) for seed in range(5)])
    with pytest.raises(DataError) as error:
        load_info(tmp_path / "data")
    line = str(error.value)
    assert "\n" not in line
    assert "Export the masks again without smoothing (re-saving them keeps the invented values)" in line
    assert "docs/preparing-masks.md#no-smoothed-edges" in line


def test_a_spoiled_mask_among_others_is_named_with_the_classes_and_trusted_where_a_flag_says_so(tmp_path):
    masks = [shapes(seed, (84,)) for seed in range(12)]
    write(tmp_path, masks)
    assert load_info(tmp_path).reader.class_map.values == (0, 84)
    half(Image.Resampling.BOX)(shapes(7, (84,), 2 * SIDE)).save(tmp_path / "masks" / "07.png")
    with pytest.raises(DataError) as error:
        load_info(tmp_path)
    line = str(error.value)
    assert "of their pixels hold 0, 84; the other values, 21, 42, 63, lie on the borders" in line
    assert "in 1 of 12 masks: 07.png." in line
    assert "--check-data --classes 0=background,84=foreground lists these files" in line
    assert line.endswith("If all values are classes, give --task classes")
    assert load_info(tmp_path, task="classes").reader.class_map.values == (0, 21, 42, 63, 84)
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 1
    assert "re-saving them keeps the invented values" in report
    report, problems = check_data(DataConfig(str(tmp_path), classes="0=background,84=person"))
    assert problems == 1
    assert "07.png: mask values 21, 42, 63 belong to no class" in report


@pytest.mark.parametrize("image_value", [1, 255, (255, 0, 0)])
def test_folders_of_8_bits_that_are_swapped_are_asked_about(image_value, tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        disc = np.array(shapes(number)) > 0
        Image.fromarray((disc[..., None] * np.array(image_value)).squeeze().astype(np.uint8)).save(
            tmp_path / "images" / f"{number}.png"
        )
        grey = rng.normal(90, 20, disc.shape) + 80 * disc
        Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(tmp_path / "masks" / f"{number}.png")
    with pytest.raises(DataError, match="are images and masks swapped"):
        load_info(tmp_path)
    load_info(tmp_path, task="classes")


def bands_of(seed: int, thickness: int) -> np.ndarray:
    """A mask of rings around a spot, whose values rise outwards."""
    center = np.random.default_rng(seed).integers(30, 60, 2)[:, None, None]
    distance = np.hypot(*(np.mgrid[:SIDE, :SIDE] - center))
    return np.uint8([0, 50, 100, 150, 200])[np.clip(distance // thickness, 0, 4).astype(int)]


THIN: dict[str, list[Image.Image | np.ndarray]] = {
    "lines on one class": [lines(seed, (100, 200), 20) for seed in range(4)],
    "lines of four classes": [lines(seed, (50, 100, 150, 200), 20) for seed in range(4)],
    "a border of one value": [np.uint8([0, 128, 255])[np.kron(np.eye(2, dtype=int), np.ones((30, 30), int)) * 2]] * 3,
    "bands": [bands_of(seed, 4) for seed in range(3)],
    "many classes": [shapes(seed, (60, 120, 180, 240)) for seed in range(4)],
    "a run of soft edges": [np.asarray(half(Image.Resampling.BOX)(shapes(seed))) // 64 for seed in range(4)],
    "colors": [np.stack([np.asarray(shapes(seed + channel)) for channel in range(3)], axis=2) for seed in range(4)],
}


@pytest.mark.parametrize("masks", THIN.values(), ids=THIN)
def test_thin_and_rare_classes_pass(tmp_path, masks):
    load_info(write(tmp_path, masks))


def regions(seed: int, values: Sequence[int], count: int = 60) -> np.ndarray:
    """A mask of regions that each hold one of the values."""
    rng = np.random.default_rng(seed)
    y, x = rng.integers(0, 2 * SIDE, (2, count))
    pixels = np.arange(2 * SIDE)
    distances = (pixels[:, None, None] - y) ** 2 + (pixels[None, :, None] - x) ** 2
    return np.asarray(values)[rng.integers(0, len(values), count)][distances.argmin(axis=2)]


SCATTERED = {
    "one number missing": [value for value in range(34) if value != 5],
    "some of 150": [value for value in range(150) if value % 7 != 3],
    "far apart": [0, 2, 41, *range(1001, 1036), *range(2001, 2036)],
}


@pytest.mark.parametrize("values", SCATTERED.values(), ids=SCATTERED)
@pytest.mark.parametrize("step", [1, 4])
def test_many_values_with_gaps_are_classes(tmp_path, values, step):
    folder = write(tmp_path, [regions(seed, values).astype(np.uint16)[::step, ::step] for seed in range(6)])
    class_values = load_info(folder).reader.class_map.values
    assert len(class_values) > 32
    assert set(class_values) <= set(values)


@pytest.mark.parametrize("spoil", [resaved(75), half(Image.Resampling.BILINEAR)], ids=["JPEG 75", "half"])
def test_many_values_with_gaps_may_be_spoiled_too(tmp_path, spoil):
    values = [4 * value for value in range(40)]
    folder = write(tmp_path, [spoil(Image.fromarray(regions(seed, values).astype(np.uint8))) for seed in range(6)])
    with pytest.raises(DataError, match=r"the masks look spoiled"):
        load_info(folder)


def test_labels_of_volumes_may_be_spoiled_too(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    for number in range(3):
        planes = [np.asarray(half(Image.Resampling.BOX)(shapes(3 * number + z, (100,)))) for z in range(3)]
        empty = np.zeros_like(planes[0])
        labels = np.stack([empty, *planes, empty], axis=2)
        voxels = np.random.default_rng(number).normal(size=labels.shape).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / "images" / f"{number}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(labels, np.eye(4)), tmp_path / "masks" / f"{number}.nii.gz")
    with pytest.raises(
        DataError, match=r"of their pixels hold 0, 100; the other values, 25, 50, 75, lie on the borders"
    ):
        load_info(tmp_path)


@pytest.mark.skipif(not (DATA / "camvid").is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_street_scenes_pass_whatever_their_numbers(step):
    """CamVid with the numbers of Cityscapes, which are no run, at full size and smaller."""
    numbers = np.uint8([23, 11, 17, 7, 8, 21, 20, 13, 26, 24, 33, 0])
    counts = BorderCounts()
    for path in sorted((DATA / "camvid" / "train" / "masks").iterdir())[::20]:
        counts.add(numbers[np.array(Image.open(path))][::step, ::step])
    assert counts.classes() == []


def test_invented_values_of_validation_masks_alone_are_found(tmp_path):
    write(tmp_path / "train", [shapes(seed, side=32) for seed in range(3)])
    write(tmp_path / "val", [resaved(75)(shapes(seed, side=32)) for seed in range(3)])
    with pytest.raises(DataError, match="the masks look spoiled"):
        load_info(tmp_path)
    assert "the masks look spoiled" in check_data(DataConfig(str(tmp_path)))[0]
