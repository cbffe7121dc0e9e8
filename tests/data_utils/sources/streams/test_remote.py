"""Files of streams: which are found at an address, how they are told apart, and which failures are tried again."""

import os
import sys
from types import SimpleNamespace
from unittest import mock

import aiohttp
import pyarrow.parquet
import pytest

from data_utils.sources.streams import remote
from data_utils.sources.streams.remote import content_key, file_kind, find_files, is_remote
from runtime.errors import DataError


@pytest.mark.parametrize(("file", "expected_pauses"), [("s3://bucket/a.tar", [1, 2, 4, 8]), ("/folder/a.tar", [])])
def test_pauses_before_a_remote_file_is_read_again_grow(monkeypatch, file, expected_pauses):
    pauses = []
    monkeypatch.setattr(remote.time, "sleep", pauses.append)

    @remote.retry
    def read(file: str) -> None:
        raise DataError(file) from ConnectionError()

    with pytest.raises(DataError):
        read(file)
    assert pauses == expected_pauses


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


@pytest.mark.parametrize(
    ("place", "split", "file"),
    [
        ("val/test-0.tar", "test", "val/test-0.tar"),
        ("val/s*/0.tar", "train", "val/s1/0.tar"),
        ("val/folder.tar", "train", "val/folder.tar/train.parquet"),
        ("val/0.tar?signature=x/y", "train", "val/0.tar?signature=x/y"),
    ],
    ids=["file", "pattern", "folder", "signature"],
)
def test_words_count_below_a_folder_a_pattern_or_the_folder_of_a_file(tmp_path, place, split, file):
    (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / file).touch()
    assert find_files(f"{tmp_path}/{place}", []) == {split: [f"file://{tmp_path}/{file}"]}


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://x/a.tar?signature=1", ".tar"),
        ("https://x/get?name=a.parquet", ".parquet"),
        ("a.tar.gz", None),
        ("s3://x/a.tar", ".tar"),
        ("a.tar", ".tar"),
    ],
)
def test_the_kind_of_a_file_is_known_before_a_signature_or_in_a_query(url, kind):
    assert file_kind(url) == kind


@pytest.mark.parametrize(
    ("place", "is_far"),
    [
        ("s3://x/a.tar", True),
        ("https://x/a.tar", True),
        ("file:///a.tar", False),
        ("local:///a.tar", False),
        ("memory://a.tar", False),
        ("/a.tar", False),
    ],
)
def test_a_file_of_another_machine_is_remote(place, is_far):
    assert is_remote(place) is is_far


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


PASSING = [web_error(429), web_error(500), web_error(503), aiohttp.ServerDisconnectedError(), ConnectionResetError()]


LASTING = [
    web_error(404),
    web_error(499),
    PermissionError(),
    IsADirectoryError(),
    NotADirectoryError(),
    ValueError(),
    ImportError(),
    pyarrow.ArrowNotImplementedError(),
]


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


class BotoCoreError(Exception):
    """Stands in for that of botocore, which need not be installed."""


class HTTPClientError(BotoCoreError):
    """One of its two errors of the network."""


class BotoConnectionError(BotoCoreError):
    """The other one, which is called ConnectionError there."""


@pytest.mark.parametrize(
    ("kind", "attempts_again"), [(HTTPClientError, 4), (BotoConnectionError, 4), (BotoCoreError, 0)]
)
def test_a_failure_of_s3_is_tried_again_where_its_network_failed(monkeypatch, pauses, kind, attempts_again):
    errors = SimpleNamespace(
        BotoCoreError=BotoCoreError, HTTPClientError=HTTPClientError, ConnectionError=BotoConnectionError
    )
    monkeypatch.setitem(sys.modules, "botocore.exceptions", errors)

    @remote.retry
    def read(file: str) -> None:
        with remote.file_errors(file):
            raise kind("no")

    with pytest.raises(DataError, match=r"^s3://x/a\.tar cannot be read \(no\)$"):
        read("s3://x/a.tar")
    assert len(pauses) == attempts_again


class RemoteSystem:
    """Stands in for a file system that tells what it knows of a file."""

    def __init__(self) -> None:
        self.facts: dict = {}

    def info(self, path: str) -> dict:
        return {"size": 5, **self.facts}


@pytest.fixture
def remote_system(monkeypatch):
    system = RemoteSystem()
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda file: (system, file))
    return system


def test_a_file_without_a_version_has_no_key(remote_system):
    assert content_key("https://x/a.tar") is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"ETag": "a"}, {"ETag": "b"}),
        ({"LastModified": 1}, {"LastModified": 2}),
        ({"Content_MD5": "a"}, {"Content_MD5": "b"}),
        ({"created": 1, "mtime": 1}, {"created": 1, "mtime": 2}),
        ({"mtime": 1, "size": 5}, {"mtime": 1, "size": 6}),
    ],
)
def test_a_version_of_a_file_is_known_whatever_its_system_calls_it(remote_system, first, second):
    remote_system.facts = first
    key = content_key("https://x/a.tar")
    remote_system.facts = second
    assert content_key("https://x/a.tar") != key
    assert content_key("https://x/b.tar") != content_key("https://x/a.tar")


def test_the_key_of_a_file_does_not_depend_on_its_signature(remote_system):
    remote_system.facts = {"ETag": "a"}
    key = content_key("https://x/a.tar?signature=1")
    assert content_key("https://x/a.tar?signature=2") == key
    assert content_key("https://x/a.tar") == key


def test_a_file_whose_versions_are_empty_has_no_key(monkeypatch):
    system = SimpleNamespace(info=lambda path: {"size": 5, "ETag": None, "created": ""})
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda file: (system, file))
    assert content_key("https://x/a.tar") is None


def test_a_mistake_in_the_content_of_a_file_keeps_its_line():
    with pytest.raises(DataError, match=r"^row 3 is damaged$"), remote.file_errors("a.tar", hint="; so it is"):
        raise DataError("row 3 is damaged")
