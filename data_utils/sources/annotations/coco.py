"""COCO: one JSON file for each split lists images, categories and objects.

The format: https://cocodataset.org/#format-data.
"""

import gc
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.sources.annotations.coco_mask import CocoMask, Entry
from data_utils.sources.annotations.layout import (
    BACKGROUND_NAMES,
    Places,
    check_unpaired,
    find_file,
    listed,
    number_classes,
    wanted_splits,
)
from data_utils.sources.annotations.polygons import FARTHEST
from data_utils.sources.folder import children
from data_utils.sources.records import AnnotationSummary, Record, Records
from runtime.cache import digest_of_files
from runtime.errors import DataError, one_line
from unet.config import MaskValue

# COCO's own and CVAT's; Roboflow's; others', Label Studio's, FiftyOne's
FILES = re.compile(r"instances_(.+)\.json|_annotations\.coco\.json|(?:annotations|result|labels)\.json")

# what each entry needs, and of which type; only categories are sorted by their ids
TYPES: dict[str, tuple[type, ...]] = {"a number": (int, float), "text": (str,), "a number or text": (int, float, str)}
CATEGORY = {"id": "a number", "name": "a number or text"}
IMAGE = {"id": "a number or text", "file_name": "text"}
ANNOTATION = {"image_id": "a number or text", "category_id": "a number or text"}


class CocoFile(NamedTuple):
    """What one file says: categories by id, ids that objects use, images, and the objects of each image by its id."""

    path: Path
    categories: dict[int, Entry]
    used: set[int]
    images: list[Entry]
    objects: dict[int, list[Entry]]


class CocoRecords(Records):
    """Images of one file and what is drawn on them.

    The objects of all images are kept in one array of bytes: a million Python objects would be copied, page by page,
    into every loader process as their reference counts change.
    """

    def __init__(
        self,
        file: CocoFile,
        paths: Sequence[str],
        images: Sequence[Entry],
        classes: tuple[tuple[MaskValue, str], ...],
        values: dict[int, int],
        unpaired: Sequence[str],
    ) -> None:
        self.file, self.classes, self.values, self.unpaired = str(file.path), classes, values, tuple(unpaired)
        self.folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        self.names = np.array([os.fsencode(os.path.relpath(path, self.folder)) for path in paths])
        self.sizes = np.array([[image.get(side) or 0 for side in ("height", "width")] for image in images], np.int32)
        needed = ("id", "category_id", "iscrowd", "segmentation")
        objects = [file.objects.get(image["id"], []) for image in images]
        parts = [json.dumps([{key: entry.get(key) for key in needed} for entry in some]).encode() for some in objects]
        self.ends = np.cumsum([0, *map(len, parts)])
        self.objects = b"".join(parts)
        names = dict(classes)
        counts = Counter(
            values.get(entry["category_id"]) for some in objects for entry in some if not entry.get("iscrowd")
        )
        instances = {names[value]: counts[value] for value in values.values() if value}
        annotated = sum(map(bool, objects))
        crowds = sum(bool(entry.get("iscrowd")) for some in objects for entry in some)
        self.annotations = AnnotationSummary("COCO", annotated, len(objects) - annotated, instances, crowds)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Record:
        name = os.fsdecode(self.names[i].item())
        image = os.path.join(self.folder, name)
        height, width = self.sizes[i].tolist()
        objects = self.objects[self.ends[i] : self.ends[i + 1]]
        return {
            "image": image,
            "target": CocoMask(self.file, image, (height, width), objects, self.values),
            "name": name,
        }

    @cached_property
    def digest(self) -> str:  # type: ignore[override]  # computed once it is asked for
        """Key of names, sizes and times of all files, and of what the categories are drawn as."""
        paths = [self.file, *(os.path.join(self.folder, os.fsdecode(name.item())) for name in self.names)]
        drawn = repr(("COCO", self.classes, self.values)).encode()
        return digest_of_files(paths, b"/".join([drawn, *self.names]))


def find(root: Path, named: Sequence[str]) -> Places:
    """Split -> (folder that the images are below, JSON file)."""
    places: Places = {}
    folders = children(root)
    for folder in [root, *(path for name, path in folders.items() if name in {"annotations", *wanted_splits(named)})]:
        for path in sorted(folder.glob("*.json")):
            match = FILES.fullmatch(path.name)
            if match is None:
                continue
            above = root if folder.name.lower() == "annotations" else folder
            split = re.sub(r"[-_]?20\d\d$", "", match[1] or (above.name if above != root else "train")).lower()
            if split.startswith("test") and split not in wanted_splits(named):
                continue
            if split in places:
                raise DataError(f"{places[split][1]} and {path} are both the split {split}; keep one")
            places[split] = above, path
    if len(places) == 1 and not wanted_splits(named) & places.keys():  # instances_default.json
        places["train"] = places.popitem()[1]
    return places


