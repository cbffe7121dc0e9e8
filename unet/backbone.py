"""Encoders from Hugging Face transformers: backbones that give features at several resolutions."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runtime.errors import ModelError, one_line
from unet.blocks import recomputing
from unet.encoder_files import read_license, read_normalization

SIDE = 128  # pixels of the dry pass: at stride 32 there are 4 of them left
NEEDLESS = ("id2label", "label2id", "architectures", "transformers_version", "dtype")  # entries of a backbone's config
EXAMPLES = "resnet, convnext, convnextv2, swin, swinv2, focalnet, hgnet_v2, pvt_v2"


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
        self.backbone = _random_backbone(config)
        features = _dry_pass(self.backbone, config)
        self.first_level = _level(features[0])
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


class PretrainedEncoder(NamedTuple):
    """The encoder that `--encoder` names.

    Args:
        config: for UNetConfig.encoder.
        depth: level of the coarsest features.
        mean, std: of each channel of images in 0..255.
        weights: the backbone's state_dict; None where it starts from random weights.
    """

    config: dict[str, Any]
    depth: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: dict[str, Tensor] | None


def load_encoder(source: str, *, pretrained: bool) -> PretrainedEncoder:
    """A backbone from a folder or the Hub, with its weights or, unless `pretrained`, without.

    Raises ModelError that says in one line why it cannot be an encoder.
    """
    transformers = _transformers()
    if source.startswith("timm/"):
        raise ModelError(f"--encoder {source}: models of timm are not supported; use one of transformers: {EXAMPLES}")
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of somebody else's file
        where = (
            "has no usable config.json"
            if Path(source).is_dir()
            else "is not a folder, and cannot be loaded from the Hub"
        )
        raise ModelError(f"--encoder {source}: {where}: {one_line(error)}") from error
    backbones = transformers.AutoBackbone._model_mapping
    if type(config) not in backbones or not hasattr(config, "stage_names"):  # some have no stages
        raise ModelError(
            f"--encoder {source}: {config.model_type or 'this'} is not a backbone of transformers; use {EXAMPLES}"
        )
    name = Path(source).resolve().name if Path(source).is_dir() else source
    settings = json.loads(config.to_json_string(use_diff=False))
    settings = {key: value for key, value in settings.items() if key not in NEEDLESS}
    settings |= {"_name_or_path": name, "license": read_license(source)}
    depth, stages = _pyramid(source, settings)
    settings |= {"out_features": stages, "out_indices": [config.stage_names.index(stage) for stage in stages]}
    weights = _pretrained_weights(backbones[type(config)], source, settings) if pretrained else None
    return PretrainedEncoder(settings, depth, *read_normalization(source, config.model_type), weights)


def with_channels(config: dict[str, Any], channels: int) -> dict[str, Any]:
    """`config` for images of so many channels; ModelError where the family knows RGB only."""
    if "num_channels" not in config:
        raise ModelError(f"encoder {encoder_name(config)}: takes grey or RGB images, these have {channels} channels")
    changed: dict[str, Any] = {"num_channels": channels}
    if "stem_channels" in config:  # of HGNetV2, whose first entry is the image's
        changed["stem_channels"] = [channels, *config["stem_channels"][1:]]
    return config | changed


def encoder_name(config: dict[str, Any]) -> str:
    """The Hub id or folder name of an encoder, with its licence if that is known."""
    license = config.get("license")
    return f"{config['_name_or_path']} ({license})" if license else config["_name_or_path"]


def _transformers() -> ModuleType:
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


def _random_backbone(config: dict[str, Any]) -> nn.Module:
    transformers = _transformers()
    # JSON has lists only, which the defaults of some families (ConvNeXt) do not mix with their tuples
    return transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(**config))


def _dry_pass(backbone: nn.Module, config: dict[str, Any]) -> Sequence[Tensor]:
    """Features of an empty image, to measure channels and strides: some configs state them wrongly (HGNetV2)."""
    device = next(backbone.parameters()).device
    was_training = backbone.training
    with torch.enable_grad():
        images = torch.zeros((1, config.get("num_channels", 3), SIDE, SIDE), device=device)
        features = backbone.eval()(images).feature_maps
    backbone.train(was_training)
    return features


def _level(feature: Tensor) -> int:
    """n for features of stride 2^n of a dry pass; -1 for others."""
    height, width = feature.shape[-2:]
    level = round(math.log2(SIDE / height))
    return level if height == width == SIDE >> level else -1


def _pyramid(source: str, config: dict[str, Any]) -> tuple[int, list[str]]:
    """Level of the coarsest features, and the last stage of each level; ModelError where they are no pyramid."""
    every = config | {"out_features": config["stage_names"], "out_indices": None}
    try:
        with torch.device("meta"):  # shapes are all that is wanted
            features = _dry_pass(_random_backbone(every), every)
    except Exception as error:  # whatever a backbone makes of its config
        raise ModelError(f"--encoder {source}: cannot be used here: {one_line(error)}") from error
    levels = {_level(feature): stage for feature, stage in zip(features, every["out_features"], strict=True)}
    levels.pop(0, None)  # the image itself, as DINOv3-ConvNeXt has it
    if len(levels) < 2 or list(levels) != [*range(min(levels), max(levels) + 1)]:
        strides = sorted({SIDE // feature.shape[-2] for feature in features})
        raise ModelError(
            f"--encoder {source}: has features of stride {', '.join(map(str, strides))}; a U-Net needs several levels,"
            f" each half the size of the one before (a plain ViT has only one); use {EXAMPLES}"
        )
    return max(levels), list(levels.values())


def _pretrained_weights(backbone: Any, source: str, config: dict[str, Any]) -> dict[str, Tensor]:
    settings = _transformers().AutoConfig.for_model(**config)
    try:
        model, report = backbone.from_pretrained(
            source, config=settings, use_safetensors=True, dtype=torch.get_default_dtype(), output_loading_info=True
        )
    except Exception as error:  # whatever transformers and safetensors make of somebody else's file
        raise ModelError(f"--encoder {source}: its weights cannot be loaded: {one_line(error)}") from error
    # classifiers have no norms of the features of each stage
    missing = [name for name in sorted(report["missing_keys"]) if not name.startswith("hidden_states_norms.")]
    if missing:
        raise ModelError(f"--encoder {source}: its file lacks {len(missing)} of the weights, such as {missing[0]}")
    return model.state_dict()
