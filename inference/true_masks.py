"""Finding the true mask of each input."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from data_utils.class_map import ignored_values
from data_utils.class_names import is_background
from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.class_masks import ClassMasks, layered_label
from data_utils.image_io.dicom.labels import segment_names
from data_utils.image_io.formats import (
    ClassLayers,
    PageFile,
    RenderedMask,
    Segments,
    VolumeFile,
    image_errors,
    page_file,
    source_files,
)
from data_utils.image_io.places import Grid, PlacedMask, on_grid
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.image_io.volumes import is_volume
from data_utils.mask_values import value_text
from data_utils.sources.annotations.drawn import DrawnMask
from data_utils.sources.annotations.world_polygons import ONLY_CLASS
from data_utils.sources.dicom import check_marked_once, is_label, labels_by_series, series_uid
from data_utils.sources.folder import IMAGE_WORDS, MASK_WORDS, NoFolderError, composed
from data_utils.sources.load import find_in_folder
from data_utils.sources.pairs import FIRST_CHANNEL, match_masks
from data_utils.sources.records import Files, Metadata, Record, Records
from inference.inputs import mask_folder_test, pictures_below, stem_of
from inference.output_folder import is_recorded
from runtime.console import counted, listing, say
from runtime.errors import DataError
from tasks.classes.loss import Classes
from tasks.classes.reader import AnnotatedClasses
from tasks.job import Job, MaskFile
from tasks.objects.labels import AnnotatedObjects, class_indices
from tasks.prediction_format import PredictionFormat
from unet.config import MaskValue, UNetConfig

# names of folders that say whether images or masks lie there
FOLDER_OF_A_KIND = re.compile(f"{IMAGE_WORDS}|{MASK_WORDS}|(?:images|labels)(?:t[rs]|va)", re.IGNORECASE)
TEST_SPLITS = ("test", "testing")  # beside the splits that training reads

Entry = TypeVar("Entry")
Find = Callable[[Job], MaskFile | None]  # the true mask of a job, if there is one


@dataclass(frozen=True)
class TruthFolder:
    """The folder of true masks: a data set, as training reads it, or masks alone.

    Args:
        config: that of the model.
        output_format: that of the masks of the model, which says what the true ones are of.
        mask_suffix: the end of a mask's stem, which the stem of its input lacks; None to detect it.
        label_column: the column that says the class of polygons; None if all are of one class.
    """

    folder: Path
    config: UNetConfig
    output_format: PredictionFormat
    mask_suffix: str | None = None
    label_column: str | None = None

    def with_truths(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs, each with its true mask. Raises DataError if some have none."""
        finders = self._finders(jobs)
        scored: list[Job] = []
        missing: list[Path] = []
        for job in jobs:
            masks = (find(job) for find in finders)
            mask = next((mask for mask in masks if mask is not None), None)
            if mask is None:
                missing.append(job.page_stem)
            else:
                scored.append(replace(job, truth=self._as_read(mask, job)))
        if missing:
            raise DataError(
                f"--truth {self.folder}: has no mask for {counted(len(missing), 'input')}, the first is {missing[0]};"
                " if the masks have a suffix, give --mask-suffix"
            )
        return scored

    def _finders(self, jobs: Sequence[Job]) -> list[Find]:
        """The functions that find the true masks of these jobs, in the order in which they are asked."""
        finders: list[Find] = []
        if any(job.writes_segments for job in jobs):
            finders.append(partial(_labels_of_series, labels_by_series(self.folder)))
        splits = self._data_set()
        if splits:
            finders.append(truths_of_data_set(splits, self._truth_of_record))
        known = {name for name in self.output_format.section.names if not is_background(name)}
        label_sets = chain.from_iterable(records.metadata.label_sets for records in splits)
        if any(map(known.difference, label_sets)):
            say(
                f"--truth {self.folder}: lists images that are labeled for some classes only, and their other classes"
                " count as not there: leave these images out (docs/scores.md)"
            )
        if any(map(_is_annotated, splits)):
            return finders  # all other pictures are images
        if len(self.output_format.object_classes) > 1:
            raise DataError(
                f"--truth {self.folder}: masks do not say the classes of objects; give a folder of COCO or labelme"
            )
        stems: list[Path] = []
        own_files: set[Path] = set()  # of images, which are no masks
        for job in jobs:
            stems += [job.stem, job.page_stem]
            own_files.update(Path(name).resolve() for name in job.files)
        pictures = pictures_below(self.folder)
        in_mask_folder = mask_folder_test([picture.path for picture in pictures])
        pictures = [picture for picture in pictures if in_mask_folder(picture.path)] or pictures
        files = {stem: path for stem, path, _ in pictures if path.resolve() not in own_files}
        if not files and not finders:
            raise DataError(f"--truth {self.folder}: holds no masks; of annotations give the folder of their data set")
        if self.output_format.class_folders:
            folders = self.output_format.class_folders
            ignored = ignored_values(self.config.preprocess)
            finders.append(truths_of_classes(files, self.mask_suffix, stems, folders, ignored))
        else:
            finders.append(TrueMasks(files, self.mask_suffix, stems).find)
        return finders

    def _data_set(self) -> list[Records]:
        """The images of all splits with their targets, as training finds them; empty if the folder holds masks alone.

        So do the outputs of predict.py, whatever JSON lies beside them. Sets of another task than the model's are left
        out.
        """
        if not self.folder.is_dir():
            raise DataError(f"--truth {self.folder}: is not a folder; give that of the masks, or of the data set")
        output_format = self.output_format
        ignored = ignored_values(self.config.preprocess) if output_format.class_folders else ()
        config = DataConfig(
            task=OVERLAPPING if output_format.class_folders else Classes.name,
            mask_suffix=self.mask_suffix,
            ignore_index=",".join(map(value_text, ignored)) or None,
            allow_unpaired=True,
            bands=self.config.preprocess.bands or None,
            label_column=self.label_column,
            dims=3 if self.config.dims == 3 else None,
        )
        try:
            openers = find_in_folder(self.folder, TEST_SPLITS, config)
        except DataError as error:
            if isinstance(error, NoFolderError) or is_recorded(self.folder):
                return []
            raise
        splits = [open_split() for open_split in openers.values()]
        if output_format.object_classes:
            return splits
        return [records for records in splits if records.metadata.task in (None, config.task)]

    def _check_names(self, metadata: Metadata) -> None:
        """Raises DataError for annotations without any class of the model; if it has one, names do not matter."""
        known = [name for name in self.output_format.section.names if not is_background(name)]
        names = [name for _, name in metadata.classes if not is_background(name)]
        if metadata.annotations is None or not names or len(known) < 2 or not set(names).isdisjoint(known):
            return
        remedy = "; give --label-column" if names == [ONLY_CLASS] else ""
        raise DataError(f"--truth {self.folder}: marks {listing(names)}; the model has {listing(known)}{remedy}")

    def _truth_of_record(self, records: Records, record: Record) -> MaskFile | None:
        """The true objects of an annotated image, its true classes, or its mask; None if the model has others."""
        source, names = record["target"], records.metadata.classes
        output_format = self.output_format
        if isinstance(source, VolumeFile) and source.segments is not None:
            return source
        source = page_file(source) or source
        if not isinstance(source, MaskFile):
            return None
        if isinstance(source, RenderedMask):  # of mask files the values count
            self._check_names(records.metadata)
        if output_format.class_folders:
            classes = list(output_format.section.names)
            if isinstance(source, DrawnMask):
                bits = [(value, classes.index(name)) for value, name in names if name in classes]
                return replace(source, bits=tuple(bits))
            return source if [name for _, name in names] == classes else None
        if not isinstance(source, RenderedMask):
            return None if len(output_format.object_classes) > 1 else source
        if output_format.object_classes:
            return AnnotatedObjects(source, class_indices(names, output_format.object_classes))
        if output_format.reader.class_map is not None:
            return AnnotatedClasses.from_names(source, record["name"], names, output_format.reader.class_map)
        return None

    def _as_read(self, mask: MaskFile, job: Job) -> MaskFile:
        """A true mask on the grid of its image if both have a place; a TIFF is a picture where no places are read.

        A label whose own file does not say where it lies is on the grid of its volume, and the segments of a label of
        DICOM are classes of the model.
        """
        files = source_files(mask)
        if job.volume is not None and files:
            label = mask if isinstance(mask, VolumeFile) else VolumeFile(files)
            if is_label(Path(files[0])):
                label = VolumeFile(files, segments=self._segments(files))
            return label._replace(grid_of=job.volume, spacing=job.spacing)
        if not isinstance(mask, PageFile | ClassMasks):
            return mask
        reads_place = bool(self.config.preprocess.place or self.config.preprocess.bands)
        grid = None
        if reads_place and job.place is not None and job.size:
            grid = Grid(job.place, (job.size[0], job.size[1]))
        if isinstance(mask, ClassMasks):
            return replace(mask, grid=grid)
        if not reads_place:
            return mask._replace(reads_place=False)
        if mask.page or grid is None:
            return mask
        path = str(mask.path)
        placed = on_grid(path, grid, path)
        return placed if isinstance(placed, PlacedMask) else mask

    def _segments(self, files: Sequence[str]) -> Segments:
        """The segments that are classes of the model. Raises DataError if the labels hold others alone."""
        segments = self.output_format.segments
        if segments is None:
            raise DataError(f"{files[0]}: names classes, and the model has none that are named alike; give NIfTI")
        names_by_file: dict[str, list[str]] = {}
        for file in files:
            with image_errors(file):
                names_by_file[file] = segment_names(file)
        check_marked_once(names_by_file)
        names = list(chain.from_iterable(names_by_file.values()))
        classes = [name for name, _ in segments.values]
        if names and not set(names) & set(classes):
            raise DataError(f"{files[0]}: marks {listing(names)}; the model has {listing(classes)}")
        return segments


