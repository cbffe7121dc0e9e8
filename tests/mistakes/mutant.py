"""What a mutant is."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One mistake.

    Attributes:
        file: the module, from the repository's root.
        place: the function in it (`name` or `Class.name`), a class, or nothing for the module's own lines.
        before: an expression, or statements, that stand once in that place.
        after: what stands there instead.
        tests: the test files that should notice, by name.
    """

    file: str
    place: str
    before: str
    after: str
    tests: str
