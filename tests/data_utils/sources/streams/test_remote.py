"""Files of streams: which are found at an address, how they are told apart, and which failures are tried again."""

import os
from types import SimpleNamespace
from unittest import mock

import aiohttp
import pyarrow.parquet
import pytest

from data_utils.sources.streams import remote
from data_utils.sources.streams.remote import content_key, find_files
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train/0.tar", "val/0.tar"], {"train": ["train/0.tar"], "val": ["val/0.tar"]}),
        (
            ["b-validation-1.tar", "a-training-1.tar"],
            {"training": ["a-training-1.tar"], "validation": ["b-validation-1.tar"]},
        ),
        (["interval.tar", "TEST/0.tar"], {"test": ["TEST/0.tar"], "train": ["interval.tar"]}),  # no word of its own
        (
            ["Fold1/1.tar", "fold1/0.tar", "train1.tar"],
            {"Fold1": ["Fold1/1.tar", "fold1/0.tar"], "train": ["train1.tar"]},
        ),
        (["val.fold1.tar"], {"Fold1": ["val.fold1.tar"]}),  # a name that is given comes first
        (["a+b/0.tar", "aab.tar"], {"a+b": ["a+b/0.tar"], "train": ["aab.tar"]}),
    ],
)
def test_a_file_of_a_stream_belongs_to_the_split_whose_name_is_a_word_of_its_path(tmp_path, files, splits):
    for file in [*files, "notes.txt"]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    found = find_files(str(tmp_path), ["Fold1", "a+b"])
    assert found == {split: [f"file://{tmp_path / file}" for file in paths] for split, paths in splits.items()}


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_files_of_a_stream_are_in_the_order_of_their_names_however_their_system_lists_them(monkeypatch, kind):
    files = [f"bucket/{number}.{kind}" for number in (2, 0, 1)]
    system = SimpleNamespace(find=lambda path: files, unstrip_protocol=lambda file: f"s3://{file}")
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda dataset: (system, "bucket"))
    assert find_files("s3://bucket", []) == {"train": [f"s3://bucket/{number}.{kind}" for number in range(3)]}


@pytest.fixture
def url(tmp_path) -> str:
    """The address of a folder called val with three tar files and a parquet file."""
    (tmp_path / "val").mkdir()
    for name in ("train-0.tar", "train-1.tar", "other.tar", "a.parquet"):
        (tmp_path / "val" / name).touch()
    return f"file://{tmp_path}/val"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("train-0.tar", ["train-0.tar"]),
        ("train-*.tar", ["train-0.tar", "train-1.tar"]),
        ("other.tar", ["other.tar"]),  # a word of the path above it names no split
        ("o*.tar", ["other.tar"]),
    ],
)
def test_one_file_or_a_pattern_is_a_stream(tmp_path, url, pattern, names):
    assert find_files(f"{tmp_path}/val/{pattern}", []) == {"train": [f"{url}/{name}" for name in names]}


@pytest.mark.usefixtures("url")
def test_files_of_two_kinds_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"both \.parquet and \.tar files; found a\.parquet, other\.tar, train-0\.tar$"):
        find_files(str(tmp_path), [])


def test_the_key_of_a_file_of_a_stream_changes_with_its_place_size_and_time(tmp_path):
    files = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for file in files:
        file.write_bytes(b"x" * 8)
        os.utime(file, (10**9, 10**9))
    keys = [content_key(str(file)) for file in files]
    assert content_key(str(files[0])) == keys[0]
    os.utime(files[0], (10**9 + 1, 10**9 + 1))
    keys.append(content_key(str(files[0])))
    files[0].write_bytes(b"x" * 9)
    os.utime(files[0], (10**9 + 1, 10**9 + 1))
    keys.append(content_key(str(files[0])))
    assert len({*keys}) == 4
    assert None not in keys
    files[0].write_bytes(b"")
    assert content_key(str(files[0])) is None


def web_error(status: int) -> aiohttp.ClientResponseError:
    return aiohttp.ClientResponseError(mock.Mock(real_url="https://x/a.tar"), (), status=status)


PASSING = [web_error(429), web_error(503), aiohttp.ServerDisconnectedError(), ConnectionResetError()]
LASTING = [web_error(404), PermissionError(), ValueError(), pyarrow.ArrowNotImplementedError()]


def name_of(error: Exception) -> str:
    """The type of an error, and the status of an answer."""
    return f"{type(error).__name__} {getattr(error, 'status', '')}".strip()


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The seconds that were waited before a file was read again; none pass."""
    pauses: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", pauses.append)
    return pauses


def raise_if_any(error: Exception | None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize("error", PASSING, ids=name_of)
def test_a_failure_that_may_pass_is_tried_again(pauses, error):
    attempts = iter([error, error, None])

    @remote.retry
    def read(file: str, share: int, *, end: int) -> int:
        with remote.file_errors(file):
            raise_if_any(next(attempts))
        return share + end

    assert read("https://x/a.tar", 1, end=2) == 3
    assert len(pauses) == 2


@pytest.mark.parametrize("error", LASTING, ids=name_of)
def test_a_failure_that_lasts_is_a_one_line_error_at_once(pauses, error):
    @remote.retry
    def read(file: str) -> None:
        with remote.file_errors(file, hint="; so it is"):
            raise error

    with pytest.raises(DataError, match=r"^https://x/a\.tar cannot be read \(.*\); so it is$"):
        read("https://x/a.tar")
    assert not pauses


def test_the_key_of_a_file_does_not_depend_on_its_signature(monkeypatch):
    system = SimpleNamespace(info=lambda path: {"size": 5, "ETag": "a"})
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda file: (system, file))
    addresses = ("https://x/a.tar", "https://x/a.tar?signature=1", "https://x/a.tar?signature=2")
    assert len({*map(content_key, addresses)}) == 1
