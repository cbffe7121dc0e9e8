"""Records of a run that somebody has damaged are made again or passed over, in a line each; what is good stays."""

import json
import shutil

import pytest
from support.folders import write_folder
from support.in_process import run_train

from runtime.errors import CheckpointError, WriteError
from train_utils.checkpoints import find_checkpoint, fingerprint

FLAGS = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--norm", "group", "--num-workers", "0"]
FLAGS += ["--batch-size", "2", "--max-steps", "4", "--checkpoint-every", "2", "--log-every", "1", "--tracker", "none"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A data set, and the output folder of a run that ended at its second checkpoint of two."""
    folder = tmp_path_factory.mktemp("records")
    write_folder(folder / "data" / "train", 4, seed=0, size=(16, 16))
    write_folder(folder / "data" / "val", 2, seed=1, size=(16, 16))
    assert run_train(folder / "run", "--dataset", folder / "data", *FLAGS).exit_code == 0
    return folder


@pytest.fixture
def output(stopped, tmp_path):
    """A copy of the run's folder, its marker removed."""
    folder = shutil.copytree(stopped / "run", tmp_path / "run")
    (folder / "finished.json").unlink()
    (tmp_path / "data").symlink_to(stopped / "data")
    return folder


def change_state(output, change):
    """Change state.json of the newest checkpoint, whose manifest goes with it."""
    path = output / "checkpoints/step-00000004"
    state = json.loads((path / "state.json").read_text())
    change(state)
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"state.json": fingerprint(path / "state.json")}))


def resume(output):
    data = (output.parent / "data").resolve()
    return run_train(output, "--dataset", data, *FLAGS, "--resume", "auto")


@pytest.mark.parametrize("content", ["", '{"new": 1}'])
def test_a_damaged_run_json_is_written_anew_from_the_checkpoint(output, content):
    (output / "run.json").write_text(content)
    run = resume(output)
    assert run.exit_code == 0, run.output
    assert run.settings["micro_batch_size"] == 2


@pytest.mark.parametrize(
    ("part", "change", "line"),
    [
        (None, {"wings": 2}, "holds wings, which this version does not know"),
        ("model", {"wings": 2}, "holds wings, which this version does not know"),
        ("model", {"kernels": 3}, "kernels is 3, expected a list"),
        ("run", {"step": -1}, "step is -1, expected a whole number of at least 0"),
        ("run", {"best": "high"}, 'best is "high"'),
        ("run", {"window": {"sums": 1}}, "window holds sums"),
        ("flags", {"crop_size": 64}, "crop_size is 64"),
        (None, {"micro_batch_size": 2.5}, "micro_batch_size is 2.5"),
    ],
)
def test_a_checkpoint_of_a_newer_version_or_with_impossible_values_is_passed_over(output, part, change, line, capsys):
    change_state(output, lambda state: (state[part] if part else state).update(change))
    checkpoint = find_checkpoint("auto", output / "checkpoints")
    assert checkpoint.path.name == "step-00000002"
    assert line in capsys.readouterr().out


def test_damaged_scores_of_the_best_model_end_a_run_before_its_first_step(output):
    change_state(output, lambda state: state["run"].update(best_scores={"sums": "many"}))
    with pytest.raises(CheckpointError, match=r"state\.json .* best_scores are damaged"):
        resume(output)


@pytest.mark.parametrize("step", ["4", 4.5])
def test_a_finished_json_of_another_shape_does_not_count(output, step):
    (output / "finished.json").write_text(json.dumps({"step": step}))
    run = resume(output)
    assert run.exit_code == 0
    assert "resumed from" in run.output


def test_a_folder_in_the_place_of_finished_json_is_one_line(output):
    (output / "finished.json").mkdir()
    with pytest.raises(WriteError, match=r"finished\.json cannot be removed \(.*\); move it away"):
        resume(output)
