"""The proof of an export: its own runtime answers as `Predictor` does."""

import copy
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from inference.predictor import Predictor
from runtime.errors import ModelError, one_line
from unet.blocks import fold_batch_norm
from unet.config import UNetConfig
from unet.model import UNet

TOLERANCE = 1e-4  # difference between logits, relative where they are larger than 1
CHECKED = {  # number of axes -> batch size and sides
    2: ((1, 1, 1), (2, 37, 53), (1, 64, 64), (1, 101, 8), (3, 23, 130), (1, 15, 15), (1, 97, 131)),
    3: ((1, 1, 1, 1), (2, 9, 19, 26), (1, 16, 32, 32), (1, 33, 8, 21), (3, 3, 23, 40)),
}
MESSAGE = 150  # characters of what a runtime says of its error

# (B, C, *spatial) pixel values -> (B, num_classes, *spatial) logits or probabilities
Answer = Callable[[np.ndarray], np.ndarray]


def check_answers(
    runtime: str,
    open_file: Callable[[], Sequence[Answer]],
    batches: Sequence[np.ndarray],
    expected: Sequence[Tensor],
    hint: str = "",
) -> None:
    """Raises ModelError unless an exported model gives the `expected` answers to batches of images.

    Args:
        runtime: the library that opens the model, as messages call it.
        open_file: opens the file of the model by that library; all ways to compute it have to agree.
        hint: the end of the message.
    """
    task = "open the model"
    try:
        for answer in open_file():
            for batch, expected_answer in zip(batches, expected, strict=True):
                sides = " x ".join(map(str, batch.shape[2:]))
                task = f"compute images of {sides} pixels"
                difference = relative_difference(torch.from_numpy(answer(batch)), expected_answer)
                if not difference <= TOLERANCE:  # NaN differs too
                    line = f"{runtime}'s answers differ from torch's by {difference:.1e} at {sides} pixels"
                    raise ModelError(f"{line}{hint}")
    except ModelError:
        raise
    except Exception as error:  # a runtime may raise anything
        raise ModelError(f"{runtime} cannot {task}: {one_line(error, MESSAGE)}{hint}") from error


def proof_images(config: UNetConfig) -> list[np.ndarray]:
    """The batches of images on which an exported model is checked."""
    return [images_of(config, shape) for shape in CHECKED[config.dims]]


def relative_difference(logits: Tensor, expected: Tensor) -> float:
    """The largest difference between logits, as a share of the largest expected one where that is above 1."""
    if logits.shape != expected.shape:
        return float("inf")
    difference = (logits - expected).abs().max().item()
    return difference / max(1.0, expected.abs().max().item())


def images_of(config: UNetConfig, shape: Sequence[int]) -> np.ndarray:
    """Images of noise about the mean of the training images, and of their type.

    Args:
        shape: the batch size, and the size of each image.

    Returns:
        (B, C, *spatial); for volumes, the network's input.
    """
    preprocess = config.preprocess
    generator = np.random.default_rng(sum(shape))
    count, *size = shape
    noise = generator.standard_normal((count, config.in_channels, *size))
    mean = np.resize(preprocess.mean or (127.0,), config.in_channels)
    std = np.resize(preprocess.std or (64.0,), config.in_channels)
    column = (-1, *[1] * config.dims)
    pixels = mean.reshape(column) + std.reshape(column) * noise
    kind = np.dtype((preprocess.pixel_types or ("uint8",))[0])
    if config.dims == 3 or kind.kind == "f":
        return pixels.astype(np.float32)
    limits = np.iinfo(kind)
    return pixels.round().clip(max(limits.min, 0), limits.max).astype(kind)


@torch.inference_mode()
def expected_logits(model: UNet, batches: Sequence[np.ndarray]) -> list[Tensor]:
    """The network's logits for batches of images, (B, num_classes, *spatial) each.

    Args:
        batches: the images; batches of volumes hold the network's input.
    """
    predictor = Predictor(fold_batch_norm(copy.deepcopy(model)), tta=False)
    expected = []
    for batch in batches:
        if model.config.dims == 3:
            expected.append(model(torch.from_numpy(batch)))
            continue
        inputs = [predictor.inputs(image.transpose(1, 2, 0)) for image in batch]
        expected.append(torch.stack(predictor.logits_of_batch(inputs)))
    return expected


def import_package(package: str, install: str) -> ModuleType:
    """A library that a format needs; ModelError that names the command to `install` it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModelError(f"{package} is not installed: {install}") from error
