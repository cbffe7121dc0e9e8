"""YOLO segmentation: data.yaml names the classes, and each image has a text file with a polygon for each object.

The format: https://docs.ultralytics.com/datasets/segment/.
"""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.documents import lines_of, reading
from data_utils.sources.annotations.drawn import Area, DrawnMask, drawn_sources, polygon, read_points
from data_utils.sources.annotations.layout import (
    AnnotatedSplits,
    find_file,
    find_listed,
    folder_in,
    number_classes,
    paired_folders,
)
from data_utils.sources.folder import IMAGE_FOLDERS, DataFolder, composed, files_by_stem, wanted_splits
from data_utils.sources.pairs import Cases, pair, split_paths
from data_utils.sources.records import Metadata, Records, SplitOpeners
from runtime.documents import read_yaml
from runtime.errors import DataError

SETTINGS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
NAMES_KEY = re.compile(r"['\"]?names['\"]?\s*:")  # how the line of the class names begins in data.yaml
KEYPOINTS = "kpt_shape"  # the key in data.yaml of data sets of poses
NAMES = "classes.txt"  # a name a line, as Label Studio writes instead
MAX_RELATIVE_COORDINATE = 2.0  # widths of the image: a larger coordinate is in pixels
# key in data.yaml -> names of the split's folder
SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
CLASS_INDEX = re.compile(r"([0-9]{1,9})(?:\.0*)?")  # 3, or 3.0 as tables of floats are written


class YoloMask(DrawnMask):
    """The polygons of a text file; its values are those of the class indices."""

    def read_areas(self) -> tuple[tuple[int, int], list[Area]]:
        """(H, W), and the polygons, objects of less area on top."""
        (file,) = self.files
        size, _ = read_header(self.image, self.image)
        areas: list[tuple[float, Area]] = []
        for number, line in enumerate(lines_of(file), 1):
            if line.split():
                index, shares = parse_line(line, f"{file}: line {number}", len(self.values))
                x, y = (shares * size[::-1]).T
                surface = abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2  # shoelace formula
                areas.append((surface, Area(self.values[index], polygon(np.stack([x, y], axis=1)))))
        areas.sort(key=lambda pair: pair[0], reverse=True)
        return size, [area for _, area in areas]


def parse_line(line: str, location: str, count: int) -> tuple[int, np.ndarray]:
    """Class index below `count`, and points (n, 2) in shares of the image's width and height."""
    first, *coordinates = line.split()
    if len(coordinates) == 4:
        raise DataError(f"{location} is a box (5 numbers): the data set is for detection; segmentation needs polygons")
    points = read_points(coordinates, f"{location}: polygon")
    farthest = np.abs(points).max()
    if farthest > MAX_RELATIVE_COORDINATE:
        raise DataError(f"{location}: polygon has a coordinate of {farthest:g}; they are shares of the size, 0 to 1")
    index = CLASS_INDEX.fullmatch(first)
    if index is None or int(index[1]) >= count:
        raise DataError(f"{location} is of class {first}, classes are 0 to {count - 1}")
    return int(index[1]), points


def find_splits(folder: DataFolder) -> AnnotatedSplits | None:
    """The splits of a folder, None if no file names classes of YOLO."""
    root = folder.root
    names_file = _settings_file(root)
    if names_file is not None:
        content = read_settings(names_file)
        if KEYPOINTS in content:
            raise DataError(f"{names_file} has {KEYPOINTS}: its text files hold boxes and points, and no polygons")
        names = content["names"]
        images_by_split = _listed_splits(names_file, content, folder.named_splits)
    else:
        names_file = root / NAMES
        folders = {}
        if names_file.is_file():
            folders = paired_folders(root, folder.named_splits, IMAGE_FOLDERS, ("labels",))
        images_by_split = {split: images for split, (images, labels) in folders.items() if images != labels}
        if not images_by_split:
            return None
        names = [line.strip() for line in lines_of(names_file) if line.strip()]
        if not names:
            raise DataError(f"{names_file} is empty; give it the name of a class on each line")
    classes, value_by_name = number_classes(names, str(names_file))
    values = {index: value_by_name[name] for index, name in enumerate(names)}
    openers: SplitOpeners = {}
    for split, images in images_by_split.items():
        openers[split] = partial(open_records, images, root, classes, values, folder.config.allow_unpaired)
    return f"YOLO ({names_file})", openers


