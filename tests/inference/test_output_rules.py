"""Small rules of what prediction writes and counts: rows, boundaries, cases, names of files, values, room on the disk.

Modules: inference/inputs.py, inference/outputs/classes.py, inference/outputs/disk.py, inference/outputs/images.py,
inference/outputs/jobs.py, inference/outputs/volumes.py, inference/scoring/boundary.py, inference/scoring/truth.py,
inference/scoring/volume.py, inference/true_masks.py, inference/args.py, inference/pipeline.py, inference/predictor.py.
"""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from data_utils.class_map import ClassMap
from data_utils.image_io.class_masks import ClassChannels, ClassFile, ClassMasks
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.windowed import WindowedArray
from data_utils.visualize import outlined_overlay, to_rgb
from data_utils.visualize_volumes import volume_page
from inference import Predictor, pipeline
from inference import predictor as predictor_module
from inference.args import parse_args
from inference.decoding import new_decoder
from inference.inputs import InputRules, TruthFolder, find_jobs, named_job
from inference.outputs import disk, new_format
from inference.outputs.classes import ClassFormat
from inference.outputs.disk import check_disk
from inference.outputs.images import ImageWriter
from inference.outputs.jobs import ImageJob, VolumeJob
from inference.outputs.volumes import VolumeWriter
from inference.outputs.writer import PredictionWriter
from inference.pipeline import PredictionPipeline, prepare_work, tracked
from inference.readers import read_inputs
from inference.scoring import truth as truth_module
from inference.scoring.boundary import BoundaryScores, boundary_report, boundary_scores, enclosing_box, numbers
from inference.scoring.components import area_report
from inference.scoring.truth import ImageScore, ImageScorer, MaskRows, ScoreError, TruthScorer
from inference.scoring.volume import VolumeScore, VolumeScorer, case_report, case_table, surface_scores
from inference.tiling import strip_length
from inference.true_masks import TrueMasks, open_true_masks
from predict import ScoredImage, print_scores
from runtime.errors import DataError, ImageError, ModelError
from tasks.classes import Classes, ClassTarget
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping, OverlapTarget
from unet import UNet
from unet.config import Preprocess, UNetConfig

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)
TASK = Classes(CLASSES.names)
NAN = float("nan")


def rows_of(truth: np.ndarray, read_rows: list | None = None) -> MaskRows:
    """The rows of a true mask of class indices."""

    def read(top: int, bottom: int) -> ClassTarget:
        if read_rows is not None:
            read_rows.append((top, bottom))
        return ClassTarget(truth[top:bottom])

    return MaskRows(Path("truth.png"), truth.shape, read)


def matrix_of(pred: np.ndarray, truth: np.ndarray, classes: int = 3) -> list[list[int]]:
    matrix = np.zeros((classes, classes), int)
    for predicted, true in zip(pred.ravel(), truth.ravel(), strict=True):
        if true != 255:
            matrix[true, predicted] += 1
    return matrix.tolist()


@pytest.mark.parametrize(("size", "strip"), [((7, 5), 2), ((7, 5), 7), ((14, 10), 3), ((3, 2), 1), ((21, 5), 4)])
def test_the_predicted_pixel_under_the_center_of_each_true_one_counts_whatever_the_strips(size, strip):
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 3, (7, 5), np.uint8)
    truth = rng.choice(np.uint8([0, 1, 2, 255]), size)
    read_rows: list[tuple[int, int]] = []
    scorer = TruthScorer(TASK, pred.shape, rows_of(truth, read_rows), boundary=True)
    for top in range(0, 7, strip):
        scorer.add(pred[top : top + strip])
    rows = [int((row + 0.5) * 7 / size[0]) for row in range(size[0])]
    columns = [int((column + 0.5) * 5 / size[1]) for column in range(size[1])]
    under_centers = pred[np.ix_(rows, columns)]
    score = scorer.score()
    assert score.scores.sums.tolist() == matrix_of(under_centers, truth)
    assert [row for first, last in read_rows for row in range(first, last)] == list(range(size[0]))
    assert score.to_json("a")["boundary_iou"] == boundary_scores(under_centers, truth, 3).to_json()["boundary_iou"]


def test_areas_that_touch_the_last_row_are_counted():
    truth = np.zeros((30, 40), np.uint8)
    truth[25:, 3:5] = 1  # 10 pixels
    truth[2:4, 20:22] = 1
    scorer = TruthScorer(TASK, truth.shape, rows_of(truth))
    for top in range(0, 30, 10):
        scorer.add(truth[top : top + 10])
    report = area_report([scorer.score().areas], TASK.names)["by_class"]["land"]
    assert (report["areas"], report["found"], report["predicted"], report["false"]) == (2, 2, 2, 0)


def test_a_true_mask_that_fails_ends_the_counting_and_is_not_read_again():
    calls = []

    def read(top: int, bottom: int) -> ClassTarget:
        calls.append((top, bottom))
        if top:
            raise DataError("damaged")
        return ClassTarget(np.zeros((bottom - top, 2), np.uint8))

    scorer = TruthScorer(TASK, (6, 2), MaskRows(Path("t"), (6, 2), read))
    for _ in range(3):
        scorer.add(np.zeros((2, 2), np.uint8))
    assert calls == [(0, 2), (2, 4)] and str(scorer.problem) == "damaged"
    assert scorer.scores.sums.sum() == 4
    nothing = TruthScorer(TASK, (6, 2), None, DataError("no mask"))
    nothing.add(np.zeros((6, 2), np.uint8))
    assert nothing.scores.sums.sum() == 0


def test_what_is_said_of_an_image_has_its_name_its_means_and_its_boundaries():
    scores = TASK.new_scores(1)
    scores.add(torch.tensor([[[0, 0, 1, 1]]]), ClassTarget(torch.tensor([[[0, 1, 1, 255]]])), 0)
    plain = ImageScore(scores, None).to_json("a.png")
    assert plain == {"image": "a.png", "mean_iou": 0.5, "pixel_accuracy": pytest.approx(2 / 3)}
    boundary = BoundaryScores(
        np.array([1, 0, 0]), np.array([4, 2, 0]), np.array([1.5, NAN, NAN]), np.array([False, True, False])
    )
    score = ImageScore(scores, boundary).to_json("a.png")
    assert score == plain | {"boundary_iou": [0.25, 0.0, None], "hd95": [1.5, None, None]}


