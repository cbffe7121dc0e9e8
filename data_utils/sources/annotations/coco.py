"""COCO: JSON files for each split list images, categories and objects.

The format: https://cocodataset.org/#format-data.
"""

import gc
import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.class_names import NamedClasses, is_background
from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.documents import json_of
from data_utils.sources.annotations.drawn import Area, DrawnMask, drawn_size, drawn_sources, fill_runs, read_points
from data_utils.sources.annotations.layout import (
    AnnotatedSplits,
    SplitPaths,
    describe_missing,
    find_file,
    find_listed,
    number_classes,
    without_image_roots,
)
from data_utils.sources.annotations.other_formats import describe_format
from data_utils.sources.folder import DataFolder, children, wanted_splits
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.pairs import open_rows, split_paths
from data_utils.sources.records import FileRow, Metadata, Records, split_openers
from runtime.console import listing
from runtime.errors import DataError

# names of files by COCO itself and CVAT; by Roboflow; by others, Label Studio, FiftyOne
FILES = re.compile(r"instances_(.+)\.json|_annotations\.coco\.json|(?:annotations|result|labels)\.json")
SUPERVISELY = re.compile(r"instances\.json")  # beside others, it may hold the objects of all splits
TYPES: dict[str, tuple[type, ...]] = {"a number": (int, float), "text": (str,), "a number or text": (int, float, str)}
# the keys that each kind of entry needs, and their types; only categories are sorted by their ids
KEYS = {
    "categories": {"id": "a number", "name": "a number or text"},
    "images": {"id": "a number or text", "file_name": "text"},
    "annotations": {"image_id": "a number or text", "category_id": "a number or text"},
}
DRAWN_KEYS = ("id", "category_id", "iscrowd", "segmentation")  # the keys of an annotation that drawing needs
LONGEST_RUN = 60  # bits of a run's length

Entry = dict[str, Any]


class CocoFile(NamedTuple):
    """The content of a file: categories by id, and the objects of each image by its id; `root` is above its images."""

    path: Path
    root: Path
    categories: dict[Any, Entry]
    images: list[Entry]
    objects: dict[Any, list[Entry]]

    @property
    def all_objects(self) -> list[Entry]:
        """The objects of all images."""
        return list(chain.from_iterable(self.objects.values()))

    @property
    def names(self) -> dict[Any, str]:
        """The name of each category by its id, in the order of ids."""
        return {number: str(category["name"]) for number, category in sorted(self.categories.items())}


@dataclass
class ListedImage:
    """An image of one file or of several: its name in them, (H, W) there, its objects, and the classes of the files."""

    listed_name: str
    size: list[Any]
    objects: list[Entry] = field(default_factory=list)
    labeled: set[str] = field(default_factory=set)


class CocoMask(DrawnMask):
    """The objects of an image; its entry holds the size in the files, 0 if none, and the objects with mask values."""

    def read_areas(self) -> tuple[tuple[int, int], list[Area]]:
        """(H, W), and the objects: crowds first, so that others stay; then the largest first."""
        content = json.loads(self.entry)
        name = os.path.basename(self.image)
        picture_size, _ = read_header(self.image, self.image)
        size = drawn_size(content["size"], picture_size, f"{self.files[0]}: {name}")
        ranked: list[tuple[int, Area]] = []
        for entry in content["objects"]:
            location = f"{self.files[entry['file']]}: annotation {entry['id']} of {name}"
            runs = read_runs(entry.get("segmentation"), size, location)
            if entry["value"] is None:
                raise DataError(f"{location} is of category {entry['category_id']!r}, which the file does not list")
            is_crowd = bool(entry.get("iscrowd"))
            rank = int(runs[1::2].sum())
            if is_crowd:  # below all objects
                rank += size[0] * size[1]
            ranked.append((rank, Area(entry["value"], partial(fill_runs, runs), is_crowd=is_crowd)))
        ranked.sort(key=itemgetter(0), reverse=True)
        return size, [area for _, area in ranked]


