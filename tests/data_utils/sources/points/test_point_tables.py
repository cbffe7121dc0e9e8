"""Tables of points in the three layouts of CSV: how they are read, joined and written.

Modules: data_utils/sources/points/table.py, data_utils/sources/points/csv_tables.py.
"""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info, unnoticed_changes
from support.points import NAMES, SIZE, dot_center, points_of_folder, write_dots, write_table

from data_utils.sources.annotations.labelme import LabelmeImage
from data_utils.sources.points import csv_tables, files
from data_utils.sources.points.table import (
    EMPTY_CELL,
    Certainty,
    PointRecords,
    PointTable,
    TableBuilder,
    channel_files,
    join_tables,
    said_size,
)
from data_utils.sources.points.table import number as coordinate
from data_utils.sources.records import LandmarkNames
from runtime.errors import DataError
from tasks.points import ABSENT, PRESENT, UNKNOWN

LAYOUTS = ("long", "wide", "deeplabcut")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_drawn_dot_is_where_the_table_says(tmp_path, layout):
    write_dots(tmp_path, 4, seed=0, layout=layout)
    info = load_info(tmp_path, val_fraction=0.3)
    assert info.config.task == "landmarks"
    assert info.reader.names == NAMES
    distances = []
    for record in [*info.train.records, *info.val.records]:
        image = np.asarray(Image.open(record["image"])).astype(float)
        target = info.reader.read(record, SIZE)
        for channel, (y, x) in enumerate(target.points):
            distances.append(np.hypot(*(dot_center(image[:, :, channel], y, x) - (y, x))))
    assert len(distances) == 12
    assert max(distances) < 0.6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_that_is_written_again_says_the_same(tmp_path, layout):
    write_dots(tmp_path, 4, seed=0, layout=layout)
    table = files.FORMATS[layout].read(tmp_path / "points.csv")
    (tmp_path / "again.csv").write_bytes(files.content(table))
    again = files.FORMATS[layout].read(tmp_path / "again.csv")
    assert again.names == table.names
    assert again.images == table.images
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_of_predictions_that_is_read_again_says_the_same(tmp_path, layout):
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


@pytest.mark.parametrize(
    "lines",
    [
        ("image,landmark,{},{}", "a.png,p,{},{}"),
        ("image,p_{},p_{}", "a.png,{},{}"),
        ("scorer,me,me", "bodyparts,p,p", "coords,{},{}", "a.png,{},{}"),
    ],
    ids=["long", "wide", "deeplabcut"],
)
def test_coordinates_may_stand_in_any_order(tmp_path, lines):
    *titles, row = (f"{line}\n" for line in lines)
    usual, turned = (
        table_of(tmp_path, "".join(titles).format(*axes) + row.format(*values))
        for axes, values in (("xy", (5, 2)), ("yx", (2, 5)))
    )
    assert usual.positions.tolist() == turned.positions.tolist() == [[[5, 2]]]


EMPTY_CELLS = "image,a_x,a_y,b_x,b_y\na.png,1,2,,\nb.png,nan,NaN,3,4\n"


@pytest.mark.parametrize(("absent", "state"), [(None, UNKNOWN), ("not-there", ABSENT)])
def test_empty_cells_are_unknown_unless_a_flag_says_that_they_are_absent(tmp_path, absent, state):
    folder = write_table(tmp_path, EMPTY_CELLS, images=2)
    assert points_of_folder(folder, absent=absent).states.tolist() == [[PRESENT, state], [state, PRESENT]]


def test_empty_cells_are_warned_of_unless_a_flag_says_what_they_are(tmp_path):
    folder = write_table(tmp_path, EMPTY_CELLS, images=2)
    warnings = load_info(folder, val_fraction=0.3).warnings
    assert "2 empty cells are points of which nothing is known" in "\n".join(warnings)
    assert "--absent not-there" in "\n".join(warnings)
    assert load_info(folder, val_fraction=0.3, place=False).warnings == warnings
    assert not load_info(folder, val_fraction=0.3, absent="not-there").warnings


