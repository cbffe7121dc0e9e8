"""Scoring the mask of an image or a volume against its true mask, at the true mask's own size."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from data_utils.image_io.class_masks import ClassMasks
from data_utils.image_io.formats import RenderedMask, VolumeFile
from data_utils.image_io.places import PlacedMask
from data_utils.image_io.reader import open_source, read_mask
from data_utils.image_io.resize import nearest, same_proportions
from data_utils.image_io.volume_formats import STACK_SUFFIXES
from data_utils.image_io.volumes import read_label_volume, read_volume_header, same_grid
from data_utils.loading.image_input import hide_missing
from data_utils.target import Target
from data_utils.targets.reader import MaskReader
from runtime.errors import DataError
from runtime.scratch import release, row_spans, zeros
from tasks.job import Job, MaskFile, PointRow
from tasks.prediction import PredictedImage
from tasks.scoring.areas import count_areas
from tasks.scoring.boundary import BoundaryScores, boundary_scores, volume_entry
from tasks.task import Scores, Task

SCORED_ROWS = 256  # rows of an image that are scored at once


class ScoreError(DataError):
    """A true mask that cannot be used; the prediction is safe."""


class Score(NamedTuple):
    """The scores of an image or volume.

    Args:
        scores: of its pixels, voxels or points.
        entry: its entry in metrics.json, without its name.
        boundary: the scores of the boundaries of an image, if requested.
        areas: the result of `count_areas`, if pixels have classes.
    """

    scores: Scores
    entry: dict[str, Any]
    boundary: BoundaryScores | None = None
    areas: np.ndarray | None = None


class OpenMask(NamedTuple):
    """A mask that can be read in parts.

    Args:
        name: its name in messages.
        size: (H, W) or (D, H, W).
        read: returns the target of some rows (n, W) of an image's mask, or of some slices (n, H, W) of a volume's.
    """

    name: str
    size: tuple[int, ...]
    read: Callable[[slice], Target]

    @property
    def parts(self) -> Iterator[slice]:
        """The rows or slices to read one after another."""
        return row_spans(self.size[0], SCORED_ROWS if len(self.size) == 2 else 1)


@contextmanager
def open_mask(mask: MaskFile, reader: MaskReader) -> Iterator[OpenMask]:
    """A mask, of which an image's is read one window at a time if its format allows it."""
    if isinstance(mask, VolumeFile):
        values, header = read_label_volume(mask, mask.paths[0])
        yield OpenMask(mask.paths[0], header.size, reader.target_from_volume(values, mask.paths[0]).at)
        return
    if isinstance(mask, ClassMasks | PlacedMask):
        name = mask.name
    elif isinstance(mask, RenderedMask):
        name = "the true objects"  # the object that renders them names the file
    else:
        name = str(mask.path)
    source, reader = reader.prepared(mask, name)
    has_colors = reader.class_map is not None and reader.class_map.has_colors
    with open_source(source) as picture:

        def read(rows: slice) -> Target:
            values = read_mask(picture, name, colors=has_colors, box=picture.rows(rows.start, rows.stop))
            return reader.target_from_mask(values, name)

        yield OpenMask(name, picture.size, read)


@contextmanager
def open_truth(image: PredictedImage, reader: MaskReader) -> Iterator[OpenMask]:
    """The true mask of an image or volume. Raises DataError if it is of another image or grid."""
    job, size = image.job, image.size
    assert job.truth is not None
    assert not isinstance(job.truth, PointRow)
    if job.volume is not None:
        yield _open_true_volume(job, reader)
        return
    with open_mask(job.truth, reader) as truth:
        if not same_proportions(truth.size[:2], size[:2]):  # type: ignore[arg-type]  # of an image
            raise DataError(f"{size_mismatch(truth, size)}; they differ in proportions")
        yield truth


