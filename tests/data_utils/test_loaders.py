"""Loaders of both splits: shapes, processes and threads, what is decoded once, and the order of training."""

import signal
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import load_info, write_folder
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading import loaders
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.loaders import NetworkShapes, build_loaders, network_shapes
from data_utils.loading.parcel import PackedCollate
from data_utils.loading.samples import VolumeSamples
from data_utils.sources.records import StreamRecords
from runtime import signals
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


def test_shapes_of_both_splits_are_known_by_their_sides():
    shapes = NetworkShapes(np.array([(4, 9), (6, 3)]), np.array([(6, 3)]))
    assert (shapes.largest, shapes.shortest_first_side, shapes.mean_pixels) == ((6, 9), 4, 27)
    assert shapes.differ
    same = np.array([(6, 5)] * 2)
    assert not NetworkShapes(same, same).differ
    assert NetworkShapes(same, np.array([(6, 4)])).differ


def test_training_images_are_as_large_as_crops_and_twice_the_divisors(info):
    shapes = network_shapes(info, UNetConfig(base_channels=2, depth=1))
    assert shapes.train.tolist() == [[8, 8]] * len(info.train)
    assert shapes.train.dtype == np.int32
    assert network_shapes(info, UNetConfig(base_channels=2, depth=3)).train[0].tolist() == [16, 16]
    large = replace(info, config=replace(info.config, crop_size=(40, 8)))
    assert network_shapes(large, UNetConfig(base_channels=2, depth=1)).train[0].tolist() == [40, 8]


def test_the_order_of_training_follows_the_seed_of_the_data(info):
    orders = []
    for seed in (0, 1, 0):
        seeded = replace(info, config=replace(info.config, seed=seed))
        train, _ = loaders_of(seeded, BatchSplit(3, groups=1, micro_batch_size=3, accumulation=1), steps=4)
        orders.append([[slot.index for slot in slots] for slots in train.batch_sampler])
    assert orders[0] == orders[2] != orders[1]


def test_images_of_many_sizes_are_validated_without_padding(info):
    sizes = np.array([(16, 16 + 2 * number) for number in range(20)], np.int32)
    many = replace(info, val=replace(info.val, sizes=sizes))
    assert network_shapes(many, UNetConfig(base_channels=2, depth=1)).val.tolist() == sizes.tolist()


class Stream(StreamRecords):
    """Records of a stream that reads the pictures of a folder."""

    def __init__(self, records) -> None:
        self.records = records
        self.group_sizes = np.array([len(records)])
        self.open_groups = 0
        self.is_scattered = False

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> dict:
        return self.records[i]

    def subset(self, chosen: np.ndarray) -> "Stream":
        raise AssertionError

    def _read_group(self, group: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(("asked", "processes", "threads"), [(0, 0, 1), (1, 1, 1), (3, 2, 1), (7, 4, 1), (8, 4, 2)])
def test_a_stream_has_as_many_processes_as_share_no_group_and_threads_for_the_rest(
    info, monkeypatch, asked, processes, threads
):
    raised = []
    monkeypatch.setattr(loaders, "raise_open_file_limit", lambda: raised.append(True))
    train, val = Stream(info.train.records), Stream(info.val.records)
    streamed = replace(info, train=replace(info.train, records=train), val=replace(info.val, records=val))
    batch_split = BatchSplit(8, groups=2, micro_batch_size=2, accumulation=2)
    both_loaders = loaders_of(streamed, batch_split, num_workers=asked)
    assert both_loaders[0].batch_sampler.group_sizes.tolist() == [len(train)]  # read group by group
    for loader in both_loaders:
        assert (loader.num_workers, loader.dataset.threads) == (processes, threads)
        assert loader.persistent_workers is (processes > 0)
        assert isinstance(loader.collate_fn, PackedCollate)
    assert len(raised) == (processes > 0)  # each tensor on its way is an open file
    # the lanes of a step of this process, each with four groups side by side
    assert (train.open_groups, train.is_scattered, val.is_scattered) == (16, False, True)


def test_a_loader_process_outlasts_signals_to_stop(info, monkeypatch):
    monkeypatch.setattr(signals.ctypes, "CDLL", Mock())  # this process is not to end with its parent
    batch_split = BatchSplit(4, groups=2, micro_batch_size=2, accumulation=1, processes_per_volume=2)
    train, val = loaders_of(info, batch_split)
    assert len(val.batch_sampler) % 4 == 0  # a batch for each process of the launch
    handlers = {number: signal.getsignal(number) for number in signals.stop_signals()}
    try:
        for loader in (train, val):
            loader.worker_init_fn(0)
            for number, handler in handlers.items():
                assert signal.getsignal(number) == signal.SIG_IGN
                signal.signal(number, handler)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_volumes_are_evaluated_one_by_one_and_decoded_for_both_splits(info, monkeypatch):
    decoded = []
    for dataset in (TrainingDataset, EvaluationDataset):
        monkeypatch.setattr(dataset, "cache", lambda self: decoded.append(type(self).__name__))
    monkeypatch.setattr("data_utils.loading.samples.ImageSamples.share_batches", False)
    monkeypatch.setattr("data_utils.loading.samples.ImageSamples.are_cached", True)
    _, val = loaders_of(info, BatchSplit(4, groups=1, micro_batch_size=4, accumulation=1))
    assert decoded == ["TrainingDataset", "EvaluationDataset"]
    assert len(val.batch_sampler) == len(info.val)
    assert not VolumeSamples.share_batches
    assert VolumeSamples.are_cached


@pytest.mark.parametrize("is_cached", [True, False])
def test_images_are_decoded_once_only_where_a_flag_says_so(info, monkeypatch, is_cached):
    decoded = []
    for dataset in (TrainingDataset, EvaluationDataset):
        monkeypatch.setattr(dataset, "cache", lambda self: decoded.append(type(self).__name__))
    chosen = replace(info, config=replace(info.config, cache=is_cached))
    batch_split = BatchSplit(4, groups=1, micro_batch_size=4, accumulation=1)
    monkeypatch.setattr(loaders, "default_workers", lambda device: 3)
    for asked, processes in ((0, 0), (None, 3)):
        both_loaders = loaders_of(chosen, batch_split, num_workers=asked)
        assert [loader.num_workers for loader in both_loaders] == [processes] * 2
    assert decoded == ["TrainingDataset", "EvaluationDataset"] * 2 * is_cached
