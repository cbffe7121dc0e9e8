"""Small rules of image files: how much is read at once, what a stored value becomes, and where a file ends.

Modules: data_utils/image_io/reader.py, data_utils/image_io/formats.py, data_utils/image_io/windowed.py,
data_utils/image_io/tiff.py, data_utils/image_io/volumes.py, data_utils/image_io/writers.py,
data_utils/image_io/nrrd.py, data_utils/image_io/meta_image.py, data_utils/image_io/class_masks.py,
data_utils/image_io/well_known_binary.py.
"""

import gzip
import io
import struct

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image
from volumes import write_nifti

from data_utils.image_io import formats
from data_utils.image_io import tiff as tiff_module
from data_utils.image_io.class_masks import ClassFile, ClassMask, ClassMasks, binary, combined, layered_label
from data_utils.image_io.formats import VolumeFile, check_decoding, check_memory
from data_utils.image_io.meta_image import check_meta_image
from data_utils.image_io.nrrd import check_nrrd
from data_utils.image_io.reader import decode_mask, is_drawn_in_alpha, read_header, read_image, read_palette_mask
from data_utils.image_io.tiff import has_windows, page_numbers, read_window
from data_utils.image_io.volumes import VolumeHeader, read_label_volume, read_volume, same_grid, write_volume
from data_utils.image_io.well_known_binary import rings_of, well_known_binary
from data_utils.image_io.windowed import WindowedArray, open_if_large, strips
from data_utils.image_io.writers import NpyWriter, PngWriter, write_pages
from runtime.errors import DataError, ImageError
from tasks.overlapping import unpack_bits


def test_memory_is_asked_for_from_128_megabytes_on(monkeypatch):
    monkeypatch.setattr(formats, "available_bytes", lambda: 10)
    check_memory(2**27, "little")
    with pytest.raises(ValueError, match=r"much needs 0\.1 GB of memory, 0\.0 GB are free"):
        check_memory(2**27 + 1, "much")
    monkeypatch.setattr(formats, "available_bytes", lambda: 2**28)
    check_memory(2**28, "all that is free")
    with pytest.raises(ValueError, match="more needs"):
        check_memory(2**28 + 1, "more")


@pytest.mark.parametrize(("mode", "pixel_bytes"), [("1", 1), ("L", 1), ("P", 1), ("RGB", 4), ("I", 4), ("CMYK", 4)])
def test_a_picture_is_in_memory_three_times_while_it_is_decoded(monkeypatch, mode, pixel_bytes):
    needed = []
    monkeypatch.setattr(formats, "check_memory", lambda count, what: needed.append(count))
    check_decoding(Image.new(mode, (7, 5)))
    assert needed == [3 * 35 * pixel_bytes]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_the_size_in_a_header_is_that_of_the_picture_as_it_is_seen(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (24, 16)).save(path, exif=exif)
    size, mode = read_header(path, "a")
    assert (size, mode) == (read_image(path).shape[:2], "RGB")
    assert size == ((24, 16) if orientation > 4 else (16, 24))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.int64), (-1, np.int64), (254.0, np.uint8)],
)
def test_mask_values_take_the_smallest_type_that_holds_them(value, dtype):
    assert decode_mask(np.array([[0, value]]), "a").values.dtype == dtype


def test_a_mask_is_colored_where_one_of_its_channels_differs():
    grey = np.repeat(np.array([[[0], [9]]], np.uint8), 3, axis=2)
    decoded = decode_mask(Image.fromarray(grey), "a")
    assert decoded.values.tolist() == [[0, 9]] and decoded.colored and not decoded.jpeg
    for channel in range(3):
        color = grey.copy()
        color[0, 0, channel] = 1
        assert decode_mask(color, "a").values.shape == (1, 2, 3)


def test_an_image_of_four_thousand_by_four_thousand_pixels_is_read_in_windows(tmp_path):
    for width, is_large in ((4096, True), (4095, False)):
        path = tmp_path / f"{width}.npy"
        np.lib.format.open_memmap(path, "w+", np.uint8, (4096, width))  # an empty file without blocks
        with open_if_large(str(path)) as picture:
            assert (picture is not None) is is_large


