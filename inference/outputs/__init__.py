"""The files that prediction writes: masks or points, overlays, probabilities."""

from inference.outputs.classes import ClassFormat
from inference.outputs.objects import ObjectFormat
from inference.outputs.overlapping import OverlapFormat
from inference.outputs.points import PointFormat
from inference.outputs.prediction_format import PredictionFormat
from inference.outputs.regions import RegionFormat
from tasks import task_of_model
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from unet.config import UNetConfig

FORMATS: dict[str, type[PredictionFormat]] = {
    Classes.name: ClassFormat,
    Landmarks.name: PointFormat,
    Objects.name: ObjectFormat,
    Overlapping.name: OverlapFormat,
    Regions.name: RegionFormat,
}


def new_format(config: UNetConfig) -> PredictionFormat:
    """The format in which the predictions of a model are written."""
    return FORMATS[task_of_model(config).name].from_config(config)
