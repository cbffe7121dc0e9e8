"""No file that prediction writes is one that it reads, and no file of somebody else is replaced unasked.

Modules: inference/output_folder.py.
"""

import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from support.prediction import touch

from inference import Predictor
from inference.predict_settings import parse_args
from inference.requested_outputs import request_outputs
from inference.work import Work, prepare_work
from runtime.errors import DataError
from unet import UNet
from unet.config import UNetConfig

CLASSES = UNetConfig(1, 2, base_channels=1, depth=1)
POINTS = UNetConfig(1, 2, base_channels=1, depth=1, task={"name": "landmarks", "names": ["a", "b"], "partners": [0, 1]})
OBJECTS = UNetConfig(
    1, 3, base_channels=1, depth=1, task={"name": "objects", "classes": ["background", "cell"], "smallest": 1}
)


def prepare(folder: Path, config: UNetConfig, inputs: str, output: str, flags: str = "") -> Work:
    """The work of a call of predict.py in `folder`."""
    words = ["predict.py", "--model", "m.onnx", "--input", *inputs.split(), "--output", output, *flags.split()]
    previous = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch("sys.argv", words):
            args = parse_args("")
        predictor = Predictor(UNet(config))
        return prepare_work(args, predictor, request_outputs(args, predictor))
    finally:
        os.chdir(previous)


@pytest.fixture
def call(tmp_path) -> Path:
    """A folder with the inputs in in/, its true masks in truth/, and other names of them."""
    touch(tmp_path, "points.png", "v.nii.gz", "in/a.png", "in/b.png", "in/c.tif", "truth/a.png", "truth/sub/x.png")
    np.save(tmp_path / "in" / "n.npy", np.zeros((3, 4), np.uint8))
    (tmp_path / "truth" / "notes").mkdir()
    (tmp_path / "truth" / "notes" / "metrics.json").write_text("{}")
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "to-truth").symlink_to("truth")
    (tmp_path / "hard").mkdir()
    os.link(tmp_path / "in" / "a.png", tmp_path / "hard" / "a.png")
    for model in ("m", "k"):
        (tmp_path / f"{model}.onnx").write_bytes(b"model")
        os.link(tmp_path / f"{model}.onnx", tmp_path / "hard" / f"{model}.png")
    return tmp_path


@pytest.mark.parametrize(
    ("config", "inputs", "output", "flags", "line"),
    [
        (CLASSES, "in/a.png", "in", "", r"in/a\.png is read by this call"),
        (CLASSES, "in/a.png", "link", "", r"link/a\.png is read by this call"),
        (CLASSES, "in/a.png", "hard", "", r"hard/a\.png is read by this call"),
        (CLASSES, "in/a.png", "link/a.png", "", r"link/a\.png is read by this call"),
        (CLASSES, "in/n.npy", "in/n.png", "--probabilities", r"in/n\.npy is read by this call"),
        (CLASSES, "in/b.png", "truth/a.png", "", r"truth/a\.png is there already"),
        (CLASSES, "in/a.png", "truth/a.png", "--truth truth --overwrite", r"truth/a\.png is read by this call"),
        (CLASSES, "in/a.png", "to-truth/a.png", "--truth truth --overwrite", r"to-truth/a\.png is read by this call"),
        (
            CLASSES,
            "in/a.png",
            "truth/notes/b.png",
            "--truth truth --overwrite",
            r"notes/metrics\.json is read by this call",
        ),
        (CLASSES, "in/a.png", "to-truth", "--truth truth", "--truth truth would be overwritten"),
        (CLASSES, "in/a.png in/a.png", "truth/sub/x.png", "--truth truth --overwrite", "is read by this call"),
        (CLASSES, "in/a.png", "hard/m.png", "--overwrite", r"hard/m\.png is read by this call"),
        (CLASSES, "in/a.png", "hard/k.png", "--overwrite --ensemble k.onnx", r"hard/k\.png is read by this call"),
        (OBJECTS, "in/c.tif", "in", "", r"in/c\.tif is read by this call"),
        (OBJECTS, "in/c.tif", "in/c.png", "", r"in/c\.tif is read by this call"),
        (CLASSES, "in/a.png", "taken", "", r"taken/a\.png is there, and is no file"),
        (CLASSES, "in/a.png", "old", "", r"old/a\.png is there already; --overwrite replaces it"),
        (CLASSES, "in/a.png", "old/a.png", "", r"old/a\.png is there already; --overwrite replaces it"),
        (CLASSES, "in/a.png", "old/new.png", "--overlay", r"new\.overlay\.png is there already"),
        (
            CLASSES,
            "in/a.png hard/a.png",
            "out",
            "",
            r"in/a\.png and hard/a\.png would both write out/a\.png; .* the folder that holds the folders of both$",
        ),
        (
            POINTS,
            "points.png",
            "out",
            "",
            r"points\.png would write out/points\.csv, which is of all inputs; rename it",
        ),
        (CLASSES, "in/a.png in/b.png", "out.png", "", "is one file, but there are 2 inputs; give a folder"),
        (CLASSES, "in/a.png", "out.tif", "", r"the mask of in/a\.png is a \.png file; give one, or a folder"),
        (CLASSES, "in/a.png", "out.nii.gz", "", r"the mask of in/a\.png is a \.png file; give one, or a folder"),
    ],
)
def test_no_file_is_lost_to_a_prediction(call, config, inputs, output, flags, line):
    touch(call, "old/a.png", "old/new.overlay.png")
    for path in ("old/a.png", "old/new.overlay.png"):
        os.utime(call / path, (0, 0))  # older than the input
    (call / "taken" / "a.png").mkdir(parents=True)
    before = {path: path.read_bytes() for path in call.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=line):
        prepare(call, config, inputs, output, flags)
    assert {path: path.read_bytes() for path in call.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("output", ["one.jpg", "one.JPEG", "one.nii", "one.zip", "points.csv", "one.geojson"])
def test_a_file_that_no_mask_can_be_is_no_folder(call, output, capsys):
    with pytest.raises(SystemExit) as end:
        prepare(call, CLASSES, "in/a.png", output)
    assert end.value.code == 2
    assert (
        f"--output {output}: a mask is a file .png, .tif, .nii.gz or .dcm; give one of these" in capsys.readouterr().err
    )
    assert not (call / output).exists()


@pytest.mark.parametrize("output", ["new.png", "new.v2.PNG", "in/new.png", "in.png", "new.v2.nii.gz"])
def test_the_only_mask_may_have_any_name_that_is_free(call, output):
    image = "v.nii.gz" if output.endswith(".gz") else "in/a.png"
    (job,) = prepare(call, CLASSES, image, output).jobs
    assert job.file(".png") == Path(output)


def test_masks_of_an_earlier_call_below_the_truth_are_replaced(call):
    for flags in ("--truth truth", "--truth truth --overwrite"):
        prepare(call, CLASSES, "in/a.png", "truth/predicted", flags)
        touch(call, "truth/predicted/a.png")
