"""Objects: how deep pixels lie in them, what is counted, and scores that follow the published formulas.

Modules: tasks/objects.py, tasks/matching.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from objects import discs
from scipy.optimize import linear_sum_assignment

from runtime.errors import ModelError
from tasks import matching, task_of_model
from tasks.classes import Classes, ClassTarget
from tasks.matching import COLUMNS, THRESHOLDS, Matches, Overlaps, classes_of, found_by_size, numbers_of, pack_labels
from tasks.objects import Objects, ObjectTarget, normalized_depth
from tasks.step_loss import StepLoss
from unet.config import IGNORE_INDEX, UNetConfig


def target_of(ids: np.ndarray, mask: np.ndarray | None = None) -> ObjectTarget:
    """A batch of one target."""
    mask = (ids > 0).astype(np.uint8) if mask is None else mask
    return ObjectTarget(torch.from_numpy(mask)[None], torch.from_numpy(ids.astype(np.int64))[None])


def as_tensor(ids: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pack_labels(ids, ids > 0))[None]


def scores_of(predicted: np.ndarray, true: np.ndarray, mask: np.ndarray | None = None):
    scores = Objects().new_scores(1)
    scores.add(as_tensor(predicted), target_of(true, mask), 0)
    return scores


def reference(true: np.ndarray, predicted: np.ndarray, threshold: float) -> tuple[int, int, int, float]:
    """True positives, true and predicted objects, and the matched IoU, as stardist.matching defines them."""
    true_numbers, predicted_numbers = (np.unique(labels[labels > 0]) for labels in (true, predicted))
    iou = np.zeros((len(true_numbers), len(predicted_numbers)))
    for row, number in enumerate(true_numbers):
        for column, other in enumerate(predicted_numbers):
            shared_pixels = (true == number) & (predicted == other)
            iou[row, column] = shared_pixels.sum() / ((true == number) | (predicted == other)).sum()
    smaller = min(iou.shape)
    if not smaller:
        return 0, *iou.shape, 0.0
    rows, columns = linear_sum_assignment(-(iou >= threshold).astype(float) - iou / (2 * smaller))
    matched = iou[rows, columns] >= threshold
    return int(matched.sum()), *iou.shape, float(iou[rows, columns][matched].sum())


def random_labels(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    labels = np.zeros(size, np.int64)
    for number in range(1, rng.integers(2, 8)):
        y, x = rng.integers(0, size)
        labels[y : y + rng.integers(1, 12), x : x + rng.integers(1, 12)] = number * rng.integers(1, 4)
    return labels


@pytest.mark.parametrize("seed", range(60))
def test_scores_equal_the_formulas_of_stardist(seed):
    rng = np.random.default_rng(seed)
    size = tuple(rng.integers(6, 30, 2))
    true = random_labels(rng, size)
    predicted = np.roll(true, rng.integers(0, 3), axis=0) if seed % 2 else random_labels(rng, size)
    values = scores_of(predicted, true).classes[0]
    for threshold, ap in zip(THRESHOLDS, values["ap_by_iou"], strict=True):
        matched, objects, predictions, _ = reference(true, predicted, threshold)
        assert ap == pytest.approx(matched / (objects + predictions - matched), abs=1e-9)
    matched, objects, predictions, iou = reference(true, predicted, 0.5)
    assert values["f1"] == pytest.approx(2 * matched / (objects + predictions), abs=1e-9)
    assert values["panoptic_quality"] == pytest.approx(2 * iou / (objects + predictions), abs=1e-9)
    assert (values["objects"], values["predicted"], values["found"]) == (objects, predictions, matched)
    assert values["precision"] == (pytest.approx(matched / predictions) if predictions else None)
    assert values["recall"] == (pytest.approx(matched / objects) if objects else None)


def test_an_object_cut_into_exact_halves_is_found_once():
    true = np.ones((4, 6), int)
    halves = np.repeat([[1, 1, 1, 2, 2, 2]], 4, axis=0)
    assert scores_of(halves, true).classes[0]["found"] == 1
    assert scores_of(true, halves).classes[0]["found"] == 1


def test_parts_of_an_image_count_as_the_whole_does():
    true, predicted = discs((60, 50), 20, seed=1), discs((60, 50), 20, seed=1)
    predicted = np.roll(predicted, 2, axis=1)
    scores = Objects().new_scores(1)
    for rows in (slice(0, 7), slice(7, 8), slice(8, 60)):
        scores.add(as_tensor(predicted)[:, rows], target_of(true).at((slice(None), rows)), 0)
    assert torch.equal(scores.sums, scores_of(predicted, true).sums)


def test_an_object_of_one_pixel_is_as_deep_as_any_and_what_is_unknown_is_no_object():
    ids = torch.tensor([[[1, 0, 2, 2, 2]]])
    is_known = torch.tensor([[[True, True, True, True, False]]])
    assert normalized_depth(ids, is_known).tolist() == [[[1, 0, 0.5, 1, 0]]]


def test_the_summary_says_how_many_objects_are_predicted_for_the_true_ones():
    one, two = np.ones((2, 8), int), np.repeat([[1] * 4 + [2] * 4], 2, axis=0)
    scores = scores_of(two, one)
    assert scores.comparison == 0.5
    assert scores.summary() == "AP@0.5 0.5000, panoptic quality 0.3333, F1 0.6667, 2 objects for 1"
    titles, row, *rest = scores.table().splitlines()
    assert " ".join(titles.split()) == "class AP@0.5 AP@0.75 AP@0.5:0.95 PQ F1 objects predicted found"
    assert " ".join(row.split()) == "object 0.5000 0.0000 0.0500 0.3333 0.6667 1 2 1"
    assert len(row) == len(titles)
    assert rest == ["split 1, merged 0, count error 1.0000", "found by size in pixels: below 64: 1 of 1"]
    brief = {"ap50": 0.5, "objects": 1, "predicted": 2, "found": 1, "split": 1, "merged": 0}
    assert scores.brief() == brief
    assert list(scores.brief()) == list(brief)
    report = scores.report()
    assert report["iou_thresholds"] == (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    assert report["sizes"] == (64, 256, 1024, 4096)
    assert "eval/ap50/object" not in scores.record()


def test_a_large_image_is_counted_in_parts(monkeypatch):
    true, predicted = discs((60, 50), 20, seed=1), np.roll(discs((60, 50), 20, seed=1), 2, axis=1)
    whole = scores_of(predicted, true).sums
    monkeypatch.setattr(matching, "PIXELS_AT_ONCE", 77)
    assert torch.equal(scores_of(predicted, true).sums, whole)


def test_images_of_two_processes_add_up_to_the_same_whole_numbers():
    images = [(np.roll(discs((40, 40), 12, seed), 1, 0), discs((40, 40), 12, seed)) for seed in range(4)]
    together = Objects().new_scores(4)
    halves = [Objects().new_scores(4), Objects().new_scores(4)]
    for index, (predicted, true) in enumerate(images):
        for scores in (together, halves[index % 2]):
            scores.add(as_tensor(predicted), target_of(true), index)
    assert torch.equal(halves[0].sums + halves[1].sums, together.sums)
    assert torch.equal(halves[0].by_image + halves[1].by_image, together.by_image)
    assert together.sums.dtype == together.by_image.dtype == torch.int64
    again = Objects().scores_from_json(together.to_json())
    assert (again.record(), again.image_comparison) == (together.record(), together.image_comparison)


def test_split_merged_and_sizes_are_counted():
    true = np.zeros((20, 40), int)
    true[2:10, 2:10], true[2:10, 10:18], true[12:18, 2:38] = 1, 2, 3  # of 64, 64 and 216 pixels
    predicted = np.zeros_like(true)
    predicted[2:10, 2:18], predicted[12:18, 2:20], predicted[12:18, 20:38] = 1, 2, 3
    values = scores_of(predicted, true).values
    assert (values["merged"], values["split"], values["found"]) == (2, 1, 1 + 1)
    assert values["objects_by_size"] == [0, 3, 0, 0, 0]


def test_objects_are_counted_by_size_with_those_that_were_found():
    sizes = (63, 64, 255, 256, 1023, 1024, 4095, 4096)
    true = np.repeat(np.arange(1, 9), sizes)[None]
    predicted = np.where(np.isin(true, (1, 4, 8)), true, 0)
    # a prediction of a sixth of the second object overlaps it, and does not find it
    predicted[0, 63:73] = 9
    predicted[0, 382:432] = 0  # what is left of the fourth is three quarters and more
    overlaps = Overlaps.between(predicted, true)
    assert [len(column) for column in overlaps.within(overlaps.true < 0)] == [0, 0, 0]  # nothing is known
    row = Matches.of(overlaps).columns()
    scores = Objects().new_scores(1)
    scores.sums = torch.from_numpy(row)
    values = scores.values
    assert values["objects_by_size"] == [1, 2, 2, 2, 1]
    assert values["found_by_size"] == [1, 0, 1, 0, 1]
    text = found_by_size(values["found_by_size"], values["objects_by_size"])
    assert text == (
        "below 64: 1 of 1; 64 to 255: 0 of 2; 256 to 1,023: 1 of 2; 1,024 to 4,095: 0 of 2; 4,096 and more: 1 of 1"
    )


def test_objects_of_which_exactly_half_lies_in_another_are_neither_split_nor_merged():
    whole, halves = np.ones((2, 8), int), np.repeat([[1] * 4 + [2] * 4], 2, axis=0)
    shifted = np.roll(np.pad(halves, ((0, 0), (2, 2))), 2, axis=1)  # each covers half of a true one
    true = np.pad(halves, ((0, 0), (2, 2)))
    assert [scores_of(shifted, true).values[name] for name in ("split", "merged")] == [0, 0]
    assert [scores_of(halves, whole).values[name] for name in ("split", "merged")] == [1, 0]
    assert [scores_of(whole, halves).values[name] for name in ("split", "merged")] == [0, 2]


def test_half_of_an_object_is_not_most_of_it():
    true = np.array([[2, 1, 1, 3]])
    predicted = np.array([[7, 7, 8, 8]])
    for first, second in ((true, predicted), (predicted, true)):
        matches = Matches.of(Overlaps.between(second, first))
        assert (matches.count_merged(), matches.count_split()) == (0, 0)
    # three objects in one prediction are three that are merged
    three = Matches.of(Overlaps.between(np.array([[1, 1, 1]]), np.array([[1, 2, 3]])))
    assert (three.count_merged(), three.count_split()) == (3, 0)
    # two predictions that lie in an object split it, though it is larger than both
    split = Matches.of(Overlaps.between(np.array([[1, 2, 0, 0, 0]]), np.array([[1, 1, 1, 1, 1]])))
    assert (split.count_merged(), split.count_split()) == (0, 1)


def test_counts_that_differ_add_up_over_images_in_both_directions():
    scores = Objects().new_scores(2)
    one, two = np.ones((2, 8), int), np.repeat([[1] * 4 + [2] * 4], 2, axis=0)
    for index, (predicted, true) in enumerate([(one, two), (two, one)]):
        scores.add(as_tensor(predicted), target_of(true), index)
    values = scores.values
    assert values["count_error"] == pytest.approx(2 / 3)
    assert (values["objects"], values["predicted"]) == (3, 3)


def labels(*rows: list[int]) -> torch.Tensor:
    ids = np.array(rows)
    return torch.from_numpy(pack_labels(ids, ids > 0))[None]


def objects_of(*rows: list[int], mask: list[list[int]] | None = None) -> ObjectTarget:
    ids = torch.tensor(rows)[None]
    return ObjectTarget((ids > 0).long() if mask is None else torch.tensor(mask)[None], ids)


def test_counts_that_are_wrong_in_two_images_do_not_cancel():
    scores = Objects().new_scores(2)
    scores.add(labels([1, 0, 2, 0]), objects_of([1, 0, 0, 0]), 0)
    scores.add(labels([1, 0, 0, 0]), objects_of([1, 0, 2, 3]), 1)
    assert scores.values["count_error"] == 3 / 4  # by one and by two objects, of four
    assert [scores.record()[f"eval/{name}"] for name in ("missed", "split", "merged")] == [2, 0, 0]


def test_ap_is_that_of_its_threshold_and_panoptic_quality_counts_what_matches():
    scores = Objects().new_scores(1)
    true = [1] * 4 + [2] * 10 + [3] * 10
    predicted = [1] * 3 + [0] + [2] * 7 + [0] * 3 + [3] * 4 + [0] * 6  # IoU 0.75, 0.7 and 0.4
    scores.add(labels(predicted), objects_of(true), 0)
    values = scores.values
    assert (values["ap50"], values["ap75"]) == (2 / 4, 1 / 5)
    assert values["ap"] == pytest.approx((5 * 2 / 4 + 1 / 5) / 10)
    assert values["panoptic_quality"] == pytest.approx((0.75 + 0.7) / 3, abs=1e-9)
    assert "AP@0.5 0.5000, panoptic quality 0.4833" in scores.summary()
    assert scores.image_comparison == [0.5]
    lines = scores.table().splitlines()
    assert lines[1].split()[-3:] == ["3", "3", "2"]
    assert lines[-1].endswith("below 64: 2 of 3")


def test_each_class_is_recorded_by_its_ap_at_one_half():
    scores = Objects(Classes(("background", "a", "b"))).new_scores(1)
    scores.add(labels([1, 1, 1, 0]), objects_of([1, 1, 1, 1]), 0)  # an IoU of 0.75
    record = scores.record()
    assert (record["eval/ap50/a"], record["eval/ap50/b"]) == (1, None)


def test_parts_of_the_last_image_are_counted_when_a_score_is_asked_for_and_once():
    scores = Objects().new_scores(2)
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 1)
    assert scores.by_image[1].sum() > 0
    assert scores.sums.equal(scores.by_image[1])
    assert scores.by_image[0].sum() == 0
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 0)
    scores.sums = 2 * scores.sums  # as a sum over two processes with the same images
    assert scores.sums.equal(4 * scores.by_image[0])
    assert scores.image_comparison == [1, 1]
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 0)
    scores.by_image = torch.zeros(2, COLUMNS, dtype=torch.int64)  # in place of what is pending, too
    assert not scores.by_image.any()
    assert scores.sums[0] == 5
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 0)
    scores.sums = torch.zeros(COLUMNS, dtype=torch.int64)
    assert not scores.sums.any()
    assert scores.by_image[0, 0] == 1
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 0)
    assert scores.by_image[0, 0] == 2
    assert scores.sums[0] == 1


def test_what_the_truth_ignores_is_no_prediction_and_no_object():
    true, predicted = np.zeros((10, 20), int), np.zeros((10, 20), int)
    true[2:6, 2:6] = predicted[2:6, 2:6] = 1
    predicted[2:6, 12:16] = 2
    mask = (true > 0).astype(np.uint8)
    mask[:, 10:] = IGNORE_INDEX
    assert scores_of(predicted, true).values["ap50"] == 0.5
    assert scores_of(predicted, true, mask).values["ap50"] == 1


def test_an_image_without_objects_has_no_score_and_is_not_the_worst():
    nothing = np.zeros((5, 5), int)
    scores = scores_of(nothing, nothing)
    assert scores.values["ap50"] is None
    assert scores.comparison == 0
    assert scores.image_comparison == [1]
    assert scores_of(np.ones((5, 5), int), nothing).image_comparison == [0]
    assert len(scores.sums) == COLUMNS
    assert "no objects" in scores.table()


def test_classes_match_only_themselves():
    task = Objects.from_config(type("Config", (), {"task": {"classes": ["background", "a", "b"], "smallest": 1}}))
    scores = task.new_scores(1)
    ids = np.array([[1, 1, 0, 2, 2]])
    mask = np.array([[1, 1, 0, 2, 2]], np.uint8)
    wrong = torch.from_numpy(pack_labels(ids, np.array([[1, 1, 0, 1, 1]])))[None]
    scores.add(wrong, target_of(ids, mask), 0)
    assert [values["found"] for values in scores.classes] == [1, 0]
    values = scores.values
    assert [values[name] for name in ("objects", "predicted", "found")] == [2, 2, 1]
    assert (values["objects_by_size"], values["found_by_size"]) == ([2, 0, 0, 0, 0], [1, 0, 0, 0, 0])
    assert scores.record()["eval/ap50/a"] == 0.5
    assert scores.record()["eval/ap50/b"] == 0


def test_labels_hold_number_and_class():
    labels = pack_labels(np.array([0, 7, 70_000]), np.array([0, 2, 1]))
    assert numbers_of(labels).tolist() == [0, 7, 70_000]
    assert classes_of(labels).tolist() == [0, 2, 1]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_numbers_of_32_bits_are_packed_without_loss(kind):
    labels = pack_labels(kind(np.array([2**30], np.int32)), kind(np.array([3], np.uint8)))
    assert (numbers_of(labels).tolist(), classes_of(labels).tolist()) == ([2**30], [3])


def test_an_image_without_pixels_has_no_overlaps():
    empty = np.zeros((0, 5), np.int64)
    assert [len(column) for column in Overlaps.between(empty, empty)] == [0, 0, 0]


def test_depth_falls_to_the_border_of_each_object_alike():
    ids = np.zeros((1, 20, 40), int)
    ids[0, 2:17, 2:17] = 5
    ids[0, 2:9, 17:24] = 7  # it touches the other one
    depth = normalized_depth(torch.from_numpy(ids), torch.ones(1, 20, 40, dtype=torch.bool))[0].numpy()
    assert depth[9, 9] == 1
    assert depth[5, 20] == 1
    assert depth[9, 2] == depth[9, 16] == pytest.approx(1 / 8, abs=0.06)
    assert depth[5, 17] == pytest.approx(1 / 4)
    assert (depth[ids[0] == 0] == 0).all()
    assert (depth[ids[0] > 0] > 0).all()


def test_depth_around_a_hole_grows_in_octagons():
    ids = torch.ones(1, 15, 15, dtype=torch.long)
    ids[0, 7, 7] = 0
    depth = normalized_depth(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    pixels = (depth / depth[7, 8]).round()[7:11, 7:11]  # the first one beside the hole is one pixel deep
    assert pixels.tolist() == [[0, 1, 2, 3], [1, 2, 3, 3], [2, 3, 3, 4], [3, 3, 4, 5]]


def test_neither_the_border_of_a_picture_nor_unknown_pixels_end_an_object():
    ids = torch.ones(1, 8, 30, dtype=torch.long)
    is_known = torch.ones(1, 8, 30, dtype=torch.bool)
    assert (normalized_depth(ids, is_known) == 1).all()
    is_known[:, :, 20:] = False
    ids[:, :, 20:] = 0
    depth = normalized_depth(ids, is_known)
    assert (depth[:, :, :20] == 1).all()
    assert (depth[:, :, 20:] == 0).all()
    assert torch.equal(normalized_depth(ids.flip(2), is_known.flip(2)), depth.flip(2))


def test_there_may_be_as_many_objects_as_pixels():
    ids = torch.arange(1, 7).view(1, 2, 3)
    assert normalized_depth(ids, torch.ones_like(ids, dtype=torch.bool)).tolist() == [[[1] * 3] * 2]


def test_depth_of_a_volume_uses_all_axes():
    ids = torch.zeros(1, 9, 9, 9, dtype=torch.long)
    ids[0, 1:8, 1:8, 1:8] = 3
    depth = normalized_depth(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    assert depth[4, 4, 4] == 1
    assert depth[1, 4, 4] == depth[4, 4, 7] == 0.25


def test_depth_is_counted_up_to_twenty_pixels():
    ids = torch.zeros(1, 63, 63, dtype=torch.long)
    ids[0, 1:62, 1:62] = 1
    depth = normalized_depth(ids, torch.ones(1, 63, 63, dtype=torch.bool))[0, 31]
    assert depth[[0, 1, 10, 19, 20, 31]].tolist() == pytest.approx([0, 1 / 20, 10 / 20, 19 / 20, 1, 1])


def test_depth_is_learned_where_pixels_are_known_and_counted_so():
    task = Objects()
    target = objects_of([1, 1, 0, 0], mask=[[1, 255, 0, 0]])
    rendered = task.render(target)
    assert rendered.depth.tolist() == [[[1, 0, 0, 0]]]  # what is unknown is no object, and no border of one
    between = task.render(objects_of([0, 1, 1, 1, 1, 0]))
    assert between.depth.tolist() == [[[0, 0.5, 1, 1, 0.5, 0]]]
    logits = torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    depth = rendered.depth[0, 0].double()
    chance = logits[0, 2, 0].sigmoid()
    errors = -(depth * chance.log() + (1 - depth) * (1 - chance).log())
    assert task.partial(logits, rendered)[-1].item() == pytest.approx(errors[[0, 2, 3]].sum().item())
    assert task.counts(target)[-1] == 3
    classes = task.classes.partial(logits[:, :2], ClassTarget(target.mask))
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(task.partial(logits, rendered)[:-1], classes, strict=True)
    )


def test_the_loss_of_strips_adds_up_to_that_of_the_image():
    task = Objects()
    target = target_of(discs((40, 30), 12, seed=3))
    logits = torch.randn(1, task.outputs, 40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rendered = task.render(target)
    parts = []
    for rows in (slice(0, 9), slice(9, 40)):
        parts.append(task.partial(logits[:, :, rows], rendered.at((slice(None), rows))))
    summed = tuple(sum(values) for values in zip(*parts, strict=True))
    torch.testing.assert_close(task.finish(summed), task.finish(task.partial(logits, rendered)))


def test_the_loss_does_not_depend_on_how_a_step_is_split():
    criterion = StepLoss(Objects(), strides=[(2, 2)])
    images = [target_of(discs((32, 32), 8, seed)) for seed in range(4)]
    batch = ObjectTarget.stack([image.at(0) for image in images])
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(4, 3, 32 // s, 32 // s, dtype=torch.float64, generator=generator) for s in (1, 2)]
    counts = criterion.counts(batch)
    whole = criterion(logits, batch, counts)
    parts = [criterion([level[i : i + 1] for level in logits], images[i], counts) for i in range(4)]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=0)
    assert counts.tolist() == sum(criterion.counts(image) for image in images).tolist()


def test_numbers_are_made_anew_in_each_crop():
    ids = np.array([[0, 900_000, 900_000], [7, 7, 0]], np.int32)
    target = ObjectTarget((ids > 0).astype(np.uint8), ids).renumbered()
    assert target.ids.tolist() == [[0, 2, 2], [1, 1, 0]]
    assert target.ids.dtype == np.int32
    filled = ObjectTarget(np.ones((1, 2), np.uint8), np.array([[4, 9]], np.int32)).renumbered()
    assert filled.ids.tolist() == [[1, 2]]


def test_a_model_knows_its_objects_and_damaged_ones_are_refused():
    task = Objects(Classes(("background", "a", "b")), smallest=4, fills_holes=True)
    config = UNetConfig(num_classes=4, task=task.to_config())
    restored = task_of_model(UNetConfig.from_json(config.to_json()))
    assert restored.to_config() == task.to_config()
    assert restored.fills_holes
    assert task.to_config()["fills_holes"] is True
    assert Objects().to_config()["fills_holes"] is False
    older = {name: value for name, value in task.to_config().items() if name != "fills_holes"}
    assert task_of_model(replace(config, task=older)).to_config() == {**older, "fills_holes": False}
    for damage in ({"classes": None}, {"classes": ["a"]}, {"smallest": "x"}, {"smallest": None}):
        with pytest.raises(ModelError, match="the model's task"):
            task_of_model(replace(config, task={**task.to_config(), **damage}))
    line = r"^the model's task \{'name': 'objects'\} is damaged \(KeyError\('classes'\)\); use another copy$"
    with pytest.raises(ModelError, match=line):
        task_of_model(replace(config, task={"name": "objects"}))


def test_a_model_of_objects_knows_how_small_they_are():
    task = Objects(Classes(("background", "a", "b")), smallest=7)
    again = task_of_model(UNetConfig(num_classes=4, task=task.to_config()))
    assert (again.smallest, again.classes.names, again.outputs) == (7, ("background", "a", "b"), 4)
    assert again.needs_exact_tiles
    assert not Classes(("a",)).needs_exact_tiles
