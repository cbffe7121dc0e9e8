"""Writing the prediction of a volume: mask and probabilities as NIfTI on the volume's own grid, a page of slices."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile

import numpy as np
from PIL import Image
from torch import Tensor

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume, read_volume_header, write_volume
from data_utils.visualize_volumes import volume_page
from inference.decoding import new_decoder
from inference.inputs import Job
from inference.outputs.encoder import MaskEncoder
from inference.outputs.names import MASK, OVERLAY, PROBABILITIES
from inference.scoring.truth import ScoreError
from inference.scoring.volume import VolumeScore, score_volume
from runtime.errors import DataError
from runtime.files import replaced_file
from tasks.task import Task


@dataclass(frozen=True)
class VolumeWriter:
    """Writes what is asked for of each volume, and scores it against its true mask; as `PredictionWriter`."""

    encoder: MaskEncoder
    task: Task
    extensions: tuple[str, ...]
    surfaces: bool

    def write(self, job: Job, size: tuple[int, ...], bands: Iterable[Tensor]) -> VolumeScore | None:
        """Write logits (outputs, n, H, W) as they come; the score where there is a true mask.

        The mask alone is kept in memory; probabilities go to a temporary file, from which they are compressed.
        """
        assert job.volume is not None
        self.encoder.check_volume(job.name)
        decoder = new_decoder(self.task)
        job.output.parent.mkdir(parents=True, exist_ok=True)
        mask, bottom, read = np.empty(size, decoder.dtype), 0, 0
        with ExitStack() as stack:
            files = {name: stack.enter_context(replaced_file(job.file(name))) for name in self.extensions}
            kept: np.ndarray | None = None
            if PROBABILITIES in files:
                scratch = stack.enter_context(TemporaryFile(dir=job.output.parent))
                kept = np.memmap(scratch, np.float32, "w+", shape=(self.task.outputs, *size))
            for band in decoder.read(bands, probabilities=kept is not None):
                if band.rows is not None:
                    top, bottom = bottom, bottom + len(band.rows)
                    mask[top:bottom] = band.rows
                if kept is not None and band.probabilities is not None:
                    first, read = read, read + band.probabilities.shape[1]
                    kept[:, first:read] = band.probabilities
            if kept is not None:
                write_volume(files[PROBABILITIES], kept, job.volume)
            if OVERLAY in files:
                voxels, header = read_volume(job.volume, job.name)
                page = volume_page(voxels, mask, self.encoder.colors, header.spacing)
                Image.fromarray(page).save(files[OVERLAY], "png")
            write_volume(files[MASK], self.encoder.encode(mask), job.volume)
        if job.truth is None:
            return None
        try:
            return self._score(job, mask)
        except (DataError, OSError) as error:
            raise ScoreError(f"{error}; the prediction is written anyway") from error

    def score(self, job: Job) -> VolumeScore:
        """The score of a mask that was written before; ScoreError where it cannot be had."""
        written = job.file(MASK)
        try:
            values, _ = read_label_volume(VolumeFile((str(written),)), str(written))
            return self._score(job, self.encoder.reader.of_label_volume(values, str(written)).main)
        except (DataError, OSError) as error:
            raise ScoreError(str(error)) from error

    def _score(self, job: Job, mask: np.ndarray) -> VolumeScore:
        assert job.volume is not None and job.truth is not None
        header = read_volume_header(job.volume, job.name)
        if mask.shape != header.size:
            raise DataError(f"{job.file(MASK)}: differs in size from the volume; give --overwrite to predict it again")
        reader = self.encoder.reader
        return score_volume(mask, header, job.truth[0], reader, self.task, surfaces=self.surfaces)
