"""The data sets of the benchmarks, as folders that train.py reads.

DATA/camvid          CamVid: `train` and `val`, each with `images` and `masks`; class 11 is void
DATA/isbi2012        ISBI 2012: `images` and `masks`; the first 24 slices train, the last six validate
DATA/people          photographs of people, a checkout of https://github.com/VikramShenoy97/Human-Segmentation-Dataset
DATA/pavement        cracks in pavement, a checkout of https://github.com/cuilimeng/CrackForest-dataset
DATA/hippocampus     task 4 of the Medical Segmentation Decathlon: `imagesTr` and `labelsTr`

Of people, pavement and hippocampus every fifth one validates. Of the volumes there are some slices each, at twice their
size.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import loadmat

from runtime.files import complete_folder

TRAINING_SLICES = 24  # of ISBI's 30
CRACK = 2  # in CrackForest's ground truth
SLICES = {"train": (-4, 0, 4), "val": (-2, 2)}  # beside the slice with the largest hippocampus


def prepare(data: Path, results: Path, names: Iterable[str]) -> dict[str, Path]:
    """The folder of each set, written into `results` where DATA's own does not do."""
    folders = {}
    for name in names:
        source = data / ("isbi2012" if name == "isbi" else name)
        if not source.is_dir():
            sys.exit(f"{source} is missing; what it holds is said in {__file__}")
        folders[name] = results / name if name in WRITERS else data / name
        if name in WRITERS and not folders[name].exists():
            results.mkdir(parents=True, exist_ok=True)
            with complete_folder(folders[name]) as folder:
                for part in ("train", "val"):
                    for kind in ("images", "masks"):
                        (folder / part / kind).mkdir(parents=True)
                WRITERS[name](data, folder)
    return folders


def link_slices(data: Path, folder: Path) -> None:
    for kind in ("images", "masks"):
        for number, file in enumerate(sorted((data / "isbi2012" / kind).iterdir())):
            part = "train" if number < TRAINING_SLICES else "val"
            (folder / part / kind / file.name).symlink_to(file.resolve())


def write_hippocampus(data: Path, folder: Path) -> None:
    """Pictures of 8 bits and masks of 0, 1 and 2, of sagittal slices."""
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
            part, name = folder / part_of(number), f"{file.name.split('.')[0]}_{x:02}.png"
            picture.resize(size, Image.BICUBIC).save(part / "images" / name)
            Image.fromarray(mask).save(part / "masks" / name)


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


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "isbi": link_slices,
    "people": link_people,
    "pavement": write_pavement,
    "hippocampus": write_hippocampus,
}
