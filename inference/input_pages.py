"""The pages of inputs, and where their truth is found."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tasks.job import Job


class InputPages(NamedTuple):
    """An input whose headers have been read.

    Args:
        stem: the path of the input's outputs without extension, relative to the folder of all outputs.
        jobs: one for each page, at first without truth.
        page_stems: the stem of the outputs of each page.
    """

    stem: Path
    jobs: Sequence[Job]
    page_stems: Sequence[Path]


class Truth(Protocol):
    """The place where the truth of inputs is found."""

    def with_truths(self, inputs: Sequence[InputPages]) -> list[Job]:
        """The jobs of all pages of the inputs, each with its truth. Raises DataError if some have none."""
