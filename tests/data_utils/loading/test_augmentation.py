"""The random numbers of augmentation: which they are, their ranges, and which axes of a volume they move."""

import hashlib

import numpy as np
import pytest
import torch

from data_utils.loading.augmentation import Augmentation, pack_augmentations, sample_augmentation


def volume_augmentations(strength: str, spacing: tuple[float, float, float], count: int = 300) -> list[Augmentation]:
    return [
        sample_augmentation((0, index), strength=strength, seed=0, size=(8, 9, 10), channels=1, spacing=spacing)
        for index in range(count)
    ]


def signs_of(strength: str) -> set[tuple[int, ...]]:
    """The directions that the axes (x, y, z) of volumes take."""
    augmentations = volume_augmentations(strength, (1.0, 1.0, 1.0))
    return {tuple(np.sign(np.diag(augmentation.matrix)).astype(int).tolist()) for augmentation in augmentations}


def test_volumes_are_mirrored_left_and_right_by_basic_augmentation():
    assert signs_of("basic") == {(1, 1, 1), (-1, 1, 1)}


def test_volumes_are_mirrored_along_each_axis_by_strong_augmentation():
    assert len(signs_of("strong")) == 8


def test_thick_slices_are_turned_only_within_their_plane():
    for augmentation in volume_augmentations("basic", (5.0, 1.0, 1.0)):
        turns_out_of_plane = [*augmentation.matrix[2, :2], *augmentation.matrix[:2, 2]]
        assert turns_out_of_plane == [0, 0, 0, 0]
        assert 0.8 <= augmentation.matrix[2, 2] <= 1.25
        assert 0.7 <= augmentation.gamma <= 1.5


def test_thick_slices_keep_their_resolution_across_their_plane():
    augmentations = volume_augmentations("basic", (5.0, 1.0, 1.0))
    resolutions = [augmentation.resolution for augmentation in augmentations if augmentation.resolution]
    assert 50 < len(resolutions) < 100  # one time in four
    assert {resolution[0] for resolution in resolutions} == {1.0}
    assert all(0.5 <= share <= 1 for resolution in resolutions for share in resolution[1:])


def basic_matrices() -> list[np.ndarray]:
    return [sample_augmentation((1, i), strength="basic", seed=0, size=(20, 30), channels=3).matrix for i in range(400)]


def test_tilts_are_of_fifteen_degrees():
    angles = [abs(np.degrees(np.arctan2(matrix[1, 0], matrix[1, 1]))) for matrix in basic_matrices()]
    assert 14.5 < max(angles) <= 15


def test_zooms_are_of_a_quarter():
    zooms = [1 / np.sqrt(abs(np.linalg.det(matrix))) for matrix in basic_matrices()]
    assert 0.8 <= min(zooms) < 0.805
    assert 1.23 < max(zooms) <= 1.25


@pytest.fixture(scope="module")
def strong_augmentations() -> list[Augmentation]:
    return [
        sample_augmentation((0, index), strength="strong", seed=0, size=(20, 30), channels=1) for index in range(900)
    ]


def test_pictures_are_blurred_in_a_range_around_the_middle(strong_augmentations):
    blurs = [augmentation.blur for augmentation in strong_augmentations if augmentation.blur]
    assert 0.5 <= min(blurs) < 0.53
    assert 1.47 < max(blurs) < 1.5
    assert 150 < len(blurs) < 210


def test_pictures_are_noisy_in_a_range_around_the_middle(strong_augmentations):
    noises = [augmentation.noise for augmentation in strong_augmentations if augmentation.noise]
    assert 0.05 <= min(noises) < 0.06
    assert 0.24 < max(noises) < 0.25
    assert 230 < len(noises) < 310


def test_a_volume_that_is_not_augmented_stays_on_its_three_axes():
    augmentation = sample_augmentation(
        (0, 0), strength="none", seed=0, size=(8, 9, 10), channels=1, spacing=(1.0, 1.0, 1.0)
    )
    assert augmentation.is_identity
    assert augmentation.matrix.tolist() == np.eye(3).tolist()


def test_the_numbers_of_an_augmentation_are_packed_in_their_order():
    augmentation = Augmentation(
        np.array([[1.0, 2.0], [3.0, 4.0]]), np.arange(18.0).reshape(2, 3, 3), gain=5.0, shift=np.array([6.0, 7.0])
    )
    numbers = pack_augmentations([augmentation, Augmentation()], channels=2)
    assert numbers.shape == (2, 4 + 18 + 4)
    assert numbers[0].tolist() == [1, 2, 3, 4, *range(18), 5, 5, 6, 7]
    assert numbers[1].tolist() == [1, 0, 0, 1, *[0] * 18, 1, 1, 0, 0]


def test_the_numbers_of_an_augmentation_are_packed_as_precisely_as_asked():
    assert pack_augmentations([Augmentation(gain=1 / 3)], 1, torch.float64)[0, 22].item() == 1 / 3


