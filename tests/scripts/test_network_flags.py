"""Flags of train.py that say which network is trained."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.encoders import write_encoder
from support.flag_runs import Trainer
from support.in_process import Run, parsed

from train_utils import start
from unet import blocks

FLOAT32 = 1e-5  # relative rounding of sums over a few thousand pixels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


@pytest.mark.flags("--init-from")
def test_init_from_begins_with_the_weights_of_a_model(run):
    source = run("--seed", "3")
    begun = run("--init-from", source.folder / "model").weights(0)
    assert all(torch.equal(begun[name], weight) for name, weight in source.model.items())
    assert any(not torch.equal(run().weights(0)[name], weight) for name, weight in source.model.items())


def test_images_that_the_first_model_may_have_trained_on_are_told(run):
    data = ["--dataset", run.data / "train"]
    relative = os.path.relpath(run.data / "train")
    model = run("--dataset", relative, "--fold", "1/4").folder / "model"
    told = "2 of 2 validation images were not held out"
    assert told in run(*data, "--fold", "2/4", "--init-from", model).output
    assert "not held out" not in run(*data, "--fold", "1/4", "--init-from", model).output


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """A tiny pretrained encoder."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "tiny-resnet")


FIRST_FILTERS = "embedder.embedder.convolution.weight"


MOVED_WEIGHTS = {"encoder": f"encoder.backbone.{FIRST_FILTERS}", "decoder": "stem.conv1.weight"}


def moved_filters(result: Run, part: str) -> float:
    """How far the first filters of encoder or decoder went in the first step."""
    name = MOVED_WEIGHTS[part]
    return (result.weights(1)[name] - result.weights(0)[name]).norm().item()


@pytest.mark.flags("--encoder", "--encoder-weights")
@pytest.mark.parametrize(("flags", "are_pretrained"), [([], True), (["--encoder-weights", "random"], False)])
def test_encoder_begins_with_its_weights_unless_they_are_random(run, encoder, flags, are_pretrained):
    result = run("--encoder", encoder, "--depth", "5", *flags)
    pretrained = load_file(encoder / "model.safetensors")[FIRST_FILTERS]
    assert torch.equal(result.weights(0)[MOVED_WEIGHTS["encoder"]], pretrained) == are_pretrained


@pytest.mark.flags("--encoder")
def test_encoder_none_is_the_plain_network(run):
    plain = run("--encoder", "none")
    assert plain.config["encoder"] is None
    assert plain.values("train/loss") == run().values("train/loss")


@pytest.mark.flags("--encoder-lr-factor")
def test_encoder_lr_factor_slows_the_encoder_alone(run, encoder):
    slowed = run("--encoder", encoder, "--depth", "5")  # by the default, 0.1
    whole = run("--encoder", encoder, "--depth", "5", "--encoder-lr-factor", "1")
    assert moved_filters(slowed, "encoder") == pytest.approx(0.1 * moved_filters(whole, "encoder"), rel=FLOAT32)
    assert moved_filters(slowed, "decoder") == pytest.approx(moved_filters(whole, "decoder"), rel=FLOAT32)
    assert moved_filters(whole, "decoder") > 0


@pytest.mark.flags("--freeze-encoder", "--no-freeze-encoder")
def test_freeze_encoder_holds_the_encoder_still(run, encoder):
    frozen = run("--encoder", encoder, "--depth", "5", "--freeze-encoder")
    assert parsed("--freeze-encoder").freeze_encoder
    assert parsed("--no-freeze-encoder").freeze_encoder is False
    assert moved_filters(frozen, "encoder") == 0
    assert moved_filters(frozen, "decoder") > 0


@pytest.mark.flags("--base-channels", "--depth", "--norm", "--block", "--upsample")
def test_architecture_is_that_of_the_flags(run):
    flags = ("--base-channels", "3", "--depth", "2", "--norm", "instance", "--upsample", "bilinear")
    result = run(*flags, "--block", "residual")
    settings = {"base_channels": 3, "depth": 2, "norm": "instance", "upsample": "bilinear", "block": "residual"}
    assert settings.items() <= result.config.items()
    assert result.model["stem.conv1.weight"].shape[0] == 3
    assert result.model["downs.1.conv.conv1.weight"].shape[0] == 6  # as wide as the level above: nothing halves it
    assert not any("up.weight" in name for name in result.model)  # what a transposed convolution has


@pytest.mark.flags("--output-stride")
def test_output_stride_ends_the_way_up_before_the_size_of_the_images(run, encoder):
    result = run("--encoder", encoder, "--depth", "5", "--output-stride", "4")
    assert result.config["output_stride"] == 4
    assert not any(name.startswith("stem.") for name in result.model)


@pytest.mark.flags("--dropout")
def test_dropout_is_drawn_by_the_seed(run):
    result = run("--dropout", "0.5")
    assert result.config["dropout"] == 0.5
    assert result.values("train/loss") != run().values("train/loss")
    assert run.fresh("--dropout", "0.5").values("train/loss") == result.values("train/loss")


@pytest.mark.flags("--activation-checkpointing")
def test_activation_checkpointing_changes_no_loss(run, monkeypatch):
    calls = []
    checkpoint = blocks.checkpoint
    monkeypatch.setattr(blocks, "checkpoint", lambda *a, **k: calls.append(a) or checkpoint(*a, **k))
    plain = run.fresh()
    assert calls == []
    result = run.fresh("--activation-checkpointing")
    assert len(calls) == 3
    assert result.values("train/loss") == plain.values("train/loss")


@pytest.mark.flags("--sync-batchnorm")
def test_sync_batchnorm_may_be_off(run, monkeypatch):
    # on several processes: test_sync_batchnorm.py
    calls = []
    monkeypatch.setattr(start, "synchronize_batchnorm", lambda a, model, how, split: calls.append(how) or model)
    run.fresh("--sync-batchnorm", "off")
    assert calls == ["off"]
    assert parsed().sync_batchnorm == "auto"