def test_a_long_table_says_the_state_and_has_no_rows_for_what_is_unknown(tmp_path):
    rows = ["image,landmark,x,y,state", "a.png,one,1,2,present", "a.png,two,,,absent", "b.png,one,3,4,unknown"]
    rows.append("b.png,two,5,6,")
    table = points_of_folder(write_table(tmp_path, "\n".join(rows), images=2))
    assert table.states.tolist() == [[PRESENT, ABSENT], [UNKNOWN, PRESENT]]
    assert table.positions[1, 1].tolist() == [5, 6]


def test_numbered_columns_are_points_of_these_numbers(tmp_path):
    folder = write_table(tmp_path, "filename;X1;Y1;X2;Y2\na;1.5;2;3;4\nb;1;2;3;4\n", images=2)
    table = points_of_folder(folder)
    assert table.names == ("1", "2")
    assert table.positions[0].tolist() == [[1.5, 2], [3, 4]]


def test_a_visibility_of_0_is_unknown(tmp_path):
    folder = write_table(tmp_path, "image,nose_x,nose_y,nose_v\na.png,1,2,0\nb.png,1,2,1\n", images=2)
    table = points_of_folder(folder)
    assert table.names == ("nose",)
    assert table.states.tolist() == [[UNKNOWN], [PRESENT]]


@pytest.fixture
def deeplabcut_project(tmp_path):
    """Two videos of two frames each, with the table of each video beside its frames."""
    for video in ("first", "second"):
        folder = tmp_path / "labeled-data" / video
        write_dots(folder, 2, seed=0, layout="deeplabcut", name="CollectedData_Me.csv")
        for image in (folder / "images").iterdir():
            image.rename(folder / image.name)
        (folder / "images").rmdir()
        text = (folder / "CollectedData_Me.csv").read_text()
        (folder / "CollectedData_Me.csv").write_text(text.replace("frame_", f"labeled-data/{video}/frame_"))
    return tmp_path


def test_tables_of_deeplabcut_lie_beside_the_frames_of_each_video(deeplabcut_project):
    images = points_of_folder(deeplabcut_project).images
    assert [image.split("/")[1] for image in images] == ["first", "first", "second", "second"]


def test_a_table_of_deeplabcut_may_have_a_column_for_each_part_of_a_path(deeplabcut_project):
    images = points_of_folder(deeplabcut_project).images
    file = deeplabcut_project / "labeled-data" / "first" / "CollectedData_Me.csv"
    lines = file.read_text().splitlines()
    heads = [line.replace(",", ",,,", 1) for line in lines[:3]]
    rows = [line.replace("/", ",", 2) for line in lines[3:]]
    file.write_text("\n".join(heads + rows))
    assert points_of_folder(deeplabcut_project).images == images


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,landmark,x,y\na.png,one,1e300,2\n", "line 2: coordinate 1e300 is not within"),
        ("image,landmark,x,y\na.png,one,inf,2\n", "coordinate inf is not within"),
        ("image,landmark,x,y\na.png,one,left,2\n", "'left' is no coordinate"),
        ("image,landmark,x,y\na.png,one,1,\n", "has only some of the coordinates"),
        ("image,landmark,x,y\na.png,one,1,2\na.png,one,3,4\n", "several animals or persons in an image"),
        ("image,landmark,x,y,state\na.png,one,1,2,maybe\n", "state 'maybe' is none of present, absent, unknown"),
        ("image,landmark,x,y,state\na.png,one,,,present\n", "line 2: a point that is present has no coordinates"),
        ("image,landmark,x,y\n,one,1,2\n", "line 2: has no image or no landmark"),
        ("image,landmark,x,y\na.png,,1,2\n", "line 2: has no image or no landmark"),
        ("image,a_x,a_y,a_z,b_x,b_y\na.png,1,2,3,4,5\n", "some points have a z and others have none"),
        ("image,a_x,b_y\na.png,1,2\n", "points.csv: its columns are .*, points have image,landmark,x,y"),
        ("image,landmark,x,y\na.png,one,1\n", "line 2: has 3 cells, the heading 4; is the file cut off?"),
        ("image,a_x,a_y\na.png,1\n", "line 2: has 2 cells, the heading 3; is the file cut off?"),
        ("scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1\n", "line 4: has 2 cells, the heading 3; is the file"),
        ("image,a_x,a_y\na.png,1,2\na.png,3,4\n", "several animals or persons in an image"),
        ("image,landmark,x,y\nb.png,one,1,2\n", "b.png: listed in points.csv, but the file is missing"),
        ("image,landmark,x,y\na,one,1,2\na.png,one,3,4\n", "points.csv: lists 1 images more than once: .*a.png"),
        ("image,landmark,x,y\n", "lists no points"),
        ("scorer\nbodyparts\ncoords\na.png\n", "lists no points"),
        ("scorer,me,me\nindividuals,one,one\nbodyparts,a,a\ncoords,x,y\n", "several individuals in an image"),
        ("scorer,me,me\nbodyparts,a,a\na.png,1,2\n", "no rows bodyparts and coords"),
        ("scorer,me,me\ncoords,x,y\na.png,1,2\n", "no rows bodyparts and coords"),
        ("scorer,me,me\nbodyparts,a\ncoords,x,y\na.png,1,2\n", "rows bodyparts and coords have different lengths"),
        ("scorer,me,me\nbodyparts,a,a\ncoords,x\na.png,1,2\n", "rows bodyparts and coords have different lengths"),
        ("scorer,me,me\nbodyparts,a,a\ncoords,x,x\na.png,1,2\n", "'a' has no columns x and y"),
        (f"image,landmark,x,y\n{200_000 * 'a'},one,1,2\n", "points.csv cannot be read as CSV"),
        ("image,landmark,x,y,z\na.png,one,1,2,3\n", "its points have 3 coordinates, but it lists images"),
    ],
)
def test_a_damaged_table_is_a_one_line_error(tmp_path, text, message):
    with pytest.raises(DataError, match=message.replace("?", r"\?")):
        points_of_folder(write_table(tmp_path, text))


