"""Predictions: what the network says of an image or a volume, as whole arrays, and what they are written with."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_utils.image_io.windowed import WindowedImage
from runtime.device import download
from runtime.errors import ImageError
from runtime.machine import give_back_freed_memory
from runtime.scratch import release, row_spans, zeros
from tasks.job import Job
from tasks.task import NO_DATA, Task

UNSURE_LEVEL = 255  # the uncertainty of a class that is as likely as any other


class Prediction(NamedTuple):
    """The prediction of an image or a volume, as whole arrays.

    Args:
        labels: (H, W) or (D, H, W); for landmarks (K, n + 2), see `Landmarks.labels_and_objects`.
        objects: the objects of a model of objects, in the order of their numbers.
        probabilities: (outputs, *spatial) float32; None unless wanted, like all that follow.
        uncertainty: (*spatial) uint8, the entropy of the prediction, 255 where it is the largest.
        certainty: (*spatial) or (outputs, *spatial) float32, for `Task.count_certainty`.
    """

    labels: np.ndarray
    objects: Sequence[Any] = ()
    probabilities: np.ndarray | None = None
    uncertainty: np.ndarray | None = None
    certainty: np.ndarray | None = None


class PredictedImage(NamedTuple):
    """An image or volume whose prediction is written and scored.

    Args:
        size: (H, W) or (D, H, W).
        picture: the image itself, if an overlay shows it; None for a volume.
        missing: (H, W) bool, true where an image holds no data; None if it has data everywhere.
    """

    job: Job
    size: tuple[int, ...]
    prediction: Prediction
    picture: WindowedImage | None = None
    missing: np.ndarray | None = None


@torch.inference_mode()
def decode_strips(
    task: Task,
    strips: Iterable[Tensor],
    size: Sequence[int],
    name: str,
    *,
    wanted: Collection[str] = (),
    missing: np.ndarray | None = None,
    folder: Path | None = None,
) -> Prediction:
    """The prediction of an image or volume from its logits, which come in strips from top to bottom.

    Raises ImageError, with `name`, if logits are no numbers, which would pass as a sure prediction.

    Args:
        strips: (outputs, n, ...) each.
        size: (*spatial) of all logits.
        wanted: the fields of `Prediction` that are made beside the labels.
        missing: (H, W) bool, true where an image holds no data, and so no object; None if it has data everywhere.
        folder: where large arrays lie in files; None keeps them in memory.
    """
    arrays: dict[str, np.ndarray] = {}
    other_axes = [slice(None)] * (len(size) - 1)
    top = 0
    for logits in strips:
        rows: Any = (..., slice(top, top + logits.shape[1]), *other_axes)
        top += logits.shape[1]
        for field, values in _decode(task, logits, name, wanted).items():
            if field not in arrays:
                arrays[field] = zeros((*values.shape[: -len(size)], *size), values.dtype, folder)
            arrays[field][rows] = values
        release(*arrays.values())
    if any(isinstance(array, np.memmap) for array in arrays.values()):
        give_back_freed_memory()  # of tiles, which are all computed
    decoded = arrays.pop("labels")
    if missing is not None and task.needs_exact_tiles:
        for span in row_spans(len(missing)):
            decoded[span][missing[span]] = NO_DATA
            release(decoded, missing)
    labels, objects = task.labels_and_objects(decoded)
    return Prediction(labels, objects, **arrays)


def _decode(task: Task, logits: Tensor, name: str, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The fields of `Prediction` for a strip of logits. The host waits once for all of them."""
    batch = logits[None]
    tensors = {"has_infinite": ~batch.isfinite().all()[None], "labels": task.decode(batch)}
    if "probabilities" in wanted:
        tensors["probabilities"] = task.probabilities(batch)
    if "uncertainty" in wanted:
        tensors["uncertainty"] = (task.entropy(batch) * UNSURE_LEVEL).round().to(torch.uint8)
    certainty = task.certainty(batch) if "certainty" in wanted else None
    if certainty is not None:
        tensors["certainty"] = certainty
    arrays = {field: copy[0].numpy() for field, copy in download(tensors).items()}
    if arrays.pop("has_infinite"):
        raise ImageError(
            f"{name}: the network's outputs are not finite numbers; the model is damaged, or the image has values far"
            " beyond those of training"
        )
    return arrays
