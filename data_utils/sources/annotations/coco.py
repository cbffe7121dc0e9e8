"""COCO: one JSON file for each split lists images, categories and objects.

The format: https://cocodataset.org/#format-data.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.sources.annotations.coco_file import LISTED, CocoFile, gather_classes, join_files, read_coco
from data_utils.sources.annotations.coco_mask import FILE_KEY, CocoMask, Entry
from data_utils.sources.annotations.layout import (
    SplitPaths,
    find_file,
    summarize,
    without_image_roots,
)
from data_utils.sources.files import FileRecords, FileRow
from data_utils.sources.folder import children, wanted_splits
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.pairs import check_unpaired
from data_utils.sources.records import Metadata, Record, Records, SplitOpeners
from runtime.cache import digest, digest_of_files
from runtime.console import listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

# names of files by COCO itself and CVAT; by Roboflow; by others, Label Studio, FiftyOne
FILES = re.compile(r"instances_(.+)\.json|_annotations\.coco\.json|(?:annotations|result|labels)\.json")
DRAWN_KEYS = ("id", "category_id", "iscrowd", "segmentation", FILE_KEY)  # the keys of an annotation that drawing needs


class CocoRecords(FileRecords):
    """Images of one file and their objects.

    The objects of all images are kept in one array of bytes: a million Python objects would be copied, page by page,
    into every loader process as their reference counts change.
    """

    def __init__(
        self,
        file: CocoFile,
        image_by_path: Mapping[str, Entry],
        classes: NamedClasses,
        values: dict[int, int],
        unpaired: Sequence[str],
    ) -> None:
        folder = Path(os.path.commonpath([os.path.dirname(path) for path in image_by_path]))
        names = [os.path.relpath(path, folder) for path in image_by_path]
        rows = [FileRow(name, (name,), ()) for name in names]
        super().__init__((folder, folder), rows, Metadata(classes, tuple(unpaired)))
        self.paths_of_annotations = [str(path) for path in file.paths]
        self.values = values
        self.listed_names = np.array([os.fsencode(_listed_name(*pair)) for pair in image_by_path.items()])
        images = image_by_path.values()
        self.sizes = np.array([(image.get("height") or 0, image.get("width") or 0) for image in images], np.int32)
        objects = [file.objects[image["id"]] for image in images]
        texts = [json.dumps(list(map(_drawn, entries))).encode() for entries in objects]
        self.ends = np.cumsum([0, *map(len, texts)])
        self.objects = b"".join(texts)
        counts = [_count_objects(entries, values) for entries in objects]
        crowds = sum(image_counts[IGNORE_INDEX] for image_counts in counts)
        self.annotations = summarize("COCO", counts, classes)._replace(crowds=crowds)

    def __getitem__(self, i: int) -> Record:
        (image,), _ = self.paths(i)
        height, width = self.sizes[i].tolist()
        objects = self.objects[self.ends[i] : self.ends[i + 1]]
        mask = CocoMask(self.paths_of_annotations[0], image, self.values, (height, width), objects)
        return {"image": image, "target": mask, "name": self.name(i)}

    def listed_name(self, i: int) -> str:
        return os.fsdecode(self.listed_names[i].item())

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the classes, whose order gives categories values."""
        return digest(super().digest, digest_of_files(self.paths_of_annotations, b"COCO"))


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


def _drawn(entry: Entry) -> Entry:
    """An object with the keys that drawing needs."""
    return {key: entry[key] for key in DRAWN_KEYS if key in entry}


def _count_objects(entries: Sequence[Entry], values: dict[int, int]) -> Counter[int]:
    """How many objects of each mask value an image has; crowds, and objects of no category, count as ignored."""
    counts: Counter[int] = Counter()
    for entry in entries:
        value = values.get(entry["category_id"], IGNORE_INDEX)
        if entry.get("iscrowd"):
            value = IGNORE_INDEX
        counts[value] += 1
    return counts


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
    parts: dict[str, list[CocoFile]] = defaultdict(list)
    folder_by_split: dict[str, Path] = {}
    for name, (folder, path) in splits.items():
        split = name.partition("/")[0]
        parts[split].append(read_coco(path))
        folder_by_split[split] = folder
    files = {split: split_files[0] for split, split_files in parts.items()}
    if any(len(split_files) > 1 for split_files in parts.values()):
        numbers: dict[str, int] = {}
        files = {split: join_files(split_files, numbers) for split, split_files in parts.items()}
    classes, values = gather_classes(list(files.values()))
    are_crowds: set[bool] = set()
    for file in files.values():
        are_crowds |= {bool(entry.get("iscrowd")) for entry in file.all_objects}
    if are_crowds == {True}:
        paths = ", ".join(str(file.path) for file in files.values())
        raise DataError(
            f"{paths}: every object has iscrowd 1 and would be ignored;"
            " export polygons (some tools write what was painted with a brush as crowds), or set it to 0"
        )
    openers: SplitOpeners = {}
    for split, file in files.items():
        openers[split] = partial(open_records, file, split, folder_by_split[split], classes, values, allow_unpaired)
    return openers


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
    image_by_path: dict[str, Entry] = {}
    unpaired: list[str] = []
    repeated: list[str] = []
    for image in file.images:
        path = find_file(str(image["file_name"]), existing)
        if path is None:
            unpaired.append(f"{image['file_name']}: listed, but the file is missing")
        elif image_by_path.setdefault(path, image) is not image:
            repeated.append(path)
    check_unpaired(unpaired, len(image_by_path), allow_unpaired, file.path)
    if repeated:
        raise DataError(
            f"{file.path}: {len(repeated)} images are listed more than once: {listing(repeated, separator='; ')}"
        )
    records = CocoRecords(file, image_by_path, classes, values, unpaired)
    names = dict(classes)
    return with_labels(records, [_listed_labels(file, image, names, values) for image in image_by_path.values()])


def _listed_labels(
    file: CocoFile, image: Entry, names: Mapping[MaskValue, str], values: dict[int, int]
) -> ImageLabels | None:
    """The categories that the files of an image list, as its labels; None if these are all classes."""
    numbers = image.get(LISTED, file.categories.keys())
    labeled = {values[number] for number in numbers if number in values} - {0}
    if not labeled or len(labeled) == len(names) - 1:
        return None
    return ImageLabels(tuple(sorted(names[value] for value in labeled)), f"{file.path}: its categories")