def test_boundaries_are_reported_from_summed_pixels_and_mean_distances():
    first = BoundaryScores(np.array([1, 3]), np.array([4, 3]), np.array([2.0, NAN]), np.array([False, True]))
    second = BoundaryScores(np.array([2, 0]), np.array([2, 3]), np.array([4.0, 3.0]), np.array([False, False]))
    assert boundary_report([first, second]) == {
        "mean_boundary_iou": 0.5,
        "mean_hd95": 3.0,
        "boundary_iou": [0.5, 0.5],
        "hd95": [3.0, 3.0],
        "hd95_images": [2, 1],
        "hd95_missed": [0, 1],
    }
    missed = BoundaryScores(np.array([0]), np.array([0]), np.array([NAN]), np.array([True]))
    report = boundary_report([missed])
    assert report["mean_boundary_iou"] is report["mean_hd95"] is report["hd95"][0] is None
    assert (report["hd95_images"], report["hd95_missed"]) == ([0], [1])


def test_small_helpers_of_scores():
    assert enclosing_box([(slice(3, 5), slice(1, 9)), (slice(4, 8), slice(2, 4))]) == (slice(3, 8), slice(1, 9))
    assert numbers(np.array([1.5, NAN, 0.0, np.inf])) == [1.5, None, 0.0, None]


def test_ignored_pixels_belong_to_no_class_and_what_one_mask_alone_has_is_missed():
    truth = np.zeros((20, 20), np.uint8)
    pred = np.zeros((20, 20), np.uint8)
    truth[:5, :5] = 255
    pred[:5, :5] = 1  # only there
    pred[10:12, 10:12] = 2
    found = boundary_scores(pred, truth, 3)
    assert found.missed.tolist() == [False, False, True] and found.union.tolist()[1:] == [0, 4]
    assert found.distances[0] >= 0 and np.isnan(found.distances[1:]).all()


def test_the_distance_is_the_longer_of_both_ways():
    truth = np.zeros((9, 40), np.uint8)
    truth[4, 5] = 1
    pred = truth.copy()
    pred[4, 25] = 1  # 20 pixels away: only the way from the prediction is long
    for one, other in ((pred, truth), (truth, pred)):
        assert boundary_scores(one, other, 2).distances[1] == pytest.approx(19)  # the 95th percentile of 0 and 20
    volume = surface_scores(pred[None], truth[None], 2, (1.0, 1.0, 0.5))
    assert volume.hd95[1] == pytest.approx(9.5) and volume.dice[1].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert not volume.missed.any()


def test_voxels_that_the_truth_ignores_are_of_no_class_and_the_background_has_no_surface():
    truth = np.zeros((3, 4, 5), np.uint8)
    pred = np.zeros((3, 4, 5), np.uint8)
    truth[0] = 255
    pred[0] = 1
    pred[2, 2, 2] = 2
    scores = surface_scores(pred, truth, 3, (1.0, 1.0, 1.0))
    assert scores.missed.tolist() == [False, False, True]
    assert np.isnan(scores.dice[:2]).all() and scores.dice[2].tolist() == [0, 0] and np.isnan(scores.hd95).all()


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
    surfaces = [case | {"surface_dice_1mm": [None, 0.5], "surface_dice_2mm": [None, 1.0]} for case in cases]
    report = case_report(surfaces, ["sky", "land"])
    assert (report["mean_surface_dice_1mm"], report["surface_dice_2mm"]) == (0.5, [1.0])
    lines = case_table(report).splitlines()
    assert "surface Dice 1 mm" in lines[0] and len({len(line) for line in lines}) == 1


def write_volume(file: Path, values: np.ndarray, spacing: tuple[float, float, float] = (2.0, 1.0, 1.0)) -> Path:
    """A volume given as (z, y, x)."""
    z, y, x = spacing
    nibabel.save(nibabel.Nifti1Image(values.T, np.diag((x, y, z, 1.0))), file)
    return file


def volume_job(folder: Path, truth: Path | None) -> VolumeJob:
    image = write_volume(folder / "image.nii", np.zeros((3, 4, 5), np.float32))
    return VolumeJob(
        image=image,
        size=(3, 4, 5),
        output=folder / "out" / "image",
        truth=truth and (truth, 0),
        volume=VolumeFile((str(image),)),
    )


def test_a_volume_is_scored_by_all_its_slices_with_its_own_spacing(tmp_path):
    class_map = ClassMap(("sky", "land"), (0, 7), None)
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 2, (3, 4, 5), np.uint8)
    truth = rng.integers(0, 2, (3, 4, 5), np.uint8)
    nifti = write_volume(tmp_path / "truth.nii", 7 * truth)
    np.save(tmp_path / "truth.npy", 7 * truth)  # it holds no spacing: that of the volume counts
    for file in (nifti, tmp_path / "truth.npy"):
        scorer = VolumeScorer(ClassFormat(class_map), Classes(("sky", "land")), surfaces=True)
        score = scorer.score_mask(volume_job(tmp_path, file), pred)
        assert score.scores.sums.tolist() == matrix_of(pred, truth, 2)
        assert score.surfaces.hd95[1] == surface_scores(pred, truth, 2, (2.0, 1.0, 1.0)).hd95[1]
        plain = VolumeScorer(ClassFormat(class_map), Classes(("sky", "land")))
        assert plain.score_mask(volume_job(tmp_path, file), pred).surfaces is None


def test_true_masks_of_another_size_or_grid_cannot_be_used(tmp_path):
    scorer = VolumeScorer(ClassFormat(ClassMap(("sky", "land"), (0, 7), None)), Classes(("sky", "land")))
    pred = np.zeros((3, 4, 5), np.uint8)
    shorter = write_volume(tmp_path / "shorter.nii", np.zeros((2, 4, 5), np.uint8))
    with pytest.raises(DataError, match=r"shorter\.nii: is 2 x 4 x 5, but the volume 3 x 4 x 5 \(z, y, x\)"):
        scorer.score_mask(volume_job(tmp_path, shorter), pred)
    coarser = write_volume(tmp_path / "coarser.nii", pred, (3.0, 1.0, 1.0))
    with pytest.raises(DataError, match=r"coarser\.nii: its affine differs from the volume's"):
        scorer.score_mask(volume_job(tmp_path, coarser), pred)
    same = write_volume(tmp_path / "same.nii", pred)
    with pytest.raises(DataError, match="differs in size from the volume; give --overwrite"):
        scorer.score_mask(volume_job(tmp_path, same), pred[:2])
    with pytest.raises(ScoreError):  # there is no mask
        scorer.score(volume_job(tmp_path, same))


