"""Objects from the answers of pixels: the same in any strips, numbered by position, apart where they touch.

Modules: tasks/objects/decode.py, tasks/objects/answers.py, tasks/objects/finder.py,
tasks/components.py, data_utils/holes.py.
"""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, label
from support.objects import discs, true_answers

from data_utils.holes import has_hole, holes
from inference.views import average
from runtime.errors import DataError, SettingsError
from tasks.classes.loss import Classes
from tasks.components import components
from tasks.decoder import decode_strips
from tasks.drawing import SHADES, shade_objects, touching_pairs
from tasks.object_labels import label_classes, label_numbers
from tasks.objects import finder
from tasks.objects.answers import LEVELS, answer_certainties, answer_classes, answer_depths, pack_answers
from tasks.objects.decode import ObjectDecoder, choose_objects
from tasks.objects.finder import find_objects, separate_objects
from tasks.objects.loss import Objects


def noisy_answers(size: tuple[int, ...], seed: int) -> np.ndarray:
    """Answers with components of all shapes, and depths that cut them."""
    rng = np.random.default_rng(seed)
    field = gaussian_filter(rng.normal(size=size), 3)
    depth = np.rint(255 * (gaussian_filter(rng.normal(size=size), 2) * 4).clip(0, 1)).astype(np.int64)
    answers = rng.integers(1, 3, size) | depth << 8 | rng.integers(128, 256, size) << 16
    return np.where(field > 0, answers, 0).astype(np.int32)


def decode(answers: np.ndarray, **rules):
    """Labels and objects; `rules` are those of the task."""
    labels = answers.astype(np.int32)
    objects = find_objects(labels, Objects(**rules))
    return labels, objects


ANSWERS = {size: noisy_answers(size, seed=0) for size in ((90, 70), (24, 20, 22))}


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=["image", "volume"])
def test_deep_parts_of_a_component_are_objects(answers):
    assert len(decode(answers)[1]) > label(answers > 0)[1] > 1


@pytest.mark.parametrize("rows", [1, 45])
@pytest.mark.parametrize(
    "rules", [{}, {"fills_holes": True, "drops_border": True, "smallest": 9}], ids=["plain", "all"]
)
@pytest.mark.parametrize("answers", ANSWERS.values(), ids=["image", "volume"])
def test_objects_are_the_same_in_any_strips(answers, rules, rows, monkeypatch):
    labels, objects = decode(answers, **rules)
    monkeypatch.setattr(finder, "row_spans", partial(finder.row_spans, step=rows))
    other_labels, other_objects = decode(answers, **rules)
    assert [item._replace(shade=0) for item in other_objects] == [item._replace(shade=0) for item in objects]
    np.testing.assert_array_equal(other_labels, labels)


def answers_of(ids: list[list[int]]) -> np.ndarray:
    """Answers in which 1 is a pixel of an object; all are shallow, so that each component is one object."""
    return np.where(np.array(ids) > 0, 1 | 20 << 8 | 204 << 16, 0).astype(np.int32)


def test_holes_of_each_object_are_filled():
    ids = np.ones((3, 7), int)
    ids[:, 3] = ids[1, 1] = ids[1, 5] = 0
    _, objects = decode(answers_of(ids), fills_holes=True)
    assert [detected.size for detected in objects] == [9, 9]


def test_objects_are_numbered_by_their_first_pixels():
    ids = np.zeros((6, 8), int)
    ids[:2, 2] = 1
    ids[:5, 5] = ids[4, :5] = 1  # begins to the right of the other one, and reaches farther to the left
    labels, objects = decode(answers_of(ids))
    numbers = label_numbers(labels)
    assert numbers[0, 2] == 1
    assert numbers[0, 5] == 2
    assert numbers[4, 0] == 2
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


def test_holes_stay_where_they_are_not_to_be_filled():
    np.testing.assert_array_equal(decode(answers_of(RINGS))[0] > 0, np.array(RINGS) > 0)


def test_the_center_of_a_filled_object_is_that_of_all_its_pixels():
    ids = np.zeros((12, 14), int)
    ids[2:9, 3:12] = 1
    ids[3:7, 4:6] = 0
    labels, (item,) = decode(answers_of(ids), fills_holes=True)
    assert item.size == 63
    assert item.center == pytest.approx((5.0, 7.0))
    assert (labels > 0).sum() == 63


def test_a_speck_that_is_left_out_is_filled_over():
    (outer,) = decode(answers_of(RINGS), fills_holes=True, smallest=13)[1]
    assert outer.size == 25
    assert outer.box == (0, 4, 5, 9)


