"""Streamed data sets: they hold what their folder holds, and each image is seen once however the work is shared."""

import io
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

import numpy as np
import pyarrow.parquet
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from PIL import Image
from support.data_sets import load_info
from support.file_reads import NOTES, CountedFiles, Reads
from support.folders import write_folder, write_splits
from support.launches import TINY, launch
from support.run_files import losses
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes, build_loaders
from data_utils.pack import pack
from data_utils.sources.load import load_records
from data_utils.sources.streams import remote, webdataset
from data_utils.sources.streams.parquet import ParquetRows
from data_utils.sources.streams.remote import find_files
from data_utils.sources.streams.webdataset import TarRows
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


def write_tars(records: list[dict], out: Path, split: str, shards: int) -> Path:
    """A folder of tar files, among which the pairs are dealt."""
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


def dealt_images(info: DatasetInfo, world: int, workers: int, steps: range, batch_size: int, micro: int) -> list[list]:
    """The real images of each process's batches, dealt by accelerate: (epoch, index) and the sum of the pixels."""
    info = replace(info, config=replace(info.config, seed=3))
    shapes = NetworkShapes(np.tile(SIZE, (len(info.train), 1)), np.tile(SIZE, (1, 1)))
    batch_split = BatchSplit(batch_size, world, micro, -(-batch_size // (micro * world)))
    images = []
    for rank in range(world):
        loader, _ = build_loaders(
            info, UNetConfig(), shapes, batch_split, steps, num_workers=workers, device=torch.device("cpu")
        )
        shard = BatchSamplerShard(loader.batch_sampler, world, rank, split_batches=False, even_batches=False)
        batches = DataLoader(loader.dataset, batch_sampler=shard, collate_fn=loader.collate_fn, num_workers=workers)
        images.append([image for batch in batches for image in real_images(batch)])
    return images


def real_images(batch: dict) -> list[tuple[int, int, int]]:
    """(epoch, index) and the pixels' sum of the images of a batch that are no fillers, whose masks are all unknown."""
    images = []
    for slot, image, mask in zip(batch["slots"], batch["images"], batch["targets"].mask, strict=True):
        if (mask != 255).any():
            images.append((slot.epoch, slot.index, int(image.long().sum())))
    return images


SHARES = [
    (3, 0, 2),
    (2, 2, 3),
    pytest.param(1, 2, 3, marks=pytest.mark.slow),
    pytest.param(3, 2, 3, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=[False, True], ids=["map-style", "stream"])
def any_info(request, folder, packed) -> DatasetInfo:
    """The same images in files and in a stream; cells are 255 in the files, so that no mask is all unknown."""
    return load_info(packed, streaming=True, **STREAM) if request.param else load_info(folder)


@pytest.fixture(scope="module")
def images_alone(any_info) -> list[tuple[int, int, int]]:
    """What one process sees in two epochs of six batches of 8."""
    return dealt_images(any_info, 1, 0, range(12), 8, 8)[0]


def test_every_image_is_seen_once_an_epoch(images_alone):
    assert Counter(image[:2] for image in images_alone) == Counter((e, i) for e in range(2) for i in range(47))


@pytest.mark.parametrize(("world", "workers", "micro"), SHARES)
def test_every_image_is_seen_as_often_by_several_processes(any_info, images_alone, world, workers, micro):
    together = [image for rank in dealt_images(any_info, world, workers, range(12), 8, micro) for image in rank]
    assert Counter(together) == Counter(images_alone)


@pytest.mark.parametrize(("world", "workers", "micro"), SHARES)
def test_a_run_that_is_resumed_sees_what_is_left(any_info, images_alone, world, workers, micro):
    resumed = dealt_images(any_info, 1, 0, range(4), 8, 8)[0]
    for rank in dealt_images(any_info, world, workers, range(4, 12), 8, micro):
        resumed += rank
    assert Counter(resumed) == Counter(images_alone)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_stream_or_table_holds_the_pictures_of_its_folder(folder, packed, tars, split):
    def sums(info: DatasetInfo) -> dict[str, tuple]:
        records = getattr(info, split).records
        return {Path(r["name"]).stem: (read_image(r["image"]).sum(), read_image(r["target"]).sum()) for r in records}

    sums_of_files = sums(load_info(folder))
    assert len(sums_of_files) == {"train": 47, "val": 5}[split]
    assert sums(load_info(packed, streaming=True, **STREAM)) == sums_of_files
    assert sums(load_info(packed)) == sums_of_files
    assert load_info(packed).reader.class_pixels == load_info(folder).reader.class_pixels
    assert isinstance(load_info(tars, **STREAM).train.records.rows, TarRows)
    assert sums(load_info(tars, **STREAM)) == sums_of_files


def test_masks_outside_the_sample_of_a_stream_may_hold_255(tmp_path):
    write_folder(tmp_path / "folder", 4, seed=0, values=(0, 1))
    pack(load_info(tmp_path / "folder", fold="1/2").train.records, tmp_path / "packed", "train")
    pack(load_info(tmp_path / "folder", fold="1/2").val.records, tmp_path / "packed", "val")
    flags = STREAM | {"classes": "0=background,1=cell"}
    assert load_info(tmp_path / "packed", streaming=True, **flags).reader.class_map.ignore_value == 255
    assert load_info(tmp_path / "folder", classes=flags["classes"]).reader.class_map.ignore_value is None


def test_a_validation_mask_of_no_class_in_a_stream_is_refused_or_skipped_with_a_flag(tmp_path):
    palette = np.array([(0, 0, 0), (200, 100, 0), (1, 2, 3)], np.uint8)
    for split in ("train", "val"):
        write_folder(tmp_path / split, 3, seed=0)
        for file in (tmp_path / split / "masks").iterdir():
            mask = np.array(Image.open(file)) // 255
            mask[0, 0] = 2 if (split, file.name) == ("val", "cell_01.png") else 0
            Image.fromarray(palette[mask]).save(file)
    colors = {"classes": "#000000=background,#c86400=cell", "crop_size": (32, 32)}
    info = load_info(tmp_path, classes=colors["classes"], on_bad_sample="skip")
    pack(info.train.records, tmp_path / "packed", "train")
    pack(info.val.records, tmp_path / "packed", "val")
    with pytest.raises(DataError, match=r"1 of 3 pairs cannot be used: .*mask values #010203 belong to no class"):
        load_info(tmp_path / "packed", streaming=True, **colors)
    info = load_info(tmp_path / "packed", streaming=True, on_bad_sample="skip", **colors)
    assert [*info.val.bad] == [1]
    assert "belong to no class" in info.val.bad[1]
    assert not info.train.bad


def test_the_sizes_of_validation_images_are_read_where_a_stream_keeps_them(folder, packed):
    info = load_info(packed, streaming=True, classes=CLASSES, crop_size=(32, 32))
    assert info.val.sizes.tolist() == [list(SIZE)] * 5
    assert not info.train.sizes.any()
    assert not load_info(packed, streaming=True, **STREAM).val.sizes.any()
    seen_by_all = load_info(folder, classes=CLASSES, crop_size=(32, 32))
    assert info.normalization.mean == pytest.approx(seen_by_all.normalization.mean, rel=0.02)


def test_a_stream_travels_to_other_processes_without_what_it_has_read(packed):
    records = load_info(packed, streaming=True, **STREAM).train.records
    first = records[0]
    copy = pickle.loads(pickle.dumps(records))
    assert copy[0] == first
    assert len(copy) == 47
    assert len(pickle.dumps(records)) < 5000
    with pytest.raises(IndexError):
        records[47]


def test_whole_shards_are_held_out_where_there_is_no_validation_split(packed, tmp_path):
    for file in packed.rglob("train*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    info = load_info(tmp_path, streaming=True, **STREAM)
    train, val = ({record["name"] for record in split.records} for split in (info.train, info.val))
    assert len(train) + len(val) == 47
    assert not train & val
    first, *others = sorted(tmp_path.iterdir())
    names = {record["name"] for record in ParquetRows.open([str(first)], None, None)}
    assert names <= train or names <= val
    for file in others:
        file.unlink()
    with pytest.raises(DataError, match="a stream of 1 file has none to validate on"):
        load_info(tmp_path, streaming=True, **STREAM)


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
    write_tars(list(files.train.records), tmp_path / "tars", "train", 3)
    return write_tars(list(files.val.records), tmp_path / "tars", "val", 1)


def test_headers_of_a_tar_are_read_again_only_when_it_has_changed(tars, counted):
    files = [f"counted://{file}" for file in sorted(tars.glob("train*.tar"))]
    first = TarRows.open(files, None, None)
    assert set(counted.bytes_of()) == {"train-000.tar", "train-001.tar", "train-002.tar"}
    counted.clear()
    again = TarRows.open(files, None, None)
    assert not counted.all()
    assert np.array_equal(first.groups, again.groups)
    for column, same in zip(first.columns, again.columns, strict=True):
        assert np.array_equal(column, same)
    content = (tars / "train-001.tar").read_bytes()
    (tars / "train-001.tar").unlink()
    (tars / "train-001.tar").write_bytes(content)
    TarRows.open(files, None, None)
    assert set(counted.bytes_of()) == {"train-001.tar"}


def test_a_tar_that_ends_within_a_header_is_cut_off(tars):
    file = tars / "train-000.tar"
    with tarfile.open(file) as tar:
        last = tar.getmembers()[-1]
    file.write_bytes(file.read_bytes()[: last.offset + 100])
    with pytest.raises(DataError, match="is cut off: it ends within"):
        TarRows.open([str(file)], None, None)


def read_epochs(dataset: Path, counted: Reads, num_workers: int) -> SimpleNamespace:
    """The reads of all batches of a data set of 47 training and 5 validation pairs, four at a time.

    They come with how many groups the training records have, and the bytes of their files. The order of the training
    images is that which one process sees.
    """
    info = load_info(f"counted://{dataset}", **STREAM)
    info = without_what_was_read(info)
    expected_order = dealt_images(info, 1, 0, range(12), 4, 4)[0]
    info = without_what_was_read(replace(info, config=replace(info.config, seed=3)))
    shapes = NetworkShapes(np.tile(SIZE, (47, 1)), np.tile(SIZE, (5, 1)))
    train, val = build_loaders(
        info,
        UNetConfig(),
        shapes,
        BatchSplit(4, 1, 4, 1),
        range(12),
        num_workers=num_workers,
        device=torch.device("cpu"),
    )
    # up to four processes read for training and as many for validation; further workers are threads
    assert train.num_workers == val.num_workers == {0: 0, 1: 1, 3: 2, 16: 4}[num_workers]
    assert train.dataset.threads == (4 if num_workers == 16 else 1)
    counted.clear()
    assert [image for batch in train for image in real_images(batch)] == expected_order
    training_reads = counted.all()
    counted.clear()
    assert sum(len(batch["indices"]) for batch in val) == 5
    return SimpleNamespace(
        groups=len(info.train.records.rows.group_sizes),
        size=sum(file.stat().st_size for file in dataset.rglob("train*")),
        training_reads=training_reads,
        validation_reads=counted.all(),
    )


def without_what_was_read(info: DatasetInfo) -> DatasetInfo:
    """Training records that have no group in memory, as in another process."""
    return replace(info, train=replace(info.train, records=pickle.loads(pickle.dumps(info.train.records))))


PIECES = 4 * 4  # in the middle of a group, or at its border, one of these pieces of the order may begin


@pytest.mark.parametrize(
    "num_workers",
    [0, 1, pytest.param(3, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)],
    ids=lambda workers: f"{workers} workers",
)
def test_an_epoch_of_tars_reads_each_group_once(num_workers, tars, counted, monkeypatch):
    monkeypatch.setattr(webdataset, "SAMPLES_TOGETHER", 4)
    epochs = read_epochs(tars, counted, num_workers)
    assert epochs.groups <= len(epochs.training_reads) <= epochs.groups + PIECES
    assert len({(read.file, read.start, read.end) for read in epochs.training_reads}) == epochs.groups
    size = sum(read.end - read.start for read in epochs.training_reads)
    assert size <= epochs.size * (epochs.groups + PIECES) / epochs.groups
    assert len(epochs.validation_reads) == 5


@pytest.mark.parametrize(
    "num_workers",
    [0, 3, pytest.param(1, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)],
    ids=lambda workers: f"{workers} workers",
)
def test_an_epoch_of_parquet_files_reads_each_group_once(num_workers, packed, counted):
    epochs = read_epochs(packed, counted, num_workers)
    assert len(epochs.training_reads) <= 3 * (epochs.groups + PIECES)  # the footer, and both columns
    size = sum(read.end - read.start for read in epochs.training_reads)
    footers = 2**16 * (epochs.groups + PIECES)
    assert size <= epochs.size * (epochs.groups + PIECES) / epochs.groups + footers


def test_a_row_of_parquet_files_is_named_without_its_pictures(tmp_path, counted):
    images = [{"bytes": np.random.default_rng(i).bytes(2**20), "path": f"{i}.png"} for i in range(4)]
    table = pyarrow.table({"image": images, "mask": [b"1"] * 4})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    records = ParquetRows.open([f"counted://{tmp_path / 'a.parquet'}"], None, None)
    counted.clear()
    assert records.name(3) == "3.png"
    assert counted.bytes_of()["a.parquet"] < 2**20


@pytest.fixture(params=["tars", "packed"])
def remote_records(request, counted, monkeypatch):
    """The records of a data set that could be opened though the network failed four times."""
    monkeypatch.setattr(CountedFiles, "failures", 4)
    records = load_info(f"counted://{request.getfixturevalue(request.param)}", **STREAM).train.records
    return pickle.loads(pickle.dumps(records))  # without what was read before


def test_a_remote_file_is_read_again_when_the_network_fails(remote_records, monkeypatch):
    monkeypatch.setattr(CountedFiles, "failures", 4)
    assert remote_records[20]["name"]
    assert CountedFiles.failures == 0


def test_a_remote_file_is_named_when_the_network_fails_five_times(remote_records, monkeypatch):
    monkeypatch.setattr(CountedFiles, "failures", 5)
    with pytest.raises(DataError, match=r"counted://.* cannot be read \(the network fails\)"):
        remote_records[20]


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
def test_a_stream_that_lacks_a_setting_is_refused(packed, options, message):
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


def test_a_folder_with_nothing_to_stream_is_refused_with_what_it_holds(folder):
    with pytest.raises(DataError, match=r"no \.parquet or \.tar files; found cell_00\.png"):
        find_files(str(folder), [])


def test_a_stream_that_is_nowhere_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        load_info(tmp_path / "nowhere", streaming=True, **STREAM)


@pytest.mark.slow
def test_a_stream_trains_alike_on_one_and_two_processes(packed, tmp_path):
    options = ["--streaming", "--classes", CLASSES, "--crop-size", "32", "32", "--optimizer", "sgd"]
    options += ["--tracker", "none", *TINY, "--max-steps", "8", "--log-every", "1", "--batch-size", "5"]
    for profile in ("cpu", "multi_cpu"):
        command = ["train.py", "--dataset", packed, *options, "--output-dir", tmp_path / profile]
        result = launch(*command, profile=profile)
        assert result.returncode == 0, result.stderr
    assert len(losses(tmp_path / "cpu")) == 8
    # the documented promise, of SGD in fp32
    assert losses(tmp_path / "cpu") == pytest.approx(losses(tmp_path / "multi_cpu"), abs=1e-5)


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


def test_a_stream_has_no_folds(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "0.tar").touch()
    config = DataConfig(str(tmp_path), image_column="scan", mask_column="cells")
    with pytest.raises(DataError, match=r"--fold cannot be used: .* is a stream; copy it to a folder"):
        load_records(replace(config, fold="1/2"))
