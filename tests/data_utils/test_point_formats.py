"""Points in the files of other programs: labelme, COCO, TPS and nnLandmark, read and written in the same format.

Modules: data_utils/sources/points/labelme_points.py, coco_keypoints.py, tps.py, nnlandmark.py,
data_utils/sources/points/find.py.
"""

import base64
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import nibabel
import numpy as np
import pytest
from PIL import Image
from points import NAMES, SIZE, WRITERS, coco_content, dot_center, dots, write_tps

from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume
from data_utils.sources.load import load_records
from data_utils.sources.points import coco_keypoints, files
from data_utils.sources.points.coco_keypoints import find_keypoints
from data_utils.sources.points.find import find_points, open_points
from data_utils.sources.points.labelme_points import find_shapes
from data_utils.sources.points.nnlandmark import case_of
from data_utils.sources.points.spaces import from_pixels, to_pixels
from data_utils.sources.points.table import PointTable
from data_utils.targets.points import point_records
from runtime.errors import DataError
from tasks.points import ABSENT, PRESENT, UNKNOWN

HEIGHT, WIDTH = SIZE


def write_set(folder: Path, layout: str, count: int = 4) -> np.ndarray:
    """A folder of images with dots and the files of another program; returns the places (count, 3, 2)."""
    images, positions, _ = dots(count, seed=0)
    positions = positions.round(3)
    (folder / "images").mkdir(parents=True)
    names = [f"frame_{number:02}.png" for number in range(count)]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / "images" / name)
    WRITERS[layout](folder, names, positions)
    return positions


def table_of(folder: Path, **settings) -> PointTable:
    """The points of all records of a folder, as training sees them."""
    (records,) = point_records(load_records(DataConfig(str(folder), **settings))[:1])
    return records.table


@pytest.mark.parametrize("layout", WRITERS)
def test_a_drawn_dot_is_where_the_file_says_and_is_written_back(tmp_path, layout):
    write_set(tmp_path, layout)
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.5))
    assert info.config.task == "landmarks"
    assert info.reader.landmarks.layout == layout
    assert info.reader.names == (("1", "2", "3") if layout == "tps" else NAMES)
    for split in (info.train, info.val):
        for record in split.records:
            image = read_image(record["image"], "image").astype(float)
            target = info.reader.read(record, SIZE)
            for channel, (y, x) in enumerate(target.points):
                assert np.hypot(*(dot_center(image[:, :, channel], y, x) - (y, x))) < 0.6
    table = table_of(tmp_path).rows([1])
    file = tmp_path / f"again{files.FORMATS[layout].extension}"
    file.write_bytes(files.content(table))
    again = files.read(file)
    assert again is not None
    assert again.names == table.names
    assert again.layout == layout
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)
    assert again.space == table.space
    assert np.array_equal(again.sizes, table.sizes)


@pytest.mark.parametrize("layout", [*WRITERS, "nnlandmark", "markups", "fcsv"])
def test_a_prediction_keeps_the_place_of_points_that_are_not_there(tmp_path, layout):
    names = ("1", "2") if layout == "tps" else ("a", "b")
    axes = 2 if layout in WRITERS else 3
    space = {"markups": "LPS", "fcsv": "LPS", "tps": "pixels from the bottom"}.get(layout, "pixels")
    table = PointTable(
        layout=layout,
        names=names,
        images=("one",),
        positions=np.array([[[1.5, 2.0625, 0.5], [3.0, 4.0, 1e-3]]])[:, :, :axes],
        states=np.array([[ABSENT, PRESENT]]),
        files=("",),
        space=space,
        presence=np.array([[0.25, 0.75]]),
        confidence=np.array([[0.5, 1.0]]),
        sizes=np.array([[30, 40]]),
    )
    file = tmp_path / f"one{files.FORMATS[layout].extension}"
    file.write_bytes(files.content(table))
    again = files.read(file)
    assert again is not None
    again = again.with_names(names)
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)
    assert np.array_equal(again.presence, table.presence)
    assert np.array_equal(again.confidence, table.confidence)
    # other programs find only the point that is there
    if layout == "labelme":
        assert [shape["label"] for shape in json.loads(file.read_text())["shapes"]] == ["b"]
    if layout == "coco":
        (entry,) = json.loads(file.read_text())["annotations"]
        assert entry["keypoints"][2::3] == [0, 2]
        assert entry["num_keypoints"] == 1
    if layout == "tps":
        assert file.read_text().splitlines()[:3] == ["LM=2", "-1 -1", "3.0 4.0"]
    if layout == "fcsv":
        assert [line.split(",")[11] for line in file.read_text().splitlines() if line[0] != "#"] == ["b"]


def test_numbered_points_keep_their_numbers_where_some_are_chosen(tmp_path):
    table = PointTable(
        "tps", ("3", "1"), ("a.png",), np.array([[[5.0, 6.0], [7.0, 8.0]]]), np.full((1, 2), PRESENT), ("",)
    )
    (tmp_path / "a.tps").write_bytes(files.content(table))
    again = files.read(tmp_path / "a.tps")
    assert again.names == ("1", "2", "3")
    assert again.states.tolist() == [[PRESENT, UNKNOWN, PRESENT]]
    assert again.positions[0].tolist() == [[7, 8], [0, 0], [5, 6]]
    assert again.with_names(("3", "1")).positions.tolist() == table.positions.tolist()


