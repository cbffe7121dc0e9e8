"""The files that prediction writes: masks or points, overlays, probabilities."""

from inference.outputs.classes import ClassEncoder
from inference.outputs.encoder import Encoder
from inference.outputs.points import PointEncoder
from tasks import task_of_model
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from unet.config import UNetConfig

WRITERS: dict[str, type[Encoder]] = {Classes.name: ClassEncoder, Landmarks.name: PointEncoder}


def new_encoder(config: UNetConfig) -> Encoder:
    """How the predictions of a model are written."""
    return WRITERS[task_of_model(config).name].of_model(config)
