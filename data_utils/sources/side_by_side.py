"""Images and masks in one folder, told apart by a word of their names; and folders of cases.

a.png, a_mask.png           0_img.png, 0_masks.png      volume-0.nii, segmentation-0.nii
CASE/image.nii.gz           CASE/CASE_t1.nii.gz         CASE/images/a.png
CASE/label.nii.gz           CASE/CASE_t2.nii.gz         CASE/masks/a.png
                            CASE/CASE_seg.nii.gz
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volumes import volume_stem
from data_utils.sources.annotations.documents import text_of
from data_utils.sources.annotations.other_formats import check_formats
from data_utils.sources.folder import (
    IMAGE_WORDS,
    MASK_WORDS,
    DataFolder,
    files_below,
    natural_order,
    split_folders,
    stems_of,
)
from data_utils.sources.pairs import Cases
from data_utils.sources.pictures import pair_pages
from data_utils.sources.records import Files, Metadata, Records, SplitOpeners, split_openers
from data_utils.sources.volumes import open_volumes, volume_suffixes
from runtime.console import listing
from runtime.documents import parse_csv
from runtime.errors import DataError

SEPARATOR = "[ _.-]"
MASK_END = re.compile(rf"(?:(?P<key>.+?){SEPARATOR})?(?:{MASK_WORDS})", re.IGNORECASE | re.DOTALL)
MASK_START = re.compile(rf"(?:{MASK_WORDS})(?:{SEPARATOR}|(?=[0-9]))(?P<key>.+)", re.IGNORECASE | re.DOTALL)
FOLDER = re.compile(f"{IMAGE_WORDS}|{MASK_WORDS}", re.IGNORECASE)
NUMBERED = re.compile("([^0-9]+)([0-9].*)", re.DOTALL)  # image12
# words of images; any other words of a volume's files are those of its channels
VOLUME_WORDS = ("", "image", "img", "imaging", "volume")
PICTURE_WORDS = (*VOLUME_WORDS, "input", "original", "orig", "photo", "rgb", "sat")
ROBOFLOW_CLASSES = "_classes.csv"  # Roboflow's names of mask values, beside the images
PICKLED = "_seg.npy"  # Cellpose's files of Python objects, which are never opened


class FilesByWord(NamedTuple):
    """The files below a folder by what they are.

    Args:
        masks: key -> mask. A key is a name below the folder without the word that says what the file is.
        others: word -> key -> file. A file whose name can be read in several ways has the key of a mask, else all.
        doubles: a line for each mask that has the key of another.
    """

    masks: dict[str, str]
    others: dict[str, dict[str, str]]
    doubles: list[str]

    def is_usual(self, word: str) -> bool:
        """Whether most masks lie beside a file with the word."""
        return 2 * len(self.others[word].keys() & self.masks.keys()) > len(self.masks)

    def usual_words(self) -> list[str]:
        """The words of files that most masks lie beside."""
        return sorted(filter(self.is_usual, self.others))

    def image_words(self, *, are_volumes: bool) -> Sequence[str]:
        """The word of images, or those of the channels of volumes; nothing unless most masks have an image.

        Raises DataError if pictures have several.
        """
        words = self.usual_words()
        for word in VOLUME_WORDS if are_volumes else PICTURE_WORDS:
            if word in words:
                return [word]
        if len(words) > 1 and not are_volumes:
            mask = next(iter(self.masks.values()))
            raise DataError(f"{mask} may be the mask of {listing(words)}; leave one image beside each mask")
        return words

    def cases(self, words: Sequence[str]) -> Cases:
        """The masks and the images that have one of the words, or all of them if they are channels."""
        files_by_key: dict[str, dict[str, str]] = {}
        for word in words:
            for key, file in self.others[word].items():
                files_by_key.setdefault(key, {})[word] = file
        if "" in words:  # then a word that few files have is a part of their names
            for word, files in self.others.items():
                if not self.is_usual(word):
                    rare = [file for key, file in files.items() if key in self.masks]
                    files_by_key |= {volume_stem(file): {"": file} for file in rare}
        images: dict[str, str | Files] = {}
        masks = dict(self.masks)
        lost: list[str] = []
        for key in natural_order(files_by_key):
            files = files_by_key[key]
            lacking = [word for word in words if word not in files]
            if lacking:
                lost.append(f"{next(iter(files.values()))}: its case has no file of {listing(lacking)}")
                masks.pop(key, None)
            else:
                images[key] = tuple(files[word] for word in words)
        return Cases(images, masks, lost)


def find_side_by_side(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records; empty unless, in each split, most masks lie beside their images.

    Folders of masks come first. Raises DataError if there are only annotations of a format that is not read.
    """
    if folder.has_masks:
        return {}
    suffixes = volume_suffixes(folder.root, folder.config)
    if next(files_below(folder.root, suffixes), None) is None:
        suffixes = IMAGE_SUFFIXES
    splits: dict[str, tuple[Path, Cases]] = {}
    for split, path in split_folders(folder.root, folder.named_splits).items():
        cases = _find_cases(path, suffixes, folder.config)
        if cases is None:
            check_formats(folder.root)
            return {}
        splits[split] = path, cases
    return split_openers(splits, _open_cases, suffixes, folder.config)


