"""Folders of images and masks: where the splits lie, and files by their names."""

import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.formats import format_remedy, is_visible_file
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.image_io.volumes import volume_stem
from runtime.console import listing
from runtime.errors import DataError

IMAGE_FOLDERS = ("images", "imgs", "image")
MASK_FOLDERS = ("masks", "labels", "annotations", "mask", "label")
DECATHLON_IMAGES = ("imagestr", "imagesva")
DECATHLON_LABELS = ("labelstr", "labelsva")
USUAL_FOLDERS = IMAGE_FOLDERS + MASK_FOLDERS
# words by which other folders are known, alone, and before or behind the name of a split: train_masks, img_dir
IMAGE_WORDS = "images?|imgs?|img_dir|inputs?|originals?"
MASK_WORDS = (
    "(?:cp_)?masks?|labels?|lbls?|anno?|ann_dir|annot(?:ation)?s?|d?seg|seg(?:mentation)?s|segmentation|gts?|targets?"
)
MASK_WORDS += "|ground[ _-]?truths?"
VOC_MASK_FOLDERS = ("segmentationclasspng", "segmentationclass")
VOC_LABEL_MAP = "labelmap.txt"  # CVAT's: name:red,green,blue:parts:actions
VOC_CLASS_NAMES = "class_names.txt"  # labelme's: a name a line, from value 0
TRAIN_SPLITS = ("train", "training")
VAL_SPLITS = ("val", "validation", "valid")
SPLIT_FOLDERS = TRAIN_SPLITS + VAL_SPLITS  # test is a split only if the user names it
ANNOTATIONS = "annotations of COCO, labelme, YOLO, VOC or Cityscapes"  # what else a folder may hold
YOLO_LAYOUT = (
    "text files of YOLO lie in labels/ beside images/, with a data.yaml or classes.txt of class names above them"
)
NUMBER = re.compile("([0-9]+)")
NAMES_IN_MESSAGE = 5  # files, or endings of files, that a message names


