"""Pictures of a model's predictions on validation images: for trackers, the output folder and the report."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.sources.records import spread_indices
from inference.predictor import Predictor
from runtime.redact import printable
from tasks.drawing import join_in_row, save_picture
from tasks.section import Section
from tasks.task import Scores
from train_utils.reporting.pages import reduce_picture

PICTURES = 8  # validation images shown at each evaluation, and in the report
DRAWING = 1.5  # an image of the report takes so many times as long as one of an evaluation; a volume as long
LONGEST_NAME = 200  # characters of a picture's name: file systems take 255 bytes
LARGEST_SIDE = 1024  # pixels of a picture's longer side: those of a photograph would fill the disk at each evaluation
VOLUMES = 2  # validation volumes shown at each evaluation: resampling and predicting one may take a minute


def report_share(info: DatasetInfo, processes: int, *, takes_pictures: bool) -> float:
    """How many times as long as an evaluation the pictures of the report take: of the whole set, the worst and best.

    Args:
        takes_pictures: whether one process draws some pictures at each evaluation, too.
    """
    factor = DRAWING if info.val.records.dims == 2 else 1
    evaluated: float = math.ceil(len(info.val) / processes)
    if takes_pictures:
        evaluated += factor * min(_sample_count(info), len(info.val))
    return factor * min(2 * PICTURES, len(info.val)) / evaluated


def sample_panels(info: DatasetInfo, predictor: Predictor, section: Section) -> dict[str, np.ndarray]:
    """A picture, uint8 (H, W, 3), of each of some validation images or volumes spread over the set, by name.

    Records to be skipped have no picture. The other processes wait for these pictures at each evaluation.
    """
    panels = {}
    for _, name, pictures in _pictures(info, _spread(info, _sample_count(info)), predictor, section):
        panels[name] = join_in_row(list(pictures.values()))
    return panels


def report_pictures(
    info: DatasetInfo, predictor: Predictor, section: Section, scores: Scores
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
    """Pictures of images spread over the set, and those of the worst and the best images; each is predicted once.

    Args:
        scores: of the validation images.

    Returns:
        (H, W, 3) uint8 pictures by name; then {title: {label: (H, W, 3) uint8}} of the images with the worst scores and
        those with the best.
    """
    samples = _spread(info, PICTURES)
    comparisons = scores.image_comparison
    extremes = _worst_and_best(info, comparisons)
    panels = {}
    views = {}
    for index, name, pictures in _pictures(info, dict.fromkeys([*samples, *extremes]), predictor, section):
        if index in samples:
            panels[name] = join_in_row(list(pictures.values()))
        if index in extremes:
            views[index] = f"{name}: {scores.compared.title} {comparisons[index]:.4f}", pictures
    return panels, dict(views[index] for index in extremes if index in views)


def _sample_count(info: DatasetInfo) -> int:
    """The most images that are shown at each evaluation."""
    return VOLUMES if info.val.records.dims == 3 else PICTURES


def _spread(info: DatasetInfo, count: int) -> list[int]:
    """The indices of `count` validation images that can be read, spread over the set."""
    usable = [index for index in range(len(info.val)) if index not in info.val.bad]
    return [usable[position] for position in spread_indices(len(usable), count)]


def _worst_and_best(info: DatasetInfo, comparisons: Sequence[float]) -> list[int]:
    """The indices of the images with the worst scores, then of those with the best."""
    indices = [index for index in np.argsort(comparisons, kind="stable").tolist() if index not in info.val.bad]
    if len(indices) <= PICTURES:
        return indices
    half = PICTURES // 2
    return indices[:half] + indices[-half:]


def _pictures(
    info: DatasetInfo, indices: Iterable[int], predictor: Predictor, section: Section
) -> Iterator[tuple[int, str, dict[str, np.ndarray]]]:
    """Yield each index with the name of its record and its pictures by label, but for records to be skipped.

    Large pictures are reduced.
    """
    for index in indices:
        try:
            record = info.val.records[index]
            pictures = section.pictures(record, predictor.labels(record["image"], record["name"]))
        except info.config.skipped_errors:
            continue
        reduced = {label: reduce_picture(picture, LARGEST_SIDE) for label, picture in pictures.items()}
        yield index, record["name"], reduced


def save_pictures(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Write each as a PNG named after its key, whose subfolders are kept."""
    for name, picture in pictures.items():
        file = picture_file(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_picture(file, picture)


def picture_file(folder: Path, name: str) -> Path:
    """The picture of a record; its name may come from inside a file, and may lead elsewhere (`../x`, `/x`)."""
    path = PurePath(printable(name))
    if path.suffix.lower() in IMAGE_SUFFIXES:  # a name such as 1.2.840 has no suffix
        path = path.with_suffix("")
    parts = [part[:LONGEST_NAME] for part in path.parts if part not in ("..", path.anchor)]
    *folders, stem = parts or ["image"]
    return folder.joinpath(*folders, f"{stem}.png")
