"""A network as other programs run it: raw images of any size in, logits of their own size out, without a branch on it.

Sizes are tensors here, so that the code can be traced for any size.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks import task_of_model
from unet.config import UNetConfig
from unet.model import UNet

FIXED_POINT = 2**22  # Pillow multiplies weights by this number before it rounds them


def prepares_images(config: UNetConfig) -> bool:
    """Whether predict.py changes images before the network sees them: their size, or the range of their values."""
    preprocess = config.preprocess
    is_resized = preprocess.image_size is not None or preprocess.scale != 1
    return config.dims == 2 and (is_resized or preprocess.detect_unit_range)


def describe(config: UNetConfig) -> dict[str, str]:
    """Texts by name for whoever opens an exported network."""
    images = "(batch, channels, height, width), pixel values as they are in image files"
    if config.dims == 3:
        images = "(batch, channels, depth, height, width), voxels clipped, standardized and resampled"
        images += " as `preprocess` in the config says"
    task = task_of_model(config)
    logits = "of the size of the images"
    if prepares_images(config) and not task.at_image_size:
        logits = "of the size at which the network sees the images"
    return {"images": images, "logits": logits, "decoding": task.reading}


class ExportedNetwork(nn.Module):
    """A model with all that predict.py does to an image before and after it.

    Images are resized as Pillow does it, and logits resized back to the images' own size, or left at the
    network's size if the task reads them so. Volumes are taken at the spacing of the network, clipped and standardized.
    """

    def __init__(self, model: UNet) -> None:
        super().__init__()
        self.model = model
        self.prepares = prepares_images(model.config)
        self.resizes_back = self.prepares and task_of_model(model.config).at_image_size

    def forward(self, images: Tensor, prepare: Tensor | None = None) -> Tensor:
        """(B, in_channels, *spatial) raw pixel values -> logits (B, num_classes, *spatial).

        Args:
            prepare: a single truth value: whether to do what predict.py does to images. True by default.
        """
        if not self.prepares:
            return self._logits(images)
        if prepare is None:
            prepare = torch.ones((), dtype=torch.bool)
        logits = self._logits(self._prepare(images, prepare))
        if self.resizes_back:
            logits = F.interpolate(logits, size=images.shape[2:], mode="bilinear", align_corners=False)
        return logits

    def _prepare(self, images: Tensor, prepare: Tensor) -> Tensor:
        """The network's input, as `ImageInput` makes it."""
        config = self.model.config
        preprocess = config.preprocess
        sides = [_tensor(side) for side in images.shape[2:]]
        if preprocess.image_size is not None:
            targets = [torch.tensor(side) for side in preprocess.image_size]
        else:
            targets = [(_double(side) * preprocess.scale).floor().long().clamp(min=1)[0] for side in sides]
        targets = [torch.where(prepare, target, side) for target, side in zip(targets, sides, strict=True)]
        size = [_length(target) for target in targets]
        if preprocess.pixel_types in ((), ("uint8",)):
            images = torch.where(prepare, resize_bytes(images, size), resize_bicubic(images, size))
        else:
            images = resize_bicubic(images, size)
        if preprocess.detect_unit_range:
            is_unit_range = images.amax((1, 2, 3), keepdim=True) <= 1
            images = torch.where(prepare & is_unit_range, images * 255, images)
        return images

    def _logits(self, images: Tensor) -> Tensor:
        """The logits of the network, which is traced for images that need neither padding nor cropping of its own."""
        window = [slice(side) for side in images.shape[2:]]
        return self.model(self._pad(images))[(..., *window)]

    def _pad(self, images: Tensor) -> Tensor:
        """Images with their sides lengthened as `UNet.forward` describes."""
        config = self.model.config
        sides = [_tensor(side) for side in images.shape[2:]]
        shortest = [torch.tensor(divisor) for divisor in config.divisors]
        if config.norm == "instance":
            is_short = [side < 2 * divisor for side, divisor in zip(sides, shortest, strict=True)]
            is_single_value = torch.stack(is_short).all()
            shortest = [torch.where(is_single_value, 2 * divisor, divisor) for divisor in shortest]
        for axis, (side, least, divisor) in enumerate(zip(sides, shortest, config.divisors, strict=True), start=2):
            if config.encoder is None:
                target = torch.where(side >= least, side, 2 * divisor)
            else:
                target = (side + least - 1) // least * least
            border = torch.arange(_length(target)).clamp(max=images.shape[axis] - 1)
            images = images.index_select(axis, border)
        return images


class ProbabilityNetwork(ExportedNetwork):
    """An exported network that returns probabilities (B, num_classes, *spatial), as the task reads them from logits."""

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        return task_of_model(self.model.config).probabilities(super().forward(images))


def resize_bicubic(images: Tensor, size: Sequence[int]) -> Tensor:
    """(B, C, H, W) float32 -> (B, C, *size), bicubic, as `resize_image` does it: along the rows first."""
    rows, columns = _matrices(images, size)
    images = (images.double() @ columns.T).float()
    return (rows @ images.double()).float()


def resize_bytes(images: Tensor, size: Sequence[int]) -> Tensor:
    """(B, C, H, W) float32, whole numbers up to 255 -> (B, C, *size), rounded to such as `resize_image` does it."""
    if images.shape[1] not in (1, 3):
        return resize_bicubic(images, size).round().clamp(0, 255)
    rows, columns = _matrices(images, size)
    images = _round_pixels(images.double() @ _fixed_point(columns).T)
    return _round_pixels(_fixed_point(rows) @ images).float()


def _matrices(images: Tensor, size: Sequence[int]) -> list[Tensor]:
    """The weights along rows and columns that bring images to `size`."""
    return [bicubic(side, target) for side, target in zip(images.shape[2:], size, strict=True)]


def bicubic(length: int, target: int) -> Tensor:
    """(target, length) float64: Pillow's weight of each pixel of a side in each pixel of the resized side."""
    scale = _double(length) / _double(target)
    widening = scale.clamp(min=1)
    centers = ((torch.arange(target, dtype=torch.float64) + 0.5) * scale)[:, None]
    pixels = torch.arange(length, dtype=torch.float64)
    first = (centers - 2 * widening + 0.5).floor()
    last = (centers + 2 * widening + 0.5).floor()  # the pixel after the last one
    x = ((pixels - centers + 0.5) / widening).abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    weights = torch.where(x < 1, near, far)
    is_used = (x < 2) & (pixels >= first) & (pixels < last)
    weights = torch.where(is_used, weights, 0.0)
    return weights / weights.sum(dim=1, keepdim=True)


def _fixed_point(weights: Tensor) -> Tensor:
    """Weights as the whole numbers by which Pillow multiplies pixels of 8 bits, half of one rounded away from 0."""
    return (weights.abs() * FIXED_POINT + 0.5).floor() * weights.sign()


def _round_pixels(sums: Tensor) -> Tensor:
    """Pixels of 8 bits from sums of fixed-point weights, which float64 holds exactly."""
    return ((sums + FIXED_POINT // 2) / FIXED_POINT).floor().clamp(0, 255)


def _tensor(length: int) -> Tensor:
    """A length to compute with; the tracer's already is a tensor."""
    if isinstance(length, Tensor):
        return length
    return torch.full((), length, dtype=torch.int64)


def _double(length: int | Tensor) -> Tensor:
    """(1,) float64: the tracer forgets the type of a number without an axis, and divides such in float32."""
    return torch.ones(1, dtype=torch.float64) * length


def _length(number: Tensor) -> int:
    """A computed length; the tracer takes the tensor."""
    if torch.jit.is_tracing():
        return number  # type: ignore[return-value]
    return int(number)
