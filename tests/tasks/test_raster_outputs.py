"""The mask of a TIFF with a place is a TIFF of the same grid, as rasterio reads it.

Modules: tasks/prediction_files.py, data_utils/image_io/places.py.
"""

import io
import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import rasterio
import tifffile
import torch
from PIL import Image
from rasterio.transform import Affine
from support.formats import class_format, object_format, overlap_format
from support.in_process import run_train
from support.inputs import find_jobs
from support.launches import TINY, predict
from support.prediction import write_logits
from support.rasters import NORTH_UP, UTM, scene, write_raster

from data_utils.image_io.formats import PageFile
from data_utils.image_io.places import Place, read_grid
from data_utils.image_io.windowed import WindowedArray
from inference import predictor as predictor_module
from inference.predictor import Predictor
from runtime.errors import ModelError
from tasks import prediction_files
from tasks.classes.loss import Classes
from tasks.drawing import to_rgb
from tasks.job import OVERLAY, Job
from tasks.objects.write import ObjectFormat
from tasks.prediction import PredictedImage, Prediction
from tasks.prediction_files import save_labels, write_geotiff, write_png
from tasks.prediction_format import free_value
from unet import Preprocess, UNet, UNetConfig

NAMES = ("B02", "B03", "B04", "B08", "B11")
PLACE = Place((10.0, 0.0, 0.0, 0.0, -10.0, 0.0), None, ())
TURNED = Affine.translation(3e5, 4e6) @ Affine.rotation(20) @ Affine.scale(2, -3)


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
        bands=("B08", "B04", "B03"),
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


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "in windows"])
def written(tmp_path_factory, model, request):
    """A folder with scenes in in/, one of which is turned, and all that predict.py writes of them in out/."""
    folder = tmp_path_factory.mktemp("written")
    write_scene(folder / "in" / "a.tif")
    write_scene(folder / "in" / "b" / "c.tif", 1, transform=TURNED, crs="EPSG:4326", interleave="band")
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", 1000 if request.param else 2**27):
        flags = ["--probabilities", "--uncertainty", "--tile-size", "32", "--overlay"]
        result = predict(model, [folder / "in"], folder / "out", *flags)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module", params=["a", "b/c"], ids=["north up", "turned"])
def name(request):
    """The name of one of the scenes."""
    return request.param


def test_mask_probabilities_and_uncertainty_of_a_raster_lie_at_its_place_where_there_is_data(written, name, model):
    """What the predictor answers of the scene."""
    prediction = Predictor.from_pretrained(model, tile_size=32)(written / "in" / f"{name}.tif")
    expected = np.where(prediction.mask == 1, 7, 0)
    expected[:6, :20] = 255
    with rasterio.open(written / f"in/{name}.tif") as image, rasterio.open(written / f"out/{name}.tif") as mask:
        assert mask.transform == image.transform
        assert mask.crs == image.crs
        assert mask.nodata == 255
        assert mask.is_tiled
        assert mask.dtypes == ("uint8",)
        assert np.array_equal(mask.read(1), expected)
        assert np.array_equal(mask.dataset_mask(), image.dataset_mask())
    with rasterio.open(written / f"out/{name}.probabilities.tif") as file:
        probabilities = file.read()
        assert np.isnan(file.nodata)
    assert np.isnan(probabilities[:, :6, :20]).all()
    assert np.allclose(probabilities[:, 6:], prediction.probabilities[:, 6:], atol=1e-6)
    entropy = -(prediction.probabilities * np.log(prediction.probabilities)).sum(axis=0) / np.log(2)
    with rasterio.open(written / f"out/{name}.uncertainty.tif") as file:
        assert file.dtypes == ("uint8",)
        assert file.nodata == 255
        levels = file.read(1)
    assert (levels[:6, :20] == 255).all()
    assert np.allclose(levels[6:], np.minimum(255 * entropy, 254)[6:], rtol=0, atol=0.51)


