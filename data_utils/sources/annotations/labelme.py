"""labelme: a JSON file for each image, beside it or in a folder apart, with shapes in the order they were drawn.

The format, and how labelme itself exports masks: https://github.com/wkentaro/labelme.
"""

import os
import re
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data_utils.class_names import BACKGROUND_NAMES, NamedClasses
from data_utils.image_io.formats import EmbeddedImage, ImageSource, image_errors, is_visible_file
from data_utils.sources.annotations.labelme_mask import LabelmeMask, read_labelme
from data_utils.sources.annotations.layout import (
    SplitPaths,
    check_unpaired,
    find_file,
    holds_pictures,
    list_problems,
    number_classes,
    paired_folders,
    read_lines,
)
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.folder import IMAGE_FOLDERS, MASK_FOLDERS, files_by_stem
from data_utils.sources.records import AnnotationSummary, Metadata, Record, SplitOpeners
from data_utils.sources.walk import walk
from runtime.cache import digest, digest_of_files, load_or_compute
from runtime.documents import open_regular
from runtime.errors import DataError
from unet.config import IGNORE_INDEX

FOLDERS = (*MASK_FOLDERS, "json", "jsons", "labelme")  # folders of JSON files apart from the images
HEAD = 2**20  # how many bytes are read to see whether a file is labelme's
# "shapes" is not enough: if keys are sorted, it comes after the image, which may be larger than the head
KEYS = re.compile(rb'"(?:shapes|imageData|imagePath)"\s*:')
LABELS = "labels.txt"  # one name a line, as `labelme --labels` takes it
IGNORED = "__ignore__"  # labelme's own name for ignored areas


class Contents(NamedTuple):
    """The content of a file.

    Args:
        objects: how many objects of each label there are.
        image: the path of the image.
        is_embedded: whether the image is in the file itself.
        points: how many of the shapes are points.
        areas: how many of the shapes are not points.
    """

    objects: dict[str, int]
    image: str
    is_embedded: bool
    points: int
    areas: int


@dataclass(frozen=True)
class LabelmeImage(EmbeddedImage):
    """The image in a JSON file."""

    file: str

    def read(self) -> bytes:
        """The bytes of `imageData`."""
        content = read_labelme(self.file)
        with image_errors(f"{self.file}: imageData"):
            return b64decode(content["imageData"])


class LabelmeRecords(PairedRecords):
    """Images and their JSON files; the image's name is "" if the image is in the JSON file."""

    values: dict[str, int]

    def __init__(
        self,
        folders: tuple[Path, Path],
        pairs: Sequence[tuple[str, str]],
        metadata: Metadata,
        values: dict[str, int],
        annotations: AnnotationSummary,
    ) -> None:
        super().__init__(*folders, pairs, metadata)
        self.values = values
        self.annotations = annotations

    def __getitem__(self, i: int) -> Record:
        image, file = self.paths(i)
        name = self.image_name(i) or os.path.relpath(file, self.folders[1])
        return {"image": image or LabelmeImage(file), "target": self.mask(image, file), "name": name}

    def mask(self, image: str, annotation: str) -> ImageSource:
        return LabelmeMask(annotation, image, self.values)


def find(root: Path, named_splits: Sequence[str]) -> SplitPaths:
    """Split -> (folder of images, folder of JSON files)."""
    splits = paired_folders(root, named_splits, IMAGE_FOLDERS, FOLDERS)
    if any(_holds_shapes(files) for _, files in splits.values()):
        return splits
    return {}


def _holds_shapes(folder: Path) -> bool:
    """Whether one of the first JSON files of a folder, or of one below it, is labelme's."""
    for parent, _, names in walk(folder):
        json_names = sorted(name for name in names if is_visible_file(name, (".json",)))
        if any(is_labelme(os.path.join(parent, name)) for name in json_names[:3]):
            return True
    return False


def is_labelme(file: str | Path) -> bool:
    """Whether a JSON file is labelme's, by its head."""
    with suppress(OSError, ValueError), open_regular(file) as stream:
        return KEYS.search(stream.read(HEAD)) is not None
    return False


