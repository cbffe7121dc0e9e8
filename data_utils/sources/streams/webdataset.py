"""WebDataset: tar files in which the members of one sample share all of their name but the extension."""

import os
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.sources.hf_datasets import MASK_COLUMNS
from data_utils.sources.records import Record, StreamRows
from data_utils.sources.streams.remote import content_key, file_errors, open_file, read_ranges, retry
from runtime.cache import digest, load_or_compute
from runtime.errors import DataError

MASK_WORDS = {*MASK_COLUMNS, "seg", "segmentation", "labels", "masks"}
SAMPLES_TOGETHER = 32  # how many samples the order of a stream keeps together
HEADER_BLOCK = 2**20  # bytes that are read at once for headers: skipping smaller pictures is no faster
GAP = 2**18  # bytes between two pictures that are read with them: reading them is faster than another request

# of the pictures of a tar file: `names` (S,) bytes, the samples; `extensions` (E,) bytes, in lower case; `members`
# (M, 4) int64, the pictures in order: index of the sample, of the extension, first byte, size
Index = dict[str, np.ndarray]


class TarRows(StreamRows):
    """Samples of tar files, the pictures of a group read at once.

    Args:
        files: URL or path of each file.
        groups: (G, 3) int64, the groups in order: index of the file, first sample, samples.
        columns: of the samples of all files, also of groups that are left out: their names, (N,) bytes, and the first
            byte and the size of image and mask, (N, 2, 2) int64.
    """

    columns: tuple[np.ndarray, np.ndarray]

    @classmethod
    def open(cls, files: Sequence[str], image_column: str | None, mask_column: str | None) -> "TarRows":
        """Index all files. Raises DataError for a file that cannot be read or has no pairs of pictures."""
        with ThreadPoolExecutor(16) as pool:
            indices = list(pool.map(_index, files))
        image, mask = _extensions(indices, files, image_column, mask_column)
        lengths = [len(index["names"]) for index in indices]
        names = np.concatenate([index["names"] for index in indices])
        images = np.concatenate([_locations(index, image) for index in indices])
        masks = np.concatenate([_locations(index, mask) for index in indices])
        places = np.stack([images, masks], axis=1)
        lacking = np.flatnonzero((places[:, :, 0] < 0).any(axis=1))
        if len(lacking):
            name = os.fsdecode(names[lacking[0]].item())
            file = files[np.searchsorted(np.cumsum(lengths), lacking[0], side="right")]
            raise DataError(
                f"{len(lacking)} of {len(names)} samples lack {image} or {mask}, the first is {name} in {file};"
                " write the files again without them"
            )
        groups = group_samples(lengths)
        return cls(files, groups, (names, places))

    def __getitem__(self, i: int) -> Record:
        group, row = self._locate(i)
        if self.is_scattered:
            ((image, mask),) = self._read_pairs(group, row, row + 1)
        else:
            image, mask = self._group_content(group)[row]
        return {"image": image, "target": mask, "name": self.name(i)}

    def name(self, i: int) -> str:
        group, row = self._locate(i)
        names, _ = self.columns
        _, offset, _ = self.groups[group].tolist()
        return os.fsdecode(names[offset + row].item())

    def _read_group(self, group: int) -> list[tuple[bytes, bytes]]:
        return self._read_pairs(group, 0, int(self.group_sizes[group]))

    def _read_pairs(self, group: int, first: int, end: int) -> list[tuple[bytes, bytes]]:
        """The pictures of rows `first` to `end` - 1 of a group: in most files they lie in one range."""
        file, offset, _ = self.groups[group].tolist()
        _, places = self.columns
        starts, sizes = places[offset + first : offset + end].reshape(-1, 2).T
        ends = starts + sizes
        order = np.argsort(starts)
        begins_range = np.append(True, starts[order][1:] > ends[order][:-1] + GAP)
        range_starts = starts[order][begins_range]
        range_ends = ends[order][np.append(begins_range[1:], True)]
        ranges = list(zip(range_starts.tolist(), range_ends.tolist(), strict=True))
        contents = read_ranges(self.files[file], ranges)
        numbers = np.searchsorted(range_starts, starts, side="right") - 1
        pictures: list[bytes] = []
        for number, begin, stop in zip(
            numbers, starts - range_starts[numbers], ends - range_starts[numbers], strict=True
        ):
            pictures.append(contents[number][begin:stop])
        return list(zip(pictures[::2], pictures[1::2], strict=True))


