"""Polygons in the world become masks: their files, which of them are read, and how they are drawn."""

import json
import os
import pickle
import struct
from itertools import chain
from unittest import mock

import numpy as np
import pytest
from pyproj import Transformer
from rasterio.features import rasterize
from rasterio.transform import from_origin
from support.rasters import NORTH_UP, UTM, class_config, feature, scene, square, write_geojson, write_raster

from data_utils.image_io.reader import read_mask
from data_utils.sources.annotations.world_polygons import read_shapes
from data_utils.sources.load import find_in_folder, load_records
from runtime.errors import DataError
from tasks.polygons import well_known_binary
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info

NO_AREA = "is no Polygon or MultiPolygon of rings of 3 finite positions or more: "


def test_polygons_of_several_kinds_are_classes_in_utm_and_in_degrees(tmp_path):
    for number in range(3):
        write_raster(tmp_path / "images" / f"{number}.tif", scene(number)[0])
    features = [feature(square(5, 5, 20), square(10, 10, 5), kind="wood"), feature(square(20, 20, 100), kind="field")]
    wood, field = (entry["geometry"] for entry in features)
    mask = rasterize([(wood, 2), (field, 1)], (40, 56), transform=NORTH_UP, dtype=np.uint8)
    write_geojson(tmp_path / "areas.geojson", features)
    train, _ = load_records(class_config(tmp_path, label_column="kind"))
    assert np.array_equal(read_mask(train[0]["target"], "a"), mask)
    assert train.metadata.classes == ((0, "background"), (1, "field"), (2, "wood"))
    info = load_dataset_info(class_config(tmp_path, label_column="kind", outside="ignore"))
    assert info.reader.class_map.names == ("field", "wood")
    assert info.reader.class_map.index_of(0) == 255
    to_degrees = Transformer.from_crs(UTM, 4326, always_xy=True)
    for geometry in (wood, field):
        rings = geometry["coordinates"]
        geometry["coordinates"] = [[to_degrees.transform(*corner) for corner in ring] for ring in rings]
    write_geojson(tmp_path / "areas.geojson", features, crs=None)
    train, _ = load_records(class_config(tmp_path, label_column="kind"))
    assert (read_mask(train[0]["target"], "a") == mask).mean() > 0.99  # corners moved by rounding


def test_each_polygon_is_an_object_and_later_ones_lie_over_earlier_ones(tmp_path):
    boxes = [(square(5, 5, 10), "wood"), (square(15, 5, 10), "wood"), (square(20, 10, 9), "field")]
    one_image(tmp_path, *(feature(corners, kind=kind) for corners, kind in boxes))
    numbers, values = areas_of(tmp_path, label_column="kind")["train"][0]["target"].render_objects()
    shapes = [({"type": "Polygon", "coordinates": [corners]}, number) for number, (corners, _) in enumerate(boxes, 1)]
    assert np.array_equal(numbers, rasterize(shapes, (40, 56), transform=NORTH_UP, dtype=np.int32))
    assert values.tolist() == [0, 2, 2, 1]


def test_polygons_are_brought_to_an_image_whose_crs_has_no_number(tmp_path):
    sinusoidal = "+proj=sinu +R=6371007.181 +units=m"
    write_raster(tmp_path / "images" / "a.tif", scene(0)[0], crs=sinusoidal)
    to_degrees = Transformer.from_crs(sinusoidal, 4326, always_xy=True)
    corners = [to_degrees.transform(*corner) for corner in square(5, 5, 20)]
    write_geojson(tmp_path / "areas.geojson", [feature(corners)], crs=None)
    assert areas_of(tmp_path)["train"][0]["target"].render().sum() == 20 * 20


