"""The inputs of networks, read from an image or a volume a few rows or slices at a time."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_utils.image_io.formats import ImageSource, VolumeFile
from data_utils.image_io.reader import decode_image
from data_utils.image_io.resize import Size
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import VOLUME_SUFFIXES, read_volume, read_volume_header
from data_utils.image_io.windowed import WindowedArray, WindowedImage
from data_utils.loading.image_input import ImageInput, missing_pixels
from data_utils.loading.volume_input import SliceInput, VolumeInput, check_header
from data_utils.sources.places import as_model_reads
from runtime.errors import ImageError
from unet.config import UNetConfig

NetworkInput = ImageInput | VolumeInput | SliceInput  # each reads a strip of the network's input


class NetworkInputs(NamedTuple):
    """The inputs of a predictor's networks, made from one image.

    Args:
        tensors: (C, h, w) for each network.
        size: (H, W) of the image itself.
        picture: the image, decoded for the first network; None where nobody needs it any more.
        missing: (H, W) bool, true where the image holds no data; None if it has data everywhere.
    """

    tensors: list[Tensor]
    size: tuple[int, int]
    picture: WindowedArray | None = None
    missing: np.ndarray | None = None


def check_takes_images(config: UNetConfig, name: str) -> None:
    """Raises ImageError if networks take volumes only."""
    if config.dims == 3:
        raise ImageError(f"{name}: is no volume, and the model takes volumes ({', '.join(VOLUME_SUFFIXES)})")


def read_inputs(image: ImageSource, configs: Sequence[UNetConfig], name: str) -> NetworkInputs:
    """The input of each network; the image is read once for all networks that need the same detail."""
    check_takes_images(configs[0], name)
    decoded: dict[Hashable, WindowedArray] = {}
    tensors = []
    for config in configs:
        preprocess = config.preprocess
        detail = (preprocess.draft, preprocess.image_size, preprocess.scale, preprocess.bands, preprocess.place)
        if detail not in decoded:
            source = as_model_reads(image, preprocess)
            decoded[detail] = decode_image(source, name, preprocess)
        network_input = ImageInput(decoded[detail], preprocess, config.in_channels, name)
        tensors.append(torch.tensor(network_input.whole()))
    first = next(iter(decoded.values()))
    return NetworkInputs(tensors, first.size, first, missing_pixels(first.array))


def input_size(config: UNetConfig, size: Size, spacing: Spacing | None = None) -> Size:
    """The (h, w) at which a network sees an image of `size` (H, W), or (d, h, w) for a volume of `size` (D, H, W)."""
    preprocess = config.preprocess
    if spacing is None:
        return preprocess.input_size(*size)
    resampled = preprocess.resampled_size(size, spacing)
    if config.dims == 3:
        return resampled
    depth, height, width = resampled
    return (depth, *preprocess.input_size(height, width))


def open_input(
    image: WindowedImage | VolumeFile, configs: Sequence[UNetConfig], name: str
) -> tuple[Size, Spacing | None, list[NetworkInput]]:
    """The size of an image, or the size and spacing of a volume, and the input of each network."""
    inputs: list[NetworkInput] = []
    if isinstance(image, WindowedImage):
        check_takes_images(configs[0], name)
        for config in configs:
            drafted = image.drafted(config.preprocess)
            inputs.append(ImageInput(drafted, config.preprocess, config.in_channels, name))
        return image.size, None, inputs
    header = read_volume_header(image, name)
    for config in configs:
        # a grey photo can replace a photo in color, but a scan that lacks channels cannot replace one that has them
        if config.dims == 3 and header.channels != config.in_channels:
            raise ImageError(f"{name}: has {header.channels} channels, the model takes {config.in_channels}")
        is_photographs = config.in_channels == 3 and config.preprocess.pixel_types == ("uint8",)
        if config.dims == 2 and header.channels == 1 and is_photographs:
            raise ImageError(
                f"{name}: is a volume, but the model was trained on color images of 8 bits, such as photographs;"
                " give a model that was trained on volumes"
            )
        check_header(header, config.preprocess, config.in_channels, name)
    voxels, header = read_volume(image, name)
    for config in configs:
        volume = VolumeInput(voxels, header, config.preprocess, config.in_channels, name)
        inputs.append(SliceInput(volume) if config.dims == 2 else volume)
    return header.size, header.spacing, inputs
