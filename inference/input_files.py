"""The files that predict.py reads: those of patterns, which are files, folders and globs."""

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data_utils.image_io.formats import IMAGE_SUFFIXES, format_remedy
from data_utils.image_io.volumes import is_volume, volume_stem
from data_utils.sources.annotations.one_object_masks import find_object_images
from data_utils.sources.folder import IMAGE_FOLDERS, MASK_FOLDERS, MASK_WORDS
from data_utils.sources.side_by_side import masks_among
from runtime.console import counted, say
from runtime.errors import DataError

# name of a folder of masks -> names of the folder of their images beside it
IMAGES_OF = dict.fromkeys(MASK_FOLDERS, IMAGE_FOLDERS) | {"labelstr": ("imagestr",), "labelsts": ("imagests",)}
FOLDER_OF_MASKS = re.compile(MASK_WORDS)  # of classes, beside the image of a case


class StemmedFile(NamedTuple):
    """A file, and its path relative to the given folder, without its extension."""

    stem: Path
    path: Path


def files_of_patterns(
    patterns: Iterable[str],
    output: Path,
    *,
    in_sets: bool,
    truth: Path | None = None,
    mask_suffix: str | None = None,
) -> list[StemmedFile]:
    """The images and volumes that the patterns name, each once. Raises DataError for a pattern without any.

    Masks are left out where they lie beside their images.

    Args:
        output: the folder of outputs, which are no inputs.
        in_sets: whether only the images are taken from a folder that holds a folder for each image and its masks.
        truth: a folder of true masks, which may lie below a folder of inputs.
        mask_suffix: the end of a mask's stem, which the stem of its image lacks; None for the usual ones.
    """
    files: list[StemmedFile] = []
    for pattern in patterns:
        found: list[StemmedFile] = []
        if in_sets:
            found = _set_images(Path(pattern))
        if not found:
            found = _matches(pattern, output)
        if truth is not None and not Path(pattern).is_file():
            is_true_mask = _below_test(_start_of_glob(Path(pattern)), truth)
            found = [file for file in found if not is_true_mask(file.path)] or found
        files += found
    return _without_masks(list(dict.fromkeys(files)), mask_suffix)


def _without_masks(files: Sequence[StemmedFile], suffix: str | None) -> list[StemmedFile]:
    """The files that are no masks of others: by the folder they lie in, or by the end of their names."""
    in_mask_folder = mask_folder_test([path for _, path in files])
    mask_stems = masks_among({str(stem_of(path)) for _, path in files}, suffix)

    folders = {path.parent for _, path in files}

    def is_mask(path: Path) -> bool:
        is_in_case = path.parent.parent in folders and FOLDER_OF_MASKS.fullmatch(path.parent.name.lower())
        return bool(is_in_case) or in_mask_folder(path) or str(stem_of(path)) in mask_stems

    masks = {path: None for _, path in files if is_mask(path)}
    if masks:
        left_out = counted(len(masks), "mask that lies beside its image", "masks that lie beside their images")
        say(f"left out {left_out}, the first is {next(iter(masks))}")
    return [file for file in files if file.path not in masks]


def mask_folder_test(paths: Iterable[Path]) -> Callable[[Path], bool]:
    """A test for files in a folder of masks, if some of `paths` lie in the folder of images beside it."""
    folders: set[Path] = set()
    for folder in {path.parent for path in paths}:
        folders.update((folder, *folder.parents))
    named = {(folder.parent, folder.name.lower()) for folder in folders}
    masks = set()
    for folder in folders:
        if any((folder.parent, name) in named for name in IMAGES_OF.get(folder.name.lower(), ())):
            masks.add(folder)
    return lambda path: not masks.isdisjoint(path.parents)


def _matches(pattern: str, output: Path) -> list[StemmedFile]:
    """The files of a pattern: the file itself, each picture below a folder, or the matches of a glob."""
    path = Path(pattern)
    if not pattern:
        raise DataError("--input: is empty")
    try:
        exists = path.exists()
    except OSError as error:
        raise DataError(f"--input {pattern}: {error.strerror}") from error
    if path.is_dir():
        matches = _pictures_below(path, output)
    elif path.is_file():
        matches = [StemmedFile(stem_of(Path(path.name)), path)]
    elif exists:
        raise DataError(f"--input {pattern}: is neither a file nor a folder")
    else:
        matches = _glob_matches(pattern, output)
    if matches:
        return matches
    if path.is_dir():
        names = [file.name for file in sorted(path.rglob("*"))]
        raise DataError(f"--input {pattern}: no image or volume found{format_remedy(names)}")
    if glob.has_magic(pattern):
        raise DataError(f"--input {pattern}: no image or volume found")
    raise DataError(f"--input {pattern}: is not there")


