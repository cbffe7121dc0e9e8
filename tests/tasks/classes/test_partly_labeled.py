"""Images that are labeled for some classes only: what the loss takes of them, and what they are scored by."""

import numpy as np
import pytest
import torch

from tasks.classes.loss import Classes, PartlyLabeledClasses
from tasks.classes.scores import PartlyLabeledScores
from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.losses import LOSSES, SMOOTHING
from tasks.step_loss import StepLoss

NAMES = ("background", "car", "dog", "person")
FLAGS = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]]).bool()
SETS = (0, 1, 2, 1, 3)  # the set of each image of a batch
SIZE = (6, 8)


def batch(seed: int = 0) -> tuple[torch.Tensor, PartlyLabeledTarget]:
    """Logits in float64, and targets with all classes and some unknown pixels in each image."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(len(SETS), len(NAMES), *SIZE, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, len(NAMES), (len(SETS), *SIZE), generator=generator)
    mask[:, 0, :3] = 255
    return logits, PartlyLabeledTarget(mask, torch.tensor(SETS))


def reference(logits: np.ndarray, mask: np.ndarray, kind: str, weights: list[float]) -> tuple[float, float]:
    """Both terms of the loss, image by image and pixel by pixel, as the documentation has them."""
    pixel_term, region_term = kind.partition("+")[0], kind.rpartition("+")[2]
    pixels = count = regions = pairs = 0.0
    for image_logits, image_mask, number in zip(logits, mask, SETS, strict=True):
        labeled = FLAGS[number].tolist()
        probs = np.exp(image_logits) / np.exp(image_logits).sum(axis=0)
        for row, column in np.argwhere(image_mask != 255):
            truth = image_mask[row, column]
            members = [truth] if labeled[truth] else [c for c in range(len(NAMES)) if not labeled[c]]
            prob = probs[members, row, column].sum()
            weight = weights[truth] if labeled[truth] else 1.0
            count += weight
            if pixel_term != "dice":
                pixels -= weight * (1 - prob) ** (2 if pixel_term == "focal" else 0) * np.log(prob)
        is_known = image_mask != 255
        for c in range(len(NAMES)):
            true = (image_mask == c) & is_known
            if not labeled[c] or not true.any():
                continue
            pairs += 1
            overlap, total = probs[c][true].sum(), probs[c][is_known].sum() + true.sum()
            if region_term == "logdice":
                regions += np.log(total + SMOOTHING) - np.log(2 * overlap + SMOOTHING)
            elif region_term == "dice":
                regions += 1 - 2 * overlap / total
    return pixels / count, regions / pairs


@pytest.mark.parametrize("kind", LOSSES)
def test_pixels_of_other_classes_are_learned_as_none_of_the_labeled_ones(kind):
    logits, targets = batch()
    weights = [0.5, 1.0, 2.0, 3.0]
    task = PartlyLabeledClasses(NAMES, kind, torch.tensor(weights), flags=FLAGS)
    loss = StepLoss(task)
    counts = loss.counts(targets)
    sums = loss.sums(logits, targets) / counts
    expected = reference(logits.numpy(), targets.mask.numpy(), kind, weights)
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", LOSSES)
def test_completely_labeled_images_are_learned_as_without_label_files(kind):
    logits, targets = batch()
    complete = PartlyLabeledTarget(targets.mask, torch.zeros(len(SETS), dtype=torch.int64))
    gradients = []
    for task, truth in (
        (PartlyLabeledClasses(NAMES, kind, flags=FLAGS), complete),
        (Classes(NAMES, kind), ClassTarget(targets.mask)),
    ):
        leaf = logits.float().requires_grad_()
        loss = StepLoss(task)
        loss(leaf, truth, loss.counts(truth)).backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def predictions(seed: int) -> torch.Tensor:
    return torch.randint(0, len(NAMES), (len(SETS), *SIZE), generator=torch.Generator().manual_seed(seed))


def scores_of_batch() -> tuple[PartlyLabeledScores, np.ndarray, np.ndarray]:
    """The scores of all images, with their true and predicted masks (B, H, W)."""
    _, targets = batch()
    preds = predictions(1)
    scores = PartlyLabeledClasses(NAMES, flags=FLAGS).new_scores(len(SETS))
    for index in range(len(SETS)):
        scores.add(preds[index][None], targets.at(index).as_batch(), index)
    return scores, targets.mask.numpy(), preds.numpy()


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_each_class_is_scored_on_the_images_that_are_labeled_for_it(index):
    scores, truth, pred = scores_of_batch()
    images = [image for image, number in enumerate(SETS) if FLAGS[number, index]]
    is_known = truth[images] != 255
    true, predicted = (truth[images] == index) & is_known, (pred[images] == index) & is_known
    assert scores.values["iou"][index] == (true & predicted).sum() / (true | predicted).sum()
    assert scores.values["recall"][index] == (true & predicted).sum() / true.sum()
    assert scores.values["precision"][index] == (true & predicted).sum() / predicted.sum()
    assert scores.counts[0][index] == (true & predicted).sum()
    negatives = scores.sums[index, -1] - (true | predicted).sum()
    assert negatives == (is_known & ~true & ~predicted).sum()


def test_the_confusion_matrix_is_that_of_completely_labeled_images():
    scores, truth, pred = scores_of_batch()
    complete = truth[0] != 255
    expected = np.zeros((len(NAMES), len(NAMES)), int)
    np.add.at(expected, (truth[0][complete], pred[0][complete]), 1)
    assert scores.report()["confusion_matrix"] == expected.tolist()


def test_an_image_is_compared_by_the_classes_that_it_is_labeled_for():
    scores, truth, pred = scores_of_batch()
    true, predicted = truth[1] == 1, (pred[1] == 1) & (truth[1] != 255)  # the second is labeled for cars
    assert scores.image_comparison[1] == pytest.approx((true & predicted).sum() / (true | predicted).sum())


def test_a_class_that_no_image_is_labeled_for_has_no_score():
    """The scores of an image that is labeled for cars."""
    scores_of_cars = PartlyLabeledClasses(NAMES, flags=FLAGS).new_scores(1)
    scores_of_cars.add(predictions(1)[:1], batch()[1].at(slice(1, 2)), 0)
    (table,) = scores_of_cars.score_tables()
    assert "No image is labeled for background, dog, person" in table.note
    assert [value is None for value in scores_of_cars.values["iou"]] == [True, False, True, True]
    assert scores_of_cars.matrix.sum() == 0
    assert scores_of_cars.record()["eval/iou/dog"] is None
    assert scores_of_cars.comparison == scores_of_cars.values["iou"][1]
