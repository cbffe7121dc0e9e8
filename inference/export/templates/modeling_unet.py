"""A U-Net (arXiv:1505.04597) and its preprocessing for transformers: a file of its own, which imports nothing else.

pipeline("image-segmentation", FOLDER, trust_remote_code=True)(image)
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import BatchFeature, PreTrainedConfig, PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_outputs import SemanticSegmenterOutput

LITE0 = (  # blocks, kernel, stride, expansion and channels of each stage of EfficientNet-Lite0
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
LITE0_CHANNELS = [16, 24, 40, 112, 320]  # of the features of strides 2, 4, 8, 16 and 32


class UNetConfig(PreTrainedConfig):
    """Architecture and normalization."""

    model_type = "unet-accelerate"

    def __init__(
        self,
        in_channels=3,
        base_channels=64,
        depth=4,
        norm="batch",
        upsample="transpose",
        block="plain",
        encoder=None,
        mean=(0.0,),
        std=(1.0,),
        **kwargs,
    ):
        self.in_channels = in_channels
        self.base_channels = base_channels
        self.depth = depth
        self.norm = norm
        self.upsample = upsample
        self.block = block
        self.encoder = encoder  # None, or "lite0"
        self.mean = list(mean)
        self.std = list(std)
        super().__init__(**kwargs)


class UNetImageProcessor(BaseImageProcessor):
    """Images as the network sees them: resized, their values as they are, for the network normalizes them."""

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(self, in_channels=3, image_size=None, scale=1.0, detect_unit_range=False, **kwargs):
        super().__init__(**kwargs)
        self.in_channels = in_channels
        self.image_size = image_size  # (H, W) of all images, or None for `scale`
        self.scale = scale
        self.detect_unit_range = detect_unit_range  # whether an image without a value above 1 is one of 0..1

    def preprocess(self, images, return_tensors=None, **kwargs):
        """One image of PIL or more -> pixel_values (B, C, H, W)."""
        if not isinstance(images, list | tuple):
            images = [images]
        pixels = np.stack([self._pixels(image) for image in images])
        return BatchFeature(data={"pixel_values": pixels}, tensor_type=return_tensors)

    def _pixels(self, image):
        pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        if pixels.ndim == 3 and self.in_channels == 1:
            if (pixels != pixels[:, :, :1]).any():
                raise ValueError("the image is in color, but the model takes grey images")
            pixels = pixels[:, :, 0]
        image = Image.fromarray(pixels)
        height, width = self.image_size or (
            max(1, int(image.height * self.scale)),
            max(1, int(image.width * self.scale)),
        )
        image = image.resize((width, image.height), Image.Resampling.BICUBIC)  # along the rows first
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        pixels = np.asarray(image, np.float32).reshape(height, width, -1)
        if self.detect_unit_range and pixels.max() <= 1:
            pixels = pixels * 255
        if pixels.shape[2] < self.in_channels:
            pixels = np.repeat(pixels, self.in_channels, axis=2)
        return pixels.transpose(2, 0, 1)

    def post_process_semantic_segmentation(self, outputs, target_sizes=None):
        """For each image, the class of each pixel (H, W), at the image's own size of `target_sizes`."""
        masks = []
        for index, logits in enumerate(outputs.logits):
            size = tuple(target_sizes[index]) if target_sizes is not None else logits.shape[1:]
            if size != tuple(logits.shape[1:]):
                logits = F.interpolate(logits[None].float(), size=size, mode="bilinear", align_corners=False)[0]
            masks.append(logits.max(0).indices)
        return masks


