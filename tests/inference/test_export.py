"""Models for other programs: each format gives the logits of predict.py on any size, or is not written.

Modules: inference/export/__main__.py, inference/export/export_format.py, inference/export/export_formats.py,
inference/export/graph.py, inference/export/onnx.py, inference/export/openvino.py, inference/export/torch.py,
inference/onnx_network.py.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from openvino import opset13
from PIL import Image
from support.exports import KINDS, LITE0, POINTS, PREPROCESS, PREPROCESS_OF_POINTS, UNIT_RANGE
from support.launches import ROOT, launch, predict
from support.networks import export

from data_utils.image_io.resize import resize_image
from inference import Predictor
from inference.export import __main__ as command
from inference.export import export_format as export_format_module
from inference.export import opener, proof
from inference.export.export_format import ExportFormat, Options, export_proved
from inference.export.export_formats import EXPORT_FORMATS
from inference.export.graph import ExportedNetwork, ProbabilityNetwork, resize_bicubic, resize_bytes
from inference.export.onnx import Onnx, traced_images
from inference.export.openvino import largest_class
from inference.onnx_network import OnnxNetwork
from runtime.errors import ModelError, SettingsError, WriteError
from unet import Preprocess, UNet, UNetConfig


def network(norm: str, upsample: str) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 3, 4, 2, norm, upsample, preprocess=PREPROCESS)).eval()


NETWORKS = {
    "batch": ("batch", "transpose"),
    "group": ("group", "transpose"),
    "instance": ("instance", "bilinear"),
    "aligned": ("batch", "bilinear_aligned"),
}


GREY_LITE0 = UNetConfig(1, 2, 4, 5, "instance", encoder=LITE0)


@pytest.fixture(scope="module", params=NETWORKS.values(), ids=NETWORKS)
def onnx_file(request, tmp_path_factory):
    """A network, and the file that is written of it."""
    model = network(*request.param)
    file = tmp_path_factory.mktemp("onnx") / "model.onnx"
    Onnx().write(model, file, Options())
    return model, file


@pytest.fixture(scope="module")
def onnx_network(onnx_file):
    """A network, and the one that opens its file."""
    model, file = onnx_file
    return model, OnnxNetwork(file)


def test_an_onnx_file_holds_the_config_of_its_model(onnx_network):
    model, exported = onnx_network
    assert exported.config == model.config


@pytest.mark.parametrize("side", ["input", "output"])
def test_an_onnx_file_names_the_axes_that_may_have_any_size(onnx_file, side):
    _, file = onnx_file
    value = getattr(onnx.load(file).graph, side)[0]
    batch, _, *axes = [axis.dim_param for axis in value.type.tensor_type.shape.dim]
    assert batch == "batch"
    assert axes == ["height", "width"]


def test_images_that_are_traced_have_the_channels_of_images_and_odd_sides():
    assert traced_images(GREY_LITE0).shape == (2, 1, 63, 127)


def test_an_onnx_file_says_how_its_logits_are_decoded(onnx_file):
    _, file = onnx_file
    texts = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert texts["decoding"] == "the class of a pixel is the index of its largest logit"


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
    np.testing.assert_array_equal(resize_bicubic(torch.from_numpy(image).permute(2, 0, 1)[None], target)[0], expected)


def test_a_model_that_torch_does_not_export_is_refused_and_keeps_its_layers(tmp_path, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("no such\nlayer")

    monkeypatch.setattr(torch.export, "export", refuse)
    model = UNet(UNetConfig(1, 2, 2, 1)).eval()
    layers = [type(module) for module in model.modules()]
    with pytest.raises(ModelError, match=r"^torch\.export takes no such network: no such layer; encoders whose layers"):
        EXPORT_FORMATS["torch"].write(model, tmp_path / "model.pt2", Options())
    assert [type(module) for module in model.modules()] == layers


@pytest.mark.slow
def test_a_program_of_torch_takes_raw_images_of_any_size(tmp_path):
    model = network("batch", "transpose")
    export_proved(EXPORT_FORMATS["torch"], model, tmp_path / "model.pt2", Options())
    texts = {"config.json": "", "description.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=texts).module()
    assert UNetConfig.from_json(json.loads(texts["config.json"])) == model.config
    assert "largest logit" in json.loads(texts["description.json"])["decoding"]
    predictor = Predictor(model)
    for size in ((97, 131), (15, 15), (1, 2)):
        image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
        with torch.inference_mode():
            logits = program(torch.from_numpy(image).permute(2, 0, 1)[None].float())
        np.testing.assert_array_equal(logits[0].argmax(0), predictor.mask(image))


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


def test_the_network_that_is_exported_finds_no_unit_range_of_a_channel_alone():
    torch.manual_seed(0)
    config = UNetConfig(2, 2, 4, 2, preprocess=replace(UNIT_RANGE, mean=(200.0,) * 2, std=(3.0,) * 2))
    images = checked_batches(config)[0]
    images[:, 1] = 1
    check_exported_network(UNet(config).eval(), [images])


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_model_keeps_its_layers_when_it_is_exported(config):
    model = UNet(config).eval()
    layers = [type(module) for module in model.modules()]
    proof.expected_logits(model, checked_batches(config)[-1:])
    assert [type(module) for module in model.modules()] == layers


def test_an_image_of_a_unit_range_is_left_as_it_is_where_nothing_is_to_be_prepared():
    torch.manual_seed(0)
    model = UNet(KINDS["unit range"]).eval()
    images = torch.rand(2, 1, 9, 12)
    with torch.inference_mode():
        answer = ExportedNetwork(model)(images, torch.tensor(False))
        torch.testing.assert_close(answer, model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "probabilities_of"),
    [(None, lambda logits: logits.softmax(dim=1)), ({"name": "overlapping"}, torch.sigmoid)],
    ids=["classes", "classes that overlap"],
)
def test_a_network_that_answers_probabilities_has_those_of_its_task(task, probabilities_of):
    torch.manual_seed(0)
    preprocess = Preprocess(class_names=("a", "b", "c"))
    model = UNet(UNetConfig(1, 3, 4, 2, "group", task=task, preprocess=preprocess)).eval()
    images = torch.rand(2, 1, 9, 12)
    with torch.inference_mode():
        torch.testing.assert_close(ProbabilityNetwork(model)(images), probabilities_of(model(images)))


@pytest.mark.slow
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("target", ["onnx", "torch"])
def test_all_kinds_of_models_are_proved(config, target, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / f"model{EXPORT_FORMATS[target].suffix}"
    export_proved(EXPORT_FORMATS[target], UNet(config), path, Options())
    assert path.is_file()


class Empty(ExportFormat):
    """A format of an empty file."""

    runtime = "nothing"
    openers = ("onnx", "torch")

    def hint(self, config: UNetConfig) -> str:
        return "take another" if config.norm == "batch" else ""

    def write(self, model: UNet, path: Path, options: Options) -> None:
        assert not model.training
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        path.touch()


def test_a_file_is_checked_by_each_opener_of_its_format(tmp_path, monkeypatch):
    calls = []

    def check_answers(opener: str, runtime: str, path: Path, batches: list, expected: list) -> None:
        assert path.is_file()
        calls.append((opener, runtime, len(batches), [len(answer) for answer in expected]))

    monkeypatch.setattr(export_format_module, "check_answers", check_answers)
    export_proved(Empty(), UNet(UNetConfig(1, 2, 2, 1, dims=3)).half().train(), tmp_path / "a", Options())
    assert calls == [(name, "nothing", 5, [1, 2, 1, 1, 3]) for name in ("onnx", "torch")]
    assert (tmp_path / "a").is_file()


@pytest.mark.parametrize(
    ("norm", "line"), [("batch", "its answers differ; take another"), ("group", "its answers differ")]
)
def test_a_refusal_of_a_file_says_the_hint_of_its_format(norm, line, tmp_path, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise ModelError("its answers differ")

    monkeypatch.setattr(export_format_module, "check_answers", refuse)
    with pytest.raises(ModelError, match=f"^{line}$"):
        export_proved(Empty(), UNet(UNetConfig(1, 2, 2, 1, norm, dims=3)), tmp_path / "b", Options())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["no_such_package", "json.no_such_package"])
def test_a_package_that_a_format_needs_is_named_with_its_installation(package):
    with pytest.raises(ModelError, match=rf"^{package} is not installed: pip install x$"):
        export_format_module.import_package(package, "pip install x")


@pytest.mark.parametrize(("target", "package"), [("onnx", "onnxruntime"), ("openvino", "onnx")])
def test_a_package_that_only_some_steps_need_is_named_before_anything_is_written(
    target, package, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError, match=f"^{package} is not installed: "):
        EXPORT_FORMATS[target].write(UNet(UNetConfig(1, 2, 2, 1)), tmp_path / "model", Options())
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_installed_but_broken_says_so_itself(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_package.py").write_text("raise ImportError('no libGL.so.1')")
    with pytest.raises(ImportError, match=r"^no libGL\.so\.1$"):
        export_format_module.import_package("broken_package", "pip install x")


@pytest.mark.parametrize(
    ("target", "kind", "hint"),
    [
        ("onnx", "lite0", "encoders with window attention (Swin) cannot be exported"),
        ("openvino", "unit range", "just as predict.py does: take --to onnx"),
    ],
)
def test_a_format_hints_at_what_its_runtime_does_not_take(target, kind, hint):
    assert EXPORT_FORMATS[target].hint(KINDS[kind]).endswith(hint)


@pytest.mark.parametrize(
    ("preprocess", "is_resized"),
    [(Preprocess(), False), (Preprocess(scale=0.5), True), (Preprocess(image_size=(8, 8)), True)],
    ids=["own size", "scale", "size"],
)
def test_openvino_is_not_for_images_that_are_resized(preprocess, is_resized):
    config = UNetConfig(base_channels=1, depth=1, preprocess=preprocess)
    assert (EXPORT_FORMATS["openvino"].hint(config) != "") is is_resized


@pytest.mark.parametrize(("target", "kind"), [("onnx", "volumes"), ("openvino", "lite0"), ("openvino", "volumes")])
def test_a_format_hints_at_nothing_where_its_runtime_takes_all(target, kind):
    assert EXPORT_FORMATS[target].hint(KINDS[kind]) == ""


def test_an_exported_file_of_images_says_the_axes_of_what_it_takes():
    text = EXPORT_FORMATS["onnx"].description(KINDS["lite0"])["images"]
    assert text == "(batch, channels, height, width), pixel values as they are in image files"


def test_an_exported_file_of_volumes_says_how_they_are_to_be_prepared():
    text = EXPORT_FORMATS["onnx"].description(KINDS["volumes"])["images"]
    assert text.startswith("(batch, channels, depth, height, width), voxels clipped, standardized and resampled")
    assert "`preprocess` in the config" in text


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (KINDS["lite0"], "of the size of the images"),
        (KINDS["volumes"], "of the size of the images"),
        (KINDS["instance"], "of the size of the images"),
        (UNetConfig(3, 2, 4, 2, task=POINTS), "of the size of the images"),
        (KINDS["landmarks"], "of the size at which the network sees the images"),
        (
            UNetConfig(3, 2, 4, 2, task=POINTS, preprocess=Preprocess(scale=2)),
            "of the size at which the network sees the images",
        ),
    ],
    ids=["encoder", "volumes", "resized", "points", "resized points", "enlarged points"],
)
def test_an_exported_file_says_the_size_of_its_logits(config, size):
    assert EXPORT_FORMATS["onnx"].description(config)["logits"] == size


MODELS = {"runs/x/model": UNetConfig(3, 2, 2, 1), "me/liver": UNetConfig(1, 2, 2, 1, dims=3)}


@pytest.fixture
def run_command(monkeypatch, capsys):
    """Runs the command on one of MODELS; answers the arguments of `export_proved`, and what was printed."""
    calls = []
    monkeypatch.setattr(UNet, "from_pretrained", lambda name: UNet(MODELS[name]))
    monkeypatch.setattr(command, "export_proved", lambda *arguments: calls.append(arguments))

    def run(*words: str | Path) -> tuple[tuple, str]:
        monkeypatch.setattr(sys, "argv", ["export", *map(str, words)])
        command.main()
        return calls[-1], capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("name", "flags", "proved"),
    [
        ("runs/x/model", [], "in onnxruntime its logits agree with torch's to 0.0001 on 7 image sizes"),
        ("me/liver", ["--to", "torch"], "in torch its logits agree with torch's to 0.0001 on 5 image sizes"),
        (
            "runs/x/model",
            ["--to", "openvino", "--mask"],
            "in OpenVINO its masks are those of predict.py on 7 image sizes",
        ),
    ],
    ids=["onnx", "torch", "openvino"],
)
def test_the_command_says_what_was_proved(run_command, tmp_path, name, flags, proved):
    _, printed = run_command(name, tmp_path / "a", *flags)
    assert printed == f"wrote {tmp_path / 'a'}; {proved}\n"


@pytest.mark.parametrize(
    ("name", "target", "flags", "options"),
    [
        ("runs/x/model", "onnx", [], Options(folder=Path("runs/x/model"))),
        ("me/liver", "torch", ["--to", "torch"], Options(folder=Path("me/liver"))),
        (
            "runs/x/model",
            "openvino",
            ["--to", "openvino", "--mask"],
            Options(mask=True, folder=Path("runs/x/model")),
        ),
        (
            "runs/x/model",
            "bioimageio",
            ["--to", "bioimageio", "--license", "mit", "--author", "A", "--author", "B"],
            Options("mit", ["A", "B"], None, Path("runs/x/model")),
        ),
    ],
    ids=["onnx", "torch", "openvino", "bioimageio"],
)
def test_the_command_passes_its_flags_on(run_command, tmp_path, name, target, flags, options):
    (export_format, model, file, given_options), _ = run_command(name, tmp_path / "a", *flags)
    assert export_format == EXPORT_FORMATS[target]
    assert model.config == MODELS[name]
    assert file == tmp_path / "a"
    assert given_options == options


def test_the_command_names_a_file_that_cannot_be_written(run_command, tmp_path, monkeypatch):
    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(command, "export_proved", full_disk)
    with pytest.raises(WriteError, match=r"a: cannot be written \(\[Errno 28\] No space left\)$"):
        run_command("runs/x/model", tmp_path / "a")


@pytest.mark.parametrize("name", ["model_pt2", "model.zip"])
def test_a_program_of_torch_needs_the_name_that_torch_asks_for(name, tmp_path):
    with pytest.raises(SettingsError, match=rf"{name}: the name must end in \.pt2"):
        export_proved(EXPORT_FORMATS["torch"], UNet(UNetConfig(1, 2, 4, 2, dims=3)), tmp_path / name, Options())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "options", "line"),
    [
        ("onnx", Options(license="mit"), "--license is not for --to onnx"),
        ("onnx", Options(license=""), "--license is not for --to onnx"),
        ("hub", Options(license="mit", mask=True), "--mask is not for --to hub"),
    ],
    ids=["license", "empty license", "mask beside a license"],
)
def test_a_flag_is_refused_where_a_format_has_no_place_for_it(target, options, line, tmp_path):
    with pytest.raises(SettingsError, match=line):
        export_proved(EXPORT_FORMATS[target], UNet(UNetConfig(1, 2, 4, 2, dims=3)), tmp_path / "a", options)
    assert list(tmp_path.iterdir()) == []


def write_openvino(model: UNet, folder: Path, options: Options) -> None:
    """Write a folder of OpenVINO without any proof, which takes seconds."""
    folder.mkdir()
    EXPORT_FORMATS["openvino"].write(model, folder, options)


def write_proved_openvino(model: UNet, folder: Path, options: Options) -> None:
    """Write a folder of OpenVINO that is proved."""
    export_proved(EXPORT_FORMATS["openvino"], model, folder, options)


@pytest.mark.parametrize(
    "write", [write_openvino, pytest.param(write_proved_openvino, marks=pytest.mark.slow)], ids=["plain", "proved"]
)
@pytest.mark.parametrize(
    ("mask", "output", "decode"),
    [(None, "logits", lambda answer: answer.argmax(0)), (True, "mask", lambda answer: answer)],
    ids=["logits", "mask"],
)
def test_openvino_takes_bytes_and_answers_logits_or_masks(mask, output, decode, write, tmp_path):
    torch.manual_seed(0)
    preprocess = Preprocess(mean=(90.0,) * 3, std=(50.0,) * 3, pixel_types=("uint8",))
    model = UNet(UNetConfig(3, 3, 4, 3, preprocess=preprocess)).eval()
    write(model, tmp_path / "ir", Options(mask=mask))
    assert {path.name for path in (tmp_path / "ir").iterdir()} == {"model.xml", "model.bin"}
    network = openvino.compile_model(tmp_path / "ir" / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    image = np.random.default_rng(0).integers(0, 256, (97, 131, 3), dtype=np.uint8)
    answer = network({"images": image.transpose(2, 0, 1)[None]})[output].copy()
    del network  # OpenVINO leaves a dead stack for signals where the first of two networks ends first
    of_proof = opener.OPENERS["openvino"](str(tmp_path / "ir"))
    np.testing.assert_array_equal(of_proof(image.transpose(2, 0, 1)[None]), answer)
    np.testing.assert_array_equal(decode(answer[0]), Predictor(model).mask(image))


@pytest.mark.parametrize("pixel_types", [("uint16", "uint8"), ()], ids=["mixed", "unknown"])
def test_openvino_takes_numbers_where_not_all_images_are_known_to_have_bytes(pixel_types, tmp_path):
    preprocess = Preprocess(pixel_types=pixel_types, class_names=("a", "b"))
    model = UNet(UNetConfig(3, 2, 2, 1, preprocess=preprocess, task={"name": "overlapping"})).eval()
    EXPORT_FORMATS["openvino"].write(model, tmp_path, Options())
    network = openvino.Core().read_model(tmp_path / "model.xml")
    assert network.input(0).element_type == openvino.Type.f32
    config = json.loads(network.get_rt_info(["unet_accelerate", "config"]).value)
    assert UNetConfig.from_json(config) == model.config
    assert network.get_rt_info(["unet_accelerate", "decoding"]).value == "a pixel has each class whose logit is above 0"


def test_the_mask_of_openvino_has_the_first_of_equal_classes_in_32_bits():
    logits = opset13.parameter([1, 3, 4], np.float32)
    network = openvino.compile_model(openvino.Model([largest_class(logits)], [logits]), "CPU")
    mask = network(np.array([[[1, 0, 5, 2], [1, 2, 5, 0], [0, 2, 5, 2]]], np.float32))[0]
    assert mask.dtype == np.int32
    assert mask.tolist() == [[0, 1, 0, 0]]


def test_openvino_keeps_the_type_of_weights(tmp_path):
    EXPORT_FORMATS["openvino"].write(UNet(UNetConfig(1, 2, 2, 1)).eval(), tmp_path, Options())
    operations = openvino.Core().read_model(tmp_path / "model.xml").get_ops()
    assert openvino.Type.f16 not in {op.output(0).element_type for op in operations if op.get_output_size()}


class TwoFiles(Empty):
    """A format of a folder, which nothing opens."""

    is_folder = True
    openers = ()

    def write(self, model: UNet, path: Path, options: Options) -> None:
        for name in ("model.xml", "model.bin"):
            (path / name).touch()


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    model = UNet(UNetConfig(3, 3, 4, 2))
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(SettingsError, match=r"model: is a folder with other files, which would be lost"):
        export_proved(TwoFiles(), model, tmp_path / "model", Options())
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_folder_of_an_earlier_export_is_replaced(tmp_path):
    (tmp_path / "ir").mkdir()
    for _ in range(2):
        export_proved(TwoFiles(), UNet(UNetConfig(3, 3, 4, 2)), tmp_path / "ir", Options())
    assert {path.name for path in (tmp_path / "ir").iterdir()} == {"model.xml", "model.bin"}


def test_a_folder_is_refused_where_a_format_writes_a_file(tmp_path):
    with pytest.raises(SettingsError, match=f"{tmp_path.name}: is a folder, and --to onnx writes a file"):
        export_proved(EXPORT_FORMATS["onnx"], UNet(UNetConfig(3, 3, 4, 2)), tmp_path, Options())
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_refused_where_a_format_writes_a_folder(tmp_path):
    (tmp_path / "model.xml").touch()
    with pytest.raises(SettingsError, match="is a file, and --to openvino writes a folder"):
        export_proved(EXPORT_FORMATS["openvino"], UNet(UNetConfig(3, 3, 4, 2)), tmp_path / "model.xml", Options())


def test_a_mask_is_refused_where_pixels_have_no_single_class(tmp_path):
    model = UNet(UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS))
    with pytest.raises(ModelError, match=r"--mask is for models of classes, and the task is landmarks"):
        export_proved(EXPORT_FORMATS["openvino"], model, tmp_path / "ir", Options(mask=True))


@pytest.mark.slow
def test_a_file_whose_logits_differ_is_not_kept(tmp_path, monkeypatch):
    model = network("batch", "transpose")
    monkeypatch.setattr(proof, "TOLERANCE", 1e-9)
    with pytest.raises(ModelError, match="answers differ from torch's"):
        export(model, tmp_path / "model.onnx")
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
    Onnx().write(network("batch", "transpose"), file, Options())
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


def test_an_onnx_file_whose_metadata_are_no_text_is_refused(tmp_path, small_onnx_file):
    content = small_onnx_file.read_bytes()
    (tmp_path / "no_text.onnx").write_bytes(content.replace(b'"in_channels"', b'"in_ch\xffnnels"'))
    with pytest.raises(ModelError, match=r"no_text\.onnx: its metadata are no text"):
        OnnxNetwork(tmp_path / "no_text.onnx")


def test_a_model_that_is_not_there_is_not_exported(tmp_path, fails_with):
    result = launch("-m", "inference.export", tmp_path / "nowhere", tmp_path / "a.onnx")
    fails_with(result, f"{tmp_path / 'nowhere'}: is not a folder with config.json", 1)
    assert result.stderr.startswith("export: error: ")
    assert not (tmp_path / "a.onnx").exists()


def test_a_file_without_a_name_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["export", "model", ""])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert capsys.readouterr().err.endswith("argument output: it is empty\n")


@pytest.mark.slow
def test_onnxruntime_is_imported_only_when_used():
    code = "import sys, unet, inference; sys.exit('onnxruntime' in sys.modules or 'onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="pip install onnx onnxruntime"):
        OnnxNetwork(Path(tmp_path / "model.onnx"))
