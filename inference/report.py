"""The scores of all images and volumes: what predict.py prints, and metrics.json."""

from runtime.console import say
from tasks.calibration import calibration_report
from tasks.scoring.areas import area_report, area_table
from tasks.scoring.boundary import boundary_report, case_report, case_table
from tasks.task import Scores

WORST_SHOWN = 5  # images with the worst scores that the terminal lists


def print_scores(scores: Scores) -> dict:
    """Print the table of all scores and the worst images; return the content of metrics.json."""
    compared = scores.compared
    # the worst come first, those without a score last
    by_image = sorted(
        scores.image_entries,
        key=lambda image: (image[compared.key] is None, image[compared.key] or 0.0, image["image"]),
    )
    report = {"images": len(by_image), **scores.report(), "by_image": by_image}
    if scores.boundaries:
        report["boundary"] = boundary_report(scores.boundaries)
    say(scores.table())
    calibration = calibration_report(scores.reliability)
    if calibration:
        report["calibration"] = calibration
        say(f"expected calibration error {calibration['expected_calibration_error']:.4f}")
    cases = [image for image in scores.entries if "dice" in image]  # volumes
    if cases:
        report["by_case"] = case_report(cases, report["classes"], background=scores.background)
        say(case_table(report["by_case"]))
    if scores.areas is not None:
        report["areas"] = area_report(scores.areas, report["classes"], scores.background)
        say(area_table(report["areas"]))
    if len(by_image) > 1:
        say(f"the worst of {len(by_image)} by their {compared.title}:")
    else:
        say("the image:")
    for image in by_image[:WORST_SHOWN]:
        say(f"{compared.title} {compared.text(image)}, {image['image']}")
    return report
