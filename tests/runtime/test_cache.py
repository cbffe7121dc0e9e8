"""What is kept between runs: under keys that tell everything apart, computed once, and again where it is damaged."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime.cache import READING, cache_folder, digest, load_or_compute, load_or_read_each, load_value, store_value


def test_the_key_of_the_cache_tells_its_parts_apart():
    keys = [digest(), digest(""), digest("a"), digest(b"a"), digest("a", "b"), digest("ab"), digest(1), digest("1")]
    keys += [digest(1, 23), digest(12, 3), digest(None), digest((1, 2)), digest([1, 2])]
    assert len(set(keys)) == len(keys)
    assert digest(bytearray(b"a")) == digest(b"a")
    assert digest("a", 1) == "64112dcbde3e30a45a496c5ff3ef0fd8"  # else what is kept is forgotten


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


def test_files_are_read_again_when_one_of_them_changes(count, tmp_path):
    files = [str(tmp_path / name) for name in "abc"]
    for file in map(Path, files[:2]):
        file.write_bytes(b"1")
        os.utime(file, ns=(0, 10**18))

    def read_first(kind: str = "kind", order: int = 1) -> int:
        values = load_or_read_each(kind, files[::order], lambda file: count())
        return min(values.values())

    assert [read_first(), read_first(), read_first("other"), read_first(order=-1)] == [0, 0, 3, 6]
    os.utime(files[1], ns=(0, 10**18 + 1))
    assert read_first() == 9
    Path(files[0]).write_bytes(b"123")
    assert [read_first(), read_first()] == [12, 12]
    Path(files[0]).unlink()  # reading it will say so
    assert read_first() == 15


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "another shape"])
def test_a_damaged_file_of_the_cache_is_made_again(count, tmp_path, damage):
    assert load_or_compute("k", count) == 0
    file = Path(tmp_path, "unet-accelerate", f"k-{READING}.json")
    whole = file.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    file.write_bytes({"cut": whole[:-1], "empty": b"", "flipped": flipped, "another shape": b"{}"}[damage])
    assert [load_or_compute("k", count), load_or_compute("k", count)] == [1, 1]


def test_arrays_and_dictionaries_come_back_as_they_were(count):
    arrays = [np.arange(6).reshape(2, 3), np.array([-1, 2**40]), np.zeros((0, 3)), np.array([b"a", b"bc"]), np.ones(2)]
    value = {"arrays": dict(enumerate(arrays)), (1, ("a", None)): {(0, 255, 0): 2, 7: [1, {"x": (2, "y")}]}}
    store_value("k", value)
    stored = load_value("k")
    for number, array in stored.pop("arrays").items():
        np.testing.assert_array_equal(array, arrays[number], strict=True)
        assert array.flags.writeable
    assert stored == {(1, ("a", None)): {(0, 255, 0): 2, 7: [1, {"x": (2, "y")}]}}


def test_the_cache_lies_in_the_home_folder_by_default(count, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "unet-accelerate"
    assert [load_or_compute("k", count), load_or_compute("k", count)] == [0, 0]  # the folders above it are made too


def test_values_are_computed_each_time_where_nothing_can_be_kept(count, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [load_or_compute("k", count), load_or_compute("k", count)] == [0, 1]
