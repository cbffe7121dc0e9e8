"""Cityscapes: leftImg8bit/ and gtFine/, the masks in its own ids or in training ids.

The ids: https://www.cityscapes-dataset.com/dataset-overview/#class-definitions.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import IMAGE_SUFFIXES, DrawnMask, ImageSource
from data_utils.image_io.reader import read_mask
from data_utils.sources.annotations.layout import Places, check_unpaired, folder_in, wanted_splits
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.folder import children, natural
from data_utils.sources.records import AnnotationSummary, Records
from unet.config import IGNORE_INDEX, MaskValue

IMAGE, LABEL_IDS, TRAIN_IDS = "_leftImg8bit", "_gtFine_labelIds", "_gtFine_labelTrainIds"
# ids of the classes that the benchmark evaluates, in the order of their training ids
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
NAMES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
EVALUATED = np.full(256, IGNORE_INDEX, np.uint8)
EVALUATED[list(IDS)] = IDS


@dataclass(frozen=True)
class EvaluatedIds(DrawnMask):
    """A file of ids in which those that are not evaluated become 255."""

    file: str

    def draw(self) -> np.ndarray:
        """(H, W) uint8."""
        return EVALUATED.take(read_mask(self.file, self.file), mode="clip")  # -1 is a license plate, ignored too


class CityscapesRecords(PairedRecords):
    """Images with their files of ids, or of training ids."""

    def mask(self, image: str, annotation: str) -> ImageSource:
        return annotation if self.classes[0][0] == 0 else EvaluatedIds(annotation)


def find(root: Path, named: Sequence[str]) -> Places:
    """Split -> (folder of images, folder of masks), which may be the same."""
    images, masks = folder_in(root, ("leftimg8bit",)) or root, folder_in(root, ("gtfine",)) or root
    below, masks_below = children(images), children(masks)
    places = {name: (below[name], masks_below[name]) for name in below if name in wanted_splits(named) & {*masks_below}}
    places = places or {"train": (images, masks)}
    return {split: both for split, both in places.items() if any(files(both[1], ids) for ids in (LABEL_IDS, TRAIN_IDS))}


def load(root: Path, places: Places, allow_unpaired: bool) -> dict[str, Callable[[], Records]]:
    """Split -> what opens it; by training ids where all masks have them."""
    trained = all(files(masks, TRAIN_IDS).keys() >= files(masks, LABEL_IDS).keys() for _, masks in places.values())
    ending, ids = (TRAIN_IDS, range(len(NAMES))) if trained else (LABEL_IDS, IDS)
    classes = tuple(zip(ids, NAMES, strict=True))
    return {split: partial(open_records, *both, ending, classes, allow_unpaired) for split, both in places.items()}


def open_records(
    images: Path, masks: Path, ending: str, classes: tuple[tuple[MaskValue, str], ...], allow_unpaired: bool
) -> CityscapesRecords:
    """Pairs of images and the masks with this ending."""
    pictures, ids = files(images, IMAGE), files(masks, ending)
    pairs = [(pictures[name], ids[name]) for name in sorted(pictures.keys() & ids, key=natural)]
    unpaired = [f"{pictures[name]}: image without mask" for name in sorted(pictures.keys() - ids)]
    unpaired += [f"{ids[name]}: mask without image" for name in sorted(ids.keys() - pictures)]
    check_unpaired(unpaired, len(pairs), allow_unpaired, images)
    records = CityscapesRecords(images, masks, pairs, classes, unpaired)
    records.annotations = AnnotationSummary("Cityscapes", len(pairs), 0, {})
    return records


def files(folder: Path, ending: str) -> dict[str, str]:
    """City and name of a picture -> its file below the folder, of the files whose names end so."""
    found = {}
    for parent, _, names in os.walk(folder, followlinks=True):
        below = os.path.relpath(parent, folder)
        for name in names:
            stem, extension = os.path.splitext(name)
            if stem.endswith(ending) and extension.lower() in IMAGE_SUFFIXES:
                path = os.path.normpath(os.path.join(below, name))
                found[os.path.normpath(os.path.join(below, stem.removesuffix(ending)))] = path
    return found