class TrueMasks:
    """True masks by stem; each page of a TIFF has its mask in a file, or all have theirs in a TIFF of as many pages.

    They are found by the names of images as in training, whatever folders tell images from masks.
    """

    def __init__(self, files: Mapping[Path, Path], suffix: str | None, stems: Sequence[Path]) -> None:
        plain_files = _by_only_name((_plain(stem), file) for stem, file in files.items())
        self._by_image, _ = match_masks(plain_files, set(map(_plain, stems)), suffix)

    def file(self, stem: Path) -> Path | None:
        """The mask of an input of this stem; None if there is none. CASE_0000 of nnU-Net has the mask CASE."""
        name = _plain(stem)
        return self._by_image.get(name) or self._by_image.get(name.removesuffix(FIRST_CHANNEL))

    def find(self, job: Job) -> PageFile | None:
        """The true mask of a job; None if there is none."""
        mask = self.file(job.page_stem)
        if mask is not None:
            return PageFile(mask)
        stack = self.file(job.stem)
        if stack is None or not is_tiff(stack):
            return None
        page_numbers = [index for index, _ in tiff_pages(stack)]
        if len(page_numbers) != job.pages:
            raise DataError(f"{stack}: has {len(page_numbers)} pages, the image {job.pages}")
        return PageFile(stack, page_numbers[job.number - 1])