def test_a_written_mask_is_scored_in_parts_of_all_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(truth_module, "SCORED_ROWS", 4)
    rng = np.random.default_rng(0)
    pred, truth = rng.integers(0, 3, (2, 11, 6), np.uint8)
    table = np.uint8(CLASSES.values)
    Image.fromarray(table[pred]).save(tmp_path / "a.png")
    Image.fromarray(table[truth]).save(tmp_path / "truth.png")
    job = ImageJob(image=tmp_path / "a.tif", size=(11, 6), output=tmp_path / "a", truth=(tmp_path / "truth.png", 0))
    score = ImageScorer(ClassFormat(CLASSES), TASK, boundary=True).score(job)
    assert score.scores.sums.tolist() == matrix_of(pred, truth)
    assert score.boundary.hits.tolist() == boundary_scores(pred, truth, 3).hits.tolist()
    Image.fromarray(table[truth][:, :3]).save(tmp_path / "truth.png")
    with pytest.raises(ScoreError, match=r"truth\.png: is 11 x 3, but the image 11 x 6; they differ in proportions$"):
        ImageScorer(ClassFormat(CLASSES), TASK).score(job)
    (tmp_path / "truth.png").unlink()
    with pytest.raises(ScoreError, match=r"truth\.png"):
        ImageScorer(ClassFormat(CLASSES), TASK).score(job)


def stems(*names: str) -> list[Path]:
    return [Path(name) for name in names]


def test_true_masks_are_found_by_stem_suffix_and_page(tmp_path):
    tifffile.imwrite(tmp_path / "stack.tif", np.zeros((2, 4, 4), np.uint8), photometric="minisblack")
    files = {Path(name): tmp_path / f"{name}.png" for name in ("a_mask", "b_mask", "sub/a_mask")}
    files[Path("stack_mask")] = tmp_path / "stack.tif"
    masks = TrueMasks(files, None, stems("a", "b", "sub/a", "stack"))
    assert masks.suffix == "_mask"
    assert masks.find(Path("a"), Path("a"), 0, 1) == (tmp_path / "a_mask.png", 0)
    assert masks.find(Path("sub/a"), Path("sub/a"), 0, 1) == (tmp_path / "sub/a_mask.png", 0)
    assert masks.find(Path("stack"), Path("stack_0002"), 1, 2) == (tmp_path / "stack.tif", 1)
    for pages in (1, 3):
        with pytest.raises(DataError, match=rf"stack\.tif: has 2 pages, the image {pages}"):
            masks.find(Path("stack"), Path("stack_0001"), 0, pages)
    assert masks.find(Path("c"), Path("c"), 0, 1) is None and masks.missing == ["c_mask"]
    assert masks.find(Path("a"), Path("a_0001"), 0, 2) is None  # a picture has no pages
    assert TrueMasks({Path("a"): tmp_path / "a.png"}, "", ["a"]).suffix == ""
    given = TrueMasks({Path("a_x"): tmp_path / "a_x.png", Path("a"): tmp_path / "a.png"}, "_x", stems("a"))
    assert given.find(Path("a"), Path("a"), 0, 1) == (tmp_path / "a_x.png", 0)
    assert TrueMasks({}, None, stems("a")).suffix == ""


def test_true_masks_of_classes_that_overlap_lie_in_a_folder_for_each_or_in_one_file(tmp_path):
    touch(tmp_path, "folders/a/x.png", "folders/b/x.png", "folders/a/sub/y.png", "folders/a/v.nii.gz", "files/x.png")
    folders = tmp_path / "folders"
    masks = open_true_masks(folders, "", stems("x", "sub/y", "v", "z"), ["a", "b"])
    files = (ClassFile(str(folders / "a" / "x.png")), ClassFile(str(folders / "b" / "x.png")))
    assert masks.find(Path("x"), Path("x"), 0, 1) == ClassMasks(files, (0, 1))
    lacking = (ClassFile(str(folders / "a" / "sub" / "y.png")), ClassFile(""))  # nothing is known of the other class
    assert masks.find(Path("sub/y"), Path("sub/y"), 0, 1) == ClassMasks(lacking, (0, 1))
    volume = masks.find(Path("v"), Path("v"), 0, 1)
    assert volume.paths == (str(folders / "a" / "v.nii.gz"),) and volume.layers.unknown == (1,)
    assert masks.find(Path("z"), Path("z"), 0, 1) is None and masks.missing == ["z"]
    stack = np.zeros((2, 3, 4), np.uint8)
    tifffile.imwrite(tmp_path / "files" / "s.tif", stack, photometric="minisblack")
    for classes, expected in (
        (["a", "b"], ClassMasks(tuple(ClassFile(str(tmp_path / "files" / "s.tif"), page) for page in (0, 1)), (0, 1))),
        (["a"], ClassChannels(str(tmp_path / "files" / "s.tif"), (0,))),
    ):
        joined = open_true_masks(tmp_path / "files", "", stems("s", "x", "z"), classes)
        assert joined.find(Path("s"), Path("s"), 0, 1) == expected
    assert joined.find(Path("x"), Path("x"), 0, 1) == ClassChannels(str(tmp_path / "files" / "x.png"), (0,))
    assert joined.find(Path("z"), Path("z"), 0, 1) is None and joined.missing == ["z"]


def test_small_copies_within_a_stack_are_no_true_masks(tmp_path):
    file = tmp_path / "stack.tif"
    with tifffile.TiffWriter(file) as tiff:
        for _ in range(2):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")
            tiff.write(np.zeros((2, 2), np.uint8), photometric="minisblack", subfiletype=1)
    masks = TrueMasks({Path("stack"): file}, "", [Path("stack")])
    pages = [masks.find(Path("stack"), Path(f"stack_{number:04}"), number, 2) for number in range(2)]
    assert pages == [(file, 0), (file, 2)]


def test_a_job_knows_its_name_its_pixels_and_its_files():
    image = ImageJob(image=Path("in/a.b.tif"), size=(4, 5), output=Path("out/a.b"))
    assert (image.name, image.pixels, image.files) == ("in/a.b.tif", 20, ("in/a.b.tif",))
    assert [str(image.file(extension)) for extension in (".png", ".npy")] == ["out/a.b.png", "out/a.b.npy"]
    page = ImageJob(image=Path("a.tif"), size=None, output=Path("a"), page=2)
    assert (page.name, page.pixels) == ("a.tif page 3", 0)
    volume = VolumeJob(image=Path("a.nii"), size=(2, 3, 4), output=Path("a"), volume=VolumeFile(("a.nii", "b.nii")))
    assert (volume.pixels, volume.files) == (24, ("a.nii", "b.nii"))
    written = [volume.file(extension).name for extension in (".png", ".npy", ".overlay.png")]
    assert written == ["a.nii.gz", "a.probabilities.nii.gz", "a.overlay.png"]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".nii.gz"):
            write_volume(folder / name, np.zeros((2, 3, 4), np.float32))
        else:
            Image.fromarray(np.zeros((3, 4), np.uint8)).save(folder / name)


