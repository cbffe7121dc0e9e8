"""Segment images and volumes with a trained U-Net.

Each mask has the size of its image, and the values or colors of the masks that the model was trained on.

A folder:        python predict.py --model runs/cells/model --input photos --output masks --overlay
With scores:     python predict.py --model runs/cells/model --input photos --output masks --truth true_masks
On all GPUs:     accelerate launch --multi_gpu predict.py --model runs/cells/model --input 'scans/*.tif' --output masks
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import end_at_interrupt

    end_at_interrupt()


import json
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from PIL import Image

from inference.batches import process_share
from inference.decoding.objects import choose_objects
from inference.jobs import OVERLAY, PROBABILITIES, UNCERTAINTY, Job
from inference.outputs import new_format
from inference.outputs.prediction_format import PredictionFormat
from inference.outputs.requested_outputs import RequestedOutputs
from inference.pipeline import PredictionPipeline
from inference.predict_settings import PredictSettings, parse_args
from inference.predictor import Predictor
from inference.provenance import complete_provenance
from inference.scoring.areas import area_report, area_table
from inference.scoring.boundary import BoundaryScores, boundary_report
from inference.scoring.score import ScoreError
from inference.scoring.surfaces import case_report, case_table
from inference.work import prepare_work
from runtime.console import say, say_error, track
from runtime.distributed import barrier_without_timeout, on_main
from runtime.errors import DataError, SettingsError
from runtime.files import replace_file
from runtime.launch import (
    check_launch,
    compile_networks,
    configure_process,
    process_group_options,
)
from runtime.precision import default_precision
from runtime.script import run_script
from tasks.calibration import calibration_report
from tasks.task import Scores

WORST_SHOWN = 5  # images with the worst scores that the terminal lists


class Failure(NamedTuple):
    """An image that could not be predicted, or whose prediction could not be scored.

    Args:
        line: the error, for the terminal.
        is_written: whether the mask is written nevertheless.
        has_mask: whether there is a mask, from this run or from an earlier one.
    """

    line: str
    is_written: bool
    has_mask: bool

    @property
    def leaves_old_mask(self) -> bool:
        """Whether a mask of an earlier run stays in the output folder."""
        return self.has_mask and not self.is_written


class ScoredImage(NamedTuple):
    """The entry of metrics.json for an image or volume, and the sums over all of them."""

    report: dict
    boundary: BoundaryScores | None
    areas: np.ndarray | None


def print_scores(scores: Scores, compared_by: str, scored: list[ScoredImage]) -> dict:
    """Print the table of all scores and the worst images; return the content of metrics.json."""
    score_name = next(iter(scores.brief()))  # the score that sorts images
    images = [image.report for image in scored]
    by_image = sorted(images, key=lambda image: (_order(image[score_name]), image["image"]))
    report = {"images": len(by_image), **scores.report(), "by_image": by_image}
    boundaries = [image.boundary for image in scored if image.boundary]
    if boundaries:
        report["boundary"] = boundary_report(boundaries)
    say(scores.table(report.get("boundary")))
    calibration = calibration_report(scores.reliability)
    if calibration:
        report["calibration"] = calibration
        say(f"expected calibration error {calibration['expected_calibration_error']:.4f}")
    cases = [image for image in images if "dice" in image]  # volumes
    if cases:
        report["by_case"] = case_report(cases, report["classes"], has_background=scores.has_background)
        say(case_table(report["by_case"]))
    areas = [image.areas for image in scored if image.areas is not None]
    if areas:
        report["areas"] = area_report(areas, report["classes"])
        say(area_table(report["areas"]))
    heading = f"the worst of {len(by_image)} by their {compared_by}:" if len(by_image) > 1 else "the image:"
    say(heading)
    for image in by_image[:WORST_SHOWN]:
        say(f"{compared_by} {image[score_name] or 0:.4f}, {image['image']}")
    return report


def _order(score: float | None) -> tuple[bool, float]:
    """The key to sort images by: the worst come first, those without a score last."""
    return score is None, score or 0.0


def close_output(folder: Path, report: dict | None, *, is_complete: bool) -> None:
    """Write metrics.json; if `is_complete`, record in predict.json that all masks are from the model that it names."""
    if is_complete:
        complete_provenance(folder)
    if report:
        text = json.dumps(report, indent=2) + "\n"
        with replace_file(folder / "metrics.json") as file:
            file.write(text.encode())


def write_files_of_all(
    args: PredictSettings, jobs: list[Job], requested: RequestedOutputs, report: dict | None, *, is_complete: bool
) -> list[str]:
    """Write the files of all images together; returns a line on each that cannot be written.

    Args:
        report: the content of metrics.json, if there are scores.
        is_complete: whether all masks are from the model that predict.json names.
    """
    problems = []
    output_format = requested.output_format
    try:
        close_output(args.output, report, is_complete=is_complete)
        requested.write_legend(args.output)
        if args.file is None:
            output_format.write_joined(args.output, jobs)
        if args.coco:
            requested.write_coco(args.output, jobs)
    except (OSError, DataError) as error:
        files = "metrics.json, predict.json or a file of all images"
        problems.append(f"{args.output}: {files} cannot be written ({error})")
    return problems


def check_outputs(args: PredictSettings, predictor: Predictor, output_format: PredictionFormat) -> None:
    """Raise SettingsError for flags that ask for files or scores that this model cannot give."""
    if args.boundary and not predictor.task.answers_classes:
        raise SettingsError(f"--boundary: boundaries are not scored for {predictor.task.name}; leave the flag out")
    if args.coco and not (output_format.has_objects and predictor.config.dims == 2):
        raise SettingsError("--coco: is for models of objects in images, which this is not; leave the flag out")
    if args.uncertainty and UNCERTAINTY in output_format.unsupported:
        raise SettingsError(f"--uncertainty: {output_format.unsupported[UNCERTAINTY]}; leave the flag out")
    if args.polygons:
        check_polygons(args.polygons, output_format)


def check_polygons(kind: str, output_format: PredictionFormat) -> None:
    """Raise SettingsError for a model whose predictions have no areas, and if a library is missing."""
    if not output_format.writes_rasters:
        raise SettingsError(f"--polygons: {output_format.outputs} of this kind have no place; leave the flag out")
    for library in ("rasterio", "pyogrio") if kind == "gpkg" else ("rasterio",):
        if find_spec(library) is None:
            raise SettingsError(f"--polygons: polygons need {library}: pip install {library}")


def output_extensions(args: PredictSettings, output_format: PredictionFormat) -> tuple[str, ...]:
    """The extensions of the files to write for each input."""
    extensions = [*output_format.mask_extensions, *output_format.extensions]
    if args.overlay:
        extensions.append(OVERLAY)
    if args.probabilities:
        extensions.append(PROBABILITIES)
    if args.uncertainty:
        extensions.append(UNCERTAINTY)
    if args.polygons:
        extensions.append(f".{args.polygons}")
    return tuple(extensions)


def main() -> None:
    args = parse_args(__doc__)

    # 1. Launch: devices and precision come from the launch profile
    check_launch()
    accelerator = Accelerator(mixed_precision=default_precision(), kwargs_handlers=[process_group_options()])
    configure_process(accelerator)
    Image.MAX_IMAGE_PIXELS = None  # the user's own files may be as large as they like

    # 2. Model: its config.json holds the preprocessing and the values of the classes in masks
    predictor = Predictor.from_pretrained(
        args.model,
        accelerator.device,
        ensemble=args.ensemble,
        scale=args.scale,
        tile_size=args.tile_size,
        overlap=args.overlap,
        tta=args.tta or None,
    )
    predictor.change_task(choose_objects(predictor.task, args.min_size, drops_border=args.drop_border))
    compile_networks(accelerator, predictor.networks)
    output_format = new_format(predictor.config)
    if args.file is not None:
        output_format = output_format.for_file(args.file)
    check_outputs(args, predictor, output_format)
    extensions = output_extensions(args, output_format)
    requested = RequestedOutputs(output_format, predictor.task, extensions, args.overwrite, args.boundary)

    # 3. Inputs: one process lists them, each process takes its share
    work = on_main(accelerator, lambda: prepare_work(args, predictor, requested))
    batches = process_share(work.batches, accelerator.process_index, accelerator.num_processes)

    # 4. Predict: reading, computing and writing overlap; a file that fails does not stop the others
    scores = predictor.task.new_scores(1)
    scored: list[ScoredImage] = []
    failures: list[Failure] = []
    pipeline = PredictionPipeline(predictor, requested, work.finished_jobs)
    image_count = sum(len(batch) for batch in batches)
    with accelerator.autocast():
        for job, result in track(pipeline.run(batches), image_count, "predicting", unit="image"):
            if isinstance(result, Exception):
                line = f"{job.name}: {result}" if isinstance(result, OSError) else str(result)
                is_written = isinstance(result, ScoreError)
                failures.append(Failure(line, is_written, has_mask=output_format.mask_file(job).exists()))
            elif result is not None:
                scores.merge(result.scores)
                scored.append(ScoredImage({"image": job.name} | result.entry, result.boundary, result.areas))

    # 5. Report: the scores of all processes, and a line for each failed file
    problems: list[str] = []
    barrier_without_timeout(accelerator)  # a process may be done long before another
    failures = sorted(gather_object(failures))
    scored = gather_object(scored)
    scores_by_process = gather_object([scores])
    scores = predictor.task.new_scores(1)
    for process_scores in scores_by_process:
        scores.merge(process_scores)
    if accelerator.is_main_process:
        report = None
        if args.truth and scored:
            report = print_scores(scores, predictor.task.compared_by, scored)
        has_old_masks = any(failure.leaves_old_mask for failure in failures)
        are_all_new = args.file is None and args.overwrite and not has_old_masks
        problems = write_files_of_all(args, work.jobs, requested, report, is_complete=are_all_new)
        written_count = len(work.jobs) - sum(not failure.is_written for failure in failures)
        say(f"{written_count} of {len(work.jobs)} {output_format.outputs} in {args.file or args.output}")
        for line in [failure.line for failure in failures] + problems:
            say_error(f"predict.py: failed: {line}")
    accelerator.end_training()
    if failures or problems:
        raise SystemExit(1)


if __name__ == "__main__":
    run_script(main)
