"""The network and its mathematics: torch only, no image files, nothing of how training is launched."""

from unet.config import Preprocess, UNetConfig
from unet.loading import load_model
from unet.model import UNet

__all__ = ["Preprocess", "UNet", "UNetConfig", "load_model"]