def _labels_of_series(labels: Mapping[str, Files], job: Job) -> VolumeFile | None:
    """The labels of DICOM that refer to the series of a job; None if there are none."""
    volume = job.volume
    if volume is None or not volume.is_series:
        return None
    files = labels.get(series_uid(volume.paths[0]))
    return None if files is None else VolumeFile(files)


def truths_of_data_set(splits: Sequence[Records], as_truth: Callable[[Records, Record], MaskFile | None]) -> Find:
    """Finds the truth of a job in a data set: of its own file, or of the image at the same path below a folder.

    Args:
        as_truth: makes the truth of a record of these records, if it can.
    """
    stems: list[tuple[str, tuple[Records, int]]] = []
    by_page: dict[tuple[Path, int | None], tuple[Records, int]] = {}
    for records in splits:
        for index in range(len(records)):
            stems.append((_composed(stem_of(Path(records.listed_name(index)))), (records, index)))
            image = records[index]["image"]
            page = image.page if isinstance(image, PageFile) else None
            for file in source_files(image):
                by_page[Path(file).resolve(), page] = records, index
    by_stem = _by_only_name(stems)

    def find(job: Job) -> MaskFile | None:
        file = Path(job.files[0]).resolve()
        entry = by_page.get((file, job.page)) or by_page.get((file, None)) or by_stem.get(_composed(job.page_stem))
        if entry is None:
            return None
        records, index = entry
        return as_truth(records, records[index])

    return find