def test_four_million_pixels_are_read_together():
    picture = np.broadcast_to(np.zeros(1, np.uint8), (9000, 1000))
    rows = [(top, len(part)) for top, part in strips(WindowedArray(picture))]
    assert rows == [(0, 4194), (4194, 4194), (8388, 612)]


def test_the_first_page_of_a_tiff_counts_whatever_it_says_of_itself(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for kind in (1, 1, 0):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack", subfiletype=kind)
    assert page_numbers(tmp_path / "a.tif") == [0, 2]


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("layout", [{}, {"compression": "zlib"}, {"tile": (16, 32)}], ids=["stored", "strips", "tiles"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_windows_of_a_tiff_are_those_of_the_whole_page(tmp_path, byteorder, dtype, layout, channels):
    shape = (45, 70) if channels == 1 else (45, 70, channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    if dtype != "uint8":
        pixels *= 200
    photometric = "minisblack" if channels == 1 else "rgb"
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric=photometric, byteorder=byteorder, rowsperstrip=7, **layout)
    whole = pixels.reshape(45, 70, channels)[:, :, :3]
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        page = tiff.pages[0].aspage()
        assert has_windows(page) is (dtype == "uint8" or channels == 1)
        if not has_windows(page):
            return
        for rows in ((0, 45), (0, 1), (6, 8), (13, 33), (44, 45)):
            for columns in ((0, 70), (0, 1), (31, 33), (32, 64), (69, 70)):
                window = read_window(tmp_path / "a.tif", page, rows, columns)
                assert window.dtype == dtype and (window == whole[slice(*rows), slice(*columns)]).all()
    if "tile" not in layout and "compression" not in layout:
        (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-1])
        with pytest.raises(ImageError, match="the file ends before its image does"):
            read_window(tmp_path / "a.tif", page, (44, 45), (0, 1))


NRRD = "NRRD0004\ntype: unsigned short\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n\n"
META = "NDims = 3\nDimSize = 2 3 4\n{}ElementType = MET_DOUBLE\nElementDataFile = LOCAL\n"


def test_a_volume_that_lacks_its_last_byte_is_cut_off(tmp_path):
    path = tmp_path / "a"
    for missing in (0, 1):
        path.write_bytes(NRRD.encode() + b"\0" * (2 * 24 - missing))
        if missing:
            with pytest.raises(ValueError, match="the file ends before its voxels do"):
                check_nrrd(str(path))
        else:
            check_nrrd(str(path))
    for channels in (1, 3):
        fields = "" if channels == 1 else f"ElementNumberOfChannels = {channels}\n"
        content = META.format(fields).encode()
        path.write_bytes(content + b"\0" * (8 * 24 * channels))
        check_meta_image(str(path))
        path.write_bytes(content + b"\0" * (8 * 24 * channels - len(content) - 1))
        with pytest.raises(ValueError, match="the file ends before its voxels do"):
            check_meta_image(str(path))


@pytest.mark.parametrize(("voxel", "is_number"), [(9e29, True), (-9e29, True), (1.1e30, False), (np.nan, False)])
def test_voxels_whose_squares_float32_does_not_hold_are_infinite(tmp_path, voxel, is_number):
    voxels = np.zeros((2, 2, 2), np.float32)
    voxels[1, 1, 1] = voxel
    source = VolumeFile((str(write_nifti(tmp_path / "a.nii", voxels)),))
    if is_number:
        assert abs(read_volume(source, "a")[0]).max() > 0
    else:
        with pytest.raises(ImageError, match="a: has voxels that are not numbers"):
            read_volume(source, "a")


@pytest.mark.parametrize(
    ("highest", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.int64)]
)
def test_labels_of_volumes_take_the_smallest_type_that_holds_them(tmp_path, highest, dtype):
    voxels = np.zeros((2, 2, 2), np.int32)
    voxels[0, 0, 0] = highest
    values, _ = read_label_volume(VolumeFile((str(write_nifti(tmp_path / "a.nii", voxels)),)), "a")
    assert values.dtype == dtype and values.max() == highest


def header_of(side: float, moved: float) -> VolumeHeader:
    affine = np.diag([side, side, side, 1.0])
    affine[0, 3] = moved
    return VolumeHeader((2, 2, 2), (side, side, side), 1, "uint8", affine, ((0, 1), (1, 1), (2, 1)))


@pytest.mark.parametrize(
    ("side", "moved", "is_same"),
    [(1.0, 0.00099, True), (1.0, 0.00101, False), (0.05, 0.00049, True), (0.05, 0.00051, False)],
)
def test_voxels_lie_at_the_same_place_within_a_micrometer_or_a_hundredth_of_them(side, moved, is_same):
    assert same_grid(header_of(side, 0.0), header_of(side, moved)) is is_same


@pytest.mark.parametrize(("side", "is_grid"), [(2e-7, True), (0.9e-7, False), (0.9e7, True), (1.1e7, False)])
def test_a_voxel_has_a_size_that_something_may_have(tmp_path, side, is_grid):
    path = write_nifti(tmp_path / "a.nii", np.ones((2, 2, 2), np.uint8), np.diag([side, 1, 1, 1]))
    source = VolumeFile((str(path),))
    if is_grid:
        assert read_volume(source, "a")[1].spacing[2] == pytest.approx(side)
    else:
        with pytest.raises(ImageError, match="is no grid in space"):
            read_volume(source, "a")


def test_a_written_mask_is_the_same_file_at_any_time_and_has_no_window_of_its_image(tmp_path, monkeypatch):
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), np.eye(4))
    image.header["cal_min"], image.header["cal_max"] = -100, 900
    image.to_filename(tmp_path / "a.nii")
    files = []
    for now in (10**9, 2 * 10**9):
        monkeypatch.setattr("gzip.time.time", lambda now=now: now)
        file = io.BytesIO()
        write_volume(file, np.ones((4, 3, 2), np.uint8), VolumeFile((str(tmp_path / "a.nii"),)))
        files.append(file.getvalue())
    assert files[0] == files[1]
    (tmp_path / "b.nii").write_bytes(gzip.decompress(files[0]))
    header = nibabel.load(tmp_path / "b.nii").header
    assert (header["cal_min"], header["cal_max"], header.get_data_dtype()) == (0, 0, np.uint8)


