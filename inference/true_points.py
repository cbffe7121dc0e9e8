"""The true points of inputs, from a table of all images."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from data_utils.image_io.volumes import volume_stem
from data_utils.sources.annotations.layout import without_image_roots
from data_utils.sources.folder import composed
from data_utils.sources.points.nnlandmark import case_name
from data_utils.sources.points.table import PointTable
from runtime.console import counted
from runtime.errors import DataError
from tasks.job import Job


def with_true_points(path: Path, table: PointTable, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, each with its true points.

    Raises DataError for images that the table does not list, and for points of volumes beside images, or the reverse.

    Args:
        path: the file or folder of true points.
        table: those of all images.
    """
    rows: dict[str, list[int]] = {}
    for row, image in enumerate(table.images):
        rows.setdefault(_stem(image), []).append(row)
    scored: list[Job] = []
    missing: list[str] = []
    image_by_row: dict[int, Path] = {}
    for job in jobs:
        axes = 2 if job.volume is None else 3
        if table.axes != axes:
            raise DataError(f"--truth {path}: lists points of {table.axes} axes, and {job.name} has {axes}")
        page = job.image
        if job.number and _stem(job.relative_name) in rows:  # a page of a stack, listed as stack_0002.tif
            page = page.with_name(job.relative_name.rpartition("/")[2])
        stem = _stem(str(page))
        candidates = rows.get(stem) or rows.get(case_name(stem), [])
        found = _find_row(table.images, candidates, page, without_image_roots(job.stem.parent.parts))
        if found is None or image_by_row.setdefault(found, page) != page:
            missing.append(str(job.image))
        else:
            scored.append(replace(job, truth=table.source(found)))
    if missing:
        raise DataError(
            f"--truth {path}: lists no points of {counted(len(missing), 'input')}, the first is {missing[0]};"
            " images are found by their names and folders"
        )
    return scored


def _stem(image: str) -> str:
    return composed(volume_stem(image.replace("\\", "/").rpartition("/")[2]))


def _find_row(images: Sequence[str], rows: Sequence[int], path: Path, folders: Sequence[str]) -> int | None:
    """The row of an image among `rows` of its name; None where its folders are others or those of several rows.

    A table may list an image by more folders than it has below the folder that was given, or by fewer.

    Args:
        images: the listed image of each row.
        folders: the folders of the input below the given one.
    """
    shared_parts: dict[int, tuple[int, bool]] = {}
    for row in rows:
        *listed_folders, name = images[row].replace("\\", "/").removeprefix("./").split("/")
        shared = _shared_end(listed_folders, path.resolve().parent.parts)
        is_absolute = bool(re.match(r"/|\\|[a-zA-Z]:", images[row]))  # maybe of another machine
        if folders or is_absolute:
            is_below = _shared_end(listed_folders, folders) == len(folders)
        else:
            is_below = not without_image_roots(listed_folders)
        if is_below or 0 < shared == len(listed_folders):
            shared_parts[row] = shared, name == path.name
    most = max(shared_parts.values(), default=None)
    best = [row for row, parts in shared_parts.items() if parts == most]
    if len(best) != 1:
        return None
    return best[0]


def _shared_end(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of parts at the end of two paths that agree."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
