"""The model and its mathematics; knows nothing of how training is launched."""

from unet.convert import load_model
from unet.inference import Predictor
from unet.model import ModelError, UNet, UNetConfig
from unet.preprocess import ImageError, Preprocess

__all__ = ["ImageError", "ModelError", "Predictor", "Preprocess", "UNet", "UNetConfig", "load_model"]
