"""Prediction on a device: work is queued without waiting, and results are fetched once for an image.

Proved on torch's meta device, whose tensors have shapes but no values: reading one raises, and so does mixing devices.

test_waits.py counts the waits of the whole script.

Modules: inference/predictor.py, tasks/prediction.py, tasks/job.py.
"""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tasks.prediction
from data_utils.image_io.windowed import WindowedArray
from inference import Predictor
from unet import Preprocess, UNet, UNetConfig


def network(scale: float = 1.0, device: str = "meta") -> UNet:
    preprocess = Preprocess(scale=scale, class_names=("sky", "land", "sea"), class_values=(10, 200, 255))
    return UNet(UNetConfig(3, 3, base_channels=2, depth=1, preprocess=preprocess)).to(device)


class Uploads(TorchDispatchMode):
    """Notes each operation that takes CPU tensors, gives meta tensors, and would make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        has_cpu = any(leaf.is_cpu for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        has_meta = any(leaf.is_meta for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        if has_cpu and has_meta and not (kwargs or {}).get("non_blocking"):  # a pageable copy, or an index on the CPU
            self.waits.append(str(func))
        return out


SHAPES = [(100, 80), (90, 60)]
IMAGES = [np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES]


predictors = pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"tta": True}, 1.3),
        ({"tile_size": 48}, 0.5),
        ({"tile_size": 48, "overlap": 8}, 1.3),
        ({"tile_size": 48, "tta": True}, 0.5),
    ],
)


@predictors
def test_a_batch_is_queued_without_a_wait(options, scale):
    predictor = Predictor(network(scale), **options)
    with Uploads() as uploads:
        logits = predictor.logits_of_batch([predictor.inputs(image) for image in IMAGES])
    assert [tuple(of_image.shape) for of_image in logits] == [(3, *shape) for shape in SHAPES]
    assert uploads.waits == []


@predictors
def test_strips_are_queued_without_a_wait(options, scale):
    predictor = Predictor(network(scale), **options)
    with Uploads() as uploads:
        strips = list(predictor.strips(WindowedArray(IMAGES[0])))
    assert strips
    assert uploads.waits == []


@pytest.mark.parametrize("step", [1, -1], ids=["second", "first"])
@pytest.mark.parametrize("device", ["meta", "cpu"])  # an ONNX file computes on the CPU
def test_an_ensemble_is_averaged_on_the_device_without_a_wait(device, step):
    networks = [network(), network(0.5, device)][::step]
    predictor = Predictor(networks[0], ensemble=networks[1:], tile_size=48)
    with Uploads() as uploads:
        (logits,) = predictor.logits_of_batch([predictor.inputs(IMAGES[0])])
        strips = list(predictor.strips(WindowedArray(IMAGES[0])))
    assert uploads.waits == []
    assert logits.is_meta
    assert all(strip.is_meta for strip in strips)


def test_a_mask_takes_one_wait_with_its_probabilities(monkeypatch):
    """The host gets zeros, since meta tensors have no values."""
    downloads = []

    def zeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        downloads.append(len(tensors))
        return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}

    monkeypatch.setattr(tasks.prediction, "download", zeros)
    mask, probabilities = Predictor(network())(IMAGES[0])
    assert mask.dtype == np.uint8
    assert mask.shape == SHAPES[0]
    assert probabilities.dtype == np.float32
    assert probabilities.shape == (3, *SHAPES[0])
    assert downloads == [3]  # and whether all logits are finite
