"""Rules of prediction in small numbers: views, tiles, shares of the work, finished files, scores and their order.

Modules: inference/decoding/views.py, inference/outputs/writer.py, inference/batches.py, inference/tiling/planning.py,
inference/scoring/volume.py, inference/scoring/truth.py, inference/provenance.py, predict.py.
"""

import json
import os
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from data_utils.class_map import ClassMap
from inference import Predictor
from inference.batches import batches_of, share_of
from inference.decoding import new_decoder
from inference.decoding.views import averaged_views
from inference.outputs.classes import ClassFormat
from inference.outputs.jobs import ImageJob
from inference.outputs.writer import PredictionWriter
from inference.provenance import complete_provenance, provenance_of, record_provenance
from inference.scoring.truth import ImageScorer, ScoreError
from inference.scoring.volume import SurfaceScores, VolumeScore, case_report, case_table, surface_scores
from inference.tiling.planning import choose_tiling
from predict import Failure, ScoredImage, close_output, print_scores
from runtime.errors import DataError
from tasks.classes import Classes, ClassScores
from tasks.overlapping import Overlapping
from unet import UNet
from unet.config import Preprocess, UNetConfig


class Seen(nn.Module):
    """A network whose logits are its input; it remembers the inputs."""

    def __init__(self, *, dims: int, turned: bool) -> None:
        super().__init__()
        self.config = UNetConfig(dims=dims, preprocess=Preprocess(turned=turned))
        self.inputs: list[Tensor] = []

    def forward(self, batch: Tensor) -> Tensor:
        self.inputs.append(batch)
        return batch


@pytest.mark.parametrize(
    ("shape", "turned", "mirrors"),
    [
        ((1, 2, 3, 4), False, [(), (3,)]),
        ((1, 2, 3, 4, 5), False, [(), (4,)]),
        ((1, 2, 3, 4, 5), True, [(), (2,), (3,), (4,), (2, 3), (2, 4), (3, 4), (2, 3, 4)]),
    ],
    ids=["image", "volume", "mirrored volume"],
)
def test_views_are_mirrored_along_these_axes(shape, turned, mirrors):
    batch = torch.randn(shape)
    network = Seen(dims=len(shape) - 2, turned=turned)
    logits = averaged_views(network, batch, new_decoder(Classes(("a", "b"))))
    torch.testing.assert_close(logits.softmax(1), batch.softmax(1))
    assert len(network.inputs) == len(mirrors)
    for view, axes in zip(network.inputs, mirrors, strict=True):
        assert torch.equal(view, batch.flip(axes))


def test_a_class_that_is_exactly_as_likely_as_not_is_not_there():
    logits = torch.tensor([[0.0, 1e-6, -1e-6], [1e-6, 0.0, 0.0]])[:, None]
    assert new_decoder(Overlapping(("a", "b"))).decode(logits).tolist() == [[2, 1, 0]]


def test_an_image_is_turned_by_each_quarter_and_mirrored():
    batch = torch.randn(1, 2, 3, 3)
    network = Seen(dims=2, turned=True)
    averaged_views(network, batch, new_decoder(Classes(("a", "b"))))
    turns = [batch.rot90(turn, (2, 3)) for turn in range(4)]
    wanted = turns + [turn.flip(3) for turn in turns]
    assert len(network.inputs) == len(wanted) == 8
    for view in wanted:
        assert sum(torch.equal(view, other) for other in network.inputs) == 1


def test_tiles_that_are_turned_are_not_exact():
    network = UNet(UNetConfig(base_channels=2, depth=1, norm="batch"))
    for tta, exact in ((False, True), (True, False)):
        (tiling,) = Predictor(network, tile_size=64, tta=tta).tilings((100, 90))
        assert tiling.exact is exact and tiling.size == (64, 64)
    assert Predictor(network, tta=True).tilings((100, 90)) == [None]


@pytest.mark.parametrize(("overlap", "shared", "exact"), [(0, 0, False), (1, 4, False), (9, 12, False), (23, 24, True)])
def test_an_overlap_is_rounded_to_twice_the_grid_and_exact_where_it_is_twice_the_reach(overlap, shared, exact):
    config = UNetConfig(base_channels=2, depth=1, norm="batch")  # grid 2
    tiling = choose_tiling(config, (100, 90), 64, overlap)
    assert (tiling.overlap, tiling.exact) == ((shared, shared), exact)


