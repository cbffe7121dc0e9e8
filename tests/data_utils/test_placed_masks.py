"""Masks on other grids than their images, and polygons, count where their coordinates say, as GDAL has it.

Modules: data_utils/image_io/placed_masks.py, data_utils/image_io/rasterize.py, data_utils/sources/placed.py,
data_utils/sources/annotations/world_polygons.py, data_utils/sources/annotations/shape_files.py,
data_utils/image_io/well_known_binary.py.
"""

import json
import os
import pickle
import struct
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tifffile
from conftest import predict
from pyproj import Transformer
from rasterio.features import rasterize
from rasterio.transform import Affine, from_origin
from rasterio.warp import Resampling, reproject
from rasters import NORTH_UP, UTM, feature, scene, square, write_geojson, write_raster

from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io import placed_masks
from data_utils.image_io.formats import BandSource
from data_utils.image_io.placed_masks import Grid, PlacedMask, check_crs, file_and_page, grid_of, on_grid
from data_utils.image_io.places import Crs, Place
from data_utils.image_io.rasterize import fill_polygon
from data_utils.image_io.reader import read_mask
from data_utils.image_io.well_known_binary import well_known_binary
from data_utils.image_io.windowed import open_windowed
from data_utils.sources.annotations.shape_files import read_shapes, shapes_in
from data_utils.sources.annotations.world_polygons import find_polygons
from data_utils.sources.load import load_records
from data_utils.sources.placed import place_warnings, with_places
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import DataError
from unet import Preprocess, UNet, UNetConfig


def config(folder, **settings):
    return DataConfig(str(folder), **{"task": "classes", **settings})


def write_pairs(folder, transform, mask_of=lambda mask: mask, crs=UTM):
    """Three images, and masks on another grid."""
    for number in range(3):
        bands, mask = scene(number)
        write_raster(folder / "images" / f"{number}.tif", bands)
        write_raster(folder / "masks" / f"{number}.tif", mask_of(mask)[None], transform=transform, crs=crs)
    return folder


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (NORTH_UP @ Affine.scale(3), (15, 20)),  # coarser
        (NORTH_UP @ Affine.translation(-7, 4) @ Affine.scale(0.5), (120, 160)),  # finer, and larger than the image
        (NORTH_UP @ Affine.translation(9, 3) @ Affine.rotation(30), (30, 40)),  # turned, and smaller
    ],
)
def test_a_mask_on_another_grid_is_placed_as_gdal_places_it(tmp_path, transform, size):
    mask = np.random.default_rng(0).integers(0, 4, size).astype(np.uint8)
    write_pairs(tmp_path, transform, mask_of=lambda _: mask)
    record = next(iter(load_records(config(tmp_path))[0]))
    expected = np.full((40, 56), 255, np.uint8)
    reproject(
        mask,
        expected,
        src_transform=transform,
        src_crs=UTM,
        dst_transform=NORTH_UP,
        dst_crs=UTM,
        dst_nodata=255,
        resampling=Resampling.nearest,
        tolerance=0,
    )
    placed = read_mask(record["target"], "a")
    assert (placed == expected).mean() > 0.998  # centers between two pixels
    info = load_dataset_info(config(tmp_path))
    assert info.reader.class_map.ignore_value in (None, 255)
    assert info.train.sizes.tolist() == [[40, 56]] * 2


def test_the_grid_of_a_file_that_was_written_again_is_its_new_one(tmp_path):
    path = tmp_path / "a.tif"
    for time, size in enumerate(((4, 5), (6, 7))):
        write_raster(path, np.zeros((1, *size), np.uint8))
        os.utime(path, (time, time))
        assert grid_of(str(path)).size == size


def test_a_tiff_that_is_turned_as_it_is_decoded_has_no_grid(tmp_path):
    for orientation, has_grid in ((1, True), (3, False), (6, False)):
        tags = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 500.0, 900.0, 0.0), True)]
        tags.append((274, "H", 1, orientation, True))
        path = tmp_path / f"{orientation}.tif"
        tifffile.imwrite(path, np.zeros((4, 5), np.uint8), photometric="minisblack", extratags=tags, metadata=None)
        assert (grid_of(str(path)) is not None) is has_grid


def test_each_page_of_a_tiff_has_a_grid_of_its_own(tmp_path):
    path = tmp_path / "a.tif"
    tags = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 500.0, 900.0, 0.0), True)]
    with tifffile.TiffWriter(path) as tiff:
        for extra in ((), tags):
            tiff.write(np.zeros((4, 5), np.uint8), photometric="minisblack", extratags=extra, metadata=None)
    assert grid_of(str(path)) is None
    assert grid_of(str(path), 1).place.transform == (10, 0, 500, 0, -10, 900)


def test_centers_on_the_border_of_two_pixels_belong_to_the_second():
    size = (30, 40)
    place = Place((0.1, 0.0, 0.0, 0.0, -0.1, 0.0), None, ())
    shifted = place._replace(transform=(0.1, 0.0, 0.05, 0.0, -0.1, -0.05))
    values = np.arange(30 * 40, dtype=np.uint16).reshape(size)
    assert np.array_equal(PlacedMask(values, "a", Grid(shifted, size), Grid(place, size)).render(), values)


