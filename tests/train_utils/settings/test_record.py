"""What run.json records of a run, and what gives its state a meaning.

Module: train_utils/settings/record.py.
"""

import platform
import subprocess
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.data_sets import load_info
from support.folders import write_folder
from support.in_process import parsed

from data_utils.loading.batch_sampler import BatchSplit
from runtime.launch_profile import LaunchProfile
from train_utils.settings.record import (
    RunIdentity,
    RunSettings,
    describe_environment,
    resolve_settings,
)
from unet import Preprocess, UNetConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), 10, seed=0, size=(16, 16))


@pytest.fixture(scope="module")
def settings(folder) -> RunSettings:
    """What is recorded of a run of two processes on nine training images."""
    args = parsed("--dataset", str(folder), "--plan", "none", "--seed", "7", "--no-deep-supervision", "--draft")
    return resolve_settings(
        args,
        load_info(folder),
        UNetConfig(base_channels=2, depth=1, preprocess=Preprocess(draft=False)),
        output_dir=Path("out"),
        profile=LaunchProfile(2, 1, "MULTI_CPU", "cpu", "no"),
        batch_split=BatchSplit(4, 2, 1, 2),
        total_steps=70,
        num_workers=3,
    )


def test_the_identity_of_a_run_is_all_that_gives_its_state_a_meaning(settings):
    identity = dict(settings.identity.entries)
    assert identity.pop("content of the data set")
    assert identity.pop("data set").startswith("9 + 1 images (")
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


def test_the_length_and_the_batch_of_a_run_are_recorded(settings):
    assert settings.total_steps == 70
    assert settings.micro_batch_size == 1
    assert settings.accumulation == 2
    assert settings.num_workers == 3


def test_flags_are_recorded_as_the_run_and_its_model_have_them(settings):
    assert settings.flags["output_dir"] == "out"
    assert settings.flags["base_channels"] == 2
    assert settings.flags["norm"] == "batch"
    assert settings.flags["draft"] is False


def test_the_launch_profile_of_a_run_is_recorded(settings):
    assert settings.profile == {
        "processes": 2,
        "machines": 1,
        "distributed_type": "MULTI_CPU",
        "device": "cpu",
        "mixed_precision": "no",
    }


def test_a_run_without_encoder_and_credentials_records_neither(settings):
    assert settings.encoder is None
    assert settings.credentials_left_out == []


def test_the_environment_of_a_run_is_recorded(settings):
    assert settings.environment.keys() >= {"command", "python", "torch"}


def test_an_encoder_is_recorded_by_its_name_wherever_it_lies(folder):
    args = parsed("--dataset", str(folder), "--plan", "none", "--encoder", "some/where/resnet", "--freeze-encoder")
    encoder = {"_name_or_path": "resnet", "license": "mit", "num_channels": 4}
    settings = resolve_settings(
        args,
        load_info(folder),
        UNetConfig(base_channels=2, depth=1, encoder=encoder),
        output_dir=Path("out"),
        profile=LaunchProfile(1, 1, "NO", "cpu", "no"),
        batch_split=BatchSplit(4, 1, 4, 1),
        total_steps=70,
        num_workers=0,
    )
    assert settings.encoder == "resnet (mit)"
    assert settings.identity.entries["encoder"] == "resnet"
    assert settings.identity.entries["in_channels"] == 3  # of the images
    assert settings.identity.entries["freeze_encoder"] is True
    assert settings.identity.entries["deep supervision"] is True
    assert settings.flags["draft"] is True  # as the model has it, whatever the flag says


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


def test_the_commit_of_a_run_is_that_of_the_folder_of_its_code(monkeypatch):
    git = Mock(return_value=Mock(stdout="1234567-dirty\n"))
    monkeypatch.setattr(subprocess, "run", git)
    assert describe_environment()["git_commit"] == "1234567-dirty"
    git.assert_called_once()
    assert git.call_args.args == (["git", "describe", "--always", "--dirty"],)
    assert git.call_args.kwargs["cwd"].name == "settings"


@pytest.mark.parametrize(
    "git",
    [
        Mock(return_value=Mock(stdout="")),
        Mock(side_effect=FileNotFoundError("git")),
        Mock(side_effect=PermissionError("git")),
    ],
    ids=["no folder", "no git", "no permission"],
)
def test_the_commit_of_a_run_is_unknown_without_git_or_its_folder(monkeypatch, git):
    monkeypatch.setattr(subprocess, "run", git)
    assert describe_environment()["git_commit"] == "unknown"


def test_a_record_holds_the_environment_under_the_name_run():
    record = RunSettings(flags={"seed": 1}, environment={"python": "3"}, total_steps=7).to_json()
    assert record["run"] == {"python": "3"}
    assert record["total_steps"] == 7
    assert "environment" not in record


def test_a_record_names_the_flags_whose_credentials_were_left_out():
    assert "credentials_left_out" not in RunSettings().to_json()
    assert RunSettings(credentials_left_out=["dataset"]).to_json()["credentials_left_out"] == ["dataset"]


@pytest.mark.parametrize("credentials", [[], ["dataset"]])
def test_a_record_survives_its_file(credentials):
    settings = RunSettings(
        flags={"task": "grey", "draft": False, "place": True},
        identity=RunIdentity({"task": "grey"}),
        environment={"python": "3"},
        total_steps=7,
        credentials_left_out=credentials,
    )
    assert RunSettings.from_json(settings.to_json()) == settings


def test_unknown_entries_of_a_record_are_ignored():
    record = RunSettings(flags={"epochs": 3}, total_steps=7).to_json()
    assert RunSettings.from_json(record | {"unknown": 1}) == RunSettings.from_json(record)


def test_a_record_of_an_earlier_version_is_completed_as_its_run_was():
    settings = RunSettings.from_json({"flags": {"seed": 1}, "identity": {"seed": 1}})
    assert settings.flags == {"task": "classes", "draft": True, "place": False, "seed": 1}
    assert settings.identity.entries == {"task": "classes", "seed": 1}


@pytest.mark.parametrize(("name", "value"), [("task", "objects"), ("draft", False), ("place", True)])
def test_a_flag_that_is_recorded_is_not_completed(name, value):
    assert RunSettings.from_json({"flags": {name: value}}).flags[name] == value


def test_credentials_in_a_record_of_an_earlier_version_are_redacted():
    settings = RunSettings.from_json({"flags": {"dataset": "s3://me:word@host/d"}})
    assert settings.flags["dataset"] == "s3://host/d"