def test_objects_at_the_border_may_be_left_out():
    ids = np.zeros((9, 30), int)
    for left in (0, 4, 8, 12, 16, 27):
        ids[3:6, left : left + 3] = 1
    ids[0:3, 5], ids[6:9, 9] = 1, 1  # up to the first and the last row
    labels, objects = decode(answers_of(ids), drops_border=True)
    assert [item.box for item in objects] == [(3, 12, 6, 15), (3, 16, 6, 19)]
    assert sorted(np.unique(label_numbers(labels)).tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("flag", "drops_border", "smallest"), [(None, True, 9), (2, False, 2), (0, False, 0)], ids=["border", "2", "0"]
)
def test_flags_for_objects_change_the_rules_of_the_task(flag, drops_border, smallest):
    task = choose_objects(Objects(smallest=9), flag, drops_border=drops_border)
    assert task.drops_border is drops_border
    assert task.smallest == smallest


@pytest.mark.parametrize(
    ("smallest", "drops_border", "flag"),
    [(5, False, "--min-size"), (0, False, "--min-size"), (None, True, "--drop-border")],
)
def test_flags_for_objects_need_a_model_of_objects(smallest, drops_border, flag):
    with pytest.raises(SettingsError, match=f"{flag}: is for models of objects, and this is one of classes"):
        choose_objects(Classes(("a", "b")), smallest, drops_border=drops_border)


def test_components_are_those_of_the_whole_image():
    answers = noisy_answers((80, 60), seed=1) & 0xFF
    found = list(components(answers[start : start + 7] for start in range(0, 80, 7)))
    labels, count = label(answers)
    assert len(found) == count
    for component in found:
        number = labels[component.window][component.values > 0]
        assert len(set(number.tolist())) == 1
        assert len(number) == (labels == number[0]).sum()


def test_touching_discs_are_distinguished_and_numbered_from_top_to_bottom():
    true = discs((120, 90), 40, seed=2)
    assert label(true)[1] < true.max()  # some touch
    labels, objects = decode(true_answers(true))
    numbers = label_numbers(labels)
    assert len(objects) == true.max() == numbers.max()
    pairs = np.unique(np.stack([true.ravel(), numbers.ravel()]), axis=1).T
    overlaps = [((true == t) & (numbers == p)).sum() / ((true == t) | (numbers == p)).sum() for t, p in pairs]
    assert sum(overlap > 0.8 for overlap in overlaps) == true.max() + 1  # with the background
    _, first = np.unique(numbers, return_index=True)
    assert (np.diff(first[1:]) > 0).all()


def test_objects_say_where_they_are():
    answers = np.zeros((20, 30), np.int32)
    answers[4:10, 5:8] = 2 | 255 << 8 | 204 << 16
    answers[4, 5:8] = 2 | 255 << 8  # a sixth of its pixels may as well be background
    _, (item,) = decode(answers)
    assert item.number == 1
    assert item.class_index == 2
    assert item.size == 18
    assert item.box == (4, 5, 10, 8)
    assert item.center == (6.5, 6.0)
    assert item.score == pytest.approx(0.8 * 5 / 6)


def test_the_score_of_an_object_is_how_surely_it_is_no_background():
    decoder = ObjectDecoder(Objects(Classes(("background", "cell", "dirt"))))
    logits = torch.tensor([0.2, 0.5, 0.3]).log().tolist()
    answer = torch.tensor([*logits, 10.0]).view(4, 1, 1).expand(4, 6, 8)  # deep in an object
    (detected,) = decode_strips(decoder, [answer], (6, 8), "a").objects
    assert detected.class_index == 1
    assert detected.score == pytest.approx(0.8, abs=0.5 / 255)


def test_depth_or_certainty_of_pixels_are_rounded_to_levels():
    sure = 6.9  # its sigmoid is 0.999
    pixels = torch.tensor([[0.0, sure, sure], [9.0, 0.0, 9.0]])
    answers = ObjectDecoder(Objects()).decode(pixels.T[:, None])
    assert answer_classes(answers).tolist() == [[1, 0]]
    assert answer_depths(answers).tolist() == [[255, 0]]  # those of the background are none
    assert answer_certainties(answers).tolist() == [[255, 0]]


def test_an_object_has_the_class_of_most_of_its_pixels():
    answers = np.full((4, 4), 1 | 255 << 8, np.int32)
    answers[0] = 2 | 255 << 8
    labels, objects = decode(answers)
    assert objects[0].class_index == 1
    assert (label_classes(labels) == 1).all()


def test_objects_that_are_too_small_are_left_out():
    labels, objects = decode(true_answers(np.pad([[1, 0, 2, 2]], 2)), smallest=2)
    assert [item.size for item in objects] == [2]
    assert set(label_numbers(labels).ravel()) == {0, 1}


@pytest.mark.parametrize(
    "ids",
    [np.zeros((7, 9), int), np.ones((7, 9), int), np.eye(9, dtype=int) * np.arange(1, 10)],
    ids=["no object", "one that fills the image", "objects of one pixel"],
)
def test_objects_of_extreme_images(ids):
    labels, objects = decode(true_answers(ids))
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
    labels, count = separate_objects(np.array([[depth and 1 | depth << 8 for depth in row] for row in depths]))
    assert labels.tolist() == objects
    assert count == max(map(max, objects))


