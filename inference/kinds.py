"""The kinds of output, masks and points: how each is written and scored, and where its truth is found."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from inference.outputs.classes import ClassFormat
from inference.outputs.images import ImageWriter
from inference.outputs.jobs import Truth
from inference.outputs.points import PointFormat, PointImageWriter, PointVolumeWriter
from inference.outputs.prediction_format import MaskFormat
from inference.outputs.requested_outputs import RequestedOutputs
from inference.outputs.volumes import VolumeWriter
from inference.scoring.boundary import BoundaryScores
from inference.scoring.points import PointScorer, TruePoints
from inference.scoring.truth import ImageScorer
from inference.scoring.volume import VolumeScorer
from inference.true_masks import TruthFolder
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from tasks.task import Scores


class Score(Protocol):
    """The scores of an image or a volume: of its pixels, of boundaries and of areas, where they are counted."""

    @property
    def scores(self) -> Scores: ...

    @property
    def boundary(self) -> BoundaryScores | None: ...

    @property
    def areas(self) -> np.ndarray | None: ...

    def to_json(self, name: str) -> dict[str, Any]:
        """The entry of metrics.json."""


class OutputKind(ABC):
    """The writers and scorers of predictions of one kind.

    Attributes:
        image_writer, volume_writer: write the files of an image, of a volume.
        image_scorer, volume_scorer: score the prediction of an image, of a volume.
    """

    image_writer: ImageWriter | PointImageWriter
    volume_writer: VolumeWriter | PointVolumeWriter
    image_scorer: Any
    volume_scorer: Any

    @abstractmethod
    def __init__(self, requested: RequestedOutputs[Any]) -> None: ...

    @abstractmethod
    def truth(self, path: Path, mask_suffix: str | None, *, reads_places: bool) -> Truth:
        """The truth in a file or folder; for the other arguments see `TruthFolder`."""


class MaskKind(OutputKind):
    """Masks, of one or more files."""

    def __init__(self, requested: RequestedOutputs[MaskFormat]) -> None:
        output_format = requested.output_format
        self.output_format = output_format
        self.image_writer = ImageWriter(output_format, requested.task, requested.extensions)
        self.volume_writer = VolumeWriter(output_format, requested.task, requested.extensions)
        self.image_scorer = ImageScorer(output_format, requested.task, requested.boundary)
        self.volume_scorer = VolumeScorer(output_format, requested.task, requested.boundary)

    def truth(self, path: Path, mask_suffix: str | None, *, reads_places: bool) -> TruthFolder:
        output_format = self.output_format
        class_map = output_format.class_map if isinstance(output_format, ClassFormat) else None
        return TruthFolder(
            path, mask_suffix, output_format.class_folders, output_format.object_classes, class_map, reads_places
        )


class PointKind(OutputKind):
    """Files of points."""

    def __init__(self, requested: RequestedOutputs[PointFormat]) -> None:
        output_format = requested.output_format
        self.task = output_format.task
        self.image_writer = PointImageWriter(output_format, self.task, requested.extensions)
        self.volume_writer = PointVolumeWriter(output_format, self.task, requested.extensions)
        self.image_scorer = PointScorer(self.task, output_format.extension)
        self.volume_scorer = self.image_scorer

    def truth(self, path: Path, mask_suffix: str | None, *, reads_places: bool) -> TruePoints:
        return TruePoints(path, self.task)


OUTPUT_KINDS: dict[str, type[OutputKind]] = {
    Classes.name: MaskKind,
    Landmarks.name: PointKind,
    Objects.name: MaskKind,
    Overlapping.name: MaskKind,
    Regions.name: MaskKind,
}


def new_output_kind(requested: RequestedOutputs) -> OutputKind:
    """The writers and scorers of the predictions that are requested."""
    return OUTPUT_KINDS[requested.task.name](requested)
