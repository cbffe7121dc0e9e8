"""Which default command scores best after equal minutes: ours or Pytorch-UNet's.

python benchmarks/side_by_side.py DATA RESULTS --pytorch-unet CHECKOUT --minutes 10

CHECKOUT is of https://github.com/milesial/Pytorch-UNet. What DATA holds is said in benchmarks/sets.py; the set `cracks`
is drawn into RESULTS. Each program has one thread and the precision of accelerate's environment
variables (`--amp` for Pytorch-UNet). Minutes are processor time of the main process, so that it does not matter what
else the machine does. All read the same RGB files; CamVid's void is 255 in the masks.

- Ours: `train.py --dataset SET --encoder none --max-minutes MINUTES`. Its time includes evaluations and the report.
- Pytorch-UNet: `train.py --classes N`, as many epochs as fit; the weights are kept where the time ends, for its script
  saves only after an epoch. It holds out a tenth of the training images for evaluations of its own.

predict.py makes the masks of the validation images of both. The code below scores them at the masks' own size.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.sets import prepare
from benchmarks.train import precision, write_stand_ins
from tasks.confusion import confusion_matrix
from unet.config import IGNORE_INDEX

ROOT = Path(__file__).resolve().parent.parent
VOID = 255
CLASSES = {  # mask values that are scored
    "camvid": [*range(11)],
    "isbi": [0, 255],
    "cracks": [0, 1],
    "people": [0, 255],
    "pavement": [0, 1],
}
FOREVER = "1000000"
WANDB = """
import os, sys, time
from types import SimpleNamespace

import torch

END = 60 * float(os.environ["MINUTES"])

def log(values):
    if "train loss" in values and time.process_time() > END:
        training = sys._getframe(1).f_locals
        weights = training["model"].state_dict() | {"mask_values": training["dataset"].mask_values}
        torch.save(weights, os.environ["CHECKPOINT"])
        print("\\nsteps:", training["global_step"], flush=True)
        os._exit(0)

def init(**_):
    return SimpleNamespace(config={}, log=log)

def Image(*_): pass

Histogram = Image
"""


def write_set(source: Path, folder: Path, name: str) -> None:
    """RGB PNG files that both programs read: Pytorch-UNet wants masks of their images' sizes."""
    for part in ("train", "val"):
        for kind in ("images", "masks"):
            (folder / part / kind).mkdir(parents=True)
            for file in sorted((source / part / kind).iterdir()):
                picture = Image.open(file)
                if kind == "images":
                    picture = picture.convert("RGB")
                else:
                    image = Image.open(folder / part / "images" / f"{file.stem}.png")
                    picture = picture.resize(image.size, Image.NEAREST)
                    if name == "camvid":
                        picture = picture.point(lambda value: VOID if value == 11 else value)
                picture.save(folder / part / kind / f"{file.stem}.png")


def start_ours(data: Path, folder: Path, args: argparse.Namespace) -> tuple[list, dict[str, str]]:
    """The command, and the environment beside this one's."""
    flags = ["--dataset", data, "--encoder", "none", "--max-minutes", args.minutes, "--output-dir", folder / "run"]
    return [ROOT / "benchmarks" / "side_by_side.py", "ours", *flags], {}


def start_pytorch_unet(data: Path, folder: Path, args: argparse.Namespace) -> tuple[list, dict[str, str]]:
    """As `start_ours`; Pytorch-UNet looks for its data where it is started."""
    (folder / "data").mkdir()
    (folder / "data" / "imgs").symlink_to(data / "train" / "images")
    (folder / "data" / "masks").symlink_to(data / "train" / "masks")
    write_stand_ins(folder / "stand_ins")
    (folder / "stand_ins" / "wandb.py").write_text(WANDB)
    outputs = len(CLASSES[data.name]) + (data.name == "camvid")  # to Pytorch-UNet void is a class
    command = [args.pytorch_unet / "train.py", "--classes", outputs, "--epochs", FOREVER]
    path = os.pathsep.join(map(str, [folder / "stand_ins", args.pytorch_unet]))
    variables = {"PYTHONPATH": path, "MINUTES": str(args.minutes), "CHECKPOINT": str(folder / "weights.pth")}
    return [*command, *([] if precision() == "no" else ["--amp"])], variables


