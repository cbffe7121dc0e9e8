"""ONNX: the file gives torch's own logits on any size, and predicts as the model does.

Modules: inference/export/onnx.py, inference/export/__main__.py, inference/onnx_network.py.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import ROOT, launch
from PIL import Image

from inference import Predictor
from inference.export.onnx import export
from inference.onnx_network import OnnxNetwork
from runtime.errors import ModelError
from unet import Preprocess, UNet, UNetConfig

PREPROCESS = Preprocess(
    scale=0.5,
    mean=(90.0,) * 3,
    std=(50.0,) * 3,
    class_names=("a", "b", "c"),
    class_values=((1, 2, 3), (4, 5, 6), (7, 8, 9)),
)


def network(norm: str, upsample: str) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 3, 4, 3, norm, upsample, preprocess=PREPROCESS)).eval()


@pytest.mark.parametrize(
    ("norm", "upsample"),
    [("batch", "transpose"), ("group", "transpose"), ("instance", "bilinear"), ("batch", "bilinear_aligned")],
)
def test_logits_are_torchs_on_every_size(norm, upsample, tmp_path):
    model = network(norm, upsample)
    export(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    exported = OnnxNetwork(tmp_path / "model.onnx")
    assert exported.config == model.config
    for shape in ((1, 47, 55), (3, 64, 64), (2, 8, 8), (1, 101, 9), (1, 5, 40), (1, 1, 1), (1, 15, 16), (1, 3, 300)):
        images = torch.rand(shape[0], 3, *shape[1:]) * 255
        with torch.inference_mode():
            expected, got = model(images), exported(images)
        assert got.shape == expected.shape
        # float32, sums in another order: measured 6e-8 of 0.4, and 1.1e-5 of 1.4 where a norm sees few pixels
        assert (got - expected).abs().max() < (5e-7 if norm == "batch" else 5e-5)


def test_the_command_writes_a_file_that_predict_and_python_take(tmp_path):
    network("batch", "transpose").save_pretrained(tmp_path / "model")
    file, image = tmp_path / "model.onnx", tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (93, 71, 3), dtype=np.uint8)).save(image)
    result = launch("-m", "inference.export", tmp_path / "model", file)
    assert result.returncode == 0, result.stderr
    assert "its logits agree with torch's" in result.stdout
    expected = Predictor.from_pretrained(tmp_path / "model")(image)
    for predictor in (Predictor(str(file)), Predictor.from_pretrained(file)):
        np.testing.assert_allclose(predictor(image).probabilities, expected.probabilities, rtol=0, atol=1e-6)  # 6e-8
    for model, output in ((tmp_path / "model", "one"), (file, "two")):
        result = launch("predict.py", "--model", model, "--input", image, "--output", tmp_path / output)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "one" / "a.png").read_bytes() == (tmp_path / "two" / "a.png").read_bytes()


def test_a_file_whose_logits_differ_is_not_kept(tmp_path, monkeypatch):
    model = network("batch", "transpose")
    monkeypatch.setattr(OnnxNetwork, "forward", lambda self, images: model(images) + 0.01)
    with pytest.raises(ModelError, match="logits differ from torch's"):
        export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_exported_model_says_so(tmp_path, fails_with):
    with pytest.raises(ModelError, match="no such file"):
        Predictor(str(tmp_path / "none.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    result = launch("predict.py", "--model", tmp_path / "bad.onnx", "--input", tmp_path, "--output", tmp_path / "out")
    fails_with(result, "bad.onnx: cannot be loaded", 1)
    export(network("batch", "transpose"), tmp_path / "model.onnx")
    foreign = onnx.load(tmp_path / "model.onnx")
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(ModelError, match=r"must be written by `python -m inference\.export"):
        OnnxNetwork(tmp_path / "foreign.onnx")
    result = launch("-m", "inference.export", tmp_path / "nowhere", tmp_path / "a.onnx")
    fails_with(result, f"{tmp_path / 'nowhere'}: is not a folder with config.json", 1)
    assert result.stderr.startswith("export: error: ")
    assert not (tmp_path / "a.onnx").exists()


def test_onnxruntime_is_imported_only_when_used():
    code = "import sys, unet, inference; sys.exit('onnxruntime' in sys.modules or 'onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="pip install onnx onnxruntime"):
        OnnxNetwork(Path(tmp_path / "model.onnx"))
