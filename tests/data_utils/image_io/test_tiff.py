"""Pages of TIFFs, and which of them are read in windows."""

import itertools
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile

from data_utils.config import DataConfig
from data_utils.image_io.formats import Box, PageFile, VolumeFile
from data_utils.image_io.reader import open_source, read_image, read_mask
from data_utils.image_io.tiff import page_numbers, tiff_pages
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import load_records
from runtime.errors import ImageError

PLACE = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]  # tags of a GeoTIFF


def test_the_first_page_of_a_tiff_counts_whatever_it_says_of_itself(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for kind in (1, 1, 0):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack", subfiletype=kind)
    assert page_numbers(tmp_path / "a.tif") == [0, 2]


def test_thumbnails_in_a_tiff_are_no_pages(tmp_path):
    grey = np.random.default_rng(2).integers(0, 256, (30, 33), dtype=np.uint8)
    path = tmp_path / "stack.tif"
    with tifffile.TiffWriter(path) as tiff:
        for number in range(3):
            tiff.write(grey[number:], photometric="minisblack")
            tiff.write(grey[::4, ::4], photometric="minisblack", subfiletype=1)
    assert tiff_pages(path) == [(0, (30, 33)), (2, (29, 33)), (4, (28, 33))]
    with open_source(PageFile(path, 2)) as picture:
        np.testing.assert_array_equal(read_image(picture, box=picture.rows(0, 29))[:, :, 0], grey[1:])
    np.testing.assert_array_equal(read_image(PageFile(path, 2))[:, :, 0], grey[1:])


@pytest.mark.parametrize(("tags", "numbers"), [((), [0, 1, 2]), (PLACE, [0, 2])], ids=["no place", "place"])
def test_a_mask_within_a_tiff_is_a_page_unless_the_first_one_has_a_place(tmp_path, tags, numbers):
    grey = np.random.default_rng(2).integers(0, 256, (30, 33), dtype=np.uint8)
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        tiff.write(grey, photometric="minisblack", extratags=tags)
        tiff.write(grey > 99, photometric="mask", subfiletype=4)
        tiff.write(grey, photometric="minisblack")
    assert [number for number, _ in tiff_pages(tmp_path / "a.tif")] == numbers


@pytest.mark.parametrize(
    ("tag", "kind", "count", "value"), [(256, 4, 1, 0), (256, 1, 2, 4), (257, 4, 1, 0)], ids=["0", "two", "length 0"]
)
def test_a_tiff_whose_side_is_no_number_above_zero_is_an_image_error(tmp_path, tag, kind, count, value):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 4), np.uint8), photometric="minisblack")
    content = bytearray((tmp_path / "a.tif").read_bytes())
    struct.pack_into("<HHII", content, content.index(struct.pack("<HHI", tag, 4, 1)), tag, kind, count, value)
    (tmp_path / "a.tif").write_bytes(content)
    with (
        pytest.raises(ImageError, match=r"a\.tif cannot be read \(a side of it is"),
        open_source(tmp_path / "a.tif"),
    ):
        pass


TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
PLANES = [(1, "contig"), *itertools.product((2, 3, 4, 6), ("contig", "separate"))]
STORAGE = [(None, {}), ("zlib", {"rowsperstrip": 5}), ("lzw", {"tile": (16, 16)}), ("packbits", {}), ("zstd", {})]


def write_pages(path: Path, pages: np.ndarray, planes: str, **options) -> None:
    """A TIFF of pages (N, H, W, C)."""
    samples = pages.shape[-1]
    layout = {"photometric": "rgb" if samples in (3, 4) else "minisblack", "metadata": None}
    if samples > 1:
        layout["planarconfig"] = planes
    layouts = {key: options.pop(key) for key in ("byteorder", "bigtiff")}
    with tifffile.TiffWriter(path, **layouts) as tiff:
        for page in pages:
            pixels = np.moveaxis(page, 2, 0) if planes == "separate" else page
            tiff.write(pixels if samples > 1 else page[:, :, 0], **layout, **options)


@pytest.mark.parametrize("number", range(len(TYPES)), ids=TYPES)
def test_every_reader_gives_the_numbers_that_are_stored(tmp_path, number):
    """Each type in five layouts of the planes and five ways of storing them, which take turns."""
    path = tmp_path / "a.tif"
    dtype = TYPES[number]
    for turn, (compression, layout) in enumerate(STORAGE):
        samples, planes = PLANES[(2 * turn + number) % len(PLANES)]
        byteorder = "<>"[(turn + number) % 2]
        pages = np.random.default_rng(0).integers(0, 120, (2, 20, 30, samples)).astype(dtype)
        bigtiff = (turn + number) % 3 == 0
        write_pages(path, pages, planes, byteorder=byteorder, bigtiff=bigtiff, compression=compression, **layout)
        colors = pages[..., :3] if samples == 4 else pages  # without alpha
        for source in (PageFile(path, 1), PageFile(path.read_bytes(), 1), PageFile(path, 1, reads_place=False)):
            assert np.array_equal(read_image(source), colors[1])
        with open_source(PageFile(path, 1)) as image:
            assert np.array_equal(read_image(image, box=Box(3, 17, 2, 29)), colors[1, 3:17, 2:29])
        stack = VolumeFile((str(path),))
        assert np.array_equal(read_volume(stack, "a")[0], colors)
        if samples == 1:
            assert np.array_equal(read_mask(PageFile(path, 1), "a"), pages[1, :, :, 0])
            assert np.array_equal(read_label_volume(stack, "a")[0], pages[..., 0])