def job(folder: Path, name: str, size: tuple[int, int] | None = (2, 3)) -> ImageJob:
    return ImageJob(image=folder / f"{name}.tif", size=size, output=folder / "out" / name)


def test_the_largest_batch_goes_to_the_process_with_the_fewest_pixels():
    sizes = {"a": (1, 10), "b": (1, 2), "c": (1, 9), "d": (1, 7), "e": (1, 4)}
    jobs = {name: job(Path(), name, size) for name, size in sizes.items()}
    batches = [[jobs["a"]], [jobs["b"], jobs["d"]], [jobs["c"]], [jobs["e"]]]
    assert share_of(batches, 0, 2) == [[jobs["a"]], [jobs["e"]]]
    assert share_of(batches, 1, 2) == [[jobs["b"], jobs["d"]], [jobs["c"]]]
    assert share_of(batches, 1, 3) == [[jobs["b"], jobs["d"]], [jobs["e"]]]


def test_a_batch_is_full_when_its_shares_are_one():
    jobs = [job(Path(), str(number), (1, size)) for number, size in enumerate((2, 3, 2, 2, 9, 3))]
    jobs.append(job(Path(), "unreadable", None))

    def batch_of(size: tuple[int, ...]) -> tuple[int, int] | None:
        return None if size[1] == 9 else (size[1], size[1])

    batches = batches_of(jobs, batch_of)
    assert [[jobs.index(member) for member in batch] for batch in batches] == [[0, 2], [1, 5], [3], [4], [6]]


def new_writer(**options) -> PredictionWriter:
    output_format = ClassFormat(ClassMap(("a", "b"), (0, 1), None))
    return PredictionWriter(output_format, Classes(("a", "b")), (".png", ".npy"), **options)


def test_a_prediction_is_finished_when_all_its_files_are_newer_than_its_image(tmp_path):
    image = job(tmp_path, "a")
    (tmp_path / "out").mkdir()
    image.image.write_bytes(b"image")
    os.utime(image.image, (100, 100))
    files = [tmp_path / "out" / name for name in ("a.png", "a.npy")]
    assert not new_writer().is_finished(image)
    for file, when in zip(files, (100, 200), strict=True):
        assert not new_writer().is_finished(image)
        file.write_bytes(b"mask")
        os.utime(file, (when, when))
    assert new_writer().is_finished(image)
    assert not new_writer(overwrite=True).is_finished(image)
    assert not new_writer().is_finished(job(tmp_path, "a", None))
    os.utime(files[0], (99, 99))
    assert not new_writer().is_finished(image)
    files[0].write_bytes(b"")
    assert not new_writer().is_finished(image)


def test_a_volume_of_several_files_is_as_new_as_the_newest(tmp_path):
    class Channels(ImageJob):
        @property
        def files(self) -> tuple[str, ...]:
            return (str(tmp_path / "a_0.nii"), str(tmp_path / "a_1.nii"))

    volume = Channels(image=tmp_path / "a_0.nii", size=(2, 3), output=tmp_path / "a")
    for name, when in (("a_0.nii", 100), ("a_1.nii", 300), ("a.png", 200), ("a.npy", 300)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (when, when))
    assert not new_writer().is_finished(volume)
    os.utime(tmp_path / "a.png", (300, 300))
    assert new_writer().is_finished(volume)


def scores_of(*rows: list[int]) -> ClassScores:
    names = ("sky", "land", "sea")[: len(rows)]
    return ClassScores(names, torch.tensor(rows), torch.zeros(0, 1))


def test_the_mean_dice_of_a_volume_leaves_the_background_out():
    score = VolumeScore(scores_of([90, 10, 0], [5, 15, 0], [0, 0, 0]), None)
    result = score.to_json("a.nii")
    assert result["image"] == "a.nii" and result["mean_dice"] == 30 / 45
    assert result["dice"] == [180 / 195, 30 / 45, None]
    assert "hd95_mm" not in result and score.boundary is None
    nothing = VolumeScore(scores_of([5, 0], [0, 0]), None).to_json("b.nii")
    assert nothing["mean_dice"] is None


