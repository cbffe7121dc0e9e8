"""What several tests share: a tiny folder of images, and the scripts launched as a user would."""

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest
import tifffile
import torch
from filelock import FileLock
from PIL import Image
from support.folders import write_folder, write_splits
from support.launches import TINY

from unet import Preprocess, UNet, UNetConfig

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the tests say what a CPU computes, on a machine with GPUs too
gc.disable()  # until all is imported: nothing of it is garbage
torch.set_num_threads(1)  # several tests run at the same time
# `nohup`, a shell's `&` or a CI system may have these ignored, and what the tests start would inherit it
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores, at most four: some tests wait for another process or a clock."""
    return min(4, psutil.cpu_count() + 1)


def pytest_collection_finish() -> None:
    """The garbage collector, which each run calls, need not look through all modules and tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """The garbage collector need not look through what the tests of other modules have left either."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered of data sets stays out of the user's cache; launched scripts inherit the variables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # numbers are compared
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of a name, which the first of pytest's processes that needs it makes, for all."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not folder.is_dir():
            make(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 training and 5 validation images of 40 x 56 with masks 0/255, under train/ and val/."""
    return made_once(tmp_path_factory, "tiny", lambda folder: write_splits(folder, 14, 5))


@pytest.fixture(scope="session")
def trained_run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one short run on the tiny folder."""
    from support.in_process import run_train

    def make(output: Path) -> None:
        flags = ["--dataset", tiny_folder, *TINY, "--epochs", "12", "--learning-rate", "0.01"]
        assert run_train(output, *flags, figures=True).exit_code == 0

    return made_once(tmp_path_factory, "trained", make)


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
    from support.encoders import network_refused

    with network_refused():
        yield


@pytest.fixture(scope="session")
def encoder_folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A folder for each family of encoders, whose weights are not those that `network_with` begins with."""
    from support.encoders import EncoderFolders

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


@pytest.fixture
def broken_folder(tmp_path: Path) -> Path:
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
def tall_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TIFF of 8,501 x 333, tiled and compressed; in tiles it is read and written in windows."""
    path = tmp_path_factory.mktemp("tall") / "tall.tif"
    pixels = np.random.default_rng(0).integers(0, 256, (8501, 333, 3), dtype=np.uint8)
    tifffile.imwrite(path, pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    return path