def test_each_page_of_a_tiff_has_its_own_place(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for left in (5.0, 8.0):
            scale = (33550, "d", 3, (1.0, 1.0, 0.0), True)
            corner = (33922, "d", 6, (0.0, 0.0, 0.0, left, 9.0, 0.0), True)
            tiff.write(np.zeros((3, 4), np.uint8), photometric="minisblack", extratags=[scale, corner])
    output_format = class_format(("a", "b"), (0, 1))
    jobs = find_jobs([str(tmp_path / "a.tif")], tmp_path / "out", output_format=output_format)
    assert [job.place.transform[2] for job in jobs] == [5, 8]


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
    write_raster(tmp_path / "truth" / "a.tif", 7 * mask[None, :, :30])  # which ends before the image does
    assert predict(model, [tmp_path / "in"], *flags).returncode == 0
    rest = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert rest["pixel_accuracy"] == pytest.approx((prediction == mask)[:, :30][has_data[:, :30]].mean())


@pytest.fixture
def band_files(tmp_path):
    """A folder with a folder of a scene, which has a file for each band."""
    bands, _ = scene(0)
    for name, plane in zip(NAMES, bands, strict=True):
        write_raster(tmp_path / "several" / "a" / f"T33_{name}.tif", plane[None])
    return tmp_path / "several"


@pytest.mark.parametrize("is_in_folder", [True, False], ids=["a folder of images", "the image"])
def test_bands_that_are_files_of_a_folder_are_one_image(tmp_path, model, band_files, is_in_folder):
    bands, _ = scene(0)
    write_raster(tmp_path / "one" / "a.tif", bands, names=NAMES)
    assert predict(model, [tmp_path / "one"], tmp_path / "of one file").returncode == 0
    assert predict(model, [band_files if is_in_folder else band_files / "a"], tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "a.tif").read_bytes() == (tmp_path / "of one file" / "a.tif").read_bytes()


def test_a_band_that_is_missing_among_the_files_of_a_folder_is_named(tmp_path, model, band_files):
    (band_files / "a" / "T33_B04.tif").unlink()
    result = predict(model, [band_files], tmp_path / "out")
    assert result.returncode == 1
    assert "none called B08" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("channels", "dtype", "most_bytes"), [(1, "uint8", 2**32), (2, ">u2", 0), (3, "float32", 2**32)]
)
def test_geotiff_is_read_by_rasterio(tmp_path, monkeypatch, channels, dtype, most_bytes):
    size = (300, 515)
    rows = (np.random.default_rng(0).random((channels, *size)) * 200).astype(dtype)
    place = read_grid(str(write_raster(tmp_path / "in.tif", np.zeros((1, *size), np.uint8)))).place
    monkeypatch.setattr(prediction_files, "CLASSIC_BYTES", most_bytes)  # beyond which a file is a BigTIFF
    with (tmp_path / "out.tif").open("wb") as file:
        write_geotiff(file, rows, place, 9, has_bands=True)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert np.array_equal(file.read(), rows)
        assert file.transform == NORTH_UP
        assert file.crs.to_string() == UTM
        assert file.nodata == 9


@pytest.mark.parametrize(
    ("values", "interpretations", "nodata"),
    [((0, 300), ["gray"], 255), (((0, 0, 0), (9, 200, 7)), ["red", "green", "blue"], 0)],
    ids=["numbers", "colors"],
)
def test_a_mask_raster_is_grey_or_colored_as_its_values(tmp_path, values, interpretations, nodata):
    bands, _ = scene(0, size=(20, 30))
    place = read_grid(str(write_raster(tmp_path / "in.tif", bands))).place
    job = Job(source=PageFile(tmp_path / "in.tif"), size=(20, 30), root=tmp_path, stem=Path("out"), place=place)
    output_format = class_format(("a", "b"), values)
    rows = np.random.default_rng(0).integers(0, 2, (20, 30), np.uint8)
    missing = np.arange(30)[None] < np.arange(20)[:, None]
    output_format.write(PredictedImage(job, (20, 30), Prediction(rows), missing=missing), (".png",))
    with rasterio.open(tmp_path / "out.tif") as file:
        assert [kind.name for kind in file.colorinterp] == interpretations
        expected = np.array(values)[rows]
        expected[missing] = nodata
        assert np.array_equal(np.moveaxis(file.read(), 0, 2).squeeze(), expected)
        assert file.nodata == nodata


