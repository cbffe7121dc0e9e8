"""How much of the detail of masks of classes is left at a smaller scale."""

from collections.abc import Callable, Collection, Iterable

import numpy as np
import torch

from data_utils.class_map import ClassMap
from data_utils.image_io.reader import read_mask
from data_utils.image_io.resize import resize_mask
from data_utils.sources.records import LabelSet, Record
from tasks.confusion import confusion_matrix, matrix_scores
from unet.config import IGNORE_INDEX


def class_detail(
    class_map: ClassMap,
    records: Iterable[Record],
    scale: float,
    labeled_in_map: Callable[[LabelSet | None], Collection[int] | None],
) -> float:
    """Mean IoU, over the classes, of masks with themselves resized by `scale` and back.

    Args:
        labeled_in_map: returns the classes, by index, that an image with a set of labels is labeled for; None for all.
    """
    classes = len(class_map)
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    for record in records:
        mask = class_map.encode(read_mask(record["target"], record["name"]), record["name"])
        labeled = labeled_in_map(record.get("labeled"))
        if labeled is not None:
            mask[~np.isin(mask, list(labeled))] = IGNORE_INDEX
        restored = resize_back(mask, scale)
        valid = (mask != IGNORE_INDEX) & (restored != IGNORE_INDEX)
        matrix += confusion_matrix(_indices(restored[valid]), _indices(mask[valid]), classes)
    return matrix_scores(matrix)["mean_iou"] or 0.0


def resize_back(mask: np.ndarray, scale: float) -> np.ndarray:
    """A mask (H, W) resized by `scale` and back to its own size."""
    small_size = tuple(max(1, int(side * scale)) for side in mask.shape)
    return resize_mask(resize_mask(mask, small_size), mask.shape)


def _indices(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).long()
