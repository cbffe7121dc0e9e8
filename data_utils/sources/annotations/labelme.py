"""labelme: a JSON file for each image, beside it or in a folder apart, with shapes in the order they were drawn.

The format, and how labelme itself exports masks: https://github.com/wkentaro/labelme.
"""

import os
from base64 import b64decode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from data_utils.class_names import BACKGROUND_NAMES, NamedClasses
from data_utils.image_io.formats import EmbeddedImage, image_errors
from data_utils.image_io.pictures import open_picture
from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.documents import json_of, keys_in, lines_of
from data_utils.sources.annotations.drawn import (
    Area,
    DrawnMask,
    Outline,
    drawn_size,
    pillow_shape,
    polygon,
    read_points,
)
from data_utils.sources.annotations.layout import (
    AnnotatedSplits,
    SplitPaths,
    find_file,
    holds_pictures,
    number_classes,
    paired_folders,
)
from data_utils.sources.folder import IMAGE_FOLDERS, MASK_FOLDERS, DataFolder, files_below, files_by_stem
from data_utils.sources.pairs import open_rows
from data_utils.sources.records import FileRow, Metadata, Records, Sources, split_openers
from runtime.cache import load_or_read_each
from runtime.console import listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX

FOLDERS = (*MASK_FOLDERS, "json", "jsons", "labelme")  # folders of JSON files apart from the images
LOOKED_AT = 20  # files of a split by which the format is recognized
KEYS = {b"shapes", b"imageData", b"imagePath"}  # any of them tells that a file is labelme's
LABELS = "labels.txt"  # one name a line, as `labelme --labels` takes it
IGNORED = "__ignore__"  # labelme's own name for ignored areas
ABSENT = "absent_shapes"  # the key of points that are predicted not to be there; labelme keeps and does not show them
# labelme draws its own masks with these, in pixels
LINE_WIDTH = 10
POINT_RADIUS = 5
# how many points each type of shape needs; a rectangle of four is a turned one
POINTS = {"polygon": 3, "rectangle": 2, "oriented_rectangle": 4, "rotation": 4, "circle": 2, "mask": 2}
POINTS |= {"line": 2, "linestrip": 2, "point": 1}


# path of a JSON file below its folder -> the path of its image below the folder of images, "" if the image is in the
# file itself, None if there is none; and what else the file holds
LabelmeFiles = dict[str, tuple[str | None, "Contents"]]


class Contents(NamedTuple):
    """What a JSON file holds beside its areas and its picture.

    Args:
        labels: those of its areas and points, each once.
        named_image: the image that it names; "" if it names none.
        is_embedded: whether the image is in the file itself.
        areas: how many of the shapes are not points.
        size: the (H, W) that it states, of any type.
        points: number, label, list of positions, and description of each point.
    """

    labels: Sequence[str]
    named_image: str
    is_embedded: bool
    areas: int
    size: Sequence[Any]
    points: Sequence[Sequence[Any]]


# it is reported when the file is drawn, as a problem of the image that is assumed to be there
UNREADABLE = Contents([], "", True, 0, [None, None], [])


@dataclass(frozen=True)
class LabelmeImage(EmbeddedImage):
    """The image in a JSON file."""

    file: str

    def render(self) -> bytes:
        """The bytes of `imageData`."""
        content = read_labelme(self.file)
        with image_errors(f"{self.file}: imageData"):
            return b64decode(content["imageData"])


class LabelmeMask(DrawnMask):
    """The shapes of a file."""

    def read_areas(self) -> tuple[tuple[int, int], list[Area]]:
        """(H, W), and the shapes, later ones on top."""
        (file,) = self.files
        content = read_labelme(file)
        if not self.image and not content.get("imageData"):
            raise DataError(f"{file} has no image file beside it, and holds none")
        picture = self.image or LabelmeImage(file).render()
        picture_size, _ = read_header(picture, self.image or f"{file}: imageData")
        size = drawn_size((content.get("imageHeight"), content.get("imageWidth")), picture_size, file)
        areas: list[Area] = []
        for number, shape in enumerate(content["shapes"], 1):
            location = f"{file}: shape {number}"
            label = label_of(shape)
            if label not in self.values:
                problem = f"is called {label!r}, which {LABELS} does not list" if label else "has no label"
                raise DataError(f"{location} {problem}")
            outline = outline_of(shape, f"{location} ({label})")
            areas.append(Area(self.values[label], outline, shape.get("group_id")))
        return size, areas


