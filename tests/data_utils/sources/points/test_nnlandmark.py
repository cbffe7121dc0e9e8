"""Points in the files of nnLandmark, which list the voxels of all cases of a folder of volumes."""

import json
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from support.points import reading_error

from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_volume
from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.load import load_records
from data_utils.sources.points import files
from data_utils.sources.points.table import Certainty
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info

SPACING_OF_2_MM = np.diag([1, 1, 2, 1.0])
TURNED = np.array([[0, -1.0, 0, 9], [1, 0, 0, 0], [0, 0, -2, 5], [0, 0, 0, 1]])


def write_volumes(folder: Path, affine: np.ndarray, channels: int = 1) -> dict[str, dict[str, list[float]]]:
    """nnLandmark's folder: volumes with dots, and a file that lists all cases, also those of the test."""
    rng = np.random.default_rng(0)
    size = (20, 16, 12)
    cases: dict[str, dict[str, list[float]]] = {}
    for number in range(4):
        place = rng.uniform(3, np.array(size) - 4, 3).round(2)
        distance = sum((axis - side) ** 2 for axis, side in zip(np.indices(size), place, strict=True))
        voxels = (100 * np.exp(-0.5 * distance / 1.5**2)).astype(np.float32)
        images = folder / ("imagesTs" if number == 3 else "imagesTr")
        images.mkdir(exist_ok=True, parents=True)
        for channel in range(channels):
            nibabel.save(nibabel.Nifti1Image(voxels, affine), images / f"case.{number}_{channel:04}.nii.gz")
        cases[f"case.{number}"] = {"tip": place.tolist()}
    cases["case.0"]["rim"] = [1, 2, 3]
    (folder / "all_landmarks_voxel.json").write_text(json.dumps(cases))
    (folder / "name_to_label.json").write_text('{"tip": 1, "rim": 2}')
    spacing = {case: {"image_spacing": [1, 1, 2], "annotation_spacing": None} for case in cases}
    (folder / "spacing.json").write_text(json.dumps(spacing))
    return cases


@pytest.mark.parametrize("affine", [SPACING_OF_2_MM, TURNED], ids=["spacing of 2 mm", "turned"])
def test_voxels_of_nnlandmark_are_those_of_the_file(tmp_path, affine):
    write_volumes(tmp_path, affine, channels=2)
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.34))
    assert info.config.task == "landmarks"
    assert info.reader.names == ("tip", "rim")
    assert len(info.train.records) + len(info.val.records) == 3  # those of the test are left out
    for record in info.train.records:
        voxels, header = read_volume(record["image"], record["name"])
        assert voxels.shape[-1] == 2
        weights = (voxels[..., 0] - 20).clip(0)
        center = [(axis * weights).sum() / weights.sum() for axis in np.indices(voxels.shape[:3])]
        assert np.linalg.norm(info.reader.read_volume(record, header).points[0] - center) < 0.3


def test_a_case_of_nnlandmark_that_is_in_no_folder_is_named(tmp_path):
    cases = write_volumes(tmp_path, np.eye(4))
    (tmp_path / "all_landmarks_voxel.json").write_text(json.dumps(cases | {"lost": {"tip": [1, 2, 3]}}))
    with pytest.raises(DataError, match=r"1 file without partner: lost: listed in all_landmarks_voxel\.json"):
        load_records(DataConfig(str(tmp_path)))


def test_labels_beside_the_points_of_nnlandmark_need_a_task(tmp_path):
    write_volumes(tmp_path, np.eye(4))
    (tmp_path / "labelsTr").mkdir()
    for number in range(3):
        cubes = nibabel.Nifti1Image(np.zeros((20, 16, 12), np.uint8), np.eye(4))
        nibabel.save(cubes, tmp_path / "labelsTr" / f"case.{number}.nii.gz")
    config = DataConfig(str(tmp_path), val_fraction=0.34)
    line = rf"^{tmp_path} holds labels, and points in all_landmarks_voxel\.json; give --task"
    with pytest.raises(DataError, match=line):
        load_records(config)
    assert load_records(replace(config, task="landmarks"))[0].metadata.landmarks.names == ("tip", "rim")
    (tmp_path / "spacing.json").unlink()  # of another format than that for volumes without spacing
    assert load_records(replace(config, task="classes"))[0].metadata.landmarks is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"case": {"one": [1, 2]}}', "one of case: its position is"),
        ('{"case": {"one": [1, 2, 1e300]}}', "is not within"),
        ('{"case": {"one": [1, 2,', "cannot be read as JSON"),
    ],
)
def test_a_damaged_file_of_nnlandmark_is_refused(tmp_path, text, message):
    assert message in reading_error(tmp_path / "a.json", text)


def test_a_point_of_nnlandmark_without_a_place_is_unknown(tmp_path):
    # a case whose second point is not known, and a case without points
    (tmp_path / "a.json").write_text(json.dumps({"a": {"tip": [1, 2, 3], "rim": None}, "b": {}}))
    table = files.read(tmp_path / "a.json")
    assert table.images == ("a", "b")
    assert table.states.tolist() == [[PRESENT, UNKNOWN], [UNKNOWN, UNKNOWN]]


def test_a_written_prediction_of_nnlandmark_has_likelihood_beside_presence(tmp_path):
    # a prediction as nnLandmark writes it: with a likelihood, and without presence
    cases = {"a": {"tip": {"coordinates": [1, 2, 3], "likelihood": 0.25}, "rim": {"coordinates": None}}}
    (tmp_path / "a.json").write_text(json.dumps(cases))
    table = files.read(tmp_path / "a.json")
    (entry,) = table.entries
    entry.points["tip"] = entry.points["tip"]._replace(certainty=Certainty(0.25, 0.75))
    content = json.loads(files.content(table))
    assert content["a"]["tip"] == {"coordinates": [1, 2, 3], "likelihood": 0.25, "presence": 0.75}
