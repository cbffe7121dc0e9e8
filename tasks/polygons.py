"""Predicted areas as polygons in the world: GeoJSON and GeoPackage."""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.image_io.gdal import gdal_errors, load_rasterio
from data_utils.image_io.places import Place
from runtime.errors import DataError, one_line
from runtime.files import replace_path
from tasks.job import Job
from tasks.prediction import PredictedImage

GEOJSON = ".geojson"
GEOPACKAGE = ".gpkg"
POLYGONS = (GEOJSON, GEOPACKAGE)
LONGITUDE_LATITUDE = 4326  # the EPSG number of GeoJSON's default CRS
POLYGON = 3  # its number in WKB, well-known binary
Properties = dict[str, int | str]  # the properties of a polygon


class Areas(NamedTuple):
    """Areas of an image, each a set of pixels of one number that are connected by their sides.

    Args:
        numbers: (H, W) uint8 or int32, the number of each pixel's area, 0 for none.
        properties: of the numbers from 1.
    """

    numbers: np.ndarray
    properties: Sequence[Properties]


class Polygon(NamedTuple):
    """An area in the world.

    Args:
        rings: (x, y) of the corners, the last one again the first: the outline, counterclockwise, then its holes.
    """

    rings: list[list[tuple[float, float]]]
    properties: Properties


def save_polygons(image: PredictedImage, extension: str, layers: Iterable[Areas]) -> None:
    """Write each area of a raster's prediction as a polygon."""
    job = image.job
    assert job.place is not None
    load_rasterio(job.name)
    with replace_path(job.file(extension)) as path, gdal_errors(f"{path} cannot be written ({{}})"):
        polygons = _polygons(image, layers)
        if extension == GEOJSON:
            write_geojson(path, job.place, polygons)
        else:
            write_geopackage(path, job, polygons)


def _polygons(image: PredictedImage, layers: Iterable[Areas]) -> Iterator[Polygon]:
    from rasterio import Affine
    from rasterio.features import shapes

    assert image.job.place is not None
    transform = Affine(*image.job.place.transform)
    is_mirrored = transform.determinant > 0  # rows run north, so that outlines run clockwise
    for numbers, properties in layers:
        inside = numbers > 0
        if image.missing is not None:
            inside &= ~image.missing
        for geometry, number in shapes(numbers, inside, connectivity=4, transform=transform):
            rings = geometry["coordinates"]
            if is_mirrored:
                rings = [ring[::-1] for ring in rings]
            yield Polygon(rings, properties[int(number) - 1])


def write_geojson(path: Path, place: Place, polygons: Iterable[Polygon]) -> None:
    """Write a GeoJSON file in the CRS of a place.

    A CRS other than longitude and latitude is a member `crs`, as GeoJSON had it in 2008 and GDAL reads it.
    """
    epsg = epsg_code(place)
    members: dict[str, object] = {"type": "FeatureCollection"}
    if epsg != LONGITUDE_LATITUDE:
        members["crs"] = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{epsg}"}}
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{json.dumps(members)[:-1]}, "features": [')
        separator = "\n"
        for polygon in polygons:
            geometry = {"type": "Polygon", "coordinates": polygon.rings}
            feature = {"type": "Feature", "properties": polygon.properties, "geometry": geometry}
            file.write(separator + json.dumps(feature))
            separator = ",\n"
        file.write("\n]}\n")


def write_geopackage(path: Path, job: Job, polygons: Iterable[Polygon]) -> None:
    """Write a GeoPackage of one layer in the CRS of a job's place. Raises DataError if it cannot be written."""
    from pyogrio.raw import write

    epsg = epsg_code(job.place)
    outlines: list[bytes] = []
    cells: dict[str, list[int | str]] = {}
    for polygon in polygons:
        outlines.append(well_known_binary(polygon.rings))
        for column, value in polygon.properties.items():
            cells.setdefault(column, []).append(value)
    columns = []
    for values in cells.values():
        columns.append(np.array(values, np.int64 if isinstance(values[0], int) else object))
    try:
        write(
            str(path),
            np.array(outlines, object),
            columns,
            list(cells),
            layer="polygons",
            driver="GPKG",
            geometry_type="Polygon",
            crs=f"EPSG:{epsg}" if epsg else None,
        )
    except (ValueError, RuntimeError) as error:  # pyogrio's errors are of both kinds
        raise DataError(f"{job.name}: its polygons cannot be written as a GeoPackage ({one_line(error)})") from error


def well_known_binary(rings: Iterable[Iterable[tuple[float, float]]]) -> bytes:
    """A polygon of rings of (x, y), each of which ends where it begins, as https://www.ogc.org/standards/sfa has it."""
    parts = []
    for ring in rings:
        corners = np.array(ring, "<f8")
        parts.append(struct.pack("<I", len(corners)) + corners.tobytes())
    return struct.pack("<BII", 1, POLYGON, len(parts)) + b"".join(parts)


def check_places(jobs: Iterable[Job], extension: str) -> None:
    """Raises DataError for an image that is not georeferenced, or whose CRS the file cannot name."""
    for job in jobs:
        if not job.size:  # its header cannot be read, which the job reports
            continue
        if job.place is None:
            raise DataError(f"--polygons: {job.name} has no place in the world; leave it out, or --polygons")
        if extension == GEOJSON and epsg_code(job.place) is None:
            raise DataError(
                f"--polygons: {job.name} has a CRS without EPSG number, which GeoJSON cannot name; give --polygons gpkg"
            )


def epsg_code(place: Place | None) -> int | None:
    """The EPSG number of the CRS of a place."""
    return place.crs if place and isinstance(place.crs, int) else None
