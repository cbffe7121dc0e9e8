"""Parquet files: their rows in groups, and how pictures in them are named."""

import pyarrow.parquet
import pytest

from data_utils.sources.streams.parquet import ParquetRows
from runtime.errors import DataError


def test_a_picture_of_an_empty_name_is_called_by_its_row_in_the_file(tmp_path):
    images = [{"bytes": b"1", "path": path} for path in ("a.png", None, "")]
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "mask": [b"2"] * 3}), tmp_path / "a.parquet")
    records = ParquetRows.open([str(tmp_path / "a.parquet")], None, None)
    names = ["a.png", "a.parquet row 1", "a.parquet row 2"]
    assert [record["name"] for record in records] == [records.name(i) for i in range(3)] == names


def test_a_path_in_a_parquet_file_that_is_no_text_is_a_one_line_error(tmp_path):
    path = pyarrow.array([b"\xff.png"]).cast(pyarrow.binary()).view(pyarrow.string())
    image = pyarrow.StructArray.from_arrays([pyarrow.array([b"1"]), path], ["bytes", "path"])
    pyarrow.parquet.write_table(pyarrow.table({"image": image, "mask": [b"2"]}), tmp_path / "a.parquet")
    records = ParquetRows.open([str(tmp_path / "a.parquet")], None, None)
    with pytest.raises(DataError, match=r"^a\.parquet row 0 cannot be read \('utf-8' codec"):
        records[0]


def test_parquet_files_without_rows_are_one_line(tmp_path):
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": [b"1"], "mask": [b"2"]})[:0], file)
    with pytest.raises(DataError, match=r"a\.parquet: there are no rows"):
        ParquetRows.open([str(file)], None, None)
