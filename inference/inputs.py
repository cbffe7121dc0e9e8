"""Inputs of a prediction: files, folders and patterns become images, pages of TIFFs and volumes, each a job."""

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from data_utils.image_io.dicom.headers import is_dicom
from data_utils.image_io.formats import BandSource, PageFile, VolumeFile, format_remedy, source_files
from data_utils.image_io.places import read_grid
from data_utils.image_io.reader import read_header
from data_utils.image_io.tiff import channel_pages, is_tiff, tiff_pages
from data_utils.image_io.volume_formats import STACK_SUFFIXES
from data_utils.image_io.volumes import is_volume, read_volume_header, volume_stem
from data_utils.sources.annotations.one_object_masks import find_object_images
from data_utils.sources.dicom import DAMAGED, LABEL, OTHER, SLICE, may_be_dicom, read_tree, series_of, unused
from data_utils.sources.folder import MASK_WORDS, files_below, is_readable, pairs_by_words
from data_utils.sources.pictures import bands_in
from data_utils.sources.places import as_model_reads
from data_utils.sources.side_by_side import masks_among
from data_utils.sources.volumes import read_spacing
from runtime.console import counted, say
from runtime.errors import DataError
from tasks.job import MASK, Job
from tasks.prediction_format import PredictionFormat
from unet.config import UNetConfig

CHANNEL = re.compile(r"(.+)_(\d{4})")  # how nnU-Net names the files of a volume's channels: CASE_0000, CASE_0001
CHANNEL_WORD = re.compile("(?:^|[ _.-])[^ _.-]*[a-zA-Z][^ _.-]*$")  # how BraTS does: CASE_flair, CASE_t1
FOLDER_OF_MASKS = re.compile(MASK_WORDS)  # of classes, beside the image of a case


class StemmedFile(NamedTuple):
    """A file, and its path relative to the given folder, without its extension; or a folder, of several files.

    The slices of a DICOM series have one stem, its name.
    """

    stem: Path
    path: Path
    is_slice: bool = False


def find_inputs(
    patterns: Iterable[str],
    output: Path,
    config: UNetConfig,
    output_format: PredictionFormat,
    *,
    truth: Path | None = None,
    mask_suffix: str | None = None,
) -> list[Job]:
    """The jobs of the inputs that `files_of_patterns` finds: one each, or one for each page of a TIFF of many pages.

    Their outputs are <relative stem><extension>, or <relative stem>_<page>. The model's config and the format of its
    predictions say how it reads them.
    """
    in_sets = bool(output_format.object_classes)
    files = files_of_patterns(patterns, output, in_sets=in_sets, truth=truth, mask_suffix=mask_suffix)
    files_by_input = _grouped_files(files, config)
    with ThreadPoolExecutor() as pool:  # only headers are read, so threads wait for the disk
        read_input = partial(_read_input, output=output, config=config, output_format=output_format)
        return list(chain.from_iterable(pool.map(read_input, files_by_input, files_by_input.values())))


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
    expected = job.file(extension).name[len(job.stem.name) :].lower().replace(".tiff", ".tif")
    if ending != expected:
        raise DataError(f"--output {file}: the mask of {job.name} is a {expected} file; give one, or a folder")
    return replace(job, root=file.parent, stem=Path(stem_of(file).name), named=file)


def files_of_patterns(
    patterns: Iterable[str],
    output: Path,
    *,
    in_sets: bool,
    truth: Path | None = None,
    mask_suffix: str | None = None,
) -> list[StemmedFile]:
    """The images and volumes that the patterns name, each once. Raises DataError for a pattern without any.

    Masks are left out where they lie beside their images.

    Args:
        output: the folder of outputs, which are no inputs.
        in_sets: whether only the images are taken from a folder that holds a folder for each image and its masks.
        truth: a folder of true masks, which may lie below a folder of inputs.
        mask_suffix: the end of a mask's stem, which the stem of its image lacks; None for the usual ones.
    """
    files: list[StemmedFile] = []
    slices_by_folder: dict[Path, list[StemmedFile]] = {}
    for pattern in patterns:
        found: list[StemmedFile] = []
        if in_sets and Path(pattern).is_dir():
            found = [StemmedFile(Path(name), image) for name, image in find_object_images(Path(pattern))]
        if not found:
            found = _matches(pattern, output)
        if truth is not None and not Path(pattern).is_file():
            is_true_mask = _below_test(_start_of_glob(Path(pattern)), truth)
            found = [file for file in found if not is_true_mask(file.path)] or found
        if Path(pattern).is_file() and found[0].is_slice:  # a shell has made the names of all slices of a pattern
            slices_by_folder.setdefault(Path(pattern).parent, []).extend(found)
        else:
            files += found
    for folder, slices in slices_by_folder.items():
        files += _with_series(slices, folder) if len(slices) > 1 else slices
    return _without_masks(list(dict.fromkeys(files)), mask_suffix)


