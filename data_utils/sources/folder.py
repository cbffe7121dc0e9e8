"""A folder of images and masks -> pairs by stem."""

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import IMAGE_SUFFIXES
from data_utils.sources.records import Record, Records
from data_utils.sources.tiff_stacks import PagePair, pair_pages
from runtime.cache import digest_of_files
from runtime.errors import DataError

IMAGE_FOLDERS = ("images", "imgs", "image")
MASK_FOLDERS = ("masks", "labels", "annotations", "mask", "label")
SPLIT_FOLDERS = ("train", "training", "val", "validation", "valid")  # test only if named
ANNOTATIONS = "annotations of COCO, labelme, YOLO, VOC or Cityscapes"  # what else a folder may hold
NAMED = 5  # files in a message


def natural(name: str) -> tuple:
    """Sort key that puts 2.png before 10.png."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def find_splits(root: Path, named: Iterable[str]) -> dict[str, tuple[Path, Path]]:
    """Split -> (images, masks) folders; a flat folder is one split, `train`.

    Splits are train/, val/ and the like, and folders that are `named`; they lie above images/ and masks/ or below both.
    """
    wanted = {*SPLIT_FOLDERS, *(name.lower() for name in named)}
    splits = {name: folder for name, folder in children(root).items() if name in wanted}
    flat = _one_of(root, IMAGE_FOLDERS) is not None and _one_of(root, MASK_FOLDERS) is not None
    if splits and not flat:
        return {name: _pair_of_folders(folder) for name, folder in splits.items()}
    images, masks = _pair_of_folders(root)
    if "train" in splits or "training" in splits:
        raise DataError(f"{root} holds both {images.name}/ and a train folder; keep one of the two layouts")
    below, masks_below = children(images), children(masks)
    inner = {name: (below[name], masks_below[name]) for name in below if name in wanted and name in masks_below}
    outer = {name: _pair_of_folders(folder) for name, folder in splits.items()}
    return (inner or {"train": (images, masks)}) | outer


def children(folder: Path) -> dict[str, Path]:
    """Folders in a folder, by lower-case name."""
    try:
        paths = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror})") from error
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        if found.setdefault(path.name.lower(), path) != path:
            raise DataError(f"{folder} holds {found[path.name.lower()].name}/ and {path.name}/; keep one")
    return found


def _one_of(folder: Path, names: tuple[str, ...]) -> Path | None:
    found = [path for name, path in children(folder).items() if name in names]
    if len(found) > 1:
        raise DataError(f"{folder} holds {' and '.join(f'{path.name}/' for path in found)}; keep one of them")
    return found[0] if found else None


def _pair_of_folders(folder: Path) -> tuple[Path, Path]:
    images, masks = _one_of(folder, IMAGE_FOLDERS), _one_of(folder, MASK_FOLDERS)
    if images is None or masks is None:
        seen = sorted(os.listdir(folder), key=natural)
        listed = ", ".join(seen[:NAMED] + ["..."] * (len(seen) > NAMED)) or "nothing"
        lacking = [name for name, path in (("images", images), ("masks", masks)) if path is None]
        raise DataError(
            f"{folder} has no folder of {' or '.join(lacking)}; looked for {'|'.join(IMAGE_FOLDERS)} beside "
            f"{'|'.join(MASK_FOLDERS)}, here or in train/ and val/, for {ANNOTATIONS}, and for volumes in imagesTr"
            f" beside labelsTr; found {listed}"
        )
    if images.samefile(masks):
        raise DataError(f"{images} and {masks} are the same folder")
    return images, masks


class FolderRecords(Records):
    """Records {"image": path, "target": path, "name": path of the image below `images`}.

    Of files of many pages, each is a record: {"path": path, "page": number} stands for the path, and the name is
    <stem>_<page>.<ext>, as `predict.py` calls it.

    Names are kept as bytes in two arrays: a million Python strings would be copied, page by page, into every loader
    process as their reference counts change.

    Args:
        pairs: image and mask file below their folders.
        pages: of each pair, the pages (of the image, of the mask) that are records.
        unpaired: what has been left out, a line for each file.
    """

    def __init__(
        self,
        images: Path,
        masks: Path,
        pairs: Sequence[tuple[str, str]],
        pages: Sequence[Sequence[PagePair]],
        unpaired: Sequence[str],
    ) -> None:
        self.folders = str(images), str(masks)
        self.files = tuple(np.array([os.fsencode(pair[i]) for pair in pairs]) for i in range(2))
        # of each record: the pair, its page of how many, page of the image, page of the mask
        rows = [(i, k, len(of_pair), *both) for i, of_pair in enumerate(pages) for k, both in enumerate(of_pair)]
        self.records = np.array(rows, np.int32).reshape(-1, 5)
        self.unpaired = tuple(unpaired)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Record:
        pair, number, count, *pages = self.records[i].tolist()
        names = [os.fsdecode(files[pair].item()) for files in self.files]
        sources = [os.path.join(folder, name) for folder, name in zip(self.folders, names, strict=True)]
        stem, extension = os.path.splitext(names[0])
        if count == 1:
            return {"image": sources[0], "target": sources[1], "name": names[0]}
        image, mask = ({"path": path, "page": page} for path, page in zip(sources, pages, strict=True))
        return {"image": image, "target": mask, "name": f"{stem}_{number + 1:04}{extension}"}

    @cached_property
    def digest(self) -> str:  # type: ignore[override]  # computed once it is asked for
        """Key of names, sizes and times of all files."""
        both = zip(*self.files, strict=True)
        paths = [
            os.path.join(folder, os.fsdecode(f)) for pair in both for folder, f in zip(self.folders, pair, strict=True)
        ]
        return digest_of_files(paths, b"/".join([*self.files[0], *self.files[1], self.records.tobytes()]))


def pair_files(images: Path, masks: Path, mask_suffix: str | None, allow_unpaired: bool) -> FolderRecords:
    """Images and masks of one stem, in natural order; of files of many pages, all pages.

    `mask_suffix` None detects it. Raises DataError for doubles and, unless allowed, for files without partner.
    """
    image_files, mask_files = files_by_stem(images, "images"), files_by_stem(masks, "masks")
    suffix = detect_suffix(image_files, mask_files) if mask_suffix is None else mask_suffix
    mask_of = {stem.removesuffix(suffix): path for stem, path in mask_files.items() if stem.endswith(suffix)}
    stems = [stem for stem in image_files if stem in mask_of]
    without_mask = [path for stem, path in image_files.items() if stem not in mask_of]
    used = {mask_of[stem] for stem in stems}
    without_image = [path for path in mask_files.values() if path not in used]
    problems = [
        f"{len(files)} of {total} {what} ({', '.join(files[:NAMED])}{', ...' * (len(files) > NAMED)})"
        for what, files, total in (
            (f"images in {images} have no mask", without_mask, len(image_files)),
            (f"masks in {masks} have no image", without_image, len(mask_files)),
        )
        if files
    ]
    if problems and not (allow_unpaired and stems):
        leave_out = ", or leave them out with --allow-unpaired" if stems else ""
        remedy = f" (set the suffix with --mask-suffix{leave_out})"
        raise DataError(f"{'; '.join(problems)}; masks are named <stem>{suffix}.<ext>{remedy}")
    unpaired = [f"{file}: image without mask" for file in without_mask]
    unpaired += [f"{file}: mask without image" for file in without_image]
    pairs = [(image_files[stem], mask_of[stem]) for stem in stems]
    return FolderRecords(images, masks, pairs, pair_pages(images, masks, pairs), unpaired)


def files_by_stem(folder: Path, what: str, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> dict[str, str]:
    """Path below the folder without extension -> with it, of all files with these extensions, in natural order."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error

    files, others = [], set()
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(parent, folder).replace(os.sep, "/")
        for name in names:
            extension = os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            if extension in suffixes:
                files.append(name if below == "." else f"{below}/{name}")
            else:
                others.add(extension or name)
    if not files:
        found = f"only {', '.join(sorted(others)[:NAMED])}" if others else "nothing"
        hint = f" (or {ANNOTATIONS})" if what == "masks" else ""
        raise DataError(f"no {what} in {folder}; found {found}, looked for {', '.join(suffixes)}{hint}")
    stems: dict[str, str] = {}
    for file in sorted(files, key=natural):
        stem = os.path.splitext(file)[0]
        if stem in stems:
            raise DataError(f"two {what} with the same name in {folder}: {stems[stem]} and {file}; keep one")
        stems[stem] = file
    return stems


def detect_suffix(images: Iterable[str], masks: Iterable[str]) -> str:
    """The shortest ending common to all mask stems that pairs most masks with images."""
    images, shortest = set(images), min((stem.rpartition("/")[2] for stem in masks), key=len)
    endings = [shortest[i:] for i in range(len(shortest), -1, -1)]
    endings = [ending for ending in endings if all(stem.endswith(ending) for stem in masks)]
    return max(endings, key=lambda ending: sum(stem.removesuffix(ending) in images for stem in masks))
