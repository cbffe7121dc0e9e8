"""YOLO segmentation: data.yaml names the classes, and each image has a text file with a polygon for each object.

The format: https://docs.ultralytics.com/datasets/segment/.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from data_utils.class_names import NamedClasses
from data_utils.image_io.class_masks import LayeredMask
from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import read_header
from data_utils.mask_values import number_type
from data_utils.sources.annotations.layout import (
    SplitPaths,
    check_unpaired,
    find_file,
    folder_in,
    number_classes,
    paired_folders,
    read_lines,
)
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.annotations.polygons import area, fill, read_points
from data_utils.sources.folder import IMAGE_FOLDERS, files_by_stem, wanted_splits
from data_utils.sources.records import AnnotationSummary, Metadata, SplitOpeners
from data_utils.sources.spelling import composed
from runtime.documents import read_yaml
from runtime.errors import DataError, one_line
from tasks.overlapping import pack_bits
from unet.config import MaskValue

SETTINGS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
NAMES = "classes.txt"  # a name a line, as Label Studio writes instead
MAX_RELATIVE_COORDINATE = 2.0  # widths of the image: a larger coordinate is in pixels
# key in data.yaml -> names of the split's folder
SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


class Outline(NamedTuple):
    """The polygon of an object, points (n, 2) in pixels, and the mask value of its class."""

    points: np.ndarray
    value: int


@dataclass(frozen=True)
class YoloMask(LayeredMask):
    """The polygons of an image; `file` is "" if it has none; `values` are the mask values of the class indices."""

    file: str
    image: str
    values: tuple[int, ...]

    def render(self) -> np.ndarray:
        """(H, W) of the image's size; objects of less area on top, filled by Pillow."""
        size, outlines = self._sorted_outlines()
        mask = _fill_outlines(size, outlines, [outline.value for outline in outlines])
        return mask.astype(number_type(self.values))

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        size, outlines = self._sorted_outlines()
        values = [0, *(outline.value for outline in outlines)]
        return _fill_outlines(size, outlines, range(1, len(values))), np.array(values)

    def render_classes(self, bit_by_value: Mapping[MaskValue, int]) -> np.ndarray:
        size = read_header(self.image, self.image)[0]
        outlines: dict[int, list[Outline]] = defaultdict(list)
        for outline in self._outlines(*size):
            if outline.value in bit_by_value:
                outlines[bit_by_value[outline.value]].append(outline)
        truth = np.zeros(size, np.int64)
        for bit, class_outlines in outlines.items():
            inside = _fill_outlines(size, class_outlines, [1] * len(class_outlines))
            truth |= inside.astype(np.int64) << bit
        return pack_bits(truth, np.zeros_like(truth))

    def _sorted_outlines(self) -> tuple[tuple[int, int], list[Outline]]:
        """(H, W) of the image, and its objects, smaller ones last."""
        height, width = read_header(self.image, self.image)[0]
        outlines = self._outlines(height, width)
        outlines.sort(key=lambda outline: area(outline.points), reverse=True)
        return (height, width), outlines

    def _outlines(self, height: int, width: int) -> list[Outline]:
        """The objects of an image of this size."""
        objects: list[Outline] = []
        for number, line in enumerate(read_lines(self.file), 1):
            if line.split():
                index, shares = parse_line(line, f"{self.file}: line {number}", len(self.values))
                objects.append(Outline(shares * (width, height), self.values[index]))
        return objects


def _fill_outlines(size: tuple[int, int], outlines: Sequence[Outline], values: Sequence[int]) -> np.ndarray:
    """A picture of (H, W) with a value for each object, int32, later ones on top."""
    picture = Image.new("I", size[::-1])
    pen = ImageDraw.Draw(picture)
    for outline, value in zip(outlines, values, strict=True):
        fill(pen, outline.points, value)
    return np.asarray(picture)


