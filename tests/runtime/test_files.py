"""Files and folders that are there whole or not at all, and checksums of files."""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime import files
from runtime.files import checksum, complete_folder, replace_file, replace_files, replace_path


def write(writer: Callable, target: Path, content: str) -> None:
    """Write a file or, for a writer of folders, a file `a` in a folder."""
    with writer(target) as new:
        write_into(new, content)


def write_into(new: object, content: str) -> None:
    if not isinstance(new, Path):
        new.write(content.encode())
    elif new.is_dir():
        (new / "a").write_text(content)
    else:
        new.write_text(content)


def content_of(target: Path) -> str:
    return (target / "a" if target.is_dir() else target).read_text()


WRITERS = [replace_file, replace_path, replace_files, complete_folder]


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_takes_the_place_of_the_old_when_it_is_whole(tmp_path, writer):
    write(writer, tmp_path / "target", "old")
    with pytest.raises(OSError, match="disk full"), writer(tmp_path / "target") as new:
        write_into(new, "half")
        raise OSError("disk full")
    assert content_of(tmp_path / "target") == "old"
    with writer(tmp_path / "target") as new:
        write_into(new, "new and longer")
        assert content_of(tmp_path / "target") == "old"
    assert content_of(tmp_path / "target") == "new and longer"
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize("writer", WRITERS)
def test_two_writers_of_one_place_do_not_disturb_each_other(tmp_path, writer):
    with writer(tmp_path / "target") as first:
        write(writer, tmp_path / "target", "second")
        write_into(first, "first")
    assert content_of(tmp_path / "target") == "first"
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_that_vanishes_is_not_made_again(tmp_path, writer):
    (tmp_path / "mount").mkdir()
    with pytest.raises(FileNotFoundError), writer(tmp_path / "mount" / "target") as new:
        write_into(new, "new")
        shutil.rmtree(tmp_path / "mount")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 251 + ".png", "\u00e9" * 125 + ".png"], ids=["letters", "of two bytes"])
def test_a_name_as_long_as_a_file_system_takes_can_be_written(tmp_path, name):
    write(replace_file, tmp_path / name, "mask")
    assert os.listdir(tmp_path) == [name]


def test_files_of_a_folder_are_replaced_beside_others(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    write(replace_files, tmp_path / "model", "new")
    assert sorted(os.listdir(tmp_path / "model")) == ["a", "notes.txt"]


@pytest.fixture
def events(monkeypatch) -> list[tuple[str, int]]:
    """What is synced to the disk and what is renamed, in order; files and folders by their numbers (inodes)."""
    found = []

    def noted(kind: str, function: Callable, number: Callable[[object], int]) -> Callable:
        def call(first: object, *others: object) -> object:
            found.append((kind, number(first)))
            return function(first, *others)

        return call

    monkeypatch.setattr(os, "fsync", noted("sync", os.fsync, lambda descriptor: os.fstat(descriptor).st_ino))
    for name in ("replace", "rename"):
        monkeypatch.setattr(Path, name, noted("rename", getattr(Path, name), lambda path: path.stat().st_ino))
    return found


@pytest.mark.parametrize("writer", [replace_file, replace_path, replace_files])
def test_a_file_is_on_disk_before_it_takes_the_place_of_another(tmp_path, events, writer):
    write(writer, tmp_path / "target", "new")
    target = tmp_path / "target"
    number = (target / "a" if target.is_dir() else target).stat().st_ino
    assert events[:2] == [("sync", number), ("rename", number)]
    assert events[2:] == ([("sync", target.stat().st_ino)] if target.is_dir() else [])


def test_a_folder_is_on_disk_with_all_its_files_before_it_has_its_name(tmp_path, events):
    write(complete_folder, tmp_path / "step", "new")
    file, folder, parent = ((tmp_path / name).stat().st_ino for name in ("step/a", "step", "."))
    assert events == [("sync", file), ("sync", folder), ("rename", folder), ("sync", parent)]


def test_a_file_that_the_disk_does_not_take_is_an_error(tmp_path, monkeypatch):
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        write(replace_path, tmp_path / "a", "new")
    assert os.listdir(tmp_path) == []


def test_folders_that_cannot_be_flushed_are_kept(tmp_path, monkeypatch):
    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse_folders)
    write(complete_folder, tmp_path / "step", "new")
    assert content_of(tmp_path / "step") == "new"


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_new_may_be_read_by_whom_the_user_lets_read_files(tmp_path, writer):
    before = os.umask(0o022)
    try:
        write(writer, tmp_path / "target", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "target").stat().st_mode & 0o044 == 0o044


def test_old_leftovers_of_killed_writers_are_removed(tmp_path):
    for name in (".unet-old.tmp", ".unet-new.tmp", ".mine.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    for old in (".unet-old.tmp", ".unet-old.tmp/half", ".unet-new.tmp"):
        os.utime(tmp_path / old, (0, 0))
    files.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".mine.tmp", ".unet-new.tmp"]
    files.remove_leftovers(tmp_path, seconds=0)
    assert os.listdir(tmp_path) == [".mine.tmp"]
    files.remove_leftovers(tmp_path / "absent")


def test_a_write_error_is_reported_without_ending_the_run(capsys):
    with files.tolerate_write_errors("report.html"):
        raise OSError(28, "No space left on device")
    assert capsys.readouterr().out == "report.html could not be written ([Errno 28] No space left on device)\n"


def test_the_checksum_of_a_file_is_that_of_all_its_bytes(tmp_path):
    content = bytes(range(256)) * 8193  # more than two blocks
    (tmp_path / "a").write_bytes(content)
    assert checksum(tmp_path / "a") == hashlib.sha256(content).hexdigest()
