"""GDAL, by rasterio: imported only where a file has a place in the world or is read in windows."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from runtime.errors import DataError, one_line

SETTINGS = {
    "GDAL_CACHEMAX": "64",  # MB, instead of a share of the memory
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",  # files beside a raster could change its place
    "GTIFF_REPORT_COMPD_CS": "NO",  # the CRS of a map, without that of heights
    "CPL_LOG": os.devnull,  # errors are raised
}


def load_rasterio(name: str) -> Any:
    """Import rasterio. Raises DataError, with `name`, what needs it, if it is not installed."""
    for setting, value in SETTINGS.items():
        os.environ.setdefault(setting, value)
    try:
        import rasterio
        from rasterio.errors import NotGeoreferencedWarning
    except ImportError as error:
        raise DataError(f"{name} needs rasterio: pip install rasterio") from error
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)
    return rasterio


def is_gdal_error(error: Exception) -> bool:
    """Whether GDAL has raised an error, by rasterio, which has no class for all of them."""
    return type(error).__module__.startswith("rasterio.")


@contextmanager
def gdal_errors() -> Iterator[None]:
    """In this context, errors of GDAL are OSErrors."""
    try:
        yield
    except Exception as error:
        if not is_gdal_error(error):
            raise
        reason = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise OSError(one_line(reason)) from error


def open_directory(file: Path | bytes, number: int, stack: ExitStack) -> Any:
    """A directory of a TIFF, by its number from 0, as a data set of rasterio that is open as long as `stack` is."""
    rasterio = load_rasterio("image" if isinstance(file, bytes) else str(file))
    if isinstance(file, Path) and str(file).isprintable():  # GDAL takes names of UTF-8
        name = str(file.absolute())
    else:
        memory = rasterio.MemoryFile(file if isinstance(file, bytes) else file.read_bytes())
        stack.callback(memory.close)
        name = memory.name
    # so named, GDAL takes the file for a TIFF, and nothing in its name for an address
    data_set = rasterio.open(f"GTIFF_DIR:{number + 1}:{name}", driver="GTiff")
    stack.callback(data_set.close)  # as a context it would belong to this thread
    return data_set
