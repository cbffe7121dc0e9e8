"""Objects from the first step to the last file: training, report, prediction, scores.

Modules: train_utils/reporting/objects.py, inference/outputs/objects.py, inference/outputs/object_tables.py,
inference/outputs/coco.py.
"""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from conftest import PROGRAMS, TINY, launch, predict
from in_process import Run, run_train
from networks import export
from objects import discs, picture, write_discs
from PIL import Image

from inference import Predictor
from inference.decoding.finder import DetectedObject
from inference.outputs.images import ImageWriter
from inference.outputs.jobs import ImageJob
from inference.outputs.objects import ObjectFormat
from inference.scoring.truth import ImageScorer
from tasks.matching import pack_labels
from tasks.objects import Objects
from train_utils.reporting.objects import BLUE, GREEN, RED, describe_errors, mark_objects
from unet import UNet

FLAGS = [*TINY, "--norm", "batch", "--batch-size", "4", "--learning-rate", "0.02", "--tracker", "none"]
LENGTH = ["--max-steps", "60", "--eval-every", "30", "--checkpoint-every", "56"]


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


@pytest.mark.slow
def test_two_processes_compute_what_one_does(folder, tmp_path):
    """In float64; every score is a whole count, the losses agree."""
    flags = ["train.py", "--dataset", folder, *TINY, "--max-steps", "3", "--batch-size", "3", "--tracker", "none"]
    flags += ["--log-every", "1"]
    states = []
    for profile in ("cpu", "multi_cpu"):
        output = tmp_path / profile
        result = launch(PROGRAMS / "in_float64.py", *flags, "--output-dir", output, profile=profile)
        assert result.returncode == 0, result.stderr
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        state = json.loads((output / "checkpoints" / "step-00000003" / "state.json").read_text())
        states.append(([line["train/loss"] for line in lines if "train/loss" in line], state["run"]["best_scores"]))
    (loss, scores), (loss_of_two, scores_of_two) = states
    assert len(loss) == 3
    assert loss == pytest.approx(loss_of_two, rel=1e-9)
    assert scores["sums"] == scores_of_two["sums"]
    assert scores["by_image"] == scores_of_two["by_image"]


def test_extreme_label_images_are_trained_on_and_scored(tmp_path):
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


def test_objects_are_found_in_the_data_and_learned(run):
    assert run.settings["flags"]["task"] == run.settings["identity"]["task"] == "objects"
    assert max(run.values("eval/ap50")) > 0.5  # measured 0.75
    assert {"eval/panoptic_quality", "eval/f1", "eval/count_error", "eval/ap", "eval/ap75"} <= set(run.records[-1])
    assert {"eval/missed", "eval/split", "eval/merged"} <= set(run.records[-1])
    assert "found by size in pixels:" in run.output
    task = run.config["task"]
    assert task["name"] == "objects"
    assert task["classes"] == ["background", "object"]
    assert task["smallest"] > 1


def test_report_and_card_speak_of_objects(run):
    report = (run.folder / "report.html").read_text()
    assert "<h2>Objects</h2>" in report
    assert "Found by size" in report
    assert "AP@0.5</" in report
    assert "aP@0.5" not in report
    card = (run.folder / "model" / "README.md").read_text()
    assert "Instance segmentation: numbers for the objects of the classes object." in card
    assert "instance-segmentation" in card
    assert "| object | " in card
    assert len(list((run.folder / "predictions").iterdir())) == 4


