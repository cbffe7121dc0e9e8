"""Volumes whose classes may overlap: a folder of labels for each class, or labels with a channel for each."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

from data_utils.config import DataConfig
from data_utils.image_io.class_masks import layered_label
from data_utils.image_io.formats import ClassLayers, VolumeFile, is_visible_file
from data_utils.image_io.volumes import read_volume_header
from data_utils.mask_values import parse_values
from data_utils.sources.annotations.layout import check_unpaired
from data_utils.sources.folder import children, natural_sort_key
from data_utils.sources.overlapping import FEWEST_FOLDERS, OVERLAPPING, bits_by_class
from data_utils.sources.records import IMAGE_WITHOUT_MASK, DerivedRecords, Record, Records, SplitOpeners
from data_utils.sources.volumes import Case, Description, VolumeRecords, find_volume_splits, open_cases, read_spacing
from runtime.cache import digest_of_files
from runtime.errors import DataError


class ClassVolumeRecords(VolumeRecords):
    """Volumes, each with a label for each class.

    Args:
        records: for each class, the volumes that have a label of it; a case has the same image in all of them.
        names: the classes.
        unpaired: the files that were left out, a line for each.
    """

    def __init__(
        self, records: Sequence[VolumeRecords], names: Sequence[str], config: DataConfig, unpaired: Sequence[str]
    ) -> None:
        self.labels: dict[str, list[str]] = {}  # the labels of each case, "" for a class without one
        images: dict[str, tuple[str, ...]] = {}
        for index, class_records in enumerate(records):
            for case in class_records.cases:
                images.setdefault(case.name, case.images)
                self.labels.setdefault(case.name, [""] * len(records))[index] = case.mask
        cases = [Case(name, images[name], mask="") for name in sorted(images, key=natural_sort_key)]
        super().__init__(cases, records[0].spacing, Description(tuple(enumerate(names, 1))), unpaired)
        self.metadata = replace(self.metadata, task=OVERLAPPING)
        self.bits = bits_by_class(config, self.metadata.classes)
        self.ignored = tuple(parse_values(config.ignore_index))

    def __getitem__(self, i: int) -> Record:
        name, images, _ = self.cases[i]
        target = layered_label(self.labels[name], self.bits, self.ignored)
        return {"image": self._file(images), "target": target, "name": name}

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the masks made from them."""
        paths: list[str] = []
        for case in self.cases:
            paths += [*case.images, *filter(None, self.labels[case.name])]
        return digest_of_files(paths, repr((self.labels, self.spacing, self.bits, self.ignored)).encode())


class ChannelVolumeRecords(DerivedRecords):
    """Volumes whose labels have a channel for each class."""

    def __init__(self, volumes: VolumeRecords, channels: int, config: DataConfig) -> None:
        super().__init__(volumes)
        classes = tuple((value, f"class {value}") for value in range(1, channels + 1))
        self.metadata = replace(volumes.metadata, classes=classes, task=OVERLAPPING)
        bits = bits_by_class(config, classes)
        self.layers = ClassLayers(bits, ignored=tuple(parse_values(config.ignore_index)))

    def derivation(self) -> tuple[object, ...]:
        return (OVERLAPPING, repr(self.layers))

    def __getitem__(self, i: int) -> Record:
        record = self.records[i]
        label = record["target"]
        assert isinstance(label, VolumeFile)
        return {**record, "target": label._replace(layers=self.layers)}


def find_class_volumes(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, for volumes with a label for each class; empty for other folders."""
    splits, suffixes = find_volume_splits(root, named_splits, config)
    folders_by_split = {}
    for split, (images, labels) in splits.items():
        folders_by_split[split] = _class_folders(images, labels, suffixes, config)
    openers: SplitOpeners = {}
    if folders_by_split and all(folders_by_split.values()):
        names = sorted({folder.name for folder in chain.from_iterable(folders_by_split.values())}, key=natural_sort_key)
        for split, (images, labels) in splits.items():
            openers[split] = partial(open_class_volumes, images, labels, names, suffixes, config)
    return openers


def _class_folders(images: Path, labels: Path, suffixes: tuple[str, ...], config: DataConfig) -> list[Path]:
    """The folders below `labels` that hold a label of one class for each image; none if labels lie otherwise."""
    if _volumes_in(labels, suffixes):
        return []
    folders = [folder for folder in children(labels).values() if _volumes_in(folder, suffixes)]
    if config.task == OVERLAPPING:
        return folders
    lie_flat = not any(_volumes_in(folder, suffixes) for folder in children(images).values())
    return folders if lie_flat and len(folders) >= FEWEST_FOLDERS else []


def _volumes_in(folder: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a volume lies in a folder itself."""
    return any(is_visible_file(path.name, suffixes) for path in folder.iterdir())


def open_class_volumes(
    images: Path, labels: Path, names: Sequence[str], suffixes: tuple[str, ...], config: DataConfig
) -> ClassVolumeRecords:
    """The volumes with a label in any folder. Raises DataError for files without partner, unless they are allowed."""
    records = []
    spacing = config.spacing or read_spacing(images)
    without_mask: list[set[str]] = []
    unpaired: set[str] = set()
    for name in names:
        class_records = VolumeRecords([], spacing, Description())
        if (labels / name).is_dir():  # else another split has the class
            class_records = open_cases(images, labels / name, suffixes, replace(config, allow_unpaired=True))
            class_unpaired = set(class_records.metadata.unpaired)
            without_mask.append({line for line in class_unpaired if line.endswith(IMAGE_WITHOUT_MASK)})
            unpaired |= class_unpaired - without_mask[-1]
        records.append(class_records)
    unpaired |= set.intersection(*without_mask)  # an image lacks a label only if it lacks one in every folder
    check_unpaired(sorted(unpaired), max(map(len, records)), config.allow_unpaired, images)
    return ClassVolumeRecords(records, names, config, sorted(unpaired))


def divide_by_channel(records: Records, config: DataConfig) -> Records:
    """The records, with a class for each channel of their labels if the labels have several channels."""
    if not isinstance(records, VolumeRecords) or isinstance(records, ClassVolumeRecords):
        return records
    if config.task not in (None, OVERLAPPING) or not len(records):
        return records
    record = records[0]
    try:
        channels = read_volume_header(record["target"], record["name"]).channels
    except DataError:  # the error is reported where all labels are read
        return records
    return ChannelVolumeRecords(records, channels, config) if channels > 1 else records
