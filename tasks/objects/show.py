"""Objects in pictures: their outlines, and which of them are found."""

import numpy as np

from runtime.console import counted
from tasks.drawing import GREY, RED, contours, darken, outline_width, palette, readable_colors, to_rgb
from tasks.objects.labels import label_classes, label_numbers
from tasks.objects.reader import ObjectReader
from tasks.objects.scores import Matches, Overlaps
from tasks.section import Section
from unet.config import IGNORE_INDEX

GREEN = (40, 170, 70)
BLUE = (40, 90, 230)
OBJECT_COLORS = 12  # colors of objects, in turn
COLORS = palette(OBJECT_COLORS + 1)  # the first one is of no object


class ObjectSection(Section):
    """What `tasks.objects` shows."""

    task_name = "Instance segmentation"
    mask_values = "numbers of objects"
    curves = {"Validation scores": {"AP@0.5": "eval/ap50", "panoptic quality": "eval/panoptic_quality"}}  # noqa: RUF012
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
        return f"Instance segmentation: {self.reader.describe()}."

    def draw(self, image: np.ndarray, labels: np.ndarray) -> np.ndarray:
        picture = to_rgb(image).copy()
        edges = contours(label_numbers(labels), outline_width(labels))
        picture[edges] = readable_colors(self.colorize(labels[edges]), below=picture[edges])
        return picture

    def colorize(self, labels: np.ndarray) -> np.ndarray:
        numbers = label_numbers(labels)
        return COLORS[np.where(numbers > 0, numbers % OBJECT_COLORS + 1, 0)]

    def errors(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        title, picture = object_errors(image, truth, pred)
        return {title: picture}

    def legend_entries(self, labels: np.ndarray) -> list[tuple[str, str]]:
        numbers = np.unique(label_numbers(labels))
        return [("", counted(int((numbers > 0).sum()), "object"))]


def object_errors(image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> tuple[str, np.ndarray]:
    """Found, missed and invented objects: counts in words, and colors over the darkened image, uint8 (H, W, 3).

    Args:
        image: (H, W[, C]).
        truth, pred: (H, W), labels as `pack_labels` makes them.
    """
    is_ignored = label_classes(truth) == IGNORE_INDEX
    true = np.where(is_ignored, 0, truth)
    predicted = np.where(is_ignored, 0, pred)
    matches = Matches.from_overlaps(Overlaps.between(predicted, true))
    pairs = matches.matched_pairs(0.5)
    is_found = np.isin(true, np.unique(true[true > 0])[matches.true[pairs]])
    is_right = np.isin(predicted, np.unique(predicted[predicted > 0])[matches.predicted[pairs]])
    picture = darken(image)
    picture[(predicted > 0) & ~is_right] = BLUE
    picture[(true > 0) & ~is_found] = RED
    picture[is_found] = GREEN
    # an object ends where its neighbor to the right or below does not belong to it
    picture[:, :-1][(true[:, 1:] != true[:, :-1]) & (true[:, :-1] > 0)] = 0
    picture[:-1][(true[1:] != true[:-1]) & (true[:-1] > 0)] = 0
    picture[is_ignored] = GREY
    counts = {
        "missed": len(matches.true_sizes) - len(pairs),
        "split": matches.count_split(),
        "merged": matches.count_merged(),
    }
    texts = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"errors: {', '.join(texts)}" if texts else "errors", picture
