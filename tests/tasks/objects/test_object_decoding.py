"""Objects from pixels: numbered by position, apart where they touch.

Modules: tasks/objects/decode.py, tasks/objects/labels.py.
"""

import numpy as np
import pytest
import torch
from scipy import ndimage
from scipy.ndimage import gaussian_filter, label
from support.objects import discs

from runtime.errors import SettingsError
from tasks.classes.loss import Classes
from tasks.objects.decode import find_objects, pack_pixels, separate_objects, unpack_pixels
from tasks.objects.labels import LEVELS, label_classes, label_numbers, touching_pairs
from tasks.objects.loss import PEAKS, Objects, choose_objects


def true_pixels(ids: np.ndarray) -> np.ndarray:
    """What a perfect network would say of each pixel, as `Objects.decode` gives it."""
    depth = np.zeros(ids.shape)
    for number, box in enumerate(ndimage.find_objects(ids.astype(np.int32)), 1):
        if box is None:
            continue
        is_object = ids[box] == number
        distance = ndimage.distance_transform_edt(np.pad(is_object, 1))[(slice(1, -1),) * ids.ndim]
        depth[box][is_object] = (distance / distance.max())[is_object]
    levels = np.rint(LEVELS * depth).astype(np.int32)
    packed = pack_pixels(np.ones_like(levels), levels, np.full_like(levels, LEVELS))
    return np.where(ids > 0, packed, 0)


def noisy_pixels(size: tuple[int, ...], seed: int) -> np.ndarray:
    """Packed pixels with components of all shapes, and depths that cut them."""
    rng = np.random.default_rng(seed)
    field = gaussian_filter(rng.normal(size=size), 3)
    depth = np.rint(255 * (gaussian_filter(rng.normal(size=size), 2) * 4).clip(0, 1)).astype(np.int64)
    packed = rng.integers(1, 3, size) | depth << 8 | rng.integers(128, 256, size) << 16
    return np.where(field > 0, packed, 0).astype(np.int32)


def decode(packed: np.ndarray, **rules):
    """Labels and objects; `rules` are those of the task."""
    return find_objects(packed.astype(np.int32), [Objects(**rules)])[0]


def pixels_of(ids) -> np.ndarray:
    """Packed pixels in which 1 is a pixel of an object; all are shallow, so that each component is one object."""
    return np.where(np.array(ids) > 0, 1 | 20 << 8 | 204 << 16, 0).astype(np.int32)


@pytest.mark.parametrize("size", [(90, 70), (24, 20, 22)], ids=["image", "volume"])
def test_each_component_is_cut_by_itself(size):
    packed = noisy_pixels(size, seed=0)
    labels, objects = decode(packed)
    components, count = label(packed)
    assert len(objects) > count > 1
    for component in range(1, count + 1):
        alone, _ = decode(np.where(components == component, packed, 0))
        inside = components == component
        pairs = np.unique(np.stack([alone[inside], labels[inside]]), axis=1)
        assert len(pairs[0]) == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))


def test_objects_are_numbered_by_their_first_pixels():
    ids = np.zeros((6, 8), int)
    ids[:2, 2] = 1
    ids[:5, 5] = ids[4, :5] = 1  # begins to the right of the other one, and reaches farther to the left
    labels, objects = decode(pixels_of(ids))
    numbers = label_numbers(labels)
    assert [numbers[0, 2], numbers[0, 5], numbers[4, 0]] == [1, 2, 2]
    assert [(item.number, item.size) for item in objects] == [(1, 2), (2, 10)]


RINGS = [
    [1, 1, 1, 0, 1, 1, 1, 1, 1],
    [1, 0, 1, 0, 1, 0, 0, 0, 1],
    [1, 1, 1, 0, 1, 0, 1, 0, 1],
    [0, 0, 0, 0, 1, 0, 0, 0, 1],
    [1, 1, 1, 0, 1, 1, 1, 1, 1],
    [1, 0, 1, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 1, 0, 0, 0],
]


