"""The data sets of the benchmarks, as folders that train.py reads.

DATA/camvid          CamVid: `train` and `val`, each with `images` and `masks`; class 11 is void
DATA/isbi2012        ISBI 2012: `images` and `masks`; the first 24 slices train, the last six validate
DATA/people          photographs of people, a checkout of https://github.com/VikramShenoy97/Human-Segmentation-Dataset
DATA/pavement        cracks in pavement, a checkout of https://github.com/cuilimeng/CrackForest-dataset
DATA/hippocampus     task 4 of the Medical Segmentation Decathlon: `imagesTr` and `labelsTr`

Of people, pavement and hippocampus every fifth one validates. Cracks are drawn; `shapes` are train.py's own. Others are
made of these: `grey-cracks`; `streets`, grey pictures of CamVid with classes that overlap; `neurites`, the cells of
ISBI 2012 as numbered objects; `slices`, the whole hippocampus and its front in slices at twice their size.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from scipy import ndimage
from scipy.io import loadmat

SOURCES = {  # folders of DATA
    "camvid": "camvid",
    "streets": "camvid",
    "isbi": "isbi2012",
    "neurites": "isbi2012",
    "people": "people",
    "pavement": "pavement",
    "slices": "hippocampus",
}
TRAINING_SLICES = 24  # of ISBI's 30
CRACK = 2  # in CrackForest's ground truth
SMALLEST_NEURITE = 30  # pixels
STREET_PARTS = {"moving": (8, 9, 10), "ground": (3, 4, 8, 9, 10), "upright": (1, 2, 5, 6, 7)}  # of CamVid's classes
SLICES = {"train": (-4, 0, 4), "val": (-2, 2)}  # beside the slice with the largest hippocampus


def prepare(data: Path, results: Path, names: Iterable[str]) -> dict[str, Path]:
    """The folder of each set, written into `results` where DATA's own does not do."""
    folders = {}
    for name in names:
        if name in SOURCES and not (data / SOURCES[name]).is_dir():
            sys.exit(f"{data / SOURCES[name]} is missing; what it holds is said in {__file__}")
        folders[name] = results / name if name in WRITERS else data / name
        if name in WRITERS and not folders[name].exists():
            for part in ("train", "val"):
                for kind in ("images", "masks"):
                    (folders[name] / part / kind).mkdir(parents=True)
            WRITERS[name](data, folders[name])
    return folders


def link_slices(data: Path, folder: Path) -> None:
    for kind in ("images", "masks"):
        for number, file in enumerate(sorted((data / "isbi2012" / kind).iterdir())):
            part = "train" if number < TRAINING_SLICES else "val"
            (folder / part / kind / file.name).symlink_to(file.resolve())


def write_neurites(data: Path, folder: Path) -> None:
    link_slices(data, folder)
    for mask in sorted(folder.glob("*/masks/*")):
        cells, _ = ndimage.label(np.asarray(Image.open(mask)) > 0)
        cells[np.bincount(cells.ravel())[cells] < SMALLEST_NEURITE] = 0
        numbers = np.searchsorted(np.unique(cells), cells)
        mask.unlink()
        Image.fromarray(numbers.astype(np.uint16)).save(mask)


def write_streets(data: Path, folder: Path) -> None:
    """Every second image of CamVid for training, every third for validation, in grey."""
    for part, step in (("train", 2), ("val", 3)):
        for image in sorted((data / "camvid" / part / "images").iterdir())[::step]:
            name = f"{image.stem}.png"
            Image.open(image).convert("L").save(folder / part / "images" / name)
            mask = np.asarray(Image.open(data / "camvid" / part / "masks" / name))
            for kind, classes in STREET_PARTS.items():
                (folder / part / "masks" / kind).mkdir(exist_ok=True)
                is_inside = np.isin(mask, classes)
                Image.fromarray(255 * is_inside.astype(np.uint8)).save(folder / part / "masks" / kind / name)


def write_slices(data: Path, folder: Path) -> None:
    for part, name, image, mask in hippocampus_slices(data):
        image.save(folder / part / "images" / name)
        for organ, is_inside in (("whole", mask > 0), ("front", mask == 1)):
            (folder / part / "masks" / organ).mkdir(exist_ok=True)
            Image.fromarray(255 * is_inside.astype(np.uint8)).save(folder / part / "masks" / organ / name)


