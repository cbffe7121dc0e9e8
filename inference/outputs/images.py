"""Writing predictions: masks, overlays and probabilities, row by row, each scored against its true mask."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from data_utils.image_io.reader import read_image
from data_utils.image_io.regions import Regions
from data_utils.image_io.writers import MASK_LEVEL, OVERLAY_LEVEL, NpyWriter, PngWriter
from data_utils.visualize import to_rgb, value_limits
from inference.decoding import new_decoder
from inference.decoding.decoder import Band, Decoder
from inference.inputs import Job
from inference.outputs.encoder import MaskEncoder
from inference.outputs.names import LEGEND, MASK, OVERLAY, PROBABILITIES
from inference.outputs.volumes import VolumeWriter
from inference.scoring.truth import ImageScore, ReadRows, ScoreError, TruthScorer, open_mask_rows
from inference.scoring.volume import VolumeScore
from runtime.errors import DataError
from runtime.files import replaced_file
from runtime.parallel import AHEAD, map_ahead
from tasks.task import Task

Score = ImageScore | VolumeScore
SCORED_ROWS = 256  # of a written mask that are read at once
SAMPLED_ROWS = 64  # of a large image, by which the brightness of its overlay is chosen


@dataclass(frozen=True)
class PredictionWriter:
    """Writes what is asked for of each image, and scores it against its true mask.

    Args:
        extensions: of the files to write; the first one, the mask, is finished last.
        overwrite: whether to do again what is there.
        boundary: whether scores are of boundaries too.
    """

    encoder: MaskEncoder
    task: Task
    extensions: tuple[str, ...]
    overwrite: bool = False
    boundary: bool = False

    def is_finished(self, job: Job) -> bool:
        """Whether there is nothing to predict: all outputs exist and are newer than the image."""
        if self.overwrite or job.size is None:
            return False
        begun = max(Path(path).stat().st_mtime for path in (job.volume.paths if job.volume else (job.image,)))
        try:
            written = [job.file(extension).stat() for extension in self.extensions]
        except OSError:
            return False
        return all(file.st_size and file.st_mtime >= begun for file in written)

    @property
    def shows_image(self) -> bool:
        """Whether the image itself is needed, for an overlay."""
        return OVERLAY in self.extensions

    def write_legend(self, folder: Path) -> None:
        """Write the colours of the classes in overlays, if there are any."""
        if self.shows_image:
            with replaced_file(folder / LEGEND) as file:
                self.encoder.legend().save(file, "png")

    @cached_property
    def _volumes(self) -> VolumeWriter:
        return VolumeWriter(self.encoder, self.task, self.extensions, self.boundary)

    def write(self, job: Job, size: tuple[int, ...], bands: Iterable[Tensor], image: Regions | None) -> Score | None:
        """Write logits (outputs, n, W) as they come; the score where there is a true mask.

        `size` (H, W) and `image` are those of the image; None where it is not needed. Of a volume logits are
        (outputs, n, H, W), and `size` is (D, H, W).
        Raises ScoreError, once the prediction is safe, for a true mask that cannot be used.
        """
        if job.volume:
            return self._volumes.write(job, size, bands)
        height, width = size
        job.output.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            scorer = stack.enter_context(self._scorer(job, (height, width))) if job.truth else None
            files = stack.enter_context(self._output_files(job, (height, width), image, scorer))
            for _ in map_ahead(files.write, bands, ahead=AHEAD):
                pass
            files.finish()
        if scorer is None:
            return None
        if scorer.problem:
            raise ScoreError(f"{scorer.problem}; the prediction is written anyway") from scorer.problem
        return scorer.score()

    def score(self, job: Job) -> Score:
        """The score of a mask that was written before; ScoreError where it cannot be had."""
        if job.volume:
            return self._volumes.score(job)
        assert job.size is not None and job.truth is not None
        height, width = job.size
        with self._scorer(job, (height, width)) as scorer:
            try:
                with open_mask_rows(job.file(MASK), 0, self.encoder.reader) as mask:
                    mask.check_size((height, width))
                    for top in range(0, height, SCORED_ROWS):
                        if scorer.problem:
                            break
                        scorer.add(mask.read(top, min(top + SCORED_ROWS, height)).main)
            except (DataError, OSError) as error:
                raise ScoreError(str(error)) from error
        if scorer.problem:
            raise ScoreError(str(scorer.problem)) from scorer.problem
        return scorer.score()

    @contextmanager
    def _scorer(self, job: Job, size: tuple[int, int]) -> Iterator[TruthScorer]:
        assert job.truth is not None
        truth, problem = None, None
        with ExitStack() as stack:
            try:
                truth = stack.enter_context(open_mask_rows(*job.truth, self.encoder.reader))
                truth.check_proportions(size)
            except (DataError, OSError) as error:
                problem = error
            yield TruthScorer(self.task, size, truth, problem, boundary=self.boundary)

    @contextmanager
    def _output_files(
        self, job: Job, size: tuple[int, int], image: Regions | None, scorer: TruthScorer | None
    ) -> Iterator["OutputFiles"]:
        """The files of an image, which come into being together, the first one last."""
        shown = _bright_rows(image, job.name) if image and self.shows_image else None
        with ExitStack() as stack:
            files = {
                extension: stack.enter_context(replaced_file(job.file(extension))) for extension in self.extensions
            }
            yield OutputFiles(
                self.encoder,
                new_decoder(self.task),
                stack.enter_context(PngWriter(files[MASK], size, MASK_LEVEL)),
                stack.enter_context(PngWriter(files[OVERLAY], size, OVERLAY_LEVEL)) if shown else None,
                NpyWriter(files[PROBABILITIES], (self.task.outputs, *size)) if PROBABILITIES in files else None,
                shown,
                scorer,
            )


class OutputFiles:
    """The open files of one image, written a band at a time."""

    def __init__(
        self,
        encoder: MaskEncoder,
        decoder: Decoder,
        mask: PngWriter,
        overlay: PngWriter | None,
        probabilities: NpyWriter | None,
        shown: ReadRows | None,
        scorer: TruthScorer | None,
    ) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.mask, self.overlay, self.probabilities = mask, overlay, probabilities
        self.shown, self.scorer = shown, scorer
        self._top = 0

    def write(self, logits: Tensor) -> None:
        """Append logits (outputs, n, W)."""
        self._append(self.decoder.add(logits, probabilities=self.probabilities is not None))

    def finish(self) -> None:
        """Append what is left when all logits were read."""
        band = self.decoder.finish()
        if band is not None:
            self._append(band)

    def _append(self, band: Band) -> None:
        if self.probabilities and band.probabilities is not None:
            self.probabilities.write(band.probabilities)
        if band.rows is None:
            return
        top, self._top = self._top, self._top + len(band.rows)
        self.mask.write(self.encoder.encode(band.rows))
        if self.overlay and self.shown:
            self.overlay.write(self.encoder.overlay(self.shown(top, self._top), band.rows))
        if self.scorer:
            self.scorer.add(band.rows)


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
