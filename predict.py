"""Segment images with a trained U-Net: masks in the original values, at each image's own size.

python predict.py --model runs/x/model --input photos/ --output masks/ --overlay
accelerate launch --multi_gpu predict.py --model runs/x/model --input 'scans/*.tif' --output masks/
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from PIL import Image
from torch import Tensor

from data_utils.desk import Desk, ScoreError
from runtime.errors import DataError
from data_utils.inputs import Job, batches_of, check_disk, find_jobs, share_of
from data_utils.masks import MaskClasses
from data_utils.origin import claim, complete, origin_of
from data_utils.overlay import to_rgb
from predict_flags import parse_args
from runtime.memory import keep_freed_memory
from runtime.cli import run_script
from runtime.files import replaced_file
from runtime.errors import LaunchError
from runtime.launch import check_launch, check_processes, compile_networks, process_group_options
from train_utils.overlap import in_turn, overlapped
from runtime.distributed import on_main, wait_patiently
from runtime.console import say, track
from train_utils.shortage import MemoryShortage, shortage_named
from runtime.signals import end_tidily
from train_utils.tracking import default_workers
from unet import ImageError, ModelError, Predictor
from unet.logits import class_indices
from unet.metrics import confusion_matrix, format_table, image_scores, report
from unet.preprocess import read_image
from unet.tiles import BAND_ROWS, TileError, Tiling
from unet.windows import ArrayRows, open_rows, tiff_pages

USER_ERRORS = (DataError, ImageError, LaunchError, ModelError, TileError)
OF_ONE_FILE = (DataError, ImageError, MemoryShortage, OSError)  # the others are predicted all the same
REMEDY = "--tile-size 512, or less than it was, takes less"
WORST = 5  # images named on the terminal


def find_work(args: argparse.Namespace, predictor: Predictor, desk: Desk) -> tuple[int, list[list[Job]], set[Job]]:
    """How many inputs there are, what is to be done in batches, and what of it is only to be scored.

    Says beforehand what the user should know.
    """
    jobs = find_jobs(args.input, args.output, desk.extensions, tiff_pages, args.truth, args.mask_suffix)
    finished = {job for job in jobs if desk.is_finished(job)}
    todo = [job for job in jobs if job not in finished]
    tilings: Counter[Tiling] = Counter()
    for size, images in Counter(job.size for job in todo if job.size).items():
        tilings.update({tiling: images for tiling in predictor.tilings(size) if tiling})
    for tiling, images in tilings.items():
        print(f"{images} images in {tiling}")

    # masks compress well, overlays do not, and probabilities are written as they are
    bytes_of_pixel = 0.05 + 2 * args.overlay + 4 * predictor.config.num_classes * args.probabilities
    check_disk(args.output, int(bytes_of_pixel * sum(job.pixels for job in todo)))
    claim(args.output, origin_of(args), args.overwrite, replaced_file)
    if finished:
        print(f"{len(finished)} of {len(jobs)} masks are there already; --overwrite predicts them again")
    batch_of = cache(lambda size: None if predictor.in_windows(size) else predictor.batch_of(size))
    batches = batches_of(todo, batch_of)
    return len(jobs), batches + [[job] for job in jobs if job in finished and args.truth], finished


def predict(batches: list[list[Job]], finished: set[Job], predictor: Predictor, desk: Desk, *, show: bool) -> Iterator:
    """(job, confusion matrix or error) of every job as it is done; what was `finished` before is only scored."""

    def read(job: Job) -> tuple[list[Tensor], tuple[int, int], ArrayRows | None] | None:
        if job in finished or (job.size and predictor.in_windows(job.size)):
            return None
        inputs, size = predictor.inputs(job.image, job.name, job.page)
        shown = ArrayRows(to_rgb(read_image(job.image, job.name, job.page))) if desk.shows_image else None
        return inputs, size, shown

    def in_windows(job: Job) -> Tensor | None:
        with open_rows(job.image, job.page) as rows:
            if not rows.in_windows:
                say(f"{job.name}: cannot be read in windows, one decoded copy stays in memory")
            bands = predictor.bands(rows, job.name)
            bands = track(bands, -(-rows.size[0] // BAND_ROWS), job.image.name, unit="band", show=show)
            return desk.write(job, rows.size, bands, rows)

    def compute(images: list[tuple[Job, tuple | None]]) -> list[Callable[[], Tensor | None]]:
        jobs, contents = zip(*images, strict=True)
        if jobs[0] in finished:
            return [partial(desk.score, jobs[0])]
        with shortage_named(jobs[0].name, REMEDY):
            if contents[0] is None:
                matrix = in_windows(jobs[0])
                return [lambda: matrix]
            inputs, sizes, rows = zip(*contents, strict=True)
            parts = zip(jobs, sizes, predictor.in_batch(inputs, sizes), rows, strict=True)
        return [partial(write, job, size, logits, of_image) for job, size, logits, of_image in parts]

    def write(job: Job, size: tuple[int, int], logits: Tensor, rows: ArrayRows | None) -> Tensor | None:
        # few rows at a time take less memory; a GPU would have each of them wait for what else is to be computed
        bands = logits.split(BAND_ROWS if logits.is_cpu else size[0], dim=1)
        with shortage_named(job.name, REMEDY):
            return desk.write(job, size, bands, rows)

    threads = min(8, max(2, default_workers(predictor.device)))
    return overlapped(batches, read, compute, *OF_ONE_FILE, threads=threads)


def main() -> None:
    args = parse_args(__doc__.splitlines()[0])
    check_launch()
    end_tidily()
    accelerator = Accelerator(kwargs_handlers=[process_group_options()])
    check_processes(accelerator)
    keep_freed_memory(accelerator.device)
    rank, world_size, is_main = accelerator.process_index, accelerator.num_processes, accelerator.is_main_process
    Image.MAX_IMAGE_PIXELS = None  # the user's own files may be as large as they like
    options: dict[str, Any] = {
        name: None if getattr(args, name) == "auto" else getattr(args, name) for name in ("tile_size", "overlap")
    }
    options |= {"tta": args.tta, "ensemble": args.ensemble, "scale": args.scale}
    predictor = Predictor.from_pretrained(args.model, accelerator.device, **options)
    compile_networks(accelerator, predictor.networks)
    preprocess = predictor.config.preprocess
    values = preprocess.class_values or tuple(range(predictor.config.num_classes))
    desk = Desk(
        MaskClasses(preprocess.class_names or tuple(map(str, values)), values, preprocess.ignore_value),
        [".png"] + [".overlay.png"] * args.overlay + [".npy"] * args.probabilities,
        args.overwrite,
        preprocess.mask,
        read_image,
        open_rows,
        replaced_file,
        class_indices,
        confusion_matrix,
        in_turn,
    )
    images, batches, finished = on_main(accelerator, lambda: find_work(args, predictor, desk), *USER_ERRORS)
    mine = share_of(batches, rank, world_size)

    matrix, scored, failures = torch.zeros(desk.num_classes, desk.num_classes, dtype=torch.int64), [], []
    results = predict(mine, finished, predictor, desk)
    with accelerator.autocast():
        for job, result in track(results, sum(map(len, mine)), "predicting", unit="image"):
            if isinstance(result, Exception):
                line = f"{job.name}: {result}" if isinstance(result, OSError) else str(result)
                failures.append((line, isinstance(result, ScoreError), job.file(".png").exists()))
            elif result is not None:
                matrix += result
                scored.append(image_scores(job.name, result))

    wait_patiently(accelerator)  # one process may be done long before another
    failures, scored = sorted(gather_object(failures)), gather_object(scored)
    matrix = accelerator.reduce(matrix.to(accelerator.device), "sum").cpu()
    if is_main:
        found = report(matrix, desk.classes.names, scored) if args.truth and scored else None
        if found:
            print(format_table(matrix, desk.classes.names))
            for image in found["by_image"][:WORST]:
                print(f"mean IoU {image['mean_iou'] or 0:.4f}, {image['image']}")
        try:
            if args.overwrite and all(written or not there for _, written, there in failures):  # none is from before
                complete(args.output, replaced_file)
            if found:
                with replaced_file(args.output / "metrics.json") as file:
                    file.write((json.dumps(found, indent=2) + "\n").encode())
        except OSError as error:
            failures.append((f"what closes the run cannot be written ({error})", True, True))
        print(f"{images - sum(not written for _, written, _ in failures)} of {images} masks in {args.output}")
        for failure, *_ in failures:
            print(f"predict.py: failed: {failure}", file=sys.stderr)
    accelerator.end_training()
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    run_script(main, *USER_ERRORS, seen_by_all=(ModelError, TileError))
