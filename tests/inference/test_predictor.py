"""The Predictor: what it predicts in windows or in batches, what it returns, and which models are an ensemble."""

import io
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from support.prediction import network_of
from support.volumes import write_nifti, write_volume

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import open_source
from data_utils.image_io.windowed import WindowedArray
from inference import Predictor
from runtime.errors import ImageError, ModelError
from tasks.classes.loss import Classes
from tasks.landmarks.loss import Landmarks
from tasks.objects.loss import Objects
from unet import UNet
from unet.config import Preprocess, UNetConfig


def four_classes(scale: float) -> UNet:
    """A network whose logits take 16 bytes a pixel at scale 1; it predicts up to 4 GB whole."""
    preprocess = Preprocess(scale=scale)
    return UNet(UNetConfig(base_channels=1, depth=1, num_classes=4, norm="group", preprocess=preprocess))


@pytest.mark.parametrize(
    ("scales", "tile_size", "whole", "in_windows"),
    [
        ([1.0], None, (2048, 4096), (2048, 4097)),
        ([1.0], 512, (1024, 2048), (1024, 2049)),  # sums of tiles, and copies of what they share
        ([1.0, 2.0], None, (1024, 2048), (1024, 2050)),
        ([1.0, 0.25], 512, (1024, 2048), (1024, 2049)),  # tiles of the first network alone
    ],
    ids=["whole", "tiles", "ensemble", "tiles of one network"],
)
def test_images_beyond_128_megabytes_of_logits_are_predicted_in_windows(scales, tile_size, whole, in_windows):
    first, *others = (four_classes(scale) for scale in scales)
    predictor = Predictor(first, ensemble=others, tile_size=tile_size)
    assert not predictor.needs_windows(whole)
    assert predictor.needs_windows(in_windows)


@pytest.fixture
def slice_predictor() -> Predictor:
    """A predictor of images, which sees a volume as slices."""
    torch.manual_seed(0)
    return Predictor(UNet(UNetConfig(1, 3, base_channels=1, depth=1, norm="group")))


@pytest.fixture
def volume_file(tmp_path) -> Path:
    """A volume of 3 x 8 x 9."""
    return write_volume(tmp_path / "v.nii", np.random.default_rng(0).random((3, 8, 9)).astype(np.float32))


def test_probabilities_of_a_volume_are_those_of_its_mask(slice_predictor, volume_file):
    prediction = slice_predictor(str(volume_file))
    assert prediction.mask.shape == (3, 8, 9)
    assert prediction.probabilities.shape == (3, 3, 8, 9)
    assert np.array_equal(prediction.mask, prediction.probabilities.argmax(0))
    np.testing.assert_allclose(prediction.probabilities.sum(0), 1, rtol=1e-5)


def test_tiles_of_a_volume_of_slices_are_those_of_a_slice():
    predictor = Predictor(network_of(), tile_size=16)
    (tiling,) = predictor.tilings((3, 40, 50), (1.0, 1.0, 1.0))
    assert tiling.size == (16, 16)
    assert predictor.tilings((40, 9, 10), (1.0, 1.0, 1.0)) == [None]


def test_an_image_may_be_given_by_its_bytes(slice_predictor):
    picture = io.BytesIO()
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(8, 9)).save(picture, "png")
    assert slice_predictor(picture.getvalue()).mask.shape == (8, 9)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            network_of(("a", "c")),
            r"^an ensemble needs models of the same classes: "
            r"\(\('a', 'b'\), \(0, 1\)\), \(\('a', 'c'\), \(0, 1\)\)$",
        ),
        (network_of(values=(0, 255)), "an ensemble needs models of the same classes"),
        (network_of(("a", "b", "c"), (0, 1, 2)), "an ensemble needs models of the same classes"),
        (network_of(dims=3), "an ensemble cannot mix a 2-D and a 3-D model"),
    ],
    ids=["names", "values", "number", "axes"],
)
def test_an_ensemble_needs_models_of_the_same_classes_or_axes(other, line):
    with pytest.raises(ModelError, match=line):
        Predictor(network_of(), ensemble=[other])


