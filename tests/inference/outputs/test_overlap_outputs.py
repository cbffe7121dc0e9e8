"""Masks, pictures and volumes of classes that may overlap, read again by other means.

Modules: inference/outputs/bits.py, inference/outputs/overlapping.py.
"""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from inference.outputs.jobs import ImageJob, RasterJob
from inference.outputs.volumes import VolumeWriter
from PIL import Image
from support.prediction import image_job
from support.written_files import PLACE, SIZE, tilted_volume_job

from data_utils.image_io.volumes import read_label_volume
from data_utils.image_io.windowed import open_windowed
from inference.outputs.overlapping import OverlapFormat, PageFormat, folder_names
from runtime.errors import SettingsError
from tasks.overlapping import Overlapping

CLASSES = ("blood", "a/b", "A_B", "...")
FOLDERS = ("blood", "a_b", "A_B_2", "class")
NINE_CLASSES = tuple("abcdefghi")


@pytest.mark.parametrize(
    ("classes", "folders"),
    [
        (CLASSES, [*FOLDERS]),
        (("x", "X", "x ", "x?"), ["x", "X_2", "x_3", "x_"]),
        ((r"""a<b>c:d"e\f|g?h*i""", "j\nk\x1f."), ["a_b_c_d_e_f_g_h_i", "j_k_"]),
        (("class", " . "), ["class", "class_2"]),
    ],
    ids=["letters", "cases", "signs", "nothing left"],
)
def test_folders_of_classes_have_names_of_their_own_on_any_system(classes, folders):
    assert folder_names(classes) == folders


@pytest.fixture
def bits() -> np.ndarray:
    """(H, W) int32: any of the four classes at each pixel."""
    return np.random.default_rng(0).integers(0, 16, SIZE, dtype=np.int32)


def write_strips(output_format: OverlapFormat, job: ImageJob, prediction: np.ndarray) -> None:
    """Write a mask in strips of 4 rows."""
    with output_format.open_mask(job, prediction.shape, None) as mask:
        for top in range(0, len(prediction), 4):
            mask.write(output_format.mask_values(prediction[top : top + 4]))


def test_each_class_that_may_overlap_has_masks_of_0_and_255_in_its_folder(tmp_path, bits):
    output_format = OverlapFormat(CLASSES)
    job = image_job(tmp_path, "sub/a", SIZE)
    write_strips(output_format, job, bits)
    for bit, folder in enumerate(FOLDERS):
        mask = np.asarray(Image.open(tmp_path / "out" / folder / "sub" / "a.png"))
        assert np.array_equal(mask, 255 * (bits >> bit & 1))
    assert output_format.mask_file(job) == tmp_path / "out" / "blood" / "sub" / "a.png"


def test_each_class_that_may_overlap_has_tiffs_where_the_image_has_a_place(tmp_path, bits):
    folder = tmp_path / "out"
    job = RasterJob(image=tmp_path / "a.tif", size=SIZE, output=folder / "a", root=folder, place=PLACE)
    write_strips(OverlapFormat(CLASSES), job, bits)
    for bit, name in enumerate(FOLDERS):
        assert np.array_equal(tifffile.imread(folder / name / "a.tif"), 255 * (bits >> bit & 1))


def test_masks_of_classes_that_overlap_are_read_as_they_were_predicted(tmp_path, bits):
    output_format = OverlapFormat(CLASSES)
    job = image_job(tmp_path, "sub/a", SIZE)
    write_strips(output_format, job, bits)
    with open_windowed(output_format.written_mask(job)) as picture:
        target = output_format.reader.target_from_mask(np.asarray(picture.read(0, SIZE[0])), "a")
    assert np.array_equal(target.truth, bits)
    assert (target.known == 15).all()


@pytest.fixture
def voxel_bits() -> np.ndarray:
    """(D, H, W) int32: any of the four classes at each voxel of a volume."""
    return np.random.default_rng(1).integers(0, 16, (3, 4, 5), dtype=np.int32)


def test_a_volume_of_classes_that_overlap_is_read_as_it_was_predicted(tmp_path, voxel_bits):
    output_format = OverlapFormat(CLASSES)
    job = tilted_volume_job(tmp_path, voxel_bits.shape)
    output_format.write_volume(job, voxel_bits)
    values, _ = read_label_volume(output_format.written_volume(job), "v")
    assert np.array_equal(output_format.reader.target_from_volume(values, "v").truth, voxel_bits)


def test_logits_of_a_volume_of_classes_that_overlap_are_written_as_their_prediction(tmp_path, voxel_bits):
    output_format = OverlapFormat(CLASSES)
    job = tilted_volume_job(tmp_path, voxel_bits.shape)
    writer = VolumeWriter(output_format, Overlapping(CLASSES), tuple(output_format.mask_extensions))
    logits = torch.tensor(np.stack([voxel_bits >> bit & 1 for bit in range(4)])) - 0.5
    assert np.array_equal(writer.write(job, job.size, [logits]), voxel_bits)
    values, _ = read_label_volume(output_format.written_volume(job), "v")
    assert np.array_equal(output_format.reader.target_from_volume(values, "v").truth, voxel_bits)


