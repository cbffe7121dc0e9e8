"""Boundary IoU and the 95th percentile of the Hausdorff distance, against references that compare every pixel."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import launch, predict
from PIL import Image

from inference.scoring.boundary import BoundaryScores, boundary_report, boundary_scores, enclosing_box, numbers
from inference.scoring.volume import surface_scores

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


@pytest.mark.parametrize(
    ("seed", "size", "classes"), [(0, (40, 61), 3), (1, (97, 33), 4), (2, (5, 4), 2), (3, (1, 9), 2)]
)
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
        if true.any() and predicted.any():
            ways = (distances(edge(true), edge(predicted)), distances(edge(predicted), edge(true)))
            expected = max(np.percentile(way, 95) for way in ways)
            assert scores.distances[index] == pytest.approx(expected, abs=1e-12)
        else:
            assert np.isnan(scores.distances[index])


@pytest.mark.parametrize(
    ("size", "width"), [((300, 400), 10), ((30, 40), 1), ((120, 160), 4), ((10, 10), 1), ((70, 110), 3)]
)
def test_a_boundary_is_as_wide_as_two_percent_of_the_diagonal(size, width):
    """As in Boundary IoU by Cheng et al. (CVPR 2021); at least a pixel."""
    height, columns = size
    of_all = boundary_scores(np.zeros(size, np.uint8), np.zeros(size, np.uint8), 1)
    assert of_all.hits[0] == of_all.union[0] == height * columns - (height - 2 * width) * (columns - 2 * width)


def test_a_class_that_is_nowhere_or_in_one_mask_only_has_no_distance():
    truth, pred = np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.uint8)
    truth[2:6, 2:6] = 1  # missed
    pred[10:15, 10:15] = 2  # invented
    of_both = [boundary_scores(pred, truth, 4), boundary_scores(truth, truth, 4)]
    report = boundary_report(of_both)
    assert report["hd95_images"] == [2, 1, 0, 0]
    assert report["hd95_missed"] == [0, 1, 1, 0]
    assert report["hd95"][1:] == [0, None, None]
    assert report["hd95"][0] > 0
    assert report["boundary_iou"][2:] == [0, None]
    assert report["boundary_iou"][1] == 0.5  # the square is found in one image of two
    assert report["mean_boundary_iou"] == sum(report["boundary_iou"][:3]) / 3
    assert report["mean_hd95"] == sum(report["hd95"][:2]) / 2
    assert of_both[0].to_json()["hd95"][1:] == [None, None, None]


def test_boundaries_are_reported_from_summed_pixels_and_mean_distances():
    first = BoundaryScores(np.array([1, 3]), np.array([4, 3]), np.array([2.0, NAN]), np.array([False, True]))
    second = BoundaryScores(np.array([2, 0]), np.array([2, 3]), np.array([4.0, 3.0]), np.array([False, False]))
    for scores in ([first, second], [second, first]):
        assert boundary_report(scores) == {
            "mean_boundary_iou": 0.5,
            "mean_hd95": 3.0,
            "boundary_iou": [0.5, 0.5],
            "hd95": [3.0, 3.0],
            "hd95_images": [2, 1],
            "hd95_missed": [0, 1],
        }
    missed = BoundaryScores(np.array([0]), np.array([0]), np.array([NAN]), np.array([True]))
    report = boundary_report([missed])
    assert report["mean_boundary_iou"] is report["mean_hd95"] is report["hd95"][0] is None
    assert (report["hd95_images"], report["hd95_missed"]) == ([0], [1])


def test_small_helpers_of_scores():
    assert enclosing_box([(slice(3, 5), slice(1, 9)), (slice(4, 8), slice(2, 4))]) == (slice(3, 8), slice(1, 9))
    assert numbers(np.array([1.5, NAN, 0.0, np.inf])) == [1.5, None, 0.0, None]


def test_ignored_pixels_belong_to_no_class_and_what_one_mask_alone_has_is_missed():
    truth = np.zeros((20, 20), np.uint8)
    pred = np.zeros((20, 20), np.uint8)
    truth[:5, :5] = 255
    pred[:5, :5] = 1  # only there
    pred[10:12, 10:12] = 2
    scores = boundary_scores(pred, truth, 3)
    assert scores.missed.tolist() == [False, False, True]
    assert scores.union.tolist()[1:] == [0, 4]
    assert scores.distances[0] >= 0
    assert np.isnan(scores.distances[1:]).all()


def test_the_distance_is_the_longer_of_both_ways():
    truth = np.zeros((9, 40), np.uint8)
    truth[4, 5] = 1
    pred = truth.copy()
    pred[4, 25] = 1  # 20 pixels away: only the way from the prediction is long
    for one, other in ((pred, truth), (truth, pred)):
        assert boundary_scores(one, other, 2).distances[1] == pytest.approx(19)  # the 95th percentile of 0 and 20
    volume = surface_scores(pred[None], truth[None], 2, (1.0, 1.0, 0.5))
    assert volume.hd95[1] == pytest.approx(9.5)
    assert volume.dice[1].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert not volume.missed.any()


def test_predict_scores_boundaries_on_any_number_of_processes(model: Path, photos: Path, tmp_path: Path):
    truth = tmp_path / "truth"
    predict(model, [photos], truth)
    mask = np.array(Image.open(truth / "a.png"))
    Image.fromarray(np.roll(mask, 2, axis=1)).save(truth / "a.png")
    boundary_records = []
    for output, profile in (("one", None), ("two", "multi_cpu"), ("one", None)):  # the third scores what is there
        result = predict(model, [photos], tmp_path / output, "--truth", truth, "--boundary", profile=profile)
        assert result.returncode == 0, result.stderr
        header, *rows = result.stdout[result.stdout.index("class ") :].splitlines()
        assert " ".join(header.split()) == "class IoU Dice bound. IoU HD95 (px) precision recall pixels"
        boundary_records.append(json.loads((tmp_path / output / "metrics.json").read_text()))
    assert boundary_records[0] == boundary_records[1]
    calibration = boundary_records[0].pop("calibration")
    assert calibration
    assert boundary_records[0] == boundary_records[2]  # of masks that are there nobody knows how sure they were
    expected = boundary_scores(*(np.searchsorted((10, 200, 255), m) for m in (mask, np.roll(mask, 2, axis=1))), 3)
    of_image = next(image for image in boundary_records[0]["by_image"] if image["image"].endswith("photos0/a.png"))
    assert of_image["hd95"] == expected.to_json()["hd95"]
    assert of_image["boundary_iou"] == expected.to_json()["boundary_iou"]
    means = boundary_records[0]["boundary"]
    assert f"{means['mean_boundary_iou']:.4f}" in rows[3]
    assert f"{means['mean_hd95']:.4f}" in rows[3]


def test_boundaries_without_true_masks_are_refused(model: Path, photos: Path, tmp_path: Path, fails_with):
    result = launch("predict.py", "--model", model, "--input", photos, "--output", tmp_path / "out", "--boundary")
    fails_with(result, "--boundary needs --truth", 2)
