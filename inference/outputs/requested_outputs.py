"""Which files a call of prediction writes for images and volumes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inference.jobs import LEGEND, OVERLAY, PROBABILITIES, UNCERTAINTY, Job
from inference.outputs.coco import write_coco
from inference.outputs.objects import TABLE
from inference.outputs.prediction_format import PredictionFormat
from runtime.files import replace_file
from tasks.task import Task


@dataclass(frozen=True)
class RequestedOutputs:
    """The files that a call of prediction writes for each input.

    Args:
        extensions: the extensions of the files to write; the first file, a mask or points, is finished last.
        overwrite: whether to write existing files again.
        boundary: whether boundaries are scored too.
    """

    output_format: PredictionFormat
    task: Task
    extensions: tuple[str, ...]
    overwrite: bool = False
    boundary: bool = False

    def is_finished(self, job: Job) -> bool:
        """Whether there is nothing to predict: all outputs exist and are newer than the input."""
        if self.overwrite or job.size is None:
            return False
        if job.place is not None and job.truth:  # its mask does not show where its image holds no data
            return False
        newest_input = max(Path(path).stat().st_mtime for path in job.files)
        try:
            file_stats = [self.output_format.file(job, extension).stat() for extension in self.extensions]
        except OSError:
            return False
        return all(file.st_size and file.st_mtime >= newest_input for file in file_stats)

    def wanted(self, job: Job) -> list[str]:
        """The fields of `Decoded` beside the labels that the files and the score of a job need."""
        fields = {"probabilities": PROBABILITIES in self.extensions, "uncertainty": UNCERTAINTY in self.extensions}
        fields["certainty"] = job.truth is not None and job.volume is None
        return [field for field, is_wanted in fields.items() if is_wanted]

    @property
    def shows_image(self) -> bool:
        """Whether the image itself is needed, for an overlay."""
        return OVERLAY in self.extensions

    def write_coco(self, folder: Path, jobs: Iterable[Job]) -> None:
        """Write the objects of all jobs that have a mask into one COCO file."""
        images = []
        for job in jobs:
            mask = self.output_format.mask_file(job)
            if mask.exists():
                images.append((job.relative_name, mask, job.file(TABLE)))
        write_coco(folder, images, self.output_format.object_classes)

    def write_legend(self, folder: Path) -> None:
        """Write the colors of the classes in overlays, if there are any."""
        legend = self.output_format.legend() if self.shows_image else None
        if legend is not None:
            with replace_file(folder / LEGEND) as file:
                legend.save(file, "png")
