"""TIFFs with any number of bands are read as rasterio reads them, and pixels without data count nowhere."""

import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image
from rasterio.enums import MaskFlags
from rasterio.windows import Window
from support.data_sets import load_info
from support.rasters import NORTH_UP, scene, write_raster

from data_utils.image_io.formats import BandSource, Box, PageFile
from data_utils.image_io.places import read_grid
from data_utils.image_io.rasters import band_indices
from data_utils.image_io.reader import open_source, read_header, read_image, read_mask
from data_utils.mask_values import BEYOND_MASK
from runtime.errors import DataError, ImageError

LAYOUTS = [
    {"interleave": "pixel"},
    {"interleave": "band", "compress": "deflate"},
    {"interleave": "pixel", "tiled": True, "blockxsize": 32, "blockysize": 16, "compress": "deflate", "predictor": 2},
    {"interleave": "band", "tiled": True, "blockxsize": 16, "blockysize": 32, "BIGTIFF": "YES"},
]
SPARSE = {"tiled": True, "blockxsize": 16, "blockysize": 32, "SPARSE_OK": "TRUE", "crs": "EPSG:32633"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 6])
def test_bands_are_read_as_rasterio_reads_them(tmp_path, channels, dtype, layout):
    bands = (np.random.default_rng(0).random((channels, 70, 93)) * 200).astype(dtype)
    path = write_raster(tmp_path / "a.tif", bands, **layout)
    pixels = read_image(path)
    assert np.array_equal(pixels, np.moveaxis(bands, 0, 2))
    assert not isinstance(pixels, np.ma.MaskedArray)
    assert read_header(path, "a") == ((70, 93), f"{pixels.dtype} x {channels}")
    with open_source(path) as picture:
        assert picture.decodes_windows
        assert np.array_equal(picture.pixels(Box(11, 50, 7, 66)), pixels[11:50, 7:66])


@pytest.mark.parametrize("orientation", [2, 3, 4])
def test_a_tiff_with_a_place_is_seen_as_it_is_to_be_turned_and_has_no_grid(tmp_path, orientation):
    stored = np.arange(20, dtype=np.uint8).reshape(4, 5)
    tags = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 500.0, 900.0, 0.0), True)]
    tags.append((274, "H", 1, orientation, True))
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack", extratags=tags, metadata=None)
    axes = {2: 1, 3: (0, 1), 4: 0}[orientation]
    assert np.array_equal(read_image(tmp_path / "a.tif")[:, :, 0], np.flip(stored, axes))
    assert read_grid(str(tmp_path / "a.tif")) is None


def test_planes_without_place_are_bands(tmp_path):
    planes = np.random.default_rng(0).integers(0, 256, (3, 20, 30), np.uint8)
    path = tmp_path / "a.tif"
    options = {"photometric": "minisblack", "planarconfig": "separate", "compression": "zlib", "metadata": None}
    tifffile.imwrite(path, planes, extrasamples=["unspecified"] * 2, **options)
    bands = np.moveaxis(planes, 0, 2)
    assert np.array_equal(read_image(path), bands)
    assert np.array_equal(read_image(BandSource((str(path),), ("1", "2", "3"))), bands)
    assert np.array_equal(read_image(BandSource((str(path),), ("3", "1"))), bands[:, :, [2, 0]])


@pytest.mark.parametrize("nodata", [0, -9999.0, float("nan")])
def test_pixels_without_data_are_those_that_rasterio_masks(tmp_path, nodata):
    bands = np.random.default_rng(0).integers(1, 9, (4, 20, 30)).astype(np.float32)
    bands[:, :5] = nodata
    bands[2, 10:12] = nodata
    path = write_raster(tmp_path / "a.tif", bands, nodata=nodata, photometric="minisblack")
    mask = np.ma.getmaskarray(read_image(path))
    with rasterio.open(path) as file:
        truth = file.read(masked=True)
        valid = file.dataset_mask()
    assert np.array_equal(np.moveaxis(mask, 2, 0), np.ma.getmaskarray(truth))
    assert np.array_equal(mask.all(axis=2), valid == 0)


def transparent_colors() -> np.ndarray:
    """Colors and alpha (4, 20, 30), of which the first seven columns are transparent."""
    colors = np.full((4, 20, 30), 100, np.uint8)
    colors[3] = 255
    colors[3, :, :7] = 0
    return colors


