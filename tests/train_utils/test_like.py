"""--like: the flags of a recorded run, and what a repeated run does otherwise."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
from in_process import parsed

from train_utils.settings.record import flags_as_json


@pytest.fixture
def like(tmp_path: Path):
    """The settings of a run that repeats one with these flags."""

    def repeated(recorded: tuple[str, ...], *flags: str):
        settings = flags_as_json(parsed("--dataset", "data", "--plan", "none", *recorded))
        (tmp_path / "run.json").write_text(json.dumps({"flags": settings, "total_steps": 70}))
        return parsed("--like", str(tmp_path), *flags)

    return repeated


def test_a_repeated_run_has_the_flags_that_were_switched_on_and_off(like):
    recorded = ("--no-deep-supervision", "--cache", "--encoder", "lite0", "--freeze-encoder", "--loss", "ce")
    args = like((*recorded, "--class-weights", "1", "2", "--crop-size", "32", "48"))
    assert args.deep_supervision is False
    assert args.cache is True
    assert args.freeze_encoder is True
    assert args.loss == "ce"
    assert args.encoder == "lite0"
    assert args.class_weights == [1.0, 2.0]
    assert list(args.crop_size) == [32, 48]
    assert like(recorded, "--deep-supervision").deep_supervision is True


def test_another_encoder_or_model_brings_its_own_architecture(like):
    recorded = ("--base-channels", "4", "--depth", "2", "--norm", "group", "--loss", "ce")
    for flags in (("--encoder", "lite0"), ("--init-from", "x")):
        args = like(recorded, *flags)
        assert args.base_channels is None
        assert args.depth is None
        assert args.norm is None
        assert args.loss == "ce"
    args = like(("--encoder", "lite0", "--freeze-encoder"), "--init-from", "x")
    assert args.encoder is None
    assert args.freeze_encoder is None
    assert args.init_from == "x"


def test_what_a_repeated_run_does_otherwise_is_said(like, capsys):
    like(("--loss", "ce"), "--seed", "3")
    assert ", but seed 3 (was 0)\n" in capsys.readouterr().out
    like(("--loss", "ce"), "--output-dir", "elsewhere")
    assert ", without a change\n" in capsys.readouterr().out
    assert like(("--loss", "ce"), "elsewhere").dataset == "elsewhere"  # other data


def test_where_and_how_long_a_run_was_made_is_not_repeated_beside_what_is_typed(like):
    assert like(("--processes-per-volume", "2")).processes_per_volume == 1
    recorded = ("--processes-per-volume", "2", "--max-steps", "9", "--fold", "1/3")
    args = like(recorded, "--epochs", "3", "--val-fraction", "0.3")
    assert args.processes_per_volume == 1
    assert args.max_steps is None
    assert args.fold is None
    for recorded, typed in (
        (("--fold", "1/3"), ("--val-fraction", "0.3")),
        (("--val-split", "dusk"), ("--fold", "2/3")),
        (("--max-steps", "9"), ("--max-minutes", "3")),
        (("--max-steps", "9"), ("--epochs=3",)),
        (("--epochs", "9"), ("--max-steps", "3")),
    ):
        assert getattr(like(recorded), recorded[0].removeprefix("--").replace("-", "_")) is not None
        args = like(recorded, *typed)
        name = recorded[0].removeprefix("--").replace("-", "_")
        assert getattr(args, name) == (10 if name == "epochs" else None), typed
    args = like(("--encoder", "lite0", "--encoder-lr-factor", "0.5", "--depth", "5"), "--encoder", "resnet")
    assert args.encoder == "resnet"
    assert args.encoder_lr_factor is None
    assert args.depth is None


def test_a_record_of_an_earlier_version_repeats_what_it_did_without_a_word(tmp_path, capsys):
    flags = flags_as_json(parsed("--dataset", "data", "--plan", "none"))
    for name in ("task", "draft", "place"):
        del flags[name]
    record = {"flags": flags, "run": {"python": "2.7", "numpy": "0.1"}, "credentials_left_out": None}
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
