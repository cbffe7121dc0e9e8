"""Inputs of networks, for tests."""

from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import decode_image
from data_utils.loading.image_input import ImageInput
from unet.config import Preprocess


def read_input(source: ImageSource, preprocess: Preprocess, channels: int, name: str = "image") -> ImageInput:
    """An image that is decoded whole, with no more detail than needed."""
    return ImageInput(decode_image(source, name, preprocess), preprocess, channels, name)
