"""Files and folders that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from runtime import files


def test_a_file_takes_the_place_of_another_only_when_it_is_whole(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    with files.replaced_file(file) as stream:
        stream.write(b"new and longer")
        stream.flush()
        assert file.read_bytes() == b"old"
        before = file.stat().st_ino
    assert file.read_bytes() == b"new and longer"
    assert file.stat().st_ino != before  # renamed, not copied over: nobody sees half of it
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"), files.replaced_file(file) as stream:
        stream.write(b"half")
        raise OSError("disk full")
    assert file.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.json"]


def test_processes_that_write_one_file_have_temporary_files_of_their_own(tmp_path):
    with files.replaced_file(tmp_path / "a", shared=True) as stream:
        assert str(os.getpid()) in Path(stream.name).name
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_is_complete_or_absent(tmp_path):
    with pytest.raises(OSError, match="disk full"), files.complete_folder(tmp_path / "step") as folder:
        (folder / "a").write_bytes(b"1")
        assert not (tmp_path / "step").exists()
        raise OSError("disk full")
    assert os.listdir(tmp_path) == []
    with files.complete_folder(tmp_path / "step") as folder:
        (folder / "a").write_bytes(b"1")
    assert os.listdir(tmp_path) == ["step"] and (tmp_path / "step" / "a").read_bytes() == b"1"
    with files.complete_folder(tmp_path / "step") as folder:
        (folder / "b").write_bytes(b"2")
    assert os.listdir(tmp_path / "step") == ["b"]  # the older folder of that name is gone as a whole


def test_a_folder_that_has_vanished_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError), files.complete_folder(tmp_path / "mount" / "step"):
        pass
    assert os.listdir(tmp_path) == []


def test_files_of_a_folder_are_replaced_and_others_stay(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with files.replaced_files(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "notes.txt"]
    assert os.listdir(tmp_path) == ["model"]


def test_a_write_error_is_said_and_passed_over_but_no_other(capsys):
    with files.tolerated("report.html"):
        raise OSError(28, "No space left on device")
    assert "report.html could not be written ([Errno 28] No space left on device)" in capsys.readouterr().out
    with pytest.raises(KeyError), files.tolerated("report.html"):
        raise KeyError("a bug")
