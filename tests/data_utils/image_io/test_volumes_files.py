"""Volume files: every voxel at its place in the world, masks back in the input's own header, mistakes in one line.

Modules: data_utils/image_io/volumes.py, data_utils/image_io/volume_formats.py.
"""

import gzip
import io
import re
import sys
import tracemalloc
from contextlib import nullcontext, suppress
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.volumes import AFFINES, ANISOTROPIC, LPS, RAS, case, write_nifti

from data_utils.analysis.inspect_volumes import inspect_volume
from data_utils.analysis.inspection import Inspection, Problem
from data_utils.image_io import volume_formats
from data_utils.image_io.formats import ClassLayers, VolumeFile
from data_utils.image_io.resize import nearest, resize_image, resize_mask
from data_utils.image_io.volumes import (
    VolumeHeader,
    is_volume,
    read_label_volume,
    read_volume,
    read_volume_header,
    same_grid,
    volume_stem,
    write_volume,
)
from data_utils.loading.volume_input import VolumeInput
from runtime.errors import DataError, ImageError
from unet.config import Preprocess

RESAMPLED = {"finer": (0.6, 0.7, 0.4), "coarser": (5.0, 1.3, 2.1), "mixed": (1.0, 3.0, 0.5), "as it is": None}


def source(*paths: Path, spacing: tuple[float, float, float] | None = None) -> VolumeFile:
    return VolumeFile(tuple(map(str, paths)), spacing)


def raw_header(path: Path) -> nibabel.Nifti1Header:
    """The header as it stands in the file: an image's header forgets the scale."""
    with gzip.open(path) as file:
        return nibabel.Nifti1Header.from_fileobj(file, check=False)


def written(voxels: np.ndarray, like: VolumeFile, path: Path) -> nibabel.Nifti1Image:
    with path.open("wb") as file:
        write_volume(file, voxels, like)
    return nibabel.load(path)


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_voxels_are_read_at_their_places_in_the_world(tmp_path, affine):
    image, _ = case(0)
    voxels, header = read_volume(source(write_nifti(tmp_path / "a.nii.gz", image, affine)), "a")
    assert voxels.shape == (*header.size, 1)
    assert header.dtype == "int16"
    assert np.diag(header.affine)[:3] == pytest.approx(np.abs(np.diag(header.affine)[:3]))  # right, anterior, superior
    to_file = np.linalg.inv(affine)
    places = [(0, 0, 0), (1, 2, 3), (5, 4, 6)]
    expected = []
    for z, y, x in places:
        i, j, k = (to_file @ header.affine @ [x, y, z, 1])[:3].round().astype(int)
        expected.append(image[i, j, k])
    assert [voxels[place][0] for place in places] == expected


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_voxels_are_read_in_the_canonical_axes_of_nibabel(tmp_path, affine):
    path = write_nifti(tmp_path / "a.nii.gz", case(0)[0], affine)
    voxels, header = read_volume(source(path), "a")
    canonical = nibabel.as_closest_canonical(nibabel.load(path))
    assert np.array_equal(voxels[..., 0], np.asarray(canonical.dataobj).T)
    assert header.affine == pytest.approx(canonical.affine)
    assert header.spacing == pytest.approx(canonical.header.get_zooms()[::-1])


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_a_header_is_that_of_the_volume(tmp_path, affine):
    volume = source(write_nifti(tmp_path / "a.nii.gz", case(0)[0], affine))
    _, header = read_volume(volume, "a")
    assert read_volume_header(volume, "a")._replace(affine=0) == header._replace(affine=0)


@pytest.fixture(params=AFFINES.values(), ids=AFFINES)
def image_and_mask(request, tmp_path):
    """An image, the mask of its label that was written to out.nii.gz, and this label."""
    image, label = case(1)
    path = write_nifti(tmp_path / "a.nii.gz", image.astype(np.float32), request.param)
    mask, _ = read_label_volume(source(write_nifti(tmp_path / "l.nii.gz", label, request.param)), "l")
    return nibabel.load(path), written(mask.astype(np.int64), source(path), tmp_path / "out.nii.gz"), label


def test_a_mask_is_written_in_the_axes_of_its_image(image_and_mask):
    image, mask, label = image_and_mask
    assert np.array_equal(mask.dataobj, label)
    assert np.array_equal(mask.affine, image.affine)


@pytest.mark.parametrize("form", ["sform", "qform"])
def test_a_mask_has_both_affines_of_its_image_with_their_codes(image_and_mask, form):
    image, mask, _ = image_and_mask
    affine, code = getattr(mask, f"get_{form}")(coded=True)
    expected_affine, expected_code = getattr(image, f"get_{form}")(coded=True)
    assert np.array_equal(affine, expected_affine)
    assert code == expected_code


def test_a_mask_has_the_units_of_its_image_but_a_type_and_scale_of_its_own(image_and_mask, tmp_path):
    image, mask, _ = image_and_mask
    assert mask.header.get_zooms() == image.header.get_zooms()
    assert mask.header.get_xyzt_units() == image.header.get_xyzt_units()
    assert mask.get_data_dtype() == np.uint8
    header = raw_header(tmp_path / "out.nii.gz")
    assert header["scl_slope"] == 1
    assert header["scl_inter"] == 0


@pytest.mark.parametrize(
    ("value", "kind"), [(255, "uint8"), (256, "int16"), (-1, "int16"), (40_000, "uint16"), (70_000, "int32")]
)
def test_mask_values_take_the_smallest_type_that_holds_them(tmp_path, value, kind):
    path = write_nifti(tmp_path / "a.nii.gz", case(0)[0])
    mask = np.zeros((8, 10, 12), np.int64)
    mask[1, 2, 3] = value
    back = written(mask, source(path), tmp_path / "out.nii.gz")
    assert back.get_data_dtype() == kind
    assert back.dataobj[3, 2, 1] == value


