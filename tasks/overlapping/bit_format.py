"""The base of masks of overlapping classes and of label maps of regions: a prediction has a bit for each class."""

from collections.abc import Sequence

import numpy as np

from tasks.drawing import outline_classes, palette
from tasks.prediction_format import LegendEntry, MaskFormat

NOTHING = "nothing"  # the meaning of the first color of pictures


class BitFormat(MaskFormat):
    """A prediction that holds a bit for each class; a pixel may have several."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self.names = (NOTHING, *self.classes)
        self.colors = palette(len(self.names))

    @property
    def channel_names(self) -> Sequence[str]:
        return self.classes

    def shades(self, labels: np.ndarray) -> np.ndarray:
        """The last of a pixel's classes: later ones lie over earlier ones."""
        shades = np.zeros(labels.shape, np.uint8)
        for bit in range(len(self.classes)):
            shades[labels >> bit & 1 == 1] = bit + 1
        return shades

    def overlay(self, image: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return outline_classes(image, labels, self.colors[1:])

    def legend_entries(self, labels: np.ndarray) -> list[LegendEntry]:
        entries = []
        for bit, (color, name) in enumerate(zip(self.colors[1:].tolist(), self.classes, strict=True)):
            entries.append(LegendEntry(tuple(color), f"{name} {(labels >> bit & 1).mean():.1%}"))
        return entries