def read_labelme(file: str) -> dict[str, Any]:
    """The content of a file, with its list of shapes. Raises DataError if the file is not a labelme file."""
    content = json_of(file)
    shapes = content.get("shapes")
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise DataError(f"{file} is no labelme file: it has no list of shapes")
    return content


def label_of(shape: dict[str, Any]) -> str:
    """The label of a shape, without spaces around it, which labels.txt has not either."""
    label = shape.get("label")
    return "" if label is None else str(label).strip()


def outline_of(shape: dict[str, Any], location: str) -> Outline:
    """The outline of a shape. Raises DataError, with `location`, for a shape that has no area or is not understood."""
    kind = shape.get("shape_type") or "polygon"
    if not isinstance(kind, str) or kind not in POINTS:
        raise DataError(f"{location} is a {kind}; supported are {', '.join(POINTS)}")
    points = read_points(shape.get("points"), f"{location}: {kind}", POINTS[kind])
    low = points.min(axis=0).tolist()
    high = points.max(axis=0).tolist()
    if kind == "mask":
        return partial(_stamp, shape.get("mask"), (round(low[0]), round(low[1])), location)
    if kind == "circle":
        return _disc(points[0], float(np.hypot(*(points[1] - points[0]))))
    if kind == "point":
        return _disc(points[0], POINT_RADIUS)
    if kind in ("line", "linestrip"):
        return pillow_shape("line", points.ravel().tolist(), width=LINE_WIDTH, joint="curve")
    if kind == "rectangle" and len(points) == 2:
        return pillow_shape("rectangle", low + high)
    return polygon(points)


def _stamp(mask: Any, corner: tuple[int, int], location: str, picture: Image.Image, value: int) -> None:
    """Draw a mask, a PNG in base64, with its upper left corner there."""
    with image_errors(location):
        stamp = open_picture(b64decode(mask))
        if stamp.width > 2 * picture.width or stamp.height > 2 * picture.height:
            raise ValueError(f"its mask of {stamp.width} x {stamp.height} pixels is larger than the picture")
        picture.paste(value, corner, stamp.convert("L").point(lambda level: 255 * (level > 0)))


def _disc(center: np.ndarray, radius: float) -> Outline:
    return pillow_shape("ellipse", [*(center - radius).tolist(), *(center + radius).tolist()])


def labelme_sources(row: FileRow, values: dict[str, int]) -> Sources:
    """An image, from its own file or else from the JSON file, and its mask."""
    image = row.images[0] if row.images else ""
    return image or LabelmeImage(row.targets[0]), LabelmeMask(row.targets, image, values)


def find(root: Path, named_splits: Sequence[str]) -> SplitPaths:
    """Split -> (folder of images, folder of JSON files), if one of the first JSON files of a split is labelme's."""
    splits = paired_folders(root, named_splits, IMAGE_FOLDERS, FOLDERS)
    for _, folder in splits.values():
        files = sorted(files_below(folder, (".json",), strict=False))
        if any(is_labelme(folder / file) for file in files[:LOOKED_AT]):
            return splits
    return {}


def is_labelme(file: str | Path) -> bool:
    """Whether a JSON file is labelme's, by its keys."""
    return not KEYS.isdisjoint(keys_in(file))


def find_splits(folder: DataFolder) -> AnnotatedSplits | None:
    """The splits of a folder, None if it holds no labelme files. All files are read: their classes are joined."""
    splits = find(folder.root, folder.named_splits)
    if not splits:
        return None
    files_by_split = {split: read_folder(folders) for split, folders in splits.items()}
    labels_files = [folder.root / LABELS, *(files / LABELS for _, files in splits.values())]
    labels_file = next((path for path in labels_files if path.is_file()), None)
    if labels_file is None:
        all_files = chain.from_iterable(files.values() for files in files_by_split.values())
        names = sorted(set(chain.from_iterable(contents.labels for _, contents in all_files)))
    else:
        names = lines_of(labels_file)
    names = [name.strip() for name in names if name.strip() not in ("", IGNORED)]
    classes, values = number_classes(names, str(labels_file or folder.root))
    values = dict.fromkeys(BACKGROUND_NAMES, 0) | {IGNORED: IGNORE_INDEX} | values
    locations = {split: (folders, files_by_split[split]) for split, folders in splits.items()}
    _, json_folder = next(iter(splits.values()))
    settings = (classes, values, folder.config.allow_unpaired)
    return f"labelme ({json_folder})", split_openers(locations, open_records, *settings)


