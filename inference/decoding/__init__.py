"""From logits to the content of files."""

from typing import Any

from inference.decoding.classes import ClassDecoder
from inference.decoding.decoder import Decoder
from inference.decoding.landmarks import LandmarkDecoder
from inference.decoding.objects import ObjectDecoder
from inference.decoding.overlapping import OverlapDecoder
from inference.decoding.regions import RegionDecoder
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from tasks.task import Task

DECODERS: dict[str, type[Decoder[Any]]] = {
    Classes.name: ClassDecoder,
    Landmarks.name: LandmarkDecoder,
    Objects.name: ObjectDecoder,
    Overlapping.name: OverlapDecoder,
    Regions.name: RegionDecoder,
}


def new_decoder(task: Task) -> Decoder:
    """The decoder of a task's predictions."""
    return DECODERS[task.name](task)
