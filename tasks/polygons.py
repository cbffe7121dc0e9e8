"""Predicted areas as polygons in the world: GeoJSON and GeoPackage."""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.gdal import gdal_errors, load_rasterio
from data_utils.image_io.places import Place
from runtime.errors import DataError, one_line
from runtime.files import replace_path
from runtime.scratch import release, row_spans
from tasks.job import Job
from tasks.prediction import Decoded
from tasks.prediction_files import PredictedImage

GEOJSON = ".geojson"
GEOPACKAGE = ".gpkg"
POLYGONS = (GEOJSON, GEOPACKAGE)
TOGETHER = 2**14  # polygons of a GeoPackage that are written together
LONGITUDE_LATITUDE = 4326  # the EPSG number of GeoJSON's default CRS
Properties = dict[str, int | str]  # the properties of a polygon
Areas = Callable[[np.ndarray], Sequence[np.ndarray]]
AreaProperties = Callable[[int, int, Decoded], Properties]
POLYGON = 3  # its number in WKB, well-known binary, https://www.ogc.org/standards/sfa


class Polygon(NamedTuple):
    """An area in the world.

    Args:
        rings: (x, y) of the corners, the last one again the first: the outline, counterclockwise, then its holes.
    """

    rings: list[list[tuple[float, float]]]
    properties: Properties


def save_polygons(image: PredictedImage, extension: str, areas: Areas, properties: AreaProperties) -> None:
    """Write each area of a raster's prediction as a polygon.

    An area is a set of pixels of one number that are connected by their sides. GDAL finds it in files, so that only
    outlines stay in memory.

    Args:
        areas: returns the areas in rows (n, W) of a prediction: layers of numbers, 0 for no area.
        properties: returns the properties of an area, given its layer and number.
    """
    job = image.job
    assert job.place is not None
    load_rasterio(job.name)
    with (
        replace_path(job.file(extension)) as path,
        gdal_errors(f"{path} cannot be written ({{}})"),
        ExitStack() as stack,
    ):
        polygons = _polygons(image, areas, properties, path.parent, stack)
        if extension == GEOJSON:
            write_geojson(path, job.place, polygons)
        else:
            write_geopackage(path, job, polygons)


def _polygons(
    image: PredictedImage, areas: Areas, properties: AreaProperties, folder: Path, stack: ExitStack
) -> Iterator[Polygon]:
    """The areas of a raster's prediction; their numbers lie in files of `folder` that are open as long as `stack`."""
    from rasterio import band
    from rasterio.features import shapes

    place = image.job.place
    assert place is not None
    a, b, _, d, e, _ = place.transform
    is_mirrored = a * e - b * d > 0  # rows run north, so that outlines run clockwise
    labels, missing = image.decoded.labels, image.missing
    for layer in range(len(areas(labels[:1]))):
        numbers = stack.enter_context(_open_layer(folder / f"{layer}.tif", "int32", image))
        inside = stack.enter_context(_open_layer(folder / f"{layer}.inside.tif", "uint8", image))
        for rows in row_spans(len(labels)):
            values = areas(labels[rows])[layer]
            is_inside = values > 0
            if missing is not None:
                is_inside &= ~missing[rows]
            window = ((rows.start, rows.stop), (0, labels.shape[1]))
            numbers.write(values.astype(np.int32), 1, window=window)
            inside.write(is_inside.astype(np.uint8), 1, window=window)
            release(labels, missing)
        for geometry, number in shapes(band(numbers, 1), band(inside, 1), connectivity=4, transform=numbers.transform):
            rings = geometry["coordinates"]
            if is_mirrored:
                rings = [ring[::-1] for ring in rings]
            yield Polygon(rings, properties(layer, int(number), image.decoded))


def _open_layer(path: Path, dtype: str, image: PredictedImage) -> Any:
    """A new file of whole numbers on the grid of a raster."""
    rasterio = load_rasterio(image.job.name)
    assert image.job.place is not None
    height, width = image.decoded.labels.shape
    return rasterio.open(
        path,
        "w+",
        driver="GTiff",
        dtype=dtype,
        count=1,
        height=height,
        width=width,
        transform=rasterio.Affine(*image.job.place.transform),
        compress="lzw",
    )


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
    crs = None
    if epsg is not None:
        crs = f"EPSG:{epsg}"
    polygons = iter(polygons)
    while True:
        some = list(islice(polygons, TOGETHER))
        if not some and path.exists():
            return
        columns: list[str] = []
        if some:
            columns = list(some[0].properties)
        values = []
        for column in columns:
            cells = [polygon.properties[column] for polygon in some]
            dtype = np.int64 if isinstance(cells[0], int) else object
            values.append(np.array(cells, dtype))
        outlines = [well_known_binary(polygon.rings) for polygon in some]
        try:
            write(
                str(path),
                np.array(outlines, object),
                values,
                columns,
                layer="polygons",
                driver="GPKG",
                geometry_type="Polygon",
                crs=crs,
                append=path.exists(),
            )
        except (ValueError, RuntimeError) as error:  # pyogrio's errors are of both kinds
            raise DataError(
                f"{job.name}: its polygons cannot be written as a GeoPackage ({one_line(error)})"
            ) from error


def well_known_binary(rings: Iterable[Iterable[tuple[float, float]]]) -> bytes:
    """A polygon of rings of (x, y), each of which ends where it begins."""
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
    return place.crs.epsg if place and place.crs else None
