"""Pictures of what a model does on validation images: for trackers, the output folder and the report."""

from collections.abc import Sequence
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.resize import resize_mask
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.visualize import class_colors, mark_errors, overlay, panel, to_rgb
from data_utils.visualize_volumes import busiest_voxel, orthogonal_slices
from inference.predictor import Predictor
from unet.config import IGNORE_INDEX

PICTURES = 8  # validation images shown at each evaluation, and in the report


def sample_panels(info: DatasetInfo, predictor: Predictor, count: int = PICTURES) -> dict[str, np.ndarray]:
    """image | truth | prediction | errors, uint8 (H, W, 3), of `count` validation images spread over the set, by name.

    Records to be skipped have none.
    """
    colors, panels = class_colors(info.class_map.values), {}
    good = [index for index in range(len(info.val)) if index not in info.val.bad]
    for index in np.unique(np.linspace(0, len(good) - 1, count).astype(int)).tolist():
        try:
            name, image, truth, pred = _predicted(info, good[index], predictor)
        except info.config.skipped_errors:
            continue
        panels[name] = panel(image, truth, pred, colors)
    return panels


def worst_and_best(
    info: DatasetInfo, predictor: Predictor, image_iou: Sequence[float], count: int = PICTURES
) -> dict[str, dict[str, np.ndarray]]:
    """{title: {label: (H, W, 3) uint8}} of the half of `count` images with the lowest IoU, then of the highest.

    Truth and prediction are shown over the image.
    """
    order = [index for index in np.argsort(np.asarray(image_iou), kind="stable") if index not in info.val.bad]
    chosen = order if len(order) <= count else order[: count // 2] + order[-(count - count // 2) :]
    colors, pictures = class_colors(info.class_map.values), {}
    for index in map(int, chosen):
        try:
            name, image, truth, pred = _predicted(info, index, predictor)
        except info.config.skipped_errors:
            continue
        pictures[f"{name}: IoU {image_iou[index]:.4f}"] = {
            "image": to_rgb(image),
            "truth": overlay(image, truth, colors),
            "prediction": overlay(image, pred, colors),
            "errors": mark_errors(image, truth, pred, len(colors)),
        }
    return pictures


def _predicted(info: DatasetInfo, index: int, predictor: Predictor) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Name, image (H, W, C), truth and prediction, class indices (H, W), of a validation record.

    Of a volume three orthogonal slices, where they show most of the truth.
    """
    record = info.val.records[index]
    name = record["name"]
    if info.val.records.dims == 3:
        voxels, header = read_volume(record["image"], name)
        truth = info.class_map.encode_volume(read_label_volume(record["mask"], name)[0], name)
        at, pred = busiest_voxel(truth), predictor.mask(record["image"], name)
        image = orthogonal_slices(voxels, at, header.spacing)
        truth, pred = (orthogonal_slices(mask, at, header.spacing, fill=IGNORE_INDEX) for mask in (truth, pred))
        return name, image, truth, pred
    image = read_image(record["image"], name)
    truth = resize_mask(read_mask(record["mask"], name), image.shape[:2])
    return name, image, info.class_map.encode(truth, name), predictor.mask(record["image"], name)


def save_pictures(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Write each as a PNG named after its key, whose subfolders are kept."""
    for name, picture in pictures.items():
        file = folder / PurePath(name).with_suffix(".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
