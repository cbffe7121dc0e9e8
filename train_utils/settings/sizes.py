"""The sizes that the plan chooses: of resized images, of their crops, and of patches of volumes."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.windowed import LARGE_IMAGE_PIXELS
from data_utils.sources.records import Record, spread_indices
from train_utils.settings.run_length import RunLength
from train_utils.settings.train_settings import TrainSettings
from unet.axes import level_axes
from unet.config import Preprocess

SCALES = (1.0, 0.75, 0.5, 0.33, 0.25)
DETAIL_KEPT = 0.9  # least mean IoU of masks with themselves after resizing by a scale and back
SAMPLED_MASKS = 32  # the number of training masks whose detail is measured
SIDE_STEP = 32  # the sides of crops are multiples of it


def choose_scale(info: DatasetInfo, args: TrainSettings, length: RunLength) -> float:
    """The given scale or, without one, the factor with which a median image has about the pixels that suit the run.

    The factor is 1 if the settings or the kind of data exclude smaller images.
    """
    if args.scale is not None:
        return args.scale
    has_size = info.train.records.dims == 3 or args.image_size or args.crop_size
    if has_size or not info.reader.may_shrink:
        return 1.0
    if info.reader.takes_points:
        return _point_scale(info, length.resized_pixels)
    return _mask_scale(info, length.resized_pixels)


def _mask_scale(info: DatasetInfo, pixels: int) -> float:
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


def detail_kept(info: DatasetInfo, scale: float) -> float:
    """`TargetReader.detail_kept` of up to SAMPLED_MASKS training masks."""
    return info.reader.detail_kept(_spread_records(info), scale)


def _spread_records(info: DatasetInfo) -> Iterator[Record]:
    """Up to SAMPLED_MASKS training records that can be used, spread over the set."""
    usable = np.delete(np.arange(len(info.train)), list(info.train.bad))
    for position in spread_indices(len(usable), SAMPLED_MASKS):
        yield info.train.records[int(usable[position])]


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