def test_a_polygon_of_a_file_for_all_images_is_counted_where_its_center_lies(tmp_path):
    for name, left in (("a", 0), ("b", 56)):  # side by side
        place = from_origin(500_000 + 10 * left, 5_000_000, 10, 10)
        write_raster(tmp_path / "images" / f"{name}.tif", scene(0)[0], transform=place)
    polygons = [square(5, 5, 20), square(5, 30, 5), square(50, 5, 20)]
    write_geojson(tmp_path / "areas.geojson", list(map(feature, polygons)))
    records = [*chain(*load_records(class_config(tmp_path)))]
    assert {record["name"]: record["target"].objects() for record in records} == {"a.tif": {1: 2}, "b.tif": {1: 1}}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", r"\.geojson cannot be read as GeoJSON \(Expecting"),
        ('{"type": "Topology"}', "has no list"),
        (json.dumps({"features": [{"geometry": {"type": "Point", "coordinates": [1, 2]}}]}), NO_AREA),
        (
            json.dumps({"features": [feature(square(0, 0, 9))], "crs": {"properties": {"name": "local"}}}),
            r"no way from local to EPSG:32633 \(",
        ),
        (json.dumps({"features": []}), "hold no polygon"),
    ],
)
def test_a_damaged_file_of_polygons_is_a_one_line_error(tmp_path, content, line):
    for number in range(2):
        write_raster(tmp_path / "images" / f"{number}.tif", scene(number)[0])
    (tmp_path / "areas.geojson").write_text(content)
    with pytest.raises(DataError, match=line):
        load_dataset_info(class_config(tmp_path))


@pytest.mark.parametrize("crs", [UTM, "EPSG:4326", "+proj=laea +lat_0=45 +lon_0=15"])
def test_a_geopackage_is_read_as_its_polygons_in_geojson(tmp_path, crs):
    raw = pytest.importorskip("pyogrio.raw")
    for number in range(3):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
    features = [feature(square(5, 5, 20), square(10, 10, 5), kind=1), feature(square(20, 20, 100), kind=2)]
    features[1]["geometry"] = {"type": "MultiPolygon", "coordinates": [features[1]["geometry"]["coordinates"]]}
    write_geojson(tmp_path / "areas.geojson", features)
    settings = class_config(tmp_path, label_column="kind")
    expected = read_mask(load_records(settings)[0][0]["target"], "a")
    (tmp_path / "areas.geojson").unlink()
    to_crs = Transformer.from_crs(UTM, crs, always_xy=True)
    first, second = ([to_crs.transform(*corner) for corner in square(*box)] for box in ((5, 5, 20), (20, 20, 100)))
    hole = [to_crs.transform(*corner) for corner in square(10, 10, 5)]
    geometries = [[first, hole], [second]]
    blobs = np.array([well_known_binary([np.array(ring) for ring in rings]) for rings in geometries], object)
    blobs[1] = struct.pack("<BII", 1, 6, 1) + blobs[1]
    layer = {"layer": "areas", "driver": "GPKG", "crs": crs}
    columns = {"field_data": [np.array([7, 8]), np.array([1, 2])], "fields": ["number", "kind"]}
    raw.write(str(tmp_path / "areas.gpkg"), blobs, geometry_type="Unknown", **columns, **layer)
    train, _ = load_records(settings)
    assert train.metadata.classes == ((0, "background"), (1, "1"), (2, "2"))
    assert (read_mask(train[0]["target"], "a") == expected).mean() > (0.98 if crs != UTM else 0.9999)
    report, problems = check_data(settings)
    assert problems == 0
    assert "annotations: GeoPackage" in report
    with pytest.raises(DataError, match=r"feature 1 has None in the column crop, .*; its columns are number, kind"):
        load_records(class_config(tmp_path, label_column="crop"))
    raw.write(
        str(tmp_path / "areas.gpkg"), blobs[:1], [], [], append=True, geometry_type="Polygon", **{**layer, "layer": "b"}
    )
    line = rf"^{tmp_path / 'areas.gpkg'}: holds 2 layers of polygons, expected one \(areas, b\)"
    with pytest.raises(DataError, match=line):
        load_records(settings)
    with mock.patch.dict("sys.modules", {"pyogrio": None}), pytest.raises(DataError, match="pip install pyogrio"):
        (tmp_path / "areas.gpkg").touch()
        load_records(settings)


