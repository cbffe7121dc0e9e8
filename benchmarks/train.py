"""Training programs side by side, ours and Pytorch-UNet's.

python benchmarks/train.py --pytorch-unet CHECKOUT     (of https://github.com/milesial/Pytorch-UNet, or none)
python benchmarks/train.py --pytorch-unet CHECKOUT --mixed_precision no      (or bf16, fp16; else each one's default)
python benchmarks/train.py --pytorch-unet CHECKOUT --image-size 1280 1920 --batch-size 16 --steps 60     (on a GPU)
python benchmarks/train.py -- --num-workers 8          (behind -- come more flags of our train.py)

Both are run as a user would: the default network (31,037,698 parameters, batch norm), the same files in Carvana's
formats, one epoch of them, the same scale, batch and threads; cross-entropy + Dice, gradients clipped to 1, an
optimizer with two moments (AdamW; RMSprop with momentum), no augmentation. The programs take turns, medians count.

- Steady state: after 3 steps, without evaluations. Whole: from the start of the process to its end. No training image
  is held out. Ours evaluates one other image at its end; Pytorch-UNet no image, but it looks through all weights and
  gradients five times an epoch. Each saves once, ours with the optimizer's state.
- Half precision is the profile's for ours, `--amp` for Pytorch-UNet: bf16 on a CPU, on a GPU fp16 with loss scaling.
  By default ours computes in bf16 where the device has instructions for it, Pytorch-UNet in float32.
- Memory: on a GPU the most that torch held, else the largest resident set of the main process, without loaders'.
- A stand-in for wandb notes when a step of Pytorch-UNet has ended, and draws and sends nothing.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.predict import timed
from train_utils.meter import WARMUP_STEPS

ROOT = Path(__file__).resolve().parent.parent

DISTINCT = 16  # files; the others are hard links to them
NEVER = 10**6  # steps
WANDB = """
import json, os, time
from types import SimpleNamespace

import torch

def log(values):
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    with open(os.environ["MARKS"], "a") as file:
        print(json.dumps({"seconds": time.perf_counter(), "step": "train loss" in values, "peak": peak}), file=file)

def init(**_):
    return SimpleNamespace(config={}, log=log)

def Image(*_): pass

Histogram = Image
"""


def write_stand_ins(folder: Path) -> None:
    """What Pytorch-UNet imports: wandb's stand-in, and empty modules for what it does not use to train."""
    folder.mkdir()
    (folder / "wandb.py").write_text(WANDB)
    if find_spec("torchvision") is None:
        transforms = folder / "torchvision" / "transforms"
        transforms.mkdir(parents=True)
        for file in (transforms.parent / "__init__.py", transforms / "__init__.py", transforms / "functional.py"):
            file.touch()


def write_pairs(folder: Path, count: int, size: tuple[int, int], distinct: int) -> None:
    """`count` JPEG photographs with _mask.gif, hard links to `distinct` generated ones."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    y, x = np.mgrid[: size[0], : size[1]] / size[0]
    for number in range(count):
        image_file = folder / "images" / f"{number:07}.jpg"
        mask_file = folder / "masks" / f"{number:07}_mask.gif"
        if number >= distinct:
            os.link(image_file.with_name(f"{number % distinct:07}.jpg"), image_file)
            os.link(mask_file.with_name(f"{number % distinct:07}_mask.gif"), mask_file)
            continue
        rng = np.random.default_rng(number)
        waves = []
        for channel in range(3):
            columns = 60 * np.sin(40 * x + channel + number)
            rows = 40 * np.cos(60 * y / (channel + 1))
            waves.append(128 + columns + rows)
        image = np.stack(waves, axis=2) + rng.normal(0, 2, (*size, 1))
        mask = (x - 0.7) ** 2 + (y - 0.5) ** 2 < rng.uniform(0.02, 0.1)
        image[mask] = 255 - image[mask]
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(image_file, quality=85)
        Image.fromarray((mask * 255).astype(np.uint8)).convert("1").save(mask_file)


def run_program(script: Path, flags: list, folder: Path, modules: list[Path], **variables: str) -> dict[str, float]:
    """Run one of both programs in `folder`: its seconds, and the most memory of its main process in GB."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, modules)),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "XDG_CACHE_HOME": str(folder / "cache"),  # nothing is known of the data from an earlier run
        **variables,
    }
    seconds, output = timed(
        [sys.executable, ROOT / "tests" / "programs" / "print_peak_memory.py", script, *flags], folder, env
    )
    return {"seconds": seconds, "memory": int(output.split("VmHWM:")[1].split()[0]) * 1024 / 1e9}


