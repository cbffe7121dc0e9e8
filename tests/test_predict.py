"""predict.py, launched as a user would."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from accelerate.utils import DynamoBackend
from conftest import ROOT, launch
from PIL import Image
from unet.inference import batch_sizes

from data_utils import inputs
from data_utils.image_io.tiff import tiff_pages
from inference import Predictor
from inference.inputs import Job, batches_of, check_disk, share_of
from inference.provenance import complete_provenance, provenance_of, record_provenance
from runtime.errors import DataError
from runtime.files import replaced_file
from runtime.launch import compile_networks
from unet import Preprocess, UNet, UNetConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """An untrained model of three classes whose masks hold 10, 200 and 255, and which sees images at half size."""
    preprocess = Preprocess(
        scale=0.5, mean=(90.0,) * 3, std=(50.0,) * 3, class_names=("sky", "land", "sea"), class_values=(10, 200, 255)
    )
    torch.manual_seed(0)
    network = UNet(UNetConfig(3, 3, base_channels=4, depth=2, preprocess=preprocess))
    folder = tmp_path_factory.mktemp("model")
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Five readable images of several formats and sizes, some in a subfolder."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "sub").mkdir()
    rng = np.random.default_rng(0)
    for name, shape in [
        ("a.png", (20, 30, 3)),
        ("b.jpg", (33, 17, 3)),
        ("sub/a.png", (1, 1, 3)),
        ("sub/c.tif", (64, 9)),
    ]:
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)
    np.save(folder / "sub" / "d.npy", rng.integers(0, 256, (12, 14, 3), dtype=np.uint8))
    return folder


def predict(model: Path, inputs: list, output: Path, *flags, **options):
    return launch("predict.py", "--model", model, "--input", *inputs, "--output", output, *flags, **options)


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
        np.testing.assert_allclose(probabilities.sum(axis=0), 1, atol=1e-5)
        np.testing.assert_array_equal(np.array([10, 200, 255])[probabilities.argmax(axis=0)], mask)
    assert len(list((tmp_path / "out").rglob("*.*"))) == 16  # predict.json, and nothing temporary


def test_two_processes_write_what_one_writes(model, photos, tmp_path):
    one = predict(model, [photos], tmp_path / "one", "--tile-size", "12")
    two = predict(model, [photos], tmp_path / "two", "--tile-size", "12", profile="multi_cpu")
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.png"))
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


def test_finished_outputs_are_kept_unless_overwriting_is_asked_for(model, photos, tmp_path):
    predict(model, [photos / "a.png"], tmp_path)
    before = os.stat(tmp_path / "a.png").st_mtime_ns
    predict(model, [photos], tmp_path)
    assert os.stat(tmp_path / "a.png").st_mtime_ns == before
    assert (tmp_path / "b.png").exists()
    predict(model, [photos], tmp_path, "--overwrite")
    assert os.stat(tmp_path / "a.png").st_mtime_ns > before


def test_what_is_empty_or_older_than_its_image_is_predicted_again(model, photos, tmp_path):
    image, out = tmp_path / "a.png", tmp_path / "out"
    image.write_bytes((photos / "a.png").read_bytes())
    predict(model, [image, photos / "b.jpg"], out)
    expected = (out / "b.png").read_bytes()
    Image.new("RGB", (9, 8)).save(image)
    os.utime(image, (time.time() + 5, time.time() + 5))
    (out / "b.png").write_bytes(b"")
    assert predict(model, [image, photos / "b.jpg"], out).returncode == 0
    assert Image.open(out / "a.png").size == (9, 8)
    assert (out / "b.png").read_bytes() == expected


def test_a_folder_never_holds_masks_of_two_models_or_settings(model, photos, tmp_path, fails_with):
    other, out = tmp_path / "other", tmp_path / "out"
    UNet.from_pretrained(model).save_pretrained(other)
    predict(model, [photos / "a.png"], out)
    result = predict(other, [photos / "a.png"], out)  # the same weights under another name
    assert "1 of 1 masks are there already; --overwrite predicts them again" in result.stdout, result.stderr
    network = UNet.from_pretrained(model)
    network.head.conv.bias.data += 1
    network.save_pretrained(other)
    result = predict(other, [photos], out)
    fails_with(result, "holds masks of another model or other settings (predict.json says which)", 1)
    assert not (out / "b.png").exists()
    (tmp_path / "broken.png").touch()
    (out / "broken.png").touch()  # as if it were from before, and it stays
    for files, expected in (([photos / "a.png", tmp_path / "broken.png"], False), ([photos / "a.png"], True)):
        predict(other, files, out, "--overwrite")
        assert json.loads((out / "predict.json").read_text())["complete"] == expected


def test_an_output_folder_is_claimed_by_what_made_its_masks(model, tmp_path):
    def origin(tta: bool = False, ensemble: tuple = ()) -> dict:
        return provenance_of(Namespace(model=str(model), ensemble=[*ensemble], scale=None, tta=tta))

    def refused(**settings) -> None:
        with pytest.raises(DataError, match="--overwrite"):
            record_provenance(tmp_path, origin(**settings), False, replaced_file)

    (tmp_path / "predict.json").write_text("[]")  # not ours
    record_provenance(tmp_path, origin(), False, replaced_file)
    record_provenance(tmp_path, origin(), False, replaced_file)
    refused(tta=True)
    refused(ensemble=("owner/model",))
    record_provenance(tmp_path, origin(tta=True), True, replaced_file)
    refused(tta=True)  # what is half overwritten is not taken for finished
    refused()
    complete_provenance(tmp_path, replaced_file)
    record_provenance(tmp_path, origin(tta=True), False, replaced_file)


def test_scores_are_those_of_the_written_masks_on_any_number_of_processes(model, photos, tmp_path):
    truth = tmp_path / "truth"
    predict(model, [photos], truth)
    mask = np.array(Image.open(truth / "a.png"))
    flipped = np.where(mask == 10, 200, 10).astype(np.uint8)
    flipped[:5] = mask[:5]
    Image.fromarray(flipped).save(truth / "a.png")
    for output, profile in (
        ("one", None),
        ("two", "multi_cpu"),
        ("one", None),
    ):  # the third scores what is there already
        result = predict(model, [photos], tmp_path / output, "--truth", truth, profile=profile)
        assert result.returncode == 0, result.stderr
        assert "mean" in result.stdout
    one, two = (json.loads((tmp_path / output / "metrics.json").read_text()) for output in ("one", "two"))
    assert one == two
    assert one["classes"] == ["sky", "land", "sea"]
    total = sum(map(sum, one["confusion_matrix"]))
    assert total == 20 * 30 + 33 * 17 + 1 + 64 * 9 + 12 * 14
    assert one["pixel_accuracy"] == pytest.approx(1 - 15 * 30 / total)


@pytest.mark.parametrize(
    ("inputs", "flags", "line", "code"),
    [
        (["nowhere/*.png"], [], "--input nowhere/*.png: no image there", 1),
        ([""], [], "--input: is empty", 1),
        (["a" * 300], [], "File name too long", 1),
        (["PHOTOS"], ["--output", ""], "argument --output: it is empty", 2),
        (["PHOTOS/a.png", "PHOTOS/sub/a.png"], [], "would both write", 1),
        (["PHOTOS"], ["--truth", "nowhere"], "--truth nowhere: is not a folder", 1),
        (["PHOTOS"], ["--truth", "PHOTOS/sub"], "has no mask for 4 inputs", 1),
        (["PHOTOS"], ["--model", "PHOTOS"], "has no config.json", 1),
        (["PHOTOS"], ["--tile-size", "8", "--overlap", "8"], "overlap 8 leaves nothing of tiles of 8", 1),
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


def test_images_are_sorted_by_score_the_worst_first(model, photos, tmp_path):
    truth = tmp_path / "truth"
    predict(model, [photos], truth)
    for name, share in (("b", 0.5), ("sub/c", 0.9)):  # of the rows that are wrong
        mask = np.array(Image.open(truth / f"{name}.png"))
        wrong = mask[: int(share * len(mask))]
        wrong[:] = np.where(wrong == 10, 200, 10)
        Image.fromarray(mask).save(truth / f"{name}.png")
    result = predict(model, [photos], tmp_path / "out", "--truth", truth, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    images = json.loads((tmp_path / "out" / "metrics.json").read_text())["by_image"]
    assert [Path(image["image"]).stem for image in images[:2]] == ["c", "b"]
    assert [image["mean_iou"] for image in images[2:]] == [1, 1, 1]
    assert result.stdout.index("c.tif") < result.stdout.index("b.jpg")


@pytest.fixture(scope="module")
def tall(tmp_path_factory) -> Path:
    """A TIFF of 8,501 x 333, tiled and compressed; in tiles it is read and written in windows."""
    path = tmp_path_factory.mktemp("tall") / "tall.tif"
    pixels = np.random.default_rng(0).integers(0, 256, (8501, 333, 3), dtype=np.uint8)
    tifffile.imwrite(path, pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    return path


def test_tiles_write_what_the_whole_image_writes_and_say_whether_they_are_exact(model, tall, tmp_path):
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
    assert 1e-6 < np.abs(probabilities["blended"] - probabilities["whole"]).max() < 0.1


def test_pages_of_a_tiff_are_predicted_and_scored_one_by_one(model, tmp_path):
    pages = np.random.default_rng(0).integers(0, 256, (3, 40, 50), dtype=np.uint8)
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "stack.tif", pages, photometric="minisblack")
    for number, page in enumerate(pages):
        Image.fromarray(page).save(tmp_path / f"{number}.png")
    assert predict(model, [tmp_path / "in"], tmp_path / "out").returncode == 0
    assert predict(model, [tmp_path / f"{number}.png" for number in range(3)], tmp_path / "one").returncode == 0
    masks = [np.asarray(Image.open(tmp_path / "out" / f"stack_000{number + 1}.png")) for number in range(3)]
    of_third = Predictor.from_pretrained(model).mask(tmp_path / "in" / "stack.tif", page=2)
    np.testing.assert_array_equal(np.array([10, 200, 255])[of_third], masks[2])
    for number, mask in enumerate(masks):
        np.testing.assert_array_equal(mask, np.asarray(Image.open(tmp_path / "one" / f"{number}.png")))
    (tmp_path / "truth").mkdir()
    tifffile.imwrite(tmp_path / "truth" / "stack.tif", np.stack(masks), photometric="minisblack")
    for truth in (tmp_path / "truth", tmp_path / "out"):
        result = predict(model, [tmp_path / "in"], tmp_path / "scored", "--truth", truth)
        assert result.returncode == 0, result.stderr
        report = json.loads((tmp_path / "scored" / "metrics.json").read_text())
        assert report["images"] == 3
        assert report["pixel_accuracy"] == 1


def test_outputs_never_take_the_place_of_inputs_or_of_each_other(model, photos, tmp_path, fails_with):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jpg", "a.overlay.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    fails_with(predict(model, [folder], tmp_path / "out", "--overlay"), "would both write", 1)
    fails_with(predict(model, [folder / "a.overlay.png"], folder), "is an input and would be written over", 1)
    fails_with(predict(model, [folder], folder), "is a folder of inputs", 1)
    for _ in range(2):  # the second time does not take the masks for images
        assert "2 of 2 masks" in predict(model, [folder], folder / "masks").stdout
    for pattern in ("*", "**/*.*g"):
        jobs = inputs.find_jobs([f"{folder}/{pattern}"], folder / "masks", [".png"], tiff_pages)
        assert {job.image.name for job in jobs} == {"a.jpg", "a.overlay.png"}


def test_globs_keep_the_folders_that_they_match(model, photos, tmp_path):
    result = predict(model, [f"{photos}/*/*.tif", f"{photos}/a.*"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")) == ["a.png", "sub/c.png"]


def test_too_small_a_disk_is_found_before_the_first_image(model, photos, tmp_path, fails_with):
    array = np.lib.format.open_memmap(tmp_path / "vast.npy", mode="w+", dtype=np.uint8, shape=(1 << 21, 1 << 21))
    del array  # a file of 4 TB that occupies nothing
    result = predict(model, [tmp_path / "vast.npy", photos], tmp_path / "out", "--probabilities")
    fails_with(result, "MB are free", 1)
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_takes_no_files_is_found_before_the_first_image(monkeypatch, tmp_path):
    def refuse(dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(inputs, "TemporaryFile", refuse)
    with pytest.raises(DataError, match=r"out: cannot be written \(Read-only file system\)"):
        check_disk(tmp_path / "out", 0)


def test_a_true_mask_of_unknown_values_fails_its_image_but_not_its_prediction(model, photos, tmp_path):
    predict(model, [photos / "a.png", photos / "b.jpg"], tmp_path / "truth")
    Image.fromarray(np.full((20, 30), 7, np.uint8)).save(tmp_path / "truth" / "a.png")
    result = predict(model, [photos / "a.png", photos / "b.jpg"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 1
    assert "has mask values [7]" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == ["a.png", "b.png"]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["images"] == 1
    for name in ("a", "b"):
        (tmp_path / "truth" / f"{name}.png").rename(tmp_path / "truth" / f"{name}_mask.png")
    result = predict(model, [photos / "a.png", photos / "b.jpg"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert "has mask values [7]" in result.stderr  # the masks' suffix was found
    (tmp_path / "none").mkdir()
    result = predict(model, [photos / "a.png"], tmp_path / "out", "--truth", tmp_path / "none")
    assert "has no mask for 1 inputs" in result.stderr


def test_true_masks_that_cannot_be_used_do_not_cost_the_predictions(model, photos, tmp_path):
    truth, images, out = tmp_path / "truth", tmp_path / "images", tmp_path / "out"
    truth.mkdir()
    images.mkdir()
    Image.fromarray(np.full((20, 30), 10, np.uint8)).save(tmp_path / "mask.png")
    whole = (tmp_path / "mask.png").read_bytes()
    for name, content in (("cut", whole[:45]), ("empty", b""), ("size", whole)):
        (truth / f"{name}.png").write_bytes(content)
        Image.new("RGB", (9, 9) if name == "size" else (30, 20)).save(images / f"{name}.png")
    for _ in range(2):  # the second time they are only scored
        result = predict(model, [images], out, "--truth", truth)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert all(f"{truth / name}.png" in result.stderr for name in ("cut", "empty", "size"))
        assert "3 of 3 masks" in result.stdout
        assert "n/a" not in result.stdout
        assert sorted(path.name for path in out.iterdir()) == ["cut.png", "empty.png", "predict.json", "size.png"]


def test_a_header_that_tells_another_size_costs_nobody_a_mask(model, tmp_path):
    """A PNG whose EXIF orientation comes after its pixels."""
    folder = tmp_path / "in"
    folder.mkdir()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    picture.save(folder / "a.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(folder / "b.png", exif=exif)
    content = (folder / "b.png").read_bytes()
    start = content.index(b"eXIf") - 4
    stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
    end = content.index(b"IEND") - 4
    (folder / "b.png").write_bytes(content[:start] + content[stop:end] + content[start:stop] + content[end:])
    result = predict(model, [folder], tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert Image.open(tmp_path / "out" / "a.png").size == (60, 40)
    assert Image.open(tmp_path / "out" / "b.png").size == (40, 60)


def test_a_run_that_is_asked_to_stop_leaves_nothing_half_written(model, tall, tmp_path):
    out = tmp_path / "out"
    flags = ["--model", model, "--input", tall, "--output", out, "--probabilities", "--tta", "--tile-size", "96"]
    run = subprocess.Popen([sys.executable, "predict.py", *map(str, flags)], cwd=ROOT, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not list(out.glob(".tall.*.tmp")) and time.monotonic() < end:  # predict.json is there before them
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 128 + signal.SIGTERM
    assert [path.name for path in out.iterdir()] == ["predict.json"]


def test_an_overlay_of_a_large_image_of_16_bits_is_equally_bright_all_over(model, tmp_path):
    """8,501 x 333 in windows: the shades of all rows are chosen by rows from the whole image."""
    steps = np.linspace(1000, 21000, 8501)
    rows = np.repeat(steps[:, None], 333, 1).astype(np.uint16)
    tifffile.imwrite(tmp_path / "steps.tif", rows, photometric="minisblack")
    result = predict(model, [tmp_path / "steps.tif"], tmp_path / "out", "--overlay", "--tile-size", "256")
    assert result.returncode == 0, result.stderr
    shown = np.asarray(Image.open(tmp_path / "out" / "steps.overlay.png"))
    mask = np.asarray(Image.open(tmp_path / "out" / "steps.png"))
    expected = np.clip((steps - steps[85]) / (steps[-86] - steps[85]) * 255, 0, 255)
    for row in range(0, 8501, 500):
        untinted = shown[row][mask[row] == 10]
        assert np.abs(untinted.astype(float) - expected[row]).max(initial=0) < 3


def test_a_killed_run_leaves_whole_files_only_and_is_taken_up_again(model, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 256, (301, 400, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    out = tmp_path / "out"
    command = [sys.executable, "predict.py", "--model", model, "--input", folder, "--output", out, "--probabilities"]
    run = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while len(list(out.glob("*.png"))) < 3 and time.monotonic() < end:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    finished = sorted(path for path in out.glob("*.png") if not path.name.startswith("."))
    assert 3 <= len(finished) < 40
    for path in finished:
        assert np.asarray(Image.open(path)).shape == (301, 400)
        assert np.load(path.with_suffix(".npy")).shape == (3, 301, 400)
    before = {path: path.stat().st_mtime_ns for path in finished}
    result = predict(model, [folder], out, "--probabilities")
    assert "40 of 40 masks" in result.stdout, result.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    assert len(list(out.iterdir())) == 81  # predict.json, and nothing temporary


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux tells it")
def test_memory_does_not_grow_with_the_height_of_an_image(model, tmp_path):
    """Peak memory on 2,000 and on 20,000 rows of 2,000 pixels: 108 MB more of pixels, 432 MB of probabilities."""

    def peak(height: int) -> int:
        path = tmp_path / f"{height}.tif"
        blocks = (np.full((256, 256, 3), index % 251, np.uint8) for index in range(-(-height // 256) * 8))
        tifffile.imwrite(path, blocks, shape=(height, 2000, 3), dtype=np.uint8, tile=(256, 256), photometric="rgb")
        # what `getrusage` says of a process includes its parent's memory at the fork
        lines = "import atexit, runpy, sys; sys.argv = sys.argv[1:]\n"  # the script ends the process
        lines += "atexit.register(lambda: print(next(x for x in open('/proc/self/status') if 'VmHWM' in x)))\n"
        lines += "runpy.run_path(sys.argv[0], run_name='__main__')"
        flags = ["--input", path, "--output", tmp_path / "out", "--probabilities", "--tile-size", "512"]
        result = launch("-c", lines, "predict.py", "--model", model, *flags)
        assert result.returncode == 0, result.stderr
        assert Image.open(tmp_path / "out" / f"{height}.png").size == (2000, height)
        return int(result.stdout.partition("VmHWM:")[2].split()[0]) * 1024

    small, large = peak(2000), peak(20_000)
    assert large - small < 40e6


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
    np.testing.assert_allclose(got.probabilities, np.mean(views, axis=0), atol=1e-5)
    np.testing.assert_array_equal(got.mask, got.probabilities.argmax(axis=0))
    assert all(np.abs(view - got.probabilities).max() > 1e-3 for view in views)
    assert not Predictor(network, tta=True, tile_size=48).tilings((300, 300))[0].exact


def test_an_ensemble_is_the_mean_of_its_models_whatever_their_preprocessing(model, photos, tmp_path):
    networks = [UNet.from_pretrained(model)]
    for seed, scale in ((1, 1.0), (2, 0.3)):
        torch.manual_seed(seed)
        preprocess = dataclasses.replace(networks[0].config.preprocess, scale=scale)
        networks.append(UNet(UNetConfig(3, 3, base_channels=8, depth=3, norm="group", preprocess=preprocess)))
        networks[-1].save_pretrained(tmp_path / str(seed))
    expected = np.mean([Predictor(network)(photos / "b.jpg").probabilities for network in networks], axis=0)
    flags = ["--ensemble", tmp_path / "1", tmp_path / "2", "--probabilities"]
    for output, more in (("whole", []), ("tiles", ["--tile-size", "16", "--overlap", "0"])):
        result = predict(model, [photos / "b.jpg"], tmp_path / output, *flags, *more)
        assert result.returncode == 0, result.stderr
        tolerance = 1e-5 if output == "whole" else 0.3
        np.testing.assert_allclose(np.load(tmp_path / output / "b.npy"), expected, atol=tolerance)


def test_an_ensemble_of_other_classes_is_refused(model, photos, tmp_path, fails_with):
    UNet(UNetConfig(3, 2, base_channels=4, depth=2)).save_pretrained(tmp_path / "two")
    result = predict(model, [photos], tmp_path / "out", "--ensemble", tmp_path / "two")
    fails_with(result, "an ensemble needs the same classes", 1)


def test_work_is_shared_by_pixels():
    sizes = [(2000, 2000), *[(100, 100)] * 8, (300, 200), (1500, 1500), (1200, 1300)]
    jobs = [Job(Path(f"{number}.png"), 0, size, Path(str(number)), None) for number, size in enumerate(sizes)]
    batch_size_of = batch_sizes(torch.device("cpu"))
    batches = batches_of(jobs, lambda size: (size, batch_size_of(*size)))
    assert max(map(len, batches)) == 8
    shares = [share_of(batches, process, 2) for process in range(2)]
    assert sorted(job for share in shares for batch in share for job in batch) == sorted(jobs)
    pixels = [sum(job.pixels for batch in share for job in batch) for share in shares]
    assert max(pixels) / min(pixels) < 1.1


def test_failures_are_listed_also_when_nothing_could_be_scored(model, tmp_path):
    for kind in ("images", "truth"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.png").write_bytes(b"no picture")
    result = predict(model, [tmp_path / "images"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "failed: " in result.stderr
    assert "0 of 1 masks" in result.stdout


def test_a_profile_that_asks_for_it_has_the_networks_compiled(trained, tiny_folder):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    image = next((tiny_folder / "val" / "images").iterdir())
    expected = Predictor.from_pretrained(trained / "model")(image).probabilities
    for asked in (DynamoBackend.NO, DynamoBackend.INDUCTOR):
        plugin = SimpleNamespace(backend=asked, to_kwargs=lambda: {"backend": backend})
        predictor = Predictor.from_pretrained(trained / "model")
        compile_networks(SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin)), predictor.networks)
        assert np.array_equal(predictor(image).probabilities, expected)
        assert bool(compiled) == (asked == DynamoBackend.INDUCTOR)


SHORTAGE = """
import runpy, sys
import torch
from unet import UNet

forward = UNet.forward

def failing(self, images):
    if images.shape[-1] > 32:
        raise ERROR
    return forward(self, images)

UNet.forward = failing
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "error", ['torch.OutOfMemoryError("CUDA")', 'RuntimeError("DefaultCPUAllocator: can\'t allocate memory")']
)
def test_what_does_not_fit_into_memory_is_named_with_what_to_do_and_the_others_written(model, tmp_path, error):
    wrapper, images = tmp_path / "wrapper.py", tmp_path / "images"
    wrapper.write_text(SHORTAGE.replace("ERROR", error))
    images.mkdir()
    for side in (40, 100):
        Image.new("RGB", (side, side)).save(images / f"{side}.png")
    flags = ["--model", model, "--input", images, "--output", tmp_path / "out"]
    result = launch(wrapper, "predict.py", *flags)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert f"{images / '100.png'}: does not fit into memory; --tile-size 512" in result.stderr
    assert "1 of 2 masks" in result.stdout
    result = launch(wrapper, "predict.py", *flags, "--tile-size", "32")
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "out").glob("*.png"))) == 2
