"""The two loaders of a run. accelerate deals their batches out: batch i to process i mod world size."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from data_utils.batching import SIDE_BY_SIDE, EvaluationSampler, TrainingSampler, epoch_batches, stream_batches
from data_utils.dataset import EvaluationDataset, TrainingDataset, collate_evaluation, collate_training
from data_utils.survey import Data

Cache = tuple[str, Callable]  # what `read` depends on, and the progress bar


def training_loader(
    data: Data,
    read: Callable[..., np.ndarray],
    shapes: np.ndarray,
    *,
    batch_size: int,
    micro_batch_size: int,
    world_size: int,
    crop_size: tuple[int, int] | None,
    seed: int,
    steps: range,
    num_workers: int,
    cache: Cache | None = None,
) -> DataLoader:
    """Micro-batches of the run's `steps`, endless epochs in one pass; `read(source, name)` gives (C, h, w) images.

    With `cache`, all images are decoded now, or have been in an earlier run.
    """
    options = {"fill": data.mean, "bad": data.train_bad, "skip": data.skip}
    dataset = TrainingDataset(data.train, read, data.classes, crop_size=crop_size, seed=seed, **options)
    if cache is not None:
        dataset.cache(*cache)
    order = epoch_batches
    if data.groups is not None:
        order = partial(stream_batches, data.groups)
    sampler = TrainingSampler(shapes, batch_size, micro_batch_size, world_size, seed, steps, order)
    if data.groups is not None:  # every lane of this process, and each lane's groups side by side
        data.train.open_groups = micro_batch_size * sampler.accumulation * SIDE_BY_SIDE
    return _loader(dataset, sampler, collate_training, num_workers)


def evaluation_loader(
    data: Data,
    read: Callable[..., np.ndarray],
    shapes: np.ndarray,
    *,
    batch_size_of: Callable[[int, int], int],
    world_size: int,
    num_workers: int,
    cache: Cache | None = None,
) -> DataLoader:
    """The validation images once, none padded, each in the batch it has on any number of processes."""
    options = {"fill": data.mean, "bad": data.val_bad, "skip": data.skip}
    dataset = EvaluationDataset(data.val, read, data.classes, **options)
    if cache is not None:
        dataset.cache(*cache)
    return _loader(dataset, EvaluationSampler(shapes, batch_size_of, world_size), collate_evaluation, num_workers)


def _loader(dataset: Dataset, sampler: BatchSampler, collate: Callable, num_workers: int) -> DataLoader:
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=num_workers > 0,
    )