CHANGES = pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 1.1},
        {"resolution": (1.0, 0.5, 1.0)},
        {"blur": 1.0},
        {"noise": 0.1},
        {"gain": np.array([1.0, 1.1])},
        {"shift": np.array([0.0, 0.1])},
        {"elastic": np.zeros((2, 3, 3))},
        {"matrix": np.diag([1.0, -1.0])},
    ],
    ids=lambda settings: next(iter(settings)),
)


@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(np.eye(3))], ids=["image", "volume"])
def test_an_augmentation_that_does_nothing_is_the_identity(augmentation):
    assert augmentation.is_identity


@CHANGES
def test_an_augmentation_that_does_anything_is_not_the_identity(settings):
    assert not Augmentation(**settings).is_identity


@CHANGES
def test_an_augmentation_moves_by_its_matrix_or_its_elastic_part(settings):
    assert Augmentation(**settings).moves is ("elastic" in settings or "matrix" in settings)


@pytest.mark.parametrize(
    ("strength", "size", "channels", "spacing", "may_mirror", "expected"),
    [
        ("mirror", (20, 30), 3, None, True, "006b8a04050f8b3a"),
        ("basic", (20, 30), 3, None, True, "ab8732798b38e104"),
        ("basic", (20, 30), 1, None, False, "55ef847c9365d99b"),
        ("strong", (320, 340), 3, None, True, "ee35a0610211feee"),
        ("strong", (40, 40), 1, None, True, "0ee4e16a408716c4"),
        ("basic", (8, 9, 10), 1, (3.0, 1.0, 1.5), True, "6f977ddb75758f0a"),
        ("strong", (8, 9, 10), 2, (3.0, 1.0, 1.5), True, "634cd2322bc9ec63"),
        ("strong", (8, 9, 10), 1, (1.0, 1.0, 1.0), False, "d2c9a39db8a2d5c9"),
    ],
    ids=[
        "mirrored",
        "turned",
        "grey",
        "strong",
        "strong grey",
        "volume",
        "volume of two channels",
        "volume not mirrored",
    ],
)
def test_augmentations_are_those_that_older_runs_had(strength, size, channels, spacing, may_mirror, expected):
    rows = []
    for index in range(24):
        options = {"size": size, "channels": channels, "spacing": spacing, "may_mirror": may_mirror}
        augmentation = sample_augmentation((index // 5, index), strength=strength, seed=7, **options)
        elastic = () if augmentation.elastic is None else augmentation.elastic.ravel()
        numbers = [
            *augmentation.matrix.ravel(),
            *elastic,
            *np.atleast_1d(augmentation.gain),
            *np.atleast_1d(augmentation.shift),
        ]
        numbers += [augmentation.blur, augmentation.noise, augmentation.gamma, *(augmentation.resolution or ())]
        rows.append(([round(float(number), 7) + 0.0 for number in numbers], augmentation.noise_seed))  # -0.0 is 0
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == expected


def test_a_half_turn_is_no_mirror_image():
    assert not Augmentation(-np.eye(2)).is_mirrored
    assert Augmentation(np.diag([1.0, -1.0])).is_mirrored
    assert Augmentation(-np.eye(3)).is_mirrored


def anisotropic_augmentations(spacing: tuple[float, float, float]) -> list[Augmentation]:
    options = {"strength": "strong", "seed": 0, "size": (8, 9, 10), "channels": 1, "spacing": spacing}
    return [sample_augmentation((0, index), **options) for index in range(80)]


@pytest.mark.parametrize(("coarse", "is_alike"), [(2.0, True), (2.01, False)])
def test_axes_are_alike_up_to_twice_the_spacing(coarse, is_alike):
    augmentations = anisotropic_augmentations((coarse, 1.0, 1.0))
    assert any(augmentation.matrix[2, 0] for augmentation in augmentations) is is_alike
    assert any(augmentation.resolution and augmentation.resolution[0] < 1 for augmentation in augmentations) is is_alike


@pytest.mark.parametrize("strength", ["basic", "strong"])
def test_a_volume_is_not_mirrored_where_that_has_no_answer(strength):
    options = {"strength": strength, "seed": 0, "size": (8, 9, 10), "channels": 1, "spacing": (1.0, 1.0, 1.0)}
    augmentations = [sample_augmentation((0, index), may_mirror=False, **options) for index in range(30)]
    assert all(np.linalg.det(augmentation.matrix) > 0 for augmentation in augmentations)


@pytest.mark.parametrize("strength", ["mirror", "basic", "strong"])
@pytest.mark.parametrize("may_mirror", [False, True])
def test_an_image_is_mirrored_only_where_that_has_an_answer(strength, may_mirror):
    options = {"strength": strength, "seed": 0, "size": (20, 30), "channels": 1, "may_mirror": may_mirror}
    augmentations = [sample_augmentation((0, index), **options) for index in range(30)]
    assert any(augmentation.is_mirrored for augmentation in augmentations) is may_mirror
