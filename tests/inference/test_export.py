"""Models for other programs: each format gives the logits of predict.py on any size, or is not written.

Modules: inference/export/__main__.py, inference/export/graph.py, inference/export/onnx.py.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from support.in_process import run_predict
from support.launches import launch, predict

from data_utils.image_io.resize import resize_image
from inference import Predictor
from inference.export import proof
from inference.export.graph import ExportedNetwork, resize_bicubic, resize_bytes
from inference.export.onnx import export_onnx, write_onnx
from inference.models import OnnxNetwork
from runtime.errors import ModelError
from unet import Preprocess, UNet, UNetConfig

PREPROCESS = Preprocess(
    scale=0.5,
    mean=(90.0,) * 3,
    std=(50.0,) * 3,
    class_names=("a", "b", "c"),
    class_values=((1, 2, 3), (4, 5, 6), (7, 8, 9)),
)
UNIT_RANGE = Preprocess(image_size=(40, 56), mean=(200.0,), std=(3.0,), detect_unit_range=True, pixel_types=("uint16",))
PREPROCESS_OF_POINTS = Preprocess(scale=0.5, mean=(90.0,) * 3, std=(50.0,) * 3)
LITE0 = {"model_type": "efficientnet_lite0", "num_channels": 3, "_name_or_path": "lite0"}
GREY_LITE0 = UNetConfig(1, 2, 4, 5, "instance", encoder=LITE0)
POINTS = {"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}
KINDS = {
    "instance": UNetConfig(3, 3, 4, 3, "instance", "bilinear", preprocess=PREPROCESS),
    "lite0": UNetConfig(3, 3, 4, 5, encoder=LITE0),
    "half-size outputs": UNetConfig(3, 3, 4, 5, encoder=LITE0, output_stride=2),
    "volumes": UNetConfig(1, 3, 4, 2, "instance", dims=3),
    "flat volumes": UNetConfig(1, 3, 4, 2, "batch", dims=3, kernels=((1, 3, 3),) * 3, strides=((1, 2, 2), (2, 2, 2))),
    "unit range": UNetConfig(1, 2, 4, 2, preprocess=UNIT_RANGE),
    "landmarks": UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS),
}


def network(norm: str, upsample: str) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 3, 4, 2, norm, upsample, preprocess=PREPROCESS)).eval()


NETWORKS = {
    "batch": ("batch", "transpose"),
    "group": ("group", "transpose"),
    "instance": ("instance", "bilinear"),
    "aligned": ("batch", "bilinear_aligned"),
}


@pytest.fixture(scope="module", params=NETWORKS.values(), ids=NETWORKS)
def onnx_file(request, tmp_path_factory):
    """A network, and the file that is written of it."""
    model = network(*request.param)
    file = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_onnx(model, file)
    return model, file


@pytest.fixture(scope="module")
def onnx_network(onnx_file):
    """A network, and the one that opens its file."""
    model, file = onnx_file
    return model, OnnxNetwork(file)


def test_an_onnx_file_holds_the_config_of_its_model(onnx_network):
    model, exported = onnx_network
    assert exported.config == model.config


@pytest.mark.parametrize(
    "shape", [(1, 47, 55), (3, 64, 64), (2, 8, 8), (1, 101, 9), (1, 5, 40), (1, 1, 1), (1, 15, 16), (1, 3, 300)]
)
def test_logits_of_an_onnx_file_are_torchs_on_every_size(onnx_network, shape):
    model, exported = onnx_network
    batch, *size = shape
    images = torch.rand(batch, 3, *size) * 255
    with torch.inference_mode():
        expected, got = model(images), exported(images)
    assert got.shape == expected.shape
    # float32, sums in another order: measured 6e-8 of 0.4, and 1.1e-5 of 1.4 where a norm sees few pixels
    assert (got - expected).abs().max() < (5e-7 if model.config.norm == "batch" else 5e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a.png, a model in model/, model.onnx, which the command has written of it, and what it printed."""
    folder = tmp_path_factory.mktemp("exported")
    network("batch", "transpose").save_pretrained(folder / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (93, 71, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "a.png")
    result = launch("-m", "inference.export", folder / "model", folder / "model.onnx")
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_the_command_writes_nothing_but_a_file_that_is_proved(exported):
    folder, printed = exported
    assert {path.name for path in folder.iterdir()} == {"model", "model.onnx", "a.png"}
    assert "its logits agree with torch's" in printed


@pytest.mark.parametrize("open_file", [lambda file: Predictor(str(file)), Predictor.from_pretrained])
def test_an_onnx_file_is_a_model_in_python(exported, open_file):
    folder, _ = exported
    expected = Predictor.from_pretrained(folder / "model")(folder / "a.png")
    answer = open_file(folder / "model.onnx")(folder / "a.png")
    np.testing.assert_allclose(answer.probabilities, expected.probabilities, rtol=0, atol=1e-6)  # measured 6e-8


def test_an_onnx_file_takes_pixels_as_they_are_in_image_files(exported):
    folder, _ = exported
    pixels = np.asarray(Image.open(folder / "a.png"), np.float32).transpose(2, 0, 1)[None]  # twice the network's size
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    (logits,) = session.run(["logits"], {"images": pixels})
    expected = Predictor.from_pretrained(folder / "model").mask(folder / "a.png")
    np.testing.assert_array_equal(logits[0].argmax(0), expected)


def test_predict_writes_the_same_mask_of_an_onnx_file(exported, tmp_path):
    folder, _ = exported
    of_folder = predict(folder / "model", [folder / "a.png"], tmp_path / "folder")
    assert of_folder.returncode == 0, of_folder.stderr
    of_file = predict(folder / "model.onnx", [folder / "a.png"], tmp_path / "file")
    assert of_file.returncode == 0, of_file.stderr
    assert (tmp_path / "file" / "a.png").read_bytes() == (tmp_path / "folder" / "a.png").read_bytes()


SIZES = pytest.mark.parametrize(
    ("size", "target"), [((97, 131), (48, 65)), ((15, 15), (7, 7)), ((1, 1), (1, 1)), ((40, 30), (64, 9))]
)


@pytest.mark.parametrize("channels", [1, 3, 4])
@SIZES
def test_the_graph_resizes_bytes_as_predict_py_does(channels, size, target):
    image = np.random.default_rng(0).integers(0, 256, (*size, channels), dtype=np.uint8)
    expected = resize_image(image, target).transpose(2, 0, 1)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    np.testing.assert_array_equal(resize_bytes(pixels, target)[0], expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
@SIZES
def test_the_graph_resizes_real_numbers_as_predict_py_does(channels, size, target):
    image = np.random.default_rng(0).normal(1000, 300, (*size, channels)).astype(np.float32)
    expected = resize_image(image, target).transpose(2, 0, 1)
    resized = resize_bicubic(torch.from_numpy(image).permute(2, 0, 1)[None], target)[0]
    np.testing.assert_allclose(resized, expected, rtol=2e-7)  # each processor sums in its own order


def checked_batches(config: UNetConfig) -> list[np.ndarray]:
    """Images or volumes of several sizes, also of one pixel."""
    sizes = [(2, 37, 53), (1, 3, 40), (1, 32, 8), (1, 12, 13), (1, 1, 1)]
    if config.dims == 3:
        sizes = [(2, 9, 19, 26), (1, 8, 5, 5), (1, 4, 9, 10), (1, 3, 3, 5)]
    return [proof.images_of(config, size) for size in sizes]


def check_exported_network(model: UNet, batches: list[np.ndarray]) -> None:
    """What is exported of a model answers as predict.py does."""
    for images, expected in zip(batches, proof.expected_logits(model, batches), strict=True):
        with torch.inference_mode():
            answer = ExportedNetwork(model)(torch.from_numpy(images.astype(np.float32)))
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-4)


MIXED = Preprocess(scale=0.5, mean=(500.0,), std=(100.0,), pixel_types=("uint16", "uint8"))
MORE_KINDS = {**KINDS, "lite0 of grey images": GREY_LITE0, "mixed": UNetConfig(1, 2, 4, 2, "group", preprocess=MIXED)}


@pytest.mark.parametrize("config", MORE_KINDS.values(), ids=MORE_KINDS)
def test_the_network_that_is_exported_computes_all_that_predict_py_does(config):
    torch.manual_seed(0)
    check_exported_network(UNet(config).eval(), checked_batches(config))


def test_the_network_that_is_exported_finds_the_unit_range_of_each_image():
    torch.manual_seed(0)
    config = KINDS["unit range"]
    images = checked_batches(config)[0]
    ones = np.ones_like(images)
    check_exported_network(UNet(config).eval(), [ones, np.concatenate([images[:1], ones[:1]])])


@pytest.mark.slow
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_all_kinds_of_models_are_proved(config, tmp_path):
    torch.manual_seed(0)
    export_onnx(UNet(config), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (".", "is a folder, and --to onnx writes a file"),
        ("lost/model.onnx", "/lost is not there"),
        ("model.zip", "the name must end in .onnx"),
        ("kept.onnx", "is there already; choose another, or give --overwrite"),
    ],
)
def test_an_output_that_cannot_be_is_a_one_line_error_and_nothing_is_lost(exported, tmp_path, fails_with, name, line):
    folder, _ = exported
    (tmp_path / "kept.onnx").write_text("kept")
    fails_with(launch("-m", "inference.export", folder / "model", tmp_path / name), line, 1)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.slow
