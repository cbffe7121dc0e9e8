"""How the speed of a training grows with its processes.

python benchmarks/scaling.py                        (2 processes on 2 CPU cores; on a GPU machine as many as there are)
python benchmarks/scaling.py --processes 2 4 8 --base-channels 64 --batch-size 16 --image-size 512

Every run is train.py itself under torchrun. On a CPU each process has a core of its own, compared with one process
while the other cores are busy with the same training, each by itself: cores share caches and memory, so that one on
an idle machine is no measure for two. Runs take turns, the median of the repeats counts.

Goal: two processes more than 1.9 times as fast.
"""

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train_utils.meter import WARMUP_STEPS
from unet import UNet, UNetConfig

ROOT = Path(__file__).resolve().parent.parent
NEVER = 10**6  # steps


def worker(first_core: int, arguments: list[str]) -> None:
    """One process of a run: train.py on one core, counted from `first_core`; on a GPU machine wherever it is."""
    if not torch.cuda.is_available():
        os.sched_setaffinity(0, {first_core + int(os.environ["LOCAL_RANK"])})
        os.environ["ACCELERATE_USE_CPU"] = "true"
    sys.argv = ["train.py", *arguments]
    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")


def start(args: argparse.Namespace, output: Path, processes: int, batch_size: int, first_core: int = 0):
    """A run of `processes` in the background; one log line tells of all its steps but the warm-up."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    flags = f"--plan none --norm group --base-channels {args.base_channels}"
    flags += f" --max-steps {args.steps + WARMUP_STEPS}"
    flags += f" --tracker none --log-every {NEVER} --eval-every {NEVER} --checkpoint-every {NEVER}"
    flags += f" --batch-size {batch_size}"
    flags += f" --image-size {args.image_size} {args.image_size} --num-workers {args.num_workers}"
    places = ["--dataset", str(args.data), "--output-dir", str(output)]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, __file__, "--worker", str(first_core), *places, *flags.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def measure(run: subprocess.Popen, output: Path) -> dict[str, float]:
    """Images per second, and the percentage of a step that waits for data, when the run has ended."""
    stderr = run.communicate()[1]
    if run.returncode:
        sys.exit(f"a run failed:\n{stderr}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    values = next(line for line in lines if "perf/images_per_second" in line)
    return {name: values[f"perf/{name}"] for name in ("images_per_second", "data_wait_percent")}


def measurements(args: argparse.Namespace) -> dict[tuple, list[dict]]:
    """By (processes, kind of run), what each repeat measured."""
    repeats_by_key: dict[tuple, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        args.data = Path(folder) / "data"
        write = [sys.executable, "-m", "data_utils.shapes", str(args.data), "--train", "64", "--val", "4"]
        subprocess.run(write, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for repeat in range(args.repeats):
            for processes in args.processes:
                alone = 1 if torch.cuda.is_available() else processes
                outputs = [Path(folder) / f"alone-{repeat}-{processes}-{core}" for core in range(alone)]
                runs = [start(args, output, 1, args.batch_size, core) for core, output in enumerate(outputs)]
                repeats_by_key.setdefault((processes, "alone"), []).extend(map(measure, runs, outputs))
                for kind in ("weak", "strong"):
                    output = Path(folder) / f"{kind}-{repeat}-{processes}"
                    run = start(args, output, *processes_and_batch(args, processes, kind))
                    repeats_by_key.setdefault((processes, kind), []).append(measure(run, output))
    return repeats_by_key


def processes_and_batch(args: argparse.Namespace, processes: int, kind: str) -> tuple[int, int]:
    """Of a run of this kind."""
    return 1 if kind == "alone" else processes, args.batch_size * (processes if kind == "weak" else 1)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return worker(int(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    machine = torch.cuda.device_count() or len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, nargs="+", default=[2**n for n in range(1, machine.bit_length())])
    parser.add_argument("--batch-size", type=int, default=8, help="of one process")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--base-channels", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10, help="timed ones, after 3 of warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    repeats_by_key = measurements(args)
    network = UNet(UNetConfig(base_channels=args.base_channels, norm="group", num_classes=5))
    gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    print(
        f"U-Net of {args.base_channels} channels, {gradient_bytes / 1e6:.1f} MB of gradients, images of"
        f" {args.image_size} x {args.image_size}, {args.batch_size} for each process"
    )
    report(args, repeats_by_key)


def report(args: argparse.Namespace, repeats_by_key: dict[tuple, list[dict]]) -> None:
    """The tables of what was measured."""
    on_gpus = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpus else "one CPU core for each process"
    print(f"\ntorch {torch.__version__}, {device}, median of {args.repeats} x {args.steps} steps\n")
    print("| processes | run | batch | images/s | efficiency | data wait |\n|" + "---|" * 6)
    for (processes, kind), repeats in repeats_by_key.items():
        median, alone = medians(repeats), medians(repeats_by_key[processes, "alone"])
        count, batch = processes_and_batch(args, processes, kind)
        efficiency = median["images_per_second"] / count / alone["images_per_second"]
        wait = f"{median['data_wait_percent']:.1f}%"
        name = "alone, the other cores busy" if kind == "alone" and not on_gpus else kind
        print(f"| {count} | {name} | {batch} | {median['images_per_second']:.2f} | {efficiency:.3f} | {wait} |")


def medians(repeats: list[dict[str, float]]) -> dict[str, float]:
    """Of each value."""
    return {key: statistics.median(values[key] for values in repeats) for key in repeats[0]}


if __name__ == "__main__":
    main()
