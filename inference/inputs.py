"""What is to be predicted: files, folders, globs, pages of TIFFs -> jobs, each with its outputs and its truth."""

import glob
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from data_utils.image_io.formats import IMAGE_SUFFIXES
from data_utils.image_io.reader import read_header
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.sources.folder import detect_suffix
from runtime.errors import DataError

# (H, W) is None where the header cannot be read: the job will say why
Page = tuple[int, tuple[int, int] | None]


class Job(NamedTuple):
    """A page of an input file, its (H, W), the path of its outputs without extension, its true mask if there is one."""

    image: Path
    page: int
    size: tuple[int, int] | None
    output: Path
    truth: tuple[Path, int] | None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.image} page {self.page + 1}" if self.page else str(self.image)

    @property
    def pixels(self) -> int:
        """How large it is."""
        return self.size[0] * self.size[1] if self.size else 0

    def file(self, extension: str) -> Path:
        """One of its outputs."""
        return self.output.with_name(self.output.name + extension)


def find_jobs(
    patterns: Iterable[str],
    output: Path,
    extensions: Iterable[str],
    truth: Path | None = None,
    mask_suffix: str | None = None,
) -> list[Job]:
    """Every input once, with outputs <relative stem><extension>, or <relative stem>_<page> for TIFFs of many pages.

    DataError for inputs that are not there, have no true mask, or would write one file twice or over an input.
    """
    files = [pair for pattern in patterns for pair in _matches(pattern, output)]
    files = list(dict.fromkeys(files))
    pages = _pages([file for _, file in files])

    def page_stem(stem: Path, file: Path, number: int) -> Path:
        return stem.with_name(f"{stem.name}_{number + 1:04}") if len(pages[file]) > 1 else stem

    def stems() -> Iterator[Path]:
        yield from (stem for stem, _ in files)
        yield from (page_stem(stem, file, number) for stem, file in files for number in range(1, len(pages[file])))

    truths = _Truths(truth, mask_suffix, stems()) if truth else None
    jobs = []
    for stem, file in files:
        for number, (page, size) in enumerate(pages[file]):
            of_page = page_stem(stem, file, number)
            found = truths.find(stem, of_page, number, len(pages[file])) if truths else None
            jobs.append(Job(file, page, size, output / of_page, found))
    if truths and truths.missing:
        raise DataError(
            f"--truth {truth}: has no mask for {len(truths.missing)} inputs, the first is {truths.missing[0]};"
            " --mask-suffix says what their names end with"
        )
    taken: dict[Path, Job] = {}
    inputs = {file.resolve() for _, file in files}
    for job in jobs:
        for file in map(job.file, extensions):
            if taken.setdefault(file, job) is not job:
                raise DataError(f"--input: {taken[file].name} and {job.name} would both write {file}")
            if file.resolve() in inputs:
                raise DataError(f"--output {output}: {file} is an input and would be written over")
    return jobs


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
        found = [(Path(path.stem), path)]
    elif exists:
        raise DataError(f"--input {pattern}: is neither a file nor a folder")
    else:
        fixed = Path(*[part for part in path.parts[: next(_magic(path), 0)]])
        found, is_output = [], _is_output(fixed, output)
        for match in map(Path, sorted(glob.glob(pattern, recursive=True))):
            base = match.relative_to(fixed)
            if match.is_file():
                if not is_output(match):
                    found.append((base.with_suffix(""), match))
            elif match.resolve() != output.resolve():
                found += [(base / stem, file) for stem, file in _below(match, output)]
    if not found:
        raise DataError(f"--input {pattern}: no image there")
    return found


def _magic(path: Path) -> Iterator[int]:
    return (index for index, part in enumerate(path.parts) if glob.has_magic(part))


def _below(folder: Path, output: Path | None = None) -> list[tuple[Path, Path]]:
    """Pictures below a folder, save what is hidden (a program left it) and what lies below `output`."""
    if output and output.resolve() == folder.resolve():
        raise DataError(f"--output {output}: is a folder of inputs; its masks would be taken for images the next time")
    found, is_output = [], _is_output(folder, output)
    for file in sorted(folder.rglob("*")):
        below = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in below.parts)
        if file.suffix.lower() in IMAGE_SUFFIXES and not hidden and file.is_file() and not is_output(file):
            found.append((below.with_suffix(""), file))
    return found


