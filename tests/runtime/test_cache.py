"""What is kept between runs: under keys that tell everything apart, computed once, and again where it is damaged."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from runtime import cache
from runtime.cache import digest, digest_of_files, load_or_compute, load_or_compute_arrays


def test_the_key_of_the_cache_tells_its_parts_apart():
    keys = [digest(), digest(""), digest("a"), digest(b"a"), digest("a", "b"), digest("ab"), digest(1), digest("1")]
    keys += [digest(1, 23), digest(12, 3), digest(None), digest((1, 2)), digest([1, 2])]
    assert len(set(keys)) == len(keys)
    assert digest("a", 1) == digest("a", 1)
    assert digest(bytearray(b"a")) == digest(b"a")
    assert all(len(key) == 32 for key in keys)
    assert digest("a", 1) == "64112dcbde3e30a45a496c5ff3ef0fd8"  # else what is kept is forgotten


def test_the_key_of_files_changes_with_each_of_them(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(b"1")
        os.utime(file, ns=(0, 10**18))
    keys = [digest_of_files(files, b"names"), digest_of_files(files, b"other")]
    assert keys[0] == digest_of_files(map(str, files), b"names")
    os.utime(files[1], ns=(0, 10**18 + 1))
    keys.append(digest_of_files(files, b"names"))
    os.utime(files[1], ns=(0, 10**18))
    files[0].write_bytes(b"12")
    os.utime(files[0], ns=(0, 10**18))
    keys.append(digest_of_files(files, b"names"))
    files[0].unlink()  # reading it will say so
    keys.append(digest_of_files(files, b"names"))
    files[0] = files[1] / "c"  # below a file there is none
    keys.append(digest_of_files(files, b"names"))
    assert len(set(keys[:5])) == 5
    assert keys[5] == keys[4]


@pytest.fixture
def calls(monkeypatch, tmp_path) -> list[int]:
    """What has been computed, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return []


@pytest.fixture
def count(calls) -> Callable[[], int]:
    """A function that notes its calls, and returns how many came before."""

    def count() -> int:
        calls.append(len(calls))
        return calls[-1]

    return count


def test_the_key_of_files_tells_which_of_them_is_which(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for file, content in zip(files, (b"1", b"12"), strict=True):
        file.write_bytes(content)
    assert digest_of_files(files, b"names") != digest_of_files(files[::-1], b"names")


def test_the_key_of_a_link_changes_with_the_file_that_it_leads_to(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    before = digest_of_files([tmp_path / "link"], b"names")
    (tmp_path / "a").write_bytes(b"12")
    assert digest_of_files([tmp_path / "link"], b"names") != before


def test_a_value_with_a_key_is_computed_once(count, tmp_path):
    assert [load_or_compute("k", count), load_or_compute("k", count), load_or_compute("other", count)] == [0, 0, 1]
    assert sorted(os.listdir(tmp_path / "unet-accelerate")) == ["k-2.json", "other-2.json"]


def test_a_value_without_a_key_is_computed_each_time(count, tmp_path):
    assert [load_or_compute(None, count), load_or_compute(None, count)] == [0, 1]
    assert not (tmp_path / "unet-accelerate").exists()


@pytest.fixture
def arrays(calls) -> Callable[[], dict[str, np.ndarray]]:
    """A function that notes its calls, and returns arrays that tell them apart."""

    def arrays() -> dict[str, np.ndarray]:
        calls.append(len(calls))
        return {"a": np.arange(calls[-1], 5), "b": np.eye(2)}

    return arrays


def test_arrays_are_computed_again_where_their_file_is_damaged(arrays, tmp_path):
    load_or_compute_arrays("k", arrays)
    file = tmp_path / "unet-accelerate" / "k-2.npz"
    file.write_bytes(file.read_bytes()[:-3])
    assert load_or_compute_arrays("k", arrays)["a"].tolist() == [1, 2, 3, 4]
    assert load_or_compute_arrays("k", arrays)["a"].tolist() == [1, 2, 3, 4]


def test_the_cache_lies_in_the_home_folder_by_default(count, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_folder() == tmp_path / "home" / ".cache" / "unet-accelerate"
    assert [load_or_compute("k", count), load_or_compute("k", count)] == [0, 0]  # the folders above it are made too


def test_values_are_computed_each_time_where_nothing_can_be_kept(calls, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_or_compute("k", lambda: calls.append(1) or [3]) == [3]
    assert load_or_compute("k", lambda: calls.append(1) or [3]) == [3]
    assert calls == [1, 1]
    assert load_or_compute_arrays("k", lambda: {"a": np.arange(2)})["a"].tolist() == [0, 1]
