"""Which files a call of prediction writes for images and volumes."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from inference.predict_settings import PredictSettings
from inference.predictor import Predictor
from runtime.errors import SettingsError
from runtime.files import replace_file
from tasks import new_format
from tasks.drawing import legend
from tasks.job import LEGEND, MASK, NIFTI, OVERLAY, PROBABILITIES, STRUCTURES, UNCERTAINTY, Job
from tasks.prediction_format import PredictionFormat


@dataclass(frozen=True)
class RequestedOutputs:
    """The files that a call of prediction writes for each input.

    Args:
        extensions: the extensions of the files to write; the first file, a mask or points, is finished last.
        boundary: whether boundaries are scored too.
    """

    output_format: PredictionFormat
    extensions: tuple[str, ...]
    boundary: bool = False

    def is_finished(self, job: Job, since: float = 0.0) -> bool:
        """Whether there is nothing to write: all outputs exist, and are newer than the input and not from before."""
        if job.size is None:
            return False
        oldest = max(since, *(Path(path).stat().st_mtime for path in job.files))
        for extension in self.extensions:
            try:
                file = self.output_format.file(job, extension).stat()
            except OSError:
                return False
            if not file.st_size or file.st_mtime < oldest:
                return False
        return True

    def wanted(self, job: Job) -> list[str]:
        """The fields of `Prediction` beside the labels that the files and the score of a job need."""
        fields = []
        if PROBABILITIES in self.extensions:
            fields.append("probabilities")
        if UNCERTAINTY in self.extensions:
            fields.append("uncertainty")
        if job.truth is not None and job.volume is None:
            fields.append("certainty")
        return fields

    def write_legend(self, folder: Path) -> None:
        """Write the colors of the classes in overlays, if there are any."""
        section = self.output_format.section
        if OVERLAY in self.extensions and len(section.colors):
            with replace_file(folder / LEGEND) as file:
                legend(section.names, section.colors, section.background).save(file, "png")


def request_outputs(args: PredictSettings, predictor: Predictor) -> RequestedOutputs:
    """The files that the flags ask for. Raises SettingsError for files and scores that the model cannot give."""
    output_format = new_format(predictor.config)
    if args.file is not None:
        output_format = output_format.for_file(args.file)
    if args.boundary and not predictor.task.has_exclusive_classes:
        raise SettingsError(f"--boundary: boundaries are not scored for {predictor.task.name}; leave the flag out")
    if args.coco and not (output_format.object_classes and predictor.config.dims == 2):
        raise SettingsError("--coco: is for models of objects in images, which this is not; leave the flag out")
    if args.uncertainty and output_format.reader.takes_points:
        raise SettingsError("--uncertainty: points have a confidence in their table; leave the flag out")
    if args.polygons and not output_format.writes_rasters:
        raise SettingsError(f"--polygons: {output_format.outputs} of this kind have no place; leave the flag out")
    for library in ("rasterio", "pyogrio"):
        if args.polygons and find_spec(library) is None:
            raise SettingsError(f"--polygons: polygons need {library}: pip install {library}")
    if args.also and output_format.segments is None:
        raise SettingsError(f"--also: {output_format.outputs} of this model are not written as SEG; leave the flag out")
    flags = {OVERLAY: args.overlay, PROBABILITIES: args.probabilities, UNCERTAINTY: args.uncertainty}
    extensions = [*output_format.extensions]
    extensions += [extension for extension, is_given in flags.items() if is_given]
    if args.polygons:
        extensions.append(f".{args.polygons}")
    if "nifti" in args.also:
        extensions += [f"{extension.removesuffix(MASK)}{NIFTI}" for extension in output_format.extensions]
    if "rtstruct" in args.also:
        extensions.append(STRUCTURES)
    return RequestedOutputs(output_format, tuple(extensions), args.boundary)
