"""Links below a folder: to a folder that holds them they are a circle, others are followed."""

import os

import pytest
from support.data_sets import load_info
from support.folders import write_folder

from data_utils.sources.folder import natural_sort_key
from data_utils.sources.walk import walk
from runtime.errors import DataError


@pytest.mark.parametrize("target", [".", "..", "../..", "../images"])
def test_a_link_to_a_folder_that_holds_it_is_refused(tmp_path, target):
    write_folder(tmp_path / "data", 4, seed=0)
    (tmp_path / "data" / "images" / "latest").symlink_to(target)
    with pytest.raises(DataError, match=r"images/latest is a link to .*, a folder that holds the link itself"):
        load_info(tmp_path / "data", val_fraction=0.5)


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path):
    errors: list[OSError] = []
    assert list(walk(tmp_path / "none", errors.append)) == []
    assert [type(error) for error in errors] == [FileNotFoundError]


def test_two_links_to_each_others_folders_are_refused(tmp_path):
    for folder, other in (("a", "b"), ("b", "a")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "link").symlink_to(tmp_path / other)
    with pytest.raises(DataError, match="holds the link itself"):
        list(walk(tmp_path))


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


def test_a_circle_is_found_below_a_root_that_is_a_link_itself(tmp_path):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "inner" / "loop").symlink_to(tmp_path / "real")
    (tmp_path / "root").symlink_to("real")
    with pytest.raises(DataError, match="holds the link itself"):
        list(walk(tmp_path / "root"))


def test_names_that_differ_by_a_leading_zero_have_one_order():
    names = ["b1", "b01", "a2", "a10"]
    expected = ["a2", "a10", "b01", "b1"]
    assert sorted(names, key=natural_sort_key) == sorted(reversed(names), key=natural_sort_key) == expected