def run_ours(args: argparse.Namespace, data: Path, folder: Path) -> dict[str, float]:
    """Images per second in steady state (`steady`), seconds of all, GB."""
    output = folder / "run"
    flags = "--plan none --loss ce+dice --no-deep-supervision --augment none --tracker none"
    flags += f" --scale {args.scale} --max-steps {args.steps}"
    flags += f" --batch-size {args.batch_size} --micro-batch-size {args.batch_size}"
    flags += f" --log-every {NEVER} --eval-every {NEVER} --checkpoint-every {NEVER}"
    places = ["--dataset", data, "--output-dir", output]
    results = run_program(ROOT / "train.py", [*places, *flags.split(), *args.train_flags], folder, [ROOT])
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    values = next(line for line in lines if "perf/images_per_second" in line)
    memory = values.get("perf/peak_memory_gb", results["memory"])
    return results | {"steady": values["perf/images_per_second"], "memory": memory}


def run_theirs(args: argparse.Namespace, data: Path, folder: Path) -> dict[str, float]:
    """As `run_ours`, of Pytorch-UNet, which looks for its data where it is started."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "imgs").symlink_to(data / "train" / "images")
    (folder / "data" / "masks").symlink_to(data / "train" / "masks")
    write_stand_ins(folder / "stand_ins")
    flags = ["--epochs", 1, "--batch-size", args.batch_size, "--scale", args.scale, "--validation", 0]
    flags += ["--amp"] if precision() in ("bf16", "fp16") else []
    modules = [folder / "stand_ins", args.pytorch_unet]
    results = run_program(args.pytorch_unet / "train.py", flags, folder, modules, MARKS=str(folder / "marks.jsonl"))
    marks = [json.loads(line) for line in (folder / "marks.jsonl").read_text().splitlines()]
    memory = marks[-1]["peak"] / 1e9 if torch.cuda.is_available() else results["memory"]
    return results | {"steady": args.batch_size / statistics.fmean(step_seconds(marks)), "memory": memory}


def step_seconds(marks: list[dict]) -> list[float]:
    """Of each step after warm-up. A mark stands at the end of a step and, with `step` false, of an evaluation."""
    durations = [after["seconds"] - before["seconds"] for before, after in pairwise(marks) if after["step"]]
    return durations[WARMUP_STEPS - 1 :]  # the first step has no mark before it


def precision() -> str:
    """The launch profile's, which the programs started from here inherit."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION", "default")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """By program: the median of each value over the repeats."""
    data, results = folder / "data", {}
    write_pairs(data / "train", args.steps * args.batch_size, args.image_size, DISTINCT)
    write_pairs(data / "val", 1, args.image_size, 1)
    programs = {"here": run_ours} | ({"Pytorch-UNet": run_theirs} if args.pytorch_unet else {})
    for repeat in range(args.repeats):
        for name, run in programs.items():
            where = folder / f"{name}-{repeat}"
            where.mkdir()
            results.setdefault(name, []).append(run(args, data, where))
    return {
        name: {key: statistics.median(value[key] for value in values) for key in values[0]}
        for name, values in results.items()
    }


def programs_table(args: argparse.Namespace, results: dict[str, dict[str, float]]) -> list[str]:
    """A row for each program, and their ratio."""
    images = args.steps * args.batch_size
    rows = [["program", "steady state", "whole program", "memory"], ["---"] * 4]
    for name, value in results.items():
        steady, whole = value["steady"], images / value["seconds"]
        rows.append([name, f"{steady:.3g} images/s", f"{whole:.3g} images/s", f"{value['memory']:.2f} GB"])
    if len(results) == 2:
        ours, theirs = results.values()
        steady, whole = ours["steady"] / theirs["steady"], theirs["seconds"] / ours["seconds"]
        rows.append(["ratio", f"{steady:.2f}", f"{whole:.2f}", f"{ours['memory'] / theirs['memory']:.2f}"])
    return [f"| {' | '.join(row)} |" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pytorch-unet", type=Path, metavar="CHECKOUT", help="compare with this checkout")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--image-size", type=int, nargs=2, default=(256, 384), metavar=("H", "W"), help="of the files")
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=13, help="3 of them are warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mixed_precision", choices=("default", "no", "bf16", "fp16"), default=precision())
    parser.add_argument("train_flags", nargs="*", metavar="-- FLAGS", help="more flags of our train.py")
    args = parser.parse_args()
    os.environ["ACCELERATE_MIXED_PRECISION"] = args.mixed_precision  # what our train.py is started with
    if args.mixed_precision == "default":
        del os.environ["ACCELERATE_MIXED_PRECISION"]
    if args.pytorch_unet:
        args.pytorch_unet = args.pytorch_unet.resolve()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(args, Path(folder))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    height, width = (int(side * args.scale) for side in args.image_size)
    print(
        f"torch {torch.__version__}, {device}, mixed precision {precision()}, {args.batch_size} images of"
        f" {height} x {width} a step, {args.steps} steps, median of {args.repeats}"
    )
    print("\n".join(["", *programs_table(args, results)]))


if __name__ == "__main__":
    main()
