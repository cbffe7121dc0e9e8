"""What lies in a folder: the finders of each layout, in the order in which they are asked."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from data_utils.config import DataConfig
from data_utils.sources.annotations.find import are_masks, find_annotated
from data_utils.sources.annotations.world_polygons import find_polygons
from data_utils.sources.dicom import find_dicom
from data_utils.sources.folder import DataFolder, NoFolderError, children, find_splits
from data_utils.sources.overlapping import find_channels, find_class_files, find_class_folders
from data_utils.sources.pictures import open_pictures
from data_utils.sources.points.find import find_landmarks, other_csv_files
from data_utils.sources.records import SplitOpeners, split_openers
from data_utils.sources.side_by_side import find_side_by_side
from data_utils.sources.volumes import find_volumes, image_suffixes
from runtime.console import listing
from runtime.errors import DataError


def find_folder_pairs(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its images and masks. Raises DataError if there are no folders of them."""
    splits = folder.splits or find_splits(folder.root, folder.named_splits)
    return split_openers(splits, open_pictures, folder.config)


# each gives split -> a function that opens its records, empty if the folder has another layout
FINDERS: tuple[Callable[[DataFolder], SplitOpeners], ...] = (
    find_landmarks,
    find_dicom,
    find_class_folders,
    find_volumes,
    find_channels,
    find_polygons,
    find_annotated,
    find_class_files,
    find_side_by_side,
    find_folder_pairs,
)


def find_in_folder(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, by the first finder that knows the layout of the folder.

    Splits with unusual names are only those in `named_splits`. Raises NoFolderError, with what is wrong with CSV files
    that may be meant as points, if there is nothing to read.
    """
    splits: dict[str, tuple[Path, Path]] = {}
    with suppress(DataError):  # `find_folder_pairs` raises it again
        splits = find_splits(root, named_splits)
    has_masks = "labelstr" in children(root) or any(are_masks(*folders) for folders in splits.values())
    folder = DataFolder(root, named_splits, config, splits, has_masks, image_suffixes(root, config))
    try:
        return next(filter(None, (find(folder) for find in FINDERS)))
    except NoFolderError as error:
        lines = other_csv_files(root)
        if not lines:
            raise
        raise NoFolderError(f"{listing(lines, separator='; ')}; and {error}") from error
