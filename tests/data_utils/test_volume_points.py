"""Points of volumes: Slicer's files and tables, from mm to voxels and back, whatever the orientation of the volume.

Modules: data_utils/sources/points/markups.py, data_utils/sources/points/spaces.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from support.in_process import run_train
from support.points import point_table

from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_volume
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.load import find_in_folder, load_records
from data_utils.sources.points import files
from data_utils.sources.points.find import find_points
from data_utils.sources.points.spaces import from_voxels, to_voxels
from data_utils.sources.points.table import join_tables
from inference import Predictor
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info

SIZE = (20, 16, 12)  # along the axes of the file
NAMES = ("front", "back")
SPACES = {"markups": "LPS", "fcsv": "RAS", "long": "pixels"}
AFFINES = {
    "RAS": np.diag([1.0, 1.5, 2.0, 1.0]),
    "LPI": np.diag([-1.0, -1.5, 2.0, 1.0]) + np.array([[0, 0, 0, 30], [0, 0, 0, 9], [0, 0, 0, -7], [0, 0, 0, 0]]),
    "turned": np.array([[0, 1.5, 0, -3], [2, 0, 0, 5], [0, 0, -1, 11], [0, 0, 0, 1.0]]),
    "each axis at the place of the next": np.array([[0, 0, -1, 11], [1.5, 0, 0, -3], [0, 2, 0, 5], [0, 0, 0, 1.0]]),
}


def write_volumes(folder: Path, count: int, layout: str, affine: np.ndarray, seed: int = 0) -> None:
    """Volumes with a bright and a dark dot, and the files that say where these are."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    axes = np.indices(SIZE)
    tables = []
    for number in range(count):
        places = rng.uniform(3, np.array(SIZE) - 4, (2, 3)).round(3)  # in voxels of the file
        voxels = rng.normal(100, 3, SIZE)
        for place, sign in zip(places, (1, -1), strict=True):
            distance = sum((axis - side) ** 2 for axis, side in zip(axes, place, strict=True))
            voxels += sign * 60 * np.exp(-0.5 * distance / 1.5**2)
        nibabel.save(nibabel.Nifti1Image(voxels.astype(np.float32), affine), folder / "images" / f"case{number}.nii.gz")
        positions = places
        if layout != "long":
            positions = places @ affine[:3, :3].T + affine[:3, 3]
        if SPACES[layout] == "LPS":
            positions = positions * (-1, -1, 1)
        states = np.full((1, 2), PRESENT)
        name = f"case{number}"
        tables.append(point_table(layout, NAMES, (name,), positions[None], states, ("",), SPACES[layout]))
    if layout == "long":
        (folder / "points.csv").write_bytes(files.content(join_tables(tables)))
        return
    for table in tables:
        extension = files.FORMATS[layout].extension
        (folder / "images" / f"{table.images[0]}{extension}").write_bytes(files.content(table))


@pytest.mark.parametrize("layout", ["markups", "fcsv", "long"])
@pytest.mark.parametrize("orientation", AFFINES)
def test_a_drawn_dot_is_where_the_file_says(tmp_path, layout, orientation):
    write_volumes(tmp_path, 3, layout, AFFINES[orientation])
    info = load_dataset_info(DataConfig(dataset=str(tmp_path), val_fraction=0.4))
    assert info.config.task == "landmarks"
    assert info.reader.landmarks.unit == "mm"
    assert info.reader.names == NAMES
    for record in info.train.records:
        voxels, header = read_volume(record["image"], record["name"])
        target = info.reader.read_volume(record, header)
        for sign, (z, y, x) in zip((1, -1), target.points, strict=True):
            weights = (sign * (voxels[..., 0] - 100)).clip(15, None) - 15
            axes = np.indices(voxels.shape[:3])
            center = [(axis * weights).sum() / weights.sum() for axis in axes]
            assert np.linalg.norm(np.subtract(center, (z, y, x))) < 0.5
        assert np.allclose(target.unit, header.spacing)