def test_the_memory_of_a_mask_is_that_of_the_part_which_is_placed(monkeypatch):
    needed = []
    monkeypatch.setattr(placed_masks, "check_memory", lambda size, name: needed.append(size))
    place = Place((1.0, 0.0, 0.0, 0.0, -1.0, 0.0), None, ())
    mask = PlacedMask(np.zeros((20, 30), np.uint16), "a", Grid(place, (20, 30)), Grid(place, (11, 13)))
    mask.render_part((2, 9), (3, 8))
    assert needed == [7 * 5 * 2]


def test_a_grid_without_crs_may_be_that_of_any_and_one_of_another_size_is_another():
    plain = Place((10.0, 0.0, 500.0, 0.0, -10.0, 900.0), None, ())
    place_with_crs = plain._replace(crs=Crs(None, ("own",)))
    for image, mask in ((plain, place_with_crs), (place_with_crs, plain), (place_with_crs, place_with_crs)):
        check_crs(image, mask, "a")
    with pytest.raises(
        DataError, match=r"a: mask is in EPSG:7, its image in a CRS without .*there \(gdalwarp -r near\)$"
    ):
        check_crs(place_with_crs, plain._replace(crs=Crs(7, ())), "a")


def test_a_mask_of_another_size_is_placed_and_one_without_crs_is_not(tmp_path):
    image = grid_of(str(write_raster(tmp_path / "image.tif", np.zeros((1, 8, 9), np.uint8))))
    smaller = str(write_raster(tmp_path / "smaller.tif", np.ones((1, 7, 9), np.uint8)))
    assert on_grid(smaller, image, "a").render().tolist() == [[1] * 9] * 7 + [[255] * 9]
    plain = str(write_raster(tmp_path / "plain.tif", np.ones((1, 8, 9), np.uint8), crs=None))
    assert on_grid(plain, image, "a") == plain


