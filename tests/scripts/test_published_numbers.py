"""Every number that a run publishes, compared once with a calculation by hand from the images, masks and weights."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from support.folders import write_folder
from support.in_process import Run, run_train
from support.reports import text_line

from unet import UNet

CLASSES = ("background", "foreground")
FLOAT32 = 1e-5  # relative: sums over a few thousand pixels in float32 here and there


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_folder(folder / "train", 8, seed=0, size=(16, 24))
    write_folder(folder / "val", 5, seed=1, size=(20, 28))
    for number, file in enumerate(sorted((folder / "val" / "masks").iterdir())):
        mask = np.array(Image.open(file))
        mask[: 2 * number] = 7  # ignored: another number of valid pixels in each image
        Image.fromarray(mask).save(file)
    mask = np.array(Image.open(folder / "val" / "masks" / "cell_04.png"))
    mask[mask == 255] = 0  # an image without the second class
    Image.fromarray(mask).save(folder / "val" / "masks" / "cell_04.png")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    flags = ["--base-channels", "4", "--depth", "2", "--norm", "group", "--num-workers", "0", "--ignore-index", "7"]
    flags += ["--plan", "none", "--loss", "ce+dice"]
    flags += ["--batch-size", "4", "--epochs", "8", "--eval-every", "16", "--log-every", "1", "--learning-rate", "0.01"]
    flags += ["--classes", "0=background,255=foreground", "--tracker", "none"]
    return run_train(tmp_path_factory.mktemp("runs") / "run", "--dataset", data, *flags)


class ByHand:
    """Scores of the best model on the validation images, counted with NumPy alone from its logits."""

    def __init__(self, run: Run, data: Path) -> None:
        model = UNet.from_pretrained(run.folder / "model")
        self.matrix, self.images = np.zeros((2, 2), int), []
        pixel_losses, dices = [], []
        confidences, hits = [], []
        for file in sorted((data / "val" / "images").iterdir()):
            pixels = torch.tensor(np.array(Image.open(file))).permute(2, 0, 1)[None]
            with torch.no_grad():
                logits = model(pixels)[0].double().numpy()
            stored = np.array(Image.open(data / "val" / "masks" / file.name))
            valid, truth, pred = stored != 7, (stored == 255).astype(int), logits.argmax(axis=0)
            probs = np.exp(logits) / np.exp(logits).sum(axis=0)
            pixel_losses += [-np.log(probs[truth[y, x], y, x]) for y, x in np.argwhere(valid)]
            confidences += [*probs.max(axis=0)[valid]]
            hits += [*(truth == pred)[valid]]
            for number in range(2):
                here = valid & (truth == number)
                if here.any():  # Dice of a class that the truth has
                    overlap = probs[number][here].sum()
                    dices.append(1 - 2 * overlap / (probs[number][valid].sum() + here.sum()))
            counts = np.array([[(valid & (truth == t) & (pred == p)).sum() for p in range(2)] for t in range(2)])
            self.matrix += counts
            self.images.append(np.mean([self.iou(counts, c) for c in range(2) if counts[c].sum() + counts[:, c].sum()]))
        self.loss = np.mean(pixel_losses) + np.mean(dices)
        bins = np.ceil(15 * np.array(confidences))
        gaps = [abs(np.sum(np.array(hits)[bins == b]) - np.sum(np.array(confidences)[bins == b])) for b in set(bins)]
        self.calibration_error = np.sum(gaps) / len(bins)

    @staticmethod
    def iou(matrix: np.ndarray, number: int) -> float:
        return matrix[number, number] / (matrix[number].sum() + matrix[:, number].sum() - matrix[number, number])

    def dice(self, number: int) -> float:
        return 2 * self.matrix[number, number] / (self.matrix[number].sum() + self.matrix[:, number].sum())

    @property
    def values(self) -> dict[str, float]:
        iou, dice = (
            [score(number) for number in range(2)] for score in (lambda n: self.iou(self.matrix, n), self.dice)
        )
        return {
            "mean_iou": np.mean(iou),
            "mean_dice": np.mean(dice),
            "pixel_accuracy": np.trace(self.matrix) / self.matrix.sum(),
            **{f"iou/{name}": value for name, value in zip(CLASSES, iou, strict=True)},
            **{f"dice/{name}": value for name, value in zip(CLASSES, dice, strict=True)},
        }


@pytest.fixture(scope="module")
def by_hand(run: Run, data: Path) -> ByHand:
    assert run.exit_code == 0, run.output
    counted = ByHand(run, data)
    scores = [*counted.values.values(), *counted.images]
    assert len({round(score, 4) for score in scores}) == len(scores)  # no two can be exchanged unseen
    return counted


def test_the_scores_in_metrics_jsonl_are_those_of_the_images(run, by_hand):
    (record,) = [record for record in run.records if "eval/mean_iou" in record]
    for key, value in by_hand.values.items():
        assert record[f"eval/{key}"] == pytest.approx(value, rel=1e-12), key
    assert record["eval/calibration_error"] == pytest.approx(by_hand.calibration_error, abs=1e-5)
    assert record["eval/loss"] == pytest.approx(by_hand.loss, rel=FLOAT32)
    assert record["step"] == 16
    assert record["epoch"] == 8


def test_a_checkpoint_holds_the_matrix_and_the_score_of_each_image(run, by_hand):
    state = json.loads((run.folder / "checkpoints" / "step-00000016" / "state.json").read_text())
    best = state["run"]["best_scores"]
    assert best["sums"] == by_hand.matrix.tolist()
    assert np.shape(best["by_image"]) == (len(by_hand.images), 1)
    assert np.ravel(best["by_image"]) == pytest.approx(by_hand.images, rel=FLOAT32)
    assert state["run"]["best"] == pytest.approx(by_hand.values["mean_iou"], rel=1e-12)


@pytest.fixture(scope="module")
def report(run: Run) -> str:
    """The words of the report, in one line."""
    return text_line((run.folder / "report.html").read_text())


def test_report_shows_the_scores_of_all_pixels_and_of_each_class(report, by_hand):
    values, matrix = by_hand.values, by_hand.matrix
    labels = {"mean_iou": "mean IoU", "mean_dice": "mean Dice", "pixel_accuracy": "pixel accuracy"}
    for key, label in labels.items():
        assert f"{values[key]:.4f} {label}" in report
    for number, name in enumerate(CLASSES):
        precision = matrix[number, number] / matrix[:, number].sum()
        recall = matrix[number, number] / matrix[number].sum()
        row = [values[f"iou/{name}"], values[f"dice/{name}"], precision, recall]
        assert f"{name} {' '.join(f'{value:.4f}' for value in row)} {matrix[number].sum():,}" in report
    background, foreground = CLASSES
    assert f"{background} {foreground} {matrix[0, 1]:,}" in report  # confused pixels
    assert f"Expected calibration error: {by_hand.calibration_error:.4f}" in report


def test_report_shows_the_images_with_their_own_scores_worst_first(report, by_hand):
    assert f"cell_0{int(np.argmin(by_hand.images))}.png: mean IoU {min(by_hand.images):.4f}" in report
    assert "By their own mean IoU, worst first." in report
    titles = re.findall(r"cell_0(\d)\.png: mean IoU", report)
    assert [int(title) for title in titles] == np.argsort(by_hand.images, kind="stable").tolist()


def test_the_file_of_images_holds_the_score_of_each(run, by_hand):
    lines = (run.folder / "images.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    assert lines[0] == "image,mean IoU"
    assert [Path(name).stem for name, _ in rows] == [f"cell_0{i}" for i in range(5)]
    assert [float(score) for _, score in rows] == pytest.approx(by_hand.images, rel=FLOAT32)


def test_model_card_has_the_scores_of_all_pixels_and_of_each_class(run, by_hand):
    card = ModelCard.load(run.folder / "model" / "README.md")
    metrics = {result.metric_type: result.metric_value for result in card.data.eval_results}
    for key in ("mean_iou", "mean_dice", "pixel_accuracy"):
        assert metrics[key] == pytest.approx(by_hand.values[key], abs=5e-7)  # six digits
    for name in CLASSES:
        assert f"| {name} | {by_hand.values[f'iou/{name}']:.4f} | {by_hand.values[f'dice/{name}']:.4f} |" in card.text


def test_the_terminal_shows_the_same_numbers(run, by_hand):
    values = by_hand.values
    assert f"step 16: mean IoU {values['mean_iou']:.4f}, mean Dice {values['mean_dice']:.4f}" in run.output
    rows = [line.split() for line in run.output.splitlines() if line.startswith(CLASSES)]
    for row in rows:
        assert row[1:3] == [f"{values[f'iou/{row[0]}']:.4f}", f"{values[f'dice/{row[0]}']:.4f}"]
    assert len(rows) == 2


def test_the_wait_for_data_is_a_part_of_a_steps_time(run):
    waits = run.values("perf/data_wait_percent")
    assert len(waits) > 5
    assert all(0 < wait < 100 for wait in waits)


def test_normalization_of_a_model_is_that_of_the_training_pixels(run, data):
    files = sorted((data / "train" / "images").iterdir())
    pixels = np.concatenate([np.asarray(Image.open(file), dtype=np.float64).reshape(-1, 3) for file in files])
    preprocess = run.config["preprocess"]
    # the mean of squares minus the square of the mean loses about one of float64's sixteen digits here
    assert preprocess["mean"] == pytest.approx(pixels.mean(axis=0), rel=1e-12)
    assert preprocess["std"] == pytest.approx(pixels.std(axis=0), rel=1e-11)
    assert preprocess["pixel_types"] == ["uint8"]
