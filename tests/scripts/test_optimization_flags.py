"""Flags of train.py that say how a network is trained."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.flag_runs import PLAIN, Trainer, moved
from support.in_process import Run, parsed, run_train

from train_utils import start
from train_utils.slabs import Slabs
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
    """The mean of -log Dice, smoothed by a thousandth of a pixel, over images and classes."""
    probs, truth = logits.softmax(dim=1), F.one_hot(masks, 2).permute(0, 3, 1, 2).double()
    overlap, sizes = (probs * truth).sum(dim=(2, 3)), probs.sum(dim=(2, 3)) + truth.sum(dim=(2, 3))
    return -((2 * overlap + 1e-3) / (sizes + 1e-3)).log().mean().item()


WITHOUT_LENGTH = PLAIN[: PLAIN.index("--max-steps")] + PLAIN[PLAIN.index("--max-steps") + 2 :]


@pytest.mark.flags("--max-minutes")
def test_of_minutes_and_epochs_the_shorter_ends_the_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr("train_utils.schedule.PROGRAM_START", time.monotonic())  # this process is old
    flags = ["--dataset", run.data, *WITHOUT_LENGTH, "--batch-size", "4", "--max-minutes", "9", "--epochs"]
    by_epochs = run_train(tmp_path / "epochs", *flags, "2")
    assert by_epochs.steps("train/loss") == [1, 2, 3, 4]
    assert by_epochs.settings["flags"]["max_minutes"] == 9


@pytest.mark.flags("--like")
def test_like_repeats_the_steps_of_a_run_by_the_clock(run, tmp_path):
    record = run().settings
    record["flags"] |= {"max_minutes": 3, "max_steps": None}
    (tmp_path / "run.json").write_text(json.dumps(record | {"total_steps": 7}))
    args = parsed("--like", tmp_path / "run.json", "--seed", "5")
    assert args.max_steps == 7
    assert args.max_minutes is None
    assert args.batch_size == 8
    assert args.seed == 5


@pytest.mark.flags("--batch-size")
def test_batch_size_is_a_share_of_an_epoch(run):
    assert run("--batch-size", "4").values("epoch")[0] == 0.5


@pytest.mark.flags("--max-steps")
def test_max_steps_stand_instead_of_epochs(run):
    assert run.fresh("--max-steps", "3", "--epochs", "2").steps("train/loss") == [1, 2, 3]


@pytest.mark.flags("--epochs")
def test_epochs_are_counted_in_steps(run, tmp_path):
    flags = ["--epochs", "2", "--batch-size", "4"]
    result = run_train(tmp_path / "out", "--dataset", run.data, *WITHOUT_LENGTH, *flags)
    assert result.steps("train/loss") == [1, 2, 3, 4]


@pytest.mark.flags("--micro-batch-size")
def test_micro_batches_add_up_to_the_batch(run, monkeypatch):
    plain = run()
    sizes = []
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, images: sizes.append(len(images)) or forward(self, images))
    result = run.fresh("--micro-batch-size", "3")
    assert sizes == [3, 3, 2, 3]  # the step's images, and the validation images
    assert result.settings["micro_batch_size"] == 3
    assert result.settings["accumulation"] == 3
    assert result.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=FLOAT32)
    assert result.values("train/grad_norm") == pytest.approx(plain.values("train/grad_norm"), rel=FLOAT32)


@pytest.mark.flags("--patience")
def test_patience_ends_a_run_that_gets_no_better(run):
    still = ("--learning-rate", "1e-12", "--max-steps", "6", "--eval-every", "1")
    assert run(*still).steps("eval/loss") == [1, 2, 3, 4, 5, 6]
    result = run(*still, "--patience", "2")
    assert result.steps("eval/loss") == [1, 2, 3]
    assert "no better mean IoU in 2 evaluations, stopping at step 3" in result.output


@pytest.mark.flags("--learning-rate")
@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_learning_rate_is_the_length_of_a_step(run, rate):
    sgd = run("--learning-rate", str(rate))
    length = SGD_FIRST_STEP * rate * sgd.values("train/grad_norm")[0]
    assert sgd.values("train/lr") == [rate]
    assert moved(sgd).norm().item() == pytest.approx(length, rel=1e-4)  # differences of float32 weights


@pytest.mark.flags("--optimizer")
def test_adamw_moves_each_weight_by_the_learning_rate(run):
    distances = moved(run("--optimizer", "adamw", "--learning-rate", "0.001")).abs()
    assert distances.max().item() == pytest.approx(0.001, rel=1e-3)  # whatever its gradient
    assert (distances > 0.00099).float().mean() > 0.9


@pytest.mark.flags("--weight-decay")
def test_weight_decay_shrinks_filters_alone(run):
    rate, decay = 0.001, 0.5
    flags = ("--optimizer", "adamw", "--learning-rate", str(rate))
    without, decayed = run(*flags), run(*flags, "--weight-decay", str(decay))
    for name, before in without.weights(0).items():
        lost = without.weights(1)[name] - decayed.weights(1)[name]
        expected = rate * decay * before if before.ndim > 1 else torch.zeros_like(before)
        assert torch.allclose(lost, expected, rtol=0, atol=2e-7), name  # a few units in float32's last place


SCHEDULE_PROGRESS = [step / 6 for step in range(6)]


@pytest.mark.flags("--schedule", "--warmup-steps")
@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("cosine", [0.05 * (1 + math.cos(math.pi * progress)) for progress in SCHEDULE_PROGRESS]),
        ("poly", [0.1 * (1 - progress) ** 0.9 for progress in SCHEDULE_PROGRESS]),
        ("constant", [0.1] * 6),
    ],
    ids=["cosine", "poly", "constant"],
)
def test_schedule_sets_the_learning_rate_behind_the_warmup_steps(run, kind, rates):
    length = ("--max-steps", "8", "--warmup-steps", "2", "--eval-every", "8", "--checkpoint-every", "8")
    assert run(*length, "--schedule", kind).values("train/lr") == pytest.approx([0.05, 0.1, *rates])


@pytest.mark.flags("--max-grad-norm")
def test_max_grad_norm_shortens_a_step(run):
    norm = run().values("train/grad_norm")[0]
    result = run("--max-grad-norm", "0.01")
    assert norm > 0.02
    assert result.values("train/grad_norm") == [norm]
    assert moved(result).norm().item() == pytest.approx(SGD_FIRST_STEP * 0.1 * 0.01, rel=1e-3)


@pytest.mark.flags("--ema-decay")
def test_ema_decay_averages_weights(run):
    result = run("--ema-decay", "0.2", "--max-steps", "2", "--eval-every", "2")
    for name, average in result.weights(0).items():
        for step in (1, 2):
            decay = min(0.2, (1 + step) / (10 + step))  # 2/11 of the first step is smaller, 3/12 of the second larger
            average = decay * average + (1 - decay) * result.weights(step)[name]
        assert torch.allclose(result.model[name], average, rtol=0, atol=1e-6), name
    filters = "stem.conv1.weight"
    assert not torch.allclose(result.model[filters], result.weights(2)[filters], atol=1e-4)


@pytest.mark.flags("--ddp-comm-hook")
def test_ddp_comm_hook_is_an_option_of_ddp(run, monkeypatch):
    calls = []
    monkeypatch.setattr(start, "distributed_options", lambda hook: calls.append(hook) or [])
    run.fresh("--ddp-comm-hook", "fp16")
    assert calls == ["fp16"]


@pytest.mark.flags("--processes-per-volume")
def test_processes_per_volume_make_slabs(run, monkeypatch):
    sizes = []
    of_process = Slabs.of_process
    monkeypatch.setattr(Slabs, "of_process", lambda *place: sizes.append(place[2]) or of_process(*place[:2], size=1))
    run.fresh("--processes-per-volume", "1")
    assert set(sizes) == {1}
    assert parsed("--processes-per-volume", "4").processes_per_volume == 4


@pytest.mark.flags("--deep-supervision", "--no-deep-supervision")
def test_deep_supervision_adds_heads_in_training(run):
    assert parsed().deep_supervision
    assert not parsed("--no-deep-supervision").deep_supervision
    plain, deep = run("--depth", "4"), run("--depth", "4", "--deep-supervision")
    heads = [f"heads.{level}.conv.{kind}" for level in (0, 1) for kind in ("bias", "weight")]
    assert plain.model.keys() == deep.model.keys()
    assert sorted(deep.weights(1).keys() - plain.weights(1).keys()) == heads


@pytest.mark.flags("--plan")
def test_plan_may_be_none_or_auto(run):
    assert "plan: " not in run().output
    assert "plan: --scale 1" in run.fresh("--plan", "auto").output


@pytest.fixture(scope="module")
def predicted(run) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and masks of the first batch."""
    return first_batch(run(), run.data)


