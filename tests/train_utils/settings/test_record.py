"""What run.json records of a run, and what gives its state a meaning.

Module: train_utils/settings/record.py.
"""

import platform
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path

import pytest
from accelerate import Accelerator
from support.data_sets import load_info
from support.folders import write_folder
from support.in_process import parsed, process_state_kept

from data_utils.loading.batch_sampler import BatchSplit
from train_utils.settings.record import (
    RunSettings,
    compare_settings,
    describe_environment,
    record_settings,
)
from unet import Preprocess, UNetConfig


def test_a_run_is_recorded_with_its_identity_its_length_its_batch_its_launch_and_its_flags(tmp_path):
    """What is recorded of a run on nine training images."""
    folder = write_folder(tmp_path, 10, seed=0, size=(16, 16))
    args = parsed("--dataset", str(folder), "--plan", "none", "--seed", "7", "--no-deep-supervision", "--draft")
    with process_state_kept():
        settings = record_settings(
            Accelerator(cpu=True),
            args,
            load_info(folder),
            UNetConfig(base_channels=2, depth=1, preprocess=Preprocess(draft=False)),
            output_dir=Path("out"),
            batch_split=BatchSplit(4, 1, 1, 2),
            total_steps=70,
            num_workers=3,
        )
    identity = dict(settings.identity)
    assert identity.pop("content of the data set")
    assert identity.pop("data set").startswith("9 + 1 images (")
    assert next(iter(identity)) == "seed"  # it chooses the validation images: it is named before them
    assert identity == {
        "task": "classes",
        "classes": ["0", "255"],
        "in_channels": 3,
        "base_channels": 2,
        "depth": 1,
        "norm": "batch",
        "block": "plain",
        "upsample": "transpose",
        "dropout": 0.0,
        "output_stride": 1,
        "dims": 2,
        "kernels": [],
        "strides": [],
        "encoder": None,
        "freeze_encoder": False,
        "deep supervision": False,
        "batch size": 4,
        "seed": 7,
        "optimizer": "adamw",
    }
    assert settings.total_steps == 70
    assert settings.micro_batch_size == 1
    assert settings.accumulation == 2
    assert settings.num_workers == 3
    assert settings.profile["processes"] == 1
    assert settings.profile["mixed_precision"] == "no"
    flags = {"output_dir": "out", "base_channels": 2, "norm": "batch", "draft": False}
    assert {name: settings.flags[name] for name in flags} == flags


def test_an_environment_is_how_to_repeat_a_run(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--dataset", "data"])
    environment = describe_environment()
    started = datetime.strptime(environment.pop("started"), "%Y-%m-%dT%H:%M:%S%z")
    assert timedelta() <= datetime.now(timezone.utc) - started < timedelta(minutes=1)
    assert environment.pop("git_commit")
    packages = ("torch", "accelerate", "datasets", "safetensors", "huggingface_hub", "pillow", "numpy")
    assert environment == {
        "command": "train.py --dataset data",
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in packages},
    }


def test_a_record_survives_its_file(tmp_path):
    settings = RunSettings(
        flags={"task": "regions", "output_stride": 2, "draft": False, "place": True},
        identity={"task": "regions", "output_stride": 2},
        run={"python": "3"},
        total_steps=7,
    )
    settings.write(tmp_path)
    assert RunSettings.read(tmp_path) == RunSettings.read(tmp_path / "run.json") == settings


def test_a_record_of_an_earlier_version_is_completed_as_its_run_was():
    settings = RunSettings.from_json({"flags": {"seed": 1}, "identity": {"seed": 1}})
    unrecorded = {"task": "classes", "output_stride": 1}
    assert settings.flags == unrecorded | {"draft": True, "place": False, "seed": 1}
    assert settings.identity == unrecorded | {"seed": 1}


IDENTITY = {"seed": 0, "batch size": 4}
FLAGS = {"keep_checkpoints": 2, "epochs": 3, "seed": 0}


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        ({}, {"keep_checkpoints": 5, "epochs": 4, "output_dir": "x"}, ["keep_checkpoints was 2 and is now 5"]),
        ({"max_minutes": 3}, {"max_minutes": 3}, []),
        ({"max_minutes": 3}, {"max_minutes": 5}, ["the run has now 5 minutes instead of 3"]),
        ({"max_minutes": 3}, {"max_minutes": 5, "epochs": None}, []),  # its steps are counted
        ({}, {"max_minutes": 5}, ["the run has now 5 minutes instead of no limit"]),
    ],
)
def test_other_flags_are_reported_unless_they_are_of_length_and_place(before, now, lines):
    identity = IDENTITY | {"content of the data set": "x"}  # which runs of earlier versions did not record
    saved = RunSettings(flags=FLAGS | before, identity=IDENTITY, total_steps=9)
    assert compare_settings(saved, replace(saved, flags=FLAGS | now, identity=identity)) == lines
