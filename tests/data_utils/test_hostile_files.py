"""Small files that would take hours, gigabytes or the whole process: each is one line that names it.

Modules: data_utils/image_io/nrrd.py, data_utils/image_io/meta_image.py, data_utils/image_io/formats.py.
"""

import gzip
import json
import os
import struct
import time
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from conftest import PROGRAMS, launch, load_info, predict, write_folder
from PIL import Image, ImageDraw, features

from data_utils.analysis.validate import check_data
from data_utils.config import DataConfig
from data_utils.image_io import formats
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.meta_image import check_meta_image
from data_utils.image_io.nrrd import check_nrrd
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.tiff import tiff_pages
from data_utils.image_io.volumes import read_volume
from data_utils.image_io.windowed import open_windowed_file
from data_utils.loading.volume_input import VolumeInput
from data_utils.sources.annotations.coco_mask import run_lengths
from data_utils.sources.annotations.layout import find_file
from data_utils.sources.annotations.polygons import clipped, fill
from inference.inputs import find_jobs
from inference.page import PagePredictor
from runtime.errors import DataError, ImageError
from train_utils.reporting.samples import save_pictures
from unet.config import Preprocess

SIDE = 8
TAGS = [(256, SIDE), (257, SIDE), (258, 8), (259, 1), (262, 1), (273, 0), (277, 1), (278, SIDE), (279, SIDE * SIDE)]
NEVER_ENDS = "the directory of one page is that of an earlier one again"
SHORT_NRRD = "NRRD0004\ntype: unsigned short\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n\n"
SHORT_META = "NDims = 3\nDimSize = 2 3 4\n{}ElementType = MET_DOUBLE\nElementDataFile = LOCAL\n"


def tiff_bytes(links: list[int], *, big: bool = False) -> bytes:
    """A TIFF of one grey picture whose directory i is followed by directory links[i], by none if that is -1."""
    head, count, tag, link = ("<2sHHHQ", "<Q", "<HHQQ", "<Q") if big else ("<2sHI", "<H", "<HHII", "<I")
    length = struct.calcsize(count) + len(TAGS) * struct.calcsize(tag) + struct.calcsize(link)
    begin = struct.calcsize(head)
    pixels = begin + len(links) * length
    content = struct.pack(head, b"II", 43, 8, 0, begin) if big else struct.pack(head, b"II", 42, begin)
    for following in links:
        content += struct.pack(count, len(TAGS))
        for number, value in TAGS:
            content += struct.pack(tag, number, 4, 1, pixels if number == 273 else value)
        content += struct.pack(link, 0 if following < 0 else begin + following * length)
    return content + bytes(range(SIDE * SIDE))


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("links", [[0], [1, 0], [1, 2, 1]])
def test_a_tiff_whose_pages_come_round_again_is_refused(tmp_path, links, big):
    (tmp_path / "circle.tif").write_bytes(tiff_bytes(links, big=big))
    with pytest.raises(ImageError, match=NEVER_ENDS):
        tiff_pages(tmp_path / "circle.tif")


@pytest.mark.parametrize("big", [False, True])
def test_a_tiff_of_several_pages_is_read(tmp_path, big):
    (tmp_path / "pages.tif").write_bytes(tiff_bytes([1, 2, -1], big=big))
    assert tiff_pages(tmp_path / "pages.tif") == [(number, (SIDE, SIDE)) for number in range(3)]


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("missing", [1, 2])
def test_a_tiff_that_ends_in_its_last_directory_is_read_as_far_as_it_goes(tmp_path, missing, big):
    content = tiff_bytes([1, -1], big=big)[: -(SIDE * SIDE + missing)]
    (tmp_path / "cut.tif").write_bytes(content)
    assert tiff_pages(tmp_path / "cut.tif")[0] == (0, (SIDE, SIDE))


