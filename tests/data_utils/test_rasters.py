"""TIFFs with any number of bands are read as rasterio reads them; pixels without data count nowhere.

Modules: data_utils/image_io/rasters.py, data_utils/image_io/places.py, data_utils/sources/bands.py.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import rasterio
import tifffile
from conftest import unnoticed_changes
from PIL import Image
from rasterio.enums import MaskFlags, Resampling
from rasterio.transform import Affine
from rasterio.windows import Window
from rasters import NORTH_UP, scene, write_raster

from data_utils import pack
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.normalization import channel_statistics, channel_sums
from data_utils.config import DataConfig
from data_utils.image_io import rasters as rasters_module
from data_utils.image_io.formats import BandSource, PictureFile
from data_utils.image_io.places import place_of
from data_utils.image_io.rasters import has_band_name, indices_of_band, open_raster
from data_utils.image_io.reader import read_header, read_image, read_mask
from data_utils.image_io.windowed import open_windowed_file
from data_utils.loading.samples import new_samples
from data_utils.sources.bands import (
    SceneRecords,
    as_model_reads,
    as_picture,
    band_names,
    bands_in,
    find_scenes,
    scene_folders,
    with_bands,
)
from data_utils.sources.load import load_records, open_images
from data_utils.visualize import to_rgb
from runtime.errors import DataError, ImageError
from unet.config import Preprocess

LAYOUTS = [
    {"interleave": "pixel"},
    {"interleave": "band", "compress": "deflate"},
    {"interleave": "pixel", "tiled": True, "blockxsize": 32, "blockysize": 16, "compress": "deflate", "predictor": 2},
    {"interleave": "band", "tiled": True, "blockxsize": 16, "blockysize": 32, "BIGTIFF": "YES"},
]
SPARSE = {"tiled": True, "blockxsize": 16, "blockysize": 32, "SPARSE_OK": "TRUE", "crs": "EPSG:32633"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 6, 13])
def test_bands_are_read_as_rasterio_reads_them(tmp_path, channels, dtype, layout):
    bands = (np.random.default_rng(0).random((channels, 70, 93)) * 200).astype(dtype)
    path = write_raster(tmp_path / "a.tif", bands, **layout)
    pixels = read_image(path)
    assert np.array_equal(pixels, np.moveaxis(bands, 0, 2))
    assert not isinstance(pixels, np.ma.MaskedArray)
    assert read_header(path, "a") == ((70, 93), f"{pixels.dtype} x {channels}")
    with open_windowed_file(path) as picture:
        assert picture.decodes_windows
        assert np.array_equal(picture.read(11, 50, 7, 66), pixels[11:50, 7:66])


def test_a_plain_tiff_is_read_as_before(tmp_path):
    colors = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", colors, photometric="rgb")
    with ExitStack() as stack:
        assert open_raster(tmp_path / "a.tif", stack) is None
    assert np.array_equal(read_image(tmp_path / "a.tif"), colors)
    grey = np.arange(600, dtype=np.int16).reshape(20, 30)
    tifffile.imwrite(tmp_path / "b.tif", grey)
    with ExitStack() as stack:
        assert open_raster(tmp_path / "b.tif", stack) is None
    assert read_image(tmp_path / "b.tif").dtype == np.int32  # Pillow's
    bands = np.concatenate([colors, colors], axis=2)
    tifffile.imwrite(tmp_path / "e.tif", bands, photometric="minisblack", planarconfig="contig", metadata=None)
    assert np.array_equal(read_image(tmp_path / "e.tif"), bands)  # Pillow knows no such picture
    planes = np.moveaxis(colors, 2, 0)
    options = {"photometric": "minisblack", "planarconfig": "separate", "compression": "zlib", "metadata": None}
    tifffile.imwrite(tmp_path / "d.tif", planes, extrasamples=["unspecified"] * 2, **options)
    assert np.array_equal(read_image(tmp_path / "d.tif"), colors[:, :, :1])  # Pillow's, who knows one band
    assert np.array_equal(read_image(BandSource((str(tmp_path / "d.tif"),), ("1", "2", "3"))), colors)
    assert read_image(write_raster(tmp_path / "c.tif", grey[None])).dtype == np.int32


@pytest.mark.parametrize(
    ("tag", "layout"),
    [
        ("ImageLength", {}),
        ("ImageWidth", {}),
        ("RowsPerStrip", {}),
        ("TileLength", {"tiled": True, "blockxsize": 16, "blockysize": 16}),
        ("TileWidth", {"tiled": True, "blockxsize": 16, "blockysize": 16}),
    ],
)
def test_a_raster_with_a_side_of_zero_pixels_is_refused(tag, layout, tmp_path):
    path = write_raster(tmp_path / "a.tif", np.ones((1, 20, 30), np.uint8), **layout)
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags[tag].overwrite(0)
    with pytest.raises(ImageError, match="a side of it, or of a tile of it, is 0"):
        read_header(path, "a")


def test_overviews_change_nothing(tmp_path):
    bands, _ = scene(0, size=(256, 300))
    path = write_raster(tmp_path / "a.tif", bands, tiled=True, blockxsize=64, blockysize=64)
    with rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4], Resampling.average)
    assert np.array_equal(read_image(path), np.moveaxis(bands, 0, 2))


@pytest.mark.parametrize("nodata", [0, -9999.0, float("nan")])
def test_pixels_without_data_are_those_that_rasterio_masks(tmp_path, nodata):
    bands = np.random.default_rng(0).integers(1, 9, (4, 20, 30)).astype(np.float32)
    bands[:, :5] = nodata  # in all bands
    bands[2, 10:12] = nodata  # in one
    path = write_raster(tmp_path / "a.tif", bands, nodata=nodata, photometric="minisblack")
    pixels = read_image(path)
    with rasterio.open(path) as file:
        truth = file.read(masked=True)
        valid = file.dataset_mask()
    assert np.array_equal(np.moveaxis(np.ma.getmaskarray(pixels), 2, 0), np.ma.getmaskarray(truth))
    assert np.array_equal(np.ma.getmaskarray(pixels).all(axis=2), valid == 0)
    mean, std = channel_statistics([channel_sums(pixels)])
    assert np.allclose(mean, truth.reshape(4, -1).mean(axis=1))
    assert np.allclose(std, truth.reshape(4, -1).std(axis=1))
    assert (to_rgb(pixels)[:5] == 0).all()


def test_alpha_and_the_mask_of_a_file_say_where_there_is_data(tmp_path):
    colors = np.full((4, 20, 30), 100, np.uint8)
    colors[3] = 255
    colors[3, :, :7] = 0
    path = write_raster(tmp_path / "alpha.tif", colors, photometric="rgb", alpha="yes")
    pixels = read_image(path)
    assert pixels.shape == (20, 30, 3)
    assert np.ma.getmaskarray(pixels)[:, :7].all()
    assert not pixels.mask[:, 7:].any()
    with_alpha = read_image(BandSource((str(path),), ("4", "1")))  # where it is chosen it is a band like others
    assert with_alpha.shape == (20, 30, 2)
    assert not np.ma.is_masked(with_alpha)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        masked = write_raster(tmp_path / "mask.tif", colors[:3], photometric="rgb")
        with rasterio.open(masked, "r+") as file:
            file.write_mask(colors[3] > 0)
            assert MaskFlags.per_dataset in file.mask_flag_enums[0]
    assert np.array_equal(np.ma.getmaskarray(read_image(masked))[:, :, 0], colors[3] == 0)


def test_bands_are_chosen_by_name_and_number(tmp_path):
    bands, _ = scene(0, channels=4)
    path = write_raster(tmp_path / "a.tif", bands, names=("B02", "B03", "B04", "B08 & more"), photometric="minisblack")
    pixels = np.moveaxis(bands, 0, 2)
    for chosen, indices in (
        (("B08", "b04", "2"), [3, 2, 1]),
        (("4", "1"), [3, 0]),
        (("1", "3", "2", "4"), [0, 2, 1, 3]),
    ):
        source = BandSource((str(path),), chosen)
        assert np.array_equal(read_image(source), pixels[:, :, indices])
        assert read_header(source, "a") == ((40, 56), f"uint16 x {len(indices)}")
        with open_windowed_file(source) as picture:
            assert np.array_equal(picture.read(3, 9), pixels[3:9][:, :, indices])
    with pytest.raises(ImageError, match=r"a\.tif.*has 4 bands, none called B11; its bands are B02, B03, B04, B08"):
        read_image(BandSource((str(path),), ("B11",)))
    with pytest.raises(ImageError, match="none called 5"):
        read_image(BandSource((str(path),), ("5",)))
    numbered = write_raster(tmp_path / "b.tif", bands[:2], names=("2", "1"))  # names come before numbers
    assert np.array_equal(read_image(BandSource((str(numbered),), ("2",)))[:, :, 0], bands[0])


def test_bands_are_not_chosen_of_a_picture_of_video_colors(tmp_path):
    colors = np.random.default_rng(0).integers(0, 256, (3, 16, 16), np.uint8)
    path = tmp_path / "a.tif"
    settings = {"driver": "GTiff", "count": 3, "height": 16, "width": 16, "dtype": "uint8"}
    with rasterio.open(path, "w", **settings, compress="jpeg", photometric="ycbcr") as file:  # it has no place
        file.write(colors)
    with pytest.raises(ImageError, match=r"bands cannot be chosen of a TIFF of .* video colors"):
        read_image(BandSource((str(path),), ("1",)))


def test_without_a_codec_pictures_are_read_by_pillow_and_others_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(rasters_module, "has_codec", lambda compression: False)
    grey = np.random.default_rng(0).integers(0, 4000, (1, 50, 60)).astype(np.uint16)
    path = write_raster(tmp_path / "grey.tif", grey, compress="lzw", nodata=7)
    assert np.array_equal(np.ma.getdata(read_image(path))[:, :, 0], grey[0])
    with open_windowed_file(path) as picture:
        assert not picture.decodes_windows
        assert np.array_equal(picture.read(9, 20)[:, :, 0], grey[0, 9:20])
        assert np.array_equal(picture.read(9, 20, 5, 31)[:, :, 0], grey[0, 9:20, 5:31])
    colors = np.random.default_rng(1).integers(0, 256, (3, 50, 60), np.uint8)
    path = write_raster(tmp_path / "colors.tif", colors, compress="lzw", photometric="rgb")
    assert np.array_equal(read_image(BandSource((str(path),), ("3", "1"))), np.moveaxis(colors[[2, 0]], 0, 2))
    bands, _ = scene(0)
    path = write_raster(tmp_path / "bands.tif", bands, compress="lzw")
    with pytest.raises(ImageError, match=r"compressed by LZW.*requirements-geo\.txt"):
        read_image(path, "bands.tif")


def write_set(folder, *, as_files=False):
    """A data set of four scenes, each a file or a folder of bands."""
    for number in range(4):
        bands, mask = scene(number)
        bands[:, :3] = 0
        name = f"scene{number}"
        if as_files:
            for band, plane in zip(("B02", "B03", "B04", "B08", "B11"), bands, strict=True):
                write_raster(folder / "images" / name / f"T33_{name}_{band}_10m.tif", plane[None], nodata=0)
        else:
            write_raster(folder / "images" / f"{name}.tif", bands, nodata=0, names=("B02", "B03", "B04", "B08", "B11"))
        write_raster(folder / "masks" / f"{name}.tif", mask[None])
    return folder


def test_bands_that_are_files_are_those_of_one_file(tmp_path):
    infos = []
    for folder, as_files in ((tmp_path / "a", False), (tmp_path / "b", True)):
        write_set(folder, as_files=as_files)
        infos.append(load_dataset_info(DataConfig(str(folder), bands=("B03", "B11"), task="classes")))
    one, several = infos
    assert one.normalization == several.normalization
    assert one.channels == 2
    assert one.preprocess().bands == several.preprocess().bands == ("B03", "B11")
    pixels = [new_samples(info.train, info, info.preprocess(), fit_targets=True).load(0)[0] for info in infos]
    assert np.array_equal(*pixels)
    of_all = load_dataset_info(DataConfig(str(tmp_path / "b"), task="classes"))
    assert of_all.channels == 5
    assert of_all.preprocess().bands == ("B02", "B03", "B04", "B08", "B11")
    with pytest.raises(DataError, match="no file is band B12"):
        load_dataset_info(DataConfig(str(tmp_path / "b"), bands=("B12",), task="classes"))


def test_images_of_both_splits_have_the_bands_or_are_pictures(tmp_path):
    write_set(tmp_path)
    digests = set()
    for bands in (("B03",), ("B11", "B02")):
        for records in load_records(DataConfig(str(tmp_path), bands=bands, task="classes")):
            assert {record["image"].bands for record in records} == {bands}
            digests.add(records.digest)
    for records in load_records(DataConfig(str(tmp_path), place=False, task="classes")):
        for record in records:
            assert isinstance(record["image"], PictureFile)
            assert isinstance(record["target"], PictureFile)
        digests |= {records.digest, records.records.digest}
    assert len(digests) == 8
    assert None not in digests


def test_bands_that_are_files_make_no_shards(tmp_path, monkeypatch):
    write_set(tmp_path / "data", as_files=True)
    monkeypatch.setattr("sys.argv", ["pack", str(tmp_path / "data"), str(tmp_path / "out")])
    with pytest.raises(DataError, match="shards hold one file for each image"):
        pack.main()


def test_the_network_sees_the_mean_where_there_is_no_data_and_learns_nothing_there(tmp_path):
    info = load_dataset_info(DataConfig(str(write_set(tmp_path)), task="classes"))
    preprocess = info.preprocess()
    pixels, target = new_samples(info.train, info, preprocess, fit_targets=True).load(0)
    assert np.allclose(pixels[:, 0], np.round(preprocess.mean)[:, None])
    assert (target.main[:3] == 255).all()
    assert (target.main[3:] != 255).all()
    half = replace(preprocess, scale=0.5)
    _, smaller = new_samples(info.train, info, half, fit_targets=True).load(0)
    assert smaller.main.shape == (20, 28)
    assert (smaller.main[0] == 255).all()
    assert (smaller.main[2:] != 255).all()
    _, own_size = new_samples(info.train, info, half, fit_targets=False).load(0)
    assert (own_size.main[:3] == 255).all()
    assert (own_size.main[3:] != 255).all()


def test_places_are_those_of_rasterio(tmp_path):
    bands = np.zeros((1, 8, 9), np.uint8)
    turned = Affine.translation(3e5, 4e6) * Affine.rotation(20) * Affine.scale(2, -3)
    for transform in (NORTH_UP, turned):
        for area_or_point in ("Area", "Point"):
            path = write_raster(tmp_path / "a.tif", bands, transform=transform)
            with rasterio.open(path, "r+") as file:
                file.update_tags(AREA_OR_POINT=area_or_point)
            with rasterio.open(path) as file, tifffile.TiffFile(path) as tiff:
                place = place_of(tiff.pages[0])
                assert np.allclose(place.transform, file.transform[:6], rtol=0, atol=1e-6)
                assert place.crs.epsg == file.crs.to_epsg() == 32633
                assert np.allclose(place.to_pixels(*place.to_world(3.5, 2.0)), (3.5, 2.0))


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 4), ("uint16", 12)])
def test_pixels_that_fill_no_bytes_are_a_picture_and_no_bands(tmp_path, dtype, bits):
    values = np.random.default_rng(0).integers(0, 16, (1, 8, 10)).astype(dtype)
    path = write_raster(tmp_path / "a.tif", values, nbits=bits)
    assert np.array_equal(read_image(path, "a.tif")[:, :, 0], np.asarray(Image.open(path)))
    with pytest.raises(ImageError, match="bands cannot be chosen of a TIFF of palettes, of single bits"):
        read_image(BandSource((str(path),), ("1",)), "a.tif")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_classes_of_two_and_four_bits_are_read_as_stored(tmp_path, bits):
    path = write_raster(tmp_path / "a.tif", np.array([[[0, 1, 2, 3]]], np.uint8), nbits=bits)
    assert read_mask(path, "a.tif").tolist() == [[0, 1, 2, 3]]


def test_a_damaged_header_is_one_line(tmp_path):
    bands, _ = scene(0)
    path = write_raster(tmp_path / "a.tif", bands, compress="deflate", tiled=True, blockxsize=16, blockysize=16)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ImageError, match=r"a\.tif"):
        read_image(path, "a.tif")
    with pytest.raises((DataError, ImageError), match=r"a\.tif"):
        read_mask(path, "a.tif")


def test_bands_of_a_source_are_those_of_its_file_and_page():
    bands = ("3", "1")
    assert with_bands("a.tif", ()) == "a.tif"
    assert with_bands(Path("a.tif"), bands) == BandSource(("a.tif",), bands)
    assert with_bands({"path": "a.tif", "page": 2}, bands) == BandSource(("a.tif",), bands, 2)
    assert with_bands({"path": "a.tif"}, bands).page == 0
    assert with_bands(BandSource(("a.tif", "b.tif"), ("9",), 1), bands) == BandSource(("a.tif", "b.tif"), bands, 1)
    for source in (b"bytes", {"path": "a.tif", "bytes": b"bytes"}):
        with pytest.raises(DataError, match="--bands chooses bands of TIFF files, and these images are none"):
            with_bands(source, bands)


def test_a_model_reads_bands_or_places_or_pictures():
    assert as_model_reads("a.tif", Preprocess(place=True, bands=("2",))) == BandSource(("a.tif",), ("2",))
    assert as_model_reads("a.tif", Preprocess(bands=("2",))) == BandSource(("a.tif",), ("2",))
    assert as_model_reads("a.tif", Preprocess(place=True)) == "a.tif"
    for source, picture in (
        ("a.tif", PictureFile("a.tif")),
        ({"path": "a.tif", "page": 3}, PictureFile("a.tif", 3)),
        (Path("a.tif"), PictureFile("a.tif")),
        ("a.png", "a.png"),
        ({"path": "a.png", "page": 3}, {"path": "a.png", "page": 3}),
        ({"path": "a.tif", "bytes": b""}, {"path": "a.tif", "bytes": b""}),
    ):
        assert as_model_reads(source, Preprocess()) == as_picture(source) == picture


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["x/S2_B02.tif", "x/S2_B03.tif"], ("B02", "B03")),
        (["a.1 red.tif", "a.2 red.tif"], ("1", "2")),
        (["a_x_1.tif", "a_x_2.tif", "a_y_3.tif"], ("1", "2", "3")),  # the first word in which all of them differ
        (["red.tif", "nir-2.tif"], ("red", "nir")),
        (["B02_10m.tif", "B05_20m.tif"], ("B02", "B05")),
        (["a_b.tif"], ("a_b",)),
        (["a.tif", "a_b.tif"], ("a", "a_b")),
    ],
)
def test_bands_that_are_files_are_called_by_the_word_that_tells_them_apart(files, names):
    assert band_names(files) == names


def test_a_band_is_one_file_of_its_scene():
    files = ["s/B02.tif", "s/B03.tif", "s/B03_old.tif"]
    assert bands_in(files, ["B03", "B02"], "s") == ["s/B03.tif", "s/B02.tif"]
    with pytest.raises(
        DataError, match=r"s: no file is band B08; its files are B02\.tif, B03\.tif, B03_old\.tif; give"
    ):
        bands_in(files, ["B08"], "s")
    files = [f"s/B03_{number}.tif" for number in range(9)]
    names = ", ".join(f"B03_{number}.tif" for number in range(8))
    with pytest.raises(DataError, match=f"^s: 9 files are band B03; its files are {names}, ...; give --bands$"):
        bands_in(files, ["B03"], "s")


def test_scenes_are_folders_of_tiffs_alone(tmp_path):
    for name in ("a/B1.tif", "a/B2.tif", "b/B1.tif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in (".DS_Store", "a/notes.txt", "a/._B1.png", ".cache/x.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert scene_folders(tmp_path) == {"a": ["a/B1.tif", "a/B2.tif"], "b": ["b/B1.tif"]}
    (tmp_path / "c" / "d").mkdir(parents=True)
    (tmp_path / "c" / "d" / "B1.tif").touch()
    assert scene_folders(tmp_path)["c/d"] == ["c/d/B1.tif"]
    (tmp_path / "b" / "quick.PNG").touch()
    assert scene_folders(tmp_path) == {}
    (tmp_path / "b" / "quick.PNG").unlink()
    (tmp_path / "c.tif").touch()
    assert scene_folders(tmp_path) == {}


def test_the_key_of_scenes_changes_with_each_file_and_with_the_bands(tmp_path):
    files = [tmp_path / name for name in ("B1.tif", "B2.tif", "mask.png")]
    for file in files:
        file.write_bytes(b"x")
    paths = [str(file) for file in files]

    def key(*bands: str) -> str:
        return SceneRecords([("a", tuple(paths[:2]), paths[2])], bands, ()).digest

    assert unnoticed_changes(files, lambda: key("B1", "B2")) == []
    keys = [key("B1", "B2"), key("B2", "B1")]
    paths[2] = str(files[2].rename(tmp_path / "other.png"))
    keys.append(key("B1", "B2"))
    assert len(set(keys)) == 3


def test_scenes_and_masks_without_partner_are_named_or_left_out(tmp_path):
    for name in ("images/a/B1.tif", "images/b/B1.tif", "masks/a.png", "masks/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    folders = (tmp_path / "images", tmp_path / "masks")
    message = r"2 files without partner: b: image without mask; c\.png: mask without image; --allow-unpaired"
    with pytest.raises(DataError, match=message):
        find_scenes(*folders, None, None, allow_unpaired=False)
    records = find_scenes(*folders, None, None, allow_unpaired=True)
    assert [record["name"] for record in records] == ["a"]
    assert len(records.unpaired) == 2
    for name in ("first/images/a/x.tif", "first/images/b/y.tif", "first/images/b/z.tif", "first/masks/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    first = find_scenes(tmp_path / "first/images", tmp_path / "first/masks", None, None, allow_unpaired=True)
    assert first.bands == ("y", "z")  # the first of those that have a mask names them
    for name in (
        "masks/a_x.png",
        "masks/b_x.png",
        "masks/b.png",
        "images/d/B1.tif",
        "images/a/B2.tif",
        "images/b/B2.tif",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    records = open_images(*folders, DataConfig(mask_suffix="_x", bands=("B1",), allow_unpaired=True))
    assert {record["image"].bands for record in records} == {("B1",)}
    settings = DataConfig(mask_suffix="", bands=("B1",), allow_unpaired=True)
    assert [record["target"] for record in open_images(*folders, settings)] == [
        str(tmp_path / "masks" / name) for name in ("a.png", "b.png")
    ]
    for name in ("sites/images/d/x.tif", "sites/masks/d/x.tif", "suffix/images/a/B1.tif", "suffix/masks/a_x.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    folders = (tmp_path / "suffix/images", tmp_path / "suffix/masks")
    assert len(find_scenes(*folders, None, None, allow_unpaired=False)) == 1
    assert find_scenes(*folders, "", None, allow_unpaired=False) is None
    assert find_scenes(tmp_path / "sites/images", tmp_path / "sites/masks", None, None, allow_unpaired=False) is None
    assert [Path(record["target"]).name for record in records] == ["a_x.png", "b_x.png"]


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
                expected_window = expected[slice(*rows), slice(*columns)]
                assert np.array_equal(np.ma.getmaskarray(window), np.ma.getmaskarray(expected_window))
                assert np.array_equal(np.ma.filled(window, 7), np.ma.filled(expected_window, 7))


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


def test_the_tiles_that_were_used_last_are_kept(tmp_path, monkeypatch):
    bands = np.random.default_rng(0).integers(0, 9, (1, 16, 64)).astype(np.uint16)
    path = write_raster(tmp_path / "a.tif", bands, tiled=True, blockxsize=16, blockysize=16, compress="deflate")
    monkeypatch.setattr(rasters_module, "CACHED_BYTES", 2 * 16 * 16 * 2)
    with ExitStack() as stack:
        raster = open_raster(path, stack)
        page = raster.files[0].pixels.page
        decode = mock.Mock(side_effect=page.decode)
        monkeypatch.setattr(page, "decode", decode)
        for left in (0, 16, 0, 32, 0, 32):
            assert np.array_equal(raster.read((0, 16), (left, left + 16))[:, :, 0], bands[0, :, left : left + 16])
    assert decode.call_count == 3


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


@pytest.mark.parametrize("has_place", [True, False])
def test_only_a_page_with_a_place_has_a_page_that_says_where_its_data_are(tmp_path, has_place):
    tags = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        tiff.write(np.ones((8, 9), np.uint8), photometric="minisblack", extratags=tags if has_place else [])
        tiff.write(np.ones((8, 9), bool), photometric="mask", subfiletype=4)
    with ExitStack() as stack:
        raster = open_raster(BandSource((str(tmp_path / "a.tif"),), ("1",)), stack)
        assert (raster.files[0].mask is not None) is has_place


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
    assert has_band_name("a.B2.c", "B2")
    assert has_band_name("a B2 c", "B2")
    assert has_band_name("a_B2_c", "B2")
    assert has_band_name("a-B2-c", "B2")
    assert not has_band_name("aB2", "B2")
    assert not has_band_name("B2c", "B2")


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
    path = str(write_raster(tmp_path / "c.tif", np.zeros((9, 4, 5), np.uint16), photometric="minisblack"))
    with ExitStack() as stack, pytest.raises(ImageError, match=r"its bands are 1, 2, 3, 4, 5, 6, 7, 8, \.\.\.$"):
        open_raster(BandSource((path,), ("red",)), stack)


@pytest.mark.parametrize(("interleave", "segment_bytes"), [("pixel", 5 * 40 * 50 * 2), ("band", 40 * 50 * 2)])
def test_a_raster_is_read_in_windows_up_to_a_size_of_its_segments(tmp_path, monkeypatch, interleave, segment_bytes):
    bands = np.zeros((5, 40, 50), np.uint16)
    path = write_raster(tmp_path / "a.tif", bands, compress="deflate", interleave=interleave, blockysize=40)
    for limit, decodes_windows in ((segment_bytes, True), (segment_bytes - 1, False)):
        monkeypatch.setattr(rasters_module, "SEGMENT_BYTES", limit)
        with open_windowed_file(path) as picture:
            assert picture.decodes_windows is decodes_windows
    with open_windowed_file(write_raster(tmp_path / "plain.tif", bands, interleave=interleave)) as picture:
        assert picture.decodes_windows  # it is not compressed


def test_bands_of_several_files_are_read_in_windows_where_all_of_them_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(rasters_module, "SEGMENT_BYTES", 40 * 50 * 2 - 1)
    files = []
    for rows in (8, 40):
        path = tmp_path / f"{rows}.tif"
        files.append(str(write_raster(path, np.zeros((1, 40, 50), np.uint16), compress="deflate", blockysize=rows)))
    for paths, decodes_windows in ((files[:1], True), (files, False), (files[::-1], False)):
        with open_windowed_file(BandSource(tuple(paths))) as picture:
            assert picture.decodes_windows is decodes_windows


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
    with open_windowed_file(Path(path)) as picture:
        assert picture.may_lack_data


def test_a_band_of_several_files_is_called_by_its_file_and_alpha_is_that_of_its_file(tmp_path):
    values = {"one": [5], "two": [6], "three": [7, 255]}
    paths = []
    for name, samples in values.items():
        pixels = np.full((2, 3, len(samples)), samples, np.uint8)
        named = (42112, "s", 0, '<GDALMetadata><Item name="DESCRIPTION" sample="0">red</Item></GDALMetadata>', False)
        options = {"extrasamples": ["unassalpha"], "planarconfig": "contig"} if len(samples) == 2 else {}
        paths.append(written_raster(tmp_path / f"{name}.tif", pixels.squeeze(), named, **options))
    assert read_image(BandSource(tuple(paths)))[0, 0].tolist() == [5, 6, 7]
    assert read_image(BandSource(tuple(paths), ("two", "one", "red")))[0, 0].tolist() == [6, 5, 7]
    assert read_image(BandSource(tuple(paths[:1]), ("red",)))[0, 0].tolist() == [5]


def test_each_page_of_a_raster_has_bands_and_a_mask_of_its_own(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for number in range(2):
            tiff.write(np.full((8, 9), number, np.uint8), photometric="minisblack", extratags=PLACED)
            has_data = np.arange(9) != number
            tiff.write(np.tile(has_data, (8, 1)), photometric="mask", subfiletype=4)
    for number, page in enumerate((0, 2)):
        for pixels in (read_image(BandSource((str(path),), page=page)), read_image(path, page=page)):
            assert (np.ma.getdata(pixels) == number).all()
            assert np.flatnonzero(np.ma.getmaskarray(pixels)[0]).tolist() == [number]


def test_a_value_for_no_data_may_be_negative(tmp_path):
    path = written_raster(tmp_path / "a.tif", np.array([[3, -9999]], np.int16), (42113, "s", 0, "-9999", False))
    assert np.ma.getmaskarray(read_image(path))[0, :, 0].tolist() == [False, True]


def test_pixels_of_floats_and_of_a_file_with_a_mask_may_miss_data(tmp_path):
    path = tmp_path / "a.tif"
    for dtype, has_mask, may_lack_data in ((np.uint8, False, False), (np.float32, False, True), (np.uint8, True, True)):
        with tifffile.TiffWriter(path) as tiff:
            tiff.write(np.ones((8, 9), dtype), photometric="minisblack", extratags=PLACED)
            if has_mask:
                tiff.write(np.ones((8, 9), bool), photometric="mask", subfiletype=4)
        with open_windowed_file(path) as picture:
            assert picture.may_lack_data is may_lack_data


@pytest.mark.parametrize(
    ("text", "is_missing"), [(" 7 ", True), ("7.5", False), ("-9999", False), ("none", False), ("255", True)]
)
def test_a_value_for_no_data_is_one_that_a_pixel_may_hold(tmp_path, text, is_missing):
    value = 255 if text == "255" else 7
    path = written_raster(tmp_path / "a.tif", np.full((2, 3), value, np.uint8), (42113, "s", 0, text, False))
    with open_windowed_file(Path(path)) as picture:
        assert picture.may_lack_data is is_missing
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


def test_pixels_are_read_in_the_order_of_bytes_of_their_file(tmp_path):
    pixels = np.arange(6, dtype=np.uint16).reshape(2, 3) + 255
    for order in ("<", ">"):
        assert read_image(written_raster(tmp_path / "a.tif", pixels, byteorder=order))[:, :, 0].tolist() == [
            [255, 256, 257],
            [258, 259, 260],
        ]


def test_a_page_that_is_to_be_turned_is_a_picture_whatever_its_place(tmp_path):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    path = written_raster(tmp_path / "a.tif", pixels, (274, "H", 1, 6, False))
    with ExitStack() as stack:
        assert open_raster(path, stack) is None
    assert np.array_equal(read_image(path)[:, :, 0], np.rot90(pixels, -1))


def test_only_files_whose_bands_are_read_say_the_type_and_whether_data_are_missing(tmp_path):
    paths = (
        written_raster(tmp_path / "a.tif", np.zeros((2, 3), np.uint8)),
        written_raster(tmp_path / "b.tif", np.zeros((2, 3), np.uint16), (42113, "s", 0, "5", False)),
    )
    for bands, dtype, may_lack_data in (
        (("a",), "uint8", False),
        (("a", "b"), "uint16", True),
        (("b",), "uint16", True),
    ):
        with ExitStack() as stack:
            raster = open_raster(BandSource(paths, bands), stack)
            assert (raster.dtype, raster.may_lack_data) == (dtype, may_lack_data)


def test_bands_of_several_files_are_read_in_the_order_that_is_asked_for(tmp_path):
    paths = (
        written_raster(tmp_path / "a.tif", np.full((2, 3), 4, np.uint8)),
        written_raster(tmp_path / "b.tif", np.full((2, 3), 6, np.uint16), (42113, "s", 0, "5", False)),
    )
    for bands, values in ((("b",), [6]), (("b", "a"), [6, 4]), (("a", "b"), [4, 6])):
        with ExitStack() as stack:
            pixels = open_raster(BandSource(paths, bands), stack).whole()
            assert pixels[1, 2].tolist() == values
            assert not isinstance(pixels, np.ma.MaskedArray)


def test_only_bands_without_data_are_missing_in_images_of_several_files(tmp_path):
    first = write_raster(tmp_path / "a.tif", np.array([[[5, 1]], [[1, 1]]], np.uint8), nodata=5, names=("red", "nir"))
    second = write_raster(tmp_path / "b.tif", np.array([[[1, 5]]], np.uint8), nodata=5)
    with ExitStack() as stack:
        pixels = open_raster(BandSource((str(first), str(second)), ("red", "b", "nir")), stack).whole()
    assert np.ma.getmaskarray(pixels).tolist() == [[[True, False, False], [False, True, False]]]


def test_names_of_bands_that_are_not_there_are_passed_over(tmp_path):
    items = '<Item name="DESCRIPTION" sample="{}" role="description">{}</Item>'
    text = f"<GDALMetadata>{items.format(0, ' red &amp; more ')}{items.format(1, 'none')}</GDALMetadata>"
    path = written_raster(tmp_path / "a.tif", np.zeros((2, 3), np.uint8), (42112, "s", 0, text, False))
    with ExitStack() as stack:
        assert open_raster(path, stack).files[0].names == ("red & more",)


@pytest.mark.parametrize(
    ("shape", "kind", "is_its_mask"),
    [((8, 9), 4, True), ((4, 9), 4, False), ((8, 5), 4, False), ((8, 9), 0, False), ((8, 9), 5, False)],
)
def test_a_page_of_another_size_or_kind_does_not_say_where_data_are(tmp_path, shape, kind, is_its_mask):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        tiff.write(np.ones((8, 9), np.uint8), photometric="minisblack", extratags=PLACED)
        tiff.write(np.ones(shape, bool), photometric="mask", subfiletype=kind)
    with ExitStack() as stack:
        assert (open_raster(tmp_path / "a.tif", stack).files[0].mask is not None) is is_its_mask


def test_a_crop_of_a_large_raster_knows_nothing_where_that_holds_no_data(tmp_path):
    bands = np.ones((1, 24, 32), np.uint8)
    bands[0, :6, :9] = 0
    for name in "abc":
        write_raster(tmp_path / "images" / f"{name}.tif", bands, nodata=0)
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(np.eye(24, 32, dtype=np.uint8)).save(tmp_path / "masks" / f"{name}.png")
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.3))
    split = replace(info.train, class_locations={0: [np.array([[0, 0]])]})
    samples = new_samples(split, info, Preprocess(mean=(4.0,), std=(1.0,)), fit_targets=True)
    pixels, target = samples.load_crop(0, (24, 32), np.random.default_rng(0))
    assert (pixels[0, :6, :9] == 4).all()
    assert (pixels[0, 6:] == 1).all()
    assert (target.main[:6, :9] == 255).all()
    assert (target.main == 255).sum() == 54
    assert samples.load_crop(1, (24, 32), np.random.default_rng(0)) is None  # it is not large
    record = split.records[0]
    Image.new("L", (24, 20)).save(record["target"])  # since the data set was looked at
    with pytest.raises(DataError, match="image is 24 x 32, its mask 20 x 24"):
        samples.load_crop(0, (24, 32), np.random.default_rng(0))


def test_a_mask_with_a_place_is_unknown_where_it_holds_no_number(tmp_path):
    values = np.array([[[1, 0], [np.nan, 7]]], np.float32)
    path = write_raster(tmp_path / "a.tif", values, nodata=np.nan)
    assert read_mask(str(path), "a").tolist() == [[1, 0], [255, 7]]