def test_a_mask_on_another_grid_is_read_where_its_coordinates_say(tmp_path):
    image = write_raster(tmp_path / "image.tif", np.zeros((5, 8, 9), np.uint16))
    values = np.arange(1, 31, dtype=np.uint8).reshape(1, 5, 6)
    transform = NORTH_UP * Affine.translation(-2, 1) * Affine.scale(2)
    mask = write_raster(tmp_path / "mask.tif", values, transform=transform)
    grid = grid_of(str(image))
    assert grid == Grid(grid.place, (8, 9))
    assert grid_of(str(tmp_path / "none.tif")) is None
    assert grid_of(str(tmp_path / "a.png")) is None
    with open_windowed(on_grid(str(mask), grid, "m")) as picture:
        read = np.asarray(picture.read(0, 8))
        with mock.patch("data_utils.image_io.placed_masks.ROWS", 3):
            assert np.array_equal(picture.read(0, 8), read)
            assert np.array_equal(picture.read(2, 7, 3, 8), read[2:7, 3:8])
            part = on_grid(str(mask), grid, "m").render_part((2, 7), (3, 8))
            assert np.array_equal(part, read.reshape(8, 9)[2:7, 3:8])
    expected = np.zeros((8, 9), int)
    expected[:] = read[0, 0]  # what stands for nothing known
    for row in range(1, 8):
        for column in range(9):
            expected[row, column] = values[0, (row - 1) // 2, (column + 2) // 2]
    assert np.array_equal(read.reshape(8, 9)[1:], expected[1:])
    assert (read.reshape(8, 9)[0] == read.reshape(8, 9)[0, 0]).all()


def test_a_shift_by_half_a_pixel_is_one_line(tmp_path):
    write_pairs(tmp_path, NORTH_UP @ Affine.translation(0.5, 0.5))
    info = load_dataset_info(config(tmp_path))
    (line,) = [line for line in info.warnings if "shifted" in line]
    assert "3 masks" in line
    assert "+0.50 to the right and +0.50 down" in line
    assert line in check_data(config(tmp_path))[0]
    write_pairs(tmp_path, NORTH_UP)
    assert not [line for line in load_dataset_info(config(tmp_path)).warnings if "shifted" in line]


def test_the_mask_of_an_image_without_place_stays_as_it_is(tmp_path):
    placed, mask = (str(write_raster(tmp_path / name, np.zeros((1, 4, 5), np.uint8))) for name in ("a.tif", "m.tif"))
    pictures = [placed, str(tmp_path / "b.png")]
    records = with_places(ListRecords([{"image": image, "target": mask, "name": "a"} for image in pictures]))
    assert records[1]["target"] == mask


def test_masks_that_are_shifted_by_a_part_of_a_pixel_are_said(tmp_path):
    image = write_raster(tmp_path / "image.tif", np.zeros((5, 8, 9), np.uint16))
    records = []
    shifts = {"a": (0.0, 0.0), "b": (0.3, -0.1), "c": (1.0, 2.0), "d": (0.008, 0.0), "n": (-0.3, -0.2)}
    shifts |= {"down": (0.0, 0.2), "right": (0.012, 0.0)}
    for name, (right, down) in shifts.items():
        transform = NORTH_UP * Affine.translation(right, down)
        mask = write_raster(tmp_path / f"{name}.tif", np.zeros((1, 8, 9), np.uint8), transform=transform)
        records.append({"image": str(image), "target": str(mask), "name": name})
    coarse = write_raster(
        tmp_path / "e.tif", np.zeros((1, 4, 5), np.uint8), transform=from_origin(500_003, 5_000_000, 20, 20)
    )
    records.append({"image": str(image), "target": str(coarse), "name": "e"})
    placed = with_places(ListRecords(records))
    (line,) = place_warnings([placed])
    assert line.startswith(
        "4 masks are shifted against their images by a part of a pixel, b by +0.30 to the right and -0.10"
    )
    assert place_warnings([ListRecords(records)]) == ()
    assert place_warnings([ListRecords(records), placed]) == (line,)
    (line,) = place_warnings([with_places(ListRecords(records[1:2] * 200))])
    assert line.startswith("128 masks")  # the first ones are looked at
    assert isinstance(placed[0]["target"], str)
    assert isinstance(placed[1]["target"], PlacedMask)
    assert placed[1]["target"].name == "b"
    plain = tmp_path / "plain.tif"
    tifffile.imwrite(plain, np.zeros((8, 9), np.uint8), photometric="minisblack")
    plain_records = ListRecords([{"image": str(plain), "target": str(plain), "name": "p"}])
    assert with_places(plain_records) is plain_records
    empty = ListRecords([])
    volumes = ListRecords(records)
    volumes.metadata = Metadata(dims=3)
    stream = ListRecords(records)
    stream.group_sizes = np.array([len(records)])
    assert [with_places(each) is each for each in (empty, volumes, stream)] == [True] * 3


def test_a_mask_in_another_crs_is_one_line(tmp_path):
    write_pairs(tmp_path, NORTH_UP, crs="EPSG:32634")
    with pytest.raises(DataError, match=r"mask is in EPSG:32634, its image in EPSG:32633.*-t_srs EPSG:32633"):
        load_dataset_info(config(tmp_path))
    report, problems = check_data(config(tmp_path))
    assert problems == 3
    assert "EPSG:32634" in report


def test_polygons_are_filled_as_rasterio_fills_them():
    rng = np.random.default_rng(0)
    size = (40, 50)
    for number in range(200):
        corners = rng.uniform(-15, 65, (rng.integers(3, 9), 2))
        if number % 2:  # on corners and centers of pixels
            corners = np.round(corners * 2) / 2
        hole = rng.uniform(10, 30, (4, 2))
        rings = [corners, hole] if number % 3 else [corners]
        polygon = {"type": "Polygon", "coordinates": [[*ring.tolist(), ring[0].tolist()] for ring in rings]}
        mask = np.zeros(size, np.uint8)
        fill_polygon(mask, [np.array(ring) for ring in polygon["coordinates"]], 1)
        assert np.array_equal(mask, rasterize([(polygon, 1)], size, dtype=np.uint8)), number


@pytest.mark.parametrize("is_closed", [True, False])
def test_polygons_along_the_centers_of_pixels_are_filled_as_rasterio_fills_them(is_closed):
    """Edges that GDAL counts as inside or not by the direction of their ring, which it chooses itself."""
    rng = np.random.default_rng(0)
    size = (7, 7)
    for number in range(300):
        ring = rng.integers(0, 12, (rng.integers(3, 7), 2)) / 2
        polygon = {"type": "Polygon", "coordinates": [[*ring.tolist(), ring[0].tolist()]]}
        mask = np.zeros(size, np.uint8)
        fill_polygon(mask, [np.concatenate([ring, ring[:1]]) if is_closed else ring], 1)
        assert np.array_equal(mask, rasterize([(polygon, 1)], size, dtype=np.uint8)), number


@pytest.mark.parametrize(
    "ring",
    [
        [[1.5, 0], [0, 0.5], [2.5, 2.5], [1, 2.5], [2, 1], [1.5, 0], [0, 0]],
        [[0.5, 2], [1.5, 0.5], [0.5, 2.5], [2, 0], [0.5, 1], [1.5, 1.5], [0, 1.5], [2, 0]],
        [[2, 2.5], [2.5, 1.5], [0.5, 1.5], [2.5, 1.5], [2.5, 2.5], [2.5, 1], [2.5, 2.5]],
        [[1, 0.5], [1, 0], [1, 1], [2, 2.5], [1, 0.5], [2.5, 2.5], [0.5, 2.5]],
        [[1, -2.5], [1, -0.5], [5, -0.5], [5, -2.5]],  # above the image
        [[1, -0.5], [1, 2.5], [5, 2.5], [5, -0.5]],
        [[1, 7.5], [1, 9.5], [5, 9.5], [5, 7.5]],  # below it
        [[1, 5.5], [1, 7.5], [5, 7.5], [5, 5.5]],
    ],
)
def test_the_direction_of_a_ring_is_that_of_gdal_where_it_meets_itself_or_lies_beside_the_image(ring):
    mask = np.zeros((7, 7), np.uint8)
    fill_polygon(mask, [np.array(ring)], 1)
    polygon = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    assert mask.tolist() == rasterize([(polygon, 1)], (7, 7), dtype=np.uint8).tolist()


def test_polygons_in_longitude_and_latitude_are_brought_to_the_image(tmp_path):
    to_degrees = Transformer.from_crs(UTM, 4326, always_xy=True)
    rings = [square(5, 5, 20), square(10, 10, 5)]
    other = square(20, 20, 100)
    for number in range(3):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
    features = [feature(*rings, kind="wood"), feature(other, kind="field")]
    expected = rasterize(
        [(features[0]["geometry"], 2), (features[1]["geometry"], 1)], (40, 56), transform=NORTH_UP, dtype=np.uint8
    )
    write_geojson(tmp_path / "areas.geojson", features)
    settings = config(tmp_path, label_column="kind")
    train, _ = load_records(settings)
    assert np.array_equal(read_mask(train[0]["target"], "a"), expected)
    assert train.metadata.classes == ((0, "background"), (1, "field"), (2, "wood"))
    for entry in features:
        geometry = entry["geometry"]
        geometry["coordinates"] = [
            [to_degrees.transform(*corner) for corner in ring] for ring in geometry["coordinates"]
        ]
    write_geojson(tmp_path / "areas.geojson", features, crs=None)
    in_degrees = read_mask(load_records(settings)[0][0]["target"], "a")
    assert (in_degrees == expected).mean() > 0.99  # corners moved by rounding
    info = load_dataset_info(config(tmp_path, label_column="kind", outside="ignore"))
    assert info.reader.class_map.names == ("field", "wood")
    assert info.reader.class_map.index_of(0) == 255


def test_what_is_kept_of_one_column_of_polygons_is_not_that_of_another(tmp_path):
    for number in range(2):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
    large = feature(square(2, 2, 9), first_year="maize", second_year="wheat")
    small = feature(square(20, 20, 6), first_year="wheat", second_year="maize")
    write_geojson(tmp_path / "fields.geojson", [large, small])
    pixels = {}
    for column in ("first_year", "second_year"):
        reader = load_dataset_info(config(tmp_path, label_column=column)).reader
        pixels[column] = dict(zip(reader.class_names, reader.class_pixels, strict=True))
    assert (pixels["first_year"]["maize"], pixels["first_year"]["wheat"]) == (2 * 81, 2 * 36)
    assert (pixels["second_year"]["maize"], pixels["second_year"]["wheat"]) == (2 * 36, 2 * 81)


def test_each_image_may_have_polygons_of_its_own(tmp_path):
    for number in range(3):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
        write_geojson(tmp_path / "labels" / f"{number}.geojson", [feature(square(number, 0, 10))])
    train, val = load_records(config(tmp_path))
    masks = {record["name"]: read_mask(record["target"], "a") for part in (train, val) for record in part}
    assert {name: int(mask.argmax(axis=1)[0]) for name, mask in masks.items()} == {"0.tif": 0, "1.tif": 1, "2.tif": 2}
    (tmp_path / "labels" / "2.geojson").unlink()
    with pytest.raises(DataError, match=r"2\.tif: image without polygons"):
        load_records(config(tmp_path))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", r"\.geojson cannot be read as GeoJSON \(Expecting"),
        ('{"type": "Topology"}', "has no list"),
        (json.dumps({"features": [3]}), "feature 1 is no object"),
        (json.dumps({"features": [{"geometry": {"type": "Point", "coordinates": [1, 2]}}]}), "is of type 'Point'"),
        (
            json.dumps({"features": [{"geometry": {"type": "Polygon", "coordinates": [[[1, 2], [3, 4]]]}}]}),
            "fewer than 3",
        ),
        (json.dumps({"features": [{"geometry": {"type": "Polygon", "coordinates": [["x"]]}}]}), "no list of positions"),
        (json.dumps({"features": [{"geometry": {"type": "Polygon", "coordinates": [[{}]]}}]}), "no list of positions"),
        (
            json.dumps({"features": [feature(square(0, 0, 9))], "crs": {"properties": {"name": "local"}}}),
            "crs is 'local'",
        ),
        (json.dumps({"features": []}), "hold no polygon"),
    ],
)
def test_a_damaged_file_of_polygons_is_one_line(tmp_path, content, line):
    for number in range(2):
        write_raster(tmp_path / "images" / f"{number}.tif", scene(number)[0])
    (tmp_path / "areas.geojson").write_text(content)
    with pytest.raises(DataError, match=line):
        load_dataset_info(config(tmp_path))


