"""Cityscapes: leftImg8bit/ and gtFine/, the masks in its own ids or in training ids.

The ids: https://www.cityscapes-dataset.com/dataset-overview/#class-definitions.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.image_io.formats import IMAGE_SUFFIXES, ImageSource, RenderedMask, is_visible_file
from data_utils.image_io.reader import read_mask
from data_utils.sources.annotations.layout import SplitPaths, check_unpaired, folder_in
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.folder import natural_sort_key, splits_below, wanted_splits
from data_utils.sources.records import AnnotationSummary, Metadata, SplitOpeners, image_without_mask
from data_utils.sources.walk import walk
from unet.config import IGNORE_INDEX

IMAGE = "_leftImg8bit"
LABEL_IDS = "_gtFine_labelIds"
TRAIN_IDS = "_gtFine_labelTrainIds"
# ids of the classes that the benchmark evaluates, in the order of their training ids
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
NAMES: tuple[str, ...] = ("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign")
NAMES += ("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle")
EVALUATED = np.full(256, IGNORE_INDEX, np.uint8)
EVALUATED[list(IDS)] = IDS


@dataclass(frozen=True)
class EvaluatedIds(RenderedMask):
    """A file of ids; ids that are not evaluated become 255."""

    file: str

    def render(self) -> np.ndarray:
        """(H, W) uint8."""
        return EVALUATED.take(read_mask(self.file, self.file), mode="clip")  # -1 is a license plate, ignored too


class CityscapesRecords(PairedRecords):
    """Images with their files of ids, or of training ids."""

    def mask(self, image: str, annotation: str) -> ImageSource:
        return annotation if self.metadata.classes[0][0] == 0 else EvaluatedIds(annotation)


def find(root: Path, named_splits: Sequence[str]) -> SplitPaths:
    """Split -> (folder of images, folder of masks), which may be the same."""
    images = folder_in(root, ("leftimg8bit",)) or root
    masks = folder_in(root, ("gtfine",)) or root
    splits = splits_below(images, masks, wanted_splits(named_splits)) or {"train": (images, masks)}
    return {split: folders for split, folders in splits.items() if _holds_ids(folders[1])}


def _holds_ids(masks: Path) -> bool:
    """Whether a file of ids, or of training ids, lies in a folder or below it."""
    return bool(files(masks, LABEL_IDS) or files(masks, TRAIN_IDS))


def _has_all_train_ids(masks: Path) -> bool:
    """Whether each file of ids in a folder has its file of training ids."""
    return files(masks, TRAIN_IDS).keys() >= files(masks, LABEL_IDS).keys()


def load(root: Path, splits: SplitPaths, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records, with training ids if all masks have them."""
    ids: Sequence[int]
    if all(_has_all_train_ids(masks) for _, masks in splits.values()):
        ending = TRAIN_IDS
        ids = range(len(NAMES))
    else:
        ending = LABEL_IDS
        ids = IDS
    classes = tuple(zip(ids, NAMES, strict=True))
    openers: SplitOpeners = {}
    for split, (images, masks) in splits.items():
        openers[split] = partial(open_records, images, masks, ending, classes, allow_unpaired)
    return openers


def open_records(
    images: Path, masks: Path, ending: str, classes: NamedClasses, allow_unpaired: bool
) -> CityscapesRecords:
    """Pairs of images and the masks with this ending."""
    pictures = files(images, IMAGE)
    ids = files(masks, ending)
    pairs = [(pictures[name], ids[name]) for name in sorted(pictures.keys() & ids, key=natural_sort_key)]
    unpaired = [image_without_mask(pictures[name]) for name in sorted(pictures.keys() - ids)]
    unpaired += [f"{ids[name]}: mask without image" for name in sorted(ids.keys() - pictures)]
    check_unpaired(unpaired, len(pairs), allow_unpaired, images)
    records = CityscapesRecords(images, masks, pairs, Metadata(classes, tuple(unpaired)))
    records.annotations = AnnotationSummary("Cityscapes", len(pairs), 0, {})
    return records


def files(folder: Path, ending: str) -> dict[str, str]:
    """City and name of a picture -> its file below the folder, for the files whose stems end with `ending`."""
    path_by_picture: dict[str, str] = {}
    for parent, _, names in walk(folder):
        below = os.path.relpath(parent, folder)
        for name in names:
            stem, _ = os.path.splitext(name)
            if stem.endswith(ending) and is_visible_file(name, IMAGE_SUFFIXES):
                picture = os.path.normpath(os.path.join(below, stem.removesuffix(ending)))
                path_by_picture[picture] = os.path.normpath(os.path.join(below, name))
    return path_by_picture
