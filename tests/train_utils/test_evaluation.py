"""What an evaluation is logged as, and what it says; large images are evaluated in tiles with the same result.

Modules: train_utils/run_log.py, inference/tiling/resizing.py.
"""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend
from support.folders import write_folder
from support.in_process import run_train
from torch import Tensor

import inference.tiling.planning
import inference.tiling.resizing
import inference.tiling.stream
import tasks.classes.loss
import tasks.confusion
import train
from data_utils.sources.records import ListRows, Records
from inference.tiling.planning import Tiling
from inference.tiling.resizing import strips_at_sizes
from runtime.errors import TrainingError
from tasks.calibration import no_counts
from tasks.classes.loss import Classes
from tasks.classes.target import ClassTarget
from tasks.objects.loss import Objects
from tasks.objects.target import ObjectTarget
from tasks.step_loss import StepLoss
from train_utils.evaluation import Evaluation, read_strips
from unet import UNet
from unet.config import UNetConfig

FLAGS = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--num-workers", "0", "--tracker", "none"]
FLAGS += ["--max-steps", "1", "--batch-size", "2", "--learning-rate", "0.01"]


def in_tiles(patch: pytest.MonkeyPatch) -> None:
    """Have images computed in the smallest tiles, and volumes in tiles of at most 3000 voxels."""
    for name in ("WHOLE_MEMORY", "TILE_MEMORY", "LARGE_TILE_MEMORY"):
        patch.setattr(inference.tiling.planning, name, 0)
    patch.setattr(inference.tiling.planning, "WHOLE_VOLUME_MEMORY", 3000 * 32 * 2)


def in_strips(patch: pytest.MonkeyPatch) -> None:
    """Have logits taken in strips, though an image is computed whole, and pixels counted few at a time."""
    patch.setattr(inference.tiling.resizing, "WHOLE_LOGITS", 0)
    patch.setattr(tasks.classes.loss, "BYTES_AT_ONCE", 20_000)
    patch.setattr(tasks.confusion, "PIXELS_AT_ONCE", 1000)


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory) -> SimpleNamespace:
    """Evaluations of images, `whole`, `in_tiles` and `in_strips`, with the `tilings` of each."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_folder(folder / "train", 2, seed=0, size=(32, 48))
    write_folder(folder / "val", 2, seed=1, size=(100, 64))
    write_folder(folder / "more", 1, seed=2, size=(48, 90))
    for kind in ("images", "masks"):
        (file,) = (folder / "more" / kind).iterdir()
        file.rename(folder / "val" / kind / "wide.png")
    evaluate = train.evaluate
    choose_tiling = inference.tiling.resizing.choose_tiling
    result = SimpleNamespace(tilings={"whole": [], "tiles": [], "strips": []})
    way = "whole"

    def noted_tiling(*arguments: object) -> Tiling | None:
        result.tilings[way].append(choose_tiling(*arguments))
        return result.tilings[way][-1]

    def evaluate_in_each_way(accelerator: Accelerator, model: UNet, *arguments: object) -> Evaluation:
        nonlocal way
        model.double()  # so that the whole and its tiles are equal but for 1e-15
        result.whole = evaluate(accelerator, model, *arguments)
        with pytest.MonkeyPatch.context() as patch:
            way = "tiles"
            in_tiles(patch)
            result.in_tiles = evaluate(accelerator, model, *arguments)
        with pytest.MonkeyPatch.context() as patch:
            way = "strips"
            in_strips(patch)
            result.in_strips = evaluate(accelerator, model, *arguments)
        model.float()
        return result.whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference.tiling.resizing, "choose_tiling", noted_tiling)
        patch.setattr(train, "evaluate", evaluate_in_each_way)
        run = run_train(folder / "run", *FLAGS, "--dataset", folder, "--scale", "0.75")
    assert run.exit_code == 0, run.output
    return result


def test_large_images_alone_are_evaluated_in_exact_tiles(evaluations):
    tilings = [tiling for tiling in evaluations.tilings["tiles"] if tiling]
    assert not any(evaluations.tilings["whole"])
    assert not any(evaluations.tilings["strips"])
    assert len(tilings) == 2
    assert all(tiling.exact for tiling in tilings)


@pytest.mark.parametrize("way", ["in_tiles", "in_strips"])
def test_an_evaluation_in_parts_has_the_results_of_whole_images(evaluations, way):
    whole, other = evaluations.whole, getattr(evaluations, way)
    assert torch.equal(other.scores.sums, whole.scores.sums)
    assert torch.equal(other.scores.by_image, whole.scores.by_image)
    assert other.loss == pytest.approx(whole.loss, rel=1e-9)


class Batches(list):
    """Batches of validation images, as the loader has them."""

    dataset = range(3)


@pytest.fixture
def network() -> UNet:
    """A network that finds the second of two classes everywhere, with a probability of three quarters."""
    network = UNet(UNetConfig(1, 2, base_channels=2, depth=1))
    with torch.no_grad():
        network.head.conv.weight.zero_()
        network.head.conv.bias.copy_(torch.tensor([0.0, math.log(3)]))
    return network


def accelerator_of(processes: int) -> SimpleNamespace:
    """An accelerator whose processes all have counted the same."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        state=SimpleNamespace(dynamo_plugin=SimpleNamespace(backend=DynamoBackend.NO)),
        autocast=nullcontext,
        unwrap_model=lambda model: model,
        reduce=lambda values, reduction: [value * processes for value in values],
    )


