"""What train.py hands on to those that measure and save: images of a step, operations, losses that are not logged yet.

Modules: train.py.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from support.folders import write_splits
from support.in_process import run_train

import train
from data_utils.analysis.dataset_info import DatasetInfo
from train_utils.memory.preflight import Preflight
from train_utils.monitoring.flops import training_flops


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """A run of six steps in epochs of three, with the arguments of some calls."""
    folder = tmp_path_factory.mktemp("accounts")
    write_splits(folder, 10, 2, size=(16, 24))
    calls: dict[str, list] = {"images": [], "operations": [], "average": [], "rates": [], "within": [], "steps": []}
    within: list[str] = []  # the contexts that are open

    @contextmanager
    def opened(name: str) -> Iterator[None]:
        within.append(name)
        try:
            yield
        finally:
            within.remove(name)

    def noted(name: str, function: Callable) -> Callable:
        """The function, which says within which contexts it is called."""

        def note(*arguments, **options):
            calls["within"].append((name, *within))
            return function(*arguments, **options)

        return note

    class Monitor(train.Monitor):
        def __init__(self, accelerator, model, *arguments, flops, **options) -> None:
            calls["operations"].append(flops / training_flops(model, 3))
            super().__init__(accelerator, model, *arguments, flops=flops, **options)

        def pause(self) -> AbstractContextManager[None]:
            return opened("pause")

        def show(self) -> None:
            calls["steps"].append(f"show {self.state.step}")
            super().show()

        def close(self) -> None:
            calls["steps"].append("close")
            super().close()

        def end_step(self, images: float) -> None:
            calls["images"].append(images)
            super().end_step(images)

        def log_training(self, learning_rate: float) -> None:
            calls["rates"].append((self.state.step, learning_rate))
            super().log_training(learning_rate)

    class Pace(train.Pace):
        def check(self, step: int) -> None:
            calls["steps"].append(f"pace {step}")
            super().check(step)

    class RunLog(train.RunLog):
        def finish(self) -> None:
            calls["steps"].append("finish")
            super().finish()

    fit_batch_split = Preflight.fit_batch_split

    def fit_noted(self, *arguments):
        calls["average"].append(self.copies.all_weights)
        return fit_batch_split(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "Monitor", Monitor)
        patch.setattr(Preflight, "fit_batch_split", fit_noted)
        patch.setattr(train, "Pace", Pace)
        patch.setattr(train, "RunLog", RunLog)
        patch.setattr(train, "first_on_each_machine", lambda accelerator: opened("first of its machine"))
        patch.setattr(train, "build_loaders", noted("loaders", train.build_loaders))
        patch.setattr(DatasetInfo, "open_here", noted("data", DatasetInfo.open_here))
        patch.setattr(train, "evaluate", noted("evaluation", train.evaluate))
        patch.setattr(train.Checkpoints, "save", noted("save", train.Checkpoints.save))
        patch.setattr(train.Publisher, "write_results", lambda *_: None)
        flags = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--num-workers", "0", "--tracker", "none"]
        flags += ["--batch-size", "4", "--max-steps", "6", "--log-every", "5", "--checkpoint-every", "2"]
        flags += ["--eval-every", "3", "--keep-checkpoints", "9", "--ema-decay", "0.9", "--warmup-steps", "4"]
        result = run_train(folder / "run", "--dataset", folder, *flags)
    assert result.exit_code == 0, result.output
    return result, calls


def state(folder: Path, step: int) -> dict:
    return json.loads((folder / "checkpoints" / f"step-{step:08}" / "state.json").read_text())


def test_speed_of_a_step_follows_its_mean_images_with_their_pixels(run):
    _, calls = run
    assert calls["images"] == [10 / 3] * 6
    assert calls["operations"] == pytest.approx([16 * 24])


def test_memory_is_kept_for_an_average_where_there_is_one(run):
    _, calls = run
    assert calls["average"] == [True]


def test_a_checkpoint_holds_the_losses_that_are_not_logged_yet(run):
    result, _ = run
    windows = {step: state(result.folder, step)["run"]["window"] for step in (2, 4, 6)}
    assert [windows[step]["steps"] for step in (2, 4, 6)] == [2, 4, 0]
    assert 0 < windows[2]["total"] < windows[4]["total"]
    assert windows[6]["total"] == 0
    assert result.steps("train/loss") == [5, 6]


def test_the_rate_that_is_logged_is_that_of_the_step_that_was_made(run):
    result, calls = run
    assert calls["rates"][0] == (5, 0.001)  # the warm-up has ended, the cosine has not begun to fall
    assert calls["rates"][1][0] == 6
    assert calls["rates"][1][1] == pytest.approx(0.0005)
    assert result.values("train/lr") == [rate for _, rate in calls["rates"]]


def test_the_score_of_a_checkpoint_is_that_of_its_own_evaluation_alone(run):
    result, _ = run
    assert state(result.folder, 2)["score"] is None
    assert state(result.folder, 4)["score"] is None
    assert state(result.folder, 6)["score"] == result.values("eval/mean_iou")[-1]
    assert result.steps("eval/mean_iou") == [3, 6]
    assert set(result.checkpoints()) >= {0, 2, 3, 4, 6}  # the start of the run, and its first and best evaluation


def test_time_of_training_leaves_out_evaluations_saves_first_reads(run):
    _, calls = run
    saves = [("save",), *[("save", "pause")] * 4]  # before the first step nothing is timed
    evaluations = [("evaluation", "pause")] * 2
    assert calls["within"][:2] == [("data", "first of its machine"), ("loaders", "first of its machine")]
    later = [call for call in calls["within"] if call[0] in ("save", "evaluation")]
    assert sorted(later) == [*evaluations, *saves]


def test_each_step_is_shown_before_its_pace_is_judged(run):
    _, calls = run
    expected = []
    for step in range(1, 7):
        expected += [f"show {step}", f"pace {step}"]
    assert calls["steps"][:-2] == expected


def test_the_end_of_a_run_closes_the_log(run):
    _, calls = run
    assert calls["steps"][-2:] == ["close", "finish"]
