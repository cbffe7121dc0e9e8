"""Segment images with a trained U-Net: masks in the original values, at each image's own size.

python predict.py --model runs/x/model --input photos/ --output masks/ --overlay
accelerate launch --multi_gpu predict.py --model runs/x/model --input 'scans/*.png' --output masks/
"""

import argparse
import glob
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from PIL import Image
from torch import Tensor

from data_utils.errors import DataError
from data_utils.folders import SUFFIXES
from data_utils.masks import MaskClasses, read_mask
from data_utils.overlay import overlay
from data_utils.pictures import class_colors
from train_utils.arguments import Arguments, run_script
from train_utils.checkpoints import replaced_file
from train_utils.launch import LaunchError, check_launch, check_processes
from train_utils.processes import on_main
from train_utils.progress import track
from unet import ImageError, ModelError, Predictor
from unet.metrics import confusion_matrix, format_table, scores
from unet.preprocess import read_image

USER_ERRORS = (DataError, ImageError, LaunchError, ModelError)


def parse_args() -> argparse.Namespace:
    """Nothing about the model or the preprocessing is asked for: it is in the model's config.json."""
    parser = Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="model folder or Hub id")
    parser.add_argument("--input", required=True, nargs="+", help="files, folders (searched recursively), globs")
    parser.add_argument("--output", required=True, type=Path, help="folder; masks are <relative stem>.png")
    parser.add_argument("--overlay", action="store_true", help="also write <relative stem>.overlay.png")
    parser.add_argument("--probabilities", action="store_true", help="also write <relative stem>.npy (classes, H, W)")
    parser.add_argument("--truth", type=Path, help="folder of true masks to score against")
    parser.add_argument("--mask-suffix", default="", help="true masks are named <relative stem><suffix>.<ext>")
    parser.add_argument("--overwrite", action="store_true", help="predict again what is there already")
    return parser.parse_args()


class Job(NamedTuple):
    """An input, the path of its outputs without extension, and its true mask if there is one."""

    image: Path
    output: Path
    truth: Path | None


def find_jobs(args: argparse.Namespace) -> list[Job]:
    """Every input once; DataError for inputs that are not there, have no true mask, or would write the same file."""
    inputs: dict[Path, Path] = {}
    for pattern in args.input:
        matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        found = [pair for match in matches for pair in files_by_stem(Path(match))]
        if not found:
            raise DataError(f"--input {pattern}: no image there")
        for stem, file in found:
            if inputs.setdefault(stem, file) != file:
                raise DataError(f"--input: {inputs[stem]} and {file} would both write {args.output / stem}.png")
    if args.truth is None:
        return [Job(file, args.output / stem, None) for stem, file in inputs.items()]
    if not args.truth.is_dir():
        raise DataError(f"--truth {args.truth}: is not a folder")
    truths = dict(files_by_stem(args.truth))
    wanted = {stem: stem.with_name(stem.name + args.mask_suffix) for stem in inputs}
    missing = [str(stem) for stem in wanted.values() if stem not in truths]
    if missing:
        raise DataError(f"--truth {args.truth}: has no mask for {len(missing)} inputs, the first is {missing[0]}")
    return [Job(file, args.output / stem, truths[wanted[stem]]) for stem, file in inputs.items()]


def files_by_stem(path: Path) -> list[tuple[Path, Path]]:
    """(stem, file) for a file, or for each image below a folder, where stems keep their subfolders."""
    if not path.is_dir():
        return [(Path(path.stem), path)]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    return [(file.relative_to(path).with_suffix(""), file) for file in files]


def run_job(job: Job, predictor: Predictor, classes: MaskClasses, args: argparse.Namespace) -> Tensor | None:
    """Predict and write what is not there yet; the confusion matrix where there is a true mask."""
    name, mask_file = str(job.image), job.output.with_name(job.output.name + ".png")
    if mask_file.exists() and not args.overwrite:
        mask = classes.encode(read_mask(mask_file, str(mask_file)), str(mask_file)) if job.truth else None
    else:
        mask, probabilities = predictor(job.image, name)  # the file itself: what training was shown
        mask_file.parent.mkdir(parents=True, exist_ok=True)
        if args.overlay:
            picture = overlay(read_image(job.image, name), mask, class_colors(classes.values))
            with replaced_file(job.output.with_name(job.output.name + ".overlay.png")) as file:
                Image.fromarray(picture).save(file, "PNG")
        if args.probabilities:
            with replaced_file(job.output.with_name(job.output.name + ".npy")) as file:
                np.save(file, probabilities)
        with replaced_file(mask_file) as file:  # last: where the mask is, the rest is too
            Image.fromarray(predictor.config.preprocess.mask(mask)).save(file, "PNG")
    if job.truth is None:
        return None
    truth = classes.encode(read_mask(job.truth, str(job.truth)), str(job.truth))
    if truth.shape != mask.shape:
        raise DataError(
            f"{job.truth}: is {truth.shape[0]} x {truth.shape[1]}, the image {mask.shape[0]} x {mask.shape[1]}"
        )
    return confusion_matrix(torch.from_numpy(mask).long(), torch.from_numpy(truth).long(), len(classes.names))


def main() -> None:
    args = parse_args()
    check_launch()
    accelerator = Accelerator()
    check_processes(accelerator)
    predictor = Predictor.from_pretrained(args.model, accelerator.device)
    num_classes, preprocess = predictor.config.num_classes, predictor.config.preprocess
    values = preprocess.class_values or tuple(range(num_classes))
    names = preprocess.class_names or tuple(map(str, values))
    classes = MaskClasses(names, values, preprocess.ignore_value)
    jobs = on_main(accelerator, lambda: find_jobs(args), *USER_ERRORS)

    matrix, failures = torch.zeros(num_classes, num_classes, dtype=torch.int64), []
    mine = jobs[accelerator.process_index :: accelerator.num_processes]
    for job in track(mine, len(mine), "predicting", show=accelerator.is_main_process):
        try:
            with accelerator.autocast():
                counted = run_job(job, predictor, classes, args)
        except (DataError, ImageError, OSError) as error:
            failures.append(f"{error}")
            continue
        matrix += 0 if counted is None else counted

    failures = gather_object(failures)
    matrix = accelerator.reduce(matrix.to(accelerator.device), "sum").cpu()
    if accelerator.is_main_process:
        if args.truth:
            print(format_table(matrix, names))
            report = {"images": len(jobs) - len(failures), "classes": names, **scores(matrix)}
            report["confusion_matrix"] = matrix.tolist()
            (args.output / "metrics.json").write_text(json.dumps(report, indent=2) + "\n")
        print(f"{len(jobs) - len(failures)} of {len(jobs)} masks in {args.output}")
        for failure in failures:
            print(f"predict.py: failed: {failure}", file=sys.stderr)
    accelerator.end_training()
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    run_script(main, *USER_ERRORS)
