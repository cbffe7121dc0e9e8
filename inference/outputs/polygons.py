"""Predicted areas as polygons in the world: GeoJSON and GeoPackage."""

import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.gdal import gdal_errors, load_rasterio
from data_utils.image_io.places import Place
from inference.decoding.decoder import Decoder
from inference.outputs.jobs import Job, RasterJob
from inference.outputs.prediction_format import MaskFormat, PredictionFormat, Properties
from runtime.errors import DataError, SettingsError, one_line
from runtime.files import replace_path

GEOJSON = ".geojson"
GEOPACKAGE = ".gpkg"
POLYGONS = (GEOJSON, GEOPACKAGE)
TOGETHER = 2**14  # polygons of a GeoPackage that are written together
LONGITUDE_LATITUDE = 4326  # the EPSG number of GeoJSON's default CRS
POLYGON = 3  # its number in WKB, well-known binary, https://www.ogc.org/standards/sfa


class Polygon(NamedTuple):
    """An area in the world.

    Args:
        rings: (x, y) of the corners, the last one again the first: the outline, counterclockwise, then its holes.
    """

    rings: list[list[tuple[float, float]]]
    properties: Properties


class PolygonSink:
    """Takes the rows of a prediction, and after the last one writes each area as a polygon.

    An area is a set of pixels of one number that are connected by their sides. GDAL finds it in files, so that only
    outlines stay in memory.

    Args:
        path: the file of the polygons, in a folder of its own.
        output_format: determines the pixels and the properties of each area.
    """

    def __init__(
        self, path: Path, job: RasterJob, output_format: MaskFormat, decoder: Decoder, size: tuple[int, int]
    ) -> None:
        self.path = path
        self.job = job
        self.output_format = output_format
        self.decoder = decoder
        self.size = size
        self._layers: list[tuple[Any, Any]] = []  # files of numbers, and of which pixels are in an area
        self._top = 0

    def add(self, rows: np.ndarray, missing: np.ndarray | None) -> None:
        """Take the next rows of a prediction, (n, W), and their pixels without data, (n, W) bool."""
        from rasterio.windows import Window

        layers = self.output_format.areas(rows)
        if not self._layers:
            self._layers = [self._open_layer(number) for number in range(len(layers))]
        window = Window(0, self._top, self.size[1], len(rows))
        self._top += len(rows)
        for (numbers, inside), layer in zip(self._layers, layers, strict=True):
            is_inside = layer > 0 if missing is None else (layer > 0) & ~missing
            numbers.write(layer.astype(np.int32), 1, window=window)
            inside.write(is_inside.astype(np.uint8), 1, window=window)

    def finish(self) -> None:
        """Write the polygons, after all rows were taken."""
        if self.path.suffix == GEOJSON:
            write_geojson(self.path, self.job.place, self._polygons())
        else:
            write_geopackage(self.path, self.job, self._polygons())

    def close(self) -> None:
        """Close the files of the layers."""
        for numbers, inside in self._layers:
            numbers.close()
            inside.close()

    def _open_layer(self, number: int) -> tuple[Any, Any]:
        """The files of a layer's numbers, and of which of its pixels are in an area."""
        return self._open(f"{number}.tif", "int32"), self._open(f"{number}.inside.tif", "uint8")

    def _open(self, name: str, dtype: str) -> Any:
        rasterio = load_rasterio(self.job.name)
        height, width = self.size
        return rasterio.open(
            self.path.with_name(name),
            "w+",
            driver="GTiff",
            dtype=dtype,
            count=1,
            height=height,
            width=width,
            transform=rasterio.Affine(*self.job.place.transform),
            compress="lzw",
        )

    def _polygons(self) -> Iterator[Polygon]:
        from rasterio import band
        from rasterio.features import shapes

        a, b, _, d, e, _ = self.job.place.transform
        is_mirrored = a * e - b * d > 0  # rows run north, so that outlines run clockwise
        for layer, (numbers, inside) in enumerate(self._layers):
            areas = shapes(band(numbers, 1), band(inside, 1), connectivity=4, transform=numbers.transform)
            for geometry, number in areas:
                rings = geometry["coordinates"]
                properties = self.output_format.area_properties(layer, int(number), self.decoder)
                yield Polygon([ring[::-1] for ring in rings] if is_mirrored else rings, properties)


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


def write_geopackage(path: Path, job: RasterJob, polygons: Iterable[Polygon]) -> None:
    """Write a GeoPackage of one layer in the CRS of a job's place. Raises DataError if it cannot be written."""
    from pyogrio.raw import write

    epsg = epsg_code(job.place)
    polygons = iter(polygons)
    while True:
        some = list(islice(polygons, TOGETHER))
        if not some and path.exists():
            return
        columns = list(some[0].properties) if some else []
        values = []
        for column in columns:
            cells = [polygon.properties[column] for polygon in some]
            values.append(np.array(cells, np.int64 if isinstance(cells[0], int) else object))
        try:
            write(
                str(path),
                np.array([well_known_binary(polygon.rings) for polygon in some], object),
                values,
                columns,
                layer="polygons",
                driver="GPKG",
                geometry_type="Polygon",
                crs=None if epsg is None else f"EPSG:{epsg}",
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


@contextmanager
def open_polygons(
    job: RasterJob, extension: str, output_format: MaskFormat, decoder: Decoder, size: tuple[int, int]
) -> Iterator[PolygonSink]:
    """The file of an image's polygons, which appears under its name when the context ends."""
    load_rasterio(job.name)
    with replace_path(job.file(extension)) as path, gdal_errors(f"{path} cannot be written ({{}})"):
        sink = PolygonSink(path, job, output_format, decoder, size)
        try:
            yield sink
        finally:
            sink.close()


def check_places(jobs: Iterable[Job], extension: str) -> None:
    """Raises DataError for an image that is not georeferenced, or whose CRS the file cannot name."""
    for job in jobs:
        if not job.size:  # its header cannot be read, which the job reports
            continue
        if not isinstance(job, RasterJob):
            raise DataError(f"--polygons: {job.name} has no place in the world; leave it out, or --polygons")
        if extension == GEOJSON and epsg_code(job.place) is None:
            raise DataError(
                f"--polygons: {job.name} has a CRS without EPSG number, which GeoJSON cannot name; give --polygons gpkg"
            )


def epsg_code(place: Place) -> int | None:
    """The EPSG number of the CRS of a place."""
    return place.crs.epsg if place.crs else None


def check_polygons(extension: str, output_format: PredictionFormat) -> None:
    """Raises SettingsError for a model whose predictions have no areas, and if a library is missing."""
    if not output_format.writes_rasters:
        raise SettingsError(f"--polygons: {output_format.outputs} of this kind have no place; leave the flag out")
    for library in ("rasterio", "pyogrio") if extension == GEOPACKAGE else ("rasterio",):
        if find_spec(library) is None:
            raise SettingsError(f"--polygons: polygons need {library}: pip install {library}")
