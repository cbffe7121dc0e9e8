"""Pictures of what a model does: for trackers, the output folder and the report."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from data_utils.masks import Value, read_mask
from data_utils.overlay import palette, panel
from data_utils.survey import Data


def class_colors(values: Sequence[Value]) -> np.ndarray:
    """(num_classes, 3) uint8: the masks' own colours where they have them, a palette where they hold numbers."""
    return np.array(values, np.uint8) if isinstance(values[0], tuple) else palette(len(values))


def sample_panels(
    data: Data, read_image: Callable[..., np.ndarray], predict: Callable[..., np.ndarray], count: int
) -> dict[str, np.ndarray]:
    """image | truth | prediction | errors, uint8 (H, W, 3), of `count` validation records spread over the set, by name.

    `predict(source, name)` gives class indices (H, W). Records to be skipped have none.
    """
    colors, panels = class_colors(data.classes.values), {}
    good = [index for index in range(len(data.val)) if index not in data.val_bad]
    for index in np.unique(np.linspace(0, len(good) - 1, count).astype(int)).tolist():
        record = data.val[good[index]]
        name = record["name"]
        try:
            truth = data.classes.encode(read_mask(record["mask"], name), name)
            image = read_image(record["image"], name)
        except data.skip:
            continue
        panels[name] = panel(image, truth, predict(record["image"], name), colors)
    return panels


def save_pictures(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Write each as a PNG named after its key, whose subfolders are kept."""
    for name, picture in pictures.items():
        file = folder / PurePath(name).with_suffix(".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
