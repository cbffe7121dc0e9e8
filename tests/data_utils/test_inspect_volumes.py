"""One look at a volume and its label: where each value lies, and how bright labeled voxels are."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from volumes import write_volume

from data_utils.analysis.inspect_volumes import VolumeInspection, VolumeSplitInspection, inspect_volume
from data_utils.analysis.inspection import Problem
from data_utils.analysis.inspectors import VolumeInspector
from data_utils.image_io.formats import VolumeFile


def look_at_volume(folder: Path, image: np.ndarray, label: np.ndarray):
    sources = [
        VolumeFile((str(write_volume(folder / f"{kind}.nii", array)),))
        for kind, array in zip("il", (image, label), strict=True)
    ]
    return inspect_volume({"image": sources[0], "target": sources[1], "name": "a"})


def test_a_look_at_a_volume_finds_where_each_value_lies_and_the_intensities_of_labels(tmp_path):
    label = np.zeros((3, 4, 5), np.uint8)
    label[0, 1, 2] = label[2, 3, 4] = label[2, 0, 0] = 7
    label[1, 1, 1] = 255
    label[1, 3, 0] = 2
    image = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    inspection = look_at_volume(tmp_path, image, label)
    assert (inspection.size, inspection.mask_size, inspection.spacing, inspection.kind) == (
        (3, 4, 5),
        (3, 4, 5),
        (2, 1, 1),
        "numbers",
    )
    assert inspection.pixels == {0: 55, 2: 1, 7: 3, 255: 1}
    assert inspection.class_locations[7].tolist() == [[0, 1, 2], [2, 0, 0], [2, 3, 4]]
    assert inspection.class_locations[2].tolist() == [[1, 3, 0]]
    assert inspection.class_locations[255].tolist() == [[1, 1, 1]]
    voxels = inspection.class_locations[0]
    assert len({tuple(voxel) for voxel in voxels.tolist()}) == 55
    assert not label[tuple(voxels.T)].any()
    assert inspection.foreground.ravel().tolist() == [7, 35, 40, 59]  # of 7, 2, 7, 7: neither 0 nor 255 is a label


def test_of_many_voxels_a_thousand_are_remembered(tmp_path):
    label = np.ones((11, 40, 40), np.uint8)
    label[:2] = 0
    inspection = look_at_volume(tmp_path, label.astype(np.float32), label)
    voxels = inspection.class_locations[1]
    assert len(voxels) == 1000
    assert len(np.unique(voxels, axis=0)) == 1000
    assert label[tuple(voxels.T)].all()
    assert len(inspection.foreground) == 10_000
    assert set(voxels[:, 0].tolist()) == set(range(2, 11))
    again = look_at_volume(tmp_path, label.astype(np.float32), label)
    assert np.array_equal(voxels, again.class_locations[1])


def test_a_label_of_many_values_is_a_problem_where_these_are_classes(tmp_path):
    label = np.arange(300, dtype=np.int16).reshape(3, 10, 10)
    problem = look_at_volume(tmp_path, label, label)
    assert problem.kind == "too many mask values"
    assert problem.text.startswith("a: mask holds more than 255 values: 0, ")
    sources = [VolumeFile((str(tmp_path / f"{kind}.nii"),)) for kind in "il"]
    record = {"image": sources[0], "target": sources[1], "name": "a"}
    assert len(inspect_volume(record, has_classes=False).pixels) == 300
    for has_classes in (True, False):
        assert isinstance(VolumeInspector(has_classes=has_classes).inspect(record), Problem) is has_classes


def test_a_file_that_cannot_be_read_is_the_image_or_the_label(tmp_path):
    zeros = np.zeros((3, 4, 5), np.uint8)
    assert look_at_volume(tmp_path, zeros.astype(np.int16), zeros).mode == "int16"
    good, bad = VolumeFile((str(tmp_path / "i.nii"),)), VolumeFile((str(tmp_path / "nowhere.nii"),))
    assert inspect_volume({"image": bad, "target": good, "name": "a"}).kind == "image cannot be read"
    assert inspect_volume({"image": good, "target": bad, "name": "a"}).kind == "label cannot be read"


def test_what_a_volume_is_labeled_for_is_kept():
    inspection = VolumeSplitInspection.of_count(1)
    size = (3, 4, 5)
    volume = VolumeInspection(size, size, "uint8", "numbers", {}, spacing=(1, 1, 1), foreground=np.empty((0, 1)))
    inspection.add(0, volume, ("liver",))
    (content,) = inspection.contents
    assert content.labeled_for == ("liver",)


def test_a_label_on_another_grid_than_its_image_is_a_problem(tmp_path):
    zeros = np.zeros((3, 4, 5), np.uint8)
    problem = look_at_volume(tmp_path, zeros, np.zeros((3, 4, 6), np.uint8))
    text = "a: image is 3 x 4 x 5, its label 3 x 4 x 6 (depth x height x width)"
    assert problem == Problem("label of another shape", text)
    nibabel.save(nibabel.Nifti1Image(zeros.T, np.diag((1.0, 1.0, 2.5, 1.0))), tmp_path / "l.nii")
    source = [VolumeFile((str(tmp_path / f"{kind}.nii"),)) for kind in "il"]
    problem = inspect_volume({"image": source[0], "target": source[1], "name": "a"})
    assert problem.kind == "label of another affine"
    assert "differ by up to 0.5 mm" in problem.text


def test_an_inspection_of_volumes_survives_the_cache():
    inspection = VolumeSplitInspection.of_count(2)
    voxels = {9: np.array([[300, 2, 1], [0, 0, 70]])}
    values = ((3, 4, 5), (3, 4, 5), "uint8", "numbers", {0: 50, 9: 10}, voxels)
    inspection.add(1, VolumeInspection(*values, spacing=(2.5, 1, 1), foreground=np.float32([[1], [3]])))
    for each in (inspection, VolumeSplitInspection.from_json(inspection.to_json())):
        assert each.sizes.tolist() == [[0, 0, 0], [3, 4, 5]]
        assert each.spacings() == [(2.5, 1, 1)]
        assert each.class_locations[1][9].tolist() == [[300, 2, 1], [0, 0, 70]]
        foreground = each.statistics.foreground
        assert foreground.mean == (2,)
        assert foreground.std == (1,)
        assert foreground.clip == pytest.approx((1.01, 2.99))
        assert each.statistics.channels == {1: 1}