def test_a_tiff_whose_directories_overlap_is_refused_at_once(tmp_path):
    """Each byte would be the start of a directory of thousands of tags: reading them takes hours."""
    content = bytearray(tiff_bytes([0]) + bytes(2**16))
    for offset in range(1024, 2**15, 64):
        struct.pack_into("<H", content, offset, 64)
        struct.pack_into("<I", content, offset + 2 + 64 * 12, offset + 64)
    struct.pack_into("<I", content, 8 + 2 + len(TAGS) * 12, 1024)
    (tmp_path / "overlap.tif").write_bytes(content)
    begin = time.process_time()
    with pytest.raises(ImageError, match="the directories of its pages overlap"):
        tiff_pages(tmp_path / "overlap.tif")
    assert time.process_time() - begin < 5


def test_a_tiff_whose_directories_overlap_by_less_than_its_length_is_refused(tmp_path):
    content = bytearray(tiff_bytes([0]).ljust(2000, b"\0"))
    struct.pack_into("<I", content, 8 + 2 + len(TAGS) * 12, 8 + 2)  # its tags as a directory of 256 others
    (tmp_path / "overlap.tif").write_bytes(content)
    with pytest.raises(ImageError, match="the directories of its pages overlap"):
        tiff_pages(tmp_path / "overlap.tif")


def test_predict_names_a_tiff_that_never_ends_and_writes_the_others(tmp_path, model):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "circle.tif").write_bytes(tiff_bytes([0]))
    Image.new("RGB", (20, 16)).save(tmp_path / "in" / "good.png")
    result = predict(model, [tmp_path / "in"], tmp_path / "out")
    assert result.returncode == 1, result.stderr
    assert [line for line in result.stderr.splitlines() if "circle.tif" in line and NEVER_ENDS in line]
    assert (tmp_path / "out" / "good.png").is_file()
    assert not (tmp_path / "out" / "circle.png").exists()


def test_the_page_names_a_tiff_that_never_ends(tmp_path, model):
    (tmp_path / "circle.tif").write_bytes(tiff_bytes([0]))
    html, mask = PagePredictor(model)(str(tmp_path / "circle.tif"))
    assert NEVER_ENDS in html
    assert mask is None


def test_check_data_names_a_tiff_that_never_ends(tmp_path):
    for split, seed in (("train", 0), ("val", 1)):
        write_folder(tmp_path / split, 3, seed=seed)
    (tmp_path / "train" / "images" / "cell_00.png").unlink()
    (tmp_path / "train" / "images" / "cell_00.tif").write_bytes(tiff_bytes([0]))
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 1, report
    assert NEVER_ENDS in report, report


