"""COCO: one JSON file for each split lists images, categories and objects.

The format: https://cocodataset.org/#format-data.
"""

import gc
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.class_names import NamedClasses, is_background
from data_utils.sources.annotations.coco_mask import FILE_KEY, CocoMask, Entry
from data_utils.sources.annotations.layout import (
    SplitPaths,
    check_unpaired,
    find_file,
    listed,
    number_classes,
)
from data_utils.sources.annotations.polygons import MAX_PIXEL_DISTANCE
from data_utils.sources.folder import children, wanted_splits
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.records import AnnotationSummary, Metadata, Record, Records, SplitOpeners, folders_of
from runtime.cache import digest_of_files
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line

# names of files by COCO itself and CVAT; by Roboflow; by others, Label Studio, FiftyOne
FILES = re.compile(r"instances_(.+)\.json|_annotations\.coco\.json|(?:annotations|result|labels)\.json")

# the keys that each kind of entry needs, and their types; only categories are sorted by their ids
TYPES: dict[str, tuple[type, ...]] = {"a number": (int, float), "text": (str,), "a number or text": (int, float, str)}
CATEGORY = {"id": "a number", "name": "a number or text"}
IMAGE = {"id": "a number or text", "file_name": "text"}
ANNOTATION = {"image_id": "a number or text", "category_id": "a number or text"}
RENDERED_KEYS = ("id", "category_id", "iscrowd", "segmentation")  # the keys of an annotation that rendering needs


class CocoFile(NamedTuple):
    """The content of one file, or of several files of one split.

    Args:
        categories: by id.
        objects: the objects of each image by its id.
        listed_categories: the categories that the files of an image list, by the image's id; empty for a single file,
            which lists the same for all.
        paths: all files.
    """

    categories: dict[int, Entry]
    images: list[Entry]
    objects: dict[Any, list[Entry]]
    listed_categories: dict[Any, set[int]]
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The first of the files."""
        return self.paths[0]

    def used_categories(self) -> set[Any]:
        """The ids of categories that objects have."""
        return {entry["category_id"] for entry in chain.from_iterable(self.objects.values())}


class CocoRecords(Records):
    """Images of one file and their objects.

    The objects of all images are kept in one array of bytes: a million Python objects would be copied, page by page,
    into every loader process as their reference counts change.
    """

    def __init__(
        self,
        file: CocoFile,
        paths: Sequence[str],
        images: Sequence[Entry],
        classes: NamedClasses,
        values: dict[int, int],
        unpaired: Sequence[str],
    ) -> None:
        self.files = [str(path) for path in file.paths]
        self.metadata = Metadata(classes, tuple(unpaired))
        self.values = values
        self.folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        self.names = np.array([os.fsencode(os.path.relpath(path, self.folder)) for path in paths])
        sizes = [(image.get("height") or 0, image.get("width") or 0) for image in images]
        self.sizes = np.array(sizes, np.int32)
        objects = [file.objects.get(image["id"], []) for image in images]
        texts = [_encode_objects(entries) for entries in objects]
        self.ends = np.cumsum([0, *map(len, texts)])
        self.objects = b"".join(texts)
        self.annotations = _summarize(objects, classes, values)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Record:
        name = os.fsdecode(self.names[i].item())
        image = os.path.join(self.folder, name)
        height, width = self.sizes[i].tolist()
        objects = self.objects[self.ends[i] : self.ends[i + 1]]
        return {
            "image": image,
            "target": CocoMask(self.files[0], image, (height, width), objects, self.values),
            "name": name,
        }

    def image_folders(self) -> set[tuple[str, str]]:
        return folders_of(self.folder, self.names)

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the classes, whose order gives categories values."""
        paths = [*self.files]
        for name in self.names:
            paths.append(os.path.join(self.folder, os.fsdecode(name.item())))
        classes = repr(("COCO", self.metadata.classes)).encode()
        return digest_of_files(paths, b"/".join([classes, *self.names]))


def _encode_objects(entries: list[Entry]) -> bytes:
    """The objects of an image as JSON, each with the keys that rendering needs."""
    objects: list[Entry] = []
    for entry in entries:
        fields = {key: entry.get(key) for key in RENDERED_KEYS}
        if FILE_KEY in entry:
            fields[FILE_KEY] = entry[FILE_KEY]
        objects.append(fields)
    return json.dumps(objects).encode()


