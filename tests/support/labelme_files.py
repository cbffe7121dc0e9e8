"""Files as labelme writes them, with their images and the masks that are drawn of them."""

import io
import json
from base64 import b64encode
from pathlib import Path

import numpy as np
from PIL import Image

from data_utils.sources.annotations.labelme import LabelmeMask
from support.annotations import loaded, masks

SIZE = (60, 80)  # (H, W)
SPLITS = ("train", "val")
BOX = [[5, 5], [40, 40]]


def shape(label: str, points: list, kind: str | None = "polygon", **more) -> dict:
    return {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}} | more


def png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return b64encode(file.getvalue()).decode()


def write_labelme(folder: Path, stem: str, shapes: list[dict], images: Path | None = None, **fields) -> Path:
    """<stem>.json in `folder`, as labelme writes it, and <stem>.png in `images`, by default beside it."""
    images = folder if images is None else images
    for path in (folder, images):
        path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(map(ord, stem)))
    Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(images / f"{stem}.png")
    content = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": f"{stem}.png", "imageData": None}
    content |= {"imageHeight": SIZE[0], "imageWidth": SIZE[1]} | fields
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=2))
    return folder / f"{stem}.json"


def masks_of(root: Path, **settings) -> dict[str, np.ndarray]:
    """The mask of each image of both splits, by the image's name."""
    train, val = loaded(root, **settings)
    return masks(train) | masks(val)


def drawn(tmp_path: Path, *shapes: dict) -> np.ndarray:
    """The mask of an image with these shapes, called a, b, c, ...: values 1, 2, 3."""
    write_labelme(tmp_path, "x", [*shapes])
    write_labelme(tmp_path, "y", [shape(label, [[0, 0], [1, 1], [1, 0]]) for label in "abc"])
    return masks_of(tmp_path, task="classes")["x.png"]


def written_mask(folder: Path, shapes: list[dict], values: dict[str, int]) -> LabelmeMask:
    """The mask of a file of these shapes, with these values of labels."""
    file = write_labelme(folder, "x", shapes)
    return LabelmeMask((str(file),), str(file.with_suffix(".png")), values)
