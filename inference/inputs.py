"""Inputs of a prediction: files, folders, globs, pages of TIFFs, volumes -> jobs, each with its outputs and truth."""

import glob
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from data_utils.image_io.formats import IMAGE_SUFFIXES, VolumeFile
from data_utils.image_io.reader import read_header
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.image_io.volume_formats import STACK_SUFFIXES, Spacing
from data_utils.image_io.volumes import is_volume, read_volume_header, volume_stem
from data_utils.sources.volumes import spacing_of
from inference.outputs.names import LEGEND, OF_VOLUMES, OVERLAY
from inference.scoring.true_masks import TrueMasks
from runtime.errors import DataError

CHANNEL = re.compile(r"(.+)_(\d{4})")  # how nnU-Net names the files of a volume's channels: CASE_0000, CASE_0001


class Page(NamedTuple):
    """A page of an image file and its (H, W), which is None if the header cannot be read (the job then reports why).

    A volume is one page of (D, H, W), with its spacing (z, y, x) in mm.
    """

    number: int
    size: tuple[int, ...] | None = None
    spacing: tuple[float, ...] | None = None


class Input(NamedTuple):
    """An input: its path below the given folder, without extension; its file; of volumes the files of channels."""

    stem: Path
    file: Path
    volume: VolumeFile | None


class Job(NamedTuple):
    """A page of an input file, its (H, W), the path of its outputs without extension, its true mask if there is one.

    A volume has (D, H, W), its spacing (z, y, x) in mm, and one file or one for each channel, the first as `image`.
    """

    image: Path
    page: int
    size: tuple[int, ...] | None
    output: Path
    truth: tuple[Path, int] | None
    spacing: tuple[float, ...] | None = None
    volume: VolumeFile | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.image} page {self.page + 1}" if self.page else str(self.image)

    @property
    def pixels(self) -> int:
        """Its number of pixels or voxels."""
        return math.prod(self.size) if self.size else 0

    def file(self, extension: str) -> Path:
        """One of its outputs."""
        extension = OF_VOLUMES.get(extension, extension) if self.volume else extension
        return self.output.with_name(self.output.name + extension)


def find_jobs(
    patterns: Iterable[str],
    output: Path,
    extensions: Iterable[str],
    truth: Path | None = None,
    mask_suffix: str | None = None,
    channels: int = 1,
    stacks: Spacing | None = None,
) -> list[Job]:
    """Every input once, with outputs <relative stem><extension>, or <relative stem>_<page> for TIFFs of many pages.

    `channels` are those that the model takes; a model of volumes takes .npy and TIFF files as stacks, of the spacing
    `stacks`, (z, y, x) in mm, where no spacing.json beside them or above has another. DataError for inputs that are not
    there, have no true mask, or would write one file twice, or over an input or the legend.
    """
    files = [pair for pattern in patterns for pair in _matches(pattern, output)]
    inputs = _inputs(list(dict.fromkeys(files)), channels, stacks)
    pages = _pages(inputs)

    def page_stem(item: Input, number: int) -> Path:
        return item.stem.with_name(f"{item.stem.name}_{number + 1:04}") if len(pages[item.file]) > 1 else item.stem

    def stems() -> Iterator[Path]:
        yield from (item.stem for item in inputs)
        yield from (page_stem(item, number) for item in inputs for number in range(1, len(pages[item.file])))

    truths = TrueMasks(_masks_below(truth), mask_suffix, stems()) if truth else None
    jobs = []
    for item in inputs:
        for number, (page, size, spacing) in enumerate(pages[item.file]):
            of_page = page_stem(item, number)
            found = truths.find(item.stem, of_page, number, len(pages[item.file])) if truths else None
            jobs.append(Job(item.file, page, size, output / of_page, found, spacing, item.volume))
    if truths and truths.missing:
        raise DataError(
            f"--truth {truth}: has no mask for {len(truths.missing)} inputs, the first is {truths.missing[0]};"
            " if the masks have a suffix, give --mask-suffix"
        )
    taken: dict[Path, Job] = {}
    sources = {file.resolve() for _, file in files}
    for job in jobs:
        for file in map(job.file, extensions):
            if taken.setdefault(file, job) is not job:
                raise DataError(f"--input: {taken[file].name} and {job.name} would both write {file}; give one of them")
            if file.resolve() in sources:
                raise DataError(f"--output {output}: {file} is an input, not to be overwritten; choose another folder")
    if OVERLAY in extensions and (legend := output / LEGEND) in taken:
        raise DataError(f"--input: {taken[legend].name} would write {legend}, the legend of the overlays; rename it")
    return jobs


