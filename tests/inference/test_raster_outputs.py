"""The mask of a TIFF with a place is a TIFF of the same grid, as rasterio reads it.

Modules: inference/outputs/rasters.py, data_utils/image_io/geotiff_writer.py, data_utils/image_io/places.py.
"""

import io
import json
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import rasterio
import tifffile
import torch
from conftest import TINY, predict
from in_process import run_train
from PIL import Image
from prediction import settings_of
from rasterio.transform import Affine
from rasters import NORTH_UP, UTM, scene, write_raster

from data_utils.class_map import ClassMap
from data_utils.image_io import geotiff_writer
from data_utils.image_io.geotiff_writer import GeoTiffWriter
from data_utils.image_io.placed_masks import grid_of
from data_utils.image_io.places import Place
from data_utils.image_io.reader import read_image
from data_utils.image_io.windowed import open_windowed_file
from inference import predictor as predictor_module
from inference import readers
from inference.inputs import InputRules, find_jobs
from inference.outputs import new_format
from inference.outputs.classes import ClassFormat
from inference.outputs.images import ImageWriter
from inference.outputs.jobs import ImageJob, RasterJob
from inference.outputs.objects import LabelRaster
from inference.outputs.rasters import free_value
from inference.outputs.writer import PredictionWriter
from inference.pipeline import prepare_work
from inference.predictor import Predictor
from inference.readers import read_inputs
from inference.tiling import planning
from inference.tiling.stream import stream_logits
from runtime.errors import ModelError
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from unet import Preprocess, UNet, UNetConfig