def test_networks_that_were_trained_predict_in_evaluation_mode():
    networks = [network_of(norm="batch").train() for _ in range(2)]
    Predictor(networks[0], ensemble=networks[1:])
    assert not any(network.training for network in networks)


def test_an_ensemble_needs_models_of_the_same_task():
    folds = []  # they differ in what was measured of their data
    for smallest, fills_holes in ((3, True), (5, False)):
        task = Objects(Classes(("background", "cell")), smallest, fills_holes)
        folds.append(UNet(UNetConfig(1, 3, base_channels=1, depth=1, task=task.to_config())))
    with pytest.raises(ModelError, match="same task"):
        Predictor(folds[0], ensemble=[network_of(("a", "b", "c"), (0, 1, 2))])


def test_objects_come_with_the_numbers_in_their_mask():
    """A predictor of objects of one class, of any size."""
    torch.manual_seed(0)
    task = Objects(Classes(("background", "cell")), smallest=1)
    object_predictor = Predictor(UNet(UNetConfig(1, 3, base_channels=4, depth=1, norm="group", task=task.to_config())))
    image = np.random.default_rng(0).integers(0, 255, (20, 30), dtype=np.uint8)
    prediction = object_predictor(image)
    assert [detected.number for detected in prediction.objects] == list(range(1, prediction.mask.max() + 1))
    assert len(prediction.objects) > 1
    assert prediction.mask.dtype == np.int32
    assert np.array_equal(object_predictor.mask(image), prediction.mask)


def landmark_network(task: Landmarks, **options) -> UNet:
    """A network of two points."""
    return UNet(UNetConfig(1, 2, base_channels=1, depth=1, task=task.to_config(), **options))


@pytest.fixture
def batches() -> list[torch.Tensor]:
    """The batches that networks with a note have seen."""
    return []


def noted(network: UNet, batches: list[torch.Tensor]) -> UNet:
    """A network that notes the batches that it sees."""
    network.register_forward_hook(lambda module, inputs, output: batches.append(inputs[0]))
    return network


LANDMARK_IMAGE = np.random.default_rng(0).integers(0, 255, (8, 10), np.uint8)


def test_strips_of_a_photograph_are_read_in_the_detail_of_a_batch(tmp_path):
    torch.manual_seed(0)
    predictor = Predictor(UNet(UNetConfig(3, 2, base_channels=1, depth=1, preprocess=Preprocess(scale=0.25))))
    pixels = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    with open_source(tmp_path / "a.jpg") as picture:
        strips = torch.cat(list(predictor.strips(picture)), dim=1)
    (logits,) = predictor.logits_of_batch([predictor.inputs(tmp_path / "a.jpg")])
    torch.testing.assert_close(strips, logits)


@pytest.mark.parametrize(
    ("mirrors", "tta", "passes"),
    [(True, None, 2), (True, False, 1), (False, None, 1)],
    ids=["mirrored", "not asked for", "without partners"],
)
def test_logits_of_a_mirror_image_are_each_at_the_place_of_its_partner(mirrors, tta, passes):
    torch.manual_seed(0)
    predictor = Predictor(landmark_network(Landmarks(("a", "b"), partners=(1, 0), mirrors=mirrors)), tta=tta)
    logits, mirrored = (
        predictor.logits_of_batch([predictor.inputs(pixels)])[0] for pixels in (LANDMARK_IMAGE, LANDMARK_IMAGE[:, ::-1])
    )
    assert torch.allclose(mirrored.flip(0, 2), logits, atol=1e-5) == (passes == 2)


@pytest.mark.parametrize("tta", [False, True])
@pytest.mark.parametrize("devices", [("cpu", "meta"), ("meta", "cpu")])
def test_networks_on_a_cpu_and_on_a_device_are_averaged_on_the_device(devices, tta):
    first, second = (network_of().to(device) for device in devices)
    predictor = Predictor(first, ensemble=[second], tta=tta)
    (logits,) = predictor.logits_of_batch([predictor.inputs(np.zeros((8, 8, 3), np.uint8))])
    assert logits.device.type == "meta"


