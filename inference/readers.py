"""The inputs of networks, read from an image or a volume a few rows or slices at a time."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_utils.image_io.formats import ImageSource, VolumeFile
from data_utils.image_io.reader import DecodedImage, decode_image
from data_utils.image_io.regions import Regions
from data_utils.image_io.resize import resize_image
from data_utils.image_io.volumes import VOLUME_SUFFIXES, is_volume, read_volume
from data_utils.loading.transforms import fit_decoded, input_rows
from data_utils.loading.volume_input import VolumeInput
from inference.tiling.cuts import BAND_ROWS
from runtime.errors import ImageError
from unet.config import UNetConfig

# rows [start, stop) of a network's input, (C, stop - start, w), or slices (C, stop - start, h, w)
Read = Callable[[int, int], Tensor]
Size = tuple[int, ...]  # (H, W) or (D, H, W)
Spacing = tuple[float, ...] | None  # (z, y, x) in mm of volumes


class NetworkInputs(NamedTuple):
    """The inputs of a predictor's networks, made from one image.

    tensors: (C, h, w) for each network; size: (H, W) of the image itself; pixels: (h, w, C) as they were decoded for
    the first network, where that is asked for.
    """

    tensors: list[Tensor]
    size: tuple[int, int]
    pixels: np.ndarray | None = None


def volume_of(source: ImageSource) -> VolumeFile | None:
    """The volume, which may be given as the path of its file; None for an image."""
    if isinstance(source, str | Path) and is_volume(source):
        return VolumeFile((str(source),))
    return source if isinstance(source, VolumeFile) else None


def check_takes_images(config: UNetConfig, name: str) -> None:
    """ImageError where a network takes volumes only."""
    if config.dims == 3:
        raise ImageError(f"{name}: is an image, but the model takes volumes ({', '.join(VOLUME_SUFFIXES)})")


def read_inputs(
    image: ImageSource, configs: Sequence[UNetConfig], name: str, page: int, *, keep_pixels: bool
) -> NetworkInputs:
    """The input of each network; the image is read once for all networks that need the same detail."""
    decoded: dict[Hashable, DecodedImage] = {}
    tensors = []
    for config in configs:
        check_takes_images(config, name)
        preprocess = config.preprocess
        detail = (preprocess.draft, preprocess.image_size, preprocess.scale)
        if detail not in decoded:
            decoded[detail] = decode_image(image, name, page, draft_for=preprocess)
        tensors.append(torch.tensor(fit_decoded(decoded[detail], preprocess, config.in_channels, name)))
    first = next(iter(decoded.values()))
    return NetworkInputs(tensors, first.size, first.pixels if keep_pixels else None)


def input_size(config: UNetConfig, size: Size, spacing: Spacing = None) -> Size:
    """(h, w) at which a network sees an image of `size` (H, W); (d, h, w) of a volume of `size` (D, H, W)."""
    preprocess = config.preprocess
    if spacing is None:
        return preprocess.target_size(*size)
    resampled = preprocess.resampled_size(size, spacing)
    return resampled if config.dims == 3 else (resampled[0], *preprocess.target_size(*resampled[1:]))


def open_input(
    image: Regions | VolumeFile, configs: Sequence[UNetConfig], name: str
) -> tuple[Size, Spacing, list[Read]]:
    """The size of an image, or the size and spacing of a volume, and what reads the input of each network."""
    if isinstance(image, Regions):
        return image.size, None, [_read_rows(image, config, name) for config in configs]
    voxels, header = read_volume(image, name)
    reads: list[Read] = []
    for config in configs:
        if config.dims == 3 and header.channels != config.in_channels:  # a scan that lacks some is none of a grey photo
            raise ImageError(f"{name}: has {header.channels} channels, the model takes {config.in_channels}")
        volume = VolumeInput(voxels, header, config.preprocess, config.in_channels, name)
        reads.append(partial(_read_slices, volume, config))
    return header.size, header.spacing, reads


def _read_rows(regions: Regions, config: UNetConfig, name: str) -> Read:
    check_takes_images(config, name)
    preprocess = config.preprocess
    pixels = partial(input_rows, regions.draft_for(preprocess), preprocess, config.in_channels, name)
    if preprocess.detect_unit_range:
        height = preprocess.target_size(*regions.size)[0]
        parts = ((top, min(top + BAND_ROWS, height)) for top in range(0, height, BAND_ROWS))
        if not any((pixels(*part) > 1).any() for part in parts):
            return lambda start, stop: torch.from_numpy(pixels(start, stop) * 255)
    return lambda start, stop: torch.from_numpy(pixels(start, stop))


def _read_slices(volume: VolumeInput, config: UNetConfig, start: int, stop: int) -> Tensor:
    """Slices [start, stop) of a volume as a network sees them, (C, stop - start, h, w)."""
    slab = volume.slab(start, stop)
    if config.dims == 2:  # and may want another height and width
        size = config.preprocess.target_size(*slab.shape[2:])
        slices = [resize_image(pixels, size) for pixels in np.moveaxis(slab, 0, -1)]
        slab = np.ascontiguousarray(np.moveaxis(np.stack(slices), -1, 0))
    return torch.from_numpy(slab)
