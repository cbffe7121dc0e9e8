"""Objects as a user has them: found in the data, trained, predicted, listed, scored and shown."""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from support.in_process import Run, run_train
from support.launches import TINY, predict
from support.objects import discs, picture, write_discs

import tasks.objects.loss
from inference import Predictor

FLAGS = [*TINY, "--norm", "batch", "--batch-size", "4", "--learning-rate", "0.02", "--tracker", "none"]
LENGTH = ["--max-steps", "60", "--eval-every", "30", "--checkpoint-every", "56"]
IMAGES = ("a/cell.png", "b/cell.png", "none.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """12 training and 4 validation images."""
    folder = tmp_path_factory.mktemp("discs")
    write_discs(folder / "train", [6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18], seed=0)
    write_discs(folder / "val", [7, 10, 14, 0], seed=100)
    return folder


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Run:
    run = run_train(tmp_path_factory.mktemp("runs") / "objects", "--dataset", folder, *FLAGS, *LENGTH)
    assert run.exit_code == 0, run.output
    return run


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """An image that tiles cut, and its label image."""
    folder = tmp_path_factory.mktemp("large")
    ids = discs((200, 150), 60, seed=7)
    for name, pixels in (("images", picture(ids, 7)), ("masks", ids)):
        (folder / name).mkdir()
        Image.fromarray(pixels).save(folder / name / "large.png")
    return folder


def test_extreme_label_images_are_usable(tmp_path):
    """Gaps in the numbers, no object, one that fills the image, and objects of one pixel."""
    gaps = discs((48, 64), 9, seed=1).astype(np.uint32)
    gaps[gaps > 0] = 900_000 + 70_000 * gaps[gaps > 0]
    pixels = np.zeros((48, 64), np.uint32)
    pixels[::3, ::3] = np.arange(1, 16 * 22 + 1).reshape(16, 22)
    for split in ("train", "val"):
        for index, ids in enumerate((gaps, np.zeros_like(gaps), np.full_like(gaps, 77), pixels)):
            for name in ("images", "masks"):
                (tmp_path / "data" / split / name).mkdir(parents=True, exist_ok=True)
            bright = np.where(ids > 0, 180, 40).astype(np.uint8)
            Image.fromarray(bright).save(tmp_path / "data" / split / "images" / f"{index}.png")
            tifffile.imwrite(tmp_path / "data" / split / "masks" / f"{index}.tif", ids)
    flags = [*TINY, "--task", "objects", "--max-steps", "4", "--batch-size", "2", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", tmp_path / "data", *flags, "--crop-size", "32", "32")
    assert run.exit_code == 0, run.output
    assert all(np.isfinite(run.values("train/loss")))
    masks = tmp_path / "data" / "val" / "masks"
    result = predict(run.folder / "model", [masks.with_name("images")], tmp_path / "out", "--truth", masks)
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["objects"] == len(np.unique(gaps)) - 1 + 1 + pixels.max()


def rows_of(table: Path) -> list[dict]:
    with table.open() as file:
        return list(csv.DictReader(file))


def test_ignored_numbers_of_true_masks_count_for_no_score(run, large, tmp_path):
    shutil.copytree(run.folder / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["preprocess"]["ignore_value"] is None
    ids = np.array(Image.open(large / "masks" / "large.png"))
    (tmp_path / "masks").mkdir()
    Image.fromarray(np.where(ids == 0, 9, ids)).save(tmp_path / "masks" / "large.png")
    objects = []
    for ignored in (None, 9):
        config["preprocess"]["ignore_value"] = ignored
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        flags = ["--truth", tmp_path / "masks", "--overwrite"]
        assert predict(tmp_path / "model", [large / "images"], tmp_path / "out", *flags).returncode == 0
        objects.append(json.loads((tmp_path / "out" / "metrics.json").read_text())["objects"])
    assert objects[1] == objects[0] - 1  # number 9, which is the ground too, is none


def test_a_run_finds_the_task_in_label_images_learns_objects_and_reports_their_scores(run):
    assert run.settings["flags"]["task"] == run.settings["identity"]["task"] == "objects"
    assert max(run.values("eval/ap50")) > 0.5  # measured 0.75
    task = run.config["task"]
    assert task["name"] == "objects"
    assert task["classes"] == ["background", "object"]
    assert task["smallest"] > 1
    scores = {"eval/panoptic_quality", "eval/f1", "eval/count_error", "eval/ap", "eval/ap75"}
    assert scores | {"eval/missed", "eval/split", "eval/merged"} <= run.records[-1].keys()
    report = (run.folder / "report.html").read_text()
    assert "<h2>Objects</h2>" in report
    assert "Found by size" in report
    assert "AP@0.5</" in report


def test_a_resumed_run_cannot_be_told_from_one_that_was_never_interrupted(run, folder, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000060")
    resumed = run_train(tmp_path / "run", "--dataset", folder, *FLAGS, *LENGTH, "--resume", "auto")
    assert "at step 56 of 60" in resumed.output
    assert resumed.values("eval/ap50") == run.values("eval/ap50")
    for name, weight in run.weights(60).items():
        assert torch.equal(resumed.weights(60)[name], weight), name


def test_a_model_keeps_the_peak_with_which_its_evaluation_scored_best(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks.objects.loss, "PEAKS", (100,))
    run = run_train(tmp_path / "run", "--dataset", folder, *FLAGS, "--plan", "auto", "--max-steps", "40")
    assert run.exit_code == 0, run.output
    assert run.config["task"]["peak"] == 100
    masks = folder / "val" / "masks"
    result = predict(run.folder / "model", [masks.with_name("images")], tmp_path / "out", "--truth", masks)
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["ap50"] == max(run.values("eval/ap50"))


@pytest.fixture(scope="module")
def predicted(run, large, tmp_path_factory) -> SimpleNamespace:
    """The large image, predicted with all files: their `folder`, the `mask`, the table's `rows`, and the `output`."""
    folder = tmp_path_factory.mktemp("predicted")
    flags = ["--truth", large / "masks", "--overlay", "--probabilities"]
    result = predict(run.folder / "model", [large / "images"], folder, *flags)
    assert result.returncode == 0, result.stderr
    mask = np.array(Image.open(folder / "large.png"))
    rows = rows_of(folder / "large.objects.csv")
    return SimpleNamespace(folder=folder, mask=mask, rows=rows, output=result.stdout)


def test_predicted_objects_are_scored_and_listed_with_area_center_and_box_of_each_number(predicted):
    assert predicted.mask.dtype == np.uint16
    assert [int(row["number"]) for row in predicted.rows] == list(range(1, predicted.mask.max() + 1))
    for row in predicted.rows[:5]:
        y, x = np.nonzero(predicted.mask == int(row["number"]))
        box = [int(row[side]) for side in ("top", "left", "bottom", "right")]
        assert len(y) == int(row["area"])
        assert float(row["center_y"]) == pytest.approx(y.mean(), abs=0.01)
        assert box == [y.min(), x.min(), y.max() + 1, x.max() + 1]
    metrics = json.loads((predicted.folder / "metrics.json").read_text())
    assert metrics["predicted"] == predicted.mask.max()
    assert metrics["ap50"] > 0.3
    assert "AP@0.5" in predicted.output
    assert np.load(predicted.folder / "large.npy").shape == (3, 200, 150)


def test_objects_that_are_predicted_already_are_scored_again(run, large, predicted, tmp_path):
    shutil.copytree(predicted.folder, tmp_path / "out")
    flags = ["--truth", large / "masks", "--overlay"]
    again = predict(run.folder / "model", [large / "images"], tmp_path / "out", *flags)
    assert "1 of 1 masks are there already" in again.stdout
    before = json.loads((predicted.folder / "metrics.json").read_text())
    after = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert after["ap50"] == before["ap50"]


def test_a_predictor_finds_the_objects_of_the_files(run, large, predicted):
    prediction = Predictor.from_pretrained(run.folder / "model")(large / "images" / "large.png")
    np.testing.assert_array_equal(prediction.mask, predicted.mask)
    assert len(prediction.objects) == len(predicted.rows)


@pytest.fixture(scope="module")
def several_tiles(run, tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A folder of an image that is cut into several tiles, and its mask where it is predicted whole."""
    folder = tmp_path_factory.mktemp("tiles")
    (folder / "images").mkdir()
    Image.fromarray(picture(discs((340, 460), 250, seed=8), 8)).save(folder / "images" / "large.png")
    result = predict(run.folder / "model", [folder / "images"], folder / "whole")
    assert result.returncode == 0, result.stderr
    return folder / "images", np.array(Image.open(folder / "whole" / "large.png"))


@pytest.mark.parametrize("side", [128, 256])
def test_tiles_of_any_size_find_the_same_objects(run, several_tiles, tmp_path, side):
    images, whole = several_tiles
    result = predict(run.folder / "model", [images], tmp_path, "--tile-size", str(side))
    tile = f"{side + 48} x {side + 48} overlapping by 48"  # the network looks 24 pixels to each side
    mask = np.array(Image.open(tmp_path / "large.png"))
    assert result.returncode == 0, result.stderr
    assert f"1 images in tiles of {tile} (equal to the whole image's result)" in result.stdout
    assert mask.max() == whole.max() > 100
    assert (mask != whole).mean() <= 1e-5  # float32 may round a pixel otherwise


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Path:
    """Images of several sizes, IMAGES, two of which have the same name."""
    folder = tmp_path_factory.mktemp("several")
    for index, name in enumerate(IMAGES):
        (folder / name).parent.mkdir(exist_ok=True)
        count = 0 if name == "none.png" else 20 + index
        Image.fromarray(picture(discs((90, 70 + index), count, index), index)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def predicted_folder(run, shared_folder, tmp_path_factory) -> SimpleNamespace:
    """The prediction of several images with a COCO file: their `folder`, the common table's `rows`, the `output`."""
    folder = tmp_path_factory.mktemp("predicted")
    result = predict(run.folder / "model", [shared_folder], folder, "--coco")
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(folder=folder, rows=rows_of(folder / "objects.csv"), output=result.stdout)


@pytest.mark.parametrize("name", IMAGES)
def test_the_table_of_all_images_joins_those_of_each(predicted_folder, name):
    own = [row for row in predicted_folder.rows if row["image"] == name]
    table = rows_of(predicted_folder.folder / name.replace(".png", ".objects.csv"))
    assert [{"image": name, **row} for row in table] == own
    assert len(own) == np.array(Image.open(predicted_folder.folder / name)).max()


def test_the_table_of_all_images_is_made_of_masks_that_are_there_already(
    run, shared_folder, predicted_folder, tmp_path
):
    shutil.copytree(predicted_folder.folder, tmp_path / "out")
    (tmp_path / "out" / "objects.csv").unlink()
    again = predict(run.folder / "model", [shared_folder], tmp_path / "out")
    assert "3 of 3 masks are there already" in again.stdout
    assert rows_of(tmp_path / "out" / "objects.csv") == predicted_folder.rows


def test_a_table_that_somebody_has_changed_is_named(run, shared_folder, tmp_path):
    predict(run.folder / "model", [shared_folder / "a"], tmp_path)
    table = tmp_path / "cell.objects.csv"
    header = table.read_text().splitlines()[0]
    table.write_text(f"{header}\n1,object,9\n")
    result = predict(run.folder / "model", [shared_folder / "a"], tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("failed:") == 1
    assert f"{table}: is not as prediction wrote it (" in result.stderr


def predicted_rows(run: Run, images: Path, output: Path, *flags: str) -> list[dict]:
    """The common table of images that are predicted with these flags."""
    assert predict(run.folder / "model", [images], output, *flags).returncode == 0
    return rows_of(output / "objects.csv")


def test_small_objects_are_left_out(run, shared_folder, tmp_path):
    all_rows = predicted_rows(run, shared_folder, tmp_path / "all", "--min-size", "1")
    large_rows = predicted_rows(run, shared_folder, tmp_path / "large", "--min-size", "60")
    sizes = [int(row["area"]) for row in all_rows]
    assert sorted(int(row["area"]) for row in large_rows) == sorted(size for size in sizes if size >= 60)


def test_objects_at_the_border_are_left_out(run, shared_folder, tmp_path):
    all_rows = predicted_rows(run, shared_folder, tmp_path / "all", "--min-size", "1")
    rows = predicted_rows(run, shared_folder, tmp_path / "inner", "--drop-border")
    assert min(min(int(row["top"]), int(row["left"])) for row in rows) > 0
    assert max(int(row["bottom"]) for row in rows) < 90
    assert 0 < len(rows) < len(all_rows)


def test_masks_of_another_smallest_size_are_not_taken(run, shared_folder, tmp_path, fails_with):
    predicted_rows(run, shared_folder, tmp_path, "--min-size", "60")
    other = predict(run.folder / "model", [shared_folder], tmp_path, "--min-size", "30")
    fails_with(other, "holds masks of another model or other settings", 1)


def write_samples(folder: Path, counts: list[int]) -> Path:
    """The layout of DSB2018: for each image a folder of it and a mask for each of its objects."""
    for index, count in enumerate(counts):
        ids = discs((60, 70), count, seed=index)
        sample = folder / f"s{index}"
        for name in ("images", "masks"):
            (sample / name).mkdir(parents=True)
        Image.fromarray(picture(ids, index)).save(sample / "images" / f"photo{index}.png")
        for number in range(1, int(ids.max()) + 1):
            Image.fromarray((ids == number).astype(np.uint8) * 255).save(sample / "masks" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    """Three samples, the last of which has no object."""
    return write_samples(tmp_path_factory.mktemp("samples"), [9, 12, 0])


def test_folders_of_one_object_masks_are_inputs_with_truth(run, samples, tmp_path):
    result = predict(run.folder / "model", [samples], tmp_path, "--truth", samples)
    assert result.returncode == 0, result.stderr
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["s0.png", "s1.png", "s2.png"]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["objects"] == sum(int(discs((60, 70), count, seed).max()) for seed, count in enumerate([9, 12, 0]))


def test_an_image_that_no_sample_holds_has_no_mask(run, samples, tmp_path):
    shutil.copyfile(samples / "s1" / "images" / "photo1.png", tmp_path / "photo9.png")
    missing = predict(run.folder / "model", [tmp_path / "photo9.png"], tmp_path / "out", "--truth", samples)
    assert missing.returncode == 1
    assert "has no mask for 1 input, the first is photo9" in missing.stderr


def write_spheres(folder: Path, count: int) -> None:
    """Volumes of bright spheres, some of which touch, and their label volumes."""
    nibabel = pytest.importorskip("nibabel")
    z, y, x = np.indices((16, 24, 28))
    for index in range(count):
        rng = np.random.default_rng(index)
        ids = np.zeros((16, 24, 28), np.uint16)
        for number, (row, column) in enumerate(((8, 7), (8, 14), (16, 20), (15, 5)), 1):
            depth = rng.uniform(6, 10)
            ids[((z - depth) ** 2 + (y - row) ** 2 + (x - column) ** 2 <= 16) & (ids == 0)] = number
        ids[ids == rng.integers(1, 5)] = 0
        voxels = np.where(ids > 0, 200, 40) + rng.normal(0, 5, ids.shape)
        for name, values in (("images", voxels.astype(np.float32)), ("labels", ids)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(values.T, np.diag([2, 2, 3, 1])), folder / name / f"v{index}.nii.gz")


def test_objects_in_volumes_are_learned_and_listed_in_millimeters(tmp_path):
    """A run on volumes, and what it predicts of one: the `folder`, the `mask`, the table's `rows`, the `output`."""
    nibabel = pytest.importorskip("nibabel")
    write_spheres(tmp_path / "data", 6)
    flags = [*FLAGS, "--task", "objects", "--crop-size", "16", "24", "28", "--batch-size", "2"]
    flags += ["--max-steps", "30", "--eval-every", "30"]
    run = run_train(tmp_path / "run", "--dataset", tmp_path / "data", *flags)
    assert run.exit_code == 0, run.output
    image, labels = tmp_path / "data" / "images" / "v0.nii.gz", tmp_path / "data" / "labels"
    result = predict(run.folder / "model", [image], tmp_path / "out", "--truth", labels, "--overlay")
    assert result.returncode == 0, result.stderr
    mask = np.asarray(nibabel.load(tmp_path / "out" / "v0.nii.gz").dataobj)
    rows = rows_of(tmp_path / "out" / "v0.objects.csv")
    spheres = SimpleNamespace(run=run, mask=mask, rows=rows, output=result.stdout)
    assert spheres.run.values("eval/ap50")[-1] > 0.3, spheres.run.values("eval/ap50")  # measured 1
    assert "AP@0.5" in spheres.output
    first = spheres.rows[0]
    center = np.argwhere(spheres.mask == 1).mean(axis=0) * [2, 2, 3]
    assert spheres.mask.shape == (28, 24, 16)
    assert len(spheres.rows) == spheres.mask.max()
    assert float(first["volume_mm3"]) == pytest.approx(12 * int(first["voxels"]), rel=1e-3)
    assert [float(first[name]) for name in ("x_mm", "y_mm", "z_mm")] == pytest.approx(center.tolist(), abs=0.01)


def test_a_coco_file_holds_the_pixels_of_all_objects(run, large, tmp_path):
    masks = pytest.importorskip("pycocotools.mask")
    result = predict(run.folder / "model", [large / "images"], tmp_path, "--coco")
    assert result.returncode == 0, result.stderr
    content = json.loads((tmp_path / "objects.json").read_text())
    mask = np.array(Image.open(tmp_path / "large.png"))
    assert content["images"] == [{"id": 1, "file_name": "large.png", "height": 200, "width": 150}]
    assert content["categories"] == [{"id": 1, "name": "object"}]
    assert len(content["annotations"]) == mask.max()
    for number, annotation in enumerate(content["annotations"], 1):
        pixels = masks.decode(annotation["segmentation"]).astype(bool)
        np.testing.assert_array_equal(pixels, mask == number)
        assert annotation["area"] == pixels.sum()
        assert annotation["image_id"] == 1
        left, top, width, height = annotation["bbox"]
        assert pixels[top : top + height, left : left + width].sum() == pixels.sum()