def test_tps_counts_from_the_lowest_row_and_negative_is_unknown(tmp_path):
    file = tmp_path / "a.tps"
    file.write_text("lm=3\n0 0\n-1 -1\nNA NA\nID=first.png\nLM=1\n1 2\nIMAGE=C:\\x\\second.png\nCOMMENT=good\n")
    table = files.read(file)
    assert table.images == ("first.png", "C:\\x\\second.png")
    assert table.states.tolist() == [[PRESENT, UNKNOWN, UNKNOWN], [PRESENT, UNKNOWN, UNKNOWN]]
    assert to_pixels(table.source(0), (10, 20), "a")[0].tolist() == [9, 0]
    places = np.random.default_rng(0).uniform(0, 9, (4, 2))
    positions = from_pixels(places, table.space, (10, 20))
    source = table.source(0)._replace(positions=positions)
    assert np.allclose(to_pixels(source, (10, 20), "a"), places, atol=1e-12)


def test_what_stands_before_the_first_specimen_of_tps_is_left_out(tmp_path):
    (tmp_path / "a.tps").write_text("COMMENT=by hand\nIMAGE=b.png\nLM=1\n5 6\nIMAGE=a=1.png\nIMAGE=c.png\nID=\n")
    table = files.read(tmp_path / "a.tps")
    assert table.images == ("a=1.png",)
    assert table.positions.tolist() == [[[5, 6]]]


def test_a_point_that_is_predicted_beyond_the_border_is_not_taken_for_unknown(tmp_path):
    places = np.array([[[-0.4, 6.0]]])
    table = PointTable("tps", ("1",), ("a.png",), places, np.full((1, 1), PRESENT), ("",))
    predicted = replace(table, presence=np.ones((1, 1)), confidence=np.ones((1, 1)))
    for written, expected in ((table, [0, 6]), (predicted, [-0.4, 6])):
        (tmp_path / "a.tps").write_bytes(files.content(written))
        again = files.read(tmp_path / "a.tps")
        assert again.states.tolist() == [[PRESENT]]
        assert again.positions[0, 0].tolist() == expected
    (tmp_path / "a.tps").write_text("LM=2\n-1 5\n5 -1\nID=a\n")
    assert files.read(tmp_path / "a.tps").states.tolist() == [[UNKNOWN, UNKNOWN]]


def test_a_case_is_called_as_its_volume_without_channel_and_extension():
    names = ("a_0000.nii.gz", "b/a.v2_0000.mha", "a.v2", "a.npy", "a_0001.nii", "a_0000_b.tif")
    assert [case_of(name) for name in names] == ["a", "b/a.v2", "a.v2", "a", "a_0001", "a_0000_b"]


def test_visibility_of_keypoints_is_present_or_unknown(tmp_path):
    content = coco_content(["a.png"], np.ones((1, 3, 2)))
    content["annotations"][0]["keypoints"] = [1, 2, 0, 3, 4, 1, 5, 6, 2]
    content["annotations"].append({"id": 9, "image_id": 7, "category_id": 1, "keypoints": [0] * 9})  # nothing labeled
    content["images"].append({"id": 8, "file_name": "b.png"})
    (tmp_path / "a.json").write_text(json.dumps(content))
    table = files.read(tmp_path / "a.json")
    assert table.states.tolist() == [[UNKNOWN, PRESENT, PRESENT], [UNKNOWN] * 3]
    assert table.positions[0, 1:].tolist() == [[3, 4], [5, 6]]


def test_points_of_an_image_that_was_made_smaller_follow_it(tmp_path):
    positions = write_set(tmp_path, "labelme")
    for file in sorted((tmp_path / "images").glob("*.png")):
        Image.open(file).resize((WIDTH // 2, HEIGHT // 2)).save(file)
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.5))
    record = info.train.records[0]
    number = int(record["name"][-6:-4])
    target = info.reader.read(record, (HEIGHT // 2, WIDTH // 2))
    assert np.allclose(target.points[:, ::-1], (positions[number] + 0.5) / 2 - 0.5)
    Image.new("RGB", (30, 30)).save(tmp_path / "images" / "frame_01.png")
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 1
    assert "frame_01.png: is 30 x 30 (height x width), but " in report
    assert f"gives points of an image of {HEIGHT} x {WIDTH}" in report


def test_labelme_files_may_hold_their_image(tmp_path):
    positions = write_set(tmp_path, "labelme")
    for file in sorted((tmp_path / "images").glob("*.png")):
        data = base64.b64encode(file.read_bytes()).decode()
        content = json.loads(file.with_suffix(".json").read_text())
        file.with_suffix(".json").write_text(json.dumps(content | {"imageData": data}))
        file.unlink()
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.5))
    record = info.train.records[0]
    assert read_image(record["image"], "image").shape == (*SIZE, 3)
    assert np.allclose(info.reader.read(record, SIZE).points[:, ::-1], positions[int(record["name"][-7:-5])])


