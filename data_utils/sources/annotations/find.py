"""Which annotations lie in a folder."""

from collections.abc import Callable
from pathlib import Path

from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.sources.annotations import cityscapes, coco, labelme, one_object_masks, voc, yolo
from data_utils.sources.annotations.layout import AnnotatedSplits, holds_pictures
from data_utils.sources.folder import DataFolder, children, files_by_stem, holds_files
from data_utils.sources.pairs import find_masks
from data_utils.sources.records import SplitOpeners
from runtime.errors import DataError

FORMATS: tuple[Callable[[DataFolder], AnnotatedSplits | None], ...] = (
    coco.find_splits,
    labelme.find_splits,
    yolo.find_splits,
    voc.find_splits,
    cityscapes.find_splits,
    one_object_masks.find_splits,
)
ANNOTATION_SUFFIXES = (".json", ".txt", ".xml")
OTHER_FOLDERS = ("labels", "label", "annotations")  # the folders of masks that may hold annotations as well
MASK_SUFFIXES = IMAGE_SUFFIXES + VOLUME_SUFFIXES


def find_annotated(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, of a folder without masks; empty if nothing is recognized.

    Raises DataError for annotations of two formats: they may contradict each other, and only the user can decide.
    """
    found = list(filter(None, (find(folder) for find in FORMATS)))
    if len(found) > 1:
        examples = ", ".join(example for example, _ in found)
        raise DataError(f"{folder.root} holds annotations of {len(found)} formats: {examples}; keep one of them")
    return found[0][1] if found else {}


def are_masks(images: Path, masks: Path) -> bool:
    """Whether a folder holds masks, of images or of volumes.

    Pictures beside files of annotations are masks if most images have one of their name. So are those in a folder
    called labels or annotations if the files lie in another of these folders, or above.
    """
    if not holds_pictures(masks, MASK_SUFFIXES):
        return False
    folders = [masks]
    if masks.name.lower() in OTHER_FOLDERS:
        others = children(masks.parent)
        folders += [masks.parent, *(others[name] for name in OTHER_FOLDERS if name in others)]
    if not any(holds_files(folder, ANNOTATION_SUFFIXES) for folder in folders):
        return True
    try:
        image_files = files_by_stem(images, "images", MASK_SUFFIXES)
        mask_files, _ = find_masks(masks, image_files, None, MASK_SUFFIXES)
    except DataError:  # it is raised again when they are read
        return True
    return 2 * len(image_files.keys() & mask_files.keys()) > len(image_files)
