"""`scaling.py --images N`: what so many images cost a process before its first step, and at the start of an epoch.

Two processes share the index of tar files that are not there. Nothing is decoded: an index of real files is made once.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.distributed as dist
from accelerate import Accelerator

import train  # noqa: F401  # a process of a run has all of this in memory
from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler
from data_utils.loading.loaders import build_loaders, network_shapes
from data_utils.sources.streams.webdataset import TarRecords, group_samples
from data_utils.targets.classes import ClassReader
from runtime.distributed import on_main
from unet.config import UNetConfig

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
SIZES = 5000  # different sizes of images
SHARD = 10_000  # samples of a tar file
MEMBER_BYTES = 200_000
VALIDATION = 100  # one of so many images validates
STATUS = Path("/proc/self/status")


def synthetic_info(images: int) -> DatasetInfo:
    """A data set of `images` training images, and a hundredth of them to validate on."""
    reader = ClassReader(ClassMap(("background", "object"), (0, 255), None))
    normalization = Normalization((0.5,) * 3, (0.25,) * 3, ())
    train_split = synthetic_split(images, seed=0)
    val_split = synthetic_split(max(1, images // VALIDATION), seed=1)
    return DatasetInfo(DataConfig("synthetic"), train_split, val_split, reader, normalization)


def synthetic_split(images: int, seed: int) -> Split:
    """An index of samples in tar files, and a size of each."""
    rng = np.random.default_rng(seed)
    shards = -(-images // SHARD)
    counts = np.full(shards, SHARD)
    counts[-1] = images - SHARD * (shards - 1)
    files = [f"s3://bucket/train-{shard:06}.tar" for shard in range(shards)]
    names = np.char.zfill(np.arange(images).astype(np.bytes_), 9)
    first_bytes = 2 * MEMBER_BYTES * (np.arange(images) % SHARD)
    starts = np.stack([first_bytes, first_bytes + MEMBER_BYTES], axis=1)
    lengths = np.full((images, 2), MEMBER_BYTES // 2, np.uint32)
    records = TarRecords(files, group_samples(counts.tolist()), names, starts, lengths)
    sizes = rng.integers(200, 2000, (SIZES, 2), np.int32)[rng.integers(0, SIZES, images, np.int32)]
    return Split(records, sizes)


def process(images: int, batch_size: int) -> None:
    """One of the processes: prints seconds and memory as JSON, one after the other."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    accelerator = Accelerator()
    info = synthetic_info(images) if accelerator.is_main_process else None
    accelerator.wait_for_everyone()
    memory = [megabytes("VmHWM")]

    begin = Moment.now()
    info = on_main(accelerator, lambda: info)
    fingerprint = on_main(accelerator, lambda: info.fingerprint())
    config = UNetConfig(preprocess=info.preprocess())
    shapes = network_shapes(info, config)
    split = BatchSplit(batch_size, PROCESSES, batch_size // PROCESSES, 1)
    loaders = build_loaders(info, config, shapes, split, range(images), num_workers=0, device=accelerator.device)
    next(iter(loaders[0].batch_sampler))
    seconds = {"start": begin.seconds_since()}
    memory.append(megabytes("VmHWM"))

    for order, group_sizes in (("files", None), ("stream", info.train.records.group_sizes)):
        sampler = TrainingSampler(shapes.train, split, 0, range(images), group_sizes)
        begin = Moment.now()
        batches = sampler.batches(1)
        batches[0]
        seconds[order] = begin.seconds_since()
        del batches
    memory.append(megabytes("VmHWM"))

    for rank in range(PROCESSES):
        accelerator.wait_for_everyone()
        if accelerator.process_index == rank:
            numbers = {"rank": rank, "seconds": seconds, "megabytes": memory, "fingerprint": fingerprint}
            print(json.dumps(numbers), flush=True)
    dist.destroy_process_group()


class Moment(NamedTuple):
    """A moment by the clock, and by the processor time of this process."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.perf_counter(), time.process_time())

    def seconds_since(self) -> tuple[float, float]:
        """Seconds of the clock, and of the processor, since then."""
        now = Moment.now()
        return now.clock - self.clock, now.processor - self.processor


def megabytes(line: str) -> int:
    """A line of what Linux says of this process's memory."""
    lines = dict(line.split(":") for line in STATUS.read_text().splitlines())
    return int(lines[line].split()[0]) // 1024


def report(images: int, batch_size: int) -> None:
    """Run the processes, and print a table."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    script = [str(ROOT / "benchmarks" / "scaling.py"), "--process-of-many", str(images), str(batch_size)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *launcher, *script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"a process failed:\n{run.stderr}")
    print(f"{images:,} images, batches of {batch_size}, {PROCESSES} processes on CPUs; in brackets processor time\n")
    print("| process | start | epoch of files | epoch of a stream | memory before | after the start | most |")
    print("|---|---|---|---|---|---|---|")
    for line in run.stdout.splitlines():
        numbers = json.loads(line)
        times = " | ".join("{:.2f} s ({:.2f} s)".format(*numbers["seconds"][name]) for name in numbers["seconds"])
        memory = " | ".join(f"{size:,} MB" for size in numbers["megabytes"])
        print(f"| {numbers['rank']} | {times} | {memory} |")