def hippocampus_slices(data: Path) -> Iterator[tuple[str, str, Image.Image, np.ndarray]]:
    """The part, the name, the picture of 8 bits and the mask (0, 1, 2) of sagittal slices, at twice their size."""
    import nibabel

    for number, file in enumerate(sorted((data / "hippocampus" / "imagesTr").glob("*.nii.gz"))):
        voxels = np.asarray(nibabel.load(file).dataobj, np.float32)
        labels = np.asarray(nibabel.load(data / "hippocampus" / "labelsTr" / file.name).dataobj).astype(np.uint8)
        brightness = (255 * voxels / np.percentile(voxels, 99.5)).clip(0, 255).astype(np.uint8)
        largest = int((labels > 0).sum((1, 2)).argmax())
        for offset in SLICES[part_of(number)]:
            x = largest + offset
            if not 0 <= x < len(labels) or (labels[x] > 0).sum() < 20:
                continue
            picture = Image.fromarray(brightness[x].T[::-1])
            size = 2 * picture.width, 2 * picture.height
            mask = labels[x].T[::-1].repeat(2, 0).repeat(2, 1)
            yield part_of(number), f"{file.name.split('.')[0]}_{x:02}.png", picture.resize(size, Image.BICUBIC), mask


def link_people(data: Path, folder: Path) -> None:
    files = sorted((data / "people" / "Training_Images").glob("*.jpg"), key=lambda file: int(file.stem))
    for number, image in enumerate(files):
        mask = data / "people" / "Ground_Truth" / f"{image.stem}.png"
        for kind, file in (("images", image), ("masks", mask)):
            (folder / part_of(number) / kind / file.name).symlink_to(file.resolve())


def write_pavement(data: Path, folder: Path) -> None:
    for number, file in enumerate(sorted((data / "pavement" / "groundTruth").glob("*.mat"))):
        image = data / "pavement" / "image" / f"{file.stem}.jpg"
        (folder / part_of(number) / "images" / image.name).symlink_to(image.resolve())
        cracks = loadmat(file)["groundTruth"][0, 0]["Segmentation"] == CRACK
        Image.fromarray(cracks.astype(np.uint8)).save(folder / part_of(number) / "masks" / f"{file.stem}.png")


def part_of(number: int) -> str:
    return "val" if number % 5 == 4 else "train"


def write_cracks(_: Path, folder: Path) -> None:
    for part, count, first in (("train", 60, 0), ("val", 20, 1000)):
        for number in range(count):
            pictures = draw_cracks(np.random.default_rng([1, first + number]))
            for kind, picture in zip(("images", "masks"), pictures, strict=True):
                picture.save(folder / part / kind / f"{number}.png")


def write_grey_cracks(data: Path, folder: Path) -> None:
    write_cracks(data, folder)
    for file in sorted(folder.glob("*/images/*")):
        Image.open(file).convert("L").save(file)


def draw_cracks(rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """A picture of 240 x 320 and its mask: thin dark lines, 2% of the pixels, on uneven, noisy ground with stains."""
    height, width = 240, 320
    light = Image.fromarray(rng.uniform(100, 160, (6, 8)).astype(np.uint8)).resize((width, height), Image.BICUBIC)
    coarse = Image.fromarray(rng.normal(0, 14, (height // 3, width // 3)).astype(np.float32)).resize((width, height))
    ground = np.asarray(light, np.float32) + rng.normal(0, 18, (height, width)) + np.asarray(coarse)
    stains, mask = Image.new("L", (width, height)), Image.new("L", (width, height))
    for _ in range(rng.integers(2, 7)):
        x, y, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(4, 25)
        box = (x - r, y - r * rng.uniform(0.3, 1), x + r, y + r)
        ImageDraw.Draw(stains).ellipse(box, fill=int(rng.integers(20, 60)))
    for _ in range(rng.integers(1, 4)):
        x, y, angle = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0, 2 * math.pi)
        thickness = int(rng.integers(1, 5))
        for _ in range(rng.integers(15, 45)):
            angle += rng.normal(0, 0.4)
            end = x + 8 * math.cos(angle), y + 8 * math.sin(angle)
            ImageDraw.Draw(mask).line((x, y, *end), fill=1, width=thickness)
            x, y = end
    soft = np.asarray(stains.filter(ImageFilter.GaussianBlur(3)), np.float32)
    dark = np.asarray(mask.point(lambda v: 255 * v).filter(ImageFilter.GaussianBlur(0.7)), np.float32) / 255
    grey = ground - soft - dark * rng.uniform(25, 60)
    color = np.stack([grey * factor for factor in rng.uniform(0.92, 1.08, 3)], axis=-1)
    return Image.fromarray(color.clip(0, 255).astype(np.uint8)), mask


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "isbi": link_slices,
    "people": link_people,
    "pavement": write_pavement,
    "cracks": write_cracks,
    "grey-cracks": write_grey_cracks,
    "streets": write_streets,
    "neurites": write_neurites,
    "slices": write_slices,
}
