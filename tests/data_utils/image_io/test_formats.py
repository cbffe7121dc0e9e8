"""How much memory the pixels of an image take, from which size on it is asked for, and files of other formats.

Modules: data_utils/image_io/formats.py.
"""

import pytest

from data_utils.image_io import formats
from data_utils.image_io.formats import check_memory, format_remedy


def test_memory_is_asked_for_from_128_megabytes_on(monkeypatch):
    monkeypatch.setattr(formats, "available_bytes", lambda: 10)
    check_memory(2**27, "little")
    with pytest.raises(ValueError, match=r"much needs 0\.1 GB of memory, 0\.0 GB are free"):
        check_memory(2**27 + 1, "much")


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["a.png", "B.HEIC", "c.zip"], "; convert HEIC to JPEG or PNG"),
        (["brain.mgz"], "; convert volumes of FreeSurfer and Analyze to NIfTI"),
        (["mp4"], "; take the frames out of videos: ffmpeg -i VIDEO frame_%06d.png"),
        (["a.png", "notes.txt"], ""),
        ([], ""),
    ],
    ids=["photographs", "volumes", "videos", "others", "none"],
)
def test_files_of_other_formats_are_told_how_to_become_images(names, remedy):
    assert format_remedy(names) == remedy
