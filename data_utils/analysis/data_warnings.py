"""Warnings about likely mistakes in a data set, a line each, for training and for --check-data alike."""

from collections.abc import Sequence

from data_utils.analysis.inspection import InspectedSplits
from data_utils.analysis.label_sets import label_set_warnings
from data_utils.analysis.label_warnings import label_warnings
from data_utils.analysis.overlap_warnings import overlap_warnings
from data_utils.analysis.point_warnings import point_warnings
from data_utils.config import DataConfig
from data_utils.sources.placed import place_warnings
from data_utils.sources.records import Records
from data_utils.sources.volumes import voxel_size_warnings
from data_utils.targets.points import PointReader
from data_utils.targets.reader import TargetReader
from unet.config import MaskValue


def find_warnings(
    inspected_splits: InspectedSplits,
    splits: Sequence[Records],
    pixels: dict[MaskValue, int],
    reader: TargetReader,
    config: DataConfig,
    *,
    has_names: bool,
) -> tuple[str, ...]:
    """The warnings about mask values, labeled classes, places in the world, and points.

    Args:
        inspected_splits: the splits whose files could be inspected.
        splits: all splits.
        pixels: how many pixels of the masks hold each value.
        has_names: whether the classes are named, by a flag or by the data set.
    """
    warnings = label_warnings(
        inspected_splits,
        pixels,
        reader.class_map,
        has_names=has_names,
        ignores_values=bool(config.ignore_index),
        has_flag=bool(config.classes),
    )
    warnings += label_set_warnings(inspected_splits, reader)
    warnings += overlap_warnings(splits)
    warnings += place_warnings(splits)
    warnings += voxel_size_warnings(splits)
    warnings += reader.warnings(splits)
    if isinstance(reader, PointReader):
        warnings += point_warnings(inspected_splits, reader.sided_pairs)
    return warnings
