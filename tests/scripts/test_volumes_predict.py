"""Volumes through prediction: tiles, strips, masks on their own grid, names of files, scores.

Modules: tasks/prediction_files.py, tasks/scoring/boundary.py.
"""

import json
import tempfile
from dataclasses import replace
from itertools import compress, product
from pathlib import Path
from typing import NamedTuple

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from support.formats import class_format
from support.in_process import run_predict
from support.prediction import settings_of, volume_job, write_logits
from support.volumes import write_nifti

import inference.tiling.planning
import inference.tiling.stream
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_volume
from inference import Predictor
from inference.pipeline import PredictionPipeline
from inference.requested_outputs import RequestedOutputs
from inference.tiling.planning import Tiling, choose_tiling
from inference.tiling.receptive_field import reach
from inference.tiling.stream import stream_logits
from inference.work import prepare_work
from runtime.errors import ImageError
from tasks import new_format
from tasks.classes.loss import Classes
from tasks.job import MASK, OVERLAY, PROBABILITIES, Job
from tasks.scoring.boundary import boundary_scores
from unet import Preprocess, UNet, UNetConfig

IGNORED = 255
FLAT = {"kernels": ((1, 3, 3), (3, 3, 3)), "strides": ((1, 2, 2),)}  # of planes that are far apart


def network(channels: int = 1, classes: int = 2, *, dims: int = 3, preprocess: Preprocess | None = None, **options):
    """A small float64 network whose batch norms have something to do."""
    torch.manual_seed(0)
    settings = {"base_channels": 4, "depth": 1, **options}
    model = UNet(UNetConfig(channels, classes, dims=dims, preprocess=preprocess or Preprocess(), **settings))
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    model = model.double().eval()
    with torch.no_grad():  # each class occurs
        logits = model(torch.randn(1, channels, *[16] * dims, dtype=torch.float64))
        model.head.conv.bias -= logits.transpose(0, 1).flatten(1).mean(1)
    return model