def parse_line(line: str, location: str, count: int) -> tuple[int, np.ndarray]:
    """Class index below `count`, and points (n, 2) in shares of the image's width and height."""
    first, *coordinates = line.split()
    if len(coordinates) == 4:
        raise DataError(f"{location} is a box (5 numbers): the data set is for detection; segmentation needs polygons")
    points = read_points(coordinates, f"{location}: polygon")
    farthest = np.abs(points).max()
    if farthest > MAX_RELATIVE_COORDINATE:
        raise DataError(f"{location}: polygon has a coordinate of {farthest:g}; they are shares of the size, 0 to 1")
    if not re.fullmatch(r"[0-9]{1,9}", first) or int(first) >= count:
        raise DataError(f"{location} is of class {first}, classes are 0 to {count - 1}")
    return int(first), points


class YoloRecords(PairedRecords):
    """Images and their text files; an image without a text file is background, as in YOLO."""

    values: tuple[int, ...]

    def __init__(
        self,
        folders: tuple[Path, Path],
        pairs: Sequence[tuple[str, str]],
        metadata: Metadata,
        values: tuple[int, ...],
    ) -> None:
        super().__init__(*folders, pairs, metadata)
        self.values = values

    def mask(self, image: str, annotation: str) -> ImageSource:
        return YoloMask(annotation, image, self.values)

    @cached_property
    def annotations(self) -> AnnotationSummary:
        """The counts over all files; errors in them are reported when they are rendered."""
        counts: Counter[str] = Counter()
        background = {str(index) for index, value in enumerate(self.values) if value == 0}
        annotated = 0
        for i in range(len(self)):
            try:
                indices = [line.split()[0] for line in read_lines(self.paths(i)[1]) if line.split()]
            except DataError:
                continue
            indices = [index.lstrip("0") or "0" for index in indices]  # 01 is class 1 too
            annotated += not background.issuperset(indices)
            counts.update(indices)
        names = dict(self.metadata.classes)
        instances = {names[value]: counts[str(index)] for index, value in enumerate(self.values) if value}
        return AnnotationSummary("YOLO", annotated, len(self) - annotated, instances)


def find(root: Path, named_splits: Sequence[str]) -> SplitPaths:
    """Split -> (folder or list of images, file that names the classes)."""
    settings = _settings_file(root)
    if settings is None:
        names = root / NAMES
        if not names.is_file():
            return {}
        folders = paired_folders(root, named_splits, IMAGE_FOLDERS, ("labels",))
        return {split: (images, names) for split, (images, labels) in folders.items() if images != labels}
    content = read_settings(settings)
    splits: SplitPaths = {}
    for split, folder_names in SPLITS.items():
        if split == "test" and split not in wanted_splits(named_splits):
            continue
        images = _image_folder(content.get(split), split, settings, str(content.get("path") or ""))
        if images is None:
            images = _usual_folder(root, folder_names)
        if images is not None:
            splits[split] = (images, settings)
        elif split == "train":
            raise DataError(f"{settings} says train: {content.get(split)}, which is not there")
    if splits.get("val") == splits["train"]:  # in small examples val is train; some of train is held out instead
        del splits["val"]
    return splits


def _usual_folder(root: Path, names: Sequence[str]) -> Path | None:
    """The first folder of images, in one of the usual places, of a split that may have any of the names."""
    for name in names:
        for folder in (root / name / "images", root / "images" / name):
            if folder.is_dir():
                return folder
    return None


def _settings_file(root: Path) -> Path | None:
    """data.yaml if it names classes; another data.yaml is not YOLO's."""
    for name in SETTINGS:
        path = root / name
        if path.is_file() and any(line.startswith("names:") for line in read_lines(path)):
            return path
    return None


