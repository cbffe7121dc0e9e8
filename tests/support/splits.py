"""Data sets of which only the sizes are looked at."""

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Metadata, Records
from tasks.classes.reader import ClassReader


def unread_split(count: int, size: tuple[int, ...], spacing: tuple[float, ...] | None = None) -> Split:
    """Records that are never read, all of one size."""
    records = Records(ListRows([{"image": b"", "target": b"", "name": f"{number}"} for number in range(count)]))
    records.metadata = Metadata(dims=len(size))
    spacings = None if spacing is None else np.full((count, 3), spacing)
    return Split(records, np.full((count, len(size)), size), spacings=spacings)


def unread_info(train: Split, val: Split | None = None) -> DatasetInfo:
    """Grey images or volumes of two classes; `val` is `train` if it is left out."""
    reader = ClassReader(ClassMap(("a", "b"), (0, 1), None), class_pixels=(1, 1))
    return DatasetInfo(DataConfig(), train, val or train, reader, Normalization((1.0,), (1.0,), ("uint8",)))