def test_a_true_mask_on_another_grid_is_scored_where_it_lies(tmp_path):
    classes = {"class_values": (0, 1), "class_names": ("a", "b"), "ignore_value": 255}
    preprocess = Preprocess(mean=(300.0,) * 5, std=(50.0,) * 5, place=True, **classes)
    UNet(UNetConfig(5, 2, base_channels=4, depth=2, norm="group", preprocess=preprocess)).save_pretrained(
        tmp_path / "m"
    )
    bands, mask = scene(0)
    image = write_raster(tmp_path / "in" / "a.tif", bands)
    write_raster(tmp_path / "same" / "a.tif", mask[None])
    wide = np.pad(mask, ((3, 30), (9, 2)))
    write_raster(tmp_path / "wide" / "a.tif", wide[None], transform=NORTH_UP @ Affine.translation(-9, -3))
    reports = []
    for truth in ("same", "wide"):
        assert predict(tmp_path / "m", [image], tmp_path / "out" / truth, "--truth", tmp_path / truth).returncode == 0
        reports.append(json.loads((tmp_path / "out" / truth / "metrics.json").read_text()))
    assert reports[0] == reports[1]


@pytest.mark.parametrize("crs", [UTM, "EPSG:4326", "+proj=laea +lat_0=45 +lon_0=15"])
def test_a_geopackage_is_read_as_its_polygons_in_geojson(tmp_path, crs):
    raw = pytest.importorskip("pyogrio.raw")
    for number in range(3):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
    features = [feature(square(5, 5, 20), square(10, 10, 5), kind=1), feature(square(20, 20, 100), kind=2)]
    features[1]["geometry"] = {"type": "MultiPolygon", "coordinates": [features[1]["geometry"]["coordinates"]]}
    write_geojson(tmp_path / "areas.geojson", features)
    settings = config(tmp_path, label_column="kind")
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
    with pytest.raises(DataError, match=r"feature 1 has no value in the column crop, its columns are number, kind"):
        load_records(config(tmp_path, label_column="crop"))
    raw.write(
        str(tmp_path / "areas.gpkg"), blobs[:1], [], [], append=True, geometry_type="Polygon", **{**layer, "layer": "b"}
    )
    with pytest.raises(DataError, match=r"holds 2 layers of polygons, expected one \(areas, b\)"):
        load_records(settings)
    with mock.patch.dict("sys.modules", {"pyogrio": None}), pytest.raises(DataError, match="pip install -r req"):
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
    raw.write(str(file), None, [np.array([1])], ["n"], layer="notes", driver="GPKG", append=True)
    raw.write(str(file), blobs, [np.array([np.nan, 2.5])], ["kind"], append=True, **layer)
    records = areas_of(tmp_path, label_column="kind")["train"]
    assert records.annotations == ("GeoPackage", 1, 0, {"2.5": 1}, 0)
    raw.write(str(file), blobs[1:], [np.array([np.nan])], ["kind"], **layer)
    os.utime(file, ns=(10**18, 10**18))
    with pytest.raises(DataError, match="feature 1 has no value in the column kind"):
        areas_of(tmp_path, label_column="kind")


