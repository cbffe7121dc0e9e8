"""Named points, from their positions in a file to their positions in a network's input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from data_utils.analysis.findings import Findings
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.image_io.resize import Window
from data_utils.image_io.volumes import VolumeHeader
from data_utils.point_states import OUTSIDE, PRESENT
from data_utils.sources.points.spaces import to_pixels, to_voxels
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Record, Records
from data_utils.target import Target
from data_utils.targets.reader import TargetReader
from data_utils.targets.sides import point_sides
from runtime.console import counted
from runtime.errors import DataError
from tasks.landmarks.check import describe_points, empty_cells, misplaced_points
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget
from unet.config import MaskValue, UNetConfig

SIGMA_SHARE = 1 / 160  # a share of the longer side of the network's input
SIGMAS = (1.0, 3.0)  # the least and the most, in pixels: a narrower Gaussian falls between pixels


@dataclass(frozen=True)
class PointReader(TargetReader):
    """The chosen points of each image.

    Args:
        landmarks: the task, with the names of the chosen points.
        file_indices: the index of each chosen point in the files.
        sides_line: a line on the points that change places in the mirror.
    """

    landmarks: Landmarks
    file_indices: tuple[int, ...]
    sides_line: str = ""

    target = PointTarget
    takes_points = True

    @classmethod
    def from_records(
        cls, records: Records | None, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig
    ) -> PointReader:
        if records is None:
            raise DataError(f"{config.dataset}: masks hold no points, which --task landmarks needs")
        assert records.metadata.landmarks is not None
        all_names, layout, space, _ = records.metadata.landmarks
        names = all_names
        if config.classes:
            names = tuple(name.strip() for name in config.classes.split(",") if name.strip())
            unknown = [name for name in names if name not in all_names]
            if unknown or len(set(names)) < len(names):
                raise DataError(f"--classes {config.classes}: expected some of {', '.join(all_names)}")
        sides = point_sides(names, config.swap)
        file_indices = tuple(all_names.index(name) for name in names)
        landmarks = Landmarks(
            names=names,
            partners=sides.partners,
            mirrors=sides.mirrors and config.augment != "none",
            unit="mm" if records.dims == 3 else "px",
            layout=layout,
            space=space,
            always_there=_always_there(records, file_indices),
            absent=config.absent or "unknown",
        )
        return cls(landmarks, file_indices, sides.line)

    @classmethod
    def of_model(cls, config: UNetConfig) -> PointReader:
        landmarks = Landmarks.from_config(config)
        return cls(landmarks, tuple(range(len(landmarks.names))))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chosen points."""
        return self.landmarks.names

    @property
    def identity(self) -> list[str]:
        return list(self.names)

    @property
    def mirrors(self) -> bool:
        return self.landmarks.mirrors

    def at_size(self, size: Sequence[float]) -> PointReader:
        sigma = min(max(max(size) * SIGMA_SHARE, SIGMAS[0]), SIGMAS[1])
        nowhere = math.log(math.prod(size))
        return replace(self, landmarks=replace(self.landmarks, sigma=round(sigma, 2), nowhere=round(nowhere, 2)))

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Landmarks:
        return self.landmarks

    def unknown_target(self, shape: Sequence[int]) -> PointTarget:
        return self.landmarks.unknown_target(shape)

    def mirror(self, target: Target) -> Target:
        assert isinstance(target, PointTarget)
        partners = list(self.landmarks.partners)
        return replace(target, points=target.points[partners], states=target.states[partners])

    def read(
        self,
        record: Record,
        image_size: tuple[int, int],
        size: tuple[int, int] | None = None,
        window: Window | None = None,
    ) -> PointTarget:
        source = record["target"]
        assert isinstance(source, PointSource)
        points = to_pixels(source, image_size, record["name"])[list(self.file_indices)]
        target = self._target(source, points, image_size, size or image_size, (1.0, 1.0))
        return target if window is None else target.crop([slice(*side) for side in window])

    def read_volume(self, record: Record, header: VolumeHeader, size: tuple[int, ...] | None = None) -> PointTarget:
        source = record["target"]
        assert isinstance(source, PointSource)
        points = to_voxels(source.positions[list(self.file_indices)], source.space, header)
        return self._target(source, points, header.size, size or header.size, header.spacing)

    def _target(
        self,
        source: PointSource,
        points: np.ndarray,
        image_size: Sequence[int],
        size: Sequence[int],
        spacing: Sequence[float],
    ) -> PointTarget:
        """Points (K, n) in pixels of an image, as a target of an image that is resized to `size`."""
        scale = np.array(image_size) / np.array(size)
        states = source.states[list(self.file_indices)]
        resized = np.where((states == PRESENT)[:, None], (points + 0.5) / scale - 0.5, 0.0)
        is_inside = ((resized >= -0.5) & (resized < np.array(size) - 0.5)).all(axis=1)
        states[~is_inside] = OUTSIDE  # absent points stay absent: their position is 0
        return PointTarget(
            points=resized,
            states=states,
            size=np.array(size, np.int64),
            unit=scale * np.array(spacing),
        )

    def check(self, findings: Findings) -> Iterator[str]:
        """The points that change places in the mirror, or why images are not mirrored; then likely mistakes."""
        if self.sides_line:
            yield self.sides_line
        yield from empty_cells(findings)
        yield from misplaced_points(findings, self.landmarks, self.file_indices)

    def describe(self) -> str:
        return f"{counted(len(self.names), 'landmark')}: {', '.join(self.names)}"

    def describe_records(self, splits: Sequence[Records]) -> list[str]:
        return describe_points(splits)


def _always_there(records: Records, indices: Sequence[int]) -> tuple[int, ...]:
    """The positions in `indices` of the points that are present in some record and absent in none."""
    states = []
    for record in records:
        source = record["target"]
        assert isinstance(source, PointSource)
        states.append(source.states[list(indices)])
    counts = count_states(np.array(states).reshape(-1, len(indices)))
    return tuple(np.flatnonzero((counts["present"] > 0) & (counts["absent"] == 0)).tolist())
