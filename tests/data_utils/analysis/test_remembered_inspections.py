"""What a look at a data set found is remembered until a file changes.

Modules: data_utils/analysis/inspection.py.
"""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.data_sets import load_info, rewrite
from support.folders import write_folder
from support.inspections import write_tiffs
from support.volumes import write_msd

from data_utils.analysis import inspection
from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.analysis.inspect_record import Inspection, Rules, inspect_record
from data_utils.analysis.problems import Problem
from data_utils.sources.records import Record
from runtime.cache import cache_folder
from runtime.errors import DataError


@pytest.fixture
def looks(monkeypatch) -> list[str]:
    """Names of the records that have been looked at, in any thread."""
    calls: list[str] = []

    def noted(record: Record, rules: Rules) -> Inspection | Problem:
        calls.append(record["name"])
        return inspect_record(record, rules)

    monkeypatch.setattr(inspection, "inspect_record", noted)
    return calls


def same(a: DatasetInfo, b: DatasetInfo) -> bool:
    arrays = np.array_equal(a.train.sizes, b.train.sizes) and np.array_equal(a.val.sizes, b.val.sizes)
    return arrays and (a.reader, a.normalization) == (b.reader, b.normalization)


@pytest.mark.parametrize("dims", [2, 3])
def test_a_second_start_looks_at_no_file_and_knows_the_same(tmp_path, looks, dims):
    if dims == 3:
        folder, settings = write_msd(tmp_path, 3), {"crop_size": (8, 8, 8), "normalization": "ct"}
    else:
        folder, settings = write_folder(tmp_path / "data", 20, seed=0), {}
        Image.fromarray(np.full((40, 56), 4000, np.uint16)).save(
            folder / "images" / "cell_02.png"
        )  # which is warned of
    first = load_info(folder, **settings)
    assert len(looks) == len({*looks}) == {2: 20, 3: 3}[dims]  # each once
    looks.clear()
    again = load_info(folder, **settings)
    assert looks == []
    assert same(again, first)
    assert again.warnings == first.warnings
    assert np.array_equal(again.train.spacings, first.train.spacings)
    for index, locations in first.train.class_locations.items():
        for places, remembered in zip(locations, again.train.class_locations[index], strict=True):
            assert np.array_equal(places, remembered)


def draw_mask(image: Path, mask: Path) -> None:
    Image.fromarray(np.full((40, 56), 9, np.uint8)).save(mask)


def draw_image(image: Path, mask: Path) -> None:
    Image.new("RGB", (56, 40)).save(image)


def add_pair(image: Path, mask: Path) -> None:
    for file in (mask, image):
        file.with_name("new.png").write_bytes(file.read_bytes())


def remove_pair(image: Path, mask: Path) -> None:
    mask.unlink()
    image.unlink()


def rewrite_mask(image: Path, mask: Path) -> None:
    rewrite(mask, mask.read_bytes(), mask.stat().st_mtime_ns + 1)


@pytest.mark.parametrize(
    ("change", "images", "new_values"),
    [
        (draw_mask, 20, {9}),
        (draw_image, 20, set()),
        (add_pair, 21, set()),
        (remove_pair, 19, set()),
        (rewrite_mask, 20, set()),
    ],
)
def test_a_changed_folder_is_looked_at_again(tmp_path, looks, monkeypatch, change, images, new_values):
    folder = write_folder(tmp_path / "data", 20, seed=0)
    load_info(folder)
    folder = folder.rename(tmp_path / "moved")
    looks.clear()
    load_info(folder)
    assert looks == []
    change(folder / "images" / "cell_03.png", folder / "masks" / "cell_03.png")
    again = load_info(folder)
    assert {*again.reader.class_map.values} - {0, 255} == new_values
    assert len(looks) == images
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert same(again, load_info(folder))


def test_a_damaged_cache_only_costs_time(tmp_path, looks, monkeypatch):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = load_info(folder)
    files = list(cache_folder().glob("*.json"))
    assert len(files) == 4  # both splits, the task, and the brightness
    for file in files:
        file.write_text(file.read_text()[:-5])
    looks.clear()
    assert same(load_info(folder), first)
    assert len(looks) == 12
    looks.clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # it cannot be written
    assert same(load_info(folder), first)
    assert len(looks) == 12


def test_problems_are_not_remembered(tmp_path):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    file, content = folder / "masks" / "cell_03.png", (folder / "masks" / "cell_03.png").read_bytes()
    stamp = file.stat().st_mtime_ns
    rewrite(file, b"x" * len(content), stamp)
    for _ in range(2):
        with pytest.raises(DataError, match=r"cell_03\.png: mask cannot be read"):
            load_info(folder)
    rewrite(file, content, stamp)
    assert len(load_info(folder).train) == 11


def test_the_normalization_is_that_of_the_images_that_this_run_measures(tmp_path, monkeypatch):
    """Images drawn by another seed, or no longer left out, or read in windows, are measured anew."""
    write_tiffs(tmp_path / "train", {f"{width}": (40, width) for width in range(48, 60, 2)})
    write_tiffs(tmp_path / "val", {"c": (40, 56)})
    for number, file in enumerate(sorted((tmp_path / "train" / "images").iterdir())):
        pixels = np.random.default_rng(number).integers(0, 40 * number + 2, (40, 48 + 2 * number, 3), np.uint8)
        tifffile.imwrite(file, pixels, photometric="rgb", tile=(32, 32))
    mask = np.zeros((40, 48), np.uint8)
    mask[3] = 9
    tifffile.imwrite(tmp_path / "train" / "masks" / "48.tif", mask, photometric="minisblack", tile=(32, 32))
    monkeypatch.setattr("data_utils.analysis.normalization.STATISTICS_IMAGES", 4)
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 8)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 40 * 48)
    ways = [
        {"seed": 0},
        {"seed": 1},
        {"seed": 0, "crop_size": (16, 16)},
        *({"seed": seed, "classes": "0=a,1=b", "on_bad_sample": "skip"} for seed in (0, 1)),
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    normalizations = [load_info(tmp_path, **way).normalization for way in ways]
    for number, way in enumerate(ways):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache_{number}"))
        assert load_info(tmp_path, **way).normalization == normalizations[number], way
    assert len({normalization.mean for normalization in normalizations}) >= 4


def test_a_look_at_whole_images_is_not_taken_for_one_in_windows(tmp_path, monkeypatch):
    write_tiffs(tmp_path / "train", {"a": (40, 56), "b": (40, 56)})
    write_tiffs(tmp_path / "val", {"c": (40, 56)})
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 40 * 56)
    assert not load_info(tmp_path).train.class_locations
    assert [*load_info(tmp_path, crop_size=(16, 16)).train.class_locations] == [0, 1]
