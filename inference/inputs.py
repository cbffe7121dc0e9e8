"""Inputs of a prediction: images, pages of TIFFs and volumes become jobs with outputs."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from data_utils.image_io.formats import BandSource, PageFile, VolumeFile
from data_utils.image_io.placed_masks import read_grid
from data_utils.image_io.reader import read_header
from data_utils.image_io.tiff import channel_pages, is_tiff, tiff_pages
from data_utils.image_io.volume_formats import STACK_SUFFIXES, Spacing
from data_utils.image_io.volumes import is_volume, read_volume_header
from data_utils.sources.pictures import bands_in
from data_utils.sources.volumes import read_spacing
from inference.input_files import StemmedFile, files_of_patterns, stem_of
from runtime.errors import DataError
from tasks.job import MASK, Job
from tasks.prediction_format import PredictionFormat
from unet.config import UNetConfig

CHANNEL = re.compile(r"(.+)_(\d{4})")  # how nnU-Net names the files of a volume's channels: CASE_0000, CASE_0001
CHANNEL_WORD = re.compile("(?:^|[ _.-])[^ _.-]*[a-zA-Z][^ _.-]*$")  # how BraTS does: CASE_flair, CASE_t1


@dataclass(frozen=True)
class InputRules:
    """How a model reads its inputs.

    Args:
        channels: how many channels the model takes.
        stack_spacing: for a model of volumes, the spacing (z, y, x) in mm of .npy and TIFF files, which are stacks; a
            spacing.json beside or above a file overrides it. None for a model of images.
        bands: the bands of TIFFs to read, empty for all; a band may be a file, in a folder for each image.
        in_sets: whether only the images are taken from a folder that holds a folder for each image and its masks.
        reads_places: whether georeferenced TIFFs are read as rasters; else they are pictures.
        keeps_place: whether the outputs of georeferenced TIFFs are georeferenced too.
    """

    channels: int = 1
    stack_spacing: Spacing | None = None
    bands: Sequence[str] = ()
    in_sets: bool = False
    reads_places: bool = True
    keeps_place: bool = False

    @classmethod
    def of_model(cls, config: UNetConfig, output_format: PredictionFormat) -> "InputRules":
        """The rules of a model, whose predictions are written in this format."""
        preprocess = config.preprocess
        return cls(
            config.in_channels,
            stack_spacing=preprocess.spacing if config.dims == 3 else None,
            bands=preprocess.bands,
            in_sets=bool(output_format.object_classes),
            reads_places=preprocess.place or bool(preprocess.bands),
            keeps_place=output_format.writes_rasters,
        )


class InputKey(NamedTuple):
    """The identity of an input.

    Args:
        location: the file, or the folder of an input of several files.
        stem: the path of the input's outputs without extension, relative to the folder of all outputs.
    """

    location: Path
    stem: Path


def find_jobs(patterns: Iterable[str], output: Path, rules: InputRules = InputRules()) -> list[Job]:
    """The jobs of all files that the patterns name, as `jobs_of_files` and `files_of_patterns` find them."""
    inputs = jobs_of_files(files_of_patterns(patterns, output, in_sets=rules.in_sets), output, rules)
    return list(chain.from_iterable(inputs))


def jobs_of_files(files: Sequence[StemmedFile], output: Path, rules: InputRules) -> list[list[Job]]:
    """The jobs of each input: one, or one for each page of a TIFF of many pages.

    Their outputs are <relative stem><extension>, or <relative stem>_<page>.
    """
    files_by_input = _grouped_files(files, rules)
    with ThreadPoolExecutor() as pool:  # only headers are read, so threads wait for the disk
        read_input = partial(_read_input, output=output, rules=rules)
        return list(pool.map(read_input, files_by_input, files_by_input.values()))


def page_stem(job: Job) -> Path:
    """The path of a job's outputs without extension, relative to the folder of all outputs."""
    return job.output.relative_to(job.root or job.output.parent)


