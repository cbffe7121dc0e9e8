"""A resumed run knows that a file has changed: by its name, its size or, of some files, by what it holds."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import load_info, write_folder
from inspections import PICTURE
from PIL import Image

from data_utils.analysis import content
from data_utils.analysis.content import content_key, file_paths, sampled_indices
from data_utils.image_io.formats import BandSource, EmbeddedImage, ImageSource, PictureFile, RenderedMask, VolumeFile
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import DataError


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "data" / "train", 20, seed=0)
    write_folder(tmp_path / "data" / "val", 3, seed=1)
    return tmp_path / "data"


def test_each_file_counts_by_name_and_size_and_16_of_a_split_by_content(folder):
    info = load_info(folder)
    key = info.content
    splits = info.train.records, info.val.records
    assert content_key(splits) == key
    by_content = []
    for file in sorted(folder.rglob("*.png")):
        held = file.read_bytes()
        file.write_bytes(held + b"x")
        assert content_key(splits) != key, f"{file} has grown"
        # other bytes in a chunk that decoders pass over
        file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
        if content_key(splits) != key:
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


class Embedded(EmbeddedImage):
    """A picture inside another file."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self) -> bytes:
        return self.content


class Rendered(RenderedMask):
    """A mask of annotations."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def render(self) -> np.ndarray:
        return self.pixels


def key_of(source: ImageSource) -> str:
    """The key of one record whose image and target are this source."""
    return content_key([ListRecords([{"image": source, "target": source, "name": "a"}])])


@pytest.mark.parametrize("place", ["bytes", "array", "picture", "embedded", "rendered"])
def test_pictures_in_memory_count_by_what_they_hold(place):
    keys = set()
    for value in (0, 1, 1):
        pixels = np.full((2, 2), value, np.uint8)
        sources: dict[str, ImageSource] = {
            "bytes": {"bytes": pixels.tobytes(), "path": None},
            "array": pixels,
            "picture": Image.fromarray(pixels),
            "embedded": Embedded(pixels.tobytes()),
            "rendered": Rendered(pixels),
        }
        keys.add(key_of(sources[place]))
    assert len(keys) == 2


def test_arrays_count_by_their_shape_and_type_too():
    arrays = [np.zeros((2, 2), np.uint8), np.zeros((1, 4), np.uint8), np.zeros((1, 4), np.int8)]
    assert len({key_of(array) for array in arrays}) == 3


def test_each_file_of_an_image_counts(tmp_path):
    files = tuple(str(tmp_path / name) for name in ("red.tif", "nir.tif"))
    for source in (BandSource(files), VolumeFile(files), PictureFile(files[1])):
        keys = set()
        for held in (b"00", b"01", b"011"):
            for file in files:
                with open(file, "wb") as stream:
                    stream.write(b"00")
            with open(files[1], "wb") as stream:
                stream.write(held)
            keys.add(key_of(source))
        assert len(keys) == 3


def test_the_size_of_each_file_of_an_image_counts_also_where_its_content_is_not_looked_at(tmp_path):
    files = [str(tmp_path / f"{number}.tif") for number in range(80)]
    for file in files:
        Path(file).write_bytes(b"00")
    records = ListRecords(
        [
            {"image": BandSource((files[2 * i], files[2 * i + 1])), "target": files[2 * i], "name": str(i)}
            for i in range(40)
        ]
    )
    before = content_key([records])
    Path(files[3]).write_bytes(b"0000")  # the second band of the second image, of which no content is read
    assert content_key([records]) != before


class Labeled(ListRecords):
    """Records of which one is labeled for other classes than the others."""

    def __init__(self, other: int | None) -> None:
        pixels = np.zeros((2, 2), np.uint8)
        super().__init__([{"image": pixels, "target": pixels, "name": "a"}] * 40)
        self.metadata = Metadata(label_sets={("car",): "classes.csv", ("dog",): "classes.csv"})
        self.other = other

    def labeled(self, i: int) -> tuple[str, ...]:
        return ("dog",) if i == self.other else ("car",)


def test_what_each_image_is_labeled_for_counts():
    assert len({content_key([Labeled(other)]) for other in (None, *range(40))}) == 41


class Damaged(RenderedMask):
    """Annotations that cannot be rendered."""

    def render(self) -> np.ndarray:
        raise DataError("a.json: is damaged")


def test_what_cannot_be_read_counts_too(tmp_path):
    pixels = np.zeros((2, 2), np.uint8)
    targets = [pixels, Damaged(), str(tmp_path / "none.png")]
    keys = {content_key([ListRecords([{"image": pixels, "target": target, "name": "a"}])]) for target in targets}
    assert len(keys) == 3


def test_at_most_sixteen_records_are_sampled_from_the_first_to_the_last():
    assert sampled_indices(1) == [0]
    assert sampled_indices(16) == list(range(16))
    assert sampled_indices(31) == list(range(0, 31, 2))
    assert len(sampled_indices(1000)) == 16
    assert sampled_indices(1000)[-1] == 999


def test_the_files_of_a_source_are_known(tmp_path):
    assert file_paths("a.png") == file_paths(Path("a.png")) == ("a.png",)
    assert file_paths(VolumeFile(("a.nii", "b.nii"))) == ("a.nii", "b.nii")
    assert file_paths({"path": "a.png", "bytes": None}) == ("a.png",)
    assert file_paths({"path": "a.png", "bytes": b"x"}) == file_paths({"path": None}) == file_paths(PICTURE) == ()


def test_records_without_files_count_by_their_names_and_streams_do_not_count():
    def named(name: str, **attributes) -> ListRecords:
        records = ListRecords([{"image": PICTURE, "target": PICTURE, "name": name}])
        for attribute, value in attributes.items():
            setattr(records, attribute, value)
        return records

    assert content_key([named("a")]) != content_key([named("b")])
    stream = named("a", group_sizes=np.array([1]))
    assert content_key([stream]) == content_key([])
    assert content_key([stream, named("b")]) == content_key([named("b")])
