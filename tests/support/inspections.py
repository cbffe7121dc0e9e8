"""What a look at small splits of one empty picture finds, and images that are looked at in windows."""

from pathlib import Path

import numpy as np
import tifffile

from data_utils.analysis.findings import Findings, OpenedData
from data_utils.analysis.inspect_record import Inspection, Rules, inspect_record
from data_utils.analysis.inspection import SplitInspection, total_pixels
from data_utils.analysis.problems import Problem
from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Metadata, Records
from tasks.classes.reader import ClassReader

PICTURE = np.zeros((4, 5), np.uint8)


def inspected(record: dict, **rules: bool) -> Inspection | Problem:
    """What one look at a record finds; `rules` as in Rules."""
    return inspect_record(record, Rules(**rules))


def records_of(count: int, **metadata) -> Records:
    """Records called 0, 1, ... of the same empty picture."""
    pictures = [{"image": PICTURE, "target": PICTURE, "name": str(number)} for number in range(count)]
    return Records(ListRows(pictures), Metadata(**metadata))


def split_of(*pixels: dict, kind: str = "numbers", modes: list[str] | None = None, **metadata) -> SplitInspection:
    """A split of 4 x 5 images whose masks hold these pixels of each value."""
    records = records_of(len(pixels), **metadata)
    split = SplitInspection.empty(records)
    for number, counts in enumerate(pixels):
        mode = modes[number] if modes else "L"
        split.add(number, Inspection((4, 5, 6)[: records.dims], mode, kind=kind, pixels=counts))
    return split


def findings_of(
    *splits: SplitInspection, reader: object, config: DataConfig | None = None, targets: type = ClassReader
) -> Findings:
    """What is found in these splits of a data set without named classes."""
    records = [split.records for split in splits]
    data = OpenedData(records[0], records[-1], config or DataConfig(), targets)
    return Findings(data, list(splits), total_pixels(splits), reader=reader)


def write_tiffs(folder: Path, sizes: dict[str, tuple[int, int]]) -> None:
    """Pairs of tiled TIFFs, which can be read in windows; the right half of each mask is 1."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for stem, (height, width) in sizes.items():
        mask = np.zeros((height, width), np.uint8)
        mask[:, width // 2 :] = 1
        image = np.stack([mask * 40, mask * 90, mask * 200], axis=2)
        tifffile.imwrite(folder / "images" / f"{stem}.tif", image, photometric="rgb", tile=(32, 32))
        tifffile.imwrite(folder / "masks" / f"{stem}.tif", mask, photometric="minisblack", tile=(32, 32))
