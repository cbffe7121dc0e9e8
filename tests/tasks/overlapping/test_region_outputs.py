"""Masks of regions: the values that are written, and what is known of them when they are read.

Modules: tasks/overlapping/write.py.
"""

import numpy as np
import pytest

from runtime.errors import ImageError
from tasks.overlapping.target import Region
from tasks.overlapping.write import RegionFormat
from unet.config import Preprocess, UNetConfig

WHOLE, CORE, ACTIVE = Region("whole", (1, 2, 3)), Region("core", (2, 3)), Region("active", (300,))
ROWS = np.arange(8).reshape(2, 4)  # all sets of three regions


def test_regions_are_written_as_the_first_value_of_the_last_one():
    output_format = RegionFormat((WHOLE, CORE, ACTIVE), ())
    assert output_format.mask_values(ROWS).tolist() == [[0, 1, 2, 2], [300, 300, 300, 300]]
    assert output_format.written_values == (0, 1, 2, 300)


def test_a_region_whose_value_is_the_largest_gives_way_to_a_later_one():
    masks = RegionFormat((Region("a", (300,)), Region("b", (7,))), ()).mask_values(ROWS % 4)
    assert masks.tolist() == [[0, 300, 7, 7]] * 2
    assert masks.dtype == np.uint16


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((1,), np.uint8),
        ((255,), np.uint8),
        ((256,), np.uint16),
        ((65535,), np.uint16),
        ((255, 70_000), np.uint8),
        ((256, 1), np.uint16),
    ],
)
def test_masks_of_a_region_hold_its_first_value_in_the_smallest_type(values, dtype):
    masks = RegionFormat((Region("a", values),), ()).mask_values(ROWS % 2)
    assert masks.max() == values[0]
    assert masks.dtype == dtype


@pytest.mark.parametrize("value", [65536, -1])
def test_a_region_whose_value_no_png_holds_is_refused(value):
    with pytest.raises(ImageError, match=f"mask value {value} cannot be written: a PNG mask holds 0 to 65535"):
        RegionFormat((Region("a", (value,)),), ()).mask_values(ROWS)


def test_regions_of_a_model_know_nothing_where_its_masks_were_ignored():
    task = {"name": "regions", "regions": [["whole", [3, 5]], ["core", [5]]]}
    preprocess = Preprocess(class_names=("whole", "core"), ignore_value=0, joined_values=((9, 255), (7, 1)))
    reader = RegionFormat.from_config(UNetConfig(num_classes=2, task=task, preprocess=preprocess)).reader
    target = reader.target_from_mask(np.array([[0, 3, 5, 9, 1, 7]], np.uint8), "a")
    assert target.known.tolist() == [[0, 3, 3, 0, 3, 3]]
    assert target.truth.tolist() == [[0, 1, 3, 0, 0, 0]]
