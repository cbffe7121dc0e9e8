"""Which points or classes change places in the mirror: left and right, by their names or by `--swap`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from runtime.console import listing
from runtime.errors import DataError

WORDS = {"left": "right", "Left": "Right", "LEFT": "RIGHT"}
WORDS |= {right: left for left, right in WORDS.items()}
# a single letter between separators: L_eye, eye_l; or the first of two such letters, as in paw_LH
LETTERS = {"l": "r", "r": "l", "L": "R", "R": "L"}
WORD = re.compile("|".join(WORDS))
NUMBERED = re.compile(r"(p|pt|point|kp|kpt|key ?point|lm|landmark|marker)?[ _-]?\d+", re.IGNORECASE)  # of a point
LETTER = re.compile(r"(?<![A-Za-z])[LRlr](?![A-Za-z])|(?<![A-Z])[LR](?=[A-Z](?![A-Za-z]))")


class Sides(NamedTuple):
    """How points or classes behave in the mirror.

    Args:
        partners: for each point or class, the index of the one that it becomes.
        mirrors: whether images may be mirrored.
        line: a line on the pairs that were found; empty if there are none.
    """

    partners: tuple[int, ...]
    mirrors: bool
    line: str


def point_sides(names: Sequence[str], swap: str | None) -> Sides:
    """The sides of points; names such as 1, 2 or p1, p2 turn mirroring off. Raises DataError for a wrong `--swap`."""
    sides = find_sides(names, swap)
    if swap is None and len(names) > 1 and all(map(NUMBERED.fullmatch, names)):
        example = f"--swap {names[0]}={names[1]},..."
        line = f"mirroring is off: numbers do not say which points are left and right; {example} names them"
        return Sides(sides.partners, False, line)
    return sides


def find_sides(names: Sequence[str], swap: str | None) -> Sides:
    """The sides of names. Raises DataError for a `--swap` with other names."""
    if swap is not None:
        return _read_swap(names, swap)
    index_by_name = {name: number for number, name in enumerate(names)}
    partners = list(range(len(names)))
    pairs: list[str] = []
    alone: list[str] = []  # names with a side whose partner is missing
    for name in names:
        opposite = mirrored_name(name)
        if opposite == name:
            continue
        if opposite in index_by_name:
            partners[index_by_name[name]] = index_by_name[opposite]
            if index_by_name[name] < index_by_name[opposite]:
                pairs.append(f"{name} and {opposite}")
        else:
            alone.append(name)
    has_both_sides = len({_side(name) for name in alone}) > 1
    if has_both_sides or (alone and pairs):
        sided = listing(alone)
        line = f"mirroring is off: {sided} have a side, but no partner of their name; --swap left=right,... names them"
        return Sides(tuple(range(len(names))), False, line)
    if pairs:
        name_list = listing(pairs, separator="; ")
        return Sides(tuple(partners), True, f"in the mirror {name_list} change places")
    return Sides(tuple(partners), True, "")


def mirrored_name(name: str) -> str:
    """The name of the other side; unchanged if the name has no side."""
    opposite = WORD.sub(lambda match: WORDS[match[0]], name)
    if opposite != name:
        return opposite
    return LETTER.sub(lambda match: LETTERS[match[0]], name)


def _side(name: str) -> str:
    """`l` or `r`, of a name that has a side."""
    match = WORD.search(name) or LETTER.search(name)
    assert match is not None
    return match[0][0].lower()


def _read_swap(names: Sequence[str], swap: str) -> Sides:
    """The sides that `--swap` names."""
    partners = list(range(len(names)))
    index_by_name = {name: number for number, name in enumerate(names)}
    for pair in filter(None, (text.strip() for text in swap.split(","))):
        sides = [side.strip() for side in pair.split("=")]
        unknown = [side for side in sides if side not in index_by_name]
        if len(sides) != 2 or unknown:
            name_list = ", ".join(names)
            raise DataError(f"--swap {pair}: expected left=right with two of {name_list}")
        left, right = (index_by_name[side] for side in sides)
        if partners[left] != left or partners[right] != right or left == right:
            raise DataError(f"--swap {pair}: each has one partner, another than itself")
        partners[left] = right
        partners[right] = left
    return Sides(tuple(partners), True, "")