def test_holes_are_filled_where_they_are_to_be_and_hold_no_object():
    np.testing.assert_array_equal(decode(pixels_of(RINGS))[0] > 0, np.array(RINGS) > 0)
    assert [item.size for item in decode(pixels_of(RINGS), fills_holes=True)[1]] == [9, 16, 1, 7, 1]
    (outer,) = decode(pixels_of(RINGS), fills_holes=True, smallest=13)[1]  # the speck in it is too small
    assert outer.size == 25
    assert outer.box == (0, 4, 5, 9)


def test_the_center_of_a_filled_object_is_that_of_all_its_pixels():
    ids = np.zeros((12, 14), int)
    ids[2:9, 3:12] = 1
    ids[3:7, 4:6] = 0
    labels, (item,) = decode(pixels_of(ids), fills_holes=True)
    assert item.size == (labels > 0).sum() == 63
    assert item.center == pytest.approx((5.0, 7.0))


def test_objects_at_the_border_may_be_left_out():
    ids = np.zeros((9, 30), int)
    for left in (0, 4, 8, 12, 16, 27):
        ids[3:6, left : left + 3] = 1
    ids[0:3, 5], ids[6:9, 9] = 1, 1  # up to the first and the last row
    labels, objects = decode(pixels_of(ids), drops_border=True)
    assert [item.box for item in objects] == [(3, 12, 6, 15), (3, 16, 6, 19)]
    assert sorted(np.unique(label_numbers(labels)).tolist()) == [0, 1, 2]


def test_flags_for_objects_change_the_rules_of_a_task_of_objects_alone():
    task = choose_objects(Objects(smallest=9), None, drops_border=True)
    assert (task.smallest, task.drops_border) == (9, True)
    assert choose_objects(Objects(smallest=9), 0, drops_border=False).smallest == 0
    for smallest, drops_border, flag in ((0, False, "--min-size"), (None, True, "--drop-border")):
        with pytest.raises(SettingsError, match=f"{flag}: is for models of objects, and this is one of classes"):
            choose_objects(Classes(("a", "b")), smallest, drops_border=drops_border)


def test_touching_discs_are_distinguished_and_numbered_from_top_to_bottom():
    true = discs((120, 90), 40, seed=2)
    assert label(true)[1] < true.max()  # some touch
    labels, objects = decode(true_pixels(true))
    numbers = label_numbers(labels)
    assert len(objects) == true.max() == numbers.max()
    pairs = np.unique(np.stack([true.ravel(), numbers.ravel()]), axis=1).T
    overlaps = [((true == t) & (numbers == p)).sum() / ((true == t) | (numbers == p)).sum() for t, p in pairs]
    assert sum(overlap > 0.8 for overlap in overlaps) == true.max() + 1  # with the background
    _, first = np.unique(numbers, return_index=True)
    assert (np.diff(first[1:]) > 0).all()


def test_objects_say_where_they_are_and_how_sure_they_are():
    packed = np.zeros((20, 30), np.int32)
    packed[4:10, 5:8] = 2 | 255 << 8 | 204 << 16
    packed[4, 5:8] = 1 | 255 << 8  # a sixth of its pixels may as well be background, and is of another class
    labels, (item,) = decode(packed)
    assert item[:5] == (1, 2, 18, (6.5, 6.0), (4, 5, 10, 8))
    assert item.score == pytest.approx(0.8 * 5 / 6)
    assert (label_classes(labels[4:10, 5:8]) == 2).all()


def test_depth_or_certainty_of_pixels_are_rounded_to_levels():
    sure = 6.9  # its sigmoid is 0.999
    pixels = torch.tensor([[0.0, sure, sure], [9.0, 0.0, 9.0]])
    packed = Objects().decode(pixels.T[None])
    # those of the background are none
    assert [part.tolist() for part in unpack_pixels(packed)] == [[[1, 0]], [[255, 0]], [[255, 0]]]


