"""Files and folders that are there whole or not at all, and checksums of files."""

import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest
from safetensors import SafetensorError

from inference.provenance import complete_provenance
from predict import close_output
from runtime import files
from runtime.cache import cache_file, load_or_compute
from runtime.console import say_once
from runtime.files import checksum


def test_a_file_takes_the_place_of_another_only_when_it_is_whole(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    with files.replace_file(file) as stream:
        stream.write(b"new and longer")
        stream.flush()
        assert file.read_bytes() == b"old"
        before = file.stat().st_ino
    assert file.read_bytes() == b"new and longer"
    assert file.stat().st_ino != before  # renamed, not copied over: nobody sees half of it
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("name", ["x" * 251 + ".png", "\u00e9" * 125 + ".png"], ids=["letters", "of two bytes"])
def test_a_name_as_long_as_a_file_system_takes_can_be_written(tmp_path, name):
    with files.replace_file(tmp_path / name) as stream:
        stream.write(b"mask")
        (temporary,) = os.listdir(tmp_path)
    assert (tmp_path / name).read_bytes() == b"mask"
    (tmp_path / temporary).write_bytes(b"of a writer that was killed")
    with files.replace_path(tmp_path / name) as path:
        path.write_bytes(b"another")
    files.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_a_failure_leaves_the_old_file_alone(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"), files.replace_file(file) as stream:
        stream.write(b"half")
        raise OSError("disk full")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("write", [files.replace_file, files.replace_path])
def test_a_file_is_on_disk_before_it_takes_the_place_of_another(tmp_path, events, write):
    with write(tmp_path / "a") as new:
        new.write(b"new") if write is files.replace_file else new.write_bytes(b"new")
    number = (tmp_path / "a").stat().st_ino
    assert events == [("sync", number), ("rename", number)]
    assert os.listdir(tmp_path) == ["a"]


def test_the_last_bytes_that_are_written_are_on_disk_too(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    with files.replace_file(tmp_path / "a") as stream:
        stream.write(b"new")
    assert sizes == [3]


def test_a_file_that_the_disk_does_not_take_is_an_error(tmp_path, monkeypatch):
    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"), files.replace_path(tmp_path / "a") as path:
        path.write_bytes(b"new")
    assert os.listdir(tmp_path) == []


def test_a_link_that_waits_under_the_name_of_a_temporary_file_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "0123abcd")
    (tmp_path / ".a.0123abcd.tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), files.replace_file(tmp_path / "a") as stream:
        stream.write(b"new")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "a").exists()


def test_a_folder_that_is_not_complete_is_absent(tmp_path):
    with pytest.raises(OSError, match="disk full"), files.complete_folder(tmp_path / "step") as folder:
        (folder / "a").write_bytes(b"1")
        assert not (tmp_path / "step").exists()
        raise OSError("disk full")
    assert os.listdir(tmp_path) == []


def test_a_complete_folder_replaces_an_older_one_as_a_whole(tmp_path):
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "a").write_bytes(b"1")
    with files.complete_folder(tmp_path / "step") as folder:
        (folder / "b").write_bytes(b"2")
    assert os.listdir(tmp_path / "step") == ["b"]


def test_a_folder_that_has_vanished_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError), files.complete_folder(tmp_path / "mount" / "step"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("write", [files.replace_files, files.complete_folder])
def test_a_folder_that_vanishes_meanwhile_is_not_made_again(tmp_path, write):
    (tmp_path / "mount").mkdir()
    with pytest.raises(FileNotFoundError), write(tmp_path / "mount" / "step"):
        shutil.rmtree(tmp_path / "mount")
    assert os.listdir(tmp_path) == []


def test_a_folder_in_the_making_stays_while_another_one_is_made_beside_it(tmp_path):
    with files.complete_folder(tmp_path / "step-10") as first:
        (first / "a").write_text("1")
        for name in ("step-1", "step-2"):
            with files.complete_folder(tmp_path / name) as second:
                (second / "a").write_text("2")
    assert [(tmp_path / name / "a").read_text() for name in ("step-10", "step-1", "step-2")] == ["1", "2", "2"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
def test_folders_that_cannot_be_flushed_are_kept_with_a_line_once(tmp_path, monkeypatch, capsys, number):
    flush = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr("os.fsync", refuse_folders)
    say_once.cache_clear()
    for _ in range(2):
        with files.complete_folder(tmp_path / "step") as folder:
            (folder / "a").write_bytes(b"a")
    assert (tmp_path / "step" / "a").read_bytes() == b"a"
    assert capsys.readouterr().out.splitlines() == [files.WITHOUT_FLUSH]


@pytest.mark.parametrize("write", [files.replace_path, files.complete_folder])
def test_a_writer_leaves_what_another_one_is_writing(tmp_path, write):
    with write(tmp_path / "a") as first:
        with write(tmp_path / "a") as second:
            _write_into(second, b"second")
        _write_into(first, b"first")
    assert _content(tmp_path / "a") == b"first"
    assert os.listdir(tmp_path) == ["a"]


def _write_into(path: Path, content: bytes) -> None:
    """Write a file, or a file of a folder."""
    (path / "file" if path.is_dir() else path).write_bytes(content)


def _content(path: Path) -> bytes:
    return (path / "file" if path.is_dir() else path).read_bytes()


def test_files_of_a_folder_are_replaced_beside_others(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with files.replace_files(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "notes.txt"]
    assert os.listdir(tmp_path) == ["model"]


@pytest.fixture
def events(monkeypatch) -> list[tuple[str, int]]:
    """What is synced to the disk and what is renamed, in order; files and folders by their numbers (inodes)."""
    found = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def note_sync(descriptor: int) -> None:
        found.append(("sync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def note_replace(path: Path, target: Path) -> Path:
        found.append(("rename", path.stat().st_ino))
        return replace(path, target)

    def note_rename(path: Path, target: Path) -> Path:
        found.append(("rename", path.stat().st_ino))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    monkeypatch.setattr(Path, "rename", note_rename)
    return found


MODEL_FILES = ["config.json", "model.safetensors", "README.md"]


def inodes(folder: Path) -> set[int]:
    """The numbers of the files of a model."""
    return {(folder / name).stat().st_ino for name in MODEL_FILES}


@pytest.fixture
def model(tmp_path) -> Path:
    """A folder with three old files."""
    model = tmp_path / "model"
    model.mkdir()
    for name in MODEL_FILES:
        (model / name).write_text("old")
    return model


def test_several_files_are_renamed_when_all_are_written(model):
    before = inodes(model)
    with files.replace_files(model) as folder:
        for name in MODEL_FILES:
            (folder / name).write_text("new")
            assert (model / name).read_text() == "old"
    assert not before & inodes(model)  # not copied over: nobody sees half of one
    assert {(model / name).read_text() for name in MODEL_FILES} == {"new"}


def test_several_files_are_on_disk_before_they_take_the_place_of_others(model, events):
    with files.replace_files(model) as folder:
        for name in MODEL_FILES:
            (folder / name).write_text("new")
    after = inodes(model)
    assert {number for kind, number in events if kind == "rename"} == after
    for number in after:
        assert events.index(("sync", number)) < events.index(("rename", number))
    assert events[-1] == ("sync", model.stat().st_ino)


def test_a_folder_is_on_disk_with_all_its_files_before_it_has_its_name(tmp_path, events):
    with files.complete_folder(tmp_path / "step") as folder:
        for name in "abc":
            (folder / name).write_text("new")
    step = tmp_path / "step"
    written = {(step / name).stat().st_ino for name in "abc"}
    kinds, numbers = zip(*events, strict=True)
    assert kinds == ("sync",) * 4 + ("rename", "sync")
    assert set(numbers[:3]) == written
    assert numbers[3:] == (step.stat().st_ino, step.stat().st_ino, tmp_path.stat().st_ino)


def test_a_failure_between_several_files_leaves_all_the_old_ones(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in "ab":
        (model / name).write_text("old")
    with pytest.raises(OSError, match="disk full"), files.replace_files(model) as folder:
        (folder / "a").write_text("new")
        (folder / "c").write_text("new")
        raise OSError("disk full")
    assert {path.name: path.read_text() for path in model.iterdir()} == {"a": "old", "b": "old"}
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("write", [files.replace_files, files.complete_folder])
def test_leftovers_of_a_killed_process_are_not_in_the_way(tmp_path, write):
    left = tmp_path / ".step.0123abcd.tmp"
    left.mkdir()
    (left / "half").write_text("half")
    (tmp_path / ".step.4567abcd.tmp").write_text("half")
    with write(tmp_path / "step") as folder:
        (folder / "a").write_text("new")
    assert not left.exists()
    assert os.listdir(tmp_path / "step") == ["a"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (SafetensorError("Error while serializing"), "Error while serializing"),
    ],
    ids=["of Python", "of safetensors"],
)
def test_a_write_error_is_reported_without_ending_the_run(capsys, error, reason):
    with files.tolerate_write_errors("report.html"):
        raise error
    assert capsys.readouterr().out == f"report.html could not be written ({reason})\n"


USERS = {
    "predict.json": lambda folder: complete_provenance(folder),
    "metrics.json": lambda folder: close_output(folder, {"mean_iou": 1.0}, is_complete=False),
    f"unet-accelerate/{cache_file('key', '.json').name}": lambda folder: load_or_compute("key", lambda: [1, 2]),
}


@pytest.mark.parametrize("name", USERS)
def test_a_record_is_written_beside_the_old_one_before_it_takes_its_place(tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}" if name == "predict.json" else "")
    before = (tmp_path / name).read_text()
    replace, seen = Path.replace, []

    def noted(path: Path, target: Path) -> Path:
        seen.append((Path(target), Path(target).read_text(), path.read_text()))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    USERS[name](tmp_path)
    ((target, old, new),) = seen
    assert target == tmp_path / name
    assert old == before
    assert new == target.read_text() != before


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "another shape"])
def test_a_damaged_file_of_the_cache_is_made_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_or_compute("key", lambda: [1, 2]) == [1, 2]
    file = tmp_path / "unet-accelerate" / cache_file("key", ".json").name
    whole = file.read_bytes()
    assert load_or_compute("key", lambda: [3]) == [1, 2]
    changed = {"cut": whole[:-1], "empty": b"", "flipped": whole.replace(b"1, 2", b"1, 3"), "another shape": b"{}"}
    file.write_bytes(changed[damage])
    assert load_or_compute("key", lambda: [1, 2]) == [1, 2]
    assert file.read_bytes() == whole


def test_temporary_files_of_killed_writers_are_removed(tmp_path):
    (tmp_path / ".a.png.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / ".mine.tmp").write_bytes(b"mine")
    (tmp_path / ".a.png.0123abcd.tmp.txt").write_bytes(b"mine")
    (tmp_path / ".link.png.0123abcd.tmp").symlink_to(".mine.tmp")  # no writer makes a link
    with files.replace_file(tmp_path / "b.png") as stream:
        files.remove_leftovers(tmp_path)
        stream.write(b"new")
    assert sorted(os.listdir(tmp_path)) == [".a.png.0123abcd.tmp.txt", ".link.png.0123abcd.tmp", ".mine.tmp", "b.png"]


@pytest.mark.parametrize("content", [b"abc", bytes(range(256)) * 8193], ids=["a few bytes", "more than two blocks"])
def test_the_checksum_of_a_file_is_that_of_all_its_bytes(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert checksum(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_new_file_may_be_read_by_whom_the_user_lets_read_files(tmp_path):
    before = os.umask(0o022)
    try:
        with files.replace_file(tmp_path / "a") as stream:
            stream.write(b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