def test_a_resumed_run_cannot_be_told_from_one_that_was_never_interrupted(run, folder, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000060")
    resumed = run_train(tmp_path / "run", "--dataset", folder, *FLAGS, *LENGTH, "--resume", "auto")
    assert "at step 56 of 60" in resumed.output
    assert resumed.values("eval/ap50") == run.values("eval/ap50")
    for name, weight in run.weights(60).items():
        assert torch.equal(resumed.weights(60)[name], weight), name


def test_prediction_numbers_and_counts(run, large, tmp_path):
    result = predict(
        run.folder / "model", [large / "images"], tmp_path, "--truth", large / "masks", "--overlay", "--probabilities"
    )
    assert result.returncode == 0, result.stderr
    mask = np.array(Image.open(tmp_path / "large.png"))
    rows = rows_of(tmp_path / "large.objects.csv")
    assert mask.dtype == np.uint16
    assert [int(row["number"]) for row in rows] == list(range(1, mask.max() + 1))
    for row in rows[:5]:
        y, x = np.nonzero(mask == int(row["number"]))
        assert len(y) == int(row["area"])
        assert float(row["center_y"]) == pytest.approx(y.mean(), abs=0.01)
        assert [int(row[side]) for side in ("top", "left", "bottom", "right")] == [
            y.min(),
            x.min(),
            y.max() + 1,
            x.max() + 1,
        ]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["predicted"] == mask.max()
    assert metrics["ap50"] > 0.3
    assert "AP@0.5" in result.stdout
    assert not (tmp_path / "legend.overlay.png").exists()
    assert np.load(tmp_path / "large.npy").shape == (3, 200, 150)
    again = predict(run.folder / "model", [large / "images"], tmp_path, "--truth", large / "masks", "--overlay")
    assert "1 of 1 masks are there already" in again.stdout
    assert json.loads((tmp_path / "metrics.json").read_text())["ap50"] == metrics["ap50"]
    prediction = Predictor.from_pretrained(run.folder / "model")(large / "images" / "large.png")
    np.testing.assert_array_equal(prediction.mask, mask)
    assert len(prediction.objects) == len(rows)


def test_tiles_of_any_size_find_the_same_objects(run, tmp_path):
    ids = discs((340, 460), 250, seed=8)
    (tmp_path / "images").mkdir()
    Image.fromarray(picture(ids, 8)).save(tmp_path / "images" / "large.png")
    masks = []
    for side in (None, 128, 256):
        flags = [] if side is None else ["--tile-size", str(side)]
        result = predict(run.folder / "model", [tmp_path / "images"], tmp_path / str(side), *flags)
        assert result.returncode == 0, result.stderr
        if side is not None:  # the network looks 24 pixels to each side
            tile = f"{side + 48} x {side + 48} overlapping by 48 (equal to the whole image's result)"
            assert f"1 images in tiles of {tile}" in result.stdout
        masks.append(np.array(Image.open(tmp_path / str(side) / "large.png")))
    for mask in masks[1:]:
        assert mask.max() == masks[0].max() > 100
        assert (mask != masks[0]).mean() <= 1e-5  # float32 may round a pixel otherwise


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Path:
    """Images of several sizes, two of which have the same name."""
    folder = tmp_path_factory.mktemp("several")
    for index, name in enumerate(("a/cell.png", "b/cell.png", "none.png")):
        (folder / name).parent.mkdir(exist_ok=True)
        count = 0 if name == "none.png" else 20 + index
        Image.fromarray(picture(discs((90, 70 + index), count, index), index)).save(folder / name)
    return folder


def test_one_table_and_one_coco_file_list_the_objects_of_all_images(run, shared_folder, tmp_path):
    result = predict(run.folder / "model", [shared_folder], tmp_path, "--coco")
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "objects.csv")
    names = ("a/cell.png", "b/cell.png", "none.png")
    for name in names:
        own = [row for row in rows if row["image"] == name]
        table = rows_of(tmp_path / name.replace(".png", ".objects.csv"))
        assert [{"image": name, **row} for row in table] == own
        assert len(own) == np.array(Image.open(tmp_path / name)).max()
    assert f"{len(rows):,} objects in 3 images are listed in {tmp_path / 'objects.csv'}" in result.stdout
    content = json.loads((tmp_path / "objects.json").read_text())
    assert [image["file_name"] for image in content["images"]] == list(names)
    assert len(content["annotations"]) == len(rows)
    again = predict(run.folder / "model", [shared_folder], tmp_path)
    assert "3 of 3 masks are there already" in again.stdout
    assert rows_of(tmp_path / "objects.csv") == rows


