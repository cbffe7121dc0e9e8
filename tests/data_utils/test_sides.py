"""Which classes and points are left and right of each other, by their names."""

import pytest

from data_utils.targets.sides import mirrored_name, point_sides
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("names", "partners", "mirrors"),
    [
        (("left ear", "right ear", "nose"), (1, 0, 2), True),
        (("left ear", "right ear", "left eye"), (0, 1, 2), False),  # one has no partner
        (("left ear", "right eye"), (0, 1), False),
        (("left ear", "left eye"), (0, 1), True),  # a picture of one side
        (("Left ear", "left eye", "L_paw"), (0, 1, 2), True),
        (("1",), (0,), True),
        (("1", "2"), (0, 1), False),
        (("1", "tip"), (0, 1), True),
        (("paw_LH", "paw_RH", "paw_LF", "paw_RF"), (1, 0, 3, 2), True),
        (("L_eye", "R_eye", "LEFT", "RIGHT"), (1, 0, 3, 2), True),
        (("eyel", "eyer"), (0, 1), True),  # no letter stands alone
    ],
)
def test_left_and_right_are_read_from_names(names, partners, mirrors):
    sides = point_sides(names, None)
    assert (sides.partners, sides.mirrors) == (partners, mirrors)
    assert [mirrored_name(mirrored_name(name)) for name in names] == [*names]


@pytest.mark.parametrize("swap", ["a=b,b=c", "a=b,c=b", "a=b,a=c", "a=a", "a=b=c", "a", "a=x"])
def test_a_point_has_one_partner_and_another_than_itself(swap):
    assert point_sides(("a", "b", "c"), "a=b, ").partners == (1, 0, 2)
    with pytest.raises(DataError, match="--swap "):
        point_sides(("a", "b", "c"), swap)
