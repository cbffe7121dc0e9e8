"""Links below a folder: to a folder that holds them they are a circle, others are followed.

Module: data_utils/sources/folder.py.
"""

import os

import pytest
from support.data_sets import load_info
from support.folders import write_folder

from data_utils.sources.folder import walk
from runtime.errors import DataError


@pytest.mark.parametrize("target", [".", "..", "../..", "../images"])
def test_a_link_to_a_folder_that_holds_it_is_refused(tmp_path, target):
    write_folder(tmp_path / "data", 4, seed=0)
    (tmp_path / "data" / "images" / "latest").symlink_to(target)
    with pytest.raises(DataError, match=r"images/latest is a link to .*, a folder that holds the link itself"):
        load_info(tmp_path / "data", val_fraction=0.5)


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path):
    assert list(walk(tmp_path / "none")) == []
    with pytest.raises(DataError, match="none cannot be read"):
        list(walk(tmp_path / "none", strict=True))


def test_other_links_are_followed(tmp_path):
    write_folder(tmp_path / "elsewhere", 4, seed=0)
    (tmp_path / "data").mkdir()
    for kind in ("images", "masks"):
        (tmp_path / "data" / kind).mkdir()
        (tmp_path / "data" / kind / "more").symlink_to(tmp_path / "elsewhere" / kind)
    (tmp_path / "data" / "images" / "itself").symlink_to("itself")
    info = load_info(tmp_path / "data", val_fraction=0.5)
    assert len(info.train) + len(info.val) == 4
    assert [os.path.basename(parent) for parent, _, _ in walk(tmp_path / "data" / "masks")] == ["masks", "more"]