def table_of(tmp_path: Path, text: str, name: str = "a.csv") -> PointTable:
    (tmp_path / name).write_text(text)
    table = files.read(tmp_path / name)
    assert table is not None
    return table


@pytest.mark.parametrize("separator", [";", "\t"])
def test_the_first_line_of_a_table_says_its_separator(tmp_path, separator):
    text = "\ufeffimage;landmark;x;y\n\n;;;\na,b,c,d,e,f,g,h,i,j.png;nose, left;1;2\n"
    table = table_of(tmp_path, text.replace(";", separator))
    assert table.images == ("a,b,c,d,e,f,g,h,i,j.png",)
    assert table.names == ("nose, left",)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_lines_of_a_table_may_end_in_any_way(tmp_path, end):
    (tmp_path / "a.csv").write_bytes(f"image,nose_x,nose_y{end}a,1,2{end}b,3,4{end}".encode())
    assert files.read(tmp_path / "a.csv").positions.tolist() == [[[1, 2]], [[3, 4]]]


@pytest.mark.parametrize("name", ["latin.csv", "none.csv"], ids=["not UTF-8", "not there"])
def test_a_table_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "latin.csv").write_bytes(b"image,nose_x,nose_y\n\xe9,1,2\n")
    assert files.read(tmp_path / name) is None
    with pytest.raises(DataError, match=rf"{name} cannot be read as CSV \("):
        csv_tables.read_table(tmp_path / name)


def test_the_ending_of_a_table_may_be_in_capitals(tmp_path):
    assert table_of(tmp_path, "image,nose_x,nose_y\na,1,2\n", "A.CSV").names == ("nose",)


@pytest.mark.parametrize("empty", ["", "nan", "NaN", "NA", "n/a", "None", "null"])
def test_an_empty_cell_may_be_written_in_words(tmp_path, empty):
    assert table_of(tmp_path, f"image,a_x,a_y\na,{empty},{empty}\n").states.tolist() == [[EMPTY_CELL]]


def test_a_state_in_a_table_counts_whatever_its_coordinates_are(tmp_path):
    table = table_of(tmp_path, "image,landmark,x,y,state\na,p,1,2,Absent\na,q,1,2,unknown\na,r,,,\n a , s ,1,2, \n")
    assert table.states.tolist() == [[ABSENT, UNKNOWN, EMPTY_CELL, PRESENT]]
    assert table.images == ("a",)
    assert table.names == ("p", "q", "r", "s")


