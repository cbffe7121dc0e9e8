"""How the speed of a training grows with its processes, what a step spends its time on, and what that means for more.

python benchmarks/scaling.py                        (2 processes on 2 CPU cores; on a GPU machine as many as there are)
python benchmarks/scaling.py --processes 2 4 8 --base-channels 64 --batch-size 16 --image-size 512
python benchmarks/scaling.py --only-project --base-channels 64 --batch-size 8 --image-size 512

Every run is train.py itself under torchrun. On a CPU each process has a core of its own, compared with one process
while the other cores are busy with the same training, each by itself: cores share caches and memory, so that one on
an idle machine is no measure for two. Runs take turns, the median of the repeats counts.

Goal: two processes more than 1.9 times as fast.

The projection is the alpha-beta model of all-reduces (`projection`); on GPUs from the measured step, else from FLOPs.
"""

import argparse
import json
import math
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.flops import training_flops
from train_utils.run_log import WARMUP_STEPS
from unet import UNet, UNetConfig

ROOT = Path(__file__).resolve().parent.parent

BUCKET = 25 * 2**20  # bytes of a gradient bucket, DistributedDataParallel's default
GPUS = (8, 64, 512)


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
    flags = [
        "--plan",
        "none",
        "--dataset",
        str(args.data),
        "--output-dir",
        str(output),
        "--max-steps",
        str(args.steps + WARMUP_STEPS),
    ]
    flags += ["--base-channels", str(args.base_channels), "--norm", "group", "--num-workers", str(args.num_workers)]
    flags += ["--batch-size", str(batch_size)]
    flags += ["--image-size", str(args.image_size), str(args.image_size)]
    flags += ["--tracker", "none", *(f"--{kind}-every={10**6}" for kind in ("log", "eval", "checkpoint"))]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, __file__, "--worker", str(first_core), *flags],
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


def all_reduce_seconds(gradient_bytes: float, gpus: int, latency: float, bandwidth: float) -> float:
    """The faster of a ring, 2 (n - 1) messages of 1/n of the bytes, and of a double binary tree, as NCCL chooses."""
    ring = 2 * (gpus - 1) * (latency + gradient_bytes / gpus / bandwidth)
    tree = 2 * math.log2(gpus) * latency + 2 * gradient_bytes / bandwidth
    return min(ring, tree)


def projection(compute: float, gradient_bytes: float, gpus: int, latency: float, bandwidth: float) -> tuple:
    """Seconds of all-reduces in a step, and the share of its speed alone that a GPU keeps: with overlap, and without.

    The exchange goes by buckets and overlaps with the backward pass, 2/3 of the `compute` seconds. Of a U-Net's weights
    the deep levels hold almost all, and their gradients are there when half of the backward pass is over: so 1/3 of
    the computing hides all buckets but the last one, which begins when the backward pass has ended.
    """
    buckets = max(1, math.ceil(gradient_bytes / BUCKET))
    bucket = all_reduce_seconds(gradient_bytes / buckets, gpus, latency, bandwidth)
    exposed = bucket + max(0.0, (buckets - 1) * bucket - compute / 3)
    return buckets * bucket, compute / (compute + exposed), compute / (compute + buckets * bucket)


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
    parser.add_argument("--latency-us", type=float, default=10.0, help="of a message between two GPUs")
    parser.add_argument("--gigabytes-per-second", type=float, default=25.0, help="of the slowest link of a GPU")
    parser.add_argument("--teraflops", type=float, default=50.0, help="of a GPU on this network, for the projection")
    parser.add_argument("--only-project", action="store_true", help="measure nothing")
    args = parser.parse_args()
    repeats_by_key = measurements(args) if not args.only_project else {}
    network = UNet(UNetConfig(base_channels=args.base_channels, norm="group", num_classes=5))
    gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    print(
        f"U-Net of {args.base_channels} channels, {gradient_bytes / 1e6:.1f} MB of gradients, images of"
        f" {args.image_size} x {args.image_size}, {args.batch_size} for each process"
    )
    if repeats_by_key:
        report(args, repeats_by_key)
    flops = training_flops(network, 3) * args.image_size**2 * args.batch_size
    compute, source = flops / args.teraflops / 1e12, f"at an assumed {args.teraflops:g} teraFLOPS"
    if repeats_by_key and torch.cuda.is_available():
        values = [value for (_, kind), values in repeats_by_key.items() if kind == "alone" for value in values]
        compute = statistics.median(step_seconds(args.batch_size, value) for value in values)
        source = "as measured"
    latency, bandwidth = args.latency_us / 1e6, args.gigabytes_per_second * 1e9
    print(
        f"\nProjection: {flops / 1e9:,.0f} GFLOP a step, {1e3 * compute:.1f} ms of computing {source};"
        f" a link of {args.latency_us:g} us and {args.gigabytes_per_second:g} GB/s.\n"
    )
    print("| GPUs | all-reduces | weak efficiency | without overlap |\n|---|---|---|---|")
    for gpus in GPUS:
        exchange, overlapped, plain = projection(compute, gradient_bytes, gpus, latency, bandwidth)
        print(f"| {gpus} | {1e3 * exchange:.2f} ms | {overlapped:.3f} | {plain:.3f} |")


def step_seconds(batch_size: int, measured: dict[str, float]) -> float:
    """The seconds of a step but for its wait for data."""
    return batch_size * (1 - measured["data_wait_percent"] / 100) / measured["images_per_second"]


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