def test_thousands_of_objects_of_one_pixel():
    ids = np.zeros((60, 120), np.int32)
    ids[::2, ::2] = np.arange(1, 30 * 60 + 1).reshape(30, 60)
    labels, objects = decode(np.where(ids > 0, 1 | 255 << 8, 0).astype(np.int32))
    assert len(objects) == 1800
    np.testing.assert_array_equal(label_numbers(labels), ids)


@pytest.fixture
def object_logits() -> torch.Tensor:
    """Logits of objects of one class at 6 x 5 pixels."""
    return torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))


def test_equal_views_of_objects_average_to_themselves(object_logits):
    decoder = ObjectDecoder(Objects())
    mean = average(decoder, [object_logits, object_logits])
    torch.testing.assert_close(decoder.probabilities(mean), decoder.probabilities(object_logits))


def pairs_side_by_side(labels: np.ndarray) -> set[tuple[int, int]]:
    """All pairs of labels at two pixels that differ by one on one axis."""
    pairs = set()
    for axis in range(labels.ndim):
        along = np.moveaxis(labels, axis, 0)
        pairs |= set(zip(along[:-1].ravel().tolist(), along[1:].ravel().tolist(), strict=True))
    return {(min(pair), max(pair)) for pair in pairs}


@pytest.mark.parametrize("size", [(9, 11), (4, 5, 6)])
def test_objects_that_touch_are_all_pairs_of_pixels_side_by_side(size):
    labels = np.random.default_rng(0).integers(0, 40, size)
    expected = sorted([low, high] for low, high in pairs_side_by_side(labels) if 0 < low < high)
    assert touching_pairs(labels).tolist() == expected


def test_colors_of_touching_objects_differ():
    labels = np.random.default_rng(0).integers(0, 40, (12, 12)).repeat(3, 0).repeat(3, 1)
    shades = shade_objects(labels)
    assert (shades[labels == 0] == 0).all()
    assert shades.max() <= SHADES
    for first, second in touching_pairs(labels):
        assert shades[labels == first][0] != shades[labels == second][0]


@pytest.fixture
def ring() -> np.ndarray:
    """An object about a pixel."""
    ring = np.ones((3, 3), bool)
    ring[1, 1] = False
    return ring


@pytest.fixture
def shell() -> np.ndarray:
    """An object about a voxel."""
    shell = np.ones((3, 3, 3), bool)
    shell[1, 1, 1] = False
    return shell


def test_a_hole_is_enclosed_by_an_object(ring, shell):
    assert has_hole(ring)
    assert holes(ring).tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert has_hole(shell)


def test_a_hole_has_no_way_out_through_a_corner(ring):
    ring[0, 0] = False
    assert not has_hole(ring)


def test_a_hole_of_a_volume_has_no_way_out_through_a_side(shell):
    shell[0, 1, 1] = False
    assert not has_hole(shell)


def answers_of_depths(depth: np.ndarray) -> np.ndarray:
    """Pixels of class 1 with a depth in 0..1, as the decoder packs them."""
    levels = np.rint(LEVELS * depth).astype(np.int32)
    return pack_answers(np.ones_like(levels), levels, np.zeros_like(levels))


@pytest.mark.parametrize(("dip", "count"), [(0.05, 1), (0.15, 2)])
def test_two_deep_parts_are_two_objects_if_a_tenth_lies_between_them(dip, count):
    depth = np.ones((9, 24))
    depth[:, 10:14] -= dip
    assert separate_objects(answers_of_depths(depth))[1] == count


def test_a_step_of_a_pixel_in_depth_is_no_object():
    depth = np.full((9, 24), 0.6)
    depth[4, 12] = 1
    assert separate_objects(answers_of_depths(depth))[1] == 1


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=["image", "volume"])
def test_objects_of_a_component_do_not_depend_on_what_lies_around_it(answers):
    labels, count = separate_objects(answers)
    padded, padded_count = separate_objects(np.pad(answers, 9))
    assert padded_count == count
    inside = (slice(9, -9),) * answers.ndim
    assert (padded[inside] == labels).all()


def test_a_peak_may_go_on_through_corners(monkeypatch):
    monkeypatch.setattr(finder, "BLUR", 0.0)
    depth = np.full((6, 6), 0.5)
    depth[2, 2] = depth[3, 3] = 1
    assert separate_objects(answers_of_depths(depth))[1] == 1


def test_more_objects_than_a_label_has_numbers_for_are_refused(monkeypatch):
    assert finder.MOST_OBJECTS == 8_388_607  # 23 bits
    monkeypatch.setattr(finder, "MOST_OBJECTS", 2)
    assert len(decode(answers_of([[1, 0, 1]]))[1]) == 2
    with pytest.raises(DataError, match="the prediction has more than 2 objects; cut the image into parts"):
        decode(answers_of([[1, 0, 1, 0, 1]]))
