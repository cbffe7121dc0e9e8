"""A folder of images and masks -> pairs by stem."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.formats import IMAGE_SUFFIXES, PageFile, format_remedy
from data_utils.sources.records import Metadata, Record, Records, folder_pairs, image_without_mask
from data_utils.sources.spelling import by_composed_name
from data_utils.sources.tiff_stacks import PagePair, pair_pages
from data_utils.sources.walk import walk
from runtime.cache import digest_of_files
from runtime.console import listing
from runtime.errors import DataError

IMAGE_FOLDERS = ("images", "imgs", "image")
MASK_FOLDERS = ("masks", "labels", "annotations", "mask", "label")
SPLIT_FOLDERS = ("train", "training", "val", "validation", "valid")  # test is a split only if the user names it
ANNOTATIONS = "annotations of COCO, labelme, YOLO, VOC or Cityscapes"  # what else a folder may hold
YOLO_LAYOUT = (
    "text files of YOLO lie in labels/ beside images/, with a data.yaml or classes.txt of class names above them"
)
NAMES_IN_MESSAGE = 5  # files, or endings of files, that a message names


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


def find_splits(root: Path, named_splits: Iterable[str]) -> dict[str, tuple[Path, Path]]:
    """Split -> (images, masks) folders; a flat folder is one split, `train`.

    Splits are train/, val/ and the like, and `named_splits`; they lie above images/ and masks/ or below both. nnU-Net's
    imagesTr and labelsTr are one split.
    """
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
    return matches[0] if matches else None


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
        has_masks_beside = not children(folder.parent).keys().isdisjoint(MASK_FOLDERS)
        is_half = folder.name.lower() in IMAGE_FOLDERS + MASK_FOLDERS and has_masks_beside
        remedy = f"; did you mean --dataset {shlex.quote(str(folder.parent))}?" if is_half else format_remedy(names)
        if any(f"{os.path.splitext(name)[0]}.txt" in names for name in names if name.lower().endswith(IMAGE_SUFFIXES)):
            remedy += f"; {YOLO_LAYOUT}"
        raise NoFolderError(
            f"{folder} has no folder of {' or '.join(lacking)}; looked for {'|'.join(IMAGE_FOLDERS)} beside "
            f"{'|'.join(MASK_FOLDERS)}, here or in train/ and val/, for {ANNOTATIONS}, and for volumes in imagesTr"
            f" beside labelsTr; found {name_list}{remedy}"
        )
    if images.samefile(masks):
        raise DataError(f"{images} and {masks} are the same folder")
    return images, masks


class NoFolderError(DataError):
    """A folder without one of images or one of masks."""


class PageRow(NamedTuple):
    """A record of `FolderRecords`, a row of its array.

    Args:
        pair: the index of the pair of files.
        number: the number of the record among those of the pair, from 0.
        pages: the number of records of the pair.
    """

    pair: int
    number: int
    pages: int
    image_page: int
    mask_page: int


class FolderRecords(Records):
    """Records {"image": path, "target": path, "name": path of the image below `images`}.

    Each page of a file of many pages is a record: a `PageFile` stands for the path, and the name is
    <stem>_<page>.<ext>, as `predict.py` calls it.

    Names are kept as bytes in two arrays: a million Python strings would be copied, page by page, into every loader
    process as their reference counts change.

    Args:
        pairs: image and mask file below their folders.
        pages: (page of the image, page of the mask) of all records of each pair.
        unpaired: the files that were left out, a line for each.
    """

    def __init__(
        self,
        images: Path,
        masks: Path,
        pairs: Sequence[tuple[str, str]],
        pages: Sequence[Sequence[PagePair]],
        unpaired: Sequence[str],
    ) -> None:
        self.folders = str(images), str(masks)
        image_names = np.array([os.fsencode(image) for image, _ in pairs])
        mask_names = np.array([os.fsencode(mask) for _, mask in pairs])
        self.files = (image_names, mask_names)
        rows: list[PageRow] = []
        for pair, page_pairs in enumerate(pages):
            for number, (image_page, mask_page) in enumerate(page_pairs):
                rows.append(PageRow(pair, number, len(page_pairs), image_page, mask_page))
        self.rows = np.array(rows, np.int32)
        self.metadata = Metadata(unpaired=tuple(unpaired))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Record:
        row = PageRow(*self.rows[i].tolist())
        image_folder, mask_folder = self.folders
        image_names, mask_names = self.files
        image_name = os.fsdecode(image_names[row.pair].item())
        image = os.path.join(image_folder, image_name)
        mask = os.path.join(mask_folder, os.fsdecode(mask_names[row.pair].item()))
        if row.pages == 1:
            return {"image": image, "target": mask, "name": image_name}
        stem, extension = os.path.splitext(image_name)
        return {
            "image": PageFile(image, row.image_page),
            "target": PageFile(mask, row.mask_page),
            "name": f"{stem}_{row.number + 1:04}{extension}",
        }

    def file_numbers(self) -> np.ndarray:
        return self.rows[:, 0]

    def image_folders(self) -> set[tuple[str, str]]:
        return folder_pairs(self.folders[0], self.files[0])

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files."""
        image_folder, mask_folder = self.folders
        image_names, mask_names = self.files
        paths: list[str] = []
        for image, mask in zip(image_names, mask_names, strict=True):
            paths.append(os.path.join(image_folder, os.fsdecode(image)))
            paths.append(os.path.join(mask_folder, os.fsdecode(mask)))
        return digest_of_files(paths, b"/".join([*image_names, *mask_names, self.rows.tobytes()]))


