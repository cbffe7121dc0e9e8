"""Which mask belongs to which image, and what a file without partner gets."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.sources.folder import (
    IMAGE_WORDS,
    MASK_WORDS,
    detect_suffix,
    list_files,
    natural_order,
    stems_of,
)
from data_utils.sources.records import FileRow, FileRows, Files, Metadata, Records, RowSources, describe, first_files
from runtime.console import counted, listing
from runtime.errors import DataError

NAMES_IN_MESSAGE = 5  # files that a message names
LEAVE_OUT = "; --allow-unpaired leaves them out"
FIRST_CHANNEL = "_0000"  # the end of the name of a file, after the name of the case

File = TypeVar("File")  # how a caller names a file
Hint = Callable[[], str]  # makes the end of an error, which takes a while


class Cases(NamedTuple):
    """The files of images and of masks below their two folders, by the names that both share.

    Args:
        images: the image of each case, or an image for each channel.
        masks: the mask of each case, or a mask for each class.
        lost: a line for each other file without partner.
    """

    images: Mapping[str, str | Files]
    masks: Mapping[str, str | Files]
    lost: Sequence[str] = ()


def pair(
    folders: tuple[Path, Path],
    cases: Cases,
    metadata: Metadata,
    allow_unpaired: bool,
    sources: RowSources = first_files,
    *,
    hint: Hint | None = None,
    is_named_by_case: bool = False,
) -> Records:
    """The cases with image and mask, in the order of images.

    Records are named after their first image, or after their case and then in the natural order of these names. The
    other arguments are those of `open_rows`, which also says what is raised.
    """
    paired: list[str] = []
    unpaired: list[str] = []
    for case, image in cases.images.items():
        if case in cases.masks:
            paired.append(case)
        else:
            unpaired.append(f"{as_files(image)[0]}: image without mask")
    masks_alone: list[str] = []
    for case in cases.masks.keys() - cases.images.keys():
        *_, last = filter(None, as_files(cases.masks[case]))
        masks_alone.append(last)
    unpaired += [f"{file}: mask without image" for file in natural_order(masks_alone)]
    unpaired += cases.lost
    if is_named_by_case:
        paired = natural_order(paired)

    rows = _rows(cases, paired, is_named_by_case)
    full_hint = partial(_pairing_hint, folders, cases, hint)
    return open_rows(folders, rows, unpaired, metadata, allow_unpaired, sources, hint=full_hint)


def _rows(cases: Cases, paired: Iterable[str], is_named_by_case: bool) -> Iterator[FileRow]:
    """The rows one by one: a million of them would be traversed by the garbage collector again and again."""
    for case in paired:
        images = as_files(cases.images[case])
        yield FileRow(case if is_named_by_case else images[0], images, as_files(cases.masks[case]))


def _pairing_hint(folders: tuple[Path, Path], cases: Cases, hint: Hint | None) -> str:
    """What to do about names that do not match, first those that differ in case or in their folders alone."""
    text = "" if hint is None else hint()
    images = [name for name in cases.images if name not in cases.masks]
    masks = {name.casefold(): name for name in cases.masks if name not in cases.images}
    for name in images:
        mask = masks.get(name.casefold())
        if mask:
            return f"{text}; {name} and {mask} differ in upper and lower case: name both alike"
    masks = {os.path.basename(name): name for name in masks.values()}
    for name in images:
        mask = masks.get(os.path.basename(name))
        if mask:
            return (
                f"{text}; image {name} and mask {mask} lie in different folders: arrange both alike or, if these"
                " are folders of classes, give --task overlapping"
            )
    if not text and len(images) == len(cases.images):
        text = "; masks have the names of their images"
    if images and masks:
        first_mask, *_ = natural_order(masks.values())
        text += f"; the first image without mask is called {images[0]}, the first mask without image {first_mask}"
    for folder, name in product(folders, images[:NAMES_IN_MESSAGE]):
        annotation = f"{os.path.splitext(as_files(cases.images[name])[0])[0]}.json"
        if os.path.exists(os.path.join(folder, annotation)):
            text += f"; {annotation} is not read beside masks (docs/faq.md)"
            break
    return text


def as_files(file: str | Files) -> Files:
    """The file of a case, or its files."""
    return file if isinstance(file, tuple) else (file,)


def open_rows(
    folders: tuple[Path, Path],
    rows: Iterable[FileRow],
    unpaired: Sequence[str],
    metadata: Metadata,
    allow_unpaired: bool,
    sources: RowSources = first_files,
    *,
    hint: Hint | None = None,
    location: Path | None = None,
) -> Records:
    """The records of rows that have image and target.

    Args:
        folders, rows, sources: those of `FileRows`.
        unpaired: a line for each file without partner.
        hint: makes what stands behind these lines in the error.
        location: what the error names; None for the folder of images.

    Raises DataError for files without partner, unless they are allowed; and if there is no row.
    """
    table = FileRows(folders, rows, sources)
    if not len(table) and not unpaired:
        raise DataError(f"{location or folders[0]}: no images with masks")
    if not len(table) or (unpaired and not allow_unpaired):
        remedy = LEAVE_OUT if len(table) else ""
        more = "" if hint is None else hint()
        raise _lack_of_partners(location or folders[0], unpaired, remedy + more)
    return Records(table, replace(metadata, unpaired=tuple(unpaired)))


def add_unpaired(
    root: Path, open_records: Callable[[], Records], unpaired: Sequence[str], allow_unpaired: bool
) -> Records:
    """The records of a split below `root`, and lines on further files without partner. DataError as in `open_rows`."""
    if not allow_unpaired:
        raise _lack_of_partners(root, unpaired, LEAVE_OUT)
    records = open_records()
    return describe(records, unpaired=(*records.metadata.unpaired, *unpaired))


def _lack_of_partners(location: Path, unpaired: Sequence[str], remedy: str) -> DataError:
    """The error for files without partner."""
    lines = listing(unpaired, NAMES_IN_MESSAGE, separator="; ")
    return DataError(f"{location}: {counted(len(unpaired), 'file')} without partner: {lines}{remedy}")


def split_paths(paths: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that all paths lie below, and the paths below it."""
    folder = os.path.commonpath({os.path.dirname(path) for path in paths} or {""})
    return Path(folder), [os.path.relpath(path, folder) for path in paths]