def test_probabilities_are_written_with_the_channels_last(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", case(0)[0], LPS)
    probabilities = np.random.default_rng(0).random((3, 8, 10, 12))
    back = written(probabilities, source(path), tmp_path / "out.nii.gz")
    assert back.shape == (12, 10, 8, 3)
    assert back.get_data_dtype() == np.float32
    again, _ = read_volume(source(tmp_path / "out.nii.gz"), "out")
    assert np.array_equal(np.moveaxis(again, 3, 0), probabilities.astype(np.float32))


def test_a_single_channel_is_written_as_several_are(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", case(0)[0], LPS)
    probabilities = np.random.default_rng(0).random((1, 8, 10, 12))
    written(probabilities, source(path), tmp_path / "out.nii.gz")
    again, _ = read_volume(source(tmp_path / "out.nii.gz"), "out")
    assert np.array_equal(again[..., 0], probabilities[0].astype(np.float32))


def test_a_mask_of_an_image_of_channels_with_extensions_has_three_axes(tmp_path):
    image = nibabel.Nifti1Image(np.stack([IMAGE, IMAGE], axis=3), LPS)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"who, where and when " * 40))
    nibabel.save(image, tmp_path / "a.nii.gz")
    mask = LABEL[::-1, ::-1].T
    back = written(mask, source(tmp_path / "a.nii.gz"), tmp_path / "out.nii.gz")
    assert back.shape == LABEL.shape
    assert np.array_equal(back.dataobj, LABEL)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_scaled_values_are_read_and_the_scale_stays_out_of_the_mask(tmp_path, name):
    image = nibabel.Nifti1Image(np.arange(960, dtype=np.int16).reshape(8, 10, 12), RAS)  # more bytes than the header
    image.header.set_slope_inter(2, -1024)
    nibabel.save(image, tmp_path / name)
    voxels, header = read_volume(source(tmp_path / name), "a")
    assert header.dtype == "float32"
    assert np.array_equal(voxels[..., 0].T, nibabel.load(tmp_path / name).get_fdata())
    written(np.ones((12, 10, 8), np.uint8), source(tmp_path / name), tmp_path / "out.nii.gz")
    assert raw_header(tmp_path / "out.nii.gz")["scl_inter"] == 0


@pytest.mark.parametrize(("unit", "factor"), [("micron", 1e-3), ("meter", 1e3), ("unknown", 1)])
def test_units_become_mm_and_stay_in_the_file(tmp_path, unit, factor):
    path = write_nifti(tmp_path / "a.nii", case(0)[0], ANISOTROPIC)
    image = nibabel.load(path)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "b.nii.gz")
    assert read_volume_header(source(tmp_path / "b.nii.gz"), "b").spacing == pytest.approx(
        [4 * factor, 0.75 * factor, 0.5 * factor]
    )
    in_mm = read_volume_header(source(path), "a").affine[:3]
    assert np.allclose(read_volume_header(source(tmp_path / "b.nii.gz"), "b").affine[:3], factor * in_mm)
    back = written(np.zeros((8, 10, 12), np.uint8), source(tmp_path / "b.nii.gz"), tmp_path / "out.nii.gz")
    assert back.header.get_xyzt_units()[0] == unit
    assert np.array_equal(back.affine, image.affine)


def test_channels_are_the_fourth_axis_or_files_of_their_own(tmp_path):
    images = [case(seed)[0] for seed in range(3)]
    whole = write_nifti(tmp_path / "whole.nii.gz", np.stack(images, axis=3), LPS)
    parts = [write_nifti(tmp_path / f"{2 - i}.nii.gz", image, LPS) for i, image in enumerate(images)]
    first, header = read_volume(source(whole), "a")
    second, of_parts = read_volume(source(*parts), "a")
    assert np.array_equal(first, second)
    assert first.shape == (8, 10, 12, 3)
    assert header._replace(affine=0) == of_parts._replace(affine=0)
    assert written(np.ones((8, 10, 12), np.uint8), source(*parts), tmp_path / "out.nii.gz").shape == (12, 10, 8)
    write_nifti(parts[1], images[1], RAS)
    with pytest.raises(DataError, match="a: its channels have different shapes or affines"):
        read_volume(source(*parts), "a")


@pytest.fixture(params=["a.npy", "a.tif"])
def stack(request, tmp_path):
    """A stack of 5 x 6 x 7 in a file, and as an array."""
    array = np.random.default_rng(0).integers(0, 255, (5, 6, 7), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="minisblack")
    return source(tmp_path / request.param, spacing=(3.0, 2.0, 1.5)), array


def test_a_stack_is_a_volume_of_the_spacing_that_is_given(stack):
    file, array = stack
    voxels, header = read_volume(file, "a")
    assert np.array_equal(voxels[..., 0], array)
    assert header.size == (5, 6, 7)
    assert header.spacing == (3.0, 2.0, 1.5)
    assert header.dtype == "uint8"


def test_a_mask_of_a_stack_is_written_in_its_spacing(stack, tmp_path):
    file, array = stack
    mask = written(array, file, tmp_path / "out.nii.gz")
    assert np.array_equal(mask.dataobj, array.T)
    assert mask.header.get_zooms() == (1.5, 2.0, 3.0)
    assert mask.header.get_xyzt_units()[0] == "mm"


