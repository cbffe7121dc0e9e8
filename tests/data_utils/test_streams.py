"""Packed and streamed data sets; and that every image is seen exactly once however the work is shared.

Modules: data_utils/pack.py, data_utils/sources/streams/parquet.py, data_utils/sources/streams/remote.py,
data_utils/sources/streams/webdataset.py.
"""

import io
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import aiohttp
import numpy as np
import pyarrow.parquet
import pytest
import tifffile
import torch
from accelerate.data_loader import BatchSamplerShard
from conftest import TINY, launch, load_info, losses, write_folder, write_splits
from counted_files import NOTES, CountedFiles, Reads
from PIL import Image
from torch.utils.data import DataLoader

from data_utils import pack as pack_module
from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import EmbeddedImage
from data_utils.image_io.reader import read_image
from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler, stream_batches
from data_utils.loading.loaders import NetworkShapes, build_loaders
from data_utils.pack import pack
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from data_utils.sources.load import load_records, load_stream
from data_utils.sources.records import ListRecords, Subset
from data_utils.sources.streams import remote, webdataset
from data_utils.sources.streams.parquet import ParquetRecords
from data_utils.sources.streams.remote import content_key, find_files, is_remote, kind_of
from data_utils.sources.streams.webdataset import TarRecords, group_samples
from runtime.cache import cache_folder
from runtime.errors import DataError
from unet.config import UNetConfig

CLASSES = "0=background,255=cell"
STREAM = {"classes": CLASSES, "image_size": (40, 56)}
SIZE = (40, 56)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """47 pairs to train on, a number that nothing divides, and 5 to validate on."""
    folder = tmp_path_factory.mktemp("folder")
    return write_splits(folder, 47, 5)


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory) -> Path:
    """The same, in parquet files of uneven length with small row groups."""
    out = tmp_path_factory.mktemp("packed")
    info = load_info(folder)
    for split, records, shards in (("train", info.train.records, 3), ("val", info.val.records, 1)):
        megabytes = sum(Path(r[k]).stat().st_size for r in records for k in ("image", "target")) / 2**20 / shards
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("data_utils.pack.GROUP_ROWS", 4)
            pack(records, out, split, megabytes)
    return out


def write_tars(folder: Path, records: list[dict], out: Path, split: str, shards: int) -> Path:
    out.mkdir(exist_ok=True)
    for shard in range(shards):
        with tarfile.open(out / f"{split}-{shard:03}.tar", "w") as tar:
            for record in records[shard::shards]:
                stem = Path(record["name"]).stem
                tar.add(record["image"], f"{stem}.png")
                tar.add(record["target"], f"{stem}.mask.png")
                info = tarfile.TarInfo(f"{stem}.json")
                tar.addfile(info, io.BytesIO())
    return out


