"""Trees of DICOM files -> series and their labels: by reference in one tree, or images/CASE beside masks/CASE."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from data_utils.class_names import BACKGROUND, holds_names, named_classes
from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.dicom.headers import SUFFIXES, is_dicom, load_pydicom, read_header
from data_utils.image_io.dicom.labels import (
    SEGMENTATIONS,
    STRUCTURES,
    SegmentsOverlap,
    referenced_series,
    segment_names,
)
from data_utils.image_io.formats import Segments, VolumeFile, image_errors
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.image_io.volumes import read_label_volume, volume_stem
from data_utils.sources.folder import DataFolder, files_below, natural_order, natural_sort_key, split_folders
from data_utils.sources.overlapping import bits_by_class
from data_utils.sources.pairs import Cases, as_files, find_masks, pair
from data_utils.sources.records import FileRow, Files, Metadata, Records, Sources, SplitOpeners, split_openers
from runtime.cache import digest, load_or_compute, load_or_read_each
from runtime.console import counted
from runtime.errors import DataError, one_line
from runtime.parallel import map_indices

LabeledSeries = tuple[tuple[Path, Path], Cases, Metadata]  # the folders of series and labels, their files, and facts
LOOKED_AT = 100  # files by which a folder of DICOM is recognized
LABEL_SUFFIXES = (*SUFFIXES, *VOLUME_SUFFIXES)
TABLES = (".csv", ".gz", ".json", ".parquet", ".tar", ".txt", ".xml", ".yaml")
ELEMENTS: tuple[str, ...] = ("SOPClassUID", "SeriesInstanceUID", "Modality", "Rows", "ImagePositionPatient")
ELEMENTS += ("SharedFunctionalGroupsSequence", "ReferencedSeriesSequence", "ReferencedFrameOfReferenceSequence")
SLICE, LABEL, PICTURE, OTHER, DAMAGED = "slice", "label", "picture", "other", "damaged"
NOUNS = {  # what files of a kind are
    PICTURE: "a DICOM image without a place in space",
    LABEL: "a DICOM label",
    OTHER: "neither image nor label of DICOM",
}


class DicomFile(NamedTuple):
    """What a DICOM file is.

    Args:
        path: below the folder that was looked through.
        kind: a slice or several of a volume, a label, a picture without a place, something else, or damaged.
        series: the series that it belongs to, or, of a label, those that it refers to.
        problem: why it cannot be read, if it is damaged.
    """

    path: str
    kind: str
    series: tuple[str, ...] = ()
    modality: str = ""
    problem: str = ""


class Series(NamedTuple):
    """A series of slices: its name, made of those of folders and files, and its files below the folder of all."""

    name: str
    uid: str
    files: Files


FilesByKind = Mapping[str, Sequence[DicomFile]]


def unused(files: FilesByKind, kinds: Iterable[str]) -> list[str]:
    """A line for the files of each of some kinds."""
    lines: list[str] = []
    for kind in kinds:
        if files[kind]:
            text = counted(len(files[kind]), f"file that is {NOUNS[kind]}", f"files that are {NOUNS[kind]}")
            lines.append(f"{text}, the first is {files[kind][0].path}")
    return lines


def may_be_dicom(name: str) -> bool:
    """Whether a file of this name may be DICOM, whose files often have no extension."""
    name = name.lower()
    return name.endswith(SUFFIXES) or not name.endswith((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES, *TABLES))


def holds_series(folder: Path) -> bool:
    """Whether a slice of a volume is among the first files of a folder."""
    names = islice(files_below(folder), LOOKED_AT)
    return any(_look(str(folder / name)).kind == SLICE for name in _dicom_files(folder, names))


def is_label(path: Path) -> bool:
    """Whether a file is a segmentation or a structure set."""
    return is_dicom(path) and _look(str(path)).kind == LABEL


def labels_by_series(folder: Path) -> dict[str, Files]:
    """The series that the labels below a folder refer to, each with its labels."""
    labels: dict[str, Files] = {}
    for label in read_tree(folder)[LABEL]:
        for uid in label.series:
            labels[uid] = (*labels.get(uid, ()), str(folder / label.path))
    return labels


def series_uid(path: str) -> str:
    """The series that a slice belongs to."""
    return _look(path).series[0]


def _dicom_files(folder: Path, names: Iterable[str]) -> list[str]:
    """The DICOM files among files below a folder. Raises DataError if there are some, and pydicom is missing."""
    paths = [name for name in names if may_be_dicom(name) and is_dicom(folder / name)]
    if paths:
        load_pydicom()
    return natural_order(paths)


def read_tree(folder: Path, names: Iterable[str] | None = None) -> FilesByKind:
    """The DICOM files below a folder, or those among some files below it, by kind; what they are is cached."""
    names = list(files_below(folder) if names is None else names)
    paths = _dicom_files(folder, names)
    found = load_or_read_each("kinds of DICOM", [str(folder / path) for path in paths], _look)
    files: defaultdict[str, list[DicomFile]] = defaultdict(list)
    for path, (_, kind, series, modality, problem) in zip(paths, found.values(), strict=True):
        files[kind].append(DicomFile(path, kind, tuple(series), modality, problem))
    for name in sorted(set(names).difference(paths)):
        if name.lower().endswith(SUFFIXES):
            problem = "cannot be read (it lacks the mark DICM of DICOM files)"
            files[DAMAGED].append(DicomFile(name, DAMAGED, problem=problem))
    return files


def _look(path: str) -> DicomFile:
    """What the header of a file says."""
    try:
        return _describe(path, read_header(path, ELEMENTS))
    except Exception as error:  # a damaged file makes pydicom raise anything
        return DicomFile(path, DAMAGED, problem=f"cannot be read ({one_line(error)})")


def _describe(path: str, header: Any) -> DicomFile:
    """What a file is, by the class that it claims and by what it says of its place."""
    kind = header.get("SOPClassUID") or header.file_meta.get("MediaStorageSOPClassUID")
    if kind in SEGMENTATIONS or kind == STRUCTURES:
        return DicomFile(path, LABEL, tuple(referenced_series(header)))
    is_image = kind is None or "Image Storage" in kind.name
    if "Rows" not in header and is_image:
        return DicomFile(path, DAMAGED, problem="cannot be read (its header is cut off)")
    if "Rows" not in header or header.get("Modality") == "RTDOSE":
        return DicomFile(path, OTHER)
    if "ImagePositionPatient" not in header and "SharedFunctionalGroupsSequence" not in header:
        return DicomFile(path, PICTURE)
    series = str(header.get("SeriesInstanceUID", os.path.dirname(path)))
    return DicomFile(path, SLICE, (series,), str(header.get("Modality") or ""))


def series_of(slices: Iterable[DicomFile], folder: Path) -> list[Series]:
    """The series of slices below a folder, in natural order.

    A series has the name of the folder that holds all of its files; or, if that holds other series, the name of its
    file if it has one, else that of the folder and a number.
    """
    files_by_uid: dict[str, list[str]] = {}
    for file in slices:
        files_by_uid.setdefault(file.series[0], []).append(file.path)
    parents = {uid: os.path.commonpath(map(os.path.dirname, files)) for uid, files in files_by_uid.items()}
    counts = Counter(parents.values())
    numbers: Counter[str] = Counter()
    names: set[str] = set()
    found: list[Series] = []
    for uid, files in files_by_uid.items():
        parent = parents[uid]
        name = parent or folder.absolute().name
        if counts[parent] > 1 and len(files) == 1:
            name = _stem(files[0])
        elif counts[parent] > 1:
            numbers[parent] += 1
            name = f"{name}/series_{numbers[parent]}"
        while name in names:
            name += "_2"
        names.add(name)
        found.append(Series(name, uid, tuple(files)))
    return sorted(found, key=lambda series: natural_sort_key(series.name))


def _stem(path: str) -> str:
    """A path without the extension of an image or label, if it has one."""
    return volume_stem(path) if path.lower().endswith(LABEL_SUFFIXES) else path


def find_dicom(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its series with their labels; empty for a folder of other files.

    Raises DataError for series without any label.
    """
    found: dict[str, LabeledSeries] = {}
    if folder.splits:
        for split, (images, masks) in folder.splits.items():
            masks_looked_at = islice(files_below(masks), LOOKED_AT)
            if not holds_series(images) or not any(name.lower().endswith(LABEL_SUFFIXES) for name in masks_looked_at):
                return {}
            found[split] = _by_name(images, masks, folder.config)
    else:
        for split, path in split_folders(folder.root, folder.named_splits).items():
            if not holds_series(path):
                return {}
            found[split] = _by_reference(path)
    classes = _classes(found.values())
    return split_openers(found, _open, classes, folder.config)