def test_shapes_of_both_kinds_ask_for_the_task(tmp_path):
    write_set(tmp_path, "labelme")
    file = tmp_path / "images" / "frame_02.json"
    content = json.loads(file.read_text())
    content["shapes"].append({"label": "body", "points": [[1, 1], [9, 1], [9, 9]], "shape_type": "polygon"})
    file.write_text(json.dumps(content))
    config = DataConfig(str(tmp_path), val_fraction=0.5)
    with pytest.raises(DataError, match=r"points and other shapes of labelme; give --task landmarks .*--task classes"):
        load_records(config)
    train, _ = load_records(replace(config, task="landmarks"))
    assert train.metadata.landmarks.names == NAMES
    train, _ = load_records(replace(config, task="classes"))
    assert train.metadata.landmarks is None
    assert [name for _, name in train.metadata.classes] == ["background", "body", *sorted(NAMES)]


def test_points_alone_are_discs_where_classes_are_asked_for(tmp_path):
    write_set(tmp_path, "labelme")
    train, _ = load_records(DataConfig(str(tmp_path), val_fraction=0.5, task="classes"))
    assert train.metadata.landmarks is None
    assert len(train.metadata.classes) == 4


def test_keypoints_beside_outlines_are_read_where_they_are_asked_for(tmp_path):
    write_set(tmp_path, "coco")
    file = tmp_path / "annotations" / "person_keypoints_train2017.json"
    content = json.loads(file.read_text())
    for entry in content["annotations"]:
        entry["segmentation"] = [[1, 1, 9, 1, 9, 9]]
    objects = [{key: entry[key] for key in entry if key != "keypoints"} for entry in content["annotations"]]
    categories = [{"id": 1, "name": "mouse"}]
    text = changed(content, annotations=objects, categories=categories, info={"keypoints": "none"})
    file.with_name("instances_train2017.json").write_text(text)
    config = DataConfig(str(tmp_path), val_fraction=0.5)
    assert load_records(config)[0].metadata.landmarks is None
    assert load_records(replace(config, task="landmarks"))[0].metadata.landmarks.names == NAMES
    file.with_name("instances_train2017.json").unlink()
    assert load_records(config)[0].metadata.landmarks.names == NAMES


def test_points_in_files_of_two_formats_are_one_line(tmp_path):
    write_set(tmp_path, "labelme")
    write_tps(tmp_path, ["frame_00.png"], np.ones((1, 3, 2)))
    with pytest.raises(DataError, match=r"points are listed in .*all\.tps and in .*frame_00\.json; keep one"):
        load_records(DataConfig(str(tmp_path)))


def changed(content: dict, **changes) -> str:
    return json.dumps(content | changes)


COCO = coco_content(["a.png"], np.ones((1, 3, 2)))
(OBJECT,) = COCO["annotations"]
HALF = '{"shapes": [{"label": "a", "points": [[1'
SHAPE = {"label": "a", "shape_type": "point", "points": [[1, 2]]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", HALF, "cannot be read as JSON"),
        ("a.json", json.dumps({"shapes": [SHAPE, SHAPE]}), "two points 'a'; several animals or persons"),
        ("a.json", json.dumps({"shapes": [SHAPE | {"points": [[1, 1e300]]}]}), "coordinate 1e.300 is not within"),
        ("a.json", '{"shapes": [{"label": "a", "shape_type": "point", "points": [[1, NaN]]}]}', "nan is not within"),
        ("a.json", json.dumps({"shapes": [SHAPE | {"points": [1, 2]}]}), "a point has"),
        ("a.json", json.dumps({"shapes": [SHAPE | {"points": [["x", {}]]}]}), "'x' is no coordinate"),
        ("a.json", json.dumps(COCO)[:-200], "cannot be read as JSON"),
        ("a.json", changed(COCO, annotations=[OBJECT, OBJECT]), "keypoints of 2 objects; several animals"),
        ("a.json", changed(COCO, annotations=[OBJECT | {"keypoints": [1, 2, 2]}]), "has 3 numbers, expected x, y"),
        ("a.json", changed(COCO, annotations=[OBJECT | {"keypoints": [1, 2, 3] * 3}]), "v of 'nose' is 3, expected"),
        ("a.json", changed(COCO, annotations=[OBJECT | {"keypoints": [1, 1e300, 2] * 3}]), "is not within"),
        ("a.json", changed(COCO, annotations=[OBJECT | {"keypoints": [1, None, 2] * 3}]), "'None' is no coordinate"),
        ("a.json", changed(COCO, categories=[COCO["categories"][0] | {"keypoints": "nose"}]), "names its keypoints"),
        ("a.json", '{"case": {"one": [1, 2]}}', "one of case: has 2 coordinates, expected three"),
        ("a.json", '{"case": {"one": [1, 2, NaN]}}', "nan is not within"),
        ("a.json", '{"case": {"one": [1, 2, 1e300]}}', "is not within"),
        ("a.json", '{"case": {"one": [1, 2,', "cannot be read as JSON"),
        ("a.json", "", "cannot be read as JSON"),
        ("a.tps", "LM=2\n1 2\nIMAGE=a.png\n", "2 points are to follow, but there are 1; is the file cut off"),
        ("a.tps", "LM=3\n1 2\n", "line 1: 3 points are to follow, but there are 1; is the file cut off"),
        ("a.tps", "LM=1\n1 2\nPOINTS=3\n7 7\nID=a\n", "line 3: 3 points are to follow, but there are 1"),
        ("a.tps", "LM=2\n1 2\n3 4\n", "no IMAGE= and no ID=; is the file cut off"),
        ("a.tps", "LM=1e300\n1 2\n", "'1e300' is no number of points"),
        ("a.tps", "LM=1\n1 inf\nID=a\n", "inf is not within"),
        ("a.tps", "LM=1\n1 1e300\nID=a\n", "1e300 is not within"),
        ("a.tps", "LM=1\n1\nID=a\n", "has 1 coordinates"),
        ("a.tps", "LM=1\n1 2 3\nID=a\n", "has 3 coordinates"),
        ("a.tps", "LM3=1\n1 2 3\nID=a\n", "for images only"),
        ("a.tps", "LM=1\n1 2\nID=a\nLM=1\n1 2\nID=a\n", "two points '1'; several animals"),
        ("a.tps", "\0\1", "has no line LM="),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        files.read(tmp_path / name)
    assert "\n" not in str(error.value)
    assert name in str(error.value)


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


@pytest.mark.parametrize(
    "affine", [np.diag([1, 1, 2, 1.0]), np.array([[0, -1.0, 0, 9], [1, 0, 0, 0], [0, 0, -2, 5], [0, 0, 0, 1]])]
)
def test_nnlandmarks_voxels_are_those_of_the_file(tmp_path, affine):
    cases = write_volumes(tmp_path, affine, channels=2)
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
    table = files.read(tmp_path / "all_landmarks_voxel.json")
    assert table.states.tolist() == [[PRESENT, PRESENT]] + [[PRESENT, UNKNOWN]] * 3
    assert json.loads(files.content(table)) == cases


def test_a_case_of_nnlandmark_that_is_in_no_folder_is_named(tmp_path):
    cases = write_volumes(tmp_path, np.eye(4))
    (tmp_path / "all_landmarks_voxel.json").write_text(json.dumps(cases | {"lost": {"tip": [1, 2, 3]}}))
    with pytest.raises(DataError, match=r"1 files without partner: lost: listed in all_landmarks_voxel\.json"):
        load_records(DataConfig(str(tmp_path)))


def test_nnlandmarks_labels_ask_for_the_task(tmp_path):
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


def test_other_json_files_list_no_points(tmp_path):
    texts = ["{}", "[]", "[1]", '{"a": 1}', '{"a": {"b": 1}}', '{"a": {}}', '{"a": {"b": {"likelihood": 1}}}']
    texts += ['{"images": [], "keypoints": 3}', '{"keypoints": 3}', '{"shapes": []}']
    for text in texts:
        (tmp_path / "a.json").write_text(text)
        assert files.read(tmp_path / "a.json") is None, text
    (tmp_path / "a.tps").write_text("LM=0\nID=a\n")
    assert files.read(tmp_path / "a.tps") is None
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "png")
    (tmp_path / "b.txt").write_bytes(stream.getvalue())
    assert files.read(tmp_path / "b.txt") is None


