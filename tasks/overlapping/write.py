"""Masks of classes that may overlap, a folder of masks of 0 and 255 for each; and label maps of regions.

A prediction holds a bit for each class or region.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.class_map import ClassMap
from data_utils.class_names import BACKGROUND
from data_utils.image_io.dicom.write import Regions
from data_utils.image_io.formats import TIFF_SUFFIXES, Segments
from runtime.errors import SettingsError
from runtime.files import replace_file
from tasks.job import MASK
from tasks.overlapping.reader import RegionReader
from tasks.overlapping.show import OverlapSection, RegionSection
from tasks.overlapping.target import last_classes
from tasks.polygons import Areas, Properties
from tasks.prediction import PredictedImage, Prediction
from tasks.prediction_files import save_labels, write_pages
from tasks.prediction_format import MaskFormat, free_value

INSIDE = 255
UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]')  # characters that names of files cannot have on some system
MOST_BYTES = 240  # of the name of a folder, beside a number: file systems allow 255


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder name for each class, as close to the class's as file names allow; all differ, in lower case too."""
    folders: list[str] = []
    for name in names:
        safe = UNSAFE.sub("_", name).strip(" .") or "class"
        safe = safe.encode()[:MOST_BYTES].decode(errors="ignore")
        folder = safe
        number = 2
        while folder.lower() in {other.lower() for other in folders}:
            folder = f"{safe}_{number}"
            number += 1
        folders.append(folder)
    return folders


class OverlapFormat(MaskFormat):
    """A mask for each class, in the folder of its name."""

    section: OverlapSection

    def __init__(self, section: OverlapSection) -> None:
        super().__init__(section)
        self.class_folders = folder_names(section.names)
        self.extensions = [f"{folder}/{MASK}" for folder in self.class_folders]
        self.segments = Segments(tuple((name, bit) for bit, name in enumerate(section.names)), are_bits=True)

    def for_file(self, file: Path) -> MaskFormat:
        if file.suffix.lower() not in TIFF_SUFFIXES:
            raise SettingsError(
                f"--output {file}: classes that may overlap have a mask each; give a folder, or a file .tif, which gets"
                " a page for each class"
            )
        return PageFormat(self.section, file.suffix)

    def class_mask(self, bit: int, labels: np.ndarray) -> np.ndarray:
        """The mask of a class, 0 and 255."""
        return ((labels >> bit & 1) * INSIDE).astype(np.uint8)

    def write_mask(self, image: PredictedImage) -> None:
        paths = [image.job.file(extension) for extension in self.extensions]
        for bit in reversed(range(len(paths))):  # the first one last
            paths[bit].parent.mkdir(parents=True, exist_ok=True)
            nodata = free_value((0, INSIDE))
            save_labels(image, paths[bit], image.prediction.labels, partial(self.class_mask, bit), nodata)

    def areas(self, prediction: Prediction) -> Iterator[Areas]:
        for bit, name in enumerate(self.section.names):
            yield Areas((prediction.labels >> bit & 1).astype(np.uint8), [{"class": name}])

    def regions(self, labels: np.ndarray) -> Regions:
        return Regions(self.section.names, self.section.colors.tolist(), labels, are_bits=True)


class PageFormat(OverlapFormat):
    """A TIFF with a page of 0 and 1 for each class; it is not georeferenced.

    Args:
        suffix: the suffix of its file.
    """

    writes_rasters = False

    def __init__(self, section: OverlapSection, suffix: str) -> None:
        super().__init__(section)
        self.extensions = [suffix]
        self.segments = None

    def write_mask(self, image: PredictedImage) -> None:
        labels = image.prediction.labels
        with replace_file(self.mask_file(image.job)) as file:
            pages = [(labels >> bit & 1).astype(np.uint8) for bit in range(len(self.section.names))]
            write_pages(file, pages)


class RegionFormat(MaskFormat):
    """Label maps: each pixel has the first value of its last region."""

    reader: RegionReader

    def __init__(self, section: RegionSection) -> None:
        super().__init__(section)
        written = tuple(region.values[0] for region in self.reader.regions)
        self.labels = ClassMap((BACKGROUND, *section.names), (0, *written), None)
        self.written_values = self.labels.values

    def areas(self, prediction: Prediction) -> Iterator[Areas]:
        properties: list[Properties] = []
        for region in self.reader.regions:
            properties.append({"class": region.name, "value": region.values[0]})
        yield Areas(last_classes(prediction.labels, len(properties)), properties)

    def mask_values(self, labels: np.ndarray) -> np.ndarray:
        return self.labels.decode(last_classes(labels, len(self.reader.regions)))
