"""Tar files of WebDataset: their samples, and which files of these are image and mask.

Modules: data_utils/sources/streams/webdataset.py.
"""

import io
import os
import tarfile
from pathlib import Path

import pytest

from data_utils.sources.streams.webdataset import TarRows
from runtime.errors import DataError


def write_tar(file: Path, *names: str) -> str:
    """A tar file of files that hold their own names."""
    with tarfile.open(file, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(os.fsencode(name))
            tar.addfile(member, io.BytesIO(os.fsencode(name)))
    return str(file)


@pytest.mark.parametrize(
    ("extensions", "chosen"),
    [
        (("jpg", "png"), (None, None)),
        (("jpg", "seg.png"), (None, None)),
        (("image.png", "mask.png"), (None, None)),
        (("\udcff.jpg", "\udcff.mask.png"), (None, None)),
        (("a.png", "b.png"), ("b.png", "a.png")),
    ],
    ids=str,
)
def test_pictures_of_a_tar_are_found_by_their_extensions_or_those_that_are_given(tmp_path, extensions, chosen):
    assert len(TarRows.open([write_tar(tmp_path / "a.tar", *(f"x/1.{e}" for e in extensions))], *chosen)) == 1


@pytest.mark.parametrize(
    ("extensions", "chosen", "line"),
    [
        (("a.png", "b.png"), (None, None), r"/a\.tar: which of a\.png, b\.png are image and mask"),
        (("jpg", "png", "tif"), ("jpg", None), r"which of jpg, png, tif are image and mask"),
        (("jpg", "png", "tif"), ("tif", "mask"), r"which of jpg, png, tif are image and mask"),
        (("jpg", "png", "tif"), ("scan", "png"), r"which of jpg, png, tif are image and mask"),
        (("txt",), (None, None), "holds no pictures"),
    ],
    ids=str,
)
def test_a_tar_whose_image_and_mask_are_not_known_is_named_with_what_it_holds(tmp_path, extensions, chosen, line):
    files = [write_tar(tmp_path / "empty.tar", "x/1.txt")]
    files.append(write_tar(tmp_path / "a.tar", *(f"x/1.{e}" for e in extensions)))
    with pytest.raises(DataError, match=line):
        TarRows.open(files, *chosen)


def test_a_file_that_is_no_tar_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DataError, match=r"a\.tar cannot be read"):
        TarRows.open([str(tmp_path / "a.tar")], None, None)


def test_samples_of_a_tar_that_lack_a_picture_are_counted_and_one_is_named(tmp_path):
    first = write_tar(tmp_path / "a.tar", "1.jpg", "1.png")
    file = tmp_path / "b.tar"
    with tarfile.open(file, "w") as tar:
        for name in ("a.jpg", "a.png", "b.jpg", "c.jpg", "c.png", "d.png", "._e.jpg", "f/"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        member = tarfile.TarInfo("folder.jpg")
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    with pytest.raises(DataError, match=r"^2 of 5 samples lack jpg or png, the first is b in .*/b\.tar; write"):
        TarRows.open([first, str(file)], None, None)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_picture_of_a_tar_is_a_file_in_it(tmp_path, kind):
    file = write_tar(tmp_path / "a.tar", "a.jpg", "a.png", "b.png")
    member = tarfile.TarInfo("b.jpg")
    member.type = kind
    member.linkname = "/etc/passwd"
    with tarfile.open(file, "a") as tar:
        tar.addfile(member)
    with pytest.raises(DataError, match=r"a\.tar: b\.jpg is a link, not a picture"):
        TarRows.open([file], None, None)


def test_the_first_sample_of_all_tars_says_what_is_image_or_mask(tmp_path):
    files = [
        write_tar(tmp_path / "0.tar", "notes.txt"),
        write_tar(tmp_path / "1.tar", "aa/1.jpg", "b/1.jpg", "b/1.small.jpg", "b/1.seg.png", "aa/1.seg.png"),
        write_tar(tmp_path / "2.tar", "\udcff.JPG", "\udcff.seg.png"),
        write_tar(tmp_path / "3.tar", "notes.txt"),
    ]
    records = TarRows.open(files, None, None)
    assert [record["name"] for record in records] == ["aa/1", "b/1", "\udcff"]
    assert [record["image"] for record in records] == [b"aa/1.jpg", b"b/1.jpg", b"\xff.JPG"]
    assert [record["target"] for record in records] == [b"aa/1.seg.png", b"b/1.seg.png", b"\xff.seg.png"]