def test_reading_holds_the_voxels_once(tmp_path):
    voxels = np.random.default_rng(0).integers(0, 9, (64, 64, 128)).astype(np.float32)
    path = write_nifti(tmp_path / "a.nii.gz", voxels, LPS)
    read_volume_header(source(path), "a")  # imports
    tracemalloc.start()
    read_volume(source(path), "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size + 1.2 * voxels.nbytes + 2**23


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a.nii.gz", "a"), ("a.b.NII", "a.b"), ("c.nrrd", "c"), ("d.npy", "d"), ("e", "e"), ("a.b.npy", "a.b")],
)
def test_the_stem_of_a_volume_is_its_name_without_ending(name, stem):
    assert volume_stem(name) == stem


@pytest.mark.parametrize(
    ("name", "expected"), [("x/a.nii.gz", True), ("A.NII", True), ("a.npy", False), ("a.gz", False)]
)
def test_a_volume_is_known_by_its_ending(name, expected):
    assert is_volume(name) is expected


@pytest.mark.parametrize("error", ["ModuleNotFoundError", "ImportError"], ids=["missing", "broken"])
def test_a_format_of_simpleitk_names_the_package_where_it_cannot_be_imported(tmp_path, monkeypatch, error):
    monkeypatch.delitem(sys.modules, "SimpleITK", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "SimpleITK.py").write_text(f"raise {error}")
    (tmp_path / "a.nrrd").write_bytes(b"NRRD0004\n")
    with pytest.raises(DataError, match=r"a\.nrrd needs SimpleITK to be read: pip install SimpleITK"):
        read_volume(source(tmp_path / "a.nrrd"), "a")


@pytest.mark.parametrize("name", ["a.nrrd", "a.mha"])
@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_nrrd_or_mha_is_the_same_volume(tmp_path, affine, name):
    itk = pytest.importorskip("SimpleITK")
    image, _ = case(3)
    path = write_nifti(tmp_path / "a.nii.gz", image, affine)
    expected, expected_header = read_volume(source(path), "a")
    itk.WriteImage(itk.ReadImage(str(path)), str(tmp_path / name))
    voxels, header = read_volume(source(tmp_path / name), "a")
    assert np.array_equal(voxels, expected)
    assert header.affine == pytest.approx(expected_header.affine, abs=1e-4)
    mask = written(voxels[..., 0], source(tmp_path / name), tmp_path / "out.nii.gz")
    assert np.array_equal(mask.dataobj, image)
    assert mask.affine == pytest.approx(affine, abs=1e-4)


def nonsense(image: np.ndarray, field: str, value: float) -> bytes:
    """A file whose header holds a number that makes no sense."""
    header = nibabel.Nifti1Image(image, RAS).header
    header[field] = value
    return header.binaryblock + bytes(4) + image.tobytes("F")


IMAGE, LABEL = case(0)
RGB = np.zeros((3, 4, 5), [("R", "u1"), ("G", "u1"), ("B", "u1")])
BROKEN_IMAGES = {
    "not NIfTI": (b"x" * 400, "cannot be read"),
    "empty file": (b"", "cannot be read"),
    "cut": (nibabel.Nifti1Image(IMAGE, RAS).to_bytes()[:1500], "the file ends before its voxels do"),
    "cut behind a channel": (
        nibabel.Nifti1Image(np.stack([IMAGE] * 3, axis=3), RAS).to_bytes()[: 400 + IMAGE.nbytes],
        "the file ends before its voxels do",
    ),
    "huge": (nonsense(IMAGE, "dim", [3, 32767, 32767, 32767, 1, 1, 1, 1]), "cannot be read"),
    "two axes": (nonsense(IMAGE, "dim", [2, 12, 10, 1, 1, 1, 1, 1]), "it has 2 axes, 12 x 10; a volume has 3"),
    "negative side": (
        nonsense(IMAGE, "dim", [3, 12, -10, 8, 1, 1, 1, 1]),
        "it has 3 axes, 12 x -10 x 8; a volume has 3, or 4",
    ),
    "no channels": (nonsense(IMAGE, "dim", [4, 12, 10, 8, 0, 1, 1, 1]), "is empty, 12 x 10 x 8 voxels"),
    "no slices": (nonsense(IMAGE, "dim", [3, 12, 10, 0, 1, 1, 1, 1]), "is empty, 12 x 10 x 0 voxels"),
    "unknown type": (nonsense(IMAGE, "datatype", 77), "cannot be read"),
    "NaN": (nibabel.Nifti1Image(np.full((3, 4, 5), np.nan, "f4"), RAS).to_bytes(), "not numbers (NaN or infinite)"),
    "infinite": (nibabel.Nifti1Image(np.full((3, 4, 5), np.inf, "f4"), RAS).to_bytes(), "not numbers"),
    "complex": (nibabel.Nifti1Image(np.ones((3, 4, 5), "c8"), RAS).to_bytes(), "voxels of type complex64"),
    "RGB": (nibabel.Nifti1Image(RGB, RAS).to_bytes(), "expected one real number for each channel"),
    "five axes": (nibabel.Nifti1Image(np.ones((2, 2, 2, 2, 2), "u1"), RAS).to_bytes(), "it has 5 axes"),
    "flat affine": (nonsense(IMAGE, "srow_x", [0, 0, 0, 0]), "is no grid in space"),
    "NaN affine": (nonsense(IMAGE, "srow_x", [np.nan, 0, 0, 0]), "is no grid in space"),
}
BROKEN_LABELS = {
    "fractions": (np.full((12, 10, 8), 0.5, np.float32), "label holds 0.5, expected whole numbers"),
    "negative": (LABEL.astype(np.int16) - 1, "label holds -1, expected 0 and above"),
    "large": (LABEL * 2.0**62, "label holds 9.22337204e+18, expected 0 and above"),
    "NaN": (np.full((12, 10, 8), np.nan, np.float32), "label holds nan"),
    "channels": (np.zeros((12, 10, 8, 2), np.uint8), "label has 2 channels"),
    "another shape": (np.zeros((12, 10, 7), np.uint8), "image is 8 x 10 x 12, its label 7 x 10 x 12"),
}