def _summarize(objects: Sequence[list[Entry]], classes: NamedClasses, values: dict[int, int]) -> AnnotationSummary:
    """The format and the objects of all images, from the list of each image."""
    annotated = 0
    crowds = 0
    counts: Counter[int | None] = Counter()
    for entries in objects:
        annotated += bool(entries)
        for entry in entries:
            if entry.get("iscrowd"):
                crowds += 1
            else:
                counts[values.get(entry["category_id"])] += 1
    names = dict(classes)
    instances = {names[value]: counts[value] for value in values.values() if value}
    return AnnotationSummary("COCO", annotated, len(objects) - annotated, instances, crowds)


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
    if len(splits) == 1 and not split_names & splits.keys():  # instances_default.json
        _, paths = splits.popitem()
        splits["train"] = paths
    return _with_parts(splits, split_names)


def _with_parts(splits: SplitPaths, split_names: set[str]) -> SplitPaths:
    """The splits; `train_cars` and `train_people` become parts of a split `train` that has no file of its own.

    If no file is named after a split, all files are parts of `train`.
    """
    part_of: dict[str, str] = {}
    for name in splits:
        for split in split_names - splits.keys():
            if re.match(rf"{re.escape(split)}[-_.]", name):
                part_of[name] = split
    if not split_names & {*splits, *part_of.values()}:
        part_of = dict.fromkeys(splits, "train")
    renamed = {}
    for name, paths in splits.items():
        split = f"{part_of[name]}/{name}" if name in part_of else name
        renamed[split] = paths
    return renamed


