"""Prediction: an image in, class indices out, at the image's own size."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unet.model import UNet
from unet.preprocess import ImageSource


def resize_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, num_classes, h, w) -> (B, num_classes, *size): how evaluation and prediction return to a mask's size."""
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return F.interpolate(logits.float(), size=size, mode="bilinear", align_corners=False)


def batch_size_of(height: int, width: int) -> int:
    """How many images of one shape share a forward pass: about half a million pixels, a function of the shape alone.

    So evaluation and prediction compute the same batches on any number of processes, down to the last bit.
    """
    return max(1, 2**19 // (height * width))


class Prediction(NamedTuple):
    """mask: (H, W) uint8 class indices; probabilities: (num_classes, H, W) float32; both at the input's own size."""

    mask: np.ndarray
    probabilities: np.ndarray


class Predictor:
    """A model with its preprocessing: `Predictor.from_pretrained("runs/x/model")("cell.png").mask`.

    Args:
        model: the network; `forward` may be a wrapped form of it (compiled, autocast), by default the model itself.
    """

    def __init__(self, model: UNet, forward: nn.Module | None = None) -> None:
        self.model = model.eval()
        self.config = model.config
        self.forward = forward or model

    @classmethod
    def from_pretrained(cls, model: str, device: str | torch.device = "cpu") -> "Predictor":
        """Load a model folder or a Hub id."""
        return cls(UNet.from_pretrained(model).to(device))

    @torch.inference_mode()
    def __call__(self, image: ImageSource, name: str = "image") -> Prediction:
        """Segment a path, bytes, PIL image or array; ImageError, with `name`, for what cannot be used."""
        inputs, size = self.config.preprocess.read(image, self.config.in_channels, name)
        batch = torch.from_numpy(inputs)[None].to(self.model.mean.device)
        logits = resize_logits(self.forward(batch), size)
        probabilities = logits.float().softmax(dim=1)[0]
        return Prediction(logits.argmax(dim=1)[0].to(torch.uint8).cpu().numpy(), probabilities.cpu().numpy())

    def mask(self, image: ImageSource, name: str = "image") -> np.ndarray:
        """Only the class indices, (H, W) uint8."""
        return self(image, name).mask
