"""The plan: values for flags that are not given, chosen from the data. A run prints and records it.

The plan depends on the data and the flags alone, never on the machine or the number of processes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_mask
from data_utils.image_io.resize import resize_mask
from data_utils.image_io.windowed import LARGE_IMAGE_PIXELS
from data_utils.sources.records import Record
from runtime.errors import SettingsError
from tasks.classes import Classes
from tasks.confusion import confusion_matrix, scores
from train_utils.settings.lite0 import NAME as LITE0
from train_utils.settings.train_settings import TrainSettings, flag_of
from unet.axes import level_axes
from unet.config import IGNORE_INDEX, Preprocess, UNetConfig

# in runs of fewer minutes, small images and narrow networks score higher, since they allow more steps
VERY_SHORT_MINUTES = 15
SHORT_MINUTES = 60
# the most pixels of a resized image, if its masks keep their detail
VERY_SHORT_PIXELS = 128 * 160
FROZEN_PIXELS = 256 * 320  # a frozen encoder gets more in a very short run: it has learned from larger images
SHORT_RESIZED_PIXELS = 192 * 256
LONG_RESIZED_PIXELS = 512 * 512
SMALLEST_PHOTOGRAPH = 128  # pixels of a side: at the encoder's stride of 32, 4 positions are left
# the built-in encoder is not chosen if one of these flags asks for the plain U-Net or another start
PLAIN_NETWORK = ("encoder", "init_from", "base_channels", "depth", "block", "norm", "upsample")
# the approximate pixels of a crop of an image
SHORT_CROPPED_PIXELS = 192 * 256
LONG_CROPPED_PIXELS = 512 * 512
# base channels
SHORT_WIDTH = 16
LONG_WIDTH = 32
MANY_IMAGES = 5000  # from this many training images on, the network is wider, unless the run is short
WIDTH_OF_MANY = 64
SHORT_BATCH_SIZE = 2
LONG_BATCH_SIZE = 4
VOLUME_BATCH_SIZE = 2
SCALES = (1.0, 0.75, 0.5, 0.33, 0.25)
SMALLEST_IMAGE = 4  # pixels of a side: a smaller image shows nothing
DETAIL_KEPT = 0.9  # least mean IoU of masks with themselves after resizing by a scale and back
SAMPLED_MASKS = 32  # the number of masks whose detail is measured
IMAGES_A_MINUTE = 30  # with more, a short run sees each image so rarely that augmentation beyond mirroring harms
VERY_SHORT_PATCH_VOXELS = 32 * 32 * 32  # for volumes with points
SHORT_PATCH_VOXELS = 48 * 48 * 48
LONG_PATCH_VOXELS = 128 * 128 * 128
SIDE_STEP = 32  # the sides of crops are multiples of it
RARE_SHARE = 0.02  # a class with a smaller share of the pixels is rare
FEWEST_STEPS = 2000  # the least number of steps of a run
EVALUATION_SHARE = 0.1  # evaluations take at most this share of the time of training
FORWARD_SHARE = 1 / 3  # the forward pass takes this share of a training step's time
SCORING_SHARE = 1 / 24  # resizing and counting the logits takes this share, for each pixel of a mask


@dataclass(frozen=True)
class Plan:
    """A value for each flag that may be left to the plan. The defaults hold without one: the original U-Net on images
    as they are."""

    scale: float = 1.0
    crop_size: Sequence[int] | None = None
    augment: str = "basic"
    encoder: str | None = None
    encoder_weights: str | None = None
    freeze_encoder: bool | None = None
    base_channels: int | None = None  # UNetConfig's, or what suits an encoder
    block: str | None = None
    batch_size: int = 4
    optimizer: str = "adamw"
    class_weights: Sequence[float | str] | None = None
    epochs: int = 10
    eval_every: int = 0
    checkpoint_every: int = 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the flags that a plan may decide."""
        return tuple(field.name for field in fields(cls))

    def decided(self, args: TrainSettings) -> dict[str, Any]:
        """The values of the flags that `args` leave open."""
        return {name: getattr(self, name) for name in self.names() if getattr(args, name) is None}

    def fill(self, args: TrainSettings) -> TrainSettings:
        """The settings, with the plan's values for the flags that were open."""
        return replace(args, **self.decided(args))


