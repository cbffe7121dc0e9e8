"""Headers of MetaImage files: checked before SimpleITK reads them, which a damaged one would end or mislead."""

from pathlib import Path

import pytest
from support.hostile_volumes import meta_image

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.itk_headers import check_meta_image
from data_utils.image_io.volumes import read_volume
from runtime.errors import ImageError

CUT_OFF = "the file ends before its voxels do"


SHORT_META = "NDims = 3\nDimSize = 2 3 4\n{}ElementType = MET_DOUBLE\nElementDataFile = LOCAL\n"


@pytest.mark.parametrize("data", ["LOCAL", "Local"])
def test_a_good_meta_image_is_read(tmp_path, data):
    pytest.importorskip("SimpleITK")
    voxels, _ = read_volume(VolumeFile((str(meta_image(tmp_path / "a.mha", data=data)),)), "a")
    assert voxels.shape == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"axes": "999999"}, "it has 999999 axes"),
        ({"axes": "-3"}, "NDims = -3"),
        ({"sides": "2 3 0"}, "DimSize = 2 3 0"),
        ({"channels": "0"}, "ElementNumberOfChannels = 0"),
        ({"channels": "1\nOffset = 1 1 1"}, "its header is damaged"),  # it says Offset twice
        ({"channels": "1\nPosition = 1 1"}, "Position = 1 1, expected 3 numbers"),
        ({"sides": "2000000 3000000 4000000"}, "the file ends before its voxels do"),
        ({"kind": "MET_NONE"}, "ElementType = MET_NONE"),
        ({"data": "/etc/passwd"}, "ElementDataFile = /etc/passwd"),
        ({"data": "../outside.raw"}, "ElementDataFile = ../outside.raw"),
    ],
)
def test_a_damaged_meta_image_is_refused_before_simpleitk_reads_it(tmp_path, fields, reason):
    pytest.importorskip("SimpleITK")
    (tmp_path / "outside.raw").write_bytes(bytes(24))
    (tmp_path / "in").mkdir()
    with pytest.raises(ImageError, match=reason):
        read_volume(VolumeFile((str(meta_image(tmp_path / "in" / "a.mha", **fields)),)), "a")


def write_meta_image_of_windows(folder: Path) -> Path:
    """A header whose lines end as on Windows, beside its voxels."""
    path = meta_image(folder / "a.mhd", data="a.raw")
    path.write_bytes(path.read_bytes()[:-24].replace(b"\n", b"\r\n"))
    (folder / "a.raw").write_bytes(bytes(24))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_texts_of_a_meta_image_may_hold_any_characters(encoding, tmp_path):
    path = meta_image(tmp_path / "a.mhd", channels="1\nComment = café", data="a=b.raw")
    path.write_bytes(path.read_bytes().replace("é".encode(), "é".encode(encoding)))
    (tmp_path / "a=b.raw").write_bytes(bytes(24))
    check_meta_image(str(path))


def test_lines_of_a_meta_image_may_end_as_on_windows(tmp_path):
    check_meta_image(str(write_meta_image_of_windows(tmp_path)))


@pytest.mark.parametrize(("channels", "field"), [(1, ""), (3, "ElementNumberOfChannels = 3\n")])
def test_a_meta_image_that_lacks_its_last_byte_is_cut_off(tmp_path, channels, field):
    path = tmp_path / "a"
    header = SHORT_META.format(field).encode()
    path.write_bytes(header + bytes(8 * 24 * channels))
    check_meta_image(str(path))
    path.write_bytes(header + bytes(8 * 24 * channels - len(header) - 1))
    with pytest.raises(ValueError, match=CUT_OFF):
        check_meta_image(str(path))


def compressed_meta_image(path: Path, sides: str) -> str:
    """A header of voxels that a file beside it holds in 24 bytes."""
    meta_image(path, sides=sides, data="a.raw")
    path.with_name("a.raw").write_bytes(bytes(24))
    path.write_text(path.read_bytes()[:-24].decode().replace("CompressedData = False", "CompressedData = TRUE"))
    return str(path)


def test_a_compressed_meta_image_of_more_than_a_thousand_times_its_file_is_cut_off(tmp_path):
    path = compressed_meta_image(tmp_path / "a.mhd", "24 1033 1")
    with pytest.raises(ValueError, match=CUT_OFF):
        check_meta_image(path)
