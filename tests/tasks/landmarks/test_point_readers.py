"""Points of a data set: which files of a folder hold them, and which images and splits are theirs."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from support.points import NAMES, coco_content, points_of_folder, write_dots, write_table
from support.rasters import feature, square, write_geojson

from data_utils.config import DataConfig
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.load import find_in_folder, load_records
from data_utils.sources.points.find import find_points, read_truth
from runtime.errors import DataError


@pytest.mark.parametrize(("task", "has_points"), [(None, False), ("landmarks", True)])
def test_masks_come_before_points_unless_a_flag_asks_for_these(tmp_path, task, has_points):
    write_dots(tmp_path, 4, seed=0)
    shutil.copytree(tmp_path / "images", tmp_path / "masks")
    train, _ = load_records(DataConfig(dataset=str(tmp_path), task=task))
    assert (train.metadata.landmarks is not None) is has_points


def test_splits_are_folders_of_their_name(tmp_path):
    write_dots(tmp_path / "train", 3, seed=0)
    write_dots(tmp_path / "val", 2, seed=1)
    train, val = load_records(DataConfig(dataset=str(tmp_path)))
    assert len(train) == 3
    assert len(val) == 2
    assert train.metadata.landmarks == val.metadata.landmarks


def test_splits_are_tables_of_their_name(tmp_path):
    write_dots(tmp_path, 3, seed=0, name="train.csv")
    lines = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "val.csv").write_text("\n".join([lines[0], *lines[-3:]]))
    (tmp_path / "train.csv").write_text("\n".join(lines[:-3]))
    train, val = load_records(DataConfig(dataset=str(tmp_path)))
    assert len(train) == 2
    assert len(val) == 1
    assert train.metadata.landmarks == val.metadata.landmarks


def test_points_have_the_same_names_in_all_splits(tmp_path):
    # tables of three splits, whose names are in any case, with different points each
    write_table(tmp_path, "image,a_x,a_y,b_x,b_y\na,1,2,3,4\n", images=3, name="Train.csv")
    (tmp_path / "VAL.CSV").write_text("image,b_x,b_y,c_x,c_y\nb,1,2,3,4\n")
    (tmp_path / "TEST.csv").write_text("image,c_x,c_y\nc,1,2\n")
    train, val = load_records(DataConfig(dataset=str(tmp_path), val_split="test"))
    assert train.metadata.landmarks.names == ("c", "a", "b")  # in the order of the files
    assert val.metadata.landmarks.names == ("c", "a", "b")
    assert [record["target"].states.tolist() for record in val] == [[PRESENT, UNKNOWN, UNKNOWN]]


def test_a_table_among_the_images_is_told_where_tables_are_read(tmp_path):
    folder = write_table(tmp_path, "image,a_x,a_y\na,1,2\nb,1,2\n", images=2)
    (table,) = folder.glob("*.csv")
    table.rename(folder / "images" / "points.csv")
    with pytest.raises(DataError, match=rf"images/points\.csv lists points; move it to {folder}"):
        load_records(DataConfig(dataset=str(folder)))


def test_two_tables_in_a_folder_are_refused(tmp_path):
    folder = write_table(tmp_path, "image,a_x,a_y\na,1,2\nb,1,2\n", images=2)
    (folder / "more.csv").write_text("image,a_x,a_y\na,1,2\n")
    with pytest.raises(DataError, match=r"2 files list points: .*more\.csv; .*points\.csv; keep one of them"):
        points_of_folder(folder)


def test_tables_in_folders_below_are_read_where_they_are_deeplabcuts(tmp_path):
    tables = {
        "notes/a.csv": "image,landmark,x,y\na.png,one,1,2\n",
        "video/a.csv": "scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1,2\n",
        "labeled-data/video/b.csv": "scorer,m,m\nbodyparts,b,b\ncoords,x,y\na.png,1,2\n",  # it comes first
    }
    found = []
    for name, text in tables.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        splits = find_points(tmp_path, (), explicit=True)
        found.append({split: table.names for split, table in splits.items()})
    assert found == [{}, {"train": ("a",)}, {"train": ("b",)}]


MISSING_IMAGES = "image,p_x,p_y\nx,9,9\na,1,2\ny,9,9\nb,3,4\n"


def test_points_stay_with_their_images_where_others_are_left_out(tmp_path):
    folder = write_table(tmp_path, MISSING_IMAGES, images=2)
    train, val = load_records(DataConfig(dataset=str(folder), allow_unpaired=True))
    places = {record["name"]: record["target"].positions.tolist() for split in (train, val) for record in split}
    assert places == {"a.png": [[1, 2]], "b.png": [[3, 4]]}
    assert train.metadata.unpaired[0] == "x: listed in points.csv, but the file is missing"
    assert len(val.metadata.unpaired) == 2


def test_points_whose_images_are_missing_are_named(tmp_path):
    folder = write_table(tmp_path, MISSING_IMAGES, images=2)
    with pytest.raises(DataError, match="2 files without partner: x: listed in"):
        load_records(DataConfig(dataset=str(folder)))


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.nii"])
def test_a_name_with_the_ending_of_an_image_may_not_lack_one(tmp_path, name):
    folder = write_table(tmp_path / "data", f"image,p_x,p_y\n{name},1,2\nb,3,4\n", images=2)
    (folder / "images" / "a.png").rename(folder / "images" / f"{name}.png")
    with pytest.raises(DataError, match=rf"1 file without partner: {name}: listed in points\.csv"):
        load_records(DataConfig(dataset=str(folder)))


def test_the_points_of_a_folder_of_masks_are_the_truth_where_they_are_asked_for(tmp_path):
    write_dots(tmp_path, 2, seed=0)
    shutil.copytree(tmp_path / "images", tmp_path / "masks")
    text = (tmp_path / "points.csv").read_text().splitlines()
    image, name, *_ = text[1].split(",")
    (tmp_path / "points.csv").write_text("\n".join([text[0], f"{image},{name},,,", *text[2:]]))
    truth = read_truth(tmp_path, "unknown")
    assert truth.names == NAMES
    assert truth.states[0].tolist() == [UNKNOWN, PRESENT, PRESENT]
    assert read_truth(tmp_path, "not-there").states[0].tolist() == [ABSENT, PRESENT, PRESENT]


def test_the_points_of_files_that_outline_areas_too_are_the_truth(tmp_path):
    content = coco_content(["a.png"], np.ones((1, 3, 2)))
    content["annotations"][0]["segmentation"] = [[1, 1, 9, 1, 9, 9]]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    assert read_truth(tmp_path, "unknown").names == NAMES


def test_points_beside_outlines_of_objects_ask_for_the_task(tmp_path):
    write_dots(tmp_path, 4, seed=0)
    content = coco_content(["frame_00.png"], np.ones((1, 3, 2)))
    content["annotations"][0] |= {"segmentation": [[1, 1, 9, 1, 9, 9]], "keypoints": []}
    content["categories"] = [{"id": 1, "name": "mouse"}]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    line = r"holds annotations, and points in .*points\.csv; give --task classes or --task landmarks"
    with pytest.raises(DataError, match=line):
        load_records(DataConfig(str(tmp_path)))
    train, _ = load_records(DataConfig(str(tmp_path), task="landmarks"))
    assert train.metadata.landmarks.names == NAMES


@pytest.mark.parametrize("words", [["mask"], ["mask", "seg"]])
def test_points_beside_masks_beside_their_images_ask_for_the_task(tmp_path, words):
    write_dots(tmp_path, 2, seed=0)
    for file in list((tmp_path / "images").iterdir()):
        for word in words:
            shutil.copy(file, tmp_path / f"{file.stem}_{word}.png")
        file.rename(tmp_path / file.name)
    with pytest.raises(DataError, match=r"holds masks, and points in .*points\.csv; give --task classes or --task"):
        load_records(DataConfig(str(tmp_path)))
    task = "classes" if len(words) == 1 else "landmarks"
    assert (load_records(DataConfig(str(tmp_path), task=task))[0].metadata.landmarks is None) == (task == "classes")


def test_points_beside_polygons_are_points(tmp_path):
    write_dots(tmp_path, 4, seed=0)
    write_geojson(tmp_path / "areas.geojson", [feature(square(20, 30, 90))])
    train, _ = load_records(DataConfig(str(tmp_path)))
    assert train.metadata.landmarks is not None
    assert train.metadata.landmarks.names == NAMES


@pytest.mark.parametrize("name", ["a.csv", "."])
def test_a_truth_without_points_is_a_one_line_error(tmp_path, name):
    (tmp_path / "a.csv").write_text("name,r,g,b\ncar,1,2,3\n")
    path = tmp_path / name
    with pytest.raises(DataError, match=rf"{path}: no file there lists points \(docs/landmarks.md\)"):
        read_truth(path, "unknown")


@pytest.mark.parametrize("folder", ["imgs", "image", "imagesTr", "data", "JPEGImages", "images/train", "train", "."])
def test_images_of_a_table_lie_in_folders_of_these_names(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    Image.new("L", (20, 16)).save(tmp_path / folder / "a.png")
    (tmp_path / "Train.csv").write_text("image,p_x,p_y\na.png,1,2\n")
    splits = find_in_folder(tmp_path, (), DataConfig(str(tmp_path), task="landmarks"))
    assert splits["train"]()[0]["image"] == str(tmp_path / folder / "a.png")