def _without_masks(files: Sequence[StemmedFile], suffix: str | None) -> list[StemmedFile]:
    """The files that are no masks of others: by the folder they lie in, or by the end of their names."""
    paths = [file.path for file in files if not file.is_slice]
    in_mask_folder = mask_folder_test(paths)
    mask_stems = masks_among({str(stem_of(path)) for path in paths}, suffix)
    folders = {path.parent for path in paths}

    def is_mask(path: Path) -> bool:
        if path.parent.parent in folders and FOLDER_OF_MASKS.fullmatch(path.parent.name.lower()):
            return True
        return in_mask_folder(path) or str(stem_of(path)) in mask_stems

    masks = dict.fromkeys(filter(is_mask, paths))  # in their order, and quickly looked up
    if masks:
        left_out = counted(len(masks), "mask that lies beside its image", "masks that lie beside their images")
        say(f"left out {left_out}, the first is {next(iter(masks))}")
    return [file for file in files if file.path not in masks]


def mask_folder_test(paths: Iterable[Path]) -> Callable[[Path], bool]:
    """A test for files in a folder of masks, if some of `paths` lie in the folder of images beside it."""
    folders: set[Path] = set()
    for folder in {path.parent for path in paths}:
        folders.update((folder, *folder.parents))
    folders_by_place: dict[Path, dict[str, Path]] = {}
    for folder in filter(attrgetter("name"), folders):  # the root of all has no name
        folders_by_place.setdefault(folder.parent, {})[folder.name.lower()] = folder
    masks: set[Path] = set()
    for beside in folders_by_place.values():
        masks.update(mask_folder for _, mask_folder in pairs_by_words(beside).values())
    return lambda path: not masks.isdisjoint(path.parents)


def _matches(pattern: str, output: Path) -> list[StemmedFile]:
    """The files of a pattern: the file itself, each picture below a folder, or the matches of a glob."""
    path = Path(pattern)
    try:
        exists = path.exists()
    except OSError as error:
        raise DataError(f"--input {pattern}: {error.strerror}") from error
    if path.is_dir():
        if output.resolve() == path.resolve():
            line = "is a folder of inputs; masks must not lie among images, choose another"
            raise DataError(f"--output {output}: {line}")
        matches = _pictures_below(path, path, output)
    elif path.is_file():
        matches = [StemmedFile(stem_of(Path(path.name)), path)]
    elif exists:
        raise DataError(f"--input {pattern}: is neither a file nor a folder")
    elif path.is_symlink():
        raise DataError(f"--input {pattern}: is a link to {os.readlink(path)}, which is not there")
    else:
        matches = _glob_matches(pattern, output)
    matches = _with_series(matches, _start_of_glob(path))
    if matches:
        return matches
    if path.is_dir():
        remedy = format_remedy(file.name for file in sorted(path.rglob("*")))
        raise DataError(f"--input {pattern}: no image or volume found{remedy}")
    problem = "no image or volume found" if exists or glob.has_magic(pattern) else "is not there"
    raise DataError(f"--input {pattern}: {problem}")


def _glob_matches(pattern: str, output: Path) -> list[StemmedFile]:
    """The files that a glob matches, and each picture below the folders that it matches."""
    start = _start_of_glob(Path(pattern))
    is_output = _below_test(start, output)
    matches = []
    for path in map(Path, sorted(glob.glob(pattern, recursive=True))):
        if ".." in path.relative_to(start).parts:
            raise DataError(f"--input {pattern}: has .. behind a wildcard, so that masks would lie outside --output")
        if path.is_dir():
            matches += _pictures_below(path, start, output)
        elif path.is_file() and not is_output(path):
            matches.append(StemmedFile(stem_of(path.relative_to(start)), path))
    return matches


def _start_of_glob(path: Path) -> Path:
    """The part of a glob before its first wildcard: a folder. A file or folder that is there is no glob."""
    if path.exists():
        return path
    for index, part in enumerate(path.parts):
        if glob.has_magic(part):
            return Path(*path.parts[:index])
    return Path()


