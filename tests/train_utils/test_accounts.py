"""What train.py hands on to those that measure and save: images of a step, operations, losses that are not logged yet.

Modules: train.py.
"""

import json
from pathlib import Path

import pytest
from conftest import write_folder
from in_process import run_train

import train
from train_utils.monitoring.flops import training_flops


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """A run of six steps in epochs of three, with the arguments of some calls."""
    folder = tmp_path_factory.mktemp("accounts")
    write_folder(folder / "train", 10, seed=0, size=(16, 24))
    write_folder(folder / "val", 2, seed=1, size=(16, 24))
    calls: dict[str, list] = {"images": [], "operations": [], "average": [], "rates": []}

    class Monitor(train.Monitor):
        def __init__(self, accelerator, model, *arguments, flops, **options) -> None:
            calls["operations"].append(flops / training_flops(model, 3))
            super().__init__(accelerator, model, *arguments, flops=flops, **options)

        def end_step(self, images: float) -> None:
            calls["images"].append(images)
            super().end_step(images)

        def log_training(self, learning_rate: float) -> None:
            calls["rates"].append((self.state.step, learning_rate))
            super().log_training(learning_rate)

    fit_batch_split = train.fit_batch_split

    def fit_noted(*arguments):
        calls["average"].append(arguments[-1].all_weights)
        return fit_batch_split(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "Monitor", Monitor)
        patch.setattr(train, "fit_batch_split", fit_noted)
        patch.setattr(train.Publisher, "write_results", lambda *_: None)
        flags = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--num-workers", "0", "--tracker", "none"]
        flags += ["--batch-size", "4", "--max-steps", "6", "--log-every", "5", "--checkpoint-every", "2"]
        flags += ["--eval-every", "3", "--keep-checkpoints", "9", "--ema-decay", "0.9", "--warmup-steps", "4"]
        result = run_train(folder / "run", "--dataset", folder, *flags)
    assert result.exit_code == 0, result.output
    return result, calls


def state(folder: Path, step: int) -> dict:
    return json.loads((folder / "checkpoints" / f"step-{step:08}" / "state.json").read_text())


def test_a_step_has_the_mean_number_of_images_and_an_image_the_operations_of_its_pixels(run):
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
    assert 0 < windows[2]["total"] < windows[4]["total"] and windows[6]["total"] == 0
    assert result.steps("train/loss") == [5, 6]


def test_the_rate_that_is_logged_is_that_of_the_step_that_was_made(run):
    result, calls = run
    assert calls["rates"][0] == (5, 0.001)  # the warm-up has ended, the cosine has not begun to fall
    assert calls["rates"][1][0] == 6 and calls["rates"][1][1] == pytest.approx(0.0005)
    assert result.values("train/lr") == [rate for _, rate in calls["rates"]]


def test_the_score_of_a_checkpoint_is_that_of_its_own_evaluation_alone(run):
    result, _ = run
    assert state(result.folder, 2)["score"] is None and state(result.folder, 4)["score"] is None
    assert state(result.folder, 6)["score"] == result.values("eval/mean_iou")[-1]
    assert result.steps("eval/mean_iou") == [3, 6]
    assert set(result.checkpoints()) >= {0, 2, 3, 4, 6}  # the start of the run, and its first and best evaluation