def write_coco(folder: Path, size: tuple[int, int], polygon: list[float]) -> Path:
    """Five pictures of 18 x 24 (H, W), the first one listed as of `size`, with a polygon each."""
    folder.mkdir()
    images, annotations = [], []
    for number in range(5):
        Image.new("RGB", (24, 18), (number, 0, 0)).save(folder / f"{number}.png")
        height, width = size if number == 0 else (18, 24)
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
        entry = {"id": number, "image_id": number, "category_id": 1, "segmentation": [polygon], "iscrowd": 0}
        annotations.append(entry)
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cell"}]}
    (folder / "_annotations.coco.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("size", [(999_999, 999_999), (40_000, 40_000), (30_000, 40_000), (9000, 12_000)])
def test_coco_sizes_are_compared_with_the_picture_before_anything_is_drawn(tmp_path, size):
    folder = write_coco(tmp_path / "data", size, [2, 2, 12, 2, 12, 12])
    with pytest.raises(DataError, match=r"0\.png: .*18 x 24"):
        load_info(folder, val_fraction=0.4)


def test_coco_pictures_made_smaller_after_annotation_are_read(tmp_path):
    folder = write_coco(tmp_path / "data", (36, 48), [2, 2, 12, 2, 12, 12])
    assert sum(load_info(folder, val_fraction=0.4).reader.class_pixels) > 5 * 18 * 24


def test_a_coco_outline_far_outside_the_picture_takes_no_memory(tmp_path):
    far = 900_000.0
    zigzag = [coordinate for turn in range(2000) for coordinate in ((-1) ** turn * far, far * (turn % 3 - 1))]
    folder = write_coco(tmp_path / "data", (18, 24), zigzag)
    check = ["train.py", "--dataset", folder, "--val-fraction", "0.4", "--check-data"]
    result = launch(PROGRAMS / "limited.py", "RLIMIT_AS", str(8 * 2**30), *check)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("points", [[(2, 2), (12, 3), (9, 15)], [(-20, -10), (40, 3), (9, 30)]])
def test_a_polygon_near_the_picture_is_drawn_as_it_is(points):
    points = np.array(points, float)
    assert clipped(points, (18, 24)) is points


@pytest.mark.parametrize("size", [(40, 10), (10, 40)])
def test_a_polygon_fills_a_picture_of_any_proportions(size):
    picture = Image.new("L", size)
    right, bottom = size[0] - 1, size[1] - 1
    fill(ImageDraw.Draw(picture), np.array([(0, 0), (right, 0), (right, bottom), (0, bottom)], float), 7)
    assert np.asarray(picture).tolist() == [[7] * size[0]] * size[1]


@pytest.mark.parametrize(("height", "width"), [(18, 24), (60, 20)])
def test_a_polygon_cut_at_a_larger_frame_covers_the_same_pixels(height, width):
    whole = np.array([(-5000.0, 9.0), (12.0, -4000.0), (6000.0, 9.0), (12.0, 7000.0)])
    cut = clipped(whole, (height, width))
    assert cut.min(axis=0) == pytest.approx([-width, -height])
    assert cut.max(axis=0) == pytest.approx([2 * width, 2 * height])
    y, x = np.mgrid[:height, :width]
    for (x0, y0), (x1, y1) in zip(cut, np.roll(cut, -1, axis=0), strict=True):
        assert ((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) >= -1e-6).all()  # all pixels lie inside, as in the whole


def write_labelme(folder: Path, size: tuple[int, int], shape: dict) -> Path:
    """Five pictures of 18 x 24 (H, W), the first one's file saying `size`, with a shape each."""
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (24, 18), (number, 0, 0)).save(folder / f"{number}.png")
        height, width = size if number == 0 else (18, 24)
        content = {"imagePath": f"{number}.png", "imageData": None, "imageHeight": height, "imageWidth": width}
        (folder / f"{number}.json").write_text(json.dumps(content | {"shapes": [shape]}))
    return folder


@pytest.mark.parametrize("size", [(999_999, 999_999), (40_000, 40_000), (30_000, 40_000)])
def test_labelme_sizes_are_compared_with_the_picture_before_anything_is_drawn(tmp_path, size):
    shape = {"label": "cell", "points": [[2, 2], [12, 2], [12, 12]], "shape_type": "polygon"}
    with pytest.raises(DataError, match=r"0\.json: .*18 x 24"):
        load_info(write_labelme(tmp_path / "data", size, shape), val_fraction=0.4)


META_IMAGE = """ObjectType = Image
NDims = {axes}
BinaryData = True
BinaryDataByteOrderMSB = False
CompressedData = False
TransformMatrix = 1 0 0 0 1 0 0 0 1
Offset = 0 0 0
ElementSpacing = 1 1 1
DimSize = {sides}
ElementNumberOfChannels = {channels}
ElementType = {kind}
ElementDataFile = {data}
"""


def meta_image(path: Path, axes="3", sides="2 3 4", channels="1", kind="MET_UCHAR", data="LOCAL") -> Path:
    header = META_IMAGE.format(axes=axes, sides=sides, channels=channels, kind=kind, data=data)
    path.write_bytes(header.encode() + bytes(range(24)))
    return path


