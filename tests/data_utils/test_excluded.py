"""--exclude: the images of a list are in no split, and the others stay where they were."""

import numpy as np
import pytest
from conftest import load_info, write_folder

from data_utils.config import DataConfig
from data_utils.sources.excluded import leave_out, read_names, shown_name
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords
from runtime.errors import DataError


def names(dataset, **settings) -> list[list[str]]:
    return [[record["name"] for record in split] for split in load_records(DataConfig(str(dataset), **settings))]


def test_the_images_of_a_list_are_left_out_and_no_other_image_changes_its_split(tmp_path):
    folder = write_folder(tmp_path / "data", 10, seed=0)
    train, val = names(folder, val_fraction=0.3)
    list_file = tmp_path / "list.txt"
    list_file.write_text(f"# wrong masks\n{train[2]}\n\n  {val[0]} \n")
    left = names(folder, val_fraction=0.3, exclude=str(list_file))
    assert left == [[*train[:2], *train[3:]], val[1:]]
    info = load_info(folder, val_fraction=0.3, exclude=str(list_file))
    assert len(info.train) == 6
    assert len(info.val) == 2
    assert info.fingerprint() != load_info(folder, val_fraction=0.3).fingerprint()
    list_file.write_text(val[0])
    splits = [load_records(DataConfig(str(folder), val_fraction=0.3, exclude=file)) for file in (None, str(list_file))]
    (whole_train, whole_val), (same_train, other_val) = splits
    assert same_train.digest == whole_train.digest
    assert other_val.digest != whole_val.digest


def test_names_stand_in_a_list_in_one_line_and_without_passwords():
    records = ListRecords([{"image": "", "target": "", "name": "s3://key:secret@bucket/a\nb.png"}])
    assert shown_name(records, 0) == r"s3://bucket/a\nb.png"


def test_a_line_is_a_remark_where_it_begins_with_a_hash(tmp_path):
    (tmp_path / "list.txt").write_text("# first\nslide#1.png\n  # second\n")
    assert read_names(tmp_path / "list.txt") == {"slide#1.png"}


def test_images_of_a_stream_cannot_be_left_out(tmp_path):
    records = ListRecords([{"image": "", "target": "", "name": "a"}])
    records.group_sizes = np.array([1])
    with pytest.raises(DataError, match="the images of a stream are not known before training; leave the flag out"):
        leave_out(records, records, tmp_path / "list.txt")


def test_a_list_that_cannot_be_used_is_one_line(tmp_path):
    folder = write_folder(tmp_path / "data", 4, seed=0)
    train, val = names(folder)
    list_file = tmp_path / "list.txt"
    for content, line in (
        (b"nobody.png\n", "the data set has no nobody.png; take such lines out of the list"),
        (b"z.png\nx.png\ny.png\n", "the data set has no x.png, y.png, z.png; take such lines out of the list"),
        ("\n".join(val).encode(), "leaves no validation image; shorten the list"),
        ("\n".join(train).encode(), "leaves no training image; shorten the list"),
        (b"\xff\xfe", "is no list of names"),
    ):
        list_file.write_bytes(content)
        with pytest.raises(DataError, match=line):
            names(folder, exclude=str(list_file))
    with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\)"):
        names(folder, exclude=str(tmp_path / "none.txt"))
