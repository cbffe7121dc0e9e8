"""DICOM series lie where SimpleITK lays them, in any orientation; spoiled ones are one line.

Modules: data_utils/image_io/dicom/series.py, data_utils/image_io/dicom/headers.py.
"""

import gdcm
import numpy as np
import pydicom
import pytest
import SimpleITK
from support.dicom import GRIDS, SECRETS, for_every_grid, text, write_multiframe, write_picture, write_series
from support.volumes import oblique, write_nifti

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import read_header, read_image
from data_utils.image_io.volumes import read_volume, same_grid
from runtime.errors import ImageError

VOXELS = np.random.default_rng(0).integers(-90, 900, (5, 7, 4)).astype(np.int16)  # columns, rows, slices
VALUES = 2 * VOXELS.astype(int) - 7


def series(paths) -> VolumeFile:
    return VolumeFile(tuple(map(str, paths)), is_series=True)


@for_every_grid
def test_a_series_lies_where_the_same_nifti_and_simpleitk_lay_it(tmp_path, grid):
    affine = GRIDS[grid]
    paths = write_series(tmp_path / "dicom", VOXELS, affine)
    voxels, header = read_volume(series(paths), "case")
    expected, expected_header = read_volume(
        VolumeFile((str(write_nifti(tmp_path / "a.nii", VALUES.astype(np.int32), affine)),)), "case"
    )
    np.testing.assert_array_equal(voxels, expected)
    assert same_grid(header, expected_header)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "dicom")))
    SimpleITK.WriteImage(reader.Execute(), str(tmp_path / "itk.nii"))
    expected, expected_header = read_volume(VolumeFile((str(tmp_path / "itk.nii"),)), "case")
    np.testing.assert_array_equal(voxels, expected)
    assert same_grid(header, expected_header)


def test_a_tilted_gantry_keeps_the_place_of_each_slice(tmp_path):
    affine = GRIDS["RAS"].copy()
    affine[:3, 2] = (0, 0.8, 2.3)
    voxels, header = read_volume(series(write_series(tmp_path, VOXELS, affine)), "case")
    assert np.allclose(header.affine, affine)
    np.testing.assert_array_equal(voxels[..., 0], VALUES.transpose(2, 1, 0))


@pytest.mark.parametrize("affine", [GRIDS["LPS"], oblique(25)], ids=["LPS", "oblique"])
def test_frames_of_one_file_are_sorted_by_where_they_lie(tmp_path, affine):
    file = write_multiframe(tmp_path / "frames.dcm", VOXELS, affine, [2, 0, 3, 1])
    voxels, header = read_volume(series([file]), "case")
    expected, expected_header = read_volume(series(write_series(tmp_path / "slices", VOXELS, affine)), "case")
    np.testing.assert_array_equal(voxels, expected)
    assert same_grid(header, expected_header)


@pytest.mark.parametrize("syntax", ["RLELossless", "JPEGLSLossless", "JPEG2000Lossless", "JPEGLosslessProcess14_1"])
def test_compressed_series_are_read(tmp_path, syntax):
    paths = write_series(tmp_path, np.tile(VOXELS, (8, 4, 1)), GRIDS["LPS"])  # GDCM writes no small ones
    expected, _ = read_volume(series(paths), "case")
    for path in paths:
        compress(path, getattr(gdcm.TransferSyntax, syntax))
    voxels, _ = read_volume(series(paths), "case")
    np.testing.assert_array_equal(voxels, expected)


@pytest.mark.parametrize("syntax", ["JPEGLSLossless", "DeflatedExplicitVRLittleEndian"])
def test_compressed_numbers_of_twelve_bits_keep_their_sign(tmp_path, syntax):
    paths = write_series(tmp_path, VOXELS, GRIDS["LPS"])
    expected, _ = read_volume(series(paths), "case")
    for path in paths:
        edit(path, BitsStored=12, HighBit=11)
        dataset = pydicom.dcmread(path)
        pixels = dataset.pixel_array
        dataset.file_meta.TransferSyntaxUID = getattr(pydicom.uid, syntax)
        if syntax == "JPEGLSLossless":
            dataset.compress(pydicom.uid.JPEGLSLossless, pixels)
        dataset.save_as(path)
    voxels, _ = read_volume(series(paths), "case")
    np.testing.assert_array_equal(voxels, expected)


def compress(path, syntax: int) -> None:
    """Write a file anew with its pixels in another transfer syntax."""
    reader = gdcm.ImageReader()
    reader.SetFileName(str(path))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(syntax))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()