def _is_annotated(records: Records) -> bool:
    """Whether the targets of records are no masks that lie beside other masks."""
    if records.metadata.annotations is not None:
        return True
    target = records[0]["target"]
    return isinstance(target, RenderedMask) and not isinstance(target, ClassMasks)


def truths_of_classes(
    files: Mapping[Path, Path],
    suffix: str | None,
    stems: Sequence[Path],
    class_folders: Sequence[str],
    ignored: tuple[MaskValue, ...],
) -> Find:
    """Finds the true masks of classes that may overlap: in a folder for each, or in files with a page or channel each.

    They are found as in `TrueMasks.find`; a class without a mask is unknown.

    Args:
        class_folders: the folder of each class.
        ignored: mask values of unknown pixels.
    """
    bits = tuple(range(len(class_folders)))
    files_by_folder: dict[str, dict[Path, Path]] = {folder: {} for folder in class_folders}
    for stem, file in files.items():
        while FOLDER_OF_A_KIND.fullmatch(stem.parts[0]) and len(stem.parts) > 2:
            stem = stem.relative_to(stem.parts[0])
        folder, *others = stem.parts
        if others and folder in files_by_folder:
            files_by_folder[folder][Path(*others)] = file
    masks_of_classes = [TrueMasks(class_files, suffix, stems) for class_files in files_by_folder.values()]
    joined_masks = None if any(files_by_folder.values()) else TrueMasks(files, suffix, stems)

    def find(job: Job) -> MaskFile | None:
        if joined_masks is not None:
            file = joined_masks.file(job.page_stem)
            return None if file is None else _masks_in_file(file, bits, ignored)
        pages = []
        for class_masks in masks_of_classes:
            mask = class_masks.find(job)
            pages.append(PageFile("") if mask is None else PageFile(str(mask.path), mask.page))
        paths = [str(page.path) for page in pages]
        if not any(paths):
            return None
        if any(map(is_volume, paths)):
            return layered_label(paths, bits, ignored)
        return ClassMasks(tuple(pages), bits, ignored)

    return find


def _masks_in_file(path: Path, bits: tuple[int, ...], ignored: tuple[MaskValue, ...]) -> MaskFile:
    """The masks of all classes in the pages or channels of one file."""
    if is_volume(path):
        return VolumeFile((str(path),), layers=ClassLayers(bits, ignored=ignored))
    if is_label(path):
        return PageFile(path)
    if is_tiff(path):
        pages = [PageFile(str(path), number) for number, _ in tiff_pages(path)]
        if len(pages) == len(bits) > 1:
            return ClassMasks(tuple(pages), bits, ignored)
    return ClassMasks((PageFile(str(path)),), bits, ignored)


def _by_only_name(entries: Iterable[tuple[str, Entry]]) -> dict[str, Entry | None]:
    """The entries by their names; None where several have one name."""
    by_name: dict[str, Entry | None] = {}
    for name, entry in entries:
        by_name[name] = None if name in by_name else entry
    return by_name


def _plain(stem: Path) -> str:
    """A stem with its accents composed, without the folder that tells images from masks: images/a and masks/a are a."""
    folders = [part for part in stem.parent.parts if not FOLDER_OF_A_KIND.fullmatch(part)]
    return _composed(Path(*folders, stem.name))


def _composed(path: Path) -> str:
    return composed(path.as_posix())
