"""Volume files: every voxel at its place in the world, masks back in the input's own header, mistakes in one line.

Modules: data_utils/image_io/volumes.py, data_utils/image_io/volume_formats.py.
"""

import gzip
import io
from contextlib import suppress
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import damaged
from support.inspections import inspected
from support.volumes import AFFINES, ANISOTROPIC, LPS, RAS, case, write_nifti

from data_utils.analysis.inspect_record import Inspection
from data_utils.analysis.problems import Problem
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import (
    VolumeHeader,
    read_label_volume,
    read_volume,
    read_volume_header,
    same_grid,
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
def test_voxels_are_read_in_the_canonical_axes_of_nibabel(tmp_path, affine):
    path = write_nifti(tmp_path / "a.nii.gz", case(0)[0], affine)
    voxels, header = read_volume(source(path), "a")
    canonical = nibabel.as_closest_canonical(nibabel.load(path))
    assert np.array_equal(voxels[..., 0], np.asarray(canonical.dataobj).T)
    assert header.affine == pytest.approx(canonical.affine)
    assert header.spacing == pytest.approx(canonical.header.get_zooms()[::-1])


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_a_mask_has_axes_affines_and_units_of_its_image_but_a_type_and_scale_of_its_own(tmp_path, affine):
    image, label = case(1)
    path = write_nifti(tmp_path / "a.nii.gz", image.astype(np.float32), affine)
    values, _ = read_label_volume(source(write_nifti(tmp_path / "l.nii.gz", label, affine)), "l")
    stored, mask = nibabel.load(path), written(values.astype(np.int64), source(path), tmp_path / "out.nii.gz")
    assert np.array_equal(mask.dataobj, label)
    assert np.array_equal(mask.affine, stored.affine)
    for form in ("sform", "qform"):
        own_affine, code = getattr(mask, f"get_{form}")(coded=True)
        expected_affine, expected_code = getattr(stored, f"get_{form}")(coded=True)
        assert np.array_equal(own_affine, expected_affine)
        assert code == expected_code
    assert mask.header.get_zooms() == stored.header.get_zooms()
    assert mask.header.get_xyzt_units() == stored.header.get_xyzt_units()
    assert mask.get_data_dtype() == np.uint8
    header = raw_header(tmp_path / "out.nii.gz")
    assert (header["scl_slope"], header["scl_inter"]) == (1, 0)


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


@pytest.mark.parametrize("behind_time", [False, True])
def test_channels_are_the_fourth_axis_or_the_fifth_or_files_of_their_own(tmp_path, behind_time):
    images = [case(seed)[0] for seed in range(3)]
    stacked = np.stack(images, axis=3)
    if behind_time:
        stacked = stacked[:, :, :, None]
    whole = write_nifti(tmp_path / "whole.nii.gz", stacked, LPS)
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


@pytest.mark.parametrize("name", ["a.npy", "a.tif"])
def test_a_stack_and_its_mask_have_the_spacing_that_is_given(tmp_path, name):
    array = np.random.default_rng(0).integers(0, 255, (5, 6, 7), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="minisblack")
    stack = source(tmp_path / name, spacing=(3.0, 2.0, 1.5))
    voxels, header = read_volume(stack, "a")
    assert np.array_equal(voxels[..., 0], array)
    assert (header.size, header.spacing, header.dtype) == ((5, 6, 7), (3.0, 2.0, 1.5), "uint8")
    mask = written(array, stack, tmp_path / "out.nii.gz")
    assert np.array_equal(mask.dataobj, array.T)
    assert mask.header.get_zooms() == (1.5, 2.0, 3.0)
    assert mask.header.get_xyzt_units()[0] == "mm"


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
BROKEN_IMAGES = {
    "not NIfTI": (b"x" * 400, "cannot be read"),
    "empty file": (b"", "cannot be read"),
    "cut": (nibabel.Nifti1Image(IMAGE, RAS).to_bytes()[:1500], "the file ends before its voxels do"),
    "huge": (nonsense(IMAGE, "dim", [3, 32767, 32767, 32767, 1, 1, 1, 1]), "cannot be read"),
    "two axes": (nonsense(IMAGE, "dim", [2, 12, 10, 1, 1, 1, 1, 1]), "it has 2 axes, 12 x 10; a volume has 3"),
    "no slices": (nonsense(IMAGE, "dim", [3, 12, 10, 0, 1, 1, 1, 1]), "is empty, 12 x 10 x 0 voxels"),
    "unknown type": (nonsense(IMAGE, "datatype", 77), "cannot be read"),
    "NaN": (nibabel.Nifti1Image(np.full((3, 4, 5), np.nan, "f4"), RAS).to_bytes(), "not numbers (NaN or infinite)"),
    "complex": (nibabel.Nifti1Image(np.ones((3, 4, 5), "c8"), RAS).to_bytes(), "voxels of type complex64"),
    "five axes": (nibabel.Nifti1Image(np.ones((2, 2, 2, 2, 2), "u1"), RAS).to_bytes(), "it has 5 axes"),
    "flat affine": (nonsense(IMAGE, "srow_x", [0, 0, 0, 0]), "is no grid in space"),
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


@pytest.mark.parametrize(("name", "reason"), [("none.nii.gz", ""), ("a.png", r"it is none of \.nii, ")])
def test_a_file_that_is_missing_or_no_volume_is_a_one_line_error(tmp_path, name, reason):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=rf"^a cannot be read \({reason}"):
        read_volume(source(tmp_path / name), "a")


@pytest.mark.parametrize(("label", "message"), BROKEN_LABELS.values(), ids=BROKEN_LABELS)
def test_a_label_that_is_none_is_a_one_line_error(tmp_path, label, message):
    image, mask = write_nifti(tmp_path / "a.nii.gz", IMAGE), write_nifti(tmp_path / "l.nii.gz", label)
    problem = inspected({"image": source(image), "target": source(mask), "name": "a"})
    assert isinstance(problem, Problem)
    assert message in problem.text
    assert problem.text.startswith("a: ")


def test_a_label_may_be_stored_in_other_axes_than_its_image(tmp_path):
    image = write_nifti(tmp_path / "a.nii.gz", IMAGE)
    to_lps = np.eye(4)
    to_lps[:2, :2], to_lps[:2, 3] = -np.eye(2), [11, 9]
    label = write_nifti(tmp_path / "l.nii.gz", LABEL[::-1, ::-1], RAS @ to_lps)
    inspection = inspected({"image": source(image), "target": source(label), "name": "a"})
    assert isinstance(inspection, Inspection)
    assert inspection.pixels[0] == (LABEL == 0).sum()


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


STORED = {
    "int16": nibabel.Nifti1Image(IMAGE, ANISOTROPIC).to_bytes(),
    "float32": nibabel.Nifti1Image(IMAGE.astype(np.float32), LPS).to_bytes(),
    "channels": nibabel.Nifti1Image(np.stack([LABEL, LABEL], axis=3), RAS).to_bytes(),
    "big-endian": nibabel.Nifti1Image(LABEL, RAS, nibabel.Nifti1Header(endianness=">")).to_bytes(),
    "NIfTI-2": nibabel.Nifti2Image(LABEL, RAS).to_bytes(),
}


COMPRESSED = [gzip.compress(content, mtime=0) for content in STORED.values()]
FILES = st.one_of(  # before or after their compression
    st.tuples(st.just("a.nii"), damaged([*STORED.values()], header=352)),
    st.tuples(st.just("a.nii.gz"), damaged([*STORED.values()], header=352).map(gzip.compress)),
    st.tuples(st.just("a.nii.gz"), damaged(COMPRESSED, header=352)),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(FILES)
@pytest.mark.filterwarnings("ignore::UserWarning", "error::RuntimeWarning")
def test_damaged_volumes_end_in_an_error_of_ours(tmp_path_factory, file):
    name, content = file
    path = tmp_path_factory.mktemp("volume") / name
    path.write_bytes(content)
    record = {"image": source(path), "target": source(path), "name": "a"}
    assert isinstance(inspected(record), Inspection | Problem)
    with suppress(DataError):
        assert len(read_volume_header(source(path), "a").size) == 3
        voxels, header = read_volume(source(path), "a")
        out = io.BytesIO()
        write_volume(out, np.zeros(header.size, np.uint8), source(path))
        assert VolumeInput(voxels, header, Preprocess(), header.channels).strip(0, 1).shape[0] == header.channels


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


@pytest.mark.parametrize("side", [0.9e-7, 1.1e4, -1.1e7])
def test_a_voxel_of_a_size_that_nothing_has_is_refused(tmp_path, side):
    path = write_nifti(tmp_path / "a.nii", np.ones((2, 2, 2), np.uint8), np.diag([side, 1, 1, 1]))
    with pytest.raises(ImageError, match=r"a: its affine .* is no grid in space of voxels of 1e-07 to 10000 mm"):
        read_volume_header(source(path), "a")


def test_a_written_mask_is_the_same_file_at_any_time(tmp_path, monkeypatch):
    image = source(write_nifti(tmp_path / "a.nii", np.zeros((2, 3, 4), np.int16)))
    files = []
    for now in (10**9, 2 * 10**9):
        monkeypatch.setattr("gzip.time.time", lambda now=now: now)
        file = io.BytesIO()
        write_volume(file, np.ones((4, 3, 2), np.uint8), image)
        files.append(file.getvalue())
    assert files[0] == files[1]


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


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_scale_that_makes_voxels_infinite_is_a_one_line_error(tmp_path):
    image = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), RAS)
    image.header.set_slope_inter(1e38, 0)
    nibabel.save(image, tmp_path / "a.nii.gz")
    with pytest.raises(ImageError, match="a: has pixels that are not numbers"):
        read_volume(source(tmp_path / "a.nii.gz"), "a")


@pytest.mark.parametrize("name", ["A.NII", "a.nii.gz"])
def test_voxels_behind_extensions_are_read_whatever_the_case_of_the_name(tmp_path, name):
    image = nibabel.Nifti1Image(IMAGE, np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"who, where and when " * 40))
    nibabel.save(image, tmp_path / name.lower())
    (tmp_path / name.lower()).rename(tmp_path / name)
    voxels, _ = read_volume(source(tmp_path / name), "a")
    assert np.array_equal(voxels[..., 0].T, IMAGE)