def test_a_geopackage_may_hold_heights_and_say_no_crs(tmp_path):
    raw = pytest.importorskip("pyogrio.raw")
    triangle = [[0.0, 0.0], [4.0, 0.0], [4.0, 3.0], [0.0, 0.0]]
    ring = np.insert(triangle, 2, 7.0, axis=1)
    high = struct.pack("<BII", 1, 1006, 1) + struct.pack("<BIII", 1, 1003, 1, 4) + ring.tobytes()
    layer = {"layer": "areas", "driver": "GPKG", "crs": None, "geometry_type": "MultiPolygon Z"}
    with pytest.warns(UserWarning, match="'crs' was not provided"):
        raw.write(str(tmp_path / "a.gpkg"), np.array([high], object), [], [], **layer)
    shapes = read_shapes(str(tmp_path / "a.gpkg"), None)
    assert [ring.tolist() for ring in shapes.shapes[0].rings] == [triangle]
    assert shapes.crs is None


def test_polygons_in_the_crs_of_the_image_are_drawn_without_pyproj(tmp_path):
    file = write_geojson(tmp_path / "a.geojson", [feature(square(0, 0, 9))])
    with mock.patch.dict("sys.modules", {"pyproj": None}):
        assert shapes_in(str(file), None, 32633).boxes.tolist() == [[500_000, 4_999_910, 500_090, 5_000_000]]


def one_image(folder, *features):
    """An image, and polygons beside its folder."""
    write_raster(folder / "images" / "a.tif", scene(0)[0])
    write_geojson(folder / "areas.geojson", [*features])


def areas_of(folder, **settings):
    """The records of images with polygons, opened without holding any out."""
    return {split: opener() for split, opener in find_polygons(folder, (), config(folder, **settings)).items()}


