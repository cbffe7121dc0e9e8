"""What holds for every task: losses and scores do not depend on how images are split, stored or filled up.

Modules: tasks/task.py, tasks/step_loss.py, and loss.py and scores.py of each task.
"""

from dataclasses import replace

import pytest
import torch
from support.landmarks import THREE, batch_of_points, random_points
from support.objects import discs, target_of

from data_utils.point_states import ABSENT, OUTSIDE, PRESENT, UNKNOWN
from data_utils.target import Target
from runtime.errors import ModelError
from tasks import task_of_model
from tasks.classes.loss import Classes, PartlyLabeledClasses
from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.objects.loss import Objects
from tasks.objects.target import ObjectTarget
from tasks.overlapping.loss import Overlapping, Regions
from tasks.overlapping.target import OverlapTarget, Region
from tasks.step_loss import StepLoss
from tasks.task import Scores, Task
from train_utils.evaluation import read_strips
from unet import Preprocess, UNetConfig

SIZE = (24, 16)
IMAGES = 4
NAMES = ("a", "b", "c")
REGIONS = (Region("a", (1, 2)), Region("b", (2,)), Region("c", (3,)))


def pixels(highest: int, seed: int) -> torch.Tensor:
    """Whole numbers up to `highest` at the pixels of the images."""
    return torch.randint(0, highest + 1, (IMAGES, *SIZE), generator=torch.Generator().manual_seed(seed))


def masks() -> torch.Tensor:
    """Classes of pixels, some of which are ignored."""
    return pixels(2, seed=0).masked_fill(pixels(4, seed=1) == 0, 255)


def points() -> Target:
    """Three points of each image."""
    states = [[PRESENT, ABSENT, PRESENT], [UNKNOWN, PRESENT, OUTSIDE], [PRESENT] * 3, [ABSENT, UNKNOWN, PRESENT]]
    return batch_of_points(random_points(SIZE, count=IMAGES), states, SIZE)


def objects() -> Target:
    """Discs, half of which touch another one."""
    images = [target_of(discs(SIZE, 5, seed)).at(0) for seed in range(IMAGES)]
    return ObjectTarget.stack(images)


bits = OverlapTarget(pixels(7, seed=0) & pixels(7, seed=1), pixels(7, seed=1))
TASKS = {
    "classes": (Classes(NAMES), ClassTarget(masks())),
    "partly labeled": (
        PartlyLabeledClasses(NAMES, flags=torch.tensor([[1, 1, 1], [0, 1, 0], [0, 1, 1]]).bool()),
        PartlyLabeledTarget(masks(), torch.tensor([0, 1, 2, 1])),
    ),
    "overlapping": (Overlapping(NAMES), bits),
    "regions": (Regions(NAMES, regions=REGIONS), bits),
    "objects": (Objects(), objects()),
    "landmarks": (THREE, points()),
}
each_task = pytest.mark.parametrize(("task", "targets"), TASKS.values(), ids=TASKS)


