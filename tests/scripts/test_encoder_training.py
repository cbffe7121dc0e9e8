"""train.py and predict.py with an encoder of transformers: a whole run, frozen, resumed, on several processes."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.encoders import network_refused
from support.folders import write_splits
from support.in_process import Run, in_float64, run_train
from support.launches import PROGRAMS, launch
from support.run_equality import check_same_columns, different_tensors
from support.run_files import records

import train
from inference import Predictor
from runtime.errors import CheckpointError
from train_utils.run_log import RunLog
from train_utils.settings import encoder as encoder_module
from train_utils.settings.encoder import load_encoder
from unet import Preprocess, UNet, UNetConfig

FLAGS = ["--plan", "none", "--base-channels", "2", "--norm", "group", "--num-workers", "0", "--tracker", "none"]
FLAGS += ["--log-every", "1", "--batch-size", "4", "--learning-rate", "0.01", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Eight images to train on, and two to validate."""
    folder = tmp_path_factory.mktemp("data")
    return write_splits(folder, 8, 2)


def run(output: Path, data: Path, *flags: str | Path) -> Run:
    """A run without report and pictures."""
    with mock.patch.object(train.RunLog, "write_results"):
        return run_train(output, "--dataset", data, *FLAGS, *flags)


# the networks of all families are tested by themselves; runs of one show the rest
MORE_FAMILIES = ["swin", "bit", "convnextv2", "pp_lcnet", "focalnet", "hgnet_v2"]


@pytest.mark.parametrize(
    "family", ["resnet", *[pytest.param(family, marks=pytest.mark.slow) for family in MORE_FAMILIES]]
)
def test_run_leaves_a_model_that_needs_no_folder_of_its_encoder(encoder_folders, data, tmp_path, family):
    encoder = shutil.copytree(encoder_folders[family], tmp_path / family)
    publish = RunLog.publish
    trained = []

    def keep(log: RunLog, *results: object) -> None:
        trained.append(copy.deepcopy(log.network).eval())
        publish(log, *results)

    with network_refused(), mock.patch.object(RunLog, "publish", keep):
        result = run(tmp_path / "out", data, "--encoder", encoder, "--max-steps", "2", "--eval-every", "2")
    shutil.rmtree(encoder)
    assert result.exit_code == 0, result.output
    assert all(torch.equal(result.weights(2)[name], weight) for name, weight in result.model.items())
    image = data / "val" / "images" / "cell_00.png"
    predicted = Predictor.from_pretrained(result.folder / "model")(image)
    expected = Predictor(*trained)(image)
    assert predicted.mask.shape == (40, 56)
    assert (predicted.probabilities == expected.probabilities).all()


FOUR_STEPS = ("--max-steps", "4", "--eval-every", "4", "--schedule", "constant", "--warmup-steps", "0")


@pytest.fixture(scope="module")
def licensed(encoder_folders, tmp_path_factory) -> Path:
    """The folder of an encoder with a license."""
    folder = Path(shutil.copytree(encoder_folders["resnet"], tmp_path_factory.mktemp("encoders") / "licensed"))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


@pytest.fixture(scope="module")
def whole(licensed, data, tmp_path_factory) -> Run:
    """Four steps from an encoder with a license, and checkpoints of the second and the fourth."""
    return run(tmp_path_factory.mktemp("runs") / "whole", data, "--encoder", licensed, *FOUR_STEPS)


@pytest.fixture
def second_step(whole) -> tuple:
    """Flags that go on from the checkpoint of the second step."""
    return *FOUR_STEPS, "--resume", whole.folder / "checkpoints" / "step-00000002"


def check_same_tensors(run: Run, whole: Run, step: int) -> None:
    """Two runs have the same weights and states of the optimizer at a step."""
    for kind in ("model", "optimizer"):
        assert different_tensors(run.tensors(step, kind), whole.tensors(step, kind)) == [], kind


def check_same_end(resumed: Run, whole: Run) -> None:
    """A resumed run has ended as the one that was never stopped."""
    assert "resumed from" in resumed.output
    check_same_tensors(resumed, whole, 4)
    assert resumed.config == whole.config


def test_run_with_another_encoder_or_a_frozen_one_goes_not_on(encoder_folders, licensed, data, second_step, tmp_path):
    with pytest.raises(CheckpointError, match="the checkpoint's encoder is licensed, this run's is resnet"):
        run(tmp_path / "other", data, "--encoder", encoder_folders["resnet"], *second_step)
    with pytest.raises(CheckpointError, match="the checkpoint's freeze_encoder is False, this run's is True"):
        run(tmp_path / "frozen", data, "--encoder", licensed, "--freeze-encoder", *second_step)