def test_whole_numbers_stored_as_float_are_labels(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", LABEL.astype(np.float64) * 0.9999999 - 1e-8, LPS)
    mask, _ = read_label_volume(source(path), "a")
    assert mask.dtype == np.uint8
    assert np.array_equal(mask[:, ::-1, ::-1].T, LABEL)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("content", "message"), BROKEN_IMAGES.values(), ids=BROKEN_IMAGES)
def test_a_broken_image_is_a_one_line_error_that_names_it(tmp_path, caplog, content, message, compressed):
    path = tmp_path / ("a.nii.gz" if compressed else "a.nii")
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(DataError, match=r"^a") as error:
        read_volume(source(path), "a")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert caplog.records == []  # nibabel would log the problem too


def test_a_truncated_file_is_a_one_line_error(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", IMAGE)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"^a cannot be read \("):
        read_volume(source(path), "a")


def test_a_missing_file_is_a_one_line_error(tmp_path):
    with pytest.raises(DataError, match=r"^a cannot be read \("):
        read_volume(source(tmp_path / "none.nii.gz"), "a")


@pytest.mark.parametrize(("label", "message"), BROKEN_LABELS.values(), ids=BROKEN_LABELS)
def test_a_label_that_is_none_is_a_one_line_error(tmp_path, label, message):
    image, mask = write_nifti(tmp_path / "a.nii.gz", IMAGE), write_nifti(tmp_path / "l.nii.gz", label)
    problem = inspect_volume({"image": source(image), "target": source(mask), "name": "a"})
    assert isinstance(problem, Problem)
    assert message in problem.text
    assert problem.text.startswith("a: ")


def test_a_label_may_be_stored_in_other_axes_than_its_image(tmp_path):
    image = write_nifti(tmp_path / "a.nii.gz", IMAGE)
    to_lps = np.eye(4)
    to_lps[:2, :2], to_lps[:2, 3] = -np.eye(2), [11, 9]
    label = write_nifti(tmp_path / "l.nii.gz", LABEL[::-1, ::-1], RAS @ to_lps)
    inspection = inspect_volume({"image": source(image), "target": source(label), "name": "a"})
    assert isinstance(inspection, Inspection)
    assert inspection.pixels[0] == (LABEL == 0).sum()


def test_a_label_that_lies_elsewhere_than_its_image_is_a_problem(tmp_path):
    image = write_nifti(tmp_path / "a.nii.gz", IMAGE)
    label = write_nifti(tmp_path / "l.nii.gz", LABEL, RAS + np.diag([0, 0, 0.01, 0]))
    problem = inspect_volume({"image": source(image), "target": source(label), "name": "a"})
    assert isinstance(problem, Problem)
    assert "differ by up to 0.01 mm" in problem.text


@pytest.mark.parametrize("affine", [RAS, LPS, ANISOTROPIC], ids=["RAS", "LPS", "anisotropic"])
@pytest.mark.parametrize("spacing", RESAMPLED.values(), ids=RESAMPLED)
@pytest.mark.parametrize("thickness", [1, 3, 8, 13])
def test_strips_are_the_whole_to_the_last_bit(tmp_path, affine, spacing, thickness):
    voxels = np.stack([case(seed, (11, 14, 19), np.float32)[0] for seed in range(2)], axis=3)
    path = write_nifti(tmp_path / "a.nii.gz", voxels, affine)
    preprocess = Preprocess(spacing=spacing, clip=(5.0, 350.0), standardize=True)
    volume = VolumeInput.read(source(path), preprocess, 2, "a")
    whole = volume.whole()
    assert whole.shape == (2, *volume.size)
    assert whole.dtype == np.float32
    strips = [volume.strip(z, min(z + thickness, volume.size[0])) for z in range(0, volume.size[0], thickness)]
    assert np.array_equal(np.concatenate(strips, axis=1), whole)


def test_a_volume_of_the_networks_spacing_is_not_resampled(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", IMAGE, ANISOTROPIC)
    volume = VolumeInput.read(source(path), Preprocess(spacing=(4.0, 0.75, 0.5)), 1)
    assert np.array_equal(volume.whole()[0], IMAGE.T.astype(np.float32))


def test_standardising_sees_the_clipped_volume_and_leaves_a_constant_channel_finite(tmp_path):
    voxels = np.stack([IMAGE, np.full_like(IMAGE, 7)], axis=3)
    path = write_nifti(tmp_path / "a.nii.gz", voxels)
    whole = VolumeInput.read(source(path), Preprocess(clip=(20.0, 300.0), standardize=True), 2).whole()
    clipped = IMAGE.T.clip(20, 300).astype(np.float64)
    assert np.abs(whole[0] - (clipped - clipped.mean()) / clipped.std()).max() < 1e-6
    assert (whole[1] == 0).all()


def test_a_ramp_stays_at_its_place_in_the_world(tmp_path):
    x, y, z = np.meshgrid(*map(np.arange, (24, 20, 16)), indexing="ij")
    path = write_nifti(tmp_path / "a.nii.gz", (x + 10.0 * y + 100.0 * z).astype(np.float32), np.eye(4))
    whole = VolumeInput.read(source(path), Preprocess(spacing=(0.5, 2.0, 0.8)), 1).whole()[0]
    size = whole.shape
    assert size == (32, 10, 30)
    at_z, at_y, at_x = ((np.arange(n) + 0.5) * have / n - 0.5 for n, have in zip(size, (16, 20, 24), strict=True))
    expected = at_x + 10 * at_y[:, None] + 100 * at_z[:, None, None]
    inner = np.s_[4:-4, 2:-2, 4:-4]
    assert np.abs(whole - expected)[inner].max() < 0.01 * 100


@pytest.fixture
def step() -> np.ndarray:
    """Voxels (x, y, z) of 0, 100 and 200, which rise by a step along x and along z."""
    voxels = np.zeros((12, 12, 6), np.float32)
    voxels[6:, :, :] = 100
    voxels[:, :, 3:] += 100
    return voxels


def resampled(path: Path, spacing: tuple[float, float, float]) -> np.ndarray:
    return VolumeInput.read(source(path), Preprocess(spacing=spacing), 1).whole()[0]


def test_fine_axes_are_resampled_as_images_are(tmp_path, step):
    path = write_nifti(tmp_path / "a.nii.gz", step, np.diag([1.0, 1.0, 5.0, 1.0]))
    slices = resampled(path, (1.25, 0.5, 0.5))
    assert np.array_equal(slices[0], resize_image(step[:, :, 0].T[..., None], (24, 24))[..., 0])


def test_coarse_axes_are_resampled_without_overshoot(tmp_path, step):
    path = write_nifti(tmp_path / "a.nii.gz", step, np.diag([1.0, 1.0, 5.0, 1.0]))
    along_z = resampled(path, (1.25, 0.5, 0.5))[:, 0, 0]
    assert len(along_z) == 24
    assert along_z.min() == along_z[0]
    assert along_z.max() == along_z[-1]


def test_coarse_axes_are_resampled_alike_whichever_they_are(tmp_path, step):
    path = write_nifti(tmp_path / "a.nii.gz", step, np.diag([1.0, 1.0, 5.0, 1.0]))
    along_z = resampled(path, (1.25, 0.5, 0.5))[:, 0, 0]
    turned = write_nifti(tmp_path / "b.nii.gz", np.moveaxis(step, 2, 0), np.diag([5.0, 1.0, 1.0, 1.0]))
    along_x = resampled(turned, (0.5, 0.5, 1.25))[0, 0]
    assert np.abs(along_x - (along_z - along_z[0] + along_x[0])).max() < 1e-3


def test_a_volume_of_other_channels_than_the_model_takes_is_refused(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", np.stack([IMAGE, IMAGE], axis=3))
    with pytest.raises(DataError, match="a: has 2 channels, the model takes 3"):
        VolumeInput.read(source(path), Preprocess(), 3, "a")


def test_a_grey_volume_is_repeated_for_a_model_of_several_channels(tmp_path):
    grey = VolumeInput.read(source(write_nifti(tmp_path / "a.nii.gz", IMAGE)), Preprocess(), 3, "a").whole()
    assert grey.shape == (3, 8, 10, 12)
    assert np.array_equal(grey[0], grey[2])


@pytest.mark.parametrize(("shape", "size"), [((9, 7), (4, 15)), ((9, 7, 3), (9, 5)), ((5, 9, 7), (10, 4, 7))], ids=str)
def test_masks_of_any_number_of_axes_take_the_nearest_value(shape, size):
    mask = np.random.default_rng(0).integers(0, 9, shape, dtype=np.uint8)
    places = np.ix_(*(nearest(want, have) for want, have in zip(size, shape, strict=False)))
    assert np.array_equal(resize_mask(mask, size), mask[places])


STORED = {
    "int16": nibabel.Nifti1Image(IMAGE, ANISOTROPIC).to_bytes(),
    "float32": nibabel.Nifti1Image(IMAGE.astype(np.float32), LPS).to_bytes(),
    "channels": nibabel.Nifti1Image(np.stack([LABEL, LABEL], axis=3), RAS).to_bytes(),
    "big-endian": nibabel.Nifti1Image(LABEL, RAS, nibabel.Nifti1Header(endianness=">")).to_bytes(),
    "NIfTI-2": nibabel.Nifti2Image(LABEL, RAS).to_bytes(),
}


@st.composite
def damaged(draw) -> tuple[str, bytes]:
    """The name and content of a file with bytes changed, cut off or put in, before or after its compression."""
    content = bytearray(draw(st.sampled_from(list(STORED.values()))))
    name = draw(st.sampled_from(["a.nii", "a.nii.gz", "a.nii.gz damaged"]))
    if name.endswith("damaged"):
        content = bytearray(gzip.compress(content, mtime=0))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.one_of(st.integers(0, min(352, len(content))), st.integers(0, len(content))))
        kind = draw(st.sampled_from(["byte", "long", "cut", "insert"]))
        if kind == "byte":
            content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "long":
            content[at : at + 4] = draw(
                st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"])
            )
        elif kind == "cut":
            del content[at:]
        else:
            content[at:at] = draw(st.binary(max_size=16))
    return name.split()[0], gzip.compress(content) if name == "a.nii.gz" else bytes(content)


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(damaged())
@pytest.mark.filterwarnings("ignore::UserWarning", "error::RuntimeWarning")
def test_damaged_volumes_end_in_an_error_of_ours(tmp_path_factory, file):
    name, content = file
    path = tmp_path_factory.mktemp("volume") / name
    path.write_bytes(content)
    record = {"image": source(path), "target": source(path), "name": "a"}
    assert isinstance(inspect_volume(record), Inspection | Problem)
    with suppress(DataError):
        assert len(read_volume_header(source(path), "a").size) == 3
        voxels, header = read_volume(source(path), "a")
        out = io.BytesIO()
        write_volume(out, np.zeros(header.size, np.uint8), source(path))
        assert VolumeInput(voxels, header, Preprocess(), header.channels).strip(0, 1).shape[0] == header.channels


def volume_of_one(folder: Path, voxel: float, kind: type = np.float32) -> VolumeFile:
    """A volume of zeros but for one voxel."""
    voxels = np.zeros((2, 2, 2), kind)
    voxels[1, 1, 1] = voxel
    return source(write_nifti(folder / "a.nii", voxels))


@pytest.mark.parametrize("voxel", [9e29, -9e29])
def test_voxels_whose_squares_float32_holds_are_numbers(tmp_path, voxel):
    assert abs(read_volume(volume_of_one(tmp_path, voxel), "a")[0]).max() > 0


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("voxel", [1.1e30, -1.1e30, np.nan])
def test_voxels_whose_squares_float32_does_not_hold_are_refused(tmp_path, voxel, kind):
    with pytest.raises(ImageError, match="a: has pixels that are not numbers"):
        read_volume(volume_of_one(tmp_path, voxel, kind), "a")


@pytest.mark.parametrize(
    ("highest", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.int64)]
)
def test_labels_of_volumes_take_the_smallest_type_that_holds_them(tmp_path, highest, dtype):
    voxels = np.zeros((2, 2, 2), np.int32)
    voxels[0, 0, 0] = highest
    values, _ = read_label_volume(VolumeFile((str(write_nifti(tmp_path / "a.nii", voxels)),)), "a")
    assert values.dtype == dtype
    assert values.max() == highest


@pytest.mark.parametrize("name", ["a.nii", "a.npy"])
def test_voxels_that_are_not_compressed_are_mapped_from_their_file(tmp_path, name):
    write_nifti(tmp_path / "a.nii", IMAGE)
    np.save(tmp_path / "a.npy", IMAGE)
    array, _ = read_volume(source(tmp_path / name), "a")
    while not isinstance(array, np.memmap) and array is not None:
        array = array.base
    assert array is not None


def test_the_memory_of_a_stack_of_pages_is_that_of_all_of_them(tmp_path, monkeypatch):
    needed = []
    monkeypatch.setattr(volume_formats, "check_memory", lambda size, name: needed.append(size))
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 4, 5), np.uint16), photometric="minisblack")
    read_volume(source(tmp_path / "a.tif"), "a")
    assert needed == [3 * 4 * 5 * 2]


