"""The folder of a run: made, locked and swept; and where a run in it starts.

Module: train_utils/start.py.
"""

import atexit
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from support.in_process import parsed
from support.runs import opened_run, unplanned
from support.splits import unread_info, unread_split

from data_utils.analysis.dataset_info import DatasetInfo
from runtime.errors import SettingsError
from runtime.files import release_folders
from train_utils.checkpoints import Checkpoint
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from train_utils.settings.train_settings import UNPLANNED, TrainSettings
from train_utils.start import OpenedRun, open_folder, open_run
from unet import UNet, UNetConfig
from unet.config import Preprocess

SMALL_MODEL = UNetConfig(base_channels=2, depth=1)


def checkpoint_of(config: UNetConfig = SMALL_MODEL, **recorded: Any) -> Checkpoint:
    """A checkpoint at step 4 of a run with these records; there is no folder of it."""
    return Checkpoint(Path("step-00000004"), RunSettings(**{"flags": {}} | recorded), config, RunState(step=4), None)


@pytest.fixture
def no_exit(monkeypatch) -> Iterator[None]:
    """Nothing is removed when the tests end, but locks."""
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    yield
    release_folders()


def test_a_folder_that_holds_anything_is_for_a_resumed_run_alone(tmp_path, no_exit):
    (tmp_path / "file").write_text("")
    assert open_folder(tmp_path, "auto") == tmp_path
    with pytest.raises(SettingsError, match="is not an empty folder; choose another"):
        open_folder(tmp_path, None)


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path, no_exit):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be made: Not a directory"):
        open_folder(tmp_path / "file" / "run", None)


def test_a_run_resumed_from_a_checkpoint_continues_in_its_folder(tmp_path, no_exit):
    """A checkpoint in the folder of its run, which is `tmp_path`."""
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    assert open_folder(None, str(checkpoint)) == tmp_path