def _pictures_below(folder: Path, start: Path, output: Path) -> list[StemmedFile]:
    """The pictures below a folder, named from `start`, but for outputs; a line says how many other files are there."""
    is_output = _below_test(start, output)
    files = [file for file in _files_below(folder) if not is_output(file)]
    names = sorted(file.name for file in files if not _may_be_input(file))
    if names:
        first = next((name for name in names if format_remedy([name])), names[0])
        others = counted(len(names), "file that is", "files that are")
        say(f"{folder}: left out {others} not read, the first is {first}{format_remedy([first])}")
    return _stemmed(files, start)


def _with_series(files: Sequence[StemmedFile], place: Path) -> list[StemmedFile]:
    """The files at a place, the slices of DICOM series under the name of their series, without labels of DICOM."""
    root = place.parent if place.is_file() else place
    by_name = {file.path.relative_to(root).as_posix(): file for file in files}
    by_kind = read_tree(root, by_name)
    for file in by_kind[DAMAGED]:
        say(f"{root / file.path}: {file.problem}")  # it stays an input, and fails
    for line in unused(by_kind, (LABEL, OTHER)):
        say(f"{place}: left out {line}")
    found: dict[str, StemmedFile | None] = {**by_name}
    found |= dict.fromkeys(file.path for file in (*by_kind[LABEL], *by_kind[OTHER]))
    for series in series_of(by_kind[SLICE], root):
        for name in series.files:
            path = root / name
            stem = by_name[name].stem if path == place else Path(series.name)
            found[name] = StemmedFile(stem, path, is_slice=True)
    return [file for file in found.values() if file is not None]


def pictures_below(folder: Path) -> list[StemmedFile]:
    """The pictures and volumes below a folder."""
    return _stemmed(_files_below(folder), folder)


def _files_below(folder: Path) -> list[Path]:
    """The files below a folder but for hidden ones, which programs leave behind."""
    paths = sorted(folder / name for name in files_below(folder))
    return [path for path in paths if path.is_file()]


def _stemmed(files: Iterable[Path], folder: Path) -> list[StemmedFile]:
    """The pictures among files below a folder, with their paths below it."""
    return [StemmedFile(stem_of(file.relative_to(folder)), file) for file in files if _may_be_input(file)]


def _may_be_input(file: Path) -> bool:
    """Whether a file is called like an image or a volume, or is DICOM, which is called anything."""
    return is_readable(file.name) or (may_be_dicom(file.name) and is_dicom(file))


def _below_test(folder: Path, other: Path) -> Callable[[Path], bool]:
    """A test for files that are found only because the folder `other` lies below the `folder` of inputs."""
    others = other.resolve()
    if folder.resolve() not in others.parents:
        return lambda file: False  # then no links of files need to be resolved
    return lambda file: others in file.resolve().parents


def stem_of(file: Path) -> Path:
    """A path without its extension; CASE.nii.gz becomes CASE."""
    return file.with_name(volume_stem(file.name))


def _grouped_files(files: Sequence[StemmedFile], config: UNetConfig) -> dict[StemmedFile, list[Path]]:
    """The files of each input: one file, or one for each channel of a volume or each band of an image.

    The bands of an image are files if its folder holds a TIFF that is named after each band.

    Volumes CASE_0000, CASE_0001, ... are the channels of CASE if there are as many as the model takes.
    """
    cases = _cases([file for file in files if is_volume(file.path)], config.in_channels)
    scenes = _scenes(files, config.preprocess.bands)
    groups: dict[StemmedFile, list[Path]] = {}
    for file in files:
        folder = file.path.parent
        if file.is_slice:
            groups.setdefault(StemmedFile(file.stem, Path(), is_slice=True), []).append(file.path)
        elif folder in scenes:
            stem = file.stem.parent if file.stem.parent.name else Path(folder.name)
            groups[StemmedFile(stem, folder)] = scenes[folder]
        else:
            groups.setdefault(cases.get(file.path, file), []).append(file.path)
    return groups