def test_alpha_that_is_chosen_is_a_band_like_others(tmp_path):
    path = write_raster(tmp_path / "a.tif", transparent_colors(), photometric="rgb", alpha="yes")
    pixels = read_image(BandSource((str(path),), ("4", "1")))
    assert pixels.shape == (20, 30, 2)
    assert not np.ma.is_masked(pixels)


def test_the_mask_of_a_file_says_where_there_is_data(tmp_path):
    colors = transparent_colors()
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_raster(tmp_path / "a.tif", colors[:3], photometric="rgb")
        with rasterio.open(path, "r+") as file:
            file.write_mask(colors[3] > 0)
            assert MaskFlags.per_dataset in file.mask_flag_enums[0]
    assert np.array_equal(np.ma.getmaskarray(read_image(path))[:, :, 0], colors[3] == 0)


def test_the_mask_of_a_file_counts_beside_its_alpha(tmp_path):
    colors = transparent_colors()
    has_data = np.arange(20)[:, None] + np.zeros(30) < 15
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_raster(tmp_path / "a.tif", colors, photometric="rgb", alpha="yes")
        with rasterio.open(path, "r+") as file:
            file.write_mask(has_data)
    assert np.array_equal(np.ma.getmaskarray(read_image(path))[:, :, 0], (colors[3] == 0) | ~has_data)


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [(("B08", "b04", "2"), [3, 2, 1]), (("4", "1"), [3, 0]), (("1", "3", "2", "4"), [0, 2, 1, 3])],
)
def test_bands_are_chosen_by_name_or_number(tmp_path, chosen, indices):
    bands, _ = scene(0, channels=4)
    path = write_raster(tmp_path / "a.tif", bands, names=("B02", "B03", "B04", "B08 & more"), photometric="minisblack")
    pixels = np.moveaxis(bands, 0, 2)[:, :, indices]
    source = BandSource((str(path),), chosen)
    assert np.array_equal(read_image(source), pixels)
    assert read_header(source, "a") == ((40, 56), f"uint16 x {len(indices)}")
    with open_source(source) as picture:
        assert np.array_equal(picture.pixels(picture.rows(3, 9)), pixels[3:9])


@pytest.mark.parametrize("missing", ["B11", "5"])
def test_a_band_that_a_file_lacks_is_named_with_those_it_has(tmp_path, missing):
    bands, _ = scene(0, channels=4)
    path = write_raster(tmp_path / "a.tif", bands, names=("B02", "B03", "B04", "B08 & more"), photometric="minisblack")
    line = rf"a\.tif.*has 4 bands, none called {missing}; its bands are B02, B03, B04, B08"
    with pytest.raises(ImageError, match=line):
        read_image(BandSource((str(path),), (missing,)))


@pytest.mark.parametrize("compression", ["lzw", "zstd", "lerc", "packbits", "jpeg"])
def test_windows_of_codecs_that_rasterio_has_are_read_alone(tmp_path, compression):
    grey = np.random.default_rng(0).integers(0, 200, (1, 50, 60)).astype(np.uint8)
    path = write_raster(tmp_path / "grey.tif", grey, compress=compression)
    with rasterio.open(path) as file:
        expected = file.read(1)
    with open_source(path) as picture:
        assert picture.decodes_windows
        assert np.array_equal(picture.pixels(Box(9, 20, 5, 31))[:, :, 0], expected[9:20, 5:31])


def test_a_raster_needs_rasterio(tmp_path, monkeypatch):
    path = write_raster(tmp_path / "a.tif", scene(0)[0], compress="deflate")
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(DataError, match=r"a\.tif needs rasterio: pip install rasterio"):
        read_image(path)


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 4), ("uint16", 12)])
def test_pixels_that_fill_no_bytes_are_a_picture_and_no_bands(tmp_path, dtype, bits):
    values = np.random.default_rng(0).integers(0, 16, (1, 8, 10)).astype(dtype)
    path = write_raster(tmp_path / "a.tif", values, nbits=bits)
    assert np.array_equal(read_image(path, "a.tif")[:, :, 0], np.asarray(Image.open(path)))
    with pytest.raises(ImageError, match="bands cannot be chosen of a TIFF of palettes, of single bits"):
        read_image(BandSource((str(path),), ("1",)), "a.tif")


