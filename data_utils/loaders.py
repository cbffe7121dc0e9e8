"""The two loaders of a run. accelerate deals their batches out: batch i to process i mod world size."""

import signal
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from data_utils.batching import EvaluationSampler, TrainingSampler
from data_utils.dataset import EvaluationDataset, TrainingDataset, collate_evaluation, collate_training
from data_utils.survey import Data


def build_loaders(
    data: Data,
    read: Callable[..., np.ndarray],
    sampler: TrainingSampler,
    val_sampler: EvaluationSampler,
    crop_size: tuple[int, int] | None,
    num_workers: int,
) -> tuple[DataLoader, DataLoader]:
    """Micro-batches of the run's steps, endless epochs in one pass, and the validation images once, none padded.

    `read(source, name)` gives (C, h, w) images.
    """
    train = TrainingDataset(data.train, read, data.classes, crop_size=crop_size, fill=data.mean, seed=sampler.seed)
    val = EvaluationDataset(data.val, read, data.classes)
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
