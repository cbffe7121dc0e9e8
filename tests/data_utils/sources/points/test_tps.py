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


def test_tps_counts_from_the_lowest_row_and_marks_what_is_unknown(tmp_path):
    file = tmp_path / "a.tps"
    file.write_text("lm=3\n0 0\n-1 -1\nNA NA\nID=first.png\nLM=1\n1 2\nIMAGE=C:\\x\\second.png\nCOMMENT=good\n")
    table = files.read(file)
    assert table.images == ("first.png", "C:\\x\\second.png")
    assert table.states.tolist() == [[PRESENT, UNKNOWN, UNKNOWN]] * 2
    source = table.source(0)
    assert to_pixels(source, (10, 20), "a")[0].tolist() == [9, 0]
    places = np.random.default_rng(0).uniform(0, 9, (4, 2))
    written = source._replace(positions=from_pixels(places, table.space, (10, 20)))
    assert np.allclose(to_pixels(written, (10, 20), "a"), places, atol=1e-12)


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
        ("LM=2\n1 2\n\n1 x\nID=a\n", "line 4: point 2: 'x' is no coordinate"),
        ("LM=1\n1\nID=a\n", "has 1 coordinates"),
        ("LM=1\n1 2\nID=a\nLM=1\n1 2\nID=a\n", "two points '1'; several animals"),
        ("\0\1", "has no line LM="),
    ],
)
def test_a_damaged_file_of_tps_is_refused(tmp_path, text, message):
    assert message in reading_error(tmp_path / "a.tps", text)


def test_a_file_of_tps_may_be_in_an_old_code_page_and_its_curves_are_left_out(tmp_path):
    text = "LM=2\n0 0\n\n3 NA\nCURVES=1\nPOINTS=2\n7 7\n8 8\nIMAGE=\nIMAGE=b\xe4r.png\nIMAGE=x.png\nID=3\n"
    (tmp_path / "a.tps").write_bytes(text.encode("latin-1"))
    table = files.read(tmp_path / "a.tps")
    assert table.images == ("b\xe4r.png",)
    assert table.names == ("1", "2")
    assert table.states.tolist() == [[PRESENT, UNKNOWN]]


def test_a_comma_in_a_number_of_tps_is_a_point(tmp_path):
    (tmp_path / "a.tps").write_text("LM=1\n12,5 -3,0\nIMAGE=a.png\nLM=1\n12,5 3\nIMAGE=b.png\n")
    table = files.read(tmp_path / "a.tps")
    assert table.positions[1].tolist() == [[12.5, 3.0]]
