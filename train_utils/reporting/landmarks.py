"""Landmarks in the report: the errors of each, and images with true and predicted points joined by a line."""

from typing import Any

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume
from data_utils.sources.records import Record
from data_utils.targets.points import PointReader
from data_utils.visualize import to_rgb
from data_utils.visualize_points import enlarge_picture, point_colors, render_points, render_volume_points
from inference.decoding.landmarks import PredictedPoints
from inference.predictor import Predictor
from tasks.point_scores import ERROR, FOUND, STATE, LandmarkScores, error_text, score_cell, score_titles
from tasks.points import PRESENT, PointTarget
from train_utils.reporting.charts import error_plot
from train_utils.reporting.rendering import markdown_text, render
from train_utils.reporting.section import Example, Metric, Section


class LandmarkSection(Section[LandmarkScores]):
    """The section of reports on `tasks.landmarks`."""

    task_name = "Keypoint detection"
    pipeline_tag = "keypoint-detection"
    tags = ("landmark-detection",)
    answer = "points = predictor.points({source})  # name, position in pixels, presence and confidence of each"
    curves = {  # noqa: RUF012
        "Mean radial error": {"mean": "eval/mean_radial_error", "median": "eval/median_radial_error"},
        "AUROC of presence": {"AUROC": "eval/presence_auroc"},
    }
    gains_from_encoder = False
    score_key = "eval/closeness"
    image_score = "closeness"
    good = 0.98  # closeness: errors of a fiftieth of the diagonal
    views_hint = "Rings are true points, discs predicted ones; a line joins both."

    reader: PointReader

    def __init__(self, reader: PointReader) -> None:
        super().__init__(reader)
        self.names = reader.names
        self.unit = reader.landmarks.unit

    def description(self) -> str:
        names = ", ".join(map(markdown_text, self.names))
        return f"Detection of {len(self.names)} landmarks: {names}."

    def metrics(self, scores: LandmarkScores) -> list[Metric]:
        values = scores.values()
        metrics = [
            Metric("mean_radial_error", f"Mean radial error ({self.unit})", values["mean_radial_error"]),
            Metric("median_radial_error", f"Median radial error ({self.unit})", values["median_radial_error"]),
        ]
        if values["presence_auroc"] is not None:  # some points are absent
            metrics.append(Metric("presence_auroc", "AUROC of presence", values["presence_auroc"]))
        return metrics

    def example(self, info: DatasetInfo, index: int, predictor: Predictor) -> Example:
        record = info.val.records[index]
        name = record["name"]
        if info.val.records.dims == 3:
            return self._volume_example(record, predictor)
        image = read_image(record["image"], name)
        size = image.shape[:2]
        truth = info.reader.read(record, size, size)
        prediction = predictor.predict_rows(record["image"], name)
        points = PredictedPoints.from_prediction(prediction)
        return Example(name, image, truth, np.column_stack([points.positions(size), points.presence]))

    def _volume_example(self, record: Record, predictor: Predictor) -> Example:
        """A volume as three planes through the middle of its points, with the points picture on them."""
        name = record["name"]
        voxels, header = read_volume(record["image"], name)
        truth = self.reader.read_volume(record, header)
        points = PredictedPoints.from_prediction(predictor.predict_rows(record["image"], name))
        positions = points.positions(header.size)
        is_present = truth.states == PRESENT
        picture = render_volume_points(voxels, header.spacing, positions, points.is_found, truth.points, is_present)
        return Example(name, picture, None, None)

    def views(self, image: np.ndarray, truth: PointTarget | None, pred: np.ndarray) -> dict[str, np.ndarray]:
        if truth is None:  # of a volume
            return {"truth and prediction": image}
        picture = render_points(image, pred[:, :-1], pred[:, -1] >= FOUND, truth.points, truth.states == PRESENT)
        return {"image": enlarge_picture(to_rgb(image))[0], "truth and prediction": picture}

    def html(self, scores: LandmarkScores) -> str:
        colors = [f"rgb{tuple(color)}" for color in point_colors(len(self.names)).tolist()]
        return render(
            "landmarks.html.jinja",
            titles=score_titles(self.unit).values(),
            rows=self._rows(scores),
            colors=colors,
            plot=error_plot(self._errors(scores), self.unit),
            mean=error_text(scores.values()["mean_radial_error"], self.unit),
        )

    def markdown(self, scores: LandmarkScores) -> str:
        return render("landmarks.md.jinja", titles=score_titles(self.unit).values(), rows=self._rows(scores))

    def _rows(self, scores: LandmarkScores) -> list[dict[str, Any]]:
        """The table of the scores: a row for each landmark, then one for all."""
        rows = []
        for landmark, name in [*enumerate(self.names), (None, "all")]:
            values = scores.values(landmark)
            cells = [score_cell(key, values[key]) for key in score_titles(self.unit)]
            rows.append({"name": name, "cells": cells})
        return rows

    def _errors(self, scores: LandmarkScores) -> dict[str, np.ndarray]:
        """The errors of the present points of each landmark."""
        errors = {}
        for landmark, name in enumerate(self.names):
            points = scores.by_image[:, landmark]
            errors[name] = points[points[:, STATE] == PRESENT, ERROR].numpy()
        return errors
