"""Small inputs, networks, flags and scores of predictions."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from data_utils.image_io.formats import PageFile, VolumeFile
from data_utils.image_io.reader import open_source
from inference import Predictor
from inference.predict_settings import PredictSettings, parse_args
from inference.requested_outputs import RequestedOutputs
from support.volumes import write_volume
from tasks import new_format
from tasks.classes.scores import ClassScores
from tasks.job import MASK, Job, MaskFile
from tasks.prediction import PredictedImage, Prediction, decode_strips
from tasks.prediction_format import MaskFormat, PredictionFormat
from tasks.task import Scores, Task
from unet import UNet
from unet.config import Preprocess, UNetConfig


def touch(folder: Path, *names: str) -> None:
    """Writes images and volumes of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".nii.gz"):
            write_volume(folder / name, np.zeros((2, 3, 4), np.float32))
        else:
            Image.fromarray(np.zeros((3, 4), np.uint8)).save(folder / name)


def image_job(folder: Path, name: str = "a", size: tuple[int, int] | None = (2, 3)) -> Job:
    """The job of an image that is not written."""
    return Job(source=PageFile(folder / f"{name}.tif"), size=size, root=folder / "out", stem=Path(name))


def volume_job(folder: Path, truth: Path | None) -> Job:
    """The job of a volume, which is written."""
    image = write_volume(folder / "image.nii", np.zeros((3, 4, 5), np.float32))
    volume = VolumeFile((str(image),))
    return Job(
        source=volume,
        size=(3, 4, 5),
        root=folder / "out",
        stem=Path("image"),
        truth=truth and VolumeFile((str(truth),), (2.0, 1.0, 1.0), grid_of=volume),
    )


def network_of(names: tuple[str, ...] = ("a", "b"), values: tuple = (0, 1), **options) -> UNet:
    """A network of classes with these names and mask values."""
    preprocess = Preprocess(class_names=names, class_values=values)
    return UNet(UNetConfig(1, len(names), base_channels=1, depth=1, preprocess=preprocess, **options))


def writer_of(predictor: Predictor, extensions: tuple[str, ...] = (".png",), **options) -> RequestedOutputs:
    """A writer of what the predictor answers, by the extensions of its files."""
    return RequestedOutputs(new_format(predictor.config), extensions, **options)


def write_logits(
    output_format: PredictionFormat,
    task: Task,
    job: Job,
    logits: torch.Tensor,
    extensions: tuple[str, ...] = (MASK,),
    **image: Any,
) -> Prediction:
    """Write the files of a job from logits (outputs, *size); `image` holds further fields of `PredictedImage`."""
    requested = RequestedOutputs(output_format, extensions)
    job.output.parent.mkdir(parents=True, exist_ok=True)
    size = tuple(logits.shape[1:])
    prediction = decode_strips(task, logits.split(4, dim=1), size, job.name, wanted=requested.wanted(job))
    output_format.write(PredictedImage(job, job.size or size, prediction, **image), extensions)
    return prediction


def score_labels(
    output_format: PredictionFormat,
    task: Task,
    job: Job,
    labels: np.ndarray,
    *,
    boundary: bool = False,
    **fields: Any,
) -> Scores:
    """The scores of a prediction; `fields` holds further fields of `Prediction`."""
    image = PredictedImage(job, job.size or labels.shape, Prediction(labels, **fields))
    return output_format.score(task, image, boundary=boundary)


def true_labels(truth: MaskFile, output_format: MaskFormat) -> np.ndarray:
    """A true mask of an image in the form of a prediction (H, W)."""
    source, _ = output_format.reader.prepared(truth, "truth")
    with open_source(source) as mask:
        return output_format.reader.read({"image": "a", "target": truth, "name": "truth"}, mask.size).prediction


def settings_of(*words: str, **changes: object) -> PredictSettings:
    """The settings of predict.py with these flags; `changes` replace what the flags have given."""
    required = ["--model", "m", "--input", "a.png", "--output", "out"]
    with mock.patch("sys.argv", ["predict.py", *required, *words]):
        return replace(parse_args(""), **changes)


def matrix_of(pred: np.ndarray, truth: np.ndarray, classes: int = 3) -> list[list[int]]:
    """The confusion matrix, counted pixel by pixel."""
    matrix = np.zeros((classes, classes), int)
    for predicted, true in zip(pred.ravel(), truth.ravel(), strict=True):
        if true != 255:
            matrix[true, predicted] += 1
    return matrix.tolist()


def scores_of(*rows: list[int]) -> ClassScores:
    """The scores of a confusion matrix."""
    names = ("sky", "land", "sea")[: len(rows)]
    return ClassScores(names, torch.tensor(rows), torch.zeros(0, 1))
