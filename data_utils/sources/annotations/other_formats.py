"""Annotation formats that are not read: how each is known by the beginning of its files, and what converts it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from data_utils.sources.annotations.documents import keys_in
from data_utils.sources.folder import children, names_in
from runtime.documents import open_regular
from runtime.errors import DataError

SUFFIXES = (".json", ".ndjson", ".xml", ".csv")
FILES_IN_FOLDER = 20  # files of one folder that are looked at
LEVELS = 2  # of folders below the data set
HEAD = 2**16  # bytes in which a file says what it is

# name -> what stands in its files alone, and how to get a format that is read
FORMATS = {
    "VIA": (
        rb'"_via_img_metadata"|"shape_attributes"|\bregion_shape_attributes\b',
        "export them in VIA again: Annotation, Export Annotations (COCO format)",
    ),
    "Supervisely": (
        rb'"classTitle"|"geometryType"|"classes"\s*:\s*\[\s*\{[^]]*"title"\s*:',
        "export the project with Supervisely's app Export to COCO",
    ),
    "CVAT (XML)": (
        rb"<annotations>\s*<version>|<annotations>.*<(?:image|track) id=",
        "export the task again as COCO 1.0 or Segmentation mask 1.1, or: datum convert -if cvat -f coco -i DATA -o OUT",
    ),
    "Label Studio": (
        rb'"(?:polygon|brush|rectangle|keypoint|ellipse)labels"|"from_name"\s*:',
        "export the project again as COCO, or its brush labels as PNG",
    ),
    "Labelbox": (
        rb'"data_row"\s*:|"Labeled Data"\s*:|"DataRow ID"\s*:',
        "convert the export to COCO or to masks with Labelbox's Python SDK",
    ),
    "Datumaro": (
        rb'"categories"\s*:\s*\{\s*"label"\s*:\s*\{',
        "export the task again as COCO 1.0, or: datum convert -if datumaro -f coco -i DATA -o OUT",
    ),
    "napari (shapes)": (rb"\Aindex,shape-type,", "turn them into labels in napari, and save those as TIFF"),
    "ISAT": (rb'"description"\s*:\s*"ISAT"', "convert them to COCO or VOC with ISAT"),
    "V7 Darwin": (rb'"schema_ref"\s*:\s*"[^"]*darwin', "export the data set again as COCO or semantic masks"),
    "VOC for detection (boxes)": (
        rb"<bndbox>",
        "areas need masks or polygons: outline them with labelme or CVAT",
    ),
    "LabelMe on the web (XML)": (
        rb"<annotation>.*<polygon>.*<pt>",
        "convert them to COCO: datum convert -if label_me -f coco -i DATA -o OUT",
    ),
    "ImageScope or ASAP": (
        rb"<ASAP_Annotations>|<Annotations[^>]*MicronsPerPixel",
        "export masks of them from QuPath",
    ),
}

PANOPTIC_REMEDY = "convert them to COCO with panopticapi's converters/panoptic2detection_coco_format.py"


def check_formats(root: Path) -> None:
    """Raises DataError for annotations that are not read, in a folder or shortly below it.

    They are of a format that is not read, which a converter is named for, or have a name that their format does not.
    Where VOC's folders lie in the only folder, as in its unpacked archive, that one is the data set.
    """
    inner = children(root)
    if len(inner) == len(names_in(root)) == 1 and "jpegimages" in children(*inner.values()):
        return
    for folder in _folders(root, LEVELS):
        pickled = next(folder.glob("*_seg.npy"), None)
        if pickled:
            raise DataError(
                f"{pickled} is a file of Cellpose that holds Python objects, which are never opened; save the masks as"
                " PNG or TIFF beside the images in Cellpose: File, Save masks"
            )
        names = sorted(name for name in names_in(folder) if name.lower().endswith(SUFFIXES))
        for name in names[:FILES_IN_FOLDER]:
            hint = describe_format(folder / name)
            if hint:
                raise DataError(f"{folder / name} {hint}")
            if b"images" in keys_in(folder / name):
                raise DataError(
                    f"{folder / name} may be COCO, which is read as {root}/annotations.json or, of each split, as"
                    f" {root}/annotations/instances_train.json; rename it"
                )


def _folders(root: Path, levels: int) -> Iterator[Path]:
    """A folder and those below it."""
    yield root
    if levels:
        for name in sorted(names_in(root)):
            if os.path.isdir(root / name) and not name.startswith("."):
                yield from _folders(root / name, levels - 1)


def describe_format(file: Path) -> str:
    """What a file of such a format is, and what to do with it; empty for other files."""
    try:
        with open_regular(file) as stream:
            head = stream.read(HEAD)
    except OSError:  # it is reported where it is read
        return ""
    for name, (signs, remedy) in FORMATS.items():
        if re.search(signs, head, re.DOTALL):
            return f"holds annotations of {name}, which are not read; {remedy}"
    if b"segments_info" in keys_in(file):  # behind the list of all images
        return f"holds annotations of panoptic COCO, which are not read; {PANOPTIC_REMEDY}"
    return ""