def test_a_picture_without_place_has_its_prediction_where_it_holds_no_data(tmp_path):
    missing = np.random.default_rng(0).random((9, 6)) < 0.5
    logits = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))
    output_format = class_format(("a", "b"), (0, 1))
    job = Job(source=PageFile(tmp_path / "a.tif"), size=(9, 6), root=tmp_path / "out", stem=Path("a"))
    write_logits(output_format, Classes(("a", "b")), job, logits, (".png", ".npy"), missing=missing)
    assert np.array_equal(np.asarray(Image.open(job.file(".png"))), logits.argmax(0))
    np.testing.assert_allclose(np.load(job.file(".npy")), logits.softmax(0), rtol=1e-6)


def test_masks_of_all_values_of_8_bits_have_16_where_there_is_no_data(tmp_path):
    job = Job(source=PageFile(tmp_path / "a.tif"), size=(1, 256), root=tmp_path, stem=Path("out"), place=PLACE)
    labels = np.arange(256, dtype=np.uint8)[None]
    nodata = free_value(range(256))
    image = PredictedImage(job, labels.shape, Prediction(labels), missing=labels == 9)
    save_labels(image, tmp_path / "out.tif", labels, np.asarray, nodata)
    written = tifffile.imread(tmp_path / "out.tif")
    assert written.dtype == np.uint16
    assert written[0].tolist() == [*range(9), 65_535, *range(10, 256)]


def test_the_only_mask_may_be_a_tiff_or_a_picture(tmp_path, model):
    image, _ = write_scene(tmp_path / "a.tif")
    assert predict(model, [image], tmp_path / "mask.tif").returncode == 0
    assert predict(model, [image], tmp_path / "mask.png").returncode == 0
    with rasterio.open(tmp_path / "mask.tif") as file:
        mask = file.read(1)
    picture = np.array(Image.open(tmp_path / "mask.png"))
    assert mask.shape == picture.shape
    assert np.array_equal(mask[6:], picture[6:])


def test_the_only_mask_is_no_tiff_where_its_image_has_no_place(tmp_path, model):
    bands, _ = scene(0)
    plain = write_raster(tmp_path / "plain.tif", bands, crs=None, transform=Affine.identity(), names=NAMES)
    result = predict(model, [plain], tmp_path / "other.tif")
    assert result.returncode == 1
    assert "plain.tif is a .png file; give one, or a folder" in result.stderr


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


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """a.tif, a JPEG inside a TIFF as aerial photographs come, and b.tif, which has a palette."""
    folder = tmp_path_factory.mktemp("photographs")
    bands = np.kron(np.random.default_rng(0).integers(0, 256, (3, 6, 8)), np.ones((1, 8, 8))).astype(np.uint8)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_raster(folder / "a.tif", bands, compress="jpeg", photometric="ycbcr")
        with rasterio.open(path, "r+") as file:
            has_data = np.full(file.shape, 255, np.uint8)
            has_data[:9, :11] = 0
            file.write_mask(has_data)
    palette = write_raster(folder / "b.tif", bands[:1] % 4)
    with rasterio.open(palette, "r+") as file:
        file.write_colormap(1, {number: (60 * number, 0, 0, 255) for number in range(4)})
    return folder


@pytest.mark.parametrize("name", ["a.tif", "b.tif"], ids=["colors of video", "palette"])
def test_the_mask_of_a_photograph_has_its_place(photographs, name, photo_model, tmp_path):
    assert predict(photo_model, [photographs], tmp_path).returncode == 0
    with rasterio.open(tmp_path / name) as mask, rasterio.open(photographs / name) as image:
        assert mask.transform == image.transform
        assert mask.crs == image.crs
        assert mask.shape == image.shape
        assert np.array_equal(mask.dataset_mask(), image.dataset_mask())


@pytest.fixture(scope="module")
def picture_model(tmp_path_factory):
    """A model of before: there is no "place" in its config.json, so it reads pictures."""
    return untrained(tmp_path_factory.mktemp("picture_model"))


