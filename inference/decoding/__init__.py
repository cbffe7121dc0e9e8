"""From logits to what a file holds."""

from inference.decoding.classes import ClassDecoder
from inference.decoding.decoder import Decoder
from inference.decoding.overlapping import OverlapDecoder
from inference.decoding.regions import RegionDecoder
from tasks.classes import Classes
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from tasks.task import Task

DECODERS: dict[str, type[Decoder]] = {
    Classes.name: ClassDecoder,
    Overlapping.name: OverlapDecoder,
    Regions.name: RegionDecoder,
}


def new_decoder(task: Task) -> Decoder:
    """A decoder for one image."""
    return DECODERS[task.name](task)
