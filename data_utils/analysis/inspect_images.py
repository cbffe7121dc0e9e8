"""The inspection of images: the header of an image, and every pixel of its mask."""

from data_utils.analysis.inspection import Inspection, Problem
from data_utils.analysis.problems import lossy_problem, size_problem, value_count_problem
from data_utils.image_io.reader import decode_mask, read_header, read_image
from data_utils.image_io.resize import same_proportions
from data_utils.mask_values import count_values
from data_utils.sources.records import Record
from runtime.errors import DataError


def may_be_infinite(mode: str) -> bool:
    """Whether the pixels of an image of a mode are floating-point numbers, which are read to find infinite ones."""
    return mode == "F" or mode.startswith("float")


def inspect_header(record: Record) -> tuple[tuple[int, int], str]:
    """Size and mode of an image, whose pixels are read if they may be infinite. Raises DataError."""
    size, mode = read_header(record["image"], f"{record['name']}: image")
    if may_be_infinite(mode):
        read_image(record["image"], record["name"])
    return size, mode


def inspect_image(record: Record, *, has_classes: bool = True) -> Inspection | Problem:
    """The inspection of the header of an image, of all pixels if they may be infinite, and of all of its mask.

    Args:
        has_classes: whether the values of masks are classes: few, and not smoothed.
    """
    name = record["name"]
    try:
        size, mode = inspect_header(record)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        mask, is_colored, is_jpeg = decode_mask(record["target"], name)
    except DataError as error:
        return Problem("mask cannot be read", str(error))
    mask_size = mask.shape[:2]
    if not same_proportions(size, mask_size):
        return size_problem(name, size, mask_size)
    pixels = count_values(mask)
    kind = "numbers"
    if mask.ndim == 3:
        kind = "colors"
    elif is_colored:
        kind = "greys"
    inspection = Inspection(size, mask_size, mode, kind, pixels)
    if not has_classes:
        return inspection
    if is_jpeg and len(pixels) > 2:
        return lossy_problem(name, pixels)
    return value_count_problem(pixels, name) or inspection