def written(tmp_path: Path, table: PointTable) -> Path:
    file = tmp_path / f"one{files.FORMATS[table.layout].extension}"
    file.write_bytes(files.content(table))
    return file


def test_a_box_of_coco_is_about_the_points_that_are_there(tmp_path):
    positions = np.array([[[2.0, 9.0], [5.0, 4.0], [1.0, 90.0]]])
    table = PointTable("coco", ("a", "b", "c"), ("one.png",), positions, np.array([[PRESENT, PRESENT, ABSENT]]), ("",))
    content = json.loads(written(tmp_path, table).read_text())
    (entry,) = content["annotations"]
    assert (entry["bbox"], entry["area"], entry["num_keypoints"]) == ([2, 4, 3, 5], 15, 2)
    assert entry["keypoints"] == [2, 9, 2, 5, 4, 2, 0, 0, 0]
    assert entry["image_id"] == content["images"][0]["id"]
    assert entry["iscrowd"] == 0
    assert "score" not in entry
    (entry,) = json.loads(written(tmp_path, replace(table, states=table.states * 0)).read_text())["annotations"]
    assert (entry["bbox"], entry["area"], entry["num_keypoints"]) == ([0, 0, 0, 0], 0, 0)
    values = np.array([[0.25, 0.5, 0.75]])
    table = replace(table, presence=np.ones((1, 3)), confidence=values)
    (entry,) = json.loads(written(tmp_path, table).read_text())["annotations"]
    assert entry["score"] == 0.5
    assert entry["keypoint_confidence"] == values[0].tolist()


def test_parts_of_a_split_of_keypoints_are_joined_and_names_are_those_of_a_category(tmp_path):
    (tmp_path / "annotations").mkdir()
    for part in ("train_a", "train_b", "val"):
        content = coco_content([f"{part}.png"], np.ones((1, 3, 2)))
        (tmp_path / "annotations" / f"keypoints_{part}.json").write_text(json.dumps(content))
    tables = find_keypoints(tmp_path, (), explicit=False)
    assert {split: table.images for split, table in tables.items()} == {
        "train": ("train_a.png", "train_b.png"),
        "val": ("val.png",),
    }


def test_splits_of_keypoints_are_those_that_names_of_files_begin_with(tmp_path):
    for name in ("train2017", "val_2017"):
        (tmp_path / f"{name}.json").write_text(json.dumps(coco_content([f"{name}.png"], np.ones((1, 3, 2)))))
    tables = find_keypoints(tmp_path, (), explicit=False)
    assert {split: table.images for split, table in tables.items()} == {
        "train": ("train2017.png",),
        "val": ("val_2017.png",),
    }