class DataFolder(NamedTuple):
    """The folder of a data set, and what several finders ask of it.

    Args:
        root: the folder itself.
        named_splits: the splits with unusual names that are read.
        config: the settings.
        splits: split -> its folders of images and of masks; empty if there are none.
        has_masks: whether the folders of masks hold masks, of images or of volumes.
        suffixes: how the names of images end: those of volumes, if there are any, else those of pictures.
    """

    root: Path
    named_splits: Sequence[str]
    config: DataConfig
    splits: Mapping[str, tuple[Path, Path]]
    has_masks: bool
    suffixes: tuple[str, ...]

    @property
    def may_overlap(self) -> bool:
        """Whether the task is, or may turn out to be, overlapping classes."""
        return self.config.task in (None, OVERLAPPING)


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
    imagesTr and labelsTr are one split, imagesVa and labelsVa beside them another. Folders of other names are found as
    in `_splits_by_words`.
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

    They lie side by side, or in each folder of a split. Empty if none agree so, or several that are no splits; and for
    VOC's folders beside names of classes, which its finder reads. Raises DataError if a split has images alone.
    """
    folders = children(root)
    inner = {name: pairs_by_words(children(folder)) for name, folder in folders.items() if name in split_names}
    if inner and all(len(pairs) == 1 for pairs in inner.values()):
        return {name: next(iter(pairs.values())) for name, pairs in inner.items()}
    pairs = pairs_by_words(folders)
    splits = {name: pair for name, pair in pairs.items() if name in split_names}
    if not splits and len(pairs) == 1:
        ((image_folder, mask_folder),) = pairs.values()
        below = splits_below(image_folder, mask_folder, split_names)
        is_voc = image_folder.name.lower() == "jpegimages" and mask_folder.name.lower() in VOC_MASK_FOLDERS
        if is_voc and not below and not {VOC_LABEL_MAP, VOC_CLASS_NAMES}.isdisjoint(names_in(root)):
            return {}
        return below or {"train": (image_folder, mask_folder)}
    lacking = (_by_other_words(folders, IMAGE_WORDS).keys() | folders.keys()) & split_names - splits.keys()
    if splits and lacking:
        beside = ", ".join(f"{pair[0].name}/ has {pair[1].name}/" for pair in splits.values())
        raise DataError(
            f"{root}: {beside}, but {min(lacking)} has no folder of masks beside it; add it, or move the images"
        )
    return splits


def pairs_by_words(folders: Mapping[str, Path]) -> dict[str, tuple[Path, Path]]:
    """The rest of the names of two folders, without their words -> the folders of images and of masks.

    Args:
        folders: some folders that lie side by side, by their lower-case names.
    """
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
        pairs = {"train": (folders["imagestr"], folders["labelstr"])}
        if {"imagesva", "labelsva"} <= folders.keys():
            pairs["val"] = (folders["imagesva"], folders["labelsva"])
        return pairs
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


def lone_split_files(splits: Mapping[str, tuple[Path, Path]], named_splits: Iterable[str]) -> list[str]:
    """A line for each image or mask of a split that lies below one of two folders whose other lacks the split."""
    images, masks = next(iter(splits.values()))
    split_names = wanted_splits(named_splits)
    if images.name.lower() not in split_names or images.name.lower() != masks.name.lower():
        return []  # splits do not lie below the two folders
    image_folders = children(images.parent)
    mask_folders = children(masks.parent)
    lines: list[str] = []
    for name in sorted(split_names & (image_folders.keys() ^ mask_folders.keys())):
        path = image_folders.get(name) or mask_folders[name]
        lack = "image without mask" if name in image_folders else "mask without image"
        files = filter(is_readable, files_below(path))
        lines += [f"{path.parent.name}/{path.name}/{file}: {lack}" for file in natural_order(files)]
    return lines


Listing = tuple[Sequence[str], Sequence[str]]  # the names in a folder: of the folders there, and of all else
_kept_listings: ContextVar[dict[str, Listing] | None] = ContextVar("kept listings", default=None)


@contextmanager
def keep_listings() -> Iterator[None]:
    """A context in which each folder is read once: every finder looks at it, and a million names take a second."""
    token = _kept_listings.set({})
    try:
        yield
    finally:
        _kept_listings.reset(token)


def list_folder(folder: str | Path) -> Listing:
    """The names in a folder, sorted. Raises DataError if it cannot be read."""
    kept = _kept_listings.get()
    key = str(folder)
    if kept is not None and key in kept:
        return kept[key]
    _, folders, files = next(os.walk(folder, onerror=_fail))
    folders.sort()
    files.sort()  # everybody sorts them, which is fast the second time
    if files:  # copies that lie in memory in their order are passed through twice as fast
        files = "\0".join(files).split("\0")
    if kept is not None:
        kept[key] = folders, files
    return folders, files


def _fail(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """The names of the files with these endings in a folder itself. Raises DataError if it cannot be read."""
    _, names = list_folder(folder)
    return [name for name in names if is_visible_file(name, suffixes)]


def holds_files(folder: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a folder itself holds a file with one of these endings. Raises DataError if it cannot be read."""
    _, names = list_folder(folder)
    return any(is_visible_file(name, suffixes) for name in names)


def children(folder: Path) -> dict[str, Path]:
    """Folders in a folder but for hidden ones, by lower-case name. Raises DataError if two differ in case alone."""
    by_name: dict[str, Path] = {}
    names, _ = list_folder(folder)
    for name in names:
        if name.startswith("."):
            continue
        path = folder / name
        first = by_name.setdefault(name.lower(), path)
        if first != path:
            raise DataError(f"{folder} holds {first.name}/ and {name}/; keep one")
    return by_name


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it cannot be read, which is reported where its files are."""
    try:
        folders, files = list_folder(folder)
    except DataError:
        return []
    return [*folders, *files]


def _only_folder(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The folder of one of these names; of several the one with images or volumes: others may hold annotations."""
    matches = [path for name, path in children(folder).items() if name in names]
    if len(matches) > 1:
        matches = [path for path in matches if any(map(is_readable, files_below(path, strict=False)))] or matches
    if len(matches) > 1:
        name_list = " and ".join(f"{path.name}/" for path in matches)
        raise DataError(f"{folder} holds {name_list}; keep one of them")
    return matches[0] if matches else None


class NoFolderError(DataError):
    """A folder without one of images or one of masks."""


