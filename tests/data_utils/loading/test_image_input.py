"""From the pixels of an image to what the network gets: range, channels, types, and pixels without data."""

import numpy as np
import pytest
from support.inputs import read_input
from support.rasters import write_raster

from data_utils.image_io.reader import open_source
from data_utils.image_io.windowed import WindowedArray
from data_utils.loading.image_input import ImageInput, fit_channels
from runtime.errors import ImageError
from unet.config import Preprocess


def test_whether_pixels_are_from_0_to_1_is_asked_of_the_whole_image():
    preprocess = Preprocess(detect_unit_range=True)
    pixels = np.zeros((300, 2, 1), np.uint8)
    pixels[:290] = 1
    image = ImageInput(WindowedArray(pixels), preprocess, 1)
    assert image.strip(0, 3).max() == image.whole().max() == 255
    assert image.strip(290, 300).max() == 0
    pixels[299] = 2  # in another part than the rows that are asked for
    image = ImageInput(WindowedArray(pixels), preprocess, 1)
    assert image.strip(0, 3).max() == 1
    assert image.whole()[0, 0, 0] == 1
    image = ImageInput(WindowedArray(pixels[:290]), Preprocess(), 1)
    assert image.strip(0, 3).max() == image.whole().max() == 1


def test_channels_are_repeated_or_reduced_where_that_loses_nothing():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    assert fit_channels(grey, 1) is grey
    repeated = fit_channels(grey, 3)
    assert repeated.shape == (2, 3, 3)
    assert (repeated == grey).all()
    assert np.array_equal(fit_channels(repeated, 1), grey)
    color = repeated.copy()
    color[0, 0, 2] += 1
    with pytest.raises(ImageError, match=r"a\.png: has 3 channels, the model takes 1; convert the image"):
        fit_channels(color, 1, "a.png")
    assert fit_channels(grey, 5).shape == (2, 3, 5)
    with pytest.raises(ImageError, match="has 3 channels, the model takes 4"):
        fit_channels(color, 4)


def test_an_image_that_the_model_does_not_take_is_named():
    with pytest.raises(ImageError, match=r"^b: image cannot be read"):
        read_input(b"", Preprocess(), 1, "b")
    with pytest.raises(ImageError, match=r"^c: has 5 channels, the model takes 3"):
        read_input(np.zeros((2, 3, 5), np.uint8), Preprocess(), 3, "c").whole()
    no_number = ImageInput(WindowedArray(np.full((2, 3, 1), np.nan)), Preprocess(), 1, "d")
    with pytest.raises(ImageError, match=r"^d: has pixels that are not numbers"):
        no_number.strip(0, 1)


@pytest.mark.parametrize(
    ("stored", "whole", "strip"),
    [("uint8", "uint8", "uint8"), ("uint16", "float32", "uint16"), ("int32", "float32", "float32")],
)
def test_images_are_given_to_the_network_in_types_that_it_takes(stored, whole, strip):
    image = ImageInput(WindowedArray(np.full((4, 5, 1), 7, stored)), Preprocess(), 1)
    assert image.whole().dtype == whole
    assert image.strip(1, 3).dtype == strip
    assert image.window(((0, 2), (1, 3)))[0].dtype == whole


@pytest.mark.parametrize(
    ("mean", "kind", "channels", "expected"),
    [
        ((2.6, 7.4), "uint8", 2, [3, 7]),
        ((2.6, 7.4), "float32", 2, [2.6, 7.4]),
        ((2.6, 7.4, 9.0), "uint8", 2, [3, 3]),  # an encoder sees grey images in color
        ((2.6,), "uint16", 2, [3, 3]),
        ((), "uint8", 2, [0, 0]),
        ((), "float32", 2, [0, 0]),
    ],
)
def test_the_mean_of_a_channel_stands_where_it_holds_no_data(mean, kind, channels, expected):
    pixels = np.ma.MaskedArray(np.full((2, 2, channels), 9, kind), np.zeros((2, 2, channels), bool))
    pixels[0, 0] = np.ma.masked
    pixels[1, 1, 0] = np.ma.masked
    image = ImageInput(WindowedArray(pixels), Preprocess(mean=mean), channels).whole()
    assert image[:, 0, 0].tolist() == pytest.approx(expected)
    assert image[:, 1, 1].tolist() == pytest.approx([expected[0], 9])
    assert (image[:, 0, 1] == 9).all()


@pytest.mark.parametrize(
    ("scale", "window"), [(1.0, ((3, 20), (5, 30))), (0.5, ((0, 10), (2, 15))), (2.0, ((9, 41), (0, 60)))]
)
def test_windows_miss_data_where_the_image_does_under_the_center_of_a_pixel(tmp_path, scale, window):
    bands = np.random.default_rng(0).integers(1, 9, (5, 24, 32)).astype(np.uint16)
    bands[:, :6, :9] = 0
    bands[:4, 12:15] = 0  # one band holds data
    path = write_raster(tmp_path / "a.tif", bands, nodata=0)
    with open_source(path) as picture:
        network_input = ImageInput(picture, Preprocess(scale=scale, mean=(4.0,) * 5, std=(1.0,) * 5), 5)
        height, width = network_input.size
        rows = ((np.arange(height) + 0.5) * 24 / height).astype(int)
        columns = ((np.arange(width) + 0.5) * 32 / width).astype(int)
        expected = (bands == 0).all(axis=0)[np.ix_(rows, columns)]
        (top, bottom), (left, right) = window
        _, missing = network_input.window(window)
        assert np.array_equal(missing, expected[top:bottom, left:right])
        assert missing.any()
        assert network_input.window(((height - 4, height), (0, 4)))[1] is None
    full = write_raster(tmp_path / "b.tif", bands)
    with open_source(full) as picture:
        assert ImageInput(picture, Preprocess(scale=scale, mean=(4.0,) * 5), 5).window(window)[1] is None