def test_masks_are_compressed_well_and_pictures_fast():
    rows = np.zeros((2, 3), np.uint8)
    for level, mark in ((None, b"\x78\x9c"), (1, b"\x78\x01")):
        file = io.BytesIO()
        options = {} if level is None else {"level": level}
        with PngWriter(file, (2, 3), **options) as writer:
            writer.write(rows)
        assert file.getvalue().partition(b"IDAT")[2].startswith(mark)


def test_rows_that_never_come_are_zero(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        writer = NpyWriter(file, (2, 5, 3))
        for value in (1.0, 2.0, 3.0):
            writer.write(np.full((2, 1, 3), value))
    assert np.load(tmp_path / "a.npy")[:, :, 0].tolist() == [[1, 2, 3, 0, 0]] * 2


def test_what_one_mask_of_a_class_shows_is_known_although_another_ignores_it():
    shown = ClassMask(np.array([[5, 0, 0]]), 2, "first")
    ignored = ClassMask(np.array([[9, 9, 0]]), 2, "second")
    missing = ClassMask(None, 1, "third")
    truth, unknown = unpack_bits(combined([shown, missing, ignored], ignored=(9,)))
    assert truth.tolist() == [[4, 0, 0]] and unknown.tolist() == [[2, 6, 2]]
    for shape in ((2, 3), (1, 2)):
        with pytest.raises(DataError, match=f"other: is {shape[0]} x {shape[1]}, but first 1 x 3; store both at one"):
            combined([shown, ClassMask(np.zeros(shape), 0, "other")], ())


def test_two_colors_are_two_values_of_a_mask_of_one_class():
    color = np.zeros((1, 3, 3), np.uint8)
    color[0, 0], color[0, 1] = (1, 0, 0), (1, 0, 0)
    assert binary(color, "a")[0].tolist() == [[True, True, False]]
    color[0, 1] = (0, 1, 0)  # of the same sum
    with pytest.raises(DataError, match="a: mask of one class holds #000000, #010000, #000100, expected 0 and one"):
        binary(color, "a")
    color[0, 0] = (0, 0, 1)
    with pytest.raises(DataError, match="a: mask of one class holds #000000, #000100, #000001, expected"):
        binary(color, "a")


def test_masks_are_called_by_the_first_file_that_there_is_and_pages_from_one(tmp_path):
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, np.array([[[0, 1]], [[0, 1]], [[1, 2]]], np.uint8), photometric="minisblack")
    masks = ClassMasks((ClassFile(""), ClassFile(path), ClassFile(path, 2)), (0, 1, 2))
    assert masks.name == path
    with pytest.raises(DataError, match=r"a\.tif page 3: mask of one class holds 1, 2"):
        masks.render()


