"""Images and masks in one folder, told apart by a word of their names; and folders of cases.

a.png, a_mask.png           0_img.png, 0_masks.png      volume-0.nii, segmentation-0.nii
CASE/image.nii.gz           CASE/CASE_t1.nii.gz         CASE/ct.nii.gz
CASE/label.nii.gz           CASE/CASE_t2.nii.gz         CASE/segmentations/liver.nii.gz
                            CASE/CASE_seg.nii.gz        CASE/segmentations/spleen.nii.gz
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from data_utils.class_names import NamedClasses
from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, is_visible_file
from data_utils.image_io.volumes import volume_stem
from data_utils.mask_values import parse_values
from data_utils.sources.annotations.documents import text_of
from data_utils.sources.annotations.other_formats import check_formats
from data_utils.sources.files import FileRecords, FileRow, Files
from data_utils.sources.folder import (
    MASK_WORDS,
    DataFolder,
    children,
    files_by_stem,
    names_in,
    natural_sort_key,
    split_folders,
)
from data_utils.sources.overlapping import bits_by_class, class_volume_sources
from data_utils.sources.pairs import Cases, open_rows, pair, pair_pages
from data_utils.sources.records import Metadata, Records, SplitOpeners
from data_utils.sources.volumes import read_spacing, volume_sources, volume_suffixes
from data_utils.sources.walk import walk
from runtime.console import listing
from runtime.documents import parse_csv
from runtime.errors import DataError

SEPARATOR = "[ _.-]"
MASK_END = re.compile(rf"(?:(?P<key>.+?){SEPARATOR})?(?:{MASK_WORDS})", re.IGNORECASE | re.DOTALL)
MASK_START = re.compile(rf"(?:{MASK_WORDS})(?:{SEPARATOR}|(?=[0-9]))(?P<key>.+)", re.IGNORECASE | re.DOTALL)
NUMBERED = re.compile("([^0-9]+)([0-9].*)", re.DOTALL)  # image12
# words of images; any other words of a volume's files are those of its channels
VOLUME_WORDS = ("", "image", "img", "imaging", "volume")
PICTURE_WORDS = (*VOLUME_WORDS, "input", "original", "orig", "photo", "rgb", "sat")
ROBOFLOW_CLASSES = "_classes.csv"  # Roboflow's names of mask values, beside the images
PICKLED = "_seg.npy"  # Cellpose's files of Python objects, which are never opened
LOOKED_AT = 5  # folders by which a layout is recognized


class FilesByWord(NamedTuple):
    """The files below a folder by what they are.

    Args:
        masks: key -> mask. A key is a name below the folder without the word that says what the file is.
        images: word -> key -> file, of the files that have the key of a mask.
        others: word -> key -> file, for each way to read the name of another file.
        doubles: a line for each mask that has the key of another.
    """

    masks: dict[str, str]
    images: dict[str, dict[str, str]]
    others: dict[str, dict[str, str]]
    doubles: list[str]

    def usual_words(self) -> list[str]:
        """The words of files that most masks lie beside."""
        return [word for word, files in sorted(self.images.items()) if 2 * len(files) > len(self.masks)]

    def image_words(self, *, are_volumes: bool) -> Sequence[str]:
        """The word of images, or those of the channels of volumes; nothing unless most masks have an image.

        Raises DataError if pictures have several.
        """
        usual = self.usual_words()
        for word in VOLUME_WORDS if are_volumes else PICTURE_WORDS:
            if word in usual:
                return [word]
        if len(usual) > 1 and not are_volumes:
            mask = next(iter(self.masks.values()))
            raise DataError(f"{mask} may be the mask of {listing(usual)}; leave one image beside each mask")
        return usual

    def cases(self, words: Sequence[str]) -> Cases:
        """The masks and the images that have one of the words, or all of them if they are channels."""
        files_by_key: dict[str, dict[str, str]] = {}
        for files_by_word in (self.images, self.others):
            for word in words:
                for key, file in files_by_word.get(word, {}).items():
                    files_by_key.setdefault(key, {})[word] = file
        if "" in words:  # then a word that few files have is a part of their names
            for files in self.images.values():
                if 2 * len(files) <= len(self.masks):
                    files_by_key |= {volume_stem(file): {"": file} for file in files.values()}
        images: dict[str, str | Files] = {}
        masks = dict(self.masks)
        lost: list[str] = []
        for key in sorted(files_by_key, key=natural_sort_key):
            files = files_by_key[key]
            lacking = [word for word in words if word not in files]
            if lacking:
                lost.append(f"{next(iter(files.values()))}: its case has no file of {listing(lacking)}")
                masks.pop(key, None)
            else:
                images[key] = files[words[0]] if len(words) == 1 else tuple(files[word] for word in words)
        return Cases(images, masks, lost)


def find_side_by_side(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records; empty unless, in each split, most masks lie beside their images.

    Folders of masks come first. Raises DataError if there are only annotations of a format that is not read.
    """
    if folder.has_masks:
        return {}
    openers = _find_openers(folder.root, folder.named_splits, folder.config)
    if not openers:
        check_formats(folder.root)
    return openers


