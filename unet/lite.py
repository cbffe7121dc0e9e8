"""EfficientNet-Lite0, pretrained on ImageNet: EfficientNet-B0 (arXiv:1905.11946) of plain convolutions and ReLU6."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

MODEL_TYPE = "efficientnet_lite0"  # in an encoder's config
STEM_CHANNELS = 32


class StageShape(NamedTuple):
    """A row of the paper's table 1. Only the first block has the stride; each block expands the channels inside."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    StageShape(blocks=1, kernel=3, stride=1, expansion=1, channels=16),
    StageShape(blocks=2, kernel=3, stride=2, expansion=6, channels=24),
    StageShape(blocks=2, kernel=5, stride=2, expansion=6, channels=40),
    StageShape(blocks=3, kernel=3, stride=2, expansion=6, channels=80),
    StageShape(blocks=3, kernel=5, stride=1, expansion=6, channels=112),
    StageShape(blocks=4, kernel=5, stride=2, expansion=6, channels=192),
    StageShape(blocks=1, kernel=3, stride=1, expansion=6, channels=320),
)


class Features(NamedTuple):
    """The feature maps of each stage, under the name that backbones of transformers give them."""

    feature_maps: tuple[Tensor, ...]


class Lite0(nn.Module):
    """Returns features of 16, 24, 40, 112 and 320 channels and strides 2, 4, 8, 16 and 32.

    The sides of the images must be multiples of 32.
    """

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.stem = ConvNorm(channels, STEM_CHANNELS, kernel=3, stride=2)
        widths = [STEM_CHANNELS, *(shape.channels for shape in STAGES)]
        self.stages = nn.ModuleList(map(LiteStage, widths, STAGES))

    def forward(self, images: Tensor) -> Features:
        x = F.relu6(self.stem(images))
        levels: list[Tensor] = []
        for stage, shape in zip(self.stages, STAGES, strict=True):
            if shape.stride == 2:
                levels.append(x)  # the last features of their size
            x = stage(x)
        return Features((*levels, x))


class LiteStage(nn.Sequential):
    """The blocks of one stage, a row of STAGES."""

    def __init__(self, in_channels: int, shape: StageShape) -> None:
        super().__init__(InvertedResidual(in_channels, shape, shape.stride))
        for _ in range(shape.blocks - 1):
            self.append(InvertedResidual(shape.channels, shape, stride=1))


class InvertedResidual(nn.Module):
    """More channels, a convolution of each channel alone, fewer channels (Sandler et al. 2018, arXiv:1801.04381)."""

    def __init__(self, in_channels: int, shape: StageShape, stride: int) -> None:
        super().__init__()
        width = in_channels * shape.expansion
        self.adds_input = stride == 1 and in_channels == shape.channels
        self.expand = ConvNorm(in_channels, width) if shape.expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(width, width, shape.kernel, stride, groups=width)
        self.project = ConvNorm(width, shape.channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.expand(x))  # without an expansion x is the stem's output, which ReLU6 leaves as it is
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if self.adds_input else y


class ConvNorm(nn.Module):
    """A convolution and batch norm, with TensorFlow's padding and settings: the weights were trained there."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        before = (kernel - stride) // 2
        behind = kernel - stride - before  # one pixel more than `before`, with a stride of 2
        self.pads = (before, behind, before, behind)
        padding = before if stride == 1 else 0  # padding that is equal on both sides needs no copy
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        if self.conv.stride != (1, 1):
            x = F.pad(x, self.pads)
        return self.norm(self.conv(x))
