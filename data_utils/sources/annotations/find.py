"""Which annotations lie in a folder."""

from collections.abc import Sequence
from pathlib import Path

from data_utils.image_io.formats import IMAGE_SUFFIXES, is_visible_file
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.sources.annotations import cityscapes, coco, labelme, one_object_masks, voc, yolo
from data_utils.sources.annotations.layout import holds_pictures
from data_utils.sources.folder import DataFolder, files_by_stem, find_splits
from data_utils.sources.pairs import find_masks
from data_utils.sources.records import SplitOpeners
from runtime.errors import DataError

FORMATS = {
    "COCO": (coco.find, coco.load),
    "labelme": (labelme.find, labelme.load),
    "YOLO": (yolo.find, yolo.load),
    "VOC": (voc.find, voc.load),
    "Cityscapes": (cityscapes.find, cityscapes.load),
    "one mask for each object": (one_object_masks.find, one_object_masks.load),
}
ANNOTATION_SUFFIXES = (".json", ".txt", ".xml")
MASK_SUFFIXES = IMAGE_SUFFIXES + VOLUME_SUFFIXES


def find_annotations(root: Path, named_splits: Sequence[str], allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records; empty if nothing is recognized.

    Raises DataError for annotations of two formats: they may contradict each other, and only the user can decide.
    """
    splits_by_format = {name: find(root, named_splits) for name, (find, _) in FORMATS.items()}
    found = {name: splits for name, splits in splits_by_format.items() if splits}
    if len(found) > 1:
        examples = [f"{name} ({next(iter(splits.values()))[1]})" for name, splits in found.items()]
        raise DataError(f"{root} holds annotations of {len(found)} formats: {', '.join(examples)}; keep one of them")
    for name, splits in found.items():
        _, load = FORMATS[name]
        return load(root, splits, allow_unpaired)
    return {}


def find_annotated(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, if there are annotations and no masks.

    Raises DataError if there are points too.
    """
    if folder.has_masks:
        return {}
    openers = find_annotations(folder.root, folder.named_splits, folder.config.allow_unpaired)
    if openers and folder.points:
        file = next(iter(folder.points.values())).files[0]
        raise DataError(
            f"{folder.root} holds annotations, and points in {file}; give --task classes or --task landmarks"
        )
    return openers


def holds_masks(root: Path, named_splits: Sequence[str]) -> bool:
    """Whether `root` is a folder of images and masks."""
    try:
        folders = find_splits(root, named_splits)
    except DataError:
        return False
    return any(are_masks(images, masks) for images, masks in folders.values())


def are_masks(images: Path, masks: Path) -> bool:
    """Whether a folder holds masks, of images or of volumes.

    Pictures beside files of annotations are masks if one has the name of an image.
    """
    if not holds_pictures(masks, MASK_SUFFIXES):
        return False
    if not any(is_visible_file(path.name, ANNOTATION_SUFFIXES) for path in masks.iterdir()):
        return True
    try:
        image_files = files_by_stem(images, "images", MASK_SUFFIXES)
        mask_files, _ = find_masks(masks, image_files, None, MASK_SUFFIXES)
    except DataError:  # it is raised again when they are read
        return True
    return not image_files.keys().isdisjoint(mask_files)
