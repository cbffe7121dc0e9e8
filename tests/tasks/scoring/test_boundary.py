"""Boundary IoU and the 95th percentile of the Hausdorff distance, against references that compare every pixel."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.launches import predict

from tasks.scoring.boundary import BoundaryScores, boundary_report, boundary_scores

IGNORED = 255
NAN = float("nan")


def distances(points: np.ndarray, others: np.ndarray, *, chessboard: bool = False) -> np.ndarray:
    """(len(points),) from each point (n, 2) to the nearest of the others."""
    offsets = np.abs(points[:, None] - others[None]).astype(float)
    return (offsets.max(axis=2) if chessboard else np.sqrt((offsets**2).sum(axis=2))).min(axis=1)


def outside(mask: np.ndarray) -> np.ndarray:
    """(n, 2) pixels that are not in the mask, those around the image among them."""
    return np.argwhere(~np.pad(mask, 1)) - 1


def boundary(mask: np.ndarray, width: int) -> np.ndarray:
    """Pixels of a mask that lie within `width` steps, diagonal ones too, of a pixel outside."""
    result = np.zeros_like(mask)
    points = np.argwhere(mask)
    if len(points):
        result[tuple(points.T)] = distances(points, outside(mask), chessboard=True) <= width
    return result


def edge(mask: np.ndarray) -> np.ndarray:
    """(n, 2) pixels of a mask one of whose four neighbors is not in it."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(mask & ~inner)


def masks(seed: int, size: tuple[int, int], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Truth, some of it ignored, and a prediction: boxes that overlap."""
    rng = np.random.default_rng(seed)
    pair = np.zeros((2, *size), np.uint8)
    for index in range(3 * classes):
        top, left = (int(rng.integers(side)) for side in size)
        height, width = rng.integers(1, max(2, size[0] // 2)), rng.integers(1, max(2, size[1] // 2))
        for mask in pair:
            down, right = rng.integers(0, 4, 2)
            mask[top + down : top + down + height, left + right : left + right + width] = index % classes
    pair[0, :3, :5] = IGNORED
    return pair[0], pair[1]


CASES = pytest.mark.parametrize(
    ("seed", "size", "classes"), [(0, (40, 61), 3), (1, (97, 33), 4), (2, (5, 4), 2), (3, (1, 9), 2)]
)


@CASES
def test_boundaries_are_scored_as_by_comparing_every_pixel(seed, size, classes):
    truth, pred = masks(seed, size, classes)
    scores = boundary_scores(pred, truth, classes)
    valid, width = truth != IGNORED, max(1, round(0.02 * (size[0] ** 2 + size[1] ** 2) ** 0.5))
    for index in range(classes):
        true, predicted = truth == index, (pred == index) & valid
        of_true, of_pred = boundary(true, width), boundary(predicted, width)
        assert scores.hits[index] == (of_true & of_pred).sum()
        assert scores.union[index] == (of_true | of_pred).sum()
        assert scores.missed[index] == (true.any() != predicted.any())


def hausdorff_95(true: np.ndarray, predicted: np.ndarray) -> float:
    """The longer 95th percentile of both ways between the edges of two masks; NaN if one is empty."""
    if not (true.any() and predicted.any()):
        return NAN
    ways = (distances(edge(true), edge(predicted)), distances(edge(predicted), edge(true)))
    return max(np.percentile(way, 95) for way in ways)


@CASES
def test_distances_are_scored_as_by_comparing_every_pixel(seed, size, classes):
    truth, pred = masks(seed, size, classes)
    valid = truth != IGNORED
    expected = [hausdorff_95(truth == index, (pred == index) & valid) for index in range(classes)]
    assert boundary_scores(pred, truth, classes).distances == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("size", "width"), [((300, 400), 10), ((30, 40), 1), ((120, 160), 4), ((10, 10), 1), ((70, 110), 3)]
)
def test_a_boundary_is_as_wide_as_two_percent_of_the_diagonal(size, width):
    """As in Boundary IoU by Cheng et al. (CVPR 2021); at least a pixel."""
    height, columns = size
    of_all = boundary_scores(np.zeros(size, np.uint8), np.zeros(size, np.uint8), 1)
    assert of_all.hits[0] == of_all.union[0] == height * columns - (height - 2 * width) * (columns - 2 * width)


FIRST = BoundaryScores(np.array([1, 3]), np.array([4, 3]), np.array([2.0, NAN]), NAN, np.array([False, True]))
SECOND = BoundaryScores(np.array([2, 0]), np.array([2, 3]), np.array([4.0, 3.0]), NAN, np.array([False, False]))


@pytest.mark.parametrize("scores", [[FIRST, SECOND], [SECOND, FIRST]], ids=["in order", "reversed"])
def test_boundaries_are_reported_from_summed_pixels_or_mean_distances(scores):
    assert boundary_report(scores) == {
        "mean_boundary_iou": 0.5,
        "mean_hd95": 3.0,
        "boundary_iou": [0.5, 0.5],
        "hd95": [3.0, 3.0],
        "hd95_images": [2, 1],
        "hd95_missed": [0, 1],
    }


def test_predict_writes_and_prints_scores_of_boundaries(model: Path, photos: Path, tmp_path: Path):
    predict(model, [photos], tmp_path / "truth")
    mask = np.array(Image.open(tmp_path / "truth" / "a.png"))
    shifted = np.roll(mask, 2, axis=1)
    Image.fromarray(shifted).save(tmp_path / "truth" / "a.png")
    result = predict(model, [photos], tmp_path / "out", "--truth", tmp_path / "truth", "--boundary")
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    expected = boundary_scores(*(np.searchsorted((10, 200, 255), each) for each in (mask, shifted)), 3).to_json()
    (of_image,) = [image for image in metrics["by_image"] if image["image"].endswith("photos0/a.png")]
    assert of_image.items() >= {name: expected[name] for name in ("hd95", "boundary_iou")}.items()
    header, *rows = result.stdout[result.stdout.index("class ") :].splitlines()
    assert " ".join(header.split()) == "class IoU Dice bound. IoU HD95 (px) precision recall pixels"
    for name in ("mean_boundary_iou", "mean_hd95"):
        assert f"{metrics['boundary'][name]:.4f}" in rows[3]


def test_boundaries_without_true_masks_are_refused(model: Path, photos: Path, tmp_path: Path, fails_with):
    result = predict(model, [photos], tmp_path / "out", "--boundary")
    fails_with(result, "--boundary needs --truth", 2)
