"""Writing the prediction of a volume: mask and probabilities as NIfTI on the volume's own grid, a page of slices."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile

import numpy as np
from PIL import Image
from torch import Tensor

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume, read_volume_header, write_volume
from data_utils.visualize import class_colors
from data_utils.visualize_volumes import volume_page
from inference.decoding.decoder import read_prediction
from inference.inputs import Job
from inference.outputs.names import MASK, OVERLAY, PROBABILITIES
from inference.scoring.truth import ScoreError
from inference.scoring.volume import VolumeScore, score_volume
from runtime.errors import DataError, ImageError
from runtime.files import replaced_file


@dataclass(frozen=True)
class VolumeWriter:
    """Writes what is asked for of each volume, and scores it against its true mask; as `PredictionWriter`."""

    class_map: ClassMap
    extensions: tuple[str, ...]
    surfaces: bool

    def write(self, job: Job, size: tuple[int, ...], bands: Iterable[Tensor]) -> VolumeScore | None:
        """Write logits (num_classes, n, H, W) as they come; the score where there is a true mask.

        The mask alone is kept in memory; probabilities go to a temporary file, from which they are compressed.
        """
        assert job.volume is not None
        if isinstance(self.class_map.values[0], tuple):
            raise ImageError(f"{job.name}: the model's classes are colours, which the mask of a volume cannot hold")
        job.output.parent.mkdir(parents=True, exist_ok=True)
        mask, top = np.empty(size, np.uint8), 0
        with ExitStack() as stack:
            files = {name: stack.enter_context(replaced_file(job.file(name))) for name in self.extensions}
            kept: np.ndarray | None = None
            if PROBABILITIES in files:
                scratch = stack.enter_context(TemporaryFile(dir=job.output.parent))
                kept = np.memmap(scratch, np.float32, "w+", shape=(len(self.class_map), *size))
            for logits in bands:
                preds, *probabilities = read_prediction(logits, probabilities=kept is not None)
                bottom = top + len(preds)
                mask[top:bottom] = preds
                if kept is not None:
                    kept[:, top:bottom] = probabilities[0]
                top = bottom
            if kept is not None:
                write_volume(files[PROBABILITIES], kept, job.volume)
            if OVERLAY in files:
                voxels, header = read_volume(job.volume, job.name)
                page = volume_page(voxels, mask, class_colors(self.class_map.values), header.spacing)
                Image.fromarray(page).save(files[OVERLAY], "png")
            write_volume(files[MASK], self.class_map.decode(mask), job.volume)
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
            return self._score(job, self.class_map.encode_volume(values, str(written)))
        except (DataError, OSError) as error:
            raise ScoreError(str(error)) from error

    def _score(self, job: Job, mask: np.ndarray) -> VolumeScore:
        assert job.volume is not None and job.truth is not None
        header = read_volume_header(job.volume, job.name)
        if mask.shape != header.size:
            raise DataError(f"{job.file(MASK)}: differs in size from the volume; give --overwrite to predict it again")
        return score_volume(mask, header, job.truth[0], self.class_map, surfaces=self.surfaces)