def test_a_polygon_at_the_border_is_drawn_and_a_window_is_a_part_of_the_whole(tmp_path):
    one_image(tmp_path, feature(square(45, 30, 30)), feature(square(-5, -5, 8)), feature(square(60, 5, 9)))
    mask = pickle.loads(pickle.dumps(areas_of(tmp_path)["train"][0]["target"]))  # as it reaches loader processes
    whole = mask.render()
    expected = np.zeros((40, 56), np.uint8)
    expected[30:, 45:] = 1
    expected[:3, :3] = 1
    assert np.array_equal(whole, expected)
    for rows, columns in (
        ((28, 40), (40, 56)),
        ((0, 10), (0, 5)),
        ((5, 9), (2, 50)),
        ((0, 9), (2, 50)),
        ((2, 9), (0, 9)),
    ):
        assert np.array_equal(mask.render_part(rows, columns), whole[slice(*rows), slice(*columns)])
    with pytest.raises(ValueError, match=r"the mask needs .* GB of memory"):
        mask.render_part((0, 2**31), (0, 2**31))


def test_a_window_of_a_turned_image_lies_in_a_polygon_around_the_image(tmp_path):
    one_image(tmp_path, feature(square(-100, -100, 200)))
    turned = NORTH_UP @ Affine.rotation(45)
    write_raster(tmp_path / "images" / "a.tif", scene(0)[0], transform=turned)
    mask = areas_of(tmp_path)["train"][0]["target"]
    for rows, columns in (((0, 4), (0, 4)), ((36, 40), (0, 4)), ((0, 4), (52, 56)), ((36, 40), (52, 56))):
        assert mask.render_part(rows, columns).all()


def test_nothing_is_drawn_of_a_polygon_two_billion_pixels_away(tmp_path):
    far = 1e11
    corners = [(500_000, 5_000_000), (500_300, 5_000_000), (500_300, 4_999_700)]
    for corner, is_drawn in (((500_000, 4_999_700), True), ((-far, 4_999_700), False), ((far, 4_999_700), False)):
        one_image(tmp_path, feature([*corners, corner]))
        assert areas_of(tmp_path)["train"][0]["target"].render().any() == is_drawn


def test_classes_of_polygons_are_in_natural_order_and_counted_once_for_all_images(tmp_path):
    features = [feature(square(5 * place, 5, 4), kind=kind) for place, kind in enumerate((10, 2, 0, 2.5))]
    one_image(tmp_path, *features)
    write_raster(tmp_path / "images" / "b.tif", scene(1)[0])
    records = areas_of(tmp_path, label_column="kind")["train"]
    assert [name for _, name in records.metadata.classes] == ["background", "0", "2", "2.5", "10"]
    assert records.annotations == ("GeoJSON", 2, 0, {"0": 1, "2": 1, "2.5": 1, "10": 1}, 0)
    write_geojson(tmp_path / "areas.geojson", [*features, features[1]])
    again = areas_of(tmp_path, label_column="kind")["train"]
    assert again.annotations.instances == {"0": 1, "2": 2, "2.5": 1, "10": 1}
    digests = {areas_of(tmp_path, label_column=column)["train"].digest for column in ("kind", None)}
    assert len(digests) == 2


def test_a_split_may_have_a_file_of_polygons_of_its_own_and_not_two(tmp_path):
    for split in ("train", "val"):
        write_raster(tmp_path / split / "images" / "a.tif", scene(0)[0])
    write_geojson(tmp_path / "areas.GEOJSON", [feature(square(0, 0, 5))])
    write_geojson(tmp_path / "val" / "areas.geojson", [feature(square(0, 0, 7))])
    pixels_of_split = {split: int(records[0]["target"].render().sum()) for split, records in areas_of(tmp_path).items()}
    assert pixels_of_split == {"train": 25, "val": 49}
    for name in ("zones", "more", "fields", "houses"):
        write_geojson(tmp_path / "val" / f"{name}.geojson", [feature(square(0, 0, 7))])
    names = ", ".join(f"{name}.geojson" for name in ("areas", "fields", "houses", "more", "zones"))
    with pytest.raises(DataError, match=f"val: holds {names}; keep one, or one for each image"):
        areas_of(tmp_path)


def test_masks_come_before_polygons_and_those_of_validation_are_placed_too(tmp_path):
    for split in ("train", "val"):
        one_image(tmp_path / split, feature(square(0, 0, 5)))
        wide = np.ones((1, 41, 57), np.uint8)
        write_raster(tmp_path / split / "masks" / "a.tif", wide, transform=NORTH_UP @ Affine.translation(-1, -1))
    for records in load_records(config(tmp_path)):
        assert read_mask(records[0]["target"], "a").tolist() == [[1] * 56] * 40


def test_a_folder_of_other_masks_holds_no_polygons(tmp_path):
    for kind in ("images", "masks"):
        write_raster(tmp_path / kind / "a.tif", scene(0)[0])
    assert find_polygons(tmp_path, (), config(tmp_path)) == {}


def test_a_folder_is_no_file_of_polygons(tmp_path):
    one_image(tmp_path, feature(square(0, 0, 5)))
    (tmp_path / "older.geojson").mkdir()
    assert int(areas_of(tmp_path)["train"][0]["target"].render().sum()) == 25


