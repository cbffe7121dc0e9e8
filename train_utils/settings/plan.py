"""The plan: values for the settings that nobody typed, from the data set and the length of the run.

In short runs small images and narrow networks score higher, since they allow more steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.image_io.windowed import LARGE_IMAGE_PIXELS
from data_utils.sources.records import spread_indices
from runtime.errors import SettingsError
from tasks.objects.loss import Objects
from train_utils.settings.encoder import LITE0
from train_utils.settings.train_settings import UNPLANNED, TrainSettings
from unet.config import Preprocess, UNetConfig, level_axes


class RunLength(NamedTuple):
    """The sizes that the plan chooses for runs of one length; the defaults are those of a long run.

    Args:
        minutes: runs of fewer minutes have this length, unless they have a shorter one.
        resized_pixels: the most pixels of a resized image, if its masks keep their detail.
        smooth_pixels: the same, if they keep nearly all of it; without a number `resized_pixels` holds for them too.
        cropped_pixels: the approximate pixels of a crop of an image.
        patch_voxels, point_patch_voxels: the most voxels of a patch of a volume, and of a volume with points.
        base_channels, base_channels_for_many: of a network without an encoder, and with many training images.
        batch_size: the images of a batch.
        output_stride: the largest of a network with the built-in encoder, if masks keep their detail.
    """

    minutes: float = math.inf
    resized_pixels: int = 512 * 512
    smooth_pixels: float = math.inf
    cropped_pixels: int = 512 * 512
    patch_voxels: int = 128**3
    point_patch_voxels: int = 128**3
    base_channels: int = 32
    base_channels_for_many: int = 64
    batch_size: int = 4
    output_stride: int = 2


LONG = RunLength()
SHORT = RunLength(
    minutes=60,
    resized_pixels=192 * 256,
    cropped_pixels=192 * 256,
    patch_voxels=48**3,
    point_patch_voxels=48**3,
    base_channels=16,
    base_channels_for_many=16,
    batch_size=2,
    output_stride=4,
)
VERY_SHORT = SHORT._replace(minutes=15, resized_pixels=128 * 160, point_patch_voxels=32**3)
# a frozen encoder gets more pixels: it has learned from larger images
SHORT_FROZEN = SHORT._replace(resized_pixels=384 * 512, smooth_pixels=256 * 320, cropped_pixels=256 * 320)


def run_length(max_minutes: float | None, is_frozen: bool = False) -> RunLength:
    """The length of a run.

    Args:
        max_minutes: the value of --max-minutes; None if the run has no limit.
        is_frozen: whether the network has a frozen encoder.
    """
    minutes = max_minutes or math.inf
    if minutes >= SHORT.minutes:
        return LONG
    if is_frozen:
        return SHORT_FROZEN
    return VERY_SHORT if minutes < VERY_SHORT.minutes else SHORT


ENLARGEMENT = 2  # of small images for the built-in encoder
ENLARGED_PIXELS = 256 * 384  # an image is not enlarged to more, unless it is too small
SCALES = (1.0, 0.75, 0.5, 0.33, 0.25)
DETAIL_KEPT = 0.9  # least mean IoU of masks with themselves after resizing by a scale and back
SMOOTH = 0.95  # the same, of masks whose images are resized to `smooth_pixels`
SAMPLED_MASKS = 32  # the number of training masks whose detail is measured
SIDE_STEP = 32  # the sides of crops are multiples of it


def choose_scale(info: DatasetInfo, args: TrainSettings, length: RunLength, encoder: str | None) -> float:
    """The given scale or, without one, the factor with which a median image has about the pixels that suit the run.

    Small images are enlarged for the built-in encoder. The factor is 1 if the settings or the kind of data exclude
    smaller images.
    """
    if args.scale is not None:
        return args.scale
    if info.train.records.dims == 3 or args.image_size or args.crop_size:
        return 1.0
    if encoder == LITE0 and _gains_by_enlarging(info, length):
        return ENLARGEMENT
    if not info.reader.may_shrink:
        return 1.0
    if info.reader.takes_points:
        return _point_scale(info, min(length.resized_pixels, length.cropped_pixels))
    return _mask_scale(info, length)


def _gains_by_enlarging(info: DatasetInfo, length: RunLength) -> bool:
    """Whether the built-in encoder sees more in enlarged images: too small ones, and those that stay small then."""
    size = np.median(info.train.sizes, axis=0)
    most_pixels = min(length.resized_pixels, ENLARGED_PIXELS)
    return bool(size.min() < SMALLEST_SIDE or (ENLARGEMENT * size).prod() <= most_pixels)


def _mask_scale(info: DatasetInfo, length: RunLength) -> float:
    """The largest of SCALES at which an image has no more pixels than suit, or the smallest that keeps the detail."""
    image_pixels = np.median(info.train.sizes.prod(axis=1))
    if image_pixels > LARGE_IMAGE_PIXELS:  # it is read in crops from the file, at full size
        return 1.0
    chosen = 1.0
    for scale in SCALES[1:]:
        pixels = image_pixels * chosen**2
        if pixels <= min(length.resized_pixels, length.smooth_pixels):
            break
        least_detail = DETAIL_KEPT if pixels > length.resized_pixels else SMOOTH
        if detail_kept(info, scale) < least_detail:
            break
        chosen = scale
    return chosen


def detail_kept(info: DatasetInfo, scale: float) -> float:
    """`TargetReader.detail_kept` of up to SAMPLED_MASKS training masks that can be used, spread over the set."""
    usable = np.delete(np.arange(len(info.train)), list(info.train.bad))
    spread = [int(usable[position]) for position in spread_indices(len(usable), SAMPLED_MASKS)]
    return info.reader.detail_kept((info.train.records[index] for index in spread), scale)


def _point_scale(info: DatasetInfo, pixels: int) -> float:
    """The largest of SCALES at which an image has at most `pixels`, or a smaller one.

    Images with points are not cropped: only the whole image shows which of two similar points, left or right, one is.
    """
    image_pixels = np.median(info.train.sizes.prod(axis=1))
    largest = math.sqrt(pixels / image_pixels)
    for scale in SCALES:
        if scale <= largest:
            return scale
    return max(1, math.floor(100 * largest)) / 100


def choose_crop_size(info: DatasetInfo, args: TrainSettings, scale: float, length: RunLength) -> Sequence[int] | None:
    """The given crop size or, without one, the size of patches, or of crops of images that stay large at this scale."""
    if args.crop_size is not None:
        return args.crop_size
    if info.train.records.dims == 3:
        return patch_size(info, length)
    if args.image_size or info.reader.takes_points:
        return None
    return _crop_size(info.train.sizes * scale, length.cropped_pixels)


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


def patch_size(info: DatasetInfo, length: RunLength, preprocess: Preprocess | None = None) -> tuple[int, int, int]:
    """(D, H, W) of patches for a run of this length: equally long in mm along each axis, up to the median volume.

    Sides are rounded up to multiples of the factor by which the poolings that suit them divide.

    Args:
        preprocess: the preprocessing of a model to start from, if there is one.
    """
    spacing = np.array(info.preprocess(preprocess).spacing)
    median = np.median(info.train.sizes * info.train.spacings / spacing, axis=0).round().clip(1)
    patch = median.copy()
    room = float(length.point_patch_voxels if info.reader.takes_points else length.patch_voxels)
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


def fill(args: TrainSettings, values: Mapping[str, Any]) -> TrainSettings:
    """The settings, with values for those that are open; --epochs stays open beside another length of the run."""
    decided = {name: value for name, value in values.items() if getattr(args, name) is None}
    if args.max_steps or args.max_minutes:
        decided.pop("epochs", None)
    return replace(args, **decided)


MANY_IMAGES = 5000  # from this many training images on, the network of a long run is wider
VOLUME_BATCH_SIZE = 2
RARE_SHARE = 0.02  # a class with a smaller share of the pixels is rare
FEWEST_STEPS = 2000  # the least number of steps of a run


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
    scale = choose_scale(info, args, length, encoder["encoder"])
    crop_size = choose_crop_size(info, args, scale, length)
    base_channels = length.base_channels
    if len(info.train) >= MANY_IMAGES:
        base_channels = length.base_channels_for_many
    # of masks of images, Muon's better steps do not outweigh that they take longer
    gains_by_muon = info.reader.takes_points or (is_volumes and minutes < SHORT.minutes)
    usual_batch_size = VOLUME_BATCH_SIZE if is_volumes else length.batch_size
    batch_size = args.batch_size or usual_batch_size
    # class weights gain nothing for two classes, and have not been measured for volumes
    pixels = info.reader.class_pixels
    is_weighted = len(pixels) > 2 and not is_volumes
    has_rare_class = min(filter(None, pixels), default=0) < RARE_SHARE * sum(pixels)
    eval_every = _eval_every(info, args, scale, crop_size, batch_size)
    plan = encoder | {
        "output_stride": _output_stride(info, args, scale, length) if encoder["encoder"] == LITE0 else None,
        "scale": scale,
        "crop_size": crop_size,
        "augment": _augmentation(info, minutes),
        "base_channels": None if encoder["encoder"] else base_channels,
        "block": "residual",
        "batch_size": batch_size,
        "optimizer": "muon" if gains_by_muon else UNPLANNED["optimizer"],
        "class_weights": ("auto",) if is_weighted and has_rare_class else None,
        "epochs": max(UNPLANNED["epochs"], math.ceil(FEWEST_STEPS * batch_size / len(info.train))),
        "eval_every": eval_every,
        "checkpoint_every": eval_every,
    }
    return fill(args, plan)


IMAGES_A_MINUTE = 30  # with more, a short run sees each image so rarely that augmentation beyond mirroring harms


def _augmentation(info: DatasetInfo, minutes: float) -> str:
    """The augmentation for a run of `minutes`: images are only mirrored if each of them is rarely seen.

    So are volumes with points in a very short run; docs/landmarks.md has measurements of these.
    """
    if info.train.records.dims == 3:
        only_mirrors = info.reader.takes_points and minutes < VERY_SHORT.minutes
    else:
        only_mirrors = minutes < SHORT.minutes and len(info.train) >= IMAGES_A_MINUTE * minutes
    return "mirror" if only_mirrors else UNPLANNED["augment"]


CROWDED = 0.5  # objects that cover more of the images lose by it: nothing but their thin borders tells them apart
ENCODED_TYPES = (("uint8",), ("uint16",))
SMALLEST_SIDE = 128  # pixels of an image for the built-in encoder: at its stride of 32, 4 positions are left
SMALLEST_ENLARGED = 96  # pixels of an image that is enlarged for it
# the built-in encoder is not chosen if one of these flags asks for the plain U-Net or another start
PLAIN_NETWORK = ("encoder", "init_from", "base_channels", "depth", "block", "norm", "upsample")


def _choose_encoder(info: DatasetInfo, args: TrainSettings, minutes: float) -> dict[str, Any]:
    """The settings of the encoder that the flags name or, if they leave it open, of the one that suits the data."""
    is_frozen = args.freeze_encoder
    if is_frozen is None:
        must_learn = args.encoder_weights == "random" or args.encoder_lr_factor
        is_frozen = minutes < SHORT.minutes and not must_learn
    name = LITE0 if _suits_lite0(info, args, is_frozen) else args.encoder_source
    if not name:
        return {"encoder": None, "encoder_weights": None, "freeze_encoder": None}
    weights = args.encoder_weights or "pretrained"
    return {"encoder": name, "encoder_weights": weights, "freeze_encoder": is_frozen}


def _suits_lite0(info: DatasetInfo, args: TrainSettings, is_frozen: bool) -> bool:
    """Whether the built-in encoder is chosen: the images are of a kind that gains by it, and no flag excludes it.

    Such images are grey or color images of 8 or 16 bits, large enough for the encoder's stride, and small enough to be
    read whole. docs/encoders.md has the measurements, also those of what loses by it: crowded objects, and points if
    the encoder is trained.
    """
    if args.dataset == DataConfig.dataset:  # generated shapes
        return False
    if info.train.records.dims == 3:
        return False
    if info.reader.takes_points and not is_frozen:
        return False
    if any(getattr(args, name) is not None for name in PLAIN_NETWORK):
        return False
    background, *others = info.reader.class_pixels or [0]
    if info.config.task == Objects.name and sum(others) > CROWDED * (background + sum(others)):
        return False
    channels = len(info.normalization.mean)
    if info.normalization.pixel_types not in ENCODED_TYPES or channels not in (1, 3):
        return False
    height, width = np.median(info.train.sizes, axis=0)
    if height * width > LARGE_IMAGE_PIXELS:
        return False
    given_size = args.crop_size or args.image_size
    if given_size or args.scale:
        return min(height, width, *(given_size or ())) >= SMALLEST_SIDE
    return min(height, width) >= SMALLEST_ENLARGED


OUTPUT_DETAIL = 0.8  # the least mean IoU of masks with themselves after resizing to the size of the last features


def _output_stride(info: DatasetInfo, args: TrainSettings, scale: float, length: RunLength) -> int:
    """The given stride or, without one, the largest at which masks keep their detail.

    Most of a step's time is spent at the finest levels. The detail of points is not measured, so they have the largest,
    which docs/landmarks.md compares. The masks of images that are read in windows are too large to be measured.
    """
    if args.output_stride is not None:
        return args.output_stride
    image_pixels = np.median(info.train.sizes.prod(axis=1))
    if info.train.records.dims == 3 or image_pixels > LARGE_IMAGE_PIXELS:
        return 1
    if args.image_size:
        scale = math.sqrt(math.prod(args.image_size) / image_pixels)
    for stride in (4, 2):
        if stride <= length.output_stride and detail_kept(info, scale / stride) >= OUTPUT_DETAIL:
            return stride
    return 1


EVALUATION_SHARE = 0.1  # evaluations take at most this share of the time of training
FORWARD_SHARE = 1 / 3  # the forward pass takes this share of a training step's time
SCORING_SHARE = 1 / 24  # resizing and counting the logits takes this share, for each pixel of a mask


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
