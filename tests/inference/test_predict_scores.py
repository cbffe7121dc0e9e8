"""predict.py --truth: scores of the written masks, and true masks that cannot be used."""

import json
from pathlib import Path

import numpy as np
from conftest import predict
from PIL import Image
from prediction import scores_of

from predict import ScoredImage, print_scores


def test_scores_are_those_of_the_written_masks_on_any_number_of_processes(model, photos, tmp_path):
    truth = tmp_path / "truth"
    predict(model, [photos], truth)
    mask = np.array(Image.open(truth / "a.png"))
    flipped = np.where(mask == 10, 200, 10).astype(np.uint8)
    flipped[:5] = mask[:5]
    Image.fromarray(flipped).save(truth / "a.png")
    for output, profile in (
        ("one", None),
        ("two", "multi_cpu"),
        ("one", None),
    ):  # the third scores what is there already
        result = predict(model, [photos], tmp_path / output, "--truth", truth, profile=profile)
        assert result.returncode == 0, result.stderr
        assert "mean" in result.stdout
    one, two = (json.loads((tmp_path / output / "metrics.json").read_text()) for output in ("one", "two"))
    assert two.pop("calibration")["bins"]  # of what a call has predicted itself
    assert one == two
    assert one["classes"] == ["sky", "land", "sea"]
    total = sum(map(sum, one["confusion_matrix"]))
    assert total == 20 * 30 + 33 * 17 + 1 + 64 * 9 + 12 * 14
    assert one["pixel_accuracy"] == (total - 15 * 30) / total


def test_images_are_sorted_by_score_the_worst_first(model, photos, tmp_path):
    truth = tmp_path / "truth"
    predict(model, [photos], truth)
    for name, share in (("b", 0.5), ("sub/c", 0.9)):  # of the rows that are wrong
        mask = np.array(Image.open(truth / f"{name}.png"))
        wrong = mask[: int(share * len(mask))]
        wrong[:] = np.where(wrong == 10, 200, 10)
        Image.fromarray(mask).save(truth / f"{name}.png")
    result = predict(model, [photos], tmp_path / "out", "--truth", truth, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    images = json.loads((tmp_path / "out" / "metrics.json").read_text())["by_image"]
    assert [Path(image["image"]).stem for image in images[:2]] == ["c", "b"]
    assert [image["mean_iou"] for image in images[2:]] == [1, 1, 1]
    assert result.stdout.index("c.tif") < result.stdout.index("b.jpg")


def test_a_true_mask_of_unknown_values_fails_its_image_but_not_its_prediction(model, photos, tmp_path, fails_with):
    predict(model, [photos / "a.png", photos / "b.jpg"], tmp_path / "truth")
    Image.fromarray(np.full((20, 30), 7, np.uint8)).save(tmp_path / "truth" / "a.png")
    result = predict(model, [photos / "a.png", photos / "b.jpg"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 1
    assert "mask values 7 belong to no class" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == ["a.png", "b.png"]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["images"] == 1
    for name in ("a", "b"):
        (tmp_path / "truth" / f"{name}.png").rename(tmp_path / "truth" / f"{name}_mask.png")
    result = predict(model, [photos / "a.png", photos / "b.jpg"], tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 1 and "mask values 7 belong to no class" in result.stderr  # the masks' suffix was found
    (tmp_path / "none").mkdir()
    result = predict(model, [photos / "a.png"], tmp_path / "out", "--truth", tmp_path / "none")
    fails_with(result, "has no mask for 1 inputs", 1)


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