@pytest.mark.parametrize("options", [{}, {"endianness": "big"}, {"compress": "lzw"}], ids=["plain", "big", "lzw"])
@pytest.mark.parametrize("bits", [3, 6, 10, 12, 14])
def test_numbers_of_any_bits_are_read(tmp_path, bits, options):
    values = np.arange(40 * 48).reshape(1, 40, 48) % 2**bits
    path = write_raster(tmp_path / "a.tif", values.astype(np.uint8 if bits < 8 else np.uint16), nbits=bits, **options)
    assert np.array_equal(read_mask(path, "a.tif"), values[0])
    assert np.array_equal(read_image(path, "a.tif")[:, :, 0], values[0])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_classes_of_two_and_four_bits_are_read_as_stored(tmp_path, bits):
    path = write_raster(tmp_path / "a.tif", np.array([[[0, 1, 2, 3]]], np.uint8), nbits=bits)
    assert read_mask(path, "a.tif").tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("read", "error"), [(read_image, ImageError), (read_mask, (DataError, ImageError))], ids=["image", "mask"]
)
def test_a_raster_of_which_half_is_missing_is_named(tmp_path, read, error):
    bands, _ = scene(0)
    path = write_raster(tmp_path / "a.tif", bands, compress="deflate", tiled=True, blockxsize=16, blockysize=16)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(error, match=r"a\.tif"):
        read(path, "a.tif")


WINDOWS = [((0, 90), (0, 70)), ((20, 70), (10, 66)), ((33, 34), (17, 18)), ((60, 90), (60, 70))]


@pytest.mark.parametrize("nodata", [None, 7])
@pytest.mark.parametrize("layout", [{"compress": "deflate"}, {"compress": "deflate", "interleave": "band"}, {}])
def test_tiles_that_a_file_leaves_out_are_those_of_rasterio_in_any_windows(tmp_path, layout, nodata):
    path = tmp_path / "a.tif"
    rng = np.random.default_rng(0)
    size = {"count": 4, "height": 90, "width": 70, "dtype": "uint16", "transform": NORTH_UP}
    with rasterio.open(path, "w", driver="GTiff", nodata=nodata, **size, **SPARSE, **layout) as file:
        for top, left in ((0, 16), (32, 0), (64, 64)):
            tile = rng.integers(0, 9, (4, min(32, 90 - top), min(16, 70 - left))).astype(np.uint16)
            file.write(tile, window=Window(left, top, tile.shape[2], tile.shape[1]))
    with rasterio.open(path) as file:
        expected = np.moveaxis(file.read(masked=True), 0, 2)
    with open_source(path) as picture:
        for rows, columns in WINDOWS * 2:
            window = picture.pixels(Box(*rows, *columns))
            expected_window = expected[slice(*rows), slice(*columns)]
            assert np.array_equal(np.ma.getmaskarray(window), np.ma.getmaskarray(expected_window))
            assert np.array_equal(np.ma.filled(window, 7), np.ma.filled(expected_window, 7))


def test_bands_of_files_must_have_one_size(tmp_path):
    paths = []
    for number, size in enumerate([(8, 9), (8, 9), (7, 9)]):
        paths.append(str(write_raster(tmp_path / f"B{number}.tif", np.zeros((1, *size), np.uint16))))
    line = r"B0\.tif and .*B2\.tif: bands of 8 x 9 and 7 x 9 \(height x width\)"
    with pytest.raises(ImageError, match=line), open_source(BandSource(tuple(paths), ())):
        pass


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
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
    ],
)
def test_a_band_is_known_by_its_own_name_or_by_a_word_of_it(wanted, indices):
    names = ["B2", "T32TQM_20200101_B02_10m", "T32TQM_20200101_B03_10m", "B3 red", "x.nir"]
    assert band_indices(names, wanted) == indices


@pytest.mark.parametrize("names", [("my_red", "old red"), ("red", "Red")])
def test_a_name_that_two_bands_have_is_named(tmp_path, names):
    path = write_raster(tmp_path / "a.tif", np.zeros((2, 4, 5), np.uint16), names=names)
    with pytest.raises(ImageError, match=f"has 2 bands, 2 that are called red; its bands are {', '.join(names)}$"):
        read_image(BandSource((str(path),), ("red",)))