def test_polygons_of_one_image_each_are_named_where_their_partner_is_missing(tmp_path):
    for name in "ab":
        write_raster(tmp_path / "images" / f"{name}.tif", scene(0)[0])
    for name in "bc":
        write_geojson(tmp_path / "masks" / f"{name}.geojson", [feature(square(0, 0, 5), kind="x")])
    message = r"2 files without partner: a\.tif: image without polygons; c\.geojson: polygons without image"
    with pytest.raises(DataError, match=message):
        areas_of(tmp_path, label_column="kind")
    records = areas_of(tmp_path, label_column="kind", allow_unpaired=True)["train"]
    assert [record["name"] for record in records] == ["b.tif"]
    assert records.metadata.classes[1:] == ((1, "x"),)
    assert records.metadata.unpaired == ("a.tif: image without polygons", "c.geojson: polygons without image")
    assert records.annotations == ("GeoJSON", 1, 0, {"x": 1}, 0)
    write_geojson(tmp_path / "masks" / "a.geojson", [feature(square(0, 0, 5), kind="y")])
    records = areas_of(tmp_path, label_column="kind", allow_unpaired=True)["train"]
    assert records.metadata.classes == ((0, "background"), (1, "x"), (2, "y"))


def test_polygons_of_a_split_are_found_by_the_name_that_is_given(tmp_path):
    for split in ("train", "test"):
        one_image(tmp_path / split, feature(square(0, 0, 5)))
    assert {*find_polygons(tmp_path, (), config(tmp_path))} == {"train"}
    assert {*find_polygons(tmp_path, ("test",), config(tmp_path))} == {"train", "test"}


@pytest.mark.parametrize("lacking", ["images", "polygons"])
def test_polygons_are_those_of_all_splits_or_of_none(tmp_path, lacking):
    for split in ("train", "val"):
        one_image(tmp_path / split, feature(square(0, 0, 5)))
    assert [*areas_of(tmp_path)] == ["train", "val"]
    if lacking == "images":
        (tmp_path / "val" / "images").rename(tmp_path / "val" / "scans")
    else:
        (tmp_path / "val" / "areas.geojson").unlink()
    assert areas_of(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "crs"),
    [
        (None, 4326),
        ("urn:ogc:def:crs:OGC:1.3:CRS84", 4326),
        ("urn:ogc:def:crs:ogc:1.3:crs84", 4326),
        ("EPSG:32633", 32633),
        ("urn:ogc:def:crs:epsg::3857", 3857),
        ("urn:ogc:def:crs:EPSG::1234567", "expected an EPSG number"),
        ("urn:ogc:def:crs:IGNF::4326", "expected an EPSG number"),
        ("EPSG:WGS84", "expected an EPSG number"),
        ({"properties": {"code": 3857}}, "expected an EPSG number"),
        ({"properties": 3857}, "expected an EPSG number"),
        (3857, "expected an EPSG number"),
    ],
)
def test_the_crs_of_a_geojson_file_is_an_epsg_number(tmp_path, name, crs):
    triangle = square(0, 0, 9)[:3]  # not closed
    content = {"features": [feature(triangle)]}
    if name is not None:
        content["crs"] = {"properties": {"name": name}} if isinstance(name, str) else name
    file = tmp_path / "a.geojson"
    file.write_text(json.dumps(content))
    if isinstance(crs, str):
        with pytest.raises(DataError, match=crs):
            read_shapes(str(file), None)
    else:
        shapes = read_shapes(str(file), None)
        assert shapes.crs == crs
        assert [ring.shape for ring in shapes.shapes[0].rings] == [(3, 2)]


@pytest.mark.parametrize(
    ("geometry", "properties", "line"),
    [
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [float("nan"), 1]]]}, {"kind": 1}, "not finite"),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0]]]}, {"kind": 1}, "a ring of fewer than 3 positions"),
        ({"type": "Polygon", "coordinates": [[]]}, {"kind": 1}, "a ring of fewer than 3 positions"),
        ({"type": "Polygon"}, {"kind": 1}, "coordinates that are no lists of rings"),
        ({"type": "MultiPolygon", "coordinates": 3}, {"kind": 1}, "coordinates that are no lists of rings"),
        ({"type": "Polygon", "coordinates": [[[0], [1], [2]]]}, {"kind": 1}, "a ring of fewer than 3 positions"),
        (
            {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]},
            None,
            "has no value in the column kind, its columns are none; give --label-column",
        ),
        (
            {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]},
            ["kind"],
            "has no value in the column kind, its columns are none; give --label-column",
        ),
        (
            {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]},
            {"kind": [1]},
            r"has \[1\] in the column kind",
        ),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]}, {"kind": None, "n": 1}, "columns are kind, n"),
        (None, {}, None),  # nothing drawn here
        ({"type": "Polygon", "coordinates": [[[0, 0, 5], [1, 0, 5], [1, 1, 5]]]}, {"kind": ""}, None),  # heights
    ],
)
def test_a_feature_of_geojson_is_read_or_named(tmp_path, geometry, properties, line):
    file = tmp_path / "a.geojson"
    good = feature(square(0, 0, 9), kind="a")
    file.write_text(json.dumps({"features": [good, {"geometry": geometry, "properties": properties}]}))
    if line:
        with pytest.raises(DataError, match=f"feature 2.*{line}"):
            read_shapes(str(file), "kind")
    else:
        labels = [shape.label for shape in read_shapes(str(file), "kind").shapes]
        assert labels == (["a"] if geometry is None else ["a", ""])


