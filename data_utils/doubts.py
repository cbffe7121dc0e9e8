"""What may be meant as it is, and yet looks like a mistake: lines for the start of a run."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from data_utils.inspection import Survey
from data_utils.masks import IGNORE, MaskClasses, Value, as_grey, show

RARE = 1e-4  # of all pixels
SHOWN = 3  # values in a line
Pairs = Sequence[tuple[Survey, Sequence[dict]]]


def doubts(
    pairs: Pairs, pixels: dict[Value, int], classes: MaskClasses, *, named: bool, ignored: bool
) -> tuple[str, ...]:
    """Of splits whose masks hold `pixels`: a line for each; what was `named` or `ignored` by a flag is meant."""
    lines = [] if ignored else [*_two_ways(pairs)]
    return (*lines, *_mixed_depths(pairs), *([] if named else _rare_classes(pairs, pixels, classes)))


def _rare_classes(pairs: Pairs, pixels: dict[Value, int], classes: MaskClasses) -> Iterator[str]:
    """Of classes that were found: mask values of so few pixels that they may be strays."""
    total = sum(pixels.values())
    rare = [value for value in classes.values if pixels.get(value, 0) < RARE * total]
    if rare:
        shown = [
            f"{show([value])} ({pixels.get(value, 0)} pixels, {_first_with(value, pairs)})" for value in rare[:SHOWN]
        ]
        yield (
            f"less than {RARE:.2%} of all mask pixels are {', '.join(shown + ['...'] * (len(rare) > SHOWN))}: stray"
            " values? Each became a class; --classes names those that are meant, --ignore-index one that is not"
        )


def _first_with(value: Value, pairs: Pairs) -> str:
    """The masks that hold a value: how many, and which is the first."""
    count, first = 0, None
    for survey, records in pairs:
        holding = [number for number, (_, values) in enumerate(survey.contents) if {value, as_grey(value)} & {*values}]
        members = np.flatnonzero(np.isin(survey.members, holding))
        count += len(members)
        if first is None and len(members):
            first = records[int(members[0])]["name"]
    return f"in {count} masks, the first is {first}"


def _two_ways(pairs: Pairs) -> Iterator[str]:
    """Masks of 0 and 1 beside masks of 0 and 255: then 255 is taken for what is to be ignored."""
    contents = [set(values) for survey, _ in pairs for _, values in survey.contents]
    if set().union(*contents) == {0, 1, IGNORE} and not any({1, IGNORE} <= values for values in contents):
        yield (
            f"some masks hold 1 ({_first_with(1, pairs)}), others 255 ({_first_with(IGNORE, pairs)}), none both: is one"
            " class stored in two ways? As they are, 255 is ignored; store all in one way"
        )


def _mixed_depths(pairs: Pairs) -> Iterator[str]:
    """Images of 8 bits beside deeper ones, whose values differ by as much as their ranges do."""
    modes = sum((survey.modes for survey, _ in pairs), Counter())
    deep = {mode for mode in modes if mode.startswith(("I", "F", "uint16", "uint32", "int", "float"))}
    if deep and deep < modes.keys():
        listed = ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())
        yield f"images of 8 bits and deeper ones are mixed ({listed}): store all in one way"