def _find_cases(folder: Path, suffixes: tuple[str, ...], config: DataConfig) -> Cases | None:
    """The images and masks of a folder; masks are known by the end of their names, or else by their beginning."""
    paths = [path for path in files_below(folder, suffixes) if not path.endswith(PICKLED)]
    names = [os.path.basename(_with_word(volume_stem(path))) for path in paths]
    for pattern in mask_patterns(config.mask_suffix):
        if any(map(pattern.fullmatch, names)):
            files = {_with_word(stem): path for stem, path in stems_of(natural_order(paths), "files", folder).items()}
            sorted_files = sort_by_words(files, pattern)
            words = sorted_files.image_words(are_volumes=suffixes != IMAGE_SUFFIXES)
            if words and sorted_files.doubles:
                raise DataError(f"{folder}: {listing(sorted_files.doubles, separator='; ')}; keep one of them")
            if words:
                return sorted_files.cases(words)
    return None


def _with_word(stem: str) -> str:
    """CASE/masks/a as CASE/a_masks: the name of a folder says what its files are, as a word of their own names does."""
    folder, name = os.path.split(stem)
    case, word = os.path.split(folder)
    if FOLDER.fullmatch(word) and case and not os.path.dirname(case):
        return os.path.join(case, f"{name}_{word}")
    return stem


def masks_among(stems: Iterable[str], suffix: str | None) -> set[str]:
    """The paths of masks among those of images, all without extension; masks may share a suffix."""
    files = {stem: stem for stem in stems}
    masks: set[str] = set()
    for pattern in mask_patterns(suffix):
        sorted_files = sort_by_words(files, pattern)
        for word in ("", *sorted_files.usual_words()):
            keys = sorted_files.others.get(word, {}).keys()
            masks.update(mask for key, mask in sorted_files.masks.items() if key in keys)
    return masks


def mask_patterns(suffix: str | None) -> Sequence[re.Pattern[str]]:
    """What the names of masks may be: one that ends with a suffix, or with a usual word, or begins with one."""
    if suffix:
        return [re.compile(f"(?P<key>.*){re.escape(suffix)}", re.DOTALL)]
    return [MASK_END, MASK_START]


def sort_by_words(files: Mapping[str, str], pattern: re.Pattern[str]) -> FilesByWord:
    """The files, by their names without extension, by what they are; `pattern` matches the names of masks."""
    sorted_files = FilesByWord({}, {}, [])
    masks = sorted_files.masks
    images: list[tuple[str, str]] = []
    for stem, file in files.items():
        folder, name = os.path.split(stem)
        match = pattern.fullmatch(name)
        if match is None:
            images.append((stem, file))
            continue
        first = masks.setdefault(os.path.join(folder, match["key"] or ""), file)
        if first != file:
            sorted_files.doubles.append(f"{first} and {file} are masks of one image")
    for stem, file in images:
        readings = list(_readings(stem, from_start=pattern is MASK_START))
        with_mask = [(key, word) for key, word in readings if key in masks]
        for key, word in with_mask[:1] or readings:
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
    return open_volumes(folders, Cases(images, masks, cases.lost), Metadata(dims=3), config)


def _case_name(key: str) -> str:
    """The name of a case: its folder if its files are called like the folder, or by what they are alone."""
    folder, name = os.path.split(key)
    return folder if name in ("", os.path.basename(folder)) else key


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
