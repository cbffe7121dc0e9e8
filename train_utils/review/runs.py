"""A finished run whose model reviews the images that it has not trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_image
from data_utils.image_io.resize import resize_mask
from data_utils.image_io.volumes import read_volume, read_volume_header
from data_utils.sources.records import Record
from inference.predictor import Predictor
from runtime.documents import as_json
from runtime.errors import DataError
from runtime.values import checked
from tasks.classes.loss import Classes
from tasks.section import Example
from train_utils.comparison.runs import read_settings
from train_utils.dataset import load_dataset_info
from train_utils.settings.train_settings import TrainSettings


@dataclass(frozen=True, eq=False)
class ReviewedRun:
    """A run with the images or volumes that it has not trained on, `info.val`, and the predictor of its best model."""

    name: str
    info: DatasetInfo
    predictor: Predictor

    @property
    def has_volumes(self) -> bool:
        """Whether the run trained on volumes."""
        return self.info.val.records.dims == 3

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes."""
        class_map = self.info.reader.class_map
        assert class_map is not None  # the task is `classes`
        return class_map.names


def open_reviewed_run(folder: Path, dataset: str | None, device: torch.device) -> ReviewedRun:
    """A run whose masks can be reviewed. Raises DataError, without the name of the folder, if they cannot.

    Args:
        dataset: the present path of the data set; None for the recorded path.
    """
    settings = read_settings(folder)
    task = settings.identity["task"]
    if task != Classes.name:
        raise DataError(f"its task is {task}, and only masks of classes are reviewed")
    config = TrainSettings(**checked(TrainSettings, settings.flags))
    info = load_dataset_info(config if dataset is None else replace(config, dataset=dataset))
    recorded = settings.identity.get("data set")
    if info.fingerprint() != recorded:
        raise DataError(
            f"the data set has changed since the run: it is {info.fingerprint()}, and was"
            f" {recorded}; which images the model has not trained on is not known any more"
        )
    if as_json(info.reader.identity) != settings.identity.get("classes"):
        raise DataError("the masks have other classes now than in the run")
    return ReviewedRun(str(folder), info, Predictor.from_pretrained(folder / "model", device))


def true_mask(info: DatasetInfo, record: Record, image: np.ndarray) -> np.ndarray:
    """The true mask (H, W) of an image (H, W[, C]), as pictures show it."""
    size = image.shape[:2]
    return info.reader.shown_truth(info.reader.read(record, size, size))


def predicted_slices(run: ReviewedRun, index: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Probabilities (classes, H, W) and mask (H, W), class indices, of each slice of a validation record.

    An image is one slice. The slices of a volume come from bottom to top, and the probabilities of only a few slices
    are in memory at a time.
    """
    record = run.info.val.records[index]
    name = record["name"]
    if not run.has_volumes:
        truth = true_mask(run.info, record, read_image(record["image"], name))
        yield run.predictor(record["image"], name).probabilities, truth
        return
    reader = run.info.reader
    labels = reader.shown_truth(reader.read_volume(record, read_volume_header(record["image"], name)))
    yield from zip(run.predictor.slices(record["image"], name), labels, strict=True)


def predicted_examples(run: ReviewedRun, index: int, slices: Sequence[int]) -> list[Example]:
    """A validation image with its mask and prediction, or these slices of a volume, as radiologists see them."""
    record = run.info.val.records[index]
    name = record["name"]
    prediction = run.predictor.labels(record["image"], name)
    if not run.has_volumes:
        image = read_image(record["image"], name)
        return [Example("", image, true_mask(run.info, record, image), prediction)]
    voxels, header = read_volume(record["image"], name)
    labels = run.info.reader.shown_truth(run.info.reader.read_volume(record, header))
    _, row, column = header.spacing
    finest = min(row, column)
    size = (round(header.size[1] * row / finest), round(header.size[2] * column / finest))
    examples = []
    for number in slices:
        # anterior is up, and the patient's right is on the left
        planes = [resize_mask(volume[number], size)[::-1, ::-1] for volume in (voxels, labels, prediction)]
        examples.append(Example(f"slice {number}", *planes))
    return examples
