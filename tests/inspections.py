"""What a look at small splits of one empty picture finds."""

import numpy as np

from data_utils.analysis.inspect import Inspection, SplitInspection
from data_utils.sources.records import ListRecords

PICTURE = np.zeros((4, 5), np.uint8)


def records_of(count: int, **attributes) -> ListRecords:
    """Records called 0, 1, ... of the same empty picture."""
    records = ListRecords([{"image": PICTURE, "target": PICTURE, "name": str(number)} for number in range(count)])
    for name, value in attributes.items():
        setattr(records, name, value)
    return records


def split_of(*pixels: dict, kind: str = "numbers", **attributes) -> tuple[SplitInspection, ListRecords]:
    """A split of 4 x 5 images whose masks hold these pixels of each value."""
    inspection = SplitInspection.of_count(len(pixels))
    for number, counts in enumerate(pixels):
        inspection.add(number, Inspection((4, 5), (4, 5), "L", kind, counts))
    return inspection, records_of(len(pixels), **attributes)
