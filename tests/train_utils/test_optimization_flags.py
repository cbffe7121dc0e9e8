"""Flags of train.py that say how a network is trained."""

import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flag_runs import PLAIN, Trainer, moved
from in_process import Run, parsed, run_train
from PIL import Image

import train
from runtime.mesh import Mesh
from train_utils.memory.preflight import Preflight
from unet import UNet

SGD_FIRST_STEP = 1.9  # Nesterov momentum 0.9: the first step goes 1 + 0.9 times the gradient
FLOAT32 = 1e-5  # relative rounding of sums over a few thousand pixels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


def first_batch(run: Run, data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (8, 2, H, W) of the training images from the weights that the run began with, and their masks."""
    model = UNet.from_pretrained(run.folder / "model")
    model.load_state_dict(run.weights(0))
    files = sorted((data / "train" / "images").glob("*.png"))
    images = torch.tensor(np.stack([np.asarray(Image.open(file)) for file in files])).permute(0, 3, 1, 2)
    masks = [np.asarray(Image.open(file.parent.parent / "masks" / file.name)) // 255 for file in files]
    with torch.no_grad():
        return model(images).double(), torch.tensor(np.stack(masks)).long()


def soft_dice(logits: torch.Tensor, masks: torch.Tensor) -> float:
    """One minus Dice of each image and class, averaged; every class is in every image here."""
    probs, truth = logits.softmax(dim=1), F.one_hot(masks, 2).permute(0, 3, 1, 2).double()
    dice = 2 * (probs * truth).sum(dim=(2, 3)) / (probs.sum(dim=(2, 3)) + truth.sum(dim=(2, 3)))
    return (1 - dice).mean().item()


def log_dice(logits: torch.Tensor, masks: torch.Tensor) -> float:
    """As `soft_dice`, of -log Dice smoothed by a thousandth of a pixel."""
    probs, truth = logits.softmax(dim=1), F.one_hot(masks, 2).permute(0, 3, 1, 2).double()
    overlap, sizes = (probs * truth).sum(dim=(2, 3)), probs.sum(dim=(2, 3)) + truth.sum(dim=(2, 3))
    return -((2 * overlap + 1e-3) / (sizes + 1e-3)).log().mean().item()


def val_pixels(data: Path) -> torch.Tensor:
    masks = [np.asarray(Image.open(file)) // 255 for file in (data / "val" / "masks").iterdir()]
    return torch.bincount(torch.tensor(np.stack(masks)).flatten().long(), minlength=2).double()


@pytest.mark.flags("--max-minutes", "--like")
def test_a_run_fills_the_given_minutes_which_its_record_repeats_in_steps(run, tmp_path, monkeypatch):
    monkeypatch.setattr("train_utils.monitoring.rehearsal.steps_that_fit", lambda *_: 2)
    monkeypatch.setattr("train_utils.monitoring.rehearsal.MOST_STEPS", 0)
    flags = PLAIN[: PLAIN.index("--max-steps")] + PLAIN[PLAIN.index("--max-steps") + 2 :]
    measured = run_train(tmp_path / "run", "--dataset", run.data, *flags, "--max-minutes", "9")
    assert measured.steps("train/loss") == [1, 2]
    assert measured.settings["flags"]["max_minutes"] == 9
    args = parsed("--like", tmp_path / "run" / "run.json", "--seed", "5")
    assert (args.max_steps, args.max_minutes, args.batch_size, args.seed) == (2, None, 8, 5)


@pytest.mark.flags("--batch-size", "--epochs", "--max-steps")
def test_a_run_has_the_given_steps_or_epochs(run, tmp_path):
    assert run("--batch-size", "4").values("epoch")[0] == 0.5
    result = run.fresh("--max-steps", "3", "--epochs", "2")
    assert result.steps("train/loss") == [1, 2, 3]  # --max-steps stands instead of --epochs
    flags = PLAIN[: PLAIN.index("--max-steps")] + PLAIN[PLAIN.index("--max-steps") + 2 :]
    result = run_train(tmp_path / "out", "--dataset", run.data, *flags, "--epochs", "2", "--batch-size", "4")
    assert result.steps("train/loss") == [1, 2, 3, 4]


@pytest.mark.flags("--micro-batch-size")
def test_micro_batches_have_the_loss_of_their_batch(run, monkeypatch):
    plain = run()
    sizes = []
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, images: sizes.append(len(images)) or forward(self, images))
    with mock.patch.object(Preflight, "fit_batch_split", lambda self, shape, batch_split: batch_split):
        result = run.fresh("--micro-batch-size", "3")
    assert sizes == [3, 3, 2, 3]  # the step's images, and the validation images
    assert (result.settings["micro_batch_size"], result.settings["accumulation"]) == (3, 3)
    assert result.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=FLOAT32)
    assert result.values("train/grad_norm") == pytest.approx(plain.values("train/grad_norm"), rel=FLOAT32)


@pytest.mark.flags("--patience")
def test_a_run_without_progress_ends_early(run):
    still = ("--learning-rate", "1e-12", "--max-steps", "6", "--eval-every", "1")
    assert run(*still).steps("eval/loss") == [1, 2, 3, 4, 5, 6]
    result = run(*still, "--patience", "2")
    assert result.steps("eval/loss") == [1, 2, 3]
    assert "no better mean IoU in 2 evaluations, stopping at step 3" in result.output


@pytest.mark.flags("--optimizer", "--learning-rate")
def test_an_optimizer_steps_by_the_learning_rate(run):
    for rate in ("0.1", "0.02"):
        sgd = run("--learning-rate", rate)
        assert sgd.values("train/lr") == [float(rate)]
        expected = SGD_FIRST_STEP * float(rate) * sgd.values("train/grad_norm")[0]
        assert moved(sgd).norm().item() == pytest.approx(expected, rel=1e-4)  # differences of float32 weights
    adamw = moved(run("--optimizer", "adamw", "--learning-rate", "0.001")).abs()
    assert adamw.max().item() == pytest.approx(0.001, rel=1e-3)  # each by the learning rate, whatever its gradient
    assert (adamw > 0.00099).float().mean() > 0.9


@pytest.mark.flags("--weight-decay")
def test_weights_decay_unless_they_are_biases(run):
    rate, decay = 0.001, 0.5
    flags = ("--optimizer", "adamw", "--learning-rate", str(rate))
    without, decayed = run(*flags), run(*flags, "--weight-decay", str(decay))
    for name, before in without.weights(0).items():
        lost = without.weights(1)[name] - decayed.weights(1)[name]
        expected = rate * decay * before if before.ndim > 1 else torch.zeros_like(before)
        assert torch.allclose(lost, expected, rtol=0, atol=2e-7), name  # a few units in float32's last place


@pytest.mark.flags("--schedule", "--warmup-steps")
def test_a_learning_rate_follows_its_schedule(run):
    length = ("--max-steps", "8", "--warmup-steps", "2", "--eval-every", "8", "--checkpoint-every", "8")
    rates = {kind: run(*length, "--schedule", kind).values("train/lr") for kind in ("cosine", "poly", "constant")}
    progress = [(step - 2) / 6 for step in range(2, 8)]
    assert rates["cosine"] == pytest.approx([0.05, 0.1, *(0.05 * (1 + math.cos(math.pi * part)) for part in progress)])
    assert rates["poly"] == pytest.approx([0.05, 0.1, *(0.1 * (1 - part) ** 0.9 for part in progress)])
    assert rates["constant"] == pytest.approx([0.05] + [0.1] * 7)


@pytest.mark.flags("--max-grad-norm")
def test_a_gradient_is_clipped_to_the_norm(run):
    norm = run().values("train/grad_norm")[0]
    result = run("--max-grad-norm", "0.01")
    assert norm > 0.02
    assert result.values("train/grad_norm") == [norm]
    assert moved(result).norm().item() == pytest.approx(SGD_FIRST_STEP * 0.1 * 0.01, rel=1e-3)


@pytest.mark.flags("--ema-decay")
def test_a_model_is_the_moving_average_of_its_weights(run):
    result = run("--ema-decay", "0.2", "--max-steps", "2", "--eval-every", "2")
    for name, average in result.weights(0).items():
        for step in (1, 2):
            decay = min(0.2, (1 + step) / (10 + step))  # 2/11 of the first step is smaller, 3/12 of the second larger
            average = decay * average + (1 - decay) * result.weights(step)[name]
        assert torch.allclose(result.model[name], average, rtol=0, atol=1e-6), name
        assert name != "stem.conv1.weight" or not torch.allclose(result.model[name], result.weights(2)[name], atol=1e-4)


@pytest.mark.flags("--ddp-comm-hook")
def test_gradients_are_exchanged_by_the_hook(run, monkeypatch):
    calls = []
    monkeypatch.setattr(train, "distributed_options", lambda hook: calls.append(hook) or [])
    run.fresh("--ddp-comm-hook", "fp16")
    assert calls == ["fp16"]


@pytest.mark.flags("--processes-per-volume")
def test_processes_share_volumes_in_groups(run, monkeypatch):
    sizes = []
    from_process = Mesh.from_process
    monkeypatch.setattr(Mesh, "from_process", lambda *place: sizes.append(place[2]) or from_process(*place[:2], size=1))
    run.fresh("--processes-per-volume", "1")
    assert sizes == [1]
    assert parsed("--processes-per-volume", "4").processes_per_volume == 4


@pytest.mark.flags("--deep-supervision", "--no-deep-supervision")
def test_deep_supervision_adds_heads_that_no_model_has(run):
    plain, deep = run("--depth", "4"), run("--depth", "4", "--deep-supervision")
    assert plain.model.keys() == deep.model.keys()
    assert sorted(deep.weights(1).keys() - plain.weights(1).keys()) == [
        f"heads.{level}.conv.{kind}" for level in (0, 1) for kind in ("bias", "weight")
    ]
    assert parsed().deep_supervision
    assert not parsed("--no-deep-supervision").deep_supervision


@pytest.mark.flags("--plan")
def test_a_plan_is_made_where_it_is_asked_for(run):
    assert "plan: " not in run().output
    assert "plan: --scale 1" in run.fresh("--plan", "auto").output


@pytest.mark.flags("--loss", "--class-weights")
def test_a_loss_is_that_of_its_formula(run):
    logits, masks = first_batch(run(), run.data)
    each = F.cross_entropy(logits, masks, reduction="none")
    focal = ((1 - torch.exp(-each)) ** 2 * each).mean().item()
    dice = soft_dice(logits, masks)
    expected = {
        "ce": each.mean().item(),
        "dice": dice,
        "ce+dice": each.mean().item() + dice,
        "ce+logdice": each.mean().item() + log_dice(logits, masks),
        "focal+dice": focal + dice,
    }
    for kind, value in expected.items():
        assert run("--loss", kind).values("train/loss") == pytest.approx([value], rel=FLOAT32), kind
    weighted = F.cross_entropy(logits, masks, torch.tensor([1.0, 3.0], dtype=torch.float64)).item()
    assert run("--loss", "ce", "--class-weights", "1", "3").values("train/loss") == pytest.approx(
        [weighted], rel=FLOAT32
    )
    pixels = torch.bincount(masks.flatten(), minlength=2).double() + val_pixels(run.data)
    balanced = F.cross_entropy(logits, masks, (pixels.sum() / (2 * pixels)).sqrt()).item()
    assert run("--loss", "ce", "--class-weights", "auto").values("train/loss") == pytest.approx([balanced], rel=FLOAT32)