def test_a_file_whose_logits_differ_is_not_kept(tmp_path, monkeypatch):
    model = network("batch", "transpose")
    monkeypatch.setattr(proof, "TOLERANCE", 1e-9)
    with pytest.raises(ModelError, match="answers differ from torch's"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_onnx_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        Predictor(str(tmp_path / "none.onnx"))


def test_an_onnx_file_that_is_damaged_is_a_one_line_error(tmp_path, fails_with):
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    result = predict(tmp_path / "bad.onnx", [tmp_path], tmp_path / "out")
    fails_with(result, "bad.onnx: cannot be loaded", 1)


@pytest.fixture(scope="module")
def small_onnx_file(tmp_path_factory):
    """The file of a small network."""
    file = tmp_path_factory.mktemp("small") / "model.onnx"
    write_onnx(network("batch", "transpose"), file)
    return file


def test_an_onnx_file_of_another_program_is_refused(tmp_path, small_onnx_file):
    foreign = onnx.load(small_onnx_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(ModelError, match=r"must be written by `python -m inference\.export"):
        OnnxNetwork(tmp_path / "foreign.onnx")


@pytest.mark.parametrize("config", ["{", "[]", '{"norm": "none"}'], ids=["cut off", "a list", "an unknown norm"])
def test_an_onnx_file_whose_config_is_damaged_is_refused(tmp_path, small_onnx_file, config):
    damaged = onnx.load(small_onnx_file)
    onnx.helper.set_model_props(damaged, {"config": config})
    onnx.save(damaged, tmp_path / "damaged.onnx")
    with pytest.raises(ModelError, match=r"damaged\.onnx: cannot be loaded: "):
        OnnxNetwork(tmp_path / "damaged.onnx")


def changed(file: Path, change: Callable[[np.ndarray], np.ndarray], kinds: tuple[int, ...]) -> None:
    """Change the last constant or weight of these kinds in the file of a network."""
    content = onnx.load(file)
    constants = [node.attribute[0].t for node in content.graph.node if node.op_type == "Constant"]
    tensors = [tensor for tensor in [*content.graph.initializer, *constants] if tensor.data_type in kinds]
    values = onnx.numpy_helper.to_array(tensors[-1])
    tensors[-1].CopyFrom(onnx.numpy_helper.from_array(change(values), tensors[-1].name))
    onnx.save(content, file)


def test_an_onnx_file_of_damaged_indices_is_a_one_line_error(tmp_path, small_onnx_file, fails_with):
    Image.new("RGB", (41, 37)).save(tmp_path / "a.png")
    file = tmp_path / "damaged.onnx"
    file.write_bytes(small_onnx_file.read_bytes())
    changed(file, lambda values: np.full_like(values, 9_999), (onnx.TensorProto.INT64,))
    result = run_predict("--model", file, "--input", tmp_path / "a.png", "--output", tmp_path / "out")
    fails_with(result, "damaged.onnx: ", 1)


def test_answers_that_are_no_numbers_fail_with_their_image(tmp_path, small_onnx_file):
    Image.new("RGB", (41, 37)).save(tmp_path / "a.png")
    file = tmp_path / "nan.onnx"
    file.write_bytes(small_onnx_file.read_bytes())
    changed(file, lambda values: values * np.nan, (onnx.TensorProto.FLOAT,))
    result = run_predict("--model", file, "--input", tmp_path / "a.png", "--output", tmp_path / "out", "--uncertainty")
    assert result.returncode == 1
    assert "0 of 1 masks" in result.stdout
    assert f"{tmp_path / 'a.png'}: the network's outputs are not finite numbers" in result.stderr
    assert not list((tmp_path / "out").glob("*.png"))


def test_a_model_that_is_not_there_is_not_exported(tmp_path, fails_with):
    result = launch("-m", "inference.export", tmp_path / "nowhere", tmp_path / "a.onnx")
    fails_with(result, f"{tmp_path / 'nowhere'}: is not a folder with config.json", 1)
    assert result.stderr.startswith("export: error: ")
    assert not (tmp_path / "a.onnx").exists()


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="pip install onnx onnxruntime"):
        OnnxNetwork(Path(tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (["--license", "mit"], 1, "--license and --author are not for --to onnx"),
        (["--to", "bioimageio", "--author", "A", "--license", "mit"], 1, "the name must end in .zip"),
        (["--to", "openvino"], 2, "OpenVINO reads the file of --to onnx"),
        (["--to", "torch"], 2, "torch is no longer written: use --to onnx"),
        (["--to", "hub"], 2, "hub is no longer written: use --to onnx"),
        (["--to", "tflite"], 2, "tflite: take one of onnx, bioimageio"),
    ],
    ids=["a flag of another format", "a name of another format", "openvino", "torch", "hub", "no format"],
)
def test_what_cannot_be_written_is_refused_in_one_line(exported, tmp_path, fails_with, flags, code, line):
    folder, _ = exported
    fails_with(launch("-m", "inference.export", folder / "model", tmp_path / "a", *flags), line, code)
    assert list(tmp_path.iterdir()) == []
