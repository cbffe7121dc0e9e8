"""Points: their files, which of them are found in a folder, what is unknown or absent, and how they are moved.

Modules: data_utils/sources/points/table.py, csv_tables.py, files.py, data_utils/sources/points/find.py, spaces.py,
data_utils/targets/points.py, sides.py, data_utils/targets/find.py, data_utils/analysis/inspect_points.py,
data_utils/analysis/point_checks.py.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import unnoticed_changes
from PIL import Image
from points import NAMES, SIZE, coco_content, dot_center, dots, write_dots
from rasters import feature, square, write_geojson
from volumes import write_volume

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.inspect import Inspection, SplitInspection
from data_utils.analysis.inspect_points import inspect_points, inspect_volume_points, point_locations
from data_utils.analysis.inspectors import PointInspector, choose_inspector
from data_utils.analysis.point_checks import describe_points, point_warnings
from data_utils.analysis.validate import check_data
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.loading.augment import augment
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.draws import Draw, draw, pack_draws
from data_utils.sources.annotations.labelme import LabelmeImage
from data_utils.sources.load import load_records
from data_utils.sources.points import files
from data_utils.sources.points.find import find_points, lacks_masks, open_points, read_truth
from data_utils.sources.points.spaces import PIXELS, PIXELS_UPWARD
from data_utils.sources.points.table import (
    EMPTY_CELL,
    PointRecords,
    PointTable,
    TableBuilder,
    channel_files,
    joined_tables,
    said_size,
)
from data_utils.sources.points.table import (
    number as coordinate,
)
from data_utils.sources.records import LandmarkNames, ListRecords
from data_utils.targets.points import PointReader, point_records
from data_utils.targets.sides import point_sides
from runtime.errors import DataError
from tasks.landmarks import Landmarks
from tasks.points import ABSENT, OUTSIDE, PRESENT, UNKNOWN, PointTarget
from unet import Preprocess

LAYOUTS = ("long", "wide", "deeplabcut")


def info_of(folder: Path, **settings):
    return load_dataset_info(DataConfig(dataset=str(folder), val_fraction=0.3, **settings))


def write(folder: Path, text: str, *, images: int = 1, name: str = "points.csv") -> Path:
    """A folder of black images a.png, b.png, ... and a table of points."""
    (folder / "images").mkdir(parents=True)
    for letter in "abcdefgh"[:images]:
        Image.new("L", (20, 16)).save(folder / "images" / f"{letter}.png")
    (folder / name).write_text(text)
    return folder


def read(folder: Path, **settings) -> PointTable:
    """The points of all records of a folder, as training sees them."""
    train, _ = load_records(DataConfig(dataset=str(folder), **settings))
    (records,) = point_records([train])
    return records.table


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_drawn_dot_is_where_the_file_says_and_is_written_back(tmp_path, layout):
    write_dots(tmp_path, 4, seed=0, layout=layout)
    info = info_of(tmp_path)
    assert info.config.task == "landmarks"
    assert info.reader.names == NAMES
    seen = 0
    for split in (info.train, info.val):
        for record in split.records:
            image = np.asarray(Image.open(record["image"])).astype(float)
            target = info.reader.read(record, SIZE)
            for channel, (y, x) in enumerate(target.points):
                assert np.hypot(*(dot_center(image[:, :, channel], y, x) - (y, x))) < 0.6
                seen += 1
    assert seen == 12
    table = files.FORMATS[layout].read(tmp_path / "points.csv")
    (tmp_path / "again.csv").write_bytes(files.content(table))
    again = files.FORMATS[layout].read(tmp_path / "again.csv")
    assert again.names == table.names
    assert again.images == table.images
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_are_written_with_presence_and_confidence_and_read_again(tmp_path, layout):
    presence = np.array([[0.25, 0.75]])
    table = PointTable(
        layout=layout,
        names=("a", "b"),
        images=("one.png",),
        positions=np.array([[[1.5, 2.25], [3.0, 4.0]]]),
        states=np.array([[ABSENT, PRESENT]]),
        files=("",),
        presence=presence,
        confidence=np.array([[0.5, 1.0]]),
    )
    file = tmp_path / "points.csv"
    file.write_bytes(files.content(table))
    again = files.read_written(file, layout)
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)
    assert np.array_equal(again.presence, presence)
    assert again.confidence.tolist() == [[0.5, 1.0]]


def test_empty_cells_are_unknown_unless_a_flag_says_that_they_are_not_there(tmp_path):
    folder = write(tmp_path, "image,a_x,a_y,b_x,b_y\na.png,1,2,,\nb.png,nan,NaN,3,4\n", images=2)
    info = info_of(folder)
    assert "2 empty cells are points of which nothing is known" in "\n".join(info.warnings)
    assert "--absent not-there" in "\n".join(info.warnings)
    assert read(folder).states.tolist() == [[PRESENT, UNKNOWN], [UNKNOWN, PRESENT]]
    assert read(folder, absent="not-there").states.tolist() == [[PRESENT, ABSENT], [ABSENT, PRESENT]]
    assert not info_of(folder, absent="not-there").warnings
    assert info_of(folder, place=False).warnings == info.warnings


def test_a_long_table_says_the_state_and_has_no_rows_for_what_is_unknown(tmp_path):
    rows = ["image,landmark,x,y,state", "a.png,one,1,2,present", "a.png,two,,,absent", "b.png,one,3,4,unknown"]
    rows.append("b.png,two,5,6,")
    table = read(write(tmp_path, "\n".join(rows), images=2))
    assert table.states.tolist() == [[PRESENT, ABSENT], [UNKNOWN, PRESENT]]
    assert table.positions[1, 1].tolist() == [5, 6]


def test_numbered_columns_and_visibilities_are_understood(tmp_path):
    table = read(write(tmp_path / "numbered", "filename;X1;Y1;X2;Y2\na;1.5;2;3;4\nb;1;2;3;4\n", images=2))
    assert table.names == ("1", "2")
    assert table.positions[0].tolist() == [[1.5, 2], [3, 4]]
    table = read(write(tmp_path / "visible", "image,nose_x,nose_y,nose_v\na.png,1,2,0\nb.png,1,2,1\n", images=2))
    assert table.names == ("nose",)
    assert table.states.tolist() == [[UNKNOWN], [PRESENT]]


def test_tables_of_deeplabcut_lie_beside_the_frames_of_each_video(tmp_path):
    for video in ("first", "second"):
        folder = tmp_path / "labeled-data" / video
        write_dots(folder, 2, seed=0, layout="deeplabcut", name="CollectedData_Me.csv")
        for image in (folder / "images").iterdir():
            image.rename(folder / image.name)
        (folder / "images").rmdir()
        text = (folder / "CollectedData_Me.csv").read_text()
        (folder / "CollectedData_Me.csv").write_text(text.replace("frame_", f"labeled-data/{video}/frame_"))
    table = read(tmp_path)
    assert [image.split("/")[1] for image in table.images] == ["first", "first", "second", "second"]
    # newer versions have a column for each part of the path
    file = tmp_path / "labeled-data" / "first" / "CollectedData_Me.csv"
    lines = file.read_text().splitlines()
    heads = [line.replace(",", ",,,", 1) for line in lines[:3]]
    split_paths = [line.replace("/", ",", 2) for line in lines[3:]]
    file.write_text("\n".join(heads + split_paths))
    assert read(tmp_path).images == table.images


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,landmark,x,y\na.png,one,1e300,2\n", "row 2: coordinate 1e300 is not within"),
        ("image,landmark,x,y\na.png,one,inf,2\n", "coordinate inf is not within"),
        ("image,landmark,x,y\na.png,one,left,2\n", "'left' is no coordinate"),
        ("image,landmark,x,y\na.png,one,1,\n", "has only some of the coordinates"),
        ("image,landmark,x,y\na.png,one,1,2\na.png,one,3,4\n", "several animals or persons in an image"),
        ("image,landmark,x,y,state\na.png,one,1,2,maybe\n", "state 'maybe' is none of present, absent, unknown"),
        ("image,landmark,x,y,state\na.png,one,,,present\n", "row 2: a point that is present has no coordinates"),
        ("image,landmark,x,y\n,one,1,2\n", "row 2: has no image or no landmark"),
        ("image,landmark,x,y\na.png,,1,2\n", "row 2: has no image or no landmark"),
        ("image,a_x,a_y,a_z,b_x,b_y\na.png,1,2,3,4,5\n", "some points have a z and others have none"),
        ("image,a_x,b_y\na.png,1,2\n", "points.csv: no point has a column x and a column y"),
        ("image,landmark,x,y\na.png,one,1\n", "row 2: has 3 cells, the heading 4; is the file cut off?"),
        ("image,a_x,a_y\na.png,1\n", "row 2: has 2 cells, the heading 3; is the file cut off?"),
        ("scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1\n", "row 4: has 2 cells, the heading 3; is the file"),
        ("image,a_x,a_y\na.png,1,2\na.png,3,4\n", "several animals or persons in an image"),
        ("image,landmark,x,y\nb.png,one,1,2\n", "b.png: listed in points.csv, but the file is missing"),
        ("image,landmark,x,y\na,one,1,2\na.png,one,3,4\n", "points.csv: lists 1 images more than once: .*a.png"),
        ("image,landmark,x,y\n", "lists no points"),
        ("scorer,me,me\nindividuals,one,one\nbodyparts,a,a\ncoords,x,y\n", "several individuals in an image"),
        ("scorer,me,me\nbodyparts,a,a\na.png,1,2\n", "no rows bodyparts and coords"),
        ("scorer,me,me\ncoords,x,y\na.png,1,2\n", "no rows bodyparts and coords"),
        ("scorer,me,me\nbodyparts,a\ncoords,x,y\na.png,1,2\n", "rows bodyparts and coords have different lengths"),
        ("scorer,me,me\nbodyparts,a,a\ncoords,x,x\na.png,1,2\n", "'a' has no columns x and y"),
        (f"image,landmark,x,y\n{200_000 * 'a'},one,1,2\n", "points.csv cannot be read as CSV"),
        ("image,landmark,x,y,z\na.png,one,1,2,3\n", "its points have 3 coordinates, but it lists images"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message.replace("?", r"\?")):
        read(write(tmp_path, text))


def test_masks_come_before_points_unless_a_flag_asks_for_these(tmp_path):
    write_dots(tmp_path, 4, seed=0)
    shutil.copytree(tmp_path / "images", tmp_path / "masks")
    config = DataConfig(dataset=str(tmp_path))
    assert load_records(config)[0].landmarks is None
    assert load_records(replace(config, task="landmarks"))[0].landmarks is not None
    shutil.rmtree(tmp_path / "masks")
    with pytest.raises(DataError, match=r"no folder of masks"):
        load_records(replace(config, task="classes"))


def test_a_task_that_the_data_are_not_for_is_one_line(tiny_folder):
    with pytest.raises(DataError, match=r"--task landmarks: .* holds masks, and no points"):
        load_dataset_info(DataConfig(dataset=str(tiny_folder), task="landmarks"))


def test_splits_are_folders_or_tables_of_their_name(tmp_path):
    write_dots(tmp_path / "a" / "train", 3, seed=0)
    write_dots(tmp_path / "a" / "val", 2, seed=1)
    write_dots(tmp_path / "b", 3, seed=0, name="train.csv")
    lines = (tmp_path / "b" / "train.csv").read_text().splitlines()
    (tmp_path / "b" / "val.csv").write_text("\n".join([lines[0], *lines[-3:]]))
    (tmp_path / "b" / "train.csv").write_text("\n".join(lines[:-3]))
    for folder, counts in (("a", [3, 2]), ("b", [2, 1])):
        records = load_records(DataConfig(dataset=str(tmp_path / folder)))
        assert [len(split) for split in records] == counts
        assert records[0].landmarks == records[1].landmarks


def test_some_points_can_be_chosen_and_others_are_named(tmp_path):
    write_dots(tmp_path, 4, seed=0)
    reader = info_of(tmp_path, classes="tail,nose").reader
    assert reader.names == ("tail", "nose")
    assert reader.chosen == (2, 0)
    with pytest.raises(DataError, match="--classes tale: expected some of nose, ear, tail"):
        info_of(tmp_path, classes="tale")


def test_points_that_no_training_image_lacks_are_always_there(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        rows = ["image,landmark,x,y,state"]
        for number in range(3):
            Image.new("RGB", (40, 30)).save(tmp_path / split / f"{number}.png")
            is_second = number == 1
            rows.append(f"{number}.png,shown,5,5,{'absent' if split == 'val' else 'present'}")
            rows.append(f"{number}.png,sometimes,7,5,{'absent' if is_second else 'present'}")
            rows.append(f"{number}.png,unsure,9,5,{'unknown' if is_second else 'present'}")
            rows.append(f"{number}.png,never,,,unknown")
        (tmp_path / split / "points.csv").write_text("\n".join(rows))
    for classes, always_there in ((None, (0, 2)), ("unsure,sometimes,shown", (0, 2)), ("never", ())):
        reader = info_of(tmp_path, classes=classes).reader
        assert reader.task("ce", None).always_there == always_there


@pytest.mark.parametrize(
    ("names", "swap", "partners", "mirrors"),
    [
        (["left_ear", "nose", "right_ear"], None, (2, 1, 0), True),
        (["leftear", "rightear"], None, (1, 0), True),
        (["L_eye", "R_eye", "eye_l", "eye_r", "Ball"], None, (1, 0, 3, 2, 4), True),
        (["LeftPaw", "RightPaw", "tail"], None, (1, 0, 2), True),
        (["nose", "tail", "ball"], None, (0, 1, 2), True),
        (["paw1LH_top", "paw2RF_top", "nose"], None, (0, 1, 2), False),
        (["L1", "L2", "L3"], None, (0, 1, 2), True),  # vertebrae
        (["left_ear", "right_ear", "left_eye"], None, (0, 1, 2), False),
        (["1", "2"], None, (0, 1), False),
        (["1", "2"], "1=2", (1, 0), True),
        (["paw1LH", "paw2LF", "paw3RF", "paw4RH"], "paw1LH=paw4RH, paw2LF=paw3RF", (3, 2, 1, 0), True),
    ],
)
def test_the_mirror_swaps_left_and_right_by_name_or_is_off(names, swap, partners, mirrors):
    sides = point_sides(names, swap)
    assert (sides.partners, sides.mirrors) == (partners, mirrors)
    assert ("mirroring is off" in sides.line) == (not mirrors)


@pytest.mark.parametrize("swap", ["left", "a=c", "a=b,b=a", "a=a"])
def test_a_wrong_swap_is_one_line(swap):
    with pytest.raises(DataError, match="--swap"):
        point_sides(["a", "b"], swap)


def batch_of(points: torch.Tensor, size: tuple[int, ...]) -> PointTarget:
    """A batch of present points (B, K, n)."""
    count, names, axes = points.shape
    return PointTarget(
        points=points,
        states=torch.full((count, names), PRESENT),
        size=torch.tensor([size] * count),
        unit=torch.ones(count, axes, dtype=torch.float64),
    )


@pytest.mark.parametrize(("size", "spacing"), [((48, 64), None), ((64, 64), None), ((12, 20, 16), (2.0, 1.0, 1.0))])
def test_points_move_with_the_image_to_a_billionth_of_a_pixel(size, spacing):
    axes = len(size)
    draws = []
    for sample in range(12):
        options = {"strength": "strong", "seed": 5, "size": size, "channels": axes, "spacing": spacing}
        draws.append(draw((1, sample), **options))
    draws = [replace(Draw(drawn.matrix), elastic=drawn.elastic) for drawn in draws]  # colors stay
    # an image whose values are its own coordinates shows where each of its pixels came from
    ramps = torch.stack(torch.meshgrid(*(torch.arange(side).double() for side in size), indexing="ij"))
    images = ramps.expand(len(draws), *ramps.shape).clone()
    numbers = pack_draws(draws, axes, torch.float64)
    fill, std = torch.full((axes,), -99.0), torch.ones(axes)
    moved, _ = augment(images, batch_of(torch.zeros(12, 1, axes).double(), size), draws, numbers, fill=fill, std=std)
    middle = tuple(side // 2 + 1 for side in size)
    sources = moved[(slice(None), slice(None), *middle)]  # (B, n)
    is_shown = (sources > 1).all(dim=1) & (sources < torch.tensor(size) - 2).all(dim=1)
    assert is_shown.sum() >= 6
    targets = batch_of(sources[:, None], size)
    _, moved_targets = augment(images, targets, draws, numbers, fill=fill, std=std)
    expected = torch.tensor(middle).double().expand_as(sources)
    assert (moved_targets.points[:, 0] - expected)[is_shown].abs().max() < 1e-9


def test_points_that_leave_the_crop_are_not_known_to_be_absent():
    size = (10, 12)
    points = torch.tensor([[[1.0, 2.0], [4.0, 7.0], [0.0, 0.0]]] * 3).double()
    draws = [Draw(np.diag([-1.0, 1.0])), Draw(), Draw(np.eye(2) / 4)]
    targets = batch_of(points, size)
    targets.states[:, 1] = ABSENT
    images = torch.zeros(3, 1, *size)
    numbers = pack_draws(draws, 1)
    _, answer = augment(images, targets, draws, numbers, fill=torch.zeros(1), std=torch.ones(1))
    assert answer.points[0].tolist() == [[1, 9], [4, 4], [0, 11]]
    assert answer.states[0].tolist() == [PRESENT, ABSENT, PRESENT]
    assert answer.points[1].equal(points[1])
    assert answer.states[2].tolist() == [OUTSIDE, ABSENT, OUTSIDE]


def test_in_the_mirror_left_and_right_change_places():
    reader = PointReader(Landmarks(("left", "right", "tail"), partners=(1, 0, 2)), chosen=(0, 1, 2))
    points = np.array([[1.0, 2.0], [4.0, 7.0], [0.0, 0.0]])
    target = replace(reader.unknown_target((10, 12)), points=points, states=np.array([PRESENT, ABSENT, OUTSIDE]))
    mirrored = reader.mirrored(target)
    assert mirrored.points.tolist() == [[4, 7], [1, 2], [0, 0]]
    assert mirrored.states.tolist() == [ABSENT, PRESENT, OUTSIDE]
    assert target.points.tolist() == points.tolist()  # what a cache holds stays


def test_nothing_is_mirrored_where_names_do_not_say_how(tmp_path):
    for sample in range(20):
        for spacing, size in ((None, (16, 16)), ((1.0, 1.0, 1.0), (8, 8, 8))):
            options = {"seed": 0, "size": size, "channels": 1, "spacing": spacing, "may_mirror": False}
            for strength in ("mirror", "basic", "strong"):
                assert not draw((0, sample), strength=strength, **options).is_mirrored


def test_training_sees_points_at_the_network_size_in_crops(tmp_path):
    write_dots(tmp_path, 6, seed=0)
    config = DataConfig(dataset=str(tmp_path), crop_size=(16, 16), augment="none", val_fraction=0.3)
    info = load_dataset_info(config)
    dataset = TrainingDataset(info.train, info, Preprocess(mean=(0.0,) * 3, std=(1.0,) * 3))

    inside = 0
    for index in range(len(dataset)):
        image, target, *_ = dataset[Slot(index, 0, (16, 16))]
        assert image.shape == (3, 16, 16)
        assert target.shape == (16, 16)
        for channel, (point, state) in enumerate(zip(target.points.tolist(), target.states.tolist(), strict=True)):
            if state == PRESENT:
                y, x = (round(side) for side in point)
                assert image[channel, y, x] > 120
                inside += 1
            else:
                assert state == OUTSIDE
    assert inside


def test_a_check_counts_states_and_finds_likely_mistakes(tmp_path):
    rows = ["image,left_x,left_y,right_x,right_y,tail_x,tail_y"]
    for number in range(12):
        left, right = (15, 4) if number == 7 else (4, 15)  # exchanged once
        rows.append(f"i{number}.png,{left},3,{right},3,,")
    rows[3] = "i2.png,4,3,25,3,4.1,3.2"  # outside, and two at one place
    (tmp_path / "images").mkdir()
    for number in range(12):
        Image.new("L", (20, 16)).save(tmp_path / "images" / f"i{number}.png")
    (tmp_path / "points.csv").write_text("\n".join(rows))
    report, problems = check_data(DataConfig(dataset=str(tmp_path)))
    assert problems == 0
    assert "      12        0        0  left" in report
    assert "       1        0       11  tail" in report
    assert "1 points lie outside their images: i2.png (right at 25, 3)" in report
    assert "1 pairs of points lie at one place: i2.png (left and tail)" in report
    assert "left and right may be exchanged in 1 images: i7.png" in report
    assert "11 empty cells are points of which nothing is known" in report
    report, _ = check_data(DataConfig(dataset=str(tmp_path), classes="tail,right,left"))
    assert "right and left may be exchanged in 1 images: i7.png" in report


@pytest.mark.parametrize(("images", "is_said"), [(9, False), (10, True)])
def test_few_images_do_not_say_on_which_side_a_point_lies(tmp_path, images, is_said):
    rows = ["image,left_x,left_y,right_x,right_y", "i0.png,15,3,4,3"]  # exchanged
    rows += [f"i{number}.png,4,3,15,3" for number in range(1, images)]
    (tmp_path / "images").mkdir()
    for number in range(images):
        Image.new("L", (20, 16)).save(tmp_path / "images" / f"i{number}.png")
    (tmp_path / "points.csv").write_text("\n".join(rows))
    report, _ = check_data(DataConfig(dataset=str(tmp_path)))
    assert ("may be exchanged in 1 images: i0.png" in report) == is_said


def test_ears_that_are_exchanged_are_found_whatever_the_direction_of_the_body(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["image,left_x,left_y,right_x,right_y,tail_x,tail_y,toy_x,toy_y"]
    (tmp_path / "images").mkdir()
    for number in range(12):
        angle = rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        left, right, tail = 30 + np.array([[8, -4], [8, 4], [-12, 0]]) @ turn.T
        if number == 7:
            left, right = right, left
        toy = [f"{side:.2f}" for side in rng.uniform(0, 60, 2)] if number < 3 else ["", ""]  # near no ear
        rows.append(",".join([f"i{number}.png", *(f"{side:.2f}" for side in (*left, *right, *tail)), *toy]))
        Image.new("L", (60, 60)).save(tmp_path / "images" / f"i{number}.png")
    (tmp_path / "points.csv").write_text("\n".join(rows))
    report, _ = check_data(DataConfig(dataset=str(tmp_path)))
    assert "left and right may be exchanged in 1 images: i7.png" in report


def split_of_points(*images: list[tuple[float, float]], space: str = PIXELS, states=None):
    """A split of images of 16 x 20 with points a, b, c ... at these places (x, y)."""
    records = []
    inspection = SplitInspection.of_count(len(images))
    for number, places in enumerate(images):
        image_states = np.array(states or [PRESENT] * len(places))
        source = PointSource("points.csv", space, np.array(places, float), image_states)
        records.append({"image": np.zeros((16, 20), np.uint8), "target": source, "name": f"i{number}"})
        inspection.add(number, Inspection((16, 20), (16, 20), "L", "numbers", {}))
    split = ListRecords(records)
    split.landmarks = LandmarkNames(tuple("abcdefgh"[: len(images[0])]), "long", space)
    return inspection, split


def test_a_point_is_inside_up_to_the_edges_of_the_outermost_pixels():
    inside = [(-0.5, -0.5), (19.5, 15.5), (0, 15.4), (19.4, 0)]
    assert point_warnings([split_of_points(inside)], ()) == ()
    for outside in ((-0.6, 3), (3, -0.6), (19.6, 3), (3, 15.6)):
        (line,) = point_warnings([split_of_points([outside])], ())
        assert line == f"1 points lie outside their images: i0 (a at {outside[0]:g}, {outside[1]:g}); they are left out"
        assert point_warnings([split_of_points([outside], states=[ABSENT])], ()) == ()
    assert point_warnings([split_of_points([(3, 15.6), (3, -0.4)], space=PIXELS_UPWARD)], ())[0].startswith(
        "1 points lie"
    )
    unknown = split_of_points([(99, 99)])
    unknown[0].sizes[:] = 0  # the image cannot be used
    assert point_warnings([unknown], ()) == ()


def test_points_lie_at_one_place_below_half_a_pixel():
    places = [(3, 3), (3.3, 3.3), (9, 9), (9, 9.6)]
    (line,) = point_warnings([split_of_points(places), split_of_points(places)], ())
    assert line == "2 pairs of points lie at one place: i0 (a and b), i0 (a and b)"
    assert point_warnings([split_of_points(places[:2], states=[PRESENT, UNKNOWN])], ()) == ()


def test_the_order_of_two_points_is_usual_from_nine_of_ten_images_on():
    left, right = (4.0, 3.0), (15.0, 3.0)
    for usual in ([left, right], [right, left]):
        odd = usual[::-1]
        (line,) = point_warnings([split_of_points(*[usual] * 9, odd)], [(0, 1)])
        assert line == "a and b may be exchanged in 1 images: i9"
        assert point_warnings([split_of_points(*[usual] * 8, odd)], [(0, 1)]) == ()
    (line,) = point_warnings([split_of_points(*[[left, right]] * 60, *[[right, left]] * 6)], [(0, 1)])
    assert line == "a and b may be exchanged in 6 images: i60, i61, i62, i63, i64, ..."
    assert (
        point_warnings([split_of_points(*[[left, right]] * 60, [right, left], states=[PRESENT, ABSENT])], [(0, 1)])
        == ()
    )


def test_a_pair_is_told_by_a_point_that_half_of_the_images_hold():
    """The bodies are turned by half a turn in every second image, so that the order along x says nothing."""
    upright, turned = [(5, 8), (10, 8), (7, 2)], [(10, 8), (5, 8), (7, 14)]
    inspection, split = split_of_points(*[upright, turned] * 9, [(10, 8), (5, 8), (7, 2)], turned)
    for number in range(10):  # the tail is known in the other half, with one odd image
        source = split.records[number]["target"]
        split.records[number]["target"] = source._replace(states=np.array([PRESENT, PRESENT, UNKNOWN]))
    (line,) = point_warnings([(inspection, split)], [(0, 1)])
    assert line == "a and b may be exchanged in 1 images: i18"


def test_points_of_volumes_are_told_by_their_order_along_x_alone():
    places = [[(x, 8, 3), (15 - x, 8, 3), (7, y, 3)] for x, y in [(5, 2), (10, 14)] * 5]
    places[8][2] = (7, 14, 3)  # on the other side in the plane of x and y
    inspection, split = split_of_points(*places, space="RAS")
    inspection.sizes = np.array([(9, 16, 20)] * 10)
    assert point_warnings([(inspection, split)], [(0, 1)]) == ()


def test_points_of_an_image_that_cannot_be_used_are_passed_over():
    inspection, split = split_of_points([(3, 3), (9, 9)])
    inspection.sizes[:] = 0
    split.records[0]["target"] = split.records[0]["target"]._replace(size=(7, 99))
    assert point_warnings([(inspection, split)], [(0, 1)]) == ()
    assert describe_points([]) == []
    assert point_warnings([], ()) == ()


def test_points_of_images_that_cannot_be_read_or_have_another_shape_are_problems(tmp_path):
    source = PointSource("points.csv", PIXELS, np.array([[3.0, 2.0]]), np.array([PRESENT]), (40, 10))
    image = np.zeros((16, 20), np.uint8)
    assert inspect_points({"image": "nowhere.png", "target": source, "name": "a"}).kind == "image cannot be read"
    problem = inspect_points({"image": image, "target": source, "name": "a"})
    assert problem.kind == "points of an image of another shape"
    volume = {"image": VolumeFile((str(tmp_path / "nowhere.nii"),)), "target": source, "name": "a"}
    assert inspect_volume_points(volume).kind == "image cannot be read"


def test_a_look_at_a_volume_with_points_finds_their_voxels_and_brightness_anywhere(tmp_path):
    file = write_volume(tmp_path / "a.nii", np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    source = PointSource("points.csv", "RAS", np.array([[3.0, 2.0, 2.0]]), np.array([PRESENT]))
    inspection = inspect_volume_points({"image": VolumeFile((str(file),)), "target": source, "name": "a"})
    assert {number: places.tolist() for number, places in inspection.class_locations.items()} == {1: [[1, 2, 3]]}
    assert (inspection.mode, inspection.spacing, inspection.foreground.dtype, inspection.foreground.shape) == (
        "int16",
        (2, 1, 1),
        np.float32,
        (10_000, 1),
    )


def test_states_are_counted_in_both_splits():
    first = split_of_points([(1, 1), (5, 5)], [(1, 1), (5, 5)], states=[PRESENT, ABSENT])
    second = split_of_points([(1, 1), (5, 5)], states=[PRESENT, UNKNOWN])
    lines = describe_points([first, second])
    assert lines[1:] == ["         3        0        0  a", "         0        2        1  b"]


def test_a_crop_may_be_taken_around_the_pixel_of_each_present_point(tmp_path, monkeypatch):
    states = np.array([PRESENT, PRESENT, ABSENT, PRESENT])
    source = PointSource("points.csv", PIXELS, np.array([[3.4, 1.6], [99, -3], [5, 5], [-2, 99]], float), states)
    locations = point_locations(source.positions[:, ::-1], source, (10, 8))
    assert {number: pixels.tolist() for number, pixels in locations.items()} == {1: [[2, 3]], 2: [[0, 7]], 4: [[9, 0]]}
    np.save(tmp_path / "a.npy", np.zeros((10, 8), np.uint8))
    record = {"image": str(tmp_path / "a.npy"), "target": source, "name": "a"}
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 80)
    assert inspect_points(record).class_locations is None
    for windows in (False, True):
        inspection = PointInspector(has_classes=False, windows=windows).inspect(record).class_locations
        assert (inspection is not None) is windows
    inspection = inspect_points(record, windows=True).class_locations
    assert {number: pixels.tolist() for number, pixels in inspection.items()} == {1: [[2, 3]], 2: [[0, 7]], 4: [[9, 0]]}


def test_points_of_images_that_are_resized_follow_them(tmp_path):
    write_dots(tmp_path, 3, seed=0)
    info = info_of(tmp_path)
    record = info.train.records[0]
    whole, half = info.reader.read(record, SIZE), info.reader.read(record, SIZE, (16, 11))
    assert np.allclose((whole.points + 0.5) / SIZE, (half.points + 0.5) / (16, 11))
    assert half.unit.tolist() == [2, 4]
    assert half.shape == (16, 11)
    preprocess = replace(info.preprocess(), scale=0.5)
    size = preprocess.input_size(*SIZE)
    for dataset_type in (TrainingDataset, EvaluationDataset):
        target = dataset_type(info.train, info, preprocess)[Slot(0, 0, size)][1]
        assert target.shape == size  # the places of points are compared where the network gives them


def test_the_helpers_draw_what_they_say():
    images, positions, states = dots(2, seed=0)
    assert len(images) == 2
    assert positions.shape == (2, 3, 2)
    assert (states == PRESENT).all()
    assert EMPTY_CELL not in (ABSENT, PRESENT, UNKNOWN, OUTSIDE)


def table_of(tmp_path: Path, text: str, name: str = "a.csv") -> PointTable:
    (tmp_path / name).write_text(text)
    table = files.read(tmp_path / name)
    assert table is not None
    return table


def test_the_first_line_of_a_table_says_its_separator_and_may_begin_with_a_mark_of_byte_order(tmp_path):
    text = "\ufeffimage;landmark;x;y\n\n;;;\na,b,c,d,e,f,g,h,i,j.png;nose, left;1;2\n"
    for separator in (";", "\t"):
        table = table_of(tmp_path, text.replace(";", separator))
        assert (table.images, table.names) == (("a,b,c,d,e,f,g,h,i,j.png",), ("nose, left",))
    assert table_of(tmp_path, "image,nose_x,nose_y\na,1,2\n", "A.CSV").names == ("nose",)


@pytest.mark.parametrize("empty", ["", "nan", "NaN", "NA", "n/a", "None", "null"])
def test_an_empty_cell_may_be_written_in_words(tmp_path, empty):
    assert table_of(tmp_path, f"image,a_x,a_y\na,{empty},{empty}\n").states.tolist() == [[EMPTY_CELL]]


def test_a_state_in_a_table_counts_whatever_its_coordinates_are(tmp_path):
    table = table_of(tmp_path, "image,landmark,x,y,state\na,p,1,2,Absent\na,q,1,2,unknown\na,r,,,\n a , s ,1,2, \n")
    assert table.states.tolist() == [[ABSENT, UNKNOWN, EMPTY_CELL, PRESENT]]
    assert (table.images, table.names) == (("a",), ("p", "q", "r", "s"))
    table = table_of(tmp_path, "image,landmark,x,y,confidence,presence\na,p,1,2,,\na,q,1,2,0.5, \n")
    assert table.states.tolist() == [[PRESENT, PRESENT]]
    assert table.presence is None


def test_titles_of_columns_keep_their_spelling_and_a_visibility_of_0_is_unknown(tmp_path):
    text = "image,scorer,Left Eye_x,Left Eye_y,Left Eye_v,TAIL_X,TAIL_Y,n_x\na,me,1,2, 0.0 ,3,4,5\n"
    table = table_of(tmp_path, text)
    assert table.names == ("Left Eye", "tail")
    assert table.states.tolist() == [[UNKNOWN, PRESENT]]


def test_what_a_network_of_deeplabcut_found_is_present(tmp_path):
    heads = "scorer,n,n,n,n,n,n\nbodyparts,a,a,a,b,b,b\ncoords,x,y,likelihood,x,y,likelihood\n"
    table = table_of(tmp_path, heads + "img.png,1,2,0.9,3,4,0.1\n")
    assert table.states.tolist() == [[PRESENT, PRESENT]]
    assert table.presence is None
    assert table.axes == 2
    heads = "Scorer,,,n,n\n Bodyparts ,,, a,a \nCoords,,, X,Y \n"
    table = table_of(tmp_path, heads + "img.png,,,1,2\n")
    assert (table.images, table.names, table.positions.tolist()) == (("img.png",), ("a",), [[[1, 2]]])
    heads = "scorer,n,n,n,n,n\nbodyparts,a,a,a,b,b\ncoords,x,y,z,x,y\n"
    assert table_of(tmp_path, heads + "img.png,1,2,9,3,4\n").positions.tolist() == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,landmark,x,y\na.png,one,1,2,3\n", "row 2: has 5 cells, the heading 4"),
        ("image,a_x,a_y\na.png,1,2\nb.png,1,z\n", "row 3, a: 'z' is no coordinate"),
        ("scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1,z\n", "row 4, a: 'z' is no coordinate"),
        ("image,landmark,x,y\na.png,one,-10000001,2\n", "coordinate -10000001 is not within 10,000,000"),
        ("image,landmark,x,y\na.png,one,10000000.5,2\n", "coordinate 10000000.5 is not within 10,000,000"),
    ],
)
def test_a_mistake_in_a_row_is_named_by_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        table_of(tmp_path, text)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_states_and_places_of_both_kinds_are_written_in_full(tmp_path, layout, axes):
    states = np.array([[PRESENT, ABSENT], [UNKNOWN, PRESENT]])
    positions = np.full((2, 2, axes), 1 / 3) * (states == PRESENT)[:, :, None]
    table = PointTable(layout, ("a", "7"), ("one", "two"), positions, states, ("", ""))
    (tmp_path / "a.csv").write_bytes(files.content(table))
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert len(lines) == {"long": 1 + 3, "wide": 1 + 2, "deeplabcut": 3 + 2}[layout]
    again = files.read_written(tmp_path / "a.csv", layout)
    written_states = states
    if layout != "long":  # the other layouts have no word for absent points
        written_states = np.where(states == PRESENT, PRESENT, EMPTY_CELL)
    assert (again.names, again.images, again.axes) == (table.names, table.images, axes)
    assert np.array_equal(again.positions, positions)
    assert np.array_equal(again.states, written_states)


def test_a_file_that_holds_no_points_any_more_is_one_line(tmp_path):
    (tmp_path / "a.csv").write_text("name,r,g,b\ncar,1,2,3\n")
    with pytest.raises(DataError, match=r"a\.csv: holds no points any more; --overwrite writes it again"):
        files.read_written(tmp_path / "a.csv", "long")


def test_points_have_the_same_names_in_all_splits_and_tables_their_split_in_any_case(tmp_path):
    write(tmp_path, "image,a_x,a_y,b_x,b_y\na,1,2,3,4\n", images=3, name="Train.csv")
    (tmp_path / "val.csv").write_text("image,b_x,b_y,c_x,c_y\nb,1,2,3,4\n")
    (tmp_path / "TEST.csv").write_text("image,c_x,c_y\nc,1,2\n")
    train, val = load_records(DataConfig(dataset=str(tmp_path), val_split="test"))
    assert train.landmarks.names == val.landmarks.names == ("c", "a", "b")  # in the order of the files
    (records,) = point_records([val])
    assert records.table.with_names(("a", "b", "c")).states.tolist() == [[UNKNOWN, UNKNOWN, PRESENT]]
    assert len(load_records(DataConfig(dataset=str(tmp_path)))[1]) == 1


def test_the_first_of_two_tables_of_one_split_is_read(tmp_path):
    (tmp_path / "train.tps").write_text("LM=1\n1 2\nID=a\n")
    (tmp_path / "train.csv").write_text("image,p_x,p_y\na,1,2\n")
    assert find_points(tmp_path, (), explicit=True)["train"].names == ("p",)


def test_tables_in_folders_of_splits_are_found_by_the_name_that_is_given(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / split, "image,a_x,a_y\na,1,2\n")
    assert [len(split) for split in load_records(DataConfig(dataset=str(tmp_path), val_split="test"))] == [1, 1]


def test_two_tables_in_a_folder_are_one_line_and_hidden_ones_are_none(tmp_path):
    folder = write(tmp_path, "image,a_x,a_y\na,1,2\nb,1,2\n", images=2)
    (folder / "._points.csv").write_text("image,a_x,a_y\na,1,2\n")
    assert len(read(folder).images) == 2
    (folder / "more.csv").write_text("image,a_x,a_y\na,1,2\n")
    with pytest.raises(DataError, match=r"2 files list points: .*more\.csv; .*points\.csv; keep one of them"):
        read(folder)


def test_tables_below_are_read_where_they_are_deeplabcuts(tmp_path):
    long = "image,landmark,x,y\na.png,one,1,2\n"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.csv").write_text(long)
    assert find_points(tmp_path, (), explicit=True) == {}
    (tmp_path / "video").mkdir()
    (tmp_path / "video" / "a.csv").write_text("scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1,2\n")
    assert find_points(tmp_path, (), explicit=True)["train"].names == ("a",)
    (tmp_path / "labeled-data" / "video").mkdir(parents=True)  # a folder of its own comes before all others
    (tmp_path / "labeled-data" / "video" / "b.csv").write_text("scorer,m,m\nbodyparts,b,b\ncoords,x,y\na.png,1,2\n")
    assert find_points(tmp_path, (), explicit=True)["train"].names == ("b",)


def test_points_stay_with_their_images_where_others_are_left_out(tmp_path):
    folder = write(tmp_path, "image,p_x,p_y\nx,9,9\na,1,2\ny,9,9\nb,3,4\n", images=2)
    train, val = load_records(DataConfig(dataset=str(folder), allow_unpaired=True))
    places = {record["name"]: record["target"].positions.tolist() for split in (train, val) for record in split}
    assert places == {"a.png": [[1, 2]], "b.png": [[3, 4]]}
    assert train.unpaired[0] == "x: listed in points.csv, but the file is missing"
    assert len(val.unpaired) == 2
    with pytest.raises(DataError, match="2 files without partner: x: listed in"):
        load_records(DataConfig(dataset=str(folder)))


def test_only_a_name_without_the_ending_of_an_image_may_lack_one(tmp_path):
    folder = write(tmp_path, "image,p_x,p_y\na.png,1,2\nb,3,4\n", images=2)
    (folder / "images" / "a.png").rename(folder / "images" / "a.png.png")
    with pytest.raises(DataError, match=r"1 files without partner: a\.png: listed in points\.csv"):
        load_records(DataConfig(dataset=str(folder)))


def test_a_picture_that_is_hidden_is_no_mask(tmp_path):
    folder = write(tmp_path, "image,p_x,p_y\na,1,2\nb,3,4\n", images=2)
    (folder / "masks").mkdir()
    (folder / "masks" / "._a.png").write_bytes(b"what a Mac leaves behind")
    assert lacks_masks(folder, ())
    for name in ("a.PNG", "a.nii.gz"):
        (folder / "masks" / name).write_bytes(b"a mask")
        assert not lacks_masks(folder, ())
        (folder / "masks" / name).unlink()
    for split in ("train", "val"):
        (tmp_path / "splits" / split / "images").mkdir(parents=True)
        (tmp_path / "splits" / split / "masks").mkdir()
    assert lacks_masks(tmp_path / "splits", ())
    (tmp_path / "splits" / "val" / "masks" / "a.png").write_bytes(b"a mask of one split")
    assert not lacks_masks(tmp_path / "splits", ())
    (tmp_path / "splits" / "val").rename(tmp_path / "splits" / "holdout")
    assert lacks_masks(tmp_path / "splits", ())
    assert not lacks_masks(tmp_path / "splits", ("train", "holdout"))


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


def test_the_truth_is_that_of_all_splits(tmp_path):
    for split, image in (("train", "a"), ("val", "b")):
        write(tmp_path / split, f"image,p_x,p_y\n{image},1,2\n")
    assert read_truth(tmp_path, "unknown").images == ("a", "b")


def test_splits_may_be_files_of_tps_and_images_are_those_beside_others_of_their_name(tmp_path):
    for split, image in (("train", "a"), ("val", "b")):
        (tmp_path / f"{split}.tps").write_text(f"LM=1\n1 2\nIMAGE={image}.png\n")
    tables = find_points(tmp_path, (), explicit=False)
    assert {split: table.images for split, table in tables.items()} == {"train": ("a.png",), "val": ("b.png",)}
    for folder in ("images", "imagesTs", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        Image.new("L", (20, 16)).save(tmp_path / folder / "a.png")
    records = open_points(tmp_path, tables, None, allow_unpaired=False)["train"]()
    assert [record["image"] for record in records] == [str(tmp_path / "images" / "a.png")]


def test_the_points_of_files_that_outline_areas_too_are_the_truth(tmp_path):
    content = coco_content(["a.png"], np.ones((1, 3, 2)))
    content["annotations"][0]["segmentation"] = [[1, 1, 9, 1, 9, 9]]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    assert read_truth(tmp_path, "unknown").names == NAMES


def test_the_key_of_points_changes_with_all_that_they_are(tmp_path):
    folder = write(tmp_path, "image,p_x,p_y\na,1,2\nb,3,4\n", images=2)
    paths = [str(folder / "images" / name) for name in ("a.png", "b.png")]
    table = files.read(folder / "points.csv")
    assert table is not None
    unlike = {
        "layout": replace(table, layout="long"),
        "names": replace(table, names=("q",)),
        "space": replace(table, space="pixels from the bottom"),
        "positions": replace(table, positions=table.positions + 1),
        "states": replace(table, states=table.states * 0 + UNKNOWN),
    }
    digests = [PointRecords(other, paths).digest for other in (table, *unlike.values())]
    digests += [PointRecords(table, paths[:1]).digest, PointRecords(table, paths, dims=3).digest]
    assert len({*digests}) == len(digests)
    assert PointRecords(table, paths).digest == digests[0]
    key_files = [*(folder / "images").iterdir(), folder / "points.csv"]
    assert unnoticed_changes(key_files, lambda: PointRecords(table, paths).digest) == []
    (folder / "images" / "b.png").rename(folder / "images" / "c.png")  # of the same size and time
    paths[1] = str(folder / "images" / "c.png")
    assert PointRecords(table, paths).digest != digests[0]


def test_the_key_of_points_changes_with_each_channel_of_a_volume_and_images_may_be_in_their_files(tmp_path):
    for number in range(2):
        (tmp_path / f"a_000{number}.nii").touch()
    table = PointTable("long", ("p",), ("a",), np.ones((1, 1, 3)), np.full((1, 1), PRESENT), ("",), "RAS")
    paths = [str(tmp_path / "a_0000.nii")]
    assert PointRecords(table, paths, dims=3).landmarks == LandmarkNames(("p",), "long", "RAS")
    assert unnoticed_changes([*tmp_path.iterdir()], lambda: PointRecords(table, paths, dims=3).digest) == []
    assert PointRecords(table, ["/data/A.JSON"])[0]["image"] == LabelmeImage("/data/A.JSON")


def test_the_files_of_the_channels_of_a_volume_are_all_that_follow_the_first(tmp_path):
    names = ["a_0000_0000.nii.gz", "a_0000_0001.nii.gz", "a_0000_0002.nii.gz", "a_0000_0004.nii.gz", "b.nii.gz"]
    for name in names:
        (tmp_path / name).touch()
    paths = [str(tmp_path / name) for name in names]
    assert channel_files(paths[0]) == tuple(paths[:3])
    assert channel_files(paths[4]) == (paths[4],)
    for folder in ("c_0000", "c_0001"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "d.nii").touch()
    assert channel_files(str(tmp_path / "c_0000/d.nii")) == (str(tmp_path / "c_0000/d.nii"),)


def test_tables_are_joined_where_axes_and_space_agree():
    def table(image: str, **changes) -> PointTable:
        whole = PointTable("tps", (image,), (image,), np.ones((1, 1, 2)), np.full((1, 1), PRESENT), (f"{image}.tps",))
        return replace(whole, **changes)

    joined = joined_tables([table("a", sizes=np.array([[3, 4]])), table("b", sizes=np.array([[5, 6]]))])
    assert joined.states.tolist() == [[PRESENT, UNKNOWN], [UNKNOWN, PRESENT]]
    assert joined.files == ("a.tps", "b.tps")
    assert joined.rows([1]).sizes.tolist() == [[5, 6]]
    assert joined.rows([1]).files == ("b.tps",)
    assert joined_tables([joined, table("c")]).files == ("a.tps", "b.tps", "c.tps")
    assert joined_tables([table("a", sizes=np.array([[3, 4]])), table("b")]).sizes is None
    for other in (table("b", space="pixels from the bottom"), table("b", positions=np.ones((1, 1, 3)))):
        with pytest.raises(DataError, match=r"a\.tps lists points of 2 axes in pixels, b\.tps of [23] axes in pixels"):
            joined_tables([table("a"), other])


def test_some_rows_of_a_table_keep_their_own_points_and_a_size_of_0_is_none():
    states = np.array([[PRESENT], [ABSENT], [UNKNOWN]])
    table = PointTable("long", ("p",), ("a", "b", "c"), np.arange(6.0).reshape(3, 1, 2), states, ("1", "2", "3"))
    table = replace(table, sizes=np.array([[0, 0], [3, 4], [0, 7]]))
    two_rows = table.rows([2, 1])
    assert two_rows.images == ("c", "b")
    assert two_rows.positions.tolist() == [[[4, 5]], [[2, 3]]]
    assert two_rows.states.tolist() == [[UNKNOWN], [ABSENT]]
    assert [two_rows.source(row).size for row in (0, 1)] == [None, (3, 4)]
    assert [two_rows.source(row).file for row in (0, 1)] == ["3", "2"]


def test_a_predicted_point_is_there_from_a_presence_of_one_half_on():
    builder = TableBuilder("long", 2)
    for name, presence in (("a", 0.5), ("b", 0.4999)):
        builder.add("file", "image", name, UNKNOWN, (1, 2), (0.9, presence))
    builder.add_image("file", "image", (3, 4))
    builder.add_image("other", "image")
    builder.add_image("other", "more")
    table = builder.table()
    assert table.states.tolist() == [[PRESENT, ABSENT], [UNKNOWN, UNKNOWN]]
    assert table.files == ("file", "other")
    assert table.presence[0].tolist() == [0.5, 0.4999]
    assert table.confidence[0].tolist() == [0.9, 0.9]
    assert table.sizes.tolist() == [[3, 4], [0, 0]]


def test_what_is_no_coordinate_or_size_is_none(tmp_path):
    with pytest.raises(DataError, match=r"here: '1000.*' is no coordinate"):
        coordinate(10**400, "here")
    sizes = ((3, 4), (5, 5), (0, 4), (3, -1), (3.0, 4), (3, 4.0), (None, 4), (3, None), (3, 10**8), (10**8, 3))
    assert [said_size(*size) for size in sizes] == [(3, 4), (5, 5), *[None] * 8]


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
    assert train.landmarks.names == NAMES


def test_points_beside_polygons_are_points(tmp_path):
    write_dots(tmp_path, 4, seed=0)
    write_geojson(tmp_path / "areas.geojson", [feature(square(20, 30, 90))])
    train, _ = load_records(DataConfig(str(tmp_path)))
    assert train.landmarks is not None
    assert train.landmarks.names == NAMES


@pytest.mark.parametrize("windows", [True, False])
def test_large_images_with_points_are_looked_at_in_windows_where_training_reads_windows(tmp_path, windows):
    write_dots(tmp_path, 4, seed=0)
    train, _ = load_records(DataConfig(str(tmp_path)))
    inspector = choose_inspector(train, windows=windows)
    assert isinstance(inspector, PointInspector)
    assert inspector.windows is windows


HEADINGS = {
    "long": ["image,landmark,x,y,state,confidence,presence", "i,1,0.5,2.0,present,0.333333,0.750000"],
    "wide": ["image,X1,Y1,1_confidence,1_presence,X2,Y2,2_confidence,2_presence"],
    "deeplabcut": [
        "scorer,unet,unet,unet,unet,unet,unet,unet,unet",
        "bodyparts,1,1,1,1,2,2,2,2",
        "coords,x,y,likelihood,presence,x,y,likelihood,presence",
    ],
}
ROWS = {
    "long": "i,2,3.0,4.0,absent,0.666667,0.250000",
    "wide": "i,0.5,2.0,0.333333,0.750000,3.0,4.0,0.666667,0.250000",
    "deeplabcut": "i,0.5,2.0,0.333333,0.750000,3.0,4.0,0.666667,0.250000",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_of_predictions_has_the_headings_of_its_layout(layout):
    table = PointTable(
        layout=layout,
        names=("1", "2"),
        images=("i",),
        positions=np.array([[[0.5, 2], [3, 4]]]),
        states=np.array([[PRESENT, ABSENT]]),
        files=("",),
        presence=np.array([[0.75, 0.25]]),
        confidence=np.array([[1 / 3, 2 / 3]]),
    )
    assert files.content(table).decode().split("\n") == [*HEADINGS[layout], ROWS[layout], ""]
    predicted_table = replace(table, states=np.array([[PRESENT, UNKNOWN]]))
    last_row = ROWS[layout].replace("absent", "unknown")
    assert files.content(predicted_table).decode().splitlines()[-1] == last_row
    truth = replace(table, presence=None, confidence=None)
    lines = files.content(truth).decode().splitlines()
    assert lines[-1] == {"long": "i,2,,,absent"}.get(layout, "i,0.5,2.0,,")
    assert "confidence" not in lines[0]
    assert "likelihood" not in lines[-2]


def test_columns_may_have_any_of_these_titles(tmp_path):
    for title in ("image", "filename", "file", "file_name", "image_name", "image_id", "img", "path", "Name"):
        assert table_of(tmp_path, f"{title},a_x,a_y\nb,1,2\n").images == ("b",)
    assert table_of(tmp_path, "path,image,landmark,x,y\n1,b,tip,1,2\n").images == ("b",)
    table = table_of(tmp_path, " image ,a_y,a_x\n b ,1,2\n")
    assert table.images == ("b",)
    assert table.positions.tolist() == [[[2, 1]]]
    for title in ("landmark", "landmark_name", "point", "keypoint", "bodypart", "Label"):
        table = table_of(tmp_path, f"x,y,{title},z,image\n1,2,tip,3,b\n")
        assert (table.names, table.images, table.positions.tolist()) == (("tip",), ("b",), [[[1, 2, 3]]])
    for titles in ("a_x,a_y", "a x,a y", "a.x,a.y", "a-x,a-y"):
        assert table_of(tmp_path, f"image,{titles}\nb,1,2\n").names == ("a",)
    for titles in (" x1 , y1", "X_1,Y_1"):
        assert table_of(tmp_path, f"image,{titles}\nb,1,2\n").names == ("1",)


@pytest.mark.parametrize(
    "titles", ["a,a_x,a_y,image", "a,b,c", "x,y,landmark", "image,landmark,x", "image,a_y,b_y", "image,x,y"]
)
def test_a_table_of_something_else_lists_no_points(tmp_path, titles):
    (tmp_path / "a.csv").write_text(f"{titles}\n1,2,3,4\n")
    assert files.read(tmp_path / "a.csv") is None
    (tmp_path / "a.csv").write_text("\n\n")
    assert files.read(tmp_path / "a.csv") is None


def test_points_may_be_as_far_away_as_ten_million(tmp_path):
    assert coordinate("-1e7", "here") == -10_000_000
    assert said_size(10_000_000, 1) == (10_000_000, 1)


def test_predictions_of_several_tables_are_joined_and_follow_their_names():
    def table(name: str, value: float) -> PointTable:
        values = np.full((1, 1), value)
        shape = (np.ones((1, 1, 2)), np.full((1, 1), PRESENT))
        return PointTable("long", (name,), (name,), *shape, (name,), presence=values, confidence=values / 2)

    joined = joined_tables([table("a", 0.75), table("b", 0.5)])
    assert joined.presence.tolist() == [[0.75, 0], [0, 0.5]]
    assert joined.confidence.tolist() == [[0.375, 0], [0, 0.25]]
    assert joined.predicted(0, 0) == (0.375, 0.75)
    assert joined.with_names(("b",)).presence.tolist() == [[0], [0.5]]
    assert joined.rows([1]).presence is None
    assert joined.rows([1]).confidence is None
    assert joined.renamed(["x", "y"]).images == ("x", "y")


def test_a_truth_without_points_is_one_line(tmp_path):
    (tmp_path / "a.csv").write_text("name,r,g,b\ncar,1,2,3\n")
    for path in (tmp_path / "a.csv", tmp_path):
        with pytest.raises(DataError, match=rf"{path}: no file there lists points \(docs/landmarks.md\)"):
            read_truth(path, "unknown")


@pytest.mark.parametrize("folder", ["imgs", "image", "imagesTr", "data", "JPEGImages", "images/train", "train", "."])
def test_images_of_a_table_lie_in_folders_of_these_names(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    Image.new("L", (20, 16)).save(tmp_path / folder / "a.png")
    (tmp_path / "Train.csv").write_text("image,p_x,p_y\na.png,1,2\n")
    splits = open_points(tmp_path, find_points(tmp_path, (), explicit=False), None, allow_unpaired=False)
    assert splits["train"]()[0]["image"] == str(tmp_path / folder / "a.png")
