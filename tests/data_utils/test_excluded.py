"""--exclude: the images of a list are in no split, and the others stay where they were."""

import pytest
from conftest import load_info, write_folder

from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from runtime.errors import DataError


def names(dataset, **settings) -> list[list[str]]:
    return [[record["name"] for record in split] for split in load_records(DataConfig(str(dataset), **settings))]


def test_the_images_of_a_list_are_left_out_and_no_other_image_changes_its_split(tmp_path):
    folder = write_folder(tmp_path / "data", 10, seed=0)
    train, val = names(folder, val_fraction=0.3)
    listed = tmp_path / "list.txt"
    listed.write_text(f"# wrong masks\n{train[2]}\n\n  {val[0]} \n")
    left = names(folder, val_fraction=0.3, exclude=str(listed))
    assert left == [[*train[:2], *train[3:]], val[1:]]
    info = load_info(folder, val_fraction=0.3, exclude=str(listed))
    assert len(info.train) == 6 and len(info.val) == 2
    assert info.fingerprint() != load_info(folder, val_fraction=0.3).fingerprint()


def test_a_list_that_cannot_be_used_is_one_line(tmp_path):
    folder = write_folder(tmp_path / "data", 4, seed=0)
    _, val = names(folder)
    listed = tmp_path / "list.txt"
    for content, line in (
        (b"nobody.png\n", "the data set has no nobody.png; take such lines out of the list"),
        ("\n".join(val).encode(), "leaves no validation image; shorten the list"),
        (b"\xff\xfe", "is no list of names"),
    ):
        listed.write_bytes(content)
        with pytest.raises(DataError, match=line):
            names(folder, exclude=str(listed))
    with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\)"):
        names(folder, exclude=str(tmp_path / "none.txt"))
