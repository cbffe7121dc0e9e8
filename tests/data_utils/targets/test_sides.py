"""Which classes and points are left and right of each other, by their names."""

import pytest

from data_utils.targets.sides import mirrored_name, point_sides
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("names", "swap", "partners", "mirrors"),
    [
        (["left ear", "right ear", "nose"], None, (1, 0, 2), True),
        (["left_ear", "nose", "right_ear"], None, (2, 1, 0), True),
        (["leftear", "rightear"], None, (1, 0), True),
        (["LeftPaw", "RightPaw", "tail"], None, (1, 0, 2), True),
        (["L_eye", "R_eye", "eye_l", "eye_r", "Ball"], None, (1, 0, 3, 2, 4), True),
        (["L_eye", "R_eye", "LEFT", "RIGHT"], None, (1, 0, 3, 2), True),
        (["paw_LH", "paw_RH", "paw_LF", "paw_RF"], None, (1, 0, 3, 2), True),
        (["left_l", "right_l"], None, (1, 0), True),  # a word counts, and not a letter beside it
        (["nose", "tail", "ball"], None, (0, 1, 2), True),
        (["eyel", "eyer"], None, (0, 1), True),  # no letter stands alone
        (["L1", "L2", "L3"], None, (0, 1, 2), True),  # vertebrae
        (["left ear", "left eye"], None, (0, 1), True),  # a picture of one side
        (["Left ear", "left eye", "L_paw"], None, (0, 1, 2), True),
        (["left_R", "left ear"], None, (0, 1), True),
        (["1"], None, (0,), True),
        (["1", "tip"], None, (0, 1), True),
        (["left ear", "right ear", "left eye"], None, (0, 1, 2), False),  # one has no partner
        (["left ear", "right eye"], None, (0, 1), False),
        (["paw1LH_top", "paw2RF_top", "nose"], None, (0, 1, 2), False),
        (["1", "2"], None, (0, 1), False),
        (["1", "2"], "1=2", (1, 0), True),
        (["left ear", "right ear"], "", (0, 1), True),  # no pairs, whatever the names say
        (["a", "b", "c"], "a = b, ", (1, 0, 2), True),
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


def test_three_pairs_or_names_without_partner_are_reported():
    names = [f"{side}_{part}" for part in "abcd" for side in ("left", "right")]
    pairs = "left_a and right_a; left_b and right_b; left_c and right_c; ..."
    assert point_sides(names, None).line == f"in the mirror {pairs} change places"
    line = "mirroring is off: {} have a side, but no partner of their name; --swap left=right,... names them"
    assert point_sides(["left_a", "right_b"], None).line == line.format("left_a, right_b")
    assert point_sides(["left_a", "left_b", "left_c", "right_d"], None).line == line.format(
        "left_a, left_b, left_c, ..."
    )
    numbers = "mirroring is off: numbers do not say which points are left and right; --swap 1=2,... names them"
    assert point_sides(["1", "2"], None).line == numbers
    assert point_sides(["1", "2"], "1=2").line == point_sides(["tip"], None).line == ""
