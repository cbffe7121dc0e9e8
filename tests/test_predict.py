"""predict.py, launched as a user would."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import launch
from PIL import Image

from unet import Predictor, Preprocess, UNet, UNetConfig


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
    assert len(list((tmp_path / "out").rglob("*.*"))) == 15  # nothing temporary is left


def test_two_processes_write_what_one_writes(model, photos, tmp_path):
    one = predict(model, [photos], tmp_path / "one")
    two = predict(model, [photos], tmp_path / "two", profile="multi_cpu")
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
    (bad / "cut.png").write_bytes((photos / "a.png").read_bytes()[:500])
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(bad / "fine.png")
    np.save(bad / "five.npy", np.ones((6, 6, 5), np.uint8))
    result = predict(model, [bad, photos / "a.png"], tmp_path / "out")
    assert result.returncode == 1
    assert "2 of 6 masks" in result.stdout
    failures = [line for line in result.stderr.splitlines() if "failed" in line]
    assert len(failures) == 4
    for name in ("empty.png", "text.jpg", "cut.png", "five.npy: has 5 channels, the model takes 3"):
        assert any(name in line for line in failures), failures
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "fine.png"]


def test_finished_outputs_are_kept_unless_overwriting_is_asked_for(model, photos, tmp_path):
    predict(model, [photos / "a.png"], tmp_path)
    before = os.stat(tmp_path / "a.png").st_mtime_ns
    predict(model, [photos], tmp_path)
    assert os.stat(tmp_path / "a.png").st_mtime_ns == before
    assert (tmp_path / "b.png").exists()
    predict(model, [photos], tmp_path, "--overwrite")
    assert os.stat(tmp_path / "a.png").st_mtime_ns > before


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
        (["PHOTOS/a.png", "PHOTOS/sub/a.png"], [], "would both write", 1),
        (["PHOTOS"], ["--truth", "nowhere"], "--truth nowhere: is not a folder", 1),
        (["PHOTOS"], ["--truth", "PHOTOS/sub"], "has no mask for 4 inputs", 1),
        (["PHOTOS"], ["--model", "PHOTOS"], "has no config.json", 1),
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
