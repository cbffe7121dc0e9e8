"""app.py: the page's parts without Gradio; and, slow, the page itself in the environment that it needs.

Modules: inference/page.py.
"""

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from unittest import mock
from zipfile import ZipFile

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from support.forks import free_port
from support.formats import overlap_format
from support.launches import PROGRAMS, ROOT, predict

import app
from inference import Predictor
from inference.page import PagePredictor, page_job
from runtime.errors import ImageError, SettingsError, UsageError
from tasks.drawing import class_colors, colorize, outlined_overlay
from tasks.landmarks.loss import Landmarks
from tasks.prediction_files import write_png
from unet import Preprocess, UNet, UNetConfig

SERVING = ROOT / "docs" / "serving.md"
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "Dockerfile.app"]
IN_A_SPACE = ("app.py", "runtime", "unet", "tasks", "data_utils", "inference")  # beside requirements.txt and model/


@pytest.fixture(scope="module")
def page(model) -> PagePredictor:
    return PagePredictor(model)


@pytest.fixture
def images(photos, tmp_path) -> Path:
    """A copy of `photos`, since masks are written beside."""
    return shutil.copytree(photos, tmp_path / "images")


def pictures(html: str) -> list[Image.Image]:
    """The mask and the overlay, as the browser gets them."""
    encoded_pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(BytesIO(base64.b64decode(text))) for text in encoded_pictures]


def large_png(path: Path) -> Path:
    """Few bytes of 12,000 x 9,000 pixels."""
    with path.open("wb") as file:
        write_png(file, (9000, 12000), [np.zeros((1000, 12000), np.uint8)] * 9, 6)
    return path


@pytest.mark.parametrize("name", ["b.jpg", "sub/c.tif", "sub/d.npy"])
def test_the_mask_is_the_predictors_in_the_original_values(page, model, images, name):
    _, mask = page(str(images / name))
    expected = np.array([10, 200, 255])[Predictor(model).mask(images / name)]
    assert Path(mask).name == f"{Path(name).stem}.png"
    np.testing.assert_array_equal(np.asarray(Image.open(mask)), expected)


@pytest.mark.parametrize(("is_there", "device"), [(True, "meta"), (False, "cpu")])
def test_the_page_computes_on_the_accelerator_if_one_is_there(monkeypatch, model, is_there, device):
    """A PyTorch that was built for CUDA knows one on a computer without a GPU, too."""

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_there)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    assert PagePredictor(model).predictor.device.type == device


def test_the_first_page_of_a_tiff_of_16_bits_is_predicted(page, model, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**16, (3, 40, 30), dtype=np.uint16)
    tifffile.imwrite(tmp_path / "deep.tif", pixels, photometric="minisblack")
    html, mask = page(str(tmp_path / "deep.tif"))
    assert Path(mask).name == "deep_0001.png"  # as predict.py calls it
    expected = np.array([10, 200, 255])[Predictor(model).mask(pixels[0])]
    np.testing.assert_array_equal(np.asarray(Image.open(mask)), expected)
    assert [picture.size for picture in pictures(html)] == [(30, 40)] * 2


def test_the_browser_is_given_mask_and_overlay_of_predict_py_with_the_share_of_each_class(page, model, images):
    html, _ = page(str(images / "a.png"))
    indices, colors = Predictor(model).mask(images / "a.png"), class_colors((10, 200, 255))
    mask, shown = (np.asarray(picture) for picture in pictures(html))
    np.testing.assert_array_equal(mask, colorize(indices, colors))
    np.testing.assert_array_equal(shown, outlined_overlay(np.asarray(Image.open(images / "a.png")), indices, colors))
    legend = re.findall(r"</span>(\w+) ([\d.]+)%</li>", html)
    assert [name for name, _ in legend] == ["sky", "land", "sea"]
    shares = [100 * (indices == index).mean() for index in range(3)]
    np.testing.assert_allclose([float(share) for _, share in legend], shares, rtol=0, atol=0.051)


def test_a_large_image_is_shown_with_less_detail_than_its_mask_has(page, tmp_path):
    Image.new("RGB", (3000, 50)).save(tmp_path / "wide.png")
    html, mask = page(str(tmp_path / "wide.png"))
    assert {picture.size for picture in pictures(html)} == {(1000, 17)}
    assert Image.open(mask).size == (3000, 50)


