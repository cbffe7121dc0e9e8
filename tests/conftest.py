"""What several tests share: a tiny folder of images, and the scripts launched as a user would."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from forked import launch_forked
from PIL import Image

from data_utils.analysis.dataset_info import DatasetInfo, load_dataset_info
from data_utils.config import DataConfig
from unet import Preprocess, UNet, UNetConfig

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the tests say what a CPU computes, on a machine with GPUs too
gc.disable()  # until all is imported: nothing of it is garbage
torch.set_num_threads(1)  # several tests run at the same time
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # by `nohup` or a CI system: what the tests start inherits it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "programs"
TINY = ["--plan", "none", "--base-channels", "4", "--depth", "2", "--norm", "group", "--num-workers", "0"]


def launch(
    *command: str | Path,
    profile: str | None = None,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    forked: bool = True,
) -> subprocess.CompletedProcess:
    """Run `train.py ...` or `predict.py ...` by python, or by `accelerate launch` with a profile; bounded in time.

    Args:
        options: of `accelerate launch`.
        env: environment variables.
        forked: fork a process that has imported the libraries and our modules, and draws no figures. Not where the
            interpreter, the launcher's process, the process's memory or variables that libraries read are what matters.
    """
    words = list(map(str, command))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"ACCELERATE_USE_CPU": "true"} if profile == "multi_cpu" else {}
    environment |= env or {}
    flags: list[str] | None = None
    if profile is not None:
        flags = ["--config_file", str(ROOT / f"accelerate_configs/{profile}.yaml"), *options]
        if profile.startswith("multi"):
            flags += ["--main_process_port", "0"]
    if forked and (words[0].endswith(".py") or words[0] == "-m"):
        return launch_forked(words, flags, environment, ROOT)
    launcher = [] if flags is None else ["-m", "accelerate.commands.launch", *flags]
    return subprocess.run(
        [sys.executable, *launcher, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def predict(model: Path, inputs: Sequence[str | Path], output: Path, *flags, **options) -> subprocess.CompletedProcess:
    """Run predict.py in this process; with `options`, which are those of `launch`, in others."""
    arguments = ["--model", model, "--input", *inputs, "--output", output, *flags]
    if options:
        return launch("predict.py", *arguments, **options)
    from in_process import run_predict  # not every test needs what it imports

    return run_predict(*arguments)


def write_folder(
    folder: Path, count: int, seed: int, *, values: tuple[int, int] = (0, 255), size: tuple[int, int] = (40, 56)
) -> Path:
    """`count` noisy RGB images with a bright box each, and its mask."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    for index in range(count):
        image = rng.integers(0, 100, (*size, 3), dtype=np.uint8)
        mask = np.full(size, values[0], np.uint8)
        top, left = rng.integers(0, size[0] // 2), rng.integers(0, size[1] // 2)
        box = np.s_[top : top + size[0] // 2, left : left + size[1] // 3]
        image[box] += 120
        mask[box] = values[1]
        Image.fromarray(image).save(folder / "images" / f"cell_{index:02}.png")
        Image.fromarray(mask).save(folder / "masks" / f"cell_{index:02}.png")
    return folder


def write_splits(folder: Path, train: int, val: int, *, size: tuple[int, int] = (40, 56)) -> Path:
    """A data set: `write_folder` of so many images under train/ and val/."""
    write_folder(folder / "train", train, seed=0, size=size)
    write_folder(folder / "val", val, seed=1, size=size)
    return folder


def pytest_collection_finish() -> None:
    """The garbage collector, which each run calls, need not look through all modules and tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Nor through what the tests of other modules have left."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered of data sets stays out of the user's cache; launched scripts inherit the variables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 training and 5 validation images of 40 x 56 with masks 0/255, under train/ and val/."""
    folder = tmp_path_factory.mktemp("tiny")
    return write_splits(folder, 14, 5)


@pytest.fixture(scope="session")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one short run on the tiny folder."""
    from in_process import run_train  # not every test needs what it imports

    output = tmp_path_factory.mktemp("runs") / "trained"
    flags = ["--dataset", tiny_folder, *TINY, "--epochs", "12", "--learning-rate", "0.01"]
    assert run_train(output, *flags, figures=True).exit_code == 0
    return output


@pytest.fixture
def fails_with() -> Callable[..., None]:
    """Check that a run ended with one clear line, no traceback of ours, and the exit code."""

    def check(result: subprocess.CompletedProcess, line: str, code: int) -> None:
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr
        errors = [text for text in result.stderr.splitlines() if "error: " in text]
        assert len(errors) == 1, result.stderr
        assert line in errors[0], result.stderr

    return check


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of three classes whose masks hold 10, 200 and 255, and which sees images at half size."""
    preprocess = Preprocess(
        scale=0.5, mean=(90.0,) * 3, std=(50.0,) * 3, class_names=("sky", "land", "sea"), class_values=(10, 200, 255)
    )
    torch.manual_seed(0)
    network = UNet(UNetConfig(3, 3, base_channels=4, depth=2, preprocess=preprocess))
    folder = tmp_path_factory.mktemp("model")
    network.save_pretrained(folder)
    return folder


@pytest.fixture
def no_network() -> Iterator[None]:
    """A test that looks a name up, or connects to anything, fails."""
    from encoders import network_refused  # not every test needs what it imports

    with network_refused():
        yield


@pytest.fixture(scope="session")
def encoder_folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A folder for each family of encoders, whose weights are not those that `network_with` begins with."""
    from encoders import EncoderFolders  # not every test needs what it imports

    return EncoderFolders(tmp_path_factory.mktemp("encoders"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def load_info(dataset: object, **settings) -> DatasetInfo:
    """What is known of a data set: `settings` as in DataConfig."""
    return load_dataset_info(DataConfig(str(dataset), **settings))


def unnoticed_changes(files: Iterable[Path], key: Callable[[], object]) -> list[str]:
    """What may change of files, their size alone or their time alone, while `key()` stays the same."""
    key_before = key()
    changes = []
    for file in files:
        content = file.read_bytes()
        time = file.stat().st_mtime_ns
        rewrite(file, content + b"\n", time)
        if key() == key_before:
            changes.append(f"size of {file.name}")
        rewrite(file, content, time + 1)
        if key() == key_before:
            changes.append(f"time of {file.name}")
        rewrite(file, content, time)
    assert key() == key_before
    return changes


def rewrite(file: Path, content: bytes, time: int) -> None:
    """Give a file this content, as if it had been written at a time in nanoseconds."""
    file.write_bytes(content)
    os.utime(file, ns=(time, time))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """24 training and 3 validation pairs; one of each bad file makes the training pairs cell_00 to cell_08 unusable."""
    folder = write_folder(tmp_path / "train", 24, seed=0)
    write_folder(tmp_path / "val", 3, seed=1)
    images, masks = ([folder / kind / f"cell_{i:02}.png" for i in range(10)] for kind in ("images", "masks"))
    images[0].write_bytes(b"")
    images[1].write_bytes(images[1].read_bytes()[: images[1].stat().st_size // 2])
    images[2].write_text("no picture")
    masks[3].write_bytes(b"")
    masks[4].write_bytes(masks[4].read_bytes()[:-40])
    Image.new("L", (10, 12)).save(masks[5])
    stray = np.array(Image.open(masks[6]))
    stray[0, 0] = 37
    Image.fromarray(stray).save(masks[6])
    np.save(images[7].with_suffix(".npy"), np.zeros((40, 56, 5), np.uint8))
    images[7].unlink()
    images[8].unlink()
    images[8].symlink_to("nowhere")
    return tmp_path


@pytest.fixture(scope="session")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TIFF of 8,501 x 333, tiled and compressed; in tiles it is read and written in windows."""
    path = tmp_path_factory.mktemp("tall") / "tall.tif"
    pixels = np.random.default_rng(0).integers(0, 256, (8501, 333, 3), dtype=np.uint8)
    tifffile.imwrite(path, pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    return path


def records(output: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def last_checkpoint(output: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((output / "checkpoints").glob("step-*"))


def losses(output: Path) -> list[float]:
    """The training losses that a run has logged."""
    return [record["train/loss"] for record in records(output) if "train/loss" in record]


def pytorch_unet_checkpoint(
    classes: int, *, bilinear: bool = False, bias: bool = False, depth: int = 4, seed: int = 0
) -> dict:
    """Random weights under Pytorch-UNet's names: batch norm with statistics, logits around 0."""
    base = 4
    generator = torch.Generator().manual_seed(seed)
    weights = {}

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale

    def double_conv(name: str, inputs: int, outputs: int, middle: int) -> None:
        for conv, norm, (a, b) in (("0", "1", (inputs, middle)), ("3", "4", (middle, outputs))):
            weights[f"{name}.double_conv.{conv}.weight"] = normal(b, a, 3, 3, scale=(2 / (9 * a)) ** 0.5)
            if bias:
                weights[f"{name}.double_conv.{conv}.bias"] = normal(b, scale=0.3)
            weights[f"{name}.double_conv.{norm}.weight"] = 1 + normal(b, scale=0.2)
            weights[f"{name}.double_conv.{norm}.bias"] = normal(b, scale=0.3)
            weights[f"{name}.double_conv.{norm}.running_mean"] = normal(b, scale=0.2)
            weights[f"{name}.double_conv.{norm}.running_var"] = 0.5 + normal(b, scale=0.2).abs()
            weights[f"{name}.double_conv.{norm}.num_batches_tracked"] = torch.tensor(7)

    factor = 2 if bilinear else 1
    widths = [base * 2**level for level in range(depth + 1)]
    double_conv("inc", 3, base, base)
    for level in range(depth):
        outputs = widths[level + 1] // (factor if level == depth - 1 else 1)
        double_conv(f"down{level + 1}.maxpool_conv.1", widths[level], outputs, outputs)
    for number, level in enumerate(reversed(range(depth)), start=1):
        inputs, outputs = widths[level + 1], widths[level] // (factor if level else 1)
        if not bilinear:
            weights[f"up{number}.up.weight"] = normal(inputs, inputs // 2, 2, 2, scale=inputs**-0.5)
            weights[f"up{number}.up.bias"] = normal(inputs // 2, scale=0.3)
        double_conv(f"up{number}.conv", inputs, outputs, inputs // 2 if bilinear else outputs)
    weights["outc.conv.weight"] = normal(classes, base, 1, 1, scale=0.2)
    weights["outc.conv.bias"] = normal(classes, scale=0.3)
    return weights
