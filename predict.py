"""Segment images and volumes with a trained U-Net.

Each mask has the size of its image, and the values or colors of the masks that the model was trained on.

A folder:        python predict.py --model runs/cells/model --input photos --output masks --overlay
With scores:     python predict.py --model runs/cells/model --input photos --output masks --truth true_masks
On all GPUs:     accelerate launch --multi_gpu predict.py --model runs/cells/model --input 'scans/*.tif' --output masks
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import json
from typing import NamedTuple

from accelerate import Accelerator
from accelerate.utils import gather_object
from PIL import Image

from inference.models import is_onnx
from inference.pipeline import PredictionPipeline
from inference.predict_settings import PredictSettings, parse_args
from inference.predictor import Predictor
from inference.report import print_scores
from inference.requested_outputs import RequestedOutputs, request_outputs
from inference.work import prepare_work
from runtime.console import say, say_error, track
from runtime.distributed import barrier_without_timeout, on_main
from runtime.errors import DataError
from runtime.files import replace_file
from runtime.launch import (
    check_launch,
    compile_networks,
    configure_process,
    default_precision,
    explained_launch,
    process_group_options,
)
from runtime.script import run_script
from tasks.job import Job
from tasks.objects.loss import choose_objects
from tasks.objects.write import write_coco
from tasks.scoring.masks import ScoreError


class Failure(NamedTuple):
    """An image that could not be predicted, or whose prediction could not be scored.

    Args:
        line: the error, for the terminal.
        is_written: whether the mask is written nevertheless.
    """

    line: str
    is_written: bool


def write_files_of_all(
    args: PredictSettings, jobs: list[Job], requested: RequestedOutputs, report: dict | None
) -> list[str]:
    """Write the files of all images together; returns a line if one cannot be written.

    Args:
        report: the content of metrics.json, if there are scores.
    """
    try:
        if report:
            with replace_file(args.output / "metrics.json") as file:
                file.write((json.dumps(report, indent=2) + "\n").encode())
        requested.write_legend(args.output)
        if args.file is None:
            requested.output_format.write_joined(args.output, jobs)
        if args.coco:
            write_coco(args.output, jobs, requested.output_format)
    except (OSError, DataError) as error:
        return [f"{args.output}: metrics.json or a file of all images cannot be written ({error})"]
    return []


def main() -> None:
    args = parse_args(__doc__)

    # 1. Launch: devices and precision come from the launch profile
    with explained_launch():
        check_launch()
        precision = default_precision("no" if all(map(is_onnx, (args.model, *args.ensemble))) else None)
        accelerator = Accelerator(mixed_precision=precision, kwargs_handlers=[process_group_options()])
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
    predictor.task = choose_objects(predictor.task, args.min_size, drops_border=args.drop_border)
    compile_networks(accelerator, predictor.networks)
    requested = request_outputs(args, predictor)
    output_format = requested.output_format

    # 3. Inputs: one process lists them, each process takes its share
    work = on_main(accelerator, lambda: prepare_work(args, predictor, requested))
    batches = work.share(accelerator.process_index, accelerator.num_processes)

    # 4. Predict: reading, computing and writing overlap; a file that fails does not stop the others
    scores = predictor.task.new_scores(0)
    failures: list[Failure] = []
    pipeline = PredictionPipeline(predictor, requested, work.finished_jobs)
    image_count = sum(len(batch) for batch in batches)
    with accelerator.autocast():
        for job, result in track(pipeline.run(batches), image_count, "predicting", unit="image"):
            if isinstance(result, Exception):
                line = f"{job.name}: {result}" if isinstance(result, OSError) else str(result)
                is_written = isinstance(result, ScoreError) or job in work.finished_jobs
                failures.append(Failure(line, is_written))
            elif result is not None:
                scores.merge(result)

    # 5. Report: the scores of all processes, and a line for each failed file
    problems: list[str] = []
    barrier_without_timeout(accelerator)  # a process may be done long before another
    failures = sorted(gather_object(failures))
    scores, *others = gather_object([scores])
    for process_scores in others:
        scores.merge(process_scores)
    if accelerator.is_main_process:
        report = None
        if scores.entries:
            report = print_scores(scores)
        problems = write_files_of_all(args, work.jobs, requested, report)
        written_count = len(work.jobs) - sum(not failure.is_written for failure in failures)
        say(f"{written_count} of {len(work.jobs)} {output_format.outputs} in {args.file or args.output}")
        for line in [failure.line for failure in failures] + problems:
            say_error(f"predict.py: failed: {line}")
    accelerator.end_training()
    if failures or problems:
        raise SystemExit(1)


if __name__ == "__main__":
    run_script(main)