def read_runs(segmentation: Any, size: tuple[int, int], location: str) -> np.ndarray:
    """The runs of pixels of an object in an image of `size` (H, W), as `fill_runs` draws them.

    They are given as RLE, or made from polygons by COCO's own code. Raises DataError, with `location`.
    """
    if not segmentation:
        raise DataError(
            f"{location} has a box but no segmentation: it is for detection, or was exported without polygons"
        )
    if isinstance(segmentation, list):
        from pycocotools import mask  # prediction needs it to read or write COCO only

        polygons = [read_points(polygon, f"{location}: polygon {i}") for i, polygon in enumerate(segmentation, 1)]
        parts = mask.frPyObjects([points.ravel().tolist() for points in polygons], *size)
        return np.array(run_lengths(mask.merge(parts)["counts"].decode()))
    rle = segmentation if isinstance(segmentation, dict) else {}
    counts = rle.get("counts")
    height, width = size
    if rle.get("size") != [height, width] or not isinstance(counts, list | str):
        raise DataError(
            f"{location} is no RLE of {height} x {width} (height x width): size {rle.get('size')}, counts"
            f" {type(counts).__name__}"
        )
    runs = run_lengths(counts) if isinstance(counts, str) else counts
    if not all(isinstance(run, int) and run >= 0 for run in runs) or sum(runs) != height * width:
        raise DataError(f"{location} has run lengths that do not add up to {height} x {width} pixels")
    return np.array(runs)


def run_lengths(text: str) -> list[int]:
    """Run lengths of a compressed RLE: groups of 5 bits, lowest first; each run less the one two before.

    Each character is 48 more than 5 bits and, as bit 5, whether others follow; bit 4 of the last one is the sign.
    Nothing for a text with other characters, or with a number that no picture is large enough for.
    """
    runs: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > LONGEST_RUN:
            return []
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            number -= (bits & 16) << shift - 4
            if len(runs) > 2:
                number += runs[-2]
            runs.append(number)
            number = shift = 0
    return runs


def find(root: Path, named_splits: Sequence[str], names: re.Pattern[str] = FILES) -> SplitPaths:
    """Split -> (folder above the images, JSON file); `SPLIT/PART` for each of several files of one split.

    `names` matches the names of the files; its group matches the split.
    """
    split_names = wanted_splits(named_splits)
    folders = [root]
    for name, folder in children(root).items():
        if name == "annotations" or name in split_names:
            folders.append(folder)
    splits: SplitPaths = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            match = names.fullmatch(path.name)
            if match is None:
                continue
            above = root if folder.name.lower() == "annotations" else folder
            usual_name = "train" if above == root else above.name
            name = match[match.lastindex] if match.lastindex else usual_name
            split = re.sub(r"[-_]?20\d\d$", "", name).lower()
            if split.startswith("test") and split not in split_names:
                continue
            if split in splits:
                raise DataError(f"{splits[split][1]} and {path} are both the split {split}; keep one")
            splits[split] = (above, path)
    if not splits and names is FILES:
        return find(root, named_splits, SUPERVISELY)
    if len(splits) == 1 and not split_names & splits.keys():  # instances_default.json
        _, paths = splits.popitem()
        splits["train"] = paths
    return _with_parts(splits, split_names)


def _with_parts(splits: SplitPaths, split_names: set[str]) -> SplitPaths:
    """The splits; `train_cars` and `train_people` become parts of a split `train` that has no file of its own.

    If no file is named after a split, all files are parts of `train`.
    """
    part_by_name: dict[str, str] = {}
    for name in splits:
        for split in split_names - splits.keys():
            if re.match(rf"{re.escape(split)}[-_.]", name):
                part_by_name[name] = f"{split}/{name}"
    if not part_by_name and not split_names & splits.keys():
        part_by_name = {name: f"train/{name}" for name in splits}
    return {part_by_name.get(name, name): paths for name, paths in splits.items()}


