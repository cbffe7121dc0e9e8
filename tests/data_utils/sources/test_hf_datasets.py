"""Tables of Hugging Face datasets: saved ones, parquet files and those of the Hub become splits of records."""

import os
import pickle
from pathlib import Path
from unittest import mock

import httpx
import pyarrow.parquet
import pytest
from huggingface_hub.errors import RepositoryNotFoundError
from PIL import Image
from support.picture_folders import (
    check_sizes,
    error_of,
    loaded,
    names,
    pixels_of_values,
    png,
    size_of,
    write_pictures,
)

from data_utils.image_io.reader import read_mask
from data_utils.sources.hf_datasets import HFRows, TableName, find_columns
from data_utils.sources.records import Records
from runtime.errors import DataError


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_id_that_is_not_there_or_cannot_be_asked_for_is_a_one_line_error(monkeypatch, streaming):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = error_of("my/cells", streaming=streaming)
    assert "is no folder here, and the Hub cannot be reached (Cannot reach" in message
    answer = httpx.Response(404, request=httpx.Request("GET", "https://hub"))
    absent = mock.Mock(side_effect=RepositoryNotFoundError("none", response=answer))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", absent)
    message = error_of("my/cells", streaming=streaming)
    assert "is no folder here, and the Hub has no data set of that name" in message