def _folder_pair(folder: Path) -> tuple[Path, Path]:
    """The folders of images and of masks in a folder. Raises DataError if one is missing, or both are the same."""
    images = _only_folder(folder, IMAGE_FOLDERS)
    masks = _only_folder(folder, MASK_FOLDERS)
    if images is None or masks is None:
        kinds = {"images": images, "masks": masks}
        lacking = [kind for kind, found in kinds.items() if found is None]
        names = natural_order(names_in(folder))
        raise NoFolderError(
            f"{folder} has no folder of {' or '.join(lacking)}; looked for {'|'.join(IMAGE_FOLDERS)} beside "
            f"{'|'.join(MASK_FOLDERS)}, here or in train/ and val/, for {ANNOTATIONS}, and for volumes in imagesTr"
            f" beside labelsTr; found {listing(names, NAMES_IN_MESSAGE) or 'nothing'}{_remedy(folder, lacking, names)}"
        )
    if images.samefile(masks):
        raise DataError(f"{images} and {masks} are the same folder")
    return images, masks


def _remedy(folder: Path, lacking: Sequence[str], names: Sequence[str]) -> str:
    """What may be meant by a folder without one of images or masks, as the end of a line."""
    if folder.name.lower() in USUAL_FOLDERS and not children(folder.parent).keys().isdisjoint(MASK_FOLDERS):
        return f"; did you mean --dataset {shlex.quote(str(folder.parent))}?"
    others = {name: path for name, path in children(folder).items() if name not in USUAL_FOLDERS}
    if len(lacking) == 2 and len(names) == len(others) == 1:  # as in unpacked archives
        return f"; did you mean --dataset {shlex.quote(str(folder / names[0]))}?"
    remedy = format_remedy(names)
    holders = [f"{path.name}/" for path in others.values() if any(map(is_readable, names_in(path)))]
    if len(lacking) == 1 and holders:
        verb = "holds" if len(holders) == 1 else "hold"
        (kind,) = lacking
        remedy += f"; if {' or '.join(holders[:NAMES_IN_MESSAGE])} {verb} the {kind}, rename it to {kind}/"
    file_by_stem: dict[str, str] = {}
    for name in filter(is_readable, names):
        other = file_by_stem.setdefault(os.path.splitext(name)[0], name)
        if other != name:
            remedy += f"; {other} and {name} have one name: move the images to images/ and the masks to masks/"
            break
    for stem, longer in pairwise(sorted(file_by_stem)):
        suffix = longer.removeprefix(stem)
        if suffix != longer and suffix[0] in "_-. ":  # a.jpg and a_1stHO.png
            mask, image = file_by_stem[longer], file_by_stem[stem]
            remedy += f"; if {mask} is the mask of {image}, give --mask-suffix={shlex.quote(suffix)}"
            break
    texts = {f"{stem}.txt" for stem in file_by_stem}
    if not texts.isdisjoint(names):
        remedy += f"; {YOLO_LAYOUT}"
    return remedy


def is_readable(name: str) -> bool:
    """Whether a file is called like an image or a volume."""
    return name.lower().endswith(IMAGE_SUFFIXES + VOLUME_SUFFIXES)


def walk(root: Path, *, strict: bool = False) -> Iterator[tuple[str, list[str], Sequence[str]]]:
    """Do as `os.walk` does, and follow links to folders; whoever takes names out of a list of folders leaves these out.

    Args:
        strict: whether folders that cannot be read raise DataError; else they are left out.

    Raises DataError for a link to a folder that holds it: the files there would be found again and again.
    """
    parents = [str(root)]
    while parents:
        parent = parents.pop()
        try:
            folders, names = list_folder(parent)
        except DataError:
            if strict:
                raise
            continue
        for link in filter(os.path.islink, [os.path.join(parent, name) for name in folders]):
            target = os.path.realpath(link)
            if Path(os.path.realpath(parent)).is_relative_to(target):
                raise DataError(f"{link} is a link to {target}, a folder that holds the link itself; remove the link")
        wanted_folders = list(folders)  # a copy, since the listing may be kept
        yield parent, wanted_folders, names
        parents += [os.path.join(parent, name) for name in reversed(wanted_folders)]


def files_below(folder: Path, suffixes: tuple[str, ...] = ("",), *, strict: bool = True) -> Iterator[str]:
    """The files with these endings in a folder and below it, as paths below it, without hidden ones and those of runs.

    Args:
        strict: whether folders that cannot be read raise DataError; else they are left out.
    """
    for parent, folders, names in walk(folder, strict=strict):
        if parent != str(folder) and "checkpoints" in folders and "run.json" in names:  # its pictures are no data
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(parent, folder).replace(os.sep, "/")
        prefix = "" if below == "." else f"{below}/"
        for name in names:
            if is_visible_file(name, suffixes):
                yield prefix + name


