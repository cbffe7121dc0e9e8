"""Points in files of labelme: which image they belong to, what else the files hold, and how they are written."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.points import (
    NAMES,
    POINT_SHAPE,
    SIZE,
    point_table,
    reading_error,
    write_annotated_dots,
    write_points,
)

from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.point_states import ABSENT, PRESENT
from data_utils.sources.load import load_records
from data_utils.sources.points.labelme_points import find_shapes
from runtime.errors import DataError
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info

HEIGHT, WIDTH = SIZE
CUT_OFF = '{"shapes": [{"label": "a", "points": [[1'


def test_points_of_an_image_that_was_made_smaller_follow_it(tmp_path):
    positions = write_annotated_dots(tmp_path, "labelme")
    for file in sorted((tmp_path / "images").glob("*.png")):
        Image.open(file).resize((WIDTH // 2, HEIGHT // 2)).save(file)
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.5))
    record = info.train.records[0]
    number = int(record["name"][-6:-4])
    target = info.reader.read(record, (HEIGHT // 2, WIDTH // 2))
    assert np.allclose(target.points[:, ::-1], (positions[number] + 0.5) / 2 - 0.5)


def test_points_of_an_image_of_other_proportions_are_a_problem(tmp_path):
    write_annotated_dots(tmp_path, "labelme")
    Image.new("RGB", (30, 30)).save(tmp_path / "images" / "frame_01.png")
    report, problems = check_data(DataConfig(str(tmp_path)))
    assert problems == 1
    assert "frame_01.png: is 30 x 30 (height x width), but " in report
    assert f"gives points of an image of {HEIGHT} x {WIDTH}" in report


def test_files_of_labelme_may_hold_their_image(tmp_path):
    positions = write_annotated_dots(tmp_path, "labelme")
    for file in sorted((tmp_path / "images").glob("*.png")):
        data = base64.b64encode(file.read_bytes()).decode()
        content = json.loads(file.with_suffix(".json").read_text())
        file.with_suffix(".json").write_text(json.dumps(content | {"imageData": data}))
        file.unlink()
    info = load_dataset_info(DataConfig(str(tmp_path), val_fraction=0.5))
    record = info.train.records[0]
    assert read_image(record["image"], "image").shape == (*SIZE, 3)
    assert np.allclose(info.reader.read(record, SIZE).points[:, ::-1], positions[int(record["name"][-7:-5])])


def test_shapes_of_both_kinds_need_a_task(tmp_path):
    write_annotated_dots(tmp_path, "labelme")
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


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([POINT_SHAPE, POINT_SHAPE], "two points 'a'; several animals or persons"),
        ([POINT_SHAPE | {"points": [[1, 1e300]]}], "coordinate 1e+300 is not within"),
        ([POINT_SHAPE, POINT_SHAPE | {"label": "b", "points": [[1, 2], [3, 4]]}], "shape 2: its position is "),
    ],
    ids=["same name", "far", "two places"],
)
def test_a_shape_that_is_no_point_is_refused(tmp_path, shapes, message):
    assert message in reading_error(tmp_path / "a.json", json.dumps({"shapes": shapes}))


def test_points_of_labelme_are_those_of_the_image_that_the_file_names(tmp_path):
    write_annotated_dots(tmp_path, "labelme", count=3)
    images = tmp_path / "images"
    (images / "frame_00.json").rename(images / "other.json")
    copied = (images / "frame_02.json").read_text()  # it belongs to the image beside it all the same
    (images / "frame_02.json").write_text(copied.replace("frame_02.png", "frame_01.png"))
    content = json.loads((images / "frame_01.json").read_text())
    (images / "frame_01.json").write_text(json.dumps(content | {"imageData": "AAAA"}))
    (tmp_path / "images" / "notes.json").write_text("{}")  # it is something else
    table = find_shapes(tmp_path, (), explicit=False)["train"]
    assert sorted(table.images) == [f"images/frame_{number:02}.png" for number in range(3)]
    assert [entry.size for entry in table.entries] == [SIZE] * 3


def test_points_of_labelme_are_those_of_the_image_in_the_folder_of_the_same_name(tmp_path):
    for site, x in (("north", 1), ("south", 2)):
        for kind in ("images", "json"):
            (tmp_path / kind / site).mkdir(parents=True)
        Image.new("L", SIZE[::-1]).save(tmp_path / "images" / site / "a.png")
        text = json.dumps({"shapes": [POINT_SHAPE | {"points": [[x, 5]]}], "imagePath": "scan.png"})
        (tmp_path / "json" / site / "a.json").write_text(text)
    table = find_shapes(tmp_path, (), explicit=False)["train"]
    assert table.images == ("images/north/a.png", "images/south/a.png")
    assert table.positions.tolist() == [[[1, 5]], [[2, 5]]]


def test_a_damaged_file_in_a_folder_of_labelme_is_named(tmp_path):
    write_annotated_dots(tmp_path, "labelme", count=3)
    (tmp_path / "images" / "frame_02.json").write_text(CUT_OFF)
    with pytest.raises(DataError, match=r"frame_02\.json cannot be read as JSON"):
        find_shapes(tmp_path, (), explicit=False)


def test_a_written_point_is_a_shape_of_labelme(tmp_path):
    states = np.array([[PRESENT, ABSENT]])
    table = point_table("labelme", ("a", "b"), ("x.png",), np.ones((1, 2, 2)), states, ("",), size=(30, 40))
    content = json.loads(write_points(tmp_path, table).read_text())
    shape = {"label": "a", "shape_type": "point", "points": [[1, 1]], "description": ""}
    assert content["shapes"] == [shape | {"group_id": None, "flags": {}, "mask": None}]
    assert "absent_shapes" not in content
