"""Cityscapes: leftImg8bit/ and gtFine/, the masks in its own ids or in training ids.

The ids: https://www.cityscapes-dataset.com/dataset-overview/#class-definitions.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import RenderedMask
from data_utils.image_io.reader import IMAGE_SUFFIXES, read_mask
from data_utils.sources.annotations.layout import AnnotatedSplits, folder_in
from data_utils.sources.folder import DataFolder, files_below, natural_order, splits_below, wanted_splits
from data_utils.sources.pairs import Cases, pair
from data_utils.sources.records import (
    FileRow,
    Metadata,
    Records,
    RowSources,
    Sources,
    first_files,
    split_openers,
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


def find_splits(folder: DataFolder) -> AnnotatedSplits | None:
    """The splits of a folder, with training ids if all masks have them; None if no split holds masks of Cityscapes."""
    images = folder_in(folder.root, ("leftimg8bit",)) or folder.root
    masks = folder_in(folder.root, ("gtfine",)) or folder.root
    splits = splits_below(images, masks, wanted_splits(folder.named_splits)) or {"train": (images, masks)}
    found: dict[str, tuple[Path, Path]] = {}
    ending = TRAIN_IDS
    for split, folders in splits.items():
        label_ids = files(folders[1], LABEL_IDS).keys()
        train_ids = files(folders[1], TRAIN_IDS).keys()
        if label_ids or train_ids:
            found[split] = folders
        if not train_ids >= label_ids:
            ending = LABEL_IDS
    if not found:
        return None
    _, example = next(iter(found.values()))
    return f"Cityscapes ({example})", split_openers(found, open_records, ending, folder.config.allow_unpaired)


def open_records(images: Path, masks: Path, ending: str, allow_unpaired: bool) -> Records:
    """Pairs of images and the masks with this ending. Raises DataError for masks alone."""
    cases = Cases(files(images, IMAGE), files(masks, ending))
    if not cases.images:
        raise DataError(
            f"{images}: holds no image of Cityscapes (*{IMAGE}.png), only masks;"
            " give the folder that holds leftImg8bit and gtFine"
        )
    ids: Sequence[int] = IDS
    sources: RowSources = evaluated_sources
    if ending == TRAIN_IDS:
        ids = range(len(NAMES))
        sources = first_files
    metadata = Metadata(tuple(zip(ids, NAMES, strict=True)), annotations="Cityscapes")
    return pair((images, masks), cases, metadata, allow_unpaired, sources)


def files(folder: Path, ending: str) -> dict[str, str]:
    """City and name of a picture -> its file below the folder, for the files whose stems end with `ending`."""
    path_by_picture: dict[str, str] = {}
    for file in files_below(folder, IMAGE_SUFFIXES, strict=False):
        stem, _ = os.path.splitext(file)
        if stem.endswith(ending):
            path_by_picture[stem.removesuffix(ending)] = file
    return {picture: path_by_picture[picture] for picture in natural_order(path_by_picture)}
