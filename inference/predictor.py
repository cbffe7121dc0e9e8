"""Prediction: an image or a volume in, class indices out, at its own size."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from data_utils.image_io.formats import ImageSource, PageFile, VolumeFile
from data_utils.image_io.resize import Size
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import is_volume, read_volume_header
from data_utils.image_io.windowed import WindowedImage
from data_utils.loading.batch_sampler import images_per_batch, pixels_per_batch
from inference.models import check_ensemble, load_network
from inference.network_inputs import (
    NetworkInput,
    NetworkInputs,
    input_size,
    open_input,
    read_inputs,
)
from inference.tiling.planning import Tiling, choose_tiling
from inference.tiling.resizing import resize_logits, resize_strips
from inference.tiling.stream import stream_image, stream_logits
from inference.views import average, average_views, mirror_back
from runtime.device import full_precision, upload
from runtime.errors import ModelError
from tasks import task_of_model
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.loss import Landmarks
from tasks.prediction import Prediction, decode_strips
from unet.blocks import channels_last
from unet.config import UNetConfig
from unet.model import UNet

WINDOW_MEMORY = 2**27  # bytes; an image with more logits, at its own size, is predicted in windows


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class PredictedMask:
    """The prediction of an image or volume; it unpacks as a pair: `mask, probabilities = predictor(image)`.

    For volumes, D stands before H. A model of objects has object numbers, int32, in `mask`, and the depth as the last
    of its `probabilities`.

    Args:
        mask: (H, W) uint8 class indices, at the input's own size.
        probabilities: (num_classes, H, W) float32, at the input's own size.
        objects: a `DetectedObject` for each object, from a model of objects.
    """

    mask: np.ndarray
    probabilities: np.ndarray
    objects: Sequence[Any] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        yield self.mask
        yield self.probabilities


class Landmark(NamedTuple):
    """A point of an image.

    Args:
        position: (y, x) or (z, y, x) in pixels; the center of the first pixel is 0.
        presence: the probability that the point is in the image.
        confidence: the share of the map's weight that lies around the position.
    """

    name: str
    position: tuple[float, ...]
    presence: float
    confidence: float


class Predictor:
    """A model with its preprocessing: `Predictor.from_pretrained("runs/x/model")("cell.png").mask`.

    Args:
        model: the network, or a source that `load_network` takes: "runs/x/model", "model.onnx".
        device, scale: of models that are loaded by name; `scale` is for Pytorch-UNet's checkpoints, see `load_model`.
        ensemble: more networks of the same classes; probabilities are averaged over all.
        tile_size, overlap: as in `inference.tiling.choose_tiling`; by default an image that fits is computed whole.
        tta: True averages probabilities over the eight flips and quarter turns of each image or tile, or the eight
            mirrorings of a volume; over the input and its left-right mirror image if the model was trained on these
            only. None averages over these two if the task does so by default; False never averages.
    """

    def __init__(
        self,
        model: UNet | str | Path,
        device: str | torch.device = "cpu",
        *,
        ensemble: Sequence[UNet | str | Path] = (),
        scale: float | None = None,
        tile_size: int | None = None,
        overlap: int | None = None,
        tta: bool | None = None,
    ) -> None:
        self.networks: list[nn.Module] = []
        for network in [model, *ensemble]:
            if isinstance(network, str | Path):
                network = load_network(network, device, scale)
            self.networks.append(network.eval())
        self.configs: list[UNetConfig] = [network.config for network in self.networks]
        self.config = self.configs[0]
        self.tile_size = tile_size
        self.overlap = overlap
        self.tta = bool(tta)
        check_ensemble(self.configs)
        tasks = list(map(task_of_model, self.configs))
        self.task = tasks[0].ensemble_task(tasks[1:])
        self._averages_mirrored = tta is None and self.task.averages_mirrored

    @classmethod
    def from_pretrained(cls, model: str | Path, device: str | torch.device = "cpu", **options: Any) -> "Predictor":
        """Load model folders, Hub ids, .onnx files or Pytorch-UNet checkpoints, and prepare them for fast prediction.

        `options` are those of `Predictor`.
        """
        return cls(model, device, **options)

    def __call__(self, image: ImageSource, name: str = "image", page: int = 0) -> PredictedMask:
        """Segment an image. Raises ImageError, which says `name`, if it cannot be read.

        Args:
            image: a path, bytes, a PIL image or an array. A volume is a path or a `VolumeFile`; a model of images
                predicts it slice by slice.
            page: the number of the page of a TIFF.
        """
        prediction, _ = self._predict(image, name, page, wanted=("probabilities",))
        assert prediction.probabilities is not None  # they were wanted
        return PredictedMask(self.task.mask(prediction.labels), prediction.probabilities, prediction.objects)

    @torch.inference_mode()
    def slices(self, volume: VolumeFile, name: str = "volume") -> Iterator[np.ndarray]:
        """The probabilities (num_classes, H, W) of each slice of a volume, from below; few are in memory at a time."""
        for logits in self.strips(volume, name):
            (probabilities,) = self.task.probabilities(logits[None]).cpu()
            yield from probabilities.numpy().swapaxes(0, 1)

    def points(self, image: ImageSource, name: str = "image", page: int = 0) -> list[Landmark]:
        """The points of an image or a volume, from a model of landmarks."""
        if not isinstance(self.task, Landmarks):
            raise ModelError(f"the model's task is {self.task.name}: it answers masks, and no points")
        prediction, size = self._predict(image, name, page)
        points = PredictedPoints.from_prediction(prediction.labels)
        positions = points.positions(size)
        landmarks = []
        for index, point in enumerate(self.task.names):
            position = tuple(positions[index].tolist())
            landmarks.append(Landmark(point, position, float(points.presence[index]), float(points.confidence[index])))
        return landmarks

    def mask(self, image: ImageSource, name: str = "image", page: int = 0) -> np.ndarray:
        """Only the class indices, (H, W) or (D, H, W) uint8, or the numbers of objects, int32."""
        return self.task.mask(self.labels(image, name, page))

    def labels(self, image: ImageSource, name: str = "image", page: int = 0) -> np.ndarray:
        """The prediction in the form that scores and overlays take, (H, W) or (D, H, W)."""
        prediction, _ = self._predict(image, name, page)
        return prediction.labels

    def _predict(
        self, image: ImageSource, name: str, page: int, wanted: Collection[str] = ()
    ) -> tuple[Prediction, Size]:
        """The prediction of an image or volume, in memory, and its size."""
        spacing = missing = None
        strips: Iterable[Tensor]
        size: Size
        if isinstance(image, str | Path) and is_volume(image):
            image = VolumeFile((str(image),))
        if not isinstance(image, VolumeFile):
            if page and isinstance(image, str | Path | bytes):
                image = PageFile(image, page)
            inputs = self.inputs(image, name)
            size, missing = inputs.size, inputs.missing
            strips = self.logits_of_batch([inputs])
        else:
            header = read_volume_header(image, name)
            size, spacing = header.size, header.spacing
            strips = self.strips(image, name)
        logits_size = self.logits_size(size, spacing)
        return decode_strips(self.task, strips, logits_size, name, wanted=wanted, missing=missing), size

    def input_sizes(self, size: Size, spacing: Spacing | None = None) -> list[Size]:
        """The size at which each network sees an image of `size` (H, W), or a volume (D, H, W) with its spacing."""
        return [input_size(config, size, spacing) for config in self.configs]

    def logits_size(self, size: Size, spacing: Spacing | None = None) -> Size:
        """The size of the logits that are read: an image's own `size`, or that of the first network's input."""
        return size if self.task.at_image_size else self.input_sizes(size, spacing)[0]

    def tilings(self, size: Size, spacing: Spacing | None = None) -> list[Tiling | None]:
        """The tiling of an image or volume of `size` for each network. Raises SettingsError if an overlap is too large.

        A network of images cuts each slice of a volume.
        """
        tilings: list[Tiling | None] = []
        for network, input_shape in zip(self.networks, self.input_sizes(size, spacing), strict=True):
            dims = network.config.dims
            tiling = None
            if len(input_shape) >= dims:
                tiling = choose_tiling(
                    network.config,
                    input_shape[-dims:],
                    self.tile_size,
                    self.overlap,
                    adds_reach=self.task.needs_exact_tiles,
                )
            if tiling is not None and self.tta:
                # a turned tile has another pooling grid than the turned image
                tiling = tiling._replace(exact=False)
            tilings.append(tiling)
        return tilings

    def needs_windows(self, size: Size) -> bool:
        """Whether the logits of an image of `size` (H, W) take so much memory that only `strips` should compute them.

        For tiles this includes their sums, and copies of the rows that tiles share.
        """
        pixels = max(map(math.prod, [self.logits_size(size), *self.input_sizes(size)]))
        copies = 4 if any(self.tilings(size)) else 1
        return 4 * self.config.num_classes * pixels * copies > WINDOW_MEMORY

    def batch_size(self, size: Size) -> int:
        """How many images whose inputs have the size of this one's (H, W) are best computed together."""
        return images_per_batch(pixels_per_batch(self.device), self.input_sizes(size)[0])

    @property
    def device(self) -> torch.device:
        """The device of the networks; a model in ONNX computes on the CPU, also if others compute on a GPU."""
        devices = [network.mean.device for network in self.networks]
        return next((device for device in devices if device.type != "cpu"), devices[0])

    def inputs(self, image: ImageSource, name: str = "image") -> NetworkInputs:
        """The inputs of the networks, read by `read_inputs`."""
        return read_inputs(image, self.configs, name)

    @torch.inference_mode()
    def logits_of_batch(self, batch: Sequence[NetworkInputs]) -> list[Tensor]:
        """Logits (num_classes, H, W) of images at their own sizes; those of one input size share forward passes."""
        if len({inputs.tensors[0].shape for inputs in batch}) > 1:
            return [self.logits_of_batch([inputs])[0] for inputs in batch]
        tensors_by_network = zip(*(inputs.tensors for inputs in batch), strict=True)
        tilings = self.tilings(batch[0].size)
        views = []
        for network, images, tiling in zip(self.networks, tensors_by_network, tilings, strict=True):
            views.append(self._batch(network, images, tiling))
            if self._averages_mirrored:
                mirrored = self._batch(network, [image.flip(-1) for image in images], tiling)
                views.append([mirror_back(self.task, logits) for logits in mirrored])
        logits = []
        for inputs, views_of_image in zip(batch, zip(*views, strict=True), strict=True):
            size = self.logits_size(inputs.size)
            logits.append(average(self.task, [resize_logits(view, size) for view in views_of_image])[0])
        return logits

    def _batch(self, network: nn.Module, images: Sequence[Tensor], tiling: Tiling | None) -> Sequence[Tensor]:
        """Logits (1, num_classes, h, w) of each of some images (C, h, w) of one size."""
        forward = partial(self._logits, network)
        if tiling is None:
            return [logits[None] for logits in forward(torch.stack(list(images)))]
        logits = []
        for image in images:
            strips = stream_image(forward, image, tiling, pixels_per_batch(self.device))
            logits.append(torch.cat(list(strips), dim=1)[None])
        return logits

    @torch.inference_mode()
    def strips(self, image: WindowedImage | VolumeFile, name: str = "image") -> Iterator[Tensor]:
        """Logits of an image of any size from top to bottom, (num_classes, n, W) with n up to 64.

        For volumes they are slices (num_classes, n, H, W), with n from `strip_length`. Memory is width x tile height x
        classes for an image of any height, and height x width x tile depth x classes for a volume of any depth.
        """
        size, spacing, inputs = open_input(image, self.configs, name)
        tilings = self.tilings(size, spacing)
        streams = []
        for network, network_input, tiling in zip(self.networks, inputs, tilings, strict=True):
            ways = [self._network_strips(network, network_input, tiling)]
            if self._averages_mirrored:
                mirrored = self._network_strips(network, network_input, tiling, is_mirrored=True)
                ways.append(mirror_back(self.task, logits[None])[0] for logits in mirrored)
            for strips in ways:
                streams.append(resize_strips(strips, network_input.size, self.logits_size(size, spacing)))
        for logits in zip(*streams, strict=True):
            yield average(self.task, [strip[None] for strip in logits])[0]

    def _network_strips(
        self, network: nn.Module, network_input: NetworkInput, tiling: Tiling | None, *, is_mirrored: bool = False
    ) -> Iterator[Tensor]:
        """Logits (num_classes, n, ...) of one network at the size of its input, from top to bottom.

        Args:
            is_mirrored: whether they are those of the left-right mirror image.
        """
        pixels = pixels_per_batch(self.device)
        size = network_input.size

        def read(start: int, stop: int) -> Tensor:
            strip = network_input.strip(start, stop)
            return torch.from_numpy(np.ascontiguousarray(strip[..., ::-1]) if is_mirrored else strip)

        if network.config.dims < len(size):  # slice by slice
            count = images_per_batch(pixels, size[1:])
            for start in range(0, size[0], count):
                slices = read(start, min(start + count, size[0])).unbind(1)
                yield torch.cat([logits.transpose(0, 1) for logits in self._batch(network, slices, tiling)], dim=1)
        elif tiling is None:
            yield self._logits(network, read(0, size[0])[None])[0]
        else:
            yield from stream_logits(partial(self._logits, network), read, size, tiling, pixels)

    def _logits(self, network: nn.Module, batch: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, num_classes, h, w) in full precision, on the device of the predictor."""
        if batch.dtype == torch.uint16:  # torch can do little with this type but copy it
            batch = batch.float()
        batch = channels_last(upload(batch, network.mean.device))
        logits = average_views(network, batch, self.task) if self.tta else full_precision(network(batch))
        return logits.to(self.device, non_blocking=True)
