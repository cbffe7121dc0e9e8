"""How images and masks with a place in the world are read: some bands, the grid of the image, or as plain pictures."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.class_masks import ClassMasks
from data_utils.image_io.formats import BandSource, ImageSource, PageFile, SceneWindow, page_file
from data_utils.image_io.places import on_grid, read_source_grid
from data_utils.image_io.tiff import is_tiff
from data_utils.sources.records import Record, Records, change
from runtime.errors import DataError
from unet.config import Preprocess


def with_bands(source: ImageSource, bands: Sequence[str]) -> ImageSource:
    """The source of an image with some bands only; with all bands if none are named."""
    if not bands:
        return source
    if isinstance(source, BandSource):
        return source._replace(bands=tuple(bands))
    file = page_file(source)
    if file is not None and not isinstance(file.path, bytes):
        return BandSource((str(file.path),), tuple(bands), file.page or 0)
    raise DataError("--bands chooses bands of TIFF files, and these images are none; leave it out")


def as_picture(source: ImageSource) -> ImageSource:
    """The source of an image or a mask that is read as a picture, whatever its place in the world."""
    content = source.get("bytes") if isinstance(source, dict) else source
    file = PageFile(content) if isinstance(content, bytes) else page_file(source)
    if file is not None and is_tiff(file.path):
        path = file.path if isinstance(file.path, bytes) else str(file.path)
        return file._replace(path=path, reads_place=False)
    return source


def as_model_reads(source: ImageSource, preprocess: Preprocess) -> ImageSource:
    """The source of an image as a model reads it: its bands, or as a picture if the model knows no places.

    An array and a window of a scene hold the model's bands already.
    """
    if isinstance(source, SceneWindow | np.ndarray):
        return source
    if preprocess.place or preprocess.bands:
        return with_bands(source, preprocess.bands)
    return as_picture(source)


def read_places(records: Records, config: DataConfig) -> Records:
    """The records with the bands that are asked for, and with or without their places in the world.

    Each mask is laid on the grid of its image if images have a place.
    """
    if config.bands and not records.metadata.bands:
        records = change(records, f"bands {config.bands}", partial(_with_bands, bands=config.bands))
    if not len(records) or records.dims == 3 or records.is_stream:
        return records
    if config.reads_places:
        has_place = read_source_grid(records[0]["image"]) is not None
        return change(records, "placed", _place) if has_place else records
    return records if records.metadata.bands else change(records, "pictures", _picture)


def _with_bands(record: Record, bands: tuple[str, ...]) -> Record:
    return {**record, "image": with_bands(record["image"], bands)}


def _picture(record: Record) -> Record:
    return {**record, "image": as_picture(record["image"]), "target": as_picture(record["target"])}


def _place(record: Record) -> Record:
    grid = read_source_grid(record["image"])
    if grid is None:
        return record
    target = record["target"]
    if isinstance(target, ClassMasks):
        return {**record, "target": replace(target, grid=grid)}
    return {**record, "target": on_grid(target, grid, record["name"])}
