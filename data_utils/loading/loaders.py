"""The two loaders of a run. accelerate deals their batches out: batch i to process i mod world size."""

import atexit
import errno
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, get_worker_info

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.distinct_rows import distinct_rows
from data_utils.loading.batch_sampler import (
    SIDE_BY_SIDE,
    BatchSplit,
    EvaluationSampler,
    TrainingSampler,
    padded_shapes,
    pixels_per_batch,
)
from data_utils.loading.dataset import (
    CollatedBatch,
    EvaluationDataset,
    TrainingDataset,
    collate_evaluation,
    collate_training,
)
from data_utils.loading.decoded_cache import room_for
from data_utils.sources.records import StreamRows
from runtime.errors import UserError, one_line
from runtime.machine import default_workers
from runtime.parallel import end_workers, expect_lost_workers, lost_worker
from runtime.signals import outlast_stop_signals
from unet.config import Preprocess, UNetConfig

STREAM_WORKERS = (0, 1, 2, 4)  # numbers of loader processes that share no group of a stream: they divide SIDE_BY_SIDE

REMEDIES = {
    errno.ENOSPC: "give it more shared memory (docker run --shm-size 8g or --ipc=host)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f unlimited)",
    errno.EMFILE: "raise the limit of open files (ulimit -n 4096)",
}


class NetworkShapes(NamedTuple):
    """(N, n) int32 shapes, (H, W) or (D, H, W), of the images of both splits as a network sees them."""

    train: np.ndarray
    val: np.ndarray

    @property
    def largest(self) -> tuple[int, ...]:
        """(H, W) or (D, H, W) that holds every training image."""
        return tuple(self.train.max(axis=0).tolist())


def network_shapes(info: DatasetInfo, config: UNetConfig) -> NetworkShapes:
    """The shapes at which a network sees the images: in training cropped and padded, in validation as they are.

    Training images are padded to twice the divisors at least: a smaller one would leave a single value at the lowest
    level, which batch norm cannot normalize.
    """
    train = _input_sizes(info.train, config.preprocess)
    val = _input_sizes(info.val, config.preprocess)
    if info.config.crop_size:
        train[:] = info.config.crop_size
    smallest = 2 * np.array(config.divisors)
    train = padded_shapes(train)
    np.maximum(train, smallest, out=train, casting="unsafe")
    return NetworkShapes(train, val)


def _input_sizes(split: Split, preprocess: Preprocess) -> np.ndarray:
    """(N, n) int32, the sizes that the samples of a split are resized or resampled to."""
    if split.spacings is None:
        sizes = distinct_rows(split.sizes)
        input_sizes = np.array([preprocess.input_size(*size) for size in sizes.rows.tolist()], np.int32)
        return input_sizes[sizes.membership]
    grids = zip(split.sizes.tolist(), split.spacings.tolist(), strict=True)
    return np.array([preprocess.resampled_size(size, spacing) for size, spacing in grids], np.int32)


def build_loaders(
    info: DatasetInfo,
    config: UNetConfig,
    shapes: NetworkShapes,
    batch_split: BatchSplit,
    steps: Sequence[int],
    *,
    num_workers: int | None,
    device: torch.device,
) -> tuple[DataLoader, DataLoader]:
    """Micro-batches of the run's `steps`, endless epochs in one pass, and the validation images once, none padded.

    With --cache, and always for volumes, all images are decoded now unless an earlier run has done so.

    Args:
        num_workers: None for this process's share of the CPUs. A stream gets as many of STREAM_WORKERS as fit into
            it, and threads for the others.
    """
    train = TrainingDataset(info.train, info, config.preprocess)
    val = EvaluationDataset(info.val, info, config.preprocess)
    records = info.train.records
    train_sampler = TrainingSampler(shapes.train, batch_split, info.config.seed, steps, records.rows.group_sizes)
    are_volumes = records.dims == 3
    pixels = 1 if are_volumes else pixels_per_batch(device)
    val_sampler = EvaluationSampler(shapes.val, pixels, batch_split.world_size)
    if num_workers is None:
        num_workers = default_workers(device)
    # every lane of this process, and each lane's groups side by side
    if isinstance(records.rows, StreamRows):
        records.rows.open_groups = batch_split.micro_batch_size * batch_split.accumulation * SIDE_BY_SIDE
        processes = max(count for count in STREAM_WORKERS if count <= num_workers)
        train.threads = val.threads = max(1, num_workers // max(1, processes))
        num_workers = processes
    # a process without a batch would only wait
    num_workers = min(num_workers, max(len(steps) * batch_split.accumulation, len(val_sampler)))
    if isinstance(info.val.records.rows, StreamRows):
        # the batches of an evaluation go round among all processes
        info.val.records.rows.is_scattered = True
    if num_workers:
        atexit.register(end_workers)
        raise_open_file_limit()
    if info.config.cache or are_volumes:
        train.cache()
        val.cache()
    elif not isinstance(records.rows, StreamRows):
        usual_pixels = math.prod(info.usual_size(config.preprocess))
        for dataset in (train, val):
            dataset.room = room_for(len(dataset) * usual_pixels, info.channels, num_workers)
    train_loader = _loader(train, train_sampler, collate_training, num_workers, device)
    val_loader = _loader(val, val_sampler, collate_evaluation, num_workers, device)
    return train_loader, val_loader


def _loader(
    dataset: Dataset, sampler: BatchSampler, collate: Callable, num_workers: int, device: torch.device
) -> DataLoader:
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=partial(parceled, collate),
        num_workers=num_workers,
        pin_memory=device.type == "cuda",  # not wherever there is a GPU: a CPU run leaves it alone
        persistent_workers=num_workers > 0,
        worker_init_fn=_start_worker,
    )


def _start_worker(worker: int) -> None:
    """Make a loader worker ignore signals to stop: the main process still needs it to finish its step."""
    outlast_stop_signals()


class Parcel:
    """A batch that is in shared memory already when it is queued.

    The queue would move it there in a thread of its own. An error in that thread is printed, the batch is lost, and
    training waits for it for ever. An error raised in this class is passed on to training.
    """

    def __init__(self, batch: CollatedBatch) -> None:
        try:
            self.content = bytes(ForkingPickler.dumps(batch))
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError, whose text ends in "reason (number)"
            reason = next((code for code in REMEDIES if os.strerror(code) in str(error)), None)
            if reason is None:
                raise
            raise UserError(
                f"a loader's worker process cannot pass on a batch ({os.strerror(reason).lower()}): {REMEDIES[reason]},"
                " or add --num-workers 0"
            ) from error

    def __reduce__(self) -> tuple[Callable, tuple[bytes]]:
        return _unpack, (self.content,)


def _unpack(content: bytes) -> CollatedBatch:
    """The batch of a parcel; its tensors' memory comes from the worker, which may have been killed."""
    try:
        return ForkingPickler.loads(content)
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        expect_lost_workers()  # the line about it, not a second error, ends the run
        raise UserError(lost_worker(one_line(error))) from error


def parceled(collate: Callable[[list], CollatedBatch], samples: list) -> CollatedBatch | Parcel:
    """A batch as `collate` returns it, as a Parcel where a worker process calls it."""
    batch = collate(samples)
    return batch if get_worker_info() is None else Parcel(batch)


def raise_open_file_limit() -> None:
    """Raise this process's limit of open files as far as it may: each tensor on its way from a worker is one."""
    if sys.platform == "win32":
        return
    import resource  # Windows has no such module

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
