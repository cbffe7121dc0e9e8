"""Real microscope slices and street scenes, where the data lie beside the repository; skipped elsewhere."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.launches import ROOT, launch, predict

from unet import UNet

DATA = ROOT.parent / "shared" / "data"
SMALL = ["--base-channels", "8", "--depth", "3", "--num-workers", "0", "--tracker", "none", "--learning-rate", "0.003"]
SMALL += ["--plan", "none"]

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no real data in {DATA.parent.name}/{DATA.name} beside this folder"
)


def train(dataset: Path, output, *flags: str) -> dict:
    """The last evaluation of a short run."""
    result = launch("train.py", "--dataset", dataset, "--output-dir", output, *SMALL, *flags)
    assert result.returncode == 0, result.stderr
    return json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def isbi_run(tmp_path_factory) -> tuple[Path, dict]:
    """A run on binary, grey slices with masks of 0 and 255 in a flat folder, and its last evaluation."""
    output = tmp_path_factory.mktemp("isbi") / "run"
    flags = ["--max-steps", "40", "--crop-size", "96", "96", "--eval-every", "40"]
    return output, train(DATA / "isbi2012", output, *flags)


def predict_isbi(run: Path, images: list, output: Path) -> None:
    result = predict(run / "model", images, output, "--truth", DATA / "isbi2012" / "masks")
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_grey_slices_are_learned_by_a_network_of_one_channel(isbi_run):
    output, last = isbi_run
    assert last["eval/mean_iou"] > 0.6  # all background, or all cell, scores below 0.4
    config = UNet.from_pretrained(output / "model").config
    assert config.in_channels == 1
    assert config.preprocess.class_values == (0, 255)


@pytest.mark.slow
def test_masks_of_grey_slices_have_the_values_of_the_training(isbi_run, tmp_path):
    predict_isbi(isbi_run[0], sorted((DATA / "isbi2012" / "images").iterdir())[:2], tmp_path / "out")
    masks = list((tmp_path / "out").glob("*.png"))
    assert len(masks) == 2
    assert set(np.unique(np.asarray(Image.open(masks[0])))) == {0, 255}


@pytest.mark.slow
def test_prediction_reproduces_the_score_of_held_out_slices(isbi_run, tmp_path):
    output, last = isbi_run
    held_out = [record["image"] for record in load_info(DATA / "isbi2012").val.records]
    assert 0 < len(held_out) < 30
    predict_isbi(output, held_out, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "metrics.json").read_text())
    # a pixel whose two best logits are equal to rounding may fall either way
    assert report["mean_iou"] == pytest.approx(last["eval/mean_iou"], abs=1e-5)


@pytest.mark.slow
def test_camvid_ignores_its_void_label(tmp_path):
    """Eleven classes and the void label 11, in train/ and val/; nine tenths of a street are five classes."""
    data = tmp_path / "camvid"
    for split, count in (("train", 60), ("val", 12)):
        for kind in ("images", "masks"):
            folder = data / split / kind
            folder.mkdir(parents=True)
            for file in sorted((DATA / "camvid" / split / kind).iterdir())[::5][:count]:
                (folder / file.name).symlink_to(file)
    flags = ["--ignore-index", "11", "--scale", "0.25", "--max-steps", "60", "--eval-every", "60", "--batch-size", "8"]
    last = train(data, tmp_path / "run", *flags)
    assert {key for key in last if key.startswith("eval/iou/")} == {f"eval/iou/{value}" for value in range(11)}
    assert last["eval/pixel_accuracy"] > 0.5  # the commonest class alone scores below 0.3
    result = launch(
        "predict.py", "--model", tmp_path / "run" / "model", "--input", data / "val" / "images",
        "--output", tmp_path / "masks", "--truth", data / "val" / "masks",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "masks" / "metrics.json").read_text())
    # a pixel whose two best logits are equal to rounding may fall either way
    assert report["mean_iou"] == pytest.approx(last["eval/mean_iou"], abs=1e-5)
