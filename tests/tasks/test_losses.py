"""The loss of a step: against written-out formulas, however it is split, and with ignored pixels.

Modules: tasks/classes/loss.py, tasks/task.py, tasks/step_loss.py, tasks/classes/target.py.
"""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.class_loss import ClassLoss
from support.largest_tensor import LargestTensor

from data_utils.point_states import PRESENT
from data_utils.target import Target
from tasks.classes.loss import Classes, PartlyLabeledClasses
from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget
from tasks.losses import LOSSES
from tasks.objects.loss import Objects
from tasks.objects.target import RenderedObjects
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.target import OverlapTarget
from tasks.task import Task

FLOAT64 = {"rtol": 1e-12, "atol": 0}  # sums over a few hundred pixels in another order: measured at most 2e-16
META = torch.device("meta")


def sample(batch: int = 4, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, classes, 9, 7, generator=generator, dtype=torch.float64) * 3
    masks = torch.randint(0, classes, (batch, 9, 7), generator=generator)
    masks[0] = masks[0].clamp(max=1)  # the last class is absent from the first image
    masks[torch.rand(masks.shape, generator=generator) < 0.2] = 255
    return logits, masks


def whole(criterion: ClassLoss, logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    return criterion(logits, masks, criterion.counts(masks))


def written_out(logits, masks, kind, weights) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums and counts of the loss from a copy of the logits for each of its factors."""
    truth = masks.unsqueeze(1) == torch.arange(logits.shape[1]).view(1, -1, 1, 1)
    pixels = regions = logits.new_zeros(())
    if kind in ("ce", "ce+dice", "ce+logdice"):
        pixels = F.cross_entropy(logits, masks, weights, ignore_index=255, reduction="sum")
    if kind == "focal+dice":
        losses = F.cross_entropy(logits, masks, ignore_index=255, reduction="none")
        pixels = ((truth * weights.view(-1, 1, 1)).sum(dim=1) * (1 - torch.exp(-losses)) ** 2 * losses).sum()
    if kind != "ce":
        probs = logits.softmax(dim=1) * (masks != 255).unsqueeze(1)
        overlap, size = (probs * truth).sum(dim=(2, 3)), truth.sum(dim=(2, 3))
        dice = 2 * overlap / (probs.sum(dim=(2, 3)) + size).clamp_min(1e-300)
        if kind == "ce+logdice":
            smoothed = (2 * overlap + 1e-3) / (probs.sum(dim=(2, 3)) + size + 1e-3)
            regions = -(smoothed.log() * (size > 0)).sum()
        else:
            regions = ((1 - dice) * (size > 0)).sum()
    counts = [(truth.sum(dim=(0, 2, 3)) * weights).sum(), truth.flatten(2).any(dim=2).sum()]
    return torch.stack([pixels, regions]), torch.stack(counts)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.5, 1.0, 2.0)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_loss_equals_the_formula_written_out(kind, weights, layout):
    logits, masks = sample()
    masks[3] = 255  # an image of which nothing counts
    criterion = ClassLoss(3, kind, torch.tensor(weights))
    leaves = [logits.clone(memory_format=layout).requires_grad_() for _ in range(2)]
    expected, counts = written_out(leaves[0], masks, kind, torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(criterion.counts(masks), counts.double(), **FLOAT64)
    sums = criterion.sums(leaves[1], masks)
    torch.testing.assert_close(sums, expected, **FLOAT64)
    for terms in (expected, sums):
        (terms * torch.tensor([0.3, 0.7])).sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-12, atol=1e-15)  # of up to 0.6


@pytest.mark.parametrize("kind", LOSSES)
def test_an_empty_step_is_zero(kind):
    logits, masks = sample()
    logits.requires_grad_()
    loss = whole(ClassLoss(3, kind), logits, torch.full_like(masks, 255))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


THREE_POINTS = PointTarget(
    points=torch.tensor([[[0, 0], [0, 1], [0, 2]]], dtype=torch.float64),
    states=torch.full((1, 3), PRESENT),
    size=torch.tensor([[1, 4]]),
    unit=torch.ones(1, 2, dtype=torch.float64),
)
EACH_TASK = [
    (Classes(("a", "b", "c")), ClassTarget(torch.tensor([[[0, 1, 2, 255]]]))),
    (
        PartlyLabeledClasses(("a", "b", "c"), flags=torch.ones(1, 3, dtype=torch.bool)),
        PartlyLabeledTarget(torch.tensor([[[0, 1, 2, 255]]]), torch.tensor([0])),
    ),
    (
        PartlyLabeledClasses(("a", "b", "c"), flags=torch.tensor([[True] * 3, [True, False, False]])),
        PartlyLabeledTarget(torch.tensor([[[0, 1, 2, 255]]]), torch.tensor([1])),
    ),
    (Overlapping(("a", "b", "c")), OverlapTarget(torch.tensor([[[0, 1, 2, 5]]]), torch.tensor([[[7, 7, 3, 7]]]))),
    (Objects(), RenderedObjects(torch.tensor([[[0, 1, 1, 255]]]), torch.tensor([[[0.0, 1.0, 0.5, 0.0]]]))),
    (Landmarks(names=("a", "b", "c"), partners=(0, 1, 2)), THREE_POINTS),
]
TASK_IDS = ["classes", "completely labeled", "partly labeled", "overlapping", "objects", "landmarks"]


@pytest.mark.parametrize(("task", "target"), EACH_TASK, ids=TASK_IDS)
def test_logits_in_half_precision_are_summed_in_float32(task: Task, target):
    logits = (9 * torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(0))).half()
    for half, single in zip(task.partial(logits, target), task.partial(logits.float(), target), strict=True):
        assert half.dtype == single.dtype
        assert half.dtype in (torch.float32, torch.float64)
        assert torch.equal(half, single)


FOCAL = [(replace(task, loss="focal+dice"), target) for task, target in EACH_TASK[:4]]


@pytest.mark.parametrize(
    ("task", "target"), [*EACH_TASK, *FOCAL], ids=[*TASK_IDS, *(f"focal, {name}" for name in TASK_IDS[:4])]
)
def test_gradients_are_those_of_the_loss(task: Task, target):
    logits = torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: task.finish(task.partial(x, target), target), logits.requires_grad_())


def volumes_of(task: Task) -> Target:
    """Targets of two volumes of 2 x 3 x 4."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 3, (2, 2, 3, 4), generator=generator)
    if isinstance(task, PartlyLabeledClasses):
        return PartlyLabeledTarget(numbers, torch.tensor([0, len(task.flags) - 1]))
    if isinstance(task, Overlapping):
        return OverlapTarget(numbers, numbers | 5)
    if isinstance(task, Objects):
        return RenderedObjects(numbers.clamp_max(1), numbers.clamp_max(1) / 2)
    return ClassTarget(numbers)


@pytest.mark.parametrize("task", [task for task, _ in EACH_TASK[:5]], ids=TASK_IDS[:5])
def test_the_loss_of_volumes_is_that_of_their_slices_one_below_the_other(task: Task):
    volumes = volumes_of(task)
    slices = volumes.map_with_unknown(lambda labels, _: labels.flatten(1, 2))
    logits = torch.randn(2, 3, 2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = task.finish(task.partial(logits, volumes), volumes)
    torch.testing.assert_close(sums, task.finish(task.partial(logits.flatten(2, 3), slices), slices), **FLOAT64)
    assert torch.equal(task.counts(volumes), task.counts(slices))


def test_sums_over_many_pixels_lose_nothing_to_float32():
    # added one after the other, four million terms of 0.1 are off by several percent
    logits = torch.tensor([0.1, 0.9]).log().view(1, 2, 1, 1).expand(1, 2, 2048, 2048)
    masks = torch.zeros(1, 2048, 2048, dtype=torch.int64)
    criterion = ClassLoss(2)
    dice = 2 * 0.1 / (0.1 + 1)
    expected = torch.tensor([-math.log(0.1) * 2048**2, 1 - dice], dtype=torch.float64)
    torch.testing.assert_close(criterion.sums(logits, masks).double(), expected, rtol=1e-5, atol=0)  # measured 4e-6
    assert criterion.counts(masks).tolist() == [2048**2, 1]


@pytest.mark.parametrize("size", [1, 300, 2**30])
def test_counts_are_those_of_all_rows_in_any_parts(monkeypatch, size):
    monkeypatch.setattr("tasks.classes.loss.BYTES_AT_ONCE", size)
    masks = torch.tensor([[[0, 0, 1], [0, 255, 0], [0, 2, 2]], [[1, 1, 1], [1, 1, 1], [1, 1, 255]]])
    assert ClassLoss(3, class_weights=torch.tensor([1.0, 2.0, 4.0])).counts(masks).tolist() == [31, 4]


def test_memory_of_counts_has_a_limit_however_many_pixels_there_are():
    masks = torch.zeros(4, 2**12, 2**14, dtype=torch.uint8, device=META)  # 2 GiB as int64
    criterion = ClassLoss(2).to("meta")
    with LargestTensor() as largest:
        criterion.counts(masks)
    assert 0 < largest.bytes <= 2**30


def test_memory_of_many_classes_is_two_numbers_for_each_in_a_pixel():
    logits, bytes_of_tensor = torch.randn(2, 150, 16, 16, requires_grad=True), {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        bytes_of_tensor[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no two share an address
        return tensor

    masks = torch.randint(0, 150, (2, 16, 16))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        ClassLoss(150).sums(logits, masks)
    in_logits = sum(tensor.untyped_storage().nbytes() for tensor in bytes_of_tensor.values()) / (logits.numel() * 4)
    assert in_logits < 2.2  # log-probabilities, probabilities, and what there is once for a pixel


@pytest.mark.parametrize("kind", LOSSES)
def test_the_host_reads_nothing_of_a_device_for_the_loss(kind):
    # the meta device has no values: reading one raises
    logits = torch.zeros(2, 3, 9, 7, device="meta", requires_grad=True)
    masks = torch.zeros(2, 9, 7, dtype=torch.int64, device="meta")
    criterion = ClassLoss(3, kind).to("meta")
    criterion(logits, masks, criterion.counts(masks)).backward()
    assert logits.grad.shape == logits.shape
    with pytest.raises(RuntimeError):
        bool((masks != 255).all())


@pytest.mark.parametrize("far", [1e3, 1e30, -1e3, -1e30], ids=["right", "very sure", "wrong", "wrong and very sure"])
def test_log_dice_of_a_sure_network_is_finite(far):
    masks = torch.randint(0, 2, (2, 8, 8))
    logits = (masks * 2 - 1)[:, None] * torch.tensor([far, -far]).view(1, 2, 1, 1)
    logits.requires_grad_()
    sums = ClassLoss(2, "ce+logdice").sums(logits, masks)
    sums[1].backward()
    assert sums[1].isfinite()
    assert logits.grad.isfinite().all()


def level_of(masks: torch.Tensor, level: int) -> torch.Tensor:
    """The pixel right below and right of the middle of each 2^level x 2^level pixels, found one by one."""
    step, (height, width) = 2**level, masks.shape[1:]
    for _ in range(level):
        height, width = height // 2, width // 2
    rows = [[masks[:, step * y + step // 2, step * x + step // 2] for x in range(width)] for y in range(height)]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def test_the_loss_of_several_levels_is_their_weighted_sum():
    logits, masks = sample()
    level_logits = [logits, torch.randn(4, 3, 4, 3, dtype=torch.float64), torch.randn(4, 3, 2, 1, dtype=torch.float64)]
    criterion = ClassLoss(3, "ce+logdice", strides=((2, 2), (2, 2)))
    expected = sum(
        weight * whole(ClassLoss(3, "ce+logdice"), scores, level_of(masks, level))
        for level, (scores, weight) in enumerate(zip(level_logits, (4 / 7, 2 / 7, 1 / 7), strict=True))
    )
    assert torch.isclose(criterion(level_logits, masks, criterion.step_counts(masks)), expected, **FLOAT64)


def test_pixels_that_weigh_little_are_averaged_by_their_weight():
    logits = torch.tensor([[[[0.0, 2.0]], [[1.0, 0.0]]]], dtype=torch.float64)
    masks = torch.tensor([[[0, 1]]])
    losses = F.cross_entropy(logits, masks, reduction="none")[0, 0]
    criterion = ClassLoss(2, "ce", torch.tensor([0.1, 0.3]))  # together less than 1
    expected = (0.1 * losses[0] + 0.3 * losses[1]) / 0.4
    torch.testing.assert_close(whole(criterion, logits, masks), expected, rtol=1e-6, atol=0)
    nothing = torch.full_like(masks, 255)
    assert whole(criterion, logits, nothing) == 0
