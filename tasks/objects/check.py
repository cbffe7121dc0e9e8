"""What is said of objects before training."""

from collections.abc import Iterator
from typing import Any

from data_utils.analysis.findings import Check, Findings


def pieces(findings: Findings) -> Iterator[str]:
    """Masks of one value, of which each connected piece is an object."""
    reader: Any = findings.reader  # an ObjectReader, whose module imports this one
    if reader.in_pieces:
        yield (
            "all masks hold one value, most of it in several pieces: each connected piece is an object. Number the"
            " objects in the masks if some touch; if all pieces of an image are one object, give --task classes"
        )


CHECKS: tuple[Check, ...] = (pieces,)