def test_a_point_may_be_named_first_in_a_later_image(tmp_path):
    table = table_of(tmp_path, "image,landmark,x,y\na,p,1,2\nb,p,3,4\nb,q,5,6\n")
    assert table.names == ("p", "q")
    assert table.positions.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    assert table.states.tolist() == [[PRESENT, UNKNOWN], [PRESENT, PRESENT]]


def test_a_table_with_an_empty_presence_is_no_prediction(tmp_path):
    table = table_of(tmp_path, "image,landmark,x,y,confidence,presence\na,p,1,2,,\na,q,1,2,0.5, \n")
    assert table.states.tolist() == [[PRESENT, PRESENT]]
    assert table.presence is None


def test_titles_of_columns_keep_their_spelling(tmp_path):
    text = "image,scorer,Left Eye_x,Left Eye_y,Left Eye_v,TAIL_X,TAIL_Y,n_x\na,me,1,2, 0.0 ,3,4,5\n"
    table = table_of(tmp_path, text)
    assert table.names == ("Left Eye", "tail")
    assert table.states.tolist() == [[UNKNOWN, PRESENT]]


def test_points_that_a_network_of_deeplabcut_has_found_are_present(tmp_path):
    heads = "scorer,n,n,n,n,n,n\nbodyparts,a,a,a,b,b,b\ncoords,x,y,likelihood,x,y,likelihood\n"
    table = table_of(tmp_path, heads + "img.png,1,2,0.9,3,4,0.1\n")
    assert table.states.tolist() == [[PRESENT, PRESENT]]
    assert table.presence is None
    assert table.axes == 2


def test_columns_of_deeplabcut_may_stand_in_any_order(tmp_path):
    heads = "scorer,n,n,n\nbodyparts,a,a,a\ncoords,likelihood,y,x\n"
    table = table_of(tmp_path, heads + "img.png,0.9,2,1\n")
    assert table.images == ("img.png",)
    assert table.positions.tolist() == [[[1, 2]]]


def test_headings_of_deeplabcut_may_have_spaces_or_capitals(tmp_path):
    heads = "Scorer,,,n,n\n Bodyparts ,,, a,a \nCoords,,, X,Y \n"
    table = table_of(tmp_path, heads + "img.png,,,1,2\n")
    assert table.images == ("img.png",)
    assert table.names == ("a",)
    assert table.positions.tolist() == [[[1, 2]]]


def test_points_of_deeplabcut_of_which_some_have_a_z_lie_in_an_image(tmp_path):
    heads = "scorer,n,n,n,n,n\nbodyparts,a,a,a,b,b\ncoords,x,y,z,x,y\n"
    assert table_of(tmp_path, heads + "img.png,1,2,9,3,4\n").positions.tolist() == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,landmark,x,y\na.png,one,1,2,3\n", "line 2: has 5 cells, the heading 4"),
        ("image,a_x,a_y\na.png,1,2\nb.png,1,z\n", "line 3, a: 'z' is no coordinate"),
        ("scorer,m,m\nbodyparts,a,a\ncoords,x,y\na.png,1,z\n", "line 4, a: 'z' is no coordinate"),
        ("image,a_x,a_y\n\n,,\na.png,1,2\n\n\nb.png,1,z\n", "line 7, a: 'z' is no coordinate"),
        ('image,landmark,x,y\na.png,"one\n\ntwo",1,2\nb.png,one,z,2\n', "line 5: 'z' is no coordinate"),
        ("image,landmark,x,y\na.png,one\u2028\x0btwo,1,2\nb.png,one,z,2\n", "line 3: 'z' is no coordinate"),
        ("image,landmark,x,y\na.png,one,-10000001,2\n", "coordinate -10000001 is not within 10,000,000"),
        ("image,landmark,x,y\na.png,one,10000000.5,2\n", "coordinate 10000000.5 is not within 10,000,000"),
    ],
)
def test_a_mistake_in_a_row_is_named_by_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        table_of(tmp_path, text)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize(
    ("layout", "lines", "absent", "unknown"),
    [
        ("long", 1 + 3, ABSENT, UNKNOWN),
        ("wide", 1 + 2, EMPTY_CELL, EMPTY_CELL),  # it has no word for absent points, nor has the next
        ("deeplabcut", 3 + 2, EMPTY_CELL, EMPTY_CELL),
    ],
)
def test_states_are_written_with_places_of_two_or_three_axes(tmp_path, layout, lines, absent, unknown, axes):
    states = np.array([[PRESENT, ABSENT], [UNKNOWN, PRESENT]])
    positions = np.full((2, 2, axes), 1 / 3) * (states == PRESENT)[:, :, None]
    table = PointTable(layout, ("a", "7"), ("one", "two"), positions, states, ("", ""))
    (tmp_path / "a.csv").write_bytes(files.content(table))
    assert len((tmp_path / "a.csv").read_text().splitlines()) == lines
    again = files.read_written(tmp_path / "a.csv", layout)
    assert again.names == table.names
    assert again.images == table.images
    assert again.axes == axes
    assert np.array_equal(again.positions, positions)
    assert again.states.tolist() == [[PRESENT, absent], [unknown, PRESENT]]