def logits_of(task: Task, factor: int = 1) -> torch.Tensor:
    """Logits of all images, smaller than these by a factor."""
    sides = [side // factor for side in SIZE]
    generator = torch.Generator().manual_seed(factor)
    return 2 * torch.randn(IMAGES, task.outputs, *sides, generator=generator, dtype=torch.float64)


@each_task
def test_shares_of_a_step_in_parts_add_up_to_its_loss(task, targets):
    criterion = StepLoss(task, strides=[(2, 2)])
    levels = [logits_of(task), logits_of(task, 2)]
    counts = criterion.counts(targets)
    parts = [slice(0, 2), slice(2, 3), slice(3, 4)]
    shares = []
    for part in parts:
        shares.append(criterion([level[part] for level in levels], targets.at(part), counts))
    torch.testing.assert_close(sum(shares), criterion(levels, targets, counts), rtol=1e-12, atol=1e-12)
    assert torch.equal(sum(criterion.counts(targets.at(part)) for part in parts), counts)


@each_task
@pytest.mark.parametrize("rows", [4, 9])
def test_sums_of_strips_add_up_to_those_of_images(task, targets, rows):
    logits = logits_of(task)
    rendered = task.render(targets)
    sums = None
    for top in range(0, SIZE[0], rows):
        partial = task.partial(logits[:, :, top : top + rows], rendered.strip(top, min(top + rows, SIZE[0])))
        sums = partial if sums is None else tuple(map(torch.add, sums, partial))
    expected = task.finish(task.partial(logits, rendered), rendered)
    torch.testing.assert_close(task.finish(sums, targets), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "task",
    [
        Objects(Classes(("background", "a", "b")), smallest=4, fills_holes=True),
        Overlapping(NAMES, partners=(1, 0, 2), mirrors=False),
        Regions(NAMES, regions=REGIONS, partners=(0, 2, 1), mirrors=False),
        replace(THREE, always_there=(0, 2)),
        replace(THREE, always_there=(0, 1, 2)),
    ],
    ids=lambda task: task.name,
)
def test_a_model_keeps_the_settings_of_its_task(task):
    preprocess = Preprocess(class_names=tuple("abcd"[: task.outputs]))
    config = UNetConfig(num_classes=task.outputs, task=task.to_config(), preprocess=preprocess)
    assert repr(task_of_model(UNetConfig.from_json(config.to_json()))) == repr(task)


TWO_CLASSES = Objects(Classes(("background", "a", "b")))
OVERLAPPING, OF_REGIONS = Overlapping(NAMES), Regions(NAMES, regions=REGIONS)


@pytest.mark.parametrize(
    ("task", "damage"),
    [
        (TWO_CLASSES, {"classes": None}),
        (TWO_CLASSES, {"classes": ["a"]}),
        (TWO_CLASSES, {"smallest": "x"}),
        (TWO_CLASSES, {"smallest": None}),
        (TWO_CLASSES, {"peak": 256}),
        (OVERLAPPING, {"partners": [0, 0, 1]}),
        (OVERLAPPING, {"partners": [0, "1", 2]}),
        (OVERLAPPING, {"partners": 3}),
        (OVERLAPPING, {"mirrors": 1}),
        (OF_REGIONS, {"regions": None}),
        (OF_REGIONS, {"regions": [["whole", ["x"]]] * 3}),
        (OF_REGIONS, {"regions": [["whole", [float("inf")]]] * 3}),
        (OF_REGIONS, {"regions": [["whole", []], ["a", [1]], ["b", [2]]]}),
        (OF_REGIONS, {"regions": [["whole", [1]]]}),
        (THREE, {"names": ["a"]}),
        (THREE, {"partners": [0, 0, 1]}),
        (THREE, {"sigma": 0}),
        (THREE, {"layout": "xml"}),
        (THREE, {"always_there": [3]}),
    ],
)
def test_a_damaged_task_of_a_model_is_refused(task, damage):
    with pytest.raises(
        ModelError, match=r"^the model's task .* (is damaged .*; use another copy|does not fit its \d outputs)$"
    ):
        task_of_model(UNetConfig(num_classes=task.outputs, task=task.to_config() | damage))


def scores_of(task: Task, targets: Target) -> Scores:
    """The scores of all images."""
    scores = task.new_scores(IMAGES)
    for index, logits in enumerate(logits_of(task)):
        target = targets.at(slice(index, index + 1))
        reliability = torch.zeros(15, 3, dtype=torch.int64)
        (prediction,), *_ = read_strips(task, [logits[None]], target, reliability)
        scores.add(prediction, target, index)
        scores.finish_image(index)
        scores.add_reliability(reliability)
    return scores


@each_task
def test_scores_are_read_as_they_were_stored(task, targets):
    scores = scores_of(task, targets)
    restored = task.scores_from_json(scores.to_json())
    assert restored.report() == scores.report()
    assert restored.table() == scores.table()
    assert restored.image_comparison == pytest.approx(scores.image_comparison)
    assert restored.report() != task.new_scores(IMAGES).report()


@each_task
def test_scores_of_no_image_are_read_as_they_were_stored(task, targets):
    restored = task.scores_from_json(task.new_scores(0).to_json())
    assert restored.image_comparison == []
    assert restored.comparison == 0


@each_task
def test_a_filler_changes_no_score(task, targets):
    scores = scores_of(task, targets)
    before = scores.report(), scores.image_comparison
    filler = task.unknown_batch((1, *SIZE), torch.device("cpu"))
    (prediction,), *_ = read_strips(task, [logits_of(task)[:1]], filler, torch.zeros(15, 3).long())
    scores.add(prediction, filler, 1)
    scores.finish_image(1)
    assert (scores.report(), scores.image_comparison) == before
