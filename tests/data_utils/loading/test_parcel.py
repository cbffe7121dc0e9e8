"""Batches on their way from loader workers: what a machine's limits refuse ends the run in one line with the remedy.

Module: data_utils/loading/loaders.py.
"""

import gc
import resource
import signal
from functools import partial
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from data_utils.loading.loaders import Parcel, parceled
from runtime.errors import UserError


def stacked(samples: list) -> dict:
    return {"images": torch.stack([image for (image,) in samples])}


def small_files(worker: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def batches(**settings) -> list[dict]:
    """Two batches of 32 kB, through one worker."""
    images = torch.arange(4 * 4096.0).reshape(4, 4096)
    loader = DataLoader(
        TensorDataset(images), 2, collate_fn=partial(parceled, stacked), num_workers=1, timeout=60, **settings
    )
    return list(loader)


def test_a_batch_arrives_from_a_worker_as_it_was():
    arrived = torch.cat([batch["images"] for batch in batches()])
    assert torch.equal(arrived, torch.arange(4 * 4096.0).reshape(4, 4096))


def test_a_batch_that_does_not_fit_into_shared_memory_is_an_error_not_a_wait(monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # the wait for the worker's end
    with pytest.raises(UserError, match=r"file too large.*ulimit -f unlimited.*--num-workers 0"):
        batches(worker_init_fn=small_files)
    gc.collect()  # of the loader, which the error holds


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("unable to write to file </torch_1>: No space left on device (28)"), "--shm-size 8g"),
        (OSError(24, "Too many open files"), "ulimit -n 4096"),
    ],
)
def test_a_full_machine_is_named_with_its_remedy(monkeypatch, error, line):
    def full(batch: dict) -> bytes:
        raise error

    monkeypatch.setattr(ForkingPickler, "dumps", full)
    with pytest.raises(UserError, match=line):
        Parcel({})


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), EOFError(), FileNotFoundError(2, "no socket")]
)
def test_a_batch_whose_worker_was_killed_is_a_one_line_error(monkeypatch, error):
    def lost(content: bytes) -> dict:
        raise error

    def report(number: int, frame: object) -> None:
        raise RuntimeError("the worker was killed")

    before = signal.signal(signal.SIGCHLD, report)  # as torch does
    monkeypatch.setattr(ForkingPickler, "loads", lost)
    unpack, content = Parcel({}).__reduce__()
    try:
        with pytest.raises(UserError, match="process that loads images"):
            unpack(*content)
        signal.raise_signal(signal.SIGCHLD)  # the system tells of the end after the batch did
    finally:
        signal.signal(signal.SIGCHLD, before)