def _find_openers(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    folders = split_folders(root, named_splits)
    suffixes = volume_suffixes(root, config)
    if not any(_names_below(root, suffixes)):
        suffixes = IMAGE_SUFFIXES
    openers = _find_class_files(folders, suffixes, config)
    if openers:
        return openers
    for split, folder in folders.items():
        cases = _find_cases(folder, suffixes, config)
        if cases is None:
            return {}
        openers[split] = partial(_open_cases, folder, cases, suffixes, config)
    return openers


def _names_below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    """The names of the files below a folder that end so."""
    for _, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (name for name in names if is_visible_file(name, suffixes))


def _find_cases(folder: Path, suffixes: tuple[str, ...], config: DataConfig) -> Cases | None:
    """The images and masks of a folder; masks are known by the end of their names, or else by their beginning."""
    stems = [volume_stem(name) for name in _names_below(folder, suffixes)]
    for pattern in mask_patterns(config.mask_suffix):
        if any(map(pattern.fullmatch, stems)):
            files = files_by_stem(folder, "files", suffixes)
            files = {stem: file for stem, file in files.items() if not file.lower().endswith(PICKLED)}
            sorted_files = sort_by_words(files, pattern)
            words = sorted_files.image_words(are_volumes=suffixes != IMAGE_SUFFIXES)
            if words and sorted_files.doubles:
                raise DataError(f"{folder}: {listing(sorted_files.doubles, separator='; ')}; keep one of them")
            if words:
                return sorted_files.cases(words)
    return None


def masks_among(stems: Iterable[str], suffix: str | None) -> set[str]:
    """The paths of masks among those of images, all without extension; masks may share a suffix."""
    files = {stem: stem for stem in stems}
    masks: set[str] = set()
    for pattern in mask_patterns(suffix):
        sorted_files = sort_by_words(files, pattern)
        for word in ("", *sorted_files.usual_words()):
            keys = sorted_files.images.get(word, {}).keys()
            masks.update(mask for key, mask in sorted_files.masks.items() if key in keys)
    return masks


def mask_patterns(suffix: str | None) -> Sequence[re.Pattern[str]]:
    """What the names of masks may be: one that ends with a suffix, or with a usual word, or begins with one."""
    if suffix:
        return [re.compile(f"(?P<key>.*){re.escape(suffix)}", re.DOTALL)]
    return [MASK_END, MASK_START]


def sort_by_words(files: Mapping[str, str], pattern: re.Pattern[str]) -> FilesByWord:
    """The files, by their names without extension, by what they are; `pattern` matches the names of masks."""
    doubles: list[str] = []
    masks: dict[str, str] = {}
    images: list[tuple[str, str]] = []
    for stem, file in files.items():
        folder, name = os.path.split(stem)
        match = pattern.fullmatch(name)
        if match is None:
            images.append((stem, file))
            continue
        first = masks.setdefault(os.path.join(folder, match["key"] or ""), file)
        if first != file:
            doubles.append(f"{first} and {file} are masks of one image")
    sorted_files = FilesByWord(masks, {}, {}, doubles)
    for stem, file in images:
        readings = list(_readings(stem, from_start=pattern is MASK_START))
        with_mask = [(key, word) for key, word in readings if key in masks]
        for key, word in with_mask[:1]:
            sorted_files.images.setdefault(word, {})[key] = file
        for key, word in readings if not with_mask else ():
            sorted_files.others.setdefault(word, {})[key] = file
    return sorted_files


def _readings(stem: str, *, from_start: bool) -> Iterator[tuple[str, str]]:
    """The ways to read a name as a key and a word, the longest key first."""
    folder, name = os.path.split(stem)
    yield stem, ""
    separators = [match.start() for match in re.finditer(SEPARATOR, name)]
    numbered = NUMBERED.fullmatch(name)
    if from_start:
        for position in separators:
            yield os.path.join(folder, name[position + 1 :]), name[:position].lower()
        if numbered:
            yield os.path.join(folder, numbered[2]), numbered[1].lower()
        return
    for position in reversed(separators):
        yield os.path.join(folder, name[:position]), name[position + 1 :].lower()
    yield os.path.join(folder, ""), name.lower()


def _open_cases(folder: Path, cases: Cases, suffixes: tuple[str, ...], config: DataConfig) -> Records:
    """The images with a mask, in natural order. Raises DataError for files without partner, unless allowed."""
    folders = (folder, folder)
    if suffixes == IMAGE_SUFFIXES:
        metadata = Metadata(read_classes(folder / ROBOFLOW_CLASSES))
        return pair_pages(folders, cases, metadata, config.allow_unpaired)
    images = {_case_name(key): files for key, files in cases.images.items()}
    masks = {_case_name(key): file for key, file in cases.masks.items()}
    sources = (volume_sources, config.spacing or read_spacing(folder))
    metadata = Metadata(dims=3)
    named_cases = Cases(images, masks, cases.lost)
    return pair(folders, named_cases, metadata, config.allow_unpaired, *sources, is_named_by_case=True)


def read_classes(file: Path) -> NamedClasses:
    """The value and the name of each class of Roboflow's masks; empty if there is no file. Raises DataError."""
    if not file.is_file():
        return ()
    try:
        titles, *rows = [cells for _, cells in parse_csv(text_of(file))]
        if [title.strip().lower() for title in titles] != ["pixel value", "class"]:
            return ()
        return tuple((int(value), name.strip()) for value, name in rows)
    except ValueError as error:
        raise DataError(f"{file}: expected a line with a pixel value and a class for each class") from error


def _case_name(key: str) -> str:
    """The name of a case: its folder if its files are called like the folder, or by what they are alone."""
    folder, name = os.path.split(key)
    return folder if name in ("", os.path.basename(folder)) else key


def _find_class_files(folders: Mapping[str, Path], suffixes: tuple[str, ...], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, for volumes with a folder of masks, one for each class; else empty.

    Raises DataError if the task is another than that of classes that may overlap.
    """
    openers: SplitOpeners = {}
    if suffixes == IMAGE_SUFFIXES or not all(map(_holds_class_files, folders.values())):
        return openers
    if config.task not in (None, OVERLAPPING):
        raise DataError(f"--task {config.task}: each case has a folder with a mask for each class; leave it out")
    rows_by_split = {split: list(_class_rows(folder, suffixes)) for split, folder in folders.items()}
    # a class has the same bit in each split
    all_files = chain.from_iterable(row.targets for row in chain.from_iterable(rows_by_split.values()))
    names = sorted({_class_name(file) for file in all_files}, key=natural_sort_key)
    for split, folder in folders.items():
        openers[split] = partial(_open_class_files, folder, rows_by_split[split], names, config)
    return openers


def _holds_class_files(folder: Path) -> bool:
    """Whether each of the first folders in a folder holds a folder of masks, which alone has such a name."""
    cases = list(children(folder).values())[:LOOKED_AT]
    return bool(cases) and all(_mask_folder(case) is not None for case in cases)


def _mask_folder(case: Path) -> Path | None:
    """The only folder of a case that is called like masks."""
    folders = [path for name, path in children(case).items() if re.fullmatch(MASK_WORDS, name)]
    return folders[0] if len(folders) == 1 else None


def _class_rows(folder: Path, suffixes: tuple[str, ...]) -> Iterator[FileRow]:
    """The files of each case; no image if the case does not have exactly one."""
    for case in sorted(children(folder).values(), key=lambda path: natural_sort_key(path.name)):
        masks = _mask_folder(case)
        names = [name for name in names_in(case) if is_visible_file(name, suffixes)]
        images = tuple(os.path.join(case.name, name) for name in names) if len(names) == 1 else ()
        mask_names: Iterable[str] = ()
        if masks is not None:
            mask_names = sorted(name for name in names_in(masks) if is_visible_file(name, suffixes))
            mask_names = (os.path.join(case.name, masks.name, name) for name in mask_names)
        yield FileRow(case.name, images, tuple(mask_names))


def _class_name(file: str) -> str:
    return volume_stem(os.path.basename(file))


def _open_class_files(folder: Path, rows: Sequence[FileRow], names: Sequence[str], config: DataConfig) -> FileRecords:
    """The volumes with masks of classes. Raises DataError for cases that lack one or the other, unless allowed."""
    paired: list[FileRow] = []
    unpaired: list[str] = []
    for row in rows:
        files = {_class_name(file): file for file in row.targets}
        if row.images and files:
            paired.append(row._replace(targets=tuple(files.get(name, "") for name in names)))
        else:
            unpaired.append(f"{row.name}: has {'no mask' if row.images else 'not exactly one volume'}")
    classes = tuple(enumerate(names, 1))
    metadata = Metadata(classes, dims=3, task=OVERLAPPING)
    settings = (bits_by_class(config, classes), tuple(parse_values(config.ignore_index)))
    sources = (class_volume_sources, *settings, config.spacing or read_spacing(folder))
    return open_rows((folder, folder), paired, unpaired, metadata, config.allow_unpaired, *sources)
