"""How folders of annotations are laid out: splits, names of image files, classes and their mask values."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from pathlib import Path
from unicodedata import normalize
from urllib.parse import unquote

from data_utils.class_names import BACKGROUND, NamedClasses, is_background
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.sources.folder import children, composed, files_below, split_folders, splits_below, wanted_splits
from data_utils.sources.records import SplitOpeners
from runtime.console import counted, listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX

# split -> the two paths that it is read from; their meaning depends on the format
SplitPaths = dict[str, tuple[Path, Path]]
# the name of a format with one of its files, and the splits of a folder
AnnotatedSplits = tuple[str, SplitOpeners]
# folders of all images, or of those of a split
IMAGE_ROOT = re.compile(
    r"images?|imgs|imagestr|data|jpegimages|(?:train|val|test)[a-z]*(?:[-_]?20\d\d)?", re.IGNORECASE
)
LONGEST_PATH = 4096  # characters


def folder_in(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of `names`, in any case, that is a folder in `folder`."""
    folders = children(folder)
    return next((folders[name] for name in names if name in folders), None)


def paired_folders(
    root: Path, named_splits: Iterable[str], images: Iterable[str], annotations: Iterable[str]
) -> SplitPaths:
    """Split -> (folder of images, folder of annotation files), the same folder if the files lie beside each other.

    Splits are above the two folders or below both; a flat folder is one split, `train`.
    """

    def pair(folder: Path) -> tuple[Path, Path]:
        pictures = folder_in(folder, images) or folder
        return pictures, folder_in(folder, annotations) or pictures

    splits = {name: pair(folder) for name, folder in split_folders(root, named_splits).items()}
    pictures, files = pair(root)
    if splits == {"train": (pictures, files)}:
        return splits_below(pictures, files, wanted_splits(named_splits)) or splits
    return splits


def find_file(name: str, folders: Sequence[str]) -> str | None:
    """The file that an export calls `name`, in the first of `folders` that has it.

    Exports write Windows paths, URLs and folders of another machine: the name is tried as it stands, unescaped, with
    its accents as one letter and as two, and with its leading folders left out one by one. A name longer than a path
    can be matches no file.
    """
    if len(name) > LONGEST_PATH:
        return None
    spelled = name.replace("\\", "/")
    unescaped = unquote(spelled)
    for spelling in dict.fromkeys((spelled, unescaped, composed(unescaped), normalize("NFD", unescaped))):
        parts = [part for part in spelling.split("/") if part not in ("", ".", "..")]
        for start in range(len(parts)):
            for folder in folders:
                path = os.path.join(folder, *parts[start:])
                if os.path.isfile(path):
                    return path
    return None


def find_listed(
    names: Sequence[str], find: Callable[[str], str | None], location: Path
) -> tuple[dict[int, str], list[str]]:
    """The file of each listed image by its index, and the names of those that are not there.

    `find` gives the file of a name. Raises DataError, with `location`, if files are listed more than once.
    """
    paths: dict[int, str] = {}
    missing: list[str] = []
    for index, name in enumerate(names):
        path = find(name)
        if path is None:
            missing.append(name)
        else:
            paths[index] = path
    repeated = [path for path, count in Counter(paths.values()).items() if count > 1]
    if repeated:
        raise DataError(
            f"{location}: lists {counted(len(repeated), 'image')} more than once: {listing(repeated, separator='; ')}"
        )
    return paths, missing


def describe_missing(names: Sequence[str], folders: Sequence[str], root: Path) -> str:
    """Where listed images were looked for, and where below `root` files of such names are, as the end of a line."""
    if not names:
        return ""
    listed: dict[str, str] = {}
    for name in names:
        base = name.replace("\\", "/").rpartition("/")[2]
        stem, _ = os.path.splitext(base)
        listed[base.casefold()] = listed[stem.casefold()] = base
    counts: Counter[str] = Counter()
    alike = ""
    for file in files_below(root, IMAGE_SUFFIXES + VOLUME_SUFFIXES, strict=False):
        folder, base = os.path.split(file)
        stem, _ = os.path.splitext(base)
        found = listed.get(base.casefold()) or listed.get(stem.casefold())
        if found in (base, stem):
            counts[folder] += 1
        elif found is not None and not alike:
            alike = f"; {file} is there for {found}: names must agree in all characters"
    below = [f"{os.path.relpath(folder, root)}/" for folder in folders if root in Path(folder).parents]
    text = f"; looked in {listing([str(root), *below])}"
    for folder, count in counts.most_common(1):
        text += f"; {folder or '.'}/ holds {count} of them: move them to images/"
    return text + alike


def without_image_roots(folders: Sequence[str]) -> Sequence[str]:
    """The folders of an image without those at their beginning that hold all images, or all of a split."""
    return list(dropwhile(IMAGE_ROOT.fullmatch, folders))


def holds_pictures(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> bool:
    """Whether any picture, or file with these endings, lies in a folder or below it."""
    return next(files_below(folder, suffixes, strict=False), None) is not None


def number_classes(names: Sequence[str], location: str) -> tuple[NamedClasses, dict[str, int]]:
    """((0, background), (1, first name), ...), and the mask value of each of `names`.

    A class that is called background is the background, and none has 255, which is ignored. Raises DataError, with
    `location`, for a name that occurs twice.
    """
    objects = [name for name in names if not is_background(name)]
    repeated = [name for name, count in Counter(objects).items() if count > 1]
    if repeated:
        raise DataError(f"{location}: two classes are called {repeated[0]}; give them different names")
    value_by_name: dict[str, int] = {BACKGROUND: 0}
    for number, name in enumerate(objects, 1):
        value_by_name[name] = number if number < IGNORE_INDEX else number + 1
    classes = tuple((value, name) for name, value in value_by_name.items())
    return classes, dict.fromkeys(names, 0) | value_by_name
