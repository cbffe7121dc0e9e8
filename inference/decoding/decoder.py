"""From logits to predictions: the answers of the network, as files hold them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from runtime.device import download
from runtime.errors import ImageError
from tasks.task import Task

OwnTask = TypeVar("OwnTask", bound=Task)
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


def check_finite(strip: Strip, name: str) -> Strip:
    """The strip. Raises ImageError, with `name`, if logits were no numbers, which would pass as a sure answer."""
    has_numbers = strip.rows is None or strip.rows.dtype.kind != "f" or bool(np.isfinite(strip.rows).all())
    if strip.extras.get("has_infinite", False) or not has_numbers:
        raise ImageError(
            f"{name}: the network's answers are not finite numbers; the model is damaged, or the image has values far"
            " beyond those of training"
        )
    return strip


def download_strip(rows: Tensor | None, probabilities: Tensor | None, extras: Mapping[str, Tensor]) -> Strip:
    """A strip on the CPU. The host waits once for all tensors."""
    tensors = dict(extras)
    if rows is not None:
        tensors["rows"] = rows
    if probabilities is not None:
        tensors["probabilities"] = probabilities
    copies = download(list(tensors.values()))
    arrays = {name: tensor.numpy() for name, tensor in zip(tensors, copies, strict=True)}
    return Strip(arrays.pop("rows", None), arrays.pop("probabilities", None), arrays)


class Decoder(ABC, Generic[OwnTask]):
    """Reads the prediction of one image or volume from its logits, which come in strips from top to bottom.

    A caller uses it in one of two ways:

    - `add` for each strip, then `finish`: settled rows come to the CPU while earlier ones are written. `read` does
      both.
    - `add_on_device` for each strip, then `finish_on_device` with all the results: the prediction is whole, and stays
      on the device. Evaluations score it this way.

    All other methods keep no state, so that one decoder serves the logits of many images.

    A decoder that reads each pixel by itself overrides `decode`, and needs nothing else. Others override both ways:
    they keep the data that they need of the strips, and return the prediction from `finish` and from
    `finish_on_device` (or `prediction_from_answers`).

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

    def __init__(self, task: OwnTask, scratch: Path | None = None) -> None:
        self.task = task

    @abstractmethod
    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        """The answer of each pixel from its logits along axis `dim`, which is dropped; on their device.

        If each pixel is read by itself, the answer is the prediction.
        """

    def prediction_from_answers(self, answers: Tensor) -> Tensor:
        """The prediction of an image or volume from the answers (1, *spatial) of all of its pixels."""
        return answers

    def mask(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a prediction, in the form that `Predictor` returns."""
        return rows

    @abstractmethod
    def probabilities(self, logits: Tensor, dim: int = 0) -> Tensor:
        """Probabilities in the shape of the logits; they are averaged over networks and views, and may be written."""

    @abstractmethod
    def logits_from_probabilities(self, probabilities: Tensor, dim: int = 0) -> Tensor:
        """Logits that have these `probabilities`."""

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the answer at each pixel of logits (outputs, n, ...): 0 if sure, 1 if all are as likely.

        Here each output is a separate yes-or-no question, and the result is the entropy of the least sure one.
        """
        probabilities = self.probabilities(logits)
        output_entropy = torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
        return output_entropy.amax(dim=0) / math.log(2)

    def certainty(self, logits: Tensor) -> Tensor | None:
        """The certainty for `Task.count_certainty`, from logits (outputs, n, ...); None if the task counts none."""
        return None

    def finiteness(self, logits: Tensor) -> dict[str, Tensor]:
        """What `check_finite` needs of the logits, on their device: it comes to the CPU with the strip."""
        return {"has_infinite": ~logits.isfinite().all()}

    def mean_of_views(self, views: Sequence[Tensor], dim: int) -> Tensor:
        """Logits whose probabilities are the mean over the logits of several views, which are on one device."""
        mean = sum(self.probabilities(view, dim) for view in views) / len(views)
        return self.logits_from_probabilities(mean, dim)

    def add_on_device(self, logits: Tensor) -> Tensor | None:
        """The answers to a strip of logits (1, outputs, n, ...); None if they are kept until all strips are read."""
        return self.decode(logits, dim=1).to(getattr(torch, self.dtype))

    def finish_on_device(self, answers: Sequence[Tensor]) -> Tensor:
        """The prediction, with a first axis of 1, from the results of `add_on_device` for all strips of an image."""
        return self.prediction_from_answers(torch.cat(answers, dim=1))

    def add(self, logits: Tensor, *, probabilities: bool, extras: Mapping[str, Tensor] = NO_EXTRAS) -> Strip:
        """Read the next strip of logits, (outputs, n, W) or (outputs, n, H, W). The host waits once for all tensors.

        Args:
            extras: further tensors by name, computed from the strip, to copy to the CPU.
        """
        answers = self.decode(logits).to(getattr(torch, self.dtype))
        return download_strip(answers, self.probabilities(logits) if probabilities else None, extras)

    def finish(self) -> Iterator[Strip]:
        """The rest of the prediction, after all strips were read."""
        return iter(())

    def read(self, strips: Iterable[Tensor], name: str, *, probabilities: bool) -> Iterator[Strip]:
        """The prediction of an image from all of its strips. Raises ImageError as `check_finite` does."""
        for logits in strips:
            yield check_finite(self.add(logits, probabilities=probabilities, extras=self.finiteness(logits)), name)
        for strip in self.finish():
            yield check_finite(strip, name)

    @property
    def objects(self) -> Sequence[Any]:
        """The objects of the prediction, once all of it is read; empty if a task has none."""
        return ()
