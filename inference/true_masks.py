"""Finding the true mask of each input."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_utils.image_io.class_masks import ClassChannels, ClassFile, ClassMasks, layered_label
from data_utils.image_io.formats import ClassLayers, PageFile, PictureFile, RenderedMask, VolumeFile
from data_utils.image_io.placed_masks import Grid, PlacedMask, on_grid
from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.image_io.volumes import is_volume
from data_utils.sources.annotations.find import find_annotations
from data_utils.sources.folder import detect_suffix
from data_utils.sources.records import Records
from inference.input_files import files_below, pictures_among, stem_of
from inference.outputs.jobs import ImageJob, InputPages, Job, MaskFile, RasterJob
from inference.outputs.object_masks import AnnotatedObjects, value_indices
from runtime.errors import DataError

TEST_SPLITS = ("test", "testing")  # beside the splits that training reads


@dataclass(frozen=True)
class TruthFolder:
    """The folder of true masks, and how its files are named.

    Args:
        mask_suffix: the end of a mask's stem, which the stem of its input lacks; None to detect it.
        class_folders: the folder of each class, if classes may overlap.
        object_classes: the classes of a model of objects, else empty.
        reads_places: whether georeferenced masks are laid on the grids of their images; else they are pictures.
    """

    folder: Path
    mask_suffix: str | None = None
    class_folders: Sequence[str] = ()
    object_classes: Sequence[str] = ()
    reads_places: bool = True

    def with_truths(self, inputs: Sequence[InputPages]) -> list[Job]:
        """The jobs of all pages of the inputs, each with its true mask. Raises DataError if some have none."""
        stems = [pages.stem for pages in inputs]
        for pages in inputs:
            stems += pages.page_stems
        truths = open_true_masks(self.folder, self.mask_suffix, stems, self.class_folders, self.object_classes)
        jobs: list[Job] = []
        for pages in inputs:
            for number, (job, page_stem) in enumerate(zip(pages.jobs, pages.page_stems, strict=True)):
                mask = truths.find(pages.stem, page_stem, number, len(pages.jobs))
                jobs.append(
                    replace(job, truth=_place_on_image(mask, job) if self.reads_places else _as_picture(mask, job))
                )
        if truths.missing:
            raise DataError(
                f"--truth {self.folder}: has no mask for {len(truths.missing)} inputs, the first is"
                f" {truths.missing[0]}; if the masks have a suffix, give --mask-suffix"
            )
        return jobs


def _place_on_image(mask: MaskFile | None, job: Job) -> MaskFile | None:
    """A true mask on the grid of its image, if both are georeferenced."""
    if not isinstance(mask, PageFile) or mask.page:
        return mask
    if not isinstance(job, RasterJob) or not job.size:
        return mask
    path = str(mask.path)
    height, width = job.size
    placed = on_grid(path, Grid(job.place, (height, width)), path)
    return placed if isinstance(placed, PlacedMask) else mask


def _as_picture(mask: MaskFile | None, job: Job) -> MaskFile | None:
    """A true mask of an image; a TIFF is read as a picture."""
    if isinstance(job, ImageJob) and isinstance(mask, PageFile) and is_tiff(mask.path):
        return PictureFile(str(mask.path), mask.page)
    return mask


def masks_below(folder: Path) -> dict[Path, Path]:
    """True masks by their stems."""
    if not folder.is_dir():
        raise DataError(f"--truth {folder}: is not a folder")
    return dict(pictures_among(files_below(folder), folder))


def open_true_masks(
    folder: Path,
    suffix: str | None,
    stems: Sequence[Path],
    class_folders: Sequence[str],
    objects: Sequence[str] = (),
) -> "TrueMasks | ClassTruths | ObjectTruths":
    """The true masks of inputs with these stems, in a folder; `objects` are the classes of a model of objects."""
    if objects and folder.is_dir():
        annotations = find_annotations(folder, TEST_SPLITS, allow_unpaired=True)
        if annotations:
            return ObjectTruths([open_split() for open_split in annotations.values()], objects)
        if len(objects) > 1:
            raise DataError(
                f"--truth {folder}: masks do not say the classes of objects; give a folder of COCO or labelme"
            )
    files = masks_below(folder)
    if class_folders:
        return ClassTruths(files, suffix, stems, class_folders)
    return TrueMasks(files, suffix, stems)


class TrueMasks:
    """True masks by stem; each page of a TIFF has its mask in a file, or all have theirs in a TIFF of as many pages.

    If the suffix is None, it is detected as for training.
    """

    def __init__(self, files: Mapping[Path, Path], suffix: str | None, stems: Iterable[Path]) -> None:
        self.files = files
        if suffix is None and self.files:
            suffix = detect_suffix(map(Path.as_posix, stems), [stem.as_posix() for stem in self.files])
        self.suffix = suffix or ""
        self.missing: list[str] = []

    def find(self, stem: Path, page_stem: Path, number: int, pages: int) -> PageFile | None:
        """The true mask of page `number` of an input. Returns None if there is none, and notes it in `missing`."""
        mask_stem = page_stem.with_name(page_stem.name + self.suffix)
        if mask_stem in self.files:
            return PageFile(self.files[mask_stem])
        stack = self.files.get(stem.with_name(stem.name + self.suffix))
        if stack is None or not is_tiff(stack):
            self.missing.append(str(mask_stem))
            return None
        page_numbers = [index for index, _ in tiff_pages(stack)]
        if len(page_numbers) != pages:
            raise DataError(f"{stack}: has {len(page_numbers)} pages, the image {pages}")
        return PageFile(stack, page_numbers[number])


class ObjectTruths:
    """True objects from annotations, or from a folder of masks for each image.

    Args:
        objects: the model's classes of objects.
    """

    def __init__(self, splits: Sequence[Records], objects: Sequence[str]) -> None:
        self.missing: list[str] = []
        self.objects = objects
        self._records: dict[str, tuple[Records, int] | None] = {}  # None for names that several images have
        for records in splits:
            for index in range(len(records)):
                record = records[index]
                path = stem_of(Path(record["name"]))
                for name in {path.as_posix(), path.name, Path(str(record["image"])).stem}:
                    self._records[name] = None if name in self._records else (records, index)

    def find(self, stem: Path, page_stem: Path, number: int, pages: int) -> AnnotatedObjects | None:
        """The true objects of an input. Returns None if there are none, and notes it in `missing`."""
        # if each image has a folder, the folders' names identify the images
        for name in (page_stem.as_posix(), page_stem.name, *reversed(page_stem.parent.parts)):
            entry = self._records.get(name)
            if entry is not None:
                records, index = entry
                source = records[index]["target"]
                assert isinstance(source, RenderedMask)
                return AnnotatedObjects(source, value_indices(records.metadata.classes, self.objects))
        self.missing.append(str(page_stem))
        return None


class ClassTruths:
    """True masks of classes that may overlap: a folder for each, or files with a page or channel for each.

    Args:
        class_folders: the folder of each class.
    """

    def __init__(
        self, files: Mapping[Path, Path], suffix: str | None, stems: Sequence[Path], class_folders: Sequence[str]
    ) -> None:
        self.missing: list[str] = []
        self.class_folders = class_folders
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
            self.missing = self.joined_masks.missing

    def find(self, stem: Path, page_stem: Path, number: int, pages: int) -> MaskFile | None:
        """The true masks of all classes for a page, found as in `TrueMasks.find`; a class without a mask is unknown."""
        bits = tuple(range(len(self.class_folders)))
        if self.joined_masks is not None:
            mask = self.joined_masks.find(page_stem, page_stem, 0, 1)
            if mask is None:
                return None
            return _masks_in_file(Path(mask.path), bits)
        masks = [class_masks.find(stem, page_stem, number, pages) for class_masks in self.class_masks]
        if not any(masks):
            self.missing.append(str(page_stem))
            return None
        files = []
        for mask in masks:
            if mask is None:
                files.append(ClassFile(""))
            else:
                files.append(ClassFile(str(mask.path), mask.page or 0))
        if any(is_volume(file.path) for file in files):
            return layered_label([file.path for file in files], bits)
        return ClassMasks(tuple(files), bits)


def _masks_in_file(path: Path, bits: tuple[int, ...]) -> MaskFile:
    """The masks of all classes in the pages or channels of one file."""
    if is_volume(path):
        return VolumeFile((str(path),), layers=ClassLayers(bits))
    pages = [number for number, _ in tiff_pages(path)] if is_tiff(path) else []
    if len(pages) == len(bits) > 1:
        return ClassMasks(tuple(ClassFile(str(path), page) for page in pages), bits)
    return ClassChannels(str(path), bits)
