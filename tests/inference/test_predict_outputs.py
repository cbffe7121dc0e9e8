"""What predict.py writes and keeps: one model's files in a folder, whole ones only, on a disk that takes them.

Modules: inference/requested_outputs.py, inference/output_folder.py, tasks/prediction_files.py,
tasks/prediction_format.py, tasks/classes/write.py.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.forks import ForkedRun
from support.launches import ROOT, predict

from unet import UNet


def test_finished_outputs_are_kept_unless_overwriting_is_asked_for(model, photos, tmp_path):
    predict(model, [photos / "a.png"], tmp_path)
    before = os.stat(tmp_path / "a.png").st_mtime_ns
    predict(model, [photos], tmp_path)
    assert os.stat(tmp_path / "a.png").st_mtime_ns == before
    assert (tmp_path / "b.png").exists()
    predict(model, [photos], tmp_path, "--overwrite")
    assert os.stat(tmp_path / "a.png").st_mtime_ns > before


def test_masks_that_are_empty_or_older_than_their_image_are_predicted_again(model, photos, tmp_path):
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


@pytest.fixture
def other_model(model, tmp_path) -> Path:
    """A model that differs from `model` in the bias of its head."""
    network = UNet.from_pretrained(model)
    network.head.conv.bias.data += 1
    network.save_pretrained(tmp_path / "other")
    return tmp_path / "other"


@pytest.fixture
def masks(model, photos, tmp_path) -> Path:
    """A folder with the mask that `model` has made of an image."""
    predict(model, [photos / "a.png"], tmp_path / "out")
    return tmp_path / "out"


def test_folder_of_masks_knows_the_same_weights_by_another_name(model, photos, masks, tmp_path):
    UNet.from_pretrained(model).save_pretrained(tmp_path / "same")
    result = predict(tmp_path / "same", [photos / "a.png"], masks)
    assert "1 of 1 masks are there already; --overwrite predicts them again" in result.stdout, result.stderr


def test_folder_of_masks_takes_none_of_another_model(other_model, photos, masks, fails_with):
    result = predict(other_model, [photos], masks)
    fails_with(result, "holds masks of another model or other settings (see predict.json)", 1)
    assert not (masks / "b.png").exists()


@pytest.mark.parametrize("overwritten", ["a.png", "broken.png"])
def test_what_an_overwriting_call_has_left_of_another_model_is_predicted_again(
    model, other_model, photos, tmp_path, overwritten
):
    inputs, out = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir()
    (inputs / "a.png").write_bytes((photos / "a.png").read_bytes())
    predict(model, [inputs], out, "--overlay")
    (inputs / "broken.png").touch()
    predict(other_model, [inputs / overwritten], out, "--overwrite")
    (inputs / "broken.png").unlink()
    assert "there already" not in predict(other_model, [inputs], out, "--overlay").stdout
    predict(other_model, [inputs], tmp_path / "new", "--overlay")
    for name in ("a.png", "a.overlay.png"):
        assert (out / name).read_bytes() == (tmp_path / "new" / name).read_bytes()


def test_an_overlay_of_a_large_image_of_16_bits_is_equally_bright_all_over(model, tmp_path, monkeypatch):
    """8,501 x 41 in windows: the shades of all rows are chosen by rows from the whole image."""
    monkeypatch.setattr("inference.predictor.WINDOW_MEMORY", 2**23)
    steps = np.linspace(1000, 21000, 8501)
    rows = np.repeat(steps[:, None], 41, 1).astype(np.uint16)
    tifffile.imwrite(tmp_path / "steps.tif", rows, photometric="minisblack")
    result = predict(model, [tmp_path / "steps.tif"], tmp_path / "out", "--overlay", "--tile-size", "256")
    assert result.returncode == 0, result.stderr
    shown = np.asarray(Image.open(tmp_path / "out" / "steps.overlay.png"))
    mask = np.asarray(Image.open(tmp_path / "out" / "steps.png"))
    expected = np.clip((steps - steps[85]) / (steps[-86] - steps[85]) * 255, 0, 255)
    seen = 0
    for row in range(0, 8501, 500):
        untinted = shown[row][mask[row] == 10]
        seen += len(untinted) > 0
        # the lowest and highest shade are estimated from some of the rows: measured 2.3 of 255
        assert np.abs(untinted.astype(float) - expected[row]).max(initial=0) < 3
    assert seen == 18  # class 0 is in every one of these rows, and not tinted


def start(folder: Path, *flags: str | Path) -> ForkedRun:
    """predict.py in the background, which writes what it prints into `folder`."""
    folder.mkdir()
    command = ["predict.py", *map(str, flags)]
    return ForkedRun(command, None, os.environ | {"PYTHONPATH": str(ROOT)}, ROOT, folder)


def test_a_run_that_is_asked_to_stop_leaves_nothing_half_written(model, tall_image, tmp_path):
    out = tmp_path / "out"
    flags = ["--model", model, "--input", tall_image, "--output", out, "--probabilities", "--tta", "--tile-size", "96"]
    run = start(tmp_path / "printed", *flags)
    end = time.monotonic() + 60
    while not (out / "predict.json").exists() and time.monotonic() < end:  # it is there before the others begin
        time.sleep(0.01)
    while not list(out.glob(".*.tmp/tall*")) and time.monotonic() < end:
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    run.wait(60)
    assert run.returncode == 128 + signal.SIGTERM
    assert [path.name for path in out.iterdir()] == ["predict.json"]


def test_a_killed_run_leaves_whole_files_from_which_it_is_taken_up_again(model, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (301, 200, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    out = tmp_path / "out"
    run = start(tmp_path / "printed", "--model", model, "--input", folder, "--output", out, "--probabilities")
    end = time.monotonic() + 120
    while len(list(out.glob("*.png"))) < 3 and time.monotonic() < end:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait(60)
    finished = sorted(path for path in out.glob("*.png") if not path.name.startswith("."))
    assert 3 <= len(finished) < 24
    for path in finished:
        assert np.asarray(Image.open(path)).shape == (301, 200)
        assert np.load(path.with_suffix(".npy")).shape == (3, 301, 200)
    before = {path: path.stat().st_mtime_ns for path in finished}
    result = predict(model, [folder], out, "--probabilities")
    assert "24 of 24 masks" in result.stdout, result.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    assert len([path for path in out.iterdir() if path.suffix != ".tmp"]) == 49  # with predict.json


@pytest.mark.parametrize("name", ["one.png", "one.PNG"])
def test_the_output_of_one_image_may_be_a_file(model, photos, tmp_path, name):
    file = tmp_path / "masks" / name
    result = predict(model, [photos / "b.jpg"], file, "--overlay")
    assert result.returncode == 0, result.stderr
    assert f"1 of 1 masks in {file}" in result.stdout
    assert Image.open(file).size == Image.open(photos / "b.jpg").size
    left = {path.name for path in file.parent.iterdir()}
    assert {name, "one.overlay.png"} <= left
    assert "predict.json" not in left