BANDS = ("B08", "B04", "B03")
NAMES = ("B02", "B03", "B04", "B08", "B11")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of three of five bands that has learned nothing."""
    torch.manual_seed(0)
    preprocess = Preprocess(
        mean=(300.0, 310.0, 320.0),
        std=(50.0, 60.0, 900.0),
        class_names=("other", "field"),
        class_values=(0, 7),
        ignore_value=255,
        pixel_types=("uint16",),
        bands=BANDS,
        draft=False,
    )
    folder = tmp_path_factory.mktemp("model")
    UNet(UNetConfig(3, 2, base_channels=4, depth=2, norm="group", preprocess=preprocess)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photo_model(tmp_path_factory):
    """A model of photographs that has learned nothing."""
    return untrained(tmp_path_factory.mktemp("photo_model"), place=True)


def untrained(folder, **preprocess):
    """A model of three channels that has learned nothing."""
    torch.manual_seed(0)
    config = UNetConfig(3, 2, base_channels=4, depth=2, norm="group", preprocess=Preprocess(**preprocess))
    UNet(config).save_pretrained(folder)
    return folder


def write_scene(path, seed=0, *, size=(70, 90), **profile):
    bands, mask = scene(seed, size=size)
    bands[:, :6, :20] = 0
    return write_raster(path, bands, nodata=0, names=NAMES, **profile), mask


@pytest.mark.parametrize("in_windows", [False, True])
def test_a_mask_has_the_place_of_its_image(tmp_path, model, in_windows):
    turned = Affine.translation(3e5, 4e6) @ Affine.rotation(20) @ Affine.scale(2, -3)
    write_scene(tmp_path / "in" / "a.tif")
    write_scene(tmp_path / "in" / "b" / "c.tif", 1, transform=turned, crs="EPSG:4326", interleave="band")
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", 1000 if in_windows else 2**27):
        flags = ["--probabilities", "--uncertainty", "--tile-size", "32", "--overlay"]
        result = predict(model, [tmp_path / "in"], tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    predictor = Predictor.from_pretrained(model, tile_size=32)
    for name in ("a", "b/c"):
        prediction = predictor(tmp_path / "in" / f"{name}.tif")
        expected = np.where(prediction.mask == 1, 7, 0)
        expected[:6, :20] = 255
        with (
            rasterio.open(tmp_path / "in" / f"{name}.tif") as image,
            rasterio.open(tmp_path / f"out/{name}.tif") as mask,
        ):
            assert (mask.transform, mask.crs, mask.shape) == (image.transform, image.crs, image.shape)
            assert mask.nodata == 255
            assert mask.is_tiled
            assert mask.dtypes == ("uint8",)
            assert np.array_equal(mask.read(1), expected)
            assert np.array_equal(mask.dataset_mask(), image.dataset_mask())
        with rasterio.open(tmp_path / f"out/{name}.probabilities.tif") as file:
            probabilities = file.read()
            assert file.transform == image.transform
            assert np.isnan(file.nodata)
            assert np.isnan(probabilities[:, :6, :20]).all()
            assert np.allclose(probabilities[:, 6:], prediction.probabilities[:, 6:], atol=1e-6)
        with rasterio.open(tmp_path / f"out/{name}.uncertainty.tif") as file:
            entropy = -(prediction.probabilities * np.log(prediction.probabilities)).sum(axis=0) / np.log(2)
            assert file.transform == image.transform
            assert file.dtypes == ("uint8",)
            assert file.nodata is None  # of each value there may be pixels
            assert np.allclose(file.read(1), 255 * entropy, rtol=0, atol=0.51)
        assert (tmp_path / "out" / f"{name}.overlay.png").exists()


def test_an_image_has_the_place_of_its_file_where_it_is_kept(tmp_path):
    path = str(write_raster(tmp_path / "a.tif", scene(0)[0]))
    (kept,) = find_jobs([path], tmp_path / "out", [".png"], InputRules(5, keeps_place=True))
    assert isinstance(kept, RasterJob)
    assert kept.place == grid_of(path).place
    (job,) = find_jobs([path], tmp_path / "out", [".png"], InputRules(5))
    assert not isinstance(job, RasterJob)


def test_an_image_of_points_has_no_place(tmp_path):
    path = write_raster(tmp_path / "a.tif", scene(0)[0])
    task = Landmarks(("nose", "ear"), partners=(0, 1), layout="long", space="pixels")
    config = UNetConfig(5, 2, base_channels=1, depth=1, preprocess=Preprocess(place=True), task=task.to_config())
    predictor = Predictor(UNet(config))
    writer = PredictionWriter(new_format(config), predictor.task, (".csv",))
    args = settings_of(model=str(tmp_path), input=[str(path)], output=tmp_path / "out", file=None)
    with mock.patch("inference.pipeline.record_provenance"), mock.patch("inference.pipeline.provenance_of"):
        (job,) = prepare_work(args, predictor, writer).jobs
    assert not isinstance(job, RasterJob)


def test_an_image_without_place_has_a_png(tmp_path, model):
    bands, _ = scene(0)
    write_raster(tmp_path / "in" / "a.tif", bands, crs=None, transform=Affine.identity(), names=NAMES)
    assert predict(model, [tmp_path / "in"], tmp_path / "out").returncode == 0
    assert Image.open(tmp_path / "out" / "a.png").size == (56, 40)


def test_scores_leave_out_pixels_without_data(tmp_path, model):
    _, mask = write_scene(tmp_path / "in" / "a.tif")
    mask[:6, :20] = 1
    write_raster(tmp_path / "truth" / "a.tif", 7 * mask[None])
    flags = [tmp_path / "out", "--truth", tmp_path / "truth"]
    assert predict(model, [tmp_path / "in"], *flags).returncode == 0
    first = json.loads((tmp_path / "out" / "metrics.json").read_text())
    prediction = Predictor.from_pretrained(model)(tmp_path / "in" / "a.tif").mask
    has_data = np.ones(mask.shape, bool)
    has_data[:6, :20] = False
    assert first["pixel_accuracy"] == pytest.approx((prediction == mask)[has_data].mean())
    assert predict(model, [tmp_path / "in"], *flags).returncode == 0  # its masks are there already
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == first


def test_bands_that_are_files_of_a_folder_are_one_image(tmp_path, model):
    bands, _ = scene(0)
    write_raster(tmp_path / "one" / "a.tif", bands, names=NAMES)
    for name, plane in zip(NAMES, bands, strict=True):
        write_raster(tmp_path / "several" / "a" / f"T33_{name}.tif", plane[None])
    assert predict(model, [tmp_path / "one"], tmp_path / "out1").returncode == 0
    assert predict(model, [tmp_path / "several"], tmp_path / "out2").returncode == 0
    assert predict(model, [tmp_path / "several" / "a"], tmp_path / "out3").returncode == 0
    first = (tmp_path / "out1" / "a.tif").read_bytes()
    assert (tmp_path / "out2" / "a.tif").read_bytes() == first == (tmp_path / "out3" / "a.tif").read_bytes()
    (tmp_path / "several" / "a" / "T33_B04.tif").unlink()
    result = predict(model, [tmp_path / "several"], tmp_path / "out4")
    assert result.returncode == 1
    assert "none called B08" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("is_big", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_what_is_written_is_read_by_rasterio(tmp_path, channels, dtype, is_big):
    size = (300, 515)
    rows = (np.random.default_rng(0).random((channels, *size)) * 200).astype(dtype)
    place = grid_of(str(write_raster(tmp_path / "in.tif", np.zeros((1, *size), np.uint8)))).place
    with (
        mock.patch.object(geotiff_writer, "CLASSIC_BYTES", 0 if is_big else 2**32),
        (tmp_path / "out.tif").open("wb") as file,
        GeoTiffWriter(file, size, place, channels, 9) as writer,
    ):
        for top in range(0, size[0], 64):
            writer.write(rows[:, top : top + 64])
    with rasterio.open(tmp_path / "out.tif") as file:
        assert np.array_equal(file.read(), rows)
        assert (file.transform, file.crs.to_string(), file.nodata) == (NORTH_UP, UTM, 9)
    with tifffile.TiffFile(tmp_path / "out.tif") as tiff:
        (page,) = tiff.pages
        positions = [page.offset, *(tag.valueoffset for tag in page.tags)]
        codes = [tag.code for tag in page.tags]
        extras = page.extrasamples
        offsets = page.tags["TileOffsets"].dtype.name
    assert all(position % 2 == 0 for position in positions)  # the format asks for it
    assert codes == sorted(codes)
    assert tuple(extras) == (0,) * (channels - 1)
    assert offsets == ("LONG8" if is_big else "LONG")


@pytest.mark.parametrize(("channels", "is_color"), [(1, False), (2, False), (3, True)])
def test_tags_say_it_of_each_band_and_their_directory_lies_at_an_even_byte(channels, is_color):
    place = Place((10.0, 0.0, 0.0, 0.0, -10.0, 0.0), None, ())
    file = io.BytesIO()
    with GeoTiffWriter(file, (20, 30), place, channels, 1234.5, is_color=is_color) as writer:
        writer.write(np.ones((channels, 20, 30), np.float32))
    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        (page,) = tiff.pages
        counts = [page.tags[name].count for name in ("BitsPerSample", "SampleFormat", "GDAL_NODATA")]
        assert counts == [channels, channels, len("1234.5\0")]
        assert page.nodata == 1234.5
        assert page.planarconfig == (1 if channels == 1 else 2)
        assert page.offset % 2 == 0
        assert len(page.extrasamples) == (1 if channels == 2 else 0)
        assert ("ExtraSamples" in page.tags) is (channels == 2)


def test_rows_of_several_tiles_come_at_once_and_a_file_that_is_left_early_has_no_directory():
    place = Place((10.0, 0.0, 0.0, 0.0, -10.0, 0.0), None, ())
    rows = np.random.default_rng(0).integers(0, 9, (1, 600, 20), np.uint8)
    file = io.BytesIO()
    with GeoTiffWriter(file, (600, 20), place) as writer:
        writer.write(rows)
    file.seek(0)
    assert np.array_equal(tifffile.imread(file), rows[0])
    left = io.BytesIO()
    with pytest.raises(KeyError), GeoTiffWriter(left, (600, 20), place) as writer:
        writer.write(rows[:, :300])
        raise KeyError
    assert left.getvalue()[4:8] == bytes(4)
    nothing = io.BytesIO()
    with GeoTiffWriter(nothing, (600, 20), place):
        pass
    assert nothing.getvalue() == b""


@pytest.mark.parametrize(("channels", "version"), [(1, 42), (2, 43)])
def test_a_file_that_all_bands_could_fill_beyond_4_gib_has_long_offsets(channels, version):
    file = io.BytesIO()
    place = Place((10.0, 0.0, 0.0, 0.0, -10.0, 0.0), None, ())
    side = 33_000
    writer = GeoTiffWriter(file, (side, side), place, channels)
    writer.write(np.zeros((channels, 1, side), np.uint16))
    assert int.from_bytes(file.getvalue()[2:4], "little") == version


@pytest.mark.parametrize(
    ("values", "interpretations"), [((0, 300), ["gray"]), (((0, 0, 0), (9, 200, 7)), ["red", "green", "blue"])]
)
def test_a_mask_of_numbers_is_grey_and_one_of_colors_is_colored(tmp_path, values, interpretations):
    bands, _ = scene(0, size=(20, 30))
    place = grid_of(str(write_raster(tmp_path / "in.tif", bands))).place
    job = RasterJob(image=tmp_path / "in.tif", size=(20, 30), output=tmp_path / "out", place=place)
    output_format = ClassFormat(ClassMap(("a", "b"), values, None))
    rows = np.random.default_rng(0).integers(0, 2, (20, 30), np.uint8)
    missing = np.arange(30)[None] < np.arange(20)[:, None]
    with output_format.open_mask(job, (20, 30), None) as mask:
        mask.write(output_format.mask_values(rows), missing)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert [kind.name for kind in file.colorinterp] == interpretations
        nodata = 255 if len(interpretations) == 1 else 0
        expected = np.array(values)[rows]
        expected[missing] = nodata
        assert np.array_equal(np.moveaxis(file.read(), 0, 2).squeeze(), expected)
        assert file.nodata == nodata


def test_scores_are_told_where_each_strip_misses_data(tmp_path):
    taken = []
    sink = SimpleNamespace(add=lambda rows, missing, certainty: taken.append((len(rows), missing, certainty)))
    holds_nothing = np.random.default_rng(0).random((9, 6)) < 0.5
    logits = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))
    writer = ImageWriter(ClassFormat(ClassMap(("a", "b"), (0, 1), None)), Classes(("a", "b")), (".png", ".npy"))
    job = ImageJob(image=tmp_path / "a.tif", size=(9, 6), output=tmp_path / "out" / "a")
    writer.write(job, (9, 6), logits.split(4, dim=1), None, sink, lambda top, bottom: holds_nothing[top:bottom])
    assert [count for count, _, _ in taken] == [4, 4, 1]
    assert np.array_equal(np.concatenate([missing for _, missing, _ in taken]), holds_nothing)
    assert all(certainty.shape[-2:] == (count, 6) for count, _, certainty in taken)
    np.testing.assert_allclose(np.load(job.file(".npy")), logits.softmax(0), rtol=1e-6)  # only rasters say it there


def test_the_value_of_pixels_without_data_is_no_class():
    assert free_value({0, 1}) == 255
    assert free_value({0, 255, 254}) == 253
    assert free_value(set(range(256))) == 65535


def test_the_only_mask_may_be_a_tiff_or_a_picture(tmp_path, model):
    image, _ = write_scene(tmp_path / "a.tif")
    for name in ("mask.tif", "mask.png"):
        assert predict(model, [image], tmp_path / name).returncode == 0
    with rasterio.open(tmp_path / "mask.tif") as file:
        mask = file.read(1)
    picture = np.array(Image.open(tmp_path / "mask.png"))
    assert mask.shape == picture.shape
    assert np.array_equal(mask[6:], picture[6:])
    bands, _ = scene(0)
    plain = write_raster(tmp_path / "plain.tif", bands, crs=None, transform=Affine.identity(), names=NAMES)
    result = predict(model, [plain], tmp_path / "other.tif")
    assert result.returncode == 1
    assert "has no place in the world" in result.stderr


def test_a_run_on_bands_of_scenes_is_predicted_on_their_grid(tmp_path):
    for number in range(6):
        image, mask = write_scene(tmp_path / "data" / "images" / f"{number}.tif", number, size=(40, 48))
        write_raster(tmp_path / "data" / "masks" / f"{number}.tif", 7 * mask[None])
    flags = ["--dataset", tmp_path / "data", "--bands", "B03", "B08", *TINY, "--crop-size", "32", "32"]
    run = run_train(tmp_path / "run", *flags, "--max-steps", "30", "--eval-every", "30", "--learning-rate", "0.02")
    assert run.exit_code == 0, run.output
    assert run.config["preprocess"]["bands"] == ["B03", "B08"], run.output
    assert (run.folder / "report.html").exists()
    result = predict(run.folder / "model", [image], tmp_path / "out", "--truth", tmp_path / "data" / "masks")
    assert result.returncode == 0, result.stderr
    with rasterio.open(tmp_path / "out" / "5.tif") as file:
        predicted = file.read(1)
        assert file.transform == NORTH_UP
        assert (predicted[:6, :20] == 255).all()
    assert (predicted == 7 * mask)[6:].mean() > 0.9


def test_a_photograph_in_colors_of_video_has_a_place(tmp_path, photo_model):
    """JPEG inside a TIFF, as aerial photographs come, and a palette: the pixels are those of a picture."""
    rng = np.random.default_rng(0)
    bands = np.kron(rng.integers(0, 256, (3, 6, 8)), np.ones((1, 8, 8))).astype(np.uint8)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_raster(tmp_path / "in" / "a.tif", bands, compress="jpeg", photometric="ycbcr")
        with rasterio.open(path, "r+") as file:
            has_data = np.full(file.shape, 255, np.uint8)
            has_data[:9, :11] = 0
            file.write_mask(has_data)
    pixels = read_image(path)
    assert np.array_equal(np.ma.getdata(pixels), np.array(Image.open(path).convert("RGB")))
    palette = write_raster(tmp_path / "in" / "b.tif", bands[:1] % 4)
    with rasterio.open(palette, "r+") as file:
        file.write_colormap(1, {number: (60 * number, 0, 0, 255) for number in range(4)})
    assert predict(photo_model, [tmp_path / "in"], tmp_path / "out").returncode == 0
    for name in ("a", "b"):
        with (
            rasterio.open(tmp_path / "out" / f"{name}.tif") as mask,
            rasterio.open(tmp_path / f"in/{name}.tif") as image,
        ):
            assert (mask.transform, mask.crs, mask.shape) == (image.transform, image.crs, image.shape)
            assert np.array_equal(mask.dataset_mask(), image.dataset_mask())


@pytest.mark.parametrize("in_windows", [False, True])
def test_a_model_of_before_reads_pictures(tmp_path, photo_model, in_windows):
    """Without "place" in config.json: three channels of four, no pixels without data, true masks pixel by pixel."""
    old = untrained(tmp_path / "old")
    assert "place" not in json.loads((old / "config.json").read_text())["preprocess"]
    assert json.loads((photo_model / "config.json").read_text())["preprocess"]["place"]
    rng = np.random.default_rng(0)
    bands = rng.integers(0, 256, (4, 48, 64), np.uint8)
    path = write_raster(tmp_path / "in" / "a.tif", bands, photometric="RGB", ALPHA="NO", nodata=7)
    truth = rng.integers(0, 2, (1, 48, 64), np.uint8)
    write_raster(tmp_path / "truth" / "a.tif", truth, transform=NORTH_UP @ Affine.translation(9, 9))
    flags = ["--truth", tmp_path / "truth", "--tile-size", "32", "--overlay"]
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", 1000 if in_windows else 2**27):
        result = predict(old, [path], tmp_path / "out", *flags)
        assert result.returncode == 0, result.stderr
        result = predict(photo_model, [path], tmp_path / "new", *flags)
        assert result.returncode == 1
        assert "has 4 channels, the model takes 3" in result.stderr
    expected = Predictor.from_pretrained(old, tile_size=32)(np.moveaxis(bands[:3], 0, 2)).mask
    with rasterio.open(tmp_path / "out" / "a.tif") as mask, rasterio.open(path) as image:
        assert (mask.transform, mask.crs) == (image.transform, image.crs)
        assert np.array_equal(mask.read(1), expected)
    scores = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert scores["pixel_accuracy"] == pytest.approx((expected == truth[0]).mean())
    assert np.array_equal(Predictor.from_pretrained(old, tile_size=32)(path).mask, expected)


def test_an_ensemble_reads_the_same_bands(tmp_path):
    first, second, third = (
        untrained(tmp_path / "".join(bands), bands=bands)
        for bands in (("1", "2", "3"), ("4", "2", "3"), ("3", "2", "1"))
    )
    with pytest.raises(ModelError, match=r"of the same bands: \('1', '2', '3'\), \('4', '2', '3'\)$"):
        Predictor.from_pretrained(first, ensemble=[second])
    with pytest.raises(ModelError, match=r"of the same bands: \('1', '2', '3'\), \('3', '2', '1'\)$"):
        Predictor.from_pretrained(first, ensemble=[third])


def test_networks_that_read_a_file_in_other_ways_each_get_their_own(tmp_path):
    path = write_raster(tmp_path / "a.tif", np.full((4, 6, 8), 90, np.uint8), photometric="RGB", ALPHA="NO")
    raster = UNetConfig(4, 2, preprocess=Preprocess(place=True))
    picture = UNetConfig(3, 2)
    inputs = read_inputs(path, [picture, raster, picture], "a.tif", 0, keep_pixels=False)
    assert [len(tensor) for tensor in inputs.tensors] == [3, 4, 3]
    assert inputs.pixels is None
    with mock.patch.object(readers, "decode_image", wraps=readers.decode_image) as decoded:
        inputs = read_inputs(path, [picture, raster, picture], "a.tif", 0, keep_pixels=True)
    assert decoded.call_count == 2
    assert inputs.pixels.shape == (6, 8, 3)
    two = write_raster(tmp_path / "b.tif", np.stack([np.full((6, 8), value, np.uint16) for value in (10, 20)]))
    bands = [UNetConfig(1, 2, preprocess=Preprocess(bands=(band,), place=True)) for band in ("1", "2")]
    inputs = read_inputs(two, bands, "b.tif", 0, keep_pixels=False)
    assert [tensor.unique().tolist() for tensor in inputs.tensors] == [[10], [20]]


def test_a_file_that_is_named_by_two_bands_is_one_image(tmp_path):
    pixels = scene(0, channels=2)[0]
    write_raster(tmp_path / "stack" / "a_B08_B04.tif", pixels, names=("B08", "B04"))
    for name in ("B08", "B04"):
        write_raster(tmp_path / "files" / f"b_{name}.tif", pixels[:1])
    folders = [str(tmp_path / name) for name in ("stack", "files")]
    jobs = find_jobs(folders, tmp_path / "out", [".png"], InputRules(2, bands=("B08", "B04")))
    assert [job.output.name for job in jobs] == ["a_B08_B04", "files"]
    assert [len(job.files) for job in jobs] == [1, 2]
    for name in ("B08", "B04"):
        write_raster(tmp_path / "all" / "x" / "c" / f"{name}.tif", pixels[:1])
    Image.fromarray(pixels[0].astype(np.uint8)).save(tmp_path / "all" / "x" / "c" / "B08.png")
    write_raster(tmp_path / "sizes" / "B08.tif", pixels[:1])
    write_raster(tmp_path / "sizes" / "B04.tif", pixels[:1, :20])
    (job,) = find_jobs([str(tmp_path / "sizes")], tmp_path / "out", [".png"], InputRules(2, bands=("B08", "B04")))
    assert job.size is None  # bands of two sizes, which the job reports
    write_raster(tmp_path / "all" / "a" / "plain.tif", pixels[:1])  # has none of the bands in its name
    jobs = find_jobs([str(tmp_path / "all")], tmp_path / "out", [".png"], InputRules(2, bands=("B08", "B04")))
    assert [(str(job.output.relative_to(tmp_path / "out")), len(job.files)) for job in jobs] == [
        ("a/plain", 1),
        ("x/c", 2),
    ]


def test_rows_of_tiles_are_low_for_rasters_of_many_bands_alone(tmp_path):
    """Arrays of as many channels are cut as ever, so that their masks stay the same."""
    torch.manual_seed(0)
    network = UNet(UNetConfig(6, 2, base_channels=2, depth=1, preprocess=Preprocess(place=True)))
    bands, _ = scene(0, channels=6, size=(96, 64))
    write_raster(tmp_path / "a.tif", bands)
    np.save(tmp_path / "a.npy", np.moveaxis(bands, 0, 2))
    limits = {"WHOLE_MEMORY": 0, "LARGE_TILE_MEMORY": 2**17, "TILE_MEMORY": 2**16, "INPUT_MEMORY": 2**15}
    heights = {}
    with ExitStack() as stack:
        for name, value in limits.items():
            stack.enter_context(mock.patch.object(planning, name, value))
        streamed = stack.enter_context(mock.patch.object(predictor_module, "stream_logits", wraps=stream_logits))
        predictor = Predictor(network.eval())
        masks = []
        for suffix in (".tif", ".npy"):
            with open_windowed_file(tmp_path / f"a{suffix}") as image:
                masks.append(torch.cat(list(predictor.strips(image)), dim=1).argmax(0))
            heights[suffix] = streamed.call_args.args[3].size[0]
        of_four = UNetConfig(4, 2, base_channels=2, depth=1)
        assert planning.choose_tiling(of_four, (96, 64), low_rows=True) == planning.choose_tiling(of_four, (96, 64))
    assert heights == {".tif": 32, ".npy": 46}
    assert torch.equal(*masks)


@pytest.mark.parametrize("repeats", [1, 128], ids=["few rows", "rows that fill tiles"])
def test_numbers_of_objects_lie_where_the_raster_has_them(repeats):
    place = Place((10.0, 0.0, 0.0, 0.0, -10.0, 0.0), None, ())
    numbers = np.tile([[0, 1, 1, 0, 2], [0, 0, 3, 3, 2]], (repeats, 1))
    file = io.BytesIO()
    raster = LabelRaster(file, place, numbers.shape, SimpleNamespace(objects=[1, 2, 3]))
    raster.write(numbers[:1])
    raster.write(numbers[1:])
    raster.finish()
    file.seek(0)
    written = tifffile.imread(file)
    assert written.dtype == np.uint16
    assert written.tolist() == numbers.tolist()
