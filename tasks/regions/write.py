"""Masks of regions: a label map, in which later regions lie over earlier ones."""

import numpy as np

from runtime.errors import ImageError
from tasks.overlapping.bit_format import BitFormat
from tasks.polygons import Properties
from tasks.prediction import Decoded
from tasks.regions.loss import regions_of_model
from tasks.regions.reader import RegionReader
from tasks.regions.target import Region
from unet.config import IGNORE_INDEX, UNetConfig

LARGEST = 65535  # value of a PNG


class RegionFormat(BitFormat):
    """Label maps: each pixel has the first value of its last region."""

    def __init__(self, regions: tuple[Region, ...], ignored: tuple[int, ...]) -> None:
        super().__init__([region.name for region in regions])
        self.regions = regions
        self.reader = RegionReader(regions, ignored)

    @classmethod
    def from_config(cls, config: UNetConfig) -> "RegionFormat":
        preprocess = config.preprocess
        values = [preprocess.ignore_value]
        for value, index in preprocess.joined_values:
            if index == IGNORE_INDEX:
                values.append(value)
        ignored = tuple(value for value in values if isinstance(value, int))
        return cls(regions_of_model(config), ignored)

    def area_properties(self, layer: int, number: int, decoded: Decoded) -> Properties:
        return {"class": self.names[number], "value": self.written_values[number]}

    @property
    def written_values(self) -> tuple[int, ...]:
        return (0, *(region.values[0] for region in self.regions))

    def mask_values(self, labels: np.ndarray) -> np.ndarray:
        largest = max(region.values[0] for region in self.regions)
        if not 0 < largest <= LARGEST:
            raise ImageError(f"mask value {largest} cannot be written: a PNG mask holds 0 to {LARGEST}")
        values = np.zeros(labels.shape, np.uint8 if largest < 256 else np.uint16)
        for bit, region in enumerate(self.regions):
            values[labels >> bit & 1 == 1] = region.values[0]
        return values
