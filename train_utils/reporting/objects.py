"""Objects in the report: their outlines, and which of them are found."""

import numpy as np

from data_utils.targets.objects import ObjectReader
from data_utils.visualize import GREY, RED, darken, to_rgb
from data_utils.visualize_objects import outline_objects, shade_objects
from tasks.matching import Matches, ObjectScores, Overlaps, label_classes, label_numbers
from train_utils.reporting.section import Section
from unet.config import IGNORE_INDEX

GREEN = (40, 170, 70)
BLUE = (40, 90, 230)


class ObjectSection(Section[ObjectScores]):
    """What `tasks.objects` shows."""

    task_name = "Instance segmentation"
    tags = ("instance-segmentation",)
    mask_values = "numbers of objects"
    flags = ("loss",)
    curves = {"Validation scores": {"AP@0.5": "eval/ap50", "panoptic quality": "eval/panoptic_quality"}}  # noqa: RUF012
    score_key = "eval/ap50"
    image_score = "AP@0.5"
    scores_hint = (
        "AP at an IoU is TP / (TP + FP + FN). An object is found where a prediction has an IoU of 0.5 or more with it;"
        " split where two or more predictions lie mostly in it; merged where a prediction holds most of it and most of"
        " another one."
    )
    views_hint = (
        "Errors: found objects (IoU of 0.5 or more) are green, missed ones red, predictions of no object blue, ignored"
        " pixels light grey."
    )

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__(reader)
        self.names = tuple(name for _, name in reader.classes)

    def description(self) -> str:
        return f"Instance segmentation: numbers for the objects of the classes {self.listed_names()}."

    def views(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "image": to_rgb(image),
            "truth": outline_objects(image, shade_objects(label_numbers(truth))),
            "prediction": outline_objects(image, shade_objects(label_numbers(pred))),
            describe_errors(truth, pred): mark_objects(image, truth, pred),
        }


def describe_errors(truth: np.ndarray, pred: np.ndarray) -> str:
    """How many objects are missed, split and merged, in words."""
    matches = Matches.from_overlaps(Overlaps.between(*_blank_ignored(truth, pred)))
    missed = len(matches.true_sizes) - len(matches.matched_pairs(0.5))
    counts = {"missed": missed, "split": matches.count_split(), "merged": matches.count_merged()}
    texts = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"errors: {', '.join(texts)}" if texts else "errors"


def _blank_ignored(truth: np.ndarray, pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prediction and truth, with 0 at the pixels that the truth ignores."""
    is_ignored = label_classes(truth) == IGNORE_INDEX
    return np.where(is_ignored, 0, pred), np.where(is_ignored, 0, truth)


def mark_objects(image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> np.ndarray:
    """Found, missed and invented objects in colors over the darkened image, uint8 (H, W, 3).

    Args:
        image: (H, W[, C]).
        truth, pred: (H, W), labels as `tasks.matching.pack_labels` makes them.
    """
    picture = darken(image)
    is_ignored = label_classes(truth) == IGNORE_INDEX
    predicted, true = _blank_ignored(truth, pred)
    matches = Matches.from_overlaps(Overlaps.between(predicted, true))
    pairs = matches.matched_pairs(0.5)
    is_found = _is_among(true, matches.true[pairs])
    is_right = _is_among(predicted, matches.predicted[pairs])
    picture[(predicted > 0) & ~is_right] = BLUE
    picture[(true > 0) & ~is_found] = RED
    picture[is_found] = GREEN
    edges = outlines(true)
    picture[edges] = 0
    picture[is_ignored] = GREY
    return picture


def _is_among(labels: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The pixels (H, W) of some objects, given by their indices among the labels (H, W) that are not 0."""
    distinct_labels, label_indices = np.unique(labels, return_inverse=True)
    objects = np.flatnonzero(distinct_labels)
    is_chosen = np.zeros(len(distinct_labels), bool)
    is_chosen[objects[indices]] = True
    return is_chosen[label_indices.reshape(labels.shape)]


def outlines(labels: np.ndarray) -> np.ndarray:
    """The pixels (H, W) of objects whose neighbor to the right or below does not belong to them."""
    edges = np.zeros(labels.shape, bool)
    edges[:, :-1] |= (labels[:, 1:] != labels[:, :-1]) & (labels[:, :-1] > 0)
    edges[:-1] |= (labels[1:] != labels[:-1]) & (labels[:-1] > 0)
    return edges
