"""COCO: JSON files for each split list images, categories and objects.

The format: https://cocodataset.org/#format-data.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from data_utils.class_names import NamedClasses
from data_utils.sources.annotations.coco_file import CocoFile, number_categories, read_coco
from data_utils.sources.annotations.coco_mask import CocoMask, Entry
from data_utils.sources.annotations.layout import (
    SplitPaths,
    describe_missing,
    find_file,
    summarize,
    without_image_roots,
)
from data_utils.sources.files import FileRow, Sources
from data_utils.sources.folder import children, wanted_splits
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.pairs import open_rows, split_paths
from data_utils.sources.records import Metadata, Records, SplitOpeners
from runtime.console import listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

# names of files by COCO itself and CVAT; by Roboflow; by others, Label Studio, FiftyOne
FILES = re.compile(r"instances_(.+)\.json|_annotations\.coco\.json|(?:annotations|result|labels)\.json")
DRAWN_KEYS = ("id", "category_id", "iscrowd", "segmentation")  # the keys of an annotation that drawing needs


class SplitFile(NamedTuple):
    """A file of a split.

    Args:
        content: what it holds.
        root: the folder above its images.
        values: the mask value of each id of a category.
    """

    content: CocoFile
    root: Path
    values: dict[Any, int]

    def listed_values(self) -> set[int]:
        """The mask values of the categories that the file lists."""
        return {self.values[number] for number in self.content.categories if number in self.values}


def coco_sources(row: FileRow, values: dict[int, int]) -> Sources:
    """An image, and the mask of its objects."""
    return row.images[0], CocoMask(row.targets[0], row.images[0], values, row.targets, row.entry)


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
    part_by_name: dict[str, str] = {}
    for name in splits:
        for split in split_names - splits.keys():
            if re.match(rf"{re.escape(split)}[-_.]", name):
                part_by_name[name] = split
    if not split_names & {*splits, *part_by_name.values()}:
        part_by_name = dict.fromkeys(splits, "train")
    renamed = {}
    for name, paths in splits.items():
        split = f"{part_by_name[name]}/{name}" if name in part_by_name else name
        renamed[split] = paths
    return renamed


def load(root: Path, splits: SplitPaths, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records. All files are read: their classes are joined."""
    contents: defaultdict[str, list[tuple[CocoFile, Path]]] = defaultdict(list)
    for name, (folder, path) in splits.items():
        contents[name.partition("/")[0]].append((read_coco(path), folder))
    files = [file for file, _ in chain.from_iterable(contents.values())]
    classes, values = number_categories(files, by_name=len(files) > len(contents))
    are_crowds = {bool(entry.get("iscrowd")) for file in files for entry in file.all_objects}
    if are_crowds == {True}:
        paths = ", ".join(str(file.path) for file in files)
        raise DataError(
            f"{paths}: every object has iscrowd 1 and would be ignored;"
            " export polygons (some tools write what was painted with a brush as crowds), or set it to 0"
        )
    openers: SplitOpeners = {}
    following = iter(values)
    for split, split_contents in contents.items():
        split_files = [SplitFile(file, folder, next(following)) for file, folder in split_contents]
        openers[split] = partial(open_records, split_files, split, classes, allow_unpaired)
    return openers


def open_records(files: Sequence[SplitFile], split: str, classes: NamedClasses, allow_unpaired: bool) -> Records:
    """The images that the files of a split list, each with the objects and the classes of the files that list it."""
    listings: defaultdict[str, list[tuple[int, Entry]]] = defaultdict(list)  # of each path: its files and their entries
    unpaired: dict[str, None] = {}
    repeated: list[str] = []
    missing: list[str] = []
    for number, file in enumerate(files):
        image_folders = _image_folders(file, split)
        for image in file.content.images:
            path = find_file(str(image["file_name"]), image_folders)
            if path is None:
                missing.append(str(image["file_name"]))
                unpaired[f"{image['file_name']}: listed, but the file is missing"] = None
            elif listings[path] and listings[path][-1][0] == number:
                repeated.append(path)
            else:
                listings[path].append((number, image))
    first_file = files[0].content.path
    if repeated:
        raise DataError(
            f"{first_file}: {len(repeated)} images are listed more than once: {listing(repeated, separator='; ')}"
        )
    folder, names_below = split_paths(list(listings))
    annotation_files = tuple(os.path.relpath(file.content.path, first_file.parent) for file in files)
    names = dict(classes)
    rows: list[FileRow] = []
    counts: list[Counter[int]] = []
    labels: list[ImageLabels | None] = []
    for name, (path, entries) in zip(names_below, listings.items(), strict=True):
        _, image = entries[0]
        objects: list[Entry] = []
        labeled: set[int] = set()
        for number, entry in entries:
            objects += _drawn_objects(files[number], number, entry)
            labeled |= files[number].listed_values()
        content = {"size": [image.get("height") or 0, image.get("width") or 0], "objects": objects}
        row = FileRow(name, (name,), annotation_files, _listed_name(path, image), json.dumps(content).encode())
        rows.append(row)
        counts.append(Counter(map(_counted_value, objects)))
        labels.append(_as_labels(labeled - {0}, names, first_file))
    crowds = sum(image_counts[IGNORE_INDEX] for image_counts in counts)
    summary = summarize("COCO", counts, classes)._replace(crowds=crowds)
    metadata = Metadata(classes, annotations=summary)
    sources = (coco_sources, {value: value for value in names})
    hint = partial(describe_missing, missing, _image_folders(files[0], split), files[0].root)
    paired_folders = (folder, first_file.parent)
    records = open_rows(
        paired_folders, rows, list(unpaired), metadata, allow_unpaired, *sources, location=first_file, hint=hint
    )
    return with_labels(records, labels)


def _image_folders(file: SplitFile, split: str) -> list[str]:
    """The folders that may hold the images of a file."""
    key = file.content.path.stem.removeprefix("instances_")
    names = (f"images/{key}", key, f"images/{split}", split, "images", "data", "JPEGImages", "")
    return [str(folder) for folder in dict.fromkeys(file.root / name for name in names) if folder.is_dir()]


def _drawn_objects(file: SplitFile, number: int, image: Entry) -> list[Entry]:
    """The objects of an image, with the keys that drawing needs; `number` is the index of their file."""
    objects: list[Entry] = []
    for found in file.content.objects[image["id"]]:
        drawn = {key: found[key] for key in DRAWN_KEYS if key in found}
        objects.append(drawn | {"value": file.values.get(found["category_id"]), "file": number})
    return objects


def _counted_value(found: Entry) -> int:
    """The mask value of an object; crowds, and objects of no category, count as ignored."""
    if found.get("iscrowd") or found["value"] is None:
        return IGNORE_INDEX
    return found["value"]


def _as_labels(values: set[int], names: Mapping[MaskValue, str], file: Path) -> ImageLabels | None:
    """The classes of these values, as the labels of an image; None if these are all classes, or none is listed."""
    if not values or len(values) == len(names) - 1:
        return None
    return ImageLabels(tuple(sorted(names[value] for value in values)), f"{file}: its categories")


def _listed_name(path: str, image: Entry) -> str:
    """The end of an image's path that its file lists, without the folder of all images or of a split.

    The file may list more folders, of another machine.
    """
    parts: list[str] = []
    listed_parts = unquote(str(image["file_name"]).replace("\\", "/")).split("/")
    for part, listed_part in zip(reversed(Path(path).parts), reversed(listed_parts), strict=False):
        if unquote(part) != listed_part:
            break
        parts.insert(0, part)
    return "/".join([*without_image_roots(parts[:-1]), parts[-1]])
