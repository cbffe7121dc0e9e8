"""Small rules of a network and its config.json: what is the default, what is refused, what is padded and put back.

Modules: unet/config.py, unet/model.py, unet/blocks.py, unet/axes.py, unet/backbone.py, unet/lite.py, unet/recompute.py.
"""

import dataclasses
import os

import pytest
import torch
from safetensors import safe_open
from torch import nn

from unet import Preprocess, UNet, UNetConfig
from unet.axes import level_axes
from unet.backbone import Encoder, dry_pass, encoder_name, level_of
from unet.blocks import Up, norm_layer
from unet.lite import Features, Lite0
from unet.model import DeeplySupervisedUNet
from unet.recompute import frozen_statistics, recomputing

LITE = {"model_type": "efficientnet_lite0", "num_channels": 3}


def tiny(**settings) -> UNetConfig:
    return UNetConfig(**{"in_channels": 1, "base_channels": 2, "depth": 2, **settings})


def test_what_an_old_config_json_does_not_say_is_as_it_was_then():
    preprocess = {
        "image_size": None,
        "scale": 1.0,
        "mean": (),
        "std": (),
        "class_names": (),
        "class_values": (),
        "ignore_value": None,
        "joined_values": (),
        "outside_class": None,
        "detect_unit_range": False,
        "draft": True,
        "pixel_types": (),
        "spacing": None,
        "clip": None,
        "standardize": False,
        "turned": True,
        "bands": (),
        "place": False,
    }
    network = {
        "in_channels": 3,
        "num_classes": 2,
        "base_channels": 64,
        "depth": 4,
        "norm": "batch",
        "upsample": "transpose",
        "dropout": 0.0,
        "encoder": None,
        "block": "plain",
        "dims": 2,
        "kernels": (),
        "strides": (),
        "task": None,
        "temperature": 1.0,
    }
    defaults = dataclasses.asdict(UNetConfig.from_json({}))
    assert {name: defaults["preprocess"][name] for name in preprocess} == preprocess
    assert {name: defaults[name] for name in network} == network