def size_mismatch(mask: OpenMask, size: tuple[int, ...]) -> str:
    """The message for a mask that is not of the size of its image."""
    return f"{mask.name}: is {mask.size[0]} x {mask.size[1]}, but the image {size[0]} x {size[1]}"


def _open_true_volume(job: Job, reader: MaskReader) -> OpenMask:
    """The true mask of a volume. Raises DataError if it lies on another grid."""
    mask = job.truth
    assert job.volume is not None
    assert not isinstance(mask, ClassMasks | PointRow | None)
    if isinstance(mask, RenderedMask):
        raise DataError("the true objects of a volume are a label volume, and no annotations")
    volume = mask if isinstance(mask, VolumeFile) else VolumeFile((str(mask.path),))
    truth = volume.paths[0]
    header = read_volume_header(job.volume, job.name)
    volume = volume._replace(grid_of=job.volume)
    if truth.lower().endswith(STACK_SUFFIXES):  # the file of a stack holds no spacing
        volume = volume._replace(spacing=header.spacing)
    values, truth_header = read_label_volume(volume, truth)
    if truth_header.size != header.size:
        true_size = " x ".join(map(str, truth_header.size))
        size = " x ".join(map(str, header.size))
        raise DataError(f"{truth}: is {true_size}, but the volume {size} (z, y, x)")
    if not same_grid(truth_header, header):
        raise DataError(f"{truth}: its affine differs from the volume's; resample it to the grid of the volume")
    return OpenMask(truth, header.size, reader.target_from_volume(values, truth).at)


def score_masks(task: Task, image: PredictedImage, truth: OpenMask, *, boundary: bool = False) -> Score:
    """The score of a prediction; where the image holds no data, the truth is unknown.

    If prediction and true mask differ in size, the predicted pixel under the center of each true one counts.

    Args:
        boundary: whether boundaries of images, or surfaces of volumes, are scored too.
    """
    job, missing = image.job, image.missing
    labels, certainty = image.prediction.labels, image.prediction.certainty
    scores = task.new_scores(1)
    pred = true = None
    if task.has_exclusive_classes:
        pred = zeros(truth.size, "uint8", job.output.parent)
        true = zeros(truth.size, "uint8", job.output.parent)
    for part in truth.parts:
        target = truth.read(part)
        under = _pixels_under(part, truth.size, labels.shape)
        part_labels = labels[under]
        if missing is not None:
            target = hide_missing(target, missing[under])
        if pred is not None and true is not None:
            pred[part] = part_labels
            true[part] = target.main
        preds = torch.from_numpy(part_labels).long()[None]
        batch = target.map(lambda array: torch.from_numpy(array)[None])
        scores.add(preds, batch, 0)
        if certainty is not None:
            channels = [slice(None)] * (certainty.ndim - labels.ndim)
            part_certainty = torch.from_numpy(certainty[(*channels, *under)])[None]
            scores.add_reliability(task.count_certainty(part_certainty, preds, batch))
        release(labels, missing, certainty, pred, true)
    scores.finish_image(0)
    spacing = None if job.volume is None else read_volume_header(job.volume, job.name).spacing
    boundaries = areas = None
    if pred is not None and true is not None:
        areas = count_areas(pred, true, task.outputs)
        if boundary:
            boundaries = boundary_scores(pred, true, task.outputs, spacing)
    entry: dict[str, Any] = {**scores.brief()}
    if spacing is not None:
        return Score(scores, entry | volume_entry(scores, boundaries), areas=areas)
    if boundaries is not None:
        entry |= boundaries.to_json()
    return Score(scores, entry, boundaries, areas)


def _pixels_under(part: slice, true_size: tuple[int, ...], size: tuple[int, ...]) -> tuple:
    """The index, in arrays of `size`, of the pixels under the centers of those of a part of a true mask."""
    if true_size == size:
        return (part, ...)
    rows, columns = (nearest(true, own) for true, own in zip(true_size, size, strict=True))
    return np.ix_(rows[part], columns)
