"""predict.py, launched as a user would, and the Predictor behind it.

Modules: inference/predict_settings.py, inference/predictor.py, inference/models.py, inference/views.py.
"""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tifffile
import torch
from accelerate.utils import DynamoBackend
from PIL import Image
from support.data_sets import load_info
from support.launches import PROGRAMS, launch, predict
from support.prediction import settings_of, touch

from inference import Predictor
from inference.requested_outputs import request_outputs
from runtime.errors import SettingsError
from runtime.launch import compile_networks
from tasks.objects.loss import Objects
from unet import Preprocess, UNet, UNetConfig

SIZES = {"a": (20, 30), "b": (33, 17), "sub/a": (1, 1), "sub/c": (64, 9), "sub/d": (12, 14)}  # of `photos`


@pytest.fixture(scope="module")
def written(model, photos, tmp_path_factory) -> Path:
    """Masks, overlays and probabilities of `photos`."""
    output = tmp_path_factory.mktemp("written")
    result = predict(model, [photos], output, "--overlay", "--probabilities")
    assert result.returncode == 0, result.stderr
    assert "5 of 5 masks" in result.stdout
    return output


@pytest.mark.parametrize("stem", SIZES)
def test_a_mask_has_the_size_of_its_image_and_is_that_of_its_probabilities(written, stem):
    mask = np.asarray(Image.open(written / f"{stem}.png"))
    probabilities = np.load(written / f"{stem}.npy")
    assert mask.shape == SIZES[stem]
    assert probabilities.shape == (3, *SIZES[stem])
    # float32: measured 1.2e-7, one unit in the last place
    np.testing.assert_allclose(probabilities.sum(axis=0), 1, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.array([10, 200, 255])[probabilities.argmax(axis=0)], mask)


def test_the_masks_of_a_scored_prediction_are_true_masks(model, photos, tmp_path):
    truth: list = []
    for output in ("first", "second", "third"):
        result = predict(model, [photos], tmp_path / output, *truth)
        assert result.returncode == 0, result.stderr
        truth = ["--truth", tmp_path / output]
    assert json.loads((tmp_path / "third" / "metrics.json").read_text())["mean_iou"] == 1


def test_two_processes_write_what_one_writes(model, photos, tmp_path):
    one = predict(model, [photos], tmp_path / "one", "--tile-size", "12")
    two = predict(model, [photos], tmp_path / "two", "--tile-size", "12", profile="multi_cpu")
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.png"))
    assert len(files) == 5
    assert files == sorted(path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*.png"))
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.fixture(scope="module")
def broken(photos, tmp_path_factory) -> Path:
    """A folder of one good file and six bad ones."""
    bad = tmp_path_factory.mktemp("broken")
    (bad / "empty.png").write_bytes(b"")
    (bad / "text.jpg").write_text("no picture")
    (bad / "header.tif").write_bytes(b"II*\0\0\0\0\0")
    np.save(bad / "zero.npy", np.zeros((0, 5, 3), np.uint8))
    (bad / "cut.png").write_bytes((photos / "a.png").read_bytes()[:500])
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(bad / "fine.png")
    np.save(bad / "five.npy", np.ones((6, 6, 5), np.uint8))
    return bad


BROKEN = ("empty.png", "text.jpg", "header.tif", "zero.npy", "cut.png", "five.npy: has 5 channels, the model takes 3")


def test_broken_files_are_named_at_the_end_and_the_masks_beside_them_are_written(model, photos, broken, tmp_path):
    result = predict(model, [broken, photos / "a.png"], tmp_path)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    failed = [line for line in result.stderr.splitlines() if "failed" in line]
    assert len(failed) == len(BROKEN)
    for text in BROKEN:
        assert len([line for line in failed if text in line]) == 1
    assert "2 of 8 masks" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "fine.png", "predict.json"]


def test_files_that_fail_on_another_process_are_named_and_counted(model, photos, broken, tmp_path):
    result = predict(model, [broken, photos / "a.png"], tmp_path, profile="multi_cpu")
    assert result.returncode == 1
    assert len([line for line in result.stderr.splitlines() if "predict.py: failed: " in line]) == 6
    assert "2 of 8 masks" in result.stdout


