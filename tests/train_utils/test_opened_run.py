"""The folder of a run: made, locked and swept; and where a run in it starts.

Module: train_utils/opened_run.py.
"""

import atexit
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.in_process import parsed
from support.runs import SMALL_MODEL, opened_run, state_of, unplanned
from support.splits import unread_info, unread_split

from data_utils.config import DataConfig
from runtime.errors import SettingsError
from runtime.lock import release_folders
from train_utils.memory.limit import MemoryLimit
from train_utils.opened_run import OpenedRun, make_run_dir, open_run
from train_utils.settings.run_length import LONG
from train_utils.settings.sizes import patch_size
from train_utils.settings.train_settings import UNPLANNED, TrainSettings
from unet import UNet, UNetConfig
from unet.config import Preprocess


@pytest.fixture
def no_exit(monkeypatch):
    """Nothing is removed when the tests end."""
    monkeypatch.setattr(atexit, "register", lambda *_: None)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint in the folder of its run, which is `tmp_path`."""
    folder = tmp_path / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


def test_a_folder_that_holds_anything_is_for_a_resumed_run_alone(tmp_path, no_exit):
    (tmp_path / "file").write_text("")
    assert make_run_dir(tmp_path, "auto") == tmp_path
    with pytest.raises(SettingsError, match="is not an empty folder; choose another"):
        make_run_dir(tmp_path, None)


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path, no_exit):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be made: Not a directory"):
        make_run_dir(tmp_path / "file" / "run", None)


def test_a_run_resumed_from_a_checkpoint_continues_in_its_folder(tmp_path, no_exit, checkpoint):
    assert make_run_dir(None, str(checkpoint)) == tmp_path


def test_a_run_without_a_folder_has_one_that_is_named_by_the_time(tmp_path, no_exit, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = make_run_dir(None, None)
    assert folder.parent == Path("runs")
    assert (tmp_path / folder / "checkpoints").is_dir()
    assert abs(datetime.now() - datetime.strptime(folder.name, "%Y-%m-%d-%H%M%S")) < timedelta(minutes=1)


def test_only_what_is_still_empty_at_the_end_is_removed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    for name in ("failed", "begun"):
        make_run_dir(tmp_path / name, None)
    make_run_dir(tmp_path / "begun", "auto")  # which was there before
    (tmp_path / "made").mkdir()  # by the user
    make_run_dir(tmp_path / "made", None)
    (tmp_path / "begun" / "run.json").write_text("{}")
    for function, folders in calls:
        function(folders)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["begun", "made", "run.json"]


@pytest.fixture
def resumed(tmp_path) -> TrainSettings:
    """The settings of a run that goes on in `tmp_path`."""
    return parsed("--output-dir", str(tmp_path), "--resume", "auto", "--init-from", "m")


@pytest.fixture
def opened(tmp_path, resumed) -> Iterator[OpenedRun]:
    """A run in a folder with half a file and a recorded shortage of memory; it is locked within the test."""
    (tmp_path / ".unet-0123abcd.tmp").mkdir()
    (tmp_path / "memory.json").write_text('{"micro_batch_size": 2, "activation_checkpointing": true}')
    yield open_run(resumed)
    release_folders()


def test_a_run_that_is_opened_knows_what_fits_and_removes_leftovers(opened, tmp_path):
    assert opened.output_dir == tmp_path
    assert opened.flags.init_from == "m"
    assert opened.finished_line is None
    assert opened.memory_limit == MemoryLimit(2, True)
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
    line = replace(opened_run(Path("runs/a b")), flags=parsed(*flags)).resume_line()
    assert line == " ".join(filter(None, [shlex.join(["python", "train.py", *flags]), added]))


@pytest.mark.parametrize("flags", ["--max-minutes 3", "--max-minutes 9"])
def test_a_run_of_counted_steps_keeps_them_whatever_minutes_are_given(tmp_path, flags):
    run = opened_run(tmp_path, state_of(total_steps=70))
    assert run.max_steps(unplanned(*flags.split())) == 70


def test_a_run_by_the_clock_goes_on_with_the_time_that_it_has_used(tmp_path):
    state = state_of(flags={"max_minutes": 3})
    state.run_state.elapsed = 90_000
    run = opened_run(tmp_path, state)
    settings = unplanned("--max-minutes", "3")
    assert run.max_steps(settings) is None
    assert run.minutes_used() == 1.5


@pytest.mark.parametrize(
    ("limit", "size"),
    [(MemoryLimit(), 8), (MemoryLimit(2), 2)],
    ids=["no shortage", "a shortage"],
)
def test_the_largest_micro_batch_is_that_of_a_shortage_else_of_the_checkpoint(tmp_path, limit, size):
    assert opened_run(tmp_path, state_of(micro_batch_size=8), limit=limit).largest_micro_batch == size


NO_PLAN = dict.fromkeys(UNPLANNED)
IMAGES = unread_info(unread_split(9, (64, 64)))


def resumed_with_plan(folder: Path, **flags: object) -> OpenedRun:
    """A run that is resumed from a checkpoint with a plan of these flags; all others are None."""
    return opened_run(folder, state_of(flags=NO_PLAN | flags))


@pytest.mark.parametrize("place", [True, False])
def test_a_resumed_run_records_whether_its_data_have_places(tmp_path, place):
    info = replace(IMAGES, config=DataConfig(task="classes", place=place))
    assert resumed_with_plan(tmp_path).with_plan(parsed("--dataset", "data"), info).place is place


def test_a_resumed_run_has_the_plan_of_its_checkpoint_but_for_what_is_typed(tmp_path, capsys):
    run = resumed_with_plan(tmp_path, batch_size=7, epochs=3, encoder="lite0", freeze_encoder=True, eval_every=5)
    settings = run.with_plan(parsed("--dataset", "data", "--epochs", "4"), IMAGES)
    assert settings.batch_size == 7
    assert settings.epochs == 4
    assert settings.encoder == "lite0"
    assert settings.freeze_encoder is True
    assert settings.eval_every == 5
    assert capsys.readouterr().out == ""


def test_a_run_that_goes_on_without_its_encoder_has_none_of_its_flags(tmp_path):
    run = resumed_with_plan(tmp_path, batch_size=7, encoder_weights="pretrained", freeze_encoder=True)
    settings = run.with_plan(parsed("--dataset", "data", "--encoder", "none"), IMAGES)
    assert settings.encoder_weights is None
    assert settings.freeze_encoder is None
    assert settings.batch_size == 7


def test_flags_of_a_resumed_run_must_suit_its_data(tmp_path):
    settings = parsed("--dataset", "data", "--crop-size", "4", "4", "4")
    with pytest.raises(SettingsError, match="--crop-size 4 4 4: data holds images"):
        resumed_with_plan(tmp_path).with_plan(settings, IMAGES)


VOLUMES = unread_info(unread_split(5, (200, 200, 200), (1, 1, 1)))


@pytest.mark.parametrize(
    ("recorded", "patch"), [([4, 5, 6], (4, 5, 6)), (None, patch_size(VOLUMES, LONG))], ids=["recorded", "not recorded"]
)
def test_volumes_of_a_resumed_run_have_the_patches_of_its_checkpoint(tmp_path, recorded, patch):
    run = opened_run(tmp_path, state_of(flags={"crop_size": recorded}))
    assert run.with_plan(unplanned(), VOLUMES).crop_size == patch


def test_volumes_have_patches_of_the_spacing_of_the_first_model(tmp_path):
    config = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(2.0, 2.0, 2.0)))
    UNet(config).save_pretrained(tmp_path / "model")
    settings = opened_run(tmp_path, init_from=tmp_path / "model").with_plan(unplanned(), VOLUMES)
    assert settings.crop_size == (112, 112, 112)


def small_model(place: bool) -> UNetConfig:
    """A model that reads places, or one of an earlier version, which reads pictures."""
    return replace(SMALL_MODEL, preprocess=Preprocess(place=place))


@pytest.mark.parametrize("place", [True, False])
def test_a_resumed_run_reads_tiffs_as_before(tmp_path, place):
    assert opened_run(tmp_path, state_of(small_model(place))).reads_places(unplanned()) is place


@pytest.mark.parametrize("flags", ["--place", "--bands 1"])
def test_a_resumed_run_reads_places_if_a_flag_needs_them(tmp_path, flags):
    run = opened_run(tmp_path, state_of(small_model(place=False)))
    assert run.reads_places(unplanned(*flags.split()))


@pytest.mark.parametrize("place", [True, False])
def test_a_new_run_reads_tiffs_as_its_first_model(tmp_path, place):
    UNet(small_model(place)).save_pretrained(tmp_path / "model")
    assert opened_run(tmp_path, init_from=tmp_path / "model").reads_places(unplanned()) is place
