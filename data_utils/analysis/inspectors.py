"""How the records of a data set are inspected before the first step: images or volumes, with masks or points."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from data_utils.analysis.inspect_images import count_channels, inspect_image, inspect_points
from data_utils.analysis.inspect_volumes import inspect_volume, inspect_volume_points
from data_utils.analysis.inspection import Inspection, Problem, SplitInspection, UnusableRecord, problem_of_kind
from data_utils.analysis.volume_statistics import measure_foreground
from data_utils.invented_values import excess_values
from data_utils.mask_values import MAX_VALUES
from data_utils.sources.records import Record, Records
from runtime.cache import digest, load_value, store_value
from runtime.console import track
from runtime.errors import DataError
from runtime.parallel import CHUNK, map_indices
from unet.config import MaskValue


@dataclass(frozen=True)
class Inspector:
    """Inspects records.

    Args:
        dims: 2 for images, 3 for volumes.
        has_points: whether records hold points instead of masks.
        has_classes: whether the values of masks are classes: few, and not smoothed.
        windows: whether large images are inspected in windows.
        decodes: whether each image is decoded whole, to find damaged ones and to count the channels.
    """

    dims: int = 2
    has_points: bool = False
    has_classes: bool = True
    windows: bool = False
    decodes: bool = False

    def inspect(self, record: Record) -> Inspection | Problem:
        """The inspection of a record."""
        try:
            return self._inspect(record)
        except UnusableRecord as error:
            return error.problem

    def _inspect(self, record: Record) -> Inspection:
        if self.dims == 3:
            if self.has_points:
                return inspect_volume_points(record)
            return inspect_volume(record, self.has_classes)
        if self.has_points:
            inspection = inspect_points(record, windows=self.windows)
        else:
            inspection = inspect_image(record, has_classes=self.has_classes, windows=self.windows)
        if not self.decodes:
            return inspection
        with problem_of_kind("image cannot be read"):
            channels = count_channels(record["image"], record["name"], windows=self.windows)
        return replace(inspection, channels=channels)


def choose_inspector(
    records: Records, *, has_classes: bool = True, windows: bool = False, decodes: bool = False
) -> Inspector:
    """The inspector that suits these records; with `windows`, large images are inspected in windows."""
    has_points = records.metadata.landmarks is not None
    return Inspector(records.dims, has_points, has_classes and not has_points, windows, decodes)


def inspect_split(records: Records, title: str, inspector: Inspector, *, has_names: bool = False) -> SplitInspection:
    """The inspection of all records, in threads, with a progress bar.

    Args:
        has_names: whether the classes have names, so that masks with other values will be listed.

    Raises DataError only for masks that hold too many values together.
    """
    split_inspection = SplitInspection.empty(len(records), inspector.dims)
    pixels: dict[str, Counter[MaskValue]] = {"numbers": Counter(), "greys": Counter(), "colors": Counter()}
    foregrounds: list[np.ndarray] = []
    chunk = CHUNK if inspector.dims == 2 else 1
    inspections = map_indices(lambda i: inspector.inspect(records[i]), len(records), chunk)
    for i, inspection in enumerate(track(inspections, len(records), title)):
        if isinstance(inspection, Problem):
            split_inspection.problems[i] = inspection
            continue
        split_inspection.add(i, inspection, records.label_set(i))
        if inspection.foreground is not None:
            foregrounds.append(inspection.foreground)
        pixels[inspection.kind].update(inspection.pixels)
        excess = None
        if inspector.has_classes and not has_names:
            excess = excess_values(pixels[inspection.kind])
        if excess:
            raise DataError(f"the masks up to {records.name(i)} hold more than {MAX_VALUES} values: {excess}")
    split_inspection.foreground = measure_foreground(foregrounds)
    return split_inspection


def inspect_once(records: Records, title: str, inspector: Inspector, *, has_names: bool) -> SplitInspection:
    """The result of `inspect_split`, stored in the cache if there are no problems."""
    key = records.digest and digest("inspection", records.digest, repr(inspector))
    try:
        return SplitInspection.from_json(load_value(key), inspector.dims)
    except (OSError, ValueError):  # nothing is stored, or it is damaged
        inspection = inspect_split(records, title, inspector, has_names=has_names)
    if not inspection.problems:
        store_value(key, inspection.to_json())
    return inspection