def focal(logits: torch.Tensor, masks: torch.Tensor) -> float:
    """The focal loss with the exponent 2."""
    each = F.cross_entropy(logits, masks, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean().item()


def cross_entropy(logits: torch.Tensor, masks: torch.Tensor) -> float:
    return F.cross_entropy(logits, masks).item()


@pytest.mark.flags("--loss")
@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("ce", [cross_entropy]),
        ("dice", [soft_dice]),
        ("ce+dice", [cross_entropy, soft_dice]),
        ("ce+logdice", [cross_entropy, log_dice]),
        ("focal+dice", [focal, soft_dice]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_loss_is_a_sum_of_its_terms(run, predicted, kind, terms):
    value = sum(term(*predicted) for term in terms)
    assert run("--loss", kind).values("train/loss") == pytest.approx([value], rel=FLOAT32)


@pytest.mark.flags("--class-weights")
def test_class_weights_weigh_pixels(run, predicted):
    logits, masks = predicted
    weighted = F.cross_entropy(logits, masks, torch.tensor([1.0, 3.0], dtype=torch.float64)).item()
    result = run("--loss", "ce", "--class-weights", "1", "3")
    assert result.values("train/loss") == pytest.approx([weighted], rel=FLOAT32)


def val_pixels(data: Path) -> torch.Tensor:
    """How many pixels of the validation masks are of each class."""
    masks = [np.asarray(Image.open(file)) // 255 for file in (data / "val" / "masks").iterdir()]
    return torch.bincount(torch.tensor(np.stack(masks)).flatten().long(), minlength=2).double()


@pytest.mark.flags("--class-weights")
def test_class_weights_auto_balance_the_pixels_of_all_masks(run, predicted):
    logits, masks = predicted
    pixels = torch.bincount(masks.flatten(), minlength=2).double() + val_pixels(run.data)
    balanced = F.cross_entropy(logits, masks, (pixels.sum() / (2 * pixels)).sqrt()).item()
    result = run("--loss", "ce", "--class-weights", "auto")
    assert result.values("train/loss") == pytest.approx([balanced], rel=FLOAT32)
