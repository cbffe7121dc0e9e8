"""The precision of a launch that names none: bf16 where the device has instructions for it."""

import json
from pathlib import Path

import psutil
import pytest
from support.in_process import run_train
from support.launches import TINY

from runtime import launch as precision
from runtime.launch import default_precision

LAUNCH = ["python", "/usr/bin/accelerate", "launch"]


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """A function that sets how this process was started, on a device with instructions for bf16."""
    monkeypatch.setattr(precision, "_device_has_bf16", lambda suits_cpus: suits_cpus)
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    def launch(words: list[str] | None, variable: str | None) -> None:
        monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
        if variable is not None:
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", variable)
        monkeypatch.setattr(psutil.Process, "cmdline", lambda process: words or ["bash"])

    return launch


def test_a_launch_that_names_no_precision_computes_in_bf16_where_the_device_can(
    launched, monkeypatch, tmp_path, capsys
):
    profile = tmp_path / "profile.yaml"
    profile.write_text("num_processes: 1\n")
    unnamed = [(None, None), ([*LAUNCH, "--cpu", "train.py"], "no"), ([*LAUNCH, "--config_file", str(profile)], "no")]
    for words, variable in unnamed:
        launched(words, variable)
        assert default_precision() == "bf16"
        assert "precision: bf16" in capsys.readouterr().out
        assert default_precision(recorded="no") == "no"  # a run in float32 goes on in it
        assert default_precision(suits_cpus=False) == "no"
    monkeypatch.setattr(precision, "_device_has_bf16", lambda suits_cpus: False)
    assert default_precision() == "no"
    assert default_precision(recorded="bf16") == "no"


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (None, "no"),
        (["python", "/usr/bin/torchrun", "train.py"], "no"),
        ([*LAUNCH, "--mixed_precision", "no", "train.py"], "no"),
        ([*LAUNCH, "--mixed-precision=fp16", "train.py"], "fp16"),
        ([*LAUNCH, "--config_file=profile.yaml", "train.py"], "no"),
        ([*LAUNCH, "--config-file", "profile.yaml", "train.py"], "no"),
    ],
    ids=["variable", "variable of torchrun", "option", "other option", "profile", "profile with a hyphen"],
)
def test_a_precision_that_is_named_stands(launched, monkeypatch, tmp_path, words, variable):
    monkeypatch.chdir(tmp_path)
    Path("profile.yaml").write_text('mixed_precision: "no"\n')
    launched(words, variable)
    assert default_precision() is None


def test_the_precision_is_recorded_and_a_run_goes_on_in_its_own(launched, tiny_folder, tmp_path):
    launched(None, None)
    flags = ["--dataset", tiny_folder, *TINY, "--norm", "batch", "--tracker", "none", "--num-workers", "0"]
    flags.append("--max-steps")
    run = run_train(tmp_path / "bf16", *flags, "1")
    assert "precision: bf16" in run.output
    assert run.settings["profile"]["mixed_precision"] == "bf16"
    launched(None, "no")
    assert run_train(tmp_path / "run", *flags, "1").settings["profile"]["mixed_precision"] == "no"
    launched(None, None)
    more = run_train(tmp_path / "run", *flags, "2", "--resume", "auto")
    assert more.exit_code == 0, more.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["profile"]["mixed_precision"] == "no"
    again = run_train(
        tmp_path / "again", "--like", tmp_path / "run", "--resume", "auto", "--tracker", "none", "--num-workers", "0"
    )
    assert again.settings["profile"]["mixed_precision"] == "no"
