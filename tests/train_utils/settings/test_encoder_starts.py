"""An encoder that training starts with: from a folder, a name or a model; and what cannot be one."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import transformers
from support.class_loss import classes
from support.encoders import (
    FAMILIES,
    build_network,
    network_of_start,
    network_with,
    pixels,
    start_with,
    write_encoder,
)
from support.starts import start_from

from runtime.errors import ModelError, SettingsError
from train_utils.settings.encoder import load_encoder
from unet import Preprocess, UNet, UNetConfig

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("resnet50", "microsoft/resnet-50"),
        ("RESNET_34", "microsoft/resnet-34"),
        ("convnext_tiny", "facebook/convnext-tiny-224"),
        ("swin_base", "microsoft/swin-base-patch4-window7-224"),
    ],
)
def test_a_name_of_another_library_is_answered_with_the_hubs(name, hub_id):
    with pytest.raises(ModelError) as caught:
        load_encoder(name, pretrained=True)
    assert str(caught.value).startswith(f"--encoder {name}: ")
    assert str(caught.value).endswith(f"did you mean --encoder {hub_id}?")


def test_a_classifiers_folder_is_an_encoder_too(tmp_path):
    config = FAMILIES["swin"]()
    classifier = transformers.SwinForImageClassification(config)
    classifier.save_pretrained(tmp_path)
    network = build_network(tmp_path)
    theirs = classifier.swin.encoder.state_dict()
    ours = network.encoder.backbone.swin.encoder.state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in theirs.items())


@pytest.fixture
def normalizing(tmp_path) -> Path:
    """The folder of an encoder that was trained with normalized images."""
    return write_encoder(tmp_path, preprocessor_config={"image_mean": [0.2, 0.4, 0.6], "image_std": [0.1, 0.2, 0.3]})


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_8_bits_are_normalized_as_the_encoder_was_trained(normalizing, channels):
    preprocess = network_of_start(start_with(normalizing), channels).config.preprocess
    assert preprocess.mean == pytest.approx((51.0, 102.0, 153.0))
    assert preprocess.std == pytest.approx((25.5, 51.0, 76.5))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_16_bits_are_normalized_by_themselves(normalizing, channels):
    preprocess = network_of_start(start_with(normalizing), channels, ("uint16",)).config.preprocess
    assert preprocess.mean == (90.0,) * 3
    assert preprocess.std == (40.0,) * 3


LEAPING = {"model_type": "textnet", "stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 24, 32]}
LEAPING |= {"conv_layer_kernel_sizes": [[[3, 3]]] * 4, "conv_layer_strides": [[4], [2], [2], [2]]}
PLAIN_VIT = r"^--encoder \S+: has features of stride \d+; a U-Net needs several levels, .* \(a plain ViT has only"


def config_folder(folder: Path, **settings: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def check_refused(source: object, reason: str, **flags: object) -> None:
    """The encoder is refused in one line that names it."""
    with pytest.raises(ModelError, match=reason) as error:
        start_from(None, {"encoder": str(source), "encoder_weights": "pretrained"} | flags)
    assert "\n" not in str(error.value)
    assert str(source) in str(error.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "dinov2", "hidden_size": 8, "num_attention_heads": 1}, PLAIN_VIT),
        (LEAPING, r"has features of stride 2, 8, 16, 32, 64; a U-Net needs several levels, each half the size"),
        ({"model_type": "bert"}, "bert is not a backbone of transformers; use "),
        ({"model_type": "timm_backbone"}, "timm_backbone is not a backbone of transformers; use"),
        ({}, "has no usable config.json"),
    ],
    ids=["plain ViT", "a level is left out", "text", "another library", "no model"],
)
def test_a_folder_that_holds_no_encoder_is_refused(tmp_path, config, reason):
    check_refused(config_folder(tmp_path / "encoder", **config), reason)


def test_a_name_without_a_folder_is_refused_offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_refused("nobody/nothing", "is not a folder, and cannot be loaded from the Hub")


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory) -> str:
    """The folder of a model without an encoder."""
    folder = tmp_path_factory.mktemp("plain")
    UNet(UNetConfig(base_channels=2, depth=1)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def encoder_model(encoder_folders, tmp_path_factory) -> str:
    """The folder of a model with an encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    network_with(encoder_folders["resnet"]).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("has_model", [False, True], ids=["a new network", "a model without an encoder"])
