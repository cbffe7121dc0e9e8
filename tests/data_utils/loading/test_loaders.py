"""Loaders of both splits: shapes, processes and threads, what is decoded once, and the order of training."""

import signal
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.data_sets import load_info
from support.folders import write_folder
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
    assert shapes.largest == (6, 9)
    assert shapes.shortest_first_side == 4
    assert shapes.mean_pixels == 27


@pytest.mark.parametrize(
    ("train", "val", "differ"),
    [([(4, 9), (6, 3)], [(6, 3)], True), ([(6, 5)] * 2, [(6, 5)] * 2, False), ([(6, 5)] * 2, [(6, 4)], True)],
    ids=["within a split", "nowhere", "between splits"],
)
def test_shapes_differ_within_a_split_or_between_splits(train, val, differ):
    assert NetworkShapes(np.array(train), np.array(val)).differ is differ


def test_training_images_are_as_large_as_crops_and_twice_the_divisors(info):
    shapes = network_shapes(info, UNetConfig(base_channels=2, depth=1))
    assert shapes.train.tolist() == [[8, 8]] * len(info.train)
    assert shapes.train.dtype == np.int32
    assert network_shapes(info, UNetConfig(base_channels=2, depth=3)).train[0].tolist() == [16, 16]
    large = replace(info, config=replace(info.config, crop_size=(40, 8)))
    assert network_shapes(large, UNetConfig(base_channels=2, depth=1)).train[0].tolist() == [40, 8]


def order_of_training(info: DatasetInfo, seed: int) -> list[list[int]]:
    """The indices of the images of each step."""
    seeded = replace(info, config=replace(info.config, seed=seed))
    train, _ = loaders_of(seeded, BatchSplit(3, groups=1, micro_batch_size=3, accumulation=1), steps=4)
    return [[slot.index for slot in slots] for slots in train.batch_sampler]


def test_the_order_of_training_follows_the_seed_of_the_data(info):
    assert order_of_training(info, seed=0) == order_of_training(info, seed=0)
    assert order_of_training(info, seed=0) != order_of_training(info, seed=1)


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


@pytest.fixture
def stream_info(info):
    """The same data set as a stream."""
    train, val = Stream(info.train.records), Stream(info.val.records)
    return replace(info, train=replace(info.train, records=train), val=replace(info.val, records=val))


def test_no_process_is_started_that_would_have_no_batch(info):
    batch_split = BatchSplit(4, groups=1, micro_batch_size=2, accumulation=2)
    assert [loader.num_workers for loader in loaders_of(info, batch_split, steps=3, num_workers=5000)] == [6, 6]


STREAM_SPLIT = BatchSplit(8, groups=2, micro_batch_size=2, accumulation=2)


@pytest.mark.parametrize(
    ("num_workers", "processes", "threads"), [(0, 0, 1), (1, 1, 1), (3, 2, 1), (7, 4, 1), (8, 4, 2)]
)
def test_a_stream_has_as_many_processes_as_share_no_group(stream_info, monkeypatch, num_workers, processes, threads):
    raised_limits = []
    monkeypatch.setattr(loaders, "raise_open_file_limit", lambda: raised_limits.append(True))
    for loader in loaders_of(stream_info, STREAM_SPLIT, num_workers=num_workers):
        assert loader.num_workers == processes
        assert loader.dataset.threads == threads  # for the workers that are left
        assert loader.persistent_workers is (processes > 0)
        assert isinstance(loader.collate_fn, PackedCollate)
    assert len(raised_limits) == (processes > 0)  # each tensor on its way is an open file


def test_a_stream_is_read_group_by_group(stream_info):
    train, _ = loaders_of(stream_info, STREAM_SPLIT)
    assert train.batch_sampler.group_sizes.tolist() == [len(stream_info.train)]


@pytest.mark.parametrize("num_workers", [0, 1, 3, 7, 8])
def test_a_stream_keeps_groups_open_for_each_lane_of_a_step(stream_info, num_workers):
    loaders_of(stream_info, STREAM_SPLIT, num_workers=num_workers)
    assert stream_info.train.records.open_groups == 16  # four for each lane of a step of this process


def test_a_stream_is_scattered_for_evaluation_alone(stream_info):
    loaders_of(stream_info, STREAM_SPLIT)
    assert not stream_info.train.records.is_scattered
    assert stream_info.val.records.is_scattered


@pytest.fixture
def handlers_of_signals(monkeypatch):
    """The handlers of the signals to stop, which are set again after the test."""
    monkeypatch.setattr(signals.ctypes, "CDLL", Mock())  # this process is not to end with its parent
    handlers = {number: signal.getsignal(number) for number in signals.stop_signals()}
    yield handlers
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_loader_process_outlasts_signals_to_stop(info, handlers_of_signals):
    for loader in loaders_of(info, BatchSplit(4, groups=2, micro_batch_size=2, accumulation=1)):
        loader.worker_init_fn(0)
        for number, handler in handlers_of_signals.items():
            assert signal.getsignal(number) == signal.SIG_IGN
            signal.signal(number, handler)


def test_a_volume_is_evaluated_by_each_process_of_the_launch(info):
    batch_split = BatchSplit(4, groups=2, micro_batch_size=2, accumulation=1, processes_per_volume=2)
    _, val = loaders_of(info, batch_split)
    assert len(val.batch_sampler) % 4 == 0


@pytest.fixture
def decoded_splits(monkeypatch):
    """The names of the data sets that are decoded to a cache; the list grows with them."""
    names: list[str] = []
    for dataset in (TrainingDataset, EvaluationDataset):
        monkeypatch.setattr(dataset, "cache", lambda self: names.append(type(self).__name__))
    return names


def test_samples_that_share_no_batch_are_evaluated_one_by_one(info, monkeypatch):
    monkeypatch.setattr("data_utils.loading.samples.ImageSamples.share_batches", False)
    _, val = loaders_of(info, BatchSplit(4, groups=1, micro_batch_size=4, accumulation=1))
    assert len(val.batch_sampler) == len(info.val)
    assert not VolumeSamples.share_batches


def test_samples_that_are_cached_are_decoded_for_both_splits(info, monkeypatch, decoded_splits):
    monkeypatch.setattr("data_utils.loading.samples.ImageSamples.are_cached", True)
    loaders_of(info, BatchSplit(4, groups=1, micro_batch_size=4, accumulation=1))
    assert decoded_splits == ["TrainingDataset", "EvaluationDataset"]
    assert VolumeSamples.are_cached


@pytest.mark.parametrize(
    ("is_cached", "names"), [(True, ["TrainingDataset", "EvaluationDataset"]), (False, [])], ids=["cache", "no cache"]
)
@pytest.mark.parametrize(("num_workers", "processes"), [(0, 0), (None, 3)])
def test_images_are_decoded_once_only_with_a_flag(
    info, monkeypatch, decoded_splits, is_cached, names, num_workers, processes
):
    monkeypatch.setattr(loaders, "default_workers", lambda device: 3)
    chosen = replace(info, config=replace(info.config, cache=is_cached))
    batch_split = BatchSplit(4, groups=1, micro_batch_size=4, accumulation=1)
    both_loaders = loaders_of(chosen, batch_split, steps=3, num_workers=num_workers)
    assert [loader.num_workers for loader in both_loaders] == [processes] * 2
    assert decoded_splits == names
