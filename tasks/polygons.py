"""Predicted areas as polygons in the world: GeoJSON and GeoPackage."""

import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np

from data_utils.image_io.gdal import load_rasterio
from data_utils.image_io.places import Place
from runtime.errors import DataError, one_line
from runtime.files import replace_file
from tasks.job import Job
from tasks.prediction import PredictedImage

GEOJSON = ".geojson"
POLYGONS = {GEOJSON: "GeoJSON", ".gpkg": "GPKG"}  # with GDAL's names of the formats
WGS84 = 4326  # the EPSG number of GeoJSON's default CRS
POLYGON = 3  # its number in WKB, well-known binary
Rings = list[list[tuple[float, float]]]  # of a polygon
Properties = dict[str, int | str]  # the properties of a polygon


class Areas(NamedTuple):
    """Areas of an image, each a set of pixels of one number that are connected by their sides.

    Args:
        numbers: (H, W) uint8 or int32, the number of each pixel's area, 0 for none.
        properties: of the numbers from 1.
    """

    numbers: np.ndarray
    properties: Sequence[Properties]


def save_polygons(image: PredictedImage, extension: str, layers: Iterable[Areas]) -> None:
    """Write each area of a raster's prediction as a polygon. Raises DataError if the file cannot hold them.

    A CRS other than longitude and latitude is a member `crs` of GeoJSON, as it was in 2008 and GDAL reads it.
    """
    from pyogrio.raw import write

    warnings.filterwarnings("ignore", "'crs' was not provided", UserWarning)
    job = image.job
    load_rasterio(job.name)
    outlines: list[bytes] = []
    cells: dict[str, list[int | str]] = {}
    for rings, properties in _polygons(image, layers):
        outlines.append(well_known_binary(rings))
        for column, value in properties.items():
            cells.setdefault(column, []).append(value)
    columns = []
    for values in cells.values():
        columns.append(np.array(values, np.int64 if isinstance(values[0], int) else object))
    epsg = epsg_code(job.place)
    is_named = epsg is not None and not (extension == GEOJSON and epsg == WGS84)
    content = BytesIO()  # GDAL does not say if a disk is full when it closes GeoJSON
    try:
        write(
            content,
            np.array(outlines, object),
            columns,
            list(cells),
            layer="polygons",
            driver=POLYGONS[extension],
            geometry_type="Polygon",
            crs=f"EPSG:{epsg}" if is_named else None,
        )
    except (ValueError, RuntimeError) as error:  # pyogrio's errors are of both kinds
        raise DataError(f"{job.name}: its polygons cannot be written ({one_line(error)})") from error
    with replace_file(job.file(extension)) as file:
        file.write(content.getbuffer())


def _polygons(image: PredictedImage, layers: Iterable[Areas]) -> Iterator[tuple[Rings, Properties]]:
    """Each area in the world, with its properties.

    Its rings are the (x, y) of the corners, the last one again the first: the outline, counterclockwise, then its
    holes.
    """
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
            yield rings, properties[int(number) - 1]


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