def test_keypoints_in_a_file_of_their_own_may_have_outlines_too(tmp_path):
    content = coco_content(["a.png", "b.png"], np.ones((2, 3, 2)))
    content["annotations"][1]["segmentation"] = [[1, 1, 9, 1, 9, 9]]  # of some objects
    (tmp_path / "keypoints_train.json").write_text(json.dumps(content))
    assert find_keypoints(tmp_path, (), explicit=False)["train"].names == NAMES
    (tmp_path / "keypoints_train.json").rename(tmp_path / "annotations.json")
    assert find_keypoints(tmp_path, (), explicit=False) == {}
    assert find_keypoints(tmp_path, (), explicit=True)["train"].names == NAMES
    (tmp_path / "annotations.json").write_text(json.dumps(COCO))  # no outlines
    assert find_keypoints(tmp_path, (), explicit=False)["train"].names == NAMES


def test_a_file_without_keypoints_is_not_parsed(tmp_path):
    (tmp_path / "annotations.json").write_text(changed(COCO, categories=[{"id": 1, "name": "mouse"}], annotations=[]))
    with mock.patch.object(coco_keypoints, "read_coco") as read:
        assert find_keypoints(tmp_path, (), explicit=True) == {}
    assert not read.called


@pytest.mark.parametrize("name", ["keypoints", "instances"])
def test_keypoints_of_a_split_are_found_by_the_name_that_is_given(tmp_path, name):
    for split in ("train", "test"):
        (tmp_path / f"{name}_{split}.json").write_text(json.dumps(COCO))
    assert {*find_points(tmp_path, ("test",), explicit=True)} == {"train", "test"}
    assert {*find_points(tmp_path, (), explicit=True)} == {"train"}


def test_files_of_labelme_in_a_split_are_found_by_the_name_that_is_given(tmp_path):
    for split in ("train", "test"):
        write_set(tmp_path / split, "labelme", count=1)
    assert {*find_points(tmp_path, ("test",), explicit=False)} == {"train", "test"}
    assert {*find_points(tmp_path, (), explicit=False)} == {"train"}


def test_images_of_keypoints_lie_in_the_folder_that_is_named_as_their_file_ends(tmp_path):
    (tmp_path / "person_keypoints_train2017.json").write_text(json.dumps(COCO))
    (tmp_path / "images" / "train2017").mkdir(parents=True)
    Image.new("L", SIZE[::-1]).save(tmp_path / "images" / "train2017" / "a.png")
    splits = open_points(tmp_path, find_points(tmp_path, (), explicit=False), None, allow_unpaired=False)
    assert splits["train"]()[0]["image"] == str(tmp_path / "images" / "train2017" / "a.png")


CATEGORY = COCO["categories"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": [CATEGORY | {"keypoints": ["nose", "nose", "ear"]}]}, "'mouse' names its keypoints"),
        ({"categories": [CATEGORY | {"keypoints": [1, "1", 2]}]}, "'mouse' names its keypoints"),
        (
            {"annotations": [OBJECT | {"keypoints": [1, 2, 2] * 4}]},
            "has 12 numbers, expected x, y and v of 3 keypoints",
        ),
        ({"annotations": [OBJECT | {"keypoints": [1, 2, [2]] * 3}]}, r"v of 'nose' is \[2\], expected 0, 1 or 2"),
        (
            {
                "categories": [CATEGORY, CATEGORY | {"id": 2, "name": "cat"}],
                "annotations": [OBJECT, OBJECT | {"category_id": 2}],
            },
            "2 categories have keypoints, mouse, cat; keep one",
        ),
    ],
)
def test_keypoints_that_cannot_be_told_apart_are_one_line(tmp_path, changes, message):
    (tmp_path / "a.json").write_text(changed(COCO, **changes))
    with pytest.raises(DataError, match=message):
        files.read(tmp_path / "a.json")


def test_a_category_that_no_object_has_is_not_that_of_the_keypoints(tmp_path):
    categories = [CATEGORY | {"id": 2, "name": "cat", "keypoints": ["paw"]}, CATEGORY]
    other = OBJECT | {"category_id": 3, "keypoints": [7, 7, 2]}
    content = changed(COCO, categories=[*categories, {"id": 3, "name": "box"}], annotations=[OBJECT, other])
    (tmp_path / "a.json").write_text(content)
    table = files.read(tmp_path / "a.json")
    assert table.names == NAMES
    assert table.sizes.tolist() == [list(SIZE)]
    (tmp_path / "a.json").write_text(changed(COCO, annotations=[OBJECT | {"keypoints": [5, 5, 0] * 3}]))
    table = files.read(tmp_path / "a.json")  # nothing is labeled
    assert table.names == NAMES
    assert table.states.tolist() == [[UNKNOWN] * 3]
    for unlabeled in ([5, 5, 0] * 3, "points", None):  # of a second object
        annotations = [OBJECT, OBJECT | {"keypoints": unlabeled}]
        (tmp_path / "a.json").write_text(changed(COCO, annotations=annotations))
        assert files.read(tmp_path / "a.json").states.tolist() == [[PRESENT] * 3]
    (tmp_path / "a.json").write_text(changed(COCO, categories=[CATEGORY | {"keypoints": [1, 2, 3]}]))
    assert files.read(tmp_path / "a.json").names == ("1", "2", "3")


