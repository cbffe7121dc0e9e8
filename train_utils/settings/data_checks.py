"""Checks of flags that do not suit the data set's images or volumes."""

import math

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from runtime.errors import SettingsError
from train_utils.settings.train_settings import TrainSettings
from unet.config import UNetConfig

SMALLEST_IMAGE = 4  # pixels of a side: a smaller image shows nothing


def check_axes(info: DatasetInfo, args: TrainSettings) -> None:
    """Raise SettingsError for flags that do not suit the data set's images or volumes."""
    dims = info.train.records.dims
    crop = args.crop_size
    if crop and len(crop) != dims:
        lengths = " ".join(map(str, crop))
        suitable = "volumes, which take D H W" if dims == 3 else "images, which take H W"
        raise SettingsError(f"--crop-size {lengths}: {args.dataset} holds {suitable}")
    if args.normalization and args.init_from:
        raise SettingsError("--normalization: the model of --init-from keeps its own normalization; leave the flag out")
    if dims == 3 and args.encoder_source:
        raise SettingsError(f"--encoder {args.encoder}: takes images, but {args.dataset} holds volumes")


def check_scale(info: DatasetInfo, scale: float | None, config: UNetConfig) -> None:
    """Raise SettingsError for a scale at which an image of median size vanishes.

    Images that are smaller than the network's divisor are padded, as `UNet.forward` describes.

    Args:
        scale: the typed scale, or 1 for volumes; None if the plan has chosen it.
    """
    if scale is None or scale >= 1:
        return
    height, width = np.median(info.train.sizes, axis=0).astype(int).tolist()  # of a stream 0
    scaled_height, scaled_width = config.preprocess.input_size(height, width)
    if min(height, width) < SMALLEST_IMAGE or min(scaled_height, scaled_width) >= SMALLEST_IMAGE:
        return
    better_scale = math.ceil(100 * SMALLEST_IMAGE / min(height, width)) / 100
    raise SettingsError(
        f"--scale {scale:g}: makes images of {height} x {width} pixels as small as {scaled_height} x {scaled_width},"
        f" where nothing is left to see; give --scale {better_scale:g} or more"
    )