def pair_files(images: Path, masks: Path, mask_suffix: str | None, allow_unpaired: bool) -> FolderRecords:
    """Images and masks of one stem, in natural order; all pages of files of many pages.

    `mask_suffix` None detects it. Raises DataError for doubles and, unless allowed, for files without partner.
    """
    image_files = files_by_stem(images, "images")
    mask_files = files_by_stem(masks, "masks")
    if images.name.lower() == "imagestr":  # nnU-Net calls the only file of an image, with all its colors, CASE_0000
        image_files = {stem.removesuffix("_0000"): file for stem, file in image_files.items()}
    suffix = detect_suffix(image_files, mask_files) if mask_suffix is None else mask_suffix
    mask_by_stem = masks_by_image(mask_files, suffix)
    stems = [stem for stem in image_files if stem in mask_by_stem]
    without_mask = [path for stem, path in image_files.items() if stem not in mask_by_stem]
    used_masks = {mask_by_stem[stem] for stem in stems}
    without_image = [path for path in mask_files.values() if path not in used_masks]
    problems: list[str] = []
    if without_mask:
        name_list = listing(without_mask, NAMES_IN_MESSAGE)
        problems.append(f"{len(without_mask)} of {len(image_files)} images in {images} have no mask ({name_list})")
    if without_image:
        name_list = listing(without_image, NAMES_IN_MESSAGE)
        problems.append(f"{len(without_image)} of {len(mask_files)} masks in {masks} have no image ({name_list})")
    if problems and not (allow_unpaired and stems):
        leave_out = (
            ", or leave them out with --allow-unpaired" if stems else ", or give masks the names of their images"
        )
        unread_names = _unread_files(images, [stem.removesuffix(suffix) for stem in mask_files], image_files)
        if unread_names:
            problems.append(f"{images} holds {unread_names[0]}, which is not read{format_remedy(unread_names)}")
        remedy = f" (set the suffix with --mask-suffix{leave_out})"
        raise DataError(f"{'; '.join(problems)}; masks are named <stem>{suffix}.<ext>{remedy}")
    unpaired = [image_without_mask(file) for file in without_mask]
    unpaired += [f"{file}: mask without image" for file in without_image]
    pairs = [(image_files[stem], mask_by_stem[stem]) for stem in stems]
    return FolderRecords(images, masks, pairs, pair_pages(images, masks, pairs), unpaired)


def _unread_files(folder: Path, stems: Collection[str], read_stems: Collection[str]) -> list[str]:
    """The files in a folder that have one of the stems and an extension that is not read."""
    names = []
    for name in sorted(os.listdir(folder), key=natural_sort_key):
        stem = os.path.splitext(name)[0]
        if stem in stems and stem not in read_stems:
            names.append(name)
    return names


def masks_by_stem(folder: Path, stems: Iterable[str], suffix: str | None) -> dict[str, str]:
    """Stem of the image -> mask file below a folder; the suffix of masks is detected if it is None."""
    if not folder.is_dir():  # another split has the class of these masks
        return {}
    files = files_by_stem(folder, "masks")
    return masks_by_image(files, detect_suffix(stems, files) if suffix is None else suffix)


def masks_by_image(mask_files: Mapping[str, str], suffix: str) -> dict[str, str]:
    """Stem of the image -> mask file, for the masks whose stems end with `suffix`."""
    mask_by_stem: dict[str, str] = {}
    for stem, path in mask_files.items():
        if stem.endswith(suffix):
            mask_by_stem[stem.removesuffix(suffix)] = path
    return mask_by_stem


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
            extension = os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            if extension in suffixes:
                files.append(name if below == "." else f"{below}/{name}")
            else:
                other_endings.add(extension or name)
    if not files:
        endings = "nothing"
        if other_endings:
            endings = f"only {', '.join(sorted(other_endings)[:NAMES_IN_MESSAGE])}"
        hint = f" (or {ANNOTATIONS})" if kind == "masks" else ""
        if kind == "masks" and ".txt" in other_endings:
            hint += f"; {YOLO_LAYOUT}"
        hint += format_remedy(sorted(other_endings))
        raise DataError(f"no {kind} in {folder}; found {endings}, looked for {', '.join(suffixes)}{hint}")
    stems: dict[str, str] = {}
    for file in sorted(files, key=natural_sort_key):
        stem = os.path.splitext(file)[0]
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