def outputs(folder: Path, *patterns: str, channels: int = 1, **options) -> dict[str, tuple[str, ...]]:
    """The outputs of inputs below `folder`, each with the files that are read for it."""
    inputs = [str(folder / pattern) for pattern in patterns]
    jobs = find_jobs(inputs, folder / "out", [".png"], InputRules(channels), **options)
    relative = {}
    for job in jobs:
        files = tuple(str(Path(file).relative_to(folder)) for file in job.files)
        relative[str(job.output.relative_to(folder / "out"))] = files
    return relative


def test_a_folder_holds_pictures_and_volumes_but_no_hidden_files(tmp_path):
    touch(tmp_path, "in/b.png", "in/a.PNG", "in/.c.png", "in/sub/.d/e.png", "in/sub/f.nii.gz")
    (tmp_path / "in" / "notes.txt").write_text("")
    assert outputs(tmp_path, "in") == {"a": ("in/a.PNG",), "b": ("in/b.png",), "sub/f": ("in/sub/f.nii.gz",)}
    assert outputs(tmp_path, "in/b.png", "in") == {
        "b": ("in/b.png",),
        "a": ("in/a.PNG",),
        "sub/f": ("in/sub/f.nii.gz",),
    }
    assert outputs(tmp_path, "*/*.png") == {"in/b": ("in/b.png",)}


def test_channels_of_a_case_are_joined_where_the_model_takes_several_or_all_have_but_the_first(tmp_path):
    touch(
        tmp_path, "two/a_0000.nii.gz", "two/a_0001.nii.gz", "one/a_0000.nii.gz", "one/b_0000.nii.gz", "x/a_0000.nii.gz"
    )
    touch(tmp_path, "x/b.nii.gz")
    both = ("two/a_0000.nii.gz", "two/a_0001.nii.gz")
    assert outputs(tmp_path, "two", channels=2) == {"a": both}
    assert outputs(tmp_path, *reversed(both), channels=2) == {"a": both}  # in the order of their numbers
    assert outputs(tmp_path, "two") == {"a_0000": both[:1], "a_0001": both[1:]}
    assert outputs(tmp_path, "one") == {"a": ("one/a_0000.nii.gz",), "b": ("one/b_0000.nii.gz",)}
    assert outputs(tmp_path, "x") == {"a_0000": ("x/a_0000.nii.gz",), "b": ("x/b.nii.gz",)}


def test_pages_are_numbered_from_one_and_stacks_are_volumes_where_a_spacing_is_known(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((3, 4, 5), np.uint8), photometric="minisblack")
    pages = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"])
    assert [(job.output.name, job.page, job.size) for job in pages] == [
        ("s_0001", 0, (4, 5)),
        ("s_0002", 1, (4, 5)),
        ("s_0003", 2, (4, 5)),
    ]
    (stack,) = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"], InputRules(stacks=(3.0, 1.0, 1.0)))
    assert (stack.size, stack.spacing, stack.output.name) == ((3, 4, 5), (3, 1, 1), "s")


def test_inputs_that_cannot_be_are_one_line(tmp_path, capsys):
    touch(tmp_path, "in/a.png", "in/a.tif", "in/legend.png", "other/a.png")
    with pytest.raises(DataError, match=r"in/a\.png and .*in/a\.tif would both write .*out/a\.png; give one of them"):
        outputs(tmp_path, "in")
    with pytest.raises(DataError, match=r"in/a\.png is an input, not to be overwritten; choose another folder"):
        find_jobs([str(tmp_path / "in" / "a.png")], tmp_path / "in", [".png"])
    with pytest.raises(DataError, match="is a folder of inputs; masks must not lie among images"):
        find_jobs([str(tmp_path / "in")], tmp_path / "in", [".png"])
    with pytest.raises(DataError, match=r"legend\.overlay\.png, the legend of the overlays; rename it"):
        find_jobs([str(tmp_path / "in" / "legend.png")], tmp_path / "out", [".png", ".overlay.png"])
    assert len(find_jobs([str(tmp_path / "in" / "legend.png")], tmp_path / "out", [".png"])) == 1
    touch(tmp_path, "points.png")
    with pytest.raises(DataError, match=r"points\.png would write .*points\.json, which is of all inputs; rename it"):
        find_jobs([str(tmp_path / "points.png")], tmp_path / "out", [".json"])
    wrong = {
        "": "--input: is empty",
        f"{tmp_path}/none*": "no image or volume found",
        f"{tmp_path}/none": "is not there",
    }
    for pattern, line in wrong.items():
        with pytest.raises(DataError, match=line):
            find_jobs([pattern], tmp_path / "out", [".png"])
    touch(tmp_path, "phone/a.png")
    (tmp_path / "phone" / "b.HEIC").write_bytes(b"heic")
    assert len(find_jobs([f"{tmp_path}/phone"], tmp_path / "out", [".png"])) == 1
    assert "left out 1 files that are not read, the first is b.HEIC; convert HEIC" in capsys.readouterr().out
    (tmp_path / "truth").mkdir()
    touch(tmp_path, "truth/b.png")
    touch(tmp_path, "other/b.png", "other/c.png")
    with pytest.raises(DataError, match=r"has no mask for 2 inputs, the first is a; if the masks have a suffix"):
        find_jobs([str(tmp_path / "other")], tmp_path / "out", [".png"], truth=TruthFolder(tmp_path / "truth"))


@pytest.mark.parametrize(
    "name",
    ["predict.json", "metrics.json", "points.csv", "points.tps", "points.json", "rank.csv", "legend.overlay.png"],
)
def test_no_input_writes_what_is_written_of_all(tmp_path, name):
    stem, _, extension = name.partition(".")
    touch(tmp_path, f"{stem}.png", f"sub/{stem}.png")
    with pytest.raises(DataError, match=rf"{stem}\.png would write .*{stem}\.\w+.*rename it"):
        find_jobs([str(tmp_path / f"{stem}.png")], tmp_path / "out", [f".{extension}"])
    assert len(find_jobs([f"{tmp_path}/*/{stem}.png"], tmp_path / "out", [f".{extension}"])) == 1  # in a subfolder


