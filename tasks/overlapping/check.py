"""What is said of classes that may overlap, and of regions, before training."""

from collections.abc import Iterator
from typing import Any

from data_utils.analysis.findings import Check, Findings


def sides(findings: Findings) -> Iterator[str]:
    """The classes that change places in the mirror, or why images are not mirrored."""
    reader: Any = findings.reader  # a BitReader, whose module imports this one
    if reader.sides is not None and reader.sides.line:
        yield reader.sides.line


CHECKS: tuple[Check, ...] = (sides,)
