"""Predicted areas as polygons: rasterio draws the mask from them again.

Modules: data_utils/image_io/gdal.py, tasks/polygons.py.
"""

import json
import resource
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import rasterio
import torch
from rasterio.features import rasterize
from rasterio.transform import Affine
from support.formats import class_format
from support.launches import predict
from support.rasters import UTM, scene, write_raster

from data_utils.image_io.formats import PageFile
from data_utils.image_io.places import Place
from inference import predictor as predictor_module
from runtime.errors import DataError
from tasks.job import Job
from tasks.polygons import POLYGONS, Areas, save_polygons
from tasks.prediction import PredictedImage, Prediction
from tasks.prediction_format import MaskFormat
from unet import Preprocess, UNet, UNetConfig

IN_PIXELS = Place((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), None, ())
CLASSES = class_format(("a", "b"), (0, 1))
TURNED = Affine.translation(3e5, 4e6) @ Affine.rotation(20) @ Affine.scale(2, -3)
TASKS = {
    "classes": {"class_names": ("background", "field"), "class_values": (0, 7)},
    "regions": {"class_names": ("whole", "core")},
    "overlapping": {"class_names": ("field", "wood/old")},
    "objects": {},
}
SETTINGS = {
    "classes": None,
    "regions": {"name": "regions", "regions": [["whole", [3, 5]], ["core", [5]]]},
    "overlapping": {"name": "overlapping"},
    "objects": {"name": "objects", "classes": ["background", "house"], "smallest": 1},
}


def signed_area(ring):
    ring = np.asarray(ring, float)
    return (ring[:-1, 0] * ring[1:, 1] - ring[1:, 0] * ring[:-1, 1]).sum() / 2


def outlined(folder, mask, place=IN_PIXELS):
    """Number and rings of the areas of a mask."""
    job = Job(source=PageFile("a.tif"), size=mask.shape, root=folder, stem=Path("a"), place=place)
    image = PredictedImage(job, mask.shape, Prediction(mask))
    properties = [{"number": number} for number in range(1, mask.max() + 1)]
    save_polygons(image, ".geojson", [Areas(mask.astype(np.int32), properties)])
    features = json.loads((folder / "a.geojson").read_text())["features"]
    return [(feature["properties"]["number"], feature["geometry"]["coordinates"]) for feature in features]


@pytest.mark.parametrize("degrees", [0, 90, 100, 180, 200, 270])
@pytest.mark.parametrize("height", [3, -3])
def test_outlines_run_counterclockwise_however_the_image_is_turned(tmp_path, height, degrees):
    turned = Affine.translation(9, 8) @ Affine.rotation(degrees) @ Affine.scale(2, height)
    mask = np.ones((5, 5), int)
    mask[2, 2] = 0
    ((_, rings),) = outlined(tmp_path, mask, Place(tuple(turned)[:6], None, ()))
    assert [signed_area(ring) for ring in rings] == pytest.approx([6 * 25, -6])


def test_areas_of_a_task_from_elsewhere_are_those_of_its_classes_but_the_first():
    labels = np.array([[0, 1, 2]], np.uint8)
    (areas,) = MaskFormat(CLASSES.section).areas(Prediction(labels))
    assert areas.numbers.tolist() == labels.tolist()
    assert areas.properties == [{"class": "b"}]