def test_a_file_that_holds_no_points_any_more_is_a_one_line_error(tmp_path):
    (tmp_path / "a.csv").write_text("name,r,g,b\ncar,1,2,3\n")
    with pytest.raises(DataError, match=r"a\.csv: holds no points any more; --overwrite writes it again"):
        files.read_written(tmp_path / "a.csv", "long")


def test_a_file_that_holds_points_in_another_format_is_not_the_file_that_was_written(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"imagePath": "a.png", "shapes": [{"label": "eye", "points": [[1, 2]], "shape_type": "point"}]}')
    assert files.read_written(file, "labelme").names == ("eye",)
    with pytest.raises(DataError, match=r"a\.json: holds no points any more"):
        files.read_written(file, "coco")


@pytest.fixture
def keyed_points(tmp_path):
    """A table of one point in two images, and the paths of these."""
    folder = write_table(tmp_path, "image,p_x,p_y\na,1,2\nb,3,4\n", images=2)
    return files.read(folder / "points.csv"), [str(folder / "images" / name) for name in ("a.png", "b.png")]


def test_the_key_of_points_changes_with_all_that_they_are(keyed_points):
    table, paths = keyed_points
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


def test_the_key_of_points_is_computed_once(keyed_points):
    records = PointRecords(*keyed_points)
    assert records.digest is records.digest


def test_the_key_of_points_changes_with_their_files(keyed_points, tmp_path):
    table, paths = keyed_points
    key_files = [*(tmp_path / "images").iterdir(), tmp_path / "points.csv"]
    assert unnoticed_changes(key_files, lambda: PointRecords(table, paths).digest) == []


def test_the_key_of_points_changes_with_each_of_several_tables(keyed_points, tmp_path):
    table, paths = keyed_points
    key_files = [tmp_path / f"{name}.csv" for name in "ab"]
    for file in key_files:
        file.touch()
    joined = replace(table, files=tuple(map(str, key_files)))
    assert unnoticed_changes(key_files, lambda: PointRecords(joined, paths).digest) == []


def test_images_of_points_have_the_names_of_their_folders(keyed_points):
    table, _ = keyed_points
    records = PointRecords(table, ["/data/north/a\udce9.png", "/data/south/a.png"])
    assert [record["name"] for record in records] == ["north/a\udce9.png", "south/a.png"]
    assert [record["image"] for record in records] == ["/data/north/a\udce9.png", "/data/south/a.png"]


def test_the_key_of_points_changes_with_the_name_of_an_image(keyed_points):
    table, paths = keyed_points
    digest = PointRecords(table, paths).digest
    renamed = Path(paths[1]).rename(Path(paths[1]).with_name("c.png"))  # of the same size and time
    assert PointRecords(table, [paths[0], str(renamed)]).digest != digest


@pytest.fixture
def table_of_a_volume():
    """One point in a volume."""
    return PointTable("long", ("p",), ("a",), np.ones((1, 1, 3)), np.full((1, 1), PRESENT), ("",), "RAS")


