"""Inputs of networks and of predictions, for tests."""

from pathlib import Path
from typing import Any

from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import decode_image
from data_utils.loading.image_input import ImageInput
from inference.inputs import find_inputs
from support.formats import overlap_format
from tasks.job import Job
from tasks.prediction_format import PredictionFormat
from unet.config import Preprocess, UNetConfig

OVERLAPPING = overlap_format("a")


def read_input(source: ImageSource, preprocess: Preprocess, channels: int, name: str = "image") -> ImageInput:
    """An image that is decoded whole, with no more detail than needed."""
    return ImageInput(decode_image(source, name, preprocess), preprocess, channels, name)


def find_jobs(
    patterns: list[str],
    output: Path,
    *,
    channels: int = 1,
    dims: int = 2,
    output_format: PredictionFormat = OVERLAPPING,
    **preprocess: Any,
) -> list[Job]:
    """The jobs of inputs of a model that reads places, and whose predictions have this format."""
    config = UNetConfig(channels, dims=dims, preprocess=Preprocess(place=True, **preprocess))
    return find_inputs(patterns, output, config, output_format)
