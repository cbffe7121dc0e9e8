"""What an encoder is worth and what it costs: scores after equal time, and a table of sizes and speeds.

python benchmarks/encoders.py compare DATA RESULTS --sets isbi neurites --seconds 60 --seeds 0 1
python benchmarks/encoders.py table

`compare` trains with the built-in encoder and with `--encoder none`, each with the settings that the plan chooses for
--minutes, and as many steps as fit into --seconds of one core's processor time: the median step of short runs that take
turns says how many. The sets are those of benchmarks/sets.py.

`table` needs no weights: parameters, multiply-adds and images a second of networks with six encoders, on this CPU.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import transformers

import train
from benchmarks.sets import prepare
from runtime.settings import as_flags
from train_utils.dataset import load_dataset_info
from train_utils.settings.encoder import load_encoder
from train_utils.settings.flags import parse_args
from train_utils.settings.plan import plan_run
from train_utils.settings.starting_point import BASE_CHANNELS
from train_utils.settings.train_settings import UNPLANNED
from unet import UNet, UNetConfig

# what a data set needs beside its folder
FLAGS = {
    "isbi": "--classes 0=membrane,255=cell",
    "neurites": "--task objects",
    "camvid": "--ignore-index 11",
}
KINDS = ("none", "lite0")
LIKE = "--plan none --tracker none --num-workers 0 --eval-every 1000000 --checkpoint-every 1000000"
TRIALS = 2
TRIAL_STEPS = 14
WARMUP_STEPS = 3  # of a trial; they do not count
TABLE = {
    "microsoft/resnet-18": transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    ),
    "microsoft/resnet-50": transformers.ResNetConfig(),
    "facebook/convnextv2-tiny-22k-224": transformers.ConvNextV2Config(
        hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3]
    ),
    "microsoft/swin-tiny-patch4-window7-224": transformers.SwinConfig(),
    "microsoft/focalnet-tiny": transformers.FocalNetConfig(depths=[2, 2, 6, 2], hidden_sizes=[192, 384, 768, 768]),
    "OpenGVLab/pvt_v2_b0": transformers.PvtV2Config(),
}


def planned_flags(folder: Path, flags: str, minutes: float) -> str:
    """The flags of a run on a data set, with what the plan chooses for so many minutes."""
    sys.argv = ["train.py", "--dataset", str(folder), "--max-minutes", str(minutes), *shlex.split(flags)]
    settings = parse_args(None)
    plan = vars(plan_run(load_dataset_info(settings), settings))
    chosen = {}
    for name in UNPLANNED:
        is_open = getattr(settings, name) is None
        if is_open and name not in ("epochs", "eval_every", "checkpoint_every"):
            chosen[name] = plan[name]
    return f"{flags} {as_flags(chosen)}"


def trained(folder: Path, flags: str, steps: int, seed: int) -> tuple[dict, float]:
    """The scores of a run of train.py in a process of its own, and the processor time of its median step in seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "run"
        words = ["--dataset", folder, "--output-dir", output, *shlex.split(f"{flags} {LIKE}")]
        words += ["--max-steps", steps, "--seed", seed]
        command = [sys.executable, __file__, "train", *map(str, words)]
        process = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if "eval/loss" in record]
    return evaluations[-1], float(process.stdout.splitlines()[-1])


def train_timed(words: list[str]) -> None:
    """Run train.py, and print the processor time of its median step."""
    begins: list[float] = []
    step = train.train_step

    def timed_step(*args, **options) -> bool:
        begins.append(time.process_time())
        return step(*args, **options)

    train.train_step = timed_step
    sys.argv = ["train.py", *words]
    train.main()
    durations = [end - begin for begin, end in pairwise(begins)]
    print(statistics.median(durations[WARMUP_STEPS:]))


def compare(args: argparse.Namespace) -> None:
    """A line for each set, kind and seed, with the steps, the time of a step and the scores."""
    for name, folder in prepare(args.data, args.results, args.sets).items():
        flags = {}
        for kind in KINDS:
            flags[kind] = planned_flags(folder, f"{FLAGS.get(name, '')} --encoder {kind}", args.minutes)
            print(f"{name}: {flags[kind]}", flush=True)
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(TRIALS):
            for kind in KINDS:
                times[kind].append(trained(folder, flags[kind], TRIAL_STEPS, seed=0)[1])
        for seed in args.seeds:
            for kind in KINDS:
                steps = max(1, round(args.seconds / min(times[kind])))
                record, seconds = trained(folder, flags[kind], steps, seed)
                line = {"set": name, "encoder": kind, "seed": seed, "steps": steps, "step_seconds": seconds}
                scores = {key: value for key, value in record.items() if key.startswith("eval/")}
                print(json.dumps(line | scores), flush=True)


def table(args: argparse.Namespace) -> None:
    """A row of docs/encoders.md for each encoder, with random weights: neither size nor speed depends on them."""
    for name, config in TABLE.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = json.loads(config.to_json_string(use_diff=False)) | {"model_type": config.model_type}
            (Path(folder) / "config.json").write_text(json.dumps(settings))
            encoder = load_encoder(folder, pretrained=False)
        network = UNet(UNetConfig(base_channels=BASE_CHANNELS, depth=encoder.depth, encoder=encoder.config))
        network.eval().to(memory_format=torch.channels_last)
        parameters = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (network, network.encoder)]
        image = torch.zeros(1, 3, 512, 512).to(memory_format=torch.channels_last)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            network(image)
        speeds = " | ".join(f"{rate:.2f}" for rate in images_a_second(network, image, args.repeats))
        row = f"| `{name}` | {parameters[0]:.1f} ({parameters[1]:.1f}) | {counter.get_total_flops() / 1e9:.0f}"
        print(f"{row} | {speeds} |", flush=True)


def images_a_second(network: UNet, image: Tensor, repeats: int) -> list[float]:
    """Of prediction, of a training step's forward and backward pass, and of one with a frozen encoder."""

    def predict() -> None:
        with torch.inference_mode():
            network.eval()(image)

    def train_once() -> None:
        network.train()(image).sum().backward()

    rates = []
    for work, frozen in ((predict, False), (train_once, False), (train_once, True)):
        if frozen:
            network.encoder.freeze()
        work()  # the first time takes longer
        rates.append(1 / min(seconds_of(work) for _ in range(repeats)))  # other programs only take time away
    return rates


def seconds_of(work: Callable[[], None]) -> float:
    """Of one call."""
    start = time.process_time()  # of which other programs take none
    work()
    return time.process_time() - start


def main() -> None:
    """The subcommands above, and `train`, which is a timed train.py."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.argv[1:2] == ["train"]:
        train_timed(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    compare_parser = commands.add_parser("compare")
    compare_parser.add_argument("data", type=Path)
    compare_parser.add_argument("results", type=Path)
    compare_parser.add_argument("--sets", nargs="+", required=True)
    compare_parser.add_argument("--minutes", type=float, default=3)
    compare_parser.add_argument("--seconds", type=float, default=60)
    compare_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    compare_parser.set_defaults(run=compare)
    table_parser = commands.add_parser("table")
    table_parser.add_argument("--repeats", type=int, default=3)
    table_parser.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
