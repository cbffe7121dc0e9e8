"""The scores of all images and volumes: what predict.py prints, and metrics.json."""

from typing import NamedTuple

import numpy as np

from runtime.console import say
from tasks.calibration import calibration_report
from tasks.confusion import score_text
from tasks.scoring.areas import area_report, area_table
from tasks.scoring.boundary import BoundaryScores, boundary_report, case_report, case_table
from tasks.task import Scores

WORST_SHOWN = 5  # images with the worst scores that the terminal lists


class ScoredImage(NamedTuple):
    """The entry of metrics.json for an image or volume, and the sums over all of them."""

    report: dict
    boundary: BoundaryScores | None
    areas: np.ndarray | None


def print_scores(scores: Scores, compared_by: str, scored: list[ScoredImage]) -> dict:
    """Print the table of all scores and the worst images; return the content of metrics.json."""
    score_name = next(iter(scores.brief()))  # the score that sorts images
    images = [image.report for image in scored]
    # the worst come first, those without a score last
    by_image = sorted(images, key=lambda image: (image[score_name] is None, image[score_name] or 0.0, image["image"]))
    report = {"images": len(by_image), **scores.report(), "by_image": by_image}
    boundaries = [image.boundary for image in scored if image.boundary]
    if boundaries:
        report["boundary"] = scores.boundary = boundary_report(boundaries)
    say(scores.table())
    calibration = calibration_report(scores.reliability)
    if calibration:
        report["calibration"] = calibration
        say(f"expected calibration error {calibration['expected_calibration_error']:.4f}")
    cases = [image for image in images if "dice" in image]  # volumes
    if cases:
        report["by_case"] = case_report(cases, report["classes"], has_background=scores.has_background)
        say(case_table(report["by_case"]))
    areas = [image.areas for image in scored if image.areas is not None]
    if areas:
        report["areas"] = area_report(areas, report["classes"])
        say(area_table(report["areas"]))
    if len(by_image) > 1:
        say(f"the worst of {len(by_image)} by their {compared_by}:")
    else:
        say("the image:")
    for image in by_image[:WORST_SHOWN]:
        say(f"{compared_by} {score_text(image[score_name])}, {image['image']}")
    return report
