"""How well the boundaries of predicted classes lie: boundary IoU and the 95th percentile of the Hausdorff distance."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.confusion import mean_of_present, ratios
from unet.config import IGNORE_INDEX

DILATION_RATIO = 0.02  # of the diagonal: how wide the boundary is whose IoU is computed (Cheng et al.)
PERCENTILE = 95


class BoundaryScores(NamedTuple):
    """The boundaries of one image, of each class.

    hits, union: (num_classes,) int64, pixels that the boundaries of truth and prediction share, and have together.
    distances: (num_classes,) float64 Hausdorff distance in pixels, NaN where truth or prediction lacks the class.
    missed: (num_classes,) bool, whether one of them alone has the class, so that there is no distance.
    """

    hits: np.ndarray
    union: np.ndarray
    distances: np.ndarray
    missed: np.ndarray

    def to_json(self) -> dict[str, list[float | None]]:
        """Of each class: the scores, None where there is none."""
        return {"boundary_iou": ratios(self.hits, self.union), "hd95": numbers(self.distances)}


def boundary_scores(pred: np.ndarray, truth: np.ndarray, num_classes: int) -> BoundaryScores:
    """Of class indices (H, W); pixels that the truth ignores belong to no class.

    Boundary IoU: Cheng et al., Boundary IoU: Improving Object-Centric Image Segmentation Evaluation (CVPR 2021); a
    boundary is as wide as 2% of the image's diagonal, and the image ends where a class does. Hausdorff distance: the
    larger one of the 95th percentiles of both ways, as in Metrics Reloaded (Maier-Hein et al., Nature Methods 2024).
    """
    from scipy.ndimage import find_objects

    width = max(1, round(DILATION_RATIO * float(np.hypot(*truth.shape))))
    pred = np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred)
    boxes = [find_objects(mask.astype(np.int32) + 1, max_label=num_classes) for mask in (truth, pred)]
    result = BoundaryScores(
        np.zeros(num_classes, np.int64),
        np.zeros(num_classes, np.int64),
        np.full(num_classes, np.nan),
        np.zeros(num_classes, bool),
    )
    for index, found in enumerate(zip(*boxes, strict=True)):
        present = [box for box in found if box is not None]
        if not present:
            continue
        box = tuple(slice(min(s.start for s in axis), max(s.stop for s in axis)) for axis in zip(*present, strict=True))
        true, predicted = (np.pad(mask[box] == index, 1) for mask in (truth, pred))
        result.hits[index], result.union[index] = _boundary_overlap(true, predicted, width)
        if len(present) == 2:
            result.distances[index] = _hausdorff(true, predicted)
        else:
            result.missed[index] = True
    return result


def _boundary_overlap(true: np.ndarray, predicted: np.ndarray, width: int) -> tuple[int, int]:
    """Pixels that both boundaries of masks (H, W) share, and have together; outside of the masks there is nothing."""
    from scipy.ndimage import distance_transform_cdt

    # within `width` erosions by 3 x 3 pixels
    of_true, of_pred = (
        mask & (distance_transform_cdt(mask, metric="chessboard") <= width) for mask in (true, predicted)
    )
    return int((of_true & of_pred).sum()), int((of_true | of_pred).sum())


def _hausdorff(true: np.ndarray, predicted: np.ndarray) -> float:
    """In pixels, between the outermost pixels of two masks (H, W) that are not empty and do not touch the border."""
    from scipy.ndimage import binary_erosion, distance_transform_edt

    edges = [mask & ~binary_erosion(mask) for mask in (true, predicted)]
    ways = zip(edges, reversed(edges), strict=True)
    return max(float(np.percentile(distance_transform_edt(~there)[here], PERCENTILE)) for here, there in ways)


def boundary_report(scores: Sequence[BoundaryScores]) -> dict[str, Any]:
    """Of all images, as JSON: boundary IoU from the summed pixels of each class, mean distance of those that have one.

    `hd95_images` counts the images with a distance, `hd95_missed` those where truth or prediction alone has the class.
    """
    hits, union = (np.sum([getattr(score, name) for score in scores], axis=0) for name in ("hits", "union"))
    distances = np.array([score.distances for score in scores])
    counts = np.isfinite(distances).sum(axis=0)
    iou, hd95 = ratios(hits, union), ratios(np.nansum(distances, axis=0), counts)
    return {
        "mean_boundary_iou": mean_of_present(iou),
        "mean_hd95": mean_of_present(hd95),
        "boundary_iou": iou,
        "hd95": hd95,
        "hd95_images": counts.tolist(),
        "hd95_missed": np.sum([score.missed for score in scores], axis=0).tolist(),
    }


def numbers(values: np.ndarray) -> list[float | None]:
    """Of values (N,); None for NaN."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
