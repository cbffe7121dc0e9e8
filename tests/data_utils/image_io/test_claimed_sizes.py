"""Small files that claim vast sizes: measured before anything is decoded, inflated or drawn."""

import gzip
import struct
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image
from support.coco_files import entry, write_coco
from support.data_sets import load_info

from data_utils.image_io.formats import VolumeFile, check_memory
from data_utils.image_io.reader import open_source, read_image, read_mask
from data_utils.image_io.volumes import read_volume
from data_utils.loading.volume_input import VolumeInput
from inference.network_inputs import open_input
from runtime.errors import DataError, ImageError
from unet.config import Preprocess, UNetConfig


def write_polygon(folder: Path, polygon: list[float], **size: int) -> Path:
    """Five pictures of 24 x 40 (H, W), listed as of `size`, with a polygon each."""
    objects = [entry(number, number, 3, [polygon]) for number in range(1, 6)]
    write_coco(folder / "_annotations.coco.json", objects, folder, 5, **size)
    return folder


TRIANGLE = [2, 2, 12, 2, 12, 12]


@pytest.mark.parametrize("size", [(999_999, 999_999), (40_000, 40_000), (30_000, 40_000), (9000, 12_000)])
def test_coco_sizes_are_compared_with_the_picture_before_anything_is_drawn(tmp_path, size):
    folder = write_polygon(tmp_path / "data", TRIANGLE, height=size[0], width=size[1])
    with pytest.raises(DataError, match=r"1\.png: .*24 x 40"):
        load_info(folder, val_fraction=0.4)


def test_coco_pictures_made_smaller_after_annotation_are_read(tmp_path):
    folder = write_polygon(tmp_path / "data", TRIANGLE, height=48, width=80)
    assert sum(load_info(folder, val_fraction=0.4).reader.class_pixels) == 5 * 48 * 80


def test_a_coco_outline_far_outside_the_picture_is_a_line(tmp_path):
    far = 900_000.0
    zigzag = [coordinate for turn in range(2000) for coordinate in ((-1) ** turn * far, far * (turn % 3 - 1))]
    with pytest.raises(DataError, match="up to 100,000"):
        load_info(write_polygon(tmp_path / "data", zigzag), val_fraction=0.4)


def test_memory_is_asked_for_from_128_megabytes_on(monkeypatch):
    monkeypatch.setattr("data_utils.image_io.formats.available_bytes", lambda: 10)
    check_memory(2**27, "little")
    with pytest.raises(ValueError, match=r"much needs 0\.1 GB of memory, 0\.0 GB are free"):
        check_memory(2**27 + 1, "much")


@pytest.fixture
def little_memory(monkeypatch):
    """A machine with a gigabyte of free memory."""
    monkeypatch.setattr("data_utils.image_io.formats.available_bytes", lambda: 10**9)


def png_without_pixels(width: int, height: int) -> bytes:
    """A PNG file of one bit a pixel, which ends where its pixels would begin."""
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("compression", [None, "zlib", "packbits"])
def test_a_tiff_of_too_few_strips_is_one_line(tmp_path, dtype, compression):
    options = {"photometric": "rgb", "compression": compression, "rowsperstrip": 10}
    tifffile.imwrite(tmp_path / "a.tif", np.ones((10, 20, 3), dtype), **options)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages[0].tags["ImageLength"].overwrite(300)
    with pytest.raises(ImageError, match="it has fewer tiles or strips than its size needs"):
        read_image(tmp_path / "a.tif")


@pytest.mark.usefixtures("little_memory")
def test_a_picture_is_measured_before_it_or_a_window_of_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # Pillow does not mind
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png_without_pixels(40_000, 40_000) + bytes(100_000))
    for read in (read_image, read_mask):
        with pytest.raises(DataError, match=r"40,000 x 40,000 pixels needs 4\.8 GB of memory, 1\.0 GB are free"):
            read(str(bomb), "bomb")
    with pytest.raises(ImageError, match="of memory"), open_source(bomb) as picture:
        picture.pixels(picture.rows(0, 1))


@pytest.mark.parametrize("read", [read_image, read_mask])
def test_an_array_is_measured_before_it_is_read(tmp_path, little_memory, read):
    with open(tmp_path / "bomb.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (30_000, 30_000)})
        file.truncate(30_000 * 30_000 + 128)
    with pytest.raises(DataError, match="of memory"):
        read(str(tmp_path / "bomb.npy"), "bomb")


def nifti(path: Path, shape: tuple[int, ...], side: float, voxels: bytes = b"", begin: float = 352) -> Path:
    """A NIfTI file of uint8 whose header claims a shape and voxels of `side` mm."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(shape)
    header.set_sform(np.diag([side, side, side, 1]), 1)
    header["pixdim"][1:4] = side
    header["vox_offset"] = begin
    header["magic"] = b"n+1"
    path.write_bytes(gzip.compress(header.binaryblock + bytes(4) + voxels))
    return path


def test_a_nifti_is_measured_before_it_is_inflated(tmp_path, little_memory):
    bomb = nifti(tmp_path / "bomb.nii.gz", (2000, 2000, 1000), 1)
    with pytest.raises(ImageError, match=r"4\.0 GB of memory"):
        read_volume(VolumeFile((str(bomb),)), "bomb")


def test_a_compressed_nifti_cannot_hold_what_its_header_claims(tmp_path):
    short = nifti(tmp_path / "short.nii.gz", (200, 200, 200), 1)
    with pytest.raises(ImageError, match=r"claims 8,000,000 bytes of voxels, it can hold [0-9,]+ at most"):
        read_volume(VolumeFile((str(short),)), "short")


def test_a_volume_is_not_resampled_to_far_more_than_it_holds(tmp_path):
    volume = nifti(tmp_path / "far.nii.gz", (4, 4, 4), 100, bytes(64))
    source = VolumeFile((str(volume),))
    assert VolumeInput.read(source, Preprocess(spacing=(10, 10, 10)), 1).size == (40, 40, 40)
    with pytest.raises(
        ImageError, match=r"100 x 100 x 100 mm .* has 1,000,000 times as many voxels, the most are 4,096"
    ):
        VolumeInput.read(source, Preprocess(spacing=(1, 1, 1)), 1)


def test_a_volume_that_a_model_does_not_take_is_not_unpacked(tmp_path):
    volume = VolumeFile((str(nifti(tmp_path / "a.nii.gz", (4, 4, 4), 1, bytes(10))),))
    photographs = UNetConfig(in_channels=3, preprocess=Preprocess(pixel_types=("uint8",)))
    channels = UNetConfig(in_channels=2, dims=3)
    for config, line in ((photographs, "is a volume, but"), (channels, "has 1 channels, the model takes 2")):
        with pytest.raises(ImageError, match=line):
            open_input(volume, [config], "a")


def test_a_volume_is_measured_before_it_is_resampled(tmp_path, little_memory):
    coarse = nifti(tmp_path / "coarse.nii.gz", (4, 4, 4), 1000, bytes(64))
    with pytest.raises(ImageError, match="1000 x 1000 x 1000 mm"):
        VolumeInput.read(VolumeFile((str(coarse),)), Preprocess(spacing=(1, 1, 1)), 1)
