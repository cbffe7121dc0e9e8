"""The precision of a launch that names none: bf16 where the device has instructions for it."""

import json
from pathlib import Path

import psutil
import pytest
import torch
from support.accelerators import new_accelerator
from support.in_process import run_train
from support.launches import TINY

from runtime import launch as precision
from runtime.launch import default_precision, kernel_fault, say_kernel_fault

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


@pytest.mark.parametrize(
    ("torch_version", "cudnn", "mixed_precision", "dims", "words"),
    [
        ("2.8.0+cu128", 91002, "bf16", 3, "may be wrong"),
        ("2.8.0+cu128", 91002, "fp16", 3, None),
        ("2.8.0+cu128", 91002, "bf16", 2, None),
        ("2.8.0+cu128", 91300, "bf16", 3, None),
        ("2.6.0+cu124", 90100, "bf16", 3, None),
        ("2.9.1+cu128", 91002, "fp16", 3, "slower"),
        ("2.9.1+cu128", 91002, "no", 3, None),
        ("2.9.1+cu128", 91501, "bf16", 3, None),
        ("2.13.0", 91002, "bf16", 3, None),
    ],
)
def test_versions_that_compute_volumes_wrong_or_slowly_are_known(torch_version, cudnn, mixed_precision, dims, words):
    fault = kernel_fault(torch_version, cudnn, mixed_precision, dims=dims)
    assert (fault is None) == (words is None)
    assert words is None or words in fault


@pytest.mark.parametrize(
    ("device", "cuda", "is_said"), [("cuda", "12.8", True), ("cuda", None, False), ("cpu", "12.8", False)]
)
def test_a_line_warns_of_such_a_version_on_nvidias_gpus_alone(monkeypatch, capsys, device, cuda, is_said):
    monkeypatch.setattr(torch, "__version__", "2.8.0+cu128")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    accelerator = new_accelerator(device=device)
    accelerator.mixed_precision = "bf16"
    say_kernel_fault(accelerator, dims=3)
    assert ("precision: 3-D convolutions in bf16 may be wrong" in capsys.readouterr().out) == is_said
