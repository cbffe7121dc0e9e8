"""From the file of a volume to a network's input: clipped, standardized and resampled, whole or strip by strip."""

from math import prod

import numpy as np
from PIL import Image

from data_utils.image_io.formats import UNCHECKED_BYTES, ImageSource, check_memory, image_errors
from data_utils.image_io.resize import bicubic, linear, resize_image
from data_utils.image_io.volumes import VolumeHeader, read_volume, read_volume_header
from runtime.errors import ImageError
from unet.config import Preprocess

MOST_GROWTH = 4096  # times as many voxels as a file has: 16 along each axis
CHUNK = 8  # slices that are resampled together
# times the finest spacing: a coarser axis is resampled linearly, since cubic resampling would ring along it
COARSE_SPACING_FACTOR = 3


def check_header(header: VolumeHeader, preprocess: Preprocess, channels: int, name: str) -> None:
    """Raises ImageError for a volume of other channels, or that would be resampled to far more than it holds."""
    if header.channels not in (1, channels):
        raise ImageError(f"{name}: has {header.channels} channels, the model takes {channels}")
    voxels = prod(preprocess.resampled_size(header.size, header.spacing))
    sides = " x ".join(f"{side:g}" for side in header.spacing)
    claim = f"the volume, whose header gives its voxels {sides} mm (z, y, x), resampled,"
    with image_errors(name):
        growth = voxels / prod(header.size)
        if growth > MOST_GROWTH and 4 * channels * voxels > UNCHECKED_BYTES:
            raise ValueError(f"{claim} has {growth:,.0f} times as many voxels, the most are {MOST_GROWTH:,} times")
        check_memory(4 * channels * voxels, claim)


class VolumeInput:
    """A volume as the network sees it, whole or in strips along z with bit for bit the same values.

    Only the voxels of the file are kept. Images are resampled cubic, as `resize_image` does it, and linearly along
    coarse axes; an axis whose number of voxels stays is left alone.

    Attributes:
        header: the header of the file.
        size: (d, h, w) of the network's input.
    """

    def __init__(
        self, voxels: np.ndarray, header: VolumeHeader, preprocess: Preprocess, channels: int, name: str = "volume"
    ) -> None:
        """Voxels are (D, H, W, C), as `read_volume` gives them. Raises ImageError as `check_header` does."""
        check_header(header, preprocess, channels, name)
        self.voxels = voxels
        self.header = header
        self.preprocess = preprocess
        self.channels = channels
        depth, height, width = preprocess.resampled_size(header.size, header.spacing)
        self.size = (depth, height, width)
        finest = min(header.spacing)
        is_coarse = [side > COARSE_SPACING_FACTOR * finest for side in header.spacing]
        # along y and x, within a slice
        self.row_filter = Image.Resampling.BILINEAR if is_coarse[1] else Image.Resampling.BICUBIC
        self.column_filter = Image.Resampling.BILINEAR if is_coarse[2] else Image.Resampling.BICUBIC
        # along z, for all slices at once: the rounding of weights depends on how many slices there are
        length = header.size[0]
        if is_coarse[0]:
            self.taps, weights = linear(length, depth)
        else:
            self.taps, weights = bicubic(length, depth, 0, depth)
        self.weights = weights.astype(np.float32)
        self.mean = np.zeros(1, np.float32)  # (c,)
        self.std = np.ones(1, np.float32)  # (c,)
        if preprocess.standardize:
            self.mean, self.std = self._statistics()

    @classmethod
    def read(cls, source: ImageSource, preprocess: Preprocess, channels: int, name: str = "volume") -> "VolumeInput":
        """The volume of a file. Raises ImageError, with `name`, if it cannot be read, or as `check_header` does."""
        check_header(read_volume_header(source, name), preprocess, channels, name)
        return cls(*read_volume(source, name), preprocess, channels, name)

    def whole(self) -> np.ndarray:
        """(C, d, h, w) float32."""
        return self.strip(0, self.size[0])

    def strip(self, start: int, stop: int) -> np.ndarray:
        """Slices [start, stop) of the network's input: (C, stop - start, h, w) float32."""
        strip = np.empty((self.channels, stop - start, *self.size[1:]), np.float32)
        if self.size[0] == self.header.size[0]:
            for z in range(start, stop):
                strip[:, z - start] = self._plane(z)
            return strip
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            taps = self.taps[first:last]
            weights = self.weights[first:last]
            lowest = taps.min()
            planes = np.stack([self._plane(z) for z in range(lowest, taps.max() + 1)], axis=1)
            resampled = strip[:, first - start : last - start]  # a view, filled here
            resampled[:] = 0
            for tap in range(taps.shape[1]):
                resampled += planes[:, taps[:, tap] - lowest] * weights[:, tap, None, None]
        return strip

    def _plane(self, z: int) -> np.ndarray:
        """(c, h, w): a slice of the file, clipped, standardized and resampled within itself."""
        plane = (self._clip_slice(z) - self.mean) / self.std
        return np.stack([self._resized(channel) for channel in np.moveaxis(plane, 2, 0)])

    def _resized(self, channel: np.ndarray) -> np.ndarray:
        """(H, W) -> (h, w)."""
        height, width = self.size[1:]
        if channel.shape == (height, width):
            return channel
        image = Image.fromarray(channel).resize((width, channel.shape[0]), self.column_filter)
        return np.asarray(image.resize((width, height), self.row_filter))

    def _clip_slice(self, z: int) -> np.ndarray:
        """(H, W, c) float32: a slice of the file."""
        plane = np.ascontiguousarray(self.voxels[z], np.float32)
        if self.preprocess.clip is None:
            return plane
        lowest, highest = self.preprocess.clip
        return plane.clip(np.float32(lowest), np.float32(highest))

    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (c,) of the clipped voxels, summed in float64; 1 where a channel is constant."""
        planes = range(self.header.size[0])
        count = self.voxels[..., 0].size
        sums = [self._clip_slice(z).sum(axis=(0, 1), dtype=np.float64) for z in planes]
        mean = np.sum(sums, axis=0) / count
        squares = [np.square(self._clip_slice(z) - mean).sum(axis=(0, 1)) for z in planes]
        std = np.sqrt(np.sum(squares, axis=0) / count)
        return mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32)


class SliceInput:
    """The slices of a volume along z as a network of images sees them.

    Attributes:
        size: (d, h, w) of all slices at the network's input size.
    """

    def __init__(self, volume: VolumeInput) -> None:
        self.volume = volume
        depth, height, width = volume.size
        self.size = (depth, *volume.preprocess.input_size(height, width))

    def strip(self, start: int, stop: int) -> np.ndarray:
        """Slices [start, stop): (C, stop - start, h, w)."""
        strip = self.volume.strip(start, stop)
        slices = [resize_image(pixels, self.size[1:]) for pixels in np.moveaxis(strip, 0, -1)]
        return np.ascontiguousarray(np.moveaxis(np.stack(slices), -1, 0))