@pytest.mark.parametrize(
    ("confidence", "presence", "is_predicted"),
    [([0.5] * 3, [1] * 3, True), ([0.5] * 3, None, False), ([0.5] * 3, [1] * 2, False), ([0.5] * 2, [1] * 3, False)],
)
def test_keypoints_are_predicted_where_each_has_a_confidence_and_a_presence(
    tmp_path, confidence, presence, is_predicted
):
    entry = OBJECT | {"keypoint_confidence": confidence, "keypoint_presence": presence}
    (tmp_path / "a.json").write_text(changed(COCO, annotations=[entry]))
    table = files.read(tmp_path / "a.json")
    assert (table.presence is not None) == (table.confidence is not None) == is_predicted
    assert table.states.tolist() == [[PRESENT] * 3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "image,a_x,a_y\na.png,1,2\n"),
        ("a.csv", "image,landmark,x,y\na.png,a,1,2\n"),
        ("a.csv", "scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1,2\n"),
        ("a.tps", "LM=1\n1 2\nID=a.png\n"),
        ("a.json", json.dumps({"shapes": [SHAPE]})),
        ("a.json", json.dumps(COCO)),
        ("a.json", '{"a": {"tip": [1, 2, 3]}}'),
        ("a.fcsv", "1,1,2,3\n"),
        ("a.mrk.json", '{"markups": [{"controlPoints": [{"position": [1, 2, 3]}]}]}'),
    ],
    ids=["wide", "long", "deeplabcut", "tps", "labelme", "coco", "nnlandmark", "fcsv", "markups"],
)
def test_points_know_the_path_of_their_file(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    table = files.read(tmp_path / name)
    assert table.files == (str(tmp_path / name),)
    assert table.images[0].startswith("a")


def test_points_of_labelme_are_those_of_the_image_that_the_file_names(tmp_path):
    write_set(tmp_path, "labelme", count=3)
    images = tmp_path / "images"
    (images / "frame_00.json").rename(images / "other.json")
    copied = (images / "frame_02.json").read_text()  # it belongs to the image beside it all the same
    (images / "frame_02.json").write_text(copied.replace("frame_02.png", "frame_01.png"))
    content = json.loads((images / "frame_01.json").read_text())
    (images / "frame_01.json").write_text(json.dumps(content | {"imageData": "AAAA"}))
    (tmp_path / "images" / "notes.json").write_text("{}")  # it is something else
    table = find_shapes(tmp_path, (), explicit=False)["train"]
    assert sorted(table.images) == [f"images/frame_{number:02}.png" for number in range(3)]
    assert table.sizes.tolist() == [list(SIZE)] * 3


def test_points_of_labelme_in_two_folders_are_those_of_the_images_in_folders_of_the_same_name(tmp_path):
    for site, place in (("north", 1), ("south", 2)):
        for kind in ("images", "json"):
            (tmp_path / kind / site).mkdir(parents=True)
        Image.new("L", SIZE[::-1]).save(tmp_path / "images" / site / "a.png")
        text = json.dumps({"shapes": [SHAPE | {"points": [[place, 5]]}], "imagePath": "scan.png"})
        (tmp_path / "json" / site / "a.json").write_text(text)
    table = find_shapes(tmp_path, (), explicit=False)["train"]
    assert table.images == ("images/north/a.png", "images/south/a.png")
    assert table.positions.tolist() == [[[1, 5]], [[2, 5]]]


def test_a_point_of_labelme_has_one_place_of_two_numbers_and_absent_ones_have_a_list_of_their_own(tmp_path):
    for points in ([[1, 2], [3, 4]], [[1, 2, 3]], [], [5]):
        (tmp_path / "a.json").write_text(json.dumps({"shapes": [SHAPE, SHAPE | {"label": "b", "points": points}]}))
        with pytest.raises(DataError, match=r"shape 2: a point has .*, expected"):
            files.read(tmp_path / "a.json")
    states = np.array([[PRESENT, ABSENT]])
    table = PointTable("labelme", ("a", "b"), ("x.png",), np.ones((1, 2, 2)), states, ("",), sizes=np.array([[30, 40]]))
    content = json.loads(written(tmp_path, table).read_text())
    assert [shape["label"] for shape in content["shapes"]] == ["a"]
    assert "absent_shapes" not in content
    assert (content["imageHeight"], content["imageWidth"]) == (30, 40)
    (shape,) = content["shapes"]
    assert (shape["shape_type"], shape["points"], shape["description"]) == ("point", [[1, 1]], "")
    assert (shape["group_id"], shape["flags"], shape["mask"]) == (None, {}, None)
    assert (content["version"], content["imageData"]) == ("5.5.0", None)
    for absent_shapes in (3, [3]):  # of another program
        (tmp_path / "a.json").write_text(json.dumps({"shapes": [SHAPE], "absent_shapes": absent_shapes}))
        table = files.read(tmp_path / "a.json")
        assert (table.names, table.images) == (("a",), ("a",))
    (tmp_path / "a.json").write_text(json.dumps({"shapes": [SHAPE | {"label": 7}]}))
    assert files.read(tmp_path / "a.json").names == ("7",)


def test_a_file_of_labelme_may_hold_no_points_and_lack_its_image_or_be_damaged(tmp_path):
    write_set(tmp_path, "labelme", count=3)
    images = tmp_path / "images"
    (images / "frame_00.json").write_text(json.dumps({"shapes": [], "imagePath": "frame_00.png"}))
    (images / "frame_01.png").unlink()
    table = find_shapes(tmp_path, (), explicit=False)["train"]
    assert table.images == ("images/frame_00.png", "images/frame_01", "images/frame_02.png")
    assert table.states.tolist() == [[UNKNOWN] * 3, [PRESENT] * 3, [PRESENT] * 3]
    (images / "frame_02.json").write_text(HALF)
    with pytest.raises(DataError, match=r"frame_02\.json cannot be read as JSON"):
        find_shapes(tmp_path, (), explicit=False)


def test_tps_is_read_with_names_of_old_programs_curves_and_many_points(tmp_path):
    text = "LM=2\n0 0\n\n3 NA\nCURVES=1\nPOINTS=2\n7 7\n8 8\nIMAGE=\nIMAGE=b\xe4r.png\nIMAGE=x.png\nID=3\n"
    (tmp_path / "a.tps").write_bytes(text.encode("latin-1"))
    table = files.read(tmp_path / "a.tps")
    assert table.images == ("b\xe4r.png",)
    assert table.names == ("1", "2")
    assert table.states.tolist() == [[PRESENT, UNKNOWN]]
    assert table.space == "pixels from the bottom"
    (tmp_path / "a.tps").write_text("\ufeffLM=1\n1 2\nID=a\nLM=0\nID=b\n", encoding="utf-8")
    table = files.read(tmp_path / "a.tps")
    assert table.images == ("a", "b")
    assert table.states.tolist() == [[PRESENT], [UNKNOWN]]
    many = "\n".join(["LM=10000", *["1 2"] * 10_000, "ID=a"])
    (tmp_path / "a.tps").write_text(many)
    assert len(files.read(tmp_path / "a.tps").names) == 10_000
    (tmp_path / "a.tps").write_text("LM=10001\n1 2\n")
    with pytest.raises(DataError, match="'10001' is no number of points, 0 to 10,000"):
        files.read(tmp_path / "a.tps")
    (tmp_path / "a.tps").write_text("LM=2\n1 2\n1 x\nID=a\n")
    with pytest.raises(DataError, match="line 1: point 2: 'x' is no coordinate"):
        files.read(tmp_path / "a.tps")


def test_a_comment_of_tps_that_speaks_of_fewer_points_is_no_prediction(tmp_path):
    note = "5 6 presence 0.9 confidence 0.8"
    for comment in (note, f"{note}; by hand; {note}"):
        (tmp_path / "a.tps").write_text(f"LM=2\n1 2\n3 4\nID=a\nCOMMENT={comment}\n")
        table = files.read(tmp_path / "a.tps")
        assert table.presence is None
        assert table.positions.tolist() == [[[1, 2], [3, 4]]]


def test_tps_counts_its_images_from_0_and_leaves_no_number_out(tmp_path):
    positions = np.array([[[5.0, 6.0]], [[7.0, 8.0]]])
    table = PointTable("tps", ("3",), ("a.png", "b.png"), positions, np.full((2, 1), PRESENT), ("", ""))
    lines = written(tmp_path, table).read_text().splitlines()
    assert lines[:6] == ["LM=3", "-1 -1", "-1 -1", "5.0 6.0", "IMAGE=a.png", "ID=0"]
    assert lines[-1] == "ID=1"
    table = replace(table, presence=np.ones((2, 1)), confidence=np.ones((2, 1)))
    again = files.read(written(tmp_path, table))
    assert again.states.tolist() == [[ABSENT, ABSENT, PRESENT]] * 2
    assert again.with_names(("3",)).axes == 2


def test_nnlandmark_lists_cases_without_points_and_places_that_are_not_known(tmp_path):
    cases = {"a": {"tip": [1, 2, 3], "rim": None}, "b": {}}
    (tmp_path / "a.json").write_text(json.dumps(cases))
    table = files.read(tmp_path / "a.json")
    assert table.images == ("a", "b")
    assert table.states.tolist() == [[PRESENT, UNKNOWN], [UNKNOWN, UNKNOWN]]
    images = replace(table, images=("A_0000.NII.GZ", "b"))
    assert json.loads(files.content(images)) == {"A": {"tip": [1, 2, 3]}, "b": {}}
    absent = replace(table, states=np.array([[PRESENT, ABSENT], [UNKNOWN, ABSENT]]))
    assert json.loads(files.content(absent)) == {"a": {"tip": [1, 2, 3]}, "b": {}}
    (tmp_path / "a.json").write_text(json.dumps(cases | {"version": 3}))
    assert files.read(tmp_path / "a.json") is None  # it is something else
    for position in ([], [1, 2, 3, 4]):
        (tmp_path / "a.json").write_text(json.dumps({"a": {"tip": position}}))
        with pytest.raises(DataError, match=f"tip of a: has {len(position)} coordinates, expected three"):
            files.read(tmp_path / "a.json")


def test_places_in_pixels_stay_as_they_are_in_their_table(tmp_path):
    positions = np.array([[[5.0, 6.0]]])
    table = PointTable("tps", ("1",), ("a",), positions, np.full((1, 1), PRESENT), ("",), "pixels from the bottom")
    for _ in range(2):
        assert to_pixels(table.source(0), (10, 20), "a").tolist() == [[3, 5]]
    pixels = np.array([[3.0, 5.0]])
    assert from_pixels(pixels, table.space, (10, 20)).tolist() == [[5, 6]]
    assert pixels.tolist() == [[3, 5]]
    same = PointSource("a.json", "pixels", np.array([[0.1, 0.7]]), table.states[0], (10, 20))
    assert to_pixels(same, (10, 20), "a").tolist() == [[0.7, 0.1]]
    resized = table.source(0)._replace(space="pixels", size=(10, 20))
    assert to_pixels(resized, (5, 10), "a").tolist() == [[2.75, 2.25]]
    upward = resized._replace(space="pixels from the bottom")
    assert to_pixels(upward, (5, 10), "a").tolist() == [[1.25, 2.25]]
    rounded = table.source(0)._replace(space="pixels", size=(10, 21))
    assert to_pixels(rounded, (5, 10), "a").tolist() == [[2.75, 5.5 * 10 / 21 - 0.5]]
    with pytest.raises(DataError, match=r"a: is 20 x 10 \(height x width\), but .* gives points of .* of 10 x 20"):
        to_pixels(resized, (20, 10), "a")


@pytest.mark.parametrize(
    "name",
    ["all_landmarks_voxel.json", "prediction_all_landmark_voxel.json", "landmarks.json", "points.json", "more.json"],
)
def test_nnlandmarks_file_has_one_of_four_names(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"a": {"tip": [1, 2, 3]}}))
    tables = find_points(tmp_path, (), explicit=True)
    assert [table.images for table in tables.values()] == ([] if name == "more.json" else [("a",)])


