"""Writing predictions: masks, overlays and probabilities, row by row, and scoring them against true masks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_utils.class_map import ClassMap
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.regions import Regions, open_regions
from data_utils.image_io.writers import MASK_LEVEL, OVERLAY_LEVEL, NpyWriter, PngWriter
from data_utils.visualize import class_colors, overlay, to_rgb, value_limits
from inference.inputs import Job
from inference.logits import read_prediction
from runtime.errors import DataError
from runtime.files import replaced_file
from runtime.parallel import AHEAD, map_ahead
from unet.metrics import confusion_matrix

MASK, OVERLAY, PROBABILITIES = ".png", ".overlay.png", ".npy"
SCORED_ROWS = 256  # of a written mask that are read at once
SAMPLED_ROWS = 64  # of a large image, by which the brightness of its overlay is chosen
ReadRows = Callable[[int, int], np.ndarray]  # rows [top, bottom) of a picture


class ScoreError(DataError):
    """A true mask that cannot be used; the prediction is safe."""


@dataclass(frozen=True)
class PredictionWriter:
    """Writes what is asked for of each image, and scores it against its true mask.

    Args:
        extensions: of the files to write; the first one, the mask, is finished last.
        overwrite: whether to do again what is there.
    """

    class_map: ClassMap
    extensions: tuple[str, ...]
    overwrite: bool = False

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
        return OVERLAY in self.extensions

    def write(self, job: Job, size: tuple[int, int], bands: Iterable[Tensor], image: Regions | None) -> Tensor | None:
        """Write logits (num_classes, n, W) as they come; the confusion matrix where there is a true mask.

        `size` (H, W) and `image` are those of the image; None where it is not needed.
        Raises ScoreError, once the prediction is safe, for a true mask that cannot be used.
        """
        job.output.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            scorer = stack.enter_context(self._scorer(job, size)) if job.truth else None
            files = stack.enter_context(self._output_files(job, size, image, scorer))
            for _ in map_ahead(files.write, bands, ahead=AHEAD):
                pass
        if scorer is None:
            return None
        if scorer.problem:
            raise ScoreError(f"{scorer.problem}; the prediction is written all the same") from scorer.problem
        return scorer.matrix

    def score(self, job: Job) -> Tensor:
        """The confusion matrix of a mask that was written before; ScoreError where it cannot be had."""
        assert job.size is not None and job.truth is not None
        height = job.size[0]
        with self._scorer(job, job.size) as scorer:
            try:
                with open_mask_rows(job.file(MASK), 0, job.size, self.class_map) as mask:
                    for top in range(0, height, SCORED_ROWS):
                        if scorer.problem:
                            break
                        scorer.add(mask(top, min(top + SCORED_ROWS, height)))
            except (DataError, OSError) as error:
                raise ScoreError(str(error)) from error
        if scorer.problem:
            raise ScoreError(str(scorer.problem)) from scorer.problem
        return scorer.matrix

    @contextmanager
    def _scorer(self, job: Job, size: tuple[int, int]) -> Iterator["TruthScorer"]:
        assert job.truth is not None
        truth, problem = None, None
        with ExitStack() as stack:
            try:
                truth = stack.enter_context(open_mask_rows(*job.truth, size, self.class_map))
            except (DataError, OSError) as error:
                problem = error
            yield TruthScorer(len(self.class_map), truth, problem)

    @contextmanager
    def _output_files(
        self, job: Job, size: tuple[int, int], image: Regions | None, scorer: "TruthScorer | None"
    ) -> Iterator["OutputFiles"]:
        """The files of an image, which come into being together, the first one last."""
        shown = _bright_rows(image, job.name) if image and self.shows_image else None
        with ExitStack() as stack:
            files = {
                extension: stack.enter_context(replaced_file(job.file(extension))) for extension in self.extensions
            }
            yield OutputFiles(
                self.class_map,
                stack.enter_context(PngWriter(files[MASK], size, MASK_LEVEL)),
                stack.enter_context(PngWriter(files[OVERLAY], size, OVERLAY_LEVEL)) if shown else None,
                NpyWriter(files[PROBABILITIES], (len(self.class_map), *size)) if PROBABILITIES in files else None,
                shown,
                scorer,
            )


class TruthScorer:
    """Counts predicted rows against the true mask, as they come; the first problem with it ends the counting."""

    def __init__(self, num_classes: int, truth: ReadRows | None, problem: Exception | None = None) -> None:
        self.matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.truth, self.problem = truth, problem
        self._top = 0

    def add(self, mask: np.ndarray) -> None:
        """Count the next rows of a prediction, class indices (n, W)."""
        top, self._top = self._top, self._top + len(mask)
        if self.truth is None or self.problem is not None:
            return
        try:
            preds, masks = (torch.from_numpy(rows).long() for rows in (mask, self.truth(top, self._top)))
            self.matrix += confusion_matrix(preds, masks, len(self.matrix))
        except (DataError, OSError) as error:
            self.problem = error


class OutputFiles:
    """The open files of one image, written a band at a time."""

    def __init__(
        self,
        class_map: ClassMap,
        mask: PngWriter,
        overlay: PngWriter | None,
        probabilities: NpyWriter | None,
        shown: ReadRows | None,
        scorer: TruthScorer | None,
    ) -> None:
        self.class_map, self.mask, self.overlay, self.probabilities = class_map, mask, overlay, probabilities
        self.shown, self.scorer = shown, scorer
        self._colors = class_colors(class_map.values)
        self._top = 0

    def write(self, logits: Tensor) -> None:
        """Append logits (num_classes, n, W)."""
        mask, *probabilities = read_prediction(logits, probabilities=self.probabilities is not None)
        top, self._top = self._top, self._top + len(mask)
        self.mask.write(self.class_map.decode(mask))
        if self.overlay and self.shown:
            self.overlay.write(overlay(self.shown(top, self._top), mask, self._colors))
        if self.probabilities:
            self.probabilities.write(*probabilities)
        if self.scorer:
            self.scorer.add(mask)


@contextmanager
def open_mask_rows(path: Path, page: int, size: tuple[int, int], class_map: ClassMap) -> Iterator[ReadRows]:
    """What reads rows of a mask file of `size` (H, W) as class indices (n, W), 255 where ignored."""
    with open_regions(path, page) as regions:
        if regions.size != size:
            height, width = regions.size
            raise DataError(f"{path}: is {height} x {width}, the image {size[0]} x {size[1]}")
        yield lambda top, bottom: class_map.encode(read_mask(regions.read(top, bottom), str(path)), str(path))


def _bright_rows(regions: Regions, name: str) -> ReadRows:
    """What gives rows of an image as uint8 (n, W, 3), all of them equally bright."""

    def read(top: int, bottom: int) -> np.ndarray:
        return read_image(regions.read(top, bottom), name)

    limits = None
    if read(0, 1).dtype != np.uint8:
        height = regions.size[0]
        sampled = np.unique(np.linspace(0, height - 1, SAMPLED_ROWS).astype(int))
        limits = value_limits(np.concatenate([read(row, row + 1) for row in sampled.tolist()]))
    return lambda top, bottom: to_rgb(read(top, bottom), limits)
