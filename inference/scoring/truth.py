"""Scoring a prediction against its true mask, a strip of rows at a time, at the true mask's own size."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from data_utils.image_io.class_masks import ClassChannels, ClassMasks
from data_utils.image_io.formats import RenderedMask, VolumeFile
from data_utils.image_io.placed_masks import PlacedMask
from data_utils.image_io.reader import read_colors, read_mask
from data_utils.image_io.resize import nearest, same_proportions
from data_utils.image_io.windowed import open_windowed
from data_utils.loading.image_input import hide_missing
from data_utils.targets.reader import MaskReader
from inference.outputs.jobs import ImageJob, MaskFile, PointRow
from inference.outputs.prediction_format import MaskFormat
from inference.scoring.boundary import BoundaryScores, boundary_scores
from inference.scoring.components import AreaCounter
from runtime.errors import DataError
from tasks.target import Target
from tasks.task import Scores, Task

SCORED_ROWS = 256  # rows of a written mask that are read at once


class ScoreError(DataError):
    """A true mask that cannot be used; the prediction is safe."""


class ImageScore(NamedTuple):
    """The scores of an image, of its boundaries if requested, and the `counts` of its areas, if it has any."""

    scores: Scores
    boundary: BoundaryScores | None
    areas: np.ndarray | None = None

    def to_json(self, name: str) -> dict[str, Any]:
        """The entry of metrics.json for this image."""
        result: dict[str, Any] = {"image": name} | self.scores.brief()
        if self.boundary:
            result |= self.boundary.to_json()
        return result


class MaskRows(NamedTuple):
    """A mask of `size` (H, W), called `name`, whose rows [top, bottom) `read` gives as a target of (n, W)."""

    name: str
    size: tuple[int, int]
    read: Callable[[int, int], Target]

    def check_size(self, image: tuple[int, int]) -> None:
        """Raises DataError unless the mask is as large as the image (H, W)."""
        if self.size != image:
            raise DataError(self._mismatch(image))

    def check_proportions(self, image: tuple[int, int]) -> None:
        """Raises DataError unless the mask has the proportions of the image (H, W)."""
        if not same_proportions(self.size, image):
            raise DataError(f"{self._mismatch(image)}; they differ in proportions")

    def _mismatch(self, image: tuple[int, int]) -> str:
        return f"{self.name}: is {self.size[0]} x {self.size[1]}, but the image {image[0]} x {image[1]}"


@contextmanager
def open_mask_rows(mask: MaskFile, reader: MaskReader) -> Iterator[MaskRows]:
    """A mask, read one window at a time if its format allows it."""
    if isinstance(mask, ClassMasks | ClassChannels | PlacedMask):
        name = mask.name
    elif isinstance(mask, RenderedMask):
        name = "the true objects"  # the object that renders them names the file
    else:
        assert not isinstance(mask, VolumeFile)
        name = str(mask.path)
    has_colors = reader.class_map is not None and reader.class_map.has_colors
    read_values = read_colors if has_colors else read_mask
    source, reader = reader.prepared(mask, name)
    with open_windowed(source) as picture:

        def read(top: int, bottom: int) -> Target:
            rows = read_values(picture.read(top, bottom), name)
            return reader.target_from_mask(rows, name)

        yield MaskRows(name, picture.size, read)


class TruthScorer:
    """Counts predicted rows against the true mask, as they come; the first problem with the mask ends the counting.

    If prediction and true mask differ in size, the predicted pixel under the center of each true one counts.

    Args:
        size: (H, W) of the prediction.
        truth: the true mask; None if it cannot be read, then `problem` is the error.
        boundary: whether the boundaries are scored too; then the whole mask is kept.
    """

    def __init__(
        self,
        task: Task,
        size: tuple[int, int],
        truth: MaskRows | None,
        problem: Exception | None = None,
        *,
        boundary: bool = False,
    ) -> None:
        self.task = task
        self.scores = task.new_scores(1)
        self.truth = truth
        self.problem = problem
        self._top = 0  # the first of the next rows of the prediction
        if truth is not None:
            # for each row and column of the true mask, the row and column of the prediction under its center
            self._rows = nearest(truth.size[0], size[0])
            self._columns = nearest(truth.size[1], size[1])
        # predicted and true rows, kept if the boundaries are scored
        self._mask_rows: list[tuple[np.ndarray, np.ndarray]] | None = [] if boundary else None
        self._areas = AreaCounter(task.outputs) if task.answers_classes else None

    def add(self, mask: np.ndarray, missing: np.ndarray | None = None, certainty: np.ndarray | None = None) -> None:
        """Count the next rows of a prediction, (n, W); pixels in `missing`, (n, W) bool, are unknown.

        Args:
            certainty: (n, W) or (outputs, n, W), the certainty of the prediction; None if it is not counted.
        """
        top = self._top
        self._top += len(mask)
        if self.truth is None or self.problem is not None:
            return
        first, last = np.searchsorted(self._rows, (top, self._top)).tolist()  # rows of the true mask
        if first == last:
            return
        try:
            truth = self.truth.read(first, last)
        except (DataError, OSError) as error:
            self.problem = error
            return
        rows = self._rows[first:last] - top
        if missing is not None:
            truth = hide_missing(truth, missing[rows][:, self._columns])
        pred = mask[rows][:, self._columns]
        preds = torch.from_numpy(pred).long()[None]
        target = truth.map(lambda rows: torch.from_numpy(rows)[None])
        self.scores.add_part(preds, target, 0)
        if certainty is not None:
            certainty_at_target = torch.from_numpy(certainty[..., rows, :][..., self._columns])[None]
            self.scores.add_reliability(self.task.count_certainty(certainty_at_target, preds, target))
        if self._areas is not None:
            self._areas.add(pred, truth.main)
        if self._mask_rows is not None:
            self._mask_rows.append((pred, truth.main))

    def score(self) -> ImageScore:
        """The score of the rows that were counted, which must be all rows."""
        self.scores.finish_image(0)
        areas = None
        if self._areas is not None:
            self._areas.finish()
            areas = self._areas.counts()
        boundary = None
        if self._mask_rows is not None:
            pred, truth = map(np.concatenate, zip(*self._mask_rows, strict=True))
            boundary = boundary_scores(pred, truth, self.task.outputs)
        return ImageScore(self.scores, boundary, areas)


@dataclass(frozen=True)
class ImageScorer:
    """Scores the masks of images against their true masks."""

    output_format: MaskFormat
    task: Task
    boundary: bool = False

    @contextmanager
    def open(self, job: ImageJob, size: tuple[int, int]) -> Iterator[TruthScorer]:
        """A scorer of the rows of a prediction of (H, W); a true mask that cannot be used is its `problem`."""
        assert job.truth is not None
        assert not isinstance(job.truth, PointRow)
        truth = None
        problem = None
        with ExitStack() as stack:
            try:
                truth = stack.enter_context(open_mask_rows(job.truth, self.output_format.reader_for(job.truth)))
                truth.check_proportions(size)
            except (DataError, OSError) as error:
                problem = error
            yield TruthScorer(self.task, size, truth, problem, boundary=self.boundary)

    def score(self, job: ImageJob) -> ImageScore:
        """The score of a mask that was written before. Raises ScoreError if it cannot be scored."""
        assert job.size is not None
        height, width = job.size
        with self.open(job, (height, width)) as scorer:
            try:
                written_mask = self.output_format.written_mask(job)
                with open_mask_rows(written_mask, self.output_format.reader_for(written_mask)) as mask:
                    mask.check_size((height, width))
                    for top in range(0, height, SCORED_ROWS):
                        if scorer.problem:
                            break
                        scorer.add(mask.read(top, min(top + SCORED_ROWS, height)).prediction)
            except (DataError, OSError) as error:
                raise ScoreError(str(error)) from error
        if scorer.problem:
            raise ScoreError(str(scorer.problem)) from scorer.problem
        return scorer.score()