def _by_name(images: Path, masks: Path, config: DataConfig) -> LabeledSeries:
    """A series in each folder `images/CASE`, or file `images/CASE.dcm`, whose label is called `masks/CASE`."""
    files = read_tree(images)
    slices_by_case: dict[str, list[DicomFile]] = {}
    for file in files[SLICE]:
        top, slash, _ = file.path.partition("/")
        slices_by_case.setdefault(top if slash else _stem(top), []).append(file)
    label_files, lost = find_masks(masks, slices_by_case, config.mask_suffix, LABEL_SUFFIXES)
    image_files: dict[str, str | Files] = {}
    for case, slices in slices_by_case.items():
        count = len({file.series for file in slices})
        if count == 1:
            image_files[case] = tuple(file.path for file in slices)
        else:
            lost.append(f"{case}: holds {count} series; keep one")
            label_files.pop(case, None)
    cases = Cases(image_files, {**label_files}, lost)
    return (images, masks), cases, _metadata(images, files, files[SLICE], [])


def _by_reference(folder: Path) -> LabeledSeries:
    """The series of a tree to which its labels refer; others are left out."""
    files = read_tree(folder)
    all_series = series_of(files[SLICE], folder)
    if not files[LABEL]:
        raise DataError(
            f"{folder}: holds {len(all_series)} DICOM series and no label of them, SEG or RTSTRUCT; labels of other"
            " formats lie in masks/CASE.nii.gz beside images/CASE (docs/dicom.md)"
        )
    by_uid = {series.uid: series for series in all_series}
    images: dict[str, str | Files] = {}
    labels: dict[str, Files] = {}
    lost: list[str] = []
    for label in files[LABEL]:
        labeled = [by_uid[uid] for uid in label.series if uid in by_uid]
        if not labeled:
            lost.append(f"{label.path}: label without the series that it refers to")
        for series in labeled:
            images[series.name] = series.files
            labels[series.name] = (*labels.get(series.name, ()), label.path)
    others: list[str] = []
    unlabeled = [series.name for series in all_series if series.name not in images]
    if unlabeled:
        others = [f"{counted(len(unlabeled), 'series', 'series')} without a label, the first is {unlabeled[0]}"]
    slices = [file for file in files[SLICE] if by_uid[file.series[0]].name in images]
    return (folder, folder), Cases(images, {**labels}, lost), _metadata(folder, files, slices, others)


