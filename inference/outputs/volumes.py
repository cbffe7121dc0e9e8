"""Writing the prediction of a volume: mask and probabilities as NIfTI on the volume's own grid, a picture of slices."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile

import numpy as np
from PIL import Image
from torch import Tensor

from data_utils.image_io.volumes import read_volume, read_volume_header, write_volume
from data_utils.visualize_volumes import volume_page
from inference.decoding import new_decoder
from inference.decoding.decoder import Decoder
from inference.outputs.jobs import OVERLAY, PROBABILITIES, UNCERTAINTY, VolumeJob
from inference.outputs.prediction_format import MaskFormat
from inference.outputs.uncertainty import uncertainty_levels
from runtime.device import download
from runtime.files import replace_file
from tasks.task import Task


@dataclass(frozen=True)
class VolumeWriter:
    """Writes the requested files of each volume."""

    output_format: MaskFormat
    task: Task
    extensions: tuple[str, ...]

    def write(self, job: VolumeJob, size: tuple[int, ...], strips: Iterable[Tensor]) -> np.ndarray:
        """Write logits (outputs, n, H, W) as they come, and return the prediction (D, H, W).

        The mask is kept in memory, and so is the uncertainty if it is requested; probabilities go to a temporary file,
        from which they are compressed.
        """
        self.output_format.check_volume(job.name)
        job.output.parent.mkdir(parents=True, exist_ok=True)
        decoder = new_decoder(self.task, job.output.parent)
        mask = np.empty(size, decoder.dtype)
        # slices of the mask and of the probabilities that are filled so far
        mask_stop = 0
        probabilities_stop = 0
        with ExitStack() as stack:
            files = {}
            for extension in self.extensions:
                if extension not in self.output_format.mask_extensions:
                    files[extension] = stack.enter_context(replace_file(job.file(extension)))
            probabilities: np.ndarray | None = None
            if PROBABILITIES in files:
                scratch = stack.enter_context(TemporaryFile(dir=job.output.parent))
                probabilities = np.memmap(scratch, np.float32, "w+", shape=(self.task.outputs, *size))
            uncertainty = np.empty(size, np.uint8) if UNCERTAINTY in files else None
            if uncertainty is not None:
                strips = _note_uncertainty(strips, decoder, uncertainty)
            for strip in decoder.read(strips, job.name, probabilities=probabilities is not None):
                if strip.rows is not None:
                    start = mask_stop
                    mask_stop += len(strip.rows)
                    mask[start:mask_stop] = strip.rows
                if probabilities is not None and strip.probabilities is not None:
                    start = probabilities_stop
                    probabilities_stop += strip.probabilities.shape[1]
                    probabilities[:, start:probabilities_stop] = strip.probabilities
            if probabilities is not None:
                write_volume(files[PROBABILITIES], probabilities, job.volume)
            if uncertainty is not None:
                write_volume(files[UNCERTAINTY], uncertainty, job.volume)
            if OVERLAY in files:
                voxels, header = read_volume(job.volume, job.name)
                shades = self.output_format.for_prediction(decoder).shades(mask)
                page = volume_page(voxels, shades, self.output_format.colors, header.spacing)
                Image.fromarray(page).save(files[OVERLAY], "png")
            self.output_format.write_tables(files, decoder, read_volume_header(job.volume, job.name))
        self.output_format.write_volume(job, mask)  # last: a mask means that all other files are complete
        return mask


def _note_uncertainty(strips: Iterable[Tensor], decoder: Decoder, uncertainty: np.ndarray) -> Iterator[Tensor]:
    """The strips of logits as they come; their uncertainty is written to an array (D, H, W)."""
    start = 0
    for logits in strips:
        stop = start + logits.shape[1]
        uncertainty[start:stop] = download([uncertainty_levels(decoder, logits)])[0].numpy()
        start = stop
        yield logits
