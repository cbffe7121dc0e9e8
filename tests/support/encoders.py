"""Tiny backbones of transformers with random weights, a folder for each family, and networks that have them."""

import copy
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from support.class_loss import classes
from support.starts import Start, start_from
from unet import Preprocess, UNet

SIZES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
WINDOWS = {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2], "window_size": 4}
STAGES = {"stage_in_channels": [8, 16, 24, 32], "stage_mid_channels": [4, 4, 8, 8], "stage_num_blocks": [1] * 4}
STAGES |= {"stage_out_channels": [16, 24, 32, 48], "stage_numb_of_layers": [2] * 4, "depths": [1] * 4}
FAMILIES = {
    "resnet": lambda: transformers.ResNetConfig(embedding_size=8, layer_type="basic", **SIZES),
    "bit": lambda: transformers.BitConfig(embedding_size=8, num_groups=4, **SIZES),
    "convnext": lambda: transformers.ConvNextConfig(**SIZES),
    "convnextv2": lambda: transformers.ConvNextV2Config(**SIZES),
    "dinov3_convnext": lambda: transformers.DINOv3ConvNextConfig(**SIZES),
    "swin": lambda: transformers.SwinConfig(**WINDOWS),
    "swinv2": lambda: transformers.Swinv2Config(**WINDOWS),
    "focalnet": lambda: transformers.FocalNetConfig(embed_dim=8, depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 32, 64]),
    "hgnet_v2": lambda: transformers.HGNetV2Config(
        stem_channels=[3, 4, 8], embedding_size=8, hidden_sizes=[16, 24, 32, 48], **STAGES
    ),
    "pvt_v2": lambda: transformers.PvtV2Config(
        hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, num_attention_heads=[1] * 4
    ),
    "pp_lcnet": lambda: transformers.PPLCNetConfig(scale=0.25),
    "rt_detr_resnet": lambda: transformers.RTDetrResNetConfig(embedding_size=8, layer_type="basic", **SIZES),
    "textnet": lambda: transformers.TextNetConfig(
        stem_out_channels=8,
        conv_layer_kernel_sizes=[[[3, 3]]] * 4,
        conv_layer_strides=[[2]] * 4,
        hidden_sizes=[8, 8, 16, 24, 32],
    ),
}


@contextmanager
def network_refused() -> Iterator[None]:
    """No network within; a name looked up or a connection tried fails the test at the end, even where it is caught."""
    wanted: list[object] = []

    def refuse(*address: object, **_: object) -> None:
        wanted.append(address)
        raise OSError("tests of encoders have no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield
    assert not wanted, f"a test of encoders wants the network: {wanted}"


def backbone(family: str) -> nn.Module:
    """A backbone of all its stages with random weights, in evaluation mode."""
    settings = json.loads(FAMILIES[family]().to_json_string(use_diff=False))  # lists where defaults have tuples
    return transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(**settings)).eval()


def write_encoder(folder: Path, family: str = "resnet", **files: object) -> Path:
    """A folder that --encoder takes, as transformers itself writes it; `files` are further ones, in JSON."""
    torch.manual_seed(1)  # not by what ran before, which may have left the seed of a run
    backbone(family).save_pretrained(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


class EncoderFolders(dict[str, Path]):
    """The folder below `root` of each family, with random weights; it is written when it is asked for first."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, family: str) -> Path:
        self[family] = write_encoder(self.root / family, family)
        return self[family]


def pixels(*shape: int) -> Tensor:
    """Random bytes (B, C, H, W)."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def start_with(encoder: str | Path, **flags: object) -> Start:
    """The starting point of train.py with this encoder."""
    return start_from(None, {"encoder": str(encoder), "encoder_weights": "pretrained", "base_channels": 2} | flags)


def network_of_start(start: Start, channels: int = 3, pixel_types: tuple[str, ...] = ("uint8",)) -> UNet:
    """The network of a start, for images of so many channels, in training mode."""
    statistics = Preprocess(mean=(90.0,) * channels, std=(40.0,) * channels, pixel_types=pixel_types)
    torch.manual_seed(0)
    return start.network(channels, classes(2), statistics)


def build_network(encoder: str | Path, channels: int = 3, **flags: object) -> UNet:
    """The network that train.py starts with, in training mode."""
    return network_of_start(start_with(encoder, **flags), channels)


first_built = cache(build_network)


def network_with(encoder: Path, channels: int = 3, **flags: object) -> UNet:
    """A copy of the network that train.py starts with, of a folder that stays as it is."""
    network = copy.deepcopy(first_built(encoder, channels, **flags))
    torch.manual_seed(0)  # whether it was built now or earlier
    return network
