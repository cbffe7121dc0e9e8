"""What lies in a folder: the finders of each layout, in the order in which they are asked."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

from data_utils.config import DataConfig
from data_utils.sources.annotations.find import are_masks, find_annotations
from data_utils.sources.annotations.other_formats import check_formats
from data_utils.sources.annotations.world_polygons import find_polygons
from data_utils.sources.bands import find_scenes
from data_utils.sources.folder import NoFolderError, children, find_splits
from data_utils.sources.overlapping import OVERLAPPING, find_class_folders, find_overlapping
from data_utils.sources.pairs import open_pairs
from data_utils.sources.points.find import check_task, find_points, is_read_first, open_splits, other_csv_files
from data_utils.sources.points.table import LANDMARKS, PointTable
from data_utils.sources.records import Records, SplitOpeners, select_all
from data_utils.sources.side_by_side import find_side_by_side
from data_utils.sources.volumes import DESCRIPTION, find_volumes, open_cases, read_description
from runtime.console import listing
from runtime.errors import DataError


class DataFolder:
    """The folder of a data set, and what several finders ask of it.

    Args:
        root: the folder.
        named_splits: the splits with unusual names that are read.
        config: the settings.
    """

    def __init__(self, root: Path, named_splits: Sequence[str], config: DataConfig) -> None:
        self.root = root
        self.named_splits = named_splits
        self.config = config

    @cached_property
    def splits(self) -> dict[str, tuple[Path, Path]]:
        """Split -> its folders of images and masks; empty if there are none, for which `find_masks` says the reason."""
        try:
            return find_splits(self.root, self.named_splits)
        except DataError:
            return {}

    @cached_property
    def has_masks(self) -> bool:
        """Whether the folders of masks hold masks, of images or of volumes."""
        return "labelstr" in children(self.root) or any(are_masks(*folders) for folders in self.splits.values())

    @cached_property
    def points(self) -> dict[str, PointTable]:
        """Split -> its points, if they are asked for or the folder has no masks; else empty. Raises DataError."""
        task = self.config.task
        is_asked = task == LANDMARKS
        if task is not None and not is_asked:
            return {}
        if self.has_masks and not is_asked:
            check_task(self.root)
            return {}
        points = find_points(self.root, self.named_splits, explicit=is_asked)
        if is_asked and not points:
            lines = other_csv_files(self.root)
            if lines:
                raise DataError(f"--task {task}: {listing(lines, separator='; ')}")
        return points

    @property
    def may_overlap(self) -> bool:
        """Whether the task is, or may turn out to be, overlapping classes."""
        return self.config.task in (None, OVERLAPPING)

    def open_points(self) -> SplitOpeners:
        """Split -> a function that opens the records of its points."""
        return open_splits(self.root, self.points, self.config.absent, self.config.allow_unpaired)


def _find_first_points(folder: DataFolder) -> SplitOpeners:
    """Points that are asked for, points of volumes, and points in files that hold areas in other data sets."""
    is_asked = folder.config.task == LANDMARKS
    return folder.open_points() if is_asked or is_read_first(folder.points) else {}


def _find_volumes(folder: DataFolder) -> SplitOpeners:
    if folder.points:  # they replace masks
        return {}
    splits, suffixes = find_volumes(folder.root, folder.splits, folder.config)
    openers = find_class_folders(splits, suffixes, folder.config) if folder.may_overlap else {}
    if not openers:
        for name, (images, masks) in splits.items():
            openers[name] = partial(open_cases, images, masks, suffixes, folder.config)
    return openers


def _find_overlapping(folder: DataFolder) -> SplitOpeners:
    return find_overlapping(folder.splits, folder.config) if folder.may_overlap else {}


def _find_polygons(folder: DataFolder) -> SplitOpeners:
    """Polygons in the world, if there are no masks and no points. Raises DataError for a column without them."""
    openers: SplitOpeners = {}
    column = folder.config.label_column
    if not folder.has_masks and not folder.points:
        openers = find_polygons(folder.root, folder.named_splits, folder.config)
    if column and not openers:
        raise DataError(
            f"--label-column {column} is a column of polygons, but {folder.root} holds no .geojson or .gpkg beside its"
            " images; leave it out"
        )
    return openers


def _find_annotations(folder: DataFolder) -> SplitOpeners:
    """Other annotations, if there are no masks. Raises DataError if there are points too."""
    if folder.has_masks:
        return {}
    openers = find_annotations(folder.root, folder.named_splits, folder.config.allow_unpaired)
    if openers and folder.points:
        file = next(iter(folder.points.values())).files[0]
        raise DataError(
            f"{folder.root} holds annotations, and points in {file}; give --task classes or --task landmarks"
        )
    return openers


def _find_side_by_side(folder: DataFolder) -> SplitOpeners:
    """Masks beside their images. Raises DataError if there are none, but annotations of a format that is not read."""
    if folder.has_masks:
        return {}
    openers = find_side_by_side(folder.root, folder.named_splits, folder.config)
    if not openers:
        check_formats(folder.root)
    return openers


def _find_masks(folder: DataFolder) -> SplitOpeners:
    """Masks as files. Raises DataError if there are no folders of images and masks."""
    splits = folder.splits or find_splits(folder.root, folder.named_splits)
    return {name: partial(open_images, images, masks, folder.config) for name, (images, masks) in splits.items()}


# each gives split -> a function that opens its records, empty if the folder has another layout
FINDERS: tuple[Callable[[DataFolder], SplitOpeners], ...] = (
    _find_first_points,
    _find_volumes,
    _find_overlapping,
    _find_polygons,
    _find_annotations,
    DataFolder.open_points,
    _find_side_by_side,
    _find_masks,
)


def find_in_folder(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, by the first finder that knows the layout of the folder.

    Splits with unusual names are only those in `named_splits`. Raises NoFolderError, with what is wrong with CSV files
    that may be meant as points, if there is nothing to read.
    """
    folder = DataFolder(root, named_splits, config)
    try:
        return next(filter(None, (find(folder) for find in FINDERS)))
    except NoFolderError as error:
        lines = other_csv_files(root)
        if not lines:
            raise
        raise NoFolderError(f"{listing(lines, separator='; ')}; and {error}") from error


def open_images(images: Path, masks: Path, config: DataConfig) -> Records:
    """Images and masks of one name; an image is a file, or a folder of its bands. nnU-Net names the classes beside."""
    scenes = find_scenes(images, masks, config)
    if scenes:
        return scenes
    records = open_pairs(images, masks, config)
    description = masks.parent / DESCRIPTION
    if masks.name.lower() == "labelstr" and description.exists():
        return select_all(records, classes=read_description(description).classes)
    return records
