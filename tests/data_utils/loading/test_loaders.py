"""Loaders of both splits: shapes, processes and threads, what is decoded once, and the order of training."""

from dataclasses import replace

import pytest
import torch
from support.data_sets import load_info
from support.folders import write_folder
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import build_loaders, network_shapes
from unet.config import UNetConfig


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    folder = write_folder(tmp_path_factory.mktemp("data"), 6, seed=0, size=(16, 24))
    return load_info(folder, crop_size=(8, 8), augment="strong", val_fraction=0.4)


def loaders_of(
    info: DatasetInfo, batch_split: BatchSplit, *, steps: int = 2, num_workers: int | None = 0
) -> tuple[DataLoader, DataLoader]:
    """The loaders of a small network on the CPU, for so many training steps and for evaluation."""
    config = UNetConfig(base_channels=2, depth=1)
    shapes = network_shapes(info, config)
    device = torch.device("cpu")
    return build_loaders(info, config, shapes, batch_split, range(steps), num_workers=num_workers, device=device)


def order_of_training(info: DatasetInfo, seed: int) -> list[list[int]]:
    """The indices of the images of each step."""
    seeded = replace(info, config=replace(info.config, seed=seed))
    train, _ = loaders_of(seeded, BatchSplit(3, groups=1, micro_batch_size=3, accumulation=1), steps=4)
    return [[slot.index for slot in slots] for slots in train.batch_sampler]


def test_the_order_of_training_follows_the_seed_of_the_data(info):
    assert order_of_training(info, seed=0) == order_of_training(info, seed=0)
    assert order_of_training(info, seed=0) != order_of_training(info, seed=1)


def test_no_process_is_started_that_would_have_no_batch(info):
    batch_split = BatchSplit(4, groups=1, micro_batch_size=2, accumulation=2)
    assert [loader.num_workers for loader in loaders_of(info, batch_split, steps=3, num_workers=5000)] == [6, 6]
