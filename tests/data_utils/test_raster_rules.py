"""Rasters in windows: tiles that are left out, tiles that are kept, pixels without data at another size, places.

Modules: data_utils/image_io/rasters.py, data_utils/image_io/places.py, data_utils/image_io/placed_masks.py,
data_utils/loading/image_input.py, data_utils/sources/placed.py.
"""

import os
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
import rasterio
import tifffile
from rasterio.transform import Affine, from_origin
from rasterio.windows import Window
from rasters import NORTH_UP, write_raster

from data_utils.image_io import rasters as rasters_module
from data_utils.image_io.formats import BandSource
from data_utils.image_io.placed_masks import Grid, PlacedMask, grid_of, on_grid
from data_utils.image_io.places import Crs, Place, _crs, geo_keys, place_of
from data_utils.image_io.rasters import has_band_name, indices_of_band, open_raster
from data_utils.image_io.windowed import open_windowed, open_windowed_file
from data_utils.loading.image_input import ImageInput, missing_pixels, without_missing
from data_utils.sources.placed import place_warnings, with_places
from data_utils.sources.records import ListRecords
from runtime.errors import ImageError
from tasks.classes import ClassTarget
from unet.config import Preprocess

SPARSE = {"tiled": True, "blockxsize": 16, "blockysize": 32, "SPARSE_OK": "TRUE", "crs": "EPSG:32633"}


@pytest.mark.parametrize("cached_bytes", [1, 2**26])
@pytest.mark.parametrize("nodata", [None, 7])
@pytest.mark.parametrize("layout", [{"compress": "deflate"}, {"compress": "deflate", "interleave": "band"}, {}])
def test_tiles_that_a_file_leaves_out_are_those_of_rasterio_in_any_windows(
    tmp_path, monkeypatch, layout, nodata, cached_bytes
):
    monkeypatch.setattr(rasters_module, "CACHED_BYTES", cached_bytes)
    path = tmp_path / "a.tif"
    rng = np.random.default_rng(0)
    size = {"count": 4, "height": 90, "width": 70, "dtype": "uint16", "transform": NORTH_UP}
    with rasterio.open(path, "w", driver="GTiff", nodata=nodata, **size, **SPARSE, **layout) as file:
        for top, left in ((0, 16), (32, 0), (64, 64)):
            part = rng.integers(0, 9, (4, min(32, 90 - top), min(16, 70 - left))).astype(np.uint16)
            file.write(part, window=Window(left, top, part.shape[2], part.shape[1]))
    with rasterio.open(path) as file:
        expected = np.moveaxis(file.read(masked=True), 0, 2)
    with open_windowed_file(path) as picture:
        for _ in range(2):
            for rows, columns in (((0, 90), (0, 70)), ((20, 70), (10, 66)), ((33, 34), (17, 18)), ((60, 90), (60, 70))):
                window = picture.read(*rows, *columns)
                wanted = expected[slice(*rows), slice(*columns)]
                assert np.array_equal(np.ma.getmaskarray(window), np.ma.getmaskarray(wanted))
                assert np.array_equal(np.ma.filled(window, 7), np.ma.filled(wanted, 7))


