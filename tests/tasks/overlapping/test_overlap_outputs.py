"""Masks, pictures and volumes of classes that may overlap and of regions, read again by other means.

Modules: tasks/overlapping/write.py.
"""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image
from support.formats import format_of, overlap_format
from support.prediction import image_job
from support.written_files import SIZE, tilted_volume_job

from runtime.errors import SettingsError
from tasks.job import Job
from tasks.overlapping.reader import RegionReader
from tasks.overlapping.target import Region
from tasks.overlapping.write import OverlapFormat, PageFormat, folder_names
from tasks.prediction import PredictedImage, Prediction
from unet.config import Preprocess, UNetConfig

CLASSES = ("blood", "a/b", "A_B", "...")
FOLDERS = ("blood", "a_b", "A_B_2", "class")


@pytest.mark.parametrize(
    ("classes", "folders"),
    [
        (CLASSES, [*FOLDERS]),
        (("x", "X", "x ", "x?"), ["x", "X_2", "x_3", "x_"]),
        ((r"""a<b>c:d"e\f|g?h*i""", "j\nk\x1f."), ["a_b_c_d_e_f_g_h_i", "j_k_"]),
        (("class", " . "), ["class", "class_2"]),
        ((300 * "x", 100 * "雪", 90 * "雪"), [240 * "x", 80 * "雪", 80 * "雪" + "_2"]),
    ],
    ids=["letters", "cases", "signs", "nothing left", "long"],
)
def test_folders_of_classes_have_names_of_their_own_on_any_system(classes, folders):
    assert folder_names(classes) == folders


@pytest.fixture
def bits() -> np.ndarray:
    """(H, W) int32: any of the four classes at each pixel."""
    return np.random.default_rng(0).integers(0, 16, SIZE, dtype=np.int32)


def write_mask(output_format: OverlapFormat, job: Job, prediction: np.ndarray) -> None:
    """Write the masks of a prediction."""
    job.output.parent.mkdir(parents=True, exist_ok=True)
    output_format.write(PredictedImage(job, prediction.shape, Prediction(prediction)), output_format.extensions)


def test_each_class_that_may_overlap_has_masks_of_0_and_255_in_its_folder(tmp_path, bits):
    output_format = overlap_format(*CLASSES)
    job = image_job(tmp_path, "sub/a", SIZE)
    write_mask(output_format, job, bits)
    for bit, folder in enumerate(FOLDERS):
        mask = np.asarray(Image.open(tmp_path / "out" / folder / "sub" / "a.png"))
        assert np.array_equal(mask, 255 * (bits >> bit & 1))
    assert output_format.mask_file(job) == tmp_path / "out" / "blood" / "sub" / "a.png"


def test_the_volume_of_a_class_that_may_overlap_is_in_the_space_of_the_image(tmp_path):
    output_format = overlap_format(*CLASSES)
    voxel_bits = np.random.default_rng(1).integers(0, 16, (3, 4, 5), dtype=np.int32)
    job = tilted_volume_job(tmp_path, voxel_bits.shape)
    write_mask(output_format, job, voxel_bits)
    last = nibabel.load(tmp_path / "out" / "class" / "v.nii.gz")
    assert np.array_equal(last.affine, nibabel.load(job.image).affine)
    assert sorted(np.unique(last.dataobj).tolist()) == [0, 255]
    assert (np.asarray(last.dataobj) > 0).sum() == (voxel_bits >= 8).sum()


@pytest.mark.parametrize("name", ["a.tiff", "a.TIF"])
def test_a_tiff_of_classes_that_may_overlap_has_a_page_of_0_and_1_for_each(tmp_path, bits, name):
    output_format = overlap_format(*CLASSES).for_file(tmp_path / name)
    assert isinstance(output_format, PageFormat)
    job = image_job(tmp_path, size=SIZE)
    write_mask(output_format, job, bits)
    with tifffile.TiffFile(tmp_path / "out" / name) as tiff:
        assert np.array_equal([page.asarray() for page in tiff.pages], [bits >> bit & 1 for bit in range(4)])


def test_a_png_of_classes_that_may_overlap_is_refused():
    with pytest.raises(SettingsError, match=r"a\.PNG: classes that may overlap have a mask each; give a folder"):
        overlap_format(*CLASSES).for_file(Path("a.PNG"))


def test_a_picture_of_classes_that_overlap_shows_the_last_at_each_pixel_and_its_legend_the_share_of_each(bits):
    last = [[int(value).bit_length() for value in row] for row in bits]
    section = overlap_format(*CLASSES).section
    colors = np.concatenate([[[0, 0, 0]], section.colors])
    assert np.array_equal(section.colorize(bits), colors[np.array(last)])
    colors, texts = zip(*section.legend_entries(bits), strict=True)
    shares = [(bits >> bit & 1).mean() for bit in range(4)]
    assert list(texts) == [f"{n} {s:.1%}" for n, s in zip(CLASSES, shares, strict=True)]
    assert list(colors) == [f"rgb{tuple(color)}" for color in section.colors.tolist()]


def test_the_ninth_of_the_classes_that_may_overlap_has_a_mask():
    areas = list(overlap_format(*"abcdefghi").areas(Prediction(np.array([[256, 1, 257, 0]], np.int32))))
    assert areas[8].numbers.tolist() == [[1, 0, 1, 0]]
    assert areas[0].numbers.tolist() == [[0, 1, 1, 0]]


WHOLE, CORE, ACTIVE = Region("whole", (1, 2, 3)), Region("core", (2, 3)), Region("active", (300,))
ROWS = np.arange(8).reshape(2, 4)  # all sets of three regions


def test_regions_are_written_as_the_first_value_of_the_last_one():
    names, values = zip(WHOLE, CORE, ACTIVE, strict=True)
    output_format = format_of(RegionReader(names, values))
    assert output_format.mask_values(ROWS).tolist() == [[0, 1, 2, 2], [300, 300, 300, 300]]
    assert output_format.written_values == (0, 1, 2, 300)


def test_regions_of_a_model_know_nothing_where_its_masks_were_ignored():
    task = {"name": "regions", "regions": [["whole", [3, 5]], ["core", [5]]]}
    classes = {"class_names": ("whole", "core"), "class_values": (3, 5)}
    preprocess = Preprocess(**classes, ignore_value=0, joined_values=((9, 255), (7, 1)))
    reader = RegionReader.of_model(UNetConfig(num_classes=2, task=task, preprocess=preprocess))
    target = reader.target_from_mask(np.array([[0, 3, 5, 9, 1, 7]], np.uint8), "a")
    assert target.known.tolist() == [[0, 3, 3, 0, 3, 3]]
    assert target.truth.tolist() == [[0, 1, 3, 0, 0, 0]]
