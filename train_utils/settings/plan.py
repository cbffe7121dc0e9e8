"""The plan: values for flags that are not given, chosen from the data. A run prints and records it.

The plan depends on the data and the flags alone, never on the machine or the number of processes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.image_io.windowed import LARGE_IMAGE_PIXELS
from tasks.classes.loss import Classes
from tasks.overlapping.loss import Overlapping
from train_utils.settings.lite0 import NAME as LITE0
from train_utils.settings.run_length import SHORT, VERY_SHORT, run_length
from train_utils.settings.sizes import choose_crop_size, choose_scale
from train_utils.settings.train_settings import UNPLANNED, TrainSettings

ENCODED_TASKS = (Classes.name, Overlapping.name)  # objects and landmarks lose by the built-in encoder
SMALLEST_SIDE = 128  # pixels of an image for the built-in encoder: at its stride of 32, 4 positions are left
# the built-in encoder is not chosen if one of these flags asks for the plain U-Net or another start
PLAIN_NETWORK = ("encoder", "init_from", "base_channels", "depth", "block", "norm", "upsample")
MANY_IMAGES = 5000  # from this many training images on, the network of a long run is wider
VOLUME_BATCH_SIZE = 2
IMAGES_A_MINUTE = 30  # with more, a short run sees each image so rarely that augmentation beyond mirroring harms
RARE_SHARE = 0.02  # a class with a smaller share of the pixels is rare
FEWEST_STEPS = 2000  # the least number of steps of a run
EVALUATION_SHARE = 0.1  # evaluations take at most this share of the time of training
FORWARD_SHARE = 1 / 3  # the forward pass takes this share of a training step's time
SCORING_SHARE = 1 / 24  # resizing and counting the logits takes this share, for each pixel of a mask


def fill(args: TrainSettings, values: Mapping[str, Any]) -> TrainSettings:
    """The settings, with values for those that are open; --epochs stays open beside another length of the run."""
    decided = {name: value for name, value in values.items() if getattr(args, name) is None}
    if args.max_steps or args.max_minutes:
        decided.pop("epochs", None)
    return replace(args, **decided)


def plan_run(info: DatasetInfo, args: TrainSettings) -> TrainSettings:
    """The settings of a run, with values for those of UNPLANNED that are open.

    Images are scaled down, as far as masks keep their detail, until they have no more pixels than the length of the run
    allows; images that are still larger are cropped. A stream, which is not read before training, gets the defaults.
    """
    if not info.train.sizes.any():
        return fill(args, UNPLANNED)
    minutes = args.max_minutes or math.inf
    is_volumes = info.train.records.dims == 3
    encoder = _choose_encoder(info, args, minutes)
    length = run_length(minutes, bool(encoder["freeze_encoder"]))
    scale = choose_scale(info, args, length)
    crop_size = choose_crop_size(info, args, scale, length)
    base_channels = length.base_channels
    if len(info.train) >= MANY_IMAGES:
        base_channels = length.base_channels_for_many
    usual_batch_size = VOLUME_BATCH_SIZE if is_volumes else length.batch_size
    batch_size = args.batch_size or usual_batch_size
    # class weights are chosen only for images: their gain has not been measured for volumes
    is_unbalanced = _has_rare_class(info.reader.class_pixels) and not is_volumes
    eval_every = _eval_every(info, args, scale, crop_size, batch_size)
    plan = encoder | {
        "scale": scale,
        "crop_size": crop_size,
        "augment": _augmentation(info, minutes),
        "base_channels": None if encoder["encoder"] else base_channels,
        "block": "residual",
        "batch_size": batch_size,
        "optimizer": "muon" if info.reader.takes_points else UNPLANNED["optimizer"],
        "class_weights": ("auto",) if is_unbalanced else None,
        "epochs": max(UNPLANNED["epochs"], math.ceil(FEWEST_STEPS * batch_size / len(info.train))),
        "eval_every": eval_every,
        "checkpoint_every": eval_every,
    }
    return fill(args, plan)


def _augmentation(info: DatasetInfo, minutes: float) -> str:
    """The augmentation for a run of `minutes`: images are only mirrored if each of them is rarely seen.

    So are volumes with points in a very short run; docs/landmarks.md has measurements of these.
    """
    if info.train.records.dims == 3:
        only_mirrors = info.reader.takes_points and minutes < VERY_SHORT.minutes
    else:
        only_mirrors = minutes < SHORT.minutes and len(info.train) >= IMAGES_A_MINUTE * minutes
    return "mirror" if only_mirrors else UNPLANNED["augment"]


def _choose_encoder(info: DatasetInfo, args: TrainSettings, minutes: float) -> dict[str, Any]:
    """The settings of the encoder that the flags name or, if they leave it open, of the one that suits the data."""
    name = LITE0 if _suits_lite0(info, args) else args.encoder_source
    weights = args.encoder_weights
    is_frozen = args.freeze_encoder
    if name and weights is None:
        weights = "pretrained"
    if name and is_frozen is None:
        must_learn = weights == "random" or args.encoder_lr_factor
        is_frozen = minutes < VERY_SHORT.minutes and not must_learn
    return {"encoder": name, "encoder_weights": weights, "freeze_encoder": is_frozen}


def _suits_lite0(info: DatasetInfo, args: TrainSettings) -> bool:
    """Whether the built-in encoder is chosen: the images are of a kind that gains by it, and no flag excludes it.

    Such images are grey or color images of 8 bits, large enough for the encoder's stride, and small enough to be read
    whole. docs/encoders.md has the measurements, also those of objects and points, which lose by it.
    """
    if args.dataset == DataConfig.dataset:  # generated shapes
        return False
    if info.config.task not in ENCODED_TASKS or info.train.records.dims == 3:
        return False
    if any(getattr(args, name) is not None for name in PLAIN_NETWORK):
        return False
    channels = len(info.normalization.mean)
    if info.normalization.pixel_types != ("uint8",) or channels not in (1, 3):
        return False
    height, width = np.median(info.train.sizes, axis=0)
    seen_size = args.crop_size or args.image_size or (height, width)
    return min(height, width, *seen_size) >= SMALLEST_SIDE and height * width <= LARGE_IMAGE_PIXELS


def _has_rare_class(pixels: Sequence[int]) -> bool:
    """Whether one of three or more classes is rare; with two classes, weights gain nothing."""
    return len(pixels) > 2 and min(filter(None, pixels), default=0) < RARE_SHARE * sum(pixels)


def _eval_every(
    info: DatasetInfo, args: TrainSettings, scale: float, crop_size: Sequence[int] | None, batch_size: int
) -> int:
    """Steps between evaluations: as given, an epoch, or as many as keep them below their share of the time."""
    if args.eval_every is not None:
        return args.eval_every
    # the time is estimated in pixels
    mask_pixels = info.val.sizes.prod(axis=1).mean()
    train_pixels = info.train.sizes.prod(axis=1).mean() * scale**2
    val_pixels = mask_pixels * scale**2
    if args.image_size:
        train_pixels = val_pixels = math.prod(args.image_size)
    if crop_size:
        train_pixels = math.prod(crop_size)
    step_pixels = batch_size * train_pixels
    epoch_steps = math.ceil(len(info.train) / batch_size)
    forward_pixels = val_pixels * FORWARD_SHARE
    if info.reader.takes_points:  # the mirror image is predicted too
        forward_pixels *= 2
    evaluation_pixels = len(info.val) * (forward_pixels + mask_pixels * SCORING_SHARE)
    epochs = math.ceil(evaluation_pixels / (EVALUATION_SHARE * step_pixels * epoch_steps))
    return epochs * epoch_steps