@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("encoder_weights", "pretrained", "--encoder-weights pretrained"),
        ("encoder_lr_factor", 0.5, "--encoder-lr-factor 0.5"),
        ("freeze_encoder", True, "--freeze-encoder"),
    ],
)
def test_a_flag_of_an_encoder_is_refused_without_one(plain_model, name, value, flag, has_model):
    with pytest.raises(SettingsError, match=f"^{flag}: this network has no encoder; leave the flag out, or name"):
        start_from(plain_model if has_model else None, {name: value})


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("model.safetensors", "short", "its weights cannot be loaded"),
        ("preprocessor_config.json", "{", "preprocessor_config.json cannot be used"),
        ("preprocessor_config.json", '{"image_std": [0, 1, 1]}', "preprocessor_config.json cannot be used: std is"),
        ("config.json", '{"model_type": "resnet", "hidden_sizes": "wide"}', "resnet: "),
        ("config.json", '{"model_type": "x", "auto_map": {"AutoConfig": "mine.Config"}}', "has no usable config.json"),
    ],
)
def test_a_damaged_file_of_an_encoder_is_a_one_line_error(tmp_path, file, content, reason):
    folder = write_encoder(tmp_path / "resnet")
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=reason) as error:
        load_encoder(str(folder), pretrained=True)
    assert "\n" not in str(error.value)


def test_other_weights_than_the_configs_are_refused(encoder_folders, tmp_path):
    folder = write_encoder(tmp_path / "mixed")
    (folder / "model.safetensors").write_bytes((encoder_folders["convnext"] / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"its file lacks \d+ of the weights, such as embedder\."):
        load_encoder(str(folder), pretrained=True)


@pytest.fixture
def without_transformers(monkeypatch, encoder_model) -> None:
    """transformers is not installed; what needs it to be made is there."""
    monkeypatch.setitem(sys.modules, "transformers", None)


MISSING = r"^transformers is not installed; .*requirements-encoders\.txt$"


def test_an_encoder_without_transformers_says_what_to_install(encoder_folders, without_transformers):
    with pytest.raises(ModelError, match=MISSING):
        build_network(encoder_folders["resnet"])


def test_an_encoder_is_recorded_without_the_path_of_its_folder(tmp_path):
    folder = write_encoder(tmp_path / "mine")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A backbone\n")
    config = build_network(folder).config.encoder
    assert config["_name_or_path"] == "mine"
    assert config["license"] == "apache-2.0"
    assert str(tmp_path) not in json.dumps(config)


def test_a_model_with_an_encoder_is_a_start_for_other_classes(encoder_folders, encoder_model):
    first = network_with(encoder_folders["resnet"])
    start = start_from(encoder_model, {"freeze_encoder": True})
    again = start.build(3, classes(5), start.trained_preprocess(3))
    assert again.config.preprocess == first.config.preprocess
    assert again.encoder.frozen
    assert all(map(torch.equal, again.ups.parameters(), first.ups.parameters()))


def test_a_model_with_an_encoder_is_a_start_for_other_channels(encoder_folders, encoder_model):
    weights = network_with(encoder_folders["resnet"]).encoder.state_dict()
    statistics = Preprocess(mean=(1.0,) * 5, std=(1.0,) * 5)
    other = start_from(encoder_model, {"freeze_encoder": True}).build(5, classes(2), statistics)
    assert other(pixels(1, 5, 33, 33)).shape == (1, 2, 33, 33)
    assert other.encoder.frozen
    (filters,) = [name for name, weight in other.encoder.state_dict().items() if weight.shape != weights[name].shape]
    weights[filters] = weights[filters][:, torch.arange(5) % 3] * (3 / 5)  # the first ones, repeated and rescaled
    for name, weight in other.encoder.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_an_encoder_is_refused_beside_a_model_that_has_one(encoder_folders, encoder_model):
    with pytest.raises(ModelError, match="has its own architecture; give one of them"):
        start_from(encoder_model, {"encoder": str(encoder_folders["resnet"]), "encoder_weights": "random"})


CHECKPOINTS = [("resnet", 1), ("resnet", 3), ("hgnet_v2", 5)]


def stored_config(encoder: Path, channels: int) -> UNetConfig:
    """The config of a network as a checkpoint stores it."""
    return UNetConfig(**json.loads(json.dumps(asdict(network_with(encoder, channels).config))))


@pytest.mark.parametrize(("family", "channels"), CHECKPOINTS)
def test_the_network_of_a_checkpoint_is_built_of_its_config_alone(encoder_folders, family, channels):
    config = stored_config(encoder_folders[family], channels)
    start = start_from(None, {"encoder": f"gone/{family}", "encoder_weights": "pretrained"}, config)
    statistics = Preprocess(mean=(1.0,) * channels, std=(1.0,) * channels, pixel_types=("uint8",))
    network = start.build(channels, classes(2), start.trained_preprocess(channels) or statistics)
    assert network.config == network_with(encoder_folders[family], channels).config