PLACED = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]


def written_raster(path: Path, pixels: np.ndarray, *tags: tuple, **options) -> str:
    """A TIFF with a place and further tags."""
    tifffile.imwrite(path, pixels, photometric="minisblack", extratags=[*PLACED, *tags], **options)
    return str(path)


def test_a_pixel_misses_data_for_any_of_three_reasons(tmp_path):
    pixels = np.ones((2, 3, 2), np.float32)
    pixels[0, 0, 0], pixels[0, 1, 0], pixels[1, 2, 1] = np.nan, -9, 0  # no number, the value for no data, transparent
    nodata = (42113, "s", 0, "-9", False)
    path = written_raster(tmp_path / "a.tif", pixels, nodata, extrasamples=["unassalpha"], planarconfig="contig")
    assert np.ma.getmaskarray(read_image(path))[:, :, 0].tolist() == [[True, True, False], [False, False, True]]


@pytest.mark.parametrize(
    ("kind", "samples", "place"),
    [
        ("unassalpha", 2, 1),
        ("assocalpha", 2, 1),
        (("unspecified", "unassalpha"), 3, 2),
        (("unspecified", "assocalpha", "unspecified"), 4, 2),
    ],
)
def test_alpha_is_the_further_sample_that_the_file_calls_so(tmp_path, kind, samples, place):
    pixels = np.ones((2, 3, samples), np.uint8)
    pixels[0, 1, place] = 0
    path = written_raster(tmp_path / "a.tif", pixels, extrasamples=kind, planarconfig="contig")
    read = read_image(path)
    assert read.shape == (2, 3, samples - 1)
    assert np.ma.getmaskarray(read).all(axis=2).tolist() == [[False, True, False], [False] * 3]
    with open_source(Path(path)) as picture:
        assert picture.may_lack_data


def test_a_band_of_several_files_is_called_by_its_file_and_alpha_of_one_is_no_band(tmp_path):
    name = '<GDALMetadata><Item name="DESCRIPTION" sample="0" role="description">red</Item></GDALMetadata>'
    red = (42112, "s", 0, name, False)
    with_alpha = {"extrasamples": ["unassalpha"], "planarconfig": "contig"}
    paths = (
        written_raster(tmp_path / "one.tif", np.full((2, 3), 5, np.uint8), red),
        written_raster(tmp_path / "two.tif", np.full((2, 3), 6, np.uint8), red),
        written_raster(tmp_path / "three.tif", np.full((2, 3, 2), [7, 255], np.uint8), red, **with_alpha),
    )
    assert read_image(BandSource(paths))[0, 0].tolist() == [5, 6, 7]
    assert read_image(BandSource(paths, ("two", "one", "red")))[0, 0].tolist() == [6, 5, 7]


@pytest.mark.parametrize(("page", "number"), [(0, 0), (2, 1)])
@pytest.mark.parametrize("has_bands", [True, False])
def test_each_page_of_a_raster_has_bands_and_a_mask_of_its_own(tmp_path, has_bands, page, number):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for value in range(2):
            tiff.write(np.full((8, 9), value, np.uint8), photometric="minisblack", extratags=PLACED)
            has_data = np.arange(9) != value
            tiff.write(np.tile(has_data, (8, 1)), photometric="mask", subfiletype=4)
    pixels = read_image(BandSource((str(path),), page=page) if has_bands else PageFile(path, page))
    assert (np.ma.getdata(pixels) == number).all()
    assert np.flatnonzero(np.ma.getmaskarray(pixels)[0]).tolist() == [number]


@pytest.mark.parametrize(
    ("value", "nodata", "is_missing"),
    [(7, " 7 ", True), (0, "0", True), (7, "7.5", False), (7, "-9999", False), (255, "255", True)],
)
def test_a_value_for_no_data_is_one_that_a_pixel_may_hold(tmp_path, value, nodata, is_missing):
    path = written_raster(tmp_path / "a.tif", np.full((2, 3), value, np.uint8), (42113, "s", 0, nodata, False))
    assert np.ma.is_masked(read_image(path)) is is_missing