def test_values_of_fractions_are_float32(tmp_path):
    paths = write_series(tmp_path, VOXELS, GRIDS["RAS"], RescaleSlope="0.5", RescaleIntercept="0.25")
    voxels, header = read_volume(series(paths), "case")
    assert header.dtype == voxels.dtype == np.float32
    np.testing.assert_array_equal(voxels[..., 0], (VOXELS * 0.5 + 0.25).transpose(2, 1, 0))


def test_a_slice_alone_is_as_thick_as_it_says(tmp_path):
    paths = write_series(tmp_path, VOXELS, GRIDS["RAS"])
    _, header = read_volume(series(paths[:1]), "case")
    assert header.size == (1, 7, 5)
    assert header.spacing == (2.5, 1.5, 1.0)


def edit(path, **fields) -> None:
    dataset = pydicom.dcmread(path)
    for keyword, value in fields.items():
        if value is None:
            delattr(dataset, keyword)
        else:
            setattr(dataset, keyword, value)
    dataset.save_as(path)


SPOILED = {
    "gap": (lambda paths: paths[1].unlink(), "5 mm apart, others 2.5: slices are missing"),
    "double": (
        lambda paths: edit(paths[1], ImagePositionPatient=pydicom.dcmread(paths[2]).ImagePositionPatient),
        "lie at one place",
    ),
    "two patients": (lambda paths: edit(paths[1], PatientID="PAT-OTHER"), "differ in PatientID"),
    "another size": (lambda paths: edit(paths[1], Rows=6), "differ in Rows"),
    "a lie": (lambda paths: [edit(path, Rows=60000, Columns=60000) for path in paths], "cannot be read"),
    "too long": (lambda paths: [edit(path, Rows=8) for path in paths], "cannot be read"),
    "another orientation": (
        lambda paths: edit(paths[1], ImageOrientationPatient=text([0, 1, 0, 0, 0, 1])),
        "differ in orientation",
    ),
    "beside the line": (lambda paths: edit(paths[1], ImagePositionPatient=text([9, 9, 2.5])), "do not lie on one line"),
    "no position": (lambda paths: edit(paths[1], ImagePositionPatient=None), "has no ImagePositionPatient"),
    "half a position": (lambda paths: edit(paths[1], ImagePositionPatient=["1", "2"]), "ImagePositionPatient is not 3"),
    "no spacing": (lambda paths: edit(paths[1], PixelSpacing=None), "has no PixelSpacing"),
    "flat orientation": (lambda paths: edit(paths[0], ImageOrientationPatient=[0] * 6), "at a right angle"),
    "no pixels": (lambda paths: edit(paths[1], PixelData=None), "cannot be read"),
    "empty": (lambda paths: paths[1].write_bytes(b""), "cannot be read"),
    "cut in its header": (lambda paths: paths[1].write_bytes(paths[1].read_bytes()[:400]), "cannot be read"),
    "cut in its pixels": (lambda paths: paths[1].write_bytes(paths[1].read_bytes()[:-30]), "003.dcm: .* cut off"),
    "colors": (lambda paths: [edit(path, SamplesPerPixel=3) for path in paths], "a volume of colors"),
}


@pytest.mark.parametrize(("spoil", "line"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_series_is_one_line_without_the_patient(tmp_path, spoil, line):
    affine = GRIDS["RAS"].copy()
    affine[:3, 3] = 0
    paths = write_series(tmp_path, VOXELS, affine)
    spoil(paths)
    with pytest.raises(ImageError, match=line) as caught:
        read_volume(series([path for path in paths if path.exists()]), "case")
    message = str(caught.value)
    assert "\n" not in message
    assert not any(value in message for value in (*SECRETS, "PAT-OTHER"))


@pytest.mark.parametrize("in_memory", [False, True])
def test_single_frames_are_images_in_grey_or_color(tmp_path, in_memory):
    colors = np.random.default_rng(0).integers(0, 255, (6, 5, 3)).astype(np.uint8)
    file = write_picture(tmp_path / "color.dcm", colors)
    np.testing.assert_array_equal(read_image(file.read_bytes() if in_memory else file, "a"), colors)
    grey = write_picture(tmp_path / "grey.dcm", colors[..., 0], PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(read_image(grey, "a")[..., 0], 255 - colors[..., 0])
    assert read_header(grey, "a")[0] == (6, 5)


def test_a_damaged_single_frame_is_one_line(tmp_path):
    file = write_picture(tmp_path / "a.dcm", np.zeros((6, 5), np.uint8))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ImageError, match="a: image cannot be read"):
        read_image(file, "a")