def test_a_mask_of_its_own_size_is_not_copied():
    assert resize_mask(LABEL, LABEL.shape) is LABEL


def test_a_label_of_the_smallest_type_is_not_copied(tmp_path, monkeypatch):
    stored = np.ones((2, 3, 4, 1), np.uint8)
    monkeypatch.setattr(volume_formats.NiftiVolume, "read", lambda self: stored)
    values, _ = read_label_volume(source(write_nifti(tmp_path / "a.nii", stored[..., 0])), "a")
    assert np.shares_memory(values, stored)


def header_of(side: float, moved: float) -> VolumeHeader:
    affine = np.diag([side, side, side, 1.0])
    affine[0, 3] = moved
    return VolumeHeader((2, 2, 2), (side, side, side), 1, "uint8", affine, ((0, 1), (1, 1), (2, 1)))


@pytest.mark.parametrize(
    ("side", "moved", "is_same"),
    [(1.0, 0.0024, True), (1.0, 0.0026, False), (0.05, 0.00049, True), (0.05, 0.00051, False)],
)
def test_voxels_lie_at_the_same_place_within_what_programs_round_or_a_hundredth_of_them(side, moved, is_same):
    assert same_grid(header_of(side, 0.0), header_of(side, moved)) is is_same


@pytest.mark.parametrize(("moved", "is_same"), [(0.00049, True), (0.00051, False)])
@pytest.mark.parametrize("spacing", [(0.05, 1.0, 1.0), (1.0, 0.05, 1.0), (1.0, 1.0, 0.05)])
def test_the_hundredth_is_that_of_the_shortest_side(spacing, moved, is_same):
    assert same_grid(header_of(1.0, 0.0)._replace(spacing=spacing), header_of(1.0, moved)) is is_same


