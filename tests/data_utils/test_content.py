"""A resumed run knows that a file has changed: by its name, its size or, of some files, by what it holds."""

import os
import shutil

import numpy as np
import pytest
from conftest import load_info, write_folder

from data_utils.analysis import content
from data_utils.analysis.content import content_key
from data_utils.image_io.formats import RenderedMask, VolumeFile
from data_utils.sources.records import ListRecords
from runtime.errors import DataError


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "data" / "train", 20, seed=0)
    write_folder(tmp_path / "data" / "val", 3, seed=1)
    return tmp_path / "data"


def test_each_file_counts_by_name_and_size_and_16_of_a_split_by_content(folder):
    key = load_info(folder).content
    by_content = []
    for file in sorted(folder.rglob("*.png")):
        held = file.read_bytes()
        file.write_bytes(held + b"x")
        assert load_info(folder).content != key, f"{file} has grown"
        # other bytes in a chunk that decoders pass over
        file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
        if load_info(folder).content != key:
            by_content.append(file)
        file.write_bytes(held)
    assert len(by_content) == 2 * (16 + 3)
    for kind in ("images", "masks"):
        (folder / "train" / kind / "cell_01.png").rename(folder / "train" / kind / "cell_01a.png")
    assert load_info(folder).content != key


def test_neither_the_time_nor_the_place_of_a_file_counts(folder, tmp_path):
    key = load_info(folder).content
    for file in folder.rglob("*.png"):
        os.utime(file, (1, 1))
    assert load_info(folder).content == key
    shutil.move(folder, tmp_path / "elsewhere")
    assert load_info(tmp_path / "elsewhere").content == key


def test_of_a_large_file_blocks_from_its_start_to_its_end_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "WHOLE_BYTES", 40)
    monkeypatch.setattr(content, "BLOCK_BYTES", 10)
    file = tmp_path / "volume.nii"
    records = ListRecords([{"image": VolumeFile((str(file),)), "target": VolumeFile((str(file),)), "name": "a"}])

    def key(changed: int | None, size: int) -> str:
        held = bytearray(size)
        if changed is not None:
            held[changed] = 1
        file.write_bytes(held)
        return content_key([records])

    whole = [key(changed, 40) for changed in (None, 0, 11, 25, 39)]
    assert len(set(whole)) == 5
    blocks = [key(changed, 400) for changed in (None, 0, 135, 399)]
    assert len(set(blocks)) == 4


@pytest.mark.parametrize("place", ["bytes", "array"])
def test_pictures_in_memory_count_by_what_they_hold(place):
    keys = set()
    for value in (0, 1):
        pixels = np.full((2, 2), value, np.uint8)
        source = {"bytes": pixels.tobytes(), "path": None} if place == "bytes" else pixels
        keys.add(content_key([ListRecords([{"image": source, "target": pixels, "name": "a"}])]))
    assert len(keys) == 2


class Damaged(RenderedMask):
    """Annotations that cannot be rendered."""

    def render(self) -> np.ndarray:
        raise DataError("a.json: is damaged")


def test_what_cannot_be_read_counts_too(tmp_path):
    pixels = np.zeros((2, 2), np.uint8)
    targets = [pixels, Damaged(), str(tmp_path / "none.png")]
    keys = {content_key([ListRecords([{"image": pixels, "target": target, "name": "a"}])]) for target in targets}
    assert len(keys) == 3