def read_folder(folders: tuple[Path, Path]) -> LabelmeFiles:
    """The JSON files of a folder; what they hold is cached until a file changes.

    Their images are in another folder: that of the file's stem, or else the one that the file names.
    """
    images, folder = folders
    files = list(files_by_stem(folder, "labelme files", (".json",)).values())
    paths = [os.path.join(folder, file) for file in files]
    by_stem = files_by_stem(images, "images") if holds_pictures(images) else {}  # all may be in JSON files
    found: LabelmeFiles = {}
    for file, fields in zip(files, load_or_read_each("labels of labelme", paths, _try_contents).values(), strict=True):
        contents = Contents(*fields)
        image = by_stem.get(os.path.splitext(file)[0])
        if image is None and contents == UNREADABLE and _is_other(os.path.join(folder, file)):
            continue
        if image is None:
            path = find_file(contents.named_image, [os.path.join(folder, os.path.dirname(file)), str(images)])
            image = path and os.path.relpath(path, images)
        if image is None and contents.is_embedded:
            image = ""
        found[file] = image, contents
    return found


def _try_contents(path: str) -> Contents:
    try:
        return contents_of(path)
    except DataError:
        return UNREADABLE


def _is_other(path: str) -> bool:
    """Whether a file is whole and no labelme file, as one of settings."""
    try:
        json_of(path, (dict, list))
    except DataError:
        return False
    return not is_labelme(path)


def contents_of(path: str) -> Contents:
    """What a file holds beside its areas and its picture. Raises DataError if it cannot be read."""
    content = read_labelme(path)
    shapes = content["shapes"]
    labels = sorted(set(map(label_of, shapes)))
    absent_shapes = content.get(ABSENT)
    if not isinstance(absent_shapes, list):
        absent_shapes = []
    points: list[list[Any]] = []
    for number, shape in enumerate(shapes + absent_shapes, 1):
        if isinstance(shape, dict) and shape.get("shape_type") == "point":
            points.append([number, label_of(shape), shape.get("points"), shape.get("description")])
    areas = sum(shape.get("shape_type") != "point" for shape in shapes)
    size = [content.get("imageHeight"), content.get("imageWidth")]
    named_image = str(content.get("imagePath") or "")
    return Contents(labels, named_image, bool(content.get("imageData")), areas, size, points)


def open_records(
    folders: tuple[Path, Path], files: LabelmeFiles, classes: NamedClasses, values: dict[str, int], allow_unpaired: bool
) -> Records:
    """The images of JSON files."""
    rows: list[FileRow] = []
    files_by_image: dict[str | None, list[str]] = defaultdict(list)
    for path, (image, _) in files.items():
        files_by_image[image].append(path)
        if image is not None:
            rows.append(FileRow(image or path, (image,), (path,)))
    conflicts: list[str] = []
    for image, paths in files_by_image.items():
        if image and len(paths) > 1:
            conflicts.append(f"{image} ({listing(paths, separator='; ')})")
    if conflicts:
        text = listing(conflicts, separator="; ")
        raise DataError(f"{folders[1]}: {len(conflicts)} images have several labelme files: {text}; keep one of each")
    unpaired = [f"{path}: no image of its name" for path in files_by_image[None]]
    if holds_pictures(folders[0]):
        for image in files_by_stem(folders[0], "images").values():
            if image not in files_by_image:
                unpaired.append(f"{image}: image without labelme file")
    metadata = Metadata(classes, annotations="labelme")
    return open_rows(folders, rows, unpaired, metadata, allow_unpaired, partial(labelme_sources, values=values))
