"""Headers of NRRD files: checked before SimpleITK reads them, which a damaged one would end or mislead.

Modules: data_utils/image_io/itk_headers.py.
"""

from pathlib import Path

import pytest
from support.hostile_volumes import SPACE, nrrd

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.itk_headers import check_nrrd
from data_utils.image_io.volumes import read_volume
from runtime.errors import ImageError

CUT_OFF = "the file ends before its voxels do"


@pytest.mark.parametrize("more", ["", "# a comment: of someone\nname:=value\n"], ids=["", "comment"])
@pytest.mark.parametrize("kind", ["uint8", "unsigned char", "uchar", "uint8_t", "int8"])
def test_a_good_nrrd_is_read(tmp_path, kind, more):
    pytest.importorskip("SimpleITK")
    voxels, _ = read_volume(VolumeFile((str(nrrd(tmp_path / "a.nrrd", kind, more=more)),)), "a")
    assert voxels.shape == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sizes": "2000000 3000000 4000000"}, "the file ends before its voxels do"),
        ({"sizes": "2 3 5"}, "the file ends before its voxels do"),
        ({"sizes": "2 3 -4"}, "sizes = 2 3 -4"),
        ({"sizes": "2 3"}, "dimension = 3, expected 2"),
        ({"encoding": "zstd"}, "encoding = zstd"),
        ({"more": "data file: /etc/passwd\n"}, "data file = /etc/passwd"),
        ({"more": "data file: ../outside.raw\n"}, r"data file = \.\./outside.raw"),
        ({"more": "a/" * 3000 + "\n"}, "no field of the format"),  # SimpleITK ends the process
        ({"more": "spacings: 1 1 1\nspacings: 1 1 1\n"}, "says spacings twice"),
        ({"more": "data file: a%d.raw 1 3 1\n"}, "data file = a%d.raw"),
    ],
)
def test_a_damaged_nrrd_is_refused_before_simpleitk_reads_it(tmp_path, fields, reason):
    pytest.importorskip("SimpleITK")
    (tmp_path / "outside.raw").write_bytes(bytes(24))
    (tmp_path / "in").mkdir()
    with pytest.raises(ImageError, match=reason):
        read_volume(VolumeFile((str(nrrd(tmp_path / "in" / "a.nrrd", **fields)),)), "a")


def changed_nrrd(path: Path, before: str, after: str) -> str:
    """A good NRRD but for one place of its header."""
    content = nrrd(path).read_bytes()
    assert content.count(before.encode()) == 1
    path.write_bytes(content.replace(before.encode(), after.encode()))
    return str(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("NRRD0004", "NRRD0005"),
        ("encoding: raw", "encoding: gz"),
        ("endian: little\n", "endian: little\ncontent: café\n"),
    ],
)
def test_a_header_of_a_nrrd_in_another_form_is_accepted(tmp_path, before, after):
    check_nrrd(changed_nrrd(tmp_path / "a.nrrd", before, after))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("NRRD0004", "NRRD0006", "it is no NRRD file, or of a newer version"),
        ("origin: (0,0,0)", "origin: (0,0,0) (1,1,1)", "spaceorigin = .*, expected 1 of the form"),
        ("endian: little\n", "endian: little\nkinds: café\n", "its header has a line 'kinds: .*no field of the format"),
        ("endian: little\n", "endian: little\ndata file: ../a:=b\n", "data file = ../a:=b, expected a file beside it"),
        (f"dimension: 3\n{SPACE}sizes: 2 3 4", f"dimension: 17\n{SPACE}sizes:{' 1' * 17}", "sizes = 1 1"),
        ("2 3 4\nendian: little\n", "24 100 10\nendian: little\nblock size: 1\n", "the file ends before its voxels do"),
    ],
)
def test_a_header_of_a_nrrd_that_the_format_does_not_have_is_refused(tmp_path, before, after, reason):
    path = changed_nrrd(tmp_path / "a.nrrd", before, after)
    with pytest.raises(ValueError, match=reason):
        check_nrrd(path)


def test_lines_of_a_nrrd_may_end_as_on_windows(tmp_path):
    path = nrrd(tmp_path / "a.nrrd")
    path.write_bytes(path.read_bytes()[:-24].replace(b"\n", b"\r\n") + bytes(24))
    check_nrrd(str(path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=CUT_OFF):
        check_nrrd(str(path))


def test_voxels_of_a_nrrd_fill_a_file_beside_it(tmp_path):
    path = nrrd(tmp_path / "a.nhdr", more="data file: a.raw\n")
    path.write_bytes(path.read_bytes()[:-25])  # without voxels, and without the empty line before them
    (tmp_path / "a.raw").write_bytes(bytes(24))
    check_nrrd(str(path))
    (tmp_path / "a.raw").write_bytes(bytes(23))
    with pytest.raises(ValueError, match=CUT_OFF):
        check_nrrd(str(path))


def test_a_compressed_nrrd_may_be_a_thousand_times_as_large_as_its_file_and_no_more(tmp_path):
    check_nrrd(str(nrrd(tmp_path / "a.nrrd", sizes="24 1000 1", encoding="gzip")))
    with pytest.raises(ValueError, match=CUT_OFF):
        check_nrrd(str(nrrd(tmp_path / "a.nrrd", sizes="24 1033 1", encoding="gzip")))
