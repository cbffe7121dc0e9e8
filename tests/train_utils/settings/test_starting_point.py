"""What training starts from: a new network, a model or an encoder, and which flags go with it."""

from dataclasses import replace

import pytest
import torch
from support.starts import Start, start_from, start_of

from runtime.errors import ModelError
from runtime.settings import flag_of
from tasks.classes.loss import Classes
from tasks.overlapping.loss import Overlapping
from train_utils.settings.starting_point import copy_weights
from unet import UNet, UNetConfig
from unet.config import NetworkAxes, Preprocess


def test_a_network_with_an_encoder_is_narrow():
    start = start_from(None, {"encoder": "lite0", "encoder_weights": "random"})
    assert start.config.base_channels == 16
    assert start.encoder.weights is None


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            {"encoder": "lite0", "depth": 9},
            "--depth 9: --encoder lite0 has 5; leave the flag out, or start from another model",
        ),
        (
            {"encoder": "lite0", "encoder_weights": "random", "freeze_encoder": True},
            "--freeze-encoder: the random weights of lite0 would never be trained",
        ),
        ({"dims": 3, "upsample": "bilinear_aligned"}, "--upsample bilinear_aligned works for images only"),
        (
            {"dims": 3, "kernels": ((3, 3, 3),) * 3, "strides": ((2, 2, 2),) * 2, "depth": 4},
            "--depth 4: patches of this size and spacing allow a depth of 2",
        ),
        (
            {"encoder": "lite0", "encoder_weights": "random", "dims": 3},
            "--encoder lite0: takes images, but the data are volumes; start from another model, or give --dims 2",
        ),
    ],
)
def test_flags_that_do_not_fit_the_network_are_refused(flags, line):
    with pytest.raises(ModelError) as caught:
        start_from(None, flags)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("upsample", "flags"),
    [
        ("transpose", {"upsample": "bilinear"}),
        ("transpose", {"base_channels": 4}),
        ("transpose", {"norm": "group"}),
    ],
)
def test_architecture_of_a_model_to_start_from_keeps_what_has_weights(upsample, flags):
    model = UNet(UNetConfig(base_channels=2, depth=1, upsample=upsample))
    ((name, value),) = flags.items()
    line = f"{flag_of(name)} {value}: m has {getattr(model.config, name)}; leave the flag out"
    with pytest.raises(ModelError, match=line):
        start_of(model, init_from="m", **flags)


@pytest.mark.parametrize(
    ("upsample", "flags"),
    [
        ("bilinear", {"upsample": "bilinear_aligned"}),
        ("bilinear", {"dropout": 0.5}),
        ("transpose", {"base_channels": 2, "depth": 1, "norm": "batch", "block": "plain"}),
    ],
    ids=["upsampling without weights", "dropout", "the same"],
)
def test_architecture_of_a_model_to_start_from_changes_where_there_are_no_weights(upsample, flags):
    model = UNet(UNetConfig(base_channels=2, depth=1, upsample=upsample))
    start = start_of(model, init_from="m", **flags)
    assert start.config == replace(model.config, **flags, preprocess=start.config.preprocess)
    assert start.model == model


def test_a_model_to_start_from_keeps_its_levels_and_takes_no_data_of_other_axes():
    volumes = {"dims": 3, "kernels": ((1, 3, 3), (3, 3, 3)), "strides": ((1, 2, 2),)}
    config = UNetConfig(base_channels=2, depth=1, **volumes)
    own = start_of(UNet(config), NetworkAxes(3), init_from="m")
    assert own.config.kernels == config.kernels
    assert own.config.strides == config.strides
    with pytest.raises(ModelError, match=r"m: takes volumes, but the data are images; .* or give --dims 3"):
        start_of(UNet(config), NetworkAxes(2), init_from="m")
    with pytest.raises(ModelError, match="the checkpoint: takes volumes, but the data are images"):
        start_of(None, NetworkAxes(2), config)


