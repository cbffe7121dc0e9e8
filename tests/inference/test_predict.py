"""predict.py, launched as a user would, and the Predictor behind it.

Modules: inference/args.py, inference/predictor.py, inference/models.py, inference/decoding/views.py.
"""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from accelerate.utils import DynamoBackend
from conftest import PROGRAMS, launch, load_info, predict
from PIL import Image
from prediction import network_of, settings_of, touch

from inference import Predictor
from inference.args import parse_args
from inference.outputs import new_format
from predict import Failure, check_outputs, output_extensions
from runtime.errors import ModelError, SettingsError
from runtime.launch import compile_networks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from unet import Preprocess, UNet, UNetConfig


def test_a_launch_is_checked_before_a_model_is_opened_and_images_may_have_any_size(monkeypatch, tmp_path, fails_with):
    calls = []

    def refuse() -> None:
        raise SettingsError("no such device")

    def open_model(*arguments: object, **options: object) -> None:
        calls.append(Image.MAX_IMAGE_PIXELS)
        raise ModelError("no such model")

    monkeypatch.setattr("predict.set_launch_environment", lambda: calls.append("environment"))
    monkeypatch.setattr("predict.exit_on_sigterm", lambda: calls.append("ends on SIGTERM"))
    monkeypatch.setattr("predict.Predictor.from_pretrained", open_model)
    fails_with(predict("m", ["i"], tmp_path), "no such model", 1)
    assert calls == ["environment", "ends on SIGTERM", None]
    monkeypatch.setattr("predict.check_launch", refuse)
    fails_with(predict("m", ["i"], tmp_path), "no such device", 1)
    assert calls == ["environment", "ends on SIGTERM", None, "environment"]


def test_a_model_is_opened_with_the_flags_that_say_how_it_predicts(monkeypatch, tmp_path, fails_with):
    opened, chosen = [], []

    def open_model(model: str, device: torch.device, **options: object) -> SimpleNamespace:
        opened.append((model, device.type, options))
        return SimpleNamespace(task="task")

    def choose_objects(*arguments: object, **options: object) -> None:
        chosen.append((arguments, options))
        raise ModelError("no such task")

    monkeypatch.setattr("predict.Predictor.from_pretrained", open_model)
    monkeypatch.setattr("predict.choose_objects", choose_objects)
    flags = ["--ensemble", "n", "o", "--scale", "0.5", "--tile-size", "64", "--overlap", "8", "--tta"]
    fails_with(predict("m", ["i"], tmp_path, *flags, "--min-size", "7", "--drop-border"), "no such task", 1)
    fails_with(predict("m", ["i"], tmp_path), "no such task", 1)
    options = {"ensemble": ["n", "o"], "scale": 0.5, "tile_size": 64, "overlap": 8, "tta": True}
    plain = {"ensemble": [], "scale": None, "tile_size": None, "overlap": None, "tta": None}
    assert opened == [("m", "cpu", options), ("m", "cpu", plain)]
    assert chosen == [(("task", 7), {"drops_border": True}), (("task", None), {"drops_border": False})]