def read_coco(path: Path, root: Path | None = None) -> CocoFile:
    """A file, its objects by image; `root` is the folder above its images.

    Raises DataError if the file is not a COCO file of objects.
    """
    # the collector would traverse the parsed objects again and again, for two thirds of the time
    gc.disable()
    try:
        content = json_of(path)
    finally:
        gc.enable()
    listed = _entries(content, "categories", path)
    categories = {entry["id"]: entry for entry in listed}
    names = {(entry["id"], entry["name"]) for entry in listed}
    if len(categories) < len(names):
        raise DataError(f"{path}: {len(names)} categories have only {len(categories)} different ids")
    images = _entries(content, "images", path)
    objects: dict[Any, list[Entry]] = {image["id"]: [] for image in images}
    if len(objects) < len(images):
        raise DataError(f"{path}: {len(images)} images have only {len(objects)} different ids")
    strays: list[str] = []
    for number, entry in enumerate(_entries(content, "annotations", path)):
        entry.setdefault("id", f"number {number}")
        if entry["image_id"] in objects:
            objects[entry["image_id"]].append(entry)
        else:
            strays.append(f"annotation {entry['id']} is of image {entry['image_id']!r}, which it does not list")
    if strays:
        raise DataError(f"{path}: {listing(strays, separator='; ')}")
    return CocoFile(path, root or path.parent, categories, images, objects)


def _entries(content: dict[str, Any], key: str, path: Path) -> list[Entry]:
    """The list under `key`, whose entries have what `KEYS` says. A test split may lack the list."""
    entries = content.get(key, []) if "images" in content else None
    if not isinstance(entries, list):
        reason = describe_format(path) or f"is no COCO file of objects: it has no list {key!r}"
        raise DataError(f"{path} {reason}")
    for number, entry in enumerate(entries):
        for name, expected in KEYS[key].items():
            value = entry.get(name) if isinstance(entry, dict) else None
            if not isinstance(value, TYPES[expected]):
                raise DataError(f"{path}: entry {number} of {key!r} has {name} {value!r}, expected {expected}")
    return entries


def number_categories(files: Sequence[CocoFile], *, by_name: bool) -> tuple[NamedClasses, dict[str, int]]:
    """The classes of all files, and the mask value of each name of a category.

    Roboflow's category 0, the project that it lists as the parent of all others, is left out.

    Args:
        by_name: whether categories of one name are one class; else those of one id are.

    Raises DataError if files give an id different names.
    """
    used = {entry["category_id"] for file in files for entry in file.all_objects}
    names: dict[Any, str] = {}
    for file in files:
        parents = {str(category.get("supercategory")) for category in file.categories.values()}
        for number, name in file.names.items():
            if number == 0 and name in parents and 0 not in used:
                continue
            first_name = names.setdefault(name if by_name else number, name)
            if first_name != name:
                raise DataError(
                    f"{file.path}: category {number} is {name!r} here, {first_name!r} in {files[0].path} or another"
                    " file; they must agree"
                )
    if all(map(is_background, names.values())):
        raise DataError(f"{files[0].path} lists no categories")
    ordered = list(names.values()) if by_name else [names[number] for number in sorted(names)]
    return number_classes(ordered, str(files[0].path))


def find_splits(folder: DataFolder) -> AnnotatedSplits | None:
    """The splits of a folder, None if it holds no COCO files. All files are read: their classes are joined."""
    splits = find(folder.root, folder.named_splits)
    if not splits:
        return None
    contents: defaultdict[str, list[CocoFile]] = defaultdict(list)
    for name, (above, path) in splits.items():
        contents[name.partition("/")[0]].append(read_coco(path, above))
    files = list(chain.from_iterable(contents.values()))
    classes, values = number_categories(files, by_name=len(files) > len(contents))
    are_crowds = {bool(entry.get("iscrowd")) for file in files for entry in file.all_objects}
    if are_crowds == {True}:
        paths = ", ".join(str(file.path) for file in files)
        raise DataError(
            f"{paths}: every object has iscrowd 1 and would be ignored;"
            " export polygons (some tools write what was painted with a brush as crowds), or set it to 0"
        )
    locations = {split: (split_files, split) for split, split_files in contents.items()}
    settings = (classes, values, folder.config.allow_unpaired)
    return f"COCO ({files[0].path})", split_openers(locations, open_records, *settings)