def group_samples(counts: Sequence[int]) -> np.ndarray:
    """(G, 3) int64, the groups of files with so many samples: index of the file, first sample, samples."""
    groups: list[tuple[int, int, int]] = []
    offset = 0
    for file, count in enumerate(counts):
        for first in range(0, count, SAMPLES_TOGETHER):
            groups.append((file, offset + first, min(SAMPLES_TOGETHER, count - first)))
        offset += count
    return np.array(groups, np.int64).reshape(-1, 3)


def _locations(index: Index, extension: str) -> np.ndarray:
    """(S, 2) int64: first byte and size of each sample's picture with the extension; -1 if there is none."""
    members = index["members"]
    locations = np.full((len(index["names"]), 2), -1, np.int64)
    has_extension = index["extensions"][members[:, 1]] == os.fsencode(extension)
    locations[members[has_extension, 0]] = members[has_extension, 2:]
    return locations


def _extensions(indices: Sequence[Index], files: Sequence[str], image: str | None, mask: str | None) -> tuple[str, str]:
    """The extensions of image and mask: named by the user, by a word such as `mask`, or .png beside a .jpg.

    They are those of the first sample of all files. Raises DataError if it does not have them.
    """
    number = next((number for number, index in enumerate(indices) if len(index["names"])), None)
    if number is None:
        raise DataError(f"{files[0]} holds no pictures")
    members = indices[number]["members"]
    numbers = np.unique(members[members[:, 0] == 0, 1])
    extensions = sorted(map(os.fsdecode, indices[number]["extensions"][numbers].tolist()))
    if not mask:
        mask = next((name for name in extensions if MASK_WORDS & set(name.split("."))), None)
    other_extensions = [name for name in extensions if name != mask]
    if mask is None and "png" in other_extensions and len(other_extensions) == 2:
        mask = "png"
        other_extensions.remove("png")
    if not image and len(other_extensions) == 1:
        image = other_extensions[0]
    if image is None or mask is None or image not in extensions or mask not in extensions:
        raise DataError(
            f"{files[number]}: which of {', '.join(extensions)} are image and mask?"
            " Give them with --image-column and --mask-column"
        )
    return image, mask


def _index(file: str) -> Index:
    """The index of a file, kept in the cache until its content changes."""
    content = content_key(file)
    key = content and digest("tar index", content)
    return load_or_compute(key, lambda: _read_headers(file))


@retry
def _read_headers(file: str) -> Index:
    """The index of a file, by reading all of its headers."""
    samples: dict[str, int] = {}
    extensions: dict[str, int] = {}
    members: list[tuple[int, int, int, int]] = []
    with (
        file_errors(file, tarfile.TarError, hint="; compressed tar files are not streamed"),
        open_file(file, HEADER_BLOCK) as stream,
        tarfile.open(fileobj=stream, mode="r:") as tar,
    ):
        for member in tar:
            folder, slash, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            if stem and member.name.lower().endswith(IMAGE_SUFFIXES) and not member.isdir():
                if not member.isfile():
                    raise DataError(
                        f"{file}: {member.name} is a link, not a picture; give tar --dereference --hard-dereference"
                    )
                sample = samples.setdefault(f"{folder}{slash}{stem}", len(samples))
                number = extensions.setdefault(extension.lower(), len(extensions))
                members.append((sample, number, member.offset_data, member.size))
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all members
        stream.seek(tar.offset)
        if 0 < len(stream.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:  # tarfile takes part of a header for the end
            raise DataError(f"{file} is cut off: it ends within the header of a picture; copy it again")
    return {
        "names": np.array(list(map(os.fsencode, samples)), np.bytes_),
        "extensions": np.array(list(map(os.fsencode, extensions)), np.bytes_),
        "members": np.array(members, np.int64).reshape(-1, 4),
    }