def plan_run(info: DatasetInfo, args: TrainSettings) -> Plan:
    """The plan of a run; it does not change the values of given flags.

    Images are scaled down, as far as masks keep their detail, until they have no more pixels than the length of the run
    allows; images that are still larger are cropped. A stream, which is not read before training, gets the defaults.
    """
    sizes = info.train.sizes
    if not sizes.any():
        return Plan()
    minutes = args.max_minutes or math.inf
    is_short = minutes < SHORT_MINUTES
    is_volumes = info.train.records.dims == 3
    encoder = _choose_encoder(info, args, minutes)
    resized_pixels, cropped_pixels = _most_pixels(minutes, bool(encoder.is_frozen))
    scale = args.scale
    if scale is None:
        scale = _scale(info, args, resized_pixels)
    crop_size = args.crop_size
    if crop_size is None and is_volumes:
        crop_size = patch_size(info, minutes)
    elif crop_size is None and not args.image_size and not info.reader.takes_points:
        crop_size = _crop_size(sizes * scale, cropped_pixels)
    base_channels = None if encoder.name else _width(info, minutes)
    batch_size = args.batch_size or _batch_size(is_volumes, is_short)
    # class weights are chosen only for images: their gain has not been measured for volumes
    is_unbalanced = _has_rare_class(info.reader.class_pixels) and not is_volumes
    epochs = Plan.epochs
    if not (args.max_steps or args.max_minutes):
        epochs = max(epochs, math.ceil(FEWEST_STEPS * batch_size / len(info.train)))
    eval_every = args.eval_every
    if eval_every is None:
        eval_every = _eval_every(info, scale, args.image_size, crop_size, batch_size)
    return Plan(
        scale=scale,
        crop_size=crop_size,
        augment=_augmentation(info, minutes),
        encoder=encoder.name,
        encoder_weights=encoder.weights,
        freeze_encoder=encoder.is_frozen,
        base_channels=base_channels,
        block="residual",
        batch_size=batch_size,
        optimizer="muon" if info.reader.takes_points else Plan.optimizer,
        class_weights=("auto",) if is_unbalanced else None,
        epochs=epochs,
        eval_every=eval_every,
        checkpoint_every=eval_every,
    )


def _augmentation(info: DatasetInfo, minutes: float) -> str:
    """The augmentation for how often a run sees each image: if rarely, images are only mirrored."""
    is_volumes = info.train.records.dims == 3
    seen_rarely = minutes < SHORT_MINUTES and not is_volumes and len(info.train) >= IMAGES_A_MINUTE * minutes
    only_mirrors = seen_rarely or _is_very_short_run_on_volume_points(info, minutes)
    return "mirror" if only_mirrors else Plan.augment


class EncoderChoice(NamedTuple):
    """The values of --encoder, --encoder-weights and --freeze-encoder; None if there is no encoder."""

    name: str | None
    weights: str | None
    is_frozen: bool | None


def _choose_encoder(info: DatasetInfo, args: TrainSettings, minutes: float) -> EncoderChoice:
    """The encoder that the flags name or, if they leave it open, the encoder that suits the data."""
    name = LITE0 if _suits_lite0(info, args) else args.encoder_source
    weights = args.encoder_weights
    is_frozen = args.freeze_encoder
    if name and weights is None:
        weights = "pretrained"
    if name and is_frozen is None:
        must_learn = weights == "random" or args.encoder_lr_factor
        is_frozen = minutes < VERY_SHORT_MINUTES and not must_learn
    return EncoderChoice(name, weights, is_frozen)


def _suits_lite0(info: DatasetInfo, args: TrainSettings) -> bool:
    """Whether the built-in encoder is chosen: images resemble its training images, and no flag excludes it.

    Such images are color photographs of 8 bits, large enough for the encoder's stride, and small enough to be read
    whole.
    """
    if args.dataset == DataConfig.dataset:  # generated shapes
        return False
    if info.config.task != Classes.name:  # its gain has been measured for classes only
        return False
    if any(getattr(args, name) is not None for name in PLAIN_NETWORK):
        return False
    if info.train.records.dims == 3 or info.normalization.pixel_types != ("uint8",) or not info.normalization.is_color:
        return False
    height, width = np.median(info.train.sizes, axis=0)
    seen_size = args.crop_size or args.image_size or (height, width)
    return min(height, width, *seen_size) >= SMALLEST_PHOTOGRAPH and height * width <= LARGE_IMAGE_PIXELS


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
    sizes = info.train.sizes
    if scale is None or scale >= 1 or not sizes.any():  # a stream is not read before training
        return
    height, width = np.median(sizes, axis=0).astype(int).tolist()
    scaled_height, scaled_width = config.preprocess.input_size(height, width)
    if min(height, width) < SMALLEST_IMAGE or min(scaled_height, scaled_width) >= SMALLEST_IMAGE:
        return
    side = min(min(height, width), max(SMALLEST_IMAGE, *config.divisors))
    better_scale = math.ceil(100 * side / min(height, width)) / 100
    raise SettingsError(
        f"--scale {scale:g}: makes images of {height} x {width} pixels as small as {scaled_height} x {scaled_width},"
        f" where nothing is left to see; give --scale {better_scale:g} or more"
    )