def test_names_of_classes_are_no_html(tmp_path):
    preprocess = Preprocess(class_names=("<b>sky</b>", "sea & land"), class_values=((1, 2, 3), (4, 5, 6)))
    UNet(UNetConfig(3, 2, base_channels=4, depth=2, preprocess=preprocess)).save_pretrained(tmp_path / "model")
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    html, _ = PagePredictor(tmp_path / "model")(str(tmp_path / "a.png"))
    assert "background: rgb(1, 2, 3)" in html
    assert "&lt;b&gt;sky&lt;/b&gt;" in html
    assert "sea &amp; land" in html
    assert "background: rgb(4, 5, 6)" in html


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("large.png", "12,000 x 9,000 pixels"),
        ("long.tif", "1 x 700,000 pixels"),
        ("bands.tif", "300 x 1,000 pixels in 600 bands"),
        ("heavy.tif", "100.0 MB"),
    ],
)
def test_an_image_that_is_too_large_is_sent_to_predict_py(page, name, size, tmp_path):
    """A folder with images that are too large by their header, padded or in bands, and one that is by its bytes."""
    kinds = {"long.tif": ((700_000, 1), None), "bands.tif": ((600, 1000, 300), "separate")}
    shape, planes = kinds.get(name, ((1, 1), None))
    pixels = np.zeros(shape, np.uint8)
    tifffile.imwrite(tmp_path / name, pixels, photometric="minisblack", planarconfig=planes, compression="zlib")
    large_png(tmp_path / "large.png")
    with (tmp_path / "heavy.tif").open("wb") as file:
        file.truncate(100_000_001)
    html, mask = page(str(tmp_path / name))
    assert html.startswith(f'<p role="alert">{name}: has {size}, this page takes up to 40 megapixels and 100 MB')
    assert "predict.py" in html
    assert mask is None
    assert not (tmp_path / "mask").exists()


def test_without_a_file_nothing_is_shown(page):
    assert page(None) == ("", None)


@pytest.fixture
def app_folder(monkeypatch, tmp_path) -> Path:
    """The folder of app.py, which is called without flags or variables."""
    monkeypatch.setattr(app, "__file__", str(tmp_path / "app.py"))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    for name in ("MODEL", "GRADIO_SERVER_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_page_without_any_model_is_refused(app_folder):
    with pytest.raises(UsageError, match=r"--model .*model/ beside app\.py"):
        app.parse_args("")


def test_a_page_is_of_this_machine_alone(app_folder):
    (app_folder / "model").mkdir()
    args = app.parse_args("")
    assert args.host == "127.0.0.1"
    assert args.port is None


@pytest.mark.parametrize(
    ("variables", "flags", "model"),
    [
        ({}, [], "FOLDER/model"),
        ({"MODEL": ""}, [], "FOLDER/model"),
        ({"MODEL": "me/cells"}, [], "me/cells"),
        ({"MODEL": "me/cells"}, ["--model", "runs/x/model"], "runs/x/model"),
    ],
    ids=["beside the page", "empty variable", "variable", "flag"],
)
def test_the_model_of_a_page_is_that_of_the_flag_the_environment_or_its_folder(
    app_folder, monkeypatch, variables, flags, model
):
    (app_folder / "model").mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["app.py", *flags])
    assert app.parse_args("").model == model.replace("FOLDER", str(app_folder))


class Served:
    """Stands in for the serving of a page, and notes what it finds."""

    def serve(self, predict: PagePredictor, host: str, port: int | None) -> None:
        self.host, self.port = host, port
        self.uploads = Path(os.environ["GRADIO_TEMP_DIR"])
        self.had_uploads = self.uploads.is_dir()
        self.largest_image = Image.MAX_IMAGE_PIXELS


def test_a_page_is_served_where_the_flags_say_with_a_folder_of_uploads_that_goes_with_it(monkeypatch, model):
    served = Served()
    monkeypatch.setenv("GRADIO_TEMP_DIR", "elsewhere")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    monkeypatch.setattr(app, "serve", served.serve)
    monkeypatch.setattr(sys, "argv", ["app.py", "--model", str(model), "--host", "0.0.0.0", "--port", "7861"])
    app.main()
    assert served.host == "0.0.0.0"
    assert served.port == 7861
    assert served.uploads.name.startswith("segment-")
    assert served.had_uploads
    assert not served.uploads.exists()
    assert served.largest_image is None


