"""Packing a data set: what shards hold, how large they are, and what cannot be packed."""

from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest
import tifffile
from PIL import Image
from rasterio import Affine
from support.folders import write_folder, write_splits
from support.rasters import NORTH_UP, scene, write_raster
from support.volumes import write_msd

from data_utils import pack as pack_module
from data_utils.config import DataConfig
from data_utils.image_io.formats import PageFile
from data_utils.image_io.reader import read_image, read_mask
from data_utils.mask_values import BEYOND_MASK
from data_utils.pack import pack
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError


def packed_row(folder: Path, page: int, target: object) -> dict:
    """What a shard holds of a pair whose image is a page of a.tif."""
    record = {"image": PageFile(str(folder / "a.tif"), page), "target": target, "name": f"{page}.jpg"}
    (file,) = pack(Records(ListRows([record])), folder, "train")
    (row,) = pyarrow.parquet.read_table(file).to_pylist()
    return row


@pytest.mark.parametrize(("dtype", "samples"), [("uint16", 1), ("uint8", 3), ("uint16", 3)])
def test_a_page_of_any_type_is_packed_with_its_numbers(tmp_path, dtype, samples):
    pages = np.random.default_rng(0).integers(0, 250, (4, 8, 10, samples)).astype(dtype)
    photometric = "rgb" if samples == 3 else "minisblack"
    tifffile.imwrite(tmp_path / "a.tif", pages.squeeze(), photometric=photometric)
    row = packed_row(tmp_path, 2, b"")
    assert np.array_equal(read_image(row["image"]["bytes"]), pages[2])


def test_packed_rasters_are_read_like_their_files(tmp_path):
    """Six bands, some pixels without data, a mask on a grid twice as coarse, and one of large numbers a row below."""
    bands, mask = scene(0, channels=6)
    bands[:, :4] = 7
    for name in "ab":
        write_raster(tmp_path / f"data/images/{name}.tif", bands, nodata=7)
    coarse = NORTH_UP * Affine.scale(2)
    write_raster(tmp_path / "data/masks/a.tif", mask[None, ::2, ::2], transform=coarse)
    shifted = NORTH_UP * Affine.translation(0, 1)
    write_raster(tmp_path / "data/masks/b.tif", mask[None].astype(np.uint32) * 70_000, transform=shifted)
    assert run_pack(tmp_path / "data", tmp_path / "packed") == 0
    folder = load_records(DataConfig(str(tmp_path / "data"), val_fraction=0.5))
    packed = load_records(DataConfig(str(tmp_path / "packed"), val_fraction=0.5))
    for own, copied in zip(folder, packed, strict=True):
        name = own[0]["name"]
        assert copied[0]["name"] == name
        image = read_image(own[0]["image"])
        assert image.shape == (40, 56, 6)
        packed_image = read_image(copied[0]["image"])
        assert np.array_equal(packed_image.data, image.data)
        assert packed_image.mask.sum() == (image.mask & packed_image.mask).sum() == 4 * 56 * 6
        values = read_mask(own[0]["target"], name)
        expected = np.where(values == BEYOND_MASK, 255, values)
        assert np.array_equal(expected, read_mask(copied[0]["target"], name))


def test_a_mask_on_another_grid_is_packed_with_its_numbers_below_0(tmp_path):
    for name in "ab":
        write_raster(tmp_path / f"data/images/{name}.tif", scene(0)[0])
        values = np.full((1, 40, 56), -9999, np.int16)
        values[0, 5:20] = 1
        write_raster(tmp_path / f"data/masks/{name}.tif", values, transform=NORTH_UP @ Affine.translation(0, 1))
    assert run_pack(tmp_path / "data", tmp_path / "packed") == 0
    train, _ = load_records(DataConfig(str(tmp_path / "packed"), val_fraction=0.5))
    assert np.unique(read_mask(train[0]["target"], "a")).tolist() == [-9999, 1, 255]


