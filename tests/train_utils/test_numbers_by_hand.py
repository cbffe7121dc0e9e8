"""Patches, intervals, records, front matter and axes of a run, worked out by hand.

Modules: train_utils/settings/plan.py, train_utils/settings/sizes.py, train_utils/settings/record.py,
train_utils/settings/hints.py, train_utils/reporting/model_card.py, train_utils/reporting/charts.py,
train_utils/reporting/report.py, train_utils/run_dir.py, train_utils/run_state.py, train_utils/schedule.py,
unet/axes.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from in_process import parsed

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from data_utils.targets.classes import ClassReader
from runtime.errors import SettingsError
from tasks.calibration import no_counts
from tasks.classes import Classes, ClassScores
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import FoundCheckpoint
from train_utils.evaluation import Evaluation
from train_utils.memory.limit import MemoryLimit
from train_utils.reporting import charts
from train_utils.reporting.charts import curve
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.model_card import model_card
from train_utils.run_dir import OpenedRun
from train_utils.run_state import RunState
from train_utils.schedule import Schedule, learning_rate
from train_utils.settings.data_checks import check_axes
from train_utils.settings.plan import Plan, plan_run
from train_utils.settings.record import RunSettings
from train_utils.settings.run_length import LONG, SHORT, run_length
from train_utils.settings.sizes import patch_size
from unet import UNet, UNetConfig
from unet.axes import level_axes
from unet.config import Preprocess


def split_of(count: int, size: tuple[int, ...], spacing: tuple[float, ...] | None = None) -> Split:
    """Records that are never read, all of one size."""
    records = ListRecords([{"image": b"", "target": b"", "name": f"{number}"} for number in range(count)])
    records.dims = len(size)
    spacings = None if spacing is None else np.full((count, 3), spacing)
    return Split(records, np.full((count, len(size)), size), spacings=spacings)


def info_of(train: Split, val: Split | None = None, channels: int = 1) -> DatasetInfo:
    reader = ClassReader(ClassMap(("a", "b"), (0, 1), None), (1, 1))
    values = (1.0,) * channels
    return DatasetInfo(DataConfig(), train, val or train, reader, Normalization(values, values, ("uint8",)))


@pytest.mark.parametrize(
    ("size", "spacing", "minutes", "patch"),
    [
        ((100, 300, 300), (1, 1, 1), 60, (112, 160, 160)),  # of 100, 144 and 145: four and five poolings
        ((30, 300, 300), (1, 1, 1), 59, (32, 64, 64)),  # of 30, 60 and 61: two and three
        ((20, 300, 300), (4, 1, 1), 60, (20, 320, 320)),  # two poolings along z, five along the others
        ((40, 40, 40), (1, 1, 1), 60, (40, 40, 40)),  # none beyond the volume
        ((40, 60, 400), (5, 1, 1), 59, (20, 64, 112)),  # 60 rows are the shortest in mm
        ((20, 400, 400), (200, 0.5, 0.5), 10, (1, 384, 384)),  # there is no room for a slice
    ],
)
def test_patches_are_as_long_along_each_axis_and_what_a_short_one_leaves_the_others_have(size, spacing, minutes, patch):
    assert patch_size(info_of(split_of(5, size, spacing)), run_length(minutes)) == patch


def test_patches_of_a_model_to_start_from_have_its_spacing():
    info = info_of(split_of(5, (200, 200, 200), (1, 1, 1)))
    assert patch_size(info, LONG, Preprocess(spacing=(2.0, 2.0, 2.0))) == (112, 112, 112)  # of 100, in steps of 16
    few_slices = info_of(split_of(5, (4, 64, 64), (1, 1, 1)))
    assert patch_size(few_slices, LONG, Preprocess(spacing=(10.0, 1.0, 1.0)))[0] == 1  # of 0.4


def test_volumes_without_a_plan_have_patches_of_the_time_of_the_checkpoint_or_of_the_model_before(tmp_path):
    info = info_of(split_of(5, (200, 200, 200), (1, 1, 1)))

    def patch(*flags: str, state: CheckpointState | None = None, model: Path | None = None) -> tuple[int, ...]:
        source = None if model is None else str(model)
        start = OpenedRun(tmp_path, FoundCheckpoint(None, state, []), MemoryLimit(), source)
        return start.with_plan(parsed("--dataset", "data", "--plan", "none", *flags), info).crop_size

    long, short = patch_size(info, LONG), patch_size(info, SHORT)
    assert patch() == long
    assert patch("--max-minutes", "59") == short != long
    for recorded, expected in (([4, 5, 6], (4, 5, 6)), (None, long)):
        settings = RunSettings(flags={"crop_size": recorded})
        assert patch(state=CheckpointState(settings, UNetConfig(), RunState(), None, None)) == expected
    config = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(2.0, 2.0, 2.0)))
    UNet(config).save_pretrained(tmp_path / "model")
    assert patch(model=tmp_path / "model") == (112, 112, 112)  # of its spacing


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ((), 40),  # 41 x 4,096 x (1/3 + 1/24) are 19.2 times a tenth of the epoch's 2 x 4 x 4,096
        (("--scale", "0.5"), 52),  # 41 x (1,024 / 3 + 4,096 / 24) = 25.6 x 819.2
        (("--image-size", "32", "32"), 52),
        (("--crop-size", "32", "32"), 154),  # images are evaluated whole: 76.9 x 819.2
        (("--batch-size", "8"), 20),  # an epoch is one step: 19.2 of them, rounded up
    ],
)
def test_evaluations_take_a_tenth_of_the_time_of_training(flags, steps):
    info = info_of(split_of(8, (64, 64)), split_of(41, (64, 64)))
    settings = parsed("--dataset", "data", *flags)
    plan = plan_run(info, settings)
    assert plan.eval_every == plan.checkpoint_every == steps
    assert plan_run(info, parsed("--dataset", "data", "--eval-every", "7")).checkpoint_every == 7


def test_a_plan_of_images_is_this():
    plan = plan_run(info_of(split_of(40, (64, 64))), parsed("--dataset", "data", "--batch-size", "5"))
    assert (plan.scale, plan.crop_size, plan.augment, plan.block) == (1.0, None, "basic", "residual")
    assert (plan.base_channels, plan.batch_size, plan.epochs) == (32, 5, 250)  # 2,000 steps of 5 are 10,000 images
    assert plan.encoder is plan.encoder_weights is plan.freeze_encoder is plan.class_weights is None
    steps = plan_run(info_of(split_of(40, (64, 64))), parsed("--dataset", "data", "--max-steps", "3"))
    assert steps.epochs == 10
    assert plan_run(info_of(split_of(3, (0, 0))), parsed("--dataset", "data")) == Plan()  # a stream


@pytest.mark.parametrize(
    ("flags", "size", "line"),
    [
        (("--crop-size", "8", "8", "8"), (64, 64), "--crop-size 8 8 8: data holds images, which take H W"),
        (("--crop-size", "8", "8"), (64, 64, 64), "--crop-size 8 8: data holds volumes, which take D H W"),
        (("--encoder", "lite0"), (64, 64, 64), "--encoder lite0: takes images, but data holds volumes"),
        (
            ("--normalization", "ct", "--init-from", "m"),
            (64, 64, 64),
            "--normalization: the model of --init-from keeps",
        ),
    ],
)
def test_flags_that_do_not_suit_the_data_are_refused(flags, size, line):
    with pytest.raises(SettingsError) as caught:
        check_axes(info_of(split_of(3, size)), parsed("--dataset", "data", *flags))
    assert str(caught.value).startswith(line)
    check_axes(info_of(split_of(3, (64,) * 2)), parsed("--dataset", "data", "--encoder", "lite0"))


def test_a_resumed_run_has_the_plan_of_its_checkpoint():
    flags = {name: None for name in Plan.names()} | {"batch_size": 7, "epochs": 3, "encoder": "lite0"}
    flags |= {"encoder_weights": "pretrained", "freeze_encoder": True, "eval_every": 5}
    state = CheckpointState(RunSettings(flags=flags), UNetConfig(), RunState(step=4), None, None)
    start = OpenedRun(None, FoundCheckpoint(None, state, []), MemoryLimit())
    info = info_of(split_of(9, (64, 64)))
    settings = start.with_plan(parsed("--dataset", "data", "--epochs", "4"), info)
    assert (settings.batch_size, settings.epochs, settings.encoder, settings.freeze_encoder) == (7, 4, "lite0", True)
    assert settings.eval_every == 5
    settings = start.with_plan(parsed("--dataset", "data", "--encoder", "none"), info)
    assert (settings.encoder_weights, settings.freeze_encoder, settings.batch_size) == (None, None, 7)


def test_settings_of_a_run_survive_their_file_and_old_ones_are_completed():
    settings = RunSettings(
        flags={"task": "grey", "draft": False, "place": True}, identity={"task": "grey"}, total_steps=7
    )
    assert "credentials_left_out" not in settings.to_json()
    assert RunSettings.from_json(settings.to_json() | {"unknown": 1}) == settings
    secret = replace(settings, credentials_left_out=["dataset"])
    assert RunSettings.from_json(secret.to_json()).credentials_left_out == ["dataset"]
    old = RunSettings.from_json({"flags": {"seed": 1, "dataset": "s3://me:word@host/d"}, "identity": {"seed": 1}})
    assert old.flags == {"seed": 1, "dataset": "s3://host/d", "task": "classes", "draft": True, "place": False}
    assert old.identity == {"seed": 1, "task": "classes"}


def card_of(scores: ClassScores, **flags) -> tuple[dict, str]:
    """The front matter of a model card, and its text."""
    settings = RunSettings(
        flags={"dataset": "cells", "epochs": 3, **flags},
        profile={"processes": 2, "mixed_precision": "no"},
        identity={"dims": 2},
        total_steps=40,
        environment={"started": "2026-01-02", "torch": "2.13.0", "accelerate": "1.15.0", "git_commit": "abc"},
    )
    section = ClassSection(ClassReader(ClassMap(("a", "b"), (0, 1), None)))
    text = model_card(settings, Evaluation(30, None, scores), section)
    matter, rest = text.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(matter), rest


def test_the_front_matter_of_a_card_has_the_scores_with_six_decimals():
    matter, _ = card_of(ClassScores(("a", "b"), torch.tensor([[6, 2], [1, 1]]), torch.zeros(0, 1)))
    assert matter["library_name"] == "unet-accelerate"
    assert "pipeline_tag" not in matter
    assert matter["tags"] == ["unet", "semantic-segmentation", "image-segmentation"]
    (entry,) = matter["model-index"]
    assert entry["name"] == "U-Net on cells"
    (result,) = entry["results"]
    assert result["task"] == {"type": "image-segmentation", "name": "Semantic segmentation"}
    assert result["dataset"]["name"] == result["dataset"]["type"] == "cells"
    assert result["dataset"]["split"] == "validation"
    values = {metric["type"]: (metric["name"], metric["value"]) for metric in result["metrics"]}
    assert values == {
        "mean_iou": ("Mean IoU", 0.458333),  # (6 / 9 + 1 / 4) / 2
        "mean_dice": ("Mean Dice", 0.6),  # (12 / 15 + 2 / 5) / 2
        "pixel_accuracy": ("Pixel accuracy", 0.7),
    }
    nothing, _ = card_of(ClassScores(("a", "b"), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(0, 1)))
    assert nothing.keys() == {"library_name", "tags"}


def test_a_score_of_0_stands_in_the_front_matter_of_a_card():
    matter, _ = card_of(ClassScores(("a", "b"), torch.tensor([[0, 2], [1, 0]]), torch.zeros(0, 1)))
    metrics = matter["model-index"][0]["results"][0]["metrics"]
    assert {metric["type"]: metric["value"] for metric in metrics} == {
        "mean_iou": 0,
        "mean_dice": 0,
        "pixel_accuracy": 0,
    }


def test_steps_stand_for_epochs_on_a_card_and_local_folders_for_their_names(tmp_path):
    scores = ClassScores(("a", "b"), torch.tensor([[6, 2], [1, 1]]), torch.zeros(0, 1))
    _, text = card_of(scores, dataset=str(tmp_path), max_steps=40, init_from=f"file://{tmp_path}/m.pth", scale=0.5)
    assert str(tmp_path.parent) not in text
    assert f"U-Net on {tmp_path.name}" in text
    assert "| max steps |" in text
    assert "| epochs |" not in text
    assert "m.pth" in text
    assert "scale" in text
    _, text = card_of(scores)
    assert "| epochs |" in text
    assert "| max steps |" not in text


def test_a_long_curve_is_drawn_by_the_means_of_runs_of_its_points(monkeypatch):
    monkeypatch.setattr(charts, "MAX_POINTS", 3)
    points = np.array([[0, 1], [1, 3], [2, 5], [3, 7], [4, 9], [5, 11]], float)
    assert charts.thinned(points).tolist() == [[0.5, 2], [2.5, 6], [4.5, 10]]
    assert charts.thinned(points[:3]).tolist() == points[:3].tolist()
    plot = curve("Loss", {"training": points.tolist(), "validation": [(3, float("nan"))]}, best_step=4)
    assert plot.last == {"training": 11}
    assert plot.title == "Loss"
    assert 'id="loss-best-step"' in plot.svg
    assert 'aria-label="Loss"' in plot.svg
    assert "loss-series-0" in plot.svg
    assert "loss-series-1" not in plot.svg
    late = curve("A & B", {"a": [(1, 1.0), (2, 2.0)]}, best_step=3)
    assert "best-step" not in late.svg
    assert 'aria-label="A &amp; B"' in late.svg
    assert curve("Loss", {"training": [(1, float("inf"))]}) is None


def test_a_long_class_name_keeps_its_start_and_its_end():
    assert charts.shortened("x" * 24) == "x" * 24
    assert charts.shortened("abcdefghijklmnopqrstuvwxyz") == "abcdefghijk…opqrstuvwxyz"


@pytest.mark.parametrize(
    ("step", "schedule", "rate"),
    [
        (0, "cosine", 0.025),
        (3, "cosine", 0.1),
        (4, "cosine", 0.1),
        (8, "cosine", 0.05),
        (12, "cosine", 0.0),
        (8, "constant", 0.1),
        (8, "poly", 0.1 * 0.5**0.9),
        (99, "poly", 0.0),
    ],
)
def test_the_learning_rate_of_a_step_is_this(step, schedule, rate):
    assert learning_rate(step, 12, 0.1, 4, schedule) == pytest.approx(rate, abs=1e-12)


def schedule_of(*flags: str, images: int = 10, total_steps: int | None = None) -> Schedule:
    return Schedule.from_args(
        parsed("--dataset", "d", "--plan", "none", "--batch-size", "4", *flags), images, total_steps
    )


def test_a_schedule_counts_epochs_of_whole_steps():
    schedule = schedule_of("--epochs", "20")
    assert (schedule.steps_per_epoch, schedule.total_steps, schedule.warmup_steps) == (3, 60, 3)
    assert (schedule.eval_every, schedule.checkpoint_every, schedule.log_every) == (3, 3, 10)
    assert (schedule.peak, schedule.kind, schedule.patience, schedule.encoder_factor) == (0.001, "cosine", None, 0.1)
    assert schedule_of(total_steps=40).total_steps == 40
    assert schedule_of("--warmup-steps", "0").warmup_steps == 0
    assert schedule_of("--encoder", "lite0", "--encoder-weights", "random").encoder_factor == 1.0
    assert schedule_of("--encoder", "lite0", "--encoder-lr-factor", "0.5").encoder_factor == 0.5
    assert (schedule_of("--eval-every", "5").checkpoint_every, schedule_of("--log-every", "2").eval_every) == (3, 3)
    schedule_with_intervals = schedule_of(
        "--eval-every", "5", "--checkpoint-every", "7", "--log-every", "2", "--patience", "2"
    )
    assert (
        schedule_with_intervals.eval_every,
        schedule_with_intervals.checkpoint_every,
        schedule_with_intervals.log_every,
        schedule_with_intervals.patience,
    ) == (5, 7, 2, 2)


def test_what_happens_after_a_step_is_a_function_of_the_step():
    schedule = replace(schedule_of(total_steps=11), log_every=2, eval_every=3, checkpoint_every=5)
    steps = range(1, 12)
    assert [step for step in steps if schedule.is_log_step(step)] == [2, 4, 6, 8, 10, 11]
    assert [step for step in steps if schedule.is_evaluation_step(step)] == [3, 6, 9, 11]
    assert [step for step in steps if schedule.is_checkpoint_step(step)] == [5, 10, 11]
    assert [step for step in steps if not schedule.needs_results(step)] == [1, 7]
    assert schedule.remaining(RunState(step=4)) == range(4, 11)
    assert schedule.epoch(6) == 2
    optimizer = SimpleNamespace(param_groups=[{"of_encoder": False}, {"of_encoder": True}])
    rate = schedule.set_learning_rate(optimizer, 0)
    assert [group["lr"] for group in optimizer.param_groups] == [rate, pytest.approx(0.1 * rate)]
    assert rate == 0.001


def evaluation_of(step: int, hits: int) -> Evaluation:
    """The scores of an evaluation with a mean IoU of hits / 10."""
    matrix = torch.tensor([[hits, 10 - hits], [0, 0]])
    return Evaluation(step, 0.5, ClassScores(("a", "b"), matrix, torch.tensor([[hits / 10]])))


def test_the_best_evaluation_is_the_first_of_the_highest_scores_and_patience_counts_the_others():
    state = RunState()
    assert state.best_evaluation(Classes(("a", "b"))) is None
    improved = [state.update(evaluation_of(step, hits)) for step, hits in ((3, 4), (6, 4), (9, 8), (12, 6))]
    assert improved == [True, False, True, False]
    assert (state.best, state.best_step, state.evaluations_since_best) == (pytest.approx(0.4), 9, 1)
    best = state.best_evaluation(Classes(("a", "b")))
    assert (best.step, best.loss, best.scores.sums.tolist()) == (9, None, [[8, 2], [0, 0]])
    schedule = replace(schedule_of(total_steps=99), patience=2)
    assert not schedule.is_over(state)
    state.update(evaluation_of(15, 1))
    assert schedule.is_out_of_patience(state)
    assert schedule.is_over(state)
    state.forget_best()
    assert (state.best, state.evaluations_since_best) == (-1, 0)
    assert not schedule.is_over(state)
    assert state.update(evaluation_of(18, 0))
    assert state.best == 0
    assert state.best_evaluation(Classes(("a", "b"))).step == 18
    counts = no_counts()
    counts[3] = torch.tensor([5, 4, 9])
    surest = evaluation_of(21, 9)
    surest.scores.add_reliability(counts)
    assert state.update(surest)
    assert state.best_evaluation(Classes(("a", "b"))).scores.reliability.equal(counts)


@pytest.mark.parametrize(
    ("spacing", "patch", "depth", "kernels", "strides"),
    [
        ((1, 1), (64, 64), None, [(3, 3)] * 5, [(2, 2)] * 4),
        ((1, 1), (1024, 1024), None, [(3, 3)] * 6, [(2, 2)] * 5),
        ((1, 1), (64, 64), 2, [(3, 3)] * 3, [(2, 2)] * 2),
        ((1, 1), (6, 6), None, [(3, 3)] * 2, [(2, 2)]),
        ((1, 1), (8, 32), None, [(3, 3)] * 4, [(2, 2), (1, 2), (1, 2)]),
        ((2, 1), (32, 16), None, [(1, 3)] + [(3, 3)] * 4, [(1, 2), (2, 2), (2, 1), (2, 1)]),
        ((1.9, 1), (16, 16), None, [(3, 3)] * 3, [(2, 2)] * 2),
    ],
)
def test_levels_pool_fine_and_long_axes(spacing, patch, depth, kernels, strides):
    assert level_axes(spacing, patch, depth) == (tuple(kernels), tuple(strides))
