"""The machine's memory: what is free, what is kept for new tensors, and the error when it runs out.

Modules: runtime/memory.py.
"""

import weakref
from types import SimpleNamespace

import psutil
import pytest
import torch

from runtime import errors, memory
from runtime.memory import available_bytes, memory_shortage


def test_processes_share_the_free_memory_of_their_machine(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1001, total=5000))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert available_bytes() == 1001
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_bytes() == 250


def test_a_lack_of_memory_is_one_line_and_other_errors_stay():
    line = r"^a\.png: does not fit into memory; use tiles \(std::bad_alloc\)$"
    with pytest.raises(errors.MemoryShortage, match=line), memory_shortage("a.png", "use tiles"):
        raise RuntimeError("std::bad_alloc")
    line = f"^a: does not fit into memory; b \\(out of memory: {'x' * 85}\\)$"  # a hundred characters of the reason
    with pytest.raises(errors.MemoryShortage, match=line), memory_shortage("a", "b"):
        raise RuntimeError(f"out of memory: {'x' * 200}")
    with pytest.raises(RuntimeError, match=r"^a bug$"), memory_shortage("a.png", "use tiles"):
        raise RuntimeError("a bug")


def test_the_peak_of_memory_is_not_held_by_an_error():
    class Tensors(list):
        """Something that can be watched."""

    watched = []

    def fill() -> None:
        tensors = Tensors([1])
        watched.append(weakref.ref(tensors))
        raise MemoryError("full")

    with pytest.raises(errors.MemoryShortage) as caught, memory_shortage("a", "b"):
        fill()
    assert watched[0]() is None and str(caught.value) == "a: does not fit into memory; b (full)"


@pytest.mark.parametrize(("device", "calls"), [("cpu", [(-4, 0), (-1, 2**31 - 1)]), ("cuda", [])])
def test_freed_memory_is_kept_where_a_cpu_computes(monkeypatch, device, calls):
    made = []
    library = SimpleNamespace(mallopt=lambda option, value: made.append((option, value)))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory.sys, "platform", "linux")
    memory.keep_freed_memory(torch.device(device))
    assert made == calls
