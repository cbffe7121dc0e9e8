"""From logits to predictions: what the network predicts, as files hold it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.device import download
from runtime.errors import ImageError
from runtime.machine import give_back_freed_memory
from runtime.scratch import release, zeros
from tasks.prediction import Prediction
from tasks.task import Task

UNSURE_LEVEL = 255  # the uncertainty of a class that is as likely as any other


class Decoder(ABC):
    """Reads predictions from logits. It keeps no state, so that one decoder serves many images.

    Logits are (B, outputs, *spatial), of whole images or of some of their rows. `decode` keeps what is needed of them.
    If that of all rows is not yet the prediction, `finish` makes it of them; `finish_on_device` does the same for
    evaluations.

    Attributes:
        at_image_size: whether logits are resized to the image's own size before they are read; else they stay at
            the size of the network's input.
        reading: how another program reads the prediction from the logits, in words.
    """

    reading = ""
    at_image_size = True

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def decode(self, logits: Tensor) -> Tensor:
        """What is kept of logits, mostly a class for each pixel (B, *spatial), on their device.

        It has the type of the prediction.
        """

    def finish(self, decoded: np.ndarray) -> tuple[np.ndarray, Sequence[Any]]:
        """The prediction of an image or volume from all that was kept of it, and its objects."""
        return decoded, ()

    def finish_on_device(self, decoded: Tensor) -> Tensor:
        """`finish` for tensors, without the objects; `decoded` and the prediction have a first axis of 1."""
        return decoded

    def finish_variants(self, decoded: Tensor, variants: Sequence[Any]) -> list[Tensor]:
        """`finish_on_device` for each of the task's `variants`."""
        return [self.finish_on_device(decoded)]

    def mask(self, labels: np.ndarray) -> np.ndarray:
        """The labels of a prediction, in the form that `Predictor` returns."""
        return labels

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities in the shape of the logits; they are averaged over networks and views, and may be written.

        Here, and in what follows, each output is a separate yes-or-no question.
        """
        return logits.sigmoid()

    def logits_from_probabilities(self, probabilities: Tensor) -> Tensor:
        """Logits that have these `probabilities`."""
        # the logarithm of 0 could not be interpolated
        return probabilities.logit(eps=torch.finfo(probabilities.dtype).eps)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the prediction at each pixel, (B, *spatial): 0 if sure, 1 if all are as likely.

        Of several questions it is that of the least sure one.
        """
        probabilities = self.probabilities(logits)
        output_entropy = torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
        return output_entropy.amax(dim=1) / math.log(2)

    def certainty(self, logits: Tensor) -> Tensor | None:
        """The certainty for `Task.count_certainty`; None if the task counts none."""
        return None

    def mean_of_views(self, views: Sequence[Tensor]) -> Tensor:
        """Logits whose probabilities are the mean over the logits of several views, which are on one device."""
        mean = sum(map(self.probabilities, views)) / len(views)
        return self.logits_from_probabilities(mean)


def decode_strips(
    decoder: Decoder,
    strips: Iterable[Tensor],
    size: Sequence[int],
    name: str,
    *,
    wanted: Collection[str] = (),
    folder: Path | None = None,
) -> Prediction:
    """The prediction of an image or volume from its logits, which come in strips from top to bottom.

    Raises ImageError, with `name`, if logits are no numbers, which would pass as a sure prediction.

    Args:
        strips: (outputs, n, ...) each.
        size: (*spatial) of all logits.
        wanted: the fields of `Prediction` that are made beside the labels.
        folder: where large arrays lie in files; None keeps them in memory.
    """
    arrays: dict[str, np.ndarray] = {}
    other_axes = [slice(None)] * (len(size) - 1)
    top = 0
    for logits in strips:
        rows: Any = (..., slice(top, top + logits.shape[1]), *other_axes)
        top += logits.shape[1]
        for field, values in _decode(decoder, logits, name, wanted).items():
            if field not in arrays:
                arrays[field] = zeros((*values.shape[: -len(size)], *size), values.dtype, folder)
            arrays[field][rows] = values
        release(*arrays.values())
    if any(isinstance(array, np.memmap) for array in arrays.values()):
        give_back_freed_memory()  # of tiles, which are all computed
    labels, objects = decoder.finish(arrays.pop("labels"))
    return Prediction(labels, objects, **arrays)


def _decode(decoder: Decoder, logits: Tensor, name: str, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The fields of `Prediction` for a strip of logits. The host waits once for all of them."""
    batch = logits[None]
    tensors = {"has_infinite": ~batch.isfinite().all()[None], "labels": decoder.decode(batch)}
    if "probabilities" in wanted:
        tensors["probabilities"] = decoder.probabilities(batch)
    if "uncertainty" in wanted:
        tensors["uncertainty"] = (decoder.entropy(batch) * UNSURE_LEVEL).round().to(torch.uint8)
    certainty = decoder.certainty(batch) if "certainty" in wanted else None
    if certainty is not None:
        tensors["certainty"] = certainty
    copies = download(list(tensors.values()))
    arrays = {field: copy[0].numpy() for field, copy in zip(tensors, copies, strict=True)}
    if arrays.pop("has_infinite"):
        raise ImageError(
            f"{name}: the network's outputs are not finite numbers; the model is damaged, or the image has values far"
            " beyond those of training"
        )
    return arrays
