"""One look at a volume and its label: where each value lies, and how bright labeled voxels are."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.inspections import inspect_volume
from support.volumes import volume_config, write_decathlon, write_volume

from data_utils.analysis import inspect_volumes
from data_utils.analysis.inspection import Inspection, Problem, SplitInspection
from data_utils.analysis.volume_statistics import measure_foreground
from data_utils.image_io.formats import VolumeFile
from train_utils.dataset import load_dataset_info


def record_of(folder: Path) -> dict:
    """A record of the image i.nii and the label l.nii in a folder."""
    image, label = (VolumeFile((str(folder / name),)) for name in ("i.nii", "l.nii"))
    return {"image": image, "target": label, "name": "a"}


def inspect_voxels(folder: Path, image: np.ndarray, label: np.ndarray) -> Inspection | Problem:
    """What one look finds in voxels (z, y, x), which are written first."""
    write_volume(folder / "i.nii", image)
    write_volume(folder / "l.nii", label)
    return inspect_volume(record_of(folder))


@pytest.fixture(scope="module")
def numbered_voxels(tmp_path_factory):
    """What one look finds in a volume whose voxels are numbered, and its label of four values."""
    label = np.zeros((3, 4, 5), np.uint8)
    label[0, 1, 2] = label[2, 3, 4] = label[2, 0, 0] = 7
    label[1, 1, 1] = 255
    label[1, 3, 0] = 2
    image = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    return inspect_voxels(tmp_path_factory.mktemp("numbered"), image, label), label


def test_a_look_at_a_volume_finds_its_size_and_spacing(numbered_voxels):
    inspection, _ = numbered_voxels
    assert inspection.size == (3, 4, 5)
    assert inspection.mask_size == (3, 4, 5)
    assert inspection.spacing == (2, 1, 1)
    assert inspection.kind == "numbers"


def test_a_look_at_a_volume_finds_where_each_value_lies(numbered_voxels):
    inspection, label = numbered_voxels
    assert inspection.pixels == {0: 55, 2: 1, 7: 3, 255: 1}
    assert inspection.class_locations[7].tolist() == [[0, 1, 2], [2, 0, 0], [2, 3, 4]]
    assert inspection.class_locations[2].tolist() == [[1, 3, 0]]
    assert inspection.class_locations[255].tolist() == [[1, 1, 1]]
    background = inspection.class_locations[0]
    assert len({tuple(voxel) for voxel in background.tolist()}) == 55
    assert not label[tuple(background.T)].any()


def test_a_look_at_a_volume_finds_the_intensities_of_labels(numbered_voxels):
    inspection, _ = numbered_voxels
    assert inspection.foreground.ravel().tolist() == [7, 35, 40, 59]  # of 7, 2, 7, 7: neither 0 nor 255 is a label


@pytest.fixture(scope="module")
def many_voxels(tmp_path_factory):
    """What two looks find in a volume with many labeled voxels, and its label."""
    label = np.ones((11, 40, 40), np.uint8)
    label[:2] = 0
    folder = tmp_path_factory.mktemp("many")
    inspection = inspect_voxels(folder, label.astype(np.float32), label)
    return inspection, inspect_volume(record_of(folder)), label


def test_a_thousand_places_of_many_voxels_are_remembered(many_voxels):
    inspection, _, label = many_voxels
    voxels = inspection.class_locations[1]
    assert len(voxels) == 1000
    assert len(np.unique(voxels, axis=0)) == 1000
    assert label[tuple(voxels.T)].all()
    assert set(voxels[:, 0].tolist()) == set(range(2, 11))


def test_a_label_of_many_values_is_a_problem_where_these_are_classes(tmp_path):
    label = np.arange(300, dtype=np.int16).reshape(3, 10, 10)
    problem = inspect_voxels(tmp_path, label, label)
    assert problem.kind == "too many mask values"
    assert problem.text.startswith("a: mask holds more than 255 values: 0, ")


@pytest.mark.parametrize(("missing", "kind"), [("image", "image cannot be read"), ("target", "label cannot be read")])
def test_a_file_that_cannot_be_read_is_the_image_or_the_label(tmp_path, missing, kind):
    zeros = np.zeros((3, 4, 5), np.uint8)
    inspect_voxels(tmp_path, zeros, zeros)
    record = record_of(tmp_path) | {missing: VolumeFile((str(tmp_path / "nowhere.nii"),))}
    assert inspect_volume(record).kind == kind


def test_a_label_of_another_size_than_its_image_is_a_problem(tmp_path):
    problem = inspect_voxels(tmp_path, np.zeros((3, 4, 5), np.uint8), np.zeros((3, 4, 6), np.uint8))
    text = "a: image is 3 x 4 x 5, its label 3 x 4 x 6 (depth x height x width)"
    assert problem == Problem("label of another shape", text)


def test_a_label_of_another_spacing_than_its_image_is_a_problem(tmp_path):
    zeros = np.zeros((3, 4, 5), np.uint8)
    write_volume(tmp_path / "i.nii", zeros)
    write_volume(tmp_path / "l.nii", zeros, spacing=(2.5, 1.0, 1.0))
    problem = inspect_volume(record_of(tmp_path))
    assert problem.kind == "label of another affine"
    assert "differ by up to 0.5 mm" in problem.text


def test_an_inspection_of_volumes_survives_the_cache():
    inspection = SplitInspection.empty(2, 3)
    voxels = {9: np.array([[300, 2, 1], [0, 0, 70]])}
    inspection.add(1, Inspection((3, 4, 5), (3, 4, 5), "uint8", "numbers", {0: 50, 9: 10}, voxels, 1, (2.5, 1, 1)))
    inspection.foreground = measure_foreground([np.float32([[1], [3]])])
    again = SplitInspection.from_json(json.loads(json.dumps(inspection.to_json())), 3)
    assert again.sizes.tolist() == [[0, 0, 0], [3, 4, 5]]
    assert again.spacings.tolist() == [[0, 0, 0], [2.5, 1, 1]]
    assert again.class_locations[1][9].tolist() == [[300, 2, 1], [0, 0, 70]]
    assert again.channels.tolist() == [0, 1]
    assert again.foreground == inspection.foreground
    assert again.foreground.clip == pytest.approx((1.01, 2.99))


def test_places_of_a_volume_are_the_same_on_every_start(tmp_path):
    voxels = np.zeros((20, 20, 20), np.int16)
    inspection = inspect_voxels(tmp_path, voxels, np.ones((20, 20, 20), np.uint8))
    assert inspection.class_locations[1][:4].tolist() == [[0, 1, 0], [0, 1, 16], [0, 2, 3], [0, 3, 4]]


def test_a_data_set_of_volumes_is_read_once(tmp_path, monkeypatch):
    config = volume_config(write_decathlon(tmp_path))
    info = load_dataset_info(config)
    monkeypatch.delattr(inspect_volumes, "read_volume")
    again = load_dataset_info(config)
    assert np.array_equal(info.train.sizes, again.train.sizes)
    assert info.preprocess() == again.preprocess()
    assert info.reader.class_map == again.reader.class_map
    for index, locations in info.train.class_locations.items():
        for places, places_again in zip(locations, again.train.class_locations[index], strict=True):
            assert np.array_equal(places, places_again)
