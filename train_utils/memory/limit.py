"""The limit that a run records when a step does not fit into memory."""

from dataclasses import dataclass
from pathlib import Path

from runtime.console import say
from runtime.documents import read_json
from runtime.errors import one_line
from runtime.values import Natural, from_json

MEMORY_FILE = "memory.json"


@dataclass(frozen=True)
class MemoryLimit:
    """The limits that a run has recorded in memory.json, in its output folder, after running out of memory."""

    micro_batch_size: Natural | None = None
    activation_checkpointing: bool = False


def read_memory_limit(folder: Path) -> MemoryLimit:
    """Read the largest micro-batch and the need for activation checkpointing that a run in this folder has recorded."""
    file = folder / MEMORY_FILE
    try:
        return from_json(MemoryLimit, read_json(file), MEMORY_FILE)
    except FileNotFoundError:
        return MemoryLimit()
    except (OSError, ValueError) as error:
        say(f"{file} is damaged, and is made again if memory runs out ({one_line(error)})")
        return MemoryLimit()
