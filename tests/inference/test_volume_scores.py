"""Scores of volumes: surfaces and overlaps of each case, and the report of all cases.

Modules: inference/scoring/volume.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from prediction import matrix_of, scores_of, volume_job
from scipy.ndimage import label
from volumes import write_volume

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import RenderedMask
from inference.outputs.classes import ClassFormat
from inference.scoring.components import area_report
from inference.scoring.truth import ScoreError
from inference.scoring.volume import SurfaceScores, VolumeScore, VolumeScorer, case_report, case_table, surface_scores
from predict import ScoredImage, print_scores
from runtime.errors import DataError
from tasks.classes import Classes
from tasks.objects import Objects
from tasks.overlapping import Overlapping, OverlapTarget


def test_a_volume_is_scored_by_all_its_slices_with_its_own_spacing(tmp_path):
    class_map = ClassMap(("sky", "land"), (0, 7), None)
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 2, (3, 4, 5), np.uint8)
    truth = rng.integers(0, 2, (3, 4, 5), np.uint8)
    nifti = write_volume(tmp_path / "truth.nii", 7 * truth)
    np.save(tmp_path / "truth.npy", 7 * truth)  # it holds no spacing: that of the volume counts
    capitals = (tmp_path / "truth.npy").rename(tmp_path / "TRUTH.NPY")
    np.save(tmp_path / "truth.npy", 7 * truth)
    for file in (nifti, tmp_path / "truth.npy", capitals):
        scorer = VolumeScorer(ClassFormat(class_map), Classes(("sky", "land")), surfaces=True)
        score = scorer.score_mask(volume_job(tmp_path, file), pred)
        assert score.scores.sums.tolist() == matrix_of(pred, truth, 2)
        areas = area_report([score.areas], ("sky", "land"))["by_class"]["land"]
        assert (areas["areas"], areas["predicted"]) == (label(truth)[1], label(pred)[1])
        assert score.surfaces.hd95[1] == surface_scores(pred, truth, 2, (2.0, 1.0, 1.0)).hd95[1]
        plain = VolumeScorer(ClassFormat(class_map), Classes(("sky", "land")))
        without_surfaces = plain.score_mask(volume_job(tmp_path, file), pred)
        assert without_surfaces.surfaces is None
        assert without_surfaces.areas.tolist() == score.areas.tolist()


def test_what_the_truth_ignores_has_no_surface(tmp_path):
    truth, pred = np.zeros((2, 3, 4, 5), np.uint8)
    truth[0], pred[0] = 9, 1
    truth[2, 2, 2], pred[2, 2, 2] = 7, 1
    scorer = VolumeScorer(ClassFormat(ClassMap(("sky", "land"), (0, 7), 9)), Classes(("sky", "land")), surfaces=True)
    score = scorer.score_mask(volume_job(tmp_path, write_volume(tmp_path / "truth.nii", truth)), pred)
    assert score.surfaces.hd95[1] == 0
    assert score.surfaces.dice[1].tolist() == [1, 1]


def test_true_masks_of_another_size_or_grid_cannot_be_used(tmp_path):
    scorer = VolumeScorer(ClassFormat(ClassMap(("sky", "land"), (0, 7), None)), Classes(("sky", "land")))
    pred = np.zeros((3, 4, 5), np.uint8)
    shorter = write_volume(tmp_path / "shorter.nii", np.zeros((2, 4, 5), np.uint8))
    with pytest.raises(DataError, match=r"shorter\.nii: is 2 x 4 x 5, but the volume 3 x 4 x 5 \(z, y, x\)"):
        scorer.score_mask(volume_job(tmp_path, shorter), pred)
    narrower = write_volume(tmp_path / "narrower.nii", np.zeros((3, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"narrower\.nii: is 3 x 4 x 4, but the volume 3 x 4 x 5 \(z, y, x\)"):
        scorer.score_mask(volume_job(tmp_path, narrower), pred)
    coarser = write_volume(tmp_path / "coarser.nii", pred, (3.0, 1.0, 1.0))
    with pytest.raises(DataError, match=r"coarser\.nii: its affine differs from the volume's"):
        scorer.score_mask(volume_job(tmp_path, coarser), pred)
    same = write_volume(tmp_path / "same.nii", pred)
    for wrong in (pred[:2], pred.transpose(0, 2, 1)):
        with pytest.raises(DataError, match="differs in size from the volume; give --overwrite"):
            scorer.score_mask(volume_job(tmp_path, same), wrong)
    with pytest.raises(ScoreError):  # there is no mask
        scorer.score(volume_job(tmp_path, same))


def test_annotations_are_no_true_mask_of_a_volume(tmp_path):
    class Drawn(RenderedMask):
        """A mask of an image."""

        def render(self) -> np.ndarray:
            return np.zeros((4, 5), np.uint8)

    scorer = VolumeScorer(ClassFormat(ClassMap(("sky", "land"), (0, 7), None)), Classes(("sky", "land")))
    job = replace(volume_job(tmp_path, None), truth=Drawn())
    with pytest.raises(DataError, match="are a label volume, and no annotations"):
        scorer.score_mask(job, np.zeros((3, 4, 5), np.uint8))


def test_voxels_that_the_truth_ignores_are_of_no_class_and_the_background_has_no_surface():
    truth = np.zeros((3, 4, 5), np.uint8)
    pred = np.zeros((3, 4, 5), np.uint8)
    truth[0] = 255
    pred[0] = 1
    pred[2, 2, 2] = 2
    scores = surface_scores(pred, truth, 3, (1.0, 1.0, 1.0))
    assert scores.missed.tolist() == [False, False, True]
    assert np.isnan(scores.dice[:2]).all()
    assert scores.dice[2].tolist() == [0, 0]
    assert np.isnan(scores.hd95).all()


def test_a_table_of_cases_has_the_columns_that_were_scored():
    cases = [
        {"image": "a", "dice": [1.0, 0.25], "iou": [1.0, 0.5]},
        {"image": "b", "dice": [1.0, None], "iou": [1.0, 1.0]},
    ]
    report = case_report(cases, ["sky", "land"])
    assert report == {
        "cases": 2,
        "classes": ["land"],
        "mean_dice": 0.25,
        "dice": [0.25],
        "mean_iou": 0.75,
        "iou": [0.75],
        "dice_cases": [1],
    }
    lines = case_table(report).splitlines()
    assert [line.split() for line in lines] == [
        ["of", "cases", "Dice", "IoU", "cases"],
        ["land", "0.2500", "0.7500", "1"],
        ["mean", "without", "background", "0.2500", "0.7500", "2"],
    ]
    assert len({len(line) for line in lines}) == 1
    long_name = "a class whose name is longer than that of the mean"
    lines = case_table(case_report(cases, ["sky", long_name])).splitlines()
    assert lines[1].startswith(f"{long_name}  ")
    assert len({len(line) for line in lines}) == 1
    surfaces = [case | {"surface_dice_1mm": [None, 0.5], "surface_dice_2mm": [None, 1.0]} for case in cases]
    report = case_report(surfaces, ["sky", "land"])
    assert (report["mean_surface_dice_1mm"], report["surface_dice_2mm"]) == (0.5, [1.0])
    lines = case_table(report).splitlines()
    assert "surface Dice 1 mm" in lines[0]
    assert len({len(line) for line in lines}) == 1


def test_classes_that_overlap_have_no_background_in_the_report_of_cases(capsys):
    scores = Overlapping(("a", "b")).new_scores(1)
    truth = OverlapTarget(torch.tensor([[[1, 1, 2, 0]]]), torch.tensor([[[3, 3, 3, 3]]]))
    scores.add(torch.tensor([[[1, 0, 2, 0]]]), truth, 0)
    case = VolumeScore(scores, None).to_json("v")
    assert case["mean_dice"] == pytest.approx((2 / 3 + 1) / 2)
    report = print_scores(scores, "mean IoU", [ScoredImage(case, None, None)])
    assert report["by_case"]["classes"] == ["a", "b"]
    assert report["by_case"]["mean_dice"] == case["mean_dice"]


def test_the_mean_dice_of_a_volume_leaves_the_background_out():
    score = VolumeScore(scores_of([90, 10, 0], [5, 15, 0], [0, 0, 0]), None)
    result = score.to_json("a.nii")
    assert result["image"] == "a.nii"
    assert result["mean_dice"] == 30 / 45
    assert result["dice"] == [180 / 195, 30 / 45, None]
    assert "hd95_mm" not in result
    assert score.boundary is None
    nothing = VolumeScore(scores_of([5, 0], [0, 0]), None).to_json("b.nii")
    assert nothing["mean_dice"] is None
    assert "mean_dice" not in VolumeScore(Objects().new_scores(1), None).to_json("c.nii")  # objects have none


def test_the_surfaces_of_a_volume_are_told_by_their_tolerance():
    nan = float("nan")
    surfaces = SurfaceScores(np.array([nan, 1.5]), np.array([[nan, nan], [0.25, 0.75]]), np.array([False, False]))
    result = VolumeScore(scores_of([9, 1], [0, 2]), surfaces).to_json("a")
    assert result["hd95_mm"] == [None, 1.5]
    assert result["missed"] == [False, False]
    assert (result["surface_dice_1mm"], result["surface_dice_2mm"]) == ([None, 0.25], [None, 0.75])


@pytest.mark.parametrize(("shift", "dice"), [(1, [1.0, 1.0]), (2, [0.5, 1.0]), (3, [0.5, 0.5])])
def test_surfaces_within_a_tolerance_count_as_the_same(shift, dice):
    truth, pred = np.zeros((2, 12, 3, 3), np.uint8)
    truth[[2, 6], 1, 1] = 1  # two voxels, one of them found elsewhere
    pred[2, 1, 1] = pred[6 + shift, 1, 1] = 1
    scores = surface_scores(pred, truth, 2, (1.0, 5.0, 5.0))
    assert scores.dice[1].tolist() == dice
    assert not scores.missed[1]
    assert np.isnan(scores.hd95[0])
    assert scores.hd95[1] == pytest.approx(0.95 * shift)


def case(name: str, dice: list[float | None], hd95: list[float | None], missed: list[bool]) -> dict:
    return {"image": name, "dice": dice, "iou": dice, "hd95_mm": hd95, "missed": missed}


def test_cases_are_averaged_class_by_class_without_the_background():
    cases = [
        case("a", [1.0, 0.5, 0.2], [0.0, 2.0, None], [False, False, False]),
        case("b", [1.0, 0.7, None], [0.0, None, None], [False, True, False]),
    ]
    report = case_report(cases, ["sky", "land", "sea"])
    assert (report["cases"], report["classes"]) == (2, ["land", "sea"])
    assert report["dice"] == pytest.approx([0.6, 0.2])
    assert report["mean_dice"] == pytest.approx(0.4)
    assert (report["hd95_mm"], report["mean_hd95_mm"]) == ([2.0, None], 2.0)
    assert (report["dice_cases"], report["hd95_missed"]) == ([2, 1], [1, 0])
    rows = [line.split() for line in case_table(report).splitlines()]
    assert rows[0] == ["of", "cases", "Dice", "IoU", "HD95", "(mm)", "cases"]
    cells = [(row[0], *row[-4:]) for row in rows[1:4]]
    assert cells == [
        ("land", "0.6000", "0.6000", "2.0000", "2"),
        ("sea", "0.2000", "0.2000", "n/a", "1"),
        ("mean", "0.4000", "0.4000", "2.0000", "2"),
    ]
    assert case_table(report).splitlines()[4:] == [
        "land: no distance in 1 of 2 cases: only one of truth and prediction has it"
    ]