def test_a_class_without_a_file_is_unknown_and_another_classs_file_tells_the_size():
    label = layered_label(("", "b", "c"), (0, 1, None))
    assert (label.paths, label.layers.bits, label.layers.unknown) == (("b",), (1,), (0,))
    alone = layered_label(("", "b"), (0, None))
    assert (alone.paths, alone.layers.bits, alone.layers.unknown) == (("b",), (None,), (0,))


@pytest.mark.parametrize(
    ("alpha", "is_drawn"), [([[0, 0]], False), ([[128, 128]], False), ([[255, 255]], False), ([[254, 255]], True)]
)
def test_a_mask_is_drawn_in_its_alpha_channel_where_that_differs(alpha, is_drawn):
    grey = Image.new("L", (2, 1), 255)
    mask = Image.merge("LA", [grey, Image.fromarray(np.array(alpha, np.uint8))])
    assert is_drawn_in_alpha(mask, "a") is is_drawn
    assert not is_drawn_in_alpha(grey, "a") and not is_drawn_in_alpha(np.zeros((2, 2), np.uint8), "a")


def test_only_a_palette_that_is_no_gifs_says_what_indices_look_like(tmp_path):
    picture = Image.fromarray(np.array([[0, 1]], np.uint8))
    assert read_palette_mask(picture, "a") is None
    picture.putpalette([9, 9, 9, 200, 140, 80])
    for name, colors in (("a.png", [[[9, 9, 9], [200, 140, 80]]]), ("a.gif", None)):
        picture.save(tmp_path / name)
        found = read_palette_mask(str(tmp_path / name), "a")
        assert (None if found is None else found.tolist()) == colors


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_no_number_is_named(value):
    with pytest.raises(ImageError, match=r"a: has pixels that are not numbers \(NaN or infinite\)"):
        read_image(np.array([[0, value]], np.float32), "a")


def test_of_a_mask_without_data_in_places_only_what_is_no_number_is_unknown():
    values = np.ma.MaskedArray(np.array([[1, 7, np.nan]], np.float32), [[False, True, True]])
    assert decode_mask(values, "a").values.tolist() == [[1, 7, 255]]
    assert decode_mask(values[:, :2].astype(np.uint8), "a").values.tolist() == [[1, 7]]


def test_numbers_of_32_bits_without_sign_stay_what_they_are(tmp_path):
    for kind, value in (("uint32", 4_000_000_000), ("int32", -7)):
        tifffile.imwrite(tmp_path / "a.tif", np.array([[1, value]], kind), photometric="minisblack")
        assert decode_mask(str(tmp_path / "a.tif"), "a").values.tolist() == [[1, value]]


