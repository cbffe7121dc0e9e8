"""NRRD and MetaImage: read as SimpleITK reads them; a damaged header is one line.

Modules: data_utils/image_io/text_headers.py, data_utils/image_io/stored_volume.py.
"""

from pathlib import Path

import numpy as np
import pytest
from support.hostile_volumes import SPACE, meta_image, nrrd

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_volume
from runtime.errors import ImageError

CUT_OFF = "the file ends before its voxels do"
VOXELS = np.arange(24).reshape(4, 3, 2)[:, ::-1, ::-1]  # the files' axes x and y point left and posterior


def read(path: Path) -> np.ndarray:
    """The voxels (D, H, W, C) of a file."""
    return read_volume(VolumeFile((str(path),)), "a")[0]


def changed(path: Path, before: str, after: str) -> Path:
    """A file that is good but for one place of its header."""
    content = path.read_bytes()
    assert content.count(before.encode()) == 1
    path.write_bytes(content.replace(before.encode(), after.encode()))
    return path


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"axes": "999999"}, "ndims = 999999"),
        ({"sides": "2 3 0"}, "dimsize = 2 3 0"),
        ({"channels": "0"}, "elementnumberofchannels = 0"),
        ({"channels": "1\nOffset = 1 1 1"}, "its header is damaged"),  # it says Offset twice
        ({"channels": "1\nElementSize = 1 1"}, None),  # ElementSpacing comes first
        ({"sides": "2000000 3000000 4000000"}, CUT_OFF),
        ({"kind": "MET_NONE"}, "elementtype = MET_NONE"),
        ({"data": "/etc/passwd"}, "elementdatafile = /etc/passwd"),
        ({"data": "../outside.raw"}, "elementdatafile = ../outside.raw"),
        ({"data": "LIST"}, "elementdatafile = LIST"),
        ({"data": "Local"}, None),
    ],
)
def test_a_meta_image_is_read_or_refused_by_its_header(tmp_path, fields, reason):
    (tmp_path / "outside.raw").write_bytes(bytes(24))
    (tmp_path / "in").mkdir()
    path = meta_image(tmp_path / "in" / "a.mha", **fields)
    if reason is None:
        assert np.array_equal(read(path)[..., 0], VOXELS)
        return
    with pytest.raises(ImageError, match=reason):
        read(path)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("NRRD0004", "NRRD0005", None),
        ("type: uint8", "type: uchar", None),
        ("endian: little\n", "endian: little\ncontent: café\n# a comment: of someone\nname:=value\n", None),
        ("endian: little\n", "endian: little\n" + "Segment0_Tags:=many\n" * 10_000, None),  # as of TotalSegmentator
        ("endian: little\n", "endian: little\n" + "Segment0_Tags:=many\n" * 60_000, "its header"),
        (f"{SPACE}", "", None),
        ("type: uint8", "type: block", "type = block"),
        ("sizes: 2 3 4", "sizes: 2000000 3000000 4000000", CUT_OFF),
        ("sizes: 2 3 4", "sizes: 2 3 5", CUT_OFF),
        ("sizes: 2 3 4", "sizes: 2 3 -4", "sizes = 2 3 -4"),
        ("sizes: 2 3 4", "sizes: 2 3", "sizes = 2 3, expected 3 numbers"),
        ("dimension: 3", "dimension: 17", "dimension = 17"),
        ("encoding: raw", "encoding: zstd", "encoding = zstd"),
        ("endian: little\n", "data file: /etc/passwd\n", "datafile = /etc/passwd"),
        ("endian: little\n", "data file: ../outside.raw\n", r"datafile = \.\./outside.raw"),
        ("endian: little\n", "data file: a%d.raw 1 3 1\n", "datafile = a%d.raw"),
        ("endian: little\n", "a/" * 300 + "\n", "its header is damaged"),
        ("endian: little\n", "type: uint8\n", "its header is damaged at 'type: uint8'"),
        ("origin: (0,0,0)", "origin: (0,0,0) (1,1,1)", "spaceorigin = .*, expected 3 numbers"),
        ("(0,1,0)", "none", "expected 3 axes in space"),
    ],
)
def test_a_nrrd_is_read_or_refused_by_its_header(tmp_path, before, after, reason):
    (tmp_path / "outside.raw").write_bytes(bytes(24))
    (tmp_path / "in").mkdir()
    path = changed(nrrd(tmp_path / "in" / "a.nrrd"), before, after)
    if reason is None:
        assert np.array_equal(read(path)[..., 0], VOXELS)
        return
    with pytest.raises(ImageError, match=reason):
        read(path)


