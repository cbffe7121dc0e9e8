"""Finding the true mask of each input."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from data_utils.image_io.class_masks import ClassMasks, layered_label
from data_utils.image_io.formats import ClassLayers, PageFile, RenderedMask, VolumeFile
from data_utils.image_io.places import Grid, PlacedMask, on_grid
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.image_io.volumes import is_volume
from data_utils.sources.annotations.find import find_annotations, holds_masks
from data_utils.sources.folder import composed, detect_suffix
from data_utils.sources.records import Record, Records
from inference.inputs import IMAGES_OF, input_stem, mask_folder_test, page_stem, pictures_below, stem_of
from runtime.console import counted
from runtime.errors import DataError
from tasks.classes.reader import AnnotatedClasses
from tasks.job import Job, MaskFile
from tasks.objects.labels import AnnotatedObjects, class_indices
from tasks.prediction_format import MaskFormat

FOLDERS_OF_A_KIND = {*IMAGES_OF, *chain.from_iterable(IMAGES_OF.values())}  # names of folders of images or masks
TEST_SPLITS = ("test", "testing")  # beside the splits that training reads

Entry = TypeVar("Entry")
# (jobs of all pages of an input, number of one of them) -> its true mask, if there is one
Find = Callable[[Sequence[Job], int], MaskFile | None]


@dataclass(frozen=True)
class TruthFolder:
    """The folder of true masks, and how its files are named.

    Args:
        output_format: that of the masks of the model, which says what the true ones are of.
        mask_suffix: the end of a mask's stem, which the stem of its input lacks; None to detect it.
        reads_places: whether georeferenced masks are laid on the grids of their images; else they are pictures.
    """

    folder: Path
    output_format: MaskFormat
    mask_suffix: str | None = None
    reads_places: bool = True

    def with_truths(self, inputs: Sequence[Sequence[Job]]) -> list[Job]:
        """The jobs of all pages of the inputs, each with its true mask. Raises DataError if some have none."""
        find = self._finder(inputs)
        jobs: list[Job] = []
        missing: list[Path] = []
        for pages in inputs:
            for number, job in enumerate(pages):
                mask = find(pages, number)
                if mask is None:
                    missing.append(page_stem(job))
                else:
                    jobs.append(replace(job, truth=self._as_read(mask, job)))
        if missing:
            raise DataError(
                f"--truth {self.folder}: has no mask for {counted(len(missing), 'input')}, the first is {missing[0]};"
                " if the masks have a suffix, give --mask-suffix"
            )
        return jobs

    def _finder(self, inputs: Sequence[Sequence[Job]]) -> Find:
        """The function that finds the true masks of these inputs."""
        annotations = self._annotations()
        if annotations:
            return AnnotatedTruths(annotations, self._truth_of_record).find
        stems: list[Path] = []
        own_files: set[Path] = set()  # of images, which are no masks
        for pages in inputs:
            stems += [input_stem(pages), *map(page_stem, pages)]
            for job in pages:
                own_files.update(Path(name).resolve() for name in job.files)
        files = masks_below(self.folder, own_files)
        if self.output_format.class_folders:
            return ClassTruths(files, self.mask_suffix, stems, self.output_format.class_folders).find
        return TrueMasks(files, self.mask_suffix, stems).find

    def _annotations(self) -> list[Records]:
        """The annotated images of all splits; empty if the folder holds masks."""
        if not self.folder.is_dir():
            return []
        objects, class_map = self.output_format.object_classes, self.output_format.true_class_map
        can_be_annotated = class_map is not None and self.mask_suffix is None
        if not objects and (not can_be_annotated or holds_masks(self.folder, TEST_SPLITS)):
            return []
        openers = find_annotations(self.folder, TEST_SPLITS, allow_unpaired=True)
        annotations = [open_split() for open_split in openers.values()]
        if not annotations and len(objects) > 1:
            raise DataError(
                f"--truth {self.folder}: masks do not say the classes of objects; give a folder of COCO or labelme"
            )
        if class_map is not None and any(records.metadata.task is not None for records in annotations):
            return []
        return annotations

    def _truth_of_record(self, records: Records, record: Record) -> MaskFile:
        """The true objects of an annotated image, or its true classes."""
        source, names = record["target"], records.metadata.classes
        if self.output_format.object_classes:
            assert isinstance(source, RenderedMask)
            return AnnotatedObjects(source, class_indices(names, self.output_format.object_classes))
        if isinstance(source, RenderedMask):
            assert self.output_format.true_class_map is not None
            return AnnotatedClasses.from_names(source, record["name"], names, self.output_format.true_class_map)
        assert isinstance(source, str | Path)
        return PageFile(source)

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
    pictures = pictures_below(folder)
    in_mask_folder = mask_folder_test([picture.path for picture in pictures])
    pictures = [picture for picture in pictures if in_mask_folder(picture.path)] or pictures
    return {stem: path for stem, path in pictures if path.resolve() not in inputs}


class TrueMasks:
    """True masks by stem; each page of a TIFF has its mask in a file, or all have theirs in a TIFF of as many pages.

    If the suffix is None, it is detected as for training.
    """

    def __init__(self, files: Mapping[Path, Path], suffix: str | None, stems: Sequence[Path]) -> None:
        self.files = files
        self._plain_files = _by_only_name((_plain(stem), file) for stem, file in files.items())
        if suffix is None and files:
            plain_names = [stem.as_posix() for stem in self._plain_files]
            suffix = detect_suffix([_plain(stem).as_posix() for stem in stems], plain_names)
        self.suffix = suffix or ""

    def file(self, stem: Path) -> Path | None:
        """The mask of an input of this stem; None if there is none."""
        mask_stem = stem.with_name(stem.name + self.suffix)
        return self.files.get(mask_stem) or self._plain_files.get(_plain(mask_stem))

    def find(self, pages: Sequence[Job], number: int) -> PageFile | None:
        """The true mask of a page of an input; None if there is none."""
        mask = self.file(page_stem(pages[number]))
        if mask is not None:
            return PageFile(mask)
        stack = self.file(input_stem(pages))
        if stack is None or not is_tiff(stack):
            return None
        page_numbers = [index for index, _ in tiff_pages(stack)]
        if len(page_numbers) != len(pages):
            raise DataError(f"{stack}: has {len(page_numbers)} pages, the image {len(pages)}")
        return PageFile(stack, page_numbers[number])


class AnnotatedTruths:
    """The truth of annotated images: of the input's own file, or of the image at the same path below the folder.

    Args:
        as_truth: makes the truth of a record of these records.
    """

    def __init__(self, splits: Sequence[Records], as_truth: Callable[[Records, Record], MaskFile]) -> None:
        self.as_truth = as_truth
        by_stem: list[tuple[Path, tuple[Records, int]]] = []
        self._by_file: dict[Path, tuple[Records, int]] = {}
        for records in splits:
            for index in range(len(records)):
                by_stem.append((_composed(stem_of(Path(records.listed_name(index)))), (records, index)))
                image = records[index]["image"]
                if isinstance(image, str | Path):
                    self._by_file[Path(image).resolve()] = (records, index)
        self._by_stem = _by_only_name(by_stem)

    def find(self, pages: Sequence[Job], number: int) -> MaskFile | None:
        """The truth of a page of an input; None if there is none."""
        job = pages[number]
        entry = self._by_file.get(job.image.resolve()) or self._by_stem.get(_composed(page_stem(job)))
        if entry is None:
            return None
        records, index = entry
        return self.as_truth(records, records[index])


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

    def find(self, pages: Sequence[Job], number: int) -> MaskFile | None:
        """The true masks of all classes for a page, found as in `TrueMasks.find`; a class without a mask is unknown."""
        if self.joined_masks is not None:
            file = self.joined_masks.file(page_stem(pages[number]))
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


def _by_only_name(entries: Iterable[tuple[Path, Entry]]) -> dict[Path, Entry | None]:
    """The entries by their names; None where several have one name."""
    by_name: dict[Path, Entry | None] = {}
    for name, entry in entries:
        by_name[name] = None if name in by_name else entry
    return by_name


def _plain(stem: Path) -> Path:
    """A stem with its accents composed, without the folder that tells images from masks: images/a and masks/a are a."""
    folders = [part for part in stem.parent.parts if part.lower() not in FOLDERS_OF_A_KIND]
    return _composed(Path(*folders, stem.name))


def _composed(path: Path) -> Path:
    return Path(composed(str(path)))
