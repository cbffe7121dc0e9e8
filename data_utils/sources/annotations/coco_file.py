"""The content of COCO files: images, categories and objects, of one file or of several files of a split."""

import gc
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from data_utils.class_names import NamedClasses, is_background
from data_utils.sources.annotations.coco_mask import FILE_KEY, Entry
from data_utils.sources.annotations.documents import json_of
from data_utils.sources.annotations.layout import number_classes
from runtime.console import listing
from runtime.errors import DataError

LONGEST_SIDE = 10**6  # pixels
LISTED = "listed categories"
# the keys that each kind of entry needs, and their types; only categories are sorted by their ids
TYPES: dict[str, tuple[type, ...]] = {"a number": (int, float), "text": (str,), "a number or text": (int, float, str)}
CATEGORY = {"id": "a number", "name": "a number or text"}
IMAGE = {"id": "a number or text", "file_name": "text"}
ANNOTATION = {"image_id": "a number or text", "category_id": "a number or text"}


class CocoFile(NamedTuple):
    """The content of one file, or of several files of one split.

    Args:
        categories: by id.
        images: those of several files have the categories that their files list under LISTED.
        objects: the objects of each image by its id.
        paths: all files.
    """

    categories: dict[int, Entry]
    images: list[Entry]
    objects: Mapping[Any, list[Entry]]
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The first of the files."""
        return self.paths[0]

    @property
    def all_objects(self) -> list[Entry]:
        """The objects of all images."""
        return list(chain.from_iterable(self.objects.values()))

    def used_categories(self) -> set[Any]:
        """The ids of categories that objects have."""
        return {entry["category_id"] for entry in self.all_objects}


def read_coco(path: Path) -> CocoFile:
    """A file, its objects by image. Raises DataError if the file is not a COCO file of objects."""
    # the collector would traverse the parsed objects again and again, for two thirds of the time
    gc.disable()
    try:
        content = json_of(path)
    finally:
        gc.enable()
    categories = {entry["id"]: entry for entry in _entries(content, "categories", CATEGORY, path)}
    images = _entries(content, "images", IMAGE, path)
    for number, image in enumerate(images):
        for side in ("height", "width"):
            length = image.get(side) or 0
            if not isinstance(length, int | float) or not 0 <= length < LONGEST_SIDE:
                raise DataError(
                    f"{path}: entry {number} of 'images' has {side} {length!r}, expected 0 to {LONGEST_SIDE:,} pixels"
                )
    objects: dict[Any, list[Entry]] = {image["id"]: [] for image in images}
    if len(objects) < len(images):
        raise DataError(f"{path}: {len(images)} images have only {len(objects)} different ids")
    strays: list[str] = []
    for number, entry in enumerate(_entries(content, "annotations", ANNOTATION, path)):
        entry.setdefault("id", f"number {number}")
        if entry["image_id"] in objects:
            objects[entry["image_id"]].append(entry)
        else:
            strays.append(f"annotation {entry['id']} is of image {entry['image_id']!r}, which it does not list")
    if strays:
        raise DataError(f"{path}: {listing(strays, separator='; ')}")
    return CocoFile(categories, images, objects, (path,))


def _entries(content: dict[str, Any], key: str, fields: dict[str, str], path: Path) -> list[Entry]:
    """The list under `key`; its entries have the `fields`, in their types. A test split may lack the list."""
    entries = None
    if "images" in content:
        entries = content.get(key, [])
    if not isinstance(entries, list):
        raise DataError(f"{path} is no COCO file of objects: it has no list {key!r}")
    for number, entry in enumerate(entries):
        location = f"{path}: entry {number} of {key!r}"
        lacking = [name for name in fields if not isinstance(entry, dict) or name not in entry]
        if lacking:
            raise DataError(f"{location} lacks {', '.join(lacking)}")
        for name, expected in fields.items():
            if not isinstance(entry[name], TYPES[expected]):
                raise DataError(f"{location} has {name} {entry[name]!r}, expected {expected}")
    return entries


def join_files(files: Sequence[CocoFile], numbers: dict[str, int]) -> CocoFile:
    """Several files of one split as one: categories are matched by name, and an image has the objects of all files.

    Args:
        numbers: the ids of categories by their names, to which new ones are added.
    """
    categories: dict[int, Entry] = {}
    images: dict[str, Entry] = {}
    objects: defaultdict[str, list[Entry]] = defaultdict(list)
    for file in files:
        number_by_category: dict[Any, int] = {}
        for number, name in _category_names([file]).items():
            number_by_category[number] = numbers.setdefault(name, len(numbers) + 1)
            categories[number_by_category[number]] = {"id": number_by_category[number], "name": name}
        for image in file.images:
            name = str(image["file_name"])
            joined = images.setdefault(name, {**image, "id": name, LISTED: set()})
            joined[LISTED].update(number_by_category.values())
            for entry in file.objects[image["id"]]:
                category = entry["category_id"]
                # an id that the file does not list becomes text, which is the id of no category
                fields = {"category_id": number_by_category.get(category, str(category)), FILE_KEY: str(file.path)}
                objects[name].append({**entry, **fields})
    paths = tuple(file.path for file in files)
    return CocoFile(categories, list(images.values()), objects, paths)


def gather_classes(files: Sequence[CocoFile]) -> tuple[NamedClasses, dict[int, int]]:
    """Classes of all files by category id, and the mask value of each id. Raises DataError if files differ."""
    names = _category_names(files)
    if all(map(is_background, names.values())):
        raise DataError(f"{files[0].path} lists no categories")
    classes, values = number_classes(list(names.values()), str(files[0].path))
    return classes, dict(zip(names, values, strict=True))


def _category_names(files: Sequence[CocoFile]) -> dict[int, str]:
    """Names of categories by id, in order, without category 0 of Roboflow: the project, the parent of all others."""
    first_names: dict[int, tuple[str, Path]] = {}
    used_ids: set[Any] = set()
    parents: list[Any] = []
    for file in files:
        used_ids |= file.used_categories()
        for number, category in file.categories.items():
            parents.append(category.get("supercategory"))
            name = str(category["name"])
            first_name, path = first_names.setdefault(number, (name, file.path))
            if first_name != name:
                raise DataError(
                    f"category {number} is {first_name!r} in {path}, {name!r} in {file.path}; they must agree"
                )
    names: dict[int, str] = {}
    for number, (name, _) in sorted(first_names.items()):
        if number or number in used_ids or name not in parents:
            names[number] = name
    return names
