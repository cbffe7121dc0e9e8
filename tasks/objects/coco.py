"""The objects of all images of a prediction in one COCO file, with run lengths (RLE).

The format: https://cocodataset.org/#format-data.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.image_io.reader import read_mask
from runtime.errors import DataError
from runtime.files import replace_file
from tasks.objects.object_tables import IMAGE_COLUMNS, REMEDY, table_rows

COCO = "objects.json"


def write_coco(folder: Path, images: Iterable[tuple[str, Path, Path]], names: Sequence[str]) -> None:
    """Write folder/objects.json, an image at a time.

    Args:
        images: the name of each image, its label image, and the table of its objects.
        names: the classes of objects.
    """
    categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
    ids = {name: number for number, name in enumerate(names, 1)}
    entries: list[dict[str, Any]] = []
    annotations = 0
    with replace_file(folder / COCO) as file:
        file.write(b'{"annotations": [')
        for number, (name, mask, table) in enumerate(images, 1):
            labels = read_mask(mask, str(mask))
            height, width = labels.shape
            entries.append({"id": number, "file_name": name, "height": height, "width": width})
            for annotation in object_annotations(labels, table, ids):
                separator = ",\n" if annotations else "\n"
                annotations += 1
                annotation |= {"id": annotations, "image_id": number}
                file.write((separator + json.dumps(annotation)).encode())
        remaining_members = json.dumps({"images": entries, "categories": categories})
        file.write(f"\n], {remaining_members[1:]}\n".encode())


def object_annotations(labels: np.ndarray, table: Path, ids: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The objects of a label image (H, W), from the rows of their table."""
    for row in table_rows(table, IMAGE_COLUMNS):
        top = int(row["top"])
        left = int(row["left"])
        bottom = int(row["bottom"])
        right = int(row["right"])
        is_object = labels[top:bottom, left:right] == int(row["number"])
        if not is_object.any() or row["class"] not in ids:
            raise DataError(f"{table}: object {row['number']} is not one of the mask; {REMEDY}")
        yield {
            "category_id": ids[row["class"]],
            "segmentation": run_lengths(is_object, (top, left), labels.shape),
            "area": int(row["area"]),
            "bbox": [left, top, right - left, bottom - top],
            "iscrowd": 0,
            "score": float(row["score"]),
        }


def run_lengths(is_object: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> dict[str, Any]:
    """Compressed RLE of an object of a picture (H, W), given its box (h, w) and the box's top left corner."""
    from pycocotools import mask as rle_masks

    height, width = size
    top, left = corner
    columns, rows = np.nonzero(is_object.T)  # COCO counts down the columns
    pixels = (left + columns) * height + top + rows
    starts = np.concatenate([[0], np.flatnonzero(np.diff(pixels) != 1) + 1])
    ends = np.concatenate([starts[1:], [len(pixels)]])
    bounds = np.stack([pixels[starts], pixels[ends - 1] + 1], axis=1).ravel()
    runs = np.diff(bounds, prepend=0, append=height * width).tolist()
    encoded = rle_masks.frPyObjects({"size": [height, width], "counts": runs}, height, width)
    return {"size": [height, width], "counts": encoded["counts"].decode()}
