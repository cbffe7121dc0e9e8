"""Classes that may overlap, and regions, in the report: their tables, and outlines on the images."""

from typing import Any

import numpy as np

from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.regions import RegionReader
from data_utils.visualize import GREY, RED, darken, outline_classes, palette, to_rgb
from tasks.overlapping import OverlapScores, unpack_bits
from tasks.regions import RegionScores
from train_utils.reporting.rendering import markdown_text, render
from train_utils.reporting.section import Section

METRICS = ("iou", "dice", "precision", "recall")
TRUE = 1  # the row, and the column, of pixels that belong to the class


class OverlapSection(Section[OverlapScores]):
    """The section of reports on `tasks.overlapping`."""

    task_name = "Semantic segmentation"
    tags = ("semantic-segmentation",)
    mask_values = "bits, the first class in the lowest"
    flags = ("loss", "class_weights")
    curves = {"Validation scores": {"mean IoU": "eval/mean_iou", "mean Dice": "eval/mean_dice"}}  # noqa: RUF012
    means = {"mean_iou": "Mean IoU", "mean_dice": "Mean Dice"}  # noqa: RUF012
    score_key = "eval/mean_iou"
    views_hint = "Errors: pixels with a class too many or too few are red, those of which nothing is known grey."

    def __init__(self, reader: OverlapReader) -> None:
        super().__init__(reader)
        self.names = reader.names
        self.colors = palette(len(self.names) + 1)[1:]

    def description(self) -> str:
        names = ", ".join(map(markdown_text, self.names))
        return f"Semantic segmentation into {len(self.names)} classes, of which a pixel may have several: {names}."

    def unfound(self, scores: OverlapScores) -> list[str]:
        return scores.missed_classes()

    def views(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        bits, unknown_bits = unpack_bits(truth)
        all_bits = 2 ** len(self.names) - 1
        wrong_bits = (bits ^ pred) & ~unknown_bits & all_bits
        errors = darken(image)
        errors[wrong_bits != 0] = RED
        errors[unknown_bits & all_bits == all_bits] = GREY
        return {
            "image": to_rgb(image),
            "truth": outline_classes(image, bits, self.colors),
            "prediction": outline_classes(image, pred, self.colors),
            "errors": errors,
        }

    def html(self, scores: OverlapScores) -> str:
        return render("overlapping.html.jinja", tables=self.tables(scores))

    def markdown(self, scores: OverlapScores) -> str:
        means = {metric.label: metric.value for metric in self.metrics(scores)}
        return render("overlapping.md.jinja", means=means, tables=self.tables(scores))

    def tables(self, scores: OverlapScores) -> list[dict[str, Any]]:
        """The tables of the report and the card."""
        counts = scores.sums[: len(self.names)].numpy()
        return [table("class", self.names, self.colors, scores.values, counts)]


class RegionSection(OverlapSection):
    """The section of reports on `tasks.regions`."""

    mask_values = "bits of the regions, the first one in the lowest"

    def __init__(self, reader: RegionReader) -> None:
        Section.__init__(self, reader)
        self.names = tuple(region.name for region in reader.regions)
        self.regions = reader.identity
        self.colors = palette(len(self.names) + 1)[1:]

    def description(self) -> str:
        regions = ", ".join(map(markdown_text, self.regions))
        return (
            f"Semantic segmentation into {len(self.names)} regions, unions of labels: {regions}. Masks are written as"
            " labels: later regions lie over earlier ones, each as its first value."
        )

    def tables(self, scores: OverlapScores) -> list[dict[str, Any]]:
        assert isinstance(scores, RegionScores)
        regions = super().tables(scores)[0] | {"title": "region"}
        label_counts = scores.sums[len(self.names) :].numpy()
        labels = table("written label", scores.labels, self.colors, scores.label_values, label_counts)
        return [regions, labels]


def table(
    title: str, names: tuple[str, ...] | list[str], colors: np.ndarray, values: dict[str, Any], counts: np.ndarray
) -> dict[str, Any]:
    """A table with a row for each class, and the means; `counts` (N, 2, 2) are the classes' counts of pixels."""
    rows = []
    for index, name in enumerate(names):
        rows.append(
            {
                "name": name,
                "color": f"rgb{tuple(colors[index].tolist())}",
                "scores": [values[metric][index] for metric in METRICS],
                "pixels": int(counts[index, TRUE].sum()),
                "counts": counts[index].ravel().tolist(),
            }
        )
    return {"title": title, "rows": rows, "mean_iou": values["mean_iou"], "mean_dice": values["mean_dice"]}