def test_a_good_meta_image_is_read(tmp_path):
    pytest.importorskip("SimpleITK")
    for data in ("LOCAL", "Local"):
        voxels, _ = read_volume(VolumeFile((str(meta_image(tmp_path / "a.mha", data=data)),)), "a")
        assert voxels.shape == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"axes": "999999"}, "it has 999999 axes"),
        ({"axes": "2"}, "it has 2 axes"),
        ({"axes": "-3"}, "NDims = -3"),
        ({"sides": "2 3"}, "DimSize = 2 3"),
        ({"sides": "2 3 0"}, "DimSize = 2 3 0"),
        ({"sides": "2 3 2.5"}, "DimSize = 2 3 2.5"),
        ({"channels": "0"}, "ElementNumberOfChannels = 0"),
        ({"channels": "1\nOffset = 1 1 1"}, "its header is damaged"),  # it says Offset twice
        ({"channels": "1\nPosition = 1 1"}, "Position = 1 1, expected 3 numbers"),
        ({"channels": "1\nPosition = 1 nan 1"}, "Position = 1 nan 1, expected 3 numbers"),
        ({"channels": "1\nPosition = 1 one 1"}, "Position = 1 one 1, expected 3 numbers"),
        ({"sides": "2000000 3000000 4000000"}, "the file ends before its voxels do"),
        ({"channels": "100"}, "the file ends before its voxels do"),
        ({"kind": "MET_NONE"}, "ElementType = MET_NONE"),
        ({"data": "LIST"}, "ElementDataFile = LIST"),
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


NRRD = "NRRD0004\ntype: {kind}\ndimension: 3\nspace: left-posterior-superior\nsizes: {sizes}\nendian: little\n"
NRRD += "space directions: (1,0,0) (0,1,0) (0,0,1)\nspace origin: (0,0,0)\nencoding: {encoding}\n{more}\n"


def nrrd(path: Path, kind="uint8", sizes="2 3 4", encoding="raw", more="") -> Path:
    header = NRRD.format(kind=kind, sizes=sizes, encoding=encoding, more=more)
    path.write_bytes(header.encode() + bytes(range(24)))
    return path


@pytest.mark.parametrize("kind", ["uint8", "unsigned char", "uchar", "uint8_t", "int8"])
def test_a_good_nrrd_is_read(tmp_path, kind):
    pytest.importorskip("SimpleITK")
    for more in ("", "# a comment: of someone\nname:=value\n"):
        voxels, _ = read_volume(VolumeFile((str(nrrd(tmp_path / "a.nrrd", kind, more=more)),)), "a")
        assert voxels.shape == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sizes": "2000000 3000000 4000000"}, "the file ends before its voxels do"),
        ({"sizes": "2 3 5"}, "the file ends before its voxels do"),
        ({"sizes": "2 3 -4"}, "sizes = 2 3 -4"),
        ({"sizes": "2 3"}, "dimension = 3, and 2 sizes"),
        ({"kind": "block"}, "type = block"),
        ({"encoding": "zstd"}, "encoding = zstd"),
        ({"more": "data file: /etc/passwd\n"}, "data file = /etc/passwd"),
        ({"more": "data file: ../outside.raw\n"}, r"data file = \.\./outside.raw"),
        ({"more": "datafile: LIST\n/etc/passwd\n"}, "no field of the format"),
        ({"more": "a/" * 3000 + "\n"}, "no field of the format"),  # SimpleITK ends the process
        ({"more": "kinds: " + "x" * 9999 + "\n"}, "no field of the format"),
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