def test_without_gradio_a_line_says_what_to_install(page, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    with pytest.raises(SettingsError, match=r"gradio.*pip install 'gradio<7'"):
        app.serve(page, "127.0.0.1", None)


@pytest.fixture
def gradio(monkeypatch) -> mock.MagicMock:
    """A stand-in for Gradio; its page can be asked how it was launched."""
    library = mock.MagicMock()
    library.page = library.Blocks.return_value.__enter__.return_value
    library.page.launch.return_value = (None, "http://here/", None)
    monkeypatch.setitem(sys.modules, "gradio", library)
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    return library


def test_a_page_is_launched_where_it_was_asked_to_be_and_keeps_uploads_to_itself(page, gradio, capsys):
    app.serve(page, "0.0.0.0", 7861)
    launched = gradio.page.launch.call_args.kwargs
    assert launched["server_name"] == "0.0.0.0"
    assert launched["server_port"] == 7861
    assert gradio.page.block_thread.called
    assert "open http://here/ in a browser" in capsys.readouterr().out
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert launched["share"] is False
    assert launched["run_history"] is False
    assert gradio.Blocks.call_args.kwargs["delete_cache"] == (60, 600)
    assert "deleted after 10 minutes" in gradio.Markdown.call_args.args[0]
    assert launched["max_file_size"] == 100_000_000


@pytest.mark.parametrize("error", [OSError("in use"), OverflowError("port must be 0-65535")])
@pytest.mark.parametrize(("port", "flags"), [(None, "--host here"), (99_999, "--host here --port 99999")])
def test_an_address_that_cannot_be_is_a_one_line_error(page, gradio, error, port, flags):
    gradio.page.launch.side_effect = error
    with pytest.raises(
        SettingsError, match=rf"^{flags}: is in use, or not an address of this machine; choose another$"
    ):
        app.serve(page, "here", port)


def test_classes_that_overlap_are_downloaded_together(tmp_path):
    preprocess = Preprocess(class_names=("a", "b/c"))
    torch.manual_seed(0)
    network = UNet(UNetConfig(3, 2, base_channels=4, depth=1, preprocess=preprocess, task={"name": "overlapping"}))
    network.save_pretrained(tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    html, archive = PagePredictor(tmp_path / "model")(str(tmp_path / "x.png"))
    bits = Predictor(network).mask(pixels)
    with ZipFile(archive) as masks:
        assert Path(archive).name == "x.zip"
        assert sorted(masks.namelist()) == ["a/x.png", "b_c/x.png"]
        for bit, name in enumerate(["a/x.png", "b_c/x.png"]):
            np.testing.assert_array_equal(np.asarray(Image.open(masks.open(name))), 255 * (bits >> bit & 1))
    assert re.findall(r"</span>([\w/]+) [\d.]+%</li>", html) == ["a", "b/c"]


def test_objects_are_shown_numbered_and_counted(tmp_path):
    torch.manual_seed(0)
    task = {"name": "objects", "classes": ["background", "cell"], "smallest": 1}
    network = UNet(UNetConfig(3, 3, base_channels=4, depth=1, norm="group", task=task))
    network.save_pretrained(tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    html, file = PagePredictor(tmp_path / "model")(str(tmp_path / "x.png"))
    numbers = Predictor(network).mask(pixels)
    assert numbers.max() > 1
    np.testing.assert_array_equal(np.asarray(Image.open(file)), numbers)
    np.testing.assert_array_equal(np.asarray(pictures(html)[0]).any(axis=2), numbers > 0)
    assert f'<ul class="classes"><li>{numbers.max()} objects</li></ul>' in html


def test_points_are_shown_on_the_image(tmp_path):
    task = Landmarks(("nose", "ear"), partners=(0, 1), layout="long", space="pixels")
    network = UNet(UNetConfig(3, 2, base_channels=4, depth=1, task=task.to_config()))
    network.save_pretrained(tmp_path / "model")
    Image.new("RGB", (30, 20)).save(tmp_path / "x.png")
    html, file = PagePredictor(tmp_path / "model")(str(tmp_path / "x.png"))
    (picture,) = pictures(html)
    assert picture.size == (480, 320)
    assert Path(file).name == "x.csv"
    assert Path(file).is_file()
    assert re.findall(r"</span>(\w+)</li>", html) == ["nose", "ear"]


@pytest.mark.parametrize("size", [None, 30], ids=["whole", "cut off"])
def test_a_volume_is_sent_to_predict_py(tmp_path, size):
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5), np.uint8), np.eye(4)), tmp_path / "v.nii.gz")
    (tmp_path / "v.nii.gz").write_bytes((tmp_path / "v.nii.gz").read_bytes()[:size])
    with pytest.raises(ImageError, match=r"^v\.nii\.gz: is a volume, but .*use predict\.py for it$"):
        page_job(tmp_path / "v.nii.gz", UNetConfig(), overlap_format("a"))