def files_by_stem(folder: Path, kind: str, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> dict[str, str]:
    """Path below the folder without extension -> path with it, of all files with these extensions, in natural order.

    Stems and errors are those of `stems_of` and `list_files`.
    """
    return stems_of(natural_order(list_files(folder, kind, suffixes)), kind, folder)


def list_files(folder: Path, kind: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files with these extensions below a folder, sorted in each. Raises DataError, with the `kind`, for none."""
    files = list(files_below(folder, suffixes))
    if not files:
        other_endings: set[str] = set()
        for name in map(os.path.basename, files_below(folder)):
            other_endings.add(os.path.splitext(name)[1].lower() or name)
        found = "nothing"
        if other_endings:
            found = f"only {', '.join(sorted(other_endings)[:NAMES_IN_MESSAGE])}"
        hint = f" (or {ANNOTATIONS})" if kind == "masks" else ""
        if hint and ".txt" in other_endings:
            hint += f"; {YOLO_LAYOUT}"
        if hint and ".csv" in other_endings:
            hint += f"; tables of points are read from {folder.parent}"
        if suffixes == VOLUME_SUFFIXES and not other_endings.isdisjoint(IMAGE_SUFFIXES):
            hint += "; --dims 3 reads stacks of pages as volumes, and other pictures are read in images/ and masks/"
        hint += format_remedy(sorted(other_endings))
        raise DataError(f"no {kind} in {folder}; found {found}, looked for {', '.join(suffixes)}{hint}")
    return files


def stems_of(files: Iterable[str], kind: str, folder: Path) -> dict[str, str]:
    """Path without extension -> path, of files below a folder, in their order.

    The first is `composed`, so that names of images and masks that look equal are equal. Raises DataError if two files
    differ in their extension alone.
    """
    stems: dict[str, str] = {}
    for file in files:
        other = stems.setdefault(volume_stem(file), file)
        if other != file:
            first, second = natural_order([other, file])
            raise DataError(f"two {kind} with the same name in {folder}: {first} and {second}; keep one")
    if all(map(str.isascii, stems)):
        return stems
    by_name: dict[str, str] = {}
    counts = Counter(map(composed, stems))
    for stem, file in stems.items():
        name = composed(stem)
        by_name[name if counts[name] == 1 else stem] = file  # two names may differ in nothing else
    return by_name


def natural_order(names: Iterable[str]) -> list[str]:
    """The names as people sort them: 2.png before 10.png."""
    almost_in_order = sorted(names)  # is fast, and leaves little to do for the slower sort
    return sorted(almost_in_order, key=natural_sort_key)


def natural_sort_key(name: str) -> tuple[str, str]:
    """Sort key that puts 2.png before 10.png: a number becomes its length and its digits, and sorts before all else."""
    parts = NUMBER.split(name)
    for index in range(1, len(parts), 2):
        digits = parts[index].lstrip("0")
        parts[index] = f"\0{chr(len(digits))}{digits}"
    return "".join(parts), name


def composed(text: str) -> str:
    """The text with one character for an accented letter (NFC), as most systems have it; macOS stores two."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Name by each of its spellings, for `find_name`."""
    by_spelling: dict[str, str] = {}
    for name in names:
        by_spelling.setdefault(composed(name), name)
        by_spelling[name] = name
    return by_spelling


def find_name(written: str, by_spelling: Mapping[str, str]) -> str | None:
    """The name that a list means: as it stands, or with slashes for backslashes, `./` in front, accents composed."""
    if written in by_spelling:
        return by_spelling[written]
    return by_spelling.get(composed(written.replace("\\", "/").removeprefix("./")))


def detect_suffix(images: Collection[str], masks: Iterable[str]) -> str:
    """The shortest ending common to all mask stems that pairs most masks with images."""
    shortest = min((stem.rpartition("/")[2] for stem in masks), key=len)
    pairs: dict[str, int] = {}
    for start in range(len(shortest), -1, -1):
        ending = shortest[start:]
        if all(stem.endswith(ending) for stem in masks):
            pairs[ending] = sum(stem.removesuffix(ending) in images for stem in masks)
    return max(pairs, key=lambda ending: pairs[ending])
