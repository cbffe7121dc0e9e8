"""Objects in the report: the numbers of found objects by class and size, and their outlines."""

from typing import Any

import numpy as np

from data_utils.targets.objects import ObjectReader
from data_utils.visualize import GREY, RED, to_rgb
from data_utils.visualize_objects import outline_objects, shade_objects
from tasks.matching import Matches, ObjectScores, Overlaps, label_classes, label_numbers, size_labels
from train_utils.reporting.rendering import markdown_text, render
from train_utils.reporting.section import Section
from unet.config import IGNORE_INDEX

MEANS = {
    "ap50": "AP@0.5",
    "ap75": "AP@0.75",
    "ap": "AP@0.5:0.95",
    "panoptic_quality": "Panoptic quality",
    "f1": "F1",
    "count_error": "Count error",
}
TITLES = MEANS | {"panoptic_quality": "PQ"}  # the titles of a table's columns
COUNTS = ("objects", "predicted", "found", "split", "merged")
GREEN = (40, 170, 70)
BLUE = (40, 90, 230)


class ObjectSection(Section[ObjectScores]):
    """The section of reports on `tasks.objects`."""

    task_name = "Instance segmentation"
    tags = ("instance-segmentation",)
    mask_values = "numbers of objects"
    flags = ("loss",)
    curves = {"Validation scores": {"AP@0.5": "eval/ap50", "panoptic quality": "eval/panoptic_quality"}}  # noqa: RUF012
    means = MEANS
    score_key = "eval/ap50"
    image_score = "AP@0.5"
    views_hint = (
        "Errors: found objects (IoU of 0.5 or more) are green, missed ones red, predictions of no object blue, ignored"
        " pixels light grey."
    )

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__(reader)
        self.names = tuple(name for _, name in reader.classes)

    def description(self) -> str:
        names = ", ".join(map(markdown_text, self.names))
        return f"Instance segmentation: numbers for the objects of the classes {names}."

    def unfound(self, scores: ObjectScores) -> list[str]:
        names = []
        for name, values in zip(self.names, scores.classes, strict=True):
            if values["objects"] and not values["found"]:
                names.append(name)
        return names

    def views(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "image": to_rgb(image),
            "truth": outline_objects(image, shade_objects(label_numbers(truth))),
            "prediction": outline_objects(image, shade_objects(label_numbers(pred))),
            describe_errors(truth, pred): mark_objects(image, truth, pred),
        }

    def html(self, scores: ObjectScores) -> str:
        return render("objects.html.jinja", **self._content(scores))

    def markdown(self, scores: ObjectScores) -> str:
        means = {metric.label: metric.value for metric in self.metrics(scores)}
        return render("objects.md.jinja", means=means, **self._content(scores))

    def _content(self, scores: ObjectScores) -> dict[str, Any]:
        rows = []
        for name, values in zip(self.names, scores.classes, strict=True):
            rows.append(
                {
                    "name": name,
                    "scores": [values[key] for key in MEANS],
                    "counts": [values[key] for key in COUNTS],
                }
            )
        values = scores.values
        sizes = []
        for label, matched_count, objects in zip(
            size_labels(), values["found_by_size"], values["objects_by_size"], strict=True
        ):
            if objects:
                sizes.append({"label": label, "found": matched_count, "objects": objects})
        return {"titles": TITLES.values(), "counted": COUNTS, "classes": rows, "sizes": sizes}


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
    picture = np.repeat(to_rgb(image).mean(axis=2, keepdims=True) * 0.35, 3, axis=2).astype(np.uint8)
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