@pytest.mark.slow
def test_a_page_is_made_without_what_only_training_needs():
    names = ("accelerate", "datasets", "transformers", "nibabel", "tensorboard", "jinja2", "pyarrow")
    code = f"import sys; sys.modules.update(dict.fromkeys({names})); import inference.page"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def gradio_version() -> str:
    """The version of Gradio that the image of the page has."""
    (install,) = dockerfile_lines("RUN pip")
    return re.search(r"gradio==(\S+)", install)[1]


def test_the_documentation_says_what_a_space_needs():
    text = (ROOT / "docs" / "faq.md").read_text().split("### How do I publish the page")[1].split("\n### ")[0]
    assert all(name in text for name in IN_A_SPACE)
    assert f"sdk_version: {gradio_version()}\n" in text


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The interpreter of an environment of requirements.txt and Gradio."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--requirement", ROOT / "requirements.txt"]
    subprocess.run([*install, f"gradio=={gradio_version()}"], check=True, timeout=1800)
    return python


@pytest.fixture(scope="module")
def space(tmp_path_factory, model) -> Path:
    """What the README says to copy, and a folder for temporary files."""
    folder = tmp_path_factory.mktemp("space")
    shutil.copy(ROOT / "requirements.txt", folder)
    for name in IN_A_SPACE:
        (shutil.copy if name.endswith(".py") else shutil.copytree)(ROOT / name, folder / name)
    shutil.copytree(model, folder / "model")
    (folder / "tmp").mkdir()
    return folder


