"""Windows of an image give what the whole image gives, whatever file it lies in.

Modules: data_utils/image_io/windowed.py, data_utils/image_io/resize.py.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.inputs import read_input
from support.rasters import write_raster

from data_utils.image_io import windowed
from data_utils.image_io.formats import BandSource, Box, PageFile
from data_utils.image_io.reader import open_source, read_image, read_mask
from data_utils.image_io.resize import resize_image, same_proportions
from data_utils.image_io.windowed import WindowedArray
from data_utils.loading.image_input import ImageInput
from inference import Predictor
from runtime.errors import ImageError
from unet import Preprocess, UNet, UNetConfig


@pytest.mark.parametrize(
    ("size", "target", "kind", "channels"),
    [
        ((300, 200), (150, 100), "u1", 3),
        ((301, 205), (97, 333), "u1", 3),
        ((301, 205), (97, 205), "u1", 1),
        ((301, 205), (301, 99), "u1", 3),
        ((301, 205), (600, 99), "u1", 3),
        ((300, 200), (17, 11), "u2", 1),
        ((300, 200), (170, 311), "f4", 1),
        ((120, 130), (77, 99), "u1", 4),
        ((2000, 30), (3, 7), "u1", 3),
    ],
)
def test_rows_are_resized_as_the_whole_image_is_to_the_last_bit(size, target, kind, channels):
    image = (np.random.default_rng(0).random((*size, channels)) * 255).astype(kind)
    preprocess = Preprocess(image_size=target)
    whole = read_input(image, preprocess, channels).whole()
    all_rows, middle_row, last_row = (0, target[0]), (target[0] // 3, target[0] // 3 + 1), (target[0] - 1, target[0])
    for start, stop in (all_rows, middle_row, last_row):
        rows = ImageInput(WindowedArray(image), preprocess, channels).strip(start, stop)
        np.testing.assert_array_equal(rows, whole[:, start:stop])
        assert rows.dtype == whole.dtype


PICTURES = {
    "rgb": np.random.default_rng(0).integers(0, 256, (301, 333, 3), dtype=np.uint8),
    "rgba": np.random.default_rng(1).integers(0, 256, (301, 333, 4), dtype=np.uint8),
    "grey": np.random.default_rng(2).integers(0, 256, (301, 333), dtype=np.uint8),
    "grey16": np.random.default_rng(3).integers(0, 65536, (301, 333), dtype=np.uint16),
    "float": np.random.default_rng(4).random((301, 333), dtype=np.float32),
}


PAGES = np.arange(3, dtype=np.uint8)[:, None, None] + np.zeros((3, 4), np.uint8)
ROTATED = 6  # the orientation of a picture that is seen turned by a quarter


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def write_turned(path: Path) -> None:
    Image.fromarray(PICTURES["rgb"]).save(path, exif=exif_of(ROTATED))


def write_veiled(path: Path) -> None:
    """Colors that are multiplied by an opacity, as the file says."""
    half = np.full((*PICTURES["rgb"].shape[:2], 1), 128, np.uint8)
    pixels = np.concatenate([PICTURES["rgb"] // 2, half], axis=2)
    tifffile.imwrite(path, pixels, photometric="rgb", extrasamples=["assocalpha"])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", lambda path: Image.fromarray(PICTURES["rgb"]).save(path)),
        ("turned.jpg", write_turned),
        ("turned.tif", write_turned),
        ("palette.tif", lambda path: Image.fromarray(PICTURES["rgb"]).quantize(30).save(path)),
        ("jpeg.tif", lambda path: Image.fromarray(PICTURES["rgb"]).save(path, compression="jpeg")),
        ("white.tif", lambda path: tifffile.imwrite(path, PICTURES["grey"], photometric="miniswhite")),
        ("veiled.tif", write_veiled),
        ("a.npy", lambda path: np.save(path, PICTURES["float"])),
    ],
)
def test_a_file_without_windows_is_read_all_the_same(name, write, tmp_path):
    write(tmp_path / name)
    whole = read_image(tmp_path / name)
    with open_source(tmp_path / name) as picture:
        assert picture.size == picture.extent == whole.shape[:2]
        np.testing.assert_array_equal(read_image(picture, box=picture.rows(10, 50)), whole[10:50])


@pytest.mark.parametrize("layout", [{}, {"compression": "zlib", "tile": (64, 64)}], ids=["strips", "tiles"])
def test_a_tiff_that_is_cut_off_is_an_image_error(tmp_path, layout):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PICTURES["grey"], photometric="minisblack", **layout)
    path.write_bytes(path.read_bytes()[:60_000])
    with pytest.raises(ImageError, match=r"a\.tif cannot be read"), open_source(path) as picture:
        read_image(picture, str(path), box=picture.rows(250, 301))


JPEG_SIZES = list(
    itertools.product([(320, 400), (321, 407)], [(160, 200), (97, 120), (33, 350), (320, 407)], [1, ROTATED])
)


@pytest.mark.parametrize(("size", "target", "orientation"), JPEG_SIZES)
def test_a_network_predicts_of_a_jpeg_file_and_its_strips_what_it_is_trained_on(size, target, orientation, tmp_path):
    path = tmp_path / "a.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path, exif=exif_of(orientation))
    preprocess = Preprocess(image_size=target)
    predictor = Predictor(UNet(UNetConfig(3, 2, base_channels=2, depth=1, preprocess=preprocess)))
    inputs = predictor.inputs(path)
    (network_input,) = inputs.tensors
    whole = read_input(path, preprocess, 3).whole()
    np.testing.assert_array_equal(network_input, whole)
    assert inputs.size == read_image(path).shape[:2]
    with open_source(path) as picture:
        less_detail = picture.drafted(preprocess)
        for start, stop in ((0, target[0]), (5, 6), (target[0] - 9, target[0])):
            strip = ImageInput(less_detail, preprocess, 3).strip(start, stop)
            np.testing.assert_array_equal(strip, whole[:, start:stop])


CHANNELS = {"rgb": 3, "rgba": 3, "grey": 1, "grey16": 1, "float": 1}
OTHER_SIZES = [(150, 166), (97, 500), (400, 50)]


def resized_window(
    folder: Path, kind: str, target: tuple[int, int], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """A window, at the right border, of a picture that has the size `target`; and the same part of the whole."""
    channels = CHANNELS[kind]
    photometric = {3: "rgb", 1: "minisblack"}[channels]
    path = folder / "a.tif"
    tifffile.imwrite(path, PICTURES[kind], photometric=photometric, tile=(64, 48), compression="zlib")
    preprocess = Preprocess(image_size=target)
    height, width = size
    top, left = (target[0] - height) // 2, target[1] - width
    whole = read_input(path, preprocess, channels).whole()
    with open_source(path) as picture:
        window, _ = ImageInput(picture, preprocess, channels).window(((top, top + height), (left, left + width)))
    assert window.dtype == whole.dtype
    return window, whole[:, top : top + height, left : left + width]


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("target", OTHER_SIZES)
@pytest.mark.parametrize("size", [(1, 1), (40, 30)])
def test_a_window_is_resized_as_the_whole_image_is(kind, target, size, tmp_path):
    window, expected = resized_window(tmp_path, kind, target, size)
    # equal but for the last bit of the weights that they are resized by
    if window.dtype == np.uint8:
        assert np.abs(window.astype(int) - expected).max() <= 1
        assert (window != expected).mean() < 0.01
    else:  # measured 1.4e-6 of the range
        np.testing.assert_allclose(window, expected, rtol=0, atol=5e-6 * PICTURES[kind].max())


@pytest.mark.parametrize(("width", "is_large"), [(4096, True), (4095, False)])
def test_an_image_of_4096_by_4096_pixels_is_read_in_windows(tmp_path, width, is_large):
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint8, (4096, width))  # an empty file without blocks
    with open_source(str(tmp_path / "a.npy")) as picture:
        assert picture.is_large is is_large


@pytest.mark.parametrize(
    "source_of",
    [lambda path: PageFile(path, 1), lambda path: PageFile(path, 1, reads_place=False)],
    ids=["page", "picture"],
)
def test_windows_of_a_page_are_parts_of_that_page(tmp_path, source_of):
    pages = np.arange(2 * 4 * 6, dtype=np.int32).reshape(2, 4, 6)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    with open_source(source_of(str(tmp_path / "a.tif"))) as picture:
        assert not picture.decodes_windows
        assert picture.size == (4, 6)
        assert np.array_equal(read_image(picture, box=Box(1, 3, 2, 6))[:, :, 0], pages[1, 1:3, 2:])
        assert np.array_equal(read_mask(picture, "a", box=Box(1, 3, 2, 6)), pages[1, 1:3, 2:])


@pytest.fixture(scope="module")
def small_files(tmp_path_factory):
    """A folder of files of twelve pixels, of which some have windows."""
    folder = tmp_path_factory.mktemp("small")
    np.save(folder / "array.npy", PAGES[0])
    tifffile.imwrite(folder / "picture.TIF", PAGES[0], photometric="minisblack")
    write_raster(folder / "raster.tif", PAGES)
    Image.fromarray(PAGES[0]).convert("P").save(folder / "palette.tif")
    return folder


@pytest.mark.parametrize(
    ("source_of", "has_windows"),
    [
        (lambda folder: str(folder / "array.npy"), True),
        (lambda folder: (folder / "array.npy").read_bytes(), False),
        (lambda folder: str(folder / "picture.TIF"), True),
        (lambda folder: PageFile(str(folder / "picture.TIF"), reads_place=False), True),
        (lambda folder: BandSource((str(folder / "raster.tif"),), ("2",)), True),
        (lambda folder: str(folder / "palette.tif"), False),
        (lambda folder: PAGES[0], False),
    ],
    ids=["array", "bytes", "TIFF", "picture", "band", "palette", "pixels"],
)
def test_a_large_image_is_read_in_windows_where_its_file_has_them(small_files, monkeypatch, source_of, has_windows):
    monkeypatch.setattr(windowed, "LARGE_IMAGE_PIXELS", 12)
    with open_source(source_of(small_files)) as image:
        assert image.is_large is has_windows


def test_a_part_of_an_image_is_enlarged_to_the_size_of_the_image():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    part = resize_image(pixels[:5, :6], (6, 9), (0, 0, 4, 3))  # no pixel farther away contributes to it
    np.testing.assert_array_equal(resize_image(pixels, (6, 9), (0, 0, 4, 3)), part)


@pytest.mark.parametrize(
    ("image", "mask", "fits"),
    [
        ((734, 1100), (734, 1100), True),
        ((734, 1100), (408, 612), True),  # a real pair: 408.36 x 612
        ((100, 150), (34, 50), True),  # rounded up, and down
        ((100, 150), (34, 49), False),
        ((100, 100), (101, 100), True),
        ((512, 512), (514, 512), False),
        ((100, 100), (103, 100), False),
        ((10, 20), (20, 10), False),
        ((1000, 1500), (3, 5), True),
    ],
)
def test_proportions_agree_to_one_rounded_pixel(image, mask, fits):
    assert same_proportions(image, mask) is fits
    assert same_proportions(mask, image) is fits
