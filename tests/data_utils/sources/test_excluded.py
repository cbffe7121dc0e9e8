"""--exclude: the images of a list are in no split, and the others stay where they were."""

from pathlib import Path

import numpy as np
import pytest
from support.data_sets import load_info
from support.folders import write_folder
from support.picture_folders import write_pictures

from data_utils.config import DataConfig
from data_utils.sources.load import leave_out, load_records
from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError


def names(dataset, **settings) -> list[list[str]]:
    return [[record["name"] for record in split] for split in load_records(DataConfig(str(dataset), **settings))]


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path / "data", 10, seed=0)


@pytest.fixture
def list_file(tmp_path) -> Path:
    """The file that --exclude names, which is to be written."""
    return tmp_path / "list.txt"


def test_images_of_a_list_are_left_out_without_moving_the_others(folder, list_file):
    train, val = names(folder, val_fraction=0.3)
    list_file.write_text(f"# wrong masks\n{train[2]}\n\n  {val[0]} \n")
    left = names(folder, val_fraction=0.3, exclude=str(list_file))
    assert left == [[*train[:2], *train[3:]], val[1:]]
    info = load_info(folder, val_fraction=0.3, exclude=str(list_file))
    assert (len(info.train), len(info.val)) == (6, 2)
    assert info.fingerprint() != load_info(folder, val_fraction=0.3).fingerprint()


def test_names_of_a_list_may_be_written_by_another_system(tmp_path, list_file):
    pictures = ["a\u0301.png", "site/b.png", "site/c.png", "d.png", "e.png", "slide#1.png"]
    write_pictures(tmp_path / "data", *(f"{kind}/{name}" for kind in ("images", "masks") for name in pictures))
    list_file.write_bytes("\ufeff\u00e1.png\r\nsite\\b.png\r\n.\\site\\c.png\r\nslide#1.png".encode())
    left = names(tmp_path / "data", exclude=str(list_file), val_fraction=0.5)
    assert sorted(left[0] + left[1]) == ["d.png", "e.png"]


def test_images_of_a_stream_cannot_be_left_out(tmp_path):
    records = Records(ListRows([{"image": "", "target": "", "name": "a"}]))
    records.rows.group_sizes = np.array([1])
    with pytest.raises(DataError, match="the images of a stream are not known before training; leave the flag out"):
        leave_out(records, records, tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"nobody.png\n", "the data set has no nobody.png; take such lines out of the list"),
        (b"z.png\nx.png\ny.png\n", "the data set has no x.png, y.png, z.png; take such lines out of the list"),
        (b"\xff\xfe", "cannot be read as text"),
    ],
    ids=["one unknown name", "three unknown names", "no text"],
)
def test_a_list_that_cannot_be_used_is_a_one_line_error(folder, list_file, content, line):
    list_file.write_bytes(content)
    with pytest.raises(DataError, match=line):
        names(folder, exclude=str(list_file))


@pytest.mark.parametrize(("split", "kind"), [(0, "training"), (1, "validation")])
def test_a_list_that_leaves_no_image_of_a_split_is_a_one_line_error(folder, list_file, split, kind):
    list_file.write_text("\n".join(names(folder)[split]))
    with pytest.raises(DataError, match=f"leaves no {kind} image; shorten the list"):
        names(folder, exclude=str(list_file))


def test_a_name_of_a_training_and_a_validation_image_leaves_out_both_with_a_line(tmp_path, list_file, capsys):
    for split in ("train", "val"):
        write_folder(tmp_path / "data" / split, 3, seed=0)
    train, val = names(tmp_path / "data")
    list_file.write_text(train[0])
    assert names(tmp_path / "data", exclude=str(list_file)) == [train[1:], val[1:]]
    assert f"{train[0]}: a training and a validation image have this name, both are left out" in capsys.readouterr().out
