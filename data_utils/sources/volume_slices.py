"""--dims 2: the slices of volumes along z as images, for a network that sees one at a time."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from data_utils.image_io.formats import EmbeddedImage, VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume, read_volume_header, same_grid
from data_utils.sources.records import LabelSet, Record, Records
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


class SliceRecords(Records):
    """Every slice of the volumes of other records, with the same slice of the mask; its name is <case>_<number>."""

    def __init__(self, volumes: Records) -> None:
        self.source: Records = volumes
        self.metadata = replace(volumes.metadata, dims=2)
        self.digest = volumes.digest and digest("slices", volumes.digest)

    @cached_property
    def ends(self) -> np.ndarray:
        """(N,) how many slices there are up to and including each volume, from the headers."""
        depths = load_or_compute(self.digest, lambda: list(map_indices(self._depth, len(self.source))))
        return np.cumsum(depths)

    def _depth(self, i: int) -> int:
        record = self.source[i]
        name = record["name"]
        try:
            image = read_volume_header(record["image"], name)
            label = read_volume_header(record["target"], name)
        except ImageError:
            return 1  # the error is reported when the slice is read
        if image.size != label.size or not same_grid(image, label):
            raise DataError(f"{name}: image and label differ in shape or affine; --dims 3 --check-data shows how")
        return image.size[0]

    def __len__(self) -> int:
        return int(self.ends[-1])

    def label_set(self, i: int) -> LabelSet | None:
        return self.source.label_set(self._volume_index(i))

    def _volume_index(self, i: int) -> int:
        """The volume of a slice."""
        return int(np.searchsorted(self.ends, i, side="right"))

    def __getitem__(self, i: int) -> Record:
        volume = self._volume_index(i)
        first = int(self.ends[volume - 1]) if volume else 0
        z = i - first
        volume_record = self.source[volume]
        image = volume_record["image"]
        mask = volume_record["target"]
        assert isinstance(image, VolumeFile)
        assert isinstance(mask, VolumeFile)
        name = f"{volume_record['name']}_{z + 1:04}"
        record: Record = {"image": VolumeSlice(image, z, False), "target": VolumeSlice(mask, z, True), "name": name}
        if "labeled" in volume_record:
            record["labeled"] = volume_record["labeled"]
        return record
