"""The proof of an exported file: what it is checked on, how it is opened, and how far its answers may differ.

Modules: inference/export/opener.py, inference/export/proof.py.
"""

import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from inference.export import opener, proof
from inference.export.opener import text_of, turn_network_off
from runtime.errors import ModelError
from unet import Preprocess, UNetConfig


def test_images_of_a_proof_have_the_brightness_of_the_training():
    deep = Preprocess(mean=(30_000.0, 500.0), std=(100.0, 50.0), pixel_types=("uint16",))
    images = proof.images_of(UNetConfig(2, 2, preprocess=deep), (2, 97, 131))
    assert images.shape == (2, 2, 97, 131)
    assert images.mean(axis=(0, 2, 3)) == pytest.approx([30_000, 500], rel=0.1)
    assert 50 < images[:, 0].std() < 200
    assert 25 < images[:, 1].std() < 100
    first = images[0, 0].astype(float)
    assert np.corrcoef(first[:-1].ravel(), first[1:].ravel())[0, 1] > 0.3  # neighbors are alike
    assert np.corrcoef(first[:, :-1].ravel(), first[:, 1:].ravel())[0, 1] > 0.3


def test_images_of_a_proof_are_neither_dark_nor_bright_where_no_brightness_is_known():
    images = proof.images_of(UNetConfig(3, 2), (1, 15, 15))
    assert images.shape == (1, 3, 15, 15)
    assert 80 < images.mean() < 170


@pytest.mark.parametrize(
    ("preprocess", "dtype"),
    [
        (Preprocess(), np.uint8),
        (Preprocess(pixel_types=("uint16",), mean=(500.0,)), np.uint16),
        (Preprocess(pixel_types=("uint16", "uint8"), mean=(500.0,)), np.uint16),
        (Preprocess(pixel_types=("int16",), mean=(0.0,)), np.int16),
        (Preprocess(pixel_types=("float32",), mean=(0.5,), std=(0.1,)), np.float32),
    ],
    ids=["unknown", "uint16", "uint16 or uint8", "int16", "float32"],
)
def test_images_of_a_proof_have_the_type_of_the_training(preprocess, dtype):
    assert proof.images_of(UNetConfig(1, 2, preprocess=preprocess), (1, 15, 15)).dtype == dtype


def test_images_of_a_proof_are_the_same_each_time():
    first, second = (proof.images_of(UNetConfig(3, 2), (2, 15, 15)) for _ in range(2))
    assert np.array_equal(first, second)


def test_images_of_a_proof_are_not_negative():
    signed = Preprocess(pixel_types=("int16",), mean=(0.0,))
    assert proof.images_of(UNetConfig(1, 2, preprocess=signed), (1, 15, 15)).min() == 0


def test_images_of_a_proof_are_not_brighter_than_their_type_holds():
    bright = Preprocess(mean=(250.0,), std=(30.0,))
    images = proof.images_of(UNetConfig(1, 2, preprocess=bright), (1, 40, 40))
    assert images.max() == 255
    assert images.min() > 60  # none begins again at 0


def test_volumes_of_a_proof_have_the_values_of_the_training_in_real_numbers():
    scans = Preprocess(mean=(50.0, 500.0), std=(10.0, 20.0), pixel_types=("int16",))
    volumes = proof.images_of(UNetConfig(2, 2, dims=3, preprocess=scans), (3, 5, 20, 30))
    assert volumes.shape == (3, 2, 5, 20, 30)
    assert volumes.dtype == np.float32
    channels = volumes.swapaxes(0, 1).reshape(2, -1)
    assert channels.mean(axis=1) == pytest.approx([50, 500], abs=1)
    assert channels.std(axis=1) == pytest.approx([10, 20], abs=1)


@pytest.mark.parametrize(
    ("dims", "count", "index", "shape"), [(2, 7, 4, (3, 1, 23, 130)), (3, 5, 1, (2, 1, 9, 19, 26))]
)
def test_images_of_a_proof_have_several_sizes(dims, count, index, shape):
    shapes = [images.shape for images in proof.proof_images(UNetConfig(1, 2, 4, 2, dims=dims))]
    assert len(shapes) == count
    assert shapes[index] == shape


