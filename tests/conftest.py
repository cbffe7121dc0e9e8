"""What several tests share: a tiny folder of images, and the scripts launched as a user would."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
TINY = ["--base-channels", "4", "--depth", "2", "--norm", "group", "--num-workers", "0"]


def launch(
    *command: str | Path, profile: str | None = None, options: Sequence[str] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run `train.py ...` or `predict.py ...` by python, or by `accelerate launch` with a profile; bounded in time."""
    start = [sys.executable]
    if profile is not None:
        start += ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / f"accelerate_configs/{profile}.yaml")]
        start += [*(["--main_process_port", "0"] if profile.startswith("multi") else []), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"ACCELERATE_USE_CPU": "true"} if profile == "multi_cpu" else {}
    return subprocess.run(
        [*start, *map(str, command)],
        cwd=ROOT,
        env=environment | (env or {}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


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


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered of data sets stays out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 training and 5 validation images of 40 x 56 with masks 0/255, under train/ and val/."""
    folder = tmp_path_factory.mktemp("tiny")
    write_folder(folder / "train", 14, seed=0)
    write_folder(folder / "val", 5, seed=1)
    return folder


@pytest.fixture(scope="session")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one short run on the tiny folder."""
    output = tmp_path_factory.mktemp("runs") / "trained"
    result = launch(
        "train.py", "--dataset", tiny_folder, "--output-dir", output, *TINY, "--epochs", "12", "--learning-rate", "0.01"
    )
    assert result.returncode == 0, result.stderr
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
