"""From logits to what a file holds."""

from inference.decoding.classes import ClassDecoder
from inference.decoding.decoder import Decoder
from inference.decoding.landmarks import LandmarkDecoder
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.task import Task

DECODERS: dict[str, type[Decoder]] = {Classes.name: ClassDecoder, Landmarks.name: LandmarkDecoder}


def new_decoder(task: Task) -> Decoder:
    """A decoder for one image."""
    return DECODERS[task.name](task)