def _listed_splits(settings: Path, content: dict[str, Any], named_splits: Sequence[str]) -> dict[str, Path]:
    """Split -> its folder or list of images, by the content of data.yaml. Raises DataError without a split train."""
    root = settings.parent
    splits: dict[str, Path] = {}
    for split, folder_names in SPLITS.items():
        if split == "test" and split not in wanted_splits(named_splits):
            continue
        listed = content.get(split)
        if isinstance(listed, list):
            raise DataError(f"{settings} gives a list for {split}; give one folder, or a .txt that lists the images")
        # Roboflow's ../train/images means train/images
        inside = re.sub(r"^(\.\./)+", "", str(listed or ""))
        base = root / str(content.get("path") or "")
        places = [base / inside, root / inside, base / str(listed)] if inside else []
        for name in folder_names:
            places += [root / name / "images", root / "images" / name]
        # not `Path.exists`, which raises an OSError for a name that is too long
        places = [place for place in places if os.path.exists(place)]
        if places:
            splits[split] = places[0]
        elif split == "train":
            problem = f"says train: {listed}, which is not there" if listed else "has no entry train"
            raise DataError(f"{settings} {problem}")
    # in small examples val is train; some of train is held out instead
    if splits.get("val") == splits["train"]:
        del splits["val"]
    return splits


def _settings_file(root: Path) -> Path | None:
    """data.yaml, or beside labels/ the only YAML file that names classes, as coco8-seg.yaml.

    Another data.yaml is not YOLO's.
    """
    files = list(filter(_names_classes, [root / name for name in SETTINGS]))
    has_labels = any((folder / "labels").is_dir() for folder in (root, root / "train"))
    if not files and has_labels and not (root / NAMES).is_file():
        others = list(filter(_names_classes, root.glob("*.y*ml")))
        files = others if len(others) == 1 else []
    return files[0] if files else None


def _names_classes(file: Path) -> bool:
    """Whether a YAML file names classes."""
    return file.is_file() and any(NAMES_KEY.match(line) for line in lines_of(file))


def read_settings(path: Path) -> dict[str, Any]:
    """data.yaml, its names as a list. Raises DataError if it is not YAML, or names no classes."""
    with reading(path, "YAML"):
        content = read_yaml(path)
    names = content.get("names")
    if isinstance(names, dict):
        names = [names.get(str(index)) for index in range(len(names))]
    if not names or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: its names are {str(names)[:60]}, expected a list of texts, or 0: name, 1: name, ...")
    return content | {"names": names}


def open_records(
    images: Path, root: Path, classes: NamedClasses, values: dict[int, int], allow_unpaired: bool
) -> Records:
    """Images of a folder or list, each with the text file of its name, in labels/ if the image is in images/.

    An image without a text file is background.
    """
    lost: list[str] = []
    folder = images
    if images.is_dir():
        names = list(files_by_stem(images, "images").values())
    else:
        listed = list(dict.fromkeys(line.strip() for line in lines_of(images) if line.strip()))
        paths, missing = find_listed(listed, partial(find_file, folders=[str(root)]), images)
        lost = [f"{name}: listed in {images.name}, but the file is missing" for name in missing]
        folder, names = split_paths(list(paths.values())) if paths else (root, [])
    labels = label_folder(folder, root)
    texts = files_by_stem(labels, "label files", (".txt",))
    text_by_image: dict[str, str] = {}
    for name in names:
        text_by_image[name] = texts.get(composed(os.path.splitext(name)[0]), "")
    if images.is_dir() and labels != folder:
        without_image = set(texts.values()) - {*text_by_image.values(), NAMES}
        lost = [f"{text}: label file without image" for text in sorted(without_image)]
    metadata = Metadata(classes, annotations="YOLO")
    cases = Cases(dict(zip(names, names, strict=True)), text_by_image, lost)
    sources = partial(drawn_sources, mask=YoloMask, values=values)
    return pair((folder, labels), cases, metadata, allow_unpaired, sources)


def label_folder(images: Path, root: Path) -> Path:
    """The folder of text files: `images` with its last part `images` below `root` replaced by `labels`, or `images`."""
    for folder in (images, *images.parents):
        if folder == root:
            break
        if folder.name.lower() in IMAGE_FOLDERS:
            labels = folder_in(folder.parent, ("labels",)) or folder.with_name("labels")
            return labels / images.relative_to(folder)
    return images
