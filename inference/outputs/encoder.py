"""How predictions are written as masks and shown, and how such masks are read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from PIL import Image

from data_utils.targets.reader import MaskReader
from data_utils.visualize import legend, overlay
from unet.config import UNetConfig


class MaskEncoder(ABC):
    """The mask of a prediction, and its picture.

    Attributes:
        reader: reads such masks, and true ones.
        names: what the colors stand for.
        colors: (N, 3) uint8, one for each name.
    """

    reader: MaskReader
    names: Sequence[str]
    colors: np.ndarray

    @classmethod
    @abstractmethod
    def of_model(cls, config: UNetConfig) -> MaskEncoder:
        """The encoder that the config.json of a model calls for."""

    @abstractmethod
    def encode(self, rows: np.ndarray) -> np.ndarray:
        """A prediction (H, W) or (D, H, W) -> mask values; colors have a last axis of 3."""

    @abstractmethod
    def check_volume(self, name: str) -> None:
        """ImageError, with `name`, where masks of volumes cannot hold the values."""

    def shades(self, rows: np.ndarray) -> np.ndarray:
        """A prediction (H, W) as uint8 indices of `colors`, 0 where nothing is drawn on an image."""
        return rows

    def overlay(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A uint8 image (H, W, 3) with its prediction (H, W) drawn on it."""
        return overlay(image, rows, self.colors)

    def legend(self) -> Image.Image:
        """What the colors of overlays mean."""
        return legend(self.names, self.colors)