def as_flags(values: Mapping[str, Any]) -> str:
    """The values in the form in which flags are typed on the command line."""
    return " ".join(_as_flag(name, value) for name, value in values.items() if value is not None)


def _as_flag(name: str, value: Any) -> str:
    flag = flag_of(name)
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    words = [flag]
    values = value if isinstance(value, tuple) else (value,)
    for item in values:
        words.append(f"{item:g}" if isinstance(item, float) else str(item))
    return " ".join(words)


def _most_pixels(minutes: float, is_frozen: bool) -> tuple[int, int]:
    """The most pixels of a resized image, and of a crop, in a run of `minutes`.

    Args:
        is_frozen: whether the network has a frozen encoder.
    """
    if minutes < VERY_SHORT_MINUTES:
        if is_frozen:
            return FROZEN_PIXELS, FROZEN_PIXELS
        return VERY_SHORT_PIXELS, SHORT_CROPPED_PIXELS
    if minutes < SHORT_MINUTES:
        return SHORT_RESIZED_PIXELS, SHORT_CROPPED_PIXELS
    return LONG_RESIZED_PIXELS, LONG_CROPPED_PIXELS


def _is_very_short_run_on_volume_points(info: DatasetInfo, minutes: float) -> bool:
    """Whether the run is very short and trains on volumes with points; docs/landmarks.md has measurements of these."""
    return info.train.records.dims == 3 and info.reader.takes_points and minutes < VERY_SHORT_MINUTES


def _width(info: DatasetInfo, minutes: float) -> int:
    """The base channels of a network without an encoder."""
    if minutes < SHORT_MINUTES:
        return SHORT_WIDTH
    return WIDTH_OF_MANY if len(info.train) >= MANY_IMAGES else LONG_WIDTH


def _batch_size(is_volumes: bool, is_short: bool) -> int:
    if is_volumes:
        return VOLUME_BATCH_SIZE
    return SHORT_BATCH_SIZE if is_short else LONG_BATCH_SIZE


def _scale(info: DatasetInfo, args: TrainSettings, pixels: int) -> float:
    """The factor on the sides of images with which a median image has at most about `pixels`.

    The factor is 1 if the settings or the kind of data exclude smaller images.
    """
    has_size = info.train.records.dims == 3 or args.image_size or args.crop_size
    if has_size or not info.reader.may_shrink:
        return 1.0
    if info.reader.takes_points:
        return _scale_of_points(info, pixels)
    return _scale_of_masks(info, pixels)


def _scale_of_masks(info: DatasetInfo, pixels: int) -> float:
    """The largest of SCALES at which an image has at most `pixels`, or the smallest that keeps the masks' detail."""
    image_pixels = np.median(info.train.sizes.prod(axis=1))
    is_read_in_crops = image_pixels > LARGE_IMAGE_PIXELS  # from the file, at full size
    if image_pixels <= pixels or is_read_in_crops:
        return 1.0
    smallest_scale = 1.0
    for scale in SCALES[1:]:
        if detail_kept(info, scale) < DETAIL_KEPT:
            break
        smallest_scale = scale
        if image_pixels * scale**2 <= pixels:
            break
    return smallest_scale


def _scale_of_points(info: DatasetInfo, pixels: int) -> float:
    """The largest of SCALES at which an image has at most `pixels`, or a smaller one.

    Images with points are not cropped: only the whole image shows which of two similar points, left or right, one is.
    """
    image_pixels = np.median(info.train.sizes.prod(axis=1))
    largest = math.sqrt(pixels / image_pixels)
    for scale in SCALES:
        if scale <= largest:
            return scale
    return max(1, math.floor(100 * largest)) / 100