def volume_of_side(folder: Path, side: float) -> VolumeFile:
    """A volume whose voxels have this size along x, in mm."""
    return source(write_nifti(folder / "a.nii", np.ones((2, 2, 2), np.uint8), np.diag([side, 1, 1, 1])))


@pytest.mark.parametrize("side", [2e-7, 0.9e4])
def test_a_voxel_has_a_size_that_something_may_have(tmp_path, side):
    assert read_volume(volume_of_side(tmp_path, side), "a")[1].spacing[2] == pytest.approx(side)


def test_two_axes_along_one_are_no_grid(tmp_path):
    affine = np.array([[1.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    volume = source(write_nifti(tmp_path / "a.nii", np.ones((2, 2, 2), np.uint8), affine))
    with pytest.raises(ImageError, match="is no grid in space"):
        read_volume_header(volume, "a")


@pytest.mark.parametrize("side", [0.9e-7, 1.1e4, -1.1e7])
def test_a_voxel_of_a_size_that_nothing_has_is_refused(tmp_path, side):
    with pytest.raises(ImageError, match="is no grid in space"):
        read_volume(volume_of_side(tmp_path, side), "a")


@pytest.mark.parametrize(("place", "is_grid"), [(0.9e7, True), (-1.1e7, False)])
def test_a_volume_lies_where_something_may_lie(tmp_path, place, is_grid):
    affine = np.eye(4)
    affine[1, 3] = place
    volume = source(write_nifti(tmp_path / "a.nii", np.ones((2, 2, 2), np.uint8), affine))
    with nullcontext() if is_grid else pytest.raises(ImageError, match="is no grid in space"):
        read_volume_header(volume, "a")


@pytest.fixture
def image_with_window(tmp_path) -> VolumeFile:
    """A volume whose header says between which values a viewer shows it."""
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), np.eye(4))
    image.header["cal_min"], image.header["cal_max"] = -100, 900
    image.to_filename(tmp_path / "a.nii")
    return source(tmp_path / "a.nii")


def test_a_written_mask_is_the_same_file_at_any_time(image_with_window, monkeypatch):
    files = []
    for now in (10**9, 2 * 10**9):
        monkeypatch.setattr("gzip.time.time", lambda now=now: now)
        file = io.BytesIO()
        write_volume(file, np.ones((4, 3, 2), np.uint8), image_with_window)
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_a_written_mask_has_no_window_of_its_image(image_with_window, tmp_path):
    header = written(np.ones((4, 3, 2), np.uint8), image_with_window, tmp_path / "out.nii.gz").header
    assert header["cal_min"] == 0
    assert header["cal_max"] == 0
    assert header.get_data_dtype() == np.uint8


@pytest.mark.parametrize(
    "other", [np.zeros((4, 6), np.uint8), np.zeros((4, 5), np.uint16)], ids=["another size", "another type"]
)
def test_a_page_of_a_stack_that_differs_from_the_first_is_named(tmp_path, other):
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for page in (np.zeros((4, 5), np.uint8), np.zeros((4, 5), np.uint8), other):
            writer.write(page, photometric="minisblack", contiguous=False)
    with pytest.raises(ImageError, match="page 3 has another size or type than the first"):
        read_volume(VolumeFile((str(tmp_path / "a.tif"),)), "a")


@pytest.mark.parametrize(("shape", "channels"), [((3, 4, 5, 2), 2), ((3, 4, 5), 1)])
def test_a_stack_of_four_axes_has_channels(tmp_path, shape, channels):
    stack = np.random.default_rng(0).integers(0, 9, shape, np.uint8)
    np.save(tmp_path / "a.npy", stack)
    voxels, header = read_volume(source(tmp_path / "a.npy"), "a")
    assert header.size == (3, 4, 5)
    assert header.channels == channels
    assert np.array_equal(voxels, stack.reshape(3, 4, 5, channels))


@pytest.mark.parametrize("shape", [(5, 2), (1, 3, 4, 5, 2)])
def test_a_stack_of_two_or_five_axes_is_refused(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    line = f"its shape is {shape}, not (z, y, x) or (z, y, x, channels)"
    with pytest.raises(ImageError, match=re.escape(line)):
        read_volume(source(tmp_path / "a.npy"), "a")


def test_numbers_that_only_begin_elsewhere_are_moved(tmp_path):
    image = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), RAS)
    image.header.set_slope_inter(1, -1024)
    nibabel.save(image, tmp_path / "a.nii.gz")
    voxels, header = read_volume(source(tmp_path / "a.nii.gz"), "a")
    assert header.dtype == "float32"
    assert voxels.min() == -1024
    assert voxels.max() == -1001


