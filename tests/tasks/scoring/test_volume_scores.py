"""Scores of volumes: surfaces and overlaps of each case, and the report of all cases.

Modules: tasks/scoring/boundary.py, inference/report.py.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import label
from support.formats import class_format, format_of
from support.prediction import matrix_of, score_labels, scores_of, volume_job
from support.volumes import write_volume

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import RenderedMask
from inference.report import print_scores
from runtime.errors import DataError
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.target import OverlapTarget
from tasks.scoring.boundary import boundary_scores, case_report, case_table, volume_entry
from unet.config import Preprocess, UNetConfig

SKY_AND_LAND = class_format(("sky", "land"), (0, 7))
TASK = Classes(("sky", "land"))
PRED = np.random.default_rng(0).integers(0, 2, (3, 4, 5), np.uint8)
TRUTH = np.random.default_rng(1).integers(0, 2, (3, 4, 5), np.uint8)


@pytest.fixture(params=["truth.nii", "truth.npy", "TRUTH.NPY"])
def true_file(tmp_path, request) -> Path:
    """A true mask in a file; an array holds no spacing: that of the volume counts."""
    write_volume(tmp_path / "truth.nii", 7 * TRUTH)
    np.save(tmp_path / "truth.npy", 7 * TRUTH)
    (tmp_path / "TRUTH.NPY").write_bytes((tmp_path / "truth.npy").read_bytes())
    return tmp_path / request.param


def test_a_volume_is_scored_by_all_its_slices_and_its_surfaces_with_its_own_spacing(tmp_path, true_file):
    scores = score_labels(SKY_AND_LAND, TASK, volume_job(tmp_path, true_file), PRED)
    assert scores.sums.tolist() == matrix_of(PRED, TRUTH, 2)
    assert "hd95_mm" not in scores.entries[0]
    scores = score_labels(SKY_AND_LAND, TASK, volume_job(tmp_path, true_file), PRED, boundary=True)
    assert scores.entries[0]["hd95_mm"][1] == boundary_scores(PRED, TRUTH, 2, (2.0, 1.0, 1.0)).distances[1]


def test_voxels_that_the_truth_ignores_have_no_surface(tmp_path):
    truth, pred = np.zeros((2, 3, 4, 5), np.uint8)
    truth[0], pred[0] = 9, 1
    truth[2, 2, 2], pred[2, 2, 2] = 7, 1
    output_format = format_of(ClassReader(ClassMap(("sky", "land"), (0, 7), 9)))
    job = volume_job(tmp_path, write_volume(tmp_path / "truth.nii", truth))
    (entry,) = score_labels(output_format, TASK, job, pred, boundary=True).entries
    assert entry["hd95_mm"][1] == 0
    assert [entry[f"surface_dice_{mm}mm"][1] for mm in (1, 2)] == [1, 1]


EMPTY = np.zeros((3, 4, 5), np.uint8)


@pytest.mark.parametrize(
    ("truth", "spacing", "line"),
    [
        (EMPTY[:2], (2.0, 1.0, 1.0), r"truth\.nii: image is 3 x 4 x 5, its label 2 x 4 x 5"),
        (EMPTY[:, :, :4], (2.0, 1.0, 1.0), r"truth\.nii: image is 3 x 4 x 5, its label 3 x 4 x 4"),
        (EMPTY, (3.0, 1.0, 1.0), r"truth\.nii: the affines of image and label differ"),
    ],
    ids=["shorter", "narrower", "coarser"],
)
def test_true_masks_of_another_size_or_grid_cannot_be_used(tmp_path, truth, spacing, line):
    job = volume_job(tmp_path, write_volume(tmp_path / "truth.nii", truth, spacing))
    with pytest.raises(DataError, match=line):
        score_labels(SKY_AND_LAND, TASK, job, EMPTY)


def test_annotations_are_no_true_mask_of_a_volume(tmp_path):
    class Drawn(RenderedMask):
        """A mask of an image."""

        def render(self) -> np.ndarray:
            return np.zeros((4, 5), np.uint8)

    job = replace(volume_job(tmp_path, None), truth=Drawn())
    with pytest.raises(DataError, match="are a label volume, and no annotations"):
        score_labels(SKY_AND_LAND, TASK, job, EMPTY)


OVERLAPS = [
    {"image": "a", "dice": [1.0, 0.25], "iou": [1.0, 0.5]},
    {"image": "b", "dice": [1.0, None], "iou": [1.0, 1.0]},
]


def test_a_table_of_cases_has_a_line_for_each_class():
    lines = case_table(case_report(OVERLAPS, ["sky", "land"])).splitlines()
    assert [line.split() for line in lines] == [
        ["of", "cases", "Dice", "IoU", "cases"],
        ["land", "0.2500", "0.7500", "1"],
        ["mean", "without", "background", "0.2500", "0.7500", "2"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_classes_that_overlap_have_no_background_in_the_report_of_cases(capsys):
    scores = Overlapping(("a", "b")).new_scores(1)
    truth = OverlapTarget(torch.tensor([[[1, 1, 2, 0]]]), torch.tensor([[[3, 3, 3, 3]]]))
    scores.add(torch.tensor([[[1, 0, 2, 0]]]), truth, 0)
    case = {"image": "v", **scores.brief(), **volume_entry(scores, None)}
    assert case["mean_dice"] == pytest.approx((2 / 3 + 1) / 2)
    scores.entries.append(case)
    report = print_scores(scores)
    assert report["by_case"]["classes"] == ["a", "b"]
    assert report["by_case"]["mean_dice"] == case["mean_dice"]


def test_the_mean_dice_of_a_volume_leaves_the_background_out():
    result = volume_entry(scores_of([90, 10, 0], [5, 15, 0], [0, 0, 0]), None)
    assert result["mean_dice"] == 30 / 45
    assert result["dice"] == [180 / 195, 30 / 45, None]


@pytest.mark.parametrize(
    ("names", "values", "scored"),
    [
        (("sky", "land"), (0, 7), ["land"]),
        (("land", "background"), (7, 0), ["land"]),
        (("sea", "land"), (3, 7), ["sea", "land"]),
    ],
    ids=["the value 0", "the name, in any place", "none"],
)
def test_cases_and_areas_leave_out_the_background_alone(tmp_path, names, values, scored):
    preprocess = Preprocess(class_names=names, class_values=values)
    task = Classes.from_config(UNetConfig(num_classes=2, preprocess=preprocess))
    truth = write_volume(tmp_path / "truth.nii", np.array(values, np.uint8)[TRUTH])
    scores = score_labels(class_format(names, values), task, volume_job(tmp_path, truth), PRED, boundary=True)
    report = print_scores(scores)
    (case,) = report["by_image"]
    chosen = [names.index(name) for name in scored]
    assert [index for index, distance in enumerate(case["hd95_mm"]) if distance is not None] == chosen
    assert case["mean_dice"] == report["by_case"]["mean_dice"] == np.mean([case["dice"][index] for index in chosen])
    assert report["by_case"]["classes"] == scored
    areas = {name: row["areas"] for name, row in report["areas"]["by_class"].items()}
    assert areas == {name: label(names.index(name) == TRUTH)[1] for name in scored}


@pytest.mark.parametrize(("shift", "dice"), [(1, [1.0, 1.0]), (2, [0.5, 1.0]), (3, [0.5, 0.5])])
def test_surfaces_within_a_tolerance_count_as_the_same(shift, dice):
    truth, pred = np.zeros((2, 12, 3, 3), np.uint8)
    truth[[2, 6], 1, 1] = 1  # two voxels, one of them found elsewhere
    pred[2, 1, 1] = pred[6 + shift, 1, 1] = 1
    spacing = (1.0000001, 5.0, 5.0)  # as float32 in the header of a turned volume may give it
    scores = boundary_scores(pred, truth, 2, spacing)
    assert scores.dice[1].tolist() == dice
    assert not scores.missed[1]
    assert np.isnan(scores.distances[0])
    assert scores.distances[1] == pytest.approx(0.95 * shift)


def case(name: str, dice: list[float | None], hd95: list[float | None], missed: list[bool]) -> dict:
    return {"image": name, "dice": dice, "iou": dice, "hd95_mm": hd95, "missed": missed}


def test_cases_are_averaged_class_by_class_and_distances_over_the_cases_that_have_them():
    """The report of two cases, in the second of which the second class is missed, and the third is nowhere."""
    cases = [
        case("a", [1.0, 0.5, 0.2], [0.0, 2.0, None], [False, False, False]),
        case("b", [1.0, 0.7, None], [0.0, None, None], [False, True, False]),
    ]
    case_scores = case_report(cases, ["sky", "land", "sea"])
    assert case_scores["cases"] == 2
    assert case_scores["classes"] == ["land", "sea"]
    assert case_scores["dice"] == pytest.approx([0.6, 0.2])
    assert case_scores["mean_dice"] == pytest.approx(0.4)
    assert case_scores["hd95_mm"] == [2.0, None]
    assert case_scores["mean_hd95_mm"] == 2.0
    assert case_scores["dice_cases"] == [2, 1]
    assert case_scores["hd95_missed"] == [1, 0]
