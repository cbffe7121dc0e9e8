"""What run.json records of a run, and what gives its state a meaning."""

from pathlib import Path

import pytest
from conftest import load_info, write_folder
from in_process import parsed

from data_utils.loading.batch_sampler import BatchSplit
from runtime.launch_profile import LaunchProfile
from train_utils.settings.record import resolve_settings
from unet import UNetConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), 10, seed=0, size=(16, 16))


def test_what_gives_a_state_its_meaning_is_recorded(folder):
    info = load_info(folder)
    args = parsed("--dataset", str(folder), "--plan", "none", "--seed", "7", "--no-deep-supervision")
    settings = resolve_settings(
        args,
        info,
        UNetConfig(base_channels=2, depth=1),
        output_dir=Path("out"),
        profile=LaunchProfile(2, 1, "MULTI_CPU", "cpu", "no"),
        batch_split=BatchSplit(4, 2, 1, 2),
        total_steps=70,
        num_workers=3,
    )
    identity = dict(settings.identity)
    assert identity.pop("content of the data set") and identity.pop("data set").startswith("9 + 1 images (")
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
    assert settings.flags["output_dir"] == "out" and settings.flags["base_channels"] == 2
    assert settings.profile == {
        "processes": 2,
        "machines": 1,
        "distributed_type": "MULTI_CPU",
        "device": "cpu",
        "mixed_precision": "no",
    }
    assert settings.credentials_left_out == []


def test_an_encoder_is_recorded_by_its_name_wherever_it_lies(folder):
    args = parsed("--dataset", str(folder), "--plan", "none", "--encoder", "some/where/resnet", "--freeze-encoder")
    encoder = {"_name_or_path": "resnet", "license": "mit", "num_channels": 3}
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
    assert settings.encoder == "resnet (mit)" and settings.identity["encoder"] == "resnet"
    assert settings.identity["freeze_encoder"] is True and settings.identity["deep supervision"] is True
    assert settings.flags["draft"] is True  # as the model has it, whatever the flag says
