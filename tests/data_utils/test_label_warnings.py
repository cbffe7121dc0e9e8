"""Which valid images and masks are warned of."""

from collections import Counter

import numpy as np
import pytest

from data_utils.analysis.inspect import Inspection, SplitInspection
from data_utils.analysis.label_warnings import label_warnings
from data_utils.sources.records import ListRecords


@pytest.mark.parametrize(
    ("modes", "warned"),
    [
        (["RGB", "L"], False),
        (["I;16", "uint16 x 3", "F"], False),
        (["L", "I;16", "I;16"], True),
        (["uint8 x 3", "float32 x 3"], True),
    ],
)
def test_images_of_8_bits_among_deeper_ones_are_warned_of(modes, warned):
    image = np.zeros((4, 5), np.uint8)
    records = ListRecords([{"image": image, "target": image, "name": f"{number}"} for number in range(len(modes))])
    inspection = SplitInspection.of_count(len(modes))
    for number, mode in enumerate(modes):
        inspection.add(number, Inspection((4, 5), (4, 5), mode, "numbers", {0: 20}))
    lines = label_warnings([(inspection, records)], {0: 20}, None, named=False, ignored=False)
    assert len(lines) == warned
    if warned:
        counts = ", ".join(f"{mode}: {count}" for mode, count in Counter(modes).most_common())
        assert lines[0].startswith(f"images of 8 bits and of more bits are mixed ({counts})")