def read_settings(path: Path) -> dict[str, Any]:
    """data.yaml, its names as a list. Raises DataError if it is not YAML, or names no classes."""
    try:
        content = read_yaml(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as YAML ({one_line(error)})") from error
    names = content.get("names")
    if isinstance(names, dict) and {*map(type, names)} <= {int} and names.keys() == {*range(len(names))}:
        names = [names[index] for index in range(len(names))]
    if not isinstance(names, list) or not names:
        raise DataError(f"{path} has no `names`: expected a list of the classes, or 0: name, 1: name, ...")
    for index, name in enumerate(names):
        if type(name) not in (str, int, float):  # YAML takes `no` and `2020-01-01` for a truth value and a date
            raise DataError(f"{path}: the name of class {index} is {str(name)[:40]}, expected a text; put it in quotes")
    return content | {"names": [str(name) for name in names]}


def _image_folder(value: Any, split: str, settings: Path, base: str) -> Path | None:
    """The folder, or the .txt with a list of images, that data.yaml gives for a split; None if it is not there."""
    if isinstance(value, list):
        raise DataError(f"{settings} gives a list for {split}; give one folder, or a .txt that lists the images")
    root = settings.parent
    inside = re.sub(r"^(\.\./)+", "", str(value or ""))  # Roboflow's ../train/images means train/images
    paths = [root / base / inside, root / inside, root / base / str(value)]
    # not `Path.exists`, which raises an OSError for a name that is too long
    return next((path for path in paths if inside and os.path.exists(path)), None)


def load(root: Path, splits: SplitPaths, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records."""
    _, names_file = next(iter(splits.values()))
    if names_file.name == NAMES:
        names = [line.strip() for line in read_lines(names_file) if line.strip()]
    else:
        names = read_settings(names_file)["names"]
    classes, values = number_classes(names, str(names_file))
    openers: SplitOpeners = {}
    for split, (images, _) in splits.items():
        openers[split] = partial(open_records, images, root, classes, tuple(values), allow_unpaired)
    return openers


def open_records(
    images: Path,
    root: Path,
    classes: NamedClasses,
    values: tuple[int, ...],
    allow_unpaired: bool,
) -> YoloRecords:
    """Images of a folder or list, each with the text file of its name, in labels/ if the image is in images/."""
    unpaired: list[str] = []
    if images.is_dir():
        folder = images
        names = list(files_by_stem(images, "images").values())
    else:
        entries = [line.strip() for line in read_lines(images) if line.strip()]
        paths: list[str] = []
        for entry in dict.fromkeys(entries):
            path = find_file(entry, [str(root)])
            if path is None:
                unpaired.append(f"{entry}: listed in {images.name}, but the file is missing")
            else:
                paths.append(path)
        folders = [os.path.dirname(path) for path in paths]
        folder = Path(os.path.commonpath(folders or [str(root)]))
        names = [os.path.relpath(path, folder) for path in paths]
    labels = label_folder(folder, root)
    texts = files_by_stem(labels, "label files", (".txt",))
    stems = [composed(os.path.splitext(name)[0]) for name in names]
    pairs = [(name, texts.get(stem, "")) for name, stem in zip(names, stems, strict=True)]
    if images.is_dir() and labels != folder:
        without_image = texts.keys() - {*stems, Path(NAMES).stem}
        unpaired += [f"{texts[stem]}: label file without image" for stem in sorted(without_image)]
    check_unpaired(unpaired, len(pairs), allow_unpaired, images)
    metadata = Metadata(classes, tuple(unpaired), has_rules=False)  # a classes.txt names the classes
    return YoloRecords((folder, labels), pairs, metadata, values)


def label_folder(images: Path, root: Path) -> Path:
    """The folder of text files: `images` with its last part `images` replaced by `labels`, or `images` itself."""
    above = Path()
    below = images
    if images.is_relative_to(root):
        above = root
        below = images.relative_to(root)
    matches = [i for i, part in enumerate(below.parts) if part.lower() in IMAGE_FOLDERS]
    if not matches:
        return images
    last = matches[-1]
    above = above.joinpath(*below.parts[:last])
    labels = folder_in(above, ("labels",)) or above / "labels"
    return labels.joinpath(*below.parts[last + 1 :])
