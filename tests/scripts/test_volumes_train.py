"""Training on volumes: the same scripts and the same promises with a third axis."""

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from support.in_process import run_train
from support.launches import launch, predict
from support.run_files import losses
from support.volumes import write_msd

from train_utils import start
from unet import UNet

FLAGS = ["--max-steps", "6", "--base-channels", "4", "--norm", "group", "--num-workers", "0", "--tracker", "none"]
FLAGS += ["--checkpoint-every", "3", "--keep-checkpoints", "9", "--log-every", "1", "--eval-every", "6"]
FLAGS += ["--optimizer", "sgd", "--micro-batch-size", "1"]  # AdamW amplifies rounding


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six small volumes in the layout of the Medical Segmentation Decathlon, with two classes beside the background."""
    return write_msd(tmp_path_factory.mktemp("volumes"), cases=6)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    finished = run_train(tmp_path_factory.mktemp("runs") / "run", "--dataset", data, *FLAGS)
    assert finished.exit_code == 0, finished.output
    return finished


def test_a_run_on_volumes_plans_patches_and_saves_a_network_of_three_axes(run):
    assert run.config["dims"] == 3
    assert len(run.settings["flags"]["crop_size"]) == 3
    assert run.config["preprocess"]["spacing"] is not None
    assert run.config["preprocess"]["class_names"] == ["background", "front", "back"]
    assert "eval/dice/front" in run.records[-1]


def test_the_model_predicts_masks_in_the_files_own_grid(run, data, tmp_path):
    files = sorted((data / "imagesTr").glob("*.nii.gz"))[:3]
    result = predict(run.folder / "model", files, tmp_path, "--truth", data / "labelsTr", "--overlay")
    assert result.returncode == 0, result.stderr
    import nibabel

    for file in files:
        image, mask = nibabel.load(file), nibabel.load(tmp_path / file.name)
        assert mask.shape == image.shape
        assert np.array_equal(mask.affine, image.affine)
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert len(found["by_image"]) == 3


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(run, data, tmp_path):
    again = run_train(tmp_path / "b", "--dataset", data, *FLAGS, "--resume", run.folder / "checkpoints/step-00000003")
    assert again.exit_code == 0, again.output
    assert all(torch.equal(weight, run.weights(6)[name]) for name, weight in again.weights(6).items())


def test_two_processes_compute_the_same_and_one_goes_on_with_their_run(run, data, tmp_path):
    result = launch("train.py", "--dataset", data, *FLAGS, "--output-dir", tmp_path / "run", profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    assert losses(tmp_path / "run") == pytest.approx(run.values("train/loss"), abs=1e-5)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000003"
    resumed = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--resume", checkpoint)
    assert resumed.exit_code == 0, resumed.output
    assert resumed.steps("train/loss") == [1, 2, 3, 4, 5, 6]
    assert resumed.values("train/loss") == pytest.approx(run.values("train/loss"), abs=1e-5)


def test_a_run_from_a_model_keeps_its_poolings_with_patches_of_its_own(run, data, tmp_path):
    with mock.patch.object(start, "load_model", wraps=start.load_model) as load:
        again = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--init-from", run.folder / "model")
    assert again.exit_code == 0, again.output
    assert load.call_count == 1
    assert f"patches: --crop-size {' '.join(map(str, run.settings['flags']['crop_size']))}" in again.output
    assert again.config["strides"] == run.config["strides"]


def test_a_resumed_run_keeps_its_patches_without_the_model_that_it_started_from(run, data, tmp_path):
    source = Path(shutil.copytree(run.folder / "model", tmp_path / "source"))
    flags = ["--dataset", data, *FLAGS, "--init-from", source]
    begun = run_train(tmp_path / "run", *flags, "--max-steps", "3", "--crop-size", "16", "16", "16")
    assert begun.exit_code == 0, begun.output
    shutil.rmtree(source)
    resumed = run_train(tmp_path / "run", *flags, "--resume", "auto")
    assert resumed.exit_code == 0, resumed.output
    assert "crop_size was" not in resumed.output
    assert resumed.settings["flags"]["crop_size"] == begun.settings["flags"]["crop_size"] == [16, 16, 16]


def test_slices_of_volumes_train_a_network_of_two_axes(data, tmp_path):
    finished = run_train(tmp_path / "flat", "--dataset", data, *FLAGS, "--dims", "2", "--cache")
    assert finished.exit_code == 0, finished.output
    assert UNet.from_pretrained(finished.folder / "model").config.dims == 2
    files = sorted((data / "imagesTr").glob("*.nii.gz"))[:2]
    result = predict(finished.folder / "model", files, tmp_path / "masks", "--truth", data / "labelsTr")
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "masks").glob("*.nii.gz"))) == 2