def detail_kept(info: DatasetInfo, scale: float) -> float:
    """Mean IoU, over the classes, of some training masks with themselves resized by `scale` and back."""
    class_map = info.reader.class_map
    if class_map is None:
        return info.reader.detail_kept(_spread_records(info), scale)
    classes = len(class_map)
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    for record in _spread_records(info):
        mask = class_map.encode(read_mask(record["target"], record["name"]), record["name"])
        labeled = info.reader.labeled_in_map(record.get("labeled"))
        if labeled is not None:
            mask[~np.isin(mask, list(labeled))] = IGNORE_INDEX
        height, width = mask.shape
        small_size = (max(1, int(height * scale)), max(1, int(width * scale)))
        restored = resize_mask(resize_mask(mask, small_size), mask.shape)
        valid = (mask != IGNORE_INDEX) & (restored != IGNORE_INDEX)
        matrix += confusion_matrix(_indices(restored[valid]), _indices(mask[valid]), classes)
    return scores(matrix)["mean_iou"] or 0.0


def _spread_records(info: DatasetInfo) -> Iterator[Record]:
    """Up to SAMPLED_MASKS training records that can be used, spread over the set."""
    usable = np.delete(np.arange(len(info.train)), list(info.train.bad))
    for position in np.unique(np.linspace(0, len(usable) - 1, SAMPLED_MASKS).astype(int)):
        yield info.train.records[int(usable[position])]


def _indices(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).long()


def _crop_size(sizes: np.ndarray, pixels: int) -> tuple[int, int] | None:
    """(H, W) of crops of about `pixels`; None unless images of `sizes` (N, 2) have over 1.5 times that on average."""
    if sizes.prod(axis=1).mean() <= 1.5 * pixels:
        return None
    height, width = np.median(sizes, axis=0)
    side = math.sqrt(pixels)
    # if a side of the image is shorter than the crop, the other side of the crop becomes longer
    rows = min(height, max(side, pixels / width))
    columns = min(width, max(side, pixels / height))
    return _rounded_side(rows), _rounded_side(columns)


def _rounded_side(length: float) -> int:
    """The largest multiple of SIDE_STEP that is not longer, but at least one SIDE_STEP."""
    return max(SIDE_STEP, SIDE_STEP * math.floor(length / SIDE_STEP))


def _has_rare_class(pixels: Sequence[int]) -> bool:
    """Whether one of three or more classes is rare; with two classes, weights gain nothing."""
    return len(pixels) > 2 and min(filter(None, pixels), default=0) < RARE_SHARE * sum(pixels)


def patch_size(info: DatasetInfo, minutes: float, preprocess: Preprocess | None = None) -> tuple[int, int, int]:
    """(D, H, W) of patches for a run of `minutes`: equally long in mm along each axis, up to the median volume.

    Sides are rounded up to multiples of the factor by which the poolings that suit them divide.

    Args:
        preprocess: the preprocessing of a model to start from, if there is one.
    """
    spacing = np.array(info.preprocess(preprocess).spacing)
    median = np.median(info.train.sizes * info.train.spacings / spacing, axis=0).round().clip(1)
    patch = median.copy()
    room = float(_most_voxels(info, minutes))
    axes = list(np.argsort(median * spacing))  # the shortest in mm first: the others take the voxels that it leaves
    while axes:
        edge = (room * spacing[axes].prod()) ** (1 / len(axes))
        axis = axes.pop(0)
        patch[axis] = min(median[axis], max(1, edge // spacing[axis]))
        room /= patch[axis]
    _, strides = level_axes(tuple(spacing), tuple(patch.astype(int).tolist()))
    divisors = np.prod(strides, axis=0)
    depth, height, width = (np.ceil(patch / divisors) * divisors).astype(int).tolist()
    return depth, height, width


def _most_voxels(info: DatasetInfo, minutes: float) -> int:
    """The most voxels of a patch in a run of `minutes`."""
    if _is_very_short_run_on_volume_points(info, minutes):
        return VERY_SHORT_PATCH_VOXELS
    if minutes < SHORT_MINUTES:
        return SHORT_PATCH_VOXELS
    return LONG_PATCH_VOXELS


def _eval_every(
    info: DatasetInfo,
    scale: float,
    image_size: Sequence[int] | None,
    crop_size: Sequence[int] | None,
    batch_size: int,
) -> int:
    """Steps between evaluations: an epoch, or as many as keep them below their share of the time."""
    # the time is estimated in pixels
    mask_pixels = info.val.sizes.prod(axis=1).mean()
    train_pixels = info.train.sizes.prod(axis=1).mean() * scale**2
    val_pixels = mask_pixels * scale**2
    if image_size:
        train_pixels = math.prod(image_size)
        val_pixels = math.prod(image_size)
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
