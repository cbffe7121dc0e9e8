"""How predictions are written as masks and shown, and how such masks are read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from data_utils.targets.reader import MaskReader
from data_utils.visualize import legend, overlay
from inference.outputs.jobs import MASK, Job
from unet.config import UNetConfig


class Encoder(ABC):
    """How predictions are written and shown.

    Attributes:
        kind: of what is written, "mask" or "points"; writers and scorers are chosen by it.
        outputs: what the files of all images are called together.
        truths_in_table: whether --truth is a table of all images, and not a folder with a file for each.
        extension: what stands for the extension of the file of an image.
        names: what the colors stand for.
        colors: (N, 3) uint8, one for each name.
    """

    kind: ClassVar[str]
    outputs: ClassVar[str]
    truths_in_table: ClassVar[bool] = False
    extension: str
    names: Sequence[str]
    colors: np.ndarray

    @classmethod
    @abstractmethod
    def of_model(cls, config: UNetConfig) -> Encoder:
        """The encoder that the config.json of a model calls for."""

    def legend(self) -> Image.Image:
        """What the colors of overlays mean."""
        return legend(self.names, self.colors)

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write what stands in one file for all images, once each has its own."""
        return


class MaskEncoder(Encoder):
    """The mask of a prediction, and its picture.

    Attributes:
        reader: reads such masks, and true ones.
    """

    kind = "mask"
    outputs = "masks"
    extension = MASK
    reader: MaskReader

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
