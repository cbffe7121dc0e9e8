"""The two loaders of a run. accelerate deals their batches out: batch i to process i mod world size."""

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from data_utils.batching import SIDE_BY_SIDE, EvaluationSampler, TrainingSampler
from data_utils.dataset import EvaluationDataset, TrainingDataset, collate_evaluation, collate_training
from data_utils.large import Crops
from data_utils.survey import Data

Cache = tuple[str, Callable]  # what `read` depends on, and the progress bar


def build_loaders(
    data: Data,
    read: Callable[..., np.ndarray],
    sampler: TrainingSampler,
    val_sampler: EvaluationSampler,
    crop_size: tuple[int, int] | None,
    num_workers: int,
    cache: Cache | None = None,
    crops: Crops | None = None,
) -> tuple[DataLoader, DataLoader]:
    """Micro-batches of the run's steps, endless epochs in one pass, and the validation images once, none padded.

    `read(source, name)` gives (C, h, w) images. With `cache`, all are decoded now, or have been in an earlier run.
    `crops` reads crops of images that are too large to be decoded whole for each.
    """
    common: dict[str, Any] = {"fill": data.mean, "skip": data.skip}
    options: dict[str, Any] = {"bad": data.train_bad, "crop_size": crop_size, "seed": sampler.seed}
    options |= {"places": data.train_places, "crops": crops}
    train = TrainingDataset(data.train, read, data.classes, **options, **common)
    val = EvaluationDataset(data.val, read, data.classes, bad=data.val_bad, **common)
    if data.groups is not None:  # every lane of this process, and each lane's groups side by side
        data.train.open_groups = sampler.micro_batch_size * sampler.accumulation * SIDE_BY_SIDE
    if cache is not None:
        train.cache(*cache)
        val.cache(*cache)
    return (
        _loader(train, sampler, collate_training, num_workers),
        _loader(val, val_sampler, collate_evaluation, num_workers),
    )


def _loader(dataset: Dataset, sampler: BatchSampler, collate: Callable, num_workers: int) -> DataLoader:
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=num_workers > 0,
        worker_init_fn=_outlast_signals,
    )


def _outlast_signals(worker: int) -> None:
    """A signal to stop may reach the workers too; the main process still needs them, to finish its step."""
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, signal.SIG_IGN)