def test_inputs_are_known_under_other_names_of_their_folders(tmp_path):
    touch(tmp_path, "in/a.png", "in/sub/deep/b.png", "out/notes.png")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(DataError, match=r"a\.png is an input, not to be overwritten; choose another folder"):
        find_jobs([str(tmp_path / "in" / "a.png")], tmp_path / "link", [".png"])
    jobs = find_jobs([str(tmp_path / "in" / "a.png")], tmp_path / "out", [".png"])
    with pytest.raises(DataError, match=r"a\.png: is the input, not to be overwritten"):
        named_job(jobs, tmp_path / "link" / "a.png", overwrite=True)
    assert outputs(tmp_path, "in/**/*.png") == {"a": ("in/a.png",), "sub/deep/b": ("in/sub/deep/b.png",)}
    inputs = [str(tmp_path / "*")]  # the outputs of an earlier call lie there too
    stems = [job.output.name for job in find_jobs(inputs, tmp_path / "out", [".png"])]
    assert stems == ["a", "b", "a", "b"]
    for pattern in (tmp_path / "*" / "*.png", tmp_path):
        jobs = find_jobs([str(pattern)], tmp_path / "out", [".png"])
        assert "a" in {job.output.name for job in jobs} and "notes" not in {job.output.name for job in jobs}


def test_the_mask_of_one_image_may_be_a_file_that_is_neither_the_input_nor_there(tmp_path):
    touch(tmp_path, "a.png", "b.png", "old.png")
    jobs = find_jobs([str(tmp_path / "a.png"), str(tmp_path / "b.png")], tmp_path / "out", [".png"])
    assert named_job(jobs[:1], tmp_path / "new.png", overwrite=False).file(".png") == tmp_path / "new.png"
    assert named_job(jobs[:1], tmp_path / "old.png", overwrite=True).output == tmp_path / "old"
    touch(tmp_path, "v.nii.gz")
    volumes = find_jobs([str(tmp_path / "v.nii.gz")], tmp_path / "out", [".png"])
    for chosen, name, overwrite, line in (
        (volumes, "new.png", True, "the mask of a volume is no .png; give a folder"),
        (jobs, "new.png", True, "is one file, but there are 2 inputs; give a folder"),
        (jobs[:1], "a.png", True, "is the input, not to be overwritten"),
        (jobs[:1], "old.png", False, "is there already; --overwrite replaces it"),
    ):
        with pytest.raises(DataError, match=line):
            named_job(chosen, tmp_path / name, overwrite=overwrite)


def test_a_disk_must_have_room_for_all_that_will_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2_500_000))
    check_disk(tmp_path / "a" / "b", 2_500_000)
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"] and not any((tmp_path / "a" / "b").iterdir())
    with pytest.raises(DataError, match=r"needs about 2\.5 MB, but 2\.5 MB are free"):
        check_disk(tmp_path / "a", 2_500_001)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file is not a folder"):
        check_disk(tmp_path / "file" / "out", 1)


def test_the_disk_is_that_of_the_folder_which_must_take_files(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: asked.append(folder) or SimpleNamespace(free=9))
    check_disk(tmp_path / "a" / "b", 9)
    assert asked == [tmp_path.resolve()]  # what is there of the path

    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(disk, "TemporaryFile", refuse)
    with pytest.raises(DataError, match=r"--output .*b: cannot be written \(Permission denied\)"):
        check_disk(tmp_path / "a" / "b", 9)


def test_classes_are_written_as_the_values_that_they_had():
    output_format = ClassFormat(CLASSES)
    rows = np.array([[0, 1], [2, 0]], np.uint8)
    assert (
        output_format.mask_values(rows).tolist() == [[10, 200], [255, 10]]
        and output_format.mask_values(rows).dtype == np.uint8
    )
    assert (
        output_format.shades(rows) is rows and output_format.names == CLASSES.names and len(output_format.colors) == 3
    )
    image = np.full((2, 2, 3), 90, np.uint8)
    assert np.array_equal(output_format.overlay(image, rows), outlined_overlay(image, rows, output_format.colors))
    assert np.asarray(output_format.legend()).shape[0] == 60
    output_format.check_volume("v")
    wide = ClassFormat(ClassMap(("a", "b"), (0, 300), None)).mask_values(rows % 2)
    assert wide.dtype == np.uint16 and wide.max() == 300
    colors = ClassFormat(ClassMap(("a", "b"), ((1, 2, 3), (4, 5, 6)), None))
    assert colors.mask_values(np.array([[1, 0]])).tolist() == [[[4, 5, 6], [1, 2, 3]]]
    assert colors.colors.tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ImageError, match="v: the model's classes are colors, which the mask of a volume cannot hold"):
        colors.check_volume("v")
    assert colors.area_properties(0, 2, None) == {"class": "b", "value": "#040506"}
    assert output_format.area_properties(0, 1, None) == {"class": "sky", "value": 10}


def test_a_model_says_how_its_predictions_are_written():
    preprocess = Preprocess(class_names=("a", "b"), class_values=(3, 9))
    assert new_format(UNetConfig(num_classes=2, preprocess=preprocess)).mask_values(np.array([[0, 1]])).tolist() == [
        [3, 9]
    ]