def test_a_stack_of_two_values_has_zeros_and_ones(tmp_path):
    stack = np.arange(24).reshape(2, 3, 4) % 3 == 0
    np.save(tmp_path / "a.npy", stack)
    voxels, header = read_volume(source(tmp_path / "a.npy"), "a")
    assert header.dtype == voxels.dtype == "uint8"
    assert (voxels[..., 0] == stack).all()


@pytest.mark.parametrize("order", [("first", "second"), ("first", "first", "second"), ("second", "first")], ids=str)
@pytest.mark.parametrize(
    ("other", "line"),
    [
        (IMAGE.astype(np.complex64), "a: has voxels of type complex64, expected one real number for each channel"),
        (np.stack([IMAGE, IMAGE], axis=3), "a: its channels have different shapes or affines"),
        (IMAGE[:, :, :-1], "a: its channels have different shapes or affines"),
    ],
    ids=["complex", "of channels", "of another shape"],
)
def test_every_file_of_a_volume_holds_one_real_number_a_voxel(tmp_path, other, line, order):
    paths = {
        "first": write_nifti(tmp_path / "first.nii", IMAGE),
        "second": write_nifti(tmp_path / "second.nii", other),
    }
    with pytest.raises(ImageError, match=line):
        read_volume(source(*(paths[name] for name in order)), "a")


def test_files_of_channels_are_no_channels_of_a_volume(tmp_path):
    stacked = write_nifti(tmp_path / "stacked.nii", np.stack([IMAGE, IMAGE], axis=3))
    with pytest.raises(ImageError, match="a: its channels have different shapes or affines"):
        read_volume(source(stacked, stacked), "a")


def test_two_channels_are_read_in_a_type_that_holds_both(tmp_path):
    first = write_nifti(tmp_path / "first.nii", np.full((2, 3, 4), 200, np.uint8))
    second = write_nifti(tmp_path / "second.nii", np.full((2, 3, 4), -5, np.int16))
    voxels, header = read_volume(source(first, second), "a")
    assert header.dtype == voxels.dtype == "int16"
    assert header.channels == 2
    assert (voxels[..., 0] == 200).all()
    assert (voxels[..., 1] == -5).all()


@pytest.mark.parametrize(("stored", "dtype"), [(np.uint8, "float32"), (np.int32, "float64")])
def test_numbers_that_are_only_multiplied_are_read_in_a_type_that_holds_them(tmp_path, stored, dtype):
    image = nibabel.Nifti1Image(np.arange(24, dtype=stored).reshape(2, 3, 4), RAS)
    image.header.set_slope_inter(2, 0)
    nibabel.save(image, tmp_path / "a.nii.gz")
    voxels, header = read_volume(source(tmp_path / "a.nii.gz"), "a")
    assert header.dtype == voxels.dtype == dtype
    assert voxels.min() == 0
    assert voxels.max() == 46


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_scale_that_makes_voxels_infinite_is_a_one_line_error(tmp_path):
    image = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), RAS)
    image.header.set_slope_inter(1e38, 0)
    nibabel.save(image, tmp_path / "a.nii.gz")
    with pytest.raises(ImageError, match="a: has pixels that are not numbers"):
        read_volume(source(tmp_path / "a.nii.gz"), "a")