def find_masks(
    folder: Path, stems: Collection[str], suffix: str | None, endings: tuple[str, ...] = IMAGE_SUFFIXES
) -> tuple[dict[str, str], list[str]]:
    """Stem of the image -> mask file below a folder, and a line for each mask whose name lacks the suffix of others.

    The masks are not in natural order.
    """
    files = stems_of(list_files(folder, "masks", endings), "masks", folder)
    masks, others = match_masks(files, stems, suffix)
    return masks, [f"{file}: mask without image" for file in natural_order(others)]


def match_masks(
    files: Mapping[str, File], stems: Collection[str], suffix: str | None
) -> tuple[dict[str, File], list[File]]:
    """Stem of the image -> mask, of masks by their stems; and the masks whose names lack the suffix of others.

    The suffix is detected if it is None. If no names agree but for a suffix, they may do so but for the words that say
    what a file is, as image_1 and mask_1 do.
    """
    if suffix is None:
        masks = {stem: files[stem] for stem in stems if stem in files}  # a million stems are held once
        if len(masks) == len(files):
            return masks, []
        suffix = detect_suffix(stems, files)
        if not any(stem + suffix in files for stem in stems):
            by_image = _match_by_words(stems, files)
            if by_image:
                return by_image, []
    masks = {}
    others: list[File] = []
    for stem, file in files.items():
        if stem.endswith(suffix):
            masks[stem.removesuffix(suffix)] = file
        else:
            others.append(file)
    return masks, others


def _match_by_words(stems: Iterable[str], masks: Mapping[str, File]) -> dict[str, File]:
    """Stem of the image -> mask, if names without the words at their ends agree; empty unless all of them differ."""
    images = {_without_words(stem, IMAGE_WORDS): stem for stem in stems}
    by_image: dict[str, File] = {}
    for stem, file in masks.items():
        name = _without_words(stem, MASK_WORDS)
        by_image[images.get(name, stem)] = file
    return by_image if len(by_image) == len(masks) and not by_image.keys().isdisjoint(images.values()) else {}


def _without_words(stem: str, words: str) -> str:
    """A stem without the words that its name begins or ends with, or consists of in a folder of its own."""
    folder, name = os.path.split(stem)
    if folder and re.fullmatch(words, name, re.IGNORECASE):
        return os.path.join(folder, "")
    match = re.fullmatch(
        rf"(?:(?:{words})(?:[ _.-]|(?=\d)))?(.+?)(?:[ _.-](?:{words}))?", name, re.IGNORECASE | re.DOTALL
    )
    return os.path.join(folder, match[1] if match else name)