def test_a_run_without_a_folder_has_one_that_is_named_by_the_time(tmp_path, no_exit, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = open_folder(None, None)
    assert folder.parent == Path("runs")
    assert (tmp_path / folder / "checkpoints").is_dir()
    assert abs(datetime.now() - datetime.strptime(folder.name, "%Y-%m-%d-%H%M%S")) < timedelta(minutes=1)


def test_only_what_is_still_empty_at_the_end_is_removed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    for name in ("failed", "begun"):
        open_folder(tmp_path / name, None)
    release_folders()
    open_folder(tmp_path / "begun", "auto")  # which was there before
    (tmp_path / "made").mkdir()  # by the user
    open_folder(tmp_path / "made", None)
    (tmp_path / "begun" / "run.json").write_text("{}")
    for function, *folders in reversed(calls):
        function(*folders)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["begun", "made", "run.json"]


@pytest.fixture
def resumed(tmp_path) -> TrainSettings:
    """The settings of a run that goes on in `tmp_path`."""
    return parsed("--output-dir", str(tmp_path), "--resume", "auto", "--seed", "5")


@pytest.fixture
def opened(tmp_path, resumed) -> Iterator[OpenedRun]:
    """A run in a folder with half a file and a record; it is locked within the test."""
    (tmp_path / ".unet-0123abcd.tmp").mkdir()
    RunSettings({"activation_checkpointing": True}, micro_batch_size=2).write(tmp_path)
    yield open_run(resumed)
    release_folders()


def test_a_run_that_is_opened_knows_its_record_and_removes_leftovers(opened, tmp_path):
    assert opened.output_dir == tmp_path
    assert opened.flags.seed == 5
    assert opened.record.micro_batch_size == 2
    assert not (tmp_path / ".unet-0123abcd.tmp").exists()


def test_a_run_that_is_opened_is_locked(opened, resumed, tmp_path):
    half = tmp_path / ".unet-4567cdef.tmp"  # which the run is writing
    half.mkdir()
    with pytest.raises(SettingsError, match="is in use by process"):
        open_run(resumed)
    assert half.exists()


@pytest.mark.parametrize(
    ("flags", "added"),
    [
        ([], "--output-dir 'runs/a b' --resume auto"),
        (["--output-dir", "runs/a b"], "--resume auto"),
        (["--resume", "runs/a b/checkpoints/step-00000002"], "--output-dir 'runs/a b' --resume auto"),
        (["--output-dir", "runs/a b", "--resume", "auto"], ""),
    ],
)
def test_a_run_goes_on_with_its_own_command_in_its_own_folder(monkeypatch, flags, added):
    monkeypatch.setattr("sys.argv", ["train.py", *flags])
    monkeypatch.setattr("sys.orig_argv", ["python", "train.py", *flags])
    line = opened_run(Path("runs/a b"), parsed(*flags)).resume_line()
    assert line == " ".join(filter(None, [shlex.join(["python", "train.py", *flags]), added]))


CPU = torch.device("cpu")
IMAGES = unread_info(unread_split(9, (64, 64)))
VOLUMES = unread_info(unread_split(5, (200, 200, 200), (1, 1, 1)))


def test_a_run_of_counted_steps_keeps_them_whatever_minutes_are_given(tmp_path, capsys):
    flags = unplanned("--max-minutes", "3")
    schedule = opened_run(tmp_path, flags, checkpoint_of(total_steps=70)).schedule(flags, IMAGES, 1, CPU)
    assert schedule.total_steps == 70
    assert not schedule.clock.budget
    assert "--max-minutes has no effect on a resumed run, which keeps its 70 steps" in capsys.readouterr().out


@pytest.mark.parametrize(("epochs", "total_steps"), [((), 0), (("--epochs", "5"), 15)])
@pytest.mark.parametrize("recorded", [0, 15])
def test_a_run_by_the_clock_goes_on_with_the_time_that_it_has_used(tmp_path, epochs, total_steps, recorded):
    checkpoint = checkpoint_of(flags={"max_minutes": 3}, total_steps=recorded)
    checkpoint.state.elapsed = 90_000
    flags = unplanned("--max-minutes", "3", *epochs)
    schedule = opened_run(tmp_path, flags, checkpoint).schedule(flags, IMAGES, 1, CPU)
    assert schedule.total_steps == total_steps
    assert schedule.clock.budget == 180_000
    assert schedule.clock.before == 90_000


def resumed_settings(folder: Path, info: DatasetInfo, *typed: str, **recorded: object) -> TrainSettings:
    """The settings of a run that is resumed from a checkpoint with these recorded flags."""
    checkpoint = checkpoint_of(flags=dict.fromkeys(UNPLANNED) | recorded)
    return opened_run(folder, parsed("--dataset", "data", *typed), checkpoint).settings(info)


def test_a_resumed_run_has_the_plan_of_its_checkpoint_but_for_what_is_typed(tmp_path, capsys):
    recorded = {"batch_size": 7, "epochs": 3, "encoder": "lite0", "freeze_encoder": True, "eval_every": 5}
    settings = resumed_settings(tmp_path, IMAGES, "--epochs", "4", **recorded)
    assert {name: getattr(settings, name) for name in recorded} == recorded | {"epochs": 4}
    assert resumed_settings(tmp_path, VOLUMES, "--plan", "none", crop_size=[4, 5, 6]).crop_size == (4, 5, 6)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("typed", [(), ("--init-from", "other")])
def test_a_resumed_run_has_started_from_the_recorded_model_whatever_is_typed(tmp_path, typed):
    settings = resumed_settings(tmp_path, IMAGES, *typed, batch_size=7, init_from="first")
    assert (settings.init_from, settings.plan) == ("first", "none")


def test_a_run_that_goes_on_without_its_encoder_has_none_of_its_flags(tmp_path):
    recorded = {"batch_size": 7, "encoder_weights": "pretrained", "freeze_encoder": True}
    settings = resumed_settings(tmp_path, IMAGES, "--encoder", "none", **recorded)
    assert settings.encoder_weights is None
    assert settings.freeze_encoder is None
    assert settings.batch_size == 7


def test_volumes_have_patches_of_the_spacing_of_the_first_model(tmp_path):
    config = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(2.0, 2.0, 2.0)))
    UNet(config).save_pretrained(tmp_path / "model")
    settings = opened_run(tmp_path, unplanned("--init-from", tmp_path / "model")).settings(VOLUMES)
    assert settings.crop_size == (112, 112, 112)


@pytest.mark.parametrize(
    ("place", "flags", "expected"),
    [(True, "", True), (False, "", False), (False, "--place", True), (False, "--bands 1", True)],
)
def test_a_run_reads_tiffs_as_its_checkpoint_or_first_model_unless_a_flag_says_otherwise(
    tmp_path, place, flags, expected
):
    config = replace(SMALL_MODEL, preprocess=Preprocess(place=place))
    UNet(config).save_pretrained(tmp_path / "model")
    assert opened_run(tmp_path, unplanned(*flags.split()), checkpoint_of(config)).reads_places is expected
    started = unplanned(*flags.split(), "--init-from", tmp_path / "model")
    assert opened_run(tmp_path, started).reads_places is expected