PROGRAMS = {"ours": start_ours, "pytorch-unet": start_pytorch_unet}
MODELS = {"ours": "run/model", "pytorch-unet": "weights.pth"}  # of which predict.py writes the masks


def run_program(program: str, data: Path, folder: Path, args: argparse.Namespace) -> int:
    """Optimizer steps of a program; its masks of the validation images get into `folder`/masks."""
    folder.mkdir(parents=True)
    command, variables = PROGRAMS[program](data, folder, args)
    with (folder / "log").open("w") as log:
        command = list(map(str, [sys.executable, *command]))
        subprocess.run(command, check=True, cwd=folder, env=os.environ | variables, stdout=log, stderr=log)
    predict = [ROOT / "predict.py", "--model", folder / MODELS[program], "--input", data / "val" / "images"]
    predict += ["--output", folder / "masks"]
    subprocess.run(list(map(str, [sys.executable, *predict])), check=True, capture_output=True)
    if program == "ours":
        return json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    return int((folder / "log").read_text().split("steps:")[1])


def train_ours() -> None:
    """train.py, whose --max-minutes are of processor time."""
    import train
    from runtime.machine import ProcessorTimes
    from train_utils import schedule

    schedule.time = SimpleNamespace(monotonic=time.process_time)
    schedule.PROGRAM_START = 0.0
    schedule.processor_times = lambda: ProcessorTimes(0, 0)
    sys.argv = ["train.py", *sys.argv[2:]]
    train.main()


def class_iou(masks: Path, truth: Path, values: list[int]) -> list[float]:
    """IoU of each class of mask `values`, of masks with those of the same name; other values in the truth are void."""
    void = len(values)  # nowhere counted in the truth, always wrong in a mask
    index = np.full(256, void)
    index[values] = range(len(values))
    matrix = torch.zeros(void + 1, void + 1, dtype=torch.int64)
    for file in sorted(truth.iterdir()):
        predicted, true = (torch.from_numpy(index[np.asarray(Image.open(f))]) for f in (masks / file.name, file))
        true[true == void] = IGNORE_INDEX
        matrix += confusion_matrix(predicted, true, void + 1)
    hits = matrix.diag()
    return (hits / (matrix.sum(dim=0) + matrix.sum(dim=1) - hits)).tolist()[:void]


def main() -> None:
    if sys.argv[1:2] == ["ours"]:
        train_ours()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--pytorch-unet", type=Path, metavar="CHECKOUT")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--sets", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(MODELS))
    args = parser.parse_args()
    if "pytorch-unet" in args.programs:
        if args.pytorch_unet is None:
            parser.error("--programs pytorch-unet needs --pytorch-unet")
        args.pytorch_unet = args.pytorch_unet.resolve()
    os.environ["OMP_NUM_THREADS"] = "1"
    sources = prepare(args.data, args.results, args.sets)
    results = (args.results / "side_by_side").resolve()
    for name in args.sets:
        data, folder = results / "sets" / name, results / f"{name}-{args.minutes:g}"
        if not data.exists():
            write_set(sources[name], data, name)
        for program in args.programs:
            steps = run_program(program, data, folder / program, args)
            ious = class_iou(folder / program / "masks", data / "val" / "masks", CLASSES[name])
            line = {"set": name, "program": program, "minutes": args.minutes, "steps": steps, "iou": ious}
            line["mean_iou"] = float(np.mean(ious))
            line["mean_dice"] = float(np.mean([2 * iou / (1 + iou) for iou in ious]))
            with (results / "scores.jsonl").open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{name}, {program}: mean IoU {line['mean_iou']:.3f}, Dice {line['mean_dice']:.3f}", flush=True)


if __name__ == "__main__":
    main()
