"""Predicted areas as polygons in the world: GeoJSON, and GeoPackage where pyogrio is installed."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
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
from runtime.files import replaced_file, replaced_path

GEOJSON = ".geojson"
GEOPACKAGE = ".gpkg"
POLYGONS = (GEOJSON, GEOPACKAGE)
LONGITUDE_LATITUDE = 4326  # EPSG: what GeoJSON is in where it does not say otherwise

Rings = list[np.ndarray]  # (n, 2) as (x, y), the last corner again the first: the outline of a polygon, then its holes


class PolygonFile(Protocol):
    """An open file of polygons."""

    def write(self, polygons: list[tuple[Rings, Properties]]) -> None:
        """Append polygons."""


class PolygonSink:
    """Takes the rows of a prediction, and writes each area as a polygon once it is complete.

    Args:
        output_format: says which pixels areas are made of, and what is said of each.
        width: of the image.
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
        """Take the next rows of a prediction, (n, W), and where the image holds no data in them, (n, W) bool."""
        layers = self.output_format.areas(rows)
        if not self._layers:
            self._layers = [Outliner(self.width) for _ in layers]
        for number, (outliner, layer) in enumerate(zip(self._layers, layers, strict=True)):
            if missing is not None:
                layer = np.where(missing, 0, layer)
            for areas in outliner.add(layer):
                self._write(number, areas)

    def finish(self) -> None:
        """Write the rest, when all rows were taken."""
        for number, outliner in enumerate(self._layers):
            for areas in outliner.finish():
                self._write(number, areas)

    def _write(self, layer: int, areas: Areas) -> None:
        numbers = areas.numbers.tolist()
        polygons = []
        for number, rings in zip(numbers, polygons_of(areas, self.place), strict=True):
            polygons.append((rings, self.output_format.area_properties(layer, number, self.decoder)))
        self.file.write(polygons)


def polygons_of(areas: Areas, place: Place) -> Iterator[Rings]:
    """The rings of each area in the world; outlines run counterclockwise and holes clockwise, as GeoJSON has it."""
    columns, rows = areas.corners.T.astype(float)
    corners = np.stack(place.to_world(columns, rows), axis=1)
    a, b, _, d, e, _ = place.transform
    is_clockwise = a * e - b * d < 0  # in the world too, as where rows run south
    stops = np.cumsum(areas.lengths).tolist()
    starts = [0, *stops[:-1]]
    first = 0
    for count in areas.rings.tolist():
        rings = []
        for ring in range(first, first + count):
            is_outline = ring == first
            corners_of_ring = corners[starts[ring] : stops[ring]]
            closed = np.concatenate([corners_of_ring, corners_of_ring[:1]])
            rings.append(closed[::-1] if is_outline == is_clockwise else closed)
        first += count
        yield rings


class GeoJsonFile:
    """A GeoJSON file in the CRS of a place; a context, which finishes it.

    A CRS other than longitude and latitude is a member `crs`, as GeoJSON had it in 2008 and GDAL reads it.
    """

    def __init__(self, file: BinaryIO, place: Place) -> None:
        self.file = file
        epsg = epsg_of(place)
        members: dict[str, object] = {"type": "FeatureCollection"}
        if epsg != LONGITUDE_LATITUDE:
            members["crs"] = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{epsg}"}}
        head = json.dumps(members)
        self.file.write(f'{head[:-1]}, "features": ['.encode())
        self._separator = "\n"

    def write(self, polygons: list[tuple[Rings, Properties]]) -> None:
        """Append polygons."""
        for rings, properties in polygons:
            texts = []
            for ring in rings:
                corners = ",".join([f"[{x!r},{y!r}]" for x, y in ring.tolist()])
                texts.append(f"[{corners}]")
            geometry = f'{{"type": "Polygon", "coordinates": [{",".join(texts)}]}}'
            feature = f'{{"type": "Feature", "properties": {json.dumps(properties)}, "geometry": {geometry}}}'
            self.file.write((self._separator + feature).encode())
            self._separator = ",\n"

    def __enter__(self) -> "GeoJsonFile":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.file.write(b"\n]}\n")


class GeoPackageFile:
    """A GeoPackage of one layer in the CRS of a place; a context, which makes one without polygons too.

    Args:
        name: of the image, for messages.
    """

    def __init__(self, path: Path, place: Place, name: str) -> None:
        self.path = path
        self.name = name
        epsg = epsg_of(place)
        self.crs = None if epsg is None else f"EPSG:{epsg}"

    def write(self, polygons: list[tuple[Rings, Properties]]) -> None:
        """Append polygons, which have the same properties."""
        if polygons:
            self._append(polygons, list(polygons[0][1]))

    def _append(self, polygons: list[tuple[Rings, Properties]], columns: list[str]) -> None:
        from pyogrio.raw import write

        geometries = np.array([well_known_binary(rings) for rings, _ in polygons], object)
        values = []
        for column in columns:
            cells = [properties[column] for _, properties in polygons]
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
            self._append([], [])


@contextmanager
def open_polygons(
    job: RasterJob, extension: str, output_format: MaskFormat, decoder: Decoder, width: int
) -> Iterator[PolygonSink]:
    """The file of an image's polygons, which takes its place when the context ends."""
    path = job.file(extension)
    if extension == GEOJSON:
        with replaced_file(path) as file, GeoJsonFile(file, job.place) as polygons:
            yield PolygonSink(polygons, output_format, decoder, job.place, width)
        return
    with replaced_path(path) as temporary, GeoPackageFile(temporary, job.place, job.name) as package:
        yield PolygonSink(package, output_format, decoder, job.place, width)


def check_places(jobs: Iterable[Job], extension: str) -> None:
    """DataError for an image that has no place where polygons could lie, or none that their file can name."""
    for job in jobs:
        if not job.size:  # its header cannot be read, which the job reports
            continue
        if not isinstance(job, RasterJob):
            raise DataError(f"--polygons: {job.name} has no place in the world; leave it out, or --polygons")
        if extension == GEOJSON and epsg_of(job.place) is None:
            raise DataError(
                f"--polygons: {job.name} has a CRS without EPSG number, which GeoJSON cannot name; give --polygons gpkg"
            )


def epsg_of(place: Place) -> int | None:
    """The EPSG number of the CRS of a place."""
    return place.crs.epsg if place.crs else None


def check_polygons(extension: str, output_format: PredictionFormat) -> None:
    """SettingsError for a model whose predictions have no areas, and for GeoPackages without pyogrio."""
    if not (isinstance(output_format, MaskFormat) and output_format.writes_rasters):
        raise SettingsError(f"--polygons: {output_format.outputs} of this kind have no place; leave the flag out")
    if extension == GEOPACKAGE and find_spec("pyogrio") is None:
        raise SettingsError("--polygons gpkg: GeoPackages need pyogrio: pip install -r requirements-geo.txt")
