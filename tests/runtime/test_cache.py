"""What is kept between runs: under keys that tell everything apart, computed once, and again where it is damaged."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime.cache import READING, cache_folder, digest, digest_of_files, load_or_compute, load_or_compute_arrays


def test_the_key_of_the_cache_tells_its_parts_apart():
    keys = [digest(), digest(""), digest("a"), digest(b"a"), digest("a", "b"), digest("ab"), digest(1), digest("1")]
    keys += [digest(1, 23), digest(12, 3), digest(None), digest((1, 2)), digest([1, 2])]
    assert len(set(keys)) == len(keys)
    assert digest(bytearray(b"a")) == digest(b"a")
    assert digest("a", 1) == "64112dcbde3e30a45a496c5ff3ef0fd8"  # else what is kept is forgotten


def test_the_key_of_files_changes_with_each_of_them(tmp_path):
    files = [tmp_path / name for name in "abc"]
    for file, content in zip(files, (b"1", b"12"), strict=False):
        file.write_bytes(content)
        os.utime(file, ns=(0, 10**18))
    files[2].symlink_to(files[0])
    keys = [
        digest_of_files(files, b"names"),
        digest_of_files(files, b"other"),
        digest_of_files([files[1], files[0], files[2]], b"names"),
    ]
    assert keys[0] == digest_of_files(map(str, files), b"names")
    os.utime(files[1], ns=(0, 10**18 + 1))
    keys.append(digest_of_files(files, b"names"))
    files[0].write_bytes(b"123")  # which is that of the link too
    keys += [digest_of_files(files, b"names"), digest_of_files(files[2:], b"names")]
    files[0].unlink()  # reading it will say so
    keys += [digest_of_files(files, b"names"), digest_of_files(files[2:], b"names")]
    assert len(set(keys)) == len(keys)


@pytest.fixture
def count(monkeypatch, tmp_path) -> Callable[[], int]:
    """A function that returns how often it was called before, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def count() -> int:
        calls.append(1)
        return len(calls) - 1

    return count


def test_a_value_with_a_key_is_computed_once(count, tmp_path):
    assert [load_or_compute("k", count), load_or_compute("k", count), load_or_compute("other", count)] == [0, 0, 1]
    assert [load_or_compute(None, count), load_or_compute(None, count)] == [2, 3]
    assert sorted(os.listdir(tmp_path / "unet-accelerate")) == [f"k-{READING}.json", f"other-{READING}.json"]


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "another shape"])
@pytest.mark.parametrize("ending", ["json", "npz"])
def test_a_damaged_file_of_the_cache_is_made_again(count, tmp_path, ending, damage):
    def compute() -> int:
        if ending == "json":
            return load_or_compute("k", count)
        return int(load_or_compute_arrays("k", lambda: {"a": np.array(count())})["a"])

    assert compute() == 0
    file = Path(tmp_path, "unet-accelerate", f"k-{READING}.{ending}")
    whole = file.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    file.write_bytes({"cut": whole[:-1], "empty": b"", "flipped": flipped, "another shape": b"{}"}[damage])
    assert [compute(), compute()] == [1, 1]


def test_the_cache_lies_in_the_home_folder_by_default(count, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "unet-accelerate"
    assert [load_or_compute("k", count), load_or_compute("k", count)] == [0, 0]  # the folders above it are made too


def test_values_are_computed_each_time_where_nothing_can_be_kept(count, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [load_or_compute("k", count), load_or_compute("k", count)] == [0, 1]
