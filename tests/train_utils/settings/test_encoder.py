"""An encoder that training starts with: from a folder, a name or a model; and what cannot be one.

Modules: train_utils/settings/encoder.py, train_utils/settings/starting_point.py.
"""

import json
import sys
from dataclasses import asdict

import pytest
import torch
import transformers
from support.class_loss import classes
from support.encoders import (
    FAMILIES,
    backbone,
    build_network,
    network_of_start,
    network_with,
    pixels,
    start_with,
    write_encoder,
)
from support.starts import start_from

from runtime.errors import ModelError, SettingsError
from train_utils.settings.encoder import load_encoder, read_license, read_normalization, with_channels
from unet import Preprocess, UNetConfig

pytestmark = pytest.mark.usefixtures("no_network")


def test_a_classifiers_folder_is_an_encoder_too(tmp_path):
    config = FAMILIES["swin"]()
    classifier = transformers.SwinForImageClassification(config)
    classifier.save_pretrained(tmp_path)
    network = build_network(tmp_path)
    theirs = classifier.swin.encoder.state_dict()
    ours = network.encoder.backbone.swin.encoder.state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in theirs.items())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("pixel_types", "mean", "std"),
    [(("uint8",), (51.0, 102.0, 153.0), (25.5, 51.0, 76.5)), (("uint16",), (90.0,) * 3, (40.0,) * 3)],
    ids=["as the encoder was trained", "by themselves"],
)
def test_images_of_8_bits_alone_are_normalized_as_the_encoder_was_trained(tmp_path, channels, pixel_types, mean, std):
    files = {"preprocessor_config": {"image_mean": [0.2, 0.4, 0.6], "image_std": [0.1, 0.2, 0.3]}}
    start = start_with(write_encoder(tmp_path, **files))
    preprocess = network_of_start(start, channels, pixel_types).config.preprocess
    assert preprocess.mean == pytest.approx(mean)
    assert preprocess.std == pytest.approx(std)


@pytest.mark.parametrize(
    ("family", "content", "expected"),
    [
        ("resnet", {"image_mean": [0.5, 0.25, 0.125], "do_normalize": False}, ((0, 0, 0), (255, 255, 255))),
        ("bit", {"do_normalize": None}, ((127.5,) * 3, (127.5,) * 3)),
    ],
    ids=["scaled alone", "not said"],
)
def test_an_encoders_folder_need_not_say_how_its_images_are_normalized(tmp_path, family, content, expected):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    assert read_normalization(str(tmp_path), family) == expected


@pytest.mark.parametrize(("front", "expected"), [("license: mit", "mit"), ("license: [a, b]", None), ("{", None)])
def test_the_license_of_an_encoder_is_that_of_its_card(tmp_path, front, expected):
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n# Card\n")
    assert read_license(str(tmp_path)) == expected


def test_weights_that_are_no_safetensors_are_not_opened(tmp_path):
    folder = write_encoder(tmp_path / "resnet")
    (folder / "model.safetensors").unlink()
    torch.save(backbone("resnet").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="its weights cannot be loaded"):
        load_encoder(str(folder), pretrained=True)


LEAPING = {"model_type": "textnet", "stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 24, 32]}
LEAPING |= {"conv_layer_kernel_sizes": [[[3, 3]]] * 4, "conv_layer_strides": [[4], [2], [2], [2]]}
PLAIN_VIT = r"^--encoder \S+: has features of stride \d+; a U-Net needs several levels, .* \(a plain ViT has only"


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
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_refused(tmp_path, reason)


def test_a_name_without_a_folder_is_refused_offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_refused("nobody/nothing", "is not a folder, and cannot be loaded from the Hub by an id such as ")


@pytest.fixture(scope="module")
def encoder_model(encoder_folders, tmp_path_factory) -> str:
    """The folder of a model with an encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    network_with(encoder_folders["resnet"]).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("encoder_weights", "pretrained", "--encoder-weights pretrained"),
        ("encoder_lr_factor", 0.5, "--encoder-lr-factor 0.5"),
        ("freeze_encoder", True, "--freeze-encoder"),
    ],
)
def test_a_flag_of_an_encoder_is_refused_without_one(name, value, flag):
    with pytest.raises(
        SettingsError, match=f"^{flag}: this network has no encoder; leave the flag out, or name an encoder"
    ):
        start_from(None, {name: value})


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


def test_an_encoder_without_transformers_says_what_to_install(encoder_folders, encoder_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"^transformers is not installed; .*pip install 'transformers<6'$"):
        build_network(encoder_folders["resnet"])


def test_a_model_with_an_encoder_is_a_start_for_other_classes(encoder_folders, encoder_model):
    first = network_with(encoder_folders["resnet"])
    start = start_from(encoder_model, {"freeze_encoder": True})
    again = start.network(3, classes(5), start.config.preprocess)
    assert again.config.preprocess == first.config.preprocess
    assert again.encoder.frozen
    assert all(map(torch.equal, again.ups.parameters(), first.ups.parameters()))


def test_a_model_with_an_encoder_is_a_start_for_other_channels(encoder_folders, encoder_model):
    weights = network_with(encoder_folders["resnet"]).encoder.state_dict()
    statistics = Preprocess(mean=(1.0,) * 5, std=(1.0,) * 5)
    other = start_from(encoder_model, {"freeze_encoder": True}).network(5, classes(2), statistics)
    assert other(pixels(1, 5, 33, 33)).shape == (1, 2, 33, 33)
    assert other.encoder.frozen
    (filters,) = [name for name, weight in other.encoder.state_dict().items() if weight.shape != weights[name].shape]
    weights[filters] = weights[filters][:, torch.arange(5) % 3] * (3 / 5)  # the first ones, repeated and rescaled
    for name, weight in other.encoder.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_an_encoder_is_refused_beside_a_model_that_has_one(encoder_folders, encoder_model):
    with pytest.raises(ModelError, match="has its own architecture; give one of them"):
        start_from(encoder_model, {"encoder": str(encoder_folders["resnet"]), "encoder_weights": "random"})


@pytest.mark.parametrize(("family", "channels"), [("resnet", 1), ("hgnet_v2", 5)])
def test_the_network_of_a_checkpoint_is_built_of_its_config_alone(encoder_folders, family, channels):
    expected = network_with(encoder_folders[family], channels).config
    stored = UNetConfig(**json.loads(json.dumps(asdict(expected))))
    start = start_from(None, {"encoder": f"gone/{family}", "encoder_weights": "pretrained"}, stored)
    statistics = Preprocess(mean=(1.0,) * channels, std=(1.0,) * channels, pixel_types=("uint8",))
    preprocess = stored.preprocess if stored.in_channels == channels else statistics
    network = start.network(channels, classes(2), preprocess)
    assert network.config == expected


def test_other_channels_are_refused_for_a_family_that_takes_grey_or_rgb_images():
    with pytest.raises(ModelError, match="takes grey or RGB images, these have 5 channels"):
        with_channels({"_name_or_path": "x", "license": None}, 5)