def _set_images(folder: Path) -> list[StemmedFile]:
    """The images of a folder that holds a folder for each image and its masks; empty for any other folder."""
    if not folder.is_dir():
        return []
    return [StemmedFile(Path(name), image) for name, image in find_object_images(folder)]


def _glob_matches(pattern: str, output: Path) -> list[StemmedFile]:
    """The files that a glob matches, and each picture below the folders that it matches."""
    start = _start_of_glob(Path(pattern))
    is_output = _below_test(start, output)
    matches = []
    for path in map(Path, sorted(glob.glob(pattern, recursive=True))):
        base = path.relative_to(start)
        if ".." in base.parts:
            raise DataError(f"--input {pattern}: has .. behind a wildcard, so that masks would lie outside --output")
        if path.is_file():
            if not is_output(path):
                matches.append(StemmedFile(stem_of(base), path))
        elif path.resolve() != output.resolve():
            for stem, file in _pictures_below(path, output):
                matches.append(StemmedFile(base / stem, file))
    return matches


def _start_of_glob(path: Path) -> Path:
    """The part of a glob before its first wildcard: a folder."""
    if path.is_dir():
        return path
    for index, part in enumerate(path.parts):
        if glob.has_magic(part):
            return Path(*path.parts[:index])
    return Path()


def _pictures_below(folder: Path, output: Path) -> list[StemmedFile]:
    """The pictures below a folder, except hidden ones and the files below `output`."""
    if output.resolve() == folder.resolve():
        raise DataError(f"--output {output}: is a folder of inputs; masks must not lie among images, choose another")
    files = files_below(folder)
    is_output = _below_test(folder, output)
    pictures = pictures_among(files, folder, is_output)
    _say_unread(folder, set(files) - {picture.path for picture in pictures}, is_output)
    return pictures


def _say_unread(folder: Path, others: Iterable[Path], is_output: Callable[[Path], bool]) -> None:
    """Print a line on the files of a folder that are no pictures, one with a remedy first."""
    names = []
    for file in others:
        if not (_is_hidden(file.relative_to(folder)) or is_output(file) or file.is_dir()):
            names.append(file.name)
    names.sort()
    if names:
        first = next((name for name in names if format_remedy([name])), names[0])
        files = counted(len(names), "file that is", "files that are")
        say(f"{folder}: left out {files} not read, the first is {first}{format_remedy([first])}")


def _below_test(folder: Path, other: Path) -> Callable[[Path], bool]:
    """A test for files that are found only because the folder `other` lies below the `folder` of inputs."""
    others = other.resolve()
    if folder.resolve() not in others.parents:
        return lambda file: False  # then no links of files need to be resolved
    return lambda file: others in file.resolve().parents


def files_below(folder: Path) -> list[Path]:
    """All paths below a folder, sorted."""
    return sorted(folder.rglob("*"))


def pictures_among(
    files: Iterable[Path], folder: Path, is_output: Callable[[Path], bool] = lambda file: False
) -> list[StemmedFile]:
    """The pictures among files below a folder.

    Hidden files, which programs leave behind, and outputs are left out.
    """
    pictures = []
    for file in files:
        relative = file.relative_to(folder)
        is_picture = file.suffix.lower() in IMAGE_SUFFIXES or is_volume(file)
        if is_picture and not _is_hidden(relative) and file.is_file() and not is_output(file):
            pictures.append(StemmedFile(stem_of(relative), file))
    return pictures


def _is_hidden(relative: Path) -> bool:
    """Whether a path below a folder, or a folder on the way to it, is hidden."""
    return any(part.startswith(".") for part in relative.parts)


def stem_of(file: Path) -> Path:
    """A path without its extension; CASE.nii.gz becomes CASE."""
    if is_volume(file):
        return file.with_name(volume_stem(file.name))
    return file.with_suffix("")
