"""The accuracy of predicted boundaries: boundary IoU and the 95th percentile of the Hausdorff distance."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.confusion import mean_of_present, ratios
from unet.config import IGNORE_INDEX

DILATION_RATIO = 0.02  # width of the boundary whose IoU is computed, as a share of the diagonal (Cheng et al.)
PERCENTILE = 95


class BoundaryScores(NamedTuple):
    """The boundaries of one image, class by class.

    Args:
        hits, union: (num_classes,) int64, pixels in the intersection and the union of both boundaries.
        distances: (num_classes,) float64 Hausdorff distance in pixels, NaN where truth or prediction lacks the class.
        missed: (num_classes,) bool, whether only one of both has the class, so that there is no distance.
    """

    hits: np.ndarray
    union: np.ndarray
    distances: np.ndarray
    missed: np.ndarray

    def to_json(self) -> dict[str, list[float | None]]:
        """The scores of each class, None for a class without one."""
        return {"boundary_iou": ratios(self.hits, self.union), "hd95": numbers(self.distances)}


def boundary_scores(pred: np.ndarray, truth: np.ndarray, num_classes: int) -> BoundaryScores:
    """The scores of class indices (H, W); pixels that the truth ignores belong to no class.

    Boundary IoU: Cheng et al., Boundary IoU: Improving Object-Centric Image Segmentation Evaluation (CVPR 2021); a
    boundary is as wide as 2% of the image's diagonal, and the border of the image is a boundary too. Hausdorff
    distance: the larger of the 95th percentiles in both directions, as in Metrics Reloaded (Maier-Hein et al., Nature
    Methods 2024).
    """
    width = max(1, round(DILATION_RATIO * float(np.hypot(*truth.shape))))
    result = BoundaryScores(
        np.zeros(num_classes, np.int64),
        np.zeros(num_classes, np.int64),
        np.full(num_classes, np.nan),
        np.zeros(num_classes, bool),
    )
    for index, true, predicted in masks_of_classes(pred, truth, num_classes):
        result.hits[index], result.union[index] = _boundary_overlap(true, predicted, width)
        if true.any() and predicted.any():
            result.distances[index] = hausdorff(edge_distances(true, predicted))
        else:
            result.missed[index] = True
    return result


def masks_of_classes(
    pred: np.ndarray, truth: np.ndarray, num_classes: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Index, true and predicted mask of each class that one of two arrays of class indices has.

    The masks are those of the smallest box that holds the class in both, and of a pixel around it. Pixels that the
    truth ignores belong to no class.
    """
    from scipy.ndimage import find_objects

    pred = np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred).astype(np.uint8)
    truth = truth.astype(np.uint8, copy=False)
    # the numbers from 1 are objects; of 8 bits, IGNORE_INDEX becomes 0
    boxes = [find_objects(indices + np.uint8(1), max_label=num_classes) for indices in (truth, pred)]
    for index, pair in enumerate(zip(*boxes, strict=True)):
        present = [box for box in pair if box is not None]
        if not present:
            continue
        sides = []
        for slices in zip(*present, strict=True):
            start = min(side.start for side in slices)
            stop = max(side.stop for side in slices)
            sides.append(slice(start, stop))
        box = tuple(sides)
        yield index, np.pad(truth[box] == index, 1), np.pad(pred[box] == index, 1)


def _boundary_overlap(true: np.ndarray, predicted: np.ndarray, width: int) -> tuple[int, int]:
    """The pixels in the intersection and the union of the boundaries of two masks (H, W); beyond them is background."""
    from scipy.ndimage import distance_transform_cdt

    # a boundary is the pixels that `width` erosions by 3 x 3 pixels remove
    true_depth = distance_transform_cdt(true, metric="chessboard")
    predicted_depth = distance_transform_cdt(predicted, metric="chessboard")
    true_boundary = true & (true_depth <= width)
    predicted_boundary = predicted & (predicted_depth <= width)
    shared = true_boundary & predicted_boundary
    either = true_boundary | predicted_boundary
    return int(shared.sum()), int(either.sum())


def edge_distances(
    true: np.ndarray, predicted: np.ndarray, spacing: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances from each edge pixel of one mask to the nearest edge pixel of the other, in both directions.

    The masks, (H, W) or (D, H, W), are not empty and do not touch the border.

    Args:
        spacing: the spacing of pixels along each axis, for distances in mm.
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    true_edge = true & ~binary_erosion(true)
    predicted_edge = predicted & ~binary_erosion(predicted)
    from_true = distance_transform_edt(~predicted_edge, sampling=spacing)[true_edge]
    from_predicted = distance_transform_edt(~true_edge, sampling=spacing)[predicted_edge]
    return from_true, from_predicted


def hausdorff(ways: Sequence[np.ndarray]) -> float:
    """The Hausdorff distance, from the result of `edge_distances`."""
    return float(max(np.percentile(way, PERCENTILE) for way in ways))


def boundary_report(scores: Sequence[BoundaryScores]) -> dict[str, Any]:
    """The report of all images as JSON: boundary IoU from the summed pixels of each class, mean of the distances.

    `hd95_images` counts the images with a distance, `hd95_missed` those where only truth or prediction has the class.
    """
    hits = np.sum([score.hits for score in scores], axis=0)
    union = np.sum([score.union for score in scores], axis=0)
    distances = np.array([score.distances for score in scores])
    counts = np.isfinite(distances).sum(axis=0)
    iou = ratios(hits, union)
    hd95 = ratios(np.nansum(distances, axis=0), counts)
    return {
        "mean_boundary_iou": mean_of_present(iou),
        "mean_hd95": mean_of_present(hd95),
        "boundary_iou": iou,
        "hd95": hd95,
        "hd95_images": counts.tolist(),
        "hd95_missed": np.sum([score.missed for score in scores], axis=0).tolist(),
    }


def numbers(values: np.ndarray) -> list[float | None]:
    """Values (N,) as numbers of JSON, with None for NaN."""
    json_numbers: list[float | None] = []
    for value in values.tolist():
        json_numbers.append(value if np.isfinite(value) else None)
    return json_numbers