def test_a_geopackage_may_hold_points_a_table_empty_areas_and_numbers_that_are_missing(tmp_path):
    raw = pytest.importorskip("pyogrio.raw")
    file = tmp_path / "masks" / "a.GPKG"
    write_raster(tmp_path / "images" / "a.tif", scene(0)[0])
    file.parent.mkdir()
    empty = struct.pack("<BII", 1, 3, 0)
    blobs = np.array([empty, well_known_binary([np.array(square(0, 0, 5))])], object)
    layer = {"layer": "areas", "driver": "GPKG", "crs": UTM, "geometry_type": "Polygon"}
    points = {"layer": "sites", "driver": "GPKG", "crs": UTM, "geometry_type": "Point"}
    raw.write(str(file), np.array([struct.pack("<BIdd", 1, 1, 5.0, 5.0)], object), [], [], **points)
    with pytest.raises(DataError, match=rf"^{file}: holds 0 layers of polygons, expected one \(\)"):
        read_shapes(str(file), None)
    raw.write(str(file), None, [np.array([1])], ["n"], layer="notes", driver="GPKG", append=True)
    raw.write(str(file), blobs, [np.array([np.nan, 2.5])], ["kind"], append=True, **layer)
    records = areas_of(tmp_path, label_column="kind")["train"]
    assert records.metadata.annotations == "GeoPackage"
    assert records[0]["target"].objects() == {1: 1}
    raw.write(str(file), blobs[1:], [np.array([np.nan])], ["kind"], **layer)
    os.utime(file, ns=(10**18, 10**18))
    with pytest.raises(DataError, match="feature 1 has None in the column kind"):
        areas_of(tmp_path, label_column="kind")


def test_a_corner_of_a_geopackage_that_is_nowhere_is_one_line(tmp_path):
    raw = pytest.importorskip("pyogrio.raw")
    blobs = np.array([well_known_binary([[(0, 0), (np.inf, 0), (4, 3), (0, 0)]])], object)
    raw.write(str(tmp_path / "a.gpkg"), blobs, [], [], driver="GPKG", crs=UTM, geometry_type="Polygon")
    with pytest.raises(DataError, match=r"a\.gpkg: feature 1 has numbers that are not finite$"):
        read_shapes(str(tmp_path / "a.gpkg"), None)


def test_polygons_need_rasterio(tmp_path):
    one_image(tmp_path, feature(square(0, 0, 5)))
    mask = areas_of(tmp_path)["train"][0]["target"]
    with (
        mock.patch.dict("sys.modules", {"rasterio": None}),
        pytest.raises(DataError, match="needs rasterio: pip install rasterio"),
    ):
        mask.render()


def one_image(folder, *features):
    """An image, and polygons beside its folder."""
    write_raster(folder / "images" / "a.tif", scene(0)[0])
    write_geojson(folder / "areas.geojson", [*features])


def areas_of(folder, **settings):
    """The records of images with polygons, opened without holding any out."""
    openers = find_in_folder(folder, (), class_config(folder, **settings))
    return {split: opener() for split, opener in openers.items()}


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((28, 40), (40, 56)), ((0, 10), (0, 5)), ((5, 9), (2, 50)), ((0, 9), (2, 50)), ((2, 9), (0, 9))],
)
def test_a_window_of_polygons_is_that_of_the_whole(tmp_path, rows, columns):
    # two polygons reach beyond their image and one lies outside; loader processes get a mask pickled
    one_image(tmp_path, feature(square(45, 30, 30)), feature(square(-5, -5, 8)), feature(square(60, 5, 9)))
    mask = pickle.loads(pickle.dumps(areas_of(tmp_path)["train"][0]["target"]))
    whole = mask.render()
    assert np.array_equal(mask.render_part(rows, columns), whole[slice(*rows), slice(*columns)])


def test_polygons_of_one_image_each_are_named_where_their_partner_is_missing(tmp_path):
    # images a and b, and polygons of b and c
    for name in "ab":
        write_raster(tmp_path / "images" / f"{name}.tif", scene(0)[0])
    for name in "bc":
        write_geojson(tmp_path / "masks" / f"{name}.geojson", [feature(square(0, 0, 5), kind="x")])
    message = r"2 files without partner: a\.tif: image without mask; c\.geojson: mask without image"
    with pytest.raises(DataError, match=message):
        areas_of(tmp_path, label_column="kind")


