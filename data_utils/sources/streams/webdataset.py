"""WebDataset: tar files in which the members of one sample share all of their name but the extension."""

import os
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from data_utils.image_io.formats import IMAGE_SUFFIXES
from data_utils.sources.hf_datasets import MASK_COLUMNS
from data_utils.sources.records import Record, StreamRecords
from data_utils.sources.streams.remote import reachable
from runtime.errors import DataError

MASK_WORDS = {*MASK_COLUMNS, "seg", "segmentation", "labels", "masks"}
TOGETHER = 32  # how many samples the order of a stream keeps together


class TarRecords(StreamRecords):
    """Samples of tar files as records, each picture read by its place in the file.

    Args:
        files: URL or path of each.
        names: (N,) bytes, the samples in order.
        offsets: (N, 5) int64: index of the file, first byte and size of the image, first byte and size of the mask.
    """

    def __init__(self, files: Sequence[str], names: np.ndarray, offsets: np.ndarray) -> None:
        self.files = files
        self.names = names
        self.offsets = offsets
        counts = np.bincount(offsets[:, 0], minlength=len(files)).tolist()
        groups: list[tuple[int, int]] = []
        for file, count in enumerate(counts):
            for first in range(0, count, TOGETHER):
                groups.append((file, min(TOGETHER, count - first)))
        self.groups = np.array(groups, np.int64).reshape(-1, 2)
        self.group_sizes = self.groups[:, 1]

    @classmethod
    def open(cls, files: Sequence[str], image_column: str | None, mask_column: str | None) -> "TarRecords":
        """Read all headers. Raises DataError for what cannot be read or has no pairs of pictures."""
        with ThreadPoolExecutor(16) as pool:
            indices = list(pool.map(_index, files))
        samples: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
        for file, index in enumerate(indices):
            for name, members in index.items():
                samples.append((file, name, members))
        if not samples:
            raise DataError(f"{files[0]} holds no pictures")
        _, _, first_members = samples[0]
        image, mask = _extensions(first_members, files[0], image_column, mask_column)
        lacking = [name for _, name, members in samples if not {image, mask} <= members.keys()]
        if lacking:
            raise DataError(
                f"{len(lacking)} of {len(samples)} samples lack {image} or {mask}, the first is {lacking[0]}"
            )
        names = np.array([os.fsencode(name) for _, name, _ in samples])
        offsets = [(file, *members[image], *members[mask]) for file, _, members in samples]
        return cls(files, names, np.array(offsets, np.int64))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Record:
        number, image_start, image_size, mask_start, mask_size = self.offsets[i].tolist()
        file = self.files[number]
        image = _read(file, image_start, image_size)
        mask = _read(file, mask_start, mask_size)
        return {"image": image, "target": mask, "name": os.fsdecode(self.names[i].item())}

    def part(self, chosen: np.ndarray) -> "TarRecords":
        """The records of the groups that `chosen`, (G,) bool, marks."""
        is_chosen = np.repeat(chosen, self.groups[:, 1])
        return TarRecords(self.files, self.names[is_chosen], self.offsets[is_chosen])


def _index(file: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Sample -> extension -> (first byte, size), of all pictures."""
    import fsspec

    samples: dict[str, dict[str, tuple[int, int]]] = {}
    with (
        reachable(file, tarfile.TarError, hint="; compressed tar files are not streamed"),
        fsspec.open(file, "rb") as stream,
        tarfile.open(fileobj=stream, mode="r:") as tar,
    ):
        for member in tar:
            folder, slash, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            if member.isfile() and stem and member.name.lower().endswith(IMAGE_SUFFIXES):
                members = samples.setdefault(f"{folder}{slash}{stem}", {})
                members[extension.lower()] = (member.offset_data, member.size)
    return samples


def _extensions(members: dict, file: str, image: str | None, mask: str | None) -> tuple[str, str]:
    """Which extensions are the image and the mask: as asked, by a word such as `mask`, or .png beside a .jpg."""
    extensions = sorted(members)
    if not mask:
        mask = next((name for name in extensions if MASK_WORDS & set(name.split("."))), None)
    others = [name for name in extensions if name != mask]
    if mask is None and "png" in others and len(others) == 2:
        mask = "png"
        others.remove("png")
    if not image and len(others) == 1:
        image = others[0]
    if image is None or mask is None or image not in members or mask not in members:
        raise DataError(
            f"{file}: which of {', '.join(extensions)} are image and mask?"
            " Give them with --image-column and --mask-column"
        )
    return image, mask


def _read(file: str, start: int, size: int) -> bytes:
    import fsspec

    with reachable(file):
        system, path = fsspec.core.url_to_fs(file)
        return system.cat_file(path, start, start + size)
