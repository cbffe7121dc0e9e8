"""Backbones of transformers as encoders: every family, size and number of channels, without any network.

Modules: unet/backbone.py, train_utils/settings/encoder.py.
"""

import copy
import json
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from class_loss import classes
from encoders import FAMILIES, EncoderFolders, backbone, network_refused, pixels, write_encoder
from in_process import parsed
from networks import LITE, export, tiny
from starting import start_from
from torch import Tensor, nn

from inference import Predictor
from inference.export.export_format import Options
from inference.export.onnx import Onnx
from inference.models import load_model
from inference.onnx_network import OnnxNetwork
from inference.tiling import choose_tiling, stream_logits
from inference.tiling.receptive_field import reach
from runtime.errors import ModelError, SettingsError
from train_utils.settings.encoder import load_encoder
from train_utils.settings.starting_point import StartingPoint
from unet import Preprocess, UNet, UNetConfig
from unet.backbone import Encoder, dry_pass, encoder_name, level_of
from unet.lite import Features, Lite0


@pytest.fixture(autouse=True)
def no_network():
    """Whoever wants the network fails."""
    with network_refused():
        yield


def test_names_of_other_libraries_are_answered_with_the_hubs():
    for name, hub_id in (
        ("resnet50", "microsoft/resnet-50"),
        ("ResNet-18", "microsoft/resnet-18"),
        ("RESNET_34", "microsoft/resnet-34"),
        ("resnet101", "microsoft/resnet-101"),
        ("convnext_tiny", "facebook/convnext-tiny-224"),
        ("ConvNext-Large", "facebook/convnext-large-224"),
        ("swin_base", "microsoft/swin-base-patch4-window7-224"),
    ):
        with pytest.raises(ModelError) as caught:
            load_encoder(name, pretrained=True)
        line = f"--encoder {name}: is no folder and no Hub id; did you mean --encoder {hub_id}?"
        assert str(caught.value) == line


def test_a_name_that_is_looked_up_is_noticed_and_so_is_a_connection():
    with pytest.raises(AssertionError, match="huggingface"), network_refused(), suppress(OSError):
        socket.getaddrinfo("huggingface.co", 443)
    with pytest.raises(AssertionError, match="127"), network_refused(), socket.socket() as one, suppress(OSError):
        one.connect(("127.0.0.1", 9))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> EncoderFolders:
    """A folder for each family, whose weights are not those that `built` begins with."""
    return EncoderFolders(tmp_path_factory.mktemp("encoders"))


def slow_but(*quick: str) -> list:
    """All families as parameters, of which a few are quick: resnet, and those that go another way through the code."""
    return [family if family in quick else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]


def started(folder: Path, **asked: object) -> StartingPoint:
    """Where train.py starts with this encoder."""
    return start_from(None, {"encoder": str(folder), "encoder_weights": "pretrained", "base_channels": 2} | asked)


def build(folder: Path, channels: int = 3, **asked: object) -> UNet:
    """The network that train.py starts with, in training mode."""
    return network_of(started(folder, **asked), channels)


def network_of(start: StartingPoint, channels: int = 3, pixel_types: tuple[str, ...] = ("uint8",)) -> UNet:
    """The network of a start, for images of so many channels."""
    statistics = Preprocess(mean=(90.0,) * channels, std=(40.0,) * channels, pixel_types=pixel_types)
    torch.manual_seed(0)
    return start.build(channels, classes(2), start.trained_preprocess(channels) or statistics)


first_built = cache(build)


def built(folder: Path, channels: int = 3, **asked: object) -> UNet:
    """A copy of the network that train.py starts with, of a folder that stays as it is."""
    network = copy.deepcopy(first_built(folder, channels, **asked))
    torch.manual_seed(0)  # whether it was built now or earlier
    return network


CASES = [("resnet", 3), ("swin", 1), ("hgnet_v2", 5)]
MORE_CASES = [(family, 3) for family in FAMILIES if family != "resnet"]
MORE_CASES += [("resnet", 1), ("resnet", 5), ("swinv2", 1), ("bit", 5)]


