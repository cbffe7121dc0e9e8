"""Runs of train.py that end before their first step, in one line that says why."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from support.folders import write_folder
from support.in_process import run_train
from support.launches import TINY, launch

from runtime.errors import LaunchError, SettingsError, UserError
from train_utils import start


def test_a_launch_that_does_not_suit_is_refused_before_data_are_read(monkeypatch, tmp_path):
    asked = []

    def refuse(deterministic: bool) -> None:
        asked.append(deterministic)
        raise SettingsError("no such device")

    monkeypatch.setattr(start, "check_launch", refuse)
    with pytest.raises(SettingsError, match=r"^no such device$"):
        run_train(tmp_path / "run", "--dataset", "shapes", "--deterministic")
    assert asked == [True]
    assert not (tmp_path / "run").exists()


def test_nobody_trains_for_a_hub_without_a_token(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr(start, "check_launch", mock.Mock(side_effect=SettingsError("too late")))
    with pytest.raises(SettingsError, match="needs a token: run `hf auth login`, or set HF_TOKEN"):
        run_train(tmp_path / "run", "--dataset", "shapes", "--push-to-hub", "me/cells")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("profile", ["single_gpu", "multi_gpu"])
def test_gpu_profile_without_a_gpu_ends_in_a_one_line_error_of_ours(profile, tmp_path):
    result = launch("train.py", "--output-dir", tmp_path / "run", profile=profile)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("train.py: error: ")]
    assert len(errors) == 1, result.stderr
    assert "accelerate launch --config_file accelerate_configs/" in errors[0]


ENVIRONMENTS = {
    "WORLD_SIZE": "x",
    "LOCAL_RANK": "0",
    "ACCELERATE_USE_CPU": "maybe",
    "ACCELERATE_USE_MEGATRON_LM": "true",  # which is not installed
}


@pytest.mark.parametrize("script", ["train.py", "predict.py --model MODEL --input MODEL --output out"])
@pytest.mark.parametrize(("name", "value"), ENVIRONMENTS.items())
def test_an_environment_that_no_launcher_makes_is_one_line(fails_with, script, name, value):
    result = launch(*script.split(), env={name: value})
    fails_with(result, "the environment of this launch cannot be used: ", 1)


def test_a_mistyped_flag_ends_the_script_in_one_line(fails_with):
    fails_with(launch("train.py", "--learning-rat", "1"), "did you mean --learning-rate?", 2)


def test_a_folder_that_is_not_there_ends_the_script_in_one_line(tmp_path, fails_with):
    result = launch("train.py", "--dataset", tmp_path / "nowhere", "--output-dir", tmp_path / "run", *TINY)
    fails_with(result, "nowhere is not there; expected `shapes`, a folder", 1)


@pytest.fixture
def data(tmp_path) -> Path:
    """Five images with masks of 0 and 255."""
    return write_folder(tmp_path / "data", 5, seed=0)


def refusal(dataset: Path, output: Path, *flags: str) -> str:
    """The line in which a run is refused."""
    with pytest.raises(UserError) as error:
        run_train(output, "--dataset", dataset, *TINY, "--max-steps", "1", *flags)
    assert error.value.exit_code == 1
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--class-weights", "1", "2", "3"], "--class-weights has 3 values for 2 classes"),
        (["--ignore-index", "9"], "--ignore-index 9 is in no mask; the masks hold 0, 255"),
        (["--classes", "0=background,1=cell"], "mask values 255 belong to no class; classes are 0, 1"),
        (["--tracker", "tensorbord"], "--tracker tensorbord is unknown"),
    ],
)
def test_a_flag_that_does_not_suit_the_data_is_refused(data, tmp_path, flags, line):
    assert line in refusal(data, tmp_path / "run", *flags)


def test_a_pixel_that_is_no_number_is_named(data, tmp_path, fails_with):
    image = np.zeros((40, 56), np.float32)
    image[3, 4] = np.nan
    (data / "images" / "cell_03.png").unlink()
    Image.fromarray(image).save(data / "images" / "cell_03.tif")
    result = launch("train.py", "--dataset", data, "--output-dir", tmp_path / "run", *TINY, "--max-steps", "1")
    fails_with(result, "cell_03.tif: has pixels that are not numbers", 1)


def test_machines_that_would_choose_different_precisions_are_refused(monkeypatch, tiny_folder, tmp_path):
    monkeypatch.setattr(start, "gather_object", lambda own: [*own, "bf16"])
    with pytest.raises(LaunchError, match="would compute in bf16 and no; name one: accelerate launch --mixed"):
        run_train(tmp_path / "run", "--dataset", tiny_folder, *TINY)
