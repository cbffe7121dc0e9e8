"""Values of masks: numbers and colors, how they are written, and which stand in a row."""

import pytest

from data_utils.mask_values import is_run, parse_values, value_key
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("value", "key"),
    [(7, 7), ((1, 2, 3), 0x030201), ((255, 0, 254), 0xFE00FF), ((256, 0, 0), -1), ((0, -1, 0), -1)],
)
def test_a_key_packs_a_color_into_a_number(value, key):
    assert value_key(value) == key


@pytest.mark.parametrize(
    ("text", "values"),
    [(None, []), ("", []), ("-3, #0102ff", [-3, (1, 2, 255)]), ("9" * 18, [10**18 - 1])],
)
def test_values_are_read_from_a_line(text, values):
    assert parse_values(text) == values


def test_a_value_of_19_digits_is_refused():
    with pytest.raises(DataError, match=f"'{'9' * 19}' is no mask value; expected a whole number or a color"):
        parse_values("9" * 19)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((2, 0, 1), True), ((0, 1, 255), True), ((0, 2), False), ((1, 2), False), ((0, 1, 254), False)],
)
def test_numbers_are_a_run_from_0_on_whether_or_not_some_are_ignored(values, expected):
    assert is_run(values) is expected
