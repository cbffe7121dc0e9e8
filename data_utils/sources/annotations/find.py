"""Which annotations lie in a folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

from data_utils.sources.annotations import cityscapes, coco, labelme, voc, yolo
from data_utils.sources.annotations.layout import holds_pictures
from data_utils.sources.folder import find_splits
from data_utils.sources.records import Records
from runtime.errors import DataError

FORMATS = {
    "COCO": (coco.find, coco.load),
    "labelme": (labelme.find, labelme.load),
    "YOLO": (yolo.find, yolo.load),
    "VOC": (voc.find, voc.load),
    "Cityscapes": (cityscapes.find, cityscapes.load),
}


def find_annotations(root: Path, named: Sequence[str], allow_unpaired: bool) -> dict[str, Callable[[], Records]] | None:
    """Split -> what opens its records; None where masks lie beside the images, or nothing is recognised.

    Raises DataError for annotations of two formats: they may say different things, and only the user knows.
    """
    if _holds_masks(root, named):
        return None
    found = {name: places for name, (find, _) in FORMATS.items() if (places := find(root, named))}
    if len(found) > 1:
        files = ", ".join(f"{name} ({next(iter(places.values()))[1]})" for name, places in found.items())
        raise DataError(f"{root} holds annotations of {len(found)} formats: {files}; keep one of them")
    if not found:
        return None
    ((name, places),) = found.items()
    return FORMATS[name][1](root, places, allow_unpaired)


def _holds_masks(root: Path, named: Sequence[str]) -> bool:
    """Whether it is a folder of images and masks."""
    try:
        folders = find_splits(root, named)
    except DataError:
        return False
    return any(holds_pictures(masks) for _, masks in folders.values())
