"""Bands of files and of scenes: which of them are read, and what a model that was trained on them reads.

Modules: data_utils/sources/pictures.py, data_utils/sources/places.py.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.data_sets import load_info
from support.folders import touch
from support.rasters import scene, write_raster

from data_utils.config import DataConfig
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.sources.load import load_records
from data_utils.sources.pictures import band_names, find_scenes, scene_folders
from runtime.errors import DataError

BAND_NAMES = ("B02", "B03", "B04", "B08", "B11")


def write_scenes(folder: Path) -> Path:
    """A data set of four scenes, each a file of five bands that lacks data in its first three rows."""
    for number in range(4):
        bands, mask = scene(number)
        bands[:, :3] = 0
        write_raster(folder / "images" / f"scene{number}.tif", bands, nodata=0, names=BAND_NAMES)
        write_raster(folder / "masks" / f"scene{number}.tif", mask[None])
    return folder


def write_scenes_of_files(folder: Path) -> Path:
    """The data set of `write_scenes`, where each scene is a folder with a file for each band."""
    for number in range(4):
        bands, mask = scene(number)
        bands[:, :3] = 0
        name = f"scene{number}"
        for band, plane in zip(BAND_NAMES, bands, strict=True):
            write_raster(folder / "images" / name / f"T33_{name}_{band}_10m.tif", plane[None], nodata=0)
        write_raster(folder / "masks" / f"{name}.tif", mask[None])
    return folder


def test_bands_that_are_files_are_those_of_one_file(tmp_path):
    folders = [write_scenes(tmp_path / "a"), write_scenes_of_files(tmp_path / "b")]
    one, several = [load_info(folder, bands=("B03", "B11"), task="classes") for folder in folders]
    assert one.normalization == several.normalization
    assert one.channels == 2
    assert one.preprocess().bands == several.preprocess().bands == ("B03", "B11")
    images = []
    for info in (one, several):
        images.append(TrainingDataset(info.train, info, info.preprocess()).load(0)[0])
    assert np.array_equal(*images)


def test_a_band_that_no_file_or_one_image_lacks_is_named_with_the_files(tmp_path):
    write_scenes_of_files(tmp_path)
    with pytest.raises(DataError, match=r"no file is band B12; its files are .*T33_scene\d_B02_10m\.tif, "):
        load_info(tmp_path, bands=("B12",), task="classes")
    (tmp_path / "images" / "scene0" / "T33_scene0_B03_10m.tif").unlink()
    with pytest.raises(DataError, match="scene0: no file is band B03"):
        load_info(tmp_path, task="classes")


def test_the_network_sees_the_mean_where_there_is_no_data(tmp_path):
    info = load_info(write_scenes(tmp_path), task="classes")
    preprocess = info.preprocess()
    pixels, _ = TrainingDataset(info.train, info, preprocess).load(0)
    assert np.allclose(pixels[:, 0], np.round(preprocess.mean)[:, None])


@pytest.mark.parametrize(
    ("scale", "fit_targets", "size", "unknown_rows", "known_from"),
    [(1.0, True, (40, 56), 3, 3), (0.5, False, (40, 56), 3, 3), (0.5, True, (20, 28), 1, 2)],
    ids=["whole", "half with a target of its own size", "half"],
)
def test_the_network_learns_nothing_where_there_is_no_data(
    tmp_path, scale, fit_targets, size, unknown_rows, known_from
):
    info = load_info(write_scenes(tmp_path), task="classes")
    preprocess = replace(info.preprocess(), scale=scale)
    dataset = TrainingDataset if fit_targets else EvaluationDataset
    _, target = dataset(info.train, info, preprocess).load(0)
    assert target.main.shape == size
    assert (target.main[:unknown_rows] == 255).all()
    assert (target.main[known_from:] != 255).all()


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["x/S2_B02.tif", "x/S2_B03.tif"], ("B02", "B03")),
        (["a.1 red.tif", "a.2 red.tif"], ("1", "2")),
        (["a_x_1.tif", "a_x_2.tif", "a_y_3.tif"], ("1", "2", "3")),  # the first word in which all of them differ
        (["red.tif", "nir-2.tif"], ("red", "nir")),
        (["B02_10m.tif", "B05_20m.tif"], ("B02", "B05")),
        (["a_b.tif"], ("a_b",)),
        (["a.tif", "a_b.tif"], ("a", "a_b")),
    ],
)
def test_bands_that_are_files_are_called_by_the_word_that_tells_them_apart(files, names):
    assert band_names(files) == names


def test_scenes_are_folders_of_tiffs(tmp_path):
    touch(tmp_path, "a/B1.tif", "a/B2.tif", "b/B1.tif", "c/d/B1.tif")
    touch(tmp_path, ".DS_Store", "a/notes.txt", "a/._B1.png", ".cache/x.png")
    assert scene_folders(tmp_path) == {"a": ["a/B1.tif", "a/B2.tif"], "b": ["b/B1.tif"], "c/d": ["c/d/B1.tif"]}


def folders_of_scenes(folder: Path, *names: str) -> tuple[Path, Path]:
    """The folders of images and of masks, which hold these empty files."""
    touch(folder, *names)
    return folder / "images", folder / "masks"


def test_scenes_or_masks_without_partner_are_named_and_left_out_with_a_flag(tmp_path):
    names = ("images/a/B1.tif", "images/b/B1.tif", "masks/a.png", "masks/c.png")
    folders = folders_of_scenes(tmp_path, *names)
    message = r"2 files without partner: b: image without mask; c\.png: mask without image; --allow-unpaired"
    with pytest.raises(DataError, match=message):
        find_scenes(*folders, DataConfig())
    records = find_scenes(*folders, DataConfig(allow_unpaired=True))
    assert [record["name"] for record in records] == ["a"]
    assert len(records.metadata.unpaired) == 2


@pytest.mark.parametrize(("suffix", "count"), [(None, 1), ("", None)], ids=["found", "none"])
def test_the_suffix_of_masks_of_scenes_is_found_unless_it_is_given(tmp_path, suffix, count):
    folders = folders_of_scenes(tmp_path, "images/a/B1.tif", "masks/a_x.png")
    records = find_scenes(*folders, DataConfig(mask_suffix=suffix))
    assert (None if records is None else len(records)) == count


def test_the_key_of_records_changes_with_the_bands_or_where_the_place_does_not_count(tmp_path):
    write_scenes(tmp_path)
    ways = [{"bands": ("B03",)}, {"bands": ("B11", "B02")}, {"bands": ("B02", "B11")}, {"place": False}]
    digests = set()
    for way in ways:
        digests |= {records.digest for records in load_records(DataConfig(str(tmp_path), task="classes", **way))}
    assert len(digests) == 8
    assert None not in digests