@pytest.mark.parametrize(
    ("stored", "read"), [("int8", "int32"), ("int16", "int32"), ("float16", "float32"), ("float64", "float32")]
)
def test_pixels_with_a_place_have_the_types_of_those_without(tmp_path, stored, read):
    path = written_raster(tmp_path / "a.tif", np.full((2, 3), -2, stored))
    pixels = read_image(path)
    assert pixels.dtype == read
    assert (pixels == -2).all()
    assert read_header(path, "a") == ((2, 3), f"{read} x 1")


def test_bands_without_data_alone_are_missing_in_images_of_several_files(tmp_path):
    values = np.array([[[5, 1, 1]], [[1, 1, 5]]], np.uint8)
    first = write_raster(tmp_path / "a.tif", values, nodata=5, names=("red", "nir"))
    second = write_raster(tmp_path / "b.tif", np.array([[[1, 5, 1]]], np.uint8), nodata=5)
    pixels = read_image(BandSource((str(first), str(second)), ("red", "b", "nir")))
    assert np.ma.getmaskarray(pixels)[0].tolist() == np.eye(3, dtype=bool).tolist()


def test_a_mask_with_a_place_is_unknown_where_it_holds_no_number(tmp_path):
    values = np.array([[[1, 0], [np.nan, 7]]], np.float32)
    path = write_raster(tmp_path / "a.tif", values, nodata=np.nan)
    assert read_mask(str(path), "a").tolist() == [[1, 0], [BEYOND_MASK, 7]]
    assert read_image(path)[:, :, 0].mask.tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize(
    ("numbers", "settings"),
    [
        ((0, 255), {}),
        ((0, 1), {}),
        ((10, 20), {}),
        ((0, 1, 2, 3), {"task": "objects"}),
        ((0, 1, 2), {"regions": "a=1+2"}),
        ((0, 255), {"task": "overlapping"}),
    ],
)
def test_nothing_is_known_where_a_mask_holds_no_number(tmp_path, numbers, settings):
    masks = tmp_path / "masks" / "a" if settings == {"task": "overlapping"} else tmp_path / "masks"
    rows = np.array(numbers, np.float32)[np.arange(20) % len(numbers)]
    rows[:2] = np.nan
    for name in "abc":
        write_raster(tmp_path / "images" / f"{name}.tif", np.full((1, 20, 30), 9, np.uint8))
        write_raster(masks / f"{name}.tif", np.tile(rows[:, None], (1, 1, 30)), nodata=np.nan)
    info = load_info(tmp_path, **settings)
    target = info.reader.read(info.train.records[0], (20, 30))
    unknown = info.reader.unknown_target((20, 30))
    for values, nothing in zip(target.arrays(), unknown.arrays(), strict=True):
        assert np.array_equal(values[:2], nothing[:2])
    assert not np.array_equal(target.arrays()[-1][2:], unknown.arrays()[-1][2:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("text", ["-3.4028234663852886e+38", "-3.40282e+38", "-3.4e+38"])
def test_the_lowest_number_of_float32_is_no_data_however_it_is_written(tmp_path, text, dtype):
    values = np.array([[1, 0], [np.finfo(np.float32).min, 7]], dtype)
    path = written_raster(tmp_path / "a.tif", values, (42113, "s", 0, text, False))
    assert read_mask(str(path), "a").tolist() == [[1, 0], [BEYOND_MASK, 7]]
    assert read_image(path)[:, :, 0].mask.tolist() == [[False, False], [True, False]]


def test_a_strip_of_as_many_rows_as_a_tag_can_hold_ends_with_the_image(tmp_path):
    bands = np.random.default_rng(0).integers(0, 9, (5, 8, 10)).astype(np.uint16)
    path = write_raster(tmp_path / "a.tif", bands, compress="deflate", interleave="pixel", blockysize=8)
    with tifffile.TiffFile(path, mode="r+b") as file:
        tag = file.pages[0].tags["RowsPerStrip"]
        tag.overwrite(2**32 - 1, dtype="I") if tag.dtype == 4 else tag.overwrite(2**16 - 1)
    assert np.array_equal(read_image(path), np.moveaxis(bands, 0, 2))