@pytest.mark.parametrize(
    ("family", "channels"), CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES]
)
def test_a_trained_network_comes_back_bit_for_bit_and_takes_any_size(folders, tmp_path, family, channels):
    network = built(folders[family], channels)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=1e-3)
    images = pixels(2, channels, 49, 75)
    network(images).square().mean().backward()
    assert all((p.grad is not None) == p.requires_grad for p in network.parameters())
    optimizer.step()
    network.eval().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == network.config
    loaded.to(memory_format=torch.channels_last)
    with torch.inference_mode():
        for size in ((49, 75), (15, 15)):
            logits = network(images[:, :, : size[0], : size[1]])
            assert logits.shape == (2, 2, *size)
            assert logits.isfinite().all()
            assert torch.equal(loaded(images[:, :, : size[0], : size[1]]), logits)


@pytest.mark.parametrize("family", slow_but("resnet", "bit", "swin", "hgnet_v2", "pp_lcnet"))
def test_the_features_are_the_backbones_own_and_channels_and_strides_are_what_they_are(folders, family):
    network = built(folders[family]).eval()
    theirs = transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(**network.config.encoder))
    network.encoder.backbone.load_state_dict(theirs.state_dict())
    with torch.inference_mode():
        images = torch.randn(1, 3, 64, 96)
        expected, features = theirs.eval()(images).feature_maps, network.encoder(images)
    for ours, wanted in zip(features, expected, strict=True):  # channels-last sums in another order
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
    first = 1 if family in ("pp_lcnet", "textnet") else 2
    assert network.encoder.first_level == first
    assert network.config.depth == 5
    assert [f.shape[-2:] for f in features] == [(64 >> level, 96 >> level) for level in range(first, 6)]
    assert [f.shape[1] for f in features] == network.encoder.channels


def test_an_image_is_padded_with_its_border_to_the_coarsest_stride(folders):
    network = built(folders["swin"]).eval()
    images = pixels(1, 3, 40, 70).float()
    with torch.inference_mode():
        expected = network(F.pad(images, (0, 26, 0, 24), mode="replicate"))[..., :40, :70]
        assert torch.equal(network(images), expected)


def test_weights_are_the_folders_or_random(folders):
    of_folder = backbone("resnet").from_pretrained(folders["resnet"]).state_dict()
    pretrained, random = built(folders["resnet"]), built(folders["resnet"], encoder_weights="random")
    for name, weight in pretrained.encoder.backbone.state_dict().items():
        assert torch.equal(weight, of_folder[name])
    name = "encoder.stages.0.layers.0.layer.0.convolution.weight"
    assert not torch.equal(random.encoder.backbone.state_dict()[name], of_folder[name])


def test_a_classifiers_folder_is_an_encoder_too(tmp_path):
    config = FAMILIES["swin"]()
    classifier = transformers.SwinForImageClassification(config)
    classifier.save_pretrained(tmp_path)
    network = build(tmp_path)
    theirs = classifier.swin.encoder.state_dict()
    ours = network.encoder.backbone.swin.encoder.state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in theirs.items())


def test_images_of_8_bits_are_normalized_as_the_encoder_was_trained_and_others_by_themselves(tmp_path):
    folder = write_encoder(tmp_path, preprocessor_config={"image_mean": [0.2, 0.4, 0.6], "image_std": [0.1, 0.2, 0.3]})
    own = ((51.0, 102.0, 153.0), (25.5, 51.0, 76.5))
    start = started(folder)
    for channels in (1, 3):
        preprocess = network_of(start, channels).config.preprocess
        assert (preprocess.mean, preprocess.std) == (pytest.approx(own[0]), pytest.approx(own[1]))
        preprocess = network_of(start, channels, ("uint16",)).config.preprocess
        assert (preprocess.mean, preprocess.std) == ((90.0,) * 3, (40.0,) * 3)
    assert network_of(start, 5).config.preprocess.mean == (90.0,) * 5
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False}))
    preprocess = build(folder).config.preprocess
    assert (preprocess.mean, preprocess.std) == ((0.0,) * 3, (255.0,) * 3)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}))
    network = build(folder)
    assert network.config.preprocess == preprocess
    assert network.mean.dtype == network.std.dtype == torch.float32