class Opened:
    """Stands in for a runtime that adds one to images, opens no broken model, and takes no batch of three."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def turn_network_off(self) -> None:
        self.calls.append("off")

    def open_broken(self, path: str) -> opener.Answer:
        self.calls.append("open")
        raise ValueError("no\nmodel")

    def open_model(self, path: str) -> opener.Answer:
        self.calls.append("open")
        return self.answer

    def answer(self, images: np.ndarray) -> np.ndarray:
        if len(images) == 3:
            raise ValueError("too  large")
        return images + 1


@pytest.fixture
def opened(monkeypatch):
    """The calls of the runtime that opens "onnx" and "broken"."""
    runtime = Opened()
    monkeypatch.setattr(opener, "turn_network_off", runtime.turn_network_off)
    monkeypatch.setitem(opener.OPENERS, "onnx", runtime.open_model)
    monkeypatch.setitem(opener.OPENERS, "broken", runtime.open_broken)
    return runtime.calls


@pytest.fixture
def batches_file(tmp_path):
    """Batches of one to four images."""
    np.savez(tmp_path / "images.npz", np.zeros(1), np.zeros(2), np.zeros(3), np.zeros(4))
    return str(tmp_path / "images.npz")


def test_an_opener_writes_no_answers_of_a_model_that_cannot_be_opened(opened, batches_file, tmp_path):
    with pytest.raises(SystemExit, match=r"^no model$"):
        opener.main("broken", "model", batches_file, str(tmp_path / "answers.npz"))
    assert not (tmp_path / "answers.npz").exists()


def test_an_opener_writes_the_answers_before_an_error(opened, batches_file, tmp_path):
    with pytest.raises(SystemExit, match=r"^too large$"):
        opener.main("onnx", "model", batches_file, str(tmp_path / "answers.npz"))
    with np.load(tmp_path / "answers.npz") as content:
        assert [content[key].tolist() for key in content.files] == [[1], [1, 1]]


@pytest.mark.parametrize("name", ["onnx", "broken"])
def test_an_opener_turns_the_network_off_first(opened, batches_file, tmp_path, name):
    with pytest.raises(SystemExit):
        opener.main(name, "model", batches_file, str(tmp_path / "answers.npz"))
    assert opened == ["off", "open"]


class Process:
    """Stands in for `subprocess.run` with a process that adds one to batches, and answers the first `count` of them."""

    def __init__(self, count: int | None, printed: str) -> None:
        self.count = count
        self.printed = printed

    def run(self, command: list[str], cwd: str, env: dict[str, str], **options: bool) -> SimpleNamespace:
        self.command, self.folder, self.environment = command, cwd, env
        images, answers = command[-2:]
        with np.load(images) as batches:
            arrays = [batches[key] + 1 for key in batches.files]
        if self.count is not None:
            np.savez(answers, *arrays[: self.count])
        return SimpleNamespace(stderr=self.printed, returncode=3)


@pytest.mark.parametrize(
    ("count", "answers", "printed", "complaint"),
    [
        (2, [[1], [1, 1]], "", "it ended with exit code 3"),
        (1, [[1]], "a warning\ntoo large\n", "too large"),
    ],
)
def test_a_process_that_opens_a_model_leaves_its_answers(count, answers, printed, complaint, monkeypatch):
    monkeypatch.setattr(proof.subprocess, "run", Process(count, printed).run)
    found, said = proof.run_opener("onnx", Path("model.onnx"), [np.zeros(1), np.zeros(2)])
    assert said == complaint
    assert [array.tolist() for array in found] == answers


def test_a_process_that_opens_no_model_leaves_a_complaint(monkeypatch):
    monkeypatch.setattr(proof.subprocess, "run", Process(None, "a warning\nno model\n").run)
    found, said = proof.run_opener("onnx", Path("model.onnx"), [np.zeros(1), np.zeros(2)])
    assert said == "no model"
    assert found is None


def test_a_process_that_opens_a_model_works_offline_in_a_folder_of_its_own(tmp_path, monkeypatch):
    process = Process(2, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "here")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(proof.subprocess, "run", process.run)
    proof.run_opener("onnx", Path("model.onnx"), [np.zeros(1), np.zeros(2)])
    *_, name, model, _, _ = process.command
    assert name == "onnx"
    assert model == str(tmp_path / "model.onnx")
    assert process.environment["HF_HUB_OFFLINE"] == "1"
    assert process.environment["HF_MODULES_CACHE"] == process.environment["BIOIMAGEIO_CACHE_PATH"] == process.folder
    assert process.environment["PATH"] == "here"


def test_the_first_error_of_a_test_is_reported():
    error = SimpleNamespace(msg="differs")
    details = [SimpleNamespace(name="load", errors=[]), SimpleNamespace(name="run", errors=[error, None])]
    assert opener.first_error(SimpleNamespace(details=details)) == "run: differs"


def test_a_test_without_an_error_is_reported():
    details = [SimpleNamespace(name="load", errors=[])]
    assert opener.first_error(SimpleNamespace(details=details)) == "it says not why"


@pytest.mark.parametrize(
    "connect",
    [
        lambda connection: socket.getaddrinfo("localhost", 1),
        lambda connection: connection.connect(("127.0.0.1", 1)),
        lambda connection: connection.connect_ex(("127.0.0.1", 1)),
    ],
    ids=["getaddrinfo", "connect", "connect_ex"],
)
def test_a_model_is_opened_with_the_network_off(monkeypatch, connect):
    for owner, name in ((socket, "getaddrinfo"), (socket.socket, "connect"), (socket.socket, "connect_ex")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that they come back
    turn_network_off()
    with (
        socket.socket() as connection,
        pytest.raises(OSError, match="a model that is checked must not need the network"),
    ):
        connect(connection)


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("no such\n  operator"), "no such operator"), (NotImplementedError(), "NotImplementedError")],
    ids=["two lines", "nothing"],
)
def test_an_error_of_a_runtime_takes_one_line(error, line):
    assert text_of(error) == line


LIKELY = torch.tensor([[[[1.0, 2.0]], [[1.00001, 0.0]]]])  # two classes are equally likely in the first of two pixels


LARGE = torch.tensor([[[[500.0]], [[500.04]]]])  # a ten thousandth of it is 0.05


@pytest.mark.parametrize(
    ("mask", "logits"),
    [
        ([[0, 0]], LIKELY),
        ([[1, 0]], 1e-3 * torch.tensor([[[[1.01, 2.0]], [[1.0, 0.0]]]])),
        ([[0]], LARGE),
        ([[1]], -LARGE),
    ],
    ids=["equal", "small", "large", "negative"],
)
def test_a_mask_may_differ_where_two_classes_are_equally_likely(mask, logits):
    proof.check_mask("transformers", torch.tensor([mask]), logits)


@pytest.mark.parametrize(
    ("mask", "logits", "line"),
    [
        ([[1, 1]], LIKELY, r"masks differ from predict\.py's in 1 of 2 pixels at 1 x 2"),
        ([[0]], LARGE + torch.tensor([[[[0.0]], [[0.02]]]]), "in 1 of 1 pixels"),
    ],
    ids=["another class", "large"],
)
def test_a_mask_may_not_differ_where_a_class_is_likelier(mask, logits, line):
    with pytest.raises(ModelError, match=line):
        proof.check_mask("transformers", torch.tensor([mask]), logits)


@pytest.mark.parametrize("mask", [[[1]], [[1], [1]]], ids=["smaller", "turned"])
def test_a_mask_of_another_size_is_refused(mask):
    with pytest.raises(ModelError, match="not of the size of the images"):
        proof.check_mask("transformers", torch.tensor([mask]), LIKELY)


EXPECTED_LOGITS = [torch.full((1, 2, 4, 4), -10.0), torch.zeros(1, 2, 5, 6)]


MINUS_TEN, ZERO = (logits.numpy() for logits in EXPECTED_LOGITS)


MASK_OF_MINUS_TEN, MASK_OF_ZERO = np.zeros((1, 4, 4), np.int64), np.zeros((1, 5, 6), np.int32)


@pytest.fixture
def check_answers(monkeypatch):
    """Checks the answers of a runtime that then complains of a size."""

    def check(answers: list[np.ndarray] | None) -> None:
        batches = [np.zeros((1, 1, *logits.shape[2:])) for logits in EXPECTED_LOGITS]
        monkeypatch.setattr(proof, "run_opener", lambda *_: (answers, "no such size"))
        proof.check_answers("onnx", "onnxruntime", Path("model.onnx"), batches, EXPECTED_LOGITS)

    return check


@pytest.mark.parametrize(
    "answers", [[MINUS_TEN + 0.0009, ZERO + 0.00009], [MINUS_TEN, MASK_OF_ZERO]], ids=["logits", "a mask"]
)
def test_answers_may_differ_by_a_ten_thousandth_of_the_largest_logit(check_answers, answers):
    check_answers(answers)


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ([MINUS_TEN, ZERO + 0.00012], r"answers differ from torch's by 1\.2e-04 at 5 x 6 pixels"),
        ([MINUS_TEN + 0.0012, ZERO], r"answers differ from torch's by 1\.2e-04 at 4 x 4 pixels"),
        ([MINUS_TEN - 0.0012, ZERO], r"answers differ from torch's by 1\.2e-04 at 4 x 4 pixels"),
        ([MINUS_TEN, ZERO * np.nan], "answers differ from torch's by nan at 5 x 6 pixels"),
        ([MINUS_TEN, ZERO[:, :1]], "answers differ from torch's by inf at 5 x 6 pixels"),
        ([MASK_OF_MINUS_TEN, ZERO[:, :1]], "answers differ from torch's by inf at 5 x 6 pixels"),
        ([MASK_OF_MINUS_TEN], "onnxruntime cannot compute images of 5 x 6 pixels: no such size"),
        ([], "onnxruntime cannot compute images of 4 x 4 pixels: no such size"),
        (None, "onnxruntime cannot open the model: no such size"),
    ],
    ids=[
        "small logits",
        "large logits",
        "smaller logits",
        "no numbers",
        "a class too few",
        "beside a mask",
        "one size",
        "no size",
        "none",
    ],
)
def test_answers_that_differ_or_are_missing_are_refused(check_answers, answers, line):
    with pytest.raises(ModelError, match=line):
        check_answers(answers)
