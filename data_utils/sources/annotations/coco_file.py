"""The content of a COCO file: images, categories and objects."""

import gc
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from data_utils.class_names import NamedClasses, is_background
from data_utils.sources.annotations.coco_mask import Entry
from data_utils.sources.annotations.documents import json_of
from data_utils.sources.annotations.layout import number_classes
from data_utils.sources.annotations.other_formats import describe_format
from runtime.console import listing
from runtime.errors import DataError

LONGEST_SIDE = 10**6  # pixels
# the keys that each kind of entry needs, and their types; only categories are sorted by their ids
TYPES: dict[str, tuple[type, ...]] = {"a number": (int, float), "text": (str,), "a number or text": (int, float, str)}
CATEGORY = {"id": "a number", "name": "a number or text"}
IMAGE = {"id": "a number or text", "file_name": "text"}
ANNOTATION = {"image_id": "a number or text", "category_id": "a number or text"}


class CocoFile(NamedTuple):
    """The content of a file.

    Args:
        categories: by id.
        objects: the objects of each image by its id.
    """

    path: Path
    categories: dict[int, Entry]
    images: list[Entry]
    objects: dict[Any, list[Entry]]

    @property
    def all_objects(self) -> list[Entry]:
        """The objects of all images."""
        return list(chain.from_iterable(self.objects.values()))

    def used_categories(self) -> set[Any]:
        """The ids of categories that objects have."""
        return {entry["category_id"] for entry in self.all_objects}

    def category_names(self) -> dict[int, str]:
        """Names of categories by id, in order; without category 0 of Roboflow, the parent of all others."""
        names = {number: str(category["name"]) for number, category in sorted(self.categories.items())}
        parents = [category.get("supercategory") for category in self.categories.values()]
        if 0 in names and names[0] in parents and 0 not in self.used_categories():
            del names[0]
        return names


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
    return CocoFile(path, categories, images, objects)


def _entries(content: dict[str, Any], key: str, fields: dict[str, str], path: Path) -> list[Entry]:
    """The list under `key`; its entries have the `fields`, in their types. A test split may lack the list."""
    entries = None
    if "images" in content:
        entries = content.get(key, [])
    if not isinstance(entries, list):
        reason = describe_format(path) or f"is no COCO file of objects: it has no list {key!r}"
        raise DataError(f"{path} {reason}")
    for number, entry in enumerate(entries):
        location = f"{path}: entry {number} of {key!r}"
        lacking = [name for name in fields if not isinstance(entry, dict) or name not in entry]
        if lacking:
            raise DataError(f"{location} lacks {', '.join(lacking)}")
        for name, expected in fields.items():
            if not isinstance(entry[name], TYPES[expected]):
                raise DataError(f"{location} has {name} {entry[name]!r}, expected {expected}")
    return entries


def number_categories(files: Sequence[CocoFile], *, by_name: bool) -> tuple[NamedClasses, list[dict[Any, int]]]:
    """The classes of all files, and for each file the mask value of each id of a category.

    Args:
        by_name: whether categories of one name are one class; else those of one id are.

    Raises DataError if files give an id different names.
    """
    names: dict[Any, str] = {}
    first_paths: dict[Any, Path] = {}
    for file in files:
        for number, name in file.category_names().items():
            key = name if by_name else number
            first_name = names.setdefault(key, name)
            path = first_paths.setdefault(key, file.path)
            if first_name != name:
                raise DataError(
                    f"category {number} is {first_name!r} in {path}, {name!r} in {file.path}; they must agree"
                )
    if all(map(is_background, names.values())):
        raise DataError(f"{files[0].path} lists no categories")
    keys = list(names) if by_name else sorted(names)
    classes, values = number_classes([names[key] for key in keys], str(files[0].path))
    value_by_key = dict(zip(keys, values, strict=True))
    if not by_name:
        return classes, [value_by_key] * len(files)
    values_by_file = []
    for file in files:
        values_by_file.append({number: value_by_key[name] for number, name in file.category_names().items()})
    return classes, values_by_file