@pytest.mark.parametrize("axes", ["RAS", "turned"])
def test_points_outside_of_a_volume_are_those_beyond_the_axes_of_its_file(axes, tmp_path):
    (tmp_path / "images").mkdir()
    rows = ["image,landmark,x,y,z"]
    for number in range(3):
        file = tmp_path / "images" / f"case{number}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(np.zeros(SIZE, np.float32), AFFINES[axes]), file)
        rows += [f"case{number},front,18,3,2", f"case{number},back,3,{2 if number else 18},9"]
    (tmp_path / "points.csv").write_text("\n".join(rows))
    warnings = load_dataset_info(DataConfig(dataset=str(tmp_path), val_fraction=0.4)).warnings
    (line,) = [line for line in warnings if "lies outside" in line]
    assert line == "1 point lies outside its image, and left out: case0.nii.gz (back at 3, 18, 9)"


def test_places_in_a_volume_that_is_turned_by_an_angle_follow_its_axes(tmp_path):
    turned = np.array([[2, -1.5, 0, 10], [1.5, 2, 0, 20], [0, 0, 3, 30], [0, 0, 0, 1.0]])
    file = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros(SIZE, np.float32), turned), file)
    _, header = read_volume(VolumeFile((str(file),)), "a")
    places = np.array([[12, 21.5, 30], [8.5, 22, 33]])
    voxels = np.array([[0, 0, 1], [1, 1, 0]])  # (z, y, x)
    assert np.allclose(to_voxels(places, "RAS", header), voxels, atol=1e-9)
    assert np.allclose(from_voxels(voxels, "LPS", header), places * (-1, -1, 1), atol=1e-9)
    with pytest.raises(DataError, match="coordinate system 'XYZ' is none of RAS, LPS"):
        to_voxels(np.zeros((1, 3)), "XYZ", header)


@pytest.mark.parametrize(("layout", "second_state"), [("markups", UNKNOWN), ("fcsv", PRESENT)])
def test_a_file_of_slicer_keeps_names_places_and_states(tmp_path, layout, second_state):
    states = np.array([[PRESENT, second_state]])
    positions = np.array([[[1.25, -2.5, 3e-4], [7.0, 8.0, 9.0]]]) * (states[0] == PRESENT)[:, None]
    table = point_table(layout, NAMES, ("case",), positions, states, ("",), "LPS")
    file = tmp_path / f"case{files.FORMATS[layout].extension}"
    file.write_bytes(files.content(table))
    again = files.read(file)
    assert again.names == NAMES
    assert again.images == ("case",)
    assert again.space == "LPS"
    assert np.array_equal(again.positions, positions)
    assert np.array_equal(again.states, states)