@pytest.mark.parametrize("line", ["1,object,9", "1,object,9.5,1,1,1,1,1,1,1", "1,object,9,1,1,1,1,1,1,one", ""])
def test_a_table_that_somebody_has_changed_is_named(run, shared_folder, tmp_path, line):
    predict(run.folder / "model", [shared_folder / "a"], tmp_path)
    table = tmp_path / "cell.objects.csv"
    header = table.read_text().splitlines()[0]
    table.write_text(f"{header}\n{line}\n" if line else "number;class\n")
    result = predict(run.folder / "model", [shared_folder / "a"], tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("failed:") == 1
    assert f"{table}: is not as prediction wrote it (" in result.stderr


def test_small_objects_and_those_at_the_border_are_left_out(run, shared_folder, tmp_path, fails_with):
    model = run.folder / "model"
    sizes = {}
    for name, flags in {"all": ["--min-size", "1"], "large": ["--min-size", "60"], "inner": ["--drop-border"]}.items():
        assert predict(model, [shared_folder], tmp_path / name, *flags).returncode == 0
        rows = rows_of(tmp_path / name / "objects.csv")
        sizes[name] = [int(row["area"]) for row in rows]
        if name == "inner":
            assert min(min(int(row["top"]), int(row["left"])) for row in rows) > 0
            assert max(int(row["bottom"]) for row in rows) < 90
    assert sorted(sizes["large"]) == sorted(size for size in sizes["all"] if size >= 60)
    assert 0 < len(sizes["inner"]) < len(sizes["all"])
    other = predict(model, [shared_folder], tmp_path / "large", "--min-size", "30")
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


def test_folders_of_one_object_masks_are_inputs_and_truth(run, tmp_path):
    samples = write_samples(tmp_path / "samples", [9, 12, 0])
    model = run.folder / "model"
    result = predict(model, [samples], tmp_path / "out", "--truth", samples)
    assert result.returncode == 0, result.stderr
    assert sorted(file.name for file in (tmp_path / "out").glob("*.png")) == ["s0.png", "s1.png", "s2.png"]
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["objects"] == sum(int(discs((60, 70), count, seed).max()) for seed, count in enumerate([9, 12, 0]))
    for inputs in (f"{samples}/*/images/*.png", samples / "s1" / "images"):
        other = predict(model, [inputs], tmp_path / "other", "--truth", samples, "--overwrite")
        assert other.returncode == 0, other.stderr
        assert json.loads((tmp_path / "other" / "metrics.json").read_text())["objects"] > 5
    (samples / "s1" / "images" / "photo1.png").rename(tmp_path / "photo9.png")
    missing = predict(model, [tmp_path / "photo9.png"], tmp_path / "third", "--truth", samples)
    assert missing.returncode == 1
    assert "has no mask for 1 inputs, the first is photo9" in missing.stderr


@pytest.mark.slow
def test_objects_that_two_processes_predict_are_byte_for_byte_those_of_one(run, shared_folder, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(shared_folder, images)
    tile = picture(discs((170, 180), 60, seed=9), 9)
    Image.fromarray(np.tile(tile, (10, 10))).save(images / "large.png")  # both processes predict it, in bands
    script = ["predict.py", "--model", run.folder / "model", "--input", images, "--tile-size", "256", "--overlay"]
    script.append("--coco")
    assert launch(*script, "--output", tmp_path / "alone").returncode == 0
    together = launch(
        *script, "--output", tmp_path / "together", "--processes-per-volume", "2", profile="multi_cpu",
        options=["--num_processes", "2"],
    )  # fmt: skip
    assert together.returncode == 0, together.stderr
    files = [file.relative_to(tmp_path / "alone") for file in (tmp_path / "alone").rglob("*") if file.is_file()]
    assert len(files) == 4 * 3 + 3
    for file in files:
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "together" / file).read_bytes(), file


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


def test_objects_in_volumes(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    write_spheres(tmp_path / "data", 6)
    flags = [*FLAGS, "--task", "objects", "--crop-size", "16", "24", "28", "--batch-size", "2"]
    flags += ["--max-steps", "30", "--eval-every", "30"]
    run = run_train(tmp_path / "run", "--dataset", tmp_path / "data", *flags)
    assert run.exit_code == 0, run.output
    assert run.values("eval/ap50")[-1] > 0.3, run.values("eval/ap50")  # measured 1
    images, labels = tmp_path / "data" / "images", tmp_path / "data" / "labels"
    result = predict(run.folder / "model", [images / "v0.nii.gz"], tmp_path / "out", "--truth", labels, "--overlay")
    assert result.returncode == 0, result.stderr
    mask = np.asarray(nibabel.load(tmp_path / "out" / "v0.nii.gz").dataobj)
    rows = rows_of(tmp_path / "out" / "v0.objects.csv")
    assert mask.shape == (28, 24, 16)
    assert len(rows) == mask.max()
    first = rows[0]
    assert float(first["volume_mm3"]) == pytest.approx(12 * int(first["voxels"]), rel=1e-3)
    center = np.argwhere(mask == 1).mean(axis=0) * [2, 2, 3]
    assert [float(first[name]) for name in ("x_mm", "y_mm", "z_mm")] == pytest.approx(center.tolist(), abs=0.01)
    assert "AP@0.5" in result.stdout


def test_an_onnx_file_finds_the_same_objects(run, large, tmp_path):
    export(UNet.from_pretrained(run.folder / "model"), tmp_path / "model.onnx")
    image = large / "images" / "large.png"
    masks = [
        Predictor.from_pretrained(source).mask(image) for source in (run.folder / "model", tmp_path / "model.onnx")
    ]
    assert masks[0].max() == masks[1].max()
    assert (masks[0] != masks[1]).mean() < 1e-3


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


def test_a_model_of_classes_has_no_coco_file(model, large, tmp_path, fails_with):
    result = predict(model, [large / "images"], tmp_path, "--coco")
    fails_with(result, "--coco: is for models of objects in images, which this is not; leave the flag out", 1)


def write_objects(folder: Path, count: int) -> Path:
    """The mask of an image with so many objects, written as prediction does."""
    job = ImageJob(image=folder / "in.png", size=(2, 2), output=folder / "out")
    decoder = type("Decoder", (), {"objects": [DetectedObject(1, 1, 1, (0.0, 0.0), (0, 0, 1, 1), 1.0)] * count})
    output_format = ObjectFormat(("background", "object"))
    with output_format.open_mask(job, (2, 2), decoder) as mask:
        mask.write(output_format.mask_values(pack_labels(np.array([[0, count], [1, 2]]), np.ones((2, 2), int))))
    return output_format.mask_file(job)


def test_more_objects_than_a_png_numbers_make_a_tiff(tmp_path):
    assert write_objects(tmp_path, 65_535).name == "out.png"
    file = write_objects(tmp_path, 65_536)
    assert file.name == "out.tif"
    assert not (tmp_path / "out.png").exists()
    values = tifffile.imread(file)
    assert values.dtype == np.uint32
    assert values.tolist() == [[0, 65_536], [1, 2]]
    assert write_objects(tmp_path, 3).name == "out.png"
    assert not file.exists()


@pytest.mark.slow
def test_seventy_thousand_objects_are_written_read_and_scored(tmp_path):
    ids = np.zeros((560, 1000), np.int32)
    ids[::2, ::4] = np.arange(1, 280 * 250 + 1).reshape(280, 250)
    logits = torch.zeros(3, *ids.shape)
    logits[1] = torch.from_numpy(np.where(ids > 0, 9.0, -9.0))
    job = ImageJob(image=tmp_path / "in.png", size=ids.shape, output=tmp_path / "out", truth=(tmp_path / "true.tif", 0))
    tifffile.imwrite(tmp_path / "true.tif", ids)
    writer = ImageWriter(ObjectFormat(("background", "object")), Objects(), (".png", ".objects.csv"))
    writer.write(job, ids.shape, logits.split(64, dim=1), None, None)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), ids)
    assert len(rows_of(tmp_path / "out.objects.csv")) == 70_000
    scores = ImageScorer(writer.output_format, Objects()).score(job).scores
    assert scores.values["found"] == scores.values["predicted"] == 70_000
    assert scores.comparison == 1


