"""Validation images and volumes with their truth and a prediction, as pictures show them."""

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume
from data_utils.point_states import PRESENT
from data_utils.sources.records import Record
from inference.predictor import Predictor
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget
from tasks.section import Example
from tasks.volume_drawing import busiest_voxel, orthogonal_slices, render_volume_points


def predicted_example(info: DatasetInfo, index: int, predictor: Predictor) -> Example:
    """A validation record with its prediction; a volume is shown by three orthogonal planes."""
    record = info.val.records[index]
    pred = predictor.labels(record["image"], record["name"])
    has_points = info.config.task == Landmarks.name
    if info.val.records.dims == 3:
        return _point_volume(info, record, pred) if has_points else _mask_volume(info, record, pred)
    image = read_image(record["image"], record["name"])
    if has_points:
        size = image.shape[:2]
        points = PredictedPoints.from_prediction(pred)
        pred = np.column_stack([points.positions(size), points.presence])
        return Example(record["name"], image, info.reader.read(record, size, size), pred)
    return Example(record["name"], image, true_mask(info, record, image), pred)


def true_mask(info: DatasetInfo, record: Record, image: np.ndarray) -> np.ndarray:
    """The true mask (H, W) of an image (H, W[, C]), as pictures show it."""
    size = image.shape[:2]
    return info.reader.shown_truth(info.reader.read(record, size, size))


def _mask_volume(info: DatasetInfo, record: Record, pred: np.ndarray) -> Example:
    """The planes that show most of the truth."""
    voxels, header = read_volume(record["image"], record["name"])
    truth = info.reader.shown_truth(info.reader.read_volume(record, header))
    center = busiest_voxel(truth)
    target = info.reader.target
    unknown = target.unknown_value(target.field_names()[0])
    image = orthogonal_slices(voxels, center, header.spacing)
    masks = [truth, pred.astype(truth.dtype, copy=False)]
    planes = [orthogonal_slices(mask, center, header.spacing, fill=unknown) for mask in masks]
    return Example(record["name"], image, *planes)


def _point_volume(info: DatasetInfo, record: Record, pred: np.ndarray) -> Example:
    """The planes through the middle of the points, with the points on them."""
    voxels, header = read_volume(record["image"], record["name"])
    truth = info.reader.read_volume(record, header)
    assert isinstance(truth, PointTarget)
    points = PredictedPoints.from_prediction(pred)
    positions = points.positions(header.size)
    is_present = truth.states == PRESENT
    picture = render_volume_points(voxels, header.spacing, positions, points.is_found, truth.points, is_present)
    return Example(record["name"], picture, None, None)
