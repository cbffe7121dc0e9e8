"""What happens at which step of a run, and where a run stands, in numbers that are written out.

Modules: train_utils/schedule.py, train_utils/run_state.py, train_utils/optim.py, train_utils/ema.py.
"""

from pathlib import Path

import pytest
import torch
from in_process import parsed
from safetensors.torch import save_file
from torch import nn

from tasks.classes import Classes, ClassScores
from train_utils.ema import WeightAverage
from train_utils.evaluation import Evaluation
from train_utils.optim import build_optimizer
from train_utils.run_state import RunState
from train_utils.schedule import Schedule, learning_rate


def schedule(*flags: str, images: int = 10, total_steps: int | None = None) -> Schedule:
    return Schedule.from_args(
        parsed("--dataset", "shapes", "--plan", "none", "--batch-size", "4", *flags), images, total_steps
    )


def steps_of(predicate, last: int = 12) -> list[int]:
    return [step for step in range(1, last + 1) if predicate(step)]


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("cosine", [0.05, 0.5, 0.5, 0.42677669529663687, 0.25, 0.07322330470336312, 0.0, 0.0]),
        ("poly", [0.05, 0.5, 0.5, 0.38594475336178524, 0.2679433656340733, 0.14358729437462936, 0.0, 0.0]),
        ("constant", [0.05, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_the_learning_rate_has_these_values(kind, rates):
    steps = (0, 9, 10, 20, 30, 40, 50, 70)
    assert [learning_rate(step, 50, 0.5, 10, kind) for step in steps] == pytest.approx(rates, rel=1e-12, abs=1e-15)


def test_a_run_that_is_all_warm_up_has_a_learning_rate():
    assert learning_rate(3, 4, 0.5, 4, "cosine") == 0.5
    assert learning_rate(4, 4, 0.5, 4, "cosine") == 0.5  # no step is left that could lower it
    assert learning_rate(0, 1, 0.5, 0, "cosine") == 0.5


def test_a_schedule_follows_from_the_images_and_the_batch():
    plain = schedule()
    assert (plain.steps_per_epoch, plain.total_steps, plain.warmup_steps) == (3, 30, 1)
    assert (plain.log_every, plain.eval_every, plain.checkpoint_every) == (10, 3, 3)
    assert (plain.peak, plain.kind, plain.patience, plain.encoder_factor) == (0.001, "cosine", None, 0.1)
    assert schedule("--epochs", "13").warmup_steps == 1
    assert schedule("--epochs", "14").warmup_steps == 2
    assert schedule("--warmup-steps", "0").warmup_steps == 0
    assert schedule("--log-every", "0").log_every == 3
    assert schedule("--eval-every", "5", "--checkpoint-every", "7").checkpoint_every == 7
    assert schedule(images=8).steps_per_epoch == 2
    assert schedule(images=9).steps_per_epoch == 3
    assert schedule(total_steps=77).total_steps == 77


def test_an_encoder_learns_at_a_tenth_of_the_rate_unless_its_weights_are_random():
    flags = ("--encoder", "lite0")
    assert schedule(*flags).encoder_factor == 0.1
    assert schedule(*flags, "--encoder-weights", "random").encoder_factor == 1.0
    assert schedule(*flags, "--encoder-weights", "random", "--encoder-lr-factor", "0.3").encoder_factor == 0.3


def test_steps_that_log_evaluate_and_save():
    plan = schedule("--log-every", "5", "--eval-every", "4", "--checkpoint-every", "3", total_steps=11)
    assert steps_of(plan.is_log_step) == [5, 10, 11, 12]
    assert steps_of(plan.is_evaluation_step) == [4, 8, 11, 12]
    assert steps_of(plan.is_checkpoint_step) == [3, 6, 9, 11, 12]
    assert steps_of(plan.needs_results) == [3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert steps_of(plan.is_last) == [11, 12]
    assert plan.epoch(6) == 2.0
    assert plan.epoch(4) == 4 / 3


def test_a_run_is_over_at_its_last_step_or_out_of_patience():
    plan = schedule("--patience", "2", total_steps=11)
    assert list(plan.remaining(RunState(step=8))) == [8, 9, 10]
    assert not plan.is_over(RunState(step=10))
    assert plan.is_over(RunState(step=11))
    for count, is_out in ((0, False), (1, False), (2, True), (3, True)):
        state = RunState(step=4, evaluations_since_best=count)
        assert plan.is_out_of_patience(state) is plan.is_over(state) is is_out
    assert not schedule(total_steps=11).is_over(RunState(step=4, evaluations_since_best=99))


class WithEncoder(nn.Module):
    """A network whose encoder has one frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
        self.encoder[1].requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Conv1d(3, 2, 1)


def test_weights_are_grouped_by_encoder_and_by_what_decays():
    optimizer = build_optimizer(WithEncoder(), "adamw", 0.5, 0.01)
    groups = []
    for group in optimizer.param_groups:
        shapes = [tuple(parameter.shape) for parameter in group["params"]]
        groups.append((group["of_encoder"], group["weight_decay"], shapes))
    assert sorted(groups) == [
        (False, 0.0, [(3,), (3,), (2,)]),
        (False, 0.01, [(2, 3, 1)]),
        (True, 0.0, [(3,)]),
        (True, 0.01, [(3, 2)]),
    ]
    rate = schedule("--learning-rate", "0.5", "--schedule", "constant", "--warmup-steps", "0").set_learning_rate(
        optimizer, 3
    )
    assert rate == 0.5
    assert {(group["of_encoder"], group["lr"]) for group in optimizer.param_groups} == {(False, 0.5), (True, 0.05)}


def test_the_optimizers_are_those_that_the_help_describes():
    sgd = build_optimizer(WithEncoder(), "sgd", 0.5, 0.01).defaults
    assert (sgd["momentum"], sgd["nesterov"], sgd["fused"]) == (0.9, True, True)
    adamw = build_optimizer(WithEncoder(), "adamw", 0.5, 0.01)
    assert type(adamw) is torch.optim.AdamW
    assert adamw.defaults["betas"] == (0.9, 0.999)
    assert adamw.defaults["fused"]


def test_an_average_goes_on_from_its_file_or_from_the_weights_where_there_is_none(tmp_path: Path):
    model = nn.Linear(2, 1, bias=False)
    average = WeightAverage(model, 0.9)
    save_file({"weight": torch.tensor([[7.0, 8.0]])}, tmp_path / "average.safetensors")
    average.restore(tmp_path)
    assert average.tensors["weight"].tolist() == [[7, 8]]
    with torch.no_grad():
        model.weight.fill_(3)
    average.restore(tmp_path / "none")
    assert average.tensors["weight"].tolist() == [[3, 3]]
    assert WeightAverage(model, 0.0).tensors == {}


def evaluation(step: int, hits: int) -> Evaluation:
    """One whose classes both have this IoU, in hundredths."""
    matrix = torch.tensor([[2 * hits, 100 - hits], [100 - hits, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(("a", "b"), matrix, torch.tensor([[hits / 100]])))


def test_the_best_evaluation_is_remembered_and_what_came_after_it_counted():
    state = RunState()
    assert state.best_evaluation(Classes(("a", "b"))) is None
    assert state.update(evaluation(3, 0)), "a score of 0 is better than none"
    assert (state.best, state.best_step, state.evaluations_since_best) == (0.0, 3, 0)
    assert state.best_evaluation(Classes(("a", "b"))).step == 3
    improvements = [state.update(evaluation(step, hits)) for step, hits in ((6, 50), (9, 50), (12, 20))]
    assert improvements == [True, False, False]
    assert (state.best, state.best_step, state.evaluations_since_best) == (0.5, 6, 2)
    best = state.best_evaluation(Classes(("a", "b")))
    assert (best.step, best.loss) == (6, None)
    assert best.scores.sums.tolist() == [[100, 50], [50, 100]]
    state.forget_best()
    assert (state.best, state.evaluations_since_best) == (-1.0, 0)
    assert state.best_evaluation(Classes(("a", "b"))) is None


def test_a_state_of_an_earlier_version_is_read_and_one_of_a_later_version_is_refused():
    old = {"step": 4, "best": 0.5, "best_matrix": [[1, 0], [0, 1]], "best_images": [[0.5]]}
    state = RunState.from_json(old)
    assert state.best_scores == {"sums": [[1, 0], [0, 1]], "by_image": [[0.5]]}
    assert (state.step, state.skipped, state.window) == (4, 0, {"total": 0.0, "steps": 0})
    assert "best_matrix" in old  # what was read stays as it is
    with pytest.raises(ValueError, match="its run holds wheels, wings"):
        RunState.from_json(old | {"wings": 2, "wheels": 4})
