"""--like: the flags of a recorded run, and what a repeated run does otherwise.

Modules: train_utils/settings/flags.py.
"""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
from support.in_process import parsed

from runtime.machine import most_workers
from train_utils.settings.record import flags_as_json


@pytest.fixture
def like(tmp_path: Path):
    """The settings of a run that repeats one with these flags."""

    def repeated(recorded: tuple[str, ...], *flags: str):
        settings = flags_as_json(parsed("--dataset", "data", "--plan", "none", *recorded))
        (tmp_path / "run.json").write_text(json.dumps({"flags": settings, "total_steps": 70}))
        return parsed("--like", str(tmp_path), *flags)

    return repeated


@pytest.mark.parametrize(
    ("recorded", "name", "value"),
    [
        (("--no-deep-supervision",), "deep_supervision", False),
        (("--cache",), "cache", True),
        (("--encoder", "lite0", "--freeze-encoder"), "freeze_encoder", True),
        (("--encoder", "lite0"), "encoder", "lite0"),
        (("--class-weights", "1", "2"), "class_weights", (1.0, 2.0)),
        (("--crop-size", "32", "48"), "crop_size", (32, 48)),
        (("--val-blocks",), "val_blocks", 0),
        (("--mask-suffix=-mask",), "mask_suffix", "-mask"),
    ],
)
def test_a_repeated_run_has_the_recorded_flags(like, recorded, name, value):
    assert getattr(like(recorded), name) == value


@pytest.mark.parametrize("flags", ["--encoder lite0", "--init-from x"])
def test_another_encoder_or_model_brings_its_own_architecture(like, flags):
    recorded = ("--base-channels", "4", "--depth", "2", "--norm", "group", "--loss", "ce")
    args = like(recorded, *flags.split())
    assert args.base_channels is None
    assert args.depth is None
    assert args.norm is None
    assert args.loss == "ce"


def test_changes_of_a_repeated_run_are_reported(like, capsys):
    like(("--loss", "ce"), "--seed", "3")
    assert ", but seed 3 (was 0)\n" in capsys.readouterr().out
    like(("--loss", "ce"), "--output-dir", "elsewhere")
    assert ", without a change\n" in capsys.readouterr().out
    assert like(("--loss", "ce"), "elsewhere").dataset == "elsewhere"  # other data
    capsys.readouterr()
    like(("--dims", "3", "--depth", "3"), "--init-from", "m")
    assert ", but init_from m (was None), depth None (was 3)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recorded", "typed", "name", "value"),
    [
        ("--fold 1/3", "--val-fraction 0.3", "fold", None),
        ("--val-split dusk", "--fold 2/3", "val_split", None),
        ("--max-steps 9", "--max-minutes 3", "max_steps", None),
        ("--epochs 9", "--max-steps 3", "epochs", None),
    ],
)
def test_a_recorded_flag_gives_way_to_one_that_is_typed_instead_of_it(like, recorded, typed, name, value):
    assert getattr(like(recorded.split()), name) is not None
    assert getattr(like(recorded.split(), *typed.split()), name) == value


def test_a_record_of_an_earlier_version_repeats_what_it_did_without_a_word(tmp_path, capsys):
    flags = flags_as_json(parsed("--dataset", "data", "--plan", "none"))
    for name in ("task", "draft", "place"):
        del flags[name]
    record = {"flags": flags, "run": {"python": "2.7", "numpy": "0.1"}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    capsys.readouterr()
    args = parsed("--like", str(tmp_path))
    assert args.task == "classes"
    assert args.draft is True
    assert args.place is False
    said, versions = capsys.readouterr().out.splitlines()
    assert said == f"like {tmp_path}, without a change"
    here = f"numpy 0.1 (here {version('numpy')})"
    assert versions == f"it was recorded with python 2.7 (here {platform.python_version()}), {here}"


def refused_line(capsys: pytest.CaptureFixture[str], folder: Path, record: str) -> str:
    """What train.py says of a record that it cannot use, in one line."""
    (folder / "run.json").write_text(record)
    with pytest.raises(SystemExit) as ended:
        parsed("--like", str(folder), "--loss", "ce")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache", "yes"),
        ("seed", {"a": 1}),
        ("loss", "none of ours"),
        ("crop_size", [16, "a"]),
    ],
)
def test_a_recorded_value_that_no_run_has_is_named(tmp_path, capsys, name, value):
    flags = flags_as_json(parsed("--dataset", "data", "--plan", "none")) | {name: value}
    capsys.readouterr()
    line = refused_line(capsys, tmp_path, json.dumps({"flags": flags}))
    assert f"--like {tmp_path} cannot be read ({name} is {json.dumps(value)}, expected " in line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "cannot be read ("),
        ('{"run": {}}', "cannot be read (it lacks flags)"),
        ('{"flags": {"wings": 2}}', "holds flags that are not known here: wings"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused(tmp_path, capsys, content, line):
    assert f"--like {tmp_path} {line}" in refused_line(capsys, tmp_path, content)


MINUTES = ("--max-minutes", "3", "--output-dir", "/x", "--resume", "auto", "--push-to-hub", "me/cells")


def test_measured_minutes_become_the_steps_that_they_were_unless_a_length_is_given(like):
    args = like(MINUTES)
    assert (args.max_steps, args.max_minutes) == (70, None)
    assert (args.output_dir, args.resume, args.push_to_hub) == (None, None, None)  # of that run alone
    assert like(MINUTES, "--max-minutes", "5").max_steps is None
    args = like(MINUTES, "--epochs=5")
    assert (args.epochs, args.max_steps, args.max_minutes) == (5, None, None)


def test_more_processes_than_the_processors_can_use_are_lowered_in_a_line(like, capsys):
    workers = most_workers()
    assert like(("--loss", "ce"), "--num-workers", "5000").num_workers == workers
    assert f"--num-workers 5000: lowered to {workers}" in capsys.readouterr().out
