"""Points in files of TPS, which are numbered and count from the lowest row."""

import numpy as np
import pytest
from support.points import point_table, reading_error, write_points

from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.points import files
from data_utils.sources.points.spaces import from_pixels, to_pixels


def test_numbered_points_keep_their_numbers_where_some_are_chosen(tmp_path):
    positions = np.array([[[5.0, 6.0], [7.0, 8.0]]])
    table = point_table("tps", ("3", "1"), ("a.png",), positions, np.full((1, 2), PRESENT), ("",))
    again = files.read(write_points(tmp_path, table))
    assert again.names == ("1", "2", "3")
    assert again.states.tolist() == [[PRESENT, UNKNOWN, PRESENT]]
    assert again.positions[0].tolist() == [[7, 8], [0, 0], [5, 6]]
    assert again.with_names(("3", "1")).positions.tolist() == table.positions.tolist()


@pytest.fixture
def two_specimens(tmp_path):
    """A file of two images, of which the first has three points and the second has one."""
    file = tmp_path / "a.tps"
    file.write_text("lm=3\n0 0\n-1 -1\nNA NA\nID=first.png\nLM=1\n1 2\nIMAGE=C:\\x\\second.png\nCOMMENT=good\n")
    return file


def test_an_image_of_tps_is_named_by_its_path_or_number(two_specimens):
    assert files.read(two_specimens).images == ("first.png", "C:\\x\\second.png")


def test_a_point_of_tps_is_unknown_where_it_is_negative_or_missing(two_specimens):
    assert files.read(two_specimens).states.tolist() == [[PRESENT, UNKNOWN, UNKNOWN], [PRESENT, UNKNOWN, UNKNOWN]]


def test_tps_counts_from_the_lowest_row(two_specimens):
    assert to_pixels(files.read(two_specimens).source(0), (10, 20), "a")[0].tolist() == [9, 0]


def test_places_return_to_the_rows_of_tps(two_specimens):
    table = files.read(two_specimens)
    places = np.random.default_rng(0).uniform(0, 9, (4, 2))
    positions = from_pixels(places, table.space, (10, 20))
    source = table.source(0)._replace(positions=positions)
    assert np.allclose(to_pixels(source, (10, 20), "a"), places, atol=1e-12)


def test_a_point_beyond_the_border_is_written_on_it(tmp_path):
    positions = np.array([[[-0.4, 6.0]]])
    table = point_table("tps", ("1",), ("a.png",), positions, np.full((1, 1), PRESENT), ("",))
    again = files.read(write_points(tmp_path, table))
    assert again.states.tolist() == [[PRESENT]]
    assert again.positions[0, 0].tolist() == [0, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nLM=2\n1 2\nIMAGE=a.png\n", "line 2: '2' points are to follow, but there are 1; is the file cut off"),
        ("LM=2\n1 2\n3 4\n", "no IMAGE= and no ID=; is the file cut off"),
        ("LM=1\n1 1e300\nID=a\n", "1e300 is not within"),
        ("LM=2\n1 2\n1 x\nID=a\n", "line 1: point 2: 'x' is no coordinate"),
        ("LM=1\n1\nID=a\n", "has 1 coordinates"),
        ("LM=1\n1 2\nID=a\nLM=1\n1 2\nID=a\n", "two points '1'; several animals"),
        ("\0\1", "has no line LM="),
    ],
)
def test_a_damaged_file_of_tps_is_refused(tmp_path, text, message):
    assert message in reading_error(tmp_path / "a.tps", text)


@pytest.fixture
def old_specimen(tmp_path):
    """A file in the code page of an old program, with an empty line, a curve and three names of its image."""
    text = "LM=2\n0 0\n\n3 NA\nCURVES=1\nPOINTS=2\n7 7\n8 8\nIMAGE=\nIMAGE=b\xe4r.png\nIMAGE=x.png\nID=3\n"
    (tmp_path / "a.tps").write_bytes(text.encode("latin-1"))
    return files.read(tmp_path / "a.tps")


def test_an_image_of_tps_may_be_named_in_the_code_page_of_an_old_program(old_specimen):
    assert old_specimen.images == ("b\xe4r.png",)


def test_a_curve_of_tps_is_left_out(old_specimen):
    assert old_specimen.names == ("1", "2")
    assert old_specimen.states.tolist() == [[PRESENT, UNKNOWN]]
    assert old_specimen.space == "pixels from the bottom"


def test_a_comma_in_a_number_of_tps_is_a_point(tmp_path):
    (tmp_path / "a.tps").write_text("LM=1\n12,5 -3,0\nIMAGE=a.png\nLM=1\n12,5 3\nIMAGE=b.png\n")
    table = files.read(tmp_path / "a.tps")
    assert table.positions[1].tolist() == [[12.5, 3.0]]
