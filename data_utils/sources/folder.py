"""Folders of images and masks: where the splits lie, and files by their names."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, format_remedy, is_visible_file
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.image_io.volumes import volume_stem
from data_utils.sources.spelling import by_composed_name
from data_utils.sources.walk import walk
from runtime.console import listing
from runtime.errors import DataError

if TYPE_CHECKING:
    from data_utils.sources.points.table import PointTable

IMAGE_FOLDERS = ("images", "imgs", "image")
MASK_FOLDERS = ("masks", "labels", "annotations", "mask", "label")
# words by which other folders are known, alone, and before or behind the name of a split: train_masks, img_dir
IMAGE_WORDS = "images?|imgs?|img_dir|inputs?|originals?"
MASK_WORDS = (
    "(?:cp_)?masks?|labels?|lbls?|anno?|ann_dir|annot(?:ation)?s?|d?seg|seg(?:mentation)?s|segmentation|gts?|targets?"
)
MASK_WORDS += "|ground[ _-]?truths?"
SPLIT_FOLDERS = ("train", "training", "val", "validation", "valid")  # test is a split only if the user names it
ANNOTATIONS = "annotations of COCO, labelme, YOLO, VOC or Cityscapes"  # what else a folder may hold
YOLO_LAYOUT = (
    "text files of YOLO lie in labels/ beside images/, with a data.yaml or classes.txt of class names above them"
)
READABLE = IMAGE_SUFFIXES + VOLUME_SUFFIXES
NAMES_IN_MESSAGE = 5  # files, or endings of files, that a message names


class DataFolder(NamedTuple):
    """The folder of a data set, and what several finders ask of it.

    Args:
        root: the folder itself.
        named_splits: the splits with unusual names that are read.
        config: the settings.
        splits: split -> its folders of images and of masks; empty if there are none.
        has_masks: whether the folders of masks hold masks, of images or of volumes.
        points: split -> its points; empty if masks are read.
        suffixes: how the names of images end: those of volumes, if there are any, else those of pictures.
    """

    root: Path
    named_splits: Sequence[str]
    config: DataConfig
    splits: Mapping[str, tuple[Path, Path]]
    has_masks: bool
    points: Mapping[str, "PointTable"]
    suffixes: tuple[str, ...]

    @property
    def may_overlap(self) -> bool:
        """Whether the task is, or may turn out to be, overlapping classes."""
        return self.config.task in (None, OVERLAPPING)


def natural_sort_key(name: str) -> tuple:
    """Sort key that puts 2.png before 10.png."""
    parts: list[Any] = re.split(r"([0-9]+)", name)
    # every second part is a number; Python refuses to convert numbers of thousands of digits
    digits = [part.lstrip("0") for part in parts[1::2]]
    parts[1::2] = [(len(part), part) for part in digits]
    return parts, name


def wanted_splits(named_splits: Iterable[str]) -> set[str]:
    """Names of folders that are splits, in lower case: the usual names, and names from the user, such as test."""
    return set(SPLIT_FOLDERS) | {name.lower() for name in named_splits}


def split_folders(root: Path, named_splits: Iterable[str]) -> dict[str, Path]:
    """Split -> its folder, for splits that are folders of a data set; a folder without any is one split, `train`."""
    split_names = wanted_splits(named_splits)
    return {name: folder for name, folder in children(root).items() if name in split_names} or {"train": root}


def find_splits(root: Path, named_splits: Iterable[str]) -> dict[str, tuple[Path, Path]]:
    """Split -> (images, masks) folders; a flat folder is one split, `train`.

    Splits are train/, val/ and the like, and `named_splits`; they lie above images/ and masks/ or below both. nnU-Net's
    imagesTr and labelsTr are one split. Folders of other names are found as in `_splits_by_words`.
    """
    try:
        return _usual_splits(root, named_splits)
    except NoFolderError:
        splits = _splits_by_words(root, wanted_splits(named_splits))
        if not splits:
            raise
        return splits


def _splits_by_words(root: Path, split_names: Collection[str]) -> dict[str, tuple[Path, Path]]:
    """Split -> (images, masks), of folders whose names agree but for a word, as train/ and train_masks/ do.

    They lie side by side, or in each folder of a split. Empty if none agree so, or several that are no splits. Raises
    DataError if a split has images alone.
    """
    folders = children(root)
    inner = {name: _pairs_by_words(folder) for name, folder in folders.items() if name in split_names}
    if inner and all(len(pairs) == 1 for pairs in inner.values()):
        return {name: next(iter(pairs.values())) for name, pairs in inner.items()}
    pairs = _pairs_by_words(root)
    splits = {name: pair for name, pair in pairs.items() if name in split_names}
    if not splits and len(pairs) == 1:
        ((image_folder, mask_folder),) = pairs.values()
        return splits_below(image_folder, mask_folder, split_names) or {"train": (image_folder, mask_folder)}
    lacking = (_by_other_words(folders, IMAGE_WORDS).keys() | folders.keys()) & split_names - splits.keys()
    if splits and lacking:
        beside = ", ".join(f"{pair[0].name}/ has {pair[1].name}/" for pair in splits.values())
        raise DataError(
            f"{root}: {beside}, but {min(lacking)} has no folder of masks beside it; add it, or move the images"
        )
    return splits


def _pairs_by_words(root: Path) -> dict[str, tuple[Path, Path]]:
    """The rest of the names of two folders, without their words -> the folders of images and of masks."""
    folders = children(root)
    images = _by_other_words(folders, IMAGE_WORDS)
    masks = _by_other_words(folders, MASK_WORDS)
    pairs: dict[str, tuple[Path, Path]] = {}
    for name, mask_folder in masks.items():
        image_folder = images.get(name) or folders.get(name)
        if image_folder is not None:
            pairs[name] = _only_inner(image_folder), _only_inner(mask_folder)
    if not pairs and len(images) == len(masks) == 1:
        pairs = {"": (next(iter(images.values())), next(iter(masks.values())))}
    return pairs


def _only_inner(folder: Path) -> Path:
    """The only folder in a folder of its name, as unpacking leaves it; else the folder itself."""
    inner = folder / folder.name
    return inner if names_in(folder) == [folder.name] and inner.is_dir() else folder


def _by_other_words(folders: Mapping[str, Path], words: str) -> dict[str, Path]:
    """The folders whose names begin or end with one of the words, by the rest of their names."""
    name = re.compile(rf"(?:(?P<before>.*?)[ _.-]?)?(?:{words})|(?:{words})[ _.-]?(?P<behind>.*)")
    matches = ((name.fullmatch(folder), path) for folder, path in folders.items())
    return {match["before"] or match["behind"] or "": path for match, path in matches if match}


def _usual_splits(root: Path, named_splits: Iterable[str]) -> dict[str, tuple[Path, Path]]:
    folders = children(root)
    if {"imagestr", "labelstr"} <= folders.keys():
        return {"train": (folders["imagestr"], folders["labelstr"])}
    split_names = wanted_splits(named_splits)
    splits = {name: folder for name, folder in folders.items() if name in split_names}
    flat = _only_folder(root, IMAGE_FOLDERS) is not None and _only_folder(root, MASK_FOLDERS) is not None
    if splits and not flat:
        return {name: _folder_pair(folder) for name, folder in splits.items()}
    images, masks = _folder_pair(root)
    if "train" in splits or "training" in splits:
        raise DataError(f"{root} holds both {images.name}/ and a train folder; keep one of the two layouts")
    inner = splits_below(images, masks, split_names) or {"train": (images, masks)}
    outer = {name: _folder_pair(folder) for name, folder in splits.items()}
    return inner | outer


def splits_below(images: Path, masks: Path, split_names: Collection[str]) -> dict[str, tuple[Path, Path]]:
    """Split -> its folder of images and its folder of masks, for the wanted splits that lie below both folders."""
    image_folders = children(images)
    mask_folders = children(masks)
    names = [name for name in image_folders if name in split_names and name in mask_folders]
    return {name: (image_folders[name], mask_folders[name]) for name in names}


def children(folder: Path) -> dict[str, Path]:
    """Folders in a folder, by lower-case name."""
    try:
        folders = [entry for entry in os.scandir(folder) if not entry.name.startswith(".") and _is_folder(entry)]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror})") from error
    by_name: dict[str, Path] = {}
    for path in map(Path, sorted(entry.path for entry in folders)):
        first = by_name.setdefault(path.name.lower(), path)
        if first != path:
            raise DataError(f"{folder} holds {first.name}/ and {path.name}/; keep one")
    return by_name


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it cannot be read, which is reported where its files are."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _only_folder(folder: Path, names: tuple[str, ...]) -> Path | None:
    matches = [path for name, path in children(folder).items() if name in names]
    if len(matches) > 1:
        name_list = " and ".join(f"{path.name}/" for path in matches)
        raise DataError(f"{folder} holds {name_list}; keep one of them")
    if not matches:
        return None
    return matches[0]


def _folder_pair(folder: Path) -> tuple[Path, Path]:
    """The folders of images and of masks in a folder. Raises DataError if one is missing, or both are the same."""
    images = _only_folder(folder, IMAGE_FOLDERS)
    masks = _only_folder(folder, MASK_FOLDERS)
    if images is None or masks is None:
        names = sorted(os.listdir(folder), key=natural_sort_key)
        name_list = listing(names, NAMES_IN_MESSAGE) or "nothing"
        lacking: list[str] = []
        if images is None:
            lacking.append("images")
        if masks is None:
            lacking.append("masks")
        beside = {name.lower() for name in names_in(folder.parent)}
        remedy = format_remedy(names) + _rename_hint(folder, lacking, [images, masks])
        if folder.name.lower() in IMAGE_FOLDERS + MASK_FOLDERS and not beside.isdisjoint(MASK_FOLDERS):
            remedy = f"; did you mean --dataset {shlex.quote(str(folder.parent))}?"
        elif len(lacking) == 2 and len(names) == 1 and (folder / names[0]).is_dir():  # as in unpacked archives
            remedy = f"; did you mean --dataset {shlex.quote(str(folder / names[0]))}?"
        pictures = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
        if any(f"{os.path.splitext(name)[0]}.txt" in names for name in pictures):
            remedy += f"; {YOLO_LAYOUT}"
        raise NoFolderError(
            f"{folder} has no folder of {' or '.join(lacking)}; looked for {'|'.join(IMAGE_FOLDERS)} beside "
            f"{'|'.join(MASK_FOLDERS)}, here or in train/ and val/, for {ANNOTATIONS}, and for volumes in imagesTr"
            f" beside labelsTr; found {name_list}{remedy}"
        )
    if images.samefile(masks):
        raise DataError(f"{images} and {masks} are the same folder")
    return images, masks


def _rename_hint(folder: Path, lacking: Sequence[str], found: Sequence[Path | None]) -> str:
    """The other folders with pictures, if a folder has images or masks alone, and what to do if they are the others."""
    if len(lacking) != 1:
        return ""
    others = []
    for path in children(folder).values():
        if path not in found and any(name.lower().endswith(READABLE) for name in names_in(path)):
            others.append(f"{path.name}/")
    if not others:
        return ""
    (kind,) = lacking
    verb = "holds" if len(others) == 1 else "hold"
    return f"; if {' or '.join(others[:NAMES_IN_MESSAGE])} {verb} the {kind}, rename it to {kind}/"


class NoFolderError(DataError):
    """A folder without one of images or one of masks."""


def files_by_stem(folder: Path, kind: str, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> dict[str, str]:
    """Path below the folder without extension -> path with it, of all files with these extensions, in natural order.

    The first is `composed`, so that names of images and masks that look equal are equal.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error

    files: list[str] = []
    other_endings: set[str] = set()
    for parent, folders, names in walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(parent, folder).replace(os.sep, "/")
        for name in names:
            if is_visible_file(name, suffixes):
                if below != ".":
                    name = f"{below}/{name}"
                files.append(name)
            elif not name.startswith("."):
                other_endings.add(os.path.splitext(name)[1].lower() or name)
    if not files:
        endings = "nothing"
        if other_endings:
            endings = f"only {', '.join(sorted(other_endings)[:NAMES_IN_MESSAGE])}"
        hint = ""
        if kind == "masks":
            hint = f" (or {ANNOTATIONS})"
            if ".txt" in other_endings:
                hint += f"; {YOLO_LAYOUT}"
        hint += format_remedy(sorted(other_endings))
        raise DataError(f"no {kind} in {folder}; found {endings}, looked for {', '.join(suffixes)}{hint}")
    stems: dict[str, str] = {}
    for file in sorted(files, key=natural_sort_key):
        stem = volume_stem(file)
        if stem in stems:
            raise DataError(f"two {kind} with the same name in {folder}: {stems[stem]} and {file}; keep one")
        stems[stem] = file
    return by_composed_name(stems)


def detect_suffix(images: Iterable[str], masks: Iterable[str]) -> str:
    """The shortest ending common to all mask stems that pairs most masks with images."""
    image_stems = set(images)
    shortest = min((stem.rpartition("/")[2] for stem in masks), key=len)
    endings = [shortest[i:] for i in range(len(shortest), -1, -1)]

    def is_common(ending: str) -> bool:
        return all(stem.endswith(ending) for stem in masks)

    def count_pairs(ending: str) -> int:
        return sum(stem.removesuffix(ending) in image_stems for stem in masks)

    return max(filter(is_common, endings), key=count_pairs)
