"""Pictures of what a model does: for trackers, the output folder and the report."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import numpy as np
from data_utils.masks import Value, read_mask
from data_utils.overlay import mark_errors, overlay, palette, panel, to_rgb
from data_utils.survey import Data
from PIL import Image


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


def worst_and_best(
    data: Data,
    image_scores: Sequence[float],
    read_image: Callable[..., np.ndarray],
    predict: Callable[..., np.ndarray],
    count: int,
) -> dict[str, dict[str, np.ndarray]]:
    """{title: {label: (H, W, 3) uint8}} of the half of `count` records with the lowest scores, then of the highest.

    `predict(source, name)` gives class indices (H, W); truth and prediction are shown over the image.
    """
    records, classes = data.val, data.classes
    order = [index for index in np.argsort(np.asarray(image_scores), kind="stable") if index not in data.val_bad]
    chosen = order if len(order) <= count else order[: count // 2] + order[-(count - count // 2) :]
    colors, pictures = class_colors(classes.values), {}
    for index in map(int, chosen):
        record = records[index]
        name = record["name"]
        try:
            truth = classes.encode(read_mask(record["mask"], name), name)
            image, pred = read_image(record["image"], name), predict(record["image"], name)
        except data.skip:
            continue
        pictures[f"{name}: IoU {image_scores[index]:.4f}"] = {
            "image": to_rgb(image),
            "truth": overlay(image, truth, colors),
            "prediction": overlay(image, pred, colors),
            "errors": mark_errors(image, truth, pred, len(colors)),
        }
    return pictures


def save_pictures(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Write each as a PNG named after its key, whose subfolders are kept."""
    for name, picture in pictures.items():
        file = folder / PurePath(name).with_suffix(".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