class DoubleConv(nn.Module):
    """(Convolution, norm, ReLU) twice; residual where `block` says so."""

    def __init__(self, in_channels, out_channels, config, mid_channels=None):
        super().__init__()
        mid_channels = mid_channels or out_channels
        self.shortcut = None
        if config.block == "residual":
            self.shortcut = nn.Identity()
            if in_channels != out_channels:
                self.shortcut = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.conv1 = nn.Conv2d(in_channels, mid_channels, 3, padding=1, bias=False)
        self.norm1 = norm_layer(config.norm, mid_channels)
        self.conv2 = nn.Conv2d(mid_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = norm_layer(config.norm, out_channels)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        return F.relu(y)


def norm_layer(norm, channels):
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(max(channels // 2, 1), 32), channels)
    return nn.InstanceNorm2d(channels, affine=True)


class Down(nn.Module):
    """Half the size, then convolutions."""

    def __init__(self, in_channels, out_channels, config):
        super().__init__()
        self.conv = DoubleConv(in_channels, out_channels, config)

    def forward(self, x):
        return self.conv(F.max_pool2d(x, 2))


class Up(nn.Module):
    """Twice the size, padded to that of the skip connection, which is joined; then convolutions."""

    def __init__(self, in_channels, skip_channels, out_channels, config):
        super().__init__()
        if config.upsample == "transpose":
            self.up = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
            self.conv = DoubleConv(out_channels + skip_channels, out_channels, config)
        else:
            is_aligned = config.upsample == "bilinear_aligned"
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=is_aligned)
            mid_channels = min(skip_channels, 2 * out_channels)
            self.conv = DoubleConv(in_channels + skip_channels, out_channels, config, mid_channels)

    def forward(self, x, skip):
        x = self.up(x)
        height = skip.shape[2] - x.shape[2]
        width = skip.shape[3] - x.shape[3]
        x = F.pad(x, [width // 2, width - width // 2, height // 2, height - height // 2])
        return self.conv(torch.cat([skip, x], dim=1))


class Head(nn.Module):
    """A logit for each class."""

    def __init__(self, in_channels, classes):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, classes, 1)

    def forward(self, x):
        return self.conv(x)


class ConvNorm(nn.Module):
    """A convolution and batch norm, with TensorFlow's padding."""

    def __init__(self, in_channels, out_channels, kernel=1, stride=1, groups=1):
        super().__init__()
        before = (kernel - stride) // 2
        behind = kernel - stride - before
        self.pads = (before, behind, before, behind)
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3)

    def forward(self, x):
        return self.norm(self.conv(F.pad(x, self.pads)))


class InvertedResidual(nn.Module):
    """More channels, a convolution of each channel alone, fewer channels (arXiv:1801.04381)."""

    def __init__(self, in_channels, kernel, stride, expansion, channels):
        super().__init__()
        width = in_channels * expansion
        self.adds_input = stride == 1 and in_channels == channels
        self.expand = ConvNorm(in_channels, width) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(width, width, kernel, stride, groups=width)
        self.project = ConvNorm(width, channels)

    def forward(self, x):
        y = F.relu6(self.expand(x))
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if self.adds_input else y


class Lite0(nn.Module):
    """EfficientNet-Lite0 (arXiv:1905.11946): features of strides 2 to 32."""

    def __init__(self, channels):
        super().__init__()
        self.stem = ConvNorm(channels, 32, kernel=3, stride=2)
        self.stages = nn.ModuleList()
        width = 32
        for blocks, kernel, stride, expansion, out_channels in LITE0:
            stage = nn.Sequential(InvertedResidual(width, kernel, stride, expansion, out_channels))
            for _ in range(blocks - 1):
                stage.append(InvertedResidual(out_channels, kernel, 1, expansion, out_channels))
            self.stages.append(stage)
            width = out_channels

    def forward(self, x):
        x = F.relu6(self.stem(x))
        features = []
        for stage, (_, _, stride, _, _) in zip(self.stages, LITE0, strict=True):
            if stride == 2:
                features.append(x)  # the last of their size
            x = stage(x)
        return [*features, x]


class Encoder(nn.Module):
    """What weights call the pretrained part."""

    def __init__(self, channels):
        super().__init__()
        self.backbone = Lite0(channels)

    def forward(self, x):
        return self.backbone(x)


class UNetForSemanticSegmentation(PreTrainedModel):
    """Raw pixel values in, logits out; any size."""

    config_class = UNetConfig
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        widths = [config.base_channels * 2**level for level in range(config.depth + 1)]
        outputs = list(widths)
        if config.upsample != "transpose":
            outputs = [max(width // 2, config.base_channels) for width in widths]
            outputs[-1] = widths[-1] // 2
        skips = list(widths)
        skips[-1] = outputs[-1]
        channels = len(config.mean)
        self.encoder = None
        steps_down = config.depth
        if config.encoder is not None:
            self.encoder = Encoder(channels)
            steps_down = 0
            skips[1:] = LITE0_CHANNELS
        self.stem = DoubleConv(channels, skips[0], config)
        self.downs = nn.ModuleList()
        for level in range(steps_down):
            self.downs.append(Down(skips[level], skips[level + 1], config))
        inputs = [*outputs[1:-1], skips[-1]]
        self.ups = nn.ModuleList()
        for level in reversed(range(config.depth)):
            self.ups.append(Up(inputs[level], skips[level], outputs[level], config))
        self.head = Head(config.base_channels, config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, **kwargs) -> SemanticSegmenterOutput:
        """pixel_values (B, in_channels, H, W) as in image files -> logits (B, classes, H, W)."""
        height, width = pixel_values.shape[2:]
        column = (1, -1, 1, 1)
        mean = pixel_values.new_tensor(self.config.mean).view(column)
        std = pixel_values.new_tensor(self.config.std).view(column)
        x = self._pad((pixel_values - mean) / std)
        skips = [self.stem(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        if self.encoder is not None:
            skips += self.encoder(x)
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return SemanticSegmenterOutput(logits=self.head(x)[:, :, :height, :width])

    def _pad(self, x):
        """Short sides are lengthened with their border, lest they vanish in the poolings; for an encoder all sides."""
        divisor = 2**self.config.depth
        least = divisor
        if self.config.norm == "instance" and max(x.shape[2:]) < 2 * divisor:
            least = 2 * divisor  # instance norm needs more than one value
        pads = []
        for side in reversed(x.shape[2:]):
            target = side if side >= least else 2 * divisor
            if self.config.encoder is not None:
                target = math.ceil(side / least) * least
            pads += [0, target - side]
        return F.pad(x, pads, mode="replicate")