@pytest.fixture
def four_channels(tmp_path):
    """An image of four channels, its pixels, and its true mask, which lies in truth/ and has another place."""
    rng = np.random.default_rng(0)
    bands = rng.integers(0, 256, (4, 48, 64), np.uint8)
    path = write_raster(tmp_path / "in" / "a.tif", bands, photometric="RGB", ALPHA="NO", nodata=7)
    truth = rng.integers(0, 2, (1, 48, 64), np.uint8)
    write_raster(tmp_path / "truth" / "a.tif", truth, transform=NORTH_UP @ Affine.translation(9, 9))
    return path, bands, truth[0]


@pytest.mark.parametrize("window_memory", [2**27, 1000], ids=["whole", "in windows"])
def test_a_model_of_before_reads_pictures(tmp_path, picture_model, four_channels, window_memory):
    """Of four channels it takes three; no pixel is without data, and true masks are compared pixel by pixel."""
    path, bands, truth = four_channels
    flags = ["--truth", tmp_path / "truth", "--tile-size", "32", "--overlay"]
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", window_memory):
        result = predict(picture_model, [path], tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    expected = Predictor.from_pretrained(picture_model, tile_size=32)(np.moveaxis(bands[:3], 0, 2)).mask
    with rasterio.open(tmp_path / "out" / "a.tif") as mask, rasterio.open(path) as image:
        assert mask.transform == image.transform
        assert mask.crs == image.crs
        assert np.array_equal(mask.read(1), expected)
    scores = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert scores["pixel_accuracy"] == pytest.approx((expected == truth).mean())


@pytest.mark.parametrize("window_memory", [2**27, 1000], ids=["whole", "in windows"])
def test_a_model_of_places_refuses_a_channel_too_many(tmp_path, photo_model, four_channels, window_memory):
    path, _, _ = four_channels
    flags = ["--truth", tmp_path / "truth", "--tile-size", "32", "--overlay"]
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", window_memory):
        result = predict(photo_model, [path], tmp_path / "out", *flags)
    assert result.returncode == 1
    assert "has 4 channels, the model takes 3" in result.stderr


@pytest.mark.parametrize("bands", [("4", "2", "3"), ("3", "2", "1")], ids=["another band", "another order"])
def test_an_ensemble_needs_models_of_the_same_bands(tmp_path, bands):
    first = untrained(tmp_path / "first", bands=("1", "2", "3"))
    second = untrained(tmp_path / "second", bands=bands)
    with pytest.raises(ModelError, match=re.escape(f"of the same bands: ('1', '2', '3'), {bands}") + "$"):
        Predictor.from_pretrained(first, ensemble=[second])


def test_bands_in_a_folder_are_found_beside_pictures_or_plain_images(tmp_path):
    pixels = scene(0, channels=2)[0]
    for name in ("B08", "B04"):
        write_raster(tmp_path / "all" / "x" / "c" / f"{name}.tif", pixels[:1])
    Image.fromarray(pixels[0].astype(np.uint8)).save(tmp_path / "all" / "x" / "c" / "B08.png")
    write_raster(tmp_path / "all" / "a" / "plain.tif", pixels[:1])  # has none of the bands in its name
    jobs = find_jobs([str(tmp_path / "all")], tmp_path / "out", channels=2, bands=("B08", "B04"))
    assert [job.output.relative_to(tmp_path / "out").as_posix() for job in jobs] == ["a/plain", "x/c"]
    assert [len(job.files) for job in jobs] == [1, 2]


@pytest.mark.parametrize(("shape", "dtype"), [((4, 3), np.uint8), ((4, 5), np.uint16), ((4, 5, 3), np.uint8)])
def test_a_picture_is_written_some_rows_at_a_time(shape, dtype):
    pixels = (np.arange(np.prod(shape)) * 37 + 250).reshape(shape).astype(dtype)
    file = io.BytesIO()
    write_png(file, shape[:2], (pixels[:1], pixels[1:]), 6)
    assert np.asarray(Image.open(file)).tolist() == pixels.tolist()


@pytest.mark.parametrize("width", [40, 1700], ids=["outlines of 1 pixel", "outlines of 3 pixels"])
@pytest.mark.parametrize(
    "output_format",
    [class_format(("a", "b"), (0, 1)), overlap_format("a", "b"), object_format("cell")],
    ids=["classes", "overlapping", "objects"],
)
def test_outlines_do_not_stop_at_the_rows_that_are_written_together(tmp_path, output_format, width):
    labels = np.zeros((140, width), np.int32)
    for number, top in enumerate((5, 64, 127), 1):
        labels[top : top + 10, 10:30] = number << 8 | 1 if isinstance(output_format, ObjectFormat) else 1
    labels[32:64, 10:30] = labels[5, 10]  # it ends with the first rows
    image = np.random.default_rng(0).integers(0, 255, (140, width, 3), dtype=np.uint8)
    job = Job(source=PageFile(tmp_path / "a.png"), size=labels.shape, root=tmp_path, stem=Path("out"))
    picture = WindowedArray(image)
    output_format.write(PredictedImage(job, labels.shape, Prediction(labels), picture), (OVERLAY,))
    expected = output_format.section.draw(image, labels)
    np.testing.assert_array_equal(np.asarray(Image.open(job.file(OVERLAY))), expected)


def test_an_overlay_is_stretched_over_the_values_of_pixels_that_hold_data(tmp_path):
    pixels = np.random.default_rng(0).integers(1000, 2000, (40, 30, 3), dtype=np.uint16)
    pixels[:10] = 0
    image = np.ma.masked_equal(pixels, 0)
    job = Job(source=PageFile(tmp_path / "a.tif"), size=(40, 30), root=tmp_path, stem=Path("out"))
    prediction = Prediction(np.zeros((40, 30), np.uint8))
    output_format = class_format(("a", "b"), (0, 1))
    output_format.write(PredictedImage(job, (40, 30), prediction, WindowedArray(image)), (OVERLAY,))
    np.testing.assert_array_equal(np.asarray(Image.open(job.file(OVERLAY))), to_rgb(image))


@pytest.mark.parametrize("window_memory", [2**27, 100], ids=["whole", "in windows"])
def test_no_object_lies_where_a_raster_holds_no_data(tmp_path, window_memory):
    task = {"name": "objects", "classes": ["background", "field"], "smallest": 1, "fills_holes": True}
    network = UNet(UNetConfig(1, 3, base_channels=1, depth=1, task=task, preprocess=Preprocess(place=True)))
    with torch.no_grad():
        network.head.conv.weight.zero_()
        network.head.conv.bias[:] = torch.tensor([0.0, 5.0, 5.0])  # all pixels are in the middle of a field
    network.save_pretrained(tmp_path / "model")
    bands = np.ones((1, 20, 30), np.uint8)
    bands[:, :, 10:13] = 0
    bands[:, 5:9, 20:22] = 0  # a hole
    write_raster(tmp_path / "in" / "a.tif", bands, nodata=0)
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", window_memory):
        result = predict(tmp_path / "model", [tmp_path / "in"], tmp_path / "out", "--coco")
    assert result.returncode == 0, result.stderr
    with rasterio.open(tmp_path / "out" / "a.tif") as file:
        numbers = file.read(1, masked=True)
    assert numbers.mask[:, 10:13].all()
    expected = np.array([[1] * 10 + [None] * 3 + [2] * 17] * 20)
    expected[5:9, 20:22] = None
    assert numbers.tolist() == expected.tolist()
    annotations = json.loads((tmp_path / "out" / "objects.json").read_text())["annotations"]
    assert [found["area"] for found in annotations] == [200, 332]


def test_true_masks_of_classes_that_overlap_are_placed_each_by_its_own_file(tmp_path):
    preprocess = Preprocess(place=True, class_names=("car", "wheel"))
    task = {"name": "overlapping"}
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1, task=task, preprocess=preprocess))
    with torch.no_grad():
        network.head.conv.weight.zero_()
        network.head.conv.bias[:] = 5.0  # all pixels are of both classes
    network.save_pretrained(tmp_path / "model")
    write_raster(tmp_path / "in" / "a.tif", np.ones((1, 20, 30), np.uint8))
    write_raster(tmp_path / "truth" / "car" / "a.tif", np.ones((1, 20, 30), np.uint8))
    coarse = np.ones((1, 10, 15), np.uint8)
    coarse[:, :5] = 0
    write_raster(tmp_path / "truth" / "wheel" / "a.tif", coarse, transform=NORTH_UP @ Affine.scale(2))
    result = predict(tmp_path / "model", [tmp_path / "in"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["mean_iou"] == pytest.approx(0.75)