def test_masks_have_original_values_and_sizes_and_folders_keep_their_structure(model, photos, tmp_path):
    result = predict(model, [photos], tmp_path / "out", "--overlay", "--probabilities")
    assert result.returncode == 0, result.stderr
    assert "5 of 5 masks" in result.stdout
    sizes = {"a": (20, 30), "b": (33, 17), "sub/a": (1, 1), "sub/c": (64, 9), "sub/d": (12, 14)}
    for stem, size in sizes.items():
        mask = np.asarray(Image.open(tmp_path / "out" / f"{stem}.png"))
        assert mask.shape == size
        assert set(np.unique(mask)) <= {10, 200, 255}
        assert Image.open(tmp_path / "out" / f"{stem}.overlay.png").size == size[::-1]
        probabilities = np.load(tmp_path / "out" / f"{stem}.npy")
        assert probabilities.shape == (3, *size)
        # float32: measured 1.2e-7, one unit in the last place
        np.testing.assert_allclose(probabilities.sum(axis=0), 1, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(np.array([10, 200, 255])[probabilities.argmax(axis=0)], mask)
    assert len(list((tmp_path / "out").rglob("*.*"))) == 17  # predict.json, the legend, and nothing temporary


def test_two_processes_write_what_one_writes(model, photos, tmp_path):
    one = predict(model, [photos], tmp_path / "one", "--tile-size", "12")
    two = predict(model, [photos], tmp_path / "two", "--tile-size", "12", profile="multi_cpu")
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.png"))
    assert len(files) == 5
    assert files == sorted(path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*.png"))
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_broken_files_are_named_at_the_end_and_the_others_written(model, photos, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "empty.png").write_bytes(b"")
    (bad / "text.jpg").write_text("no picture")
    (bad / "header.tif").write_bytes(b"II*\0\0\0\0\0")
    np.save(bad / "zero.npy", np.zeros((0, 5, 3), np.uint8))
    (bad / "cut.png").write_bytes((photos / "a.png").read_bytes()[:500])
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(bad / "fine.png")
    np.save(bad / "five.npy", np.ones((6, 6, 5), np.uint8))
    result = predict(model, [bad, photos / "a.png"], tmp_path / "out")
    assert result.returncode == 1
    assert "2 of 8 masks" in result.stdout
    failures = [line for line in result.stderr.splitlines() if "failed" in line]
    assert len(failures) == 6
    for name in (
        "empty.png",
        "text.jpg",
        "header.tif",
        "zero.npy",
        "cut.png",
        "five.npy: has 5 channels, the model takes 3",
    ):
        assert any(name in line for line in failures), failures
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "fine.png", "predict.json"]


@pytest.mark.parametrize(
    ("inputs", "flags", "line", "code"),
    [
        (["nowhere/*.png"], [], "--input nowhere/*.png: no image or volume found", 1),
        ([""], [], "--input: is empty", 1),
        (["a" * 300], [], "File name too long", 1),
        (["PHOTOS"], ["--output", ""], "argument --output: it is empty", 2),
        (["PHOTOS/a.png", "PHOTOS/sub/a.png"], [], "would both write", 1),
        (["PHOTOS"], ["--truth", "nowhere"], "--truth nowhere: is not a folder", 1),
        (["PHOTOS"], ["--truth", "PHOTOS/sub"], "has no mask for 4 inputs", 1),
        (["PHOTOS"], ["--model", "PHOTOS"], "has no config.json", 1),
        (["PHOTOS"], ["--tile-size", "8", "--overlap", "8"], "overlap 8 must be less than the tile size 8", 1),
        (["PHOTOS"], ["--ensemble", "PHOTOS"], "has no config.json", 1),
        (["PHOTOS"], ["--output", "PHOTOS/a.png/out"], "a.png is not a folder", 1),
        (["PHOTOS"], ["--tile-size", "some"], "argument --tile-size", 2),
        (["PHOTOS"], ["--overlais"], "did you mean --overlay?", 2),
    ],
)
def test_mistakes_end_in_one_line(model, photos, tmp_path, fails_with, inputs, flags, line, code):
    inputs, flags = ([text.replace("PHOTOS", str(photos)) for text in texts] for texts in (inputs, flags))
    fails_with(predict(model, inputs, tmp_path / "out", *flags), line, code)
    assert not (tmp_path / "out").exists()


def test_predictor_gives_python_users_what_the_script_writes(model, photos, tmp_path):
    predict(model, [photos / "b.jpg"], tmp_path)
    predictor = Predictor.from_pretrained(model)
    written = np.asarray(Image.open(tmp_path / "b.png"))
    image = Image.open(photos / "b.jpg")
    for source in (photos / "b.jpg", image, np.asarray(image)):
        mask, probabilities = predictor(source)
        np.testing.assert_array_equal(np.array([10, 200, 255])[mask], written)
        assert probabilities.shape == (3, 33, 17)


def test_tiles_write_what_the_whole_image_writes_and_say_whether_they_are_exact(model, tmp_path, monkeypatch):
    monkeypatch.setattr("inference.predictor.WINDOW_MEMORY", 2**24)  # in tiles it is read and written in windows
    tall = tmp_path / "tall.tif"
    pixels = np.random.default_rng(0).integers(0, 256, (1101, 333, 3), dtype=np.uint8)
    tifffile.imwrite(tall, pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    assert Predictor.from_pretrained(model, tile_size=96).needs_windows(pixels.shape[:2])
    flags = ["--overlay", "--probabilities"]
    whole = predict(model, [tall], tmp_path / "whole", *flags)
    tiles = predict(model, [tall], tmp_path / "tiles", *flags, "--tile-size", "96")
    blended = predict(model, [tall], tmp_path / "blended", *flags, "--tile-size", "96", "--overlap", "16")
    assert "tiles of" not in whole.stdout
    assert "tiles of 96 x 96 overlapping by 48 (equal to the whole image's result)" in tiles.stdout
    assert "tiles of 96 x 96 overlapping by 16 (blended, not exactly" in blended.stdout
    for name in ("tall.png", "tall.overlay.png"):
        one, other = (np.asarray(Image.open(tmp_path / output / name)) for output in ("whole", "tiles"))
        assert (one != other).mean() < 1e-4  # a tie may be rounded either way
    probabilities = {name: np.load(tmp_path / name / "tall.npy") for name in ("whole", "tiles", "blended")}
    np.testing.assert_allclose(probabilities["tiles"], probabilities["whole"], atol=1e-6)
    # with a third of the overlap that exact tiles have
    assert 1e-6 < np.abs(probabilities["blended"] - probabilities["whole"]).max() < 0.1


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


def test_tta_of_a_model_that_was_trained_without_turns_is_the_mean_of_an_image_and_its_mirroring(tiny_folder):
    assert load_info(tiny_folder, augment="strong").preprocess().turned
    seen = dataclasses.replace(load_info(tiny_folder).preprocess(), mean=(0.0,) * 3, std=(50.0,) * 3)
    assert not seen.turned
    network = UNet(UNetConfig(3, 2, base_channels=4, depth=2, norm="group", preprocess=seen))
    image = np.random.default_rng(0).integers(0, 256, (48, 65, 3), dtype=np.uint8)
    views = [Predictor(network)(image).probabilities, Predictor(network)(image[:, ::-1]).probabilities[:, :, ::-1]]
    found = Predictor(network, tta=True)(image).probabilities
    np.testing.assert_allclose(found, np.mean(views, axis=0), rtol=0, atol=1e-6)


def test_an_ensemble_is_the_mean_of_its_models_whatever_their_preprocessing(model, photos, tmp_path):
    networks = [UNet.from_pretrained(model)]
    for seed, scale in ((1, 1.0), (2, 0.3)):
        torch.manual_seed(seed)
        preprocess = dataclasses.replace(networks[0].config.preprocess, scale=scale)
        networks.append(UNet(UNetConfig(3, 3, base_channels=8, depth=3, norm="group", preprocess=preprocess)))
        networks[-1].save_pretrained(tmp_path / str(seed))
    expected = {
        output: np.mean([Predictor(one, **tiles)(photos / "b.jpg").probabilities for one in networks], axis=0)
        for output, tiles in (("whole", {}), ("tiles", {"tile_size": 16, "overlap": 0}))
    }
    # the third model sees the image in one tile, the others in several
    assert np.abs(expected["tiles"] - expected["whole"]).max() > 1e-3
    flags = ["--ensemble", tmp_path / "1", tmp_path / "2", "--probabilities"]
    for output, more in (("whole", []), ("tiles", ["--tile-size", "16", "--overlap", "0"])):
        result = predict(model, [photos / "b.jpg"], tmp_path / output, *flags, *more)
        assert result.returncode == 0, result.stderr
        np.testing.assert_allclose(np.load(tmp_path / output / "b.npy"), expected[output], rtol=0, atol=1e-6)  # float32


def test_an_ensemble_of_other_classes_is_refused(model, photos, tmp_path, fails_with):
    UNet(UNetConfig(3, 2, base_channels=4, depth=2)).save_pretrained(tmp_path / "two")
    result = predict(model, [photos], tmp_path / "out", "--ensemble", tmp_path / "two")
    fails_with(result, "an ensemble needs models of the same classes", 1)


def test_a_profile_that_asks_for_it_has_the_networks_compiled(model, tiny_folder):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    image = next((tiny_folder / "val" / "images").iterdir())
    expected = Predictor.from_pretrained(model)(image).probabilities
    for asked in (DynamoBackend.NO, DynamoBackend.INDUCTOR):
        plugin = SimpleNamespace(backend=asked, to_kwargs=lambda: {"backend": backend})
        predictor = Predictor.from_pretrained(model)
        compile_networks(SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin)), predictor.networks)
        assert np.array_equal(predictor(image).probabilities, expected)
        assert bool(compiled) == (asked == DynamoBackend.INDUCTOR)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux tells it")
