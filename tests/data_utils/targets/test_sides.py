"""Which classes and points are left and right of each other, by their names."""

import pytest

from data_utils.targets.sides import mirrored_name, point_sides
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("names", "swap", "partners", "mirrors"),
    [
        (["left ear", "right ear", "nose"], None, (1, 0, 2), True),
        (["left_ear", "nose", "right_ear"], None, (2, 1, 0), True),
        (["LeftPaw", "RightPaw", "tail"], None, (1, 0, 2), True),
        (["L_eye", "R_eye", "eye_l", "eye_r", "Ball"], None, (1, 0, 3, 2, 4), True),
        (["left_l", "right_l"], None, (1, 0), True),  # a word counts, and not a letter beside it
        (["nose", "tail", "ball"], None, (0, 1, 2), True),
        (["L1", "L2", "L3"], None, (0, 1, 2), True),  # vertebrae
        (["left ear", "left eye"], None, (0, 1), True),  # a picture of one side
        (["left ear", "right ear", "left eye"], None, (0, 1, 2), False),  # one has no partner
        (["1", "2"], None, (0, 1), False),
        (["p0", "p1"], None, (0, 1), False),
        (["Landmark_1", "Landmark_2"], None, (0, 1), False),
        (["1", "2"], "1=2", (1, 0), True),
        (["left ear", "right ear"], "", (0, 1), True),  # no pairs, whatever the names say
        (["paw1LH", "paw2LF", "paw3RF", "paw4RH"], "paw1LH=paw4RH, paw2LF=paw3RF", (3, 2, 1, 0), True),
    ],
)
def test_left_and_right_are_read_from_names_or_from_the_flag(names, swap, partners, mirrors):
    sides = point_sides(names, swap)
    assert sides.partners == partners
    assert sides.mirrors == mirrors
    assert ("mirroring is off" in sides.line) == (not mirrors)
    assert [mirrored_name(mirrored_name(name)) for name in names] == names


@pytest.mark.parametrize("swap", ["a=b,b=c", "a=b,c=b", "a=b,a=c", "a=b,b=a", "a=a", "a=b=c", "a", "a=x"])
def test_a_swap_that_names_no_pairs_of_points_is_refused(swap):
    with pytest.raises(DataError, match="--swap "):
        point_sides(("a", "b", "c"), swap)