def _cases(volumes: Sequence[StemmedFile], channels: int) -> dict[Path, StemmedFile]:
    """{file: its case} of volumes whose channels are files.

    They are numbered from 0000 to the last channel, or are all numbered 0000; or as many lie in one folder and have the
    same name but for the last word, as those of BraTS.
    """
    numbered: dict[StemmedFile, dict[str, Path]] = {}
    worded: dict[StemmedFile, list[Path]] = {}
    for stem, path, _ in volumes:
        match = CHANNEL.fullmatch(stem.name)
        if match:
            case = StemmedFile(stem.with_name(match[1]), path.parent)
            numbered.setdefault(case, {})[match[2]] = path
        name = CHANNEL_WORD.sub("", stem.name)
        case_stem = stem.parent if name in ("", stem.parent.name) else stem.with_name(name)
        worded.setdefault(StemmedFile(case_stem, path.parent), []).append(path)
    expected = [f"{channel:04}" for channel in range(channels)]
    all_are_first = len(numbered) == len(volumes) and all(list(found) == ["0000"] for found in numbered.values())
    cases: dict[Path, StemmedFile] = {}
    for case, paths in worded.items():
        if len(paths) == channels > 1:
            cases |= dict.fromkeys(paths, case)
    for case, found in numbered.items():
        if all_are_first or (channels > 1 and sorted(found) == expected):
            cases |= dict.fromkeys(found.values(), case)
    return cases


def _scenes(files: Sequence[StemmedFile], bands: Sequence[str]) -> dict[Path, list[Path]]:
    """{folder: its TIFFs, one for each band}, for folders with a TIFF for every band. A band alone is not an input."""
    folders: dict[Path, list[Path]] = {}
    for _, path, _ in files:
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


def _read_input(
    file: StemmedFile, files: Sequence[Path], output: Path, config: UNetConfig, output_format: PredictionFormat
) -> list[Job]:
    """The jobs of an input, one for each of its pages."""
    job = Job(source=_source(file, files, config), size=None, root=output, stem=file.stem)
    if isinstance(job.source, VolumeFile):
        with suppress(DataError):  # of a header that cannot be read, which the job reports
            header = read_volume_header(job.source, job.name)
            job = replace(job, size=header.size, spacing=header.spacing)
        return [replace(job, writes_segments=file.is_slice and output_format.segments is not None)]
    pages = _page_sizes(job.source, job.name)
    channels = _channels(files[0], config.in_channels) if len(pages) > 1 else {}
    pages = [page for page in pages if not channels or page[0] in channels]
    jobs = []
    for number, (page, size) in enumerate(pages, start=1):
        page_job = replace(job, source=channels.get(page) or job.source._replace(page=page), size=size)
        if len(pages) > 1:
            page_job = replace(page_job, number=number, pages=len(pages))
        grid = read_grid(str(files[0]), page) if output_format.writes_rasters else None
        if grid is not None:
            page_job = replace(page_job, place=grid.place)
        jobs.append(page_job)
    return jobs or [job]


def _source(file: StemmedFile, files: Sequence[Path], config: UNetConfig) -> PageFile | BandSource | VolumeFile:
    """The source of an input, as the model reads it.

    To a model of volumes, .npy and TIFF files are stacks, of the spacing of the model unless a spacing.json beside or
    above them says another.
    """
    paths = tuple(map(str, files))
    spacing = config.preprocess.spacing if config.dims == 3 else None
    if file.is_slice:
        return VolumeFile(paths, is_series=True)
    if is_volume(files[0]):
        return VolumeFile(tuple(sorted(paths, key=str.lower)))
    if spacing is not None and paths[0].lower().endswith(STACK_SUFFIXES):
        return VolumeFile(paths, read_spacing(files[0].parent) or spacing)
    source = as_model_reads(PageFile(paths[0]) if len(paths) == 1 else BandSource(paths), config.preprocess)
    assert isinstance(source, PageFile | BandSource)
    return source


def _channels(file: Path, count: int) -> dict[int, PageFile]:
    """First page -> image, of a TIFF whose pages are the channels of images, as many as the model takes; else empty."""
    images: dict[int, PageFile] = {}
    if count > 1 and is_tiff(file):
        for first, *others in channel_pages(file):
            images[first] = PageFile(str(file), first, more_channels=tuple(others))
    return images if all(len(image.more_channels) == count - 1 for image in images.values()) else {}


def _page_sizes(source: PageFile | BandSource, name: str) -> Sequence[tuple[int, tuple[int, int]]]:
    """The number and the size (H, W) of each page of an image; empty if its header cannot be read."""
    files = source_files(source)
    try:
        if len(files) == 1 and is_tiff(files[0]):
            return tiff_pages(Path(files[0]))
        size, _ = read_header(source, name)
    except DataError:
        return []
    return [(0, size)]
