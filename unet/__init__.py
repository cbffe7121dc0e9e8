"""The network: torch only, no image files, nothing of how training is launched."""

from unet.config import Preprocess, UNetConfig
from unet.model import UNet

__all__ = ["Preprocess", "UNet", "UNetConfig"]