def _metadata(folder: Path, files: FilesByKind, slices: Iterable[DicomFile], others: Sequence[str]) -> Metadata:
    """How the slices that are used were imaged, and what the folder holds beside them, a line each."""
    modalities = {file.modality for file in slices if file.modality}
    damaged = [f"{folder / file.path}: {file.problem}" for file in files[DAMAGED]]
    left_out = (*damaged, *unused(files, (PICTURE, OTHER)), *others)
    return Metadata(dims=3, modality=", ".join(sorted(modalities)) or None, left_out=left_out)


def _classes(splits: Iterable[LabeledSeries]) -> tuple[str, ...]:
    """The names of the segments and structures in the labels of all splits, the same for each; none of other files.

    Raises DataError for labels that mix files with names and without, and for two labels of a series with one name.
    """
    labels: list[Files] = []
    for (_, folder), cases, _ in splits:
        for files in cases.masks.values():
            labels.append(tuple(os.path.join(folder, file) for file in as_files(files)))
    paths = list(chain.from_iterable(labels))
    named = [path for path in paths if not path.lower().endswith(VOLUME_SUFFIXES)]
    if named and len(named) < len(paths):
        other = next(path for path in paths if path not in named)
        raise DataError(f"{named[0]} names its classes, and {other} does not; convert the labels to one format")
    names_by_path = load_or_read_each("names of segments", named, _segment_names)
    for files in labels:
        check_marked_once({path: names_by_path.get(path, ()) for path in files})
    names = set(chain.from_iterable(names_by_path.values()))
    return tuple(natural_order(names))


def check_marked_once(names_by_path: Mapping[str, Iterable[str]]) -> None:
    """Raise DataError for a name that several labels of one series mark, as those of several readers do."""
    marked: dict[str, str] = {}
    for path, names in names_by_path.items():
        for name in names:
            first = marked.setdefault(name, path)
            if first != path:
                raise DataError(f"{first} and {path} both mark {name} in one series; keep one of them")


def _segment_names(path: str) -> list[str]:
    with image_errors(path):
        return segment_names(path)


def _open(
    folders: tuple[Path, Path], cases: Cases, metadata: Metadata, names: Sequence[str], config: DataConfig
) -> Records:
    """The series of a split with their labels. Raises DataError for files without partner, unless allowed."""

    def paired(segments: Segments | None, **fields: Any) -> Records:
        sources = partial(dicom_sources, segments=segments)
        own_metadata = replace(metadata, **fields)
        return pair(folders, cases, own_metadata, config.allow_unpaired, sources, is_named_by_case=True)

    if not names:
        return paired(None)
    numbers = tuple(enumerate(names, 1))
    chosen = set(names)
    if holds_names(config.classes) and config.outside_rule == BACKGROUND:
        chosen = {name for _, name in named_classes(config.classes, numbers, BACKGROUND)}
    segments = Segments(tuple((name, value) for value, name in numbers if name in chosen))
    records = paired(segments, classes=((0, BACKGROUND), *numbers))
    may_overlap = config.task is None and not config.regions
    if config.task == OVERLAPPING or (may_overlap and _overlap(records)):
        bits = zip(names, bits_by_class(config, numbers), strict=True)
        segments = Segments(tuple((name, bit) for name, bit in bits if bit is not None), are_bits=True)
        return paired(segments, classes=numbers, task=OVERLAPPING)
    return records


def dicom_sources(row: FileRow, segments: Segments | None) -> Sources:
    """A series, and its label of named segments, or of numbers."""
    image = VolumeFile(row.images, is_series=True)
    return image, VolumeFile(row.targets, grid_of=image, segments=segments)


def _overlap(records: Records) -> bool:
    """Whether segments share voxels in any label."""

    def overlaps(index: int) -> bool:
        record = records[index]
        try:
            read_label_volume(record["target"], record["name"])
        except SegmentsOverlap:
            return True
        except DataError:
            pass  # the error is reported where all labels are read
        return False

    key = records.digest and digest("overlap of segments", records.digest)
    return load_or_compute(key, lambda: any(map_indices(overlaps, len(records))))
