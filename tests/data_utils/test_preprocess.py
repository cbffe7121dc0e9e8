"""Reading images: every common format in its own value range, one rule for resizing, clear errors.

Modules: data_utils/image_io/reader.py, data_utils/image_io/formats.py, data_utils/loading/image_input.py.
"""

import io
import warnings

import numpy as np
import pytest
from PIL import Image
from support.inputs import read_input

from data_utils.image_io.reader import decode_image, read_image
from data_utils.image_io.resize import resize_image
from runtime.errors import ImageError, UserWarningLine
from unet.config import Preprocess

GREY = np.arange(6 * 5, dtype=np.uint8).reshape(6, 5) * 8
RGB = np.stack([GREY, GREY[::-1], 255 - GREY], axis=2)


def formats() -> dict[str, tuple[Image.Image, np.ndarray]]:
    rgba = Image.fromarray(RGB).convert("RGBA")
    rgba.putalpha(100)
    return {
        "L.png": (Image.fromarray(GREY), GREY[:, :, None]),
        "LA.png": (Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(GREY)]), GREY[:, :, None]),
        "1.png": (Image.fromarray(GREY > 100), np.where(GREY > 100, 255, 0)[:, :, None]),
        "RGB.png": (Image.fromarray(RGB), RGB),
        "RGBA.png": (rgba, RGB),
        "P.png": (Image.fromarray(GREY).convert("RGB").quantize(64), np.repeat(GREY[:, :, None], 3, axis=2)),
        "16.png": (Image.fromarray(GREY.astype(np.uint16) * 200), GREY[:, :, None].astype(np.uint16) * 200),
        "16.tif": (Image.fromarray(GREY.astype(np.uint16) * 200), GREY[:, :, None].astype(np.uint16) * 200),
        "F.tif": (Image.fromarray(GREY.astype(np.float32) / 7), GREY[:, :, None].astype(np.float32) / 7),
        "CMYK.tif": (Image.fromarray(RGB).convert("CMYK"), RGB),
    }


@pytest.mark.parametrize("name", formats())
def test_every_format_is_read_in_its_own_value_range(name, tmp_path):
    image, expected = formats()[name]
    image.save(tmp_path / name)
    pixels = read_image(tmp_path / name)
    np.testing.assert_array_equal(pixels, expected)
    assert pixels.dtype == (expected.dtype if expected.dtype != np.int64 else np.uint8)
    data = (tmp_path / name).read_bytes()
    for source in (data, str(tmp_path / name), image):
        np.testing.assert_array_equal(read_image(source), expected)


