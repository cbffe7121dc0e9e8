"""The U-Net (Ronneberger, Fischer & Brox 2015, arXiv:1505.04597), padded so that the output has the input's size."""

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from torch import Tensor, nn

from runtime.device import download
from runtime.errors import ModelError, one_line
from unet.backbone import Encoder
from unet.blocks import BLOCKS, LAYERS, Down, OutConv, Up, recompute_blocks
from unet.config import Axes, UNetConfig
from unet.model_files import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    check_source,
    layer_counts,
    read_config,
    read_weights,
    write_weights,
)

WIDEST_OF_VOLUMES = 320  # channels: a convolution has 27 weights for each pair of them (nnU-Net's limit)


class UNet(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="unet-accelerate",
    tags=["unet", "semantic-segmentation"],
    paper_url="https://arxiv.org/abs/1505.04597",
):
    """U-Net: raw pixel values in, logits out; the model normalizes by itself.

    The default configuration has 31,037,698 parameters (`bilinear`: 17,263,042). With `activation_checkpointing` set,
    training keeps each block's inputs only and computes the block once more in the backward pass.

    Args:
        deep_supervision: whether the coarser levels, except the lowest two, predict too in training (Lee et al. 2015,
            arXiv:1409.5185). Their heads are not saved: evaluation, prediction and export do not use them.
    """

    activation_checkpointing = False

    def __init__(self, config: UNetConfig | None = None, deep_supervision: bool = False) -> None:
        super().__init__()
        self.config = config = config or UNetConfig()
        mean = config.preprocess.mean or (0.0,) * config.network_channels
        std = config.preprocess.std or (1.0,) * config.network_channels
        column = [1, -1] + [1] * config.dims
        self.register_buffer("mean", torch.tensor(mean).view(column), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(column), persistent=False)

        skips, outputs = _level_channels(config)
        finest = config.finest_level
        own_levels = config.depth + 1  # the levels of the way down that are convolutions of blocks
        self.encoder: Encoder | None = None
        if config.encoder is not None:
            self.encoder = Encoder(config.encoder, finest)
            first = self.encoder.first_level
            own_levels = first if first > finest else 0  # none if the encoder has all that are needed
            skips[first:] = self.encoder.channels

        kernels = config.level_kernels
        strides = config.level_strides
        block = partial(BLOCKS[config.block], norm=config.norm)
        self.stem: nn.Module | None = None
        if own_levels:
            self.stem = block(config.network_channels, skips[0], kernels[0])
        self.downs = nn.ModuleList()
        for level in range(own_levels - 1):
            self.downs.append(Down(skips[level], skips[level + 1], block, kernels[level + 1], strides[level]))
        self.dropout = nn.Dropout(config.dropout)
        inputs = outputs[1:]  # the channels that each level gets from the level below
        inputs[-1] = skips[-1]
        self.ups = nn.ModuleList()
        for level in reversed(range(finest, config.depth)):
            channels = (inputs[level], skips[level], outputs[level])
            self.ups.append(Up(*channels, block, config.upsample, kernels[level], strides[level]))
        self.head = OutConv(outputs[finest], config.num_classes, config.dims)
        self.heads = nn.ModuleList()  # of coarser levels, finest first
        if deep_supervision:
            for width in outputs[finest + 1 : config.depth - 1]:
                self.heads.append(OutConv(width, config.num_classes, config.dims))

    def forward(self, images: Tensor) -> Tensor | list[Tensor]:
        """Segment images or volumes of any size.

        Args:
            images: (B, in_channels, H, W), raw pixel values of any numeric type; volumes (B, in_channels, D, H, W).

        Returns:
            Logits (B, num_classes, ...) of the size of the images. A side shorter than its divisor (2^depth, or the
            product of the strides) would vanish in the poolings: such a side is padded to twice the divisor with its
            border pixels, and the logits are cropped back. With an encoder every side is padded to the next multiple
            of its divisor. With deep supervision, in training, a list of the logits of each level, finest first.
        """
        coarser: list[Tensor] = []  # features for the heads
        context: AbstractContextManager[None] = nullcontext()
        if self.activation_checkpointing and self.training:
            context = recompute_blocks(self.blocks)
        with context:
            skips = self._way_down(images)  # the features of each level, finest first
            x = self.dropout(skips.pop())
            finest = self.config.finest_level
            for level, up in zip(reversed(range(finest, self.config.depth)), self.ups, strict=True):
                x = up(x, skips.pop())
                if self.training and finest < level <= finest + len(self.heads):
                    coarser.insert(0, x)
        logits = self._enlarged(self.head(x))
        if logits.shape[2:] != images.shape[2:]:  # without a border FSDP does not allow a view here
            logits = logits[(..., *[slice(side) for side in images.shape[2:]])]
        if not coarser:
            return logits
        levels = [logits]
        for head, features in zip(self.heads, coarser, strict=True):
            levels.append(head(features))
        return levels

    def _way_down(self, images: Tensor) -> list[Tensor]:
        """The features (B, channels, ...) of each level, finest first: of stem and steps down, then of an encoder."""
        images = self._pad(((images - self.mean) / self.std).to(self.mean.dtype))
        features = []
        if self.stem is not None:
            features.append(self.stem(images))
        for down in self.downs:
            features.append(down(features[-1]))
        if self.encoder is not None:
            features += self.encoder(images)
        return features

    def _enlarged(self, logits: Tensor) -> Tensor:
        """Logits of the size of the images, from those of the last features."""
        stride = self.config.output_stride
        if stride == 1:
            return logits
        return F.interpolate(logits, scale_factor=stride, mode="bilinear", align_corners=False)

    @property
    def head_strides(self) -> Axes:
        """For the logits of each coarser level in training, the factor along each axis from the level above."""
        finest = self.config.finest_level
        strides = list(self.config.level_strides)
        strides[finest] = tuple(self.config.output_stride * stride for stride in strides[finest])
        return tuple(strides[finest : finest + len(self.heads)])

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that activation checkpointing computes twice, in order."""
        blocks: list[nn.Module] = []
        if self.stem is not None:
            blocks.append(self.stem)
        blocks.extend(self.downs)
        if self.encoder is not None and not self.encoder.frozen:
            blocks.extend(self.encoder.stages)
        blocks.extend(self.ups)
        return blocks

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format in which the network is fastest, channels-last."""
        return LAYERS[self.config.dims].memory_format

    def _pad(self, x: Tensor) -> Tensor:
        """Pad short sides with their border pixels, as `forward` describes."""
        pads: list[int] = []
        for side, padded_side in zip(x.shape[2:], self._padded_size(x.shape[2:]), strict=True):
            of_side = [0, padded_side - side]
            pads = of_side + pads  # the last axis comes first
        return F.pad(x, pads, mode="replicate") if any(pads) else x

    def _padded_size(self, size: Sequence[int]) -> list[int]:
        """The size (*spatial) that an image of `size` is padded to."""
        divisors = self.config.divisors
        smallest_sides = divisors
        if self.config.norm == "instance":
            is_single_value = all(side < 2 * divisor for side, divisor in zip(size, divisors, strict=True))
            if is_single_value:  # instance norm cannot normalize a single value at the lowest level
                smallest_sides = tuple(2 * divisor for divisor in divisors)
        padded_size = []
        for side, smallest_side, divisor in zip(size, smallest_sides, divisors, strict=True):
            if self.encoder is not None:  # backbones treat the remainder of a division differently
                padded_size.append(math.ceil(side / smallest_side) * smallest_side)
            elif side >= smallest_side:
                padded_size.append(side)
            else:
                padded_size.append(2 * divisor)
        return padded_size

    def published_state(self) -> dict[str, Tensor]:
        """The entries of model.safetensors: all weights except those that only training uses."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("heads.")}

    def _save_pretrained(self, save_directory: Path) -> None:
        # channels-last weights are not contiguous, and safetensors takes only contiguous ones
        state = self.published_state()
        copies = download({key: value.detach() for key, value in state.items()})
        weights = {key: value.contiguous() for key, value in copies.items()}
        write_weights(weights, save_directory / WEIGHTS_NAME, {"format": "pt"})
        config = json.dumps(self.config.to_json(), sort_keys=True, indent=2)
        (save_directory / CONFIG_NAME).write_text(config, encoding="utf-8")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options) -> "UNet":
        """Load a model folder or a Hub id, in evaluation mode; `options` as in huggingface_hub (revision, token, ...).

        Raises ModelError if a file is missing, damaged or does not fit; the message names it.
        """
        name = str(pretrained_model_name_or_path)
        check_source(name)

        def find(file: str) -> Path:
            local = Path(name) / file
            return local if local.is_file() else Path(hf_hub_download(name, file, **options))

        try:
            config = read_config(find(CONFIG_NAME))
            weights = read_weights(find(WEIGHTS_NAME))
            problem = cls.weights_problem(config, weights)
            if problem:
                raise ValueError(f"{WEIGHTS_NAME} {problem}, unlike the network of {CONFIG_NAME}")
            model = cls(config)
            model.load_state_dict(weights)
        except ModelError:
            raise
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # errors of the Hub, RecursionErrors too
            # torch lists wrong weights over many lines
            raise ModelError(f"{name}: cannot be loaded: {one_line(error)}") from error
        return model.eval()

    @classmethod
    def weights_problem(cls, config: UNetConfig, weights: dict[str, Tensor]) -> str | None:
        """How `weights` differ from the weights of the config's network, in words; None if they fit.

        The network is built on torch's "meta" device, without memory. So the memory and the time that a model takes
        depend on the size of its file, not on a number in it.
        """
        layers = max(config.depth, *layer_counts(config.encoder or {}))
        channels = max(config.in_channels, config.num_classes)
        values = sum(weight.numel() for weight in weights.values())
        if layers > len(weights) or channels > values:
            return f"has fewer than {layers:,} layers or {channels:,} channels"
        try:
            with torch.device("meta"):
                outline = cls(config)
            outline.load_state_dict(weights, assign=True)
        except ModelError:
            raise
        except Exception as error:  # torch and transformers may raise any error for the numbers of an unknown file
            return f"does not fit ({one_line(error)})"
        return None


def _level_channels(config: UNetConfig) -> tuple[list[int], list[int]]:
    """The channels of each level, finest first: first of the skip connections, then of the outputs on the way up.

    The lowest level has no step up, so both lists end with the same number.
    """
    widths = [config.base_channels * 2**level for level in range(config.depth + 1)]
    if config.dims == 3:
        widest = max(WIDEST_OF_VOLUMES, config.base_channels)
        widths = [min(width, widest) for width in widths]
    if config.upsample == "transpose":
        return list(widths), list(widths)
    # interpolation does not halve the channels, so the lowest level is already as wide as its neighbor
    lowest = widths[-1] // 2
    finer_outputs = [max(width // 2, config.base_channels) for width in widths[:-1]]
    return [*widths[:-1], lowest], [*finer_outputs, lowest]