def test_the_volume_of_a_class_that_may_overlap_is_in_the_space_of_the_image(tmp_path, voxel_bits):
    job = tilted_volume_job(tmp_path, voxel_bits.shape)
    OverlapFormat(CLASSES).write_volume(job, voxel_bits)
    last = nibabel.load(tmp_path / "out" / "class" / "v.nii.gz")
    assert np.array_equal(last.affine, nibabel.load(job.image).affine)
    assert sorted(np.unique(last.dataobj).tolist()) == [0, 255]
    assert (np.asarray(last.dataobj) > 0).sum() == (voxel_bits >= 8).sum()


@pytest.mark.parametrize("name", ["a.tiff", "a.TIF"])
def test_a_tiff_of_classes_that_may_overlap_has_a_page_of_0_and_1_for_each(tmp_path, bits, name):
    output_format = OverlapFormat(CLASSES).for_file(tmp_path / name)
    assert isinstance(output_format, PageFormat)
    job = image_job(tmp_path, size=SIZE)
    write_strips(output_format, job, bits)
    with tifffile.TiffFile(tmp_path / "out" / name) as tiff:
        assert np.array_equal([page.asarray() for page in tiff.pages], [bits >> bit & 1 for bit in range(4)])
    with open_windowed(output_format.written_mask(job)) as picture:
        target = output_format.reader.target_from_mask(np.asarray(picture.read(0, SIZE[0])), "a")
    assert np.array_equal(target.truth, bits)


def test_a_tiff_of_classes_that_may_overlap_keeps_the_dots_of_its_name(tmp_path, bits):
    output_format = OverlapFormat(CLASSES).for_file(tmp_path / "my.masks.tif")
    job = ImageJob(image=tmp_path / "a.png", size=SIZE, output=tmp_path / "my.masks", root=tmp_path)
    write_strips(output_format, job, bits)
    assert [file.name for file in tmp_path.iterdir()] == ["my.masks.tif"]


def test_an_error_before_the_first_rows_of_a_tiff_of_classes_is_reported(tmp_path):
    output_format = OverlapFormat(CLASSES).for_file(tmp_path / "a.tiff")
    job = image_job(tmp_path, size=SIZE)
    with pytest.raises(RuntimeError, match="stopped"), output_format.open_mask(job, SIZE, None):
        raise RuntimeError("stopped")
    assert not output_format.mask_file(job).exists()


@pytest.mark.parametrize("layer", range(4))
def test_areas_of_a_class_that_may_overlap_have_its_name(layer):
    assert OverlapFormat(CLASSES).area_properties(layer, 255, None) == {"class": CLASSES[layer]}


def test_a_png_of_classes_that_may_overlap_is_refused():
    with pytest.raises(SettingsError, match=r"a\.PNG: classes that may overlap have a mask each; give a folder"):
        OverlapFormat(CLASSES).for_file(Path("a.PNG"))


def test_a_picture_of_classes_that_overlap_shows_the_last_at_each_pixel(bits):
    last = [[int(value).bit_length() for value in row] for row in bits]
    assert OverlapFormat(CLASSES).shades(bits).tolist() == last


def test_the_legend_of_classes_that_overlap_says_the_share_of_each(bits):
    output_format = OverlapFormat(CLASSES)
    assert output_format.names == ("nothing", *CLASSES)
    entries = output_format.legend_entries(bits)
    shares = [(bits >> bit & 1).mean() for bit in range(4)]
    assert [entry.text for entry in entries] == [f"{n} {s:.1%}" for n, s in zip(CLASSES, shares, strict=True)]
    assert [entry.color for entry in entries] == [tuple(color) for color in output_format.colors[1:].tolist()]


def test_outlines_of_a_class_that_may_overlap_have_its_color():
    output_format = OverlapFormat(CLASSES)
    rows = np.zeros((20, 20), np.int32)
    rows[5:15, 5:15] = 2
    overlay = output_format.overlay(np.zeros((20, 20, 3), np.uint8), rows)
    assert overlay[5, 10].tolist() == output_format.colors[output_format.names.index("a/b")].tolist()


def test_the_ninth_of_the_classes_that_may_overlap_has_a_mask():
    masks = OverlapFormat(NINE_CLASSES).class_masks(np.array([[256, 1, 257, 0]], np.int32))
    assert masks[8].tolist() == [[255, 0, 255, 0]]
    assert masks[0].tolist() == [[0, 255, 255, 0]]


def test_the_ninth_of_the_classes_that_may_overlap_has_a_color():
    shades = OverlapFormat(NINE_CLASSES).shades(np.array([[256, 1, 257, 0]], np.int32))
    assert shades.tolist() == [[9, 1, 9, 0]]


def test_the_prediction_of_a_volume_holds_the_ninth_of_the_classes_that_may_overlap(tmp_path):
    output_format = OverlapFormat(NINE_CLASSES)
    job = tilted_volume_job(tmp_path)
    logits = torch.full((9, *job.size), -1.0)
    logits[8, 2, 3, 4] = 1.0
    writer = VolumeWriter(output_format, Overlapping(NINE_CLASSES), tuple(output_format.mask_extensions))
    prediction = writer.write(job, job.size, [logits])
    assert prediction[2, 3, 4] == prediction.sum() == 256