def test_old_files_of_slicer_are_ras(tmp_path):
    file = tmp_path / "a.fcsv"
    file.write_text("# CoordinateSystem = 0\n# columns = id,x,y,z,label\n1,1,2,3,one\n")
    assert files.read(file).space == "RAS"
    file.write_text("1,1,2,3,0,0,0,1,1,1,0,one,,\n")
    assert files.read(file).space == "RAS"
    assert files.read(file).names == ("one",)
    file.write_text("#CoordinateSystem = LPS  \n# columns = id, x, y, z, label\n1,1,2,3,one\n")
    assert files.read(file).space == "LPS"
    assert files.read(file).names == ("one",)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"a\.fcsv cannot be read as text"):
        files.read(file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.mrk.json", "{", "cannot be read as JSON"),
        ("a.mrk.json", '{"markups": [{"coordinateSystem": "XYZ", "controlPoints": []}]}', "is none of RAS, LPS"),
        ("a.mrk.json", '{"markups": [{"controlPoints": [{"position": [1, 2]}]}]}', "expected 3 numbers"),
        ("a.mrk.json", '{"markups": [{"controlPoints": [5]}]}', "point 1 is no object"),
        ("a.fcsv", "# columns = id,label\n", "hold no x, y and z"),
        ("a.fcsv", "1,a,2,3\n", "'a' is no coordinate"),
        ("a.fcsv", "# CoordinateSystem = 7\n", "coordinate system '7'"),
    ],
)
def test_a_damaged_file_is_a_one_line_error(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        files.read(tmp_path / name)


def test_a_folder_has_points_of_one_kind(tmp_path):
    (tmp_path / "a.mrk.json").write_text("{}")
    (tmp_path / "b.fcsv").write_text("1,1,2,3,0,0,0,1,1,1,0,one,,\n")
    with pytest.raises(DataError, match=r"holds files \.mrk\.json and \.fcsv; keep one of the two kinds"):
        find_points(tmp_path, (), explicit=True)


def test_points_of_volumes_are_learned_and_predicted_in_their_own_format(tmp_path):
    write_volumes(tmp_path / "data", 6, "markups", AFFINES["LPI"])
    flags = ["--plan", "none", "--base-channels", "4", "--depth", "2", "--norm", "instance", "--num-workers", "0"]
    flags += ["--crop-size", "12", "16", "16", "--batch-size", "2", "--learning-rate", "0.03", "--max-steps", "30"]
    flags += ["--eval-every", "30", "--augment", "none", "--swap", "", "--val-fraction", "0.3"]
    run = run_train(tmp_path / "run", "--dataset", tmp_path / "data", *flags)
    assert run.exit_code == 0, run.output
    assert run.values("eval/median_radial_error")[-1] < 2
    assert "eval/sdr/2mm" in run.records[-1]
    assert "Landmarks" in (run.folder / "report.html").read_text()
    image = tmp_path / "data" / "images" / "case0.nii.gz"
    landmarks = Predictor.from_pretrained(run.folder / "model").points(image)
    truth = files.read(image.with_name("case0.mrk.json"))
    _, header = read_volume(VolumeFile((str(image),)), "case0")
    positions = to_voxels(truth.positions[0], truth.space, header)
    errors = np.linalg.norm(np.subtract([landmark.position for landmark in landmarks], positions), axis=1)
    assert min(errors) < 2


MARKUP_POINTS = [
    {"id": "7", "label": "tip", "position": [1, 2, 3]},
    {"id": "8", "label": "", "position": [4, 5, 6], "positionStatus": "missing"},
    {"position": None},
    {"label": "old", "position": [4, 5, 6], "positionStatus": "undefined"},
    {"label": "held", "position": [4, 5, 6], "positionStatus": "preview"},
    {"label": "taken", "position": [4, 5, 6], "positionStatus": "missing", "description": "presence 0.75 confidence 1"},
]


def test_points_of_markups_have_the_name_of_their_label_or_number_and_the_state_of_their_position(tmp_path):
    file = tmp_path / "Scan.MRK.JSON"
    file.write_text(json.dumps({"markups": [{"controlPoints": MARKUP_POINTS}]}))
    table = files.read(file)
    assert table.names == ("tip", "8", "3", "old", "held", "taken")
    assert table.states.tolist() == [[PRESENT, ABSENT, UNKNOWN, UNKNOWN, UNKNOWN, ABSENT]]


@pytest.mark.parametrize("space", ["LPS", "RAS"])
def test_written_files_of_slicer_have_a_place_for_points_that_are_there(space):
    states = np.array([[ABSENT, UNKNOWN, PRESENT]])
    table = point_table("markups", ("a", "b", "c"), ("case",), np.ones((1, 3, 3)), states, ("",), space)
    points = json.loads(files.content(table))["markups"][0]["controlPoints"]
    assert [point["positionStatus"] for point in points] == ["missing", "undefined", "defined"]
    assert ["position" in point for point in points] == [False, False, True]
    lines = files.content(replace(table, layout="fcsv")).decode().splitlines()
    assert f"# CoordinateSystem = {space}" in lines
    assert [line for line in lines if line[0] != "#"] == ["3,1.0,1.0,1.0,0,0,0,1,1,1,0,c,,"]


def test_a_file_of_slicer_may_hold_no_points(tmp_path):
    texts = {"a.fcsv": "# Markups fiducial file version = 4.11\n", "a.mrk.json": '{"markups": []}', "b.mrk.json": "{}"}
    texts |= {"c.mrk.json": '{"markups": {"controlPoints": []}}', "d.mrk.json": '{"a": {"tip": [1, 2, 3]}}'}
    texts |= {"e.mrk.json": '{"markups": [{"controlPoints": []}]}'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert files.read(tmp_path / name) is None


def test_columns_of_fcsv_are_those_that_it_names(tmp_path):
    file = tmp_path / "a.fcsv"
    head = "\ufeff# CoordinateSystem = 1\n# columns = label,id,z,y,x\n"
    file.write_text(head + "one,7,3,2,1\n,8,6,5,4\n\n,,9,8,7\n")
    table = files.read(file)
    assert table.names == ("one", "8", "3")
    assert table.space == "LPS"
    assert table.positions[0].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    file.write_text("# drawn with = a pen = by hand\n1,1,2,3,0,0,0,1,1,1,0,one\n2,4,5,6\n")  # without the last cells
    table = files.read(file)
    assert table.names == ("one", "2")
    assert table.positions[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    file.write_text("# by hand\n\n1,1,2\n")
    with pytest.raises(DataError, match="line 3 has 3 cells, expected 14; is the file cut off"):
        files.read(file)


@pytest.mark.parametrize("folder", ["", "points", "landmarks", "markups", "fiducials", "images", "imagesTr"])
def test_files_of_single_volumes_lie_beside_them_or_in_a_folder_of_their_own(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    for name in "dbeac":
        (tmp_path / folder / f"{name}.fcsv").write_text("1,1,2,3,0,0,0,1,1,1,0,one,,\n")
    assert find_points(tmp_path, (), explicit=True)["train"].images == tuple("abcde")


def test_files_of_points_of_a_split_lie_in_a_folder_beside_that_of_its_volumes(tmp_path):
    volume = tmp_path / "train" / "images" / "a.nii.gz"
    for file in (volume, tmp_path / "train" / "points" / "a.fcsv"):
        file.parent.mkdir(parents=True)
    nibabel.save(nibabel.Nifti1Image(np.zeros(SIZE, np.float32), np.eye(4)), volume)
    (tmp_path / "train" / "points" / "a.fcsv").write_text("1,1,2,3,0,0,0,1,1,1,0,one,,\n")
    splits = find_in_folder(tmp_path, (), DataConfig(str(tmp_path), task="landmarks"))
    assert splits["train"]()[0]["image"] == VolumeFile((str(volume),))


def test_a_volume_that_is_missing_is_named_with_the_file_of_its_points(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.zeros(SIZE, np.float32), np.eye(4)), tmp_path / "a.nii.gz")
    for name in "ab":
        (tmp_path / f"{name}.fcsv").write_text("1,1,2,3,0,0,0,1,1,1,0,one,,\n")
    with pytest.raises(DataError, match=r"1 file without partner: b: listed in b\.fcsv, but the file is missing"):
        load_records(DataConfig(dataset=str(tmp_path)))


def test_images_and_volumes_or_two_coordinates_of_volumes_are_a_one_line_error(tmp_path):
    (tmp_path / "images").mkdir()
    nibabel.save(nibabel.Nifti1Image(np.zeros(SIZE, np.float32), np.eye(4)), tmp_path / "images" / "a.nii.gz")
    (tmp_path / "points.csv").write_text("image,landmark,x,y\na,one,1,2\n")
    config = DataConfig(dataset=str(tmp_path))
    with pytest.raises(DataError, match="its points have 2 coordinates, but it lists volumes, which take x, y and z"):
        load_records(config)
    Image.new("L", (9, 9)).save(tmp_path / "images" / "b.png")
    (tmp_path / "points.csv").write_text("image,landmark,x,y,z\na,one,1,2,3\nb,one,1,2,3\n")
    with pytest.raises(DataError, match="lists images and volumes; give a data set of each"):
        load_records(config)