def open_records(
    files: Sequence[CocoFile], split: str, classes: NamedClasses, value_by_name: dict[Any, int], allow_unpaired: bool
) -> Records:
    """The images that the files of a split list, each with the objects and the classes of the files that list it.

    Raises DataError for an object that several files list, as copies of a file do.
    """
    first_file = files[0].path
    images: dict[str, ListedImage] = {}
    lost: dict[str, None] = {}
    for number, file in enumerate(files):
        folders = _image_folders(file, split)
        listed_names = [image["file_name"] for image in file.images]
        paths, missing = find_listed(listed_names, partial(find_file, folders=folders), file.path)
        lost |= dict.fromkeys(missing)
        names = file.names
        labeled = {name for name in names.values() if value_by_name.get(name)}
        for index, path in paths.items():
            entry = file.images[index]
            size = [entry.get("height"), entry.get("width")]
            image = images.setdefault(path, ListedImage(_listed_name(path, folders), size))
            image.labeled |= labeled
            # of the files before, which may ignore the same area
            outlines = {_outline(drawn) for drawn in image.objects if not drawn.get("iscrowd")}
            for found in file.objects[entry["id"]]:
                drawn = {key: found[key] for key in DRAWN_KEYS if key in found}
                value = value_by_name.get(names.get(found["category_id"]))
                image.objects.append(drawn | {"value": value, "file": number})
                if outlines and _outline(image.objects[-1]) in outlines:
                    raise DataError(
                        f"{file.path}: annotation {found['id']} of {entry['file_name']} is in another file of this"
                        f" split, too, such as {first_file}; keep one of them"
                    )
    folder, names_below = split_paths(list(images))
    annotation_files = tuple(os.path.relpath(file.path, first_file.parent) for file in files)
    rows: list[FileRow] = []
    labels: list[ImageLabels | None] = []
    for name, image in zip(names_below, images.values(), strict=True):
        content = json.dumps({"size": image.size, "objects": image.objects})
        rows.append(FileRow(name, (name,), annotation_files, image.listed_name, content.encode()))
        labels.append(None)
        if 0 < len(image.labeled) < len(classes) - 1:
            labels[-1] = ImageLabels(tuple(sorted(image.labeled)), f"{first_file}: its categories")
    records = open_rows(
        (folder, first_file.parent),
        rows,
        [f"{name}: listed, but the file is missing" for name in lost],
        Metadata(classes, annotations="COCO"),
        allow_unpaired,
        partial(drawn_sources, mask=CocoMask, values=value_by_name),
        location=first_file,
        hint=partial(describe_missing, list(lost), _image_folders(files[0], split), files[0].root),
    )
    return with_labels(records, labels)


def _outline(drawn: Entry) -> str:
    """The class and the outline of an object, by which a copy of it is known."""
    return json.dumps([drawn["value"], drawn.get("segmentation")])


def _image_folders(file: CocoFile, split: str) -> list[str]:
    """The folders that may hold the images of a file."""
    key = file.path.stem.removeprefix("instances_")
    names = (f"images/{key}", key, f"images/{split}", split, "images", "data", "JPEGImages", "")
    return [str(folder) for folder in dict.fromkeys(file.root / name for name in names) if folder.is_dir()]


def _listed_name(path: str, image_folders: Sequence[str]) -> str:
    """The path of an image below its folder, without folders of all images or of a split."""
    prefixes = [os.path.join(folder, "") for folder in image_folders]
    prefix = next(filter(path.startswith, prefixes))
    *folders, name = path.removeprefix(prefix).split(os.sep)
    return "/".join([*without_image_roots(folders), name])
