"""TIFFs with a place, as rasterio writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import from_origin

from data_utils.config import DataConfig

NORTH_UP = from_origin(500_000, 5_000_000, 10, 10)
UTM = "EPSG:32633"


def write_raster(path: Path, bands: np.ndarray, **profile: Any) -> Path:
    """Write bands (C, H, W) to a path, by default with a place in UTM; `names` are those of the bands."""
    names = profile.pop("names", ())
    settings = {"driver": "GTiff", "crs": UTM, "transform": NORTH_UP, **profile}
    count, height, width = bands.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", count=count, height=height, width=width, dtype=bands.dtype, **settings) as file:
        file.write(bands)
        for number, name in enumerate(names, 1):
            file.set_band_description(number, name)
    return path


def scene(seed: int, *, channels: int = 5, size: tuple[int, int] = (40, 56)) -> tuple[np.ndarray, np.ndarray]:
    """Bands (C, H, W) uint16 of which one is bright in a rectangle, and the mask (H, W) of that, 0 and 1."""
    rng = np.random.default_rng(seed)
    height, width = size
    top, left = rng.integers(0, (height // 2, width // 2)).tolist()
    mask = np.zeros(size, np.uint8)
    mask[top : top + height // 2, left : left + width // 2] = 1
    bands = rng.integers(200, 400, (channels, *size)).astype(np.uint16)
    bands[1] += np.uint16(3000) * mask
    return bands, mask


def square(left: float, top: float, side: float) -> list[tuple[float, float]]:
    """The corners, in the world, of a square of pixels of `NORTH_UP`."""
    corners = [(left, top), (left + side, top), (left + side, top + side), (left, top + side), (left, top)]
    return [NORTH_UP @ corner for corner in corners]


def feature(*rings: list[tuple[float, float]], **properties: Any) -> dict[str, Any]:
    """A polygon of GeoJSON."""
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": list(rings)}}


def write_geojson(path: Path, features: list[dict[str, Any]], crs: str | None = UTM) -> Path:
    """Write polygons, by default in the CRS of `write_raster`."""
    content: dict[str, Any] = {"type": "FeatureCollection", "features": features}
    if crs:
        content["crs"] = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{crs.rpartition(':')[2]}"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def class_config(folder: Path, **settings: Any) -> DataConfig:
    """A data set of classes in a folder, by default."""
    return DataConfig(str(folder), **{"task": "classes", **settings})