def load(root: Path, splits: SplitPaths, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records. All files are read: their classes are joined."""
    contents_by_split = {split: read_contents(files) for split, (_, files) in splits.items()}
    labels_files = [root / LABELS]
    labels_files += [files / LABELS for _, files in splits.values()]
    labels_file = next((path for path in labels_files if path.is_file()), None)
    names = sorted(_used_labels(contents_by_split.values())) if labels_file is None else read_lines(labels_file)
    names = [name.strip() for name in names if name.strip() not in ("", IGNORED)]
    classes, numbers = number_classes(names, str(labels_file or root))
    values = dict.fromkeys(BACKGROUND_NAMES, 0) | {IGNORED: IGNORE_INDEX}
    values |= dict(zip(names, numbers, strict=True))
    openers: SplitOpeners = {}
    for split, folders in splits.items():
        openers[split] = partial(open_records, folders, contents_by_split[split], classes, values, allow_unpaired)
    return openers


def _used_labels(splits: Iterable[dict[str, Contents | None]]) -> set[str]:
    """The labels that any shape in the files of all splits has."""
    labels: set[str] = set()
    for contents_by_file in splits:
        for contents in contents_by_file.values():
            if contents is not None:
                labels.update(contents.objects)
    return labels


def read_contents(folder: Path) -> dict[str, Contents | None]:
    """JSON file below the folder -> its content, None if it cannot be read; cached until a file changes."""
    files = files_by_stem(folder, "labelme files", (".json",)).values()
    paths = [os.path.join(folder, file) for file in files]

    def read_all() -> list:
        with ThreadPoolExecutor() as pool:
            return list(pool.map(_contents, paths))

    key = digest("labelme with points", digest_of_files(paths, repr(files).encode()))
    contents_by_file: dict[str, Contents | None] = {}
    for file, contents in zip(files, load_or_compute(key, read_all), strict=True):
        contents_by_file[file] = contents and Contents(*contents)  # the cache holds lists
    return contents_by_file


def _contents(path: str) -> Contents | None:
    """The content of a file; None if it cannot be read."""
    try:
        content = read_labelme(path)
    except DataError:  # the error is reported when the file is rendered
        return None
    objects: set[tuple[str, str]] = set()
    for number, shape in enumerate(content["shapes"]):
        group = shape.get("group_id")  # shapes of one group are one object
        key = f"shape {number}" if group is None else f"group {group}"
        objects.add((str(shape.get("label")), key))
    counts = Counter(label for label, _ in sorted(objects))
    image = str(content.get("imagePath") or "")
    points = sum(shape.get("shape_type") == "point" for shape in content["shapes"])
    return Contents(dict(counts), image, bool(content.get("imageData")), points, len(content["shapes"]) - points)


def open_records(
    folders: tuple[Path, Path],
    contents_by_file: dict[str, Contents | None],
    classes: NamedClasses,
    values: dict[str, int],
    allow_unpaired: bool,
) -> LabelmeRecords:
    """Pairs by stem; if there is no image of the stem, the image that the JSON file names, else the one in the file.

    A file that cannot be read is assumed to hold its image, so that the file is reported as that image's problem.
    """
    images, files = folders
    by_stem = files_by_stem(images, "images") if holds_pictures(images) else {}
    pairs: list[tuple[str, str]] = []
    unpaired: list[str] = []
    for file, contents in contents_by_file.items():
        image = by_stem.get(os.path.splitext(file)[0]) or named_image(folders, file, contents)
        if image is None and contents and not contents.is_embedded:
            unpaired.append(f"{file}: no image of its name")
        else:
            pairs.append((image or "", file))
    files_by_image: dict[str, list[str]] = defaultdict(list)
    for image, file in pairs:
        files_by_image[image].append(file)
    conflicts: list[str] = []
    for image, names in files_by_image.items():
        if image and len(names) > 1:
            conflicts.append(f"{image} ({list_problems(names)})")
    if conflicts:
        raise DataError(
            f"{files}: {len(conflicts)} images have several labelme files: {list_problems(conflicts)}; keep one of each"
        )
    unpaired += [f"{image}: image without labelme file" for image in by_stem.values() if image not in files_by_image]
    check_unpaired(unpaired, len(pairs), allow_unpaired, images)
    summary = _summarize([contents_by_file[file] for _, file in pairs], classes)
    return LabelmeRecords(folders, pairs, Metadata(classes, tuple(unpaired)), values, summary)


def named_image(folders: tuple[Path, Path], file: str, contents: Contents | None) -> str | None:
    """The path, below the folder of images, of the image that a JSON file names; None if it is not there."""
    if not contents or not contents.image:
        return None
    images, files = folders
    path = find_file(contents.image, [os.path.join(files, os.path.dirname(file)), str(images)])
    return None if path is None else os.path.relpath(path, images)


def _summarize(files: Sequence[Contents | None], classes: NamedClasses) -> AnnotationSummary:
    """The content of the files together; None stands for a file that cannot be read."""
    annotated = 0
    counts: Counter[str] = Counter()
    for contents in files:
        if contents is not None:
            annotated += not contents.objects.keys() <= set(BACKGROUND_NAMES)
            counts.update(contents.objects)
    instances = {name: counts[name] for value, name in classes if value}
    return AnnotationSummary("labelme", annotated, len(files) - annotated, instances)