def input_stem(pages: Sequence[Job]) -> Path:
    """The stem of an input, given the jobs of all its pages, which are numbered if there are several."""
    stem = page_stem(pages[0])
    return stem if len(pages) == 1 else stem.with_name(stem.name.rpartition("_")[0])


def named_job(jobs: Sequence[Job], file: Path, mask_extension: str = MASK) -> Job:
    """The only job, its mask in `file`, its other files beside it; `mask_extension` is the one of masks of images.

    Raises DataError for several jobs, and for a file whose name ends otherwise than the mask of the job.
    """
    if len(jobs) > 1:
        raise DataError(f"--output {file}: is one file, but there are {len(jobs)} inputs; give a folder")
    job = jobs[0]
    ending = file.name[len(stem_of(file).name) :].lower().replace(".tiff", ".tif")
    if ending == MASK:  # a picture is asked for
        job = replace(job, place=None)
    extension = MASK if job.volume is not None else mask_extension
    expected = job.file(extension).name[len(job.output.name) :].lower().replace(".tiff", ".tif")
    if ending != expected:
        raise DataError(f"--output {file}: the mask of {job.name} is a {expected} file; give one, or a folder")
    return replace(job, output=stem_of(file), root=file.parent, named=file)


def _grouped_files(files: Sequence[StemmedFile], rules: InputRules) -> dict[InputKey, list[Path]]:
    """The files of each input: one file, or one for each channel of a volume or each band of an image.

    The bands of an image are files if its folder holds a TIFF that is named after each band.

    Volumes CASE_0000, CASE_0001, ... are the channels of CASE if there are as many as the model takes.
    """
    cases = _cases(files, rules.channels)
    groups: dict[InputKey, list[Path]] = {}
    scenes = _scenes(files, rules.bands)
    for stem, path in files:
        folder = path.parent
        if folder in scenes:
            scene_stem = stem.parent
            if not scene_stem.name:
                scene_stem = Path(folder.name)
            groups[InputKey(folder, scene_stem)] = scenes[folder]
            continue
        key = cases.get(path, InputKey(path, stem))
        groups.setdefault(key, []).append(path)
    return groups


def _cases(files: Sequence[StemmedFile], channels: int) -> dict[Path, InputKey]:
    """{file: its case} of volumes whose channels are files.

    They are numbered from 0000 to the last channel, or are all numbered 0000; or as many lie in one folder and have the
    same name but for the last word, as those of BraTS.
    """
    volumes = [file for file in files if is_volume(file.path)]
    numbered: dict[InputKey, list[tuple[str, Path]]] = {}
    for stem, path in volumes:
        match = CHANNEL.fullmatch(stem.name)
        if match:
            key = InputKey(path.parent, stem.with_name(match[1]))
            numbered.setdefault(key, []).append((match[2], path))
    expected = [f"{channel:04}" for channel in range(channels)]
    numbers: dict[InputKey, list[str]] = {}
    for key, entries in numbered.items():
        numbers[key] = sorted(number for number, _ in entries)
    all_are_first = len(numbers) == len(volumes) and all(found == ["0000"] for found in numbers.values())
    cases: dict[Path, InputKey] = {}
    for key, entries in numbered.items():
        if all_are_first or (channels > 1 and numbers[key] == expected):
            for _, path in entries:
                cases[path] = key
    if channels > 1:
        cases |= _worded_cases([file for file in volumes if file.path not in cases], channels)
    return cases


def _worded_cases(files: Sequence[StemmedFile], channels: int) -> dict[Path, InputKey]:
    """{file: its case} of the volumes that are as many as the model has channels, but for the last word of a name."""
    paths: dict[InputKey, list[Path]] = {}
    for stem, path in files:
        name = CHANNEL_WORD.sub("", stem.name)
        case = stem.parent if name in ("", stem.parent.name) else stem.with_name(name)
        paths.setdefault(InputKey(path.parent, case), []).append(path)
    cases: dict[Path, InputKey] = {}
    for key, of_case in paths.items():
        if len(of_case) == channels:
            cases |= dict.fromkeys(of_case, key)
    return cases


