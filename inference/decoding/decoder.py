"""From logits to predictions: the answers of the network, as files hold them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from runtime.device import download, upload
from tasks.task import Task

UNSURE_LEVEL = 255  # the level of an answer that is as likely as any other
NO_EXTRAS: Mapping[str, Any] = MappingProxyType({})


class Strip(NamedTuple):
    """A part of a prediction: the next rows of an image, or slices of a volume.

    Args:
        rows: (n, W) or (n, H, W); None if the logits read so far settle no row.
        probabilities: (outputs, n, W) or (outputs, n, H, W) of the rows that were read; None unless requested.
        extras: further requested tensors of the rows that were read, by name.
    """

    rows: np.ndarray | None
    probabilities: np.ndarray | None = None
    extras: Mapping[str, np.ndarray] = NO_EXTRAS


class Decoder(ABC):
    """Reads the prediction of one image or volume from its logits, which come in strips from top to bottom.

    A caller uses it in one of two ways:

    - `add` for each strip, then `finish`: settled rows come to the CPU while earlier ones are written. `read` does
      both.
    - `add_on_device` for each strip, then `finish_on_device` with all the results: the prediction is whole, and stays
      on the device. Evaluations score it this way.

    All other methods keep no state: a `Predictor` averages and reads logits of many images by one decoder.

    A decoder that reads each pixel by itself overrides `decode`, and needs nothing else. Others override both ways:
    they keep the data that they need of the strips, and return the prediction from `finish` and from
    `finish_on_device` (or `prediction_of`).

    Args:
        scratch: the folder of a temporary file, if one is needed; None for the system's folder of temporary files.

    Attributes:
        dtype: NumPy's name of the type of predictions.
        at_image_size: whether logits are resized to the image's own size before they are read; else they stay at
            the size of the network's input.
        reading: how another program reads the prediction from the logits, in words.
    """

    dtype = "uint8"
    reading = ""
    at_image_size = True

    def __init__(self, task: Task, scratch: Path | None = None) -> None:
        self.task = task

    @property
    def objects(self) -> Sequence[Any]:
        """The objects of the prediction, once all of it is read; empty if a task has none."""
        return ()

    @abstractmethod
    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        """The answer of each pixel from its logits along axis `dim`, which is dropped; on their device.

        If each pixel is read by itself, the answer is the prediction.
        """

    def prediction_of(self, answers: Tensor) -> Tensor:
        """The prediction of an image or volume from the answers (1, *spatial) of all of its pixels."""
        return answers

    def mask(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a prediction, in the form that `Predictor` returns."""
        return rows

    @abstractmethod
    def probabilities(self, logits: Tensor, dim: int = 0) -> Tensor:
        """Probabilities in the shape of the logits; they are averaged over networks and views, and may be written."""

    @abstractmethod
    def logits_of(self, probabilities: Tensor, dim: int = 0) -> Tensor:
        """Logits that have these `probabilities`."""

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the answer at each pixel of logits (outputs, n, ...): 0 if sure, 1 if all are as likely.

        Here each output is a separate yes-or-no question, and the result is the entropy of the least sure one.
        """
        probabilities = self.probabilities(logits)
        output_entropy = torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
        return output_entropy.amax(dim=0) / math.log(2)

    def uncertainty(self, logits: Tensor) -> Tensor:
        """The entropy of a strip of logits (outputs, n, ...) as uint8 (n, ...), 255 where it is the largest."""
        return (self.entropy(logits) * UNSURE_LEVEL).round().to(torch.uint8)

    def certainty(self, logits: Tensor) -> Tensor | None:
        """The certainty for `Task.count_certainty`, from logits (outputs, n, ...); None if the task counts none."""
        return None

    def average(self, logits: Sequence[Tensor], dim: int = 0) -> Tensor:
        """The averaged logits of several networks or views."""
        if len(logits) == 1:
            return logits[0]
        # logits of an ONNX file are on the CPU, also if other networks compute on a GPU
        devices = [view.device for view in logits if not view.is_cpu]
        device = devices[0] if devices else logits[0].device
        views = []
        for view in logits:
            views.append(view if view.device == device else upload(view, device))
        return self.joined(views, dim)

    def joined(self, views: Sequence[Tensor], dim: int) -> Tensor:
        """Logits whose probabilities are the mean over `views`, which are on one device."""
        mean = sum(self.probabilities(view, dim) for view in views) / len(views)
        return self.logits_of(mean, dim)

    def mirrored_back(self, logits: Tensor, dim: int = 0) -> Tensor:
        """Logits of the image itself, from logits of its left-right mirror image."""
        return self.unmirrored(logits.flip(-1), dim)

    def unmirrored(self, logits: Tensor, dim: int) -> Tensor:
        """Logits that were mirrored back, with outputs swapped whose meanings a mirror swaps."""
        if not self.task.partners:
            return logits
        return logits.index_select(dim, upload(torch.tensor(self.task.partners), logits.device))

    def add_on_device(self, logits: Tensor) -> Tensor | None:
        """The answers to a strip of logits (1, outputs, n, ...); None if they are kept until all strips are read."""
        return self.decode(logits, dim=1).to(getattr(torch, self.dtype))

    def finish_on_device(self, answers: Sequence[Tensor]) -> Tensor:
        """The prediction, with a first axis of 1, from the results of `add_on_device` for all strips of an image."""
        return self.prediction_of(torch.cat(answers, dim=1))

    def add(self, logits: Tensor, *, probabilities: bool, extras: Mapping[str, Tensor] = NO_EXTRAS) -> Strip:
        """Read the next strip of logits, (outputs, n, W) or (outputs, n, H, W). The host waits once for all tensors.

        Args:
            extras: further tensors by name, computed from the strip, to copy to the CPU.
        """
        answers = self.decode(logits).to(getattr(torch, self.dtype))
        return self.downloaded(logits, answers, probabilities=probabilities, extras=extras)

    def downloaded(
        self, logits: Tensor, answers: Tensor | None, *, probabilities: bool, extras: Mapping[str, Tensor]
    ) -> Strip:
        """A strip on the CPU, whose rows are the answers. The host waits once for all tensors."""
        tensors = dict(extras)
        if answers is not None:
            tensors["rows"] = answers
        if probabilities:
            tensors["probabilities"] = self.probabilities(logits)
        copies = download(list(tensors.values()))
        arrays = {name: tensor.numpy() for name, tensor in zip(tensors, copies, strict=True)}
        return Strip(arrays.pop("rows", None), arrays.pop("probabilities", None), arrays)

    def finish(self) -> Iterator[Strip]:
        """The rest of the prediction, after all strips were read."""
        return iter(())

    def read(self, strips: Iterable[Tensor], *, probabilities: bool) -> Iterator[Strip]:
        """The prediction of an image from all of its strips."""
        for logits in strips:
            yield self.add(logits, probabilities=probabilities)
        yield from self.finish()
