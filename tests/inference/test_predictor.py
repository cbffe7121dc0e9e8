"""The Predictor: what it predicts in windows or in batches, what it returns, and which models are an ensemble."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from prediction import network_of
from torch.nn import BatchNorm2d
from volumes import write_nifti, write_volume

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.windowed import WindowedArray
from inference import Predictor
from runtime.errors import ImageError, ModelError
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from unet import UNet
from unet.config import Preprocess, UNetConfig


def test_images_beyond_128_megabytes_of_logits_are_predicted_in_windows():
    network = UNet(UNetConfig(base_channels=1, depth=1, num_classes=4, norm="group"))  # whole up to 4 GB
    predictor = Predictor(network)
    assert not predictor.needs_windows((2048, 4096))
    assert predictor.needs_windows((2048, 4097))
    tiled = Predictor(network, tile_size=512)  # sums of tiles, and copies of what they share
    assert not tiled.needs_windows((1024, 2048))
    assert tiled.needs_windows((1024, 2049))
    halved = UNet(UNetConfig(base_channels=1, depth=1, num_classes=4, norm="group", preprocess=Preprocess(scale=2.0)))
    assert not Predictor(halved).needs_windows((1024, 2048))
    assert Predictor(halved).needs_windows((1024, 2050))
    both = Predictor(network, ensemble=[halved])
    assert not both.needs_windows((1024, 2048))
    assert both.needs_windows((1024, 2050))
    small = UNet(UNetConfig(base_channels=1, depth=1, num_classes=4, norm="group", preprocess=Preprocess(scale=0.5)))
    assert not Predictor(small).needs_windows((2048, 4096))
    assert Predictor(small).needs_windows((2048, 4097))


def test_images_share_a_batch_where_the_network_sees_one_shape():
    config = UNetConfig(base_channels=1, depth=1, norm="group", preprocess=Preprocess(scale=0.5))
    predictor = Predictor(UNet(config))
    key, count = predictor.batch_key((100, 60))
    assert key == ((50, 30),)
    assert count >= 2
    assert predictor.batch_key((100, 62))[0] == ((50, 31),)
    assert predictor.batch_key((1000, 600))[1] < count
    both = Predictor(UNet(config), ensemble=[UNet(replace(config, preprocess=Preprocess()))])
    assert both.batch_key((100, 60))[0] == ((50, 30), (100, 60))
    assert both.batch_key((101, 60))[0] == (
        (50, 30),
        (101, 60),
    )


def test_images_share_a_batch_where_they_are_cut_alike_and_fill_eight_passes():
    config = UNetConfig(base_channels=1, depth=1, norm="group")
    tiled = Predictor(UNet(config), tile_size=16)
    key, count = tiled.batch_key((40, 48))
    assert tiled.batch_key((56, 48))[0] == key
    assert count == 8 * Predictor(UNet(config)).batch_key((40, 48))[1]
    assert tiled.batch_key((1000, 600))[1] == 6  # of 19.2 MB of logits in 128


def test_a_volume_may_be_given_by_its_name_and_probabilities_are_those_of_its_mask(tmp_path):
    torch.manual_seed(0)
    predictor = Predictor(UNet(UNetConfig(1, 3, base_channels=1, depth=1, norm="group")))
    file = write_volume(tmp_path / "v.nii", np.random.default_rng(0).random((3, 8, 9)).astype(np.float32))
    prediction = predictor(str(file))
    assert prediction.mask.shape == (3, 8, 9)
    assert prediction.probabilities.shape == (3, 3, 8, 9)
    assert np.array_equal(prediction.mask, prediction.probabilities.argmax(0))
    assert np.array_equal(prediction.mask, predictor.mask(VolumeFile((str(file),))))
    np.testing.assert_allclose(prediction.probabilities.sum(0), 1, rtol=1e-5)
    slices = list(predictor.slices(VolumeFile((str(file),))))
    np.testing.assert_array_equal(np.stack(slices, axis=1), prediction.probabilities)
    (tiling,) = Predictor(network_of(), tile_size=16).tilings((3, 40, 50), (1.0, 1.0, 1.0))
    assert tiling.size == (16, 16)  # of each slice
    assert Predictor(network_of(), tile_size=16).tilings((40, 9, 10), (1.0, 1.0, 1.0)) == [None]
    picture = io.BytesIO()
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(8, 9)).save(picture, "png")
    assert predictor(picture.getvalue()).mask.shape == (8, 9)


def test_an_ensemble_needs_models_of_the_same_classes_axes_and_task():
    Predictor(network_of(), ensemble=[network_of(norm="group")])
    for other, line in (
        (
            network_of(("a", "c")),
            r"^an ensemble needs models of the same classes: "
            r"\(\('a', 'b'\), \(0, 1\)\), \(\('a', 'c'\), \(0, 1\)\)$",
        ),
        (network_of(values=(0, 255)), "an ensemble needs models of the same classes"),
        (network_of(("a", "b", "c"), (0, 1, 2)), "an ensemble needs models of the same classes"),
        (network_of(dims=3), "an ensemble cannot mix a 2-D and a 3-D model"),
    ):
        with pytest.raises(ModelError, match=line):
            Predictor(network_of(), ensemble=[other])


def test_folds_differ_in_what_was_measured_and_are_an_ensemble_all_the_same():
    folds = []
    for smallest, fills_holes in ((3, True), (5, False)):
        task = Objects(Classes(("background", "cell")), smallest, fills_holes)
        folds.append(UNet(UNetConfig(1, 3, base_channels=1, depth=1, task=task.to_config())))
    assert Predictor(folds[0], ensemble=folds[1:]).task.smallest == 3
    with pytest.raises(ModelError, match="same task"):
        Predictor(folds[0], ensemble=[network_of(("a", "b", "c"), (0, 1, 2))])


def test_objects_come_with_the_numbers_in_their_mask():
    torch.manual_seed(0)
    task = Objects(Classes(("background", "cell")), smallest=1)
    predictor = Predictor(UNet(UNetConfig(1, 3, base_channels=4, depth=1, norm="group", task=task.to_config())))
    image = np.random.default_rng(0).integers(0, 255, (20, 30), dtype=np.uint8)
    prediction = predictor(image)
    assert [detected.number for detected in prediction.objects] == list(range(1, prediction.mask.max() + 1))
    assert len(prediction.objects) > 1
    assert prediction.mask.dtype == np.int32
    assert np.array_equal(predictor.mask(image), prediction.mask)


def test_an_ensemble_of_landmarks_weighs_its_maps_against_the_mean_of_what_its_networks_do():
    folds = []
    for sigma, nowhere, mirrors, always_there in ((1.5, 8.0, True, (0, 1)), (2.0, 9.0, False, (1,))):
        task = Landmarks(("a", "b"), sigma, nowhere, (0, 1), mirrors, always_there=always_there)
        folds.append(UNet(UNetConfig(1, 2, base_channels=1, depth=1, task=task.to_config())))
    predictor = Predictor(folds[0], ensemble=folds[1:])
    assert predictor.task == Landmarks(("a", "b"), 1.5, 8.5, (0, 1), False, always_there=(1,))
    other = Landmarks(("a", "c"), 1.5, 8.0, partners=(0, 1))
    with pytest.raises(ModelError, match="same task"):
        Predictor(folds[0], ensemble=[UNet(replace(folds[0].config, task=other.to_config()))])


@pytest.mark.parametrize(("mirrors", "tta", "passes"), [(True, None, 2), (True, False, 1), (False, None, 1)])
def test_a_prediction_of_landmarks_averages_over_the_mirror_image_unless_asked_not_to(mirrors, tta, passes):
    torch.manual_seed(0)
    task = Landmarks(("a", "b"), partners=(1, 0), mirrors=mirrors)
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1, task=task.to_config()))
    batches = []
    network.register_forward_hook(lambda module, inputs, output: batches.append(inputs[0]))
    image = np.random.default_rng(0).integers(0, 255, (8, 10), np.uint8)
    Predictor(network, tta=tta).points(image)
    assert len(batches) == passes
    assert torch.equal(batches[-1], batches[0].flip(-1)) == (passes == 2)
    batches.clear()
    predictor = Predictor(network, tta=tta)
    (strip,) = predictor.strips(WindowedArray(image[..., None]))
    assert len(batches) == passes
    logits, mirrored = (
        predictor.logits_of_batch([predictor.inputs(pixels).tensors], [(8, 10)])[0]
        for pixels in (image, image[:, ::-1])
    )
    batches.clear()
    Predictor(network, ensemble=[network], tta=tta).points(image)
    assert len(batches) == 2 * passes
    torch.testing.assert_close(strip, logits)
    assert torch.allclose(mirrored.flip(0, 2), logits, atol=1e-5) == (passes == 2)  # each at the place of its partner


@pytest.mark.parametrize("tta", [False, True])
def test_logits_of_a_network_in_half_precision_are_in_full(tta):
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1)).to(torch.bfloat16)
    predictor = Predictor(network, tta=tta)
    inputs = predictor.inputs(np.zeros((8, 8), np.uint8))
    (logits,) = predictor.logits_of_batch([inputs.tensors], [inputs.size])
    assert logits.dtype == torch.float32


def test_the_whole_range_of_16_bits_reaches_the_network():
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1, preprocess=Preprocess(pixel_types=("uint16",))))
    batches = []
    network.register_forward_hook(lambda module, inputs, output: batches.append(inputs[0]))
    image = np.linspace(0, 65535, 256).reshape(16, 16, 1).astype(np.uint16)
    list(Predictor(network, tile_size=8, overlap=2).strips(WindowedArray(image)))
    assert len(batches) > 1
    assert min(batch.min() for batch in batches) == 0
    assert max(batch.max() for batch in batches) == 65535


@pytest.mark.parametrize("tile_size", [None, 8])
def test_points_of_a_volume_are_read_from_it_and_its_mirror_image_whatever_its_sides(tile_size, tmp_path):
    torch.manual_seed(0)
    task = Landmarks(("a", "b"), partners=(1, 0), unit="mm", layout="nnlandmark")
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1, dims=3, task=task.to_config()))
    voxels = np.random.default_rng(0).integers(0, 255, (16, 12, 10), np.int16)  # x, y, z
    files = [write_nifti(tmp_path / f"{name}.nii", array) for name, array in (("a", voxels), ("b", voxels[::-1]))]

    def read_by(tta: bool | None, file: Path) -> torch.Tensor:
        predictor = Predictor(network, tile_size=tile_size, tta=tta)
        return torch.cat(list(predictor.strips(VolumeFile((str(file),)))), dim=1)

    plain, mirrored = (read_by(False, file) for file in files)
    assert plain.shape == (2, 10, 12, 16)
    torch.testing.assert_close(read_by(None, files[0]), (plain + mirrored.flip(0, 3)) / 2)


def test_maps_of_an_ensemble_are_as_large_as_those_of_its_first_network():
    task = Landmarks(("a", "b"), partners=(0, 1)).to_config()
    half, whole = (
        UNet(UNetConfig(1, 2, base_channels=1, depth=1, preprocess=Preprocess(scale=scale), task=task))
        for scale in (0.5, 1.0)
    )
    image = np.random.default_rng(0).integers(0, 255, (8, 10), np.uint8)
    for first, second, size in ((half, whole, (4, 5)), (whole, half, (8, 10))):
        predictor = Predictor(first, ensemble=[second])
        (logits,) = predictor.logits_of_batch([predictor.inputs(image).tensors], [(8, 10)])
        strips = torch.cat(list(predictor.strips(WindowedArray(image[..., None]))), dim=1)
        assert logits.shape == strips.shape == (2, *size)


def test_the_points_of_a_page_are_told_with_their_presence_and_confidence(tmp_path):
    torch.manual_seed(0)
    task = Landmarks(("a", "b"), partners=(0, 1))
    predictor = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, norm="group", task=task.to_config())))
    pages = np.random.default_rng(0).integers(0, 255, (2, 16, 18), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    first, second = (predictor.points(page) for page in pages)
    assert predictor.points(tmp_path / "a.tif", page=1) == second != first
    rows = predictor.predict_rows(pages[1])
    assert [(point.name, point.presence, point.confidence) for point in second] == [
        ("a", *rows[0, 2:].tolist()),
        ("b", *rows[1, 2:].tolist()),
    ]
    assert rows[0, 2] != rows[0, 3]
    with pytest.raises(ImageError, match=r"^my picture: "):
        predictor.points(b"no picture", "my picture")
    with pytest.raises(ModelError, match="the model's task is classes: it answers masks, and no points"):
        Predictor(network_of()).points(pages[0])


def test_an_error_at_a_volume_has_the_name_that_was_given(tmp_path):
    predictor = Predictor(UNet(UNetConfig(2, 2, base_channels=1, depth=1, norm="group", dims=3)))
    volume = VolumeFile((str(write_volume(tmp_path / "v.nii", np.zeros((3, 8, 9), np.float32))),))
    (tmp_path / "broken.nii").write_bytes(b"no volume")
    for predict in (predictor, predictor.mask, predictor.slices, predictor.strips):
        with pytest.raises(ImageError, match=r"^my scan: has 1 channels, the model takes 2$"):
            list(predict(volume, "my scan"))
        with pytest.raises(ImageError, match=r"^my scan cannot be read "):
            list(predict(VolumeFile((str(tmp_path / "broken.nii"),)), "my scan"))
    with pytest.raises(ImageError, match=r"^my photo: is an image, but the model takes volumes \("):
        list(predictor.strips(WindowedArray(np.zeros((8, 9, 2), np.uint8)), "my photo"))


def test_classes_are_predicted_once_unless_views_are_asked_for():
    network = network_of()
    batches = []
    network.register_forward_hook(lambda module, inputs, output: batches.append(inputs[0]))
    Predictor(network)(np.zeros((8, 10), np.uint8))
    assert len(batches) == 1


def test_a_network_sees_a_volume_at_its_own_spacing_and_one_of_images_its_slices_at_their_own_size():
    volumes = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(2.0, 1.0, 0.5)))
    images = UNetConfig(1, 2, base_channels=1, depth=1, preprocess=Preprocess(scale=0.5))
    sizes = [Predictor(UNet(config)).input_sizes((8, 10, 12), (1.0, 1.0, 1.0)) for config in (volumes, images)]
    assert sizes == [[(4, 10, 24)], [(8, 5, 6)]]


def test_decoded_pixels_are_kept_only_where_they_are_asked_for():
    predictor = Predictor(network_of())
    image = np.arange(80, dtype=np.uint8).reshape(8, 10)
    assert predictor.inputs(image).pixels is None
    assert np.array_equal(predictor.inputs(image, keep_pixels=True).pixels[..., 0], image)


def test_tiles_that_are_turned_are_not_exact():
    network = UNet(UNetConfig(base_channels=2, depth=1, norm="batch"))
    for tta, exact in ((False, True), (True, False)):
        (tiling,) = Predictor(network, tile_size=64, tta=tta).tilings((100, 90))
        assert tiling.exact is exact
        assert tiling.size == (64, 64)
    assert Predictor(network, tta=True).tilings((100, 90)) == [None]
    task = Objects(Classes(("background", "cell"))).to_config()
    objects = UNet(UNetConfig(3, 3, base_channels=2, depth=1, norm="batch", task=task))
    (tiling,) = Predictor(objects, tile_size=64).tilings((100, 90))
    assert tiling.exact
    assert tiling.size == (80, 80)


def test_models_are_loaded_with_what_was_asked_for_and_ready_to_predict_fast(tmp_path):
    UNet(UNetConfig(1, 2, base_channels=2, depth=1)).save_pretrained(tmp_path)
    predictor = Predictor.from_pretrained(tmp_path, ensemble=[tmp_path], tile_size=64, overlap=8, tta=True)
    assert (len(predictor.networks), predictor.tile_size, predictor.overlap, predictor.tta) == (2, 64, 8, True)
    for network in predictor.networks:
        assert not network.training
        assert not any(isinstance(part, BatchNorm2d) for part in network.modules())
        assert network.stem.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ModelError, match=r"its config\.json holds the scale; --scale is for Pytorch-UNet's"):
        Predictor.from_pretrained(tmp_path, scale=0.5)
    on_device = Predictor.from_pretrained(tmp_path, "meta").networks[0]
    assert Predictor(on_device, ensemble=[tmp_path]).device.type == "meta"


def test_the_page_that_is_asked_for_is_predicted_and_an_error_has_the_name_that_was_given(tmp_path):
    torch.manual_seed(0)
    network = network_of(norm="group")
    predictor = Predictor(network)
    pages = np.random.default_rng(0).integers(0, 255, (2, 8, 9), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    probabilities = predictor(pages[1]).probabilities
    network.head.conv.bias.data[0] -= float(np.median(np.log(probabilities[0] / probabilities[1])))
    expected, other = (predictor(page) for page in pages[::-1])  # either class is at half of the pixels
    np.testing.assert_array_equal(predictor(tmp_path / "a.tif", page=1).probabilities, expected.probabilities)
    assert not np.array_equal(expected.mask, other.mask)
    for predict in (predictor.mask, predictor.predict_rows):
        np.testing.assert_array_equal(predict(tmp_path / "a.tif", page=1), expected.mask)
        np.testing.assert_array_equal(predict(tmp_path / "a.tif"), other.mask)  # the first page
    np.testing.assert_array_equal(predictor(tmp_path / "a.tif").mask, other.mask)
    for predict in (predictor, predictor.mask, predictor.predict_rows):
        with pytest.raises(ImageError, match=r"^my picture: "):
            predict(b"no picture", "my picture")
