"""The order in which to annotate images: the least sure ones of each predicted class in turn, and some at random.

Entropy alone would choose one kind of image over and over, so images are taken in turn from strata: each image
belongs to the most frequent class of its predicted foreground. One image in four is drawn at random from all that are
left: it shows mistakes that the model is sure of. A random order is a strong baseline: arXiv:2511.19183 reports that no
strategy reliably beats a random order that heeds the foreground, arXiv:2601.13677 one strategy that does.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from statistics import mean

import numpy as np

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.targets.classes import ClassReader
from inference.outputs.classes import ClassFormat
from inference.outputs.jobs import UNCERTAINTY, Job, VolumeJob
from inference.scoring.truth import SCORED_ROWS, open_mask_rows
from runtime.console import track
from runtime.files import replace_file
from unet.config import IGNORE_INDEX

TABLE = "rank.csv"
RANDOM_INTERVAL = 4  # one of so many images is drawn at random
LEAST_SURE_SLICES = 3  # slices of a volume that count
RIVAL = "a random order is the rival of this one: annotate some images of each, and compare the models"


@dataclass(frozen=True)
class Candidate:
    """An image that may be annotated next.

    Args:
        entropy: the mean over the image's pixels, in 0..1; for a volume, over the pixels of its least sure slices.
        stratum: the most frequent class of the predicted foreground; the background if there is no foreground.
    """

    name: str
    entropy: float
    stratum: str


@dataclass(frozen=True)
class Ranked:
    """An image in its place of the order, with the reason for the place."""

    candidate: Candidate
    reason: str


def rank(candidates: Sequence[Candidate]) -> list[Ranked]:
    """All candidates in the order in which to annotate them, which depends on names and predictions only."""
    rng = np.random.default_rng(0)
    strata: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=_least_sure_first):
        strata.setdefault(candidate.stratum, []).append(candidate)
    order: list[Ranked] = []
    turn = 0
    while strata:
        if len(order) % RANDOM_INTERVAL == RANDOM_INTERVAL - 1:
            remaining: list[Candidate] = []
            for group in strata.values():
                remaining += group
            remaining.sort(key=attrgetter("name"))
            chosen_candidate = remaining[int(rng.integers(len(remaining)))]
            reason = "at random"
            group = strata[chosen_candidate.stratum]
            group.remove(chosen_candidate)
        else:
            names = sorted(strata)
            group = strata[names[turn % len(names)]]
            turn += 1
            chosen_candidate = group.pop(0)
            reason = f"the least sure of {chosen_candidate.stratum}"
        order.append(Ranked(chosen_candidate, reason))
        if not group:
            del strata[chosen_candidate.stratum]
    return order


def find_candidates(jobs: Sequence[Job], output_format: ClassFormat) -> list[Candidate]:
    """The images and volumes whose mask and uncertainty are written; one is read at a time."""
    candidates = []
    for job in track(jobs, len(jobs), "ranking", unit="image"):
        if not (job.file(UNCERTAINTY).is_file() and output_format.mask_file(job).is_file()):
            continue  # its prediction has failed, which was reported before
        if isinstance(job, VolumeJob):
            entropy = _volume_entropy(job)
            pixels = _volume_pixels(job, output_format)
        else:
            file = job.file(UNCERTAINTY)
            entropy = float(read_image(file, str(file)).mean()) / 255
            pixels = _image_pixels(job, output_format)
        foreground = pixels[1:]
        index = 1 + int(foreground.argmax()) if foreground.any() else 0
        candidates.append(Candidate(job.relative_name, entropy, output_format.names[index]))
    return candidates


def _image_pixels(job: Job, output_format: ClassFormat) -> np.ndarray:
    """The number of predicted pixels of each class, (classes,)."""
    pixels = np.zeros(len(output_format.names), np.int64)
    # in the mask of a raster, a value of no class says where the image holds no data
    reader = ClassReader(replace(output_format.class_map, joined=(), outside=IGNORE_INDEX))
    with open_mask_rows(output_format.written_mask(job), reader) as mask:
        height = mask.size[0]
        for top in range(0, height, SCORED_ROWS):
            rows = mask.read(top, min(top + SCORED_ROWS, height)).prediction
            pixels += _count(rows, len(pixels))
    return pixels


def _volume_pixels(job: VolumeJob, output_format: ClassFormat) -> np.ndarray:
    """The number of predicted voxels of each class, (classes,)."""
    volume = output_format.written_volume(job)
    name = volume.paths[0]
    values, _ = read_label_volume(volume, name)
    pixels = np.zeros(len(output_format.names), np.int64)
    for plane in output_format.reader.target_from_volume(values, name).prediction:
        pixels += _count(plane, len(pixels))
    return pixels


def _count(rows: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(rows[rows < classes].ravel(), minlength=classes)


def _volume_entropy(job: VolumeJob) -> float:
    """The mean entropy of the least sure slices, in 0..1; most slices show little, so they do not count."""
    name = str(job.file(UNCERTAINTY))
    levels, _ = read_volume(VolumeFile((name,)), name)
    slice_levels = sorted(float(plane.mean()) for plane in levels)
    return mean(slice_levels[-LEAST_SURE_SLICES:]) / 255


def write_ranking(folder: Path, order: Sequence[Ranked]) -> None:
    """Write folder/rank.csv. Raises OSError."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("rank", "image", "entropy", "reason"))
    for number, ranked in enumerate(order, start=1):
        table.writerow((number, ranked.candidate.name, f"{ranked.candidate.entropy:.6f}", ranked.reason))
    with replace_file(folder / TABLE) as file:
        file.write(text.getvalue().encode(errors="backslashreplace"))  # a name may hold half of a surrogate pair


def _least_sure_first(candidate: Candidate) -> tuple[float, str]:
    return -candidate.entropy, candidate.name
