"""Validation images and volumes with their truth and a prediction, as pictures show them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.formats import IMAGE_SUFFIXES
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume
from data_utils.point_states import PRESENT
from data_utils.sources.records import Record, spread_indices
from inference.predictor import Predictor
from runtime.redact import printable
from tasks.drawing import busiest_voxel, orthogonal_slices, render_volume_points
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget
from tasks.section import Example, Section
from tasks.task import Scores


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


PICTURES = 8  # validation images shown at each evaluation, and in the report
DRAWING = 1.5  # an image of the report takes so many times as long as one of an evaluation; a volume as long
LONGEST_NAME = 200  # characters of a picture's name: file systems take 255 bytes
VOLUMES = 2  # validation volumes shown at each evaluation: resampling and predicting one may take a minute


def evaluation_pictures(info: DatasetInfo) -> int:
    """How many validation images or volumes are shown at each evaluation; the other processes wait for them."""
    return VOLUMES if info.val.records.dims == 3 else PICTURES


def report_share(info: DatasetInfo, processes: int, *, shows_pictures: bool) -> float:
    """How many times as long as an evaluation the report's pictures take, those of the whole set, the worst and best.

    Args:
        shows_pictures: whether an evaluation has pictures too, for a tracker.
    """
    evaluated = len(info.val) // processes
    if shows_pictures:
        evaluated += evaluation_pictures(info)
    predicted = min(2 * PICTURES, len(info.val))
    factor = DRAWING if info.val.records.dims == 2 else 1
    return factor * predicted / max(1, evaluated)


def sample_panels(
    info: DatasetInfo, predictor: Predictor, section: Section, count: int = PICTURES
) -> dict[str, np.ndarray]:
    """A picture, uint8 (H, W, 3), of each of `count` validation images spread over the set, by name.

    Records to be skipped have no picture.
    """
    examples = _examples(info, _spread(info, count), predictor)
    return {example.name: section.panel(example) for _, example in examples}


def report_pictures(
    info: DatasetInfo, predictor: Predictor, section: Section, scores: Scores, count: int = PICTURES
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
    """The pictures of `sample_panels`, and those of the worst and the best images; each image is predicted once.

    Args:
        scores: of the validation images.

    Returns:
        (H, W, 3) uint8 pictures by name; then {title: {label: (H, W, 3) uint8}} of the images with the worst scores and
        those with the best, half of `count` each.
    """
    samples = _spread(info, count)
    comparisons = scores.image_comparison
    extremes = _worst_and_best(info, comparisons, count)
    panels = {}
    views = {}
    for index, example in _examples(info, dict.fromkeys([*samples, *extremes]), predictor):
        if index in samples:
            panels[example.name] = section.panel(example)
        if index in extremes:
            title = f"{example.name}: {scores.compared.title} {comparisons[index]:.4f}"
            views[index] = title, section.views(example.image, example.truth, example.pred)
    return panels, dict(views[index] for index in extremes if index in views)


def _spread(info: DatasetInfo, count: int) -> list[int]:
    """The indices of `count` validation images that can be read, spread over the set."""
    usable = _usable(info, range(len(info.val)))
    return [usable[position] for position in spread_indices(len(usable), count)]


def _worst_and_best(info: DatasetInfo, comparisons: Sequence[float], count: int) -> list[int]:
    """The indices of the images with the worst scores, then of those with the best, half of `count` each."""
    indices = _usable(info, np.argsort(comparisons, kind="stable").tolist())
    if len(indices) <= count:
        return indices
    worst_count = count // 2
    return indices[:worst_count] + indices[worst_count - count :]


def _usable(info: DatasetInfo, indices: Iterable[int]) -> list[int]:
    """The indices of the validation images that can be read."""
    return [index for index in indices if index not in info.val.bad]


def _examples(info: DatasetInfo, indices: Iterable[int], predictor: Predictor) -> Iterator[tuple[int, Example]]:
    """Yield each index with its predicted example, but for records to be skipped."""
    for index in indices:
        try:
            example = predicted_example(info, index, predictor)
        except info.config.skipped_errors:
            continue
        yield index, example


def save_pictures(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Write each as a PNG named after its key, whose subfolders are kept."""
    for name, picture in pictures.items():
        file = picture_file(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)


def picture_file(folder: Path, name: str) -> Path:
    """The picture of a record; its name may come from inside a file, and may lead elsewhere (`../x`, `/x`)."""
    path = PurePath(printable(name))
    if path.suffix.lower() in IMAGE_SUFFIXES:  # a name such as 1.2.840 has no suffix
        path = path.with_suffix("")
    parts = [part[:LONGEST_NAME] for part in path.parts if part not in ("..", path.anchor)]
    *folders, stem = parts or ["image"]
    return folder.joinpath(*folders, f"{stem}.png")
