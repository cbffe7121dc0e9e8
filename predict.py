"""Segment images with a trained U-Net: masks in the original values, at each image's own size.

python predict.py --model runs/x/model --input photos/ --output masks/ --overlay
accelerate launch --multi_gpu predict.py --model runs/x/model --input 'scans/*.tif' --output masks/
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from PIL import Image
from torch import Tensor

from data_utils.desk import Desk
from data_utils.errors import DataError
from data_utils.inputs import Job, batches_of, check_disk, find_jobs, share_of
from data_utils.masks import MaskClasses
from train_utils.arguments import Arguments, auto_or, count, natural, positive, run_script
from train_utils.files import replaced_file
from train_utils.launch import LaunchError, check_launch, check_processes, compile_networks, process_group_options
from train_utils.overlap import overlapped
from train_utils.processes import on_main, wait_patiently
from train_utils.progress import say, track
from unet import ImageError, ModelError, Predictor
from unet.inference import BAND_ROWS
from unet.metrics import confusion_matrix, format_table, image_scores, report
from unet.preprocess import read_image
from unet.tiles import TileError
from unet.windows import ArrayRows, open_rows, tiff_pages

USER_ERRORS = (DataError, ImageError, LaunchError, ModelError, TileError)
OF_ONE_FILE = (DataError, ImageError, OSError)  # the others are predicted all the same
WORST = 5  # images named on the terminal


def parse_args() -> argparse.Namespace:
    """Nothing about the model or the preprocessing is asked for: it is in the model's config.json."""
    parser = Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="model folder, Hub id, .onnx file, or a Pytorch-UNet .pth")
    parser.add_argument("--scale", type=positive, help="of a Pytorch-UNet .pth, which does not hold it: 0.5")
    parser.add_argument("--input", required=True, nargs="+", help="files, folders (searched recursively), globs")
    parser.add_argument("--output", required=True, type=Path, help="folder; masks are <relative stem>.png")
    parser.add_argument("--overlay", action="store_true", help="also write <relative stem>.overlay.png")
    parser.add_argument("--probabilities", action="store_true", help="also write <relative stem>.npy (classes, H, W)")
    parser.add_argument("--tile-size", type=auto_or(natural), default="auto", help="auto: tiles where needed")
    parser.add_argument("--overlap", type=auto_or(count), default="auto", help="of tiles; auto: exact where possible")
    parser.add_argument("--tta", action="store_true", help="average over flips and quarter turns")
    parser.add_argument("--ensemble", nargs="+", default=[], metavar="MODEL", help="average with these models")
    parser.add_argument("--truth", type=Path, help="folder of true masks to score against")
    parser.add_argument("--mask-suffix", default="", help="true masks are named <relative stem><suffix>.<ext>")
    parser.add_argument("--overwrite", action="store_true", help="predict again what is there already")
    return parser.parse_args()


def find_work(args: argparse.Namespace, predictor: Predictor, desk: Desk) -> tuple[int, list[list[Job]], set[Job]]:
    """How many inputs there are, what is to be done in batches, and what of it is only to be scored.

    Says beforehand what the user should know.
    """
    jobs = find_jobs(args.input, args.output, desk.extensions, tiff_pages, args.truth, args.mask_suffix)
    finished = {job for job in jobs if desk.is_finished(job)}
    todo = [job for job in jobs if job not in finished]
    # masks compress well, overlays do not, and probabilities are written as they are
    bytes_of_pixel = 0.05 + args.overlay + 4 * predictor.config.num_classes * args.probabilities
    check_disk(args.output, int(bytes_of_pixel * sum(job.pixels for job in todo)))
    tilings = Counter(tiling for job in todo if job.size for tiling in predictor.tilings(job.size) if tiling)
    for tiling, images in tilings.items():
        print(f"{images} images in {tiling}")

    def shapes_of(job: Job) -> tuple[tuple[int, int], ...] | None:
        return predictor.input_sizes(job.size) if job.size and not predictor.in_windows(job.size) else None

    batches = batches_of(todo, shapes_of, predictor.batch_size_of)
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"--output {args.output} cannot be made ({error.strerror})") from error
    return len(jobs), batches + [[job] for job in jobs if job in finished and args.truth], finished


def predict(batches: list[list[Job]], finished: set[Job], predictor: Predictor, desk: Desk, *, show: bool) -> Iterator:
    """(job, confusion matrix or error) of every job as it is done; what was `finished` before is only scored."""

    def read(job: Job) -> tuple[list[Tensor], tuple[int, int], ArrayRows | None] | None:
        if job in finished or (job.size and predictor.in_windows(job.size)):
            return None
        inputs, size = predictor.inputs(job.image, job.name, job.page)
        return inputs, size, ArrayRows(read_image(job.image, job.name, job.page)) if desk.shows_image else None

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
        if contents[0] is None:
            matrix = in_windows(jobs[0])
            return [lambda: matrix]
        inputs, sizes, rows = zip(*contents, strict=True)
        parts = zip(jobs, sizes, predictor.whole(inputs, sizes), rows, strict=True)
        return [partial(desk.write, job, size, [logits], of_image) for job, size, logits, of_image in parts]

    return overlapped(batches, read, compute, *OF_ONE_FILE)


def main() -> None:
    args = parse_args()
    check_launch()
    accelerator = Accelerator(kwargs_handlers=[process_group_options()])
    check_processes(accelerator)
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
        confusion_matrix,
    )
    images, batches, finished = on_main(accelerator, lambda: find_work(args, predictor, desk), *USER_ERRORS)
    mine = share_of(batches, rank, world_size)

    matrix, scored, failures = torch.zeros(desk.num_classes, desk.num_classes, dtype=torch.int64), [], []
    results = predict(mine, finished, predictor, desk, show=is_main)
    with accelerator.autocast():
        for job, result in track(results, sum(map(len, mine)), "predicting", unit="image", show=is_main):
            if isinstance(result, Exception):
                failures.append(str(result))
            elif result is not None:
                matrix += result
                scored.append(image_scores(job.name, result))

    wait_patiently(accelerator)  # one process may be done long before another
    failures, scored = gather_object(failures), gather_object(scored)
    matrix = accelerator.reduce(matrix.to(accelerator.device), "sum").cpu()
    if is_main:
        if args.truth:
            found = report(matrix, desk.classes.names, scored)
            (args.output / "metrics.json").write_text(json.dumps(found, indent=2) + "\n")
            print(format_table(matrix, desk.classes.names))
            for image in found["by_image"][:WORST]:
                print(f"mean IoU {image['mean_iou'] or 0:.4f}, {image['image']}")
        print(f"{images - len(failures)} of {images} masks in {args.output}")
        for failure in failures:
            print(f"predict.py: failed: {failure}", file=sys.stderr)
    accelerator.end_training()
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    run_script(main, *USER_ERRORS, seen_by_all=(ModelError, TileError))
