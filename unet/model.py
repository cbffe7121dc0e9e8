"""The U-Net (Ronneberger, Fischer & Brox 2015, arXiv:1505.04597), padded so that input and output have one size."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from runtime.device import download
from runtime.errors import ModelError, one_line
from unet.axes import Axes
from unet.backbone import Encoder
from unet.blocks import LAYERS, DoubleConv, Down, OutConv, Up
from unet.config import UNetConfig
from unet.recompute import recomputed

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
WIDEST_OF_VOLUMES = 320  # channels: a convolution has 27 weights for each pair (nnU-Net's limit)


class UNet(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="unet-accelerate",
    pipeline_tag="image-segmentation",
    tags=["unet", "semantic-segmentation"],
    paper_url="https://arxiv.org/abs/1505.04597",
):
    """U-Net: raw pixel values in, logits out; the model normalises by itself.

    The default configuration has 31,037,698 parameters (`bilinear`: 17,263,042). With `activation_checkpointing` set,
    training keeps each block's inputs only and computes the block once more in the backward pass.
    """

    activation_checkpointing = False
    levels = 1  # of logits in training

    def __init__(self, config: UNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or UNetConfig()
        mean = config.preprocess.mean or (0.0,) * config.network_channels
        std = config.preprocess.std or (1.0,) * config.network_channels
        column = (1, -1, *[1] * config.dims)
        self.register_buffer("mean", torch.tensor(mean).view(column), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(column), persistent=False)

        widest = max(WIDEST_OF_VOLUMES, config.base_channels) if config.dims == 3 else math.inf
        widths = [int(min(config.base_channels * 2**level, widest)) for level in range(config.depth + 1)]
        # interpolation does not halve the channels, so the lowest level is already as wide as its neighbour
        outputs = list(widths)
        if config.upsample != "transpose":
            outputs = [max(width // 2, config.base_channels) for width in widths[:-1]] + [widths[-1] // 2]
        skips, downs = [*widths[:-1], outputs[-1]], config.depth  # skips: channels of each level on the way down
        self.encoder = None if config.encoder is None else Encoder(config.encoder)
        if self.encoder is not None:  # which leaves the levels above its own to convolutions
            downs = self.encoder.first_level - 1
            skips[self.encoder.first_level :] = self.encoder.channels
        kernels, strides = config.level_kernels, config.level_strides
        self.stem = DoubleConv(config.network_channels, skips[0], config.norm, config.block, kernels[0])
        self.downs = nn.ModuleList(
            Down(skips[level], skips[level + 1], config.norm, config.block, kernels[level + 1], strides[level])
            for level in range(downs)
        )
        self.dropout = nn.Dropout(config.dropout)
        below = [*outputs[1:-1], skips[-1]]
        self.ups = nn.ModuleList(
            Up(below[i], skips[i], outputs[i], config.norm, config.upsample, config.block, kernels[i], strides[i])
            for i in reversed(range(config.depth))
        )
        self.head = OutConv(config.base_channels, config.num_classes, config.dims)

    def forward(self, images: Tensor) -> Tensor:
        """Segment images or volumes of any size.

        Args:
            images: (B, in_channels, H, W), raw pixel values of any numeric type; volumes (B, in_channels, D, H, W).

        Returns:
            Logits (B, num_classes, ...) of the size of the images. A side shorter than its divisor (2^depth unless
            strides say otherwise) would vanish in the poolings: it is padded to twice the divisor with its border
            pixels, and the logits are cropped back. With an encoder of transformers every side is padded to the next
            multiple of its divisor.
        """
        return self._cropped(self.head(self.decode(images, levels=1)[0]), images)

    def decode(self, images: Tensor, levels: int) -> list[Tensor]:
        """Features (B, channels, ...) of the way up at each of the finest `levels`, finest first."""
        padded = self._pad(((images - self.mean) / self.std).to(self.mean.dtype))
        recompute = self.activation_checkpointing and self.training
        run = recomputed if recompute else lambda block, *x: block(*x)
        skips = [run(self.stem, padded)]
        for down in self.downs:
            skips.append(run(down, skips[-1]))
        if self.encoder is not None:
            skips += self.encoder(padded, recompute)
        x = self.dropout(skips.pop())
        features: list[Tensor] = []
        for up in self.ups:
            x = run(up, x, skips.pop())
            features = [x, *features][:levels]
        return features

    @staticmethod
    def _cropped(logits: Tensor, images: Tensor) -> Tensor:
        """Remove the border that `_pad` has added."""
        size = images.shape[2:]
        return logits if logits.shape[2:] == size else logits[(..., *map(slice, size))]  # FSDP wants no view

    @property
    def head_strides(self) -> Axes:
        """For the logits of each coarser level in training, the factor along each axis from the level above."""
        return self.config.level_strides[: self.levels - 1]

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that activation checkpointing computes twice, in order."""
        stages = [] if self.encoder is None or self.encoder.frozen else self.encoder.stages
        return [self.stem, *self.downs, *stages, *self.ups]

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format in which the network is fastest, channels-last."""
        return LAYERS[self.config.dims].memory_format

    def _pad(self, x: Tensor) -> Tensor:
        size, divisors = x.shape[2:], self.config.divisors
        shortest = divisors
        # instance norm has nothing to measure in a single value
        if self.config.norm == "instance" and all(side < 2 * least for side, least in zip(size, shortest, strict=True)):
            shortest = tuple(2 * divisor for divisor in divisors)
        if self.encoder is None:
            sides = [n if n >= least else 2 * d for n, least, d in zip(size, shortest, divisors, strict=True)]
        else:  # backbones differ in what they do with the rest of a division
            sides = [math.ceil(n / least) * least for n, least in zip(size, shortest, strict=True)]
        missing = [wanted - side for wanted, side in zip(sides, size, strict=True)]
        pads = [part for side in reversed(missing) for part in (0, side)]
        return F.pad(x, pads, mode="replicate") if any(missing) else x

    def published_state(self) -> dict[str, Tensor]:
        """What model.safetensors holds."""
        return self.state_dict()

    def _save_pretrained(self, save_directory: Path) -> None:
        # channels-last weights are not contiguous, and safetensors takes only contiguous ones
        state = self.published_state()
        copies = download([value.detach() for value in state.values()])
        weights = {key: value.contiguous() for key, value in zip(state, copies, strict=True)}
        # `save_file` would make a file that nobody else may read
        (save_directory / WEIGHTS_NAME).write_bytes(save(weights, metadata={"format": "pt"}))
        config = json.dumps(self.config.to_json(), sort_keys=True, indent=2)
        (save_directory / CONFIG_NAME).write_text(config, encoding="utf-8")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options) -> "UNet":
        """Load a model folder or a Hub id, in evaluation mode; `options` as in huggingface_hub (revision, token, ...).

        Raises ModelError that says which file is missing, damaged or does not fit.
        """
        name = str(pretrained_model_name_or_path)
        is_folder = Path(name).is_dir()
        # `owner/name` is a Hub id, unless there is a folder `owner` here, when it is a path mistyped
        if not is_folder and (name.count("/") != 1 or Path(name).parent.exists()):
            raise ModelError(f"{name}: is not a folder with config.json and {WEIGHTS_NAME}")
        for file in (CONFIG_NAME, WEIGHTS_NAME):
            if is_folder and not (Path(name) / file).is_file():
                hint = f"; {name}/model has" if (Path(name) / "model" / file).is_file() else ""
                raise ModelError(f"{name}: has no {file}{hint}")
        try:
            if is_folder and not isinstance(json.loads((Path(name) / CONFIG_NAME).read_bytes()), dict):
                raise ModelError(f"{name}: config.json is damaged (it holds no JSON object)")
            return super().from_pretrained(name, **options)
        except ModelError:
            raise
        except json.JSONDecodeError as error:
            raise ModelError(f"{name}: config.json is damaged ({error})") from error
        except (HfHubHTTPError, OSError, ValueError, TypeError, RuntimeError) as error:
            # torch lists what does not fit over many lines
            raise ModelError(f"{name}: cannot be loaded: {one_line(error)}") from error

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: UNetConfig | None = None, **options) -> "UNet":
        if config is None:
            raise ValueError("no config.json was found")
        file = Path(model_id) / WEIGHTS_NAME
        try:
            weights = load_file(file if file.is_file() else hf_hub_download(model_id, WEIGHTS_NAME, **options))
        except SafetensorError as error:
            raise ValueError(f"{WEIGHTS_NAME} is damaged ({error})") from error
        model = cls(config)
        model.load_state_dict(weights)
        return model.eval()


class DeeplySupervisedUNet(UNet):
    """A U-Net whose coarser levels, except the lowest two, predict too in training (Lee et al. 2015, arXiv:1409.5185).

    It saves the U-Net alone: evaluation, prediction and export do not use these heads.
    """

    def __init__(self, config: UNetConfig | None = None) -> None:
        super().__init__(config)
        self.levels = max(1, self.config.depth - 1)
        widths = [up.conv.conv2.out_channels for up in self.ups][::-1]
        classes, dims = self.config.num_classes, self.config.dims
        self.heads = nn.ModuleList(OutConv(width, classes, dims) for width in widths[1 : self.levels])

    def forward(self, images: Tensor) -> Tensor | list[Tensor]:
        """As `UNet`; in training the logits (B, num_classes, ...) of each level, finest first."""
        if not self.training:
            return super().forward(images)
        finest, *coarser = self.decode(images, self.levels)
        return [self._cropped(self.head(finest), images), *(f(x) for f, x in zip(self.heads, coarser, strict=True))]

    def published_state(self) -> dict[str, Tensor]:
        """Without the heads that only training has."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("heads.")}
