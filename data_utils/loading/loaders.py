"""The two loaders of a run. accelerate deals their batches out: batch i to process i mod world size."""

import signal
from collections.abc import Callable

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import SIDE_BY_SIDE, EvaluationSampler, TrainingSampler
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset, collate_evaluation, collate_training
from data_utils.sources.records import StreamRecords
from unet.config import Preprocess


def build_loaders(
    info: DatasetInfo,
    preprocess: Preprocess,
    sampler: TrainingSampler,
    val_sampler: EvaluationSampler,
    num_workers: int,
) -> tuple[DataLoader, DataLoader]:
    """Micro-batches of the run's steps, endless epochs in one pass, and the validation images once, none padded.

    With --cache, all are decoded now, or have been in an earlier run.
    """
    train = TrainingDataset(info.train, info, preprocess)
    val = EvaluationDataset(info.val, info, preprocess)
    if isinstance(info.train.records, StreamRecords):  # every lane of this process, and each lane's groups side by side
        of_process = sampler.split.micro_batch_size * sampler.split.accumulation
        info.train.records.open_groups = of_process * SIDE_BY_SIDE
    if info.config.cache:
        train.cache()
        val.cache()
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