def test_the_key_of_points_changes_with_each_channel_of_a_volume(tmp_path, table_of_a_volume):
    for number in range(2):
        (tmp_path / f"a_000{number}.nii").touch()
    paths = [str(tmp_path / "a_0000.nii")]
    key_files = [*tmp_path.iterdir()]
    assert unnoticed_changes(key_files, lambda: PointRecords(table_of_a_volume, paths, dims=3).digest) == []


def test_records_of_points_know_their_names_layout_space(table_of_a_volume):
    records = PointRecords(table_of_a_volume, ["a_0000.nii"], dims=3)
    assert records.metadata.landmarks == LandmarkNames(("p",), "long", "RAS")


def test_the_image_of_points_may_be_in_their_file(table_of_a_volume):
    assert PointRecords(table_of_a_volume, ["/data/A.JSON"])[0]["image"] == LabelmeImage("/data/A.JSON")


def test_the_files_of_the_channels_of_a_volume_are_all_that_follow_the_first(tmp_path):
    names = ["a_0000_0000.nii.gz", "a_0000_0001.nii.gz", "a_0000_0002.nii.gz", "a_0000_0004.nii.gz"]
    for name in names:
        (tmp_path / name).touch()
    paths = tuple(str(tmp_path / name) for name in names)
    assert channel_files(paths[0]) == paths[:3]


