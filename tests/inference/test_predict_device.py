"""Prediction on a device: work is queued without waiting, and results are fetched once for an image or a written strip.

Proved on torch's meta device, whose tensors have shapes but no values: reading one raises, and so does mixing devices.

Modules: inference/pipeline.py, inference/work.py, tasks/job.py.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import inference.predictor
import tasks.decoder
from data_utils.image_io.formats import PageFile
from data_utils.image_io.windowed import WindowedArray
from inference import Predictor
from inference.pipeline import PredictionPipeline
from inference.requested_outputs import RequestedOutputs
from tasks import new_format
from tasks.job import MASK, OVERLAY, PROBABILITIES, Job
from unet import Preprocess, UNet, UNetConfig


def network(scale: float = 1.0, device: str = "meta") -> UNet:
    preprocess = Preprocess(scale=scale, class_names=("sky", "land", "sea"), class_values=(10, 200, 255))
    return UNet(UNetConfig(3, 3, base_channels=2, depth=1, preprocess=preprocess)).to(device)


class Uploads(TorchDispatchMode):
    """Notes each operation that takes CPU tensors and gives meta tensors, and those that would make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        has_cpu = any(leaf.is_cpu for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        if has_cpu and any(leaf.is_meta for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            self.all.append(str(func))
            if not (kwargs or {}).get("non_blocking"):  # a pageable copy, or an index on the CPU
                self.waits.append(str(func))
        return out


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors the host gets each time it waits; they are zeros, since meta tensors have no values."""
    counts = []

    def zeros(tensors: Sequence[Tensor]) -> list[Tensor]:
        counts.append(len(tensors))
        return [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]

    monkeypatch.setattr(tasks.decoder, "download", zeros)
    return counts


SHAPES = [(100, 80), (90, 60)]
IMAGES = [np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES]


predictors = pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({}, 1.0),
        ({"tta": True}, 1.3),
        ({"tile_size": 48}, 1.0),
        ({"tile_size": 48}, 0.5),
        ({"tile_size": 48, "overlap": 8}, 1.3),
        ({"tile_size": 48, "tta": True}, 0.5),
    ],
)


def views(predictor: Predictor) -> int:
    """How many views of an image a predictor averages."""
    return 8 if predictor.tta else 1


def predictor_of(scale: float, options: dict) -> tuple[Predictor, list[int]]:
    """A predictor, and a list that gets an entry in each of its forward passes."""
    model = network(scale)
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    return Predictor(model, **options), passes


@predictors
def test_uploads_of_a_batch_are_few_without_a_wait(options, scale):
    predictor, passes = predictor_of(scale, options)
    with Uploads() as uploads:
        logits = predictor.logits_of_batch([predictor.inputs(image) for image in IMAGES])
    assert [tuple(of_image.shape) for of_image in logits] == [(3, *shape) for shape in SHAPES]
    assert uploads.waits == []
    assert len(uploads.all) == len(passes) // views(predictor)  # the tiles of a forward pass


@predictors
def test_uploads_of_strips_are_few_without_a_wait(options, scale):
    predictor, passes = predictor_of(scale, options)
    with Uploads() as uploads:
        strips = list(predictor.strips(WindowedArray(IMAGES[0])))
    assert uploads.waits == []
    is_resized = scale != 1
    assert len(uploads.all) == len(passes) // views(predictor) + is_resized * len(strips)


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


def test_a_mask_takes_one_wait_with_its_probabilities(downloads):
    mask, probabilities = Predictor(network())(IMAGES[0])
    assert mask.dtype == np.uint8
    assert mask.shape == SHAPES[0]
    assert probabilities.dtype == np.float32
    assert probabilities.shape == (3, *SHAPES[0])
    assert downloads == [3]  # and whether all logits are finite


def jobs(folder: Path, count: int) -> list[Job]:
    """Images with true masks."""
    for index in range(count):
        Image.fromarray(IMAGES[0]).save(folder / f"{index}.png")
        Image.fromarray(np.full(SHAPES[0], 10, np.uint8)).save(folder / f"{index}.truth.png")
    return [
        Job(
            image=folder / f"{i}.png",
            size=SHAPES[0],
            output=folder / "out" / f"{i}",
            truth=PageFile(folder / f"{i}.truth.png"),
        )
        for i in range(count)
    ]


written_files = pytest.mark.parametrize(
    ("extensions", "tensors", "count"),
    [((MASK,), 2, 2), ((MASK, OVERLAY, PROBABILITIES), 3, 1)],
    ids=["masks of two images", "all files of an image"],
)


def run_pipeline(batches: list[list[Job]], extensions: tuple[str, ...]) -> None:
    """Predict and score; the scores come from what was fetched, and each file is there."""
    predictor = Predictor(network(0.5), ensemble=[network()], tile_size=48, tta=True)
    writer = RequestedOutputs(new_format(predictor.config), extensions)
    results = list(PredictionPipeline(predictor, writer, set()).run(batches))
    jobs_done = [job for batch in batches for job in batch]
    assert [int(score.scores.sums[0, 0]) for _, score in results] == [100 * 80] * len(jobs_done)
    assert all(job.file(extension).stat().st_size for job in jobs_done for extension in extensions)


# a tensor more says how sure the prediction is, which is scored too
@written_files
def test_host_waits_once_for_each_image(downloads, tmp_path, extensions, tensors, count):
    run_pipeline([jobs(tmp_path, count)], extensions)
    assert downloads == [tensors + 1] * count


@written_files
def test_host_waits_once_for_each_written_strip(downloads, monkeypatch, tmp_path, extensions, tensors, count):
    monkeypatch.setattr(inference.predictor, "WINDOW_MEMORY", 0)
    run_pipeline([[job] for job in jobs(tmp_path, count)], extensions)
    assert downloads == [tensors + 1] * 2 * count  # of 64 rows