def test_mask_overlay_and_probabilities_of_an_image_are_written_strip_by_strip(tmp_path):
    output_format = ClassFormat(CLASSES)
    logits = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
    pixels = np.random.default_rng(0).integers(0, 60_000, (9, 6, 1)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", pixels[:, :, 0], photometric="minisblack")
    rows = logits.argmax(0).numpy().astype(np.uint8)
    taken = []
    sink = SimpleNamespace(add=lambda strip, missing, certainty: taken.append(strip))
    writer = ImageWriter(output_format, TASK, (".png", ".overlay.png", ".npy"))
    job = ImageJob(image=tmp_path / "a.tif", size=(9, 6), output=tmp_path / "out" / "a")
    writer.write(job, (9, 6), logits.split(4, dim=1), WindowedArray(pixels), sink)
    assert np.array_equal(np.asarray(Image.open(job.file(".png"))), np.uint8(CLASSES.values)[rows])
    assert np.array_equal(np.concatenate(taken), rows) and [len(strip) for strip in taken] == [4, 4, 1]
    np.testing.assert_allclose(np.load(job.file(".npy")), logits.softmax(0).numpy(), rtol=1e-6)
    shown = np.asarray(Image.open(job.file(".overlay.png")))
    strips = [slice(0, 4), slice(4, 8), slice(8, 9)]
    low, high = np.percentile(pixels, (1, 99))  # one brightness for all strips
    expected = [output_format.overlay(to_rgb(pixels[strip], (low, high)), rows[strip]) for strip in strips]
    assert np.array_equal(shown, np.concatenate(expected))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.npy", "a.overlay.png", "a.png"]


def test_an_overlay_of_real_numbers_is_equally_bright_in_all_strips(tmp_path):
    pixels = np.random.default_rng(0).random((9, 6, 1)).astype(np.float32) * np.arange(1, 10)[:, None, None]
    logits = torch.zeros(3, 9, 6)
    job = ImageJob(image=tmp_path / "a.npy", size=(9, 6), output=tmp_path / "out" / "a")
    writer = ImageWriter(ClassFormat(CLASSES), TASK, (".png", ".overlay.png"))
    writer.write(job, (9, 6), logits.split(2, dim=1), WindowedArray(pixels), None)
    low, high = np.percentile(pixels, (1, 99))
    whole = to_rgb(pixels, (low, high))  # the first class is not drawn
    assert np.array_equal(np.asarray(Image.open(job.file(".overlay.png"))), whole)


def test_mask_and_probabilities_of_a_volume_are_written_strip_by_strip(tmp_path):
    output_format = ClassFormat(ClassMap(("a", "b"), (0, 7), None))
    task = Classes(("a", "b"))
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    job = volume_job(tmp_path, None)
    writer = VolumeWriter(output_format, task, (".png", ".overlay.png", ".npy"))
    mask = writer.write(job, (3, 4, 5), logits.split(2, dim=1))
    assert np.array_equal(mask, logits.argmax(0).numpy()) and mask.dtype == np.uint8
    written = nibabel.load(job.file(".png"))
    assert np.array_equal(np.asarray(written.dataobj).T, 7 * mask) and written.header.get_zooms() == (1, 1, 2)
    probabilities = np.asarray(nibabel.load(job.file(".npy")).dataobj)
    assert probabilities.shape == (5, 4, 3, 2)
    np.testing.assert_allclose(probabilities.T, logits.softmax(0).numpy(), rtol=1e-5)
    page = volume_page(np.zeros((3, 4, 5, 1)), mask, output_format.colors, (2.0, 1.0, 1.0))
    assert np.array_equal(np.asarray(Image.open(job.file(".overlay.png"))), page)
    names = ["image.nii.gz", "image.overlay.png", "image.probabilities.nii.gz"]
    assert sorted(path.name for path in job.output.parent.iterdir()) == names
    colored = VolumeWriter(ClassFormat(ClassMap(("a", "b"), ((0, 0, 0), (1, 1, 1)), None)), task, (".png",))
    with pytest.raises(ImageError, match="which the mask of a volume cannot hold"):
        colored.write(job, (3, 4, 5), [logits])


@pytest.mark.parametrize(("extensions", "has_legend"), [((".png", ".overlay.png"), True), ((".png", ".npy"), False)])
def test_a_legend_lies_beside_overlays(tmp_path, extensions, has_legend):
    writer = PredictionWriter(ClassFormat(CLASSES), TASK, extensions)
    writer.write_legend(tmp_path)
    assert writer.shows_image is has_legend and (tmp_path / "legend.overlay.png").exists() is has_legend
    if has_legend:
        legend = np.asarray(Image.open(tmp_path / "legend.overlay.png"))
        assert np.array_equal(legend, np.asarray(writer.output_format.legend()))
    assert (writer.images.extensions, writer.volumes.extensions) == (extensions, extensions)


def test_strips_of_an_image_are_64_rows_and_those_of_a_volume_16_megabytes():
    assert strip_length(3, (10_000, 10)) == 64
    assert strip_length(4, (99, 256, 256)) == 16 and strip_length(4, (99, 4096, 4096)) == 1


@pytest.mark.parametrize(("rows", "is_tracked"), [(64, False), (65, True), (640, True)])
def test_a_bar_is_shown_where_there_are_several_strips(capsys, rows, is_tracked):
    predictor = SimpleNamespace(config=UNetConfig(num_classes=3))
    job = ImageJob(image=Path("in/tall.tif"), size=(rows, 9), output=Path("out"))
    strips = iter(range((rows + 63) // 64))
    assert list(tracked(strips, predictor, job, (rows, 9))) == list(range((rows + 63) // 64))
    printed = capsys.readouterr().err
    assert (f"tall.tif: 100% {(rows + 63) // 64}/{(rows + 63) // 64}" in printed) is is_tracked


def test_images_beyond_128_megabytes_of_logits_are_predicted_in_windows():
    network = UNet(UNetConfig(base_channels=1, depth=1, num_classes=4, norm="group"))  # whole up to 4 GB
    predictor = Predictor(network)
    assert not predictor.in_windows((2048, 4096)) and predictor.in_windows((2048, 4097))
    tiled = Predictor(network, tile_size=512)  # sums of tiles, and copies of what they share
    assert not tiled.in_windows((1024, 2048)) and tiled.in_windows((1024, 2049))
    halved = UNet(UNetConfig(base_channels=1, depth=1, num_classes=4, norm="group", preprocess=Preprocess(scale=2.0)))
    assert not Predictor(halved).in_windows((1024, 2048)) and Predictor(halved).in_windows((1024, 2050))


def test_images_share_a_batch_where_the_network_sees_one_shape():
    config = UNetConfig(base_channels=1, depth=1, norm="group", preprocess=Preprocess(scale=0.5))
    predictor = Predictor(UNet(config))
    key, count = predictor.batch_of((100, 60))
    assert key == ((50, 30),) and count >= 2
    assert predictor.batch_of((100, 62))[0] == ((50, 31),)
    assert predictor.batch_of((1000, 600))[1] < count


def test_a_volume_may_be_given_by_its_name_and_probabilities_are_those_of_its_mask(tmp_path):
    torch.manual_seed(0)
    predictor = Predictor(UNet(UNetConfig(1, 3, base_channels=1, depth=1, norm="group")))
    file = write_volume(tmp_path / "v.nii", np.random.default_rng(0).random((3, 8, 9)).astype(np.float32))
    prediction = predictor(str(file))
    assert prediction.mask.shape == (3, 8, 9) and prediction.probabilities.shape == (3, 3, 8, 9)
    assert np.array_equal(prediction.mask, prediction.probabilities.argmax(0))
    assert np.array_equal(prediction.mask, predictor.mask(VolumeFile((str(file),))))
    np.testing.assert_allclose(prediction.probabilities.sum(0), 1, rtol=1e-5)
    slices = list(predictor.slices(VolumeFile((str(file),))))
    np.testing.assert_array_equal(np.stack(slices, axis=1), prediction.probabilities)
    picture = io.BytesIO()
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(8, 9)).save(picture, "png")
    assert predictor(picture.getvalue()).mask.shape == (8, 9)


@pytest.mark.parametrize(
    "others",
    [
        [{"scale": 0.25}, {"scale": 1.0}],
        [{"image_size": (32, 32)}, {"image_size": (128, 128)}],
        [{"scale": 0.25}, {"scale": 0.25, "draft": False}],
    ],
)
def test_networks_that_need_other_detail_of_a_photograph_each_have_their_own(tmp_path, others):
    pixels = np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    configs = [UNetConfig(preprocess=Preprocess(**options)) for options in others]
    for order in (configs, configs[::-1]):
        together = read_inputs(tmp_path / "a.jpg", order, "a.jpg", 0, keep_pixels=False).tensors
        for config, tensor in zip(order, together, strict=True):
            (alone,) = read_inputs(tmp_path / "a.jpg", [config], "a.jpg", 0, keep_pixels=False).tensors
            assert torch.equal(tensor, alone)
        assert together[0].shape != together[1].shape or not torch.equal(*together)


def network_of(names: tuple[str, ...] = ("a", "b"), values: tuple = (0, 1), **options) -> UNet:
    preprocess = Preprocess(class_names=names, class_values=values)
    return UNet(UNetConfig(1, len(names), base_channels=1, depth=1, preprocess=preprocess, **options))


def test_an_ensemble_needs_models_of_the_same_classes_axes_and_task():
    Predictor(network_of(), ensemble=[network_of(norm="group")])
    for other, line in (
        (network_of(("a", "c")), "an ensemble needs models of the same classes"),
        (network_of(values=(0, 255)), "an ensemble needs models of the same classes"),
        (network_of(("a", "b", "c"), (0, 1, 2)), "an ensemble needs models of the same classes"),
        (network_of(dims=3), "an ensemble cannot mix a 2-D and a 3-D model"),
    ):
        with pytest.raises(ModelError, match=line):
            Predictor(network_of(), ensemble=[other])


def test_folds_differ_in_what_was_measured_and_are_an_ensemble_all_the_same():
    folds = []
    for smallest, fills_holes in ((3, True), (5, False)):
        task = Objects(Classes(("background", "cell")), smallest, fills_holes)
        folds.append(UNet(UNetConfig(1, 3, base_channels=1, depth=1, task=task.to_config())))
    assert Predictor(folds[0], ensemble=folds[1:]).task.smallest == 3
    with pytest.raises(ModelError, match="same task"):
        Predictor(folds[0], ensemble=[network_of(("a", "b", "c"), (0, 1, 2))])


def test_an_ensemble_of_landmarks_weighs_its_maps_against_the_mean_of_what_its_networks_do():
    folds = []
    for sigma, nowhere, always_there in ((1.5, 8.0, (0, 1)), (2.0, 9.0, (1,))):
        task = Landmarks(("a", "b"), sigma, nowhere, partners=(0, 1), always_there=always_there)
        folds.append(UNet(UNetConfig(1, 2, base_channels=1, depth=1, task=task.to_config())))
    predictor = Predictor(folds[0], ensemble=folds[1:])
    assert predictor.task == Landmarks(("a", "b"), 1.5, 8.5, partners=(0, 1), always_there=(1,))
    other = Landmarks(("a", "c"), 1.5, 8.0, partners=(0, 1))
    with pytest.raises(ModelError, match="same task"):
        Predictor(folds[0], ensemble=[UNet(replace(folds[0].config, task=other.to_config()))])


def test_masks_of_pages_are_found_by_the_suffix_that_theirs_have(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((2, 4, 5), np.uint8), photometric="minisblack")
    touch(tmp_path, "truth/s_0001_mask.png", "truth/s_0002_mask.png")
    jobs = find_jobs([str(tmp_path / "s.tif")], tmp_path / "out", [".png"], truth=TruthFolder(tmp_path / "truth"))
    assert [job.truth for job in jobs] == [(tmp_path / f"truth/s_000{page}_mask.png", 0) for page in (1, 2)]


def test_a_true_mask_that_cannot_be_used_costs_the_score_and_not_the_prediction(tmp_path):
    predictor = Predictor(network_of())
    touch(tmp_path, "a.png")
    (tmp_path / "truth.png").write_bytes(b"no picture")
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    job = ImageJob(
        image=tmp_path / "a.png", size=(3, 4), output=tmp_path / "out" / "a", truth=(tmp_path / "truth.png", 0)
    )
    for truth, error in ((tmp_path / "truth.png", "truth.png"), (tmp_path / "gone.png", "gone.png")):
        with_truth = replace(job, truth=(truth, 0))
        ((_, outcome),) = PredictionPipeline(predictor, writer, set()).run([[with_truth]])
        assert isinstance(outcome, ScoreError) and str(outcome).endswith("; the prediction is written anyway")
        assert error in str(outcome) and np.asarray(Image.open(job.file(".png"))).shape == (3, 4)
    ((_, outcome),) = PredictionPipeline(predictor, writer, {job}).run([[job]])  # it was finished before
    assert isinstance(outcome, ScoreError) and "anyway" not in str(outcome)
    Image.fromarray(np.zeros((3, 4), np.uint8)).save(tmp_path / "truth.png")
    ((_, outcome),) = PredictionPipeline(predictor, writer, {job}).run([[job]])
    assert outcome.scores.sums.sum() == 12


def arguments_of(monkeypatch, *words: str):
    required = ["--model", "m", "--input", "a.png"]
    monkeypatch.setattr("sys.argv", ["predict.py", *required, *words])
    return parse_args("")


@pytest.mark.parametrize(
    ("flags", "bytes_of_pixel"),
    [
        ([], 0.05),
        (["--overlay"], 2.05),
        (["--uncertainty"], 1.05),
        (["--probabilities"], 4 * 2 + 0.05),
        (["--overlay", "--uncertainty", "--probabilities"], 11.05),
    ],
)
def test_the_disk_needs_room_for_each_file_that_is_asked_for(monkeypatch, tmp_path, flags, bytes_of_pixel):
    touch(tmp_path, "in/a.png", "in/b.png", "in/c.nii.gz")
    needed = []
    monkeypatch.setattr(pipeline, "check_disk", lambda folder, size: needed.append(size))
    monkeypatch.setattr(pipeline, "record_provenance", lambda *arguments: None)
    args = arguments_of(monkeypatch, "--output", str(tmp_path / "out"), *flags)
    args.input = [str(tmp_path / "in")]
    predictor = Predictor(network_of())
    prepare_work(args, predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".png",)))
    pixels = 2 * 3 * 4 + 2 * (2 * 3 * 4)  # the files of a volume lie there twice for a while
    assert needed == [int(bytes_of_pixel * pixels)]


def test_what_is_there_and_how_images_are_cut_is_said_once(monkeypatch, tmp_path, capsys):
    for name in "abc":
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.fromarray(np.zeros((40, 48), np.uint8)).save(tmp_path / "in" / f"{name}.png")
    touch(tmp_path, "out/b.png")
    args = arguments_of(monkeypatch, "--output", str(tmp_path / "out"))
    args.input, args.model = [str(tmp_path / "in")], str(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    predictor = Predictor(network_of(), ensemble=[network_of()], tile_size=16)
    work = prepare_work(args, predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".png",)))
    printed = capsys.readouterr().out
    assert printed.count("images in tiles of 16 x 16") == 1 and "2 images in tiles" in printed
    assert "1 of 3 masks are there already; --overwrite predicts them again" in printed
    assert [job.output.name for job in work.finished] == ["b"] and len(work.jobs) == 3
    assert sorted(job.output.name for batch in work.batches for job in batch) == ["a", "c"]


def test_what_does_not_fit_is_told_a_tile_that_does(tmp_path, monkeypatch):
    predictor = Predictor(network_of())

    def refuse(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(predictor, "strips", refuse)
    monkeypatch.setattr(predictor, "in_batch", refuse)
    touch(tmp_path, "a.png")
    image = ImageJob(image=tmp_path / "a.png", size=(3, 4), output=tmp_path / "out" / "a")
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    for job, side in ((image, 512), (volume_job(tmp_path, None), 64)):
        ((_, outcome),) = PredictionPipeline(predictor, writer, set()).run([[job]])
        line = f"{job.name}: does not fit into memory; give --tile-size {side}, or a smaller one than before"
        assert str(outcome).startswith(line)


@pytest.mark.parametrize(("name", "page"), [("a.tif", 1), ("a.png", 0)])
def test_a_large_file_is_read_in_parts_where_that_can_be(tmp_path, monkeypatch, capsys, name, page):
    pages = np.random.default_rng(0).integers(0, 255, (2, 64, 80), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack", tile=(16, 16))
    Image.fromarray(pages[0]).save(tmp_path / "a.png")
    torch.manual_seed(0)
    preprocess = Preprocess(mean=(127.0,), std=(70.0,), class_names=("a", "b"), class_values=(0, 1))
    network = UNet(UNetConfig(1, 2, base_channels=4, depth=1, preprocess=preprocess))
    probabilities = Predictor(network)(pages[page]).probabilities
    network.head.conv.bias.data[0] -= float(np.median(np.log(probabilities[0] / probabilities[1])))
    predictor = Predictor(network)  # either class is at half of the pixels
    expected = predictor.mask(pages[page])
    assert 0.1 < expected.mean() < 0.9 and (predictor.mask(pages[1 - page]) != expected).any()
    monkeypatch.setattr(predictor_module, "WINDOW_MEMORY", 100)
    job = find_jobs([str(tmp_path / name)], tmp_path / "out", [".png"])[page]
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    assert list(PredictionPipeline(predictor, writer, set()).run([[job]])) == [(job, None)]
    assert np.array_equal(np.asarray(Image.open(job.file(".png"))), expected)
    line = "a.png: cannot be read in parts, so the whole decoded image is kept in memory"
    assert (line in capsys.readouterr().out) is (name == "a.png")


def test_classes_that_overlap_have_no_background_in_the_report_of_cases(capsys):
    scores = Overlapping(("a", "b")).new_scores(1)
    truth = OverlapTarget(torch.tensor([[[1, 1, 2, 0]]]), torch.tensor([[[3, 3, 3, 3]]]))
    scores.add(torch.tensor([[[1, 0, 2, 0]]]), truth, 0)
    case = VolumeScore(scores, None).to_json("v")
    assert case["mean_dice"] == pytest.approx((2 / 3 + 1) / 2)
    report = print_scores(scores, "mean IoU", [ScoredImage(case, None, None)])
    assert report["by_case"]["classes"] == ["a", "b"] and report["by_case"]["mean_dice"] == case["mean_dice"]


@pytest.mark.parametrize("task", [Classes(("a", "b", "c")), Overlapping(("a", "b", "c")), Objects()])
def test_certain_answers_have_logits_that_are_numbers(task):
    probabilities = torch.tensor([1.0, 0.0, 0.0])[:, None]
    logits = new_decoder(task).logits_of(probabilities)
    assert logits.isfinite().all()
    torch.testing.assert_close(new_decoder(task).probabilities(logits), probabilities, atol=1e-6, rtol=0)


def test_the_largest_uncertainty_is_255_of_any_number_of_classes():
    for classes in range(2, 40):
        decoder = new_decoder(Classes(tuple(map(str, range(classes)))))
        assert decoder.uncertainty(torch.full((classes, 1, 1), 0.3)).tolist() == [[255]], classes


def test_an_output_that_ends_in_png_is_the_file_of_the_only_mask(monkeypatch, tmp_path):
    args = arguments_of(monkeypatch, "--output", "out/mask.PNG")
    assert (args.file, args.output) == (Path("out/mask.PNG"), Path("out"))
    assert (args.tile_size, args.overlap, args.scale, args.tta, args.ensemble) == (None, None, None, False, [])
    args = arguments_of(monkeypatch, "--output", "out", "--tile-size", "64", "--overlap", "0")
    assert (args.file, args.output, args.tile_size, args.overlap) == (None, Path("out"), 64, 0)
    touch(tmp_path, "old.png")
    assert arguments_of(monkeypatch, "--output", str(tmp_path / "old.png")).file == tmp_path / "old.png"
    (tmp_path / "folder.png").mkdir()
    assert arguments_of(monkeypatch, "--output", str(tmp_path / "folder.png")).file is None
    assert arguments_of(monkeypatch, "--output", "out/mask.tiff").file == Path("out/mask.tiff")
    assert arguments_of(monkeypatch, "--output", "out").uncertainty is False
    assert arguments_of(monkeypatch, "--output", "out", "--rank").uncertainty is True
    assert arguments_of(monkeypatch, "--output", "out", "--polygons").polygons == "geojson"
    assert arguments_of(monkeypatch, "--output", "out", "--boundary", "--truth", "t").boundary is True
    impossible = ("--scale 0", "--overlap -1", "--tile-size 0", "--processes-per-volume 0", "--min-size 0")
    for flags in (*impossible, "--polygons shp", "--boundary"):
        with pytest.raises(SystemExit):
            arguments_of(monkeypatch, "--output", "out", *flags.split())
    monkeypatch.setattr("sys.argv", ["predict.py", "--model", "m", "--output", "out"])
    with pytest.raises(SystemExit):
        parse_args("")