def test_a_prediction_of_nnlandmark_says_likelihood_and_presence(tmp_path):
    cases = {"a": {"tip": {"coordinates": [1, 2, 3], "likelihood": 0.25}, "rim": {"coordinates": None}}}
    (tmp_path / "a.json").write_text(json.dumps(cases))
    table = files.read(tmp_path / "a.json")  # as nnLandmark writes it, without presence
    assert table.states.tolist() == [[PRESENT, UNKNOWN]]
    assert table.presence is None
    (tmp_path / "a.json").write_text(json.dumps({"a": {"tip": {"coordinates": [1, 2, 3], "presence": 0.25}}}))
    assert files.read(tmp_path / "a.json").states.tolist() == [[PRESENT]]
    values = {"presence": np.array([[0.75, 0.5]]), "confidence": np.array([[0.25, 1.0]])}
    written = json.loads(files.content(replace(table, **values)))
    assert written["a"]["tip"] == {"coordinates": [1, 2, 3], "likelihood": 0.25, "presence": 0.75}


@pytest.mark.parametrize("layout", ["coco", "nnlandmark"])
def test_points_of_several_images_in_one_file_stay_with_their_images(tmp_path, layout):
    axes = 2 if layout == "coco" else 3
    positions = np.arange(4.0 * axes).reshape(2, 2, axes)
    states = np.array([[PRESENT, PRESENT], [UNKNOWN, PRESENT]])
    table = PointTable(
        layout, ("a", "b"), ("one", "two"), positions, states, ("", ""), sizes=np.array([[9, 8], [0, 0]])
    )
    again = files.read(written(tmp_path, table))
    assert again.images == ("one", "two")
    assert again.states.tolist() == states.tolist()
    assert np.array_equal(again.positions, positions * (states == PRESENT)[:, :, None])
    if layout == "coco":
        content = json.loads(written(tmp_path, table).read_text())
        assert content["images"] == [
            {"id": 1, "file_name": "one", "height": 9, "width": 8},
            {"id": 2, "file_name": "two"},
        ]
        assert content["categories"][0]["keypoints"] == ["a", "b"]
        assert content["categories"][0]["skeleton"] == []
        table = replace(table, presence=np.ones((2, 2)), confidence=np.array([[0.25, 0.75], [1, 1]]))
        annotations = json.loads(written(tmp_path, table).read_text())["annotations"]
        assert [entry["score"] for entry in annotations] == [0.5, 1]


def test_a_note_of_a_prediction_has_six_digits():
    table = PointTable("labelme", ("a",), ("x",), np.ones((1, 1, 2)), np.full((1, 1), PRESENT), ("",))
    table = replace(table, presence=np.full((1, 1), 2 / 3), confidence=np.full((1, 1), 1 / 3))
    content = json.loads(files.content(table))
    assert content["shapes"][0]["description"] == "presence 0.666667 confidence 0.333333"
    assert content["imagePath"] == "x"
    assert content["shapes"][0]["points"] == [[1, 1]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "image,a_x,a_y\na.png,1,2\n"),
        ("a.tps", "LM=1\n1 2\nID=a.png\n"),
        ("a.json", '{"a.png": {"1": [1, 2, 3]}}'),
    ],
)
def test_a_file_of_the_points_of_all_images_has_up_to_four_gigabytes(tmp_path, monkeypatch, name, text):
    (tmp_path / name).write_text(text)
    mode = os.stat(tmp_path / name).st_mode
    monkeypatch.setattr("os.fstat", lambda stream: SimpleNamespace(st_mode=mode, st_size=2**32))
    assert files.read(tmp_path / name).images == ("a.png",)
