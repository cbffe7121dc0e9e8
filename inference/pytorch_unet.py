"""Pytorch-UNet's checkpoints as models of this package.

Pytorch-UNet is https://github.com/milesial/Pytorch-UNet: the same network under other names, always with batch norm,
its bilinear variant with aligned corners. Its checkpoint becomes a UNet that gives the same masks.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from runtime.errors import ModelError
from unet.config import MaskValue, Preprocess, UNetConfig, expect
from unet.model import UNet
from unet.model_files import check_numbers

SUFFIXES = (".pth", ".pt", ".safetensors")
RENAMED = {  # Pytorch-UNet's name -> our name; the numbers of down1... and up1... change too
    "inc.": "stem.",
    "outc.": "head.",
    "maxpool_conv.1.": "conv.",
    "double_conv.0.": "conv1.",
    "double_conv.1.": "norm1.",
    "double_conv.3.": "conv2.",
    "double_conv.4.": "norm2.",
}
SCALE = 0.5  # Pytorch-UNet's scripts resize by this unless told otherwise


def load_pytorch_unet(path: Path, scale: float | None) -> UNet:
    """A model in evaluation mode from a Pytorch-UNet checkpoint (.pth, .pt, .safetensors).

    Args:
        scale: factor on height and width of the images, which a checkpoint does not hold; None for 0.5, the
            default of Pytorch-UNet's own scripts.

    Raises ModelError with one line on the problem if the file is bad, or would run code when it is unpickled.
    """
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    entries = _read(path)
    mask_values = entries.pop("mask_values", None)
    if any("stem.conv1." in key for key in entries):
        raise ModelError(f"{path}: holds weights without a config.json; give the model folder")
    weights = {_our_name(key): value for key, value in entries.items()}
    if scale is None:
        scale = SCALE
    try:
        return _from_pytorch_unet(weights, mask_values, scale)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """The entries of a file of tensors, without running any code that it may hold."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        entries = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind, or a part of a file, may raise anything
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is None:
            raise ModelError(f"{path}: is damaged, or is not a checkpoint") from error
        line = f"unpickling it would run code ({code[1]}); save a plain state dict instead"
        raise ModelError(f"{path}: refused, {line}") from error
    if not isinstance(entries, dict):
        raise ModelError(f"{path}: holds a {type(entries).__name__}, expected a state dict")
    return {str(key): value for key, value in entries.items()}


def _our_name(key: str) -> str:
    """Name of one of Pytorch-UNet's weights in UNet; wrappers (DDP, torch.compile) leave prefixes."""
    key = re.sub(r"^(module\.|_orig_mod\.)+", "", key)
    key = re.sub(r"^(down|up)(\d+)\.", lambda match: f"{match[1]}s.{int(match[2]) - 1}.", key)
    for theirs, ours in RENAMED.items():
        key = key.replace(theirs, ours)
    return key


def _from_pytorch_unet(weights: dict[str, Tensor], mask_values: object, scale: float) -> UNet:
    """UNet from weights under our names, whose shapes give the architecture. Raises ValueError if they do not fit."""
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"holds {name!r}, which is not a weight; expected a state dict and mask_values")
    for name in ("stem.conv1.weight", "head.conv.weight"):
        if name not in weights or weights[name].ndim != 4:
            raise ValueError("is not a Pytorch-UNet checkpoint: it lacks inc.double_conv.0.weight or outc.conv.weight")
    # before version 3 convolutions had a bias, which batch norm subtracts again: the norm's mean takes it over
    biases = [name for name in weights if re.search(r"conv[12]\.bias$", name)]
    for name in biases:
        mean = re.sub(r"conv([12])\.bias$", r"norm\1.running_mean", name)
        if mean in weights:
            weights[mean] = weights[mean] - weights.pop(name)
    if len(weights["head.conv.weight"]) == 1:
        # sigmoid(z) is the softmax of (0, z), and it is above one half if z > 0
        for name in ("head.conv.weight", "head.conv.bias"):
            weights[name] = torch.cat([torch.zeros_like(weights[name]), weights[name]])

    base_channels, in_channels = weights["stem.conv1.weight"].shape[:2]
    num_classes = len(weights["head.conv.weight"])
    levels = {name.split(".")[1] for name in weights if name.startswith("downs.")}
    config = UNetConfig(
        in_channels=in_channels,
        num_classes=num_classes,
        base_channels=base_channels,
        depth=len(levels),
        upsample="transpose" if "ups.0.up.weight" in weights else "bilinear_aligned",
        preprocess=Preprocess(
            scale=scale,
            std=(255.0,) * in_channels,
            detect_unit_range=True,
            draft=False,
            class_values=_class_values(mask_values, num_classes),
        ),
    )
    check_numbers(weights)
    problem = UNet.weights_problem(config, weights)
    if problem:
        raise ValueError(f"is not a Pytorch-UNet checkpoint: it {problem} (our names)")
    model = UNet(config)
    model.load_state_dict(weights)
    return model.eval()


def _class_values(mask_values: Any, num_classes: int) -> tuple[MaskValue, ...]:
    """The mask value of each class from Pytorch-UNet's `mask_values`: numbers, or colors as lists.

    Without mask values the classes are written as 0, 1, .... If there are fewer values than classes, the last classes,
    which no training mask held, get unused values.
    """
    values: list[Any] = []
    if mask_values is None:
        mask_values = list(range(num_classes))
    try:
        expect("mask_values", mask_values, isinstance(mask_values, list) and len(mask_values) > 0, "a list")
        for value in mask_values[:num_classes]:
            if isinstance(value, list):
                values.append(tuple(map(int, value[:3])))  # alpha is dropped, as in all masks that are read
            else:
                expect("a mask value", value, 0 <= int(value) <= 65535, "0 to 65535")
                values.append(int(value))
        Preprocess(class_values=tuple(values))  # checks them
    except (TypeError, ValueError) as error:
        line = f"its mask_values {mask_values!r} are neither numbers nor colors, one for each class"
        raise ValueError(line) from error
    for level in range(256):
        unused = (level, level, level) if isinstance(values[0], tuple) else level
        if len(values) < num_classes and unused not in values:
            values.append(unused)
    return tuple(values)
