"""Prediction: an image in, class indices out, at the image's own size."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unet.blocks import DoubleConv
from unet.convert import load_model
from unet.model import ModelError, UNet, UNetConfig
from unet.preprocess import ImageSource
from unet.tiles import BAND_ROWS, Tiling, plan, tiled_logits
from unet.windows import Rows, network_rows

Read = Callable[[int, int], Tensor]  # rows [start, stop) of a network's input, (C, stop - start, w)
WINDOW_MEMORY = 2**27  # bytes of logits at an image's own size beyond which it is predicted in windows


def resize_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, num_classes, h, w) -> (B, num_classes, *size): how evaluation and prediction return to a mask's size."""
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return F.interpolate(_full_precision(logits), size=size, mode="bilinear", align_corners=False)


def batch_sizes(device: torch.device) -> Callable[[int, int], int]:
    """(height, width) -> how many images of one shape share a forward pass, a function of the shape alone.

    So evaluation and prediction compute the same batches on any number of processes, down to the last bit. A CPU is
    fastest with about an eighth of a megapixel (docs/performance.md), a GPU needs more to be busy.
    """
    pixels = 2**17 if device.type == "cpu" else 2**19
    return lambda height, width: max(1, pixels // (height * width))


def fold_batch_norm(model: UNet) -> UNet:
    """Fold each batch norm of a model in evaluation mode into the convolution before it, in place."""
    for block in model.modules():
        if isinstance(block, DoubleConv) and isinstance(block.norm1, nn.BatchNorm2d):
            block.conv1, block.norm1 = fuse_conv_bn_eval(block.conv1, block.norm1), nn.Identity()
            block.conv2, block.norm2 = fuse_conv_bn_eval(block.conv2, block.norm2), nn.Identity()
    return model


class Prediction(NamedTuple):
    """mask: (H, W) uint8 class indices; probabilities: (num_classes, H, W) float32; both at the input's own size."""

    mask: np.ndarray
    probabilities: np.ndarray


class Predictor:
    """A model with its preprocessing: `Predictor.from_pretrained("runs/x/model")("cell.png").mask`.

    Args:
        model: the network, or where `load_network` finds one: "runs/x/model", "model.onnx".
        ensemble: more networks of the same classes; probabilities are averaged over all.
        tile_size, overlap: as in `tiles.plan`; by default an image is computed whole while it fits.
        tta: average probabilities over the eight flips and quarter turns of each image (of each tile).
    """

    def __init__(
        self,
        model: UNet | str | Path,
        *,
        ensemble: Sequence[UNet | str | Path] = (),
        tile_size: int | None = None,
        overlap: int | None = None,
        tta: bool = False,
    ) -> None:
        networks = [
            load_network(network) if isinstance(network, str | Path) else network for network in [model, *ensemble]
        ]
        self.networks = [network.eval() for network in networks]
        self.config: UNetConfig = networks[0].config
        self.tile_size, self.overlap, self.tta = tile_size, overlap, tta
        for network in networks[1:]:
            if _classes(network.config) != _classes(self.config):
                raise ModelError(
                    f"an ensemble needs the same classes: {_classes(self.config)}, {_classes(network.config)}"
                )

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        device: str | torch.device = "cpu",
        *,
        ensemble: Sequence[str | Path] = (),
        scale: float | None = None,
        **options,
    ) -> "Predictor":
        """Load model folders, Hub ids, .onnx files or Pytorch-UNet checkpoints, made ready to predict fast.

        `scale` is for the latter, as in `load_model`; `options` as in `Predictor`.
        """
        model, *others = (load_network(name, device, scale) for name in [model, *ensemble])
        return cls(model, ensemble=others, **options)

    @torch.inference_mode()
    def __call__(self, image: ImageSource, name: str = "image") -> Prediction:
        """Segment a path, bytes, PIL image or array; ImageError, with `name`, for what cannot be used."""
        inputs, size = self.inputs(image, name)
        if any(self.tilings(size)):
            reads = [lambda start, stop, pixels=pixels: pixels[:, start:stop] for pixels in inputs]
            logits = torch.cat(list(self._bands(reads, size)), dim=1)
        else:
            logits = self.whole([inputs], [size])[0]
        return Prediction(logits.argmax(dim=0).to(torch.uint8).cpu().numpy(), logits.softmax(dim=0).cpu().numpy())

    def mask(self, image: ImageSource, name: str = "image") -> np.ndarray:
        """Only the class indices, (H, W) uint8."""
        return self(image, name).mask

    @property
    def batch_size_of(self) -> Callable[[int, int], int]:
        """As `batch_sizes`, where the networks are."""
        return batch_sizes(self.networks[0].mean.device)

    def input_sizes(self, size: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        """At which (H, W) each network sees an image of `size` (H, W)."""
        return tuple(network.config.preprocess.target_size(*size) for network in self.networks)

    def tilings(self, size: tuple[int, int]) -> list[Tiling | None]:
        """How each network cuts an image of `size` (H, W); TileError where tile size and overlap do not go together."""
        tilings = [
            plan(network.config, target, self.tile_size, self.overlap)
            for network, target in zip(self.networks, self.input_sizes(size), strict=True)
        ]
        # a tile is turned about its own pooling grid, which is not that of the turned image
        return [tiling and tiling._replace(exact=tiling.exact and not self.tta) for tiling in tilings]

    def in_windows(self, size: tuple[int, int]) -> bool:
        """Whether an image of `size` (H, W) is better predicted by `bands` than whole."""
        if any(network.config.preprocess.detect_unit_range for network in self.networks):
            return False  # whether any value is above 1 is known of whole images only
        return 4 * self.config.num_classes * size[0] * size[1] > WINDOW_MEMORY or any(self.tilings(size))

    def inputs(self, image: ImageSource, name: str = "image", page: int = 0) -> tuple[list[Tensor], tuple[int, int]]:
        """What each network is shown of an image, (C, h, w) each, and the (H, W) of the image itself."""
        configs = [network.config for network in self.networks]
        found = [config.preprocess.read(image, config.in_channels, name, page) for config in configs]
        return [torch.tensor(pixels) for pixels, _ in found], found[0][1]

    @torch.inference_mode()
    def whole(self, inputs: Sequence[list[Tensor]], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Logits (num_classes, H, W) of images whose `inputs` have equal shapes, given their own sizes (H, W)."""
        batches = zip(self.networks, zip(*inputs, strict=True), strict=True)
        logits = [self._logits(network, torch.stack(batch)) for network, batch in batches]
        return [
            _average([resize_logits(of_network[index][None], size)[0] for of_network in logits])
            for index, size in enumerate(sizes)
        ]

    @torch.inference_mode()
    def bands(self, rows: Rows, name: str = "image") -> Iterator[Tensor]:
        """Logits of an image of any size from top to bottom, (num_classes, n, W) with n up to 64.

        Memory: width x tile height x classes, however high the image is.
        """

        def reader(config: UNetConfig) -> Read:
            drafted = rows.drafted(config.preprocess)

            def read(start: int, stop: int) -> Tensor:
                return torch.from_numpy(network_rows(drafted, config.preprocess, config.in_channels, name, start, stop))

            return read

        yield from self._bands([reader(network.config) for network in self.networks], rows.size)

    def _bands(self, reads: Sequence[Read], size: tuple[int, int]) -> Iterator[Tensor]:
        """`bands` of an image of `size`, given what reads rows of each network's input."""
        plans = zip(self.networks, reads, self.tilings(size), self.input_sizes(size), strict=True)
        streams = [
            _resized_bands(self._network_bands(network, read, tiling, target), target, size)
            for network, read, tiling, target in plans
        ]
        for logits in zip(*streams, strict=True):
            yield _average(logits)

    def _network_bands(
        self, network: nn.Module, read: Read, tiling: Tiling | None, size: tuple[int, int]
    ) -> Iterator[Tensor]:
        def forward(batch: Tensor) -> Tensor:
            return self._logits(network, batch)

        if tiling is None:
            yield forward(read(0, size[0])[None])[0]
        else:
            yield from tiled_logits(forward, read, size, tiling, self.batch_size_of)

    def _logits(self, network: nn.Module, batch: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, num_classes, h, w) in full precision."""
        batch = batch.to(network.mean.device).contiguous(memory_format=torch.channels_last)
        if not self.tta:
            return _full_precision(network(batch))
        views = []
        for turns in range(4):
            turned = batch.rot90(turns, (2, 3))
            views.append(network(turned).rot90(-turns, (2, 3)))
            views.append(network(turned.flip(3)).flip(3).rot90(-turns, (2, 3)))
        return _average([_full_precision(view) for view in views], dim=1)


def load_network(name: str | Path, device: str | torch.device = "cpu", scale: float | None = None) -> nn.Module:
    """A network to predict with: an .onnx file or what `load_model` takes; ModelError for what cannot be loaded."""
    if Path(name).suffix == ".onnx":
        from unet.export import OnnxNetwork  # onnxruntime only where it is used

        return OnnxNetwork(name)
    return fold_batch_norm(load_model(name, scale)).to(device, memory_format=torch.channels_last)


def _classes(config: UNetConfig) -> tuple:
    return config.preprocess.class_names or config.num_classes, config.preprocess.class_values


def _full_precision(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _average(logits: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Logits whose softmax is the mean of the softmax of each."""
    if len(logits) == 1:
        return logits[0]
    mean = sum(view.softmax(dim) for view in logits) / len(logits)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()  # the logarithm of 0 could not be interpolated


def _resized_bands(bands: Iterator[Tensor], size: tuple[int, int], target: tuple[int, int]) -> Iterator[Tensor]:
    """`resize_logits` from `size` to `target` on rows that come one band after another, (num_classes, n, w) each."""
    kept, first = next(bands), 0  # rows [first, first + n) of the image, as many as are still needed
    for start in range(0, target[0], BAND_ROWS):
        places = torch.arange(start, min(start + BAND_ROWS, target[0]), dtype=kept.dtype, device=kept.device) + 0.5
        # the source row of each target row, rounded as torch rounds it
        places = (places * torch.tensor(size[0] / target[0], dtype=kept.dtype) - 0.5).clamp_min(0)
        above = places.long()
        below = (above + 1).clamp_max(size[0] - 1)
        while first + kept.shape[1] <= below[-1]:
            kept = torch.cat([kept[:, above[0] - first :], next(bands)], dim=1)
            first = int(above[0])
        share = (places - above)[:, None]
        rows = kept[:, above - first] * (1 - share) + kept[:, below - first] * share
        yield resize_logits(rows[None], (rows.shape[1], target[1]))[0]
