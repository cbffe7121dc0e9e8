"""Small rules of scores, losses and targets: what a number counts, where a pixel ends, and which device holds what.

Modules: tasks/point_scores.py, tasks/points.py, tasks/landmarks.py, tasks/matching.py, tasks/objects.py,
tasks/overlapping.py, tasks/regions.py, tasks/partly_labeled.py, tasks/classes.py, tasks/confusion.py, tasks/target.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.errors import ModelError
from tasks import task_of_model
from tasks.classes import Classes, ClassTarget
from tasks.confusion import ClassCounts, format_table
from tasks.landmarks import Landmarks
from tasks.matching import Matches, Overlaps, found_by_size, pack_labels
from tasks.objects import Objects, ObjectTarget, RenderedObjects, normalized_depth
from tasks.overlapping import Overlapping, OverlapTarget
from tasks.partly_labeled import PartlyLabeledClasses, PartlyLabeledTarget
from tasks.point_scores import LandmarkScores, score_cell, score_titles
from tasks.points import ABSENT, OUTSIDE, PRESENT, UNKNOWN, PointTarget, unknown_points
from tasks.regions import Region, Regions
from tasks.task import Task
from unet import Preprocess, UNetConfig

META = torch.device("meta")
MARKS = Landmarks(names=("a", "b"), partners=(0, 1))


def score_of(unit: str, rows: list[list[float]]) -> LandmarkScores:
    """Scores of one landmark from its states, errors, sides, diagonals and presences in images."""
    by_image = torch.tensor(rows, dtype=torch.float64)[:, None]
    return LandmarkScores(["a"], unit, torch.tensor([len(rows)]), by_image)


def test_radii_in_percent_are_of_the_longer_side_and_hold_their_border():
    errors = (2.0, 4.0, 6.0, 10.0, 20.0, 20.5)  # 1, 2, 3, 5, 10 and 10.25% of 200 pixels
    scores = score_of("px", [[PRESENT, error, 200, 250, 1] for error in errors])
    values = scores.values()
    shares = {key: round(6 * value) for key, value in values.items() if key.startswith("sdr/")}
    assert shares == {"sdr/1_percent": 1, "sdr/2_percent": 2, "sdr/3_percent": 3, "sdr/5_percent": 4}
    assert values["outliers"] == 1


def test_radii_in_mm_are_those_of_cephalometry_and_no_share_of_a_side():
    errors = (2.0, 2.5, 3.0, 4.0, 10.0, 10.5)
    scores = score_of("mm", [[PRESENT, error, 1000, 2000, 1] for error in errors])
    values = scores.values()
    shares = {key: round(6 * value) for key, value in values.items() if key.startswith("sdr/")}
    assert shares == {"sdr/2mm": 1, "sdr/2.5mm": 2, "sdr/3mm": 3, "sdr/4mm": 4}
    assert values["outliers"] == 1
    assert list(score_titles("mm").values())[:7] == [
        "mean (mm)",
        "std",
        "median",
        "<= 2 mm",
        "<= 2.5 mm",
        "<= 3 mm",
        "<= 4 mm",
    ]
    three = score_of("mm", [[PRESENT, error, 1000, 2000, 1] for error in (2, 2, 3)])
    assert three.summary() == "mean radial error 2.33 mm, median 2.00 mm"


def test_a_point_is_found_from_even_chances_on():
    scores = score_of("px", [[PRESENT, 1, 100, 100, 0.5], [PRESENT, 1, 100, 100, 0.49], [ABSENT, 0, 100, 100, 0.5]])
    values = scores.values()
    assert (values["presence_precision"], values["presence_recall"]) == (0.5, 0.5)
    assert scores.comparison == pytest.approx(0.99 / 2)
    invented = score_of("px", [[PRESENT, 1, 100, 100, 0.1], [ABSENT, 0, 100, 100, 0.9]]).values()
    assert (invented["presence_precision"], invented["presence_recall"]) == (0, 0)
    silent = score_of("px", [[PRESENT, 1, 100, 100, 0.1]]).values()
    assert (silent["presence_precision"], silent["presence_auroc"], silent["absent"]) == (None, None, 0)


def test_where_no_point_is_absent_places_alone_are_compared():
    points = [[PRESENT, 10, 100, 100, 0.1], [PRESENT, 30, 100, 100, 0.9]]
    scores = score_of("px", points)
    assert scores.comparison == pytest.approx(0.8) and scores.image_comparison == pytest.approx([0.9, 0.7])
    assert scores.values()["presence_recall"] == 0.5
    assert score_of("px", [*points, [ABSENT, 0, 100, 100, 0.1]]).comparison == pytest.approx(0.7 / 2)


def test_a_point_beyond_the_diagonal_is_as_bad_as_one_that_is_not_found():
    assert score_of("px", [[PRESENT, 300, 100, 120, 1], [PRESENT, 0, 100, 120, 1]]).comparison == 0.5


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_landmarks_are_those_that_are_counted_point_by_point(seed):
    rng = np.random.default_rng(seed)
    states = rng.choice([PRESENT, ABSENT, OUTSIDE], (7, 3))
    states[2] = ABSENT  # an image without a point
    kept = np.zeros((7, 3, 5))
    known = states != OUTSIDE
    kept[known, 0] = states[known]
    kept[..., 1] = rng.integers(0, 30, (7, 3)) * (states == PRESENT)
    kept[known, 2:4] = [100, 125]
    kept[known, 4] = rng.choice([0.2, 0.4, 0.5, 0.8], known.sum())
    scores = LandmarkScores(("a", "b", "c"), "px", torch.tensor([known.sum()]), torch.from_numpy(kept))
    present, absent = kept[states == PRESENT], kept[states == ABSENT]
    errors = present[:, 1]
    found, invented = (present[:, 4] >= 0.5).sum(), (absent[:, 4] >= 0.5).sum()
    pairs = present[:, 4, None] - absent[:, 4]
    expected = {
        "mean_radial_error": errors.mean(),
        "radial_error_std": errors.std(),
        "median_radial_error": np.median(errors),
        "outliers": (errors > 10).sum(),
        "presence_precision": found / (found + invented),
        "presence_recall": found / len(present),
        "presence_auroc": ((pairs > 0) + (pairs == 0) / 2).mean(),
        "present": len(present),
        "absent": len(absent),
    }
    expected |= {f"sdr/{percent}_percent": (errors <= percent).mean() for percent in (1, 2, 3, 5)}
    assert scores.values() == pytest.approx(expected)
    closeness = np.where(kept[..., 4] >= 0.5, np.clip(1 - kept[..., 1] / 125, 0, 1), 0)
    assert scores.comparison == pytest.approx(closeness[states == PRESENT].mean())
    by_image = [closeness[row][states[row] == PRESENT] for row in range(7)]
    assert scores.image_comparison == pytest.approx([values.mean() if len(values) else 0 for values in by_image])
    report = scores.report()
    second = kept[:, 1][states[:, 1] == PRESENT]
    assert report["by_landmark"]["b"]["mean_radial_error"] == pytest.approx(second[:, 1].mean())
    assert (report["unit"], report["closeness"], report["present"]) == ("px", scores.comparison, len(present))
    assert scores.brief() == {"closeness": scores.comparison, "mean_radial_error": pytest.approx(errors.mean())}
    assert f"median {np.median(errors):.2f} px, AUROC of presence {expected['presence_auroc']:.4f}" in scores.summary()


def test_landmarks_that_no_image_holds_have_no_scores():
    scores = score_of("px", [[ABSENT, 0, 100, 125, 0.25]])
    assert scores.comparison == 0 and scores.image_comparison == [0]
    assert scores.brief() == {"closeness": None, "mean_radial_error": None}
    assert scores.summary() == "mean radial error n/a, median n/a"
    assert scores.table().splitlines()[1].split() == ["a", *["n/a"] * 7, "0", *["n/a"] * 3, "0", "1"]


def test_the_sides_of_an_image_are_those_of_its_file():
    target = PointTarget(
        points=torch.tensor([[[4.0, 9.0], [0.0, 0.0]]], dtype=torch.float64),
        states=torch.tensor([[PRESENT, OUTSIDE]]),
        size=torch.tensor([[30, 20]]),
        unit=torch.tensor([[2.0, 6.0]], dtype=torch.float64),  # the file has 60 x 120 pixels
    )
    scores = MARKS.new_scores(1)
    center = (torch.tensor([4.0, 9.0], dtype=torch.float64) + 0.5 + torch.tensor([3.0, 4 / 3])) / torch.tensor([30, 20])
    prediction = torch.stack([torch.cat([center, torch.tensor([0.75, 0.25])]), torch.ones(4)])[None]
    scores.add(prediction, target, 0)
    expected = [PRESENT, 10.0, 120.0, (60**2 + 120**2) ** 0.5, 0.75]
    assert scores.by_image[0, 0].tolist() == pytest.approx(expected)
    assert scores.by_image[0, 1].tolist() == [0] * 5  # whether it is there was not asked
    assert scores.sums.tolist() == [1]
    record = scores.record()
    assert not {"eval/present", "eval/absent"} & record.keys()
    assert record["eval/mean_radial_error/a"] == pytest.approx(10) and record["eval/mean_radial_error/b"] is None


def test_cells_of_landmarks_have_digits_that_suit_them():
    for key in ("mean_radial_error", "radial_error_std", "median_radial_error"):
        assert score_cell(key, 1.23456) == "1.23"
    assert [score_cell(key, 1.23456) for key in ("sdr/2mm", "presence_auroc")] == ["1.235", "1.235"]
    assert [score_cell(key, 3.0) for key in ("outliers", "present", "absent")] == ["3", "3", "3"]
    assert score_cell("outliers", None) == "n/a"


def marked(points: list[list[float]], states: list[int], size: tuple[int, int]) -> PointTarget:
    target = unknown_points(len(points), size)
    return replace(target, points=np.array(points), states=np.array(states))


def test_a_crop_reaches_half_a_pixel_beyond_its_first_and_last_centers():
    points = [[1.5, 4], [1.49, 4], [5.49, 4], [5.5, 4], [0, 0], [0, 0]]
    states = [PRESENT] * 4 + [ABSENT, UNKNOWN]
    crop = marked(points, states, (10, 10)).cropped([slice(2, 6), slice(0, 10)])
    assert crop.states.tolist() == [PRESENT, OUTSIDE, PRESENT, OUTSIDE, ABSENT, UNKNOWN]
    assert crop.points[0].tolist() == [-0.5, 4]


def test_crops_are_centered_on_the_pixels_of_present_points():
    target = marked([[3.6, 2.4], [1, 1], [2, 2]], [PRESENT, ABSENT, OUTSIDE], (9, 9))
    assert [place.tolist() for place in target.locations()] == [[[4, 2]]]


def batch_of(target: PointTarget) -> PointTarget:
    return PointTarget.stack([target.map(torch.from_numpy)])


def test_a_band_of_points_is_counted_from_its_own_first_row():
    strip = batch_of(marked([[5, 4]], [PRESENT], (10, 12))).strip(3, 8)
    assert strip.points.tolist() == [[[2, 4]]] and strip.shape == (1, 5, 12)


def test_a_moved_point_is_outside_only_where_it_was_there():
    target = batch_of(marked([[0, 0], [2, 0], [2, 0], [2, 3]], [PRESENT, ABSENT, UNKNOWN, PRESENT], (4, 6)))
    moved = target.moved(
        labels=lambda labels, unknown: labels,
        points=lambda points: points + torch.tensor([1.5, 0.0]),
    )
    assert moved.states.tolist() == [[PRESENT, ABSENT, UNKNOWN, OUTSIDE]]  # 3.5 is the border of the last pixel


def test_the_size_of_images_with_points_stays_where_shapes_are_needed():
    moved = batch_of(marked([[5, 4]], [PRESENT], (10, 12))).to(META)
    assert moved.size.device.type == "cpu" and moved.points.device.type == "meta" and moved.shape == (1, 10, 12)


def test_a_point_outside_of_the_crop_has_no_place_to_learn():
    target = batch_of(marked([[-9, 0], [2, 2]], [OUTSIDE, PRESENT], (8, 8)))
    logits = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert MARKS.counts(target)[0] == 1
    alone = batch_of(marked([[-9, 0], [2, 2]], [UNKNOWN, PRESENT], (8, 8)))
    places = [MARKS.finish(MARKS.partial(logits, points))[0] for points in (target, alone)]
    assert places[0] == places[1]


def test_a_model_of_points_has_as_many_names_as_outputs_and_a_unit_for_its_scores():
    config = UNetConfig(num_classes=3, task=MARKS.to_config())
    with pytest.raises(ModelError, match="does not fit its 3 outputs"):
        task_of_model(config)
    assert replace(MARKS, unit="mm").new_scores(1).unit == "mm"


HALF_LOGITS = [
    (Classes(("a", "b", "c")), ClassTarget(torch.tensor([[[0, 1, 2, 255]]]))),
    (PartlyLabeledClasses(("a", "b", "c")), PartlyLabeledTarget(torch.tensor([[[0, 1, 2, 255]]]), torch.tensor([0]))),
    (Overlapping(("a", "b", "c")), OverlapTarget(torch.tensor([[[0, 1, 2, 5]]]), torch.tensor([[[7, 7, 3, 7]]]))),
    (Objects(), RenderedObjects(torch.tensor([[[0, 1, 1, 255]]]), torch.tensor([[[0.0, 1.0, 0.5, 0.0]]]))),
    (replace(MARKS, names=("a", "b", "c")), batch_of(marked([[0, 0], [0, 1], [0, 2]], [PRESENT] * 3, (1, 4)))),
]


@pytest.mark.parametrize(("task", "target"), HALF_LOGITS, ids=[type(task).__name__ for task, _ in HALF_LOGITS])
def test_logits_in_half_precision_are_summed_in_float32(task: Task, target):
    logits = (9 * torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(0))).half()
    for half, single in zip(task.partial(logits, target), task.partial(logits.float(), target), strict=True):
        assert half.dtype == single.dtype and half.dtype in (torch.float32, torch.float64)
        assert torch.equal(half, single)


def test_tensors_of_a_task_go_to_its_device():
    names = ("background", "a")
    assert Objects(Classes(names)).to(META).classes.class_weights.device == META
    partly = PartlyLabeledClasses(names).to(META)
    assert partly.set_flags.device == partly.class_weights.device == META


def labels(*rows: list[int]) -> torch.Tensor:
    ids = np.array(rows)
    return torch.from_numpy(pack_labels(ids, ids > 0))[None]


def objects_of(*rows: list[int], mask: list[list[int]] | None = None) -> ObjectTarget:
    ids = torch.tensor(rows)[None]
    return ObjectTarget((ids > 0).long() if mask is None else torch.tensor(mask)[None], ids)


def test_objects_are_counted_by_size_with_those_that_were_found():
    sizes = (63, 64, 255, 256, 1023, 1024, 4095, 4096)
    true = np.repeat(np.arange(1, 9), sizes)[None]
    predicted = np.where(np.isin(true, (1, 4, 8)), true, 0)
    # a prediction of a sixth of the second object overlaps it, and does not find it
    predicted[0, 63:73] = 9
    predicted[0, 382:432] = 0  # what is left of the fourth is three quarters and more
    row = Matches.of(Overlaps.between(predicted, true)).columns()
    scores = Objects().new_scores(1)
    scores.sums = torch.from_numpy(row)
    values = scores.values
    assert values["objects_by_size"] == [1, 2, 2, 2, 1]
    assert values["found_by_size"] == [1, 0, 1, 0, 1]
    text = found_by_size(values["found_by_size"], values["objects_by_size"])
    assert text == (
        "below 64: 1 of 1; 64 to 255: 0 of 2; 256 to 1,023: 1 of 2; 1,024 to 4,095: 0 of 2; 4,096 and more: 1 of 1"
    )


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


def test_parts_of_the_last_image_are_counted_when_a_score_is_asked_for_and_once():
    scores = Objects().new_scores(2)
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 1)
    assert scores.by_image[1].sum() > 0
    assert scores.sums.equal(scores.by_image[1]) and scores.by_image[0].sum() == 0
    scores.add(labels([1, 1, 0]), objects_of([1, 1, 0]), 0)
    scores.sums = 2 * scores.sums  # as a sum over two processes with the same images
    assert scores.sums.equal(4 * scores.by_image[0])
    assert scores.image_comparison == [1, 1]


def test_depth_is_counted_up_to_twenty_pixels():
    ids = torch.zeros(1, 63, 63, dtype=torch.long)
    ids[0, 1:62, 1:62] = 1
    depth = normalized_depth(ids, torch.ones(1, 63, 63, dtype=torch.bool))[0, 31]
    assert depth[[0, 1, 10, 19, 20, 31]].tolist() == pytest.approx([0, 1 / 20, 10 / 20, 19 / 20, 1, 1])


def test_depth_is_learned_where_pixels_are_known_and_counted_so():
    task = Objects()
    target = objects_of([1, 1, 0, 0], mask=[[1, 255, 0, 0]])
    rendered = task.render(target)
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


def test_a_model_of_objects_knows_how_small_they_are():
    task = Objects(Classes(("background", "a", "b")), smallest=7)
    again = task_of_model(UNetConfig(num_classes=4, task=task.to_config()))
    assert (again.smallest, again.classes.names, again.outputs) == (7, ("background", "a", "b"), 4)
    assert again.needs_exact_tiles and not Classes(("a",)).needs_exact_tiles


def test_classes_without_names_are_numbered_from_one_where_they_overlap():
    config = UNetConfig(num_classes=2, task={"name": "overlapping"})
    assert task_of_model(config).names == ("1", "2")
    named = replace(config, preprocess=Preprocess(class_names=("a", "b")))
    assert task_of_model(named).names == ("a", "b")


def test_a_region_is_written_and_scored_as_its_first_value():
    regions = (Region("whole", (3, 1, 2)), Region("core", (2, 1)))
    task = Regions(("whole", "core"), regions=regions)
    assert [region.label for region in regions] == ["label 3", "label 2"]
    assert task.bits_of_labels() == [1, 3]
    scores = task.new_scores(1)
    # of four pixels of the whole three are found; of the core, none of two
    truth = torch.tensor([[[1, 1, 3, 3, 0]]])
    prediction = torch.tensor([[[1, 1, 1, 0, 0]]])
    scores.add(prediction, OverlapTarget(truth, torch.full_like(truth, 3)), 0)
    assert scores.values["iou"] == [3 / 4, 0]
    assert scores.label_values["iou"] == [2 / 3, 0]  # as labels, two of three written pixels are right
    assert scores.image_comparison == pytest.approx([3 / 8])  # of the regions alone
    assert [line.split()[-1] for line in scores.table().splitlines()[-3:-1]] == ["2", "2"]  # true pixels
    assert scores.report()["of_labels"]["labels"] == ["label 3", "label 2"]


def test_dice_comes_before_iou_where_classes_are_listed():
    for task in (Classes(("a", "b")), Overlapping(("a", "b"))):
        scores = task.new_scores(1)
        assert list(scores.by_class()) == ["dice", "iou"]
        assert next(iter(scores.brief())) == "mean_iou"
        assert task.loss == "ce+logdice"
    assert Classes(("a",)).new_scores(1).has_background and not Overlapping(("a",)).new_scores(1).has_background
    assert list(Classes(("a",)).new_scores(1).brief()) == ["mean_iou", "pixel_accuracy"]


def test_a_table_is_as_wide_as_its_longest_name_and_says_the_unit_of_distances():
    counts = ClassCounts.of(torch.tensor([[3, 1], [0, 2]]))
    boundary = {"boundary_iou": [0.5, None], "hd95": [2.0, None], "mean_boundary_iou": 0.5, "mean_hd95": 2.0}
    lines = format_table(counts, ["a class of a long name", "b"], boundary).splitlines()
    assert len({len(line) for line in lines[:3]}) == 1
    assert "HD95 (px)" in lines[0] and "bound. IoU" in lines[0]
    assert lines[1].startswith("a class of a long name  ") and lines[2].split()[3:5] == ["n/a", "n/a"]


def test_padding_lies_behind_an_image_and_strips_end_before_their_last_row():
    target = ClassTarget(np.arange(9, dtype=np.uint8).reshape(3, 3))
    assert target.padded((4, 4)).mask.tolist() == [[0, 1, 2, 255], [3, 4, 5, 255], [6, 7, 8, 255], [255] * 4]
    batch = ClassTarget.stack([target.map(torch.from_numpy)])
    assert batch.strip(1, 2).mask.tolist() == [[[3, 4, 5]]]
    assert batch.for_loss().mask.dtype == torch.int64
