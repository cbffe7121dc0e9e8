"""The network: torch only, no image files, and no code that launches training."""

from unet.config import Preprocess, UNetConfig
from unet.model import UNet

__all__ = ["Preprocess", "UNet", "UNetConfig"]
