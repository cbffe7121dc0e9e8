"""How much memory the pixels of an image take, and from which size on it is asked for."""

import pytest
from PIL import Image

from data_utils.image_io import formats
from data_utils.image_io.formats import check_decoding, check_memory, readable
from runtime.errors import DataError, ImageError


def test_memory_is_asked_for_from_128_megabytes_on(monkeypatch):
    monkeypatch.setattr(formats, "available_bytes", lambda: 10)
    check_memory(2**27, "little")
    with pytest.raises(ValueError, match=r"much needs 0\.1 GB of memory, 0\.0 GB are free"):
        check_memory(2**27 + 1, "much")
    monkeypatch.setattr(formats, "available_bytes", lambda: 2**28)
    check_memory(2**28, "all that is free")
    with pytest.raises(ValueError, match="more needs"):
        check_memory(2**28 + 1, "more")


@pytest.mark.parametrize(("mode", "pixel_bytes"), [("1", 1), ("L", 1), ("P", 1), ("RGB", 4), ("I", 4), ("CMYK", 4)])
def test_a_picture_is_in_memory_three_times_while_it_is_decoded(monkeypatch, mode, pixel_bytes):
    needed = []
    monkeypatch.setattr(formats, "check_memory", lambda count, what: needed.append(count))
    check_decoding(Image.new(mode, (7, 5)))
    assert needed == [3 * 35 * pixel_bytes]


def test_what_a_library_raises_names_the_file_and_what_we_raise_stays_as_it_is():
    with pytest.raises(ImageError, match=r"^a\.png cannot be read \(no header\)$"), readable("a.png"):
        raise IndexError("no header")
    with pytest.raises(DataError, match=r"^b\.png: has 3 bands$"), readable("a.png"):
        raise DataError("b.png: has 3 bands")
