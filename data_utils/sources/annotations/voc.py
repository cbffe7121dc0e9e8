"""Pascal VOC: JPEGImages/, SegmentationClass/ and lists of images; as CVAT and labelme write it, too.

The format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/, section "Segmentation".
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.layout import (
    BACKGROUND_NAMES,
    Places,
    check_unpaired,
    folder_in,
    read_lines,
    wanted_splits,
)
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.folder import files_by_stem
from data_utils.sources.records import AnnotationSummary, Records
from runtime.errors import DataError
from unet.config import MaskValue

LISTS = "ImageSets/Segmentation"
NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
LABEL_MAP = "labelmap.txt"  # CVAT's: name:red,green,blue:parts:actions
CLASS_NAMES = "class_names.txt"  # labelme's: a name a line, from value 0


class VocRecords(PairedRecords):
    """Images and their mask files."""

    def mask(self, image: str, annotation: str) -> ImageSource:
        return annotation


def find(root: Path, named: Sequence[str]) -> Places:
    """Split -> (folder of masks, list of images); the list is the folder itself where there are no lists."""
    images, masks = (
        folder_in(root, names) for names in (("jpegimages",), ("segmentationclasspng", "segmentationclass"))
    )
    if images is None or masks is None:
        return {}
    wanted = wanted_splits(named)
    lists = {path.stem.lower(): path for path in sorted((root / LISTS).glob("*.txt"))}
    lists = {name: path for name, path in lists.items() if name in wanted or not name.startswith("test")}
    if "train" not in lists and "trainval" in lists:  # which holds the images of val
        lists = {"train": lists["trainval"]}
    elif len(lists) == 1 and not wanted & lists.keys():  # CVAT's default.txt
        lists = {"train": lists.popitem()[1]}
    return {name: (masks, path) for name, path in lists.items()} or {"train": (masks, masks)}


def load(root: Path, places: Places, allow_unpaired: bool) -> dict[str, Callable[[], Records]]:
    """Split -> what opens it."""
    images = folder_in(root, ("jpegimages",))
    assert images is not None
    masks = next(iter(places.values()))[0]
    pictures, drawn = files_by_stem(images, "images"), files_by_stem(masks, "masks")
    classes = read_classes(root, masks / next(iter(drawn.values())), list(drawn))

    def open_records(listed: Path) -> VocRecords:
        lines = drawn if listed == masks else read_lines(listed)
        stems = [line.strip().strip('"') for line in lines if line.strip()]
        pairs = [(pictures[stem], drawn[stem]) for stem in stems if stem in pictures and stem in drawn]
        unpaired = [f"{stem}: no image" for stem in stems if stem not in pictures]
        unpaired += [f"{stem}: no mask" for stem in stems if stem in pictures and stem not in drawn]
        if listed == masks:
            unpaired += [f"{stem}: no mask" for stem in pictures if stem not in drawn]
        check_unpaired(unpaired, len(pairs), allow_unpaired, root)
        records = VocRecords(images, masks, pairs, classes, unpaired)
        records.annotations = AnnotationSummary("VOC", len(pairs), 0, {})
        return records

    return {split: partial(open_records, listed) for split, (_, listed) in places.items()}


def read_classes(root: Path, mask: Path, stems: Sequence[str]) -> tuple[tuple[MaskValue, str], ...]:
    """Names that a tool has written; VOC's own for its own images; else none, and every value found is a class."""
    if (root / LABEL_MAP).is_file():
        return read_label_map(root / LABEL_MAP, coloured=read_header(str(mask), str(mask))[1] in ("RGB", "RGBA"))
    if (root / CLASS_NAMES).is_file():
        lines = read_lines(root / CLASS_NAMES)
        names = [line.strip() for line in lines if line.strip() and line.strip() != "__ignore__"]
        return tuple(enumerate("background" if name in BACKGROUND_NAMES else name for name in names))
    return tuple(enumerate(NAMES)) if _is_original(root, stems) else ()


def _is_original(root: Path, stems: Sequence[str]) -> bool:
    """Whether the images are VOC's own: called 2007_000032 and the like, or said to be by their annotation."""
    page = root / "Annotations" / f"{stems[0]}.xml"
    named = all(re.fullmatch(r"20\d\d_\d{6}", stem) for stem in stems)
    return named or (page.is_file() and b"The VOC20" in page.read_bytes())


def read_label_map(path: Path, coloured: bool) -> tuple[tuple[MaskValue, str], ...]:
    """CVAT's classes: by colour where the masks hold colours, else by their order."""
    classes: list[tuple[MaskValue, str]] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        colour = re.fullmatch(r"\s*(\d+),\s*(\d+),\s*(\d+)\s*", rest.partition(":")[0])
        if colour is None:
            raise DataError(f"{path}: line {number} is {line!r}, expected name:red,green,blue:parts:actions")
        red, green, blue = map(int, colour.groups())
        classes.append(((red, green, blue) if coloured else len(classes), name.strip()))
    return tuple(classes)
