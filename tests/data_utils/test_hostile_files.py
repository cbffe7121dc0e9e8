"""Small files that would take hours, gigabytes or the whole process: each is one line that names it."""

import json
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import launch, load_info, predict, write_folder
from PIL import Image

from data_utils.analysis.validate import check_data
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.tiff import tiff_pages
from data_utils.image_io.volumes import read_volume
from data_utils.sources.annotations.polygons import clipped
from inference.page import PagePredictor
from runtime.errors import DataError, ImageError

SIDE = 8
TAGS = [(256, SIDE), (257, SIDE), (258, 8), (259, 1), (262, 1), (273, 0), (277, 1), (278, SIDE), (279, SIDE * SIDE)]
NEVER_ENDS = "the directory of one page is that of an earlier one again"


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


def test_predict_names_a_tiff_that_never_ends_and_writes_the_others(tmp_path, model):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "circle.tif").write_bytes(tiff_bytes([0]))
    Image.new("RGB", (20, 16)).save(tmp_path / "in" / "good.png")
    result = predict(model, [tmp_path / "in"], tmp_path / "out")
    assert result.returncode == 1, result.stderr
    assert [line for line in result.stderr.splitlines() if "circle.tif" in line and NEVER_ENDS in line]
    assert (tmp_path / "out" / "good.png").is_file() and not (tmp_path / "out" / "circle.png").exists()


def test_the_page_names_a_tiff_that_never_ends(tmp_path, model):
    (tmp_path / "circle.tif").write_bytes(tiff_bytes([0]))
    html, mask = PagePredictor(model)(str(tmp_path / "circle.tif"))
    assert NEVER_ENDS in html and mask is None


def test_check_data_names_a_tiff_that_never_ends(tmp_path):
    for split, seed in (("train", 0), ("val", 1)):
        write_folder(tmp_path / split, 3, seed=seed)
    (tmp_path / "train" / "images" / "cell_00.png").unlink()
    (tmp_path / "train" / "images" / "cell_00.tif").write_bytes(tiff_bytes([0]))
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 1 and NEVER_ENDS in report, report


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
    program = "import sys; from tests.conftest import load_info; load_info(sys.argv[1], val_fraction=0.4)"
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2); {program}"
    result = launch("-c", limited, folder, env={"PYTHONPATH": "tests:."})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("points", [[(2, 2), (12, 3), (9, 15)], [(-20, -10), (40, 3), (9, 30)]])
def test_a_polygon_near_the_picture_is_drawn_as_it_is(points):
    points = np.array(points, float)
    assert clipped(points, (18, 24)) is points


def test_a_polygon_cut_at_a_larger_frame_covers_the_same_pixels():
    whole = np.array([(-5000.0, 9.0), (12.0, -4000.0), (6000.0, 9.0), (12.0, 7000.0)])
    cut = clipped(whole, (18, 24))
    assert np.abs(cut).max() <= 48
    y, x = np.mgrid[:18, :24]
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
ElementType = {kind}
ElementDataFile = {data}
"""


def meta_image(path: Path, axes="3", sides="2 3 4", kind="MET_UCHAR", data="LOCAL") -> Path:
    header = META_IMAGE.format(axes=axes, sides=sides, kind=kind, data=data)
    path.write_bytes(header.encode() + bytes(range(24)))
    return path


def test_a_good_meta_image_is_read(tmp_path):
    pytest.importorskip("SimpleITK")
    voxels, _ = read_volume(VolumeFile((str(meta_image(tmp_path / "a.mha")),)), "a")
    assert voxels.shape == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"axes": "999999"}, "it has 999999 axes"),
        ({"axes": "2"}, "it has 2 axes"),
        ({"axes": "-3"}, "NDims = -3"),
        ({"sides": "2 3"}, "DimSize = 2 3"),
        ({"sides": "2 3 0"}, "DimSize = 2 3 0"),
        ({"sides": "2000000 3000000 4000000"}, "the file ends before its voxels do"),
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
