"""Pascal VOC: JPEGImages/, SegmentationClass/ and lists of images; as CVAT and labelme write it, too.

The format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/, section "Segmentation".
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_utils.class_names import BACKGROUND, BACKGROUND_NAMES, NamedClasses
from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.documents import lines_of
from data_utils.sources.annotations.layout import AnnotatedSplits, folder_in
from data_utils.sources.folder import (
    VOC_CLASS_NAMES,
    VOC_LABEL_MAP,
    VOC_MASK_FOLDERS,
    DataFolder,
    files_by_stem,
    find_name,
    spellings,
    wanted_splits,
)
from data_utils.sources.pairs import Cases, pair
from data_utils.sources.records import Metadata, Records, SplitOpeners
from runtime.errors import DataError
from unet.config import MaskValue

LISTS = "ImageSets/Segmentation"
NAMES: tuple[str, ...] = ("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat")
NAMES += ("chair", "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa")
NAMES += ("train", "tvmonitor")
OWN_IMAGE = re.compile(r"20\d\d_\d{6}")  # the name of an image of VOC's own
COLOR = re.compile(r"\s*([0-9]{1,3}),\s*([0-9]{1,3}),\s*([0-9]{1,3})\s*")


def find_splits(folder: DataFolder) -> AnnotatedSplits | None:
    """The splits of a folder, None if it lacks VOC's folders of images and of masks."""
    root = folder.root
    images = folder_in(root, ("jpegimages",))
    masks = folder_in(root, VOC_MASK_FOLDERS)
    if images is None or masks is None:
        return None
    lists = _lists(root, folder.named_splits) or {"train": masks}
    image_files = files_by_stem(images, "images")
    mask_files = files_by_stem(masks, "masks")
    classes = read_classes(root, masks / next(iter(mask_files.values())), list(mask_files))
    by_spelling = spellings(image_files)

    def open_records(list_file: Path) -> Records:
        """The pairs that a list names, in its order; all pairs if the list is the folder of masks itself."""
        stems = list(dict.fromkeys([*mask_files, *image_files]))
        if list_file != masks:
            names = [line.strip().strip('"') for line in lines_of(list_file) if line.strip()]
            stems = [find_name(name, by_spelling) or name for name in names]
        listed_images = {stem: image_files[stem] for stem in stems if stem in image_files}
        listed_masks = {stem: mask_files[stem] for stem in stems if stem in mask_files}
        lost = [f"{stem}: no image" for stem in stems if stem not in listed_images | listed_masks]
        cases = Cases(listed_images, listed_masks, lost)
        return pair((images, masks), cases, Metadata(classes, annotations="VOC"), folder.config.allow_unpaired)

    openers: SplitOpeners = {split: partial(open_records, list_file) for split, list_file in lists.items()}
    return f"VOC ({next(iter(lists.values()))})", openers


def _lists(root: Path, named_splits: Sequence[str]) -> dict[str, Path]:
    """Split -> its list of images; empty if there are no lists."""
    split_names = wanted_splits(named_splits)
    lists: dict[str, Path] = {}
    for path in sorted((root / LISTS).glob("*.txt")):
        name = path.stem.lower()
        if name in split_names or not name.startswith(("test", ".")):
            lists[name] = path
    if "train" not in lists and "trainval" in lists:  # trainval holds the images of val, too
        lists = {"train": lists["trainval"]}
    elif len(lists) == 1 and not split_names & lists.keys():  # CVAT's default.txt
        lists = {"train": lists.popitem()[1]}
    return lists


def read_classes(root: Path, mask: Path, stems: Sequence[str]) -> NamedClasses:
    """The names that a tool has written, or VOC's own names for its own images; else none: every value is a class."""
    if (root / VOC_LABEL_MAP).is_file():
        _, mode = read_header(str(mask), str(mask))
        return read_label_map(root / VOC_LABEL_MAP, colored=mode in ("RGB", "RGBA"))
    if (root / VOC_CLASS_NAMES).is_file():
        names = [line.strip() for line in lines_of(root / VOC_CLASS_NAMES)]
        names = [BACKGROUND if name in BACKGROUND_NAMES else name for name in names]
        return tuple(enumerate(name for name in names if name not in ("", "__ignore__")))
    if all(map(OWN_IMAGE.fullmatch, stems)):
        return tuple(enumerate(NAMES))
    return ()


def read_label_map(path: Path, colored: bool) -> NamedClasses:
    """CVAT's classes: by color if the masks hold colors, else by their order."""
    classes: list[tuple[MaskValue, str]] = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, fields = line.partition(":")
        color = COLOR.fullmatch(fields.partition(":")[0])
        if color is None or max(map(int, color.groups())) > 255:
            raise DataError(f"{path}: line {number} is {line!r}, expected name:red,green,blue:parts:actions")
        red, green, blue = map(int, color.groups())
        classes.append(((red, green, blue) if colored else len(classes), name.strip()))
    colors = len(dict(classes))
    if colors < len(classes):
        raise DataError(f"{path}: {len(classes)} classes have only {colors} different colors")
    return tuple(classes)