@pytest.fixture
def moved(licensed, whole) -> Iterator[Path]:
    """The place of an encoder's folder before it was moved; it comes back at the end."""
    aside = licensed.rename(licensed.with_name("aside"))
    yield licensed
    shutil.rmtree(licensed, ignore_errors=True)
    aside.rename(licensed)


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "says something else"])
def test_resumed_run_goes_on_whatever_the_folder_of_its_encoder_says(
    data, whole, moved, second_step, tmp_path, is_there
):
    if is_there:
        shutil.copytree(moved.with_name("aside"), moved)
        (moved / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.1, 0.1]}')
    with network_refused():
        check_same_end(run(tmp_path, data, "--encoder", moved, *second_step), whole)


def test_resumed_run_needs_no_folder_of_the_model_that_it_started_from(encoder_folders, data, tmp_path):
    source = tmp_path / "source"
    preprocess = Preprocess(mean=(10.0, 20.0, 30.0), std=(40.0, 50.0, 60.0), pixel_types=("uint8",))
    encoder = load_encoder(str(encoder_folders["resnet"]), pretrained=False)
    config = UNetConfig(
        base_channels=2, depth=encoder.depth, encoder=encoder.config, norm="group", preprocess=preprocess
    )
    UNet(config).save_pretrained(source)
    whole = run(tmp_path / "whole", data, "--init-from", source, *FOUR_STEPS)
    shutil.rmtree(source)
    flags = (*FOUR_STEPS, "--resume", whole.folder / "checkpoints" / "step-00000002")
    with network_refused():
        resumed = run(tmp_path / "resumed", data, "--init-from", source, *flags)
    check_same_end(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "flags"), [("resnet", ()), ("hgnet_v2", ("--freeze-encoder",))])
def test_two_processes_make_the_steps_of_one(encoder_folders, data, tmp_path, family, flags):
    encoder = shutil.copytree(encoder_folders[family], tmp_path / family)
    settings = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(settings | {"drop_path_rate": 0.0}))
    flags = ("--encoder", encoder, "--max-steps", "4", *flags)
    arguments = ["train.py", "--dataset", data, "--output-dir", tmp_path / "two", *FLAGS, *flags]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    with in_float64():
        one = run(tmp_path / "one", data, *flags)
    check_same_columns(records(tmp_path / "two"), one.records, ("train/loss", "train/grad_norm", "eval/loss"))


def test_run_and_card_name_the_encoder_with_its_license_but_no_folder(whole, licensed):
    assert whole.settings["encoder"] == "licensed (apache-2.0)"
    assert "model: U-Net with encoder licensed (apache-2.0)" in whole.output
    card = (whole.folder / "model" / "README.md").read_text()
    assert "The encoder is licensed (apache-2.0), a backbone of transformers" in card
    assert "| encoder weights | pretrained |" in card
    assert str(licensed.parent) not in card


BUILT_IN = ["--scale", "0.5", "--batch-size", "2", "--num-workers", "0", "--tracker", "none", "--max-steps", "2"]
BUILT_IN += ["--checkpoint-every", "1", "--ema-decay", "0.9", "--schedule", "constant", "--warmup-steps", "0"]


def test_a_run_with_the_built_in_encoder_goes_on_without_the_package_of_its_weights(tmp_path, monkeypatch):
    data = write_splits(tmp_path / "photographs", 4, 2, size=(128, 128))
    monkeypatch.setattr(train.RunLog, "write_results", lambda *arguments: None)
    whole = run_train(tmp_path / "whole", "--dataset", data, *BUILT_IN)
    assert " --encoder lite0 --encoder-weights pretrained --no-freeze-encoder " in whole.output
    assert "model: U-Net with encoder EfficientNet-Lite0 (apache-2.0)" in whole.output
    monkeypatch.setattr(encoder_module, "find_spec", lambda _: None)
    resume = ["--dataset", data, *BUILT_IN, "--resume", whole.folder / "checkpoints" / "step-00000001"]
    resumed = run_train(tmp_path / "resumed", *resume)
    assert "resumed from" in resumed.output
    check_same_tensors(resumed, whole, 2)
    assert different_tensors(resumed.tensors(2, "average"), whole.tensors(2, "average")) == []
    with pytest.raises(CheckpointError, match="the checkpoint's encoder is lite0, this run's is None"):
        run_train(tmp_path / "plain", *resume, "--encoder", "none")