def test_pages_that_pillow_does_not_open_are_read_by_gdal_or_the_codec_is_named(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 120, (20, 30), np.uint8)
    with_alpha = np.stack([pixels, np.full_like(pixels, 255)], axis=2)
    alpha = {"planarconfig": "contig", "extrasamples": ["assocalpha"]}
    for stored, options in ((pixels, {"compression": "lerc"}), (with_alpha, alpha)):
        tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack", metadata=None, **options)
        assert np.array_equal(read_image(tmp_path / "a.tif")[..., 0], pixels)
        assert np.array_equal(read_mask(tmp_path / "a.tif", "a"), pixels)
    tifffile.imwrite(tmp_path / "a.tif", pixels, compression="jpeg2000", metadata=None)
    with pytest.raises(ImageError, match=r"missing codec"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize(
    "options",
    [
        {"imagej": True, "truncate": True},
        {"imagej": True, "truncate": True, "byteorder": ">"},
        {"photometric": "minisblack", "truncate": True},
        {"photometric": "minisblack", "volumetric": True},
        {"photometric": "minisblack", "volumetric": True, "tile": (16, 16, 16), "compression": "zlib"},
    ],
    ids=["ImageJ", "ImageJ, big-endian", "tifffile", "ImageDepth", "ImageDepth in compressed tiles"],
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_stack_of_one_directory_is_a_volume(tmp_path, dtype, options):
    slices = np.random.default_rng(0).integers(0, 200, (5, 20, 30)).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", slices, **options)
    stack = VolumeFile((str(tmp_path / "a.tif"),))
    assert np.array_equal(read_volume(stack, "a")[0][..., 0], slices)
    assert np.array_equal(read_label_volume(stack, "a")[0], slices)
    for read in (page_numbers, read_image):
        with pytest.raises(ImageError, match="it holds 5 slices in one page; --dims 3 reads them as a volume"):
            read(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        ("ZCYX", {"imagej": True}),
        ("ZCYX", {"imagej": True, "truncate": True}),
        ("ZCYX", {"imagej": True, "photometric": "palette", "colormap": np.full((3, 256), 9, np.uint16)}),
        ("ZCYX", {"ome": True}),
        ("CZYX", {"ome": True}),
    ],
)
def test_channels_of_a_stack_are_those_of_a_volume(tmp_path, axes, options):
    kind = np.uint8 if "colormap" in options else np.uint16
    voxels = np.random.default_rng(0).integers(0, 60000, (5, 20, 30, 3)).astype(kind)
    pages = np.einsum(f"zyxc->{axes.lower()}", voxels)
    tifffile.imwrite(tmp_path / "a.tif", pages, **{"photometric": "minisblack", "metadata": {"axes": axes}, **options})
    assert np.array_equal(read_volume(VolumeFile((str(tmp_path / "a.tif"),)), "a")[0], voxels)


def test_a_stack_of_labels_with_a_lookup_table_holds_its_numbers(tmp_path):
    """ImageJ stores labels so where a table such as glasbey is chosen."""
    labels = np.random.default_rng(0).integers(0, 3, (4, 20, 30), np.uint8)
    colors = np.random.default_rng(1).integers(0, 65536, (3, 256), np.uint16)
    for folder, pages, options in (("images", 7 * labels, {}), ("masks", labels, {"colormap": colors})):
        (tmp_path / folder).mkdir()
        for name in "ab":
            tifffile.imwrite(tmp_path / folder / f"{name}.tif", pages, imagej=True, metadata={"axes": "ZYX"}, **options)
    for (record,) in load_records(DataConfig(str(tmp_path), dims=3)):
        assert np.array_equal(read_label_volume(record["target"], "a")[0], labels)


def test_a_stack_of_one_directory_that_is_cut_off_is_one_line(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((5, 20, 30), np.uint8), imagej=True, truncate=True)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        start = tiff.pages[0].dataoffsets[0]
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[: start + 3 * 600])
    with pytest.raises(ImageError, match=r"it ends before the last of the 5 slices that it claims"):
        read_volume(VolumeFile((str(tmp_path / "a.tif"),)), "a")


def test_pages_of_a_file_that_is_no_tiff_are_an_image_error(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"no tiff")
    with pytest.raises(ImageError, match=r"a\.tif cannot be read \(not a TIFF file"):
        page_numbers(tmp_path / "a.tif")


SIDE = 8
ENDLESS = "the directories of its pages come round again or overlap"


TAGS = [(256, SIDE), (257, SIDE), (258, 8), (259, 1), (262, 1), (273, 0), (277, 1), (278, SIDE), (279, SIDE * SIDE)]


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
    with pytest.raises(ImageError, match=ENDLESS):
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
    with pytest.raises(ImageError):
        tiff_pages(tmp_path / "overlap.tif")
    assert time.process_time() - begin < 5