def test_the_axis_whose_spacing_is_nan_is_that_of_the_channels(tmp_path):
    path = nrrd(tmp_path / "a.nrrd", sizes="2 3 2 2")
    path = changed(path, "dimension: 3", "dimension: 4")
    path = changed(path, "space directions: (1,0,0) (0,1,0) (0,0,1)", "spacings: nan 1 2 3")
    voxels, header = read_volume(VolumeFile((str(path),)), "a")
    assert header.spacing == (3, 2, 1)
    assert np.array_equal(voxels, np.arange(24).reshape(2, 2, 3, 2)[:, ::-1, ::-1])


@pytest.mark.parametrize("write", [nrrd, meta_image])
def test_lines_may_end_as_on_windows(tmp_path, write):
    path = write(tmp_path / ("a.nrrd" if write is nrrd else "a.mha"))
    path.write_bytes(path.read_bytes()[:-24].replace(b"\n", b"\r\n") + bytes(range(24)))
    assert np.array_equal(read(path)[..., 0], VOXELS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ImageError, match=CUT_OFF):
        read(path)


@pytest.mark.parametrize(("header", "field"), [("a.mhd", "HeaderSize"), ("b.nhdr", "byte skip")])
@pytest.mark.parametrize("file", ["a.raw", "./a.raw"])
@pytest.mark.parametrize(("skipped", "before", "behind"), [(0, 0, 9), (5, 5, 9), (-1, 7, 0)])
def test_voxels_may_lie_in_a_file_beside_the_header(tmp_path, header, field, file, skipped, before, behind):
    path = tmp_path / header
    if header == "a.mhd":
        meta_image(path, channels=f"1\n{field} = {skipped}", data=file)
    else:
        nrrd(path, more=f"data file: {file}\n{field}: {skipped}\n")
    path.write_bytes(path.read_bytes()[:-24])
    (tmp_path / "a.raw").write_bytes(bytes(before) + bytes(range(24)) + bytes(behind))
    assert np.array_equal(read(path)[..., 0], VOXELS)


@pytest.mark.parametrize("name", ["a.nrrd", "a.mha", "a.mhd"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("kind", "channels"), [("u1", 1), ("i2", 1), ("u4", 3), ("f4", 2), ("f8", 1)])
def test_files_of_simpleitk_are_read_as_it_reads_them(tmp_path, name, compressed, kind, channels):
    itk = pytest.importorskip("SimpleITK")
    shape = (4, 5, 6) if channels == 1 else (4, 5, 6, channels)
    voxels = (np.random.default_rng(0).random(shape) * 100).astype(kind)
    image = itk.GetImageFromArray(voxels, isVector=channels > 1)
    image.SetOrigin((3, -4, 5))
    image.SetSpacing((0.5, 2, 3))
    image.SetDirection((0, 1, 0, -1, 0, 0, 0, 0, 1))
    itk.WriteImage(image, str(tmp_path / name), useCompression=compressed)
    paths = []
    for channel in range(channels):
        paths.append(str(tmp_path / f"{channel}.nii"))
        itk.WriteImage(itk.VectorIndexSelectionCast(image, channel) if channels > 1 else image, paths[-1])
    expected, expected_header = read_volume(VolumeFile(tuple(paths)), "a")
    read_voxels, header = read_volume(VolumeFile((str(tmp_path / name),)), "a")
    assert np.array_equal(read_voxels, expected)
    assert header.dtype == expected_header.dtype
    assert header.affine == pytest.approx(expected_header.affine, abs=1e-6)


def test_a_compressed_file_that_cannot_hold_its_voxels_is_refused(tmp_path):
    with pytest.raises(ImageError, match=r"claims [0-9,]+ bytes of voxels, it can hold [0-9,]+ at most"):
        read(nrrd(tmp_path / "a.nrrd", sizes="2400 1033 10", encoding="gzip"))