def tiled(model: UNet, image: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    strips = stream_logits(model, lambda start, stop: image[:, start:stop], image.shape[1:], tiling, 10**5)
    return torch.cat(list(strips), dim=1)


def affine(axes: str, spacing: tuple[float, ...], tilt: float = 0.0) -> np.ndarray:
    """From a voxel of a file whose axes run as `axes` say to mm, turned by `tilt` about z."""
    result = np.eye(4)
    start = nibabel.orientations.axcodes2ornt(axes)
    for axis, (of_ras, step) in enumerate(start.astype(int)):
        result[:3, axis] = 0
        result[of_ras, axis] = step * spacing[axis]
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    turn[:3, 3] = (-20.5, 13, 7)
    return turn @ result


def voxels(shape: tuple[int, ...] = (20, 18, 12), seed: int = 0) -> np.ndarray:
    """Noise with a bright box, in the file's axes."""
    found = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    found[3:-5, 4:-6, 2:-4] += 2
    return found


def save(path: Path, values: np.ndarray, grid: np.ndarray | None = None) -> Path:
    return write_nifti(path, values, np.eye(4) if grid is None else grid)


def predict(predictor: Predictor, inputs: list[Path], output: Path, *, truth: Path | None = None, **options):
    """Each job of what predict.py would do, with its score or the error that stopped it."""
    args = settings_of(input=list(map(str, inputs)), output=output, truth=truth, **options)
    extensions = (MASK, *[OVERLAY] * args.overlay, *[PROBABILITIES] * args.probabilities)
    output_format = new_format(predictor.config)
    writer = RequestedOutputs(output_format, extensions, args.boundary)
    work = prepare_work(args, predictor, writer)
    return list(PredictionPipeline(predictor, writer, work.finished_jobs).run(work.batches))


BILINEAR = {"upsample": "bilinear", "block": "residual"}


@pytest.mark.parametrize("options", [{}, FLAT, pytest.param(BILINEAR, marks=pytest.mark.slow)])
def test_exact_tiles_have_the_least_overlap_that_equals_the_whole_volume(options):
    model = network(**options)
    needed, grid = reach(model.config), model.config.divisors
    assert needed[1:] == ((8, 8) if "upsample" not in options else (10, 10))
    assert grid[1:] == (2, 2)
    tile = tuple(2 * halo + 2 * step for halo, step in zip(needed, grid, strict=True))
    size = tuple(side + 3 * step + odd for side, step, odd in zip(tile, grid, (1, 2, 3), strict=True))
    image = torch.rand(1, *size, dtype=torch.float64)
    tiling = Tiling(tile, tuple(2 * halo for halo in needed), grid, exact=True)
    with torch.inference_mode():
        whole = model(image[None])[0]
        assert (tiled(model, image, tiling) - whole).abs().max() < 1e-9
        for axis in range(3 if options == FLAT else 1):
            less = [side - 2 * grid[axis] * (axis == other) for other, side in enumerate(tiling.overlap)]
            assert (tiled(model, image, tiling._replace(overlap=tuple(less))) - whole).abs().max() > 1e-9


def test_a_network_that_looks_at_the_whole_volume_is_blended_from_tiles():
    model = network(norm="group")
    tiling = choose_tiling(model.config, (34, 36, 40), tile_size=32)
    assert tiling == Tiling((32, 32, 32), (16, 16, 16), (2, 2, 2), exact=False)
    assert str(tiling) == "tiles of 32 x 32 x 32 overlapping by 16 (blended, not exactly the whole image's result)"
    image = torch.rand(1, 34, 36, 40, dtype=torch.float64)
    with torch.inference_mode():
        difference = (tiled(model, image, tiling) - model(image[None])[0]).abs()
    assert difference.max() > 1e-6
    assert difference.mean() < 0.05
    same = tiled(lambda batch: batch, image, tiling)
    assert (same - image).abs().max() < 1e-13  # the weights add up to one


PLANES = {"kernels": ((1, 3, 3), (1, 3, 3), *((3, 3, 3),) * 3), "strides": ((1, 2, 2), (1, 2, 2), *((2,) * 3,) * 2)}
# it looks 8 slices far, and 24 voxels along the other axes
THICK = {"depth": 2, "kernels": ((1, 3, 3), *((3, 3, 3),) * 2), "strides": ((1, 2, 2), (2, 2, 2))}


def tiling_of(size: tuple[int, ...], num_classes: int = 2, **options) -> Tiling | None:
    """How a volume is cut for a network of these options."""
    return choose_tiling(UNetConfig(1, num_classes, dims=3, **options), size)


@pytest.mark.parametrize(
    ("size", "options", "tiling"),
    [
        ((36, 50, 35), {"base_channels": 32, "norm": "instance"}, None),
        ((128, 512, 512), {"base_channels": 8, "depth": 2}, Tiling((128,) * 3, (48,) * 3, (4,) * 3, exact=True)),
        # 4 times as far as it looks would be 384 voxels
        ((128, 512, 512), {"base_channels": 8, "depth": 4}, Tiling((128,) * 3, (64,) * 3, (16,) * 3, exact=False)),
    ],
    ids=["whole", "exact", "blended"],
)
def test_a_tile_is_as_large_as_training_patches_or_exact(size, options, tiling):
    assert tiling_of(size, **options) == tiling


def test_a_tile_is_flat_where_voxels_are_thick():
    flat = tiling_of((60, 1024, 1024), base_channels=32, norm="instance", **PLANES)
    assert flat.grid == (4, 16, 16)
    assert flat.size[0] * 4 == flat.size[1] == flat.size[2]


@pytest.mark.parametrize(("overlap", "is_exact"), [(16, False), (24, False), (48, True)])
def test_a_tile_is_exact_where_it_overlaps_by_twice_the_reach_along_each_axis(overlap, is_exact):
    config = UNetConfig(1, 2, dims=3, base_channels=4, **THICK)
    assert choose_tiling(config, (200,) * 3, tile_size=128, overlap=overlap).exact == is_exact


@pytest.mark.parametrize("options", [{}, {"norm": "group"}])
def test_strips_equal_the_tiles_of_all_at_once_however_few_slices_are_handed_on(monkeypatch, options):
    model, image = network(**options), torch.rand(1, 43, 30, 41, dtype=torch.float64)
    tiling = choose_tiling(model.config, image.shape[1:], tile_size=32)
    with torch.inference_mode():
        expected = tiled(model, image, tiling)
        monkeypatch.setattr(inference.tiling.stream, "STRIP_BYTES", 3 * 4 * 2 * 30 * 41)
        strips = list(stream_logits(model, lambda a, b: image[:, a:b], image.shape[1:], tiling, 10**5))
        assert max(strip.shape[1] for strip in strips) == 3
        assert (torch.cat(strips, dim=1) - expected).abs().max() < 1e-13


GRIDS = {
    "RAS": affine("RAS", (1, 1, 1)),
    "LPS": affine("LPS", (1, 1, 1)),
    "PIR": affine("PIR", (1, 1, 1)),
    "anisotropic": affine("LAS", (0.7, 0.7, 3.0)),
    "oblique": affine("LPS", (0.8, 0.9, 1.5), tilt=0.4),
}


class WrittenVolume(NamedTuple):
    """A volume, what is written of it, and the mask that the predictor answers in RAS orientation."""

    image: nibabel.Nifti1Image
    job: Job
    mask: np.ndarray


@pytest.fixture(scope="module", params=GRIDS.values(), ids=GRIDS)
def written(request, tmp_path_factory) -> WrittenVolume:
    """A volume on a grid whose mask, probabilities and overlay are written."""
    folder = tmp_path_factory.mktemp("written")
    preprocess = Preprocess(spacing=(1.5, 1.2, 1.0), standardize=True, class_values=(0, 3, 300))
    predictor = Predictor(network(1, 3, preprocess=preprocess).float())
    image = nibabel.Nifti1Image(voxels(), request.param)
    image.header["descrip"] = b"of a phantom"
    (folder / "in").mkdir()
    nibabel.save(image, folder / "in" / "case.nii.gz")
    ((job, score),) = predict(predictor, [folder / "in"], folder / "out", probabilities=True, overlay=True)
    assert score is None
    return WrittenVolume(image, job, predictor.mask(job.image))


def test_a_mask_has_the_grid_of_its_volume_and_is_what_the_predictor_says_in_ras_orientation(written):
    file = nibabel.load(written.job.file(MASK))
    assert file.shape == written.image.shape
    np.testing.assert_array_equal(file.affine, nibabel.load(written.job.image).affine)
    assert file.header["descrip"] == b"of a phantom"
    assert file.header.get_xyzt_units() == written.image.header.get_xyzt_units()
    assert np.asarray(file.dataobj).dtype.kind in "iu"
    assert len(np.unique(file.dataobj)) > 1
    mask = nibabel.as_closest_canonical(file)
    np.testing.assert_array_equal(np.asarray(mask.dataobj).transpose(2, 1, 0), np.array([0, 3, 300])[written.mask])


def test_probabilities_of_a_volume_are_those_of_its_mask_and_an_overlay_shows_nine_slices(written):
    probabilities = nibabel.load(written.job.file(PROBABILITIES))
    assert probabilities.shape == (*written.image.shape, 3)
    assert probabilities.get_data_dtype() == np.float32
    stored = np.asarray(nibabel.load(written.job.file(MASK)).dataobj)
    np.testing.assert_array_equal(np.array([0, 3, 300])[np.asarray(probabilities.dataobj).argmax(3)], stored)
    spacing = np.array(written.job.spacing)
    depth, height, width = (np.array(written.job.size) * spacing / spacing.min()).round()
    assert Image.open(written.job.file(OVERLAY)).size == (3 * (width + depth) + 2 * 2, height + depth)


TWO_CLASSES = class_format(("a", "b"), (0, 7))
LOGITS = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


def test_probabilities_of_a_volume_need_no_other_disk_than_that_of_its_outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no folder"))
    job = volume_job(tmp_path, None)
    write_logits(TWO_CLASSES, Classes(("a", "b")), job, LOGITS, (".png", ".npy"))
    assert job.file(".npy").is_file()


def test_the_same_volume_in_other_axes_has_the_same_mask_at_the_same_places(tmp_path):
    predictor = Predictor(network(preprocess=Preprocess(spacing=(1.0, 1.0, 1.0))).float())
    original = nibabel.Nifti1Image(voxels(), affine("RAS", (1, 1.5, 2)))
    nibabel.save(original, tmp_path / "RAS.nii.gz")
    expected = predictor.mask(tmp_path / "RAS.nii.gz")
    for axes in ("LPS", "SRA", "AIL"):
        way = nibabel.orientations.ornt_transform(
            nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(axes)
        )
        nibabel.save(original.as_reoriented(way), tmp_path / f"{axes}.nii.gz")
        np.testing.assert_array_equal(predictor.mask(tmp_path / f"{axes}.nii.gz"), expected)


@pytest.mark.parametrize("options", [{}, {"tile_size": 8}, {"tta": True}], ids=["plain", "tiles", "views"])
def test_a_model_of_images_predicts_a_volume_slice_by_slice(tmp_path, options):
    save(tmp_path / "case.nii.gz", voxels((20, 31, 12)))
    content, _ = read_volume(VolumeFile((str(tmp_path / "case.nii.gz"),)), "case")
    predictor = Predictor(network(dims=2, preprocess=Preprocess(scale=0.5)), **options)
    mask, probabilities = predictor(tmp_path / "case.nii.gz")
    assert mask.shape == (12, 31, 20)
    assert probabilities.shape == (2, 12, 31, 20)
    for index, plane in enumerate(content):
        np.testing.assert_allclose(probabilities[:, index], predictor(plane).probabilities, atol=1e-12)


def test_views_of_a_volume_are_its_eight_mirrorings(tmp_path):
    model = network()
    save(tmp_path / "case.nii.gz", voxels())
    image = torch.from_numpy(voxels().transpose(2, 1, 0)[None, None].copy())
    with torch.inference_mode():
        chosen = [list(compress((2, 3, 4), which)) for which in product((0, 1), repeat=3)]
        views = [model(image.flip(axes)).flip(axes).softmax(1) for axes in chosen]
    expected = (sum(views) / 8)[0].numpy()
    np.testing.assert_allclose(Predictor(model, tta=True)(tmp_path / "case.nii.gz").probabilities, expected, atol=1e-12)


def test_an_ensemble_averages_networks_with_other_spacings(tmp_path):
    save(tmp_path / "case.nii.gz", voxels())
    models = [network(preprocess=Preprocess(spacing=(side,) * 3)) for side in (1.0, 1.4)]
    single = [Predictor(model)(tmp_path / "case.nii.gz").probabilities for model in models]
    both = Predictor(models[0], ensemble=models[1:])(tmp_path / "case.nii.gz").probabilities
    np.testing.assert_allclose(both, (single[0] + single[1]) / 2, atol=1e-12)


def test_inputs_that_do_not_fit_a_model_are_a_line_each_and_the_volume_beside_them_is_written(tmp_path):
    """A folder with an image, a volume of three channels, a damaged one, and one that fits a model of volumes."""
    mixed_inputs = tmp_path / "mixed"
    mixed_inputs.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(mixed_inputs / "a.png")
    save(mixed_inputs / "b.nii.gz", np.zeros((8, 9, 7, 3), np.float32))
    (mixed_inputs / "c.nii.gz").write_bytes(b"no volume")
    save(mixed_inputs / "d.nii.gz", voxels((9, 8, 7)))
    found = dict(predict(Predictor(network()), [mixed_inputs], tmp_path / "out"))
    lines = {job.image.name: str(error) for job, error in found.items()}
    assert "a.png: is no volume, and the model takes volumes" in lines["a.png"]
    assert "has 3 channels, the model takes 1" in lines["b.nii.gz"]
    assert "c.nii.gz" in lines["c.nii.gz"]
    assert "cannot be read" in lines["c.nii.gz"]
    assert all("\n" not in line for line in lines.values())
    assert lines["d.nii.gz"] == "None"
    assert [file.name for file in (tmp_path / "out").glob("*.nii.gz")] == ["d.nii.gz"]


def test_files_of_channels_are_predicted_as_one_file_of_all(tmp_path):
    """A folder with two cases of two channels, a file each."""
    for case, channel in product("ab", range(2)):
        save(tmp_path / "in" / f"{case}_{channel:04}.nii.gz", voxels(seed=channel))
    channel_files = tmp_path / "in"
    ((_, score), _) = predict(Predictor(network(2)), [channel_files], tmp_path / "out")
    assert score is None
    together = np.stack([voxels(seed=0), voxels(seed=1)], axis=3)
    mask = Predictor(network(2)).mask(save(tmp_path / "together.nii.gz", together))
    np.testing.assert_array_equal(
        np.asarray(nibabel.load(tmp_path / "out" / "a.nii.gz").dataobj), mask.transpose(2, 1, 0)
    )


@pytest.fixture(scope="module")
def of_true_masks(tmp_path_factory) -> tuple[Path, list[dict]]:
    """The folder of three predicted volumes, two of whose true masks do not fit; the results of two runs.

    The second run finds the masks of the first one.
    """
    folder = tmp_path_factory.mktemp("true")
    predictor = Predictor(network())
    for case in ("a", "b", "c"):
        save(folder / "in" / f"{case}_0000.nii.gz", voxels(), GRIDS["LPS"])
    predict(predictor, [folder / "in"], folder / "truth")
    save(folder / "truth" / "b.nii.gz", np.zeros((20, 18, 11), np.uint8), GRIDS["LPS"])
    save(folder / "truth" / "c.nii.gz", np.zeros((20, 18, 12), np.uint8), GRIDS["RAS"])
    (folder / "truth" / "predict.json").unlink()
    runs = []
    for _ in range(2):
        results = predict(predictor, [folder / "in"], folder / "out", truth=folder / "truth", boundary=True)
        runs.append({job.output.name: result for job, result in results})
    return folder / "out", runs


@pytest.mark.parametrize("run", [0, 1], ids=["predicted", "there already"])
def test_true_masks_of_volumes_are_found_or_said_not_to_fit(of_true_masks, run):
    output, runs = of_true_masks
    scores = runs[run]["a"].entries[0]
    assert scores["dice"] == [1, 1]
    assert scores["hd95_mm"] == [None, 0]
    assert "image is 12 x 18 x 20, its label 11 x 18 x 20" in str(runs[run]["b"])
    assert "c.nii.gz: the affines of image and label differ" in str(runs[run]["c"])
    assert len(list(output.glob("*.nii.gz"))) == 3  # they cost no prediction


def surface(mask: np.ndarray) -> np.ndarray:
    """(n, 3) voxels of a mask one of whose six neighbors is not in it."""
    padded = np.pad(mask, 1)
    inner = np.ones_like(mask)
    for axis, step in product(range(3), (-1, 1)):
        inner &= np.roll(padded, step, axis)[1:-1, 1:-1, 1:-1]
    return np.argwhere(mask & ~inner)


def random_boxes(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Truth, some of it ignored, and a prediction: boxes of four classes, the last of which is nowhere."""
    rng = np.random.default_rng(seed)
    truth, pred = np.zeros((2, 9, 17, 14), np.uint8)
    for index in (1, 2, 1, 2, 3):
        start = [int(rng.integers(side - 4)) for side in truth.shape]
        for mask in (truth, pred):
            low = [place + int(rng.integers(3)) for place in start]
            mask[tuple(slice(a, a + int(rng.integers(2, 7))) for a in low)] = index
    truth[:2, :5] = IGNORED
    return truth, pred


def ways_between(true: np.ndarray, predicted: np.ndarray, spacing: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The distances in mm from each voxel of a surface to the other surface, both ways."""
    places = [surface(mask) * np.array(spacing) for mask in (true, predicted)]
    apart = np.sqrt(((places[0][:, None] - places[1][None]) ** 2).sum(axis=2))
    return apart.min(axis=1), apart.min(axis=0)


@pytest.mark.parametrize(("seed", "spacing"), [(0, (1.0, 1.0, 1.0)), (1, (3.0, 0.6, 0.7)), (2, (0.5, 2.0, 1.0))])
def test_surfaces_are_scored_as_by_comparing_every_voxel(seed, spacing):
    truth, pred = random_boxes(seed)
    found = boundary_scores(pred, truth, 5, spacing)
    for index in range(1, 5):
        true, predicted = truth == index, (pred == index) & (truth != IGNORED)
        assert found.missed[index] == (true.any() != predicted.any())
        assert np.isnan(found.distances[index]) == (not (true.any() and predicted.any()))
    for index in np.flatnonzero(~np.isnan(found.distances)):
        ways = ways_between(truth == index, (pred == index) & (truth != IGNORED), spacing)
        assert found.distances[index] == pytest.approx(max(np.percentile(way, 95) for way in ways), abs=1e-9)
        for mm, dice in zip((1, 2), found.dice[index], strict=True):
            near = sum((way <= mm + 1e-9).sum() for way in ways)
            assert dice == pytest.approx(near / sum(map(len, ways)), abs=1e-12)


def test_predict_py_prints_scores_of_volumes_by_case(tmp_path):
    """What predict.py prints of two volumes that it scores, and its metrics."""
    preprocess = Preprocess(
        spacing=(1.0, 1.0, 1.0), standardize=True, class_names=("none", "some"), class_values=(0, 7)
    )
    network(preprocess=preprocess).float().save_pretrained(tmp_path / "model")
    for case in "ab":
        save(tmp_path / "in" / f"{case}.nii.gz", voxels(seed=ord(case)), GRIDS["oblique"])
        save(tmp_path / "truth" / f"{case}.nii.gz", (voxels() > 1).astype(np.uint8) * 7, GRIDS["oblique"])
    paths = "--input", tmp_path / "in", "--output", tmp_path / "out", "--truth", tmp_path / "truth"
    result = run_predict("--model", tmp_path / "model", *paths, "--boundary", "--overlay")
    assert result.returncode == 0, result.stderr
    printed, metrics = result.stdout, json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert "2 of 2 masks" in printed
    assert "HD95 (mm)" in printed
    assert "surface Dice 1 mm" in printed
    of_cases = metrics["by_case"]
    assert of_cases["classes"] == ["some"]
    assert of_cases["cases"] == 2
    assert of_cases["dice"][0] == pytest.approx(np.mean([case["dice"][1] for case in metrics["by_image"]]))
    assert {"hd95_mm", "surface_dice_1mm", "surface_dice_2mm"} <= metrics["by_image"][0].keys()


@pytest.mark.parametrize(("beside", "spacing"), [(None, (1, 1, 2)), ("[4, 1, 1]", (1, 1, 4))], ids=["model", "file"])
def test_stack_is_scored_and_its_mask_has_a_spacing(beside, spacing, tmp_path):
    """That of the model, or the one that stands beside the stack."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    np.save(tmp_path / "images" / "a.npy", voxels((6, 20, 24)))
    np.save(tmp_path / "masks" / "a.npy", np.ones((6, 20, 24), np.uint8))
    if beside:
        (tmp_path / "spacing.json").write_text(beside)
    predictor = Predictor(network(preprocess=Preprocess(spacing=(2.0, 1.0, 1.0))))
    ((_, scores),) = predict(predictor, [tmp_path / "images"], tmp_path / "out", truth=tmp_path / "masks")
    assert int(scores.sums.sum()) == 6 * 20 * 24
    mask = nibabel.load(tmp_path / "out" / "a.nii.gz")
    assert mask.shape == (24, 20, 6)
    assert mask.header.get_zooms() == spacing


def test_a_model_of_photographs_says_that_it_takes_no_volumes(tmp_path):
    preprocess = Preprocess(mean=(90.0,) * 3, std=(50.0,) * 3, pixel_types=("uint8",))
    model = UNet(UNetConfig(3, 2, base_channels=2, depth=1, preprocess=preprocess)).eval()
    scan = save(tmp_path / "scan.nii.gz", np.zeros((6, 8, 10), np.float32))
    with pytest.raises(ImageError, match="is a volume, but the model was trained on color images"):
        Predictor(model).mask(scan)
    grey = Preprocess(mean=(90.0,), std=(50.0,), pixel_types=("uint8",))
    of_slices = UNet(UNetConfig(1, 2, base_channels=2, depth=1, preprocess=grey)).eval()
    assert Predictor(of_slices).mask(scan).shape == (10, 8, 6)
    in_three_channels = replace(preprocess, pixel_types=("uint8", "uint16"))
    of_spectra = UNet(UNetConfig(3, 2, base_channels=2, depth=1, preprocess=in_three_channels)).eval()
    assert Predictor(of_spectra).mask(scan).shape == (10, 8, 6)
    assert Predictor(model).mask(VolumeFile((str(scan),) * 3)).shape == (10, 8, 6)  # has three channels itself
