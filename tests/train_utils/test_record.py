"""What run.json records of a run, and what gives its state a meaning."""

import platform
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import load_info, write_folder
from in_process import parsed

from data_utils.loading.batch_sampler import BatchSplit
from runtime.launch_profile import LaunchProfile
from train_utils.settings.record import RunSettings, describe_environment, resolve_settings
from unet import Preprocess, UNetConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), 10, seed=0, size=(16, 16))


def test_what_gives_a_state_its_meaning_is_recorded(folder):
    info = load_info(folder)
    args = parsed("--dataset", str(folder), "--plan", "none", "--seed", "7", "--no-deep-supervision", "--draft")
    settings = resolve_settings(
        args,
        info,
        UNetConfig(base_channels=2, depth=1, preprocess=Preprocess(draft=False)),
        output_dir=Path("out"),
        profile=LaunchProfile(2, 1, "MULTI_CPU", "cpu", "no"),
        batch_split=BatchSplit(4, 2, 1, 2),
        total_steps=70,
        num_workers=3,
    )
    identity = dict(settings.identity)
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
    assert (settings.total_steps, settings.micro_batch_size, settings.accumulation, settings.num_workers) == (
        70,
        1,
        2,
        3,
    )
    assert settings.flags["output_dir"] == "out"
    assert settings.flags["base_channels"] == 2
    assert settings.profile == {
        "processes": 2,
        "machines": 1,
        "distributed_type": "MULTI_CPU",
        "device": "cpu",
        "mixed_precision": "no",
    }
    assert settings.credentials_left_out == []
    assert settings.environment.keys() >= {"command", "python", "torch"}
    assert settings.encoder is None
    assert settings.flags["norm"] == "batch"
    assert settings.flags["draft"] is False


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
    assert settings.identity["encoder"] == "resnet"
    assert settings.identity["in_channels"] == 3  # of the images
    assert settings.identity["freeze_encoder"] is True
    assert settings.identity["deep supervision"] is True
    assert settings.flags["draft"] is True  # as the model has it, whatever the flag says


def test_where_a_run_was_made_is_recorded(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--dataset", "data"])
    commands = []

    def run(command: list[str], **options: object) -> SimpleNamespace:
        commands.append((command, options["cwd"].name))
        return SimpleNamespace(stdout="1234567-dirty\n")

    monkeypatch.setattr("train_utils.settings.record.subprocess.run", run)
    environment = describe_environment()
    assert commands == [(["git", "describe", "--always", "--dirty"], "settings")]
    started = datetime.strptime(environment.pop("started"), "%Y-%m-%dT%H:%M:%S%z")
    assert timedelta() <= datetime.now(timezone.utc) - started < timedelta(minutes=1)
    packages = ("torch", "accelerate", "datasets", "safetensors", "huggingface_hub", "pillow", "numpy")
    assert environment == {
        "command": "train.py --dataset data",
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in packages},
        "git_commit": "1234567-dirty",
    }
    monkeypatch.setattr("train_utils.settings.record.subprocess.run", lambda *_, **__: SimpleNamespace(stdout=""))
    assert describe_environment()["git_commit"] == "unknown"


def test_a_record_names_its_entries_and_an_old_one_is_completed():
    settings = RunSettings(flags={"seed": 1}, identity={"seed": 1}, environment={"python": "3"}, total_steps=7)
    value = settings.to_json()
    assert value["run"] == {"python": "3"}
    assert value["total_steps"] == 7
    assert "environment" not in value
    assert "credentials_left_out" not in value
    secret = RunSettings(credentials_left_out=["dataset"]).to_json()
    assert secret["credentials_left_out"] == ["dataset"]
    again = RunSettings.from_json(value | {"something": "else"})
    assert again.flags == {"task": "classes", "draft": True, "place": False, "seed": 1}
    assert again.identity == {"task": "classes", "seed": 1}
    assert again.environment == {"python": "3"}
    newer = RunSettings.from_json({"flags": {"task": "objects", "draft": False, "place": True}})
    assert newer.flags == {"task": "objects", "draft": False, "place": True}
