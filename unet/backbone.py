"""Encoders from Hugging Face transformers: backbones that give features at several resolutions."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from runtime.errors import ModelError
from unet.recompute import recomputing

SIDE = 128  # pixels of the dry pass: at stride 32 there are 4 of them left


class Encoder(nn.Module):
    """A backbone's features of strides 2^first_level, 2^(first_level + 1), ... of images normalised as it expects.

    Parameters that these features do not use (the norm before a classifier, a mask token) are frozen, since
    DistributedDataParallel expects a gradient for every other parameter in every step.

    Args:
        config: UNetConfig.encoder.

    Attributes:
        first_level: the level of the finest features.
        channels: of the features of each level, finest first.
        frozen: whether nothing of it is trained, neither weights nor running statistics.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.frozen = False
        self.backbone = random_backbone(config)
        features = dry_pass(self.backbone, config)
        self.first_level = level_of(features[0])
        self.channels = [feature.shape[1] for feature in features]
        parameters = list(self.backbone.parameters())
        grads = torch.autograd.grad(sum(map(torch.sum, features)), parameters, allow_unused=True)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.requires_grad_(grad is not None)

    def forward(self, images: Tensor, recompute: bool = False) -> Sequence[Tensor]:
        """Images (B, C, H, W), sides multiples of the coarsest stride -> features (B, channels, h, w) of each level.

        With `recompute` each stage keeps only its inputs, and runs again in the backward pass.
        """
        if self.frozen:  # nothing is kept for a backward pass
            with torch.no_grad():
                return self.backbone(images).feature_maps
        if recompute:  # as it is, whatever torch.compile makes of the rest
            return torch.compiler.disable(self._recomputed)(images)
        return self.backbone(images).feature_maps

    def _recomputed(self, images: Tensor) -> Sequence[Tensor]:
        # transformers' own switch is not for convolutional families, and would have batch norm count a batch twice
        with recomputing(self.stages):
            return self.backbone(images).feature_maps

    @property
    def stages(self) -> list[nn.Module]:
        """The backbone's stages, in order, which activation checkpointing computes twice: its first list of modules.

        A backbone without any list is one stage.
        """
        return list(
            next((m for m in self.backbone.modules() if isinstance(m, nn.ModuleList) and len(m)), [self.backbone])
        )

    def freeze(self) -> None:
        """Exclude all of it from training, running statistics too."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "Encoder":
        """Set training mode; a frozen encoder stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def take(self, weights: dict[str, Tensor]) -> None:
        """Load a backbone's weights; where images have another number of channels, the first filters are repeated.

        They are rescaled too, so that their outputs keep their size.
        """
        for name, target in self.backbone.state_dict().items():
            have, want = weights[name].shape, target.shape
            if have != want:
                channels = torch.arange(want[1]) % have[1]
                weights = weights | {name: weights[name][:, channels] * (have[1] / want[1])}
        self.backbone.load_state_dict(weights)


def encoder_name(config: dict[str, Any]) -> str:
    """The Hub id or folder name of an encoder, with its licence if that is known."""
    license = config.get("license")
    return f"{config['_name_or_path']} ({license})" if license else config["_name_or_path"]


def import_transformers() -> ModuleType:
    """Import transformers only when it is needed, which takes seconds, and have it print errors only."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{error.name} is not installed; encoders need: pip install -r requirements-encoders.txt"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def random_backbone(config: dict[str, Any]) -> nn.Module:
    transformers = import_transformers()
    # JSON has lists only, which the defaults of some families (ConvNeXt) do not mix with their tuples
    return transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(**config))


def dry_pass(backbone: nn.Module, config: dict[str, Any]) -> Sequence[Tensor]:
    """Features of an empty image, to measure channels and strides: some configs state them wrongly (HGNetV2)."""
    device = next(backbone.parameters()).device
    was_training = backbone.training
    with torch.enable_grad():
        images = torch.zeros((1, config.get("num_channels", 3), SIDE, SIDE), device=device)
        features = backbone.eval()(images).feature_maps
    backbone.train(was_training)
    return features


def level_of(feature: Tensor) -> int:
    """n for features of stride 2^n of a dry pass; -1 for others."""
    height, width = feature.shape[-2:]
    level = round(math.log2(SIDE / height))
    return level if height == width == SIDE >> level else -1
