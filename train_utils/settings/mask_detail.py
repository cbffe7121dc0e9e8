"""How much of the detail of training masks is left at a smaller scale."""

from collections.abc import Iterator

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.sources.records import Record

SAMPLED_MASKS = 32  # the number of masks whose detail is measured


def detail_kept(info: DatasetInfo, scale: float) -> float:
    """`TargetReader.detail_kept` of up to SAMPLED_MASKS training masks."""
    return info.reader.detail_kept(_spread_records(info), scale)


def _spread_records(info: DatasetInfo) -> Iterator[Record]:
    """Up to SAMPLED_MASKS training records that can be used, spread over the set."""
    usable = np.delete(np.arange(len(info.train)), list(info.train.bad))
    for position in np.unique(np.linspace(0, len(usable) - 1, SAMPLED_MASKS).astype(int)):
        yield info.train.records[int(usable[position])]
