"""The U-Net speedrun: what default commands score after equal processor time, on five small public data sets.

python benchmarks/speedrun.py run DATA RESULTS --pytorch-unet CHECKOUT
python benchmarks/speedrun.py run DATA RESULTS --peer "NAME=COMMAND {data} {minutes} {seed} {folder}"
python benchmarks/speedrun.py table RESULTS

What DATA holds is said in benchmarks/sets.py. Each program has one core and one thread, and trains on the same RGB
files, in {data}/train/images and {data}/train/masks; CamVid's void is 255. The masks of {data}/val/images are scored at
their own size. Each run becomes a line of RESULTS/speedrun.jsonl, and is not repeated if it has one.

- Ours: `train.py --dataset SET --max-minutes MINUTES --seed SEED`, whose minutes are of processor time here, and
  include evaluations and the report; and the same with `--encoder none`, without pretrained weights.
- Pytorch-UNet, a checkout of https://github.com/milesial/Pytorch-UNet: `train.py --classes N --amp`. Its weights are
  kept where the time of its main process ends; it holds out a tenth of the training images, and takes no seed.
- A peer: any command that writes the masks into {folder}/masks, with the mask values and names of {data}/val/masks;
  nnU-Net's is benchmarks/nnunet_peer.py.
"""

import argparse
import json
import math
import os
import runpy
import shlex
import statistics
import subprocess
import sys
import time
from itertools import product
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.sets import prepare
from benchmarks.train import write_stand_ins
from runtime.files import complete_folder
from tasks.confusion import confusion_matrix
from unet.config import IGNORE_INDEX

ROOT = Path(__file__).resolve().parent.parent
VOID = 255
CLASSES = {  # mask values that are scored
    "camvid": [*range(11)],
    "isbi": [0, 255],
    "people": [0, 255],
    "pavement": [0, 1],
    "hippocampus": [0, 1, 2],
}
OURS = "ours --dataset {data} --max-minutes {minutes} --seed {seed} --output-dir {folder}/run"
MODELS = ("run/model", "weights.pth")  # in a run's folder; our predict.py reads both


def write_set(source: Path, folder: Path, name: str) -> None:
    """RGB PNG files that all programs read: Pytorch-UNet wants masks of their images' sizes."""
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
                        picture = picture.point([*range(11), VOID, *range(12, 256)])
                picture.save(folder / part / kind / f"{file.stem}.png")


def train_ours(flags: list[str]) -> None:
    """train.py, whose --max-minutes are of processor time."""
    import train
    from train_utils import schedule

    schedule.time = SimpleNamespace(monotonic=time.process_time)
    schedule.PROGRAM_START = 0.0
    sys.argv = ["train.py", *flags]
    train.main()


def train_pytorch_unet(checkout: str, data: str, minutes: str) -> None:
    """Pytorch-UNet's train.py in the current folder, where it looks for its data; the weights get there, too."""

    def log(values: dict) -> None:
        if "train loss" in values and time.process_time() > 60 * float(minutes):
            training = sys._getframe(1).f_locals
            weights = training["model"].state_dict() | {"mask_values": training["dataset"].mask_values}
            torch.save(weights, "weights.pth")
            os._exit(0)

    Path("data").mkdir()
    Path("data/imgs").symlink_to(f"{data}/train/images")
    Path("data/masks").symlink_to(f"{data}/train/masks")
    write_stand_ins(Path("stand_ins"))
    sys.path[:0] = [checkout, "stand_ins"]
    for name in list(sys.modules):
        if name.split(".")[0] == "unet":
            del sys.modules[name]  # its package has the name of ours
    experiment = SimpleNamespace(config={}, log=log)
    sys.modules["wandb"] = SimpleNamespace(init=lambda **_: experiment, Image=id, Histogram=id)
    name = Path(data).name
    outputs = len(CLASSES[name]) + (name == "camvid")  # to Pytorch-UNet void is a class
    sys.argv = ["train.py", "--classes", str(outputs), "--epochs", "1000000", "--amp"]
    runpy.run_path(f"{checkout}/train.py", run_name="__main__")


def measure(template: str, data: Path, folder: Path, minutes: float, seed: int) -> dict[str, object]:
    """Run a program and score its masks; seconds are of its processes that have ended, memory is the largest one's."""
    folder.mkdir(parents=True)
    values = {"data": data, "folder": folder, "minutes": minutes, "seed": seed}
    command = []
    for word in shlex.split(template):
        command.append(word.format(**values))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for model in MODELS:
            if (folder / model).exists():
                predict = [sys.executable, ROOT / "predict.py", "--model", folder / model]
                predict += ["--input", data / "val" / "images", "--output", folder / "masks"]
                subprocess.run(predict, check=True, stdout=log, stderr=log)
    ious = class_iou(folder / "masks", data / "val" / "masks", CLASSES[data.name])
    seconds = usage.ru_utime + usage.ru_stime
    memory = usage.ru_maxrss * 1024 / 1e9
    return {"mean_iou": float(np.mean(ious)), "iou": ious, "seconds": seconds, "gb": memory}