def start(python: Path, space: Path, *flags: str) -> subprocess.Popen:
    """`python app.py` in the Space's folder."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MODEL")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(space / "tmp")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([python, "app.py", *flags], cwd=space, env=environment, **pipes)


class Answers(NamedTuple):
    """What a Space has answered to good files and to bad ones, and what it said and kept."""

    good: list[tuple[Path, str, str]]
    cut: list
    large: list
    errors: str
    leftovers: list[Path]


@pytest.fixture(scope="module")
def upload_folder(photos, tmp_path_factory) -> Path:
    """A folder with photographs, also of 16 bits and in grey."""
    folder = shutil.copytree(photos, tmp_path_factory.mktemp("uploads") / "images")
    deep = np.random.default_rng(0).integers(0, 2**16, (60, 40, 3), dtype=np.uint16)
    tifffile.imwrite(folder / "deep.tif", deep, photometric="rgb")
    Image.fromarray(deep[:, :, 0]).save(folder / "grey.png")
    return folder


@pytest.fixture(scope="module")
def space_answers(python, space, upload_folder, tmp_path_factory) -> Answers:
    """The answers of a Space, which a program asks as a browser does."""
    folder = tmp_path_factory.mktemp("asked")
    good = sorted(file for file in upload_folder.rglob("*") if file.is_file())
    (folder / "cut.png").write_bytes((upload_folder / "a.png").read_bytes()[:500])
    bad = [folder / "cut.png", large_png(folder / "large.png")]
    server = start(python, space)
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
        command = [python, PROGRAMS / "drive_page.py", url, folder / "downloads", *good, *bad]
        driven = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=60)[1]
    assert driven.returncode == 0, driven.stderr + errors
    *of_good, cut, large = json.loads(driven.stdout)
    answers = [(file, html, mask) for file, (html, mask) in zip(good, of_good, strict=True)]
    return Answers(answers, cut, large, errors, list((space / "tmp").iterdir()))


@pytest.mark.slow
def test_a_space_serves_the_masks_of_predict_py(space_answers, model, upload_folder, tmp_path):
    assert predict(model, [upload_folder], tmp_path / "masks").returncode == 0
    for file, html, mask in space_answers.good:
        expected = (tmp_path / "masks" / file.relative_to(upload_folder)).with_suffix(".png")
        assert Path(mask).name == expected.name
        assert Path(mask).read_bytes() == expected.read_bytes()
        assert len(pictures(html)) == 2


@pytest.mark.slow
def test_a_space_answers_bad_files_with_a_line_and_keeps_nothing(space_answers):
    html, mask = space_answers.cut
    assert html.startswith('<p role="alert">cut.png: image cannot be read')
    assert mask is None
    html, mask = space_answers.large
    assert html.startswith('<p role="alert">large.png: has 12,000 x 9,000 pixels')
    assert mask is None
    assert "Traceback" not in space_answers.errors
    assert space_answers.leftovers == []


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "bash"])
def test_the_documented_ways_to_ask_a_page_get_its_mask(python, space, model, images, tmp_path, language):
    expected = np.array([10, 200, 255])[Predictor(model).mask(images / "a.png")]
    shutil.copy(images / "a.png", tmp_path / "cell.png")
    (program,) = re.findall(rf"^```{language}\n(.*?)^```", SERVING.read_text(), re.DOTALL | re.MULTILINE)
    command = {"python": [python, "-c"], "bash": ["bash", "-euc"]}[language]
    server = start(python, space, "--port", str(port := free_port()))
    try:
        server.stdout.readline()
        program = program.replace(":7860", f":{port}")
        process = subprocess.run([*command, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert process.returncode == 0, process.stderr
    mask = (process.stdout.splitlines() or [tmp_path / "mask.png"])[-1]
    np.testing.assert_array_equal(np.asarray(Image.open(mask)), expected)


def dockerfile_lines(instruction: str) -> list[str]:
    """What follows an instruction in the Dockerfile of the page."""
    lines = DOCKERFILES[1].read_text().splitlines()
    return [line.removeprefix(f"{instruction} ") for line in lines if line.startswith(f"{instruction} ")]


def test_the_image_of_the_page_holds_what_it_needs():
    copied = [line.split()[0] for line in dockerfile_lines("COPY")]
    assert sorted(copied) == sorted(["requirements.txt", *IN_A_SPACE])


def test_the_image_of_the_page_starts_it_for_other_machines(monkeypatch):
    (variables,) = dockerfile_lines("ENV")
    (command,) = dockerfile_lines("CMD")
    for name, value in re.findall(r"(\w+)=(\S+)", variables):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", json.loads(command)[1:])
    args = app.parse_args("")
    assert args.model == "/model"
    assert args.host == "0.0.0.0"
    assert args.port == 7860


HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint, which requirements-dev.txt has")
def test_dockerfiles_have_no_mistakes():
    process = subprocess.run([HADOLINT, *DOCKERFILES], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


@pytest.fixture
def docker() -> None:
    """Skips where Docker does not run."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("needs Docker")


@pytest.mark.slow
def test_docker_builds_the_image_of_the_page(docker):
    subprocess.run(["docker", "build", "-f", DOCKERFILES[1], ROOT], check=True, timeout=1800)


@pytest.mark.slow
def test_a_port_in_use_is_a_one_line_error(python, space):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start(python, space, "--port", str(port))
        _, errors = server.communicate(timeout=120)
    assert server.returncode == 1
    assert errors.strip() == (
        f"app.py: error: --host 127.0.0.1 --port {port}: is in use, or not an address of this machine; choose another"
    )


HOSTILE = {
    "empty.png": b"",
    "text.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n",
    "pickle.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
    "claims.npy": b"\x93NUMPY\x01\x00F\x00{'descr': '|u1', 'fortran_order': False, 'shape': (999999, 999999)}\n",
    "pages.tif": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
    "tags.tif": b"II*\0\x08\0\0\0" + b"\xff" * 4000,
    "volume.nii.gz": b"\x1f\x8b" + bytes(50),
    "volume.nrrd": b"NRRD0004\ndata file: /etc/passwd\n\n",
    "a\nb\x1b[2J.png": b"no picture",
    "<i>.png": b"no picture",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_after_a_hostile_upload_the_page_answers_the_next_visitor(page, images, tmp_path, name):
    good = images / "a.png"
    expected, _ = page(str(good))
    (tmp_path / name).write_bytes(HOSTILE[name])
    html, mask = page(str(tmp_path / name))
    assert html.startswith('<p role="alert">')
    assert mask is None
    assert "\n" not in html
    assert "<i>" not in html
    assert str(tmp_path) not in html
    assert page(str(good))[0] == expected
