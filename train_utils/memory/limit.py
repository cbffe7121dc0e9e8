"""The limit that a run records when a step does not fit into memory."""

from pathlib import Path
from typing import NamedTuple

from runtime.console import say
from runtime.documents import read_json
from runtime.errors import one_line

MEMORY_FILE = "memory.json"


class MemoryLimit(NamedTuple):
    """The limits that a run has recorded in memory.json, in its output folder, after running out of memory."""

    micro_batch_size: int | None = None
    activation_checkpointing: bool = False

    def check(self) -> None:
        """Raise ValueError for values that no run records."""
        size = self.micro_batch_size
        is_size = size is None or (type(size) is int and size >= 1)
        if not is_size or not isinstance(self.activation_checkpointing, bool):
            raise ValueError(f"it holds {self}")


def read_memory_limit(folder: Path) -> MemoryLimit:
    """Read the largest micro-batch and the need for activation checkpointing that a run in this folder has recorded."""
    file = folder / MEMORY_FILE
    try:
        limit = MemoryLimit(**read_json(file))
        limit.check()
    except FileNotFoundError:
        return MemoryLimit()
    except (OSError, ValueError, TypeError) as error:
        say(f"{file} is damaged, and is made again if memory runs out ({one_line(error)})")
        return MemoryLimit()
    return limit
