"""Tables of objects: of an image, of a volume, of all images, and those that somebody has changed.

Modules: tasks/objects/write.py.
"""

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.prediction import image_job
from support.written_files import DETECTED, TILTED, tilted_volume_job, write_object_table

from runtime.errors import DataError
from tasks.job import MASK, Job
from tasks.objects.write import IMAGE_COLUMNS, TABLE, VOLUME_COLUMNS, ObjectFormat, place_cells, table_rows
from tasks.prediction import PredictedImage, Prediction

FORMAT = ObjectFormat(("nothing", "cell", "dirt"))
SOLID = DETECTED._replace(center=(1.0, 2.0, 0.5), box=(0, 1, 0, 3, 4, 2))


TWO = Prediction(np.zeros((3, 4), np.int32), [DETECTED, DETECTED._replace(number=2, class_index=1)])


def test_the_table_of_an_image_says_of_each_object_its_class_and_score(tmp_path):
    job = replace(image_job(tmp_path), output=tmp_path / "a", root=tmp_path)
    FORMAT.write_table(PredictedImage(job, (3, 4), TWO))
    lines = job.file(TABLE).read_text().splitlines()
    assert lines[1:] == ["1,dirt,10,1.25,2.50,0,1,3,4,0.5432", "2,cell,10,1.25,2.50,0,1,3,4,0.5432"]
    assert b"\r" not in job.file(TABLE).read_bytes()


def test_cells_of_an_object_in_a_volume_say_its_place_in_millimeters():
    header = SimpleNamespace(spacing=(3.0, 1.5, 2.0), affine=TILTED)
    x, y, z, _ = TILTED @ [0.5, 2.0, 1.0, 1]
    expected = ["90", f"{x:.3f}", f"{y:.3f}", f"{z:.3f}", "0", "1", "0", "3", "4", "2"]
    assert place_cells(SOLID, header) == expected
    assert place_cells(SOLID._replace(size=137), header)[0] == "1233"


@pytest.fixture
def jobs(tmp_path) -> list[Job]:
    """An image with mask and table, one without a mask, one without a table, and a volume with both."""
    jobs = [image_job(tmp_path, name) for name in ("sub/a\udce9", "no_mask", "no_table")]
    jobs.append(tilted_volume_job(tmp_path))
    for job in jobs:
        job.file(MASK).parent.mkdir(parents=True, exist_ok=True)
    for job in (jobs[0], jobs[2], jobs[3]):
        job.file(MASK).write_bytes(b"mask")
    for job in jobs[:2]:
        write_object_table(job.file(TABLE), (1, "cell", (0, 0, 2, 2)), (2, "dirt", (2, 1, 3, 4)))
    row = dict.fromkeys(VOLUME_COLUMNS, "7") | {"class": "cell"}
    jobs[3].file(TABLE).write_text(",".join(VOLUME_COLUMNS) + "\n" + ",".join(row.values()) + "\n")
    return jobs


def read_joined(folder: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and rows of the table of all objects."""
    with (folder / "objects.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        table = csv.DictReader(file)
        rows = list(table)
    return table.fieldnames, rows


def test_a_table_of_all_objects_has_those_of_images_with_mask_and_table(tmp_path, jobs):
    FORMAT.write_joined(tmp_path / "out", jobs)
    _, rows = read_joined(tmp_path / "out")
    assert [row["image"] for row in rows] == ["sub/a\udce9.tif", "sub/a\udce9.tif", "v.nii"]
    assert [row["area"] for row in rows] == ["4", "4", ""]
    assert [row["voxels"] for row in rows] == ["", "", "7"]


@pytest.mark.parametrize("step", [1, -1], ids=["images first", "volumes first"])
def test_a_table_of_all_objects_has_each_column_of_images_or_volumes_once(tmp_path, jobs, step):
    FORMAT.write_joined(tmp_path / "out", jobs[::step])
    columns, _ = read_joined(tmp_path / "out")
    assert len(columns) == len(set(columns))
    assert set(columns) == {"image", *IMAGE_COLUMNS, *VOLUME_COLUMNS}


def test_a_table_of_all_objects_is_named_with_the_number_of_its_objects(tmp_path, jobs, capsys):
    FORMAT.write_joined(tmp_path / "out", jobs)
    printed = capsys.readouterr().out
    assert "3 objects in 2 images" in printed
    assert str(tmp_path / "out" / "objects.csv") in printed


@pytest.mark.parametrize(
    "line",
    [
        "x,cell,4,0,0,0,0,2,2,0.5",
        "1,cell,4.5,0,0,0,0,2,2,0.5",
        "1,cell,4,0,0,a,0,2,2,0.5",
        "1,cell,4,0,0,0,0,2,2.5,0.5",
        "1,cell,4,0,0,0,0,2,2,high",
        "1,cell",
        pytest.param("1," + 200_000 * "x", id="a cell that csv refuses"),
    ],
)
def test_a_table_of_objects_with_a_changed_row_is_refused(tmp_path, line):
    table = write_object_table(tmp_path / "a.csv", (1, "cell", (0, 0, 2, 2)))
    with table.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"a\.csv: is not as prediction wrote it"):
        list(table_rows(table, IMAGE_COLUMNS))


@pytest.mark.parametrize("text", ["number,class\n", ""], ids=["two columns", "empty"])
def test_a_table_of_objects_with_other_columns_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match="expected the columns number, class, area"):
        list(table_rows(tmp_path / "a.csv", IMAGE_COLUMNS))
