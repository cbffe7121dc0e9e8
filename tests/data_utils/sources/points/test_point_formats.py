"""Points in files of any format: read, written back as they were, and told from files of something else.

Modules: data_utils/sources/points/files.py, data_utils/sources/points/find.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.points import (
    NAMES,
    SIZE,
    WRITERS,
    certainties,
    dot_center,
    points_of_folder,
    prediction_with_an_absent_point,
    write_annotated_dots,
    write_dots,
    write_points,
    write_tps,
)

from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.point_states import PRESENT
from data_utils.sources.load import load_records
from data_utils.sources.points import files
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info


@pytest.fixture(scope="module", params=["long", "wide", "deeplabcut", *WRITERS])
def layout(request):
    """A format of tables or of other programs, whose files hold the points of images."""
    return request.param


@pytest.fixture(scope="module")
def dots_folder(layout, tmp_path_factory):
    """A folder of images with dots and their points in a format."""
    folder = tmp_path_factory.mktemp(layout)
    if layout in WRITERS:
        write_annotated_dots(folder, layout)
    else:
        write_dots(folder, 4, seed=0, layout=layout)
    return folder


def test_points_beside_images_are_landmarks_where_their_file_says(dots_folder, layout):
    info = load_dataset_info(DataConfig(str(dots_folder), val_fraction=0.5))
    assert info.config.task == "landmarks"
    assert info.reader.landmarks.layout == layout
    assert info.reader.names == (("1", "2", "3") if layout == "tps" else NAMES)
    distances = []
    for record in [*info.train.records, *info.val.records]:
        image = read_image(record["image"], "image").astype(float)
        target = info.reader.read(record, SIZE)
        for channel, (y, x) in enumerate(target.points):
            distances.append(np.hypot(*(dot_center(image[:, :, channel], y, x) - (y, x))))
    assert len(distances) == 12
    assert max(distances) < 0.6


def test_points_that_are_written_again_are_the_same(dots_folder, tmp_path):
    table = points_of_folder(dots_folder)
    table = replace(table, entries=table.entries[1:2])
    again = files.read(write_points(tmp_path, table))
    assert again.names == table.names
    assert again.layout == table.layout
    assert again.space == table.space
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)
    assert again.entries[0].size == table.entries[0].size


@pytest.mark.parametrize(
    ("layout", "names", "axes", "space"),
    [
        ("long", ("a", "b"), 2, "pixels"),
        ("wide", ("a", "b"), 2, "pixels"),
        ("deeplabcut", ("a", "b"), 2, "pixels"),
        ("labelme", ("a", "b"), 2, "pixels"),
        ("coco", ("a", "b"), 2, "pixels"),
        ("tps", ("1", "2"), 2, "pixels from the bottom"),
        ("nnlandmark", ("a", "b"), 3, "pixels"),
        ("markups", ("a", "b"), 3, "LPS"),
        ("fcsv", ("a", "b"), 3, "LPS"),
    ],
)
def test_a_predicted_point_that_is_absent_keeps_its_place(tmp_path, layout, names, axes, space):
    table = prediction_with_an_absent_point(layout, names, axes, space)
    again = files.read(write_points(tmp_path, table)).with_names(names)
    assert np.array_equal(again.positions, table.positions)
    assert np.array_equal(again.states, table.states)
    assert certainties(again) == certainties(table)


def test_points_in_files_of_two_formats_are_a_one_line_error(tmp_path):
    write_annotated_dots(tmp_path, "labelme")
    write_tps(tmp_path, ["frame_00.png"], np.ones((1, 3, 2)))
    with pytest.raises(DataError, match=r"points are listed in .*all\.tps and in .*frame_00\.json; keep one"):
        load_records(DataConfig(str(tmp_path)))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"a": {"b": 1}}',
        '{"a": {"b": {"likelihood": 1}}}',
        '{"images": [], "keypoints": 3}',
        '{"shapes": []}',
    ],
)
def test_a_json_file_of_something_else_lists_no_points(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    assert files.read(tmp_path / "a.json") is None


@pytest.mark.parametrize(
    ("layout", "axes", "space", "predicted", "corrected"),
    [
        ("tps", 2, "pixels from the bottom", "-1 -1", "5 6"),
        ("markups", 3, "LPS", '"missing"', '"defined"'),
        ("fcsv", 3, "LPS", "# not there: ", "7,5,6,7,0,0,0,1,1,1,0,a,,\n# not there: "),
        (
            "labelme",
            2,
            "pixels",
            '"shapes": [',
            '"shapes": [{"label": "a", "points": [[5, 6]], "shape_type": "point"}, ',
        ),
    ],
)
def test_a_point_that_was_predicted_to_be_absent_is_there_when_a_person_has_placed_it(
    tmp_path, layout, axes, space, predicted, corrected
):
    names = ("1", "2") if layout == "tps" else ("a", "b")
    file = write_points(tmp_path, prediction_with_an_absent_point(layout, names, axes=axes, space=space))
    text = file.read_text()
    assert predicted in text
    file.write_text(text.replace(predicted, corrected, 1))
    table = files.read(file).with_names(names)
    assert table.states.tolist() == [[PRESENT, PRESENT]]
    if layout != "markups":  # there the predicted place stays where the person has confirmed it
        assert table.positions[0, 0].tolist() == [5, 6, 7][:axes]