def test_the_page_counts_objects():
    output_format = ObjectFormat(("background", "cell"))
    labels = pack_labels(np.array([[0, 1], [7, 7]]), np.array([[0, 1], [1, 1]]))
    assert [entry.text for entry in output_format.legend_entries(labels)] == ["2 objects"]
    assert [entry.text for entry in output_format.legend_entries(labels[:1])] == ["1 object"]
    assert output_format.legend() is None
    assert output_format.shades(labels)[0, 0] == 0


def test_found_missed_and_invented_objects_have_colors_of_their_own():
    truth, pred = np.zeros((8, 12), int), np.zeros((8, 12), int)
    truth[1:5, 1:5] = pred[1:5, 1:5] = pack_labels(np.array(1), np.array(1))
    truth[1:5, 7:11] = pack_labels(np.array(2), np.array(1))
    pred[6:8, 0:4] = pack_labels(np.array(2), np.array(1))
    marked = mark_objects(np.zeros((8, 12), np.uint8), truth, pred)
    assert [tuple(marked[y, x]) for y, x in ((2, 2), (2, 8), (7, 1))] == [GREEN, RED, BLUE]


def test_an_object_that_goes_on_in_ignored_pixels_is_found():
    label = pack_labels(np.array(1), np.array(1))
    truth, pred = np.full((8, 12), pack_labels(np.array(0), np.array(255))), np.full((8, 12), label)
    truth[:, :4] = label
    marked = mark_objects(np.zeros((8, 12), np.uint8), truth, pred)
    assert tuple(marked[4, 1]) == GREEN
    assert tuple(marked[4, 8]) not in (GREEN, RED, BLUE)


def test_errors_are_counted_in_words():
    truth = np.zeros((8, 12), np.int64)
    truth[:4, :4], truth[:4, 4:8], truth[6:, :2], truth[:4, 8:] = 1, 2, 3, 4
    pred = np.zeros_like(truth)
    pred[:4, :8], pred[:4, 8:10], pred[:4, 10:] = 1, 2, 3
    assert describe_errors(truth, truth) == "errors"
    # the third is missed, an IoU of one half makes one of those that are split or merged found
    assert (
        describe_errors(pack_labels(truth, truth > 0), pack_labels(pred, pred > 0))
        == "errors: 2 missed, 1 split, 2 merged"
    )
    truth[6:, :2] = 0
    truth[6:, 4:8] = 9
    ignored = pack_labels(truth, np.where(truth == 9, 255, truth > 0))
    assert describe_errors(ignored, pack_labels(truth, truth > 0)) == "errors"