def test_weights_of_another_shape_start_at_random():
    torch.manual_seed(0)
    source = UNet(UNetConfig(3, 2, base_channels=2, depth=1))
    model = UNet(UNetConfig(1, 4, base_channels=2, depth=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert copy_weights(source, model) == (
        "37 of 40 weights copied; random start for stem.conv1.weight (2 x 1 x 3 x 3 here, 2 x 3 x 3 x 3 there),"
        " head.conv.weight (4 x 2 x 1 x 1 here, 2 x 2 x 1 x 1 there), head.conv.bias (4 here, 2 there)"
    )
    unchanged = ("stem.conv1.weight", "head.conv.weight", "head.conv.bias")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name in unchanged else source.state_dict()[name])
    same = UNet(source.config)
    assert copy_weights(source, same) == "40 of 40 weights copied"
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in same.state_dict().items())


def test_a_shortcut_without_weights_takes_and_gives_none():
    with_shortcut, without = (UNet(UNetConfig(channels, 2, 2, 1, block="residual")) for channels in (3, 2))
    assert copy_weights(with_shortcut, without).startswith("41 of 43 weights copied; random start for stem.conv1")
    line = copy_weights(without, with_shortcut)
    assert line.startswith("41 of 42 weights copied; random start for stem.shortcut.weight (not there), stem.conv1")


def test_a_network_of_volumes_has_the_levels_that_suit_the_data(capsys):
    axes = NetworkAxes(3, ((1, 3, 3), (3, 3, 3), (3, 3, 3)), ((1, 2, 2), (2, 2, 2)))
    start = start_of(None, axes, base_channels=2)
    assert start.config.depth == 2
    assert start.config.strides == axes.strides
    network = start.network(1, Classes(("a", "b")), Preprocess())
    assert capsys.readouterr().out.startswith("model: 3-D U-Net, ")
    assert len(network.heads) == 0
    assert network.stem.conv2.weight.is_contiguous(memory_format=torch.channels_last_3d)
    deep = start_of(base_channels=2, depth=3, deep_supervision=True)
    assert len(deep.network(1, Classes(("a", "b")), Preprocess()).heads) == 1


def test_weights_of_a_model_of_another_task_are_copied_without_its_head(capsys):
    model = UNet(UNetConfig(1, 2, base_channels=2, depth=1))
    start = start_of(model, init_from="m")
    network = start.network(1, Overlapping(("a", "b")), model.config.preprocess)
    line = "head.conv.weight (of another task), head.conv.bias (of another task)"
    assert capsys.readouterr().out.startswith(f"start: m, 38 of 40 weights copied; random start for {line}\n")
    assert not torch.equal(network.head.conv.weight, model.head.conv.weight)
    assert torch.equal(network.stem.conv1.weight, model.stem.conv1.weight)


BYTES = Preprocess(mean=(7.0,) * 3, std=(2.0,) * 3, pixel_types=("uint8",))


@pytest.fixture
def of_encoder() -> Start:
    """A start with the built-in encoder, which sees three channels."""
    return start_from(None, {"encoder": "lite0", "encoder_weights": "random", "base_channels": 2})


def build(start: Start, channels: int, preprocess: Preprocess) -> UNet:
    return start.network(channels, Classes(("a", "b")), preprocess)


def test_grey_images_are_repeated_for_the_channels_of_an_encoder(of_encoder, capsys):
    grey = build(of_encoder, 1, Preprocess(mean=(7.0,), std=(2.0,), pixel_types=("uint16",)))
    assert grey.config.preprocess.mean == (7.0,) * 3
    assert grey.config.preprocess.std == (2.0,) * 3
    assert grey.config.encoder["num_channels"] == 3
    assert "encoder: " not in capsys.readouterr().out


@pytest.mark.parametrize(("pixel_types", "mean"), [(("uint8",), 90.0), (("uint16",), 7.0)], ids=str)
def test_statistics_of_images_are_those_of_the_model_where_both_have_8_bits(of_encoder, pixel_types, mean):
    own = Preprocess(mean=(90.0,) * 3, std=(30.0,) * 3, pixel_types=pixel_types)
    start = of_encoder._replace(encoder=None, config=replace(of_encoder.config, preprocess=own))
    assert build(start, 3, BYTES).config.preprocess.mean == (mean,) * 3


def test_the_encoder_of_a_resumed_run_is_frozen_again(of_encoder):
    frozen = replace(of_encoder.settings, freeze_encoder=True)
    resumed = of_encoder._replace(settings=frozen, encoder=None)
    assert not any(parameter.requires_grad for parameter in build(resumed, 3, BYTES).encoder.parameters())
