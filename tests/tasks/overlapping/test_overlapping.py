"""Classes that may overlap: loss and scores against written-out ones, exact however they are split.

Modules: data_utils/bits.py, tasks/overlapping/loss.py,
tasks/overlapping/scores.py, tasks/overlapping/target.py.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.largest_tensor import LargestTensor

from data_utils.bits import pack_bits, unpack_bits
from data_utils.loading.augmentation import augment, pack_augmentations, sample_augmentation
from tasks.classes.target import ClassTarget
from tasks.losses import LOSSES
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.scores import OverlapScores, class_tables
from tasks.overlapping.target import OverlapTarget
from tasks.step_loss import StepLoss

FLOAT64 = {"rtol": 1e-12, "atol": 0}  # sums over a few hundred pixels in another order
NAMES = ("heart", "lung", "bone")


def sample(batch: int = 4, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, OverlapTarget]:
    """Logits, and targets of which each class is unknown in a fifth of the pixels; one is absent from an image."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, classes, 9, 7, generator=generator, dtype=torch.float64) * 3
    known_bits = torch.zeros(batch, 9, 7, dtype=torch.int64)
    truth = torch.zeros_like(known_bits)
    for bit in range(classes):
        is_known = torch.rand(known_bits.shape, generator=generator) < 0.8
        has_class = (torch.rand(known_bits.shape, generator=generator) < 0.4) & is_known
        known_bits |= is_known.long() << bit
        truth |= has_class.long() << bit
    truth[0] &= ~4
    return logits, OverlapTarget(truth, known_bits)


def split(bits: torch.Tensor, classes: int = 3) -> torch.Tensor:
    """(B, classes, H, W) bool."""
    return torch.stack([(bits & 1 << bit) > 0 for bit in range(classes)], dim=1)


def written_out(logits: torch.Tensor, targets: OverlapTarget, kind: str, weights: torch.Tensor) -> torch.Tensor:
    """The loss, class by class and image by image."""
    truth, is_known = split(targets.truth).double(), split(targets.known)
    pixels, pixel_count, regions, pairs = 0.0, 0.0, 0.0, 0
    for index in range(3):
        x, t, k = logits[:, index], truth[:, index], is_known[:, index]
        entropy = F.binary_cross_entropy_with_logits(x, t, reduction="none")
        if kind.startswith("focal"):
            entropy = (1 - torch.exp(-entropy)) ** 2 * entropy
        pixels = pixels + weights[index] * entropy[k].sum()
        pixel_count += weights[index] * k.sum() / 3
        for image in range(len(x)):
            present = k[image]
            p, true = x[image].sigmoid()[present], t[image][present]
            if not true.any():
                continue
            pairs += 1
            hits, area = 2 * (p * true).sum(), p.sum() + true.sum()
            regions = regions + (-((hits + 1e-3) / (area + 1e-3)).log() if "log" in kind else 1 - hits / area)
    return (0 if kind == "dice" else pixels / pixel_count) + (0 if kind == "ce" else regions / pairs)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_that_of_each_class_by_itself(kind):
    logits, targets = sample()
    weights = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    loss = StepLoss(Overlapping(NAMES, kind, weights))
    expected = written_out(logits, targets, kind, weights)
    counts = loss.counts(targets)
    torch.testing.assert_close(loss(logits, targets, counts), expected, **FLOAT64)
    assert counts.dtype == torch.float64  # float32 cannot count beyond 2^24


@pytest.mark.parametrize("far", [1e3, -1e3], ids=["sure that they are there", "sure that they are not"])
def test_the_loss_of_a_sure_network_is_finite(far):
    _, targets = sample()
    logits = torch.full((4, 3, 9, 7), far, requires_grad=True)
    sums = StepLoss(Overlapping(NAMES)).sums(logits, targets)
    sums.sum().backward()
    assert sums.isfinite().all()
    assert logits.grad.isfinite().all()


def scores_of_sample() -> tuple[OverlapScores, list[float], np.ndarray, np.ndarray, np.ndarray]:
    """Scores of four images, the comparison of each alone, and prediction, truth and known pixels of each class."""
    logits, targets = sample(seed=3)
    task = Overlapping(NAMES)
    scores = task.new_scores(4)
    prediction = task.decode(logits)
    comparisons = []
    for index in range(4):
        alone = task.new_scores(1)
        for ours, place in ((scores, index), (alone, 0)):
            ours.add(prediction[[index]], targets.at(slice(index, index + 1)), place)
        comparisons.append(alone.comparison)
    return scores, comparisons, (logits > 0).numpy(), split(targets.truth).numpy(), split(targets.known).numpy()