@pytest.mark.parametrize(("family", "mean"), [("resnet", 0.485), ("bit", 0.5)])
def test_without_a_preprocessor_config_the_mean_is_the_familys(folders, family, mean):
    assert built(folders[family]).config.preprocess.mean[0] == pytest.approx(255 * mean)


def test_grey_is_repeated_for_each_channel(folders):
    network = built(folders["resnet"], 1).eval()
    grey = pixels(1, 1, 40, 50)
    with torch.inference_mode():
        assert torch.equal(network(grey), network(grey.expand(1, 3, 40, 50)))


@pytest.mark.parametrize("family", ["resnet", "hgnet_v2", pytest.param("swinv2", marks=pytest.mark.slow)])
def test_filters_are_repeated_for_more_channels_and_rescaled(folders, capsys, family):
    three, five = built(folders[family]).eval(), build(folders[family], 5).eval()
    assert "its first filters, for 3 channels, are repeated for 5 channels and rescaled" in capsys.readouterr().out
    image = torch.randn(1, 3, 64, 64)
    weights = torch.tensor([1 / 2, 1 / 2, 1.0])  # channels 0 and 1 come twice
    with torch.inference_mode():
        expected = three.encoder(image)
        repeated = (image * (5 / 3) * weights.view(3, 1, 1))[:, [0, 1, 2, 0, 1]]
        for ours, theirs in zip(five.encoder(repeated), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)  # float32, sums in another order


def saved_bytes(network: nn.Module, images: Tensor) -> int:
    """What a forward pass keeps for the backward pass, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = network(images)
    del logits
    return sum(storages.values())


@pytest.mark.parametrize(
    "family", ["resnet", *[pytest.param(name, marks=pytest.mark.slow) for name in ("hgnet_v2", "swin")]]
)
def test_a_frozen_encoder_keeps_nothing_for_the_backward_pass_and_stays_bit_for_bit(folders, family):
    trained, frozen = built(folders[family]), built(folders[family], freeze_encoder=True)
    before = {name: value.clone() for name, value in frozen.encoder.state_dict().items()}
    images = pixels(2, 3, 64, 64)
    for network in (trained, frozen):
        network.train()
        network(images).square().mean().backward()
    assert all(torch.equal(value, before[name]) for name, value in frozen.encoder.state_dict().items())
    assert not any(parameter.requires_grad for parameter in frozen.encoder.parameters())
    assert all(parameter.grad is not None for parameter in frozen.ups.parameters())
    assert not any(module.training for module in frozen.encoder.modules())
    assert frozen.ups.training
    with torch.no_grad():
        of_decoder = saved_bytes(frozen, images)
    assert all(feature.grad_fn is None for feature in frozen.encoder(torch.randn(1, 3, 64, 64)))
    assert of_decoder == 0
    assert saved_bytes(frozen, images) < saved_bytes(trained, images)


@pytest.mark.parametrize(
    "family", ["resnet", "swin", *[pytest.param(name, marks=pytest.mark.slow) for name in ("convnextv2", "focalnet")]]
)
def test_activation_checkpointing_changes_neither_gradients_nor_running_statistics(folders, family):
    plain, recomputed = built(folders[family]).double(), built(folders[family]).double()
    recomputed.activation_checkpointing = True
    images = pixels(2, 3, 64, 64)
    for network in (plain, recomputed):
        for module in network.modules():
            if "DropPath" in type(module).__name__:
                module.drop_prob = 0.0
        network(images).square().mean().backward()
    for (name, ours), theirs in zip(recomputed.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(recomputed.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert saved_bytes(recomputed, images) < 0.8 * saved_bytes(plain, images)


def called(network: nn.Module, images: Tensor) -> list[nn.Module]:
    """The encoder's stages in the order in which a forward pass calls them."""
    order: list[nn.Module] = []
    hooks = [s.register_forward_pre_hook(lambda stage, _: order.append(stage)) for s in network.encoder.stages]
    network(images)
    for hook in hooks:
        hook.remove()
    return order