@pytest.mark.parametrize("names", [["b.nii.gz"], ["c_0000/d.nii", "c_0001/d.nii"]], ids=["file", "folder"])
def test_a_volume_without_the_number_of_a_channel_is_one_file(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    first = str(tmp_path / names[0])
    assert channel_files(first) == (first,)


def table_of_a_point(name: str, **changes) -> PointTable:
    """A table of one image with one point, both of this name."""
    states = np.full((1, 1), PRESENT)
    return replace(PointTable("tps", (name,), (name,), np.ones((1, 1, 2)), states, (f"{name}.tps",)), **changes)


def test_tables_are_joined_with_the_points_and_files_of_each():
    joined = join_tables([table_of_a_point("a"), table_of_a_point("b")])
    assert joined.states.tolist() == [[PRESENT, UNKNOWN], [UNKNOWN, PRESENT]]
    assert joined.files == ("a.tps", "b.tps")
    assert joined.rows([1]).files == ("b.tps",)
    assert join_tables([joined, table_of_a_point("c")]).files == ("a.tps", "b.tps", "c.tps")


def test_tables_are_joined_with_their_sizes_where_all_have_some():
    first = table_of_a_point("a", sizes=np.array([[3, 4]]))
    second = table_of_a_point("b", sizes=np.array([[5, 6]]))
    assert join_tables([first, second]).rows([1]).sizes.tolist() == [[5, 6]]
    assert join_tables([first, table_of_a_point("b")]).sizes is None


@pytest.mark.parametrize(
    "changes", [{"space": "pixels from the bottom"}, {"positions": np.ones((1, 1, 3))}], ids=["space", "axes"]
)
def test_tables_of_other_axes_or_another_space_are_not_joined(changes):
    line = r"a\.tps lists points of 2 axes in pixels, b\.tps of [23] axes in pixels"
    with pytest.raises(DataError, match=line):
        join_tables([table_of_a_point("a"), table_of_a_point("b", **changes)])


def test_rows_of_a_table_keep_their_own_points_files_sizes():
    states = np.array([[PRESENT], [ABSENT], [UNKNOWN]])
    table = PointTable("long", ("p",), ("a", "b", "c"), np.arange(6.0).reshape(3, 1, 2), states, ("1", "2", "3"))
    table = replace(table, sizes=np.array([[0, 0], [3, 4], [0, 7]]))
    two_rows = table.rows([2, 1])
    assert two_rows.images == ("c", "b")
    assert two_rows.positions.tolist() == [[[4, 5]], [[2, 3]]]
    assert two_rows.states.tolist() == [[UNKNOWN], [ABSENT]]
    assert [two_rows.source(row).size for row in (0, 1)] == [None, (3, 4)]
    assert [two_rows.source(row).file for row in (0, 1)] == ["3", "2"]


def test_a_predicted_point_is_present_from_a_presence_of_one_half_on():
    builder = TableBuilder("long", 2)
    for name, presence in (("a", 0.5), ("b", 0.4999)):
        builder.add("file", "image", name, UNKNOWN, (1, 2), Certainty(0.9, presence))
    builder.add_image("file", "image", (3, 4))
    builder.add_image("other", "image")
    builder.add_image("other", "more")
    table = builder.table()
    assert table.states.tolist() == [[PRESENT, ABSENT], [UNKNOWN, UNKNOWN]]
    assert table.files == ("file", "other")
    assert table.presence[0].tolist() == [0.5, 0.4999]
    assert table.confidence[0].tolist() == [0.9, 0.9]
    assert table.sizes.tolist() == [[3, 4], [0, 0]]


def test_a_number_beyond_those_of_a_computer_is_no_coordinate():
    with pytest.raises(DataError, match=r"here: '1000.*' is no coordinate"):
        coordinate(10**400, "here")


@pytest.mark.parametrize("size", [(3, 4), (5, 5), (10_000_000, 1)])
def test_a_size_is_two_whole_numbers(size):
    assert said_size(*size) == size


@pytest.mark.parametrize(
    "size", [(0, 4), (3, -1), (3.0, 4), (3, 4.0), (None, 4), (3, None), (3, 10**8), (10**8, 3)], ids=str
)
def test_a_size_of_no_such_numbers_is_none(size):
    assert said_size(*size) is None


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


def predictions(layout: str) -> PointTable:
    """A present and an absent point in one image, with presence and confidence."""
    return PointTable(
        layout=layout,
        names=("1", "2"),
        images=("i",),
        positions=np.array([[[0.5, 2], [3, 4]]]),
        states=np.array([[PRESENT, ABSENT]]),
        files=("",),
        presence=np.array([[0.75, 0.25]]),
        confidence=np.array([[1 / 3, 2 / 3]]),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_of_predictions_has_the_headings_of_its_layout(layout):
    assert files.content(predictions(layout)).decode().split("\n") == [*HEADINGS[layout], ROWS[layout], ""]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_predicted_point_that_is_unknown_keeps_its_place(layout):
    table = replace(predictions(layout), states=np.array([[PRESENT, UNKNOWN]]))
    assert files.content(table).decode().splitlines()[-1] == ROWS[layout].replace("absent", "unknown")


@pytest.mark.parametrize(
    ("layout", "last_line"), [("long", "i,2,,,absent"), ("wide", "i,0.5,2.0,,"), ("deeplabcut", "i,0.5,2.0,,")]
)
def test_a_table_of_a_truth_has_neither_confidence_nor_places_of_absent_points(layout, last_line):
    table = replace(predictions(layout), presence=None, confidence=None)
    lines = files.content(table).decode().splitlines()
    assert lines[-1] == last_line
    assert "confidence" not in lines[0]
    assert "likelihood" not in lines[-2]


@pytest.mark.parametrize(
    "title", ["image", "filename", "file", "file_name", "image_name", "image_id", "img", "path", "Name"]
)
def test_a_column_of_images_may_have_any_of_these_titles(tmp_path, title):
    assert table_of(tmp_path, f"{title},a_x,a_y\nb,1,2\n").images == ("b",)


def test_a_column_called_image_comes_before_one_called_path(tmp_path):
    assert table_of(tmp_path, "path,image,landmark,x,y\n1,b,tip,1,2\n").images == ("b",)


def test_columns_may_have_spaces_or_y_before_x(tmp_path):
    table = table_of(tmp_path, " image ,a_y,a_x\n b ,1,2\n")
    assert table.images == ("b",)
    assert table.positions.tolist() == [[[2, 1]]]


@pytest.mark.parametrize("title", ["landmark", "landmark_name", "point", "keypoint", "bodypart", "Label"])
def test_a_column_of_names_may_have_any_of_these_titles(tmp_path, title):
    table = table_of(tmp_path, f"x,y,{title},z,image\n1,2,tip,3,b\n")
    assert table.names == ("tip",)
    assert table.images == ("b",)
    assert table.positions.tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize(
    ("titles", "name"),
    [
        ("a_x,a_y", "a"),
        ("a x,a y", "a"),
        ("a.x,a.y", "a"),
        ("a-x,a-y", "a"),
        (" x1 , y1", "1"),
        ("X_1,Y_1", "1"),
    ],
)
def test_columns_of_a_point_may_be_titled_in_any_of_these_ways(tmp_path, titles, name):
    assert table_of(tmp_path, f"image,{titles}\nb,1,2\n").names == (name,)


@pytest.mark.parametrize(
    "titles", ["a,a_x,a_y,image", "a,b,c", "x,y,landmark", "image,landmark,x", "image,a_y,b_y", "image,x,y"]
)
def test_a_table_of_something_else_lists_no_points(tmp_path, titles):
    (tmp_path / "a.csv").write_text(f"{titles}\n1,2,3,4\n")
    assert files.read(tmp_path / "a.csv") is None
    (tmp_path / "a.csv").write_text("\n\n")
    assert files.read(tmp_path / "a.csv") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,px,py\na.png,1,2\n", "points.csv: its columns are 'file, px, py', points have image,landmark,x,y"),
        ("image,left_x,top_y\na.png,1,2\n", "points.csv: its columns are 'image, left_x, top_y'"),
        ("path,x1,y1,x2,y2,class\na.png,1,2,5,9,car\n", "points.csv lists boxes, which are for detection"),
        ("image,x1,y1,x2,y2\na.png,1,2,5,9\na.png,4,2,5,9\n", "points.csv lists boxes"),
        ("image,label,x,y,w,h\na.png,car,1,2,5,9\n", "points.csv lists boxes"),
        ("image,label,x,y,width,height\na.png,car,9,2,5,9\na.png,cat,9,2,5,9\n", "points.csv lists boxes"),
        ("filename,width,height,class,xmin,ymin,xmax,ymax\na.png,9,9,car,1,2,5,9\n", "points.csv lists boxes"),
        ("image,bbox_x,bbox_y,bbox_width,bbox_height\na.png,1,2,5,9\n", "points.csv lists boxes"),
        ("Alter;Gr\N{LATIN SMALL LETTER O WITH DIAERESIS}sse\n1;2\n", "points.csv cannot be read as CSV"),
    ],
)
def test_a_table_that_is_not_understood_is_named_with_what_is_expected(tmp_path, text, message):
    folder = write_table(tmp_path, "")
    (folder / "points.csv").write_bytes(text.encode("cp1252"))
    with pytest.raises(DataError, match=message):
        points_of_folder(folder)