@pytest.mark.parametrize("tta", [False, True])
def test_logits_of_a_network_in_half_precision_are_in_full(tta):
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1)).to(torch.bfloat16)
    predictor = Predictor(network, tta=tta)
    (logits,) = predictor.logits_of_batch([predictor.inputs(np.zeros((8, 8), np.uint8))])
    assert logits.dtype == torch.float32


def test_the_whole_range_of_16_bits_reaches_the_network(batches):
    network = UNet(UNetConfig(1, 2, base_channels=1, depth=1, preprocess=Preprocess(pixel_types=("uint16",))))
    image = np.linspace(0, 65535, 256).reshape(16, 16, 1).astype(np.uint16)
    list(Predictor(noted(network, batches), tile_size=8, overlap=2).strips(WindowedArray(image)))
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


@pytest.fixture
def point_predictor() -> Predictor:
    """A predictor of two points."""
    torch.manual_seed(0)
    return Predictor(landmark_network(Landmarks(("a", "b"), partners=(0, 1)), norm="group"))


def test_points_are_those_of_the_page_that_is_asked_for(point_predictor, tmp_path):
    pages = np.random.default_rng(0).integers(0, 255, (2, 16, 18), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    first, second = (point_predictor.points(page) for page in pages)
    assert first != second
    assert point_predictor.points(tmp_path / "a.tif", page=1) == second


def test_points_lie_in_pixels_of_the_image_with_their_presence_and_confidence(point_predictor):
    image = np.random.default_rng(0).integers(0, 255, (16, 24), dtype=np.uint8)
    points, rows = point_predictor.points(image), point_predictor.labels(image)
    assert [point.name for point in points] == ["a", "b"]
    np.testing.assert_allclose([point.position for point in points], rows[:, :2] * (16, 24) - 0.5)
    assert [point.presence for point in points] == rows[:, 2].tolist()
    assert [point.confidence for point in points] == rows[:, 3].tolist()
    assert rows[0, 2] != rows[0, 3]


def test_a_model_of_classes_answers_no_points():
    with pytest.raises(ModelError, match="the model's task is classes: it answers masks, and no points"):
        Predictor(network_of()).points(np.zeros((8, 9), np.uint8))


@pytest.fixture
def two_channels() -> Predictor:
    """A predictor of volumes of two channels."""
    return Predictor(UNet(UNetConfig(2, 2, base_channels=1, depth=1, norm="group", dims=3)))


@pytest.mark.parametrize("call", ["__call__", "mask", "slices", "strips"])
def test_an_error_at_a_volume_has_the_name_that_was_given(tmp_path, two_channels, volume_file, call):
    predict = getattr(two_channels, call)
    (tmp_path / "broken.nii").write_bytes(b"no volume")
    with pytest.raises(ImageError, match=r"^my scan: has 1 channels, the model takes 2$"):
        list(predict(VolumeFile((str(volume_file),)), "my scan"))
    with pytest.raises(ImageError, match=r"^my scan cannot be read "):
        list(predict(VolumeFile((str(tmp_path / "broken.nii"),)), "my scan"))


def test_an_image_is_refused_by_a_model_of_volumes(two_channels):
    with pytest.raises(ImageError, match=r"^my photo: is no volume, and the model takes volumes \("):
        list(two_channels.strips(WindowedArray(np.zeros((8, 9, 2), np.uint8)), "my photo"))


def test_classes_are_predicted_once_unless_views_are_asked_for(batches):
    Predictor(noted(network_of(), batches))(np.zeros((8, 10), np.uint8))
    assert len(batches) == 1


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"dims": 3, "preprocess": Preprocess(spacing=(2.0, 1.0, 0.5))}, (4, 10, 24)),
        ({"preprocess": Preprocess(scale=0.5)}, (8, 5, 6)),
        ({"preprocess": Preprocess(scale=0.5, spacing=(2.0, 1.0, 0.5))}, (4, 5, 12)),
    ],
    ids=["volumes", "slices", "slices at a spacing"],
)
def test_a_network_sees_a_volume_at_its_own_spacing_or_scale(options, size):
    predictor = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, **options)))
    assert predictor.input_sizes((8, 10, 12), (1.0, 1.0, 1.0)) == [size]


