"""What becomes of a prediction: mask, overlay and probabilities on disk, and a score, from top to bottom."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from runtime.errors import DataError
from data_utils.inputs import Job
from data_utils.large import OpenRows, Rows
from data_utils.masks import MaskClasses, read_mask
from data_utils.overlay import overlay, to_rgb, value_limits
from data_utils.pictures import class_colors
from data_utils.rows import ReplacedFile, output_rows

SCORED_ROWS = 256  # of a written mask that are read at once
SAMPLED_ROWS = 64  # of a large image, by which the brightness of its overlay is chosen


class ScoreError(DataError):
    """A true mask that cannot be used; the prediction is safe."""


@dataclass(frozen=True)
class Desk:
    """Writes what is asked for of each image, and scores it against its true mask.

    Args:
        extensions: of the files to write: ".png" the mask, ".overlay.png", ".npy" the probabilities. The first one is
            finished last.
        overwrite: whether to do again what is there.
        mask_values: class indices (n, W) -> the values that masks hold.
        read_image: (rows, name) -> pixels (n, W, C).
        open_rows: (path, page) -> a context of its `Rows`.
        replaced_file: path -> a context of a file that takes its place at the end.
        class_indices: logits (num_classes, n, W) -> uint8 (n, W).
        confusion_matrix: (preds, masks, num_classes) -> counts.
        in_turn: does some work on each of several items, in order, beside the making of the next one.
    """

    classes: MaskClasses
    extensions: list[str]
    overwrite: bool
    mask_values: Callable[[np.ndarray], np.ndarray]
    read_image: Callable[[Image.Image | np.ndarray, str], np.ndarray]
    open_rows: OpenRows
    replaced_file: ReplacedFile
    class_indices: Callable[[Tensor], np.ndarray]
    confusion_matrix: Callable[[Tensor, Tensor, int], Tensor]
    in_turn: Callable[[Callable[[Tensor], None], Iterable[Tensor]], None]

    @property
    def num_classes(self) -> int:
        """How many classes a prediction has."""
        return len(self.classes.names)

    def is_finished(self, job: Job) -> bool:
        """Whether there is nothing to predict: all is there, and newer than the image."""
        if self.overwrite or job.size is None:
            return False
        begun = job.image.stat().st_mtime
        try:
            written = [job.file(extension).stat() for extension in self.extensions]
        except OSError:
            return False
        return all(file.st_size and file.st_mtime >= begun for file in written)

    @property
    def shows_image(self) -> bool:
        """Whether the image itself is needed, for an overlay."""
        return ".overlay.png" in self.extensions

    def write(self, job: Job, size: tuple[int, int], bands: Iterable[Tensor], rows: Rows | None) -> Tensor | None:
        """Write logits (num_classes, n, W) as they come; the confusion matrix where there is a true mask.

        `size` (H, W) and `rows` are those of the image; None where it is not needed.
        Raises ScoreError, once the prediction is safe, for a true mask that cannot be used.
        """
        job.output.parent.mkdir(parents=True, exist_ok=True)
        files = {extension: job.file(extension) for extension in self.extensions}
        matrix, top, problem, truth = self._no_counts(), 0, None, None
        colors = class_colors(self.classes.values)
        shown = self._shown(job, rows) if rows and self.shows_image else None

        def finish(logits: Tensor) -> None:
            nonlocal top, problem
            mask, bottom = self.class_indices(logits), top + logits.shape[1]
            outputs[".png"].write(self.mask_values(mask))
            if shown:
                outputs[".overlay.png"].write(overlay(shown(top, bottom), mask, colors))
            if ".npy" in outputs:
                outputs[".npy"].write(logits.softmax(dim=0).cpu().numpy())
            if truth and problem is None:
                try:
                    matrix.add_(self._count(mask, truth(top, bottom)))
                except (ValueError, OSError) as error:
                    problem = error
            top = bottom

        with ExitStack() as stack:
            if job.truth:
                try:
                    truth = stack.enter_context(self._indices(*job.truth, size))
                except (ValueError, OSError) as error:
                    problem = error
            outputs = stack.enter_context(output_rows(files, (self.num_classes, *size), self.replaced_file))
            self.in_turn(finish, bands)
        if problem:
            raise ScoreError(f"{problem}; the prediction is written all the same") from problem
        return matrix if job.truth else None

    def score(self, job: Job) -> Tensor:
        """The confusion matrix of a mask that was written before; ScoreError where it cannot be had."""
        assert job.size is not None and job.truth is not None
        matrix = self._no_counts()
        try:
            with self._indices(job.file(".png"), 0, job.size) as mask, self._indices(*job.truth, job.size) as truth:
                for top in range(0, job.size[0], SCORED_ROWS):
                    bottom = min(top + SCORED_ROWS, job.size[0])
                    matrix += self._count(mask(top, bottom), truth(top, bottom))
        except (ValueError, OSError) as error:
            raise ScoreError(str(error)) from error
        return matrix

    def _shown(self, job: Job, rows: Rows) -> Callable[[int, int], np.ndarray]:
        """What gives rows [start, stop) of an image as uint8 (n, W, 3), all of them equally bright."""

        def read(start: int, stop: int) -> np.ndarray:
            return self.read_image(rows.crop(start, stop), job.name)

        limits = None
        if read(0, 1).dtype != np.uint8:
            sampled = np.unique(np.linspace(0, rows.size[0] - 1, SAMPLED_ROWS, dtype=int))
            limits = value_limits(np.concatenate([read(row, row + 1) for row in sampled.tolist()]))
        return lambda start, stop: to_rgb(read(start, stop), limits)

    @contextmanager
    def _indices(self, path: Path, page: int, size: tuple[int, int]) -> Iterator[Callable[[int, int], np.ndarray]]:
        """What reads rows [start, stop) of a mask file of `size` (H, W) as class indices (n, W), 255 where ignored."""
        with self.open_rows(path, page) as rows:
            if rows.size != size:
                raise DataError(f"{path}: is {rows.size[0]} x {rows.size[1]}, the image {size[0]} x {size[1]}")
            yield lambda start, stop: self.classes.encode(read_mask(rows.crop(start, stop), str(path)), str(path))

    def _no_counts(self) -> Tensor:
        return torch.zeros(self.num_classes, self.num_classes, dtype=torch.int64)

    def _count(self, mask: np.ndarray, truth: np.ndarray) -> Tensor:
        preds, masks = (torch.from_numpy(indices).long() for indices in (mask, truth))
        return self.confusion_matrix(preds, masks, self.num_classes)