def test_the_surfaces_of_a_volume_are_told_by_their_tolerance():
    nan = float("nan")
    surfaces = SurfaceScores(np.array([nan, 1.5]), np.array([[nan, nan], [0.25, 0.75]]), np.array([False, False]))
    result = VolumeScore(scores_of([9, 1], [0, 2]), surfaces).to_json("a")
    assert result["hd95_mm"] == [None, 1.5] and result["missed"] == [False, False]
    assert (result["surface_dice_1mm"], result["surface_dice_2mm"]) == ([None, 0.25], [None, 0.75])


@pytest.mark.parametrize(("shift", "dice"), [(1, [1.0, 1.0]), (2, [0.5, 1.0]), (3, [0.5, 0.5])])
def test_surfaces_within_a_tolerance_count_as_the_same(shift, dice):
    truth, pred = np.zeros((2, 12, 3, 3), np.uint8)
    truth[[2, 6], 1, 1] = 1  # two voxels, one of them found elsewhere
    pred[2, 1, 1] = pred[6 + shift, 1, 1] = 1
    scores = surface_scores(pred, truth, 2, (1.0, 5.0, 5.0))
    assert scores.dice[1].tolist() == dice and not scores.missed[1]
    assert np.isnan(scores.hd95[0]) and scores.hd95[1] == pytest.approx(0.95 * shift)


def case(name: str, dice: list[float | None], hd95: list[float | None], missed: list[bool]) -> dict:
    return {"image": name, "dice": dice, "iou": dice, "hd95_mm": hd95, "missed": missed}


def test_cases_are_averaged_class_by_class_without_the_background():
    cases = [
        case("a", [1.0, 0.5, 0.2], [0.0, 2.0, None], [False, False, False]),
        case("b", [1.0, 0.7, None], [0.0, None, None], [False, True, False]),
    ]
    report = case_report(cases, ["sky", "land", "sea"])
    assert (report["cases"], report["classes"]) == (2, ["land", "sea"])
    assert report["dice"] == pytest.approx([0.6, 0.2]) and report["mean_dice"] == pytest.approx(0.4)
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


def test_the_five_worst_images_are_named_and_those_without_a_score_come_last(capsys):
    scores = scores_of([6, 2], [1, 1])
    values = {"f": 0.6, "b": 0.2, "none": None, "a": 0.2, "zero": 0.0, "d": 0.4, "e": 0.5}
    scored = [ScoredImage({"image": name, "mean_iou": value}, None, None) for name, value in values.items()]
    report = print_scores(scores, "mean IoU", scored)
    order = ["zero", "a", "b", "d", "e", "f", "none"]
    assert [image["image"] for image in report["by_image"]] == order and report["images"] == 7
    assert report["confusion_matrix"] == [[6, 2], [1, 1]] and "boundary" not in report and "by_case" not in report
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5:] == [
        "mean IoU 0.0000, zero",
        "mean IoU 0.2000, a",
        "mean IoU 0.2000, b",
        "mean IoU 0.4000, d",
        "mean IoU 0.5000, e",
    ]
    assert lines[-6] == "the worst of 7 by their mean IoU:"
    print_scores(scores, "mean IoU", [ScoredImage({"image": "none", "mean_iou": None}, None, None)])
    assert capsys.readouterr().out.splitlines()[-2:] == ["the image:", "mean IoU 0.0000, none"]


def test_scores_of_volumes_are_reported_by_case_too(capsys):
    scored = [ScoredImage({"image": "v", "mean_iou": 0.5, "dice": [1.0, 0.5], "iou": [1.0, 0.25]}, None, None)]
    report = print_scores(scores_of([6, 2], [1, 1]), "mean IoU", scored)
    assert report["by_case"]["mean_dice"] == 0.5 and report["by_case"]["mean_iou"] == 0.25
    assert "of cases" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_written", "has_mask", "leaves"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_a_mask_of_an_earlier_run_stays_where_none_was_written(is_written, has_mask, leaves):
    assert Failure("line", is_written, has_mask).leaves_old_mask is leaves