@pytest.mark.parametrize("text", ["filename,X1,Y1,X2,Y2\na,1,2,3,4\n", "image,label,x,y,width,height\na,eye,1,2,9,9\n"])
def test_points_beside_the_size_of_their_image_and_two_points_alone_are_no_boxes(tmp_path, text):
    assert table_of(tmp_path, text).states.min() == PRESENT


def test_a_table_of_something_else_is_read_once(tmp_path):
    file = write_table(tmp_path, "name,r,g,b\ncar,1,2,3\n") / "points.csv"
    with mock.patch.object(csv_tables, "read_bytes", wraps=csv_tables.read_bytes) as read:
        assert files.read(file) is None
    assert read.call_count == 1


def test_points_may_be_as_far_away_as_ten_million():
    assert coordinate("-1e7", "here") == -10_000_000


@pytest.fixture
def joined_predictions():
    """Predictions of two tables with a point each, joined."""
    tables = []
    for name, presence in (("a", 0.75), ("b", 0.5)):
        values = np.full((1, 1), presence)
        tables.append(table_of_a_point(name, presence=values, confidence=values / 2))
    return join_tables(tables)


def test_predictions_of_several_tables_are_joined(joined_predictions):
    assert joined_predictions.presence.tolist() == [[0.75, 0], [0, 0.5]]
    assert joined_predictions.confidence.tolist() == [[0.375, 0], [0, 0.25]]
    assert joined_predictions.certainty(0, 0) == (0.375, 0.75)


def test_predictions_follow_the_names_of_their_points(joined_predictions):
    assert joined_predictions.with_names(("b",)).presence.tolist() == [[0], [0.5]]
    assert joined_predictions.rename_images(["x", "y"]).images == ("x", "y")


def test_rows_of_predictions_are_a_truth(joined_predictions):
    assert joined_predictions.rows([1]).presence is None
    assert joined_predictions.rows([1]).confidence is None