@pytest.mark.parametrize(("limit", "is_read"), [(45 * 70, True), (45 * 70 - 1, False)])
def test_a_compressed_strip_is_read_in_windows_up_to_a_limit(tmp_path, monkeypatch, limit, is_read):
    pixels = np.zeros((45, 70), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", compression="zlib", rowsperstrip=45)
    monkeypatch.setattr(tiff_module, "SEGMENT_BYTES", limit)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert has_windows(tiff.pages[0].aspage()) is is_read


def test_pages_stay_pages_however_many_there_are():
    pages = [np.full((4, 5), value, np.uint8) for value in range(4)]
    for count in (1, 3, 4):
        file = io.BytesIO()
        write_pages(file, pages[:count])
        file.seek(0)
        with tifffile.TiffFile(file) as tiff:
            assert [page.asarray().tolist() for page in tiff.pages] == [page.tolist() for page in pages[:count]]


RING = np.array([[0, 0], [4, 0], [4, 3], [0, 0]], float)


def test_rings_are_those_of_all_polygons_whatever_their_order_of_bytes():
    assert list(rings_of(None, "a")) == []
    polygon = well_known_binary([RING, RING / 2])
    assert [ring.tolist() for ring in rings_of(polygon, "a")] == [RING.tolist(), (RING / 2).tolist()]
    turned = struct.pack(">BIII", 0, 3, 1, len(RING)) + RING.astype(">f8").tobytes()
    for head in (struct.pack(">BII", 0, 6, 2), struct.pack("<BII", 1, 6, 2)):
        rings = list(rings_of(head + turned + well_known_binary([RING + 1]), "a"))
        assert [ring.tolist() for ring in rings] == [RING.tolist(), (RING + 1).tolist()]


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<BII", 1, 1, 1),
        struct.pack("<BII", 1, 6, 1) + struct.pack("<BII", 1, 1, 1),
        well_known_binary([RING])[:-1],
        well_known_binary([RING])[:10],
        b"",
    ],
    ids=["point", "point among polygons", "cut in a ring", "cut in a head", "empty"],
)
def test_what_is_no_polygon_is_one_line(content):
    with pytest.raises(DataError, match=r"^a\.gpkg, row 3 is no Polygon or MultiPolygon \("):
        list(rings_of(content, "a.gpkg, row 3"))


def test_a_page_of_a_stack_that_differs_from_the_first_is_named(tmp_path):
    for other in (np.zeros((4, 6), np.uint8), np.zeros((4, 5), np.uint16)):
        with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
            for page in (np.zeros((4, 5), np.uint8), np.zeros((4, 5), np.uint8), other):
                writer.write(page, photometric="minisblack", contiguous=False)
        with pytest.raises(ImageError, match="page 3 has another size or type than the first"):
            read_volume(VolumeFile((str(tmp_path / "a.tif"),)), "a")


def test_a_value_to_ignore_is_unknown_in_labels_of_a_class_each(tmp_path):
    paths = []
    for name, values in (("a", [0, 1, 9]), ("b", [1, 9, 0])):
        paths.append(str(write_nifti(tmp_path / f"{name}.nii", np.array(values, np.uint8).reshape(3, 1, 1))))
    values, header = read_label_volume(layered_label(paths, (0, 1), ignored=(9,)), "case")
    truth, unknown = unpack_bits(values)
    assert header.size == (1, 1, 3)
    assert truth.ravel().tolist() == [2, 1, 0] and unknown.ravel().tolist() == [0, 2, 1]


def test_a_stack_of_four_axes_has_channels(tmp_path):
    stack = np.random.default_rng(0).integers(0, 9, (3, 4, 5, 2), np.uint8)
    for array, channels in ((stack, 2), (stack[..., 0], 1)):
        np.save(tmp_path / "a.npy", array)
        voxels, header = read_volume(VolumeFile((str(tmp_path / "a.npy"),)), "a")
        assert (header.size, header.channels) == ((3, 4, 5), channels) and (voxels == stack[..., :channels]).all()
    np.save(tmp_path / "a.npy", stack[0, 0])
    with pytest.raises(ImageError, match=r"its shape is \(5, 2\), not \(z, y, x\) or \(z, y, x, channels\)"):
        read_volume(VolumeFile((str(tmp_path / "a.npy"),)), "a")
