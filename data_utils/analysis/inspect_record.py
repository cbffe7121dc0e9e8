"""One look at a record: sizes, the values of its mask and where they lie, and intensities of a volume.

Of an image no more than the header is read, unless its pixels may be infinite. A mask is read in strips; a volume
and its label are read once for all that is asked of them.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from data_utils.analysis.problems import Problem, UnusableRecord, check_count, check_jpeg, problem_of_kind
from data_utils.image_io.formats import ImageSource, PointSource, RenderedMask, VolumeFile
from data_utils.image_io.reader import DecodedMask, check_sizes, decode_mask, open_source, read_image
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import (
    check_grids,
    read_label_volume,
    read_volume,
    read_volume_header,
)
from data_utils.image_io.windowed import strips
from data_utils.mask_values import (
    BEYOND_MASK,
    MAX_VALUES,
    as_color,
    count_colors,
    count_values,
    has_colors,
    value_key,
    value_keys,
)
from data_utils.point_states import PRESENT
from data_utils.sources.points.spaces import to_pixels, to_voxels
from data_utils.sources.records import Record
from unet.config import IGNORE_INDEX, MaskValue

# some pixels of each value of a mask, (n, 2) as (row, column), or voxels (n, 3); nnU-Net has them under this name
ClassLocations = dict[MaskValue, np.ndarray]

PIXELS = 64  # pixels of each value of a large mask that are remembered, for crops around them
VOXELS = 1000  # voxels of each value of a label
FOREGROUND = 10_000  # labeled voxels that are sampled from a volume for the statistics of CT


@dataclass(frozen=True)
class Rules:
    """What is looked at, and what is a problem.

    Args:
        has_classes: whether the values of masks are classes, of which there are few.
        takes_jpeg: whether values that JPEG has invented in masks are left out.
        windows: whether large images are read in windows; then some pixels of each value of their masks are remembered.
        decodes: whether each image is decoded whole, to find damaged ones and to count the channels.
    """

    has_classes: bool = True
    takes_jpeg: bool = False
    windows: bool = False
    decodes: bool = False


@dataclass
class Inspection:
    """What one look at a record finds.

    Args:
        size: (*spatial) of the image.
        mode: the image's type, as Pillow or NumPy names it.
        channels: the channels of an image that was decoded whole; 0 for any other.
        spacing: (z, y, x) in mm of a volume.
        is_resized: whether the mask has another size than the image, in the same proportions.
        kind: the kind of the mask's values: "numbers", "greys" or "colors".
        pixels: how many pixels of the mask hold each value.
        class_locations: some pixels of each value, in the image's own grid, for volumes and for images too large to be
            decoded whole for every crop; else None. Points are numbered from 1.
        foreground: the values of some labeled voxels of a volume, (n, C) float32; of some voxels if it has points.
        objects: how many annotated objects have each mask value.
    """

    size: tuple[int, ...]
    mode: str
    channels: int = 0
    spacing: Spacing | None = None
    is_resized: bool = False
    kind: str = "numbers"
    pixels: dict[MaskValue, int] = field(default_factory=dict)
    class_locations: ClassLocations | None = None
    foreground: np.ndarray | None = None
    objects: Counter[int] = field(default_factory=Counter)

    @property
    def holds_only_255(self) -> bool:
        """Whether 255 is the only value of the mask beside 0, and so maybe a class."""
        return self.pixels.keys() - {0} == {IGNORE_INDEX}


def inspect_record(record: Record, rules: Rules) -> Inspection | Problem:
    """The inspection of a record, or the problem for which it cannot be used."""
    try:
        if isinstance(record["image"], VolumeFile):
            return _inspect_volume(record, rules)
        return _inspect_picture(record, rules)
    except UnusableRecord as error:
        return error.problem


def mask_parts(source: ImageSource, name: str) -> Iterator[DecodedMask]:
    """The slices of a label, or the strips of a mask, of which a small one has one."""
    if isinstance(source, VolumeFile):
        for plane in read_label_volume(source, name)[0]:
            yield DecodedMask(plane, is_colored=False, is_jpeg=False)
        return
    with open_source(source, f"{name}: mask") as mask:
        for box in strips(mask):
            yield decode_mask(mask, name, box=box)


def _inspect_picture(record: Record, rules: Rules) -> Inspection:
    name = record["name"]
    target = record["target"]
    with problem_of_kind("image cannot be read"), open_source(record["image"], name, "image") as image:
        size, mode = image.header()
        is_large = rules.windows and image.is_large
        found = Inspection(size, mode)
        may_be_infinite = mode == "F" or mode.startswith("float")
        if rules.decodes or may_be_infinite:
            boxes = strips(image) if is_large else [None]
            found.channels = max(read_image(image, name, box=box).shape[2] for box in boxes)
    if not isinstance(target, PointSource):
        _inspect_mask(found, size, record, rules, is_large)
        return found
    with problem_of_kind("points of an image of another shape"):
        positions = to_pixels(target, size, name)
    if is_large:
        found.class_locations = _point_locations(positions, target, size)
    return found


def _inspect_mask(found: Inspection, size: tuple[int, int], record: Record, rules: Rules, is_large: bool) -> None:
    """Add the values of the mask of a picture of `size` (H, W), and where they lie if it is large."""
    name = record["name"]
    pixels: Counter[MaskValue] = Counter()
    samples: dict[MaskValue, list[Sample]] = defaultdict(list)
    rows = 0
    with problem_of_kind("mask cannot be read"):
        for part in mask_parts(record["target"], name):
            counts = count_values(part.values)
            counts.pop(BEYOND_MASK, None)
            pixels.update(counts)
            if has_colors(pixels):  # grey levels, from strips without other colors, are colors too
                pixels = count_colors(pixels)
            if part.is_jpeg and not rules.takes_jpeg:
                check_jpeg(name, pixels)
            if rules.has_classes:
                check_count(name, pixels)
            if is_large:
                _add_samples(samples, part.values, counts, rows)
            height, width = part.values.shape[:2]
            rows += height
            # all strips agree on it: it follows from the channels and the type of the file
            found.kind = "greys" if part.is_colored else "numbers"
        if isinstance(record["target"], RenderedMask):
            found.objects = record["target"].objects()
    with problem_of_kind("mask and image differ in proportions"):
        check_sizes(name, size, (rows, width))
    found.is_resized = (rows, width) != size
    found.pixels = dict(pixels)
    if has_colors(pixels):
        found.kind = "colors"
        for value in [value for value in samples if isinstance(value, int)]:
            samples[as_color(value)] += samples.pop(value)
    if is_large:
        thinned = {value: _thin_samples(parts) for value, parts in samples.items()}
        found.class_locations = {value: places * size // (rows, width) for value, places in thinned.items()}


# of a strip, how many pixels hold a value, and some of them (n, 2) as (row, column)
Sample = tuple[int, np.ndarray]


def _add_samples(
    samples: dict[MaskValue, list[Sample]], values: np.ndarray, counts: dict[MaskValue, int], top: int
) -> None:
    """Add some pixels of each value of a strip that starts at the row `top`.

    If there are more values than a data set may have classes (numbers of objects, say), all but 0 count as one value,
    1.
    """
    keys = value_keys(values).ravel()
    chosen_values = list(counts)
    if len(counts) > MAX_VALUES:
        chosen_values = [value for value in (0, 1) if value or 0 in counts]
        keys = (keys != 0).astype(np.uint8)
    for value in chosen_values:
        indices = np.flatnonzero(keys == value_key(value))
        count = len(indices)
        evenly_spaced = np.linspace(0, count - 1, min(count, PIXELS)).astype(int)
        row, column = divmod(indices[evenly_spaced], values.shape[1])
        samples[value].append((count, np.stack([top + row, column], axis=1)))


def _thin_samples(samples: list[Sample]) -> np.ndarray:
    """At most `PIXELS` of the pixels sampled in strips, which are weighted by how many pixels each has."""
    pixels = np.concatenate([sampled for _, sampled in samples])
    weights = np.concatenate([np.full(len(sampled), count / len(sampled)) for count, sampled in samples])
    rng = np.random.default_rng(0)  # the same on every start
    return rng.choice(pixels, min(len(pixels), PIXELS), replace=False, p=weights / weights.sum())


def _inspect_volume(record: Record, rules: Rules) -> Inspection:
    name = record["name"]
    source = record["image"]
    target = record["target"]
    with problem_of_kind("image cannot be read"):
        header = read_volume_header(source, name)
    if isinstance(target, VolumeFile):  # before any voxel is read
        with problem_of_kind("label cannot be read"):
            label_header = read_volume_header(target._replace(paths=target.paths[:1]), f"{name}: label")
        difference = "affine" if label_header.size == header.size else "shape"
        with problem_of_kind(f"label of another {difference}"):
            check_grids(name, header, label_header)
    with problem_of_kind("image cannot be read"):
        voxels, _ = read_volume(source, name)
    # it draws the same voxels of a volume of this name and size on every start
    rng = np.random.default_rng(zlib.crc32(repr((name, header.size)).encode()))
    found = Inspection(header.size, header.dtype, voxels.shape[-1], header.spacing)
    if isinstance(target, PointSource):
        positions = to_voxels(target.positions, target.space, header)
        found.class_locations = _point_locations(positions, target, header.size)
        z, y, x = (rng.integers(side, size=FOREGROUND) for side in header.size)
    else:
        with problem_of_kind("label cannot be read"):
            labels, _ = read_label_volume(target, name)
        pixels: Counter[MaskValue] = Counter()
        for plane in labels:
            pixels.update(count_values(plane))
        if rules.has_classes:
            check_count(name, pixels)
        found.pixels = dict(pixels)
        found.class_locations = {value: _sample_voxels(labels == value, VOXELS, rng) for value in sorted(pixels)}
        is_labeled = labels != 0
        if not found.holds_only_255:
            is_labeled &= labels != IGNORE_INDEX
        z, y, x = _sample_voxels(is_labeled, FOREGROUND, rng).T
    found.foreground = voxels[z, y, x].astype(np.float32)
    return found


def _sample_voxels(is_chosen: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """A sample (n, 3) of at most `most` of the voxels that are true in (D, H, W) bool."""
    ends = np.cumsum([0, *map(np.count_nonzero, is_chosen)])
    # the chosen voxels are numbered through all slices
    ranks = np.sort(rng.choice(ends[-1], min(most, ends[-1]), replace=False, shuffle=False))
    slices = np.searchsorted(ends, ranks, side="right") - 1
    pixels = np.empty(len(ranks), np.int64)
    for z in np.unique(slices):
        in_slice = slices == z
        pixels[in_slice] = np.flatnonzero(is_chosen[z])[ranks[in_slice] - ends[z]]
    return np.stack([slices, *divmod(pixels, is_chosen.shape[2])], axis=1)


def _point_locations(positions: np.ndarray, source: PointSource, size: tuple[int, ...]) -> ClassLocations:
    """Number of each present point, from 1 -> its pixel (1, n), given all `positions` (K, n) in an image of `size`."""
    locations: ClassLocations = {}
    for number, (position, state) in enumerate(zip(positions, source.states, strict=True), 1):
        if state == PRESENT:
            locations[number] = position.round().astype(np.int64).clip(0, np.array(size) - 1)[None]
    return locations