def arguments(model: Path, **changes) -> Namespace:
    flags = {"ensemble": [], "scale": None, "tta": False, "min_size": None, "drop_border": False}
    return Namespace(model=str(model), **flags | changes)


def test_a_folder_of_masks_is_complete_when_all_are_of_one_model(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"weights")
    output = tmp_path / "out"
    output.mkdir()

    def is_complete() -> bool:
        return json.loads((output / "predict.json").read_text())["complete"]

    own = provenance_of(arguments(model))
    assert own == {"models": {str(model): "1ad27358"}, "scale": None, "tta": False, "complete": True}
    record_provenance(output, own, overwrite=False)
    assert is_complete()
    other = provenance_of(arguments(model, tta=True))
    with pytest.raises(DataError, match="holds masks of another model or other settings"):
        record_provenance(output, other, overwrite=False)
    record_provenance(output, other, overwrite=True)
    assert not is_complete()
    with pytest.raises(DataError, match="or of an --overwrite that did not finish"):
        record_provenance(output, other, overwrite=False)
    close_output(output, None, is_complete=False)
    assert not is_complete() and not (output / "metrics.json").exists()
    close_output(output, {"images": 1}, is_complete=True)
    assert is_complete() and json.loads((output / "metrics.json").read_text()) == {"images": 1}
    record_provenance(output, other, overwrite=False)
    model.rename(tmp_path / "moved.onnx")
    record_provenance(output, provenance_of(arguments(tmp_path / "moved.onnx", tta=True)), overwrite=False)
    (output / "predict.json").unlink()
    complete_provenance(output)  # somebody has removed it
    assert not (output / "predict.json").exists()


def test_every_model_counts_in_a_folder_of_masks(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b"{}")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    one = provenance_of(arguments(tmp_path / "a"))["models"]
    two = provenance_of(arguments(tmp_path / "a", ensemble=[str(tmp_path / "b"), "me/cells"]))["models"]
    assert list(two) == [str(tmp_path / "a"), str(tmp_path / "b"), "me/cells"]
    assert two[str(tmp_path / "a")] == one[str(tmp_path / "a")] != two[str(tmp_path / "b")]
    assert two["me/cells"] is None
    before = one[str(tmp_path / "a")]
    (tmp_path / "a" / "config.json").write_bytes(b"{} ")
    assert provenance_of(arguments(tmp_path / "a"))["models"][str(tmp_path / "a")] != before


def scored(folder: Path, truth: tuple[int, int], mask: tuple[int, int]) -> ClassScores:
    """The scores of a mask of 4 x 6 whose upper half is of the second class, where the truth is all of the first."""
    Image.fromarray(np.zeros(truth, np.uint8)).save(folder / "truth.png")
    values = np.zeros(mask, np.uint8)
    values[: mask[0] // 2] = 1
    Image.fromarray(values).save(folder / "a.png")
    scorer = ImageScorer(ClassFormat(ClassMap(("a", "b"), (0, 1), None)), Classes(("a", "b")))
    done = ImageJob(image=folder / "a.tif", size=(4, 6), output=folder / "a", truth=(folder / "truth.png", 0))
    return scorer.score(done).scores


def test_a_written_mask_is_scored_where_its_size_and_that_of_the_truth_fit(tmp_path):
    assert scored(tmp_path, (4, 6), (4, 6)).sums.tolist() == [[12, 12], [0, 0]]
    assert scored(tmp_path, (2, 3), (4, 6)).sums.tolist() == [[3, 3], [0, 0]]  # the truth is smaller
    assert scored(tmp_path, (8, 12), (4, 6)).sums.tolist() == [[48, 48], [0, 0]]
    with pytest.raises(ScoreError, match=r"a\.png: is 8 x 12, but the image 4 x 6$"):
        scored(tmp_path, (4, 6), (8, 12))
    with pytest.raises(ScoreError, match=r"truth\.png: is 4 x 12, but the image 4 x 6; they differ in proportions"):
        scored(tmp_path, (4, 12), (4, 6))
