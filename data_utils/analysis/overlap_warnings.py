"""Annotated objects that cover each other: a mask with one class per pixel shows only the uppermost object."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from data_utils.class_names import is_background
from data_utils.image_io.class_masks import LayeredMask
from data_utils.sources.records import Records, spread_indices
from runtime.cache import digest, load_or_compute
from runtime.errors import DataError
from tasks.overlapping import MOST_CLASSES, Overlapping, unpack_bits
from unet.config import MaskValue

SAMPLED_IMAGES = 32  # images of a split that are inspected
MIN_NOTABLE_SHARE = 0.01  # a smaller share of the labeled pixels is the width of outlines


def overlap_warnings(splits: Iterable[Records]) -> tuple[str, ...]:
    """A line where objects of several classes cover more than MIN_NOTABLE_SHARE of the labeled pixels."""
    shared_pixels = 0
    labeled_pixels = 0
    for records in splits:
        if not len(records) or not isinstance(records[0]["target"], LayeredMask):
            continue
        key = records.digest and digest("overlaps", records.digest)
        counts = load_or_compute(key, partial(_count, records))
        shared_pixels += counts[0]
        labeled_pixels += counts[1]
    if shared_pixels <= MIN_NOTABLE_SHARE * labeled_pixels:
        return ()
    return (
        f"{shared_pixels / labeled_pixels:.0%} of the labeled pixels lie in objects of several classes, and count as"
        f" the uppermost one; --task {Overlapping.name} learns all classes of a pixel",
    )


def _count(records: Records) -> list[int]:
    """How many pixels of some images have several classes, and how many have any."""
    classes = [value for value, name in records.metadata.classes if not is_background(name)]
    bit_by_value: dict[MaskValue, int] = {value: bit % MOST_CLASSES for bit, value in enumerate(classes)}
    shared_pixels = 0
    labeled_pixels = 0
    for index in spread_indices(len(records), SAMPLED_IMAGES):
        mask = records[index]["target"]
        assert isinstance(mask, LayeredMask)
        try:
            truth, _ = unpack_bits(mask.render_classes(bit_by_value))
        except DataError:  # the error is reported where all masks are read
            continue
        shared_pixels += int(np.count_nonzero(truth & (truth - 1)))
        labeled_pixels += int(np.count_nonzero(truth))
    return [shared_pixels, labeled_pixels]