def test_a_file_is_packed_as_it_is_and_a_mask_as_it_is_read(tmp_path):
    pages = np.random.default_rng(0).integers(0, 9, (3, 8, 10), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    Image.fromarray(pages[0]).save(tmp_path / "m.png")
    row = packed_row(tmp_path, 2, str(tmp_path / "m.png"))
    assert row["mask"]["path"] == "2.png"
    assert row["mask"]["bytes"] == (tmp_path / "m.png").read_bytes()
    row = packed_row(tmp_path, 0, EvaluatedIds(str(tmp_path / "m.png")))
    assert row["mask"]["path"] == "0.png"
    expected = np.where(np.isin(pages[0], (7, 8)), pages[0], 255)
    assert np.array_equal(read_image(row["mask"]["bytes"])[:, :, 0], expected)


def run_pack(*arguments: object) -> int:
    """The exit code of data_utils.pack in this process."""
    with mock.patch("sys.argv", ["pack", *map(str, arguments)]):
        try:
            pack_module.main()
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def test_packing_overwrites_no_shards(tmp_path):
    folder = write_splits(tmp_path / "data", 3, 2)
    assert run_pack(folder, tmp_path / "out") == 0
    assert run_pack(folder, tmp_path / "out") == 2


def test_packing_names_a_damaged_mask_before_it_writes(tmp_path):
    folder = write_folder(tmp_path / "data", 3, seed=0)
    (folder / "masks" / "cell_01.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"cell_01\.png: mask cannot be read"):
        run_pack(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def small_records(*sizes: int) -> Records:
    """Records called 0.png, 1.png, ... whose images have so many bytes, and their masks none."""
    return Records(
        ListRows([{"image": bytes(size), "target": b"", "name": f"{number}.png"} for number, size in enumerate(sizes)])
    )


@pytest.mark.parametrize(
    ("sizes", "shard_mb", "shards"),
    [((1,) * 9, 3, [3, 3, 3]), ((3,) * 4, 8, [2, 2]), ((1, 5, 1, 1), 2, [1, 1, 2])],
)
def test_a_shard_holds_about_as_many_megabytes_as_are_given(tmp_path, monkeypatch, sizes, shard_mb, shards):
    monkeypatch.setattr(pack_module, "GROUP_BYTES", 0)
    files = pack(small_records(*(size * 2**20 for size in sizes)), tmp_path, "val", shard_mb)
    assert files == [tmp_path / "data" / f"val-{i:05}-of-{len(shards):05}.parquet" for i in range(len(shards))]
    assert [pyarrow.parquet.read_metadata(file).num_rows for file in files] == shards
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    names = [f"{number}.png" for number in range(len(sizes))]
    assert [row["image"]["path"] for row in rows] == names
    assert [row["mask"]["path"] for row in rows] == names


def test_all_splits_are_packed_as_the_flags_say(tmp_path, capsys):
    # two splits whose masks end in _m; each has a damaged mask besides, which ends in _n
    for split, count in (("train", 4), ("test", 3)):
        masks = write_folder(tmp_path / "data" / split, count, seed=0) / "masks"
        for file in list(masks.iterdir()):
            file.rename(file.with_stem(f"{file.stem}_m"))
        (masks / "cell_00_n.png").write_bytes(b"")
    flags = ["--mask-suffix", "_m", "--shard-mb", "0.001"]
    with pytest.raises(DataError, match=r"1 file without partner: .*: mask without image"):
        run_pack(tmp_path / "data", tmp_path / "out", *flags)
    run_pack(tmp_path / "data", tmp_path / "out", *flags, "--allow-unpaired")
    files = {split: len(list((tmp_path / "out" / "data").glob(f"{split}-*"))) for split in ("train", "test")}
    assert files == {"train": 4, "test": 3}
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"test: 3 pairs in 3 files, {tmp_path}/out/data",
        f"train: 4 pairs in 4 files, {tmp_path}/out/data",
    ]


@pytest.mark.parametrize("split", ["train", "val"])
def test_images_that_are_labeled_for_some_classes_make_no_shards(tmp_path, split):
    folder = write_splits(tmp_path / "data", 3, 2)
    (folder / split / "classes.csv").write_text("image,classes\ncell_00.png,car\n")
    with pytest.raises(DataError, match="shards cannot say which classes an image is labeled for"):
        run_pack(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_volumes_make_no_shards(tmp_path):
    folder = write_msd(tmp_path / "data", 2)
    with pytest.raises(DataError, match=f"^{folder} holds volumes, and shards hold images"):
        run_pack(folder, tmp_path / "out")
