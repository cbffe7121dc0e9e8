"""Classes that may overlap, and regions, in the report: their outlines on the images."""

from collections.abc import Sequence

import numpy as np

from data_utils.bits import unpack_bits
from tasks.drawing import GREY, RED, colorize, darken, outline_classes, palette
from tasks.overlapping.reader import OverlapReader
from tasks.overlapping.target import last_classes
from tasks.section import Section
from tasks.tables import markdown_text


class OverlapSection(Section):
    """What `tasks.overlapping` shows."""

    mask_values = "bits, the first class in the lowest"
    scores_hint = "A pixel may have several classes. Scores are of each class's own pixels."
    views_hint = "Errors: pixels with a class too many or too few are red, those of which nothing is known grey."

    def __init__(self, reader: OverlapReader) -> None:
        super().__init__(reader)
        self.colors = palette(len(self.names) + 1)[1:]

    def description(self) -> str:
        count = len(self.names)
        return f"Semantic segmentation into {count} classes, of which a pixel may have several: {self.listed_names()}."

    def draw(self, image: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return outline_classes(image, labels, self.colors)

    def colorize(self, labels: np.ndarray) -> np.ndarray:
        return colorize(last_classes(labels, len(self.names)), palette(len(self.names) + 1))

    def shares(self, labels: np.ndarray) -> Sequence[float]:
        return [float((labels >> bit & 1).mean()) for bit in range(len(self.names))]

    def errors(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        bits, unknown_bits = unpack_bits(truth)
        all_bits = 2 ** len(self.names) - 1
        wrong_bits = (bits ^ pred) & ~unknown_bits & all_bits
        errors = darken(image)
        errors[wrong_bits != 0] = RED
        errors[unknown_bits & all_bits == all_bits] = GREY
        return {"errors": errors}


class RegionSection(OverlapSection):
    """Regions: the words differ."""

    mask_values = "bits of the regions, the first one in the lowest"

    def description(self) -> str:
        regions = ", ".join(map(markdown_text, self.reader.identity))
        return (
            f"Semantic segmentation into {len(self.names)} regions, unions of labels: {regions}. Masks are written as"
            " labels: later regions lie over earlier ones, each as its first value."
        )