def check_stages(network: UNet) -> None:
    """The stages are as many as the config names, and run in their order."""
    names = [name for name in network.config.encoder["stage_names"] if name != "stem"]
    assert len(network.encoder.stages) == len(names)
    assert called(network, pixels(2, 3, 64, 64)) == network.encoder.stages


@pytest.mark.parametrize("family", slow_but("resnet", "bit", "swin", "hgnet_v2", "pp_lcnet"))
def test_the_stages_are_those_that_the_config_names(folders, family):
    check_stages(built(folders[family]))


def test_one_stage_is_the_one_that_the_config_names(tmp_path):
    first = {"stage_in_channels": [8], "stage_mid_channels": [4], "stage_out_channels": [16], "stage_num_blocks": [1]}
    first |= {"stage_downsample": [True], "stage_light_block": [False], "stage_kernel_size": [3], "depths": [1]}
    sizes = {"stem_channels": [3, 4, 8], "embedding_size": 8, "hidden_sizes": [16], "stage_numb_of_layers": [2]}
    transformers.HGNetV2Backbone(transformers.HGNetV2Config(**sizes, **first)).save_pretrained(tmp_path)
    check_stages(built(tmp_path))


class Unlisted(nn.Module):
    """A backbone of which no list of modules says what its stages are."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        strides = [4, *[2] * (len(channels) - 1)]
        before = [3, *channels[:-1]]
        self.layers = nn.Sequential(*map(nn.Conv2d, before, channels, strides, strides))

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(feature_maps=[x := layer(x) for layer in self.layers])


def test_a_backbone_without_a_list_of_stages_is_recomputed_as_one(folders):
    network = built(folders["resnet"])
    network.encoder.backbone = Unlisted(network.encoder.channels)
    network.activation_checkpointing = True
    assert called(network, pixels(2, 3, 64, 64)) == [network.encoder.backbone]
    network(pixels(2, 3, 64, 64)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.encoder.parameters())


def test_an_empty_list_of_a_backbone_holds_no_stages():
    network = UNet(tiny(depth=5, encoder=LITE, in_channels=3))
    stage = nn.Identity()
    network.encoder.backbone = nn.Sequential(nn.ModuleList(), nn.ModuleList([stage]))
    assert network.encoder.stages == [stage]


def test_a_dry_pass_leaves_the_mode_of_a_backbone_and_its_statistics():
    backbone = Lite0()
    for mode in (True, False):
        backbone.train(mode)
        before = {name: value.clone() for name, value in backbone.state_dict().items()}
        dry_pass(backbone, LITE)
        assert {module.training for module in backbone.modules()} == {mode}
        assert all(value.equal(before[name]) for name, value in backbone.state_dict().items())


class Backbone(nn.Module):
    """Features of strides 2 and 4, and a parameter that they have no use for."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> Features:
        first = self.used(images)
        return Features((first, first[:, :, ::2, ::2]))


def test_what_the_features_have_no_use_for_is_not_trained(monkeypatch):
    monkeypatch.setattr("unet.backbone.random_backbone", lambda config: Backbone())
    encoder = Encoder({"num_channels": 3})
    assert (encoder.first_level, encoder.channels) == (1, [4, 4])
    trained = {name: parameter.requires_grad for name, parameter in encoder.backbone.named_parameters()}
    assert trained == {"unused": False, "used.weight": True, "used.bias": True}


def test_levels_are_halvings_of_both_sides():
    assert [level_of(torch.empty(1, 1, 128 >> level, 128 >> level)) for level in range(5)] == [0, 1, 2, 3, 4]
    assert level_of(torch.empty(1, 1, 64, 32)) == level_of(torch.empty(1, 1, 32, 64)) == -1
    assert level_of(torch.empty(1, 1, 43, 43)) == -1


