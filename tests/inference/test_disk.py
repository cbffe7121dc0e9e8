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
    assert not any((tmp_path / "a" / "b").iterdir())
    with pytest.raises(DataError, match=r"needs about 7\.0 MB, but 2\.5 MB are free"):
        check_disk(tmp_path / "a", 7_000_000)


@pytest.mark.parametrize("folder", ["file", "file/out", "/proc/out"])
def test_a_folder_that_takes_no_files_is_named_with_the_cause(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=rf"--output .*{Path(folder).name}: cannot be written \([A-Z]"):
        check_disk(tmp_path / folder, 1)