@pytest.mark.parametrize("name", ["a.nii", "A.NII", "a.nii.gz", "A.NII.GZ"])
def test_voxels_behind_extensions_are_read_whatever_the_case_of_the_name(tmp_path, name):
    image = nibabel.Nifti1Image(IMAGE, np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"who, where and when " * 40))
    nibabel.save(image, tmp_path / name.lower())
    (tmp_path / name.lower()).rename(tmp_path / name)
    voxels, _ = read_volume(source(tmp_path / name), "a")
    assert np.array_equal(voxels[..., 0].T, IMAGE)


def test_the_memory_of_a_compressed_volume_is_that_of_all_its_channels(tmp_path, monkeypatch):
    needed = []
    monkeypatch.setattr(volume_formats, "check_memory", lambda size, name: needed.append(size))
    read_volume(source(write_nifti(tmp_path / "a.nii.gz", np.zeros((2, 3, 4, 5), np.int16))), "a")
    assert needed == [2 * 3 * 4 * 5 * 2]


def test_a_mask_of_a_nifti_2_is_one_too(tmp_path):
    nibabel.save(nibabel.Nifti2Image(IMAGE, LPS), tmp_path / "a.nii")
    back = written(np.ones((8, 10, 12), np.uint8), source(tmp_path / "a.nii"), tmp_path / "out.nii.gz")
    assert isinstance(back, nibabel.Nifti2Image)
    assert np.array_equal(back.affine, LPS)


@pytest.mark.parametrize("name", ["a.nrrd", "a.mha", "A.NRRD", "A.MHA"])
def test_voxels_of_several_numbers_are_channels_of_nrrd_and_mha_too(tmp_path, name):
    itk = pytest.importorskip("SimpleITK")
    voxels = np.random.default_rng(0).integers(0, 99, (3, 4, 5, 2), np.uint8)
    image = itk.GetImageFromArray(voxels, isVector=True)
    image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
    itk.WriteImage(image, str(tmp_path / name.lower()))
    (tmp_path / name.lower()).rename(tmp_path / name)
    read, header = read_volume(source(tmp_path / name), "a")
    assert header.size == (3, 4, 5)
    assert header.channels == 2
    assert header.dtype == "uint8"
    assert np.array_equal(read, voxels)


def test_an_error_of_simpleitk_is_told_by_its_last_line(tmp_path):
    itk = pytest.importorskip("SimpleITK")
    itk.WriteImage(itk.GetImageFromArray(IMAGE), str(tmp_path / "a.nrrd"), useCompression=True)
    content = (tmp_path / "a.nrrd").read_bytes()
    (tmp_path / "a.nrrd").write_bytes(content[:-100])
    line = r"^a cannot be read \(\[nrrd\] _nrrdEncodingGzip_read: expected 1920 bytes but received \d+\)$"
    with pytest.raises(ImageError, match=line):
        read_volume(source(tmp_path / "a.nrrd"), "a")


@pytest.mark.parametrize("size", [[2, 3], [2, 3, 4, 5]])
def test_a_nrrd_of_two_or_four_axes_is_no_volume(tmp_path, size):
    itk = pytest.importorskip("SimpleITK")
    itk.WriteImage(itk.Image(size, itk.sitkUInt8), str(tmp_path / "a.nrrd"))
    with pytest.raises(ImageError, match=f"it has {len(size)} axes, a volume has 3"):
        read_volume_header(source(tmp_path / "a.nrrd"), "a")


def test_content_behind_the_voxels_of_a_compressed_file_is_left_alone(tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(nibabel.Nifti1Image(IMAGE, np.eye(4)).to_bytes() + b"more"))
    voxels, _ = read_volume(source(tmp_path / "a.nii.gz"), "a")
    assert np.array_equal(voxels[..., 0].T, IMAGE)


def test_a_label_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "a.nii").write_bytes(nibabel.Nifti1Image(LABEL, RAS).to_bytes()[:-1])
    with pytest.raises(DataError, match=r"^a: label cannot be read \("):
        read_label_volume(source(tmp_path / "a.nii"), "a")


def test_a_label_of_channels_has_one_for_each_class(tmp_path):
    path = write_nifti(tmp_path / "a.nii", np.stack([LABEL == 1, LABEL == 2, LABEL == 0], axis=3).astype(np.uint8))
    layers = VolumeFile((str(path),), layers=ClassLayers((0, 1)))
    with pytest.raises(DataError, match=r"^a: label has 3 channels, others have 2$"):
        read_label_volume(layers, "a")


def test_labels_of_a_class_each_must_have_one_shape(tmp_path):
    first = write_nifti(tmp_path / "first.nii", LABEL)
    second = write_nifti(tmp_path / "second.nii", LABEL[:, :, :-1])
    layers = VolumeFile((str(first), str(second)), layers=ClassLayers((0, 1)))
    with pytest.raises(DataError, match=f"^{second}: has another shape or affine than {first}; resample one of them$"):
        read_label_volume(layers, "a")


def test_the_only_label_of_a_class_holds_whole_numbers(tmp_path):
    path = str(write_nifti(tmp_path / "a.nii", LABEL * np.float32(0.5)))
    with pytest.raises(DataError, match=f"^{path}: label holds 0.5, expected whole numbers$"):
        read_label_volume(VolumeFile((path,), layers=ClassLayers((0,))), "a")
