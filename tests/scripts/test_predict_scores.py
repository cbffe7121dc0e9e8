"""predict.py --truth: scores of the written masks, and true masks that cannot be used."""

import json

import numpy as np
import pytest
from PIL import Image
from support.launches import predict
from support.prediction import network_of, scores_of, settings_of, writer_of

from inference import Predictor
from inference.report import print_scores
from predict import write_files_of_all
from tasks.classes.scores import ClassScores


def test_scores_are_those_of_the_written_masks_on_any_number_of_processes_and_again(model, photos, tmp_path):
    """One of the masks has 15 wrong rows of 20; the last call finds the masks of the first."""
    truth = tmp_path / "truth"
    predict(model, [photos], truth)
    mask = np.array(Image.open(truth / "a.png"))
    flipped = np.where(mask == 10, 200, 10).astype(np.uint8)
    flipped[:5] = mask[:5]
    Image.fromarray(flipped).save(truth / "a.png")
    scores = []
    for output, profile in (("one", None), ("two", "multi_cpu"), ("one", None)):
        result = predict(model, [photos], tmp_path / output, "--truth", truth, "--boundary", profile=profile)
        assert result.returncode == 0, result.stderr
        assert "mean" in result.stdout
        scores.append(json.loads((tmp_path / output / "metrics.json").read_text()))
    one, two, again = scores
    assert one == two
    assert one["classes"] == ["sky", "land", "sea"]
    total = sum(map(sum, one["confusion_matrix"]))
    assert total == 20 * 30 + 33 * 17 + 1 + 64 * 9 + 12 * 14
    assert one["pixel_accuracy"] == (total - 15 * 30) / total
    assert one["calibration"]["bins"]
    assert again == one


@pytest.mark.parametrize("suffix", ["", "_mask"])
def test_a_true_mask_of_unknown_values_fails_its_image_but_not_its_prediction(model, photos, tmp_path, suffix):
    images, truth, output = [photos / "a.png", photos / "b.jpg"], tmp_path / "truth", tmp_path / "out"
    predict(model, images, truth)
    Image.fromarray(np.full((20, 30), 7, np.uint8)).save(truth / "a.png")
    for name in ("a", "b"):
        (truth / f"{name}.png").rename(truth / f"{name}{suffix}.png")
    result = predict(model, images, output, "--truth", truth)
    assert result.returncode == 1
    assert "mask values 7 belong to no class" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in output.glob("*.png")) == ["a.png", "b.png"]
    assert json.loads((output / "metrics.json").read_text())["images"] == 1


def test_an_image_without_a_true_mask_is_refused(model, photos, tmp_path, fails_with):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.txt").write_text("0 0.1 0.1 0.4 0.1 0.4 0.4\n")  # YOLO without its data.yaml
    result = predict(model, [photos / "a.png"], tmp_path / "out", "--truth", tmp_path / "none")
    fails_with(result, "holds no masks; of annotations give the folder of their data set", 1)
    Image.new("L", (8, 8)).save(tmp_path / "none" / "other.png")
    result = predict(model, [photos / "a.png"], tmp_path / "out", "--truth", tmp_path / "none")
    fails_with(result, "has no mask for 1 input", 1)


def test_true_masks_that_cannot_be_used_do_not_cost_the_predictions(model, photos, tmp_path):
    truth, images, out = tmp_path / "truth", tmp_path / "images", tmp_path / "out"
    truth.mkdir()
    images.mkdir()
    Image.fromarray(np.full((20, 30), 10, np.uint8)).save(tmp_path / "mask.png")
    whole = (tmp_path / "mask.png").read_bytes()
    for name, content in (("cut", whole[:45]), ("empty", b""), ("size", whole)):
        (truth / f"{name}.png").write_bytes(content)
        Image.new("RGB", (9, 9) if name == "size" else (30, 20)).save(images / f"{name}.png")
    for _ in range(2):  # the second time they are only scored
        result = predict(model, [images], out, "--truth", truth)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert all(f"{truth / name}.png" in result.stderr for name in ("cut", "empty", "size"))
        assert "3 of 3 masks" in result.stdout
        assert "n/a" not in result.stdout
        assert sorted(path.name for path in out.iterdir()) == ["cut.png", "empty.png", "predict.json", "size.png"]


def test_failures_are_listed_also_when_nothing_could_be_scored(model, tmp_path):
    for kind in ("images", "truth"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.png").write_bytes(b"no picture")
    result = predict(model, [tmp_path / "images"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if "failed: " in line]) == 1
    assert "0 of 1 masks" in result.stdout


VALUES = {"f": 0.6, "b": 0.2, "none": None, "a": 0.2, "zero": 0.0, "d": 0.4, "e": 0.5}


def scored_images(values: dict[str, float | None]) -> ClassScores:
    """The scores of images that have these mean IoU."""
    scores = scores_of([6, 2], [1, 1])
    scores.entries = [{"image": name, "mean_iou": value} for name, value in values.items()]
    return scores


def test_a_report_has_images_from_the_worst_to_those_without_a_score_and_names_five(capsys):
    report = print_scores(scored_images(VALUES))
    assert [image["image"] for image in report["by_image"]] == ["zero", "a", "b", "d", "e", "f", "none"]
    assert report["images"] == 7
    assert report["confusion_matrix"] == [[6, 2], [1, 1]]
    assert capsys.readouterr().out.splitlines()[-6:] == [
        "the worst of 7 by their mean IoU:",
        "mean IoU 0.0000, zero",
        "mean IoU 0.2000, a",
        "mean IoU 0.2000, b",
        "mean IoU 0.4000, d",
        "mean IoU 0.5000, e",
    ]
    print_scores(scored_images({"none": None}))
    assert capsys.readouterr().out.splitlines()[-1] == "mean IoU n/a, none"


def test_a_file_of_all_images_that_cannot_be_written_is_a_line(tmp_path):
    (tmp_path / "metrics.json").mkdir()
    args = settings_of(output=tmp_path)
    (line,) = write_files_of_all(args, [], writer_of(Predictor(network_of())), {"images": 1})
    assert line.startswith(f"{tmp_path}: metrics.json or a file of all images cannot be written (")
