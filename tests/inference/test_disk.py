"""The disk that a prediction is written to: it takes files, and has room for all of them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from inference import disk
from inference.disk import check_disk
from runtime.errors import DataError


def test_a_disk_must_have_room_for_all_that_will_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2_500_000))
    check_disk(tmp_path / "a" / "b", 2_500_000)
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"]
    assert not any((tmp_path / "a" / "b").iterdir())
    with pytest.raises(DataError, match=r"needs about 2\.5 MB, but 2\.5 MB are free"):
        check_disk(tmp_path / "a", 2_500_001)
    with pytest.raises(DataError, match=r"needs about 7\.0 MB, but 2\.5 MB are free"):
        check_disk(tmp_path / "a", 7_000_000)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file is not a folder"):
        check_disk(tmp_path / "file" / "out", 1)


def test_the_disk_is_that_of_the_folder_which_must_take_files(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: calls.append(folder) or SimpleNamespace(free=9))
    check_disk(tmp_path / "a" / "b", 9)
    assert calls == [tmp_path.resolve()]  # what is there of the path
    check_disk(tmp_path / "a" / "b", 9)
    assert calls[1:] == [tmp_path.resolve() / "a" / "b"]

    def refuse(dir: Path) -> None:
        raise OSError(30, "Read-only file system", str(dir))

    monkeypatch.setattr(disk, "TemporaryFile", refuse)
    with pytest.raises(DataError, match=r"--output .*b: cannot be written \(Read-only file system\)"):
        check_disk(tmp_path / "a" / "b", 9)
