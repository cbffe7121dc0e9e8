"""The end of a run and each of its evaluations: what is saved, printed, shown and published.

What fails on the way to the Hub costs no run.

Module: train_utils/run_log.py.
"""

import shutil
import time
from pathlib import Path

import huggingface_hub
import pytest
from support.folders import write_splits
from support.in_process import Run, run_train
from support.launches import TINY
from support.saved_checkpoints import evaluation

import train
from runtime.errors import WriteError
from train_utils import run_log
from train_utils.evaluation import Evaluation
from train_utils.run_log import push_to_hub
from unet import UNet

FLAGS = [*TINY, "--max-steps", "4", "--eval-every", "2", "--batch-size", "4", "--tracker", "none"]
FLAGS += ["--schedule", "constant", "--warmup-steps", "0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Six images to train on, and three to validate."""
    return write_splits(tmp_path_factory.mktemp("data"), 6, 3, size=(16, 24))


def scored(patch: pytest.MonkeyPatch, *scores: float) -> None:
    """Give the evaluations of a run these scores, one after another."""
    evaluate = train.evaluate
    remaining = list(scores)

    def evaluate_as(*arguments: object) -> Evaluation:
        result = evaluate(*arguments)
        result.scores.sums = evaluation(result.step, remaining.pop(0)).scores.sums
        return result

    patch.setattr(train, "evaluate", evaluate_as)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    """A run of four steps that was best after two."""
    with pytest.MonkeyPatch.context() as patch:
        scored(patch, 0.6, 0.5)
        return run_train(tmp_path_factory.mktemp("runs") / "run", "--dataset", data, *FLAGS)


def test_the_best_evaluation_is_saved_and_reported_with_card_scores_of_images_and_remarks(run):
    first, second = [line for line in run.output.splitlines() if line.startswith("step ")]
    assert first.startswith("step 2: mean IoU 0.6")
    assert first.endswith("(best so far, saved)")
    assert "best so far" not in second
    assert "step 2" in (run.folder / "model" / "README.md").read_text()
    lines = (run.folder / "images.csv").read_text().splitlines()
    assert lines[0] == "image,mean IoU"
    assert len(lines) == 4
    assert f"best model in {run.folder / 'model'}, report in {run.folder / 'report.html'}" in run.output
    report = (run.folder / "report.html").read_text()
    assert "4 of 4" in report
    remark = "The score is measured on 3 images only"
    assert remark in report
    assert remark in run.output


def test_predictions_are_those_of_the_model_that_was_saved(run, data, tmp_path):
    shorter = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-steps", "2")
    pictures = sorted((run.folder / "predictions").iterdir())
    assert len(pictures) == 3
    for picture in pictures:
        assert picture.read_bytes() == (shorter.folder / "predictions" / picture.name).read_bytes()


def test_a_run_whose_disk_refuses_each_model_has_a_report_and_is_incomplete(data, tmp_path, monkeypatch):
    def refuse(network: UNet, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UNet, "save_pretrained", refuse)
    with pytest.raises(WriteError, match="run is incomplete: files could not be written"):
        run_train(tmp_path / "run", "--dataset", data, *FLAGS)
    assert (tmp_path / "run" / "report.html").exists()
    assert not (tmp_path / "run" / "finished.json").exists()
    assert not (tmp_path / "run" / "images.csv").exists()


@pytest.mark.parametrize("is_published", [True, False])
def test_a_run_is_marked_as_finished_once_its_model_is_published(run, data, tmp_path, monkeypatch, is_published):
    assert (run.folder / "finished.json").exists()
    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    (folder / "finished.json").unlink()
    monkeypatch.setattr("train_utils.run_log.huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr(run_log, "push_to_hub", lambda *given: is_published)
    run_train(folder, "--dataset", data, *FLAGS, "--resume", "auto", "--push-to-hub", "me/cells")
    assert (folder / "finished.json").exists() is is_published


def test_a_run_by_the_clock_that_is_stopped_has_no_planned_steps(data, tmp_path, monkeypatch):
    monkeypatch.setattr("train_utils.schedule.PROGRAM_START", time.monotonic())  # this process is old
    monkeypatch.setattr(train.StepGuard, "run_ends", property(lambda guard: guard.state.step == 3))
    flags = ["--max-minutes", "9", *TINY, "--batch-size", "4", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", data, *flags)
    assert "stopped after step 3; all is saved; continue with: " in run.output
    assert not (tmp_path / "run" / "finished.json").exists()


class Hub:
    """A stand-in for the Hub: the names of its repositories, and what was uploaded."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, repo_id: str, **_: object) -> huggingface_hub.RepoUrl:
        self.created.append(repo_id)
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, repo_id: str, folder_path: Path, **_: object) -> None:
        assert repo_id in self.created
        self.files = {path.name: path.read_bytes() for path in folder_path.iterdir()}


def test_a_run_whose_tracker_cannot_start_goes_on_and_publishes_all_files_of_its_model(
    tiny_folder, tmp_path, monkeypatch
):
    """A run with --push-to-hub whose tracker cannot start, and what the Hub has received."""
    output = tmp_path / "run"
    output.mkdir()
    (output / "tensorboard").write_text("a file where the tracker wants its folder")
    flags = ["--max-steps", "2", "--push-to-hub", "me/cells", "--resume", "auto"]
    hub = Hub()
    for name in ("create_repo", "upload_folder"):
        monkeypatch.setattr(huggingface_hub, name, getattr(hub, name))
    monkeypatch.setenv("HF_TOKEN", "secret")
    run = run_train(output, "--dataset", tiny_folder, *TINY, *flags)
    assert run.exit_code == 0, run.output
    assert len([line for line in run.output.splitlines() if line.startswith("tracker tensorboard failed")]) == 1
    assert "training goes on without it" in run.output
    assert (run.folder / "report.html").exists()
    assert hub.created == ["me/cells"]
    assert "model published: " in run.output
    assert hub.files == {path.name: path.read_bytes() for path in (run.folder / "model").iterdir()}


def test_an_upload_that_fails_costs_one_line_with_the_command_to_repeat(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    push_to_hub(tmp_path, "me/cells")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("could not upload to me/cells (OfflineModeIsEnabled: ")
    assert line.endswith(f"to try again: hf upload me/cells {tmp_path}")