@pytest.mark.parametrize(
    ("family", "is_exact"),
    [("resnet", True), ("swin", False), ("bit", False), pytest.param("convnext", True, marks=pytest.mark.slow)],
)
def test_tiles_are_exact_where_the_encoder_looks_only_so_far(folders, family, is_exact):
    network = built(folders[family]).double().eval()
    state = torch.get_rng_state()
    needed = reach(network.config)
    assert torch.equal(torch.get_rng_state(), state)  # it is measured with random weights
    assert (needed is not None) == is_exact
    halo = needed[0] if needed else 96
    size = (3 * halo + 70, 45)
    tiling = choose_tiling(network.config, size, tile_size=2 * halo + 64)
    assert tiling.exact == is_exact
    assert tiling.grid == (32, 32)
    assert ("equal to the whole image's result" if is_exact else "blended") in str(tiling)
    image = torch.rand(3, *size, dtype=torch.float64) * 255
    with torch.inference_mode():
        strips = stream_logits(network, lambda start, stop: image[:, start:stop], size, tiling, 10**6)
        difference = (torch.cat(list(strips), dim=1) - network(image[None])[0]).abs().max()
    assert (difference < 1e-12) == is_exact  # float64: measured 0, and 1e-7 and more


def test_the_graph_of_a_convolutional_encoder_gives_the_same_logits(folders, tmp_path):
    network = built(folders["resnet"]).eval()
    Onnx().write(network, tmp_path / "model.onnx", Options())
    images = pixels(2, 3, 49, 75).float()
    with torch.inference_mode():
        logits = OnnxNetwork(tmp_path / "model.onnx")(images)
        torch.testing.assert_close(logits, network(images), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_convolutional_encoder_is_exported_and_one_with_windows_of_attention_is_refused(folders, tmp_path):
    network = built(folders["convnext"], norm="group").eval()
    export(network, tmp_path / "model.onnx")
    exported = OnnxNetwork(tmp_path / "model.onnx")
    assert exported.config == network.config
    images = pixels(2, 3, 97, 131).float()
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), network(images), rtol=0, atol=1e-4)
    with pytest.raises(ModelError, match=r"encoders with window attention \(Swin\) cannot be exported"):
        export(built(folders["swin"]).eval(), tmp_path / "swin.onnx")
    assert not (tmp_path / "swin.onnx").exists()


PLAIN_VIT = r"^--encoder \S+vit: has features of stride \d+; a U-Net needs several levels, .* \(a plain ViT has only"


def config_folder(folder: Path, **settings: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_what_cannot_be_an_encoder_is_refused_in_one_line(folders, tmp_path, monkeypatch):
    def refused(source: object, reason: str, **asked: object) -> None:
        with pytest.raises(ModelError, match=reason) as error:
            start_from(None, {"encoder": str(source), "encoder_weights": "pretrained"} | asked)
        assert "\n" not in str(error.value)
        assert str(source) in str(error.value)

    refused(config_folder(tmp_path / "vit", model_type="dinov2", hidden_size=8, num_attention_heads=1), PLAIN_VIT)
    deep = config_folder(tmp_path / "deep", model_type="resnet", depths=[1, 1, 1001, 1])
    refused(deep, r"its config\.json has a stage of more than 1000 layers$")
    refused(config_folder(tmp_path / "bert", model_type="bert"), "bert is not a backbone of transformers; use ")
    for family in ("tipsv2", "timm_backbone"):  # backbones to transformers, but of no stages
        refused(config_folder(tmp_path / family, model_type=family), f"{family} is not a backbone of transformers; use")
    with pytest.raises(ModelError, match="takes grey or RGB images, these have 5 channels"):
        build(folders["pp_lcnet"], 5)
    refused(config_folder(tmp_path / "none"), "has no usable config.json")
    refused("timm/resnet50.a1_in1k", "models of timm are not supported")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("nobody/nothing", "is not a folder, and cannot be loaded from the Hub")
    empty = config_folder(tmp_path / "empty", **json.loads((folders["resnet"] / "config.json").read_text()))
    refused(empty, "its weights cannot be loaded")
    refused(folders["resnet"], "--depth 4: .*resnet has 5; leave the flag out", depth=4)
    refused(folders["resnet"], "would never be trained", encoder_weights="random", freeze_encoder=True)


@pytest.fixture(scope="module")
def models(folders, tmp_path_factory) -> tuple[str, str]:
    """A model without an encoder, and one with it."""
    folder = tmp_path_factory.mktemp("models")
    plain, with_encoder = str(folder / "plain"), str(folder / "encoder")
    UNet(UNetConfig(base_channels=2, depth=1)).save_pretrained(plain)
    built(folders["resnet"]).save_pretrained(with_encoder)
    return plain, with_encoder


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("encoder_weights", "pretrained", "--encoder-weights pretrained"),
        ("encoder_weights", "random", "--encoder-weights random"),
        ("encoder_lr_factor", 0.5, "--encoder-lr-factor 0.5"),
        ("freeze_encoder", True, "--freeze-encoder"),
    ],
)
def test_a_flag_of_an_encoder_is_refused_without_one(models, name, value, flag):
    plain, with_encoder = models
    for source in (None, plain):
        with pytest.raises(SettingsError, match=f"^{flag}: this network has no encoder; leave the flag out, or name"):
            start_from(source, {name: value})
    if name == "encoder_weights":
        with pytest.raises(SettingsError, match=f"^{flag}: the encoder of {with_encoder} already has weights"):
            start_from(with_encoder, {name: value})
    else:
        assert start_from(with_encoder, {name: value}).trained.encoder