def test_config_json_holds_what_most_models_do_not_have_only_where_there_is_some():
    plain = tiny().to_json()
    assert not {"task", "temperature"} & plain.keys()
    values = {"joined_values": ((4, 1),), "outside_class": 0, "bands": ("B04",), "place": True}
    assert not values.keys() & plain["preprocess"].keys()
    full = tiny(preprocess=Preprocess(**values), task={"name": "objects"}, temperature=1.5).to_json()
    assert full["task"] == {"name": "objects"} and full["temperature"] == 1.5
    assert {name: full["preprocess"][name] for name in values} == values


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("detect_unit_range", 1),
        ("standardize", 0),
        ("turned", 1),
        ("draft", 0),
        ("place", 1),
        ("bands", (4,)),
        ("spacing", (1.0, 0.0, 1.0)),
        ("spacing", (1.0, 1.0)),
        ("clip", (5, 4)),
        ("outside_class", 256),
        ("joined_values", ((4, 256),)),
        ("joined_values", ((4, 1, 2),)),
        ("joined_values", {4: 1}),
        ("std", (1.0, True)),
        ("mean", (10**400,)),
        ("ignore_value", (0, 0, 256)),
        ("image_size", (0, 4)),
        ("scale", 0),
    ],
)
def test_preprocessing_that_no_model_has_is_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field} is "):
        Preprocess(**{field: value})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"kernels": [(3, 3), (2, 3), (3, 3)]}, "kernels is .*, expected 3 times 2 numbers of 1 and 3"),
        ({"kernels": [(3, 3), (3, 3)]}, "kernels is .*, expected 3 times 2 numbers of 1 and 3"),
        ({"strides": [(2, 2), (3, 2)]}, "strides is .*, expected 2 times 2 numbers of 1 and 2"),
        ({"strides": [(2, 2), (2, 2, 2)]}, "strides is .*, expected 2 times 2 numbers"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"temperature": 0}, "temperature is 0, expected a number above 0"),
        ({"task": {"classes": 2}}, "task is .*, expected null, or an object with a name"),
        ({"dims": 4}, "dims is 4, expected 2 or 3"),
        ({"dims": 3, "encoder": LITE}, "dims is 3, expected 2, for the encoder takes images"),
        ({"dims": 3, "upsample": "bilinear_aligned"}, "upsample is .*, expected transpose or bilinear, for volumes"),
        ({"preprocess": Preprocess(std=(1.0, 1.0))}, "std has 2 values, expected one for each of 1 channels"),
        (
            {"preprocess": Preprocess(class_values=(1,))},
            "class_values has 1 values, expected one for each of 2 ",
        ),
        ({"preprocess": Preprocess(class_names=("a",))}, "class_names has 1 values, expected one for each of 2 class"),
    ],
)
def test_a_network_that_cannot_be_is_refused(settings, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        tiny(**settings)


def test_numbers_of_preprocessing_become_floats_and_others_stay():
    preprocess = Preprocess(scale=1, std=(2,), spacing=(2, 1, 1), clip=(-5, 5), image_size=(4, 4))
    values = (preprocess.scale, *preprocess.std, *preprocess.spacing, *preprocess.clip)
    assert {type(value) for value in values} == {float}
    assert {type(side) for side in preprocess.image_size} == {int}


def test_a_resampled_volume_has_the_nearest_number_of_voxels_and_one_at_least():
    preprocess = Preprocess(spacing=(4.0, 1.0, 2.0))
    assert preprocess.resampled_size((7, 10, 5), (1.0, 0.77, 3.0)) == (2, 8, 8)  # 1.75, 7.7 and 7.5
    assert preprocess.resampled_size((1, 10, 10), (1.0, 1.0, 2.0)) == (1, 10, 10)
    assert Preprocess().resampled_size((7, 10, 5), (1.0, 0.77, 3.0)) == (7, 10, 5)


def test_what_becomes_one_pixel_is_the_product_of_the_strides():
    assert tiny(dims=3, strides=[(1, 2, 2), (2, 2, 2)]).divisors == (2, 4, 4)
    assert tiny().divisors == (4, 4)


def test_an_encoder_sees_as_many_channels_as_its_config_says_or_three():
    assert tiny(encoder={"model_type": "resnet"}).network_channels == 3
    assert tiny(encoder=LITE | {"num_channels": 5}).network_channels == 5
    assert tiny().network_channels == 1


def test_patches_are_pooled_at_most_five_times_and_to_no_fewer_than_four_pixels():
    assert len(level_axes((1, 1), (4096, 4096))[1]) == 5
    assert level_axes((1, 1), (8, 8))[1] == ((2, 2),)
    assert level_axes((1, 1), (16, 15))[1] == ((2, 2), (2, 1))
    assert level_axes((1, 1), (7, 7))[1] == ((2, 2),)  # there is a step down in any case
    # twice the finest spacing is coarse, and what is long enough to be pooled alone says what is fine
    assert level_axes((2, 1), (64, 64), depth=1) == (((1, 3), (3, 3)), ((1, 2),))
    assert level_axes((1, 3, 4), (7, 64, 64), depth=1)[1] == ((1, 2, 2),)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (2, 1), (6, 1), (48, 8), (64, 32), (256, 32)])
def test_groups_have_two_channels_at_least_and_are_thirty_two_at_most(channels, groups):
    assert norm_layer("group", channels).num_groups == groups


def test_interpolated_features_are_halved_in_two_steps():
    options = {"norm": "batch", "block": "plain", "kernel": (3, 3), "stride": (2, 2)}
    for inputs, skip, outputs, middle in ((16, 16, 4, 8), (16, 6, 4, 6), (8, 8, 8, 8)):
        up = Up(inputs, skip, outputs, upsample="bilinear", **options)
        assert (up.conv.conv1.in_channels, up.conv.conv1.out_channels) == (inputs + skip, middle)
        assert up.conv.conv2.out_channels == outputs


@pytest.mark.parametrize("kind", [UNet, DeeplySupervisedUNet])
def test_dropout_falls_on_the_lowest_level_alone_and_in_training_alone(kind):
    network = kind(tiny(depth=3, dropout=0.5))
    shapes = []
    network.dropout.register_forward_hook(lambda layer, inputs, output: shapes.append(tuple(output.shape)))
    network.train()(torch.rand(1, 1, 32, 48))
    assert shapes == [(1, 16, 4, 6)]
    network.eval()
    images = torch.rand(1, 1, 32, 48)
    assert network(images).equal(network(images))


def test_a_loaded_model_is_in_evaluation_mode(model):
    assert not any(module.training for module in UNet.from_pretrained(model).modules())