@pytest.mark.parametrize("pixels", [1, 200, 1000])
@pytest.mark.parametrize("size", [(60, 40), (20, 15, 12)], ids=["image", "volume"])
def test_objects_are_found_some_rows_at_a_time_as_in_the_whole(monkeypatch, pixels, size):
    packed = noisy_pixels(size, seed=0)
    rules = {"smallest": 12, "fills_holes": True}
    labels, expected = decode(packed, **rules)
    monkeypatch.setattr("tasks.objects.decode.PIXELS_AT_ONCE", pixels)
    found_labels, objects = decode(packed, **rules)
    np.testing.assert_array_equal(found_labels, labels)
    assert objects == expected
    assert len(expected) > 5


@pytest.mark.parametrize(
    "ids",
    [np.zeros((7, 9), int), np.ones((7, 9), int), np.eye(9, dtype=int) * np.arange(1, 10)],
    ids=["no object", "one that fills the image", "objects of one pixel"],
)
def test_objects_of_extreme_images(ids):
    labels, objects = decode(true_pixels(ids))
    assert len(objects) == len(np.unique(ids[ids > 0]))
    np.testing.assert_array_equal(label_numbers(labels) > 0, ids > 0)


@pytest.mark.parametrize(
    ("depths", "objects"),
    [
        ([[255] * 5 + [150] + [255] * 5], [[1] * 11]),
        ([[20, 20, 255], [255, 0, 255]], [[1, 1, 1], [1, 0, 1]]),
        ([[0, 20, 20, 20, 255], [255, 255, 20, 20, 20]], [[0, 1, 1, 1, 1], [1] * 5]),
        ([[255, 20], [0, 20], [20, 20], [20, 255], [255, 0]], [[1, 1], [0, 2], [2, 2], [2, 2], [2, 0]]),
    ],
    ids=["a shallow valley of a thin line", "around a corner", "across a corner", "two peaks"],
)
def test_a_component_is_cut_between_peaks_of_its_blurred_depth(depths, objects):
    packed = np.array([[depth and 1 | depth << 8 for depth in row] for row in depths])
    assert separate_objects(packed).tolist() == objects


@pytest.mark.parametrize(("dip", "count"), [(0.05, 1), (0.15, 2)])
def test_two_deep_parts_are_two_objects_if_a_tenth_lies_between_them(dip, count):
    depth = np.ones((9, 24))
    depth[:, 10:14] -= dip
    levels = np.rint(LEVELS * depth).astype(np.int32)
    assert separate_objects(pack_pixels(np.ones_like(levels), levels, np.zeros_like(levels))).max() == count


@pytest.mark.parametrize("rules", [{}, {"smallest": 20, "fills_holes": True, "drops_border": True}])
def test_variants_are_the_objects_of_each_peak(rules):
    packed = noisy_pixels((90, 70), seed=2)
    task = Objects(tried_peaks=PEAKS, **rules)
    counts = []
    for (labels, _), peak in zip(find_objects(packed.copy(), task.variants), PEAKS, strict=True):
        expected, objects = decode(packed, peak=peak, **rules)
        np.testing.assert_array_equal(labels, expected)
        counts.append(len(objects))
    assert counts[0] > counts[1] > counts[2] > 0


@pytest.mark.parametrize("size", [(9, 11), (4, 5, 6)])
def test_objects_that_touch_are_all_pairs_of_pixels_side_by_side(size):
    numbers = np.random.default_rng(0).integers(0, 40, size)
    pairs = set()
    for axis in range(numbers.ndim):
        along = np.moveaxis(numbers, axis, 0)
        for pair in zip(along[:-1].ravel().tolist(), along[1:].ravel().tolist(), strict=True):
            pairs.add((min(pair), max(pair)))
    assert touching_pairs(numbers).tolist() == sorted([low, high] for low, high in pairs if 0 < low < high)
