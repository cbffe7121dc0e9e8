"""--cache: a run on decoded images is the same run, and what cannot be kept leaves nothing behind."""

import json

import numpy as np
import pytest
from conftest import TINY, launch
from filelock import FileLock

from data_utils.loading.decoded_cache import decode_once
from runtime.errors import DataError
from tasks.classes import ClassTarget

CLASSES = "0=background,255=cell"
TARGET = ClassTarget(np.ones((2, 3), np.uint8))


@pytest.mark.parametrize("crop", [[], ["--crop-size", "24", "24"]], ids=["whole", "crop"])
def test_a_cached_run_is_the_same_run(tiny_folder, tmp_path, crop):
    command = [
        "train.py",
        "--dataset",
        tiny_folder,
        *TINY,
        "--scale",
        "0.7",
        "--tracker",
        "none",
        "--epochs",
        "1",
        *crop,
    ]
    command += ["--log-every", "1", "--optimizer", "sgd"]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    records = []
    for name, flag in (("plain", []), ("first", ["--cache"]), ("second", ["--cache"])):
        result = launch(*command, *flag, "--output-dir", tmp_path / name, env=environment)
        assert result.returncode == 0, result.stderr
        assert ("decoding for the cache" in result.stderr) == (name == "first")
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        records.append([{k: v for k, v in json.loads(line).items() if "perf" not in k} for line in lines])
    assert len(records[0]) > 4 and records[0] == records[1] == records[2]
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == 2


def test_what_cannot_be_decoded_is_skipped_from_the_cache_too(broken, tmp_path):
    options = ["--classes", CLASSES, "--on-bad-sample", "skip", "--max-steps", "6", "--tracker", "none", *TINY]
    for name in ("first", "second"):
        command = ["train.py", "--dataset", broken, *options, "--cache", "--output-dir", tmp_path / name]
        result = launch(*command, profile="multi_cpu" if name == "second" else None)
        assert result.returncode == 0, result.stderr
        assert "9 bad samples were skipped in training" in result.stdout


def test_what_a_killed_run_left_of_the_cache_is_cleared_and_what_another_is_writing_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pair, folder = (np.ones((1, 2, 3), np.uint8), TARGET), tmp_path / "unet-accelerate"
    # killed in the middle, as by the kernel when memory runs out
    lines = "import os, numpy as np\nfrom data_utils.loading.decoded_cache import decode_once\n"
    lines += "from tasks.classes import ClassTarget\n"
    lines += "pair = np.ones((1, 2, 3), np.uint8), ClassTarget(np.ones((2, 3), np.uint8))\n"
    lines += "decode_once(lambda i: os.kill(os.getpid(), 9) if i == 5 else pair, 9, ClassTarget, 'killed', ())"
    assert launch("-c", lines, env={"XDG_CACHE_HOME": str(tmp_path)}).returncode == -9
    assert len(list(folder.glob(".*.tmp"))) == 1
    (folder / ".busy.arrow.tmp").write_bytes(b"x")
    with FileLock(folder / "busy.lock"):
        decoded = decode_once(lambda i: pair, 2, ClassTarget, "other", ())
    image, target = decoded[1]
    np.testing.assert_array_equal(image, pair[0])
    np.testing.assert_array_equal(target.mask, TARGET.mask)
    assert [path.name for path in folder.glob(".*.tmp")] == [".busy.arrow.tmp"]
    assert len(list(folder.glob("*.arrow"))) == 1


def test_a_cache_that_could_not_be_finished_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def prepare(index: int) -> tuple[np.ndarray, ClassTarget]:
        if index == 5:
            raise OSError(28, "No space left on device")
        return np.ones((1, 2, 3), np.uint8), TARGET

    with pytest.raises(DataError, match="No space left on device"):
        decode_once(prepare, 9, ClassTarget, "full", ())
    assert [path.suffix for path in (tmp_path / "unet-accelerate").iterdir()] == [".lock"]


def test_what_cannot_be_cached_says_so(fails_with, tmp_path):
    result = launch("train.py", "--cache", *TINY, "--output-dir", tmp_path / "run")
    fails_with(result, "--cache works with local files only", 1)
