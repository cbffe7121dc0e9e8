"""Types of numbers, and copies between a device and the host: most do not make the host wait, and a few do.

A blocking copy waits for all work that was queued before it, and the device then idles until the host has queued more.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise type of numbers that a device has: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def full_precision(values: Tensor) -> Tensor:
    """Numbers as float32, or float64 where they are that: 16 bits are too few to add up or to interpolate."""
    return values if values.dtype == torch.float64 else values.float()


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device; the host does not wait. A CUDA device takes it from pinned memory."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_like(values: Tensor | Sequence[float], tensor: Tensor) -> Tensor:
    """Numbers of the CPU, with the type of a tensor and on its device; the host does not wait."""
    return upload(torch.as_tensor(values).to(tensor.dtype), tensor.device)


def download(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device, on the CPU; the host waits once for all. Those on a CPU are returned as they are."""
    if not tensors:
        return []
    # the queue is in order: the last copy, which is waited for, ends after all others
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors[:-1]]
    copies.append(tensors[-1].to("cpu"))
    return copies


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all queued work; copies to the CPU are then complete."""
    torch.zeros((), device=device).item()


class LateRead:
    """Numbers (N,) that the device computes, read by the host later, when it has queued more work."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = values.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    @staticmethod
    def read(reads: Sequence["LateRead"]) -> list[list[float]]:
        """The numbers of each, of one length and in the order in which they were computed; the host waits once."""
        if not reads:
            return []
        if reads[-1]._copied is not None:
            reads[-1]._copied.synchronize()
        return torch.stack([read._values for read in reads]).tolist()
