"""Inputs of a prediction: files, folders, globs, pages of TIFFs, volumes -> jobs, each with its outputs and truth."""

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from data_utils.image_io.formats import IMAGE_SUFFIXES, VolumeFile
from data_utils.image_io.reader import read_header
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.image_io.volume_formats import STACK_SUFFIXES, Spacing
from data_utils.image_io.volumes import is_volume, read_volume_header, volume_stem
from data_utils.sources.volumes import spacing_of
from inference.outputs.jobs import LEGEND, OVERLAY, ImageJob, Job, VolumeJob
from inference.true_masks import TrueMasks
from runtime.errors import DataError

CHANNEL = re.compile(r"(.+)_(\d{4})")  # how nnU-Net names the files of a volume's channels: CASE_0000, CASE_0001


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
    inputs = _inputs(list(dict.fromkeys(files)), channels)
    with ThreadPoolExecutor() as pool:  # only headers: it is the disk that takes time
        pages = list(pool.map(lambda paths: _pages(paths, stacks), inputs.values()))
    stems = [_page_stems(stem, len(of_input)) for (_, stem), of_input in zip(inputs, pages, strict=True)]
    truths = None
    if truth:
        all_stems = [*(stem for _, stem in inputs), *(stem for numbered in stems for stem in numbered)]
        truths = TrueMasks(_masks_below(truth), mask_suffix, all_stems)
    jobs: list[Job] = []
    for (_, stem), of_input, numbered in zip(inputs, pages, stems, strict=True):
        for number, (job, page_stem) in enumerate(zip(of_input, numbered, strict=True)):
            true_mask = truths.find(stem, page_stem, number, len(of_input)) if truths else None
            jobs.append(replace(job, output=output / page_stem, truth=true_mask))
    if truths and truths.missing:
        raise DataError(
            f"--truth {truth}: has no mask for {len(truths.missing)} inputs, the first is {truths.missing[0]};"
            " if the masks have a suffix, give --mask-suffix"
        )
    _check_outputs(jobs, output, tuple(extensions), {file.resolve() for _, file in files})
    return jobs


def _check_outputs(jobs: Sequence[Job], output: Path, extensions: Sequence[str], sources: set[Path]) -> None:
    """DataError for files that would be written twice, or over one of the sources or the legend."""
    taken: dict[Path, Job] = {}
    for job in jobs:
        for file in map(job.file, extensions):
            if taken.setdefault(file, job) is not job:
                raise DataError(f"--input: {taken[file].name} and {job.name} would both write {file}; give one of them")
            if file.resolve() in sources:
                raise DataError(f"--output {output}: {file} is an input, not to be overwritten; choose another folder")
    if OVERLAY in extensions and (legend := output / LEGEND) in taken:
        raise DataError(f"--input: {taken[legend].name} would write {legend}, the legend of the overlays; rename it")


def _inputs(files: Sequence[tuple[Path, Path]], channels: int) -> dict[tuple[Path, Path], list[Path]]:
    """(key, stem) of each input -> its files: one, or those of a volume's channels.

    Volumes CASE_0000, CASE_0001, ... are the channels of CASE if the model takes several. If it takes one, `_0000` is
    no part of the names where all volumes have it.
    """
    numbered = {file: CHANNEL.fullmatch(stem.name) for stem, file in files if is_volume(file)}
    are_cases = channels > 1 or all(match and match[2] == "0000" for match in numbered.values())
    inputs: dict[tuple[Path, Path], list[Path]] = {}
    for stem, file in files:
        match = numbered.get(file)
        key = (file.parent, stem.with_name(match[1])) if match and are_cases else (file, stem)
        inputs.setdefault(key, []).append(file)
    return inputs


def _pages(files: Sequence[Path], stacks: Spacing | None) -> Sequence[Job]:
    """A job for each page of an input's file; outputs and truth come later."""
    first = files[0]
    volume = _volume_file(files, stacks)
    if volume is not None:
        return [_volume_job(first, volume)]
    try:
        pages = tiff_pages(first) if is_tiff(first) else [(0, read_header(first, str(first))[0])]
    except DataError:
        pages = []
    jobs = [ImageJob(image=first, size=size, output=first, page=page) for page, size in pages]
    return jobs or [ImageJob(image=first, size=None, output=first)]


def _volume_job(file: Path, volume: VolumeFile) -> VolumeJob:
    try:
        header = read_volume_header(volume, str(file))
    except DataError:
        return VolumeJob(image=file, size=None, output=file, volume=volume)
    return VolumeJob(image=file, size=header.size, output=file, volume=volume, spacing=header.spacing)


def _volume_file(files: Sequence[Path], stacks: Spacing | None) -> VolumeFile | None:
    """The files of a volume, or a stack where stacks are volumes; None of an image."""
    if is_volume(files[0]):
        return VolumeFile(tuple(sorted(map(str, files))))
    if stacks is None or not str(files[0]).lower().endswith(STACK_SUFFIXES):
        return None
    return VolumeFile((str(files[0]),), spacing_of(files[0].parent) or stacks)


def _page_stems(stem: Path, pages: int) -> list[Path]:
    """The stem of each page's outputs, numbered where there are several."""
    return [stem] if pages == 1 else [stem.with_name(f"{stem.name}_{number:04}") for number in range(1, pages + 1)]


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
