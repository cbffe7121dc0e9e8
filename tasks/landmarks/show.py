"""Landmarks in the report: images with true and predicted points joined by a line."""

import numpy as np

from data_utils.point_states import PRESENT
from data_utils.sources.records import Record
from tasks.drawing import enlarge_picture, point_colors, render_points, to_rgb
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.reader import PointReader
from tasks.section import Section, read_example


class LandmarkSection(Section):
    """What `tasks.landmarks` shows."""

    task_name = "Landmark detection"
    pipeline_tag = "keypoint-detection"
    flags = ()
    usage = "points = predictor.points({source})  # name, position in pixels, presence and confidence of each"
    curves = {  # noqa: RUF012
        "Mean radial error": {"mean": "eval/mean_radial_error", "median": "eval/median_radial_error"},
        "AUROC of presence": {"AUROC": "eval/presence_auroc"},
    }
    good = 0.98  # closeness: errors of a fiftieth of the diagonal
    scores_hint = (
        "Errors are distances between true and predicted places of points that are in the image. A column with <= holds"
        " the share of points that are no further off than so many mm, or percent of the longer side; outliers are"
        " further off than 10 of them. Precision, recall and AUROC are those of whether a point is in the image."
    )
    views_hint = "Closeness is 1 - error / diagonal. Rings are true points, discs predicted ones; a line joins both."

    reader: PointReader

    def __init__(self, reader: PointReader) -> None:
        super().__init__(reader)
        self.names = reader.names
        self.colors = point_colors(len(self.names))

    def description(self) -> str:
        return f"Detection of {len(self.names)} landmarks: {self.listed_names()}."

    def pictures(self, record: Record, pred: np.ndarray) -> dict[str, np.ndarray]:
        """The image without and with its points; of a volume the planes through their middle, with the points."""
        points = PredictedPoints.from_prediction(pred)
        image, target, spacing = read_example(record, self.reader)
        found = points.found_positions(image.shape[: points.shares.shape[1]])
        truth = np.where((target.states == PRESENT)[:, None], target.points, np.nan)
        pictures = {"truth and prediction": render_points(image, found, truth, spacing)}
        if spacing is None:
            pictures = {"image": enlarge_picture(to_rgb(image))[0], **pictures}
        return pictures
