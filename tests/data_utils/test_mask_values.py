"""Values of masks: numbers and colors, how they are written, and which stand in a row."""

import pytest

from data_utils.mask_values import parse_values
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("text", "values"),
    [(None, []), ("", []), ("-3, #0102ff", [-3, (1, 2, 255)]), ("9" * 18, [10**18 - 1])],
)
def test_values_are_read_from_a_line(text, values):
    assert parse_values(text) == values


def test_a_value_of_19_digits_is_refused():
    with pytest.raises(DataError, match=f"'{'9' * 19}' is no mask value; expected a whole number or a color"):
        parse_values("9" * 19)
