"""Backbones of transformers as encoders of the network: every family, size and number of channels.

Modules: unet/backbone.py.
"""

import pytest
import torch
import torch.nn.functional as F
import transformers
from support.encoders import FAMILIES, build_network, network_with, pixels
from torch import Tensor, nn

from inference.export.onnx import export_onnx, write_onnx
from inference.models import OnnxNetwork, load_model
from inference.tiling.planning import choose_tiling
from inference.tiling.receptive_field import reach
from inference.tiling.stream import stream_logits
from runtime.errors import ModelError
from unet import UNet

pytestmark = pytest.mark.usefixtures("no_network")


def slow_but(*quick: str) -> list:
    """All families as parameters, of which a few are quick: resnet, and those that go another way through the code."""
    return [family if family in quick else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]


def check_equal_logits(network: UNet, loaded: UNet, images: Tensor) -> None:
    """Both networks have the same logits, at the size of the images."""
    with torch.inference_mode():
        logits = network(images)
        assert logits.shape == (2, 2, *images.shape[2:])
        assert logits.isfinite().all()
        assert torch.equal(loaded(images), logits)


MORE_CASES = [(family, 3) for family in FAMILIES if family != "resnet"]
MORE_CASES += [("resnet", 1), ("resnet", 5), ("swin", 1), ("swinv2", 1), ("bit", 5), ("hgnet_v2", 5)]


@pytest.mark.parametrize(
    ("family", "channels"), [("resnet", 3), *[pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES]]
)
def test_a_trained_network_comes_back_bit_for_bit(encoder_folders, tmp_path, family, channels):
    network = network_with(encoder_folders[family], channels)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=1e-3)
    images = pixels(2, channels, 49, 75)
    network(images).square().mean().backward()
    assert all((p.grad is not None) == p.requires_grad for p in network.parameters())
    optimizer.step()
    network.eval().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == network.config
    loaded.to(memory_format=torch.channels_last)
    check_equal_logits(network, loaded, images)
    check_equal_logits(network, loaded, images[:, :, :15, :15])


@pytest.mark.parametrize("family", slow_but("resnet", "swin", "pp_lcnet"))
def test_the_features_are_the_backbones_own_with_the_strides_of_their_levels(encoder_folders, family):
    network = network_with(encoder_folders[family]).eval()
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


def test_an_image_is_padded_with_its_border_to_the_coarsest_stride(encoder_folders):
    network = network_with(encoder_folders["swin"]).eval()
    images = pixels(1, 3, 40, 70).float()
    with torch.inference_mode():
        expected = network(F.pad(images, (0, 26, 0, 24), mode="replicate"))[..., :40, :70]
        assert torch.equal(network(images), expected)


def test_grey_is_repeated_for_each_channel(encoder_folders):
    network = network_with(encoder_folders["resnet"], 1).eval()
    grey = pixels(1, 1, 40, 50)
    with torch.inference_mode():
        assert torch.equal(network(grey), network(grey.expand(1, 3, 40, 50)))


@pytest.mark.parametrize(
    "family", ["resnet", *[pytest.param(name, marks=pytest.mark.slow) for name in ("hgnet_v2", "swinv2")]]
)
def test_filters_are_rescaled_where_they_are_repeated_for_more_channels(encoder_folders, capsys, family):
    three, five = network_with(encoder_folders[family]).eval(), build_network(encoder_folders[family], 5).eval()
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


def test_a_network_with_an_encoder_is_built_where_gradients_are_off(encoder_folders):
    with torch.no_grad():
        network = UNet(network_with(encoder_folders["resnet"]).config)
    assert all(parameter.requires_grad for parameter in network.encoder.parameters())


@pytest.mark.parametrize(
    "family", ["resnet", *[pytest.param(name, marks=pytest.mark.slow) for name in ("hgnet_v2", "swin")]]
)
def test_a_frozen_encoder_stays_bit_for_bit_and_keeps_nothing_for_the_backward_pass(encoder_folders, family):
    trained = network_with(encoder_folders[family]).train()
    frozen = network_with(encoder_folders[family], freeze_encoder=True).train()
    before = {name: value.clone() for name, value in frozen.encoder.state_dict().items()}
    images = pixels(2, 3, 64, 64)
    assert saved_bytes(frozen, images) < saved_bytes(trained, images)
    frozen(images).square().mean().backward()
    assert all(torch.equal(value, before[name]) for name, value in frozen.encoder.state_dict().items())
    assert not any(parameter.requires_grad for parameter in frozen.encoder.parameters())
    assert not any(module.training for module in frozen.encoder.modules())
    assert all(feature.grad_fn is None for feature in frozen.encoder(torch.randn(1, 3, 64, 64)))
    assert all(parameter.grad is not None for parameter in frozen.ups.parameters())


@pytest.mark.parametrize(
    "family", ["resnet", "swin", *[pytest.param(name, marks=pytest.mark.slow) for name in ("convnextv2", "focalnet")]]
)
def test_activation_checkpointing_keeps_gradients_with_running_statistics(encoder_folders, family):
    plain = without_drop_path(network_with(encoder_folders[family]).double())
    recomputed = without_drop_path(network_with(encoder_folders[family]).double())
    recomputed.activation_checkpointing = True
    images = pixels(2, 3, 64, 64)
    for network in (plain, recomputed):
        network(images).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    gradients = {name: p.grad for name, p in recomputed.named_parameters() if p.grad is not None}
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(recomputed.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert saved_bytes(recomputed, images) < 0.8 * saved_bytes(plain, images)


def without_drop_path(network: UNet) -> UNet:
    """The network, whose stages leave out no path at random."""
    for module in network.modules():
        if "DropPath" in type(module).__name__:
            module.drop_prob = 0.0
    return network


EXACT_FAMILIES = [
    ("resnet", True),
    ("swin", False),
    pytest.param("bit", False, marks=pytest.mark.slow),
    pytest.param("convnext", True, marks=pytest.mark.slow),
]


def test_a_receptive_field_is_measured_without_changing_random_states(encoder_folders):
    config = network_with(encoder_folders["resnet"]).config
    state = torch.get_rng_state()
    reach(config)
    assert torch.equal(torch.get_rng_state(), state)  # it is measured with random weights


@pytest.mark.parametrize(("family", "is_exact"), EXACT_FAMILIES)
def test_tiles_are_exact_where_the_encoder_looks_only_so_far(encoder_folders, family, is_exact):
    network = network_with(encoder_folders[family]).double().eval()
    needed = reach(network.config)
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


def test_the_graph_of_a_convolutional_encoder_gives_the_same_logits(encoder_folders, tmp_path):
    network = network_with(encoder_folders["resnet"]).eval()
    write_onnx(network, tmp_path / "model.onnx")
    images = pixels(2, 3, 49, 75).float()
    with torch.inference_mode():
        logits = OnnxNetwork(tmp_path / "model.onnx")(images)
        torch.testing.assert_close(logits, network(images), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_an_encoder_with_windows_of_attention_is_not_exported(encoder_folders, tmp_path):
    with pytest.raises(ModelError, match=r"encoders with window attention \(Swin\) cannot be exported"):
        export_onnx(network_with(encoder_folders["swin"]).eval(), tmp_path / "swin.onnx")
    assert not (tmp_path / "swin.onnx").exists()