def load(root: Path, splits: SplitPaths, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records. All files are read: their classes are joined."""
    parts: dict[str, list[CocoFile]] = defaultdict(list)
    folder_of: dict[str, Path] = {}
    for name, (folder, path) in splits.items():
        split = name.partition("/")[0]
        parts[split].append(read(path))
        folder_of[split] = folder
    files = {split: split_files[0] for split, split_files in parts.items()}
    if any(len(split_files) > 1 for split_files in parts.values()):
        numbers: dict[str, int] = {}
        files = {split: join(split_files, numbers) for split, split_files in parts.items()}
    classes, values = gather_classes(list(files.values()))
    if _holds_only_crowds(files.values()):
        paths = ", ".join(str(file.path) for file in files.values())
        raise DataError(
            f"{paths}: every object has iscrowd 1 and would be ignored;"
            " export polygons (some tools write what was painted with a brush as crowds), or set it to 0"
        )
    openers: SplitOpeners = {}
    for split, file in files.items():
        openers[split] = partial(open_records, file, split, folder_of[split], classes, values, allow_unpaired)
    return openers


def join(files: Sequence[CocoFile], numbers: dict[str, int]) -> CocoFile:
    """Several files of one split as one: categories are matched by name, and an image has the objects of all files.

    Args:
        numbers: the ids of categories by their names, to which new ones are added.
    """
    categories: dict[int, Entry] = {}
    images: dict[str, Entry] = {}
    objects: defaultdict[str, list[Entry]] = defaultdict(list)
    listed_categories: defaultdict[str, set[int]] = defaultdict(set)
    for file in files:
        number_of: dict[Any, int] = {}
        for number, name in _category_names(file).items():
            number_of[number] = numbers.setdefault(name, len(numbers) + 1)
            categories[number_of[number]] = {"id": number_of[number], "name": name}
        for image in file.images:
            name = str(image["file_name"])
            images.setdefault(name, {**image, "id": name})
            listed_categories[name].update(number_of.values())
            for entry in file.objects.get(image["id"], []):
                category = entry["category_id"]
                # an id that the file does not list becomes text, which is the id of no category
                fields = {"category_id": number_of.get(category, str(category)), FILE_KEY: str(file.path)}
                objects[name].append({**entry, **fields})
    paths = tuple(file.path for file in files)
    return CocoFile(categories, list(images.values()), objects, listed_categories, paths)


def _holds_only_crowds(files: Iterable[CocoFile]) -> bool:
    """Whether the files hold objects, and each of them is a crowd."""
    entries: list[Entry] = []
    for file in files:
        entries += chain.from_iterable(file.objects.values())
    return bool(entries) and all(entry.get("iscrowd") for entry in entries)


def open_records(
    file: CocoFile,
    split: str,
    root: Path,
    classes: NamedClasses,
    values: dict[int, int],
    allow_unpaired: bool,
) -> Records:
    """The images of a file that are found below `root`, with the classes of the categories that it lists."""
    key = file.path.stem.removeprefix("instances_")
    folders = [root / "images" / key, root / key, root / "images" / split, root / split]
    folders += [root / name for name in ("images", "data", "JPEGImages", "")]
    existing = [str(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]
    images: list[Entry] = []
    paths: list[str] = []  # one for each of the images
    unpaired: list[str] = []
    for image in file.images:
        path = find_file(str(image["file_name"]), existing)
        if path is None:
            unpaired.append(f"{image['file_name']}: listed, but the file is missing")
        else:
            images.append(image)
            paths.append(path)
    check_unpaired(unpaired, len(paths), allow_unpaired, file.path)
    repeated = [path for path, count in Counter(paths).items() if count > 1]
    if repeated:
        raise DataError(f"{file.path}: {len(repeated)} images are listed more than once: {listed(repeated)}")
    records = CocoRecords(file, paths, images, classes, values, unpaired)
    names = dict(classes)
    labels: list[ImageLabels | None] = []
    for image in images:
        numbers = file.listed_categories.get(image["id"], file.categories.keys())
        labeled = {values[number] for number in numbers if number in values} - {0}
        image_labels = None
        if labeled and len(labeled) < len(classes) - 1:
            labeled_names = tuple(sorted(names[value] for value in labeled))
            image_labels = ImageLabels(labeled_names, f"{file.path}: its categories")
        labels.append(image_labels)
    return with_labels(records, labels)


def read(path: Path) -> CocoFile:
    """A file, its objects by image. Raises DataError if the file is not a COCO file of objects."""
    gc.disable()  # the collector would traverse the parsed objects again and again, for two thirds of the time
    try:
        content = read_json(path, most_bytes=MOST_BYTES_OF_DATA)
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
            if not isinstance(length, int | float) or not 0 <= length < MAX_PIXEL_DISTANCE:
                raise DataError(
                    f"{path}: entry {number} of 'images' has {side} {length!r}, expected 0 to"
                    f" {MAX_PIXEL_DISTANCE:,.0f} pixels"
                )
    listed_images = {image["id"] for image in images}
    if len(listed_images) < len(images):
        raise DataError(f"{path}: {len(images)} images have only {len(listed_images)} different ids")
    strays: list[str] = []
    objects: defaultdict[int, list[Entry]] = defaultdict(list)
    for number, entry in enumerate(annotations):
        entry.setdefault("id", f"number {number}")
        objects[entry["image_id"]].append(entry)
        if entry["image_id"] not in listed_images:
            strays.append(f"annotation {entry['id']} is of image {entry['image_id']!r}, which it does not list")
    if strays:
        raise DataError(f"{path}: {listed(strays)}")
    return CocoFile(categories, images, objects, {}, (path,))


def _entries(content: dict[str, Any], key: str, fields: dict[str, str], path: Path) -> list[Entry]:
    """The list under `key`; its entries have the `fields`, in their types. A test split may lack the list."""
    entries = None
    if "images" in content:
        entries = content.get(key, [])
    if not isinstance(entries, list):
        raise DataError(f"{path} is no COCO file of objects: it has no list {key!r}")
    for number, entry in enumerate(entries):
        lacking = [name for name in fields if not isinstance(entry, dict) or name not in entry]
        if lacking:
            raise DataError(f"{path}: entry {number} of {key!r} lacks {', '.join(lacking)}")
        for name, expected in fields.items():
            if not isinstance(entry[name], TYPES[expected]):
                raise DataError(f"{path}: entry {number} of {key!r} has {name} {entry[name]!r}, expected {expected}")
    return entries


def gather_classes(files: Sequence[CocoFile]) -> tuple[NamedClasses, dict[int, int]]:
    """Classes of all files by category id, and the mask value of each id. Raises DataError if files differ."""
    first_names: dict[int, tuple[str, Path]] = {}
    used_categories: set[Any] = set()
    supercategories: list[Any] = []
    for file in files:
        used_categories |= file.used_categories()
        for number, category in file.categories.items():
            supercategories.append(category.get("supercategory"))
            name = str(category["name"])
            first_name, path = first_names.setdefault(number, (name, file.path))
            if first_name != name:
                raise DataError(
                    f"category {number} is {first_name!r} in {path}, {name!r} in {file.path}; they must agree"
                )
    names = {number: name for number, (name, _) in first_names.items()}
    names = _without_project(names, used_categories, supercategories)
    if all(map(is_background, names.values())):
        raise DataError(f"{files[0].path} lists no categories")
    classes, values = number_classes(list(names.values()), str(files[0].path))
    return classes, dict(zip(names, values, strict=True))


def _category_names(file: CocoFile) -> dict[int, str]:
    """The names of a file's categories by id."""
    names = {number: str(category["name"]) for number, category in file.categories.items()}
    supercategories = [category.get("supercategory") for category in file.categories.values()]
    return _without_project(names, file.used_categories(), supercategories)


def _without_project(names: dict[int, str], used_ids: set[Any], supercategories: Sequence[Any]) -> dict[int, str]:
    """Names of categories by id, in order, without category 0 of Roboflow: the project, the parent of all others."""
    classes = {}
    for number, name in sorted(names.items()):
        if number or number in used_ids or name not in supercategories:
            classes[number] = name
    return classes