def write_model(folder, task):
    """A model of two bands that has learned nothing."""
    torch.manual_seed(3)
    preprocess = Preprocess(
        mean=(300.0,) * 2, std=(60.0,) * 2, pixel_types=("uint16",), bands=("1", "2"), draft=False, **TASKS[task]
    )
    outputs = 2 + (task == "objects")
    config = UNetConfig(2, outputs, base_channels=4, depth=2, norm="group", preprocess=preprocess, task=SETTINGS[task])
    UNet(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {task: write_model(tmp_path_factory.mktemp(task), task) for task in TASKS}


def write_scene(path, **profile):
    bands, _ = scene(0, size=(70, 90))
    bands[:, :9, :20] = 0
    return write_raster(path, bands, nodata=0, **profile)


def drawn(features, image, value_of):
    """The polygons of GeoJSON on the grid of an image; 0 where there is none."""
    pairs = [(feature["geometry"], value_of(feature["properties"])) for feature in features]
    return rasterize(pairs, image.shape, transform=image.transform, dtype=np.int32)


def label_numbers(properties: dict) -> int:
    """The value of a class, or the number of an object, in its mask."""
    return properties.get("value", properties.get("number"))


OVERLAPPING_MASKS = {
    "field/a.tif": lambda properties: 255 * (properties["class"] == "field"),
    "wood_old/a.tif": lambda properties: 255 * (properties["class"] == "wood/old"),
}
MASKS = {task: {"a.tif": label_numbers} for task in TASKS} | {"overlapping": OVERLAPPING_MASKS}


@pytest.mark.parametrize("task", TASKS)
def test_polygons_give_the_mask_again_in_the_coordinates_of_the_image(models, tmp_path, task):
    """Of a turned scene that is predicted in windows; the background has none."""
    source = write_scene(tmp_path / "in" / "a.tif", transform=TURNED)
    with mock.patch.object(predictor_module, "WINDOW_MEMORY", 1000):
        result = predict(models[task], [source], tmp_path / "out", "--polygons", "--tile-size", "32")
    assert result.returncode == 0, result.stderr
    content = json.loads((tmp_path / "out" / "a.geojson").read_text())
    assert content["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32633"
    assert all(feature["properties"]["class"] != "background" for feature in content["features"])
    for name, value_of in MASKS[task].items():
        with rasterio.open(source) as image, rasterio.open(tmp_path / "out" / name) as file:
            assert file.transform == image.transform
            assert file.crs == image.crs
            assert np.array_equal(file.dataset_mask(), image.dataset_mask())
            assert file.nodata not in ({0, 255} if task == "overlapping" else {0})
            mask = file.read(1).astype(np.int32)
            assert (mask[:9, :20] == file.nodata).all()
            mask[mask == file.nodata] = 0
            of_mask = [feature for feature in content["features"] if value_of(feature["properties"])]
            assert mask.any()
            assert np.array_equal(drawn(of_mask, image, value_of), mask)


def test_classes_without_background_are_all_outlined(tmp_path, models):
    folder = tmp_path / "model"
    write_model(folder, "classes")
    config = json.loads((folder / "config.json").read_text())
    config["preprocess"]["class_names"] = ["water", "field"]
    (folder / "config.json").write_text(json.dumps(config))
    write_scene(tmp_path / "a.tif", crs="EPSG:4326", transform=Affine(1e-4, 0, 15, 0, -1e-4, 45))
    assert predict(folder, [tmp_path / "a.tif"], tmp_path / "out", "--polygons").returncode == 0
    content = json.loads((tmp_path / "out" / "a.geojson").read_text())
    assert "crs" not in content
    assert {f["properties"]["class"] for f in content["features"]} == {"water", "field"}
    with rasterio.open(tmp_path / "out" / "a.tif") as file:
        mask = drawn(content["features"], file, lambda properties: properties["value"] + 1)
        assert np.array_equal(np.where(mask == 0, 255, mask - 1), file.read(1))


def test_a_geopackage_holds_the_polygons_of_the_geojson_and_none_of_an_empty_scene(models, tmp_path):
    """A folder with the GeoPackages of a scene and of an empty one, c, and the GeoJSON of the first."""
    raw = pytest.importorskip("pyogrio.raw")
    source = write_scene(tmp_path / "a.tif")
    (tmp_path / "b").mkdir()
    empty = write_raster(tmp_path / "b" / "c.tif", np.zeros((2, 20, 20), np.uint16), nodata=0)
    assert predict(models["classes"], [source, empty], tmp_path / "out", "--polygons", "gpkg").returncode == 0
    assert predict(models["classes"], [source], tmp_path / "out", "--polygons").returncode == 0
    geopackages = tmp_path / "out"
    meta, _, geometries, columns = raw.read(geopackages / "a.gpkg")
    features = json.loads((geopackages / "a.geojson").read_text())["features"]
    assert meta["crs"] == UTM
    assert meta["fields"].tolist() == ["class", "value"]
    assert columns[1].tolist() == [feature["properties"]["value"] for feature in features]
    assert len(geometries) == len(features) > 1
    drawn = [features[0]["geometry"]["coordinates"]]
    outline = np.frombuffer(geometries[0], "<f8", 2 * len(drawn[0][0]), 13).reshape(-1, 2)
    assert outline.tolist() == drawn[0][0]
    assert len(raw.read(geopackages / "c.gpkg")[2]) == 0


def test_polygons_that_cannot_be_are_a_one_line_error(tmp_path, models, fails_with):
    bands, _ = scene(0)
    plain = write_raster(tmp_path / "plain.tif", bands, crs=None, transform=Affine.identity())
    line = f"--polygons: {plain} has no place in the world; leave it out, or --polygons"
    fails_with(predict(models["classes"], [plain], tmp_path / "out", "--polygons"), line, 1)
    own = write_raster(tmp_path / "own.tif", bands, crs="+proj=laea +lat_0=12 +lon_0=7 +ellps=bessel")
    line = f"--polygons: {own} has a CRS without EPSG number, which GeoJSON cannot name; give --polygons gpkg"
    fails_with(predict(models["classes"], [own], tmp_path / "out", "--polygons"), line, 1)
    for library, found in (("rasterio", [None]), ("pyogrio", ["rasterio", None])):
        with mock.patch("inference.requested_outputs.find_spec", side_effect=found):
            result = predict(models["classes"], [own], tmp_path / "out", "--polygons", "gpkg")
        fails_with(result, f"--polygons: polygons need {library}: pip install {library}", 1)
    result = predict(models["overlapping"], [own], tmp_path / "out" / "a.tif", "--polygons")
    fails_with(result, "--polygons: masks of this kind have no place; leave the flag out", 1)


SMALL = Job(source=PageFile("in/a.tif"), size=(2, 2), root=Path(), stem=Path("a"), place=IN_PIXELS)


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_polygons_that_pyogrio_refuses_are_a_one_line_error(tmp_path, error):
    raw = pytest.importorskip("pyogrio.raw")
    image = PredictedImage(replace(SMALL, root=tmp_path), (2, 2), Prediction(np.zeros((2, 2), np.uint8)))
    line = r"^in/a\.tif: its polygons cannot be written \(no such layer\)$"
    with mock.patch.object(raw, "write", side_effect=error("no such layer")), pytest.raises(DataError, match=line):
        CLASSES.write(image, (".gpkg",))


@pytest.mark.parametrize("extension", POLYGONS)
def test_a_disk_that_is_full_is_an_os_error(tmp_path, extension):
    image = PredictedImage(replace(SMALL, root=tmp_path), (2, 2), Prediction(np.zeros((2, 2), np.uint8)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            CLASSES.write(image, (extension,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
