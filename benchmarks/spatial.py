"""What a step costs each of several processes that share a volume, beside one process: memory, time, exchange.

python benchmarks/spatial.py --size 128 96 96 --base-channels 16

Each number of processes makes the same steps of a network on one volume. Printed for the process that has most of it:
what is kept for the backward pass, the seconds of a step on the clock and of the processor, and the bytes that a
process sends to its neighbors in a step. Processes have one thread each; nothing else should run on the machine.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.mesh import Mesh
from tasks.classes import Classes, ClassTarget
from train_utils.slab_layers import split_network
from train_utils.slabs import Slabs, new_step_loss
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet import UNetConfig
from unet.blocks import channels_last
from unet.model import DeeplySupervisedUNet

CLASSES = 4
BATCH_NORMS = (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class KeptTensors:
    """Bytes of what the forward pass keeps for the backward pass, each memory once, without the weights."""

    def __init__(self, network: torch.nn.Module) -> None:
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
        self._bytes: dict[int, int] = {}

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def total(self) -> int:
        return sum(self._bytes.values())


class CountingMesh(Mesh):
    """A mesh that counts what is sent to neighbors."""

    sent = 0

    def exchange(self, to_previous: Tensor | None, to_next: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        for tensor in (to_previous, to_next):
            if tensor is not None:
                CountingMesh.sent += tensor.nbytes
        return super().exchange(to_previous, to_next)


def measure(rank: int, processes: int, args: argparse.Namespace, folder: str) -> None:
    """Make the steps as one of several processes; writes what they cost into the folder."""
    torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    mesh = CountingMesh.from_process(rank, processes, processes)
    torch.manual_seed(0)
    dims = len(args.size)
    config = UNetConfig(1, CLASSES, base_channels=args.base_channels, depth=args.depth, norm=args.norm, dims=dims)
    network = DeeplySupervisedUNet(config).train()
    images = channels_last(torch.randn(1, 1, *args.size))
    targets = ClassTarget(torch.randint(0, CLASSES, (1, *args.size)))
    slabs = Slabs(mesh, config.divisors[0])
    names = [str(number) for number in range(CLASSES)]
    criterion = new_step_loss(Classes(tuple(names)), network.head_strides, slabs)
    model: torch.nn.Module = network
    if processes > 1:
        for name, layer in list(network.named_modules()):
            if isinstance(layer, BATCH_NORMS):
                network.set_submodule(name, SynchronizedBatchNorm.from_norm(layer))
        split_network(network, slabs)
        model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    counts = StepCounts()
    for _ in range(args.steps):
        kept_tensors = KeptTensors(network)
        CountingMesh.sent = 0
        begin, begin_processor = time.monotonic(), time.process_time()
        denominators = criterion.counts(targets)
        if processes > 1:
            dist.all_reduce(denominators)
        with torch.autograd.graph.saved_tensors_hooks(kept_tensors.add, lambda tensor: tensor):
            logits = model(images)
        (criterion(logits, targets, denominators) * processes).backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.seconds.append(time.monotonic() - begin)
        counts.processor.append(time.process_time() - begin_processor)
    result = {
        "kept": kept_tensors.total(),
        "seconds": median(counts.seconds[1:]),
        "processor": median(counts.processor[1:]),
        "sent": CountingMesh.sent,
    }
    Path(folder, f"result-{rank}.json").write_text(json.dumps(result))
    if processes > 1:
        dist.destroy_process_group()


class StepCounts:
    """The seconds of each step, on the clock and of the processor."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs="+", default=[128, 96, 96])
    parser.add_argument("--base-channels", type=int, default=16)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--norm", default="instance")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| processes | kept | to one | s a step | to one | processor s | to one | sent |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    first: dict[str, float] = {}
    for processes in args.processes:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(measure, (processes, args, folder), processes)
            results = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("result-*.json"))]
        most = {key: max(result[key] for result in results) for key in results[0]}
        first = first or most
        ratios = {key: most[key] / first[key] for key in ("kept", "seconds", "processor")}
        print(
            f"| {processes} | {most['kept'] / 1e6:.0f} MB | {ratios['kept']:.2f} | {most['seconds']:.2f} |"
            f" {ratios['seconds']:.2f} | {most['processor']:.2f} | {ratios['processor']:.2f} |"
            f" {most['sent'] / 1e6:.1f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
