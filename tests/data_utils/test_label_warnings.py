"""Which valid images and masks are warned of."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import load_info
from PIL import Image

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
    lines = label_warnings([(inspection, records)], {0: 20}, None, has_names=False, ignores_values=False)
    assert len(lines) == warned
    if warned:
        counts = ", ".join(f"{mode}: {count}" for mode, count in Counter(modes).most_common())
        assert lines[0].startswith(f"images of 8 bits and of more bits are mixed ({counts})")


def values(folder: Path, masks: list[list[int]]) -> Path:
    """A data set of images of 10 x 10 whose masks are stripes of these values, one for each row."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number, rows in enumerate(masks):
        mask = np.repeat(np.uint8(rows), 10).reshape(10, 10)
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
        Image.fromarray(np.full((10, 10), number, np.uint8)).save(folder / "images" / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("masks", "flags", "line"),
    [
        ([[0, 1] * 5] * 2, {}, "2 images are very few (1 for training and 1 for validation): the score will be luck"),
        ([[0] * 3 + [9] * 4 + [255] * 3] * 6, {}, "255 became a class, with 30% of all mask pixels"),
        ([[0] * 3 + [1] * 4 + [255] * 3] * 6, {}, "255 counts nowhere, as unlabeled, and 30% of all mask pixels"),
        ([[0, 1] * 5] * 6, {"classes": "0=a,1=b,2=dog"}, "no mask holds dog, which --classes names"),
        ([[0, 1] * 5] * 6, {}, None),
        ([[0, 255] * 5] * 6, {}, None),
        ([[0, 128] * 4 + [255] * 2] * 6, {}, None),
        ([[0] * 5 + [1] * 4 + [255]] * 6, {}, None),
        ([[0] * 3 + [9] * 4 + [255] * 3] * 6, {"ignore_index": "255"}, None),
        ([[0] * 3 + [9] * 4 + [255] * 3] * 6, {"classes": "0=a,9=b,255=c"}, None),
    ],
)
def test_what_used_to_be_silent_is_said(tmp_path, masks, flags, line):
    warnings = load_info(values(tmp_path / "data", masks), **flags).warnings
    if line is None:
        assert not [text for text in warnings if "255" in text or "few" in text or "holds" in text]
    else:
        assert any(text.startswith(line) for text in warnings), warnings