def test_a_file_of_polygons_is_read_again_when_it_has_changed(tmp_path):
    file = tmp_path / "a.geojson"
    for count, moment in ((1, 10**18), (2, 10**18 + 1000)):  # within one second
        write_geojson(file, [feature(square(0, 0, 9))] * count)
        os.utime(file, ns=(moment, moment))
        assert len(read_shapes(str(file), None).shapes) == count
        assert len(shapes_in(str(file), None, 32633).shapes) == count


def test_a_file_of_polygons_that_is_gone_is_named(tmp_path):
    with pytest.raises(DataError, match=r"a\.geojson cannot be read \(No such file or directory\)"):
        read_shapes(str(tmp_path / "a.geojson"), None)


def test_polygons_take_images_with_a_place_and_an_epsg_number(tmp_path):
    one_image(tmp_path, feature(square(0, 0, 5)))
    mask = areas_of(tmp_path)["train"][0]["target"]
    write_raster(tmp_path / "images" / "a.tif", scene(0)[0], crs="+proj=laea +lat_0=45 +lon_0=15")
    with pytest.raises(DataError, match=r"a\.tif: its CRS has no EPSG number, so polygons cannot be brought to it"):
        mask.render()
    tifffile.imwrite(tmp_path / "images" / "b.tif", np.zeros((8, 9), np.uint8), photometric="minisblack")
    with pytest.raises(DataError, match=r"b\.tif: has no place in the world, so polygons cannot be drawn on it"):
        replace(mask, image=str(tmp_path / "images" / "b.tif")).render()


def test_the_boxes_of_polygons_are_their_borders_and_infinite_where_a_crs_does_not_reach(tmp_path):
    file = tmp_path / "a.geojson"
    triangle = [(15.0, 45.0), (16.5, 45.5), (15.5, 46.0)]
    write_geojson(file, [feature(triangle), feature([(15.0, 45.0), (15.0, 95.0), (16.0, 95.0)])], crs=None)
    shapes = shapes_in(str(file), None, 4326)
    assert shapes.boxes[0].tolist() == [15.0, 45.0, 16.5, 46.0]
    shapes = shapes_in(str(file), None, 32633)
    assert shapes.boxes[0].round(-3).tolist() == [500_000, 4_983_000, 617_000, 5_094_000]
    assert shapes.boxes[1].tolist() == [np.inf] * 4
    assert shapes_in(str(file), None, None).boxes[0].tolist() == [15.0, 45.0, 16.5, 46.0]  # an image without CRS
    several = {"type": "MultiPolygon", "coordinates": [[[(1, 2), (3, 2), (3, 4)]], [[(7, 8), (9, 8), (9, 6)]]]}
    file.write_text(json.dumps({"features": [{"geometry": several}]}))
    os.utime(file, ns=(10**18, 10**18))
    shapes = shapes_in(str(file), None, None)
    assert shapes.boxes.tolist() == [[1, 2, 9, 8]]
    assert len(shapes.shapes[0].rings) == 2
    assert [len(shape.rings) for shape in shapes_in(str(file), None, 32633).shapes] == [2]


def test_a_file_of_polygons_has_up_to_four_gigabytes(tmp_path, monkeypatch):
    file = write_geojson(tmp_path / "a.geojson", [feature(square(0, 0, 9))])
    mode = os.stat(file).st_mode
    monkeypatch.setattr("os.fstat", lambda stream: SimpleNamespace(st_mode=mode, st_size=2**32))
    assert len(read_shapes(str(file), None).shapes) == 1


def test_the_grid_of_a_source_is_that_of_its_file_and_page():
    assert file_and_page("a.tif") == ("a.tif", 0)
    assert file_and_page({"path": "a.tif", "page": 2}) == ("a.tif", 2)
    assert file_and_page({"path": "a.tif"}) == ("a.tif", 0)
    assert file_and_page({"path": "a", "bytes": b"x"}) is None
    assert file_and_page(BandSource(("b.tif", "c.tif"), page=3)) == ("b.tif", 3)
    assert file_and_page(b"x") is None


def test_a_mask_of_colors_stays_on_the_grid_of_its_image(tmp_path):
    colors = np.zeros((3, 4, 5), np.uint8)
    colors[0, 0, 0] = 9
    mask = str(write_raster(tmp_path / "m.tif", colors, photometric="rgb"))
    shifted = NORTH_UP * Affine.translation(1, 0)
    image = grid_of(str(write_raster(tmp_path / "a.tif", np.zeros((1, 4, 5), np.uint8), transform=shifted)))
    assert on_grid(mask, grid_of(mask), "a") == mask
    with pytest.raises(DataError, match=r"^a: is a color mask on another grid than its image; store it as numbers$"):
        on_grid(mask, image, "a").render()
