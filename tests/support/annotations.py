"""What the tests of annotation formats share: splits, rendered mask, and the line that a mistake ends in."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from data_utils.config import DataConfig
from data_utils.image_io.reader import read_mask
from data_utils.sources.load import load_records
from data_utils.sources.records import Record, Records
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info


def loaded(root: Path, **settings) -> tuple[Records, Records]:
    """Training and validation split of a folder; `settings` as in DataConfig."""
    return load_records(DataConfig(str(root), **settings))


def masks(records: Iterable[Record]) -> dict[str, np.ndarray]:
    """The mask of each record, by the image's name."""
    return {record["name"]: read_mask(record["target"], record["name"]) for record in records}


def error_of(root: Path, **settings) -> str:
    """What loading, or reading the masks, says, in one line."""
    with pytest.raises(DataError) as error:
        load_dataset_info(DataConfig(str(root), **settings))
    assert "\n" not in str(error.value)
    return str(error.value)


def drawing_error(records: Iterable[Record], name: str) -> str:
    """What drawing the mask of an image says, in one line."""
    (record,) = (record for record in records if record["name"] == name)
    with pytest.raises(DataError) as error:
        read_mask(record["target"], name)
    assert "\n" not in str(error.value)
    return str(error.value)
