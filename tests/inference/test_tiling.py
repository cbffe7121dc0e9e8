"""Tiles give what the whole image gives, proved in float64, or are blended and say so.

Modules: inference/tiling/receptive_field.py, inference/tiling/resizing.py,
inference/tiling/stream.py, inference/tiling/planning.py, tasks/classes/loss.py.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_utils.image_io.windowed import WindowedArray
from inference import Predictor
from inference.tiling.planning import Tiling, choose_tiling
from inference.tiling.receptive_field import reach
from inference.tiling.resizing import resize_logits, resize_strips, strips_at_sizes
from inference.tiling.stream import stream_logits
from runtime.errors import SettingsError
from tasks.classes.loss import most_likely
from unet import Preprocess, UNet, UNetConfig
from unet.blocks import fold_batch_norm


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
    pixels = 2 * math.prod(tiling.size)  # two tiles at a time
    strips = stream_logits(model, lambda start, stop: image[:, start:stop], image.shape[1:], tiling, pixels)
    return torch.cat(list(strips), dim=1)


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
@pytest.mark.parametrize("depth", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_exact_tiles_have_the_least_overlap_that_equals_the_whole_image(depth, upsample):
    model, grid = network(depth, upsample), 2**depth
    halo = reach(model.config)[0]
    height, width = 3 * halo + 3 * grid + 3, 2 * halo + 6 * grid + grid - 1  # odd sizes, off the grid
    image = torch.rand(3, height, width, dtype=torch.float64)
    tiling = choose_tiling(model.config, (height, width), tile_size=2 * halo + 4 * grid)
    assert tiling.exact
    with torch.inference_mode():
        whole = model(image[None])[0]
        # float64, logits of about 0.5: measured 2e-16; 4e-11 and more with less overlap
        assert (tiled(model, image, tiling) - whole).abs().max() < 1e-13
        too_little = tiling._replace(overlap=(tiling.overlap[0] - 2 * grid,) * 2)
        assert (tiled(model, image, too_little) - whole).abs().max() > 1e-12


@pytest.mark.parametrize("config", [{"norm": "group"}, {"norm": "instance"}, {"upsample": "bilinear_aligned"}])
def test_tiles_of_networks_that_look_at_the_whole_image_are_blended_to_about_its_logits(config):
    model = network(2, **config)
    tiling = choose_tiling(model.config, (150, 170), tile_size=64)
    assert not tiling.exact
    assert tiling.overlap == (32, 32)
    assert "blended, not exactly" in str(tiling)
    with torch.inference_mode():
        image = torch.rand(3, 150, 170, dtype=torch.float64)
        logits, whole = tiled(model, image, tiling), model(image[None])[0]
    assert logits.shape == (3, 150, 170)
    # group and instance norm see other statistics in a tile: measured 0.03 on average, of logits with a spread of 0.4
    difference = (logits - whole).abs()
    assert difference.max() > 1e-6
    assert difference.mean() < 0.1 * whole.std()


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
    tiling = Tiling((tile_height, tile_width), (2 * grid * overlap,) * 2, (grid, grid), exact)
    image = torch.rand(2, height, width, dtype=torch.float64)
    starts = []

    def forward(batch: torch.Tensor) -> torch.Tensor:
        starts.append(batch.shape)
        return batch

    pixels = 3 * tile_height * tile_width
    strips = stream_logits(forward, lambda start, stop: image[:, start:stop], (height, width), tiling, pixels)
    # float64, blended with weights that add up to one: measured 4e-16
    torch.testing.assert_close(torch.cat(list(strips), dim=1), image, rtol=0, atol=1e-13)
    assert all(shape[2] <= tile_height + grid and shape[3] <= tile_width + grid for shape in starts)


@pytest.fixture(params=itertools.product((4, 16, 64), ("batch", "group")), ids=str)
def config(request) -> UNetConfig:
    base_channels, norm = request.param
    return UNetConfig(base_channels=base_channels, norm=norm)


def test_images_are_cut_where_they_do_not_fit_or_exact_tiles_cost_little(config):
    assert choose_tiling(config, (1080, 1440)) is None
    is_cut = choose_tiling(config, (1080, 1920)) is not None
    assert is_cut == (config.norm == "batch" and config.base_channels == 16)
    tiling = choose_tiling(config, (20_000, 30_000))
    assert tiling.exact == (config.norm == "batch")
    assert math.prod(tiling.size) * 32 * config.base_channels < 1.1 * 3 * 2**28


@pytest.mark.parametrize(
    ("channels", "size", "overlap", "expected"),
    [
        ((2, 32), (300, 300, 300), None, Tiling((128, 128, 128), (16, 16, 16), (2, 2, 2), exact=True)),
        ((2, 32), (900, 900, 5), None, Tiling((590, 590, 6), (16, 16, 16), (2, 2, 2), exact=True)),
        ((2, 32), (300, 300, 300), 8, Tiling((128, 128, 128), (8, 8, 8), (2, 2, 2), exact=False)),
        # 32 slices of logits take 768 MB, or a bit more
        ((3, 1), (200, 1024, 2048), None, Tiling((32, 256, 256), (16, 16, 16), (2, 2, 2), exact=True)),
        ((3, 1), (200, 1024, 2049), None, Tiling((30, 264, 264), (16, 16, 16), (2, 2, 2), exact=True)),
    ],
)
def test_a_large_volume_is_cut_into_exact_tiles_where_the_smallest_of_them_fit(channels, size, overlap, expected):
    classes, base_channels = channels
    config = UNetConfig(1, classes, base_channels, 1, "batch", dims=3)  # its reach is 8 voxels
    assert choose_tiling(config, size, overlap=overlap) == expected


def test_tiles_that_are_blended_share_half_of_their_shorter_side():
    config = UNetConfig(num_classes=150, base_channels=64, norm="group")
    assert choose_tiling(config, (20_000, 30_000)) == Tiling((512, 768), (256, 256), (16, 16), exact=False)


@pytest.mark.parametrize(
    ("tile_size", "overlap", "rounded_size", "rounded_overlap", "exact"),
    [
        (500, None, 512, 192, True),
        (500, 10, 512, 16, False),
        (500, 193, 512, 208, True),
        (100, None, 112, 48, False),
        (192, None, 192, 96, False),
    ],
    ids=["exact", "small overlap", "wide overlap", "small tile", "too small to be exact"],
)
def test_sizes_of_tiles_are_rounded_to_the_pooling_grid(tile_size, overlap, rounded_size, rounded_overlap, exact):
    tiling = choose_tiling(UNetConfig(depth=4), (999, 999), tile_size=tile_size, overlap=overlap)
    assert tiling == Tiling((rounded_size,) * 2, (rounded_overlap,) * 2, (16, 16), exact)


@pytest.mark.parametrize(
    ("tile_size", "overlap", "line"),
    [
        (500, 500, "--overlap 512 must be less than --tile-size 512"),
        (3, 1, "--overlap 16 must be less than --tile-size 16"),
    ],
)
def test_overlap_of_a_whole_tile_is_refused(tile_size, overlap, line):
    with pytest.raises(SettingsError, match=line):
        choose_tiling(UNetConfig(depth=4), (999, 999), tile_size=tile_size, overlap=overlap)


OTHER_SHAPES = [(8, 400), (400, 9), (1, 300), (130, 401)]


@pytest.mark.parametrize(
    ("shape", "scale"),
    [*itertools.product([(233, 191)], [1.0, 0.5, 0.73, 1.3]), *itertools.product(OTHER_SHAPES, [1.3])],
)
@pytest.mark.parametrize("tile_size", [None, 64], ids=["strips", "tiles"])
def test_strips_of_a_predictor_equal_the_whole_image_at_any_scale(shape, scale, tile_size):
    model = network(1, scale=scale, mean=(100.0,) * 3, std=(50.0,) * 3)
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    whole = Predictor(model)
    (expected,) = whole.logits_of_batch([whole.inputs(image)])
    logits = torch.cat(list(Predictor(model, tile_size=tile_size).strips(WindowedArray(image))), dim=1)
    assert (logits - expected).abs().max() < 1e-13  # float64: measured 2e-16


@pytest.mark.parametrize("rows", [1, 16, 64, 2000])
@pytest.mark.parametrize(("size", "target"), [(1000, 300), (2000, 200), (300, 100), (640, 310), (90, 200), (70, 70)])
def test_rows_of_logits_are_resized_as_all_of_them_are(size, target, rows):
    logits = torch.rand(2, size, 9, dtype=torch.float64)
    (expected,) = resize_logits(logits[None], (target, 5))
    strips = list(resize_strips(iter(logits.split(rows, dim=1)), (size, 9), (target, 5)))
    assert (torch.cat(strips, dim=1) - expected).abs().max() < 1e-13  # float64, of 0 to 1: measured 3e-15


class Resized:
    """Three inputs of two or three axes, and their logits at sizes of their own, in strips."""

    def __init__(self, dims: int) -> None:
        self.config = UNetConfig(1, 2, base_channels=1, depth=1, dims=dims)
        self.sides = (4, 5)[: dims - 1]
        self.images = torch.rand(3, 1, 80, *self.sides)
        self.sizes = [(80, *self.sides), (160, *self.sides), (90, *self.sides)]
        self.batches: list[int] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(batch))
        return batch.repeat(1, 2, *[1] * self.config.dims)

    def strips(self) -> list[list[torch.Tensor]]:
        return [list(strips) for strips in strips_at_sizes(self.forward, self.images, self.sizes, self.config)]


@pytest.mark.parametrize("dims", [2, 3], ids=["images", "volumes"])
def test_large_logits_come_in_strips(monkeypatch, dims):
    resized = Resized(dims)
    whole = resized.strips()
    monkeypatch.setattr("inference.tiling.resizing.WHOLE_LOGITS", 2 * 4 * math.prod(resized.sizes[2]))
    monkeypatch.setattr("inference.tiling.stream.STRIP_BYTES", 64 * 4 * 2 * math.prod(resized.sides))
    strips = resized.strips()
    assert [[strip.shape[2] for strip in of_input] for of_input in strips] == [[80], [64, 64, 32], [90]]
    for of_input, (expected,) in zip(strips, whole, strict=True):
        torch.testing.assert_close(torch.cat(of_input, dim=2), expected)


def test_images_whose_evaluation_does_not_fit_go_in_tiles():
    model = network(3).float()
    shapes = []

    def forward(batch: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(batch.shape))
        if batch[:, 0].numel() > 190 * 190:
            raise torch.OutOfMemoryError
        return model(batch)

    images = torch.rand(2, 3, 301, 333)
    with torch.inference_mode():
        expected = model(images)
        for strips, whole in zip(
            strips_at_sizes(forward, images, [(301, 333)] * 2, model.config), expected, strict=True
        ):
            assert (torch.cat(list(strips), dim=2)[0] - whole).abs().max() < 1e-5
    assert {shape[0] for shape in shapes[1:]} == {1}


def test_an_image_of_which_no_tile_fits_is_a_shortage():
    def forward(batch: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    images = torch.rand(1, 3, 64, 64)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        list(itertools.chain.from_iterable(strips_at_sizes(forward, images, [(64, 64)], network(3).config)))


def test_float32_tiles_are_within_the_promised_rounding():
    model = network(3, mean=(100.0,) * 3, std=(50.0,) * 3).float()
    image = np.random.default_rng(0).integers(0, 256, (301, 333, 3), dtype=np.uint8)
    whole, tiles = Predictor(model), Predictor(model, tile_size=144)
    assert tiles.tilings(image.shape[:2])[0].exact
    (expected,) = whole.logits_of_batch([whole.inputs(image)])
    # docs/performance.md promises 1e-5; measured 3e-8. With half the overlap, blended, it would be 2.5e-5.
    assert (torch.cat(list(tiles.strips(WindowedArray(image))), dim=1) - expected).abs().max() < 1e-6


def test_the_most_likely_class_is_the_first_of_equals_as_argmax_has_it():
    logits = torch.randint(0, 3, (2, 7, 40, 50)).float()
    assert torch.equal(most_likely(logits), torch.from_numpy(logits.numpy().argmax(1)))


def test_folding_batch_norm_changes_nothing_but_rounding():
    model = network(3)
    image = torch.rand(2, 3, 50, 70, dtype=torch.float64)
    with torch.inference_mode():
        expected = model(image)
        folded = fold_batch_norm(model)
        assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
        assert (folded(image) - expected).abs().max() < 1e-13  # float64: measured 6e-17


@pytest.mark.parametrize("tile_size", [None, 64])
def test_images_that_are_computed_together_have_the_logits_of_each_alone(tile_size):
    model = network(1, mean=(100.0,) * 3, std=(50.0,) * 3)
    predictor = Predictor(model, tile_size=tile_size)
    shapes = [(150, 170), (150, 170), (140, 210)]  # that of the last one is not what its header has said
    rng = np.random.default_rng(0)
    images = [predictor.inputs(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    for together in (images[:2], images):
        for inputs, logits in zip(together, predictor.logits_of_batch(together), strict=True):
            (alone,) = Predictor(model).logits_of_batch([inputs])
            assert (logits - alone).abs().max() < 1e-13  # float64: measured 0


@pytest.mark.parametrize("brightest", [1, 2])
def test_pixels_from_0_to_1_are_found_in_windows_as_in_the_whole_image(brightest):
    model = network(1, std=(255.0,) * 3, detect_unit_range=True)
    image = np.zeros((300, 90, 3), np.uint8)
    image[280:, 30:] = brightest
    predictor = Predictor(model, tile_size=64)
    (expected,) = predictor.logits_of_batch([predictor.inputs(image)])
    logits = torch.cat(list(predictor.strips(WindowedArray(image))), dim=1)
    assert (logits - expected).abs().max() < 1e-13  # float64: measured 0
