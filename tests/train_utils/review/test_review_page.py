"""The files of a review: the page with the worst masks, the table of all, and the list for --exclude.

Module: review.py.
"""

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.reports import Page, class_section, embedded_picture
from support.reviews import mask_review
from support.volumes import RAS, write_nifti

from data_utils.image_io.formats import VolumeFile
from data_utils.sources.records import ListRows, Metadata, Records
from review import write_review
from train_utils.review.reviews import MaskReview, ReviewedRun


def run_of(image: object, target: object, pred: np.ndarray, dims: int = 2) -> ReviewedRun:
    """A run of two classes with one validation record, which its model predicts so."""
    records = Records(ListRows([{"image": image, "target": target, "name": "case"}]), Metadata(dims=dims))
    info = SimpleNamespace(
        config=SimpleNamespace(task="classes"),
        reader=class_section("ab").reader,
        val=SimpleNamespace(records=records, bad={}),
    )
    return ReviewedRun("run", "data", info, SimpleNamespace(labels=lambda source, name: pred))


@pytest.fixture
def image_review(tmp_path) -> MaskReview:
    """The review of an image of 900 x 600 whose mask lacks an object of 300 x 180."""
    Image.fromarray(np.full((900, 600), 100, np.uint8)).save(tmp_path / "image.png")
    Image.fromarray(np.zeros((900, 600), np.uint8)).save(tmp_path / "mask.png")
    pred = np.zeros((900, 600), np.uint8)
    pred[90:390, 60:240] = 1
    run = run_of(str(tmp_path / "image.png"), str(tmp_path / "mask.png"), pred)
    return mask_review("a.png", 0.25, 0.5, 0.75, run=run)


def test_each_column_of_the_table_holds_its_number(tmp_path, image_review):
    write_review(tmp_path, [image_review], [])
    text = (tmp_path / "review.csv").read_bytes().decode()
    (row,) = csv.DictReader(text.splitlines())
    assert row["image"] == "a.png"
    assert row["score"] == "0.250000"
    assert row["areas"] == "0.500000"
    assert row["missing"] == "0.750000"
    assert "\r" not in text


def pictures_of(folder: Path, review: MaskReview) -> dict[str, np.ndarray]:
    """The pictures of the page of one review, by what stands for them."""
    write_review(folder, [review], [])
    html = (folder / "review.html").read_text()
    names = re.findall(r'<img alt="(.*?)"', html)
    sources = Page(html).attributes("img", "src")
    return {
        name: np.asarray(embedded_picture(source).convert("RGB")) for name, source in zip(names, sources, strict=True)
    }


def test_areas_of_disagreement_are_outlined_on_a_reduced_picture(tmp_path, image_review):
    pictures = pictures_of(tmp_path, image_review)
    assert list(pictures) == ["image", "mask", "prediction", "where they disagree"]
    shown = pictures["where they disagree"]
    assert shown.shape == (420, 280, 3)
    outline = np.argwhere((shown == (255, 221, 0)).all(axis=2))
    np.testing.assert_allclose(outline.min(axis=0), (42, 28), atol=6)
    np.testing.assert_allclose(outline.max(axis=0), (182, 112), atol=10)


@pytest.mark.parametrize(("sides", "shape"), [([1.0, 0.5, 3.0], (40, 100)), ([0.5, 1.0, 3.0], (80, 50))], ids=str)
def test_slices_are_shown_as_radiologists_see_them_with_square_pixels(tmp_path, sides, shape):
    voxels = np.zeros((50, 40, 2), np.float32)
    voxels[:25, :20, 1] = 1  # the corner that is left and posterior
    affine = RAS @ np.diag([*sides, 1.0])
    image = VolumeFile((str(write_nifti(tmp_path / "image.nii", voxels, affine)),))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", voxels.astype(np.uint8), affine)),))
    run = run_of(image, label, np.zeros((2, 40, 50), np.uint8), dims=3)
    shown = pictures_of(tmp_path, mask_review("case", run=run, number=1))["image"].astype(int)
    assert shown.shape[:2] == shape
    corners = shown[[2, 2, -3, -3], [2, -3, 2, -3], 0]
    assert corners.argmax() == 3  # the patient's left is on the right, and anterior is up
