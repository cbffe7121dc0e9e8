"""Targets of points: how their reader resizes and counts them, how they are cropped and move with their image.

Modules: data_utils/point_states.py, tasks/landmarks/reader.py, tasks/landmarks/target.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_sets import load_info
from support.landmarks import batch_of_image
from support.points import SIZE, write_dots

from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import VolumeHeader
from data_utils.loading.augmentation import Augmentation, augment, pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.point_states import ABSENT, OUTSIDE, PRESENT
from data_utils.sources.records import LandmarkNames, ListRows, Metadata, Records
from runtime.errors import DataError
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.landmarks.target import PointTarget
from unet import Preprocess


@pytest.fixture
def record_of_four() -> dict:
    """An image of 20 x 40 with four points as (x, y), of which one is absent."""
    positions = np.array([[3.5, 1.5], [39.5, 0], [7, 7], [-0.5, -0.5]])
    states = np.array([PRESENT, PRESENT, ABSENT, PRESENT])
    return {"image": "", "target": PointSource("file", "pixels", positions, states), "name": "a"}


READER_OF_FOUR = PointReader(Landmarks(tuple("dcba")), (3, 2, 1, 0))


def test_points_follow_a_resized_image(record_of_four):
    target = READER_OF_FOUR.read(record_of_four, (20, 40), (10, 10))
    assert target.points.tolist() == [[-0.5, -0.5], [0, 0], [-0.25, 9.5], [0.5, 0.5]]
    assert target.states.tolist() == [PRESENT, ABSENT, OUTSIDE, PRESENT]
    assert target.size.tolist() == [10, 10]
    assert record_of_four["target"].states.tolist() == [PRESENT, PRESENT, ABSENT, PRESENT]  # those of the file stay


@pytest.mark.parametrize(("size", "unit"), [((10, 10), [2, 4]), (None, [1, 1])])
def test_pixels_of_a_resized_image_keep_their_length(record_of_four, size, unit):
    assert READER_OF_FOUR.read(record_of_four, (20, 40), size).unit.tolist() == unit


def test_voxels_of_a_resized_volume_keep_their_length(record_of_four):
    record_of_four["target"] = PointSource("file", "pixels", np.zeros((4, 3)), np.full(4, PRESENT))
    header = VolumeHeader((4, 4, 6), (5.0, 2.0, 0.5), 1, "float32", np.eye(4), ((0, 1), (1, 1), (2, 1)))
    assert READER_OF_FOUR.read_volume(record_of_four, header, (2, 4, 4)).unit.tolist() == [10, 2, 0.75]


def test_points_of_a_window_are_those_of_the_resized_image(tmp_path):
    Image.new("L", (40, 20)).save(tmp_path / "a.png")
    positions = np.array([[9.5, 4.5], [39.0, 19.0]])  # (x, y) in an image of 20 x 40
    points = PointSource("file", "pixels", positions, np.array([PRESENT] * 2))
    record = {"image": tmp_path / "a.png", "target": points, "name": "a"}
    target = PointReader(Landmarks(("a", "b")), (0, 1)).read(record, (20, 40), (10, 20), ((1, 6), (2, 12)))
    assert target.points.tolist()[0] == [1, 2.5]
    assert target.states.tolist() == [PRESENT, OUTSIDE]


@pytest.mark.parametrize(
    ("size", "sigma"), [((320, 160), 2.0), ((100, 90), 1.0), ((40, 2000), 3.0), ((10, 200, 30), 1.25)]
)
def test_gaussians_are_as_wide_as_the_image_asks_for_within_bounds(size, sigma):
    task = PointReader(Landmarks(("a",)), (0,)).at_size(size).task("", None)
    assert task.sigma == sigma
    assert task.nowhere == round(float(np.log(np.prod(size))), 2)


def reader_of_face(**settings) -> PointReader:
    """The reader of a nose and two eyes, in a long table of pixels."""
    records = Records(ListRows([]))
    records.metadata = Metadata(landmarks=LandmarkNames(("nose", "right_eye", "left_eye"), "long", "pixels"))
    return PointReader.from_records(records, {}, (), DataConfig(**settings))


def test_points_are_chosen_by_their_names():
    assert reader_of_face(classes="nose, ").names == ("nose",)
    assert reader_of_face(classes="left_eye, right_eye").file_indices == (2, 1)


def test_points_of_both_sides_or_of_the_flag_change_places_in_the_mirror():
    eyes = reader_of_face(classes="left_eye, right_eye")
    assert eyes.landmarks.partners == (1, 0)
    assert eyes.mirrors
    assert eyes.sides_line == "in the mirror left_eye and right_eye change places"
    assert reader_of_face(swap="nose=left_eye").landmarks.partners == (2, 1, 0)


@pytest.mark.parametrize("classes", ["nose,tail", "nose,nose"])
def test_points_that_are_not_there_or_named_twice_are_refused(classes):
    with pytest.raises(DataError, match=rf"^--classes {classes}: expected some of nose, right_eye, left_eye$"):
        reader_of_face(classes=classes)


@pytest.mark.parametrize(
    ("classes", "always_there"), [(None, (0, 2)), ("unsure,sometimes,shown", (0, 2)), ("never", ())]
)
def test_points_that_no_training_image_lacks_are_always_there(tmp_path, classes, always_there):
    rows = {}
    for split, shown in (("train", "present"), ("val", "absent")):
        rows[split] = ["image,landmark,x,y,state"]
        for number, (sometimes, unsure) in enumerate(
            [("present", "present"), ("absent", "unknown"), ("present", "present")]
        ):
            rows[split].append(f"{number}.png,shown,5,5,{shown}")
            rows[split].append(f"{number}.png,sometimes,7,5,{sometimes}")
            rows[split].append(f"{number}.png,unsure,9,5,{unsure}")
            rows[split].append(f"{number}.png,never,,,unknown")
    for split, lines in rows.items():
        (tmp_path / split).mkdir()
        for number in range(3):
            Image.new("RGB", (40, 30)).save(tmp_path / split / f"{number}.png")
        (tmp_path / split / "points.csv").write_text("\n".join(lines))
    reader = load_info(tmp_path, val_fraction=0.3, classes=classes).reader
    assert reader.task("ce", None).always_there == always_there


def batch_of(points: torch.Tensor, size: tuple[int, ...]) -> PointTarget:
    """A batch of present points (B, K, n)."""
    count, names, axes = points.shape
    return PointTarget(
        points=points,
        states=torch.full((count, names), PRESENT),
        size=torch.tensor([size] * count),
        unit=torch.ones(count, axes, dtype=torch.float64),
    )


@pytest.mark.parametrize(("size", "spacing"), [((48, 64), None), ((64, 64), None), ((12, 20, 16), (2.0, 1.0, 1.0))])
def test_points_move_with_the_image_to_a_billionth_of_a_pixel(size, spacing):
    axes = len(size)
    augmentations = []
    for sample in range(12):
        options = {"strength": "strong", "seed": 5, "size": size, "channels": axes, "spacing": spacing}
        augmentations.append(sample_augmentation((1, sample), **options))
    augmentations = [
        replace(Augmentation(augmentation.matrix), elastic=augmentation.elastic) for augmentation in augmentations
    ]  # colors stay
    # an image whose values are its own coordinates shows where each of its pixels came from
    ramps = torch.stack(torch.meshgrid(*(torch.arange(side).double() for side in size), indexing="ij"))
    images = ramps.expand(len(augmentations), *ramps.shape).clone()
    numbers = pack_augmentations(augmentations, axes, torch.float64)
    fill, std = torch.full((axes,), -99.0), torch.ones(axes)
    moved, _ = augment(
        images, batch_of(torch.zeros(12, 1, axes).double(), size), augmentations, numbers, fill=fill, std=std
    )
    middle = tuple(side // 2 + 1 for side in size)
    sources = moved[(slice(None), slice(None), *middle)]  # (B, n)
    is_shown = (sources > 1).all(dim=1) & (sources < torch.tensor(size) - 2).all(dim=1)
    assert is_shown.sum() >= 6
    targets = batch_of(sources[:, None], size)
    _, moved_targets = augment(images, targets, augmentations, numbers, fill=fill, std=std)
    expected = torch.tensor(middle).double().expand_as(sources)
    assert (moved_targets.points[:, 0] - expected)[is_shown].abs().max() < 1e-9


def test_points_that_leave_the_crop_are_not_known_to_be_absent():
    size = (10, 12)
    points = torch.tensor([[[1.0, 2.0], [4.0, 7.0], [0.0, 0.0]]] * 3).double()
    augmentations = [Augmentation(np.diag([-1.0, 1.0])), Augmentation(), Augmentation(np.eye(2) / 4)]
    targets = batch_of(points, size)
    targets.states[:, 1] = ABSENT
    images = torch.zeros(3, 1, *size)
    numbers = pack_augmentations(augmentations, 1)
    _, answer = augment(images, targets, augmentations, numbers, fill=torch.zeros(1), std=torch.ones(1))
    assert answer.points[0].tolist() == [[1, 9], [4, 4], [0, 11]]
    assert answer.states[0].tolist() == [PRESENT, ABSENT, PRESENT]
    assert answer.points[1].equal(points[1])
    assert answer.states[2].tolist() == [OUTSIDE, ABSENT, OUTSIDE]


def test_in_the_mirror_left_and_right_change_places():
    reader = PointReader(Landmarks(("left", "right", "tail"), partners=(1, 0, 2)), file_indices=(0, 1, 2))
    points = np.array([[1.0, 2.0], [4.0, 7.0], [0.0, 0.0]])
    target = replace(reader.unknown_target((10, 12)), points=points, states=np.array([PRESENT, ABSENT, OUTSIDE]))
    mirrored = reader.mirror(target)
    assert mirrored.points.tolist() == [[4, 7], [1, 2], [0, 0]]
    assert mirrored.states.tolist() == [ABSENT, PRESENT, OUTSIDE]
    assert target.points.tolist() == points.tolist()  # what a cache holds stays


def test_training_sees_points_at_the_network_size_in_crops(tmp_path):
    write_dots(tmp_path, 6, seed=0)
    info = load_info(tmp_path, crop_size=(16, 16), augment="none", val_fraction=0.3)
    dataset = TrainingDataset(info.train, info, Preprocess(mean=(0.0,) * 3, std=(1.0,) * 3))
    states, brightness = [], []
    for index in range(len(dataset)):
        image, target, *_ = dataset[Slot(index, 0, (16, 16))]
        assert image.shape == (3, 16, 16)
        assert target.shape == (16, 16)
        states += target.states.tolist()
        for channel in np.flatnonzero(np.asarray(target.states) == PRESENT):
            y, x = (round(side) for side in target.points[channel].tolist())
            brightness.append(image[channel, y, x])
    assert {*states} == {PRESENT, OUTSIDE}
    assert min(brightness) > 120


@pytest.mark.parametrize("dataset_type", [TrainingDataset, EvaluationDataset])
def test_points_are_compared_where_the_network_gives_them(tmp_path, dataset_type):
    write_dots(tmp_path, 3, seed=0)
    info = load_info(tmp_path, val_fraction=0.3)
    preprocess = replace(info.preprocess(), scale=0.5)
    size = preprocess.input_size(*SIZE)
    _, target, *_ = dataset_type(info.train, info, preprocess)[Slot(0, 0, size)]
    assert target.shape == size


def test_a_crop_knows_nothing_of_the_presence_of_points_outside():
    points, states = np.array([[5.0, 5.0], [1.0, 9.0], [3.4, 2.6]]), np.array([PRESENT, PRESENT, ABSENT])
    whole = replace(Landmarks(tuple("abc")).unknown_target((10, 12)), points=points, states=states)
    crop = whole.crop([slice(2, 8), slice(1, 6)])
    assert crop.points.tolist() == (points - [2, 1]).tolist()
    assert crop.states.tolist() == [PRESENT, OUTSIDE, ABSENT]
    assert [place.tolist() for place in crop.locations()] == [[[3, 4]]]


EIGHT = Landmarks(tuple("abcdefgh"))
BORDER = [[-0.5, 0], [-0.6, 0], [5.4, 0], [5.5, 0], [0, -0.5], [0, -0.6], [0, 4.4], [0, 4.5]]  # of 6 x 5 pixels
STATES_AT_BORDER = [PRESENT, OUTSIDE] * 4


def test_a_crop_reaches_half_a_pixel_beyond_the_centers_of_its_border():
    whole = replace(EIGHT.unknown_target((20, 20)), points=np.add(BORDER, (3, 2)), states=np.full(8, PRESENT))
    assert whole.crop([slice(3, 9), slice(2, 7)]).states.tolist() == STATES_AT_BORDER


def test_a_moved_image_reaches_half_a_pixel_beyond_the_centers_of_its_border():
    batch = batch_of_image(replace(EIGHT.unknown_target((6, 5)), states=np.full(8, PRESENT)))
    moved = batch.move(lambda labels, unknown: labels, lambda points: points + torch.tensor(BORDER).double())
    assert moved.states[0].tolist() == STATES_AT_BORDER
