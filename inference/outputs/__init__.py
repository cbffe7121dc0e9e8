"""The files that prediction writes: masks or points, overlays, probabilities."""

from inference.outputs.classes import ClassEncoder
from inference.outputs.encoder import Encoder
from inference.outputs.objects import ObjectEncoder
from inference.outputs.overlapping import OverlapEncoder
from inference.outputs.points import PointEncoder
from inference.outputs.regions import RegionEncoder
from tasks import task_of_model
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from unet.config import UNetConfig

WRITERS: dict[str, type[Encoder]] = {
    Classes.name: ClassEncoder,
    Landmarks.name: PointEncoder,
    Objects.name: ObjectEncoder,
    Overlapping.name: OverlapEncoder,
    Regions.name: RegionEncoder,
}


def new_encoder(config: UNetConfig) -> Encoder:
    """How the predictions of a model are written."""
    return WRITERS[task_of_model(config).name].of_model(config)