def test_scores_are_those_of_a_numpy_count():
    scores, _, predicted, truth, is_known = scores_of_sample()
    for index, name in enumerate(NAMES):
        t, f = truth[:, index][is_known[:, index]], predicted[:, index][is_known[:, index]]
        expected = {
            "iou": (t & f).sum() / (t | f).sum(),
            "dice": 2 * (t & f).sum() / (t.sum() + f.sum()),
            "precision": (t & f).sum() / f.sum(),
            "recall": (t & f).sum() / t.sum(),
        }
        assert {metric: scores.values[metric][index] for metric in expected} == pytest.approx(expected, abs=1e-15)
        assert scores.sums[index].sum() == is_known[:, index].sum()
        assert scores.record()[f"eval/iou/{name}"] == scores.values["iou"][index]
    assert scores.comparison == pytest.approx(np.mean(scores.values["iou"]))


def test_the_comparison_of_an_image_is_that_of_scores_of_it_alone():
    scores, comparisons, *_ = scores_of_sample()
    assert scores.image_comparison == pytest.approx(comparisons)
    assert len(set(scores.image_comparison)) == 4


def test_a_class_that_is_nowhere_has_no_score():
    """Scores where two of three pixels of the first class are found, and nothing of the second."""
    truth = torch.tensor([[[1, 3], [0, 1]]], dtype=torch.int32)  # of the classes 0 and 1; class 2 is nowhere
    scores = Overlapping(NAMES).new_scores(1)
    scores.add(torch.tensor([[[1, 1], [0, 0]]]), OverlapTarget(truth, torch.full_like(truth, 7)), 0)
    assert scores.values["iou"] == [2 / 3, 0, None]
    assert scores.comparison == 1 / 3
    assert scores.image_comparison == pytest.approx([1 / 3])
    assert scores.brief() == {"mean_iou": 1 / 3, "mean_dice": pytest.approx(0.4)}


def test_all_31_bits_are_kept():
    rng = np.random.default_rng(0)
    truth, unknown = rng.integers(0, 2**31, (2, 5, 6))
    for values, bits in zip(unpack_bits(pack_bits(truth, unknown & ~truth)), (truth, unknown & ~truth), strict=True):
        assert values.dtype == np.int32
        assert (values == bits).all()


@pytest.mark.parametrize("bit", [0, 7, 29, 30])
def test_bits_are_moved_as_the_mask_of_each_would_be(bit):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 1, 24, 32, generator=generator)
    truth = torch.randint(0, 2**31, (4, 24, 32), generator=generator).int()
    augmentations = [
        sample_augmentation((1, i), strength="strong", seed=0, size=(24, 32), channels=1) for i in range(4)
    ]
    numbers, zero = pack_augmentations(augmentations, 1), torch.zeros(1)
    targets = OverlapTarget(truth, torch.full_like(truth, 2**31 - 1))
    moved = augment(images, targets, augmentations, numbers, fill=zero, std=zero + 1)[1]
    assert moved.truth.dtype == torch.int64
    mask = ClassTarget((truth >> bit & 1).byte())
    expected = augment(images, mask, augmentations, numbers, fill=zero, std=zero + 1)[1].mask
    is_outside = expected == 255
    assert (moved.known[is_outside] == 0).all()
    assert (moved.known[~is_outside] == 2**31 - 1).all()
    differ = (moved.truth >> bit & 1 != expected) & ~is_outside
    assert differ.float().mean() < 1e-3  # ties between two pixels alone


def test_pixels_that_are_counted_in_parts_add_up(monkeypatch):
    _, targets = sample()
    prediction = torch.randint(0, 8, targets.truth.shape, generator=torch.Generator().manual_seed(1))
    whole = class_tables(prediction, targets.truth, targets.known, 3)
    monkeypatch.setattr("tasks.confusion.PIXELS_AT_ONCE", 77)
    assert torch.equal(class_tables(prediction, targets.truth, targets.known, 3), whole)


def test_memory_of_tables_has_a_limit_however_many_pixels_there_are():
    bits = torch.zeros(2**26, dtype=torch.int32, device="meta")
    with LargestTensor() as largest:
        class_tables(bits, bits, bits, 3)
    assert 0 < largest.bytes <= 2**26  # as many as there are pixels


def test_unknown_bits_are_counted_nowhere_though_they_are_set():
    found, truth = torch.tensor([[3, 0, 2, 1, 2]]), torch.tensor([[1, 3, 2, 0, 1]])
    known = torch.tensor([[2, 1, 3, 0, 2]])
    tables = class_tables(found, truth, known, 2)
    assert tables.tolist() == [[[1, 0], [1, 0]], [[0, 2], [0, 1]]]
