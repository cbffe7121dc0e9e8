"""Images and masks in one folder, told apart by a word of their names; and folders of cases.

a.png, a_mask.png           0_img.png, 0_masks.png      volume-0.nii, segmentation-0.nii
CASE/image.nii.gz           CASE/CASE_t1.nii.gz         CASE/images/a.png
CASE/label.nii.gz           CASE/CASE_t2.nii.gz         CASE/masks/a.png
                            CASE/CASE_seg.nii.gz
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volumes import volume_stem
from data_utils.sources.annotations.documents import text_of
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


Reading = tuple[str, str, str]  # key and word of a name, and its file; the key is the name without the word


def find_side_by_side(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records; empty unless, in some split, most masks lie beside their images."""
    suffixes = volume_suffixes(folder.root, folder.config)
    if next(files_below(folder.root, suffixes), None) is None:
        suffixes = IMAGE_SUFFIXES
    splits: dict[str, tuple[Path, Cases]] = {}
    alone: list[str] = []
    for split, path in split_folders(folder.root, folder.named_splits).items():
        cases = _find_cases(path, suffixes, folder.config)
        if cases is None:
            files = natural_order(files_below(path, suffixes))
            alone += [f"{path.name}/{file}: image without mask" for file in files]
        else:
            splits[split] = path, cases
    for split, (path, cases) in splits.items():
        splits[split] = path, cases._replace(lost=[*cases.lost, *alone])
    return split_openers(splits, _open_cases, suffixes, folder.config)


def _find_cases(folder: Path, suffixes: tuple[str, ...], config: DataConfig) -> Cases | None:
    """The images and masks of a folder; masks are known by the end of their names, or else by their beginning.

    Raises DataError for two masks of one image, and if most masks lie beside several pictures.
    """
    paths = [path for path in files_below(folder, suffixes) if not path.endswith(PICKLED)]
    names = [os.path.basename(_with_word(volume_stem(path))) for path in paths]
    for pattern in mask_patterns(config.mask_suffix):
        if not any(map(pattern.fullmatch, names)):
            continue
        stems = {_with_word(stem): path for stem, path in stems_of(natural_order(paths), "files", folder).items()}
        masks, readings, usual_words = read_words(stems, pattern)
        image_words = PICTURE_WORDS if suffixes == IMAGE_SUFFIXES else VOLUME_WORDS
        words = next(([word] for word in image_words if word in usual_words), usual_words)
        if len(words) > 1 and suffixes == IMAGE_SUFFIXES:
            mask, *_ = next(iter(masks.values()))
            raise DataError(f"{mask} may be the mask of {listing(words)}; leave one image beside each mask")
        doubles = [f"{' and '.join(files)} are masks of one image" for files in masks.values() if len(files) > 1]
        if words and doubles:
            raise DataError(f"{folder}: {listing(doubles, separator='; ')}; keep one of them")
        if words:
            return _cases(masks, readings, words)
    return None


def _cases(masks: dict[str, Files], readings: Iterable[Reading], words: Sequence[str]) -> Cases:
    """The masks, and the images that have one of the words, or all of them if they are channels."""
    files_by_key: dict[str, dict[str, str]] = {}
    for key, word, file in readings:
        if word in words:
            files_by_key.setdefault(key, {})[word] = file
    images: dict[str, str | Files] = {}
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
    found: set[str] = set()
    for pattern in mask_patterns(suffix):
        masks, readings, usual_words = read_words(files, pattern)
        for key, word, _ in readings:
            if word in ("", *usual_words):
                found.update(masks.get(key, ()))
    return found


def mask_patterns(suffix: str | None) -> Sequence[re.Pattern[str]]:
    """What the names of masks may be: one that ends with a suffix, or with a usual word, or begins with one."""
    if suffix:
        return [re.compile(f"(?P<key>.*){re.escape(suffix)}", re.DOTALL)]
    return [MASK_END, MASK_START]


def read_words(files: Mapping[str, str], pattern: re.Pattern[str]) -> tuple[dict[str, Files], list[Reading], list[str]]:
    """The masks of each key, the readings of all other names, and the words that most masks lie beside.

    Of the readings of a name, the one counts that has the longest key of a mask, or else all do; but a word that few
    masks lie beside is a part of the name. `files` are by their names without extension, `pattern` matches masks.
    """
    masks: dict[str, Files] = {}
    images: list[str] = []
    for stem, file in files.items():
        folder, name = os.path.split(stem)
        match = pattern.fullmatch(name)
        if match:
            key = os.path.join(folder, match["key"] or "")
            masks[key] = (*masks.get(key, ()), file)
        else:
            images.append(stem)
    readings: list[Reading] = []
    for stem in images:
        all_readings = list(_readings(stem, from_start=pattern is MASK_START))
        with_mask = [(key, word) for key, word in all_readings if key in masks]
        for key, word in with_mask[:1] or all_readings:
            readings.append((key, word, files[stem]))
    counts: Counter[str] = Counter()
    for key, word, _ in readings:
        counts[word] += key in masks
    usual_words = sorted(word for word, count in counts.items() if 2 * count > len(masks))
    for number, (key, word, file) in enumerate(readings):
        if key in masks and word and word not in usual_words:
            readings[number] = volume_stem(file), "", file
    return masks, readings, usual_words


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
