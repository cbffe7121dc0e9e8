"""Flags of train.py that say which network is trained."""

import pytest
import torch
from encoders import write_encoder
from flag_runs import Trainer
from in_process import Run, parsed
from safetensors.torch import load_file

import train

FLOAT32 = 1e-5  # relative rounding of sums over a few thousand pixels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


@pytest.mark.flags("--init-from")
def test_weights_begin_as_those_of_a_model(run):
    source = run("--seed", "3")
    begun = run("--init-from", source.folder / "model").weights(0)
    assert all(torch.equal(begun[name], weight) for name, weight in source.model.items())
    assert any(not torch.equal(run().weights(0)[name], weight) for name, weight in source.model.items())


@pytest.mark.flags("--encoder", "--encoder-weights", "--freeze-encoder", "--no-freeze-encoder", "--encoder-lr-factor")
def test_an_encoder_is_pretrained_and_slower_or_frozen_or_random(run, tmp_path):
    encoder = write_encoder(tmp_path / "tiny-resnet")

    def far(found: Run) -> dict[str, float]:
        """How far the first filters of encoder and decoder went in the first step."""
        names = {"encoder": "encoder.backbone.embedder.embedder.convolution.weight", "decoder": "stem.conv1.weight"}
        before, after = found.weights(0), found.weights(1)
        return {part: (after[name] - before[name]).norm().item() for part, name in names.items()}

    flags = ("--encoder", encoder, "--depth", "5")
    found, whole = run.fresh(*flags), run.fresh(*flags, "--encoder-lr-factor", "1")
    frozen, random = run.fresh(*flags, "--freeze-encoder"), run.fresh(*flags, "--encoder-weights", "random")
    assert parsed("--freeze-encoder").freeze_encoder
    assert parsed("--no-freeze-encoder").freeze_encoder is False
    theirs = load_file(encoder / "model.safetensors")
    name = "embedder.embedder.convolution.weight"
    assert torch.equal(found.weights(0)[f"encoder.backbone.{name}"], theirs[name])
    assert not torch.equal(random.weights(0)[f"encoder.backbone.{name}"], theirs[name])
    assert far(found)["encoder"] == pytest.approx(0.1 * far(whole)["encoder"], rel=FLOAT32)  # the default
    assert far(found)["decoder"] == pytest.approx(far(whole)["decoder"], rel=FLOAT32)
    assert far(whole)["decoder"] > 0
    assert far(frozen)["encoder"] == 0
    assert far(frozen)["decoder"] > 0
    plain = run.fresh("--encoder", "none")
    assert plain.config["encoder"] is None
    assert plain.values("train/loss") == run().values("train/loss")


@pytest.mark.flags("--base-channels", "--depth", "--norm", "--block", "--upsample")
def test_a_network_has_the_given_architecture(run):
    result = run(
        "--base-channels", "3", "--depth", "2", "--norm", "instance", "--upsample", "bilinear", "--block", "residual"
    )
    assert [result.config[name] for name in ("base_channels", "depth", "norm", "upsample")] == [
        3,
        2,
        "instance",
        "bilinear",
    ]
    assert result.model["stem.conv1.weight"].shape[0] == 3
    assert result.model["downs.1.conv.conv1.weight"].shape[0] == 6  # as wide as the level above: nothing halves it
    assert not any("up.weight" in name for name in result.model)  # what a transposed convolution has


@pytest.mark.flags("--dropout")
def test_dropout_changes_the_loss_alike_in_each_run(run):
    result = run("--dropout", "0.5")
    assert result.config["dropout"] == 0.5
    assert result.values("train/loss") != run().values("train/loss")
    assert run.fresh("--dropout", "0.5").values("train/loss") == result.values("train/loss")


@pytest.mark.flags("--activation-checkpointing")
def test_activation_checkpointing_computes_blocks_again(run, monkeypatch):
    from unet import recompute

    calls = []
    checkpoint = recompute.checkpoint
    monkeypatch.setattr(recompute, "checkpoint", lambda *a, **k: calls.append(a) or checkpoint(*a, **k))
    plain, again = run.fresh(), len(calls)
    result = run.fresh("--activation-checkpointing")
    assert again == 0
    assert len(calls) == 3
    assert result.values("train/loss") == plain.values("train/loss")


@pytest.mark.flags("--sync-batchnorm")
def test_batch_norm_is_synchronized_as_given(run, monkeypatch):
    # on several processes: test_sync_batchnorm.py
    calls = []
    monkeypatch.setattr(train, "synchronize_batchnorm", lambda a, model, how, split: calls.append(how) or model)
    run.fresh("--sync-batchnorm", "off")
    assert calls == ["off"]
    assert parsed().sync_batchnorm == "auto"