def test_memory_does_not_grow_with_the_height_of_an_image(model, tmp_path):
    """Peak memory on 2,000 and on 8,000 rows of 2,000 pixels: 36 MB more of pixels, 144 MB of probabilities.

    The same command takes up to 16 MB more at one time than at another: a difference below 24 MB need be met once.
    """

    def peak(height: int) -> int:
        path = tmp_path / f"{height}.tif"
        blocks = (np.full((256, 256, 3), index % 251, np.uint8) for index in range(-(-height // 256) * 8))
        tifffile.imwrite(path, blocks, shape=(height, 2000, 3), dtype=np.uint8, tile=(256, 256), photometric="rgb")
        flags = ["--input", path, "--output", tmp_path / "out", "--probabilities", "--tile-size", "512"]
        result = launch(PROGRAMS / "print_peak_memory.py", "predict.py", "--model", model, *flags)
        assert result.returncode == 0, result.stderr
        assert Image.open(tmp_path / "out" / f"{height}.png").size == (2000, height)
        return int(result.stdout.partition("VmHWM:")[2].split()[0]) * 1024

    assert any(peak(8000) - peak(2000) < 24e6 for _ in range(3))


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_what_does_not_fit_into_memory_is_named_with_what_to_do_and_the_others_written(model, tmp_path, kind):
    images = tmp_path / "images"
    images.mkdir()
    for side in (40, 100):
        Image.new("RGB", (side, side)).save(images / f"{side}.png")
    flags = ["--model", model, "--input", images, "--output", tmp_path / "out"]
    command = [PROGRAMS / "out_of_memory_if_wide.py", kind, "predict.py", *flags]
    result = launch(*command)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.count(f"{images / '100.png'}: does not fit into memory; give --tile-size 512") == 1
    assert "1 of 2 masks" in result.stdout
    result = launch(*command, "--tile-size", "32")
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_an_output_that_ends_in_png_is_the_file_of_the_only_mask(monkeypatch, tmp_path):
    args = settings_of("--output", "out/mask.PNG")
    assert (args.file, args.output) == (Path("out/mask.PNG"), Path("out"))
    assert (args.tile_size, args.overlap, args.scale, args.tta, args.ensemble) == (None, None, None, False, [])
    args = settings_of("--output", "out", "--tile-size", "64", "--overlap", "0")
    assert (args.file, args.output, args.tile_size, args.overlap) == (None, Path("out"), 64, 0)
    touch(tmp_path, "old.png")
    assert settings_of("--output", str(tmp_path / "old.png")).file == tmp_path / "old.png"
    (tmp_path / "folder.png").mkdir()
    assert settings_of("--output", str(tmp_path / "folder.png")).file is None
    assert settings_of("--output", "out/mask.tiff").file == Path("out/mask.tiff")
    assert settings_of("--output", "out").uncertainty is False
    assert settings_of("--output", "out", "--rank").uncertainty is True
    assert settings_of("--output", "out", "--polygons").polygons == "geojson"
    scored = settings_of("--output", "out", "--boundary", "--truth", "t")
    assert (scored.boundary, scored.truth) == (True, Path("t"))
    with pytest.raises(SystemExit):
        settings_of("--output", "")
    impossible = ("--scale 0", "--overlap -1", "--tile-size 0", "--processes-per-volume 0", "--min-size 0")
    for flags in (*impossible, "--polygons shp", "--boundary", "--rank --output out/mask.png"):
        with pytest.raises(SystemExit):
            settings_of("--output", "out", *flags.split())
    monkeypatch.setattr("sys.argv", ["predict.py", "--model", "m", "--output", "out"])
    with pytest.raises(SystemExit):
        parse_args("")


@pytest.mark.parametrize(
    ("is_written", "has_mask", "leaves"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_a_mask_of_an_earlier_run_stays_where_none_was_written(is_written, has_mask, leaves):
    assert Failure("line", is_written, has_mask).leaves_old_mask is leaves


OBJECTS = Objects().to_config()
NO_RANK = "--rank: orders images by the classes of their masks, which this model has not; leave it out"
NO_COCO = "--coco: is for models of objects in images, which this is not; leave the flag out"


@pytest.mark.parametrize(
    ("options", "flags", "line"),
    [
        ({}, "--boundary --truth t", None),
        ({}, "--rank --uncertainty", None),
        ({}, "--coco", NO_COCO),
        ({}, "--polygons", None),
        ({"task": OBJECTS}, "--coco --uncertainty", None),
        ({"task": OBJECTS, "dims": 3}, "--coco", NO_COCO),
        ({"task": OBJECTS}, "--rank", NO_RANK),
        (
            {"task": OBJECTS},
            "--boundary --truth t",
            "--boundary: boundaries are not scored for objects; leave the flag out",
        ),
        ({"task": Overlapping(("a", "b", "c")).to_config()}, "--rank", NO_RANK),
        (
            {"task": {"name": "landmarks", "names": ["a", "b", "c"], "partners": [0, 1, 2]}},
            "--uncertainty",
            "--uncertainty: points have a confidence in their table; leave the flag out",
        ),
    ],
)
def test_a_flag_of_what_a_model_has_not_is_refused(options, flags, line):
    predictor = Predictor(UNet(UNetConfig(1, 3, base_channels=1, depth=1, **options)))
    args = (settings_of(*flags.split()), predictor, new_format(predictor.config))
    if line is None:
        check_outputs(*args)
        return
    with pytest.raises(SettingsError) as error:
        check_outputs(*args)
    assert str(error.value) == line


def test_each_flag_of_a_file_has_its_extension():
    output_format = new_format(network_of().config)
    assert output_extensions(settings_of(), output_format) == (".png",)
    for flags, extension in (
        (["--overlay"], ".overlay.png"),
        (["--probabilities"], ".npy"),
        (["--uncertainty"], ".uncertainty.png"),
        (["--polygons", "gpkg"], ".gpkg"),
    ):
        assert output_extensions(settings_of(*flags), output_format) == (".png", extension)


def test_all_files_of_a_format_are_written_for_each_input():
    output_format = SimpleNamespace(mask_extensions=(".png",), extensions=(".csv",))
    assert output_extensions(settings_of("--overlay"), output_format) == (".png", ".csv", ".overlay.png")


def test_the_format_of_polygons_is_checked_by_its_extension(monkeypatch):
    checked = []
    monkeypatch.setattr("predict.check_polygons", lambda extension, output_format: checked.append(extension))
    predictor = SimpleNamespace(task=None)
    check_outputs(settings_of("--polygons", "gpkg"), predictor, SimpleNamespace(kind="mask"))
    assert checked == [".gpkg"]


def test_what_is_not_asked_for_is_not_done():
    assert vars(settings_of()) == {
        "model": "m",
        "input": ["a.png"],
        "output": Path("out"),
        "overlay": False,
        "truth": None,
        "overwrite": False,
        "probabilities": False,
        "uncertainty": False,
        "rank": False,
        "polygons": None,
        "coco": False,
        "min_size": None,
        "drop_border": False,
        "tta": False,
        "ensemble": [],
        "boundary": False,
        "mask_suffix": None,
        "tile_size": None,
        "overlap": None,
        "processes_per_volume": 1,
        "scale": None,
        "file": None,
    }


def test_the_help_says_what_each_flag_takes(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "150")
    with pytest.raises(SystemExit):
        settings_of("--help")
    text = capsys.readouterr().out
    assert re.findall(r"^  (--.+?)(?:  |$)", text, re.MULTILINE) == [
        "--model MODEL",
        "--input FILES [FILES ...]",
        "--output DIR",
        "--overlay",
        "--truth DIR",
        "--overwrite",
        "--probabilities",
        "--uncertainty",
        "--rank",
        "--polygons [{geojson,gpkg}]",
        "--coco",
        "--min-size PIXELS",
        "--drop-border",
        "--tta",
        "--ensemble MODEL [MODEL ...]",
        "--boundary",
        "--mask-suffix SUFFIX",
        "--tile-size PIXELS",
        "--overlap PIXELS",
        "--processes-per-volume S",
        "--scale FACTOR",
    ]
    assert text.count("(default: auto)") == 2
    assert len(re.findall(r"^  --.+?(?:  |\n {20}) *[a-z]", text, re.MULTILINE)) == 21  # each is explained


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--images", "did you mean --input FILES?"),
        ("--weights", "did you mean --model MODEL?"),
        ("--save-dir", "did you mean --output DIR?"),
        ("--ground-truth", "did you mean --truth DIR?"),
        ("--visualize", "did you mean --overlay?"),
        ("--threshold", "each pixel gets its most probable class; --probabilities writes how probable each one is"),
        ("--batch-size", "it is chosen here; leave it out"),
        ("--imgsz", "the model's config.json says it; leave it out"),
    ],
)
def test_flags_of_other_programs_are_answered_with_what_to_type(capsys, flag, hint):
    with pytest.raises(SystemExit):
        settings_of(flag, "x")
    assert hint in " ".join(capsys.readouterr().err.split())
