"""Damaged files: whatever is in them, the readers end in an error of ours or in a picture, and soon."""

import io
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.damage import damaged
from support.inputs import read_input
from support.inspections import inspected

from data_utils.analysis.inspect_record import Inspection
from data_utils.analysis.problems import Problem
from data_utils.image_io.reader import read_header, read_image, read_mask
from runtime.errors import DataError, ImageError
from unet.config import Preprocess

SECONDS = 5  # far more than any of these small files takes
INDICES = (np.arange(24 * 32, dtype=np.uint8).reshape(24, 32) // 100).copy()
COLORS = np.stack([INDICES * 30, INDICES * 7, 255 - INDICES], axis=2)


def encoded(array: np.ndarray, kind: str, mode: str | None = None, **options) -> bytes:
    file = io.BytesIO()
    if kind == "npy":
        np.save(file, array)
    else:
        picture = Image.fromarray(array)
        (picture.convert(mode) if mode else picture).save(file, kind, **options)
    return file.getvalue()


def with_orientation() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(COLORS, "jpeg", exif=exif)


FILES = {
    "png": encoded(INDICES, "png"),
    "png palette": encoded(INDICES, "png", "P"),
    "png rgba": encoded(COLORS, "png", "RGBA"),
    "png 1-bit": encoded(INDICES, "png", "1"),
    "png 16-bit": encoded(INDICES.astype(np.uint16) * 99, "png"),
    "jpeg": encoded(COLORS, "jpeg"),
    "jpeg progressive": encoded(COLORS, "jpeg", progressive=True),
    "jpeg cmyk": encoded(COLORS, "jpeg", "CMYK"),
    "jpeg turned": with_orientation(),
    "gif": encoded(INDICES, "gif"),
    "bmp": encoded(COLORS, "bmp"),
    "tga": encoded(COLORS, "tga"),
    "ppm": encoded(COLORS, "ppm"),
    "webp": encoded(COLORS, "webp", lossless=True),
    "jp2": encoded(COLORS, "jpeg2000"),
    "tiff": encoded(INDICES, "tiff"),
    "tiff deflate": encoded(COLORS, "tiff", compression="tiff_deflate"),
    "tiff lzw": encoded(INDICES, "tiff", compression="tiff_lzw"),
    "tiff float": encoded(INDICES.astype(np.float32), "tiff"),
    "npy": encoded(INDICES, "npy"),
    "npy float": encoded(INDICES.astype(np.float64), "npy"),
}


@pytest.fixture(autouse=True, scope="module")
def small_pictures() -> Iterator[None]:
    """A damaged header may claim many megapixels; reading those takes long, but that is no hang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
        yield


class Hanging(BaseException):
    """No Exception: the readers take any of those for a damaged file."""


@contextmanager
def bounded() -> Iterator[None]:
    """A reader that hangs is interrupted, by an error that is none of ours; its time is that of the processor."""

    def stop(*_) -> None:
        raise Hanging(f"still reading after {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read_all(content: bytes) -> None:
    """Every reader on one file; only an error of ours may come out."""
    with warnings.catch_warnings(), bounded():
        warnings.simplefilter("ignore")  # Pillow's own, about damaged tags
        with suppress(DataError):
            height, width = read_header(content, "f")[0]
            assert height >= 0
            assert width >= 0
        with suppress(DataError):
            assert read_mask(content, "f").ndim in (2, 3)
        with suppress(ImageError):
            assert read_image(content, "f").ndim == 3
        with suppress(ImageError):
            assert read_input(content, Preprocess(scale=0.3), 3, "f").whole().shape[0] == 3
        assert isinstance(inspected({"image": content, "target": content, "name": "f"}), Inspection | Problem)


DAMAGED = damaged([*FILES.values()], header=64)


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_the_files_are_good_before_they_are_damaged(content):
    assert read_image(content).shape[:2] in ((24, 32), (32, 24))
    assert read_mask(content, "f").shape[:2] in ((24, 32), (32, 24))


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(DAMAGED)
def test_damaged_files_end_in_an_error_of_ours(content):
    read_all(content)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.binary(max_size=200), st.sampled_from([content[:12] for content in FILES.values()] + [b""]))
def test_noise_ends_in_an_error_of_ours(noise, start):
    read_all(start + noise)


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_may_end_anywhere(content):
    for end in sorted({*range(0, 48), *range(48, len(content), max(1, len(content) // 40))}):
        read_all(content[:end])


@pytest.mark.slow
@settings(max_examples=30_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(DAMAGED)
def test_many_damaged_files_end_in_an_error_of_ours(content):
    read_all(content)
