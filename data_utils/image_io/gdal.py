"""GDAL, by rasterio: imported only for files with a place in the world."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runtime.errors import DataError, one_line

SETTINGS = {
    "GDAL_CACHEMAX": "64",  # MB, instead of a share of the memory
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",  # files beside a raster could change its place
}


def load_rasterio(name: str) -> Any:
    """Import rasterio. Raises DataError, with `name`, what needs it, if it is not installed."""
    for setting, value in SETTINGS.items():
        os.environ.setdefault(setting, value)
    try:
        import rasterio
    except ImportError as error:
        raise DataError(f"{name} needs rasterio: pip install rasterio") from error
    return rasterio


@contextmanager
def write_errors(name: str) -> Iterator[None]:
    """In this context, GDAL's errors of writing are OSErrors."""
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    try:
        yield
    except (CPLE_BaseError, RasterioError) as error:
        raise OSError(f"{name} cannot be written ({one_line(error)})") from error
