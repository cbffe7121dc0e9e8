"""COCO files of three small images and their objects, and data sets of them."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as rle_masks

from data_utils.sources.records import Records

SIZE = (24, 40)  # (H, W)
CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "ant"}, {"id": 90, "name": "bee"}]
VALUES = {3: 1, 7: 2, 90: 3}  # the value of each category in a mask, by id


def box(x: float, y: float, w: float, h: float) -> list[float]:
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def runs(mask: np.ndarray) -> list[int]:
    """Uncompressed RLE: lengths of alternating runs, zeros first, column by column."""
    flat = mask.ravel(order="F").astype(int)
    edges = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return lengths if flat[0] == 0 else [0, *lengths]


def disc(row: int, column: int, radius: int) -> np.ndarray:
    y, x = np.ogrid[: SIZE[0], : SIZE[1]]
    return ((y - row) ** 2 + (x - column) ** 2 <= radius**2).astype(np.uint8)


def entry(number: int, image: int, category: int, segmentation, **more) -> dict:
    return {"id": number, "image_id": image, "category_id": category, "segmentation": segmentation, "iscrowd": 0} | more


def write_coco(
    file: Path,
    annotations: list[dict] | None,
    images: Path | None = None,
    count: int = 3,
    categories: list[dict] = CATEGORIES,
    **image_fields,
) -> Path:
    """A file of `count` images 1, 2, ... called <number>.png, and the pictures in `images`."""
    entries = [{"id": i, "file_name": f"{i}.png", "height": SIZE[0], "width": SIZE[1]} for i in range(1, count + 1)]
    content = {"images": [image | image_fields for image in entries], "categories": categories}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content if annotations is None else content | {"annotations": annotations}))
    if images is not None:
        images.mkdir(parents=True, exist_ok=True)
        for image in entries:
            pixels = np.random.default_rng(image["id"]).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / image["file_name"])
    return file


OBJECTS = [
    entry(11, 1, 3, [box(2, 2, 20, 15)]),
    entry(12, 1, 90, [[4.3, 3.1, 12.9, 5.2, 6.6, 11.4], box(15.5, 8.25, 9, 6)]),  # two parts, one object
    entry(13, 2, 7, {"size": [*SIZE], "counts": runs(disc(10, 15, 7))}),
    entry(
        14, 2, 3, {"size": [*SIZE], "counts": rle_masks.encode(np.asfortranarray(disc(12, 22, 5)))["counts"].decode()}
    ),
    entry(15, 2, 90, [box(-10, 18, 100, 30)]),  # reaches out of the image
]


def write_splits(root: Path) -> Path:
    """instances_train2017.json of three images, the last without objects, and instances_val2017.json of two."""
    write_coco(root / "annotations/instances_train2017.json", OBJECTS, root / "train2017")
    write_coco(root / "annotations/instances_val2017.json", [entry(1, 2, 7, [box(1, 1, 9, 9)])], root / "val2017", 2)
    (root / "annotations/captions_train2017.json").write_text("{}")
    return root


def write_crowded_splits(root: Path) -> Path:
    """Two splits of two images; an object lies on a crowd, on the first image of each."""
    crowd = {"size": [*SIZE], "counts": runs(disc(10, 15, 8))}
    objects = [entry(1, 1, 3, [box(10, 8, 4, 4)]), entry(2, 1, 7, crowd, iscrowd=1)]
    for split in ("train", "val"):
        write_coco(root / split / "annotations.json", objects, root / split, 2)
    return root


def labels_of(records: Records) -> dict[str, tuple[str, ...] | None]:
    return {records.name(i): records.label_set(i) for i in range(len(records))}