def stored(save, *arguments, **options) -> bytes:
    """The bytes that a function saves to a file."""
    buffer = io.BytesIO()
    save(buffer, *arguments, **options)
    return buffer.getvalue()


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8))
UNREADABLE = {
    "empty": b"",
    "text": b"not an image",
    "cut off": stored(NOISE.save, "PNG")[:2000],
    "array of objects": stored(np.save, np.array([{}]), allow_pickle=True),
    "array of five dimensions": stored(np.save, np.zeros((1, 2, 3, 4, 5))),
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("is_file", [False, True], ids=["bytes", "file"])
def test_a_file_that_cannot_be_read_is_named(content, is_file, tmp_path):
    (tmp_path / "bad.png").write_bytes(content)
    source = {False: content, True: tmp_path / "bad.png"}[is_file]
    with pytest.raises(ImageError, match=r"^bad\.png: ") as error:
        read_image(source, "bad.png")
    assert "\n" not in str(error.value)


def test_resizing_keeps_the_brightness_and_the_range_of_deeper_images():
    noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    small = resize_image(noise, (32, 40))
    assert small.dtype == np.uint8
    assert abs(float(small.mean()) - float(noise.mean())) < 0.1  # rounding, and clipping on both sides: measured 0.02
    small = small.astype(np.float32)
    deep = resize_image(noise.astype(np.uint16) * 16, (32, 40))
    assert deep.dtype == np.float32
    # 8 bits are rounded twice, after the rows and after the columns: measured 1.5 grey levels
    np.testing.assert_allclose(deep, small * 16, rtol=0, atol=2 * 16)
    assert np.abs(deep - small * 16).mean() < 0.5 * 16


@pytest.mark.parametrize(
    ("preprocess", "size", "input_size"),
    [
        (Preprocess(scale=0.5), (101, 7), (50, 3)),
        (Preprocess(scale=0.5), (103, 5), (51, 2)),
        (Preprocess(scale=0.1), (5, 5), (1, 1)),  # never empty
        (Preprocess(image_size=(3, 4)), (100, 100), (3, 4)),
    ],
)
def test_input_size_of_an_image_rounds_down(preprocess, size, input_size):
    assert preprocess.input_size(*size) == input_size


def jpeg(size: tuple[int, int], orientation: int = 1, mode: str = "RGB") -> bytes:
    """A smooth picture (H, W) with a bright box, as a JPEG file."""
    y, x = np.mgrid[: size[0], : size[1]]
    bands = [128 + 60 * np.sin(x / (40 + 9 * k)) + 40 * np.cos(y / (30 + 7 * k)) for k in range(3)]
    pixels = np.stack(bands, axis=2).clip(0, 255).astype(np.uint8)
    pixels[size[0] // 3 : size[0] // 2, size[1] // 4 : size[1] // 2] = 250
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", quality=95, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize(("size", "scale"), [((320, 400), 0.5), ((321, 407), 0.3), ((640, 203), 0.11)])
def test_less_of_a_jpeg_file_is_decoded_and_nothing_moves(size, orientation, scale):
    file = jpeg(size, orientation)
    whole = read_image(file)
    preprocess = Preprocess(scale=scale)
    decoded = decode_image(file, "image", preprocess)
    assert decoded.size == whole.shape[:2]
    exact = orientation == 1 or size == (320, 400)  # no pixel of less detail lies partly beyond the border
    assert (decoded.array.size < 0.3 * whole.size) == exact
    drafted, plain = (read_input(source, preprocess, 3).whole() for source in (file, whole))
    assert drafted.shape == plain.shape
    difference = np.abs(drafted.astype(int) - plain)
    assert difference.mean() < 1  # grey level: measured at most 0.75
    # a picture moved by half a pixel of the network's would differ by tens of grey levels along the box
    moved = np.abs(plain[:, :, 1:].astype(int) - plain[:, :, :-1]).mean()
    assert difference.mean() < 0.3 * moved
    np.testing.assert_array_equal(read_input(file, Preprocess(scale=scale, draft=False), 3).whole(), plain)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_any_jpeg_file_is_read_with_less_detail(mode, tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg((320, 400), mode=mode))
    preprocess, sources = Preprocess(image_size=(100, 130)), [tmp_path / "a.jpg", (tmp_path / "a.jpg").read_bytes()]
    images = [read_input(source, preprocess, 3).whole() for source in sources]
    for image in images:
        np.testing.assert_array_equal(image, images[0])
    picture = Image.open(tmp_path / "a.jpg")
    assert read_input(picture, preprocess, 3).whole().shape == (3, 100, 130)
    assert picture.size == (400, 320)  # an image that was handed in stays as it is


def test_pixels_of_another_type_than_the_model_was_trained_on_get_a_warning():
    preprocess = Preprocess(pixel_types=("uint8",))
    with pytest.warns(UserWarningLine, match="images hold uint16 pixels, but the model was trained on uint8"):
        read_input(GREY.astype(np.uint16), preprocess, 1).whole()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_input(GREY, preprocess, 1).whole()
        read_input(GREY.astype(np.uint16), Preprocess(), 1).whole()
        read_input(GREY, preprocess, 3).whole()


def test_one_channel_that_stands_for_several_bands_gets_a_warning():
    with pytest.warns(UserWarningLine, match="one channel, which stands for each of the 4 that the model takes"):
        read_input(GREY, Preprocess(), 4).whole()
