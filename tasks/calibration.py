"""Calibration: counts for a reliability curve and for the expected calibration error.

Each pixel has a confidence, the probability of its class. The pixels are divided into bins by their confidence. Each
bin counts its pixels and its right pixels, and sums their confidences, all as whole numbers: so counts of images and
processes add up exactly, in any order. The expected calibration error is the mean over all pixels of the distance, in
the pixel's bin, between the share of right pixels and the mean confidence (Guo et al., "On Calibration of Modern Neural
Networks", ICML 2017, arXiv:1706.04599).
"""

from typing import Any

import torch
from torch import Tensor

from tasks.confusion import in_parts, sums_by_cell

BINS = 15  # of equal width, as in Guo et al.: ((b - 1) / 15, b / 15]
STEPS = 2**20  # a confidence is counted in whole steps of 1 / STEPS; float32 holds each number of steps exactly


def no_counts(device: torch.device | str = "cpu") -> Tensor:
    """(BINS, 3) int64 zeros, for the pixels, the right pixels, and the sum of confidences in STEPS."""
    return torch.zeros(BINS, 3, dtype=torch.int64, device=device)


def count_confidences(confidence: Tensor, is_right: Tensor, is_counted: Tensor) -> Tensor:
    """The counts (BINS, 3) of some pixels.

    Args:
        confidence, is_right, is_counted: tensors of one shape; confidences are in 0..1, the others are bool.
    """
    counts = no_counts(confidence.device)
    for values, right, counted in in_parts(confidence, is_right, is_counted):
        steps = (values.float() * STEPS).round().long()
        bins = (steps * BINS // STEPS).clamp_max(BINS - 1)  # only the steps 0 and STEPS lie on a border of bins
        bins = torch.where(counted, bins, BINS)  # an additional bin holds the pixels that do not count
        columns = (torch.ones_like(steps), right.long(), steps)
        counts += torch.stack([sums_by_cell(bins, BINS + 1, column) for column in columns], dim=1)[:BINS]
    return counts


def calibration_error(counts: Tensor) -> float | None:
    """The expected calibration error of counts (BINS, 3), in 0..1; None if no pixel was counted."""
    pixels, right, steps = counts.double().cpu().T
    total = pixels.sum().item()
    if not total:
        return None
    return ((right - steps / STEPS).abs().sum() / total).item()


def reliability_curve(counts: Tensor) -> list[dict[str, float]]:
    """Mean confidence, share of right pixels and number of pixels of each bin that has any."""
    curve = []
    for pixels, right, steps in counts.tolist():
        if pixels:
            confidence = steps / STEPS / pixels
            curve.append({"confidence": confidence, "accuracy": right / pixels, "pixels": pixels})
    return curve


def calibration_report(counts: Tensor | None) -> dict[str, Any] | None:
    """The entry of metrics.json for counts (BINS, 3); None if no pixel was counted."""
    if counts is None or not counts.any():
        return None
    return {"expected_calibration_error": calibration_error(counts), "bins": reliability_curve(counts)}
