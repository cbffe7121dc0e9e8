"""--dims 2: the slices of volumes along z as images, for a network that sees one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_utils.image_io.formats import EmbeddedImage, VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume, read_volume_header, same_grid
from data_utils.sources.records import Parts, Record, Records, divide
from runtime.cache import digest, load_or_compute
from runtime.errors import DataError, ImageError
from runtime.parallel import map_indices


@dataclass(frozen=True)
class VolumeSlice(EmbeddedImage):
    """A slice of a volume, counted along z from 0, in RAS orientation: rows from posterior, columns from left."""

    volume: VolumeFile
    z: int
    is_label: bool

    def read(self) -> np.ndarray:
        """(H, W, C), or (H, W) mask values."""
        return _voxels(self.volume, self.is_label)[self.z]


@lru_cache(maxsize=4)  # an image and a label in two threads: slices of one volume are mostly read together
def _voxels(volume: VolumeFile, is_label: bool) -> np.ndarray:
    read = read_label_volume if is_label else read_volume
    return read(volume, volume.paths[0])[0]


def _slice(record: Record, name: str, part: Sequence[int]) -> Record:
    """A slice of a volume and of its label; a part is the index along z."""
    image = record["image"]
    mask = record["target"]
    assert isinstance(image, VolumeFile)
    assert isinstance(mask, VolumeFile)
    (z,) = part
    return {**record, "image": VolumeSlice(image, z, False), "target": VolumeSlice(mask, z, True), "name": name}


def _slice_name(name: str, part: Sequence[int]) -> str:
    return f"{name}_{part[0] + 1:04}"


def divide_into_slices(volumes: Records) -> Records:
    """Every slice of the volumes, called <case>_<number>; how many there are is read from headers, and cached."""
    key = volumes.digest and digest("slices", volumes.digest)
    depths = load_or_compute(key, lambda: list(map_indices(lambda i: _depth(volumes[i]), len(volumes))))
    indices = np.repeat(np.arange(len(volumes)), depths)
    numbers = np.concatenate([np.arange(depth) for depth in depths])
    return divide(volumes, indices, Parts(numbers[:, None], _slice_name, _slice), dims=2)


def _depth(record: Record) -> int:
    """The number of slices of a volume. Raises DataError if image and label do not lie on each other."""
    name = record["name"]
    try:
        image = read_volume_header(record["image"], name)
        label = read_volume_header(record["target"], name)
    except ImageError:
        return 1  # the error is reported when the slice is read
    if image.size != label.size or not same_grid(image, label):
        raise DataError(f"{name}: image and label differ in shape or affine; --dims 3 --check-data shows how")
    return image.size[0]