SPACE = "space: left-posterior-superior\n"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("NRRD0004", "NRRD0005", None),
        ("NRRD0004", "NRRD0006", "it is no NRRD file, or of a newer version"),
        ("origin: (0,0,0)", "origin: (0,0,0) (1,1,1)", "spaceorigin = .*, expected 1 of the form"),
        ("(1,0,0) (0,1,0)", "(1,0,0)", "spacedirections = .*, expected 3 of the form"),
        ("type: uint8\ndim", "type: unsigned long long int\ndim", "the file ends before its voxels do"),
        ("sizes: 2 3 4", "sizes: 2 3 4\nSizes: 1 1 1", "its header says Sizes twice"),
        ("encoding: raw", "encoding: gz", None),
        ("encoding: raw", "encoding: RAW", None),
        ("NRRD0004", "NRRD0001", None),
        ("endian: little\n", "endian: little\ncontent: café\n", None),
        ("endian: little\n", "endian: little\nkinds: café\n", "its header has a line 'kinds: .*no field of the format"),
        ("endian: little\n", "endian: little\nflavor: 1\n", "its header has a line 'flavor: 1', which is no field"),
        ("sizes: 2 3 4", "sizes: 2 3 0", "its header has sizes = 2 3 0, expected numbers above 0"),
        ("dimension: 3\n", "", "its header has dimension = , and 3 sizes"),
        ("type: uint8\n", "", "its header has type = , expected that of a number"),
        (f"dimension: 3\n{SPACE}sizes: 2 3 4", f"dimension: 17\n{SPACE}sizes:{' 1' * 17}", "sizes = 1 1"),
        ("2 3 4\nendian: little\n", "24 100 10\nendian: little\nblock size: 1\n", "the file ends before its voxels do"),
    ],
)
def test_the_header_of_a_nrrd_says_what_the_format_has(tmp_path, before, after, reason):
    path = nrrd(tmp_path / "a.nrrd")
    content = path.read_bytes()
    assert content.count(before.encode()) == 1
    path.write_bytes(content.replace(before.encode(), after.encode()))
    if reason is None:
        check_nrrd(str(path))
        return
    with pytest.raises(ValueError, match=reason):
        check_nrrd(str(path))


