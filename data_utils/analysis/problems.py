"""The problems for which records cannot be used, and how their lines are merged and raised."""

import re
from collections.abc import Mapping, Sequence

from data_utils.analysis.inspection import Content, Problem, SplitInspection, UnusableRecord
from data_utils.class_map import ClassMap
from data_utils.image_io.reader import size_mismatch
from data_utils.image_io.resize import same_proportions
from data_utils.invented_values import SWAPPED_FOLDERS_HINT, describe_invented, excess_values
from data_utils.mask_values import MAX_VALUES, as_color, show
from data_utils.sources.records import Records
from data_utils.targets.reader import TargetReader
from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

LOSSY = "lossy mask"  # a kind of problem
NAMES_IN_MESSAGE = 3  # files with the same problem that a message names
NUMBER = re.compile(r"#?\b\d[\da-f]*\b(, (\.\.\.)?)?")  # mask values and sizes in a text
MIN_MERGED_FILES = 4  # from this many files with the same problem on, one line stands for all


def check_proportions(name: str, image: tuple[int, int], mask: tuple[int, int]) -> None:
    """Raises UnusableRecord if image and mask (H, W) have different proportions."""
    if not same_proportions(image, mask):
        raise UnusableRecord(Problem("mask and image differ in proportions", size_mismatch(name, image, mask)))


def check_values(name: str, pixels: Mapping[MaskValue, int], *, is_jpeg: bool = False) -> None:
    """Raises UnusableRecord if a mask of classes holds values that JPEG has invented, or too many."""
    excess = excess_values(pixels)
    if is_jpeg and len(pixels) > 2:
        text = f"{name}: mask looks like a photograph: {SWAPPED_FOLDERS_HINT}?"
        if excess is None or describe_invented(pixels) is not None:
            text = (
                f"{name}: mask is a JPEG with the values {show(sorted(pixels))}; compression has invented some, and"
                " re-saving the file keeps them: export the mask again as PNG (or are images and masks swapped?)"
            )
        raise UnusableRecord(Problem(LOSSY, text))
    if excess is not None:
        text = f"{name}: mask holds more than {MAX_VALUES} values: {excess}"
        raise UnusableRecord(Problem("too many mask values", text))


def exclude_unreadable(inspection: SplitInspection, records: Records, reader: TargetReader) -> None:
    """Add to the inspection's problems the records whose masks hold values that cannot be turned into a target."""
    for content, _, members in inspection.used_contents():
        if reader.class_map is not None:
            kind = "unknown mask value"
            text = _unknown_values(content, reader.class_map)
        else:
            kind = "number of no object"
            text = reader.find_problem(content.values)
        if not text:
            continue
        for i in members.tolist():
            inspection.exclude(i, Problem(kind, f"{records.name(i)}: {text}"))


def _unknown_values(content: Content, class_map: ClassMap) -> str | None:
    """The mistake in masks that hold values without a class; None if all have one."""
    values = content.values
    if class_map.has_colors and content.kind == "greys":
        values = tuple(as_color(value) for value in values)
    unknown = [value for value in values if class_map.index_of(value) is None]
    if not unknown:
        return None
    return (
        f"mask values {show(unknown)} belong to no class; classes are {show(class_map.values)}; name them in"
        " --classes, --outside ignore leaves them out, or is it a lossy (JPEG) mask?"
    )


def raise_problems(inspection: SplitInspection, count: int) -> None:
    """One DataError for all problems, which names the first few."""
    if inspection.problems:
        texts = [problem.text for problem in inspection.problems.values()]
        problem_list = listing(merge_equal(texts), separator="; ")
        remedy = "; --on-bad-sample skip trains without them" if len(texts) < count else ""
        raise DataError(f"{len(texts)} of {count} pairs cannot be used: {problem_list}{remedy}")


def merge_equal(texts: Sequence[str], limit: int = NAMES_IN_MESSAGE) -> list[str]:
    """Merge texts `NAME: problem`: if many names have the same problem, one text lists the first of these names.

    Texts that differ only in their numbers are merged too; the merged text has the numbers of the first one.
    """
    problems_by_text: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        name, _, problem = text.partition(": ")
        problems_by_text.setdefault(NUMBER.sub("", problem), []).append((name, problem))
    lines = []
    for group in problems_by_text.values():
        if len(group) < MIN_MERGED_FILES:
            lines += [": ".join(filter(None, name_and_problem)) for name_and_problem in group]
            continue
        names = listing([name for name, _ in group], limit=limit)
        _, problem = group[0]
        lines.append(f"{len(group)} files ({names}): {problem}")
    return lines
