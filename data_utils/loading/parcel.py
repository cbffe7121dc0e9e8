"""A batch on its way from a loader's worker process to training: limits of the machine end it in one line."""

import errno
import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

from torch.utils.data import get_worker_info

from data_utils.loading.dataset import CollatedBatch
from runtime.errors import SettingsError, UserError, one_line
from runtime.parallel import lost_worker

OPEN_FILES = 256  # open files that loader workers need: each tensor on its way is one, in both processes

REMEDIES = {
    errno.ENOSPC: "give it more shared memory (docker run --shm-size 8g or --ipc=host)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f unlimited)",
    errno.EMFILE: "raise the limit of open files (ulimit -n 4096)",
}


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
            raise UserError(no_room(reason)) from error

    def __reduce__(self) -> tuple[Callable, tuple[bytes]]:
        return _unpack, (self.content,)


def _unpack(content: bytes) -> CollatedBatch:
    """The batch of a parcel; its tensors' memory comes from the worker, which may have been killed."""
    try:
        return ForkingPickler.loads(content)
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        raise UserError(lost_worker(one_line(error))) from error


class PackedCollate:
    """A batch as `collate` returns it, as a Parcel where a worker process calls it."""

    def __init__(self, collate: Callable[[list], CollatedBatch]) -> None:
        self.collate = collate

    def __call__(self, samples: list) -> CollatedBatch | Parcel:
        batch = self.collate(samples)
        if get_worker_info() is None:
            return batch
        return Parcel(batch)


def no_room(reason: int) -> str:
    """The message for an operating system's error number: why a worker cannot pass on a batch, and what to do."""
    return (
        f"a loader's worker process cannot pass on a batch ({os.strerror(reason).lower()}): "
        f"{REMEDIES[reason]}, or add --num-workers 0"
    )


def raise_open_file_limit() -> None:
    """Raise this process's limit of open files as far as it may. Raises SettingsError if that is not enough."""
    if sys.platform == "win32":
        return
    import resource  # Windows has no such module

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        raise SettingsError(
            f"only {hard} files may be open at once (ulimit -n), and loader worker processes need {OPEN_FILES}: "
            f"{REMEDIES[errno.EMFILE]}, or add --num-workers 0"
        )