def evaluated(network: UNet, first: int = 0, processes: int = 1, pixel: float = 0) -> Evaluation:
    """The evaluation of batches from the `first` on, two labeled images and one without labels, in each process.

    `pixel` is a value in the second image.
    """
    targets = [ClassTarget(torch.full((side, side), value)) for side, value in [(4, 1), (8, 0), (4, 255)]]
    batches = [
        {"images": torch.rand(2, 1, 8, 8), "targets": targets[:2], "indices": [1, 2]},
        {"images": torch.rand(1, 1, 8, 8), "targets": targets[2:], "indices": [0]},
    ]
    batches[0]["images"][1, 0, 2, 3] = pixel
    criterion = StepLoss(Classes(("a", "b"), "ce"))
    return train.evaluate(accelerator_of(processes), network, Batches(batches[first:]), criterion, 7)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_evaluation_adds_up_what_all_processes_have_counted(network, processes):
    evaluation = evaluated(network, processes=processes)
    assert evaluation.loss == pytest.approx((16 * math.log(4 / 3) + 64 * math.log(4)) / 80)
    assert evaluation.scores.sums.tolist() == [[0, 64 * processes], [0, 16 * processes]]
    assert evaluation.scores.by_image[1:].tolist() == [[processes], [0]]
    assert evaluation.scores.reliability.sum(dim=0)[:2].tolist() == [80 * processes, 16 * processes]


class DepthOfPixels(UNet):
    """A network that takes the values of pixels above 0 for the depth of an object."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        is_object = torch.where(images > 0, 9.0, -9.0)
        return torch.cat([-is_object, is_object, images.logit(eps=1e-3)], dim=1)


@pytest.mark.parametrize(("objects", "peak"), [(1, 100), (2, 26)])
def test_an_evaluation_keeps_the_peak_that_scores_best(objects, peak):
    pixels = torch.zeros(1, 1, 16, 32)
    pixels[..., 4:12, 4:28] = 1
    pixels[..., 14:18] *= 0.7  # a valley
    ids = (pixels[0, 0] > 0).int()
    ids[:, 16:] *= objects
    batch = {"images": pixels, "targets": [ObjectTarget((ids > 0).byte(), ids)], "indices": [0]}
    network = DepthOfPixels(UNetConfig(1, 3, base_channels=2, depth=1, task=Objects().to_config()))
    criterion = StepLoss(Objects().with_variants())
    evaluation = train.evaluate(accelerator_of(1), network, Batches([batch]), criterion, 7)
    assert evaluation.task.peak == peak
    assert evaluation.scores.values["ap50"] == 1


@pytest.mark.parametrize("pixel", [math.nan, math.inf, 3e38])
def test_an_image_without_a_finite_answer_is_named(network, pixel):
    network.head.conv.weight.data.fill_(1e4)
    evaluation = evaluated(network, pixel=pixel)
    assert evaluation.unreadable == [2]
    records = Records(ListRows([{"image": name, "target": name, "name": name} for name in ("a.tif", "b.tif", "c.tif")]))
    with pytest.raises(TrainingError, match=r"1 of 3 validation images .*; look at the values of c\.tif"):
        evaluation.check(records, best_step=0)


def test_one_strip_without_a_finite_answer_is_enough():
    task = Classes(("a", "b"), "ce")
    strips = [torch.zeros(1, 2, 3, 4) for _ in range(3)]
    strips[0][0, 0, 0, 0] = float("nan")
    target = ClassTarget(torch.zeros(1, 9, 4, dtype=torch.int64))
    assert not read_strips(task, strips, target, no_counts())[2]


def test_a_volume_in_exact_tiles_has_the_results_of_the_whole_one(monkeypatch):
    torch.manual_seed(0)
    task = Classes(("a", "b", "c"), "ce+logdice")
    network = UNet(UNetConfig(1, 3, dims=3, base_channels=2, depth=1)).double().eval()
    volume = torch.rand(1, 1, 60, 12, 10, dtype=torch.float64)
    target = ClassTarget(torch.randint(0, 3, (1, 50, 14, 12)))
    target.mask[:, :7] = 255

    def evaluated() -> tuple[Tensor, Tensor, int]:
        (strips,) = strips_at_sizes(network, volume, [target.shape[1:]], network.config)
        strips = list(strips)
        (prediction,), sums, _ = read_strips(task, strips, target, no_counts())
        return prediction, sums, len(strips)

    with torch.inference_mode():
        whole, sums, _ = evaluated()
        in_tiles(monkeypatch)
        monkeypatch.setattr(inference.tiling.planning, "LARGE_TILE_MEMORY", 32 * 4 * 3 * 12 * 10)
        monkeypatch.setattr(inference.tiling.stream, "STRIP_BYTES", 4 * 4 * 3 * 14 * 12)
        assert inference.tiling.planning.choose_tiling(network.config, (60, 12, 10)).exact
        tiled, sums_of_tiles, count = evaluated()
    assert count == 13
    assert torch.equal(tiled, whole)
    torch.testing.assert_close(sums_of_tiles, sums, rtol=1e-9, atol=0)
