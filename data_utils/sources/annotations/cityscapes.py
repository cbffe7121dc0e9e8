"""Cityscapes: leftImg8bit/ and gtFine/, the masks in its own ids or in training ids.

The ids: https://www.cityscapes-dataset.com/dataset-overview/#class-definitions.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import RenderedMask
from data_utils.image_io.reader import IMAGE_SUFFIXES, read_mask
from data_utils.sources.annotations.layout import AnnotationFormat, SplitPaths, folder_in
from data_utils.sources.folder import files_below, natural_order, splits_below, wanted_splits
from data_utils.sources.pairs import Cases, pair
from data_utils.sources.records import (
    AnnotationSummary,
    FileRow,
    Metadata,
    Records,
    Sources,
    SplitOpeners,
    first_files,
)
from runtime.errors import DataError
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
        # -1 is a license plate, ignored too
        return EVALUATED.take(read_mask(self.file, self.file), mode="clip")


def evaluated_sources(row: FileRow) -> Sources:
    """An image, and the ids that are evaluated of its mask."""
    return row.images[0], EvaluatedIds(row.targets[0])


def find(root: Path, named_splits: Sequence[str]) -> SplitPaths:
    """Split -> (folder of images, folder of masks), which may be the same."""
    images = folder_in(root, ("leftimg8bit",)) or root
    masks = folder_in(root, ("gtfine",)) or root
    splits = splits_below(images, masks, wanted_splits(named_splits)) or {"train": (images, masks)}
    found: SplitPaths = {}
    for split, folders in splits.items():
        stems = (os.path.splitext(file)[0] for file in files_below(folders[1], IMAGE_SUFFIXES, strict=False))
        if any(stem.endswith((LABEL_IDS, TRAIN_IDS)) for stem in stems):
            found[split] = folders
    return found


def load(root: Path, splits: SplitPaths, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records, with training ids if all masks have them."""
    ending = TRAIN_IDS
    for _, masks in splits.values():
        if not files(masks, TRAIN_IDS).keys() >= files(masks, LABEL_IDS).keys():
            ending = LABEL_IDS
    return {split: partial(open_records, folders, ending, allow_unpaired) for split, folders in splits.items()}


def open_records(folders: tuple[Path, Path], ending: str, allow_unpaired: bool) -> Records:
    """Pairs of images and the masks with this ending. Raises DataError for masks alone."""
    cases = Cases(files(folders[0], IMAGE), files(folders[1], ending))
    if not cases.images:
        raise DataError(
            f"{folders[0]}: holds no image of Cityscapes (*{IMAGE}.png), only masks;"
            " give the folder that holds leftImg8bit and gtFine"
        )
    ids: Sequence[int] = IDS
    sources: Callable[..., Sources] = evaluated_sources
    if ending == TRAIN_IDS:
        ids = range(len(NAMES))
        sources = first_files
    annotated = len(cases.images.keys() & cases.masks.keys())
    summary = AnnotationSummary("Cityscapes", annotated, 0, {})
    metadata = Metadata(tuple(zip(ids, NAMES, strict=True)), annotations=summary)
    return pair(folders, cases, metadata, allow_unpaired, sources)


def files(folder: Path, ending: str) -> dict[str, str]:
    """City and name of a picture -> its file below the folder, for the files whose stems end with `ending`."""
    path_by_picture: dict[str, str] = {}
    for file in files_below(folder, IMAGE_SUFFIXES, strict=False):
        stem, _ = os.path.splitext(file)
        if stem.endswith(ending):
            path_by_picture[stem.removesuffix(ending)] = file
    return {picture: path_by_picture[picture] for picture in natural_order(path_by_picture)}


FORMAT = AnnotationFormat("Cityscapes", ".json", find, load)
