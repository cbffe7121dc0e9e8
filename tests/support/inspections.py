"""What a look at small splits of one empty picture finds, and images that are looked at in windows."""

from pathlib import Path

import numpy as np
import tifffile

from data_utils.analysis.inspection import Inspection, Problem, SplitInspection
from data_utils.analysis.inspectors import Inspector
from data_utils.sources.records import AnnotationSummary, ListRecords, Metadata

PICTURE = np.zeros((4, 5), np.uint8)


def inspect_image(record: dict, **settings: bool) -> Inspection | Problem:
    """The inspection of an image and its mask."""
    return Inspector(**settings).inspect(record)


def inspect_points(record: dict, *, windows: bool = False) -> Inspection | Problem:
    """The inspection of an image and its points."""
    return Inspector(has_points=True, windows=windows).inspect(record)


def inspect_volume(record: dict) -> Inspection | Problem:
    """The inspection of a volume and its label."""
    return Inspector(dims=3).inspect(record)


def inspect_volume_points(record: dict) -> Inspection | Problem:
    """The inspection of a volume and its points."""
    return Inspector(dims=3, has_points=True).inspect(record)


def records_of(count: int, annotations: AnnotationSummary | None = None, **metadata) -> ListRecords:
    """Records called 0, 1, ... of the same empty picture."""
    pictures = [{"image": PICTURE, "target": PICTURE, "name": str(number)} for number in range(count)]
    return ListRecords(pictures, Metadata(annotations=annotations, **metadata))


def split_of(*pixels: dict, kind: str = "numbers", **metadata) -> tuple[SplitInspection, ListRecords]:
    """A split of 4 x 5 images whose masks hold these pixels of each value."""
    inspection = SplitInspection.empty(len(pixels))
    for number, counts in enumerate(pixels):
        inspection.add(number, Inspection((4, 5), (4, 5), "L", kind, counts))
    return inspection, records_of(len(pixels), **metadata)


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