def _inputs(files: Sequence[tuple[Path, Path]], channels: int, stacks: Spacing | None) -> list[Input]:
    """Images as they are; volumes CASE_0000, CASE_0001, ... are the channels of CASE if the model takes several.

    If it takes one, `_0000` is no part of the names where all volumes have it.
    """
    numbered = {file: CHANNEL.fullmatch(stem.name) for stem, file in files if is_volume(file)}
    are_cases = channels > 1 or all(match and match[2] == "0000" for match in numbered.values())
    parts: dict[tuple[Path, Path], list[Path]] = {}
    for stem, file in files:
        match = numbered.get(file)
        key = (file.parent, stem.with_name(match[1])) if match and are_cases else (file, stem)
        parts.setdefault(key, []).append(file)
    return [Input(stem, found[0], _volume_file(found, stacks)) for (_, stem), found in parts.items()]


def _volume_file(files: Sequence[Path], stacks: Spacing | None) -> VolumeFile | None:
    """The files of a volume, or a stack where stacks are volumes; None of an image."""
    if is_volume(files[0]):
        return VolumeFile(tuple(sorted(map(str, files))))
    if stacks is None or not str(files[0]).lower().endswith(STACK_SUFFIXES):
        return None
    return VolumeFile((str(files[0]),), spacing_of(files[0].parent) or stacks)


def _matches(pattern: str, output: Path) -> list[tuple[Path, Path]]:
    """(relative stem, file) of a file, of each picture below a folder, or of what a glob matches."""
    path = Path(pattern)
    if not pattern:
        raise DataError("--input: is empty")
    try:
        exists = path.exists()
    except OSError as error:
        raise DataError(f"--input {pattern}: {error.strerror}") from error
    if path.is_dir():
        found = _below(path, output)
    elif path.is_file():
        found = [(_stem(path.relative_to(path.parent)), path)]
    elif exists:
        raise DataError(f"--input {pattern}: is neither a file nor a folder")
    else:
        fixed = Path(*[part for part in path.parts[: next(_magic(path), 0)]])
        found, is_output = [], _is_output(fixed, output)
        for match in map(Path, sorted(glob.glob(pattern, recursive=True))):
            base = match.relative_to(fixed)
            if match.is_file():
                if not is_output(match):
                    found.append((_stem(base), match))
            elif match.resolve() != output.resolve():
                found += [(base / stem, file) for stem, file in _below(match, output)]
    if not found:
        raise DataError(f"--input {pattern}: no image or volume found")
    return found


def _stem(file: Path) -> Path:
    """A path without its extension, of CASE.nii.gz CASE."""
    return file.with_name(volume_stem(file.name)) if is_volume(file) else file.with_suffix("")


def _magic(path: Path) -> Iterator[int]:
    return (index for index, part in enumerate(path.parts) if glob.has_magic(part))


def _below(folder: Path, output: Path | None = None) -> list[tuple[Path, Path]]:
    """Pictures below a folder, except hidden ones (which programs leave) and those below `output`."""
    if output and output.resolve() == folder.resolve():
        raise DataError(f"--output {output}: is a folder of inputs; masks must not lie among images, choose another")
    found, is_output = [], _is_output(folder, output)
    for file in sorted(folder.rglob("*")):
        below = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in below.parts)
        is_picture = file.suffix.lower() in IMAGE_SUFFIXES or is_volume(file)
        if is_picture and not hidden and file.is_file() and not is_output(file):
            found.append((_stem(below), file))
    return found


def _masks_below(folder: Path) -> dict[Path, Path]:
    """True masks by their stems."""
    if not folder.is_dir():
        raise DataError(f"--truth {folder}: is not a folder")
    return dict(_below(folder))


def _is_output(folder: Path, output: Path | None) -> Callable[[Path], bool]:
    """A test for files that are found only because `output` lies below the `folder` of inputs."""
    outputs = output.resolve() if output else None
    if outputs is None or folder.resolve() not in outputs.parents:
        return lambda file: False  # and no file's links need be followed
    return lambda file: outputs in file.resolve().parents


def _pages(inputs: Sequence[Input]) -> dict[Path, Sequence[Page]]:
    def measure(item: Input) -> Sequence[Page]:
        try:
            if item.volume:
                header = read_volume_header(item.volume, str(item.file))
                return [Page(0, header.size, header.spacing)]
            if is_tiff(item.file):
                return [Page(*page) for page in tiff_pages(item.file)] or [Page(0)]
            return [Page(0, read_header(item.file, str(item.file))[0])]
        except DataError:
            return [Page(0)]

    with ThreadPoolExecutor() as pool:  # only headers: it is the disk that takes time
        return dict(zip((item.file for item in inputs), pool.map(measure, inputs), strict=True))