def test_encoder_weights_are_pretrained_where_there_is_an_encoder_to_have_them():
    assert parsed("--encoder", "x").encoder_weights == "pretrained"
    assert parsed().encoder_weights is None
    assert parsed("--encoder", "x", "--encoder-weights", "random").encoder_weights == "random"


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("model.safetensors", "short", "its weights cannot be loaded"),
        ("preprocessor_config.json", "{", "preprocessor_config.json cannot be used"),
        ("preprocessor_config.json", "[1]", "preprocessor_config.json cannot be used"),
        ("preprocessor_config.json", '{"image_mean": 3}', "preprocessor_config.json cannot be used"),
        ("preprocessor_config.json", '{"image_std": [0, 1, 1]}', "preprocessor_config.json cannot be used: std is"),
        ("config.json", '{"model_type": "resnet", "hidden_sizes": "wide"}', "resnet: "),
        ("config.json", '{"model_type": "resnet", "hidden_sizes": [8]}', "cannot be used here"),
        ("config.json", '{"model_type": "resnet", "hidden_act": "none of them"}', "cannot be used here"),
        ("config.json", '{"model_type": "x", "auto_map": {"AutoConfig": "mine.Config"}}', "has no usable config.json"),
    ],
)
def test_a_damaged_file_of_an_encoder_is_one_line(tmp_path, file, content, reason):
    folder = write_encoder(tmp_path / "resnet")
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=reason) as error:
        load_encoder(str(folder), pretrained=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("card", ["---\n: [\n---\n", "---\n- a\n---\n", "---\nlicense: [mit, bsd]\n---\n", "\n"])
def test_a_card_that_says_no_license_stops_nothing(tmp_path, card):
    folder = write_encoder(tmp_path / "resnet")
    (folder / "README.md").write_text(card)
    assert load_encoder(str(folder), pretrained=True).config["license"] is None


def test_a_model_for_grey_images_starts_from_one_for_rgb_with_its_normalization(folders, tmp_path):
    seen = Preprocess(mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0), pixel_types=("uint8",))
    first = start_from(None, {"encoder": str(folders["resnet"]), "encoder_weights": "random"}).build(
        3, classes(2), seen
    )
    first.save_pretrained(tmp_path)
    grey = Preprocess(mean=(90.0,), std=(50.0,), pixel_types=("uint8",))
    again = start_from(str(tmp_path), {}).build(1, classes(2), grey)
    assert again.config.preprocess.mean == first.config.preprocess.mean
    assert again.config.preprocess.std == first.config.preprocess.std


