"""images.csv of a run: the score of each validation image at the best evaluation, which runs are compared by."""

import io
from collections.abc import Sequence
from pathlib import Path

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.sources.excluded import shown_name
from runtime.documents import MOST_BYTES_OF_DATA, TableWriter, parse_csv, read_bytes
from runtime.files import replace_file

IMAGE_SCORES = "images.csv"
COLUMN = "image"


def write_image_scores(folder: Path, info: DatasetInfo, compared_by: str, comparisons: Sequence[float]) -> None:
    """Write folder/images.csv: a line for each validation image that is not skipped. Raises OSError.

    Args:
        compared_by: the name of the score that images are compared by, the title of the second column.
        comparisons: this score of each validation image; empty if a checkpoint of an earlier version had none.
    """
    if len(comparisons) != len(info.val):
        return
    text = io.StringIO()
    table = TableWriter(text)
    table.writerow((COLUMN, compared_by))
    occurrences: dict[str, int] = {}
    for index, score in enumerate(comparisons):
        if index in info.val.bad:
            continue
        name = shown_name(info.val.records, index)
        occurrences[name] = occurrences.get(name, 0) + 1
        if occurrences[name] > 1:  # images of one name are in the same order in every run
            name = f"{name} ({occurrences[name]})"
        table.writerow((name, f"{score:.9g}"))  # nine digits tell any two float32 apart
    with replace_file(folder / IMAGE_SCORES) as file:
        file.write(text.getvalue().encode())


def read_image_scores(folder: Path) -> dict[str, float]:
    """The score of each image by name. Raises OSError, and ValueError for a file that is no such table."""
    text = read_bytes(folder / IMAGE_SCORES, MOST_BYTES_OF_DATA).decode()
    rows = parse_csv(text, strict=True)
    _, header = next(rows, (1, []))
    if len(header) != 2 or header[0] != COLUMN:
        raise ValueError(f"its first line is not {COLUMN!r} and a score")
    scores: dict[str, float] = {}
    for line, row in rows:
        if len(row) != 2 or not 0 <= float(row[1]) <= 1:
            raise ValueError(f"line {line} is not a name and a score from 0 to 1")
        scores[row[0]] = float(row[1])
    return scores