@pytest.mark.parametrize(
    ("size", "spacing"), [((100, 90), None), ((100, 90, 80), (1.0, 1.0, 1.0))], ids=["image", "volume"]
)
@pytest.mark.parametrize(("tta", "is_exact"), [(False, True), (True, False)])
def test_tiles_that_are_turned_are_not_exact(size, spacing, tta, is_exact):
    network = UNet(UNetConfig(base_channels=2, depth=1, norm="batch", dims=len(size)))
    (tiling,) = Predictor(network, tile_size=64, tta=tta).tilings(size, spacing)
    assert tiling.exact is is_exact
    assert tiling.size == (64,) * len(size)


def test_tiles_of_objects_have_room_for_an_exact_overlap():
    task = Objects(Classes(("background", "cell"))).to_config()
    objects = UNet(UNetConfig(3, 3, base_channels=2, depth=1, norm="batch", task=task))
    (tiling,) = Predictor(objects, tile_size=64).tilings((100, 90))
    assert tiling.exact
    assert tiling.size == (80, 80)


@pytest.fixture
def model_folder(tmp_path) -> Path:
    """The folder of a small model."""
    UNet(UNetConfig(1, 2, base_channels=2, depth=1)).save_pretrained(tmp_path)
    return tmp_path


def test_models_are_loaded_with_the_options_that_are_given(model_folder):
    ensemble = [model_folder, str(model_folder)]
    predictor = Predictor.from_pretrained(model_folder, ensemble=ensemble, tile_size=64, overlap=8, tta=True)
    assert len(predictor.networks) == 3
    assert predictor.tile_size == 64
    assert predictor.overlap == 8
    assert predictor.tta is True


def test_a_scale_is_refused_where_the_model_holds_its_own(model_folder):
    with pytest.raises(ModelError, match=r"its config\.json holds the scale; --scale is for Pytorch-UNet's"):
        Predictor.from_pretrained(model_folder, scale=0.5)


@pytest.mark.parametrize("call", ["mask", "labels"])
def test_a_mask_is_that_of_the_page_that_is_asked_for(tmp_path, call):
    """A predictor to which either class is at half of the pixels of the second image."""
    pages = np.random.default_rng(0).integers(0, 255, (2, 8, 9), dtype=np.uint8)
    torch.manual_seed(0)
    network = network_of(norm="group")
    probabilities = Predictor(network)(pages[1]).probabilities
    network.head.conv.bias.data[0] -= float(np.median(np.log(probabilities[0] / probabilities[1])))
    balanced = Predictor(network)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    first, second = (balanced(page).mask for page in pages)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(getattr(balanced, call)(tmp_path / "a.tif", page=1), second)
    np.testing.assert_array_equal(getattr(balanced, call)(tmp_path / "a.tif"), first)


@pytest.mark.parametrize("call", ["__call__", "mask", "labels"])
def test_an_error_at_an_image_has_the_name_that_was_given(call):
    with pytest.raises(ImageError, match=r"^my picture: "):
        getattr(Predictor(network_of()), call)(b"no picture", "my picture")


@pytest.mark.parametrize("image", [torch.zeros(3, 8, 8), [[0, 1], [1, 0]], 3], ids=["tensor", "list", "number"])
def test_what_is_no_image_is_told_what_an_image_is(image):
    predictor = Predictor(UNet(UNetConfig(3, 2, base_channels=1, depth=1)))
    with pytest.raises(
        ImageError, match=rf"is a {type(image).__name__}; give a path, bytes, a PIL image, or a NumPy array"
    ):
        predictor(image)


def test_a_model_of_more_classes_than_a_mask_holds_is_refused():
    with pytest.raises(ModelError, match="has 256 classes, of which masks hold up to 255"):
        Predictor(UNet(UNetConfig(base_channels=1, depth=1, num_classes=256)))
