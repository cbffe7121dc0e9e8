"""Finding the true mask of each input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from data_utils.class_map import ClassMap
from data_utils.image_io.class_masks import ClassMasks, layered_label
from data_utils.image_io.formats import ClassLayers, PageFile, RenderedMask, VolumeFile
from data_utils.image_io.placed_masks import Grid, PlacedMask, on_grid
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.image_io.volumes import is_volume
from data_utils.sources.annotations.find import find_annotations, holds_masks
from data_utils.sources.folder import detect_suffix
from data_utils.sources.records import Record, Records
from data_utils.sources.spelling import composed
from inference.input_files import IMAGES_OF, files_below, mask_folder_test, pictures_among, stem_of
from inference.input_pages import InputPages
from runtime.console import counted
from runtime.errors import DataError
from tasks.job import Job, MaskFile
from tasks.labeled_objects import AnnotatedObjects, class_indices
from tasks.scoring.annotated_masks import AnnotatedClasses

FOLDERS_OF_A_KIND = {*IMAGES_OF, *chain.from_iterable(IMAGES_OF.values())}  # names of folders of images or masks
TEST_SPLITS = ("test", "testing")  # beside the splits that training reads


@dataclass(frozen=True)
class TruthFolder:
    """The folder of true masks, and how its files are named.

    Args:
        mask_suffix: the end of a mask's stem, which the stem of its input lacks; None to detect it.
        class_folders: the folder of each class, if classes may overlap.
        object_classes: the classes of a model of objects, else empty.
        class_map: the classes of a model of classes, else None.
        reads_places: whether georeferenced masks are laid on the grids of their images; else they are pictures.
    """

    folder: Path
    mask_suffix: str | None = None
    class_folders: Sequence[str] = ()
    object_classes: Sequence[str] = ()
    class_map: ClassMap | None = None
    reads_places: bool = True

    def with_truths(self, inputs: Sequence[InputPages]) -> list[Job]:
        """The jobs of all pages of the inputs, each with its true mask. Raises DataError if some have none."""
        stems: list[Path] = []
        files: set[Path] = set()
        for pages in inputs:
            stems += [pages.stem, *pages.page_stems]
            for job in pages.jobs:
                files.update(Path(name).resolve() for name in job.files)
        truths = self.open(stems, files)
        jobs: list[Job] = []
        missing: list[Path] = []
        for pages in inputs:
            for number, job in enumerate(pages.jobs):
                mask = truths.find(pages, number)
                if mask is None:
                    missing.append(pages.page_stems[number])
                else:
                    jobs.append(replace(job, truth=self._as_read(mask, job)))
        if missing:
            raise DataError(
                f"--truth {self.folder}: has no mask for {counted(len(missing), 'input')}, the first is {missing[0]};"
                " if the masks have a suffix, give --mask-suffix"
            )
        return jobs

    def open(self, stems: Sequence[Path], inputs: Collection[Path] = ()) -> TrueMasks | ClassTruths | AnnotatedTruths:
        """The true masks of inputs with these stems; `inputs` are their files, resolved, which are no masks."""
        objects = self.object_classes
        if objects and self.folder.is_dir():
            annotations = _annotations(self.folder)
            if annotations:
                return AnnotatedTruths(annotations, partial(_true_objects, objects))
            if len(objects) > 1:
                raise DataError(
                    f"--truth {self.folder}: masks do not say the classes of objects; give a folder of COCO or labelme"
                )
        can_be_annotated = self.mask_suffix is None and self.folder.is_dir()
        if self.class_map is not None and can_be_annotated and not holds_masks(self.folder, TEST_SPLITS):
            annotations = _annotations(self.folder)
            if annotations and all(records.metadata.task is None for records in annotations):
                return AnnotatedTruths(annotations, partial(_true_classes, self.class_map))
        files = masks_below(self.folder, inputs)
        if self.class_folders:
            return ClassTruths(files, self.mask_suffix, stems, self.class_folders)
        return TrueMasks(files, self.mask_suffix, stems)

    def _as_read(self, mask: MaskFile, job: Job) -> MaskFile:
        """A true mask on the grid of its image if both have a place; a TIFF is a picture where no places are read."""
        if not isinstance(mask, PageFile):
            return mask
        if not self.reads_places:
            if job.volume is None and is_tiff(mask.path):
                return PageFile(str(mask.path), mask.page, reads_place=False)
            return mask
        if mask.page or job.place is None or not job.size:
            return mask
        path = str(mask.path)
        placed = on_grid(path, Grid(job.place, (job.size[0], job.size[1])), path)
        return placed if isinstance(placed, PlacedMask) else mask


def masks_below(folder: Path, inputs: Collection[Path] = ()) -> dict[Path, Path]:
    """True masks by their stems; `inputs`, resolved paths, and images that have a folder of masks are left out."""
    if not folder.is_dir():
        raise DataError(f"--truth {folder}: is not a folder")
    pictures = pictures_among(files_below(folder), folder)
    in_mask_folder = mask_folder_test([picture.path for picture in pictures])
    pictures = [picture for picture in pictures if in_mask_folder(picture.path)] or pictures
    masks = {}
    for stem, path in pictures:
        if not inputs or path.resolve() not in inputs:
            masks[stem] = path
    return masks


def _annotations(folder: Path) -> list[Records]:
    """The annotated images of all splits of a folder; empty if it holds no annotations."""
    openers = find_annotations(folder, TEST_SPLITS, allow_unpaired=True)
    return [open_split() for open_split in openers.values()]


def _plain(stem: Path) -> Path:
    """A stem with its accents composed, without the folder that tells images from masks: images/a and masks/a are a."""
    folders = [part for part in stem.parent.parts if part.lower() not in FOLDERS_OF_A_KIND]
    return _composed(Path(*folders, stem.name))


def _composed(path: Path) -> Path:
    return Path(composed(str(path)))


class TrueMasks:
    """True masks by stem; each page of a TIFF has its mask in a file, or all have theirs in a TIFF of as many pages.

    If the suffix is None, it is detected as for training.
    """

    def __init__(self, files: Mapping[Path, Path], suffix: str | None, stems: Iterable[Path]) -> None:
        self.files = files
        self._plain_files: dict[Path, Path | None] = {}  # None where several files have one name
        for stem, file in files.items():
            plain = _plain(stem)
            if plain in self._plain_files:
                self._plain_files[plain] = None
            else:
                self._plain_files[plain] = file
        if suffix is None and self.files:
            plain_stems = [_plain(stem).as_posix() for stem in stems]
            plain_names = [stem.as_posix() for stem in self._plain_files]
            suffix = detect_suffix(plain_stems, plain_names)
        self.suffix = suffix or ""

    def file(self, stem: Path) -> Path | None:
        """The mask of an input of this stem; None if there is none."""
        mask_stem = stem.with_name(stem.name + self.suffix)
        return self.files.get(mask_stem) or self._plain_files.get(_plain(mask_stem))

    def find(self, pages: InputPages, number: int) -> PageFile | None:
        """The true mask of a page of an input; None if there is none."""
        mask = self.file(pages.page_stems[number])
        if mask is not None:
            return PageFile(mask)
        stack = self.file(pages.stem)
        if stack is None or not is_tiff(stack):
            return None
        page_numbers = [index for index, _ in tiff_pages(stack)]
        if len(page_numbers) != len(pages.jobs):
            raise DataError(f"{stack}: has {len(page_numbers)} pages, the image {len(pages.jobs)}")
        return PageFile(stack, page_numbers[number])


class AnnotatedTruths:
    """The truth of annotated images: of the input's own file, or of the image at the same path below the folder.

    Args:
        as_truth: makes the truth of a record of these records.
    """

    def __init__(self, splits: Sequence[Records], as_truth: Callable[[Records, Record], MaskFile]) -> None:
        self.as_truth = as_truth
        self._by_stem: dict[Path, tuple[Records, int] | None] = {}  # None for paths that several images have
        self._by_file: dict[Path, tuple[Records, int]] = {}
        for records in splits:
            for index in range(len(records)):
                record = records[index]
                stem = _composed(stem_of(Path(records.listed_name(index))))
                if stem in self._by_stem:
                    self._by_stem[stem] = None
                else:
                    self._by_stem[stem] = (records, index)
                if isinstance(record["image"], str | Path):
                    self._by_file[Path(record["image"]).resolve()] = (records, index)

    def find(self, pages: InputPages, number: int) -> MaskFile | None:
        """The truth of a page of an input; None if there is none."""
        entry = self._by_file.get(pages.jobs[number].image.resolve())
        if entry is None:
            entry = self._by_stem.get(_composed(pages.page_stems[number]))
        if entry is None:
            return None
        records, index = entry
        return self.as_truth(records, records[index])


def _true_objects(objects: Sequence[str], records: Records, record: Record) -> AnnotatedObjects:
    """The true objects of a record, given the model's classes of objects."""
    source = record["target"]
    assert isinstance(source, RenderedMask)
    return AnnotatedObjects(source, class_indices(records.metadata.classes, objects))