def seen(info: DatasetInfo, world: int, workers: int, steps: range, batch_size: int, micro: int) -> list[list]:
    """For each process, (epoch, index) and the pixels' sum of the real images of its batches, dealt by accelerate."""
    info = replace(info, config=replace(info.config, seed=3))
    shapes = NetworkShapes(np.tile(SIZE, (len(info.train), 1)), np.tile(SIZE, (1, 1)))
    batch_split = BatchSplit(batch_size, world, micro, -(-batch_size // (micro * world)))
    found = []
    for rank in range(world):
        loader, _ = build_loaders(
            info, UNetConfig(), shapes, batch_split, steps, num_workers=workers, device=torch.device("cpu")
        )
        shard = BatchSamplerShard(loader.batch_sampler, world, rank, split_batches=False, even_batches=False)
        dealt = DataLoader(loader.dataset, batch_sampler=shard, collate_fn=loader.collate_fn, num_workers=workers)
        found.append(
            [
                (slot.epoch, slot.index, int(image.long().sum()))
                for batch in dealt
                for slot, image, mask in zip(batch["slots"], batch["images"], batch["targets"].mask, strict=True)
                if (mask != 255).any()
            ]
        )
    return found


@pytest.mark.parametrize("streaming", [False, True], ids=["map-style", "stream"])
@pytest.mark.parametrize(
    ("world", "workers", "micro"),
    [
        (1, 0, 8),
        (3, 0, 2),
        (2, 2, 3),
        pytest.param(1, 2, 3, marks=pytest.mark.slow),
        pytest.param(3, 2, 3, marks=pytest.mark.slow),
    ],
)
def test_every_image_is_seen_once_an_epoch_and_a_resumed_run_continues(
    folder, packed, streaming, world, workers, micro
):
    # cells are 255 in these masks, so masks of classes 0 and 1 are never all ignored
    info = load_info(packed, streaming=True, **STREAM) if streaming else load_info(folder)
    batch, epochs = 8, 2
    steps = -(-47 // batch) * epochs
    alone = seen(info, 1, 0, range(steps), batch, batch)[0]
    assert Counter(key[:2] for key in alone) == Counter((e, i) for e in range(epochs) for i in range(47))
    together = [item for rank in seen(info, world, workers, range(steps), batch, micro) for item in rank]
    assert Counter(together) == Counter(alone)
    # the first 4 steps on one process, the rest on `world`
    resumed = seen(info, 1, 0, range(4), batch, batch)[0]
    resumed += [item for rank in seen(info, world, workers, range(4, steps), batch, micro) for item in rank]
    assert Counter(resumed) == Counter(alone)


def test_a_stream_and_its_folder_hold_the_same_pictures(folder, packed):
    def sums(info: DatasetInfo, split: str) -> dict[str, tuple]:
        records = getattr(info, split).records
        return {r["name"]: (read_image(r["image"]).sum(), read_image(r["target"]).sum()) for r in records}

    files, stream, table = load_info(folder), load_info(packed, streaming=True, **STREAM), load_info(packed)
    for split in ("train", "val"):
        assert sums(files, split) == sums(stream, split) == sums(table, split)
    assert table.reader.class_pixels == files.reader.class_pixels
    assert stream.reader.class_map == ClassMap(("background", "cell"), (0, 255), None)


def test_masks_outside_the_sample_of_a_stream_may_hold_255(tmp_path):
    write_folder(tmp_path / "folder", 4, seed=0, values=(0, 1))
    pack(load_info(tmp_path / "folder", fold=(1, 2)).train.records, tmp_path / "packed", "train")
    pack(load_info(tmp_path / "folder", fold=(1, 2)).val.records, tmp_path / "packed", "val")
    flags = STREAM | {"classes": "0=background,1=cell"}
    assert load_info(tmp_path / "packed", streaming=True, **flags).reader.class_map.ignore_value == 255
    assert load_info(tmp_path / "folder", classes=flags["classes"]).reader.class_map.ignore_value is None


def test_colors_are_the_classes_of_a_stream_and_a_validation_mask_of_another_one_is_skipped(tmp_path):
    palette = np.array([(0, 0, 0), (200, 100, 0), (1, 2, 3)], np.uint8)
    for split, count in (("train", 3), ("val", 3)):
        write_folder(tmp_path / "folder" / split, count, seed=0)
        for number, file in enumerate(sorted((tmp_path / "folder" / split / "masks").iterdir())):
            mask = np.array(Image.open(file)) // 255
            mask[0, 0] = 2 * (split == "val" and number == 1)
            Image.fromarray(palette[mask]).save(file)
    classes = "#000000=background,#c86400=cell"
    info = load_info(tmp_path / "folder", classes=classes, on_bad_sample="skip")
    for split in ("train", "val"):
        pack(getattr(info, split).records, tmp_path / "packed", split)
    flags = {"streaming": True, "classes": classes, "crop_size": (32, 32)}
    with pytest.raises(DataError, match=r"1 of 3 pairs cannot be used: .*mask values #010203 belong to no class"):
        load_info(tmp_path / "packed", **flags)
    stream = load_info(tmp_path / "packed", on_bad_sample="skip", **flags)
    assert stream.reader.class_map.values == ((0, 0, 0), (200, 100, 0))
    assert [*stream.val.bad] == [1]
    assert "belong to no class" in stream.val.bad[1]
    assert not stream.train.bad


@pytest.mark.parametrize("groups", [3, 100])
def test_the_sample_of_a_stream_is_as_large_however_few_groups_there_are(packed, monkeypatch, groups):
    monkeypatch.setattr("data_utils.analysis.dataset_info.STATISTICS_IMAGES", 9 if groups == 3 else 24)
    monkeypatch.setattr("data_utils.analysis.dataset_info.SAMPLE_GROUPS", groups)
    info = load_info(packed, streaming=True, **STREAM)
    assert len(info.train.records.group_sizes) < 24
    images = sum(info.reader.class_pixels) / (40 * 56)
    assert images == 9 if groups == 3 else images >= 24


def test_the_sizes_of_validation_images_are_read_where_a_stream_keeps_them(folder, packed):
    info = load_info(packed, streaming=True, classes=CLASSES, crop_size=(32, 32))
    assert info.val.sizes.tolist() == [list(SIZE)] * 5
    assert not info.train.sizes.any()
    assert not load_info(packed, streaming=True, **STREAM).val.sizes.any()
    seen_by_all = load_info(folder, classes=CLASSES, crop_size=(32, 32))
    assert info.normalization.mean == pytest.approx(seen_by_all.normalization.mean, rel=0.02)


def test_pages_of_a_tiff_have_their_shares_of_its_bytes(tmp_path):
    pages = np.random.default_rng(0).integers(0, 2, (8, 32, 40), dtype=np.uint8)
    for folder in ("train/images", "train/masks", "val/images", "val/masks"):
        (tmp_path / "folder" / folder).mkdir(parents=True)
        tifffile.imwrite(tmp_path / "folder" / folder / "a.tif", pages, photometric="minisblack")
    records = load_info(tmp_path / "folder").train.records
    assert len(records) == 8
    assert len(pack(records, tmp_path / "packed", "train", 2 * pages.nbytes / 2**20 / 2)) == 2


class Embedded(EmbeddedImage):
    """A picture of a hundred bytes inside another file."""

    def read(self) -> bytes:
        return bytes(100)


def test_pictures_inside_other_files_count_by_their_bytes(tmp_path):
    records = ListRecords([{"image": Embedded(), "target": b"", "name": f"{number}.json"} for number in range(6)])
    assert len(pack(records, tmp_path, "train", 200 / 2**20)) == 3


def test_pages_files_and_rendered_masks_are_packed_as_what_they_are(tmp_path):
    pages = np.random.default_rng(0).integers(0, 9, (3, 8, 10), dtype=np.uint8)
    stack = str(tmp_path / "a.tif")
    tifffile.imwrite(stack, pages, photometric="minisblack")
    Image.fromarray(pages[0]).save(tmp_path / "m.png")
    mask = str(tmp_path / "m.png")
    records = ListRecords(
        [
            {"image": {"path": stack, "page": 2}, "target": mask, "name": "2.jpg"},
            {"image": {"path": stack, "page": 0}, "target": EvaluatedIds(mask), "name": "0.jpg"},
        ]
    )
    (file,) = pack(records, tmp_path, "train")
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert [(row["image"]["path"], row["mask"]["path"]) for row in rows] == [("2.tif", "2.png"), ("0.tif", "0.png")]
    for row, page in zip(rows, (2, 0), strict=True):
        with tifffile.TiffFile(io.BytesIO(row["image"]["bytes"])) as tiff:
            assert np.array_equal(tiff.asarray(), pages[page])
            assert tiff.pages[0].aspage().compression.name == "ADOBE_DEFLATE"
    assert rows[0]["mask"]["bytes"] == Path(mask).read_bytes()
    expected = np.where(np.isin(pages[0], (7, 8)), pages[0], 255)
    assert np.array_equal(read_image(rows[1]["mask"]["bytes"])[:, :, 0], expected)
    Path(stack).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"^2\.jpg cannot be read"):
        pack(records, tmp_path, "val")


def test_a_picture_without_a_name_is_called_by_its_row_in_the_file(tmp_path):
    file = tmp_path / "a.parquet"
    pictures = [bytes([number]) for number in range(5)]
    pyarrow.parquet.write_table(pyarrow.table({"image": pictures, "mask": pictures}), file, row_group_size=2)
    records = ParquetRecords.open([str(file)], None, None)
    assert [record["name"] for record in records] == [f"a.parquet row {number}" for number in range(5)]
    assert [record["image"] for record in records] == pictures
    pyarrow.parquet.write_table(pyarrow.table({"image": pictures, "mask": pictures})[:0], file)
    assert len(ParquetRecords.open([str(file)], None, None)) == 0


def test_a_picture_has_the_path_of_its_image_and_columns_of_other_things_stay_unread(tmp_path, counted):
    rng = np.random.default_rng(0)
    columns = {
        name: [{"bytes": rng.bytes(2**17), "path": f"{name}-{number}.png"} for number in range(2)]
        for name in ("image", "mask")
    }
    columns["image"].append(None)
    columns["mask"].append(columns["mask"][0])
    notes = rng.bytes(2**20)
    pyarrow.parquet.write_table(pyarrow.table(columns | {"notes": [notes] * 3}), tmp_path / "a.parquet")
    records = ParquetRecords.open([f"counted://{tmp_path}/a.parquet"], None, None)
    counted.clear()
    names = ["image-0.png", "image-1.png", "a.parquet row 2"]
    assert [record["name"] for record in records] == names
    assert counted.bytes_of()["a.parquet"] < 2**20
    counted.clear()
    assert records.name(1) == names[1]
    assert counted.bytes_of()["a.parquet"] < 2**17
    assert [records.name(i) for i in range(3)] == names


def test_a_path_in_a_parquet_file_that_is_no_text_is_one_line(tmp_path):
    path = pyarrow.array([b"\xff.png"]).cast(pyarrow.binary()).view(pyarrow.string())
    image = pyarrow.StructArray.from_arrays([pyarrow.array([b"1"]), path], ["bytes", "path"])
    pyarrow.parquet.write_table(pyarrow.table({"image": image, "mask": [b"2"]}), tmp_path / "a.parquet")
    records = ParquetRecords.open([str(tmp_path / "a.parquet")], None, None)
    with pytest.raises(DataError, match=r"^row 0 of a group holds a path that is no text"):
        records[0]


@pytest.mark.parametrize("batch_size", [1, 3, 8, 60])
@pytest.mark.parametrize("lengths", [[5, 1, 9, 32], [47], [1] * 20], ids=str)
def test_lanes_hold_every_record_once_and_are_equal_to_one(lengths, batch_size):
    lengths = np.array(lengths)
    epochs = [list(stream_batches(lengths, SIZE, batch_size, seed=1, epoch=e)) for e in range(2)]
    for batches in epochs:
        assert sorted(np.concatenate([batch.indices for batch in batches])) == list(range(lengths.sum()))
        assert [len(batch.indices) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    if lengths.sum() > 1:
        assert [b.indices.tolist() for b in epochs[0]] != [b.indices.tolist() for b in epochs[1]]


def test_the_order_of_a_stream_follows_the_seed_and_the_epoch():
    """The order of its groups, and the order of the records of each."""
    lengths = np.full(12, 8)
    shapes = np.tile(SIZE, (96, 1))
    batch_split = BatchSplit(1, groups=1, micro_batch_size=1, accumulation=1)
    groups, records = set(), set()
    for seed in (0, 1):
        alike = [list(TrainingSampler(shapes, batch_split, seed, range(2 * 96), lengths)) for _ in range(2)]
        assert alike[0] == alike[1]
        indices = np.array([slot.index for (slot,) in alike[0]])
        for epoch in (indices[:96], indices[96:]):
            assert sorted(epoch) == list(range(96))
            groups.add(tuple(dict.fromkeys((epoch // 8).tolist())))
            records.add(tuple(epoch[epoch // 8 == 0].tolist()))
            assert epoch[epoch // 8 == 0].tolist() != list(range(8))
    assert len(groups) == len(records) == 4
    assert tuple(range(12)) not in groups


def test_the_sample_of_a_stream_and_the_shards_held_out_follow_the_seed(packed, tmp_path):
    for file in packed.rglob("train*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    held_out, means = [], []
    for seed in (0, 0, 1, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("data_utils.analysis.dataset_info.SAMPLE_GROUPS", 2)
            patch.setattr("data_utils.analysis.dataset_info.STATISTICS_IMAGES", 4)
            info = load_info(tmp_path, streaming=True, seed=seed, **STREAM)
            means.append(load_info(packed, streaming=True, seed=seed, **STREAM).normalization.mean)
        held_out.append(tuple(record["name"] for record in info.val.records))
    assert held_out[0] == held_out[1]
    assert len(set(held_out)) > 1
    assert means[0] == means[1]
    assert len(set(means)) > 1


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_no_group_is_read_by_more_processes_than_its_pieces_need(workers):
    lengths = np.full(200, 16)
    batches = stream_batches(lengths, SIZE, 4, seed=0, epoch=0)
    readers = {(int(i) // 16, step % workers) for step, batch in enumerate(batches) for i in batch.indices}
    # a group lies in one of the four pieces of one of four lanes, but for those that a piece's border cuts
    assert len(readers) <= 200 + 4 * 4


def test_each_process_reads_a_row_group_once(packed, monkeypatch):
    info = load_info(packed, streaming=True, **STREAM)
    # without what the sample has read
    info = replace(info, train=replace(info.train, records=pickle.loads(pickle.dumps(info.train.records))))
    reads, group_content = Counter(), ParquetRecords._group_content
    monkeypatch.setattr(
        ParquetRecords,
        "_group_content",
        lambda self, g: (reads.update([g] if g not in self._read else []), group_content(self, g))[1],
    )
    seen(info, 1, 0, range(6), 8, 8)
    assert set(reads.values()) == {1}
    assert len(reads) == len(info.train.records.group_sizes)


def test_a_stream_travels_to_other_processes_without_what_it_has_read(packed):
    records = load_info(packed, streaming=True, **STREAM).train.records
    first = records[0]
    copy = pickle.loads(pickle.dumps(records))
    assert copy[0] == first
    assert len(copy) == 47
    assert len(pickle.dumps(records)) < 5000
    with pytest.raises(IndexError):
        records[47]


def test_the_groups_that_were_used_last_stay_in_memory(tmp_path, monkeypatch):
    file = tmp_path / "a.parquet"
    pictures = [bytes([number]) for number in range(5)]
    pyarrow.parquet.write_table(pyarrow.table({"image": pictures, "mask": pictures}), file, row_group_size=1)
    records = ParquetRecords.open([str(file)], None, None)
    records.open_groups = 2
    reads: list[int] = []
    read_group = records._read_group

    def counted(group: int):
        reads.append(group)
        return read_group(group)

    monkeypatch.setattr(records, "_read_group", counted)
    assert [records[i]["image"] for i in (0, 1, 0, 2, 0, 1)] == [pictures[i] for i in (0, 1, 0, 2, 0, 1)]
    assert reads == [0, 1, 2, 1]


def test_whole_shards_are_held_out_where_there_is_no_validation_split(packed, tmp_path):
    for file in packed.rglob("train*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    info = load_info(tmp_path, streaming=True, **STREAM)
    train, val = ({record["name"] for record in split.records} for split in (info.train, info.val))
    assert len(train) + len(val) == 47
    assert not train & val
    files = {record["name"] for record in ParquetRecords.open([str(sorted(tmp_path.iterdir())[0])], None, None)}
    assert files <= train or files <= val
    for file in sorted(tmp_path.iterdir())[1:]:
        file.unlink()
    with pytest.raises(DataError, match="a stream of 1 file has no file to validate on"):
        load_info(tmp_path, streaming=True, **STREAM)


def test_webdataset_files_are_read_in_any_order(folder, tmp_path):
    files = load_info(folder)
    for split in ("train", "val"):
        write_tars(folder, list(getattr(files, split).records), tmp_path / "tars", split, 3)
    info = load_info(tmp_path / "tars", **STREAM)
    assert isinstance(info.train.records, TarRecords)
    assert (len(info.train), len(info.val)) == (47, 5)
    pixels = {Path(r["name"]).stem: read_image(r["image"]).sum() for r in files.train.records}
    assert {r["name"]: read_image(r["image"]).sum() for r in info.train.records} == pixels
    alone = seen(info, 1, 0, range(6), 8, 8)[0]
    assert Counter(item for rank in seen(info, 2, 1, range(6), 8, 2) for item in rank) == Counter(alone)
    assert len({key[:2] for key in alone}) == 47
    for file in (tmp_path / "tars").glob("val*"):
        file.unlink()
    held_out = load_info(tmp_path / "tars", **STREAM).val.records
    shards = [{Path(record["name"]).stem for record in list(files.train.records)[shard::3]} for shard in range(3)]
    assert {record["name"] for record in held_out} in shards


@pytest.fixture
def counted(tmp_path, monkeypatch) -> Iterator[Reads]:
    """The reads of counted:// files; nothing is waited for before one is read again."""
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))
    monkeypatch.setattr(remote, "RETRY_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(CountedFiles, "failures", 0)
    return Reads(tmp_path / "notes")


@pytest.fixture
def tars(folder, tmp_path) -> Path:
    """The pairs of `folder` in tar files: three to train on, one to validate on."""
    files = load_info(folder)
    write_tars(folder, list(files.train.records), tmp_path / "tars", "train", 3)
    return write_tars(folder, list(files.val.records), tmp_path / "tars", "val", 1)


def test_headers_of_a_tar_are_read_once_until_it_changes(tars, counted):
    files = [f"counted://{file}" for file in sorted(tars.glob("train*.tar"))]
    first = TarRecords.open(files, None, None)
    assert set(counted.bytes_of()) == {"train-000.tar", "train-001.tar", "train-002.tar"}
    counted.clear()
    again = TarRecords.open(files, None, None)
    assert not counted.all()
    for name in ("groups", "names", "starts", "lengths"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    content = (tars / "train-001.tar").read_bytes()
    (tars / "train-001.tar").unlink()
    (tars / "train-001.tar").write_bytes(content)
    TarRecords.open(files, None, None)
    assert set(counted.bytes_of()) == {"train-001.tar"}


def test_a_damaged_index_of_a_tar_is_made_anew(tars, counted):
    files = [f"counted://{file}" for file in sorted(tars.glob("train*.tar"))]
    names = TarRecords.open(files, None, None).names
    for file in cache_folder().glob("*.npz"):
        content = file.read_bytes()
        file.write_bytes(content[:-40] + bytes(40))
    counted.clear()
    assert np.array_equal(TarRecords.open(files, None, None).names, names)
    assert len(counted.bytes_of()) == 3


def test_headers_of_large_pictures_are_read_without_the_pictures(tmp_path, counted):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for stem in range(4):
            for extension in ("jpg", "png"):
                member = tarfile.TarInfo(f"{stem}.{extension}")
                member.size = 5 * 2**20
                tar.addfile(member, io.BytesIO(bytes(member.size)))
    assert len(TarRecords.open([f"counted://{tmp_path}/a.tar"], None, None)) == 4
    assert counted.bytes_of()["a.tar"] < 0.3 * 8 * 5 * 2**20


@pytest.mark.parametrize(
    ("num_workers", "kind"),
    [
        (0, "parquet"),
        (0, "tar"),
        (1, "tar"),
        (3, "parquet"),
        (16, "tar"),
        pytest.param(1, "parquet", marks=pytest.mark.slow),
        pytest.param(3, "tar", marks=pytest.mark.slow),
        pytest.param(16, "parquet", marks=pytest.mark.slow),
    ],
)
def test_an_epoch_reads_each_group_once_and_at_once(kind, num_workers, packed, tars, counted, monkeypatch):
    monkeypatch.setattr(webdataset, "SAMPLES_TOGETHER", 4)
    dataset = f"counted://{packed if kind == 'parquet' else tars}"
    info = load_info(dataset, **STREAM)
    records = pickle.loads(pickle.dumps(info.train.records))  # without what the sample has read
    info = replace(info, train=replace(info.train, records=records))
    order = seen(info, 1, 0, range(12), 4, 4)[0]
    shapes = NetworkShapes(np.tile(SIZE, (47, 1)), np.tile(SIZE, (5, 1)))
    config = replace(info.config, seed=3)
    batch_split = BatchSplit(4, 1, 4, 1)
    records = pickle.loads(pickle.dumps(records))
    info = replace(info, config=config, train=replace(info.train, records=records))
    loaders = build_loaders(
        info, UNetConfig(), shapes, batch_split, range(12), num_workers=num_workers, device=torch.device("cpu")
    )
    train, val = loaders
    assert train.num_workers == val.num_workers == {0: 0, 1: 1, 3: 2, 16: 4}[num_workers]
    assert train.dataset.threads == (4 if num_workers == 16 else 1)
    counted.clear()
    groups_read = []
    for batch in train:
        for slot, image, mask in zip(batch["slots"], batch["images"], batch["targets"].mask, strict=True):
            if (mask != 255).any():
                groups_read.append((slot.epoch, slot.index, int(image.long().sum())))
    assert groups_read == order
    groups = len(records.group_sizes)
    # in the middle of a group, or at its border, another piece of the order may begin
    pieces = 4 * 4
    if kind == "tar":
        assert groups <= len(counted.all()) <= groups + pieces
        spans = Counter((read.file, read.start, read.end) for read in counted.all())
        assert len(spans) == groups
    else:  # the footer, and both columns
        assert len(counted.all()) <= 3 * (groups + pieces)
    size = sum(file.stat().st_size for file in (packed if kind == "parquet" else tars).rglob("train*"))
    footers = 0 if kind == "tar" else 2**16 * (groups + pieces)
    assert sum(counted.bytes_of().values()) <= size * (groups + pieces) / groups + footers
    counted.clear()
    assert sum(len(batch["indices"]) for batch in val) == 5
    if kind == "tar":
        assert len(counted.all()) == 5


def test_a_stream_keeps_its_groups_where_places_are_left_out_and_may_be_named_by_a_tilde(packed, monkeypatch):
    monkeypatch.setenv("HOME", str(packed.parent))
    train, val = load_records(DataConfig(f"~/{packed.name}", streaming=True, place=False))
    assert train.group_sizes.sum() == len(train)
    assert val.group_sizes.sum() == len(val)


def test_names_of_a_stream_are_found_without_pictures(packed, tars, counted):
    for dataset in (packed, tars):
        records = load_info(f"counted://{dataset}", **STREAM).train.records
        names = [record["name"] for record in records]
        counted.clear()
        assert [records.name(i) for i in (0, 3, 46)] == [names[i] for i in (0, 3, 46)]
        assert not any("tar" in read.file for read in counted.all())
    fewer = Subset(records, np.array([5, 7]))
    assert [fewer.name(0), fewer.name(1)] == [names[5], names[7]]


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError, OSError])
def test_a_remote_file_is_read_again_when_the_network_fails(tars, packed, counted, monkeypatch, error):
    monkeypatch.setattr(CountedFiles, "error", error)
    for dataset in (tars, packed):
        CountedFiles.failures = 4
        info = load_info(f"counted://{dataset}", **STREAM)
        CountedFiles.failures = 4
        records = pickle.loads(pickle.dumps(info.train.records))
        assert records[20]["name"]
        assert CountedFiles.failures == 0
        records = pickle.loads(pickle.dumps(info.train.records))
        CountedFiles.failures = 5
        with pytest.raises(DataError, match=r"counted://.* cannot be read \(the network fails\)"):
            records[20]


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, ValueError])
def test_what_will_fail_again_is_not_read_again(tars, counted, monkeypatch, error):
    records = load_info(f"counted://{tars}", **STREAM).val.records
    records = pickle.loads(pickle.dumps(records))  # without what was read before
    monkeypatch.setattr(CountedFiles, "error", error)
    CountedFiles.failures = 2
    with pytest.raises(DataError, match="the network fails"):
        records[0]
    assert CountedFiles.failures == 1


def test_pauses_before_a_file_is_read_again_grow(monkeypatch):
    pauses = []
    monkeypatch.setattr(remote.time, "sleep", pauses.append)

    @remote.retried
    def read(file: str) -> None:
        raise DataError(file) from ConnectionError()

    with pytest.raises(DataError):
        read("s3://bucket/a.tar")
    assert pauses == [1, 2, 4, 8]
    with pytest.raises(DataError):
        read("/folder/a.tar")
    assert len(pauses) == 4


def test_pictures_of_a_tar_are_named_or_found(tmp_path):
    def tar(*extensions: str) -> str:
        with tarfile.open(tmp_path / "a.tar", "w") as file:
            for extension in extensions:
                file.addfile(tarfile.TarInfo(f"x/0001.{extension}"), io.BytesIO())
        return str(tmp_path / "a.tar")

    for extensions in (("jpg", "png"), ("jpg", "seg.png"), ("image.png", "mask.png"), ("JPG", "label.png", "txt")):
        assert len(TarRecords.open([tar(*extensions)], None, None)) == 1
    empty = Path(tar("txt")).rename(tmp_path / "empty.tar")
    with pytest.raises(DataError, match=r"/a\.tar: which of a\.png, b\.png are image and mask"):
        TarRecords.open([str(empty), tar("a.png", "b.png")], None, None)
    assert len(TarRecords.open([tar("a.png", "b.png")], "b.png", "a.png")) == 1
    with pytest.raises(DataError, match="holds no pictures"):
        TarRecords.open([tar("txt")], None, None)
    for names in (("jpg", None), ("tif", "mask"), ("scan", "png")):
        with pytest.raises(DataError, match=r"which of jpg, png, tif are image and mask"):
            TarRecords.open([tar("jpg", "png", "tif")], *names)
    (tmp_path / "a.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DataError, match=r"a\.tar cannot be read"):
        TarRecords.open([str(tmp_path / "a.tar")], None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --classes, and --image-size or --crop-size"),
        ({"classes": CLASSES}, "give --classes, and --image-size or --crop-size"),
        ({"crop_size": (8, 8)}, "give --classes, and --image-size or --crop-size"),
        (STREAM | {"classes": "1=a,9=b"}, "classes are 1, 9"),
        (STREAM | {"image_column": "scan"}, "no column scan with pictures"),
        (STREAM | {"train_split": "fold1"}, "has no split fold1"),
    ],
)
def test_what_a_stream_needs_is_said_in_one_line(packed, options, message):
    with pytest.raises(DataError, match=message) as error:
        load_info(packed, streaming=True, **options)
    assert "\n" not in str(error.value)


def test_a_damaged_shard_is_named(packed, tmp_path):
    for file in packed.rglob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    bad = next(tmp_path.glob("train*"))
    content = bytearray(bad.read_bytes())
    bad.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=f"{bad.name} cannot be read"):
        load_info(tmp_path, streaming=True, **STREAM)


def test_folders_that_hold_nothing_to_stream_say_what_they_hold(folder, tmp_path):
    with pytest.raises(DataError, match=r"no \.parquet or \.tar files; found cell_00\.png"):
        find_files(str(folder), [])
    with pytest.raises(DataError, match="nowhere"):
        load_info(tmp_path / "nowhere", streaming=True, **STREAM)
    with pytest.raises(DataError, match="cannot be read"):
        load_info("nosuchprotocol://bucket", **STREAM)


def run_pack(*arguments: object) -> int:
    """The exit code of data_utils.pack in this process."""
    with mock.patch("sys.argv", ["pack", *map(str, arguments)]):
        try:
            pack_module.main()
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def test_packing_says_what_is_wrong_before_it_writes(folder, tmp_path, capsys):
    assert run_pack(folder, tmp_path / "out", "--shard-mb", "0.1") == 0
    assert "train: 47 pairs in" in capsys.readouterr().out
    assert len(list((tmp_path / "out" / "data").glob("train-*-of-*.parquet"))) > 1
    assert run_pack(folder, tmp_path / "out") == 2
    bad = write_folder(tmp_path / "bad", 3, seed=0)
    (bad / "masks" / "cell_01.png").write_bytes(b"")
    result = launch("-m", "data_utils.pack", bad, tmp_path / "other")
    assert result.returncode == 1
    assert "cell_01.png: mask cannot be read" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "other").exists()


def small_records(*sizes: int) -> ListRecords:
    """Records called 0.png, 1.png, ... whose images have so many bytes, and their masks none."""
    return ListRecords(
        [{"image": bytes(size), "target": b"", "name": f"{number}.png"} for number, size in enumerate(sizes)]
    )


@pytest.mark.parametrize(
    ("sizes", "shard_bytes", "shards"),
    [
        ((100,) * 6, 200, [2, 2, 2]),
        ((100,) * 6, 399, [3, 3]),  # 1.504 is 2
        ((100,) * 6, 401, [6]),  # and 1.496 is 1
        ((1000, 1, 1), 334, [1, 2]),  # none begins in the second third
        ((5, 5), 1, [1, 1]),
    ],
)
def test_a_record_lies_in_the_shard_in_whose_share_it_begins(tmp_path, sizes, shard_bytes, shards):
    files = pack(small_records(*sizes), tmp_path, "val", shard_bytes / 2**20)
    assert files == [tmp_path / "data" / f"val-{i:05}-of-{len(shards):05}.parquet" for i in range(len(shards))]
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert [pyarrow.parquet.read_metadata(file).num_rows for file in files] == shards
    for kind in ("image", "mask"):
        assert [row[kind]["path"] for row in rows] == [f"{number}.png" for number in range(len(sizes))]
    assert [len(row["image"]["bytes"]) for row in rows] == list(sizes)


@pytest.mark.parametrize(
    ("sizes", "groups"), [((1,) * 70, [32, 32, 6]), ((2**21,) * 3, [2, 1]), ((2**23,) * 2, [1, 1])]
)
def test_a_group_of_rows_has_32_pictures_or_4_megabytes_which_are_stored_as_they_are(tmp_path, sizes, groups):
    (file,) = pack(small_records(*sizes), tmp_path, "train")
    metadata = pyarrow.parquet.read_metadata(file)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == groups
    column = metadata.row_group(0).column(0)
    assert column.compression == "UNCOMPRESSED"
    assert not column.has_dictionary_page


def test_all_splits_are_packed_as_the_flags_say(tmp_path, capsys):
    for split, count in (("train", 4), ("test", 3)):
        masks = write_folder(tmp_path / "data" / split, count, seed=0) / "masks"
        for file in list(masks.iterdir()):
            file.rename(file.with_stem(f"{file.stem}_m"))
        (masks / "cell_00_n.png").write_bytes(b"")
    flags = [tmp_path / "data", tmp_path / "out", "--mask-suffix", "_m"]
    with pytest.raises(DataError, match=r"1 of 4 masks in .* have no image"):
        run_pack(*flags)
    run_pack(*flags, "--allow-unpaired", "--shard-mb", "0.001")
    files = {split: len(list((tmp_path / "out" / "data").glob(f"{split}-*"))) for split in ("train", "test")}
    assert files == {"train": 3, "test": 2}
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        f"test: 3 pairs in 2 files, {tmp_path}/out/data",
        f"train: 4 pairs in 3 files, {tmp_path}/out/data",
    ]
    (tmp_path / "data" / "test" / "masks" / "cell_01_m.png").write_bytes(b"")
    flags[1] = tmp_path / "other"
    with pytest.raises(DataError, match=r"1 of 3 pairs cannot be used: cell_01\.png: mask cannot be read"):
        run_pack(*flags, "--allow-unpaired")
    assert not (tmp_path / "other").exists()


def test_images_that_are_labeled_for_some_classes_make_no_shards(tmp_path):
    folder = write_folder(tmp_path / "data", 3, seed=0)
    (folder / "classes.csv").write_text("image,classes\ncell_00.png,car\n")
    with pytest.raises(DataError, match="shards cannot say which classes an image is labeled for"):
        run_pack(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_stream_trains_alike_on_one_and_two_processes(packed, tmp_path):
    options = [
        "--streaming",
        "--classes",
        CLASSES,
        "--crop-size",
        "32",
        "32",
        "--optimizer",
        "sgd",
        "--tracker",
        "none",
    ]
    options += [*TINY, "--max-steps", "8", "--log-every", "1", "--batch-size", "5"]
    for profile in ("cpu", "multi_cpu"):
        command = ["train.py", "--dataset", packed, *options, "--output-dir", tmp_path / profile]
        result = launch(*command, profile=profile)
        assert result.returncode == 0, result.stderr
    assert len(losses(tmp_path / "cpu")) == 8
    assert losses(tmp_path / "cpu") == pytest.approx(
        losses(tmp_path / "multi_cpu"), abs=1e-5
    )  # the documented promise, of SGD in fp32


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """The address of an S3 server on loopback, in the variables that its clients read."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    variables |= {"AWS_DEFAULT_REGION": "us-east-1"}
    try:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            pytest.fail((tmp_path / "server.log").read_text())
        yield variables
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_training_streams_from_an_object_store(kind, packed, tars, tmp_path, s3, fails_with):
    import fsspec

    folder = {"parquet": packed, "tar": tars}[kind]
    system = fsspec.filesystem("s3", skip_instance_cache=True)  # each test has a server of its own
    system.mkdir("cells")
    for file in folder.rglob(f"*.{kind}"):
        system.put(str(file), f"cells/v1/{file.name}")
    options = ["--classes", CLASSES, "--image-size", "32", "48", "--optimizer", "sgd", "--tracker", "none", *TINY]
    options += ["--max-steps", "6", "--log-every", "1", "--num-workers", "2"]
    result = launch("train.py", "--dataset", "s3://cells/v1", *options, "--output-dir", tmp_path / "remote", env=s3)
    assert result.returncode == 0, result.stderr
    result = launch("train.py", "--dataset", folder, "--streaming", *options, "--output-dir", tmp_path / "local")
    assert result.returncode == 0, result.stderr
    assert len(losses(tmp_path / "local")) == 6
    assert losses(tmp_path / "remote") == losses(tmp_path / "local")
    result = launch("train.py", "--dataset", "s3://nothing/here", *options, "--output-dir", tmp_path / "none", env=s3)
    fails_with(result, "s3://nothing/here", 1)


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train/0.tar", "val/0.tar"], {"train": ["train/0.tar"], "val": ["val/0.tar"]}),
        (
            ["b-validation-1.tar", "a-training-1.tar"],
            {"training": ["a-training-1.tar"], "validation": ["b-validation-1.tar"]},
        ),
        (["interval.tar", "TEST/0.tar"], {"test": ["TEST/0.tar"], "train": ["interval.tar"]}),  # no word of its own
        (
            ["Fold1/1.tar", "fold1/0.tar", "train1.tar"],
            {"Fold1": ["Fold1/1.tar", "fold1/0.tar"], "train": ["train1.tar"]},
        ),
        (["val.fold1.tar"], {"Fold1": ["val.fold1.tar"]}),  # a name that is given comes first
        (["a+b/0.tar", "aab.tar"], {"a+b": ["a+b/0.tar"], "train": ["aab.tar"]}),
    ],
)
def test_a_file_of_a_stream_belongs_to_the_split_whose_name_is_a_word_of_its_path(tmp_path, files, splits):
    for file in [*files, "notes.txt"]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    found = find_files(str(tmp_path), ["Fold1", "a+b"])
    assert found == {split: [f"file://{tmp_path / file}" for file in paths] for split, paths in splits.items()}


def test_one_file_and_a_pattern_are_streams_too_and_two_kinds_are_one_line(tmp_path):
    for file in ("val/train-0.tar", "val/train-1.tar", "val/other.tar", "val/a.parquet"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    url = f"file://{tmp_path}/val"
    assert find_files(f"{tmp_path}/val/train-0.tar", []) == {"train": [f"{url}/train-0.tar"]}
    assert find_files(f"{tmp_path}/val/train-*.tar", []) == {"train": [f"{url}/train-0.tar", f"{url}/train-1.tar"]}
    # a word of the path above a file that is named, or above a pattern, names no split
    for pattern in ("other.tar", "o*.tar"):
        assert find_files(f"{tmp_path}/val/{pattern}", []) == {"train": [f"{url}/other.tar"]}
    with pytest.raises(DataError, match=r"both \.parquet and \.tar files; found a\.parquet, other\.tar, train-0\.tar$"):
        find_files(str(tmp_path), [])


def test_words_count_below_a_folder_a_pattern_or_the_folder_of_a_file(tmp_path):
    for file in ("val/test-0.tar", "val/s1/0.tar", "val/folder.tar/train.parquet"):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).touch()
    url = f"file://{tmp_path}/val"
    assert find_files(f"{tmp_path}/val/test-0.tar", []) == {"test": [f"{url}/test-0.tar"]}
    assert find_files(f"{tmp_path}/val/s*/0.tar", []) == {"train": [f"{url}/s1/0.tar"]}
    assert find_files(f"{tmp_path}/val/folder.tar", []) == {"train": [f"{url}/folder.tar/train.parquet"]}
    (tmp_path / "val/0.tar?signature=x").mkdir()
    (tmp_path / "val/0.tar?signature=x/y").touch()
    signed = f"{tmp_path}/val/0.tar?signature=x/y"
    assert find_files(signed, []) == {"train": [f"file://{signed}"]}


def test_the_kind_of_a_file_is_known_behind_a_signature_and_in_a_query():
    urls = ("https://x/a.tar?signature=1", "https://x/get?name=a.parquet", "a.tar.gz", "s3://x/a.tar", "a.tar")
    assert [kind_of(url) for url in urls] == [".tar", ".parquet", None, ".tar", ".tar"]
    places = ("s3://x/a.tar", "https://x/a.tar", "file:///a.tar", "local:///a.tar", "memory://a.tar", "/a.tar")
    assert [is_remote(place) for place in places] == [True, True, False, False, False, False]


def test_the_key_of_a_file_of_a_stream_changes_with_its_place_size_and_time(tmp_path):
    files = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for file in files:
        file.write_bytes(b"x" * 8)
        os.utime(file, (10**9, 10**9))
    keys = [content_key(str(file)) for file in files]
    assert content_key(str(files[0])) == keys[0]
    os.utime(files[0], (10**9 + 1, 10**9 + 1))
    keys.append(content_key(str(files[0])))
    files[0].write_bytes(b"x" * 9)
    os.utime(files[0], (10**9 + 1, 10**9 + 1))
    keys.append(content_key(str(files[0])))
    assert len({*keys}) == 4
    assert None not in keys
    files[0].write_bytes(b"")
    assert content_key(str(files[0])) is None


def test_samples_of_a_tar_are_read_32_together():
    assert group_samples([70, 0, 3, 32]).tolist() == [[0, 32], [0, 32], [0, 6], [2, 3], [3, 32]]
    assert group_samples([]).shape == (0, 2)


def test_tars_are_streams_in_folders_too_and_both_splits_have_the_columns_of_the_flags(tmp_path, monkeypatch):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "0.tar").touch()
    config = DataConfig(str(tmp_path), image_column="scan", mask_column="cells")
    monkeypatch.setattr(TarRecords, "open", lambda *names: names)
    assert load_stream(config, tmp_path) == tuple(
        ([f"file://{tmp_path}/{split}/0.tar"], "scan", "cells") for split in ("train", "val")
    )
    with pytest.raises(DataError, match=r"--fold cannot be used: .* is a stream; copy it to a folder"):
        load_records(replace(config, fold=(1, 2)))


@pytest.mark.parametrize(("dataset_config", "url"), [(None, "owner/name"), ("large", "owner/name/large")])
def test_a_stream_of_the_hub_is_that_of_its_configuration(monkeypatch, dataset_config, url):
    def find(place: str, named_splits: object) -> None:
        raise DataError(f"found {place}.")

    monkeypatch.setattr("data_utils.sources.load.ask_hub", lambda dataset: None)
    monkeypatch.setattr("data_utils.sources.load.find_files", find)
    with pytest.raises(DataError, match=f"^found hf://datasets/{url}.$"):
        load_stream(DataConfig("owner/name", dataset_config=dataset_config), Path("owner/name"))


def web_error(status: int) -> aiohttp.ClientResponseError:
    return aiohttp.ClientResponseError(mock.Mock(real_url="https://x/a.tar"), (), status=status)


FAILURES = [
    (web_error(429), True),
    (web_error(404), False),
    (web_error(499), False),
    (web_error(500), True),
    (web_error(503), True),
    (aiohttp.ServerDisconnectedError(), True),
    (ConnectionResetError(), True),
    (PermissionError(), False),
    (IsADirectoryError(), False),
    (NotADirectoryError(), False),
    (ValueError(), False),
    (ImportError(), False),
    (pyarrow.ArrowNotImplementedError(), False),
]


@pytest.mark.parametrize(("error", "may_pass"), FAILURES, ids=lambda value: type(value).__name__)
def test_a_failure_of_the_network_or_a_server_is_tried_again_and_others_are_not(monkeypatch, error, may_pass):
    pauses = []
    monkeypatch.setattr(remote.time, "sleep", pauses.append)

    @remote.retried
    def read(file: str, share: int, *, end: int) -> int:
        with remote.file_errors(file, hint="; so it is"):
            if len(pauses) < 2:
                raise error
        return share + end

    if may_pass:
        assert read("https://x/a.tar", 1, end=2) == 3
        assert len(pauses) == 2
        return
    with pytest.raises(DataError, match=r"^https://x/a\.tar cannot be read \(.*\); so it is$"):
        read("https://x/a.tar", 1, end=2)
    assert not pauses


def test_failures_of_s3_are_one_line_and_those_of_its_network_are_tried_again(monkeypatch):
    base = type("BotoCoreError", (Exception,), {})
    network = [type(name, (base,), {}) for name in ("HTTPClientError", "ConnectionError")]
    s3 = SimpleNamespace(BotoCoreError=base, HTTPClientError=network[0], ConnectionError=network[1])
    monkeypatch.setitem(sys.modules, "botocore.exceptions", s3)
    pauses = []
    monkeypatch.setattr(remote.time, "sleep", pauses.append)

    @remote.retried
    def read(file: str, error: Exception) -> None:
        with remote.file_errors(file):
            raise error

    for error, times in ((network[0]("no"), 4), (network[1]("no"), 4), (base("no"), 0)):
        pauses.clear()
        with pytest.raises(DataError, match=r"^s3://x/a\.tar cannot be read \(no\)$"):
            read("s3://x/a.tar", error)
        assert len(pauses) == times


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"ETag": "a"}, {"ETag": "b"}),
        ({"LastModified": 1}, {"LastModified": 2}),
        ({"Content_MD5": "a"}, {"Content_MD5": "b"}),
        ({"created": 1, "mtime": 1}, {"created": 1, "mtime": 2}),
        ({"mtime": 1, "size": 5}, {"mtime": 1, "size": 6}),
    ],
)
def test_a_version_of_a_file_is_known_by_whatever_its_system_calls_it(monkeypatch, first, second):
    info = {"size": 5}
    system = SimpleNamespace(info=lambda path: info)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda file: (system, file))
    assert content_key("https://x/a.tar") is None
    keys = []
    for version in (first, second):
        info = {"size": 5, **version}
        keys.append(content_key("https://x/a.tar?signature=1"))
        assert content_key("https://x/a.tar?signature=2") == content_key("https://x/a.tar") == keys[-1]
    assert keys[0] != keys[1]
    assert content_key("https://x/b.tar") != keys[1]


def test_what_is_wrong_with_the_content_of_a_file_keeps_its_line():
    with pytest.raises(DataError, match=r"^row 3 is damaged$"), remote.file_errors("a.tar", hint="; so it is"):
        raise DataError("row 3 is damaged")


def test_samples_of_a_tar_that_lack_a_picture_are_counted_and_one_is_named(tmp_path):
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w") as tar:
        for name in ("a.jpg", "a.png", "b.jpg", "c.jpg", "c.png", "d.png", "._e.jpg", "f/"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            member = tarfile.TarInfo(f"{kind.decode()}.jpg")
            member.type = kind
            tar.addfile(member)
    with pytest.raises(DataError, match=r"^2 of 4 samples lack jpg or png, the first is b$"):
        TarRecords.open([str(file)], None, None)


def write_tar(file: Path, *names: str) -> str:
    """A tar file of files that hold their own names."""
    with tarfile.open(file, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(os.fsencode(name))
            tar.addfile(member, io.BytesIO(os.fsencode(name)))
    return str(file)


def test_samples_of_a_tar_are_told_apart_by_their_folders_and_the_first_of_all_says_what_is_image_and_mask(tmp_path):
    files = [
        write_tar(tmp_path / "0.tar", "notes.txt"),
        write_tar(tmp_path / "1.tar", "aa/1.jpg", "b/1.jpg", "b/1.small.jpg", "b/1.seg.png", "aa/1.seg.png"),
        write_tar(tmp_path / "2.tar", "\udcff.JPG", "\udcff.seg.png"),
        write_tar(tmp_path / "3.tar", "notes.txt"),
    ]
    records = TarRecords.open(files, None, None)
    assert [record["name"] for record in records] == ["aa/1", "b/1", "\udcff"]
    assert [record["image"] for record in records] == [b"aa/1.jpg", b"b/1.jpg", b"\xff.JPG"]
    assert [record["target"] for record in records] == [b"aa/1.seg.png", b"b/1.seg.png", b"\xff.seg.png"]


def test_one_tar_is_a_stream_which_has_no_file_to_validate_on(tmp_path):
    file = write_tar(tmp_path / "a.tar", "a.jpg", "a.png", "b.jpg", "b.png")
    with pytest.raises(DataError, match="a stream of 1 file has no file to validate on"):
        load_records(DataConfig(file))


def test_an_index_is_made_anew_where_a_file_says_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "content_key", lambda file: None)
    for name in ("a", "b"):
        file = write_tar(tmp_path / "x.tar", f"{name}.jpg", f"{name}.png")
        assert TarRecords.open([file], None, None).name(0) == name


def test_a_picture_of_4_gigabytes_in_a_tar_is_named(monkeypatch):
    def index(file: str) -> webdataset.ShardIndex:
        members = np.array([[0, 0, 0, 9], [0, 1, 9, 9], [1, 0, 18, 9], [1, 1, 27, size]])
        return webdataset.ShardIndex(np.array([b"a", b"b"]), np.array([b"jpg", b"png"]), members)

    monkeypatch.setattr(webdataset, "_index", index)
    size = 2**32 - 1
    assert TarRecords.open(["x.tar"], None, None).lengths.max() == size
    size = 2**32
    with pytest.raises(DataError, match=r"^b: a picture in a tar file has 4294967296 bytes, the most are 4 GB$"):
        TarRecords.open(["x.tar"], None, None)


def test_row_groups_without_rows_are_left_out_and_rows_are_counted_from_the_first(tmp_path):
    file = tmp_path / "a.parquet"
    table = pyarrow.table({"image": [b"1", b"2", b"3"], "mask": [b"4", None, b"6"]})
    with pyarrow.parquet.ParquetWriter(file, table.schema) as writer:
        for part in (table[:2], table[:0], table[2:]):
            writer.write_table(part)
    records = ParquetRecords.open([str(file)], None, None)
    assert records.group_sizes.tolist() == [2, 1]
    assert [(record["image"], record["target"]) for record in records] == [(b"1", b"4"), (b"2", None), (b"3", b"6")]
    assert [records.name(i) for i in range(3)] == [f"a.parquet row {row}" for row in range(3)]
    fewer = records.subset(np.array([False, True]))
    assert len(fewer) == 1
    assert fewer[0] == records[2]


def test_pictures_of_a_tar_are_read_at_once_up_to_a_gap_of_256_kilobytes(tmp_path, counted):
    # headers and padding are 1528 bytes of each gap
    sizes = {"0.jpg": 8, "0.png": 8, "x.bin": 260_608, "1.jpg": 8, "y.bin": 261_120, "1.png": 8}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, size in sizes.items():
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(name[0].encode() * size))
    records = TarRecords.open([f"counted://{tmp_path}/a.tar"], None, None)
    counted.clear()
    assert [record["image"] + record["target"] for record in records] == [b"0" * 16, b"1" * 16]
    spans = [(read.start, read.end) for read in counted.all()]
    assert spans == [(512, 1544 + 262_136 + 8), (526_336, 526_344)]
