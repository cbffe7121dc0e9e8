"""Pictures of what a model does: for trackers, the output folder and the report."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import numpy as np
from data_utils.masks import MaskClasses, Value, read_mask
from PIL import Image

from data_utils.overlay import palette, panel


def class_colors(values: Sequence[Value]) -> np.ndarray:
    """(num_classes, 3) uint8: the masks' own colours where they have them, a palette where they hold numbers."""
    return np.array(values, np.uint8) if isinstance(values[0], tuple) else palette(len(values))


def sample_panels(
    records: Sequence[dict],
    classes: MaskClasses,
    read_image: Callable[..., np.ndarray],
    predict: Callable[..., np.ndarray],
    count: int,
) -> dict[str, np.ndarray]:
    """image | truth | prediction | errors, uint8 (H, W, 3), of `count` records spread over the set, by name.

    `predict(source, name)` gives class indices (H, W).
    """
    colors, panels = class_colors(classes.values), {}
    for index in np.unique(np.linspace(0, len(records) - 1, count).astype(int)).tolist():
        record = records[index]
        name = record["name"]
        truth = classes.encode(read_mask(record["mask"], name), name)
        panels[name] = panel(read_image(record["image"], name), truth, predict(record["image"], name), colors)
    return panels


def save_pictures(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Write each as a PNG named after its key, whose subfolders are kept."""
    for name, picture in pictures.items():
        file = folder / PurePath(name).with_suffix(".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
