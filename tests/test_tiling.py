"""Tiles and windows give what the whole image gives: proved in float64 for logits, bit for bit for pixels."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_utils.image_io.reader import read_image
from data_utils.image_io.regions import ArrayRegions, TiffRegions, open_regions
from data_utils.image_io.tiff import tiff_pages
from data_utils.loading.transforms import input_rows, input_window
from inference import Predictor
from inference.logits import most_likely, resize_bands, resize_logits
from inference.predictor import fold_batch_norm
from inference.tiling import LARGE_TILE_MEMORY, Tiling, batch_logits, plan, reach, stream_logits
from runtime.errors import ImageError, SettingsError
from unet import Preprocess, UNet, UNetConfig


def network(depth: int, upsample: str = "transpose", norm: str = "batch", **preprocess) -> UNet:
    """A small float64 network whose batch norms have something to do."""
    torch.manual_seed(0)
    model = UNet(UNetConfig(3, 3, 4, depth, norm, upsample, preprocess=Preprocess(**preprocess))).double().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return model


def tiled(model: UNet, image: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    rows = stream_logits(model, lambda start, stop: image[:, start:stop], image.shape[1:], tiling, lambda h, w: 2)
    return torch.cat(list(rows), dim=1)


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_exact_tiles_equal_the_whole_image_and_with_less_overlap_they_would_not(depth, upsample):
    model, grid = network(depth, upsample), 2**depth
    halo = reach(model.config)
    height, width = 3 * halo + 3 * grid + 3, 2 * halo + 6 * grid + grid - 1  # odd sizes, off the grid
    image = torch.rand(3, height, width, dtype=torch.float64)
    tiling = plan(model.config, (height, width), tile_size=2 * halo + 4 * grid)
    assert tiling.exact
    with torch.inference_mode():
        whole = model(image[None])[0]
        assert (tiled(model, image, tiling) - whole).abs().max() < 1e-13
        too_little = tiling._replace(overlap=tiling.overlap - 2 * grid)
        assert (tiled(model, image, too_little) - whole).abs().max() > 1e-12


@pytest.mark.parametrize(("depth", "pixels"), [(1, 8), (2, 24), (3, 48), (4, 96)])
def test_the_reach_is_what_was_measured_for_transposed_convolutions(depth, pixels):
    assert reach(UNetConfig(depth=depth)) == pixels


@pytest.mark.parametrize("config", [{"norm": "group"}, {"norm": "instance"}, {"upsample": "bilinear_aligned"}])
def test_networks_that_look_at_the_whole_image_are_blended_and_say_so(config):
    model = network(2, **config)
    tiling = plan(model.config, (150, 170), tile_size=64)
    assert not tiling.exact
    assert tiling.overlap == 32
    assert "blended, not exactly" in str(tiling)
    with torch.inference_mode():
        image = torch.rand(3, 150, 170, dtype=torch.float64)
        logits = tiled(model, image, tiling)
        assert logits.shape == (3, 150, 170)
        assert torch.isfinite(logits).all()


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    tile=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    overlap=st.integers(0, 5),
    exact=st.booleans(),
)
def test_every_pixel_is_covered_whatever_the_sizes(height, width, tile, overlap, exact):
    """The tiles of a network that changes nothing put the image together again."""
    grid = 4
    tile_height, tile_width = (2 * grid * (overlap + side) for side in tile)
    tiling = Tiling(tile_height, tile_width, 2 * grid * overlap, grid, exact)
    image = torch.rand(2, height, width, dtype=torch.float64)
    starts = []

    def forward(batch: torch.Tensor) -> torch.Tensor:
        starts.append(batch.shape)
        return batch

    bands = list(stream_logits(forward, lambda a, b: image[:, a:b], (height, width), tiling, lambda h, w: 3))
    torch.testing.assert_close(torch.cat(bands, dim=1), image)
    assert all(shape[2] <= tile_height + grid and shape[3] <= tile_width + grid for shape in starts)


def test_images_are_computed_whole_while_they_fit_and_in_bounded_tiles_beyond():
    for base_channels, norm in itertools.product((4, 16, 64), ("batch", "group")):
        config = UNetConfig(base_channels=base_channels, norm=norm)
        assert plan(config, (1080, 1440)) is None
        # exact tiles of 960 fit for 16 channels and cost little; those of 64 channels would be mostly overlap
        assert (plan(config, (1080, 1920)) is None) == (norm == "group" or base_channels != 16)
        tiling = plan(config, (20_000, 30_000))
        assert tiling.exact == (norm == "batch")
        assert tiling.height * tiling.width * 32 * base_channels < 1.1 * LARGE_TILE_MEMORY
    many = plan(UNetConfig(num_classes=150, base_channels=8), (20_000, 20_000))
    assert many.height < plan(UNetConfig(num_classes=2, base_channels=8), (20_000, 20_000)).height


def test_sizes_are_rounded_to_the_pooling_grid_and_impossible_ones_refused():
    config = UNetConfig(depth=4)
    assert plan(config, (999, 999), tile_size=500) == Tiling(512, 512, 192, 16, True)
    assert plan(config, (999, 999), tile_size=500, overlap=10) == Tiling(512, 512, 32, 16, False)
    assert plan(config, (999, 999), tile_size=500, overlap=193) == Tiling(512, 512, 224, 16, True)
    assert plan(config, (999, 999), tile_size=100) == Tiling(112, 112, 32, 16, False)
    assert plan(config, (999, 999), tile_size=1000) is None
    with pytest.raises(SettingsError, match="overlap 512 leaves nothing of tiles of 512"):
        plan(config, (999, 999), tile_size=500, overlap=500)
    with pytest.raises(SettingsError, match="overlap 32 leaves nothing of tiles of 16"):
        plan(config, (999, 999), tile_size=3, overlap=1)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.73, 1.3])
@pytest.mark.parametrize("shape", [(233, 191), (8, 400), (400, 9), (1, 300), (130, 401)])
def test_tiles_and_bands_of_a_predictor_equal_the_whole_image_at_any_scale(scale, shape):
    model = network(2, scale=scale, mean=(100.0,) * 3, std=(50.0,) * 3)
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    whole, tiles = Predictor(model), Predictor(model, tile_size=64)
    (expected,) = whole.in_batch([whole.inputs(image)[0]], [shape])
    for predictor in (whole, tiles):
        logits = torch.cat(list(predictor.bands(ArrayRegions(image))), dim=1)
        assert (logits - expected).abs().max() < 1e-12


@pytest.mark.parametrize("rows", [1, 16, 64, 2000])
@pytest.mark.parametrize(("size", "target"), [(1000, 300), (2000, 200), (300, 100), (640, 310), (90, 200), (70, 70)])
def test_rows_of_logits_are_resized_as_all_of_them_are(size, target, rows):
    logits = torch.rand(2, size, 9, dtype=torch.float64)
    (expected,) = resize_logits(logits[None], (target, 5))
    bands = list(resize_bands(iter(logits.split(rows, dim=1)), (size, 9), (target, 5)))
    assert (torch.cat(bands, dim=1) - expected).abs().max() < 1e-13


def test_float32_tiles_are_within_the_promised_rounding():
    model = network(3, mean=(100.0,) * 3, std=(50.0,) * 3).float()
    image = np.random.default_rng(0).integers(0, 256, (301, 333, 3), dtype=np.uint8)
    whole, tiles = Predictor(model), Predictor(model, tile_size=144)
    assert tiles.tilings(image.shape[:2])[0].exact
    (expected,) = whole.in_batch([whole.inputs(image)[0]], [image.shape[:2]])
    assert (torch.cat(list(tiles.bands(ArrayRegions(image))), dim=1) - expected).abs().max() < 1e-5


def test_the_most_likely_class_is_the_first_of_equals_as_argmax_has_it():
    logits = torch.randint(0, 3, (7, 40, 50)).float()
    assert torch.equal(most_likely(logits), torch.from_numpy(logits.numpy().argmax(0)))
    assert torch.equal(most_likely(logits[None], dim=1)[0], most_likely(logits))


def test_folding_batch_norm_changes_nothing_but_rounding():
    model = network(3)
    image = torch.rand(2, 3, 50, 70, dtype=torch.float64)
    with torch.inference_mode():
        expected = model(image)
        folded = fold_batch_norm(model)
        assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
        assert (folded(image) - expected).abs().max() < 1e-13


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
    whole = preprocess.image(image, channels)
    for start, stop in ((0, target[0]), (target[0] // 3, target[0] // 3 + 1), (target[0] - 1, target[0])):
        rows = input_rows(ArrayRegions(image), preprocess, channels, "image", start, stop)
        np.testing.assert_array_equal(rows, whole[:, start:stop])
        assert rows.dtype == whole.dtype


PICTURES = {
    "rgb": np.random.default_rng(0).integers(0, 256, (301, 333, 3), dtype=np.uint8),
    "rgba": np.random.default_rng(1).integers(0, 256, (301, 333, 4), dtype=np.uint8),
    "grey": np.random.default_rng(2).integers(0, 256, (301, 333), dtype=np.uint8),
    "grey16": np.random.default_rng(3).integers(0, 65536, (301, 333), dtype=np.uint16),
    "float": np.random.default_rng(4).random((301, 333), dtype=np.float32),
}


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"rowsperstrip": 7},
        {"tile": (64, 48)},
        {"compression": "zlib", "rowsperstrip": 7},
        {"compression": "zlib", "tile": (64, 48)},
        {"byteorder": ">"},
        {"bigtiff": True, "tile": (64, 64)},
    ],
)
def test_windows_of_a_tiff_are_what_the_whole_file_holds(kind, layout, tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PICTURES[kind], photometric="rgb" if kind.startswith("rgb") else "minisblack", **layout)
    whole = read_image(path)
    with open_regions(path) as rows:
        assert isinstance(rows, TiffRegions)
        assert rows.size == (301, 333)
        for start, stop in ((0, 301), (0, 1), (300, 301), (60, 130), (63, 65)):
            np.testing.assert_array_equal(read_image(rows.crop(start, stop)), whole[start:stop])


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PICTURES["rgb"]).save(path, exif=exif)


def veiled(path: Path) -> None:
    """Colours that are multiplied by an opacity, as the file says."""
    half = np.full((*PICTURES["rgb"].shape[:2], 1), 128, np.uint8)
    pixels = np.concatenate([PICTURES["rgb"] // 2, half], axis=2)
    tifffile.imwrite(path, pixels, photometric="rgb", extrasamples=["assocalpha"])


@pytest.mark.parametrize("array", [np.zeros(7), np.zeros((4, 4, 0)), np.zeros((2, 3, 4, 5))], ids=["1", "none", "4"])
def test_an_array_that_is_no_picture_is_an_image_error(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ImageError, match=r"a\.npy: .*shape is \("), open_regions(tmp_path / "a.npy"):
        pass


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", lambda path: Image.fromarray(PICTURES["rgb"]).save(path)),
        ("turned.jpg", turned),
        ("turned.tif", turned),
        ("palette.tif", lambda path: Image.fromarray(PICTURES["rgb"]).quantize(30).save(path)),
        ("lzw.tif", lambda path: Image.fromarray(PICTURES["rgb"]).save(path, compression="tiff_lzw")),
        ("jpeg.tif", lambda path: Image.fromarray(PICTURES["rgb"]).save(path, compression="jpeg")),
        ("white.tif", lambda path: tifffile.imwrite(path, PICTURES["grey"], photometric="miniswhite")),
        ("planes.tif", lambda path: tifffile.imwrite(path, PICTURES["rgb"].transpose(2, 0, 1), photometric="rgb")),
        ("veiled.tif", veiled),
        ("a.npy", lambda path: np.save(path, PICTURES["float"])),
    ],
)
def test_what_has_no_windows_is_read_all_the_same(name, write, tmp_path):
    write(tmp_path / name)
    whole = read_image(tmp_path / name)
    with open_regions(tmp_path / name) as rows:
        assert rows.size == whole.shape[:2]
        assert not isinstance(rows, TiffRegions)
        np.testing.assert_array_equal(read_image(rows.crop(10, 50)), whole[10:50])


def test_pages_of_a_tiff_are_found_and_their_thumbnails_left_out(tmp_path):
    path = tmp_path / "stack.tif"
    with tifffile.TiffWriter(path) as tiff:
        for number in range(3):
            tiff.write(PICTURES["grey"][number:], photometric="minisblack")
            tiff.write(PICTURES["grey"][::4, ::4], photometric="minisblack", subfiletype=1)
    pages = tiff_pages(path)
    assert pages == [(0, (301, 333)), (2, (300, 333)), (4, (299, 333))]
    with open_regions(path, 2) as rows:
        np.testing.assert_array_equal(rows.crop(0, 300)[:, :, 0], PICTURES["grey"][1:])
    np.testing.assert_array_equal(read_image(path, page=2)[:, :, 0], PICTURES["grey"][1:])


def test_a_tiff_that_is_cut_off_is_an_image_error(tmp_path):
    path = tmp_path / "a.tif"
    for layout in ({}, {"compression": "zlib", "tile": (64, 64)}):
        tifffile.imwrite(path, PICTURES["grey"], photometric="minisblack", **layout)
        path.write_bytes(path.read_bytes()[:60_000])
        with pytest.raises(ImageError, match=r"a\.tif: cannot be read"), open_regions(path) as rows:
            rows.crop(250, 301)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("target", [(160, 200), (97, 120), (33, 350), (320, 407)])
@pytest.mark.parametrize("size", [(320, 400), (321, 407)])
def test_training_prediction_and_tiles_read_the_same_of_a_jpeg_file(size, target, orientation, tmp_path):
    exif, path = Image.Exif(), tmp_path / "a.jpg"
    exif[0x0112] = orientation
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)).save(path, exif=exif)
    preprocess = Preprocess(image_size=target)
    whole = preprocess.image(path, 3)
    predictor = Predictor(UNet(UNetConfig(3, 2, base_channels=2, depth=1, preprocess=preprocess)))
    (shown,), own_size = predictor.inputs(path)
    np.testing.assert_array_equal(shown, whole)
    with open_regions(path) as rows:
        assert rows.size == own_size == read_image(path).shape[:2]
        less = rows.drafted(preprocess)
        for start, stop in ((0, target[0]), (5, 6), (target[0] - 9, target[0])):
            np.testing.assert_array_equal(input_rows(less, preprocess, 3, "a", start, stop), whole[:, start:stop])
        np.testing.assert_array_equal(read_image(rows.crop(10, 50)), read_image(path)[10:50])


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("target", [(301, 333), (150, 166), (97, 500), (400, 50)])
def test_a_window_is_resized_as_the_whole_image_is(kind, target, tmp_path):
    path, channels = tmp_path / "a.tif", 3 if kind.startswith("rgb") else 1
    photometric = "rgb" if channels == 3 else "minisblack"
    tifffile.imwrite(path, PICTURES[kind], photometric=photometric, tile=(64, 48), compression="zlib")
    preprocess = Preprocess(image_size=target)
    whole = preprocess.image(path, channels)
    with open_regions(path) as rows:
        for height, width in ((1, 1), (40, 30), target):
            top, left = (target[0] - height) // 2, target[1] - width
            window = ((top, top + height), (left, left + width))
            crop = input_window(rows, window, preprocess=preprocess, channels=channels)
            assert crop.dtype == whole.dtype
            expected = whole[:, top : top + height, left : left + width]
            np.testing.assert_allclose(crop, expected, rtol=1e-5, atol=1 if crop.dtype == np.uint8 else 1e-3)
            if target == (301, 333):
                np.testing.assert_array_equal(crop, expected)


@pytest.mark.parametrize("config", [{}, {"norm": "group"}])
def test_tiles_of_several_images_share_batches_and_give_what_each_image_gives_alone(config):
    model, shapes = network(2, **config), [(150, 170), (64, 200), (131, 90), (150, 170)]
    images = [torch.rand(3, *shape, dtype=torch.float64) for shape in shapes]
    tilings = [plan(model.config, shape, tile_size=64) for shape in shapes]
    batches = []

    def forward(batch: torch.Tensor) -> torch.Tensor:
        batches.append(batch.shape)
        return model(batch)

    with torch.inference_mode():
        found = batch_logits(forward, images, tilings, lambda height, width: 5)
        for image, tiling, logits in zip(images, tilings, found, strict=True):
            assert (logits - tiled(model, image, tiling)).abs().max() < 1e-13
    shapes_seen = {shape[2:] for shape in batches}
    assert all(sum(shape[2:] == seen and shape[0] < 5 for shape in batches) <= 1 for seen in shapes_seen)


def test_a_predictor_takes_images_of_other_sizes_together_where_their_tiles_are_alike():
    model = network(2, mean=(100.0,) * 3, std=(50.0,) * 3)
    whole, tiles = Predictor(model), Predictor(model, tile_size=64)
    shapes = [(150, 170), (140, 210)]
    assert tiles.batch_of(shapes[0])[0] == tiles.batch_of(shapes[1])[0]
    assert whole.batch_of(shapes[0])[0] != whole.batch_of(shapes[1])[0]
    images = [np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    together = tiles.in_batch([tiles.inputs(image)[0] for image in images], shapes)
    for image, shape, logits in zip(images, shapes, together, strict=True):
        (alone,) = whole.in_batch([whole.inputs(image)[0]], [shape])
        assert (logits - alone).abs().max() < 1e-12


def test_pixels_from_0_to_1_are_found_in_windows_as_in_the_whole_image():
    model = network(2, std=(255.0,) * 3, detect_unit_range=True)
    for brightest in (1, 2):
        image = np.zeros((300, 90, 3), np.uint8)
        image[280:, 30:] = brightest
        predictor = Predictor(model, tile_size=64)
        (expected,) = predictor.in_batch([predictor.inputs(image)[0]], [image.shape[:2]])
        logits = torch.cat(list(predictor.bands(ArrayRegions(image))), dim=1)
        assert (logits - expected).abs().max() < 1e-12