def _true_classes(class_map: ClassMap, records: Records, record: Record) -> MaskFile:
    """The true classes of a record, for a model of the classes in `class_map`."""
    source = record["target"]
    if isinstance(source, RenderedMask):
        return AnnotatedClasses.from_names(source, record["name"], records.metadata.classes, class_map)
    assert isinstance(source, str | Path)
    return PageFile(source)


class ClassTruths:
    """True masks of classes that may overlap: a folder for each, or files with a page or channel for each.

    Args:
        class_folders: the folder of each class.
    """

    def __init__(
        self, files: Mapping[Path, Path], suffix: str | None, stems: Sequence[Path], class_folders: Sequence[str]
    ) -> None:
        self.bits = tuple(range(len(class_folders)))
        self.class_masks: list[TrueMasks] = []
        for class_folder in class_folders:
            class_files = {}
            for stem, file in files.items():
                if stem.parts[0] == class_folder and len(stem.parts) > 1:
                    class_files[stem.relative_to(class_folder)] = file
            self.class_masks.append(TrueMasks(class_files, suffix, stems))
        self.joined_masks: TrueMasks | None = None
        if not any(masks.files for masks in self.class_masks):
            self.joined_masks = TrueMasks(files, suffix, stems)

    def find(self, pages: InputPages, number: int) -> MaskFile | None:
        """The true masks of all classes for a page, found as in `TrueMasks.find`; a class without a mask is unknown."""
        if self.joined_masks is not None:
            file = self.joined_masks.file(pages.page_stems[number])
            return None if file is None else _masks_in_file(file, self.bits)
        files = []
        for class_masks in self.class_masks:
            mask = class_masks.find(pages, number)
            files.append(PageFile("") if mask is None else PageFile(str(mask.path), mask.page))
        paths = [str(file.path) for file in files]
        if not any(paths):
            return None
        if any(map(is_volume, paths)):
            return layered_label(paths, self.bits)
        return ClassMasks(tuple(files), self.bits)


def _masks_in_file(path: Path, bits: tuple[int, ...]) -> MaskFile:
    """The masks of all classes in the pages or channels of one file."""
    if is_volume(path):
        return VolumeFile((str(path),), layers=ClassLayers(bits))
    if is_tiff(path):
        pages = [PageFile(str(path), number) for number, _ in tiff_pages(path)]
        if len(pages) == len(bits) > 1:
            return ClassMasks(tuple(pages), bits)
    return ClassMasks((PageFile(str(path)),), bits)