def test_other_weights_than_the_configs_are_refused(folders, tmp_path):
    folder = write_encoder(tmp_path / "mixed")
    (folder / "model.safetensors").write_bytes((folders["convnext"] / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"its file lacks \d+ of the weights, such as embedder\."):
        load_encoder(str(folder), pretrained=True)


def test_without_transformers_a_flag_and_a_model_say_what_to_install(folders, tmp_path, monkeypatch):
    built(folders["resnet"]).save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for use in (lambda: build(folders["resnet"]), lambda: UNet.from_pretrained(tmp_path)):
        with pytest.raises(ModelError, match=r"^transformers is not installed; .*requirements-encoders\.txt$"):
            use()
    assert UNet(UNetConfig(base_channels=2, depth=1)).encoder is None


def test_name_and_license_are_kept_without_the_folders_path(tmp_path):
    folder = write_encoder(tmp_path / "mine")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A backbone\n")
    config = build(folder).config.encoder
    assert config["_name_or_path"] == "mine"
    assert config["license"] == "apache-2.0"
    assert str(tmp_path) not in json.dumps(config)


def test_an_encoder_is_named_with_its_license_where_that_is_known():
    assert encoder_name({"_name_or_path": "owner/name", "license": "mit"}) == "owner/name (mit)"
    assert encoder_name({"_name_or_path": "owner/name", "license": None}) == "owner/name"


def test_a_model_with_an_encoder_is_a_start_for_other_channels_and_classes(folders, tmp_path):
    first = built(folders["resnet"])
    first.save_pretrained(tmp_path)
    asked = {"freeze_encoder": True}
    start = start_from(str(tmp_path), asked)
    again = start.build(3, classes(5), start.trained_preprocess(3))
    assert again.config.preprocess == first.config.preprocess
    assert again.encoder.frozen
    assert all(map(torch.equal, again.ups.parameters(), first.ups.parameters()))
    other = start_from(str(tmp_path), asked).build(5, classes(2), Preprocess(mean=(1.0,) * 5, std=(1.0,) * 5))
    assert other(pixels(1, 5, 33, 33)).shape == (1, 2, 33, 33)
    assert other.encoder.frozen
    for name, weight in other.encoder.state_dict().items():
        source = first.encoder.state_dict()[name]
        if weight.shape != source.shape:  # the first filters, repeated and rescaled
            source = source[:, torch.arange(5) % 3] * (3 / 5)
        assert torch.equal(weight, source), name
    with pytest.raises(ModelError, match="has its own architecture; give one of them"):
        start_from(str(tmp_path), {"encoder": str(folders["resnet"]), "encoder_weights": "random"})


@pytest.mark.parametrize(("family", "channels"), [("resnet", 1), ("resnet", 3), ("hgnet_v2", 5)])
def test_the_network_of_a_checkpoint_is_built_of_its_config_alone(folders, family, channels):
    config = built(folders[family], channels).config
    saved = UNetConfig(**json.loads(json.dumps(asdict(config))))
    flags = {"encoder": f"gone/{family}", "encoder_weights": "pretrained"}
    start = start_from(None, flags, saved)
    of_images = Preprocess(mean=(1.0,) * channels, std=(1.0,) * channels, pixel_types=("uint8",))
    assert start.build(channels, classes(2), start.trained_preprocess(channels) or of_images).config == config
    with pytest.raises(ModelError, match=f"--depth 4: gone/{family} has 5; leave the flag out"):
        start_from(None, flags | {"depth": 4}, saved)


def test_config_json_of_a_model_without_encoder_loads_as_before(tmp_path):
    UNet(UNetConfig(base_channels=2, depth=1)).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings.pop("encoder")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert UNet.from_pretrained(tmp_path).config == UNetConfig(base_channels=2, depth=1)


def test_predictions_of_a_mixed_ensemble_are_averaged(folders, tmp_path):
    network = built(folders["resnet"]).eval()
    plain = UNet(UNetConfig(base_channels=2, depth=1)).eval()
    image = np.random.default_rng(0).integers(0, 256, (33, 50, 3), dtype=np.uint8)
    each = [Predictor(one)(image).probabilities for one in (network, plain)]
    both = Predictor(network, ensemble=[plain])(image).probabilities
    np.testing.assert_allclose(both, sum(each) / 2, atol=1e-6)
