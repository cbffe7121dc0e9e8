"""Tables of points in the three layouts of CSV: how they are read, joined and written.

Modules: data_utils/sources/points/table.py, data_utils/sources/points/csv_tables.py.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info, unnoticed_changes
from support.points import (
    certainties,
    point_table,
    points_of_folder,
    write_dots,
    write_table,
)

from data_utils.config import DataConfig
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.load import load_records
from data_utils.sources.points import files
from data_utils.sources.points.find import open_points
from data_utils.sources.points.table import (
    EMPTY_CELL,
    Certainty,
    ImagePoints,
    PointTable,
)
from runtime.errors import DataError

LAYOUTS = ("long", "wide", "deeplabcut")


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


@pytest.mark.parametrize(
    "rows",
    [
        "filename;X1;Y1;X2;Y2\na;1.5;2;3;4\nb;1;2;3;4\n",
        ",image,X1,Y1,X2,Y2\n0,a.png,1.5,2,3,4\n1,b.png,1,2,3,4\n",
        "image,w,h,x1,y1,x2,y2\na.png,9,9,1.5,2,3,4\nb.png,9,9,1,2,3,4\n",
    ],
    ids=["of names without ending", "of pandas, with its numbers of rows", "beside the size of the image"],
)
def test_numbered_columns_are_points_of_these_numbers(tmp_path, rows):
    folder = write_table(tmp_path, rows, images=2)
    table = points_of_folder(folder)
    assert table.names == ("1", "2")
    assert table.positions[0].tolist() == [[1.5, 2], [3, 4]]


def test_a_visibility_of_0_is_unknown(tmp_path):
    folder = write_table(tmp_path, "image,nose_x,nose_y,nose_v\na.png,1,2,0\nb.png,1,2,1\n", images=2)
    table = points_of_folder(folder)
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
    images = points_of_folder(tmp_path).images
    assert [image.split("/")[1] for image in images] == ["first", "first", "second", "second"]
    file = tmp_path / "labeled-data" / "first" / "CollectedData_Me.csv"
    file.with_name("machinelabels-iter0.csv").write_text(file.read_text())  # what its network has found is no truth
    assert points_of_folder(tmp_path).images == images
    lines = file.read_text().splitlines()
    heads = [line.replace(",", ",,,", 1) for line in lines[:3]]  # a column for each part of a path
    rows = [line.replace("/", ",", 2) for line in lines[3:]]
    file.write_text("\n".join(heads + rows))
    assert points_of_folder(tmp_path).images == images


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,landmark,x,y\na.png,one,1e300,2\n", "line 2: coordinate 1e300 is not within"),
        ("image,landmark,x,y\na.png,one,left,2\n", "'left' is no coordinate"),
        ("image,landmark,x,y\na.png,one,1,\n", "has only some of the coordinates"),
        ("image,landmark,x,y\na.png,one,1,2\na.png,one,3,4\n", "several animals or persons in an image"),
        ("image,landmark,x,y,state\na.png,one,1,2,maybe\n", "state 'maybe' is none of present, absent, unknown"),
        ("image,landmark,x,y,state\na.png,one,,,present\n", "line 2: a point that is present has no coordinates"),
        ("image,landmark,x,y\n,one,1,2\n", "line 2: has no image or no landmark"),
        ("image,a_x,a_y,a_z,b_x,b_y\na.png,1,2,3,4,5\n", "some points have a z and others have none"),
        ("image,a_x,b_y\na.png,1,2\n", "points.csv: its columns are .*, points have image,landmark,x,y"),
        ("image,a_x,a_y\na.png,1\n", "line 2: has 2 cells, the heading 3; is the file cut off?"),
        ("image,landmark,x,y\nb.png,one,1,2\n", "b.png: listed in points.csv, but the file is missing"),
        ("image,landmark,x,y\na,one,1,2\na.png,one,3,4\n", "points.csv: lists 1 image more than once: .*a.png"),
        ("image,landmark,x,y\n", "lists no points"),
        ("scorer,me,me\nindividuals,one,one\nbodyparts,a,a\ncoords,x,y\n", "several individuals in an image"),
        ("scorer,me,me\nbodyparts,a,a\na.png,1,2\n", "no rows bodyparts and coords"),
        ("scorer,me,me\nbodyparts,a\ncoords,x,y\na.png,1,2\n", "no rows bodyparts and coords of one length"),
        (f"image,landmark,x,y\n{200_000 * 'a'},one,1,2\n", "points.csv cannot be read as CSV"),
        ("image,landmark,x,y,z\na.png,one,1,2,3\n", "its points have 3 coordinates, but it lists images"),
        ("image,landmark,x,y\na.png,one,1,2,3\n", "line 2: has 5 cells, the heading 4"),
        ("file,px,py\na.png,1,2\n", "points.csv: its columns are 'file, px, py', points have image,landmark,x,y"),
        ("path,x1,y1,x2,y2,class\na.png,1,2,5,9,car\n", "points.csv lists boxes, which are for detection"),
        ("image,label,x,y,w,h\na.png,car,1,2,5,9\n", "points.csv lists boxes"),
        ("filename,width,height,class,xmin,ymin,xmax,ymax\na.png,9,9,car,1,2,5,9\n", "points.csv lists boxes"),
        ("image_name,label_name,x1,y1,w,h\na.png,car,1,2,5,9\n", "points.csv lists boxes"),
        ("image,x_center,y_center,width,height\na.png,1,2,5,9\n", "points.csv lists boxes"),
        ("image,bbox_x,bbox_y,bbox_width,bbox_height\na.png,1,2,5,9\n", "points.csv lists boxes"),
        ("ImageId,EncodedPixels\na.png,1 3 10 5\n", "points.csv lists run lengths, which are not read; store a mask"),
        ("Alter;Gr\N{LATIN SMALL LETTER O WITH DIAERESIS}sse\n1;2\n", "points.csv cannot be read as CSV"),
        ("image,a_x,a_y\na.png,1,2\nb.png,1,z\n", "line 3, a: 'z' is no coordinate"),
        ("image,a_x,a_y\n\n,,\na.png,1,2\n\n\nb.png,1,z\n", "line 7, a: 'z' is no coordinate"),
        ('image,landmark,x,y\na.png,"one\n\ntwo",1,2\nb.png,one,z,2\n', "line 5: 'z' is no coordinate"),
        ("image,landmark,x,y\na.png,one,-10000001,2\n", "coordinate -10000001 is not within 10,000,000"),
    ],
)
def test_a_damaged_table_is_a_one_line_error(tmp_path, text, message):
    folder = write_table(tmp_path, "")
    (folder / "points.csv").write_bytes(text.encode("cp1252"))
    with pytest.raises(DataError, match=message.replace("?", r"\?")):
        points_of_folder(folder)


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
    text = f"sep=;\n{text[1:]}1;nose, right;3,x;4\n"  # as Excel is told
    (tmp_path / "a.csv").write_text(text.replace(";", separator))
    with pytest.raises(DataError, match=r"a\.csv, line 6: '3,x' is no coordinate"):
        files.read(tmp_path / "a.csv")


@pytest.mark.parametrize("text", ["image;landmark;x;y\n1,5;p;121,9;-3,25\n", "image\tp_x\tp_y\n1,5\t121,9\t-3.25\n"])
def test_a_comma_in_a_number_is_a_point_where_other_characters_separate_cells(tmp_path, text):
    table = table_of(tmp_path, text)
    assert table.images == ("1,5",)
    assert table.positions.tolist() == [[[121.9, -3.25]]]


def test_what_lies_beside_the_data_set_is_not_looked_at(tmp_path):
    rows = "image,landmark,x,y\na.png,p,1,2\nb.png,p,3,4\nc.png,p,3,4\n"
    write_table(tmp_path / "faces", rows, images=2)
    for name in ("images", "Faces"):  # another data set's images, and another data set that differs in case alone
        (tmp_path / name).mkdir()
    (tmp_path / "images" / "c.png").touch()
    with pytest.raises(DataError, match=r"c\.png: listed in points\.csv, but the file is missing"):
        points_of_folder(tmp_path / "faces")


def test_points_need_no_masks_of_their_split(tmp_path):
    for split, folders in (("train", ("images", "masks")), ("val", ("images",))):
        for path in (tmp_path / folder / split / f"{split}.png" for folder in folders):
            path.parent.mkdir(parents=True)
            Image.new("L", (20, 16)).save(path)
        (tmp_path / f"{split}.csv").write_text(f"image,landmark,x,y\nimages/{split}/{split}.png,p,1,2\n")
    train, val = load_records(DataConfig(dataset=str(tmp_path), task="landmarks"))
    assert (train.name(0), val.name(0)) == ("train.png", "val.png")


def test_a_point_may_be_named_first_in_a_later_image(tmp_path):
    table = table_of(tmp_path, "image,landmark,x,y\na,p,1,2\nb,p,3,4\nb,q,5,6\n")
    assert table.names == ("p", "q")
    assert table.positions.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    assert table.states.tolist() == [[PRESENT, UNKNOWN], [PRESENT, PRESENT]]


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
    table = point_table(layout, ("a", "7"), ("one", "two"), positions, states, ("", ""))
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


def test_the_key_of_points_changes_with_their_files(tmp_path):
    write_table(tmp_path, "image,p_x,p_y\na,1,2\nb,3,4\n", images=2)
    table = files.read(tmp_path / "points.csv")

    def key() -> str | None:
        return open_points(tmp_path, table, absent=None, allow_unpaired=False).digest

    assert unnoticed_changes([*(tmp_path / "images").iterdir(), tmp_path / "points.csv"], key) == []


def test_a_predicted_point_is_present_from_a_presence_of_one_half_on():
    entry = ImagePoints("file", "image", (3, 4))
    for name, presence in (("a", 0.5), ("b", 0.4999)):
        entry.add(name, UNKNOWN, (1, 2), Certainty(0.9, presence))
    table = PointTable("long", 2, [entry, ImagePoints("other", "more")])
    assert table.states.tolist() == [[PRESENT, ABSENT], [UNKNOWN, UNKNOWN]]
    assert table.files == ("file", "other")
    assert certainties(table) == [[(0.9, 0.5), (0.9, 0.4999)], [None, None]]


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
    return point_table(
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


@pytest.mark.parametrize(
    ("layout", "last_line"), [("long", "i,2,,,absent"), ("wide", "i,0.5,2.0,,"), ("deeplabcut", "i,0.5,2.0,,")]
)
def test_a_table_of_a_truth_has_neither_confidence_nor_places_of_absent_points(layout, last_line):
    predicted = predictions(layout)
    table = point_table(layout, predicted.names, predicted.images, predicted.positions, predicted.states)
    lines = files.content(table).decode().splitlines()
    assert lines[-1] == last_line
    assert "confidence" not in lines[0]
    assert "likelihood" not in lines[-2]


@pytest.mark.parametrize(
    ("titles", "name"),
    [
        ("a_x,a_y", "a"),
        ("a x,a y", "a"),
        ("a.x,a.y", "a"),
        ("a-x,a-y", "a"),
        (" x1 , y1", "1"),
        ("X_1,Y_1", "1"),
        ("x_a,y_a", "a"),
        ("Y-left eye,X-left eye", "left eye"),
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