def test_a_tile_is_decoded_once_while_it_is_kept(tmp_path, monkeypatch):
    bands = np.random.default_rng(0).integers(0, 9, (5, 64, 64)).astype(np.uint16)
    tiles = {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"}
    path = write_raster(tmp_path / "a.tif", bands, **tiles)
    for cached_bytes, decoded in ((2**26, 4), (2 * 32 * 32 * 10, 8)):  # all tiles, or two of them, are kept
        monkeypatch.setattr(rasters_module, "CACHED_BYTES", cached_bytes)
        with ExitStack() as stack:
            raster = open_raster(path, stack)
            page = raster.files[0].pixels.page
            decode = mock.Mock(side_effect=page.decode)
            monkeypatch.setattr(page, "decode", decode)
            for _ in range(2):
                assert np.array_equal(raster.whole(), np.moveaxis(bands, 0, 2))
        assert decode.call_count == decoded, cached_bytes


def test_a_raster_that_lacks_its_last_byte_is_cut_off(tmp_path):
    bands = np.random.default_rng(0).integers(0, 9, (5, 8, 9)).astype(np.uint16)
    for interleave in ("pixel", "band"):
        path = write_raster(tmp_path / f"{interleave}.tif", bands, interleave=interleave)
        with tifffile.TiffFile(path) as tiff:
            end = tiff.pages[0].dataoffsets[0] + bands.nbytes
        path.write_bytes(path.read_bytes()[: end - 1])
        with (
            pytest.raises(ImageError, match="the file ends before its image does"),
            open_windowed_file(path) as picture,
        ):
            picture.read(7, 8)


def test_bands_of_files_must_have_one_size(tmp_path):
    paths = []
    for number, size in enumerate(((8, 9), (8, 10))):
        paths.append(str(write_raster(tmp_path / f"B{number}.tif", np.zeros((1, *size), np.uint16))))
    source = BandSource(tuple(paths), ())
    line = r"B0\.tif and .*B1\.tif: bands of 8 x 9 and 8 x 10 \(height x width\)"
    with pytest.raises(ImageError, match=line), open_windowed_file(source):
        pass


@pytest.mark.parametrize(
    ("scale", "window"), [(1.0, ((3, 20), (5, 30))), (0.5, ((0, 10), (2, 15))), (2.0, ((9, 41), (0, 60)))]
)
def test_windows_miss_data_where_the_image_does_under_the_center_of_a_pixel(tmp_path, scale, window):
    bands = np.random.default_rng(0).integers(1, 9, (5, 24, 32)).astype(np.uint16)
    bands[:, :6, :9] = 0
    bands[:4, 12:15] = 0  # one band holds data
    path = write_raster(tmp_path / "a.tif", bands, nodata=0)
    with open_windowed_file(path) as picture:
        network_input = ImageInput(picture, Preprocess(scale=scale, mean=(4.0,) * 5, std=(1.0,) * 5), 5)
        height, width = network_input.size
        rows = ((np.arange(height) + 0.5) * 24 / height).astype(int)
        columns = ((np.arange(width) + 0.5) * 32 / width).astype(int)
        expected = (bands == 0).all(axis=0)[np.ix_(rows, columns)]
        (top, bottom), (left, right) = window
        missing = network_input.missing(window)
        assert np.array_equal(missing, expected[top:bottom, left:right]) and missing.any()
        assert network_input.missing(((height - 4, height), (0, 4))) is None
    full = write_raster(tmp_path / "b.tif", bands)
    with open_windowed_file(full) as picture:
        assert ImageInput(picture, Preprocess(mean=(4.0,) * 5, std=(1.0,) * 5), 5).missing(window) is None


def test_nothing_is_known_of_a_target_where_its_image_holds_no_data():
    pixels = np.ma.MaskedArray(np.ones((4, 6, 2)), np.zeros((4, 6, 2), bool))
    assert missing_pixels(pixels) is None and missing_pixels(np.ones((4, 6, 2))) is None
    pixels.mask[:2, :3] = True
    pixels.mask[3, 5, 0] = True  # the other channel holds data
    missing = missing_pixels(pixels)
    assert np.argwhere(missing).tolist() == [[row, column] for row in (0, 1) for column in (0, 1, 2)]
    target = without_missing(ClassTarget(np.ones((8, 12), np.uint8)), missing)
    assert (target.mask[:4, :6] == 255).all() and (target.mask == 255).sum() == 24 and target.mask.dtype == np.uint8
    same = ClassTarget(np.ones((8, 12), np.uint8))
    assert without_missing(same, None) is same


@pytest.mark.parametrize("has_place", [True, False])
def test_only_a_page_with_a_place_has_a_page_that_says_where_its_data_are(tmp_path, has_place):
    tags = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        tiff.write(np.ones((8, 9), np.uint8), photometric="minisblack", extratags=tags if has_place else [])
        tiff.write(np.ones((8, 9), bool), photometric="mask", subfiletype=4)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        mask = rasters_module._mask_page(tiff, tiff.pages[0].aspage())
        assert (mask is not None) is has_place


def test_the_place_of_a_pixel_goes_to_the_world_and_back():
    place = Place((2.0, 0.5, 100.0, 0.25, -3.0, 200.0), Crs(32633, ()), ())
    assert place.to_world(3, 4) == (2 * 3 + 0.5 * 4 + 100, 0.25 * 3 - 3 * 4 + 200)
    assert place.to_pixels(*place.to_world(3.0, 4.0)) == pytest.approx((3, 4))
    shifted = place._replace(transform=(2.0, 0.5, *place.to_world(0.25, 0)[:1], 0.25, -3.0, place.to_world(0.25, 0)[1]))
    assert place.offset_of(shifted) == pytest.approx((0.25, 0))
    assert place.has_pixels_of(shifted, (50, 60)) and not place.is_grid_of(shifted, (50, 60))
    assert place.is_grid_of(place, (50, 60))
    coarser = place._replace(transform=(2.2, 0.5, 100.0, 0.25, -3.0, 200.0))
    assert not place.has_pixels_of(coarser, (50, 60))
    assert Crs(1, ("x",)).same(Crs(1, ("y",))) and not Crs(1, ()).same(Crs(2, ()))
    assert Crs(None, ("x",)).same(Crs(None, ("x",))) and not Crs(None, ("x",)).same(Crs(None, ("y",)))


def test_the_grid_of_a_file_that_was_written_again_is_its_new_one(tmp_path):
    path = tmp_path / "a.tif"
    for time, size in enumerate(((4, 5), (6, 7))):
        write_raster(path, np.zeros((1, *size), np.uint8))
        os.utime(path, (time, time))
        assert grid_of(str(path)).size == size


def test_the_mask_of_an_image_without_place_stays_as_it_is(tmp_path):
    placed, mask = (str(write_raster(tmp_path / name, np.zeros((1, 4, 5), np.uint8))) for name in ("a.tif", "m.tif"))
    pictures = [placed, str(tmp_path / "b.png")]
    records = with_places(ListRecords([{"image": image, "target": mask, "name": "a"} for image in pictures]))
    assert records[1]["target"] == mask


def test_a_crs_of_ones_own_is_known_by_its_keys(tmp_path):
    own = rasterio.crs.CRS.from_proj4("+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84 +units=m")
    other = rasterio.crs.CRS.from_proj4("+proj=laea +lat_0=11 +lon_0=20 +datum=WGS84 +units=m")
    places = []
    for name, crs in (("a", own), ("b", own), ("c", other), ("d", "EPSG:4326")):
        path = write_raster(tmp_path / f"{name}.tif", np.zeros((1, 4, 5), np.uint8), crs=crs)
        with tifffile.TiffFile(path) as tiff:
            places.append(place_of(tiff.pages[0]))
    assert [place.crs.epsg for place in places] == [None, None, None, 4326]
    assert places[0].crs.same(places[1].crs) and not places[0].crs.same(places[2].crs)
    assert str(places[0].crs) == "a CRS without EPSG number" and str(places[3].crs) == "EPSG:4326"
    assert geo_keys((1, 1, 0, 2, 1024, 0, 1, 1, 3072, 34735, 1, 5)) == {1024: 1} and geo_keys(None) == {}


def test_masks_that_are_shifted_by_a_part_of_a_pixel_are_said(tmp_path):
    image = write_raster(tmp_path / "image.tif", np.zeros((5, 8, 9), np.uint16))
    records = []
    shifts = {"a": (0.0, 0.0), "b": (0.3, -0.1), "c": (1.0, 2.0), "d": (0.004, 0.0), "n": (-0.3, -0.2)}
    for name, (right, down) in shifts.items():
        transform = NORTH_UP * Affine.translation(right, down)
        mask = write_raster(tmp_path / f"{name}.tif", np.zeros((1, 8, 9), np.uint8), transform=transform)
        records.append({"image": str(image), "target": str(mask), "name": name})
    coarse = write_raster(
        tmp_path / "e.tif", np.zeros((1, 4, 5), np.uint8), transform=from_origin(500_000, 5_000_000, 20, 20)
    )
    records.append({"image": str(image), "target": str(coarse), "name": "e"})
    placed = with_places(ListRecords(records))
    (line,) = place_warnings([placed])
    assert line.startswith(
        "2 masks are shifted against their images by a part of a pixel, b by +0.30 to the right and -0.10"
    )
    assert place_warnings([ListRecords(records)]) == ()
    assert isinstance(placed[0]["target"], str) and isinstance(placed[1]["target"], PlacedMask)
    plain = tmp_path / "plain.tif"
    tifffile.imwrite(plain, np.zeros((8, 9), np.uint8), photometric="minisblack")
    listed = ListRecords([{"image": str(plain), "target": str(plain), "name": "p"}])
    assert with_places(listed) is listed


def test_a_mask_on_another_grid_is_read_where_its_coordinates_say(tmp_path):
    image = write_raster(tmp_path / "image.tif", np.zeros((5, 8, 9), np.uint16))
    values = np.arange(1, 31, dtype=np.uint8).reshape(1, 5, 6)
    transform = NORTH_UP * Affine.translation(-2, 1) * Affine.scale(2)
    mask = write_raster(tmp_path / "mask.tif", values, transform=transform)
    grid = grid_of(str(image))
    assert grid == Grid(grid.place, (8, 9)) and grid_of(str(tmp_path / "none.tif")) is None
    assert grid_of(str(tmp_path / "a.png")) is None
    with open_windowed(on_grid(str(mask), grid, "m")) as picture:
        read = np.asarray(picture.read(0, 8))
    expected = np.zeros((8, 9), int)
    expected[:] = read[0, 0]  # what stands for nothing known
    for row in range(1, 8):
        for column in range(9):
            expected[row, column] = values[0, (row - 1) // 2, (column + 2) // 2]
    assert (
        np.array_equal(read.reshape(8, 9)[1:], expected[1:])
        and (read.reshape(8, 9)[0] == read.reshape(8, 9)[0, 0]).all()
    )


def test_a_band_is_known_by_its_own_name_or_by_a_word_of_it():
    names = ["B2", "T32TQM_20200101_B02_10m", "T32TQM_20200101_B03_10m", "B3 red", "x.nir"]
    for wanted, indices in (
        ("b2", [0]),
        ("B02", [1]),
        ("b03", [2]),
        ("B3", [3]),
        ("red", [3]),
        ("nir", [4]),
        ("B0", []),
        ("02", []),
        ("B.3", []),
        ("T32TQM", [1, 2]),
    ):
        assert indices_of_band(names, wanted) == indices, wanted
    assert indices_of_band([*names, "x_B2"], "b2") == [0]  # its own name comes first
    assert has_band_name("a-B2-c", "B2") and not has_band_name("aB2", "B2") and not has_band_name("B2c", "B2")


def test_bands_have_numbers_from_one_up_to_their_number(tmp_path):
    bands = np.arange(3 * 4 * 5, dtype=np.uint16).reshape(3, 4, 5)
    path = str(write_raster(tmp_path / "a.tif", bands))
    for number in (1, 2, 3):
        with ExitStack() as stack:
            raster = open_raster(BandSource((path,), (str(number),)), stack)
            assert np.array_equal(raster.whole()[:, :, 0], bands[number - 1])
    for number in ("0", "4"):
        with ExitStack() as stack, pytest.raises(ImageError, match=f"has 3 bands, none called {number}"):
            open_raster(BandSource((path,), (number,)), stack)
    path = str(write_raster(tmp_path / "b.tif", bands[:2], names=("my_red", "old red")))
    with ExitStack() as stack, pytest.raises(ImageError, match="has 2 bands, 2 that are called red; its bands are my_"):
        open_raster(BandSource((path,), ("red",)), stack)


@pytest.mark.parametrize(("interleave", "segment_bytes"), [("pixel", 5 * 40 * 50 * 2), ("band", 40 * 50 * 2)])
def test_a_raster_is_read_in_windows_up_to_a_size_of_its_segments(tmp_path, monkeypatch, interleave, segment_bytes):
    bands = np.zeros((5, 40, 50), np.uint16)
    path = write_raster(tmp_path / "a.tif", bands, compress="deflate", interleave=interleave, blockysize=40)
    for limit, in_windows in ((segment_bytes, True), (segment_bytes - 1, False)):
        monkeypatch.setattr(rasters_module, "SEGMENT_BYTES", limit)
        with open_windowed_file(path) as picture:
            assert picture.in_windows is in_windows


@pytest.mark.parametrize(
    ("keys", "epsg"),
    [
        ({1024: 1, 3072: 32633, 2048: 4326}, 32633),
        ({1024: 2, 2048: 4326}, 4326),
        ({1024: 1, 2048: 4326}, None),  # the base of a projection that has no number
        ({1024: 1, 3072: 32767, 2048: 4326}, None),
        ({1024: 1, 3072: 0}, None),
    ],
)
def test_a_crs_has_the_number_of_its_projection_or_of_its_longitudes_and_latitudes(keys, epsg):
    tags = {34735: (1, 1, 0, 0), 34736: (6378137.0,), 34737: "WGS 84"}
    assert _crs(tags, keys) == Crs(epsg, () if epsg else ((1, 1, 0, 0), (6378137.0,), "WGS 84"))
    assert _crs(tags, {}) is None


def test_a_tiff_that_is_turned_as_it_is_decoded_has_no_grid(tmp_path):
    for orientation, has_grid in ((1, True), (6, False)):
        tags = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 500.0, 900.0, 0.0), True)]
        tags.append((274, "H", 1, orientation, True))
        path = tmp_path / f"{orientation}.tif"
        tifffile.imwrite(path, np.zeros((4, 5), np.uint8), photometric="minisblack", extratags=tags, metadata=None)
        assert (grid_of(str(path)) is not None) is has_grid


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_tiles_that_a_picture_leaves_out_are_black(tmp_path):
    path = tmp_path / "a.tif"
    tiles = {"tiled": True, "blockxsize": 16, "blockysize": 32, "compress": "deflate", "SPARSE_OK": "TRUE"}
    with rasterio.open(path, "w", driver="GTiff", count=1, height=90, width=70, dtype="uint8", **tiles) as file:
        file.write(np.full((1, 32, 16), 7, np.uint8), window=Window(16, 32, 16, 32))
    expected = np.zeros((90, 70), np.uint8)
    expected[32:64, 16:32] = 7
    with open_windowed_file(path) as picture:
        assert picture.in_windows
        for rows, columns in (((0, 90), (0, 70)), ((20, 70), (10, 66)), ((0, 5), (0, 5))):
            assert np.array_equal(picture.read(*rows, *columns)[:, :, 0], expected[slice(*rows), slice(*columns)])
