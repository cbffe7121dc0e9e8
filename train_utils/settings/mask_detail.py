"""How much of the detail of training masks is left at a smaller scale."""

from collections.abc import Iterator

import numpy as np
import torch

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_mask
from data_utils.image_io.resize import resize_mask
from data_utils.sources.records import Record
from tasks.confusion import confusion_matrix, scores
from unet.config import IGNORE_INDEX

SAMPLED_MASKS = 32  # the number of masks whose detail is measured


def detail_kept(info: DatasetInfo, scale: float) -> float:
    """Mean IoU, over the classes, of some training masks with themselves resized by `scale` and back."""
    class_map = info.reader.class_map
    if class_map is None:
        return info.reader.detail_kept(_spread_records(info), scale)
    classes = len(class_map)
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    for record in _spread_records(info):
        mask = class_map.encode(read_mask(record["target"], record["name"]), record["name"])
        labeled = info.reader.labeled_in_map(record.get("labeled"))
        if labeled is not None:
            mask[~np.isin(mask, list(labeled))] = IGNORE_INDEX
        height, width = mask.shape
        small_size = (max(1, int(height * scale)), max(1, int(width * scale)))
        restored = resize_mask(resize_mask(mask, small_size), mask.shape)
        valid = (mask != IGNORE_INDEX) & (restored != IGNORE_INDEX)
        matrix += confusion_matrix(_indices(restored[valid]), _indices(mask[valid]), classes)
    return scores(matrix)["mean_iou"] or 0.0


def _spread_records(info: DatasetInfo) -> Iterator[Record]:
    """Up to SAMPLED_MASKS training records that can be used, spread over the set."""
    usable = np.delete(np.arange(len(info.train)), list(info.train.bad))
    for position in np.unique(np.linspace(0, len(usable) - 1, SAMPLED_MASKS).astype(int)):
        yield info.train.records[int(usable[position])]


def _indices(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).long()