def test_a_saved_file_says_whose_tensors_it_holds_and_may_be_read_by_others(tmp_path):
    UNet(tiny()).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers and others ask for it
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_levels_with_logits_and_the_way_between_them_are_all_but_the_lowest_two():
    network = DeeplySupervisedUNet(tiny(depth=4, strides=[(1, 2), (2, 2), (2, 1), (2, 2)]))
    assert (network.levels, network.head_strides) == (3, ((1, 2), (2, 2)))
    assert not [name for name in network.published_state() if name.startswith("heads.")]
    assert {"head.conv.weight", "head.conv.bias"} <= network.published_state().keys()
    assert UNet(tiny(depth=4)).head_strides == ()
    logits = network.train()(torch.rand(1, 1, 18, 34))
    assert [tuple(level.shape[2:]) for level in logits] == [(18, 34), (18, 17), (9, 8)]
    assert network(torch.rand(1, 1, 3, 34))[0].shape[2:] == (3, 34)  # a padded side is cut back


def test_an_image_of_a_single_value_at_the_lowest_level_is_padded_for_instance_norm_alone():
    for norm, padded in (("instance", (8, 8)), ("batch", (4, 4)), ("group", (4, 4))):
        network = UNet(tiny(norm=norm))
        assert network._pad(torch.rand(1, 1, 4, 4)).shape[2:] == padded
        assert network._pad(torch.rand(1, 1, 4, 8)).shape[2:] == (4, 8)  # two values
        assert network._pad(torch.rand(1, 1, 3, 9)).shape[2:] == (8, 9)  # a side that would vanish


def test_weights_are_compared_before_a_network_of_any_size_is_built():
    weights = UNet(tiny()).state_dict()
    assert UNet.weights_problem(tiny(), weights) is None
    assert UNet.weights_problem(tiny(depth=1000), weights) == "has fewer than 1,000 layers or 2 channels"
    assert UNet.weights_problem(tiny(num_classes=10**9), weights).endswith("or 1,000,000,000 channels")
    encoder = LITE | {"num_hidden_layers": 5000, "depths": [2, 7000]}
    assert UNet.weights_problem(tiny(encoder=encoder), weights).startswith("has fewer than 7,000 layers")
    less = {name: value for name, value in weights.items() if "stem" not in name}
    lacks = UNet.weights_problem(tiny(), less)
    assert lacks.startswith("lacks stem.conv1.weight, stem.conv2.weight, stem.norm1.bias, ...")
    assert UNet.weights_problem(tiny(), weights | {"more": torch.ones(1)}) == "has unknown more"
    changed = weights | {"head.conv.bias": torch.ones(3)}
    assert UNet.weights_problem(tiny(), changed) == "has other shapes in head.conv.bias"


def test_blocks_that_run_twice_are_all_that_are_trained():
    network = UNet(tiny(depth=5, encoder=LITE, in_channels=3))
    blocks = [network.stem, *network.downs, *network.encoder.stages, *network.ups]
    assert [*map(id, network.blocks)] == [*map(id, blocks)]
    network.encoder.freeze()
    assert not any(module.training for module in network.encoder.modules())
    assert [*map(id, network.blocks)] == [*map(id, [network.stem, *network.downs, *network.ups])]
    network.train()
    assert not any(module.training for module in network.encoder.modules())
    assert not any(parameter.requires_grad for parameter in network.encoder.parameters())


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


def test_an_encoder_is_named_with_its_license_where_that_is_known():
    assert encoder_name({"_name_or_path": "owner/name", "license": "mit"}) == "owner/name (mit)"
    assert encoder_name({"_name_or_path": "owner/name", "license": None}) == "owner/name"


def test_norms_of_the_built_in_encoder_have_the_settings_that_it_was_trained_with():
    norms = [module for module in Lite0().modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(0.001, 0.01)}


def test_statistics_are_frozen_within_and_put_back_after_an_error_too():
    block = nn.Sequential(nn.BatchNorm2d(2, momentum=0.3), nn.BatchNorm2d(2, momentum=None))
    block(torch.rand(4, 2, 3, 3))
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with pytest.raises(ZeroDivisionError), frozen_statistics(block):
        block(torch.rand(4, 2, 3, 3))
        raise ZeroDivisionError
    assert [norm.momentum for norm in block] == [0.3, None]
    assert all(value.equal(before[name]) for name, value in block.state_dict().items())


def test_blocks_run_once_again_after_an_error_within():
    blocks = [nn.Linear(1, 1), nn.Linear(1, 1)]
    with pytest.raises(ZeroDivisionError), recomputing(blocks):
        assert all("forward" in vars(block) for block in blocks)
        raise ZeroDivisionError
    assert not any("forward" in vars(block) for block in blocks)