def load(root: Path, places: Places, allow_unpaired: bool) -> dict[str, Callable[[], Records]]:
    """Split -> what opens it. All files are read: classes are those of all together."""
    files = {split: read(path) for split, (_, path) in places.items()}
    classes, values = gather_classes(list(files.values()))
    objects = [entry for file in files.values() for some in file.objects.values() for entry in some]
    if objects and all(entry.get("iscrowd") for entry in objects):
        raise DataError(
            f"{', '.join(str(file.path) for file in files.values())}: every object has iscrowd 1 and would be ignored;"
            " export polygons (some tools write what was painted with a brush as crowds), or set it to 0"
        )
    return {
        split: partial(open_records, file, split, places[split][0], classes, values, allow_unpaired)
        for split, file in files.items()
    }


def open_records(
    file: CocoFile,
    split: str,
    root: Path,
    classes: tuple[tuple[MaskValue, str], ...],
    values: dict[int, int],
    allow_unpaired: bool,
) -> CocoRecords:
    """The images of a file that are found below `root`."""
    key = file.path.stem.removeprefix("instances_")
    folders = [root / "images" / key, root / key, root / "images" / split, root / split]
    folders += [root / name for name in ("images", "data", "JPEGImages", "")]
    there = [str(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]
    found = [(image, find_file(str(image["file_name"]), there)) for image in file.images]
    unpaired = [f"{image['file_name']}: listed, but the file is missing" for image, path in found if path is None]
    pairs = [(image, path) for image, path in found if path is not None]
    check_unpaired(unpaired, len(pairs), allow_unpaired, file.path)
    images, paths = [image for image, _ in pairs], [path for _, path in pairs]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise DataError(f"{file.path}: {len(twice)} images are listed more than once: {listed(twice)}")
    return CocoRecords(file, paths, images, classes, values, unpaired)


def read(path: Path) -> CocoFile:
    """A file, its objects by image. Raises DataError for what is no COCO file of objects."""
    gc.disable()  # it would go over what has been parsed again and again, for two thirds of the time
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON ({one_line(error)})") from error
    finally:
        gc.enable()
    categories = {entry["id"]: entry for entry in _entries(content, "categories", CATEGORY, path)}
    images = _entries(content, "images", IMAGE, path)
    annotations = _entries(content, "annotations", ANNOTATION, path)
    for number, image in enumerate(images):
        for side in ("height", "width"):
            length = image.get(side) or 0
            if not isinstance(length, int | float) or not 0 <= length < FARTHEST:
                raise DataError(
                    f"{path}: entry {number} of 'images' has {side} {length!r}, expected 0 to {FARTHEST:,.0f} pixels"
                )
    listed_images = {image["id"] for image in images}
    if len(listed_images) < len(images):
        raise DataError(f"{path}: {len(images)} images have only {len(listed_images)} different ids")
    strays, objects = [], defaultdict(list)
    for number, entry in enumerate(annotations):
        entry.setdefault("id", f"number {number}")
        objects[entry["image_id"]].append(entry)
        if entry["image_id"] not in listed_images:
            strays.append(f"annotation {entry['id']} is of image {entry['image_id']!r}, which it does not list")
    if strays:
        raise DataError(f"{path}: {listed(strays)}")
    return CocoFile(path, categories, {entry["category_id"] for entry in annotations}, images, objects)


def _entries(content: Any, key: str, needed: dict[str, str], path: Path) -> list[Entry]:
    """The list under `key`, of objects that have what is needed, in its types; a test split may lack one."""
    entries = content.get(key, []) if isinstance(content, dict) and "images" in content else None
    if not isinstance(entries, list):
        raise DataError(f"{path} is no COCO file of objects: it has no list {key!r}")
    for number, entry in enumerate(entries):
        lacking = [name for name in needed if not isinstance(entry, dict) or name not in entry]
        if lacking:
            raise DataError(f"{path}: entry {number} of {key!r} lacks {', '.join(lacking)}")
        for name, expected in needed.items():
            if not isinstance(entry[name], TYPES[expected]):
                raise DataError(f"{path}: entry {number} of {key!r} has {name} {entry[name]!r}, expected {expected}")
    return entries


def gather_classes(files: Sequence[CocoFile]) -> tuple[tuple[tuple[MaskValue, str], ...], dict[int, int]]:
    """Classes of all files by category id, and the mask value of each id. Raises DataError where files differ."""
    first: dict[int, tuple[str, Path]] = {}
    for file in files:
        for number, category in file.categories.items():
            here = str(category["name"])
            name, path = first.setdefault(number, (here, file.path))
            if name != here:
                raise DataError(f"category {number} is {name!r} in {path}, {here!r} in {file.path}; they must agree")
    used = set().union(*(file.used for file in files))
    above = [entry.get("supercategory") for file in files for entry in file.categories.values()]
    # Roboflow lists the name of the project as category 0, above all others
    names = {
        number: name for number, (name, _) in sorted(first.items()) if number or number in used or name not in above
    }
    if all(name.lower() in BACKGROUND_NAMES for name in names.values()):
        raise DataError(f"{files[0].path} lists no categories")
    classes, values = number_classes(list(names.values()), str(files[0].path))
    return classes, dict(zip(names, values, strict=True))