def _scenes(files: Sequence[StemmedFile], bands: Sequence[str]) -> dict[Path, list[Path]]:
    """{folder: its TIFFs, one for each band}, for folders with a TIFF for every band. A band alone is not an input."""
    folders: dict[Path, list[Path]] = {}
    for _, path in files:
        if bands and is_tiff(path):
            folders.setdefault(path.parent, []).append(path)
    scenes = {}
    for folder, band_files in folders.items():
        try:
            chosen_files = bands_in(list(map(str, band_files)), bands, str(folder))
        except DataError:
            continue
        if len(set(chosen_files)) == len(bands):
            scenes[folder] = list(map(Path, chosen_files))
    return scenes


def _read_input(key: InputKey, files: Sequence[Path], output: Path, rules: InputRules) -> list[Job]:
    """The jobs of an input, one for each of its pages."""
    first = files[0]
    job = Job(image=first, size=None, output=output / key.stem, root=output)
    volume = _volume_file(files, rules.stack_spacing)
    if volume is not None:
        with suppress(DataError):  # of a header that cannot be read, which the job reports
            header = read_volume_header(volume, str(first))
            job = replace(job, size=header.size, spacing=header.spacing)
        return [replace(job, volume=volume)]
    bands = None
    if rules.bands:
        bands = BandSource(tuple(map(str, files)), tuple(rules.bands))
    pages = _page_sizes(files, bands)
    if not pages:
        return [replace(job, stored=bands)]
    channels = _channels(first, rules.channels) if len(pages) > 1 else {}
    pages = [page for page in pages if not channels or page[0] in channels]
    jobs = []
    for number, (page, size) in enumerate(pages, start=1):
        stored = channels.get(page) or _page_source(first, page, bands, rules)
        page_job = replace(job, size=size, page=page, stored=stored)
        if len(pages) > 1:
            page_job = replace(page_job, output=job.output.with_name(f"{job.output.name}_{number:04}"))
        grid = read_grid(str(first), page) if rules.keeps_place else None
        if grid is not None:
            page_job = replace(page_job, place=grid.place)
        jobs.append(page_job)
    return jobs


def _channels(file: Path, count: int) -> dict[int, PageFile]:
    """First page -> image, of a TIFF whose pages are the channels of images, as many as the model takes; else empty."""
    images: dict[int, PageFile] = {}
    if count > 1 and is_tiff(file):
        for first, *others in channel_pages(file):
            images[first] = PageFile(str(file), first, more_channels=tuple(others))
    return images if all(len(image.more_channels) == count - 1 for image in images.values()) else {}


def _page_source(file: Path, page: int, bands: BandSource | None, rules: InputRules) -> BandSource | PageFile | None:
    """The source that the model reads instead of a page of the file; None if it reads the page."""
    if bands is not None:
        return bands._replace(page=page)
    if not rules.reads_places and is_tiff(file):
        return PageFile(str(file), page, reads_place=False)
    return None


def _page_sizes(files: Sequence[Path], bands: BandSource | None) -> Sequence[tuple[int, tuple[int, int]]]:
    """The number and the size (H, W) of each page of an image; empty if its header cannot be read."""
    first = files[0]
    try:
        if is_tiff(first) and len(files) == 1:
            return tiff_pages(first)
        source: Path | BandSource = first
        if bands is not None and len(files) > 1:
            source = bands
        size, _ = read_header(source, str(first))
    except DataError:
        return []
    return [(0, size)]


def _volume_file(files: Sequence[Path], stack_spacing: Spacing | None) -> VolumeFile | None:
    """The files of a volume, or a stack if the model takes volumes; None for an image."""
    if is_volume(files[0]):
        return VolumeFile(tuple(sorted(map(str, files), key=str.lower)))
    if stack_spacing is None or not str(files[0]).lower().endswith(STACK_SUFFIXES):
        return None
    return VolumeFile((str(files[0]),), read_spacing(files[0].parent) or stack_spacing)
