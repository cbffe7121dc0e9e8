"""Predicted areas as polygons in the world: GeoJSON, and GeoPackage where pyogrio is installed."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from data_utils.image_io.outlines import Areas, Outliner
from data_utils.image_io.places import Place
from data_utils.image_io.well_known_binary import well_known_binary
from inference.decoding.decoder import Decoder
from inference.outputs.jobs import Job, RasterJob
from inference.outputs.prediction_format import MaskFormat, PredictionFormat, Properties
from runtime.errors import DataError, SettingsError, one_line
from runtime.files import replace_file, replace_path

GEOJSON = ".geojson"
GEOPACKAGE = ".gpkg"
POLYGONS = (GEOJSON, GEOPACKAGE)
MOVED = 2**17  # corners whose world coordinates are computed together
LONGITUDE_LATITUDE = 4326  # the EPSG number of GeoJSON's default CRS

# (n, 2) as (x, y), the last corner again the first: the outline of a polygon, then its holes
Rings = Iterator[np.ndarray]


class PolygonFile(Protocol):
    """An open file of polygons."""

    def write(self, polygons: Iterator[tuple[Rings, Properties]]) -> None:
        """Append polygons; the rings of each are read before the next polygon is."""


class PolygonSink:
    """Takes the rows of a prediction, and writes each area as a polygon once it is complete.

    Args:
        output_format: determines the pixels and the properties of each area.
        width: the width of the image.
    """

    def __init__(
        self, file: PolygonFile, output_format: MaskFormat, decoder: Decoder, place: Place, width: int
    ) -> None:
        self.file = file
        self.output_format = output_format
        self.decoder = decoder
        self.place = place
        self.width = width
        self._layers: list[Outliner] = []

    def add(self, rows: np.ndarray, missing: np.ndarray | None) -> None:
        """Take the next rows of a prediction, (n, W), and their pixels without data, (n, W) bool."""
        layers = self.output_format.areas(rows)
        if not self._layers:
            self._layers = [Outliner(self.width) for _ in layers]
        for number, (outliner, layer) in enumerate(zip(self._layers, layers, strict=True)):
            if missing is not None:
                layer = np.where(missing, 0, layer)
            for areas in outliner.add(layer):
                self._write(number, areas)

    def finish(self) -> None:
        """Write the rest, after all rows were taken."""
        for number, outliner in enumerate(self._layers):
            for areas in outliner.finish():
                self._write(number, areas)

    def _write(self, layer: int, areas: Areas) -> None:
        numbers = areas.numbers.tolist()
        polygons = zip(numbers, area_polygons(areas, self.place), strict=True)
        area_properties = partial(self.output_format.area_properties, layer, decoder=self.decoder)
        self.file.write((rings, area_properties(number)) for number, rings in polygons)


def area_polygons(areas: Areas, place: Place) -> Iterator[Rings]:
    """The rings of each area in world coordinates; each area's rings have to be read before the next area's."""
    rings = _rings_in_world(areas, place)
    for count in areas.ring_counts.tolist():
        yield islice(rings, count)


def _rings_in_world(areas: Areas, place: Place) -> Iterator[np.ndarray]:
    """All rings; outlines run counterclockwise and holes clockwise, as GeoJSON has it."""
    a, b, _, d, e, _ = place.transform
    is_clockwise = a * e - b * d < 0  # also in the world, as it is if rows run south
    is_outline = np.zeros(len(areas.ring_lengths), bool)
    is_outline[np.cumsum(areas.ring_counts) - areas.ring_counts] = True
    stops = np.cumsum(areas.ring_lengths)
    first = 0
    while first < len(stops):
        start = int(stops[first] - areas.ring_lengths[first])
        # as many rings as can be moved together, but one at least
        last = max(first + 1, int(np.searchsorted(stops, start + MOVED, "right")))
        columns, rows = areas.corners[start : stops[last - 1]].T.astype(float)
        corners = np.stack(place.to_world(columns, rows), axis=1)
        ends = (stops[first:last] - start).tolist()
        begins = [0, *ends[:-1]]
        for begin, end, is_first in zip(begins, ends, is_outline[first:last].tolist(), strict=True):
            closed = np.concatenate([corners[begin:end], corners[begin : begin + 1]])
            yield closed[::-1] if is_first == is_clockwise else closed
        first = last


class GeoJsonFile:
    """A GeoJSON file in the CRS of a place; a context, which finishes it.

    A CRS other than longitude and latitude is a member `crs`, as GeoJSON had it in 2008 and GDAL reads it.
    """

    def __init__(self, file: BinaryIO, place: Place) -> None:
        self.file = file
        epsg = epsg_code(place)
        members: dict[str, object] = {"type": "FeatureCollection"}
        if epsg != LONGITUDE_LATITUDE:
            members["crs"] = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{epsg}"}}
        head = json.dumps(members)
        self.file.write(f'{head[:-1]}, "features": ['.encode())
        self._separator = "\n"

    def write(self, polygons: Iterator[tuple[Rings, Properties]]) -> None:
        """Append polygons."""
        for rings, properties in polygons:
            feature = f'{{"type": "Feature", "properties": {json.dumps(properties)}, "geometry": '
            self.file.write(f'{self._separator}{feature}{{"type": "Polygon", "coordinates": ['.encode())
            separator = ""
            for ring in rings:
                corners = ",".join([f"[{x!r},{y!r}]" for x, y in ring.tolist()])
                self.file.write(f"{separator}[{corners}]".encode())
                separator = ","
            self.file.write(b"]}}")
            self._separator = ",\n"

    def __enter__(self) -> "GeoJsonFile":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.file.write(b"\n]}\n")


class GeoPackageFile:
    """A GeoPackage of one layer in the CRS of a place; a context, which makes one without polygons too.

    Args:
        name: the image's name in messages.
    """

    def __init__(self, path: Path, place: Place, name: str) -> None:
        self.path = path
        self.name = name
        epsg = epsg_code(place)
        self.crs = None if epsg is None else f"EPSG:{epsg}"

    def write(self, polygons: Iterator[tuple[Rings, Properties]]) -> None:
        """Append polygons, which have the same properties."""
        geometries = []
        rows = []
        for rings, properties in polygons:
            geometries.append(well_known_binary(list(rings)))
            rows.append(properties)
        if rows:
            self._append(np.array(geometries, object), rows)

    def _append(self, geometries: np.ndarray, rows: list[Properties]) -> None:
        from pyogrio.raw import write

        columns = list(rows[0]) if rows else []
        values = []
        for column in columns:
            cells = [properties[column] for properties in rows]
            values.append(np.array(cells, np.int64 if isinstance(cells[0], int) else object))
        try:
            write(
                str(self.path),
                geometries,
                values,
                columns,
                layer="polygons",
                driver="GPKG",
                geometry_type="Polygon",
                crs=self.crs,
                append=self.path.exists(),
            )
        except (ValueError, RuntimeError) as error:  # pyogrio's errors are of both kinds
            raise DataError(
                f"{self.name}: its polygons cannot be written as a GeoPackage ({one_line(error)})"
            ) from error

    def __enter__(self) -> "GeoPackageFile":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None and not self.path.exists():
            self._append(np.empty(0, object), [])


@contextmanager
def open_polygons(
    job: RasterJob, extension: str, output_format: MaskFormat, decoder: Decoder, width: int
) -> Iterator[PolygonSink]:
    """The file of an image's polygons, which appears under its name when the context ends."""
    path = job.file(extension)
    if extension == GEOJSON:
        with replace_file(path) as file, GeoJsonFile(file, job.place) as polygons:
            yield PolygonSink(polygons, output_format, decoder, job.place, width)
        return
    with replace_path(path) as temporary, GeoPackageFile(temporary, job.place, job.name) as package:
        yield PolygonSink(package, output_format, decoder, job.place, width)


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
    """Raises SettingsError for a model whose predictions have no areas, and for GeoPackages without pyogrio."""
    if not output_format.writes_rasters:
        raise SettingsError(f"--polygons: {output_format.outputs} of this kind have no place; leave the flag out")
    if extension == GEOPACKAGE and find_spec("pyogrio") is None:
        raise SettingsError("--polygons gpkg: GeoPackages need pyogrio: pip install -r requirements-geo.txt")