def _is_output(folder: Path, output: Path | None) -> Callable[[Path], bool]:
    """What tells whether a file was found only because `output` lies below the `folder` of inputs."""
    outputs = output.resolve() if output else None
    if outputs is None or folder.resolve() not in outputs.parents:
        return lambda file: False  # and no file's links need be followed
    return lambda file: outputs in file.resolve().parents


def _pages(files: list[Path]) -> dict[Path, Sequence[Page]]:
    def measure(file: Path) -> Sequence[Page]:
        try:
            if is_tiff(file):
                return tiff_pages(file) or [(0, None)]
            return [(0, read_header(file, str(file))[0])]
        except DataError:
            return [(0, None)]

    with ThreadPoolExecutor() as pool:  # only headers: it is the disk that takes time
        return dict(zip(files, pool.map(measure, files), strict=True))


class _Truths:
    """True masks by stem; the pages of a TIFF have theirs in files of their own or in a TIFF of as many pages.

    Their suffix is detected, as for training, if it is None.
    """

    def __init__(self, folder: Path, suffix: str | None, stems: Iterable[Path]) -> None:
        if not folder.is_dir():
            raise DataError(f"--truth {folder}: is not a folder")
        self.files = {file.relative_to(folder).with_suffix(""): file for _, file in _below(folder)}
        if suffix is None and self.files:
            suffix = detect_suffix(map(Path.as_posix, stems), [stem.as_posix() for stem in self.files])
        self.suffix = suffix or ""
        self.missing: list[str] = []

    def find(self, stem: Path, of_page: Path, number: int, pages: int) -> tuple[Path, int] | None:
        wanted = of_page.with_name(of_page.name + self.suffix)
        if wanted in self.files:
            return self.files[wanted], 0
        stack = self.files.get(stem.with_name(stem.name + self.suffix))
        if stack is None or not is_tiff(stack):
            self.missing.append(str(wanted))
            return None
        have = [index for index, _ in tiff_pages(stack)]
        if len(have) != pages:
            raise DataError(f"{stack}: has {len(have)} pages, the image {pages}")
        return stack, have[number]


def check_disk(output: Path, needed: int) -> None:
    """DataError where `output` cannot be a folder that takes files, or its disk has less than `needed` bytes free."""
    folder = next(parent for parent in [output.resolve(), *output.resolve().parents] if parent.exists())
    if not folder.is_dir():
        raise DataError(f"--output {output}: {folder} is not a folder")
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(f"--output {output}: needs about {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free")
    try:
        output.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output).close()
    except OSError as error:
        raise DataError(f"--output {output}: cannot be written ({error.strerror})") from error


def batches_of(
    jobs: Iterable[Job], batch_of: Callable[[tuple[int, int]], tuple[Hashable, int] | None]
) -> list[list[Job]]:
    """Jobs that are computed together; those that cannot be alone.

    Like `batch_sampler.EvaluationSampler` a function of the jobs only, so every number of processes computes the same.

    Args:
        batch_of: (H, W) -> what such images must have in common and how many fit; None where they stay alone.
    """
    batches: list[list[Job]] = []
    open_batches: dict[Hashable, tuple[list[Job], Fraction]] = {}  # and what of them is taken
    for job in jobs:
        found = batch_of(job.size) if job.size else None
        if found is None:
            batches.append([job])
            continue
        common, count = found
        batch, taken = open_batches.get(common, ([], Fraction(1)))
        if taken + Fraction(1, count) > 1:
            batch, taken = [], Fraction(0)
            batches.append(batch)
        batch.append(job)
        open_batches[common] = batch, taken + Fraction(1, count)
    return batches


def share_of(batches: list[list[Job]], process: int, processes: int) -> list[list[Job]]:
    """The batches of one of several processes: each, the largest first, goes to who has the fewest pixels so far."""
    pixels = [0] * processes
    shares: list[list[list[Job]]] = [[] for _ in range(processes)]
    for batch in sorted(batches, key=lambda batch: -sum(job.pixels for job in batch)):
        least = pixels.index(min(pixels))
        pixels[least] += sum(job.pixels for job in batch)
        shares[least].append(batch)
    return shares[process]
