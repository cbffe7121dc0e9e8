"""A resumed run knows that a file has changed: by its name, its size or, of some files, by what it holds."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.data_sets import load_info
from support.folders import write_folder
from support.inspections import PICTURE

from data_utils.analysis import content
from data_utils.analysis.content import content_key
from data_utils.config import DataConfig
from data_utils.image_io.formats import (
    BandSource,
    Box,
    EmbeddedImage,
    ImageSource,
    PageFile,
    SceneWindow,
    VolumeFile,
)
from data_utils.image_io.places import Grid, Place, PlacedMask
from data_utils.sources.annotations.coco import CocoMask
from data_utils.sources.annotations.labelme import LabelmeMask
from data_utils.sources.annotations.yolo import YoloMask
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRows, Metadata, Records


def test_names_and_sizes_of_all_files_and_the_content_of_16_of_a_split_count_and_not_their_times_or_place(tmp_path):
    folder = tmp_path / "data"
    write_folder(folder / "train", 20, seed=0)
    write_folder(folder / "val", 3, seed=1)
    info = load_info(folder)
    config = DataConfig(str(folder))
    changed = 0
    for file in folder.rglob("*.png"):
        held = file.read_bytes()
        file.write_bytes(held + b"x")
        assert content_key(load_records(config)) != info.content, f"{file} has grown"
        file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))  # in a chunk that decoders pass over
        changed += content_key(load_records(config)) != info.content
        file.write_bytes(held)
        os.utime(file, (1, 1))
    assert changed == 2 * (16 + 3)
    shutil.move(folder, tmp_path / "elsewhere")
    assert load_info(tmp_path / "elsewhere").content == info.content
    for kind in ("images", "masks"):
        (tmp_path / "elsewhere" / "train" / kind / "cell_01.png").rename(
            tmp_path / "elsewhere" / "train" / kind / "cell_01a.png"
        )
    assert load_info(tmp_path / "elsewhere").content != info.content


@pytest.mark.parametrize(
    ("size", "changed"), [(40, [0, 11, 25, 39]), (400, [0, 135, 399])], ids=["small file", "large file"]
)
def test_a_large_file_counts_by_blocks_from_its_start_to_its_end(tmp_path, monkeypatch, size, changed):
    monkeypatch.setattr(content, "WHOLE_BYTES", 40)
    monkeypatch.setattr(content, "BLOCK_BYTES", 10)
    file = tmp_path / "volume.nii"
    file.write_bytes(bytes(size))
    keys = {value_key(VolumeFile((str(file),)))}
    for place in changed:
        held = bytearray(size)
        held[place] = 1
        file.write_bytes(held)
        keys.add(value_key(VolumeFile((str(file),))))
    assert len(keys) == 1 + len(changed)


class Embedded(EmbeddedImage):
    """A picture inside another file."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def render(self) -> bytes:
        return self.content


def value_key(source: ImageSource) -> str:
    """The key of one record whose image and target are this source."""
    return content_key([Records(ListRows([{"image": source, "target": source, "name": "a"}]))])


@pytest.mark.parametrize(
    "source_of",
    [np.ndarray.tobytes, np.array, lambda pixels: Embedded(pixels.tobytes())],
    ids=["bytes", "array", "embedded"],
)
def test_a_picture_in_memory_counts_by_what_it_holds(source_of):
    keys = [value_key(source_of(np.full((2, 2), value, np.uint8))) for value in (0, 1, 1)]
    assert keys[0] != keys[1]
    assert keys[1] == keys[2]


@pytest.mark.parametrize(
    "source_of",
    [BandSource, VolumeFile, lambda files: PageFile(files[1], reads_place=False)],
    ids=["bands", "volume", "picture"],
)
def test_each_file_of_an_image_counts(tmp_path, source_of):
    red, nir = tmp_path / "red.tif", tmp_path / "nir.tif"
    red.write_bytes(b"00")
    keys = set()
    for held in (b"00", b"01", b"011"):
        nir.write_bytes(held)
        keys.add(value_key(source_of((str(red), str(nir)))))
    assert len(keys) == 3


def labeled(other: int | None) -> Records:
    """Records of which one is labeled for other classes than the others."""
    pixels = np.zeros((2, 2), np.uint8)
    rows = ListRows([{"image": pixels, "target": pixels, "name": "a"}] * 40)
    metadata = Metadata(label_sets={("car",): "classes.csv", ("dog",): "classes.csv"})
    return Records(rows, metadata, label_numbers=np.array([number == other for number in range(40)], np.int32))


def test_the_classes_that_each_image_is_labeled_for_count():
    assert len({content_key([labeled(other)]) for other in (None, *range(40))}) == 41


def test_streams_do_not_count():
    records = Records(ListRows([{"image": PICTURE, "target": PICTURE, "name": "a"}]))
    stream = Records(ListRows([{"image": PICTURE, "target": PICTURE, "name": "b"}]))
    stream.rows.group_sizes = np.array([1])
    assert content_key([stream]) == content_key([])
    assert content_key([stream, records]) == content_key([records])


PLACE = Place((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), 32633, ())
COCO = CocoMask(("a.json", "b.json"), "a.tif", {"cell": 1}, b"{}")


def placed(mask: ImageSource) -> PlacedMask:
    """A mask of 2 x 2 pixels, of an image of 4 x 6."""
    return PlacedMask(mask, "a", Grid(PLACE, (2, 2)), Grid(PLACE, (4, 6)))


def window(mask: ImageSource) -> SceneWindow:
    return SceneWindow(mask, "a", (4, 6), Box(0, 4, 0, 3))


@pytest.mark.parametrize(
    ("mask", "key"),
    [
        (window(COCO), "01dbfbd47fd4"),
        (window(replace(COCO, bits=((1, 0),))), "e4fa4af2cdec"),
        (window(LabelmeMask(("a.json",), "a.tif", {"cell": 1})), "e0d1ac2445b2"),
        (window(YoloMask(("a.txt",), "a.tif", {0: 1})), "5f7976e2ef27"),
        (window(placed("m.png")), "85ee22fa95b2"),
        (placed(np.array([[0, 1], [2, 3]], np.uint8)), "85b5fb68c027"),
        (placed(np.array([[0, 1], [2, 3]], np.uint16)), "38de92aca909"),
        (placed(np.array([[0, 1], [2, -3]])), "b8d40afb109d"),
    ],
)
def test_blocks_of_drawn_masks_and_masks_on_other_grids_have_the_keys_of_earlier_versions_in_every_process(mask, key):
    assert content_key([Records(ListRows([{"image": b"", "target": mask, "name": "a"}]))]) == key