@pytest.mark.parametrize(
    ("inputs", "flags", "line", "code"),
    [
        (["nowhere/*.png"], [], "--input nowhere/*.png: no image or volume found", 1),
        ([""], [], "argument --input: '' is not a value", 2),
        (["PHOTOS"], ["--output", ""], "argument --output: '' is not a value", 2),
        (["PHOTOS/a.png", "PHOTOS/sub/a.png"], [], "would both write", 1),
        (["PHOTOS"], ["--truth", "nowhere"], "--truth nowhere: is not a folder", 1),
        (["PHOTOS"], ["--truth", "PHOTOS/sub"], "has no mask for 1 input, the first is b", 1),
        (["PHOTOS"], ["--model", "PHOTOS"], "has no config.json", 1),
        (["PHOTOS"], ["--tile-size", "8", "--overlap", "8"], "--overlap 8 must be less than --tile-size 8", 1),
        (["PHOTOS"], ["--ensemble", "PHOTOS"], "has no config.json", 1),
        (["PHOTOS"], ["--output", "PHOTOS/a.png/out"], "a.png/out: cannot be written (Not a directory)", 1),
        (["PHOTOS"], ["--tile-size", "some"], "argument --tile-size", 2),
        (["PHOTOS"], ["--overlais"], "did you mean --overlay?", 2),
    ],
)
def test_mistakes_end_in_a_one_line_error(model, photos, tmp_path, fails_with, inputs, flags, line, code):
    inputs, flags = ([text.replace("PHOTOS", str(photos)) for text in texts] for texts in (inputs, flags))
    fails_with(predict(model, inputs, tmp_path / "out", *flags), line, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("open_source", [Path, Image.open, lambda file: np.asarray(Image.open(file))])
def test_predictor_gives_python_users_what_the_script_writes(model, photos, written, open_source):
    mask, probabilities = Predictor.from_pretrained(model)(open_source(photos / "b.jpg"))
    np.testing.assert_array_equal(np.array([10, 200, 255])[mask], np.asarray(Image.open(written / "b.png")))
    assert probabilities.shape == (3, 33, 17)


TILES = {
    "whole": [],
    "tiles": ["--tile-size", "96"],
    "blended": ["--tile-size", "96", "--overlap", "16"],  # with a third of the overlap that exact tiles have
}


@pytest.fixture(scope="module")
def tiled(model, tmp_path_factory) -> tuple[dict[str, str], Path]:
    """What is printed of an image that is predicted whole, in tiles and in blended tiles, and its outputs."""
    folder = tmp_path_factory.mktemp("tiled")
    pixels = np.random.default_rng(0).integers(0, 256, (1101, 333, 3), dtype=np.uint8)
    tifffile.imwrite(folder / "tall.tif", pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    printed = {}
    with mock.patch("inference.predictor.WINDOW_MEMORY", 2**24):  # in tiles it is read and written in windows
        assert Predictor.from_pretrained(model, tile_size=96).needs_windows(pixels.shape[:2])
        for name, flags in TILES.items():
            result = predict(model, [folder / "tall.tif"], folder / name, "--overlay", "--probabilities", *flags)
            assert result.returncode == 0, result.stderr
            printed[name] = result.stdout
    return printed, folder


def test_tiles_say_whether_they_are_exact_and_write_the_probabilities_of_the_whole_image(tiled):
    printed, _ = tiled
    assert "tiles of" not in printed["whole"]
    assert "tiles of 96 x 96 overlapping by 48 (equal to the whole image's result)" in printed["tiles"]
    assert "tiles of 96 x 96 overlapping by 16 (blended, not exactly" in printed["blended"]
    _, folder = tiled
    whole, tiles, blended = (np.load(folder / name / "tall.npy") for name in TILES)
    np.testing.assert_allclose(tiles, whole, atol=1e-6)
    assert 1e-6 < np.abs(blended - whole).max() < 0.1


@pytest.mark.parametrize("name", ["tall.png", "tall.overlay.png"])
def test_tiles_write_the_pictures_of_the_whole_image(tiled, name):
    _, folder = tiled
    one, other = (np.asarray(Image.open(folder / output / name)) for output in ("whole", "tiles"))
    assert (one != other).mean() < 1e-4  # a tie may be rounded either way


def test_tta_is_the_mean_over_the_eight_flips_and_turns():
    torch.manual_seed(0)
    network = UNet(UNetConfig(3, 3, base_channels=4, depth=2, norm="group", preprocess=Preprocess(std=(50.0,) * 3)))
    image = np.random.default_rng(0).integers(0, 256, (48, 65, 3), dtype=np.uint8)
    plain = Predictor(network)
    views = []
    for turns in range(4):
        turned = np.rot90(image, turns)
        views.append(np.rot90(plain(turned).probabilities, -turns, (1, 2)))
        flipped = plain(turned[:, ::-1]).probabilities[:, :, ::-1]
        views.append(np.rot90(flipped, -turns, (1, 2)))
    got = Predictor(network, tta=True)(image)
    np.testing.assert_allclose(got.probabilities, np.mean(views, axis=0), rtol=0, atol=1e-6)  # float32
    np.testing.assert_array_equal(got.mask, got.probabilities.argmax(axis=0))
    assert all(np.abs(view - got.probabilities).max() > 1e-3 for view in views)
    assert not Predictor(network, tta=True, tile_size=48).tilings((300, 300))[0].exact


def test_tta_of_a_model_that_saw_no_turns_mirrors_images_alone(tiny_folder):
    torch.manual_seed(0)
    seen = dataclasses.replace(load_info(tiny_folder).preprocess(), mean=(0.0,) * 3, std=(50.0,) * 3)
    network = UNet(UNetConfig(3, 2, base_channels=4, depth=2, norm="group", preprocess=seen))
    image = np.random.default_rng(0).integers(0, 256, (48, 65, 3), dtype=np.uint8)
    views = [Predictor(network)(image).probabilities, Predictor(network)(image[:, ::-1]).probabilities[:, :, ::-1]]
    found = Predictor(network, tta=True)(image).probabilities
    np.testing.assert_allclose(found, np.mean(views, axis=0), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def networks(model, tmp_path_factory) -> tuple[list[UNet], list[Path]]:
    """Three networks of the same classes that see images at other scales, and the folders of the last two."""
    first = UNet.from_pretrained(model)
    networks, folders = [first], []
    for seed, scale in ((1, 1.0), (2, 0.3)):
        torch.manual_seed(seed)
        preprocess = dataclasses.replace(first.config.preprocess, scale=scale)
        networks.append(UNet(UNetConfig(3, 3, base_channels=8, depth=3, norm="group", preprocess=preprocess)))
        folders.append(tmp_path_factory.mktemp("network"))
        networks[-1].save_pretrained(folders[-1])
    return networks, folders


@pytest.mark.parametrize(
    ("flags", "tiles"),
    [([], {}), (["--tile-size", "16", "--overlap", "0"], {"tile_size": 16, "overlap": 0})],
    ids=["whole", "tiles"],
)
def test_an_ensemble_is_the_mean_of_its_models(model, networks, photos, tmp_path, flags, tiles):
    members, folders = networks
    result = predict(model, [photos / "b.jpg"], tmp_path, "--ensemble", *folders, "--probabilities", *flags)
    assert result.returncode == 0, result.stderr
    expected = np.mean([Predictor(member, **tiles)(photos / "b.jpg").probabilities for member in members], axis=0)
    np.testing.assert_allclose(np.load(tmp_path / "b.npy"), expected, rtol=0, atol=1e-6)  # float32


@pytest.mark.parametrize(
    ("asked", "is_compiled"), [(DynamoBackend.NO, False), (DynamoBackend.INDUCTOR, True)], ids=["no", "inductor"]
)
def test_a_profile_that_asks_for_it_has_the_networks_compiled(model, tiny_folder, asked, is_compiled):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    image = next((tiny_folder / "val" / "images").iterdir())
    expected = Predictor.from_pretrained(model)(image).probabilities
    plugin = SimpleNamespace(backend=asked, to_kwargs=lambda: {"backend": backend})
    predictor = Predictor.from_pretrained(model)
    compile_networks(SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin)), predictor.networks)
    assert np.array_equal(predictor(image).probabilities, expected)
    assert bool(compiled) == is_compiled


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux tells it")
def test_memory_does_not_grow_with_the_height_of_an_image(model, tmp_path):
    """Peak memory on 2,000 and on 8,000 rows of 2,000 pixels: 36 MB more of pixels, 144 MB of probabilities.

    GDAL's cache takes up to 64 MB, which the smaller image does not fill; a mask takes 12 MB more. On a busy machine
    the peaks of one command differ by up to 40 MB.
    """
    (tmp_path / "truth").mkdir()

    def peak(height: int) -> int:
        path = tmp_path / f"{height}.tif"
        blocks = (np.full((256, 256, 3), index % 251, np.uint8) for index in range(-(-height // 256) * 8))
        tifffile.imwrite(path, blocks, shape=(height, 2000, 3), dtype=np.uint8, tile=(256, 256), photometric="rgb")
        Image.new("L", (2000, height), 200).save(tmp_path / "truth" / f"{height}.png")
        flags = ["--input", path, "--output", tmp_path / "out", "--probabilities", "--tile-size", "512"]
        flags += ["--overlay", "--truth", tmp_path / "truth"]
        result = launch(PROGRAMS / "print_peak_memory.py", "predict.py", "--model", model, *flags)
        assert result.returncode == 0, result.stderr
        assert Image.open(tmp_path / "out" / f"{height}.png").size == (2000, height)
        return int(result.stdout.partition("VmHWM:")[2].split()[0]) * 1024

    assert peak(8000) - peak(2000) < 130e6


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_an_image_that_does_not_fit_into_memory_is_named_with_a_tile_size_that_fits(model, tmp_path, kind):
    """Of an image of 40 pixels, and one of 100, which has no room in memory."""
    images = tmp_path / "images"
    images.mkdir()
    for side in (40, 100):
        Image.new("RGB", (side, side)).save(images / f"{side}.png")
    command = [PROGRAMS / "out_of_memory_if_wide.py", kind, "predict.py", "--model", model, "--input", images]
    command += ["--output", tmp_path / "out"]
    result = launch(*command)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.count(f"{images / '100.png'}: does not fit into memory; give --tile-size 512") == 1
    assert "1 of 2 masks" in result.stdout
    result = launch(*command, "--tile-size", "32", "--overwrite")
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_an_output_that_is_there_is_a_file_or_folder_as_it_is(tmp_path):
    touch(tmp_path, "old.png")
    (tmp_path / "folder.png").mkdir()
    assert settings_of("--output", str(tmp_path / "old.png")).file == tmp_path / "old.png"
    assert settings_of("--output", str(tmp_path / "folder.png")).file is None


@pytest.mark.parametrize(
    "flags",
    [
        "--scale 0",
        "--overlap -1",
        "--tile-size 0",
        "--min-size 0",
        "--polygons shp",
        "--polygons --output mask.png",
        "--boundary",
    ],
)
def test_flags_that_cannot_be_are_refused(flags):
    with pytest.raises(SystemExit):
        settings_of("--output", "out", *flags.split())


OBJECTS = Objects().to_config()
NO_COCO = "--coco: is for models of objects in images, which this is not"


@pytest.mark.parametrize(
    ("options", "flags", "line"),
    [
        ({}, "--coco", NO_COCO),
        ({"task": OBJECTS, "dims": 3}, "--coco", NO_COCO),
        ({"task": OBJECTS}, "--boundary --truth t", "--boundary: boundaries are not scored for objects"),
        (
            {"task": {"name": "landmarks", "names": ["a", "b", "c"], "partners": [0, 1, 2]}},
            "--uncertainty",
            "--uncertainty: points have a confidence in their table",
        ),
    ],
)
def test_a_flag_of_what_a_model_has_not_is_refused(options, flags, line):
    predictor = Predictor(UNet(UNetConfig(1, 3, base_channels=1, depth=1, **options)))
    with pytest.raises(SettingsError, match=f"^{line}"):
        request_outputs(settings_of(*flags.split()), predictor)


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--images", "did you mean --input FILES?"),
        ("--weights", "did you mean --model MODEL?"),
        ("--labels", "did you mean --truth DIR?"),
        ("--visualize", "did you mean --overlay?"),
        ("--threshold", "each pixel gets its most probable class; --probabilities writes how probable each one is"),
        ("--batch-size", "it is chosen here; leave it out"),
        ("--rank", "a random order of the images to annotate is as good"),
        ("--processes-per-volume", "it is gone from prediction: leave it out"),
    ],
)
def test_flags_of_other_programs_are_answered_with_what_to_type(capsys, flag, hint):
    with pytest.raises(SystemExit):
        settings_of(flag, "x")
    assert hint in " ".join(capsys.readouterr().err.split())