@pytest.mark.parametrize(
    ("name", "crs"),
    [
        ("urn:ogc:def:crs:OGC:1.3:CRS84", 4326),
        ("EPSG:32633", 32633),
        ("urn:ogc:def:crs:epsg::3857", 3857),
        (None, 4326),
    ],
)
def test_polygons_of_geojson_are_in_the_crs_that_it_names_or_in_degrees(tmp_path, name, crs):
    file = tmp_path / "a.geojson"
    corners = [(15, 45), (15.1, 45), (15.1, 45.1)]
    content = {"features": [feature(corners)]}
    if name:
        content["crs"] = {"properties": {"name": name}}
    file.write_text(json.dumps(content))
    (shape,), _ = read_shapes(str(file), None, 32633)
    (ring,) = shape.rings
    expected = Transformer.from_crs(crs, 32633, always_xy=True).transform(*np.array([*corners, corners[0]]).T)
    np.testing.assert_allclose(ring, np.transpose(expected), rtol=1e-9)


TRIANGLE = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]}


NO_COLUMNS = "has None in the column kind, expected a name or a number; its columns are none; give --label-column"


@pytest.mark.parametrize(
    ("geometry", "properties", "line"),
    [
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [float("nan"), 1]]]}, {"kind": 1}, NO_AREA),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0]]]}, {"kind": 1}, NO_AREA),
        (5, {"kind": 1}, NO_AREA),
        (
            {"type": "MultiPolygon", "coordinates": [[[[0, 0], [1, 0], [1, 1]]], 3]},
            {"kind": 1},
            NO_AREA,
        ),
        (TRIANGLE, None, NO_COLUMNS),
        (TRIANGLE, {"kind": [1]}, r"has \[1\] in the column kind"),
        (TRIANGLE, {"kind": None, "n": 1}, "columns are kind, n"),
    ],
)
def test_a_feature_of_geojson_that_is_no_area_of_a_kind_is_named(tmp_path, geometry, properties, line):
    features = [feature(square(0, 0, 9), kind="a"), {"geometry": geometry, "properties": properties}]
    file = write_geojson(tmp_path / "a.geojson", features)
    with pytest.raises(DataError, match=f"feature 2.*{line}"):
        read_shapes(str(file), "kind")


def test_polygons_that_cannot_be_brought_to_the_image_are_one_line(tmp_path):
    file = str(write_geojson(tmp_path / "a.geojson", [feature(square(0, 0, 9))], crs="EPSG:5800"))
    with pytest.raises(DataError, match=r"^.*a\.geojson: no way from .*5800 to EPSG:32633 \("):
        read_shapes(file, None, 32633)


def test_a_split_may_have_a_file_of_polygons_of_its_own(tmp_path):
    # an image for each split, polygons of both, and polygons of validation alone
    for split in ("train", "val"):
        write_raster(tmp_path / split / "images" / "a.tif", scene(0)[0])
    write_geojson(tmp_path / "areas.GEOJSON", [feature(square(0, 0, 5))])
    write_geojson(tmp_path / "val" / "areas.geojson", [feature(square(0, 0, 7))])
    records_of_splits = areas_of(tmp_path).items()
    pixels = {split: int(records[0]["target"].render().sum()) for split, records in records_of_splits}
    assert pixels == {"train": 25, "val": 49}


@pytest.mark.parametrize(("left", "is_drawn"), [(500_000, True), (-1e11, False), (1e11, False)])
def test_nothing_is_drawn_of_a_polygon_that_reaches_billions_of_pixels_away(tmp_path, left, is_drawn):
    corners = [(500_000, 5_000_000), (500_300, 5_000_000), (500_300, 4_999_700), (left, 4_999_700)]
    one_image(tmp_path, feature(corners))
    assert areas_of(tmp_path)["train"][0]["target"].render().any() == is_drawn
