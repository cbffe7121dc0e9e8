"""Types of numbers, and copies between a device and the host, most of which do not block the host.

A blocking copy waits for all work that was queued before it, and the device then idles until the host has queued more.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def best_device() -> torch.device:
    """This machine's accelerator, of whatever kind, else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise floating-point type of a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def full_precision(values: Tensor) -> Tensor:
    """Numbers as float32, since 16 bits are too few to add up or to interpolate; float64 stays float64."""
    return values if values.dtype == torch.float64 else values.float()


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor copied to the device, without blocking the host; for CUDA it is copied to pinned memory first."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_like(values: Tensor | Sequence[float], tensor: Tensor) -> Tensor:
    """Numbers on the CPU, copied to the type and device of `tensor` without blocking the host."""
    return upload(torch.as_tensor(values).to(tensor.dtype), tensor.device)


def download(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of one device copied to the CPU; the host waits once for all. Tensors of the CPU are not copied."""
    copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    for device in {tensor.device for tensor in tensors.values()}:
        wait_for(device)
    return copies


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all queued work; copies to the CPU are then complete."""
    torch.zeros((), device=device).item()


class LateRead:
    """Numbers (N,) that a device computes and that the host reads later, after it has queued more work."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = values.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    @staticmethod
    def read(reads: Sequence["LateRead"]) -> list[list[float]]:
        """The numbers of each `LateRead`; the host waits once.

        Args:
            reads: of equal length, in the order in which their numbers were computed.
        """
        if not reads:
            return []
        if reads[-1]._copied is not None:
            reads[-1]._copied.synchronize()
        return torch.stack([read._values for read in reads]).tolist()
