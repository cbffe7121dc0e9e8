"""TIFFs whose directories come round again or overlap: refused at once, one line wherever they are read."""

import struct
import time

import pytest
from PIL import Image
from support.folders import write_folder
from support.launches import predict

from data_utils.config import DataConfig
from data_utils.image_io.tiff import tiff_pages
from runtime.errors import ImageError
from train_utils.check_data import check_data

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


def test_predict_names_a_tiff_that_never_ends_and_writes_the_others(tmp_path, model):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "circle.tif").write_bytes(tiff_bytes([0]))
    Image.new("RGB", (20, 16)).save(tmp_path / "in" / "good.png")
    result = predict(model, [tmp_path / "in"], tmp_path / "out")
    assert result.returncode == 1, result.stderr
    assert [line for line in result.stderr.splitlines() if "circle.tif" in line and NEVER_ENDS in line]
    assert (tmp_path / "out" / "good.png").is_file()
    assert not (tmp_path / "out" / "circle.png").exists()


def test_check_data_names_a_tiff_that_never_ends(tmp_path):
    for split, seed in (("train", 0), ("val", 1)):
        write_folder(tmp_path / split, 3, seed=seed)
    (tmp_path / "train" / "images" / "cell_00.png").unlink()
    (tmp_path / "train" / "images" / "cell_00.tif").write_bytes(tiff_bytes([0]))
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 1, report
    assert NEVER_ENDS in report, report
