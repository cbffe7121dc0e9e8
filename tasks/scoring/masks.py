"""Scoring the mask of an image or a volume against its true mask, at the true mask's own size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from data_utils.image_io.class_masks import ClassMasks
from data_utils.image_io.formats import VolumeFile, source_files
from data_utils.image_io.places import PlacedMask
from data_utils.image_io.reader import check_sizes, open_source
from data_utils.image_io.resize import nearest
from data_utils.image_io.volumes import read_volume_header
from data_utils.loading.image_input import hide_missing
from data_utils.sources.records import Record
from data_utils.target import Target
from data_utils.targets.reader import MaskReader
from runtime.errors import DataError
from runtime.scratch import release, row_spans, zeros
from tasks.prediction import PredictedImage
from tasks.scoring.areas import count_areas
from tasks.scoring.boundary import boundary_scores, volume_entry
from tasks.task import Scores, Task

SCORED_ROWS = 256  # rows of an image that are scored at once


class ScoreError(DataError):
    """A true mask that cannot be used; the prediction is safe."""


Parts = Iterator[tuple[slice, Target]]  # the rows of an image or the slices of a volume, some at a time; their target


@contextmanager
def open_truth(image: PredictedImage, reader: MaskReader) -> Iterator[tuple[tuple[int, ...], Parts]]:
    """The size of the true mask of an image or volume, and its parts.

    Raises DataError if it is of another image or grid.
    """
    job, truth = image.job, image.job.truth
    assert truth is not None
    if isinstance(truth, ClassMasks | PlacedMask):
        name = truth.name
    else:
        name = next(iter(source_files(truth)), "the true objects")  # the object that renders them names the file
    record: Record = {"image": str(job.image), "target": truth, "name": name}
    if job.volume is not None:
        if not isinstance(truth, VolumeFile):
            raise DataError("the true objects of a volume are a label volume, and no annotations")
        header = read_volume_header(job.volume, job.name)
        target = reader.read_volume(record, header)
        yield header.size, ((plane, target.at(plane)) for plane in row_spans(header.size[0], 1))
        return
    source, mask_reader = reader.prepared(truth, name)
    with open_source(source) as mask:
        check_sizes(name, (image.size[0], image.size[1]), mask.size)
        opened: Any = {**record, "target": mask}
        yield mask.size, _strips(mask_reader, opened, mask.size)


def _strips(reader: MaskReader, record: Record, size: tuple[int, int]) -> Parts:
    """The rows of a mask that stays open, so that it is decoded once."""
    for rows in row_spans(size[0], SCORED_ROWS):
        yield rows, reader.read(record, size, window=((rows.start, rows.stop), (0, size[1])))


def score_masks(
    task: Task, image: PredictedImage, true_size: tuple[int, ...], parts: Parts, *, boundary: bool = False
) -> Scores:
    """The scores of a prediction; where the image holds no data, the truth is unknown.

    If prediction and true mask differ in size, the predicted pixel under the center of each true one counts.

    Args:
        true_size, parts: as `open_truth` gives them.
        boundary: whether boundaries of images, or surfaces of volumes, are scored too.
    """
    job, missing = image.job, image.missing
    labels, certainty = image.prediction.labels, image.prediction.certainty
    scores = task.new_scores(1)
    pred = true = None
    if task.has_exclusive_classes:
        pred = zeros(true_size, "uint8", job.output.parent)
        true = zeros(true_size, "uint8", job.output.parent)
    for part, target in parts:
        under = _pixels_under(part, true_size, labels.shape)
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
    boundaries = None
    if pred is not None and true is not None:
        scores.areas = count_areas(pred, true, task.outputs, scores.background)
        if boundary:
            boundaries = boundary_scores(pred, true, task.outputs, spacing, scores.background)
    entry: dict[str, Any] = {"image": job.name, **scores.brief()}
    if spacing is not None:
        entry |= volume_entry(scores, boundaries)
    elif boundaries is not None:
        entry |= boundaries.to_json()
        scores.boundaries.append(boundaries)
    scores.entries.append(entry)
    return scores


def _pixels_under(part: slice, true_size: tuple[int, ...], size: tuple[int, ...]) -> tuple:
    """The index, in arrays of `size`, of the pixels under the centers of those of a part of a true mask."""
    if true_size == size:
        return (part, ...)
    rows, columns = (nearest(true, own) for true, own in zip(true_size, size, strict=True))
    return np.ix_(rows[part], columns)