def test_lines_of_a_nrrd_may_end_as_on_windows(tmp_path):
    path = nrrd(tmp_path / "a.nrrd")
    path.write_bytes(path.read_bytes()[:-24].replace(b"\n", b"\r\n") + bytes(24))
    check_nrrd(str(path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="the file ends before its voxels do"):
        check_nrrd(str(path))


def test_the_voxels_of_a_nrrd_fill_a_file_beside_it(tmp_path):
    path = nrrd(tmp_path / "a.nhdr", more="data file: a.raw\n")
    (tmp_path / "a.raw").write_bytes(bytes(24))
    check_nrrd(str(path))
    (tmp_path / "a.raw").write_bytes(bytes(23))
    with pytest.raises(ValueError, match="the file ends before its voxels do"):
        check_nrrd(str(path))


def test_voxels_of_a_nrrd_of_four_axes_are_all_there(tmp_path):
    path = tmp_path / "a.nrrd"
    header = "NRRD0004\ntype: uint8\ndimension: 4\nsizes: 2 3 4 5\nencoding: raw\n\n"
    path.write_bytes(header.encode() + bytes(120))
    check_nrrd(str(path))
    path.write_bytes(header.encode() + bytes(119))
    with pytest.raises(ValueError, match="the file ends before its voxels do"):
        check_nrrd(str(path))


def test_a_compressed_volume_may_be_a_thousand_times_as_large_as_its_file(tmp_path):
    for sides, is_possible in (("24 1000 1", True), ("24 1033 1", False)):
        deflated = nrrd(tmp_path / "a.nrrd", sizes=sides, encoding="gzip")
        meta = meta_image(tmp_path / "a.mhd", sides=sides, data="a.raw")
        (tmp_path / "a.raw").write_bytes(bytes(24))
        meta.write_text(meta.read_bytes()[:-24].decode().replace("CompressedData = False", "CompressedData = TRUE"))
        for check, path in ((check_nrrd, deflated), (check_meta_image, meta)):
            if is_possible:
                check(str(path))
                continue
            with pytest.raises(ValueError, match="the file ends before its voxels do"):
                check(str(path))


def test_lines_of_a_meta_image_may_end_as_on_windows_and_its_voxels_fill_a_file_beside_it(tmp_path):
    path = meta_image(tmp_path / "a.mhd", data="a.raw")
    path.write_bytes(path.read_bytes()[:-24].replace(b"\n", b"\r\n"))
    (tmp_path / "a.raw").write_bytes(bytes(24))
    check_meta_image(str(path))
    path.write_bytes(path.read_bytes().replace(b"CompressedData = False", b"CompressedData = 1"))
    (tmp_path / "a.raw").write_bytes(bytes(20))
    check_meta_image(str(path))


def test_a_volume_that_lacks_its_last_byte_is_cut_off(tmp_path):
    path = tmp_path / "a"
    for missing in (0, 1):
        path.write_bytes(SHORT_NRRD.encode() + b"\0" * (2 * 24 - missing))
        if missing:
            with pytest.raises(ValueError, match="the file ends before its voxels do"):
                check_nrrd(str(path))
        else:
            check_nrrd(str(path))
    for channels in (1, 3):
        fields = "" if channels == 1 else f"ElementNumberOfChannels = {channels}\n"
        content = SHORT_META.format(fields).encode()
        path.write_bytes(content + b"\0" * (8 * 24 * channels))
        check_meta_image(str(path))
        path.write_bytes(content + b"\0" * (8 * 24 * channels - len(content) - 1))
        with pytest.raises(ValueError, match="the file ends before its voxels do"):
            check_meta_image(str(path))


def test_a_stack_is_measured_before_its_pages_are_read(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((20, 4, 4), np.uint16), photometric="minisblack")
    monkeypatch.setattr(formats, "UNCHECKED_BYTES", 0)
    for available, is_enough in ((640, True), (639, False)):
        monkeypatch.setattr(formats, "available_bytes", lambda available=available: available)
        if is_enough:
            assert read_volume(VolumeFile((str(tmp_path / "a.tif"),)), "a")[0].shape == (20, 4, 4, 1)
            continue
        with pytest.raises(ImageError, match="the volume needs"):
            read_volume(VolumeFile((str(tmp_path / "a.tif"),)), "a")


@pytest.fixture
def little_memory(monkeypatch):
    """A machine with a gigabyte of free memory."""
    monkeypatch.setattr("data_utils.image_io.formats.available_bytes", lambda: 10**9)


def png_without_pixels(width: int, height: int) -> bytes:
    """A PNG file of one bit a pixel, which ends where its pixels would begin."""
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


def test_pictures_are_measured_before_they_are_decoded(tmp_path, little_memory, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "bomb.png").write_bytes(png_without_pixels(40_000, 40_000))
    for read in (read_image, read_mask):
        with pytest.raises(DataError, match=r"40,000 x 40,000 pixels needs 4\.8 GB of memory, 1\.0 GB are free"):
            read(str(tmp_path / "bomb.png"), "bomb")
    with pytest.raises(ImageError, match="of memory"), open_windowed_file(tmp_path / "bomb.png") as picture:
        picture.read(0, 1)
    with open(tmp_path / "bomb.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (30_000, 30_000)})
        file.truncate(30_000 * 30_000 + 128)
    for read in (read_image, read_mask):
        with pytest.raises(DataError, match="of memory"):
            read(str(tmp_path / "bomb.npy"), "bomb")


def nifti(path: Path, shape: tuple[int, ...], side: float, voxels: bytes = b"", begin: float = 352) -> Path:
    """A NIfTI file of uint8 whose header claims a shape and voxels of `side` mm."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(shape)
    header.set_sform(np.diag([side, side, side, 1]), 1)
    header["pixdim"][1:4] = side
    header["vox_offset"] = begin
    header["magic"] = b"n+1"
    path.write_bytes(gzip.compress(header.binaryblock + bytes(4) + voxels))
    return path


def test_volumes_are_measured_before_they_are_inflated_or_resampled(tmp_path, little_memory):
    bomb = nifti(tmp_path / "bomb.nii.gz", (2000, 2000, 1000), 1)
    with pytest.raises(ImageError, match=r"4\.0 GB of memory"):
        read_volume(VolumeFile((str(bomb),)), "bomb")
    extended = nifti(tmp_path / "EXTENDED.NII.GZ", (2, 2, 2), 1, bytes(8), begin=1e9)
    for check, name, header in (
        (
            check_meta_image,
            "a.mha",
            META_IMAGE.format(axes=3, sides="2000 1000 1000", channels=1, kind="MET_UCHAR", data="LOCAL"),
        ),
        (check_nrrd, "a.nrrd", NRRD.format(kind="uint8", sizes="2000 1000 1000", encoding="raw", more="")),
    ):
        (tmp_path / name).write_text(header)
        os.truncate(tmp_path / name, 2 * 10**9 + 1000)
        with pytest.raises(ValueError, match=r"the volume needs 2\.0 GB of memory, 1\.0 GB are free"):
            check(str(tmp_path / name))
    with pytest.raises(ImageError, match="its voxels begin behind 1,000,000,000 bytes"):
        read_volume(VolumeFile((str(extended),)), "extended")
    coarse = nifti(tmp_path / "coarse.nii.gz", (4, 4, 4), 1000, bytes(64))
    with pytest.raises(ImageError, match="1000 x 1000 x 1000 mm"):
        VolumeInput.read(VolumeFile((str(coarse),)), Preprocess(spacing=(1, 1, 1)), 1)


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Header, nibabel.Nifti2Header])
def test_extensions_are_measured_in_both_kinds_of_nifti_and_both_orders_of_bytes(tmp_path, kind, byte_order):
    header = kind(endianness=byte_order)
    header["vox_offset"] = 10**9
    (tmp_path / "a.nii").write_bytes(header.binaryblock + bytes(4))
    with pytest.raises(ImageError, match="its voxels begin behind 1,000,000,000 bytes"):
        read_volume(VolumeFile((str(tmp_path / "a.nii"),)), "a")


def test_only_picture_formats_are_opened_whatever_the_name(tmp_path):
    for kind in ("EPS", "PCX", "ICO"):
        Image.new("RGB", (8, 8)).save(tmp_path / "a.png", kind)
        with pytest.raises(ImageError, match="in a format that is not read here"):
            read_image(str(tmp_path / "a.png"), "a")


def test_pipes_are_no_pictures(tmp_path):
    for name in ("a.png", "a.npy", "a.tif", "a.nii.gz", "a.nrrd"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ImageError, match="not a regular file"):
            if name.endswith((".gz", ".nrrd")):
                read_volume(VolumeFile((str(tmp_path / name),)), "a")
            else:
                read_image(str(tmp_path / name), "a")
    with pytest.raises(ImageError, match="not a regular file"), open_windowed_file(tmp_path / "a.npy"):
        pass


@pytest.mark.skipif(not features.check("libtiff"), reason="Pillow writes this codec with libtiff")
def test_a_tiff_whose_codec_tifffile_lacks_is_read_whole(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.tif", compression="zstd")
    with open_windowed_file(tmp_path / "a.tif") as picture:
        np.testing.assert_array_equal(np.asarray(picture.read(5, 9)), pixels[5:9])


def test_a_long_name_and_long_run_lengths_take_no_time():
    begin = time.process_time()
    assert find_file("a/" * 10**6, ["."]) is None
    with pytest.raises(ValueError):
        run_lengths("o" * 10**6)
    assert time.process_time() - begin < 1


def test_names_that_lead_elsewhere_stay_below_the_folder(tmp_path):
    pictures = dict.fromkeys(("../a.png", "/b", "c/../../d", "", "x" * 999, "e\0\nf"), np.zeros((2, 2), np.uint8))
    save_pictures(tmp_path / "in", pictures)
    assert os.listdir(tmp_path) == ["in"]
    assert {"a.png", "b.png", "image.png", "c"} < set(os.listdir(tmp_path / "in"))


def test_a_pattern_does_not_lead_outside_the_output(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"has \.\. behind a wildcard"):
        find_jobs([str(tmp_path / "in" / "*" / ".." / ".." / "*.png")], tmp_path / "out", [".png"])