def class_iou(masks: Path, truth: Path, values: list[int]) -> list[float]:
    """IoU of each class of mask `values`, of masks with those of the same name; other values in the truth are void."""
    void = len(values)  # nowhere counted in the truth, always wrong in a mask
    index = np.full(256, void)
    index[values] = range(len(values))
    matrix = torch.zeros(void + 1, void + 1, dtype=torch.int64)
    for file in sorted(truth.iterdir()):
        predicted = torch.from_numpy(index[np.asarray(Image.open(masks / file.name))])
        true = torch.from_numpy(index[np.asarray(Image.open(file))])
        true[true == void] = IGNORE_INDEX
        matrix += confusion_matrix(predicted, true, void + 1)
    hits = matrix.diag()
    return (hits / (matrix.sum(dim=0) + matrix.sum(dim=1) - hits)).tolist()[:void]


def commit_of(checkout: Path) -> str:
    """The short hash of the commit of a checkout."""
    return subprocess.check_output(["git", "-C", checkout, "rev-parse", "--short=8", "HEAD"], text=True).strip()


def read_results(results: Path) -> list[dict]:
    """The lines of all runs."""
    file = results / "speedrun.jsonl"
    if not file.exists():
        return []
    return list(map(json.loads, file.read_text().splitlines()))


def run_all(args: argparse.Namespace) -> None:
    """Every program on every set, for all minutes and seeds, unless its line is there; a failed run is named."""
    script = f"{shlex.quote(sys.executable)} {shlex.quote(__file__)}"
    commits = {"ours": commit_of(ROOT), "ours, no encoder": commit_of(ROOT)}
    templates = {"ours": f"{script} {OURS}", "ours, no encoder": f"{script} {OURS} --encoder none"}
    if args.pytorch_unet is not None:
        checkout = args.pytorch_unet.resolve()
        commits["Pytorch-UNet"] = commit_of(checkout)
        templates["Pytorch-UNet"] = f"{script} pytorch-unet {shlex.quote(str(checkout))} {{data}} {{minutes}}"
    for words in args.peer:
        name, _, templates[name] = words.partition("=")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # programs inherit it, and start no loaders for it
    os.environ["OMP_NUM_THREADS"] = "1"
    results = args.results.resolve()
    for name, source in prepare(args.data, results, args.sets).items():
        data = results / "speedrun" / name
        if not data.exists():
            data.parent.mkdir(parents=True, exist_ok=True)
            with complete_folder(data) as folder:
                write_set(source, folder, name)
        for minutes, seed, program in product(args.minutes, args.seeds, templates):
            commit = commits.get(program, "")
            run = {"program": program, "commit": commit, "minutes": minutes, "set": name, "seed": seed}
            if any(run.items() <= line.items() for line in read_results(results)):
                continue
            folder = results / "runs" / f"{name}-{minutes:g}-{seed}-{len(list(results.glob('runs/*')))}"
            try:
                run |= measure(templates[program], data, folder, minutes, seed)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{program} on {name} failed: {error}; see {folder}/log", flush=True)
                continue
            with (results / "speedrun.jsonl").open("a") as out:
                out.write(json.dumps(run) + "\n")


def speedrun_table(lines: list[dict]) -> list[str]:
    """A row for each program, commit and number of minutes.

    It has the mean IoU on each set, averaged over the seeds, ± half their range; the mean of the sets; the mean of the
    processor seconds; the largest memory. What is missing is nan.
    """
    by_row: dict[tuple[str, str, float], list[dict]] = {}
    for line in lines:
        key = line["program"], line["commit"], line["minutes"]
        by_row.setdefault(key, []).append(line)
    titles = ["program", "commit", "minutes", *CLASSES, "mean", "seconds", "GB"]
    rows = [titles, ["---"] * len(titles)]
    for (program, commit, minutes), own in by_row.items():
        row = [program, commit, f"{minutes:g}"]
        means = []
        for name in CLASSES:
            scores = [line["mean_iou"] for line in own if line["set"] == name]
            scores = scores or [math.nan]
            means.append(statistics.fmean(scores))
            half_range = (max(scores) - min(scores)) / 2
            row.append(f"{means[-1]:.3f} ± {half_range:.3f}")
        seconds = statistics.fmean(map(itemgetter("seconds"), own))
        memory = max(map(itemgetter("gb"), own))
        row += [f"{statistics.fmean(means):.3f}", f"{seconds:.0f}", f"{memory:.2f}"]
        rows.append(row)
    return [f"| {' | '.join(row)} |" for row in rows]


def main() -> None:
    """The subcommands above, and two that run a program in this process."""
    if sys.argv[1:2] == ["ours"]:
        return train_ours(sys.argv[2:])
    if sys.argv[1:2] == ["pytorch-unet"]:
        return train_pytorch_unet(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("data", type=Path)
    run_parser.add_argument("results", type=Path)
    run_parser.add_argument("--minutes", type=float, nargs="+", default=[3, 10])
    run_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    run_parser.add_argument("--sets", nargs="+", choices=CLASSES, default=list(CLASSES))
    run_parser.add_argument("--pytorch-unet", type=Path, metavar="CHECKOUT")
    run_parser.add_argument("--peer", nargs="+", default=[], metavar="NAME=COMMAND")
    commands.add_parser("table").add_argument("results", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        run_all(args)
    print("\n".join(speedrun_table(read_results(args.results))))


if __name__ == "__main__":
    main()
