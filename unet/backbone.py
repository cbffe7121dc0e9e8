"""Encoders: backbones of Hugging Face transformers, and Lite0, which return features at several resolutions."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.errors import ModelError

MODEL_TYPE = "efficientnet_lite0"  # in an encoder's config
STEM_CHANNELS = 32
SIDE = 128  # side of the dry pass's image, in pixels; features of stride 32 then have a side of 4


class Encoder(nn.Module):
    """A backbone that computes features of strides 2^first_level, 2^(first_level + 1), ...; finer ones are left out.

    The images must be normalized as the backbone expects.

    Parameters that these features do not use (the norm before a classifier, a mask token) are frozen, since
    DistributedDataParallel expects a gradient for every other parameter in every step.

    Args:
        config: UNetConfig.encoder.
        finest_level: the least level of features that are used.

    Attributes:
        first_level: the level of the finest features that it returns.
        channels: the number of channels of each level's features, finest first.
        frozen: whether the encoder is left out of training, with its weights and running statistics.
    """

    def __init__(self, config: dict[str, Any], finest_level: int = 0) -> None:
        super().__init__()
        self.frozen = False
        self.backbone = random_backbone(config)
        parameters = list(self.backbone.parameters())
        with torch.enable_grad():
            features = dry_pass(self.backbone, config)
            first_level = feature_level(features[0])
            self.first_level = max(finest_level, first_level)
            self._first_used = self.first_level - first_level  # an index of the backbone's features
            features = features[self._first_used :]
            total = sum(feature.sum() for feature in features)
            grads = torch.autograd.grad(total, parameters, allow_unused=True)
        self.channels = [feature.shape[1] for feature in features]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.requires_grad_(grad is not None)

    def forward(self, images: Tensor) -> Sequence[Tensor]:
        """Compute the features (B, channels, h, w) of each level.

        Args:
            images: (B, C, H, W); the sides are multiples of the coarsest stride.
        """
        context: AbstractContextManager[None] = nullcontext()
        if self.frozen:  # nothing is kept for a backward pass
            context = torch.no_grad()
        with context:
            return self.backbone(images).feature_maps[self._first_used :]

    @property
    def stages(self) -> list[nn.Module]:
        """The backbone's stages, in order; activation checkpointing computes each of them twice.

        The stages are the first ModuleList of the backbone. A backbone without a ModuleList is one stage.
        """
        for module in self.backbone.modules():
            if isinstance(module, nn.ModuleList) and len(module):
                return list(module)
        return [self.backbone]

    def freeze(self) -> None:
        """Exclude the encoder from training, its running statistics too."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "Encoder":
        """Set training mode; a frozen encoder stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def take(self, weights: dict[str, Tensor]) -> None:
        """Load a backbone's weights.

        If the images have another number of channels, the channels of the first filters are repeated, and scaled so
        that the filters' outputs keep their magnitude. Raises ModelError if weights are missing.
        """
        for name, target in self.backbone.state_dict().items():
            if name not in weights:
                raise ModelError(f"the weights of the encoder lack {name}; give those of the same backbone")
            have = weights[name].shape
            want = target.shape
            if have != want:
                channels = torch.arange(want[1]) % have[1]
                repeated = weights[name][:, channels] * (have[1] / want[1])
                weights = weights | {name: repeated}
        self.backbone.load_state_dict(weights)


def encoder_name(config: dict[str, Any]) -> str:
    """The Hub id or folder name of an encoder, with its license if that is known."""
    name = config["_name_or_path"] if "_name_or_path" in config else config["model_type"]
    license = config.get("license")
    return f"{name} ({license})" if license else name


def import_transformers() -> ModuleType:
    """Import transformers, which takes seconds, so only when it is needed; it is set to print errors only."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is not installed; encoders need: pip install 'transformers<6'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def random_backbone(config: dict[str, Any]) -> nn.Module:
    """The backbone that a config describes, with random weights."""
    if config["model_type"] == MODEL_TYPE:
        return Lite0(config["num_channels"])
    transformers = import_transformers()
    # JSON turns tuples into lists; some families (ConvNeXt) cannot mix these with the tuples of their defaults
    backbone_config = transformers.AutoConfig.for_model(**config)
    return transformers.AutoBackbone.from_config(backbone_config)


def dry_pass(backbone: nn.Module, config: dict[str, Any]) -> Sequence[Tensor]:
    """Features of an empty image, to measure channels and strides: some configs state them wrongly (HGNetV2)."""
    device = next(backbone.parameters()).device
    was_training = backbone.training
    images = torch.zeros((1, config.get("num_channels", 3), SIDE, SIDE), device=device)
    features = backbone.eval()(images).feature_maps
    backbone.train(was_training)
    return features


def feature_level(feature: Tensor) -> int:
    """The number n if the features of a dry pass have the stride 2^n; -1 for any other stride."""
    height, width = feature.shape[-2:]
    level = round(math.log2(SIDE / height))
    has_level = height == width == SIDE >> level
    return level if has_level else -1


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
    """EfficientNet-Lite0: EfficientNet-B0 (Tan & Le 2019, arXiv:1905.11946) of plain convolutions and ReLU6.

    It returns features of 16, 24, 40, 112 and 320 channels and strides 2, 4, 8, 16 and 32.

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