def test_a_copy_of_a_hub_data_set_is_loaded_without_the_hub(monkeypatch, tmp_path):
    import datasets

    def fail(dataset, config):
        raise ConnectionError(f"Couldn't reach {dataset!r}\non the Hub, {config}")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", fail)
    (tmp_path / "nobody___small_things").mkdir()
    message = error_of("nobody/SmallThings", dataset_config="small")
    assert "as a Hub id it cannot be loaded (Couldn't reach 'nobody/SmallThings' on the Hub, small)" in message


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """`datasets`, with its cache below tmp_path and quiet; table(count, **columns) makes one with pictures."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    yield datasets
    datasets.enable_progress_bars()


def table(datasets, count: int = 4, image: str = "image", mask: str = "mask"):
    rows = {
        image: [{"bytes": png(i), "path": f"some/{i}.jpg"} for i in range(count)],
        mask: [{"bytes": png(i % 2), "path": None} for i in range(count)],
        "id": list(range(count)),
    }
    features = {image: datasets.Image(), mask: datasets.Image(), "id": datasets.Value("int64")}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def records_of(table, mask_column: str | None = None) -> Records:
    return Records(HFRows(table, TableName("some/table", None, "train"), None, mask_column))


def test_saved_splits_are_those_of_training_and_validation_or_the_named_ones(tmp_path, tables):
    table(tables).save_to_disk(tmp_path / "one")
    assert [len(split) for split in loaded(tmp_path / "one")] == [3, 1]
    splits = {"train": table(tables, 3), "validation": table(tables, 2), "test": table(tables, 5)}
    saved_splits = tmp_path / "splits"
    tables.DatasetDict(splits).save_to_disk(saved_splits)
    assert [len(split) for split in loaded(saved_splits)] == [3, 2]
    train, val = loaded(saved_splits, train_split="validation", val_split="test")
    assert len(train) == 2
    assert names(val) == [f"{i}.jpg" for i in range(5)]
    assert size_of(val[3]["image"], "i") == (4, 6)
    assert (read_mask(val[3]["target"], "m") == 1).all()
    assert check_sizes(train).tolist() == [[4, 6]] * 2
    assert "has no split dev, only train, validation, test" in error_of(saved_splits, val_split="dev")


@pytest.mark.parametrize("mask", ["mask", "label", "annotation"])
def test_a_parquet_file_is_split(tmp_path, tables, mask):
    table(tables, mask=mask).to_parquet(tmp_path / "cells.parquet")
    assert [len(split) for split in loaded(tmp_path / "cells.parquet")] == [3, 1]


@pytest.mark.parametrize("folder", ["data", "tables"])
def test_parquet_files_of_splits_are_read_in_a_folder(tmp_path, tables, folder):
    (tmp_path / folder).mkdir()
    for split, count in (("train", 3), ("validation", 2)):
        table(tables, count).to_parquet(tmp_path / folder / f"{split}-00000-of-00001.parquet")
    train, val = loaded(tmp_path)
    assert len(train) == 3
    assert len(val) == 2
    assert pixels_of_values(train) == {0: 48, 1: 24}


def on_another_machine(tables, tmp_path: Path, records):
    """The records as another machine receives them, which does not share the cache of `datasets`."""
    pickled = pickle.dumps(records)
    (tmp_path / "cache").rename(tmp_path / "cache of the first machine")
    received = pickle.loads(pickled)
    (tmp_path / "cache of the first machine").rename(tmp_path / "cache")
    tables.config.HF_DATASETS_CACHE = str(tmp_path / "another cache")
    return received


def test_records_are_loaded_again_on_a_machine_without_their_files(tmp_path, tables):
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    splits = loaded(tmp_path / "cells.parquet")
    received = on_another_machine(tables, tmp_path, splits)
    for there, here in zip(splits, received, strict=True):
        assert len(there) == len(here)
        here.rows.open_here()
        assert list(there) == list(here)
        assert there.digest == here.digest
    files = {file["filename"] for records in received for file in records.rows.rows.cache_files}
    assert files
    assert all(file.startswith(str(tmp_path / "another cache")) for file in files)


def test_another_version_of_a_table_on_another_machine_is_refused(tmp_path, tables):
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    records, _ = on_another_machine(tables, tmp_path, loaded(tmp_path / "cells.parquet"))
    table(tables, 6).to_parquet(tmp_path / "cells.parquet")
    with pytest.raises(DataError, match=r"cells\.parquet is another version on machine"):
        records.rows.open_here()
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    os.utime(tmp_path / "cells.parquet", (10**9, 10**9))  # a copy has a time of its own
    records.rows.open_here()
    assert len(list(records)) == len(records) == 4


@pytest.mark.parametrize("dtype", ["binary", "large_binary"])
def test_bytes_of_any_length_may_be_pictures(tables, dtype):
    features = tables.Features({"image": tables.Value(dtype), "mask": tables.Image()})
    assert find_columns(features, None, None) == {"image": "image", "mask": "mask"}


def test_bytes_without_a_path_are_called_by_their_row(tmp_path, tables):
    tables.Dataset.from_dict({"image": [png(0)] * 3, "mask": [png(0)] * 3}).to_parquet(tmp_path / "b.parquet")
    assert names(loaded(tmp_path / "b.parquet", val_fraction=0.0)[1]) in (["row 0"], ["row 1"], ["row 2"])


def test_columns_of_unusual_names_are_asked_for_and_may_be_named(tmp_path, tables):
    table(tables, image="scan", mask="cells").save_to_disk(tmp_path)
    message = error_of(tmp_path)
    assert "no column image with pictures, only scan" in message
    assert "--image-column" in message
    assert len(loaded(tmp_path, image_column="scan", mask_column="cells")[0]) == 3
    message = error_of(tmp_path, image_column="scan", mask_column="id")
    assert "no column id with pictures" in message
    assert "id (int64)" in message
    assert message.endswith("choose one with --mask-column")


def test_masks_that_are_arrays_are_refused_with_what_packs_pictures(tmp_path, tables):
    table(tables, mask="scan").add_column("label", [[[0, 1]]] * 4).save_to_disk(tmp_path)
    message = error_of(tmp_path)
    assert "no column mask|label|annotation with pictures" in message
    assert "data_utils.pack" in message


def test_a_class_label_is_no_mask(tmp_path, tables):
    data = table(tables, mask="annotation").rename_column("id", "label")
    data.save_to_disk(tmp_path / "data")
    assert read_mask(loaded(tmp_path / "data")[0][0]["target"], "m").shape == (4, 6)


def test_a_parquet_file_that_is_damaged_or_without_rows_is_named(tmp_path, tables):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    assert "bad.parquet cannot be read (" in error_of(tmp_path / "bad.parquet")
    (tmp_path / "bad.parquet").unlink()
    table(tables).to_parquet(tmp_path / "a.parquet")
    table(tables).select([]).to_parquet(tmp_path / "b.parquet")
    assert "b.parquet has no rows" in error_of(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("state.json", "{}"), ("dataset_info.json", "[]")])
def test_a_damaged_description_of_a_saved_table_is_named(tmp_path, tables, name, content):
    table(tables).save_to_disk(tmp_path)
    (tmp_path / name).write_text(content)
    assert name in error_of(tmp_path)


def picture(number: int) -> dict:
    """A picture of a table, with its name."""
    return {"bytes": png(number), "path": f"some/{number}.jpg"}


def table_of_pictures(datasets, images: list, masks: list):
    features = datasets.Features({"image": datasets.Image(), "mask": datasets.Image()})
    return datasets.Dataset.from_dict({"image": images, "mask": masks}, features=features)


def test_the_key_of_a_table_changes_with_its_rows(tables):
    pictures = [picture(0), picture(1)]
    whole = table_of_pictures(tables, pictures, pictures)
    changed = table_of_pictures(tables, pictures, pictures[::-1])
    assert len({records_of(rows).digest for rows in (whole, changed, whole.select([0]))}) == 3


def test_a_row_without_mask_is_named(tmp_path, tables):
    table_of_pictures(tables, [picture(0), picture(1), picture(2)], [None, png(0), png(0)]).save_to_disk(tmp_path)
    with pytest.raises(DataError, match=r"1 of \d pairs cannot be used: 0\.jpg: mask is missing"):
        for split in loaded(tmp_path):
            check_sizes(split)


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize("name", ["train.parquet", "train.tar", "state.json", "data-00000-of-00001.arrow"])
def test_a_pipe_is_no_file_of_a_data_set(tmp_path, tables, name, streaming):
    if not name.startswith("train"):
        table(tables).save_to_disk(tmp_path)
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    path = tmp_path / name if name.startswith("train") else tmp_path
    message = "holds no .parquet or .tar" if streaming and path == tmp_path else "it is not a regular file"
    assert message in error_of(path, streaming=streaming)


TEXTS = {
    "path": str,
    "path beside no bytes": lambda path: {"bytes": None, "path": path},
    "path for bytes": lambda path: {"bytes": path, "path": "a.png"},
}


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize("column", ["image", "mask"])
@pytest.mark.parametrize("cell_of", TEXTS.values(), ids=TEXTS)
def test_a_table_opens_no_files_of_this_machine(tmp_path, tables, cell_of, column, streaming):
    Image.new("L", (6, 4)).save(tmp_path / "private.png")
    rows = {"image": [png(0)] * 4, "mask": [png(1)] * 4, column: [cell_of(str(tmp_path / "private.png"))] * 4}
    (tmp_path / "set").mkdir()
    for split in ("train", "val"):
        pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "set" / f"{split}.parquet")
    message = r"bytes of pictures, not their paths|not the bytes of a picture|with pictures, only|empty, not an image"
    with pytest.raises(DataError, match=message):
        for split in loaded(tmp_path / "set", streaming=streaming):
            check_sizes(split)


def test_a_saved_table_opens_no_files_of_this_machine(tmp_path, tables):
    Image.new("L", (6, 4)).save(tmp_path / "private.png")
    rows = table_of_pictures(tables, [{"bytes": None, "path": str(tmp_path / "private.png")}] * 4, [picture(0)] * 4)
    file = tmp_path / "saved" / "data-00000-of-00001.arrow"
    rows.save_to_disk(tmp_path / "saved")
    embedded = tables.Dataset.from_file(str(file))
    assert next(iter(records_of(embedded)))["image"] == (tmp_path / "private.png").read_bytes()
    with tables.arrow_writer.ArrowWriter(features=rows.features, path=str(file)) as writer:
        writer.write_table(rows.data.table)
        writer.finalize()
    with pytest.raises(DataError, match=r"^private\.png is a path or a text in its table, not the bytes of a picture"):
        loaded(tmp_path / "saved")[0][0]


def test_a_later_file_of_a_stream_opens_no_files_of_this_machine(tmp_path):
    Image.new("L", (6, 4)).save(tmp_path / "private.png")
    for number, image in enumerate((png(0), str(tmp_path / "private.png"))):
        rows = pyarrow.table({"image": [image], "mask": [png(0)]})
        pyarrow.parquet.write_table(rows, tmp_path / f"{number}.parquet")
    train, val = loaded(tmp_path, streaming=True, val_fraction=0.5)
    with pytest.raises(DataError, match=r"^1\.parquet row 0 is a path or a text in its table"):
        names([*train, *val])


@pytest.mark.parametrize(
    "setting", ["datasets.config.DOWNLOADED_DATASETS_PATH", "huggingface_hub.constants.HF_HUB_CACHE"]
)
def test_pictures_that_a_hub_data_set_has_downloaded_are_read(tmp_path, tables, monkeypatch, setting):
    monkeypatch.setattr(setting, str(tmp_path / "downloads"))
    write_pictures(tmp_path, "downloads/a.png", "private.png")
    cells = [{"bytes": None, "path": str(tmp_path / name)} for name in ("downloads/a.png", "downloads/../private.png")]
    records = records_of(table_of_pictures(tables, cells, [picture(0)] * 2))
    assert records[0] == {"image": cells[0]["path"], "target": png(0), "name": "a.png"}
    with pytest.raises(DataError, match=r"^private\.png is a path or a text in its table"):
        records[1]
