"""A folder for each image, with a mask for each of its objects, as in DSB2018: NAME/images/*.png, NAME/masks/*.png."""

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.class_names import BACKGROUND
from data_utils.image_io.class_masks import binary
from data_utils.image_io.formats import RenderedMask
from data_utils.image_io.reader import IMAGE_SUFFIXES, read_header, read_mask
from data_utils.sources.annotations.layout import AnnotatedSplits
from data_utils.sources.folder import DataFolder, children, files_in, natural_order, natural_sort_key, split_folders
from data_utils.sources.pairs import open_rows
from data_utils.sources.records import FileRow, Metadata, Records, Sources, split_openers
from runtime.errors import DataError

IMAGES = "images"
MASKS = "masks"
TASK = "objects"
CLASSES = "classes"  # the task in which the objects are pixels of one class
LOOKED_AT = 5  # folders by which the layout is recognized


@dataclass(frozen=True)
class OneObjectMasks(RenderedMask):
    """The masks in the folder of an image: in each file, the pixels that are not 0 are an object.

    Args:
        are_one_class: whether the values of the mask are a class, 1, and not the numbers of objects.
    """

    folder: str
    image: str
    masks: tuple[str, ...]
    are_one_class: bool = field(default=False, repr=False)  # content keys are made of the text

    def render(self) -> np.ndarray:
        """The numbers of `render_objects`, or 1 for each of them."""
        ids, values = self.render_objects()
        return values.astype(np.uint8)[ids] if self.are_one_class else ids

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        """(H, W) uint16, or more bits for more files: the number of the file, in the order of names; 1 for each number.

        Where several overlap, it is the last one's. Raises DataError for a mask of more values than 0 and another one.
        """
        first = self.masks[0] if self.masks else self.image
        ids = np.zeros(read_header(first, first)[0], np.promote_types(np.uint16, np.min_scalar_type(len(self.masks))))
        for number, path in enumerate(self.masks, 1):
            is_object, _ = binary(read_mask(path, path), path)
            if is_object.shape != ids.shape:
                sizes = " and ".join(f"{height} x {width}" for height, width in (ids.shape, is_object.shape))
                names = f"{os.path.basename(self.masks[0])} and {os.path.basename(path)}"
                raise DataError(f"{self.folder}: its masks {names} have different sizes, {sizes}")
            ids[is_object] = number
        return ids, np.minimum(np.arange(int(ids.max()) + 1), 1)


def one_object_sources(row: FileRow, are_one_class: bool) -> Sources:
    """An image, and the masks of its objects."""
    folder, *masks = row.targets
    return row.images[0], OneObjectMasks(folder, row.images[0], tuple(masks), are_one_class)


def find_splits(folder: DataFolder) -> AnnotatedSplits | None:
    """The splits that hold such folders; None if none does."""
    folders = split_folders(folder.root, folder.named_splits)
    found = {split: (path,) for split, path in folders.items() if _is_set(path)}
    if not found:
        return None
    (example,) = next(iter(found.values()))
    openers = split_openers(found, open_records, folder.config.allow_unpaired, folder.config.task == CLASSES)
    return f"one mask for each object ({example})", openers


def _is_set(root: Path) -> bool:
    """Whether each of the first folders in `root` holds masks/ and one image in images/.

    If each mask is the only one and is called like its image, it is one of classes.
    """
    folders = list(children(root).values())[:LOOKED_AT]
    if not folders or not all({IMAGES, MASKS} <= children(folder).keys() for folder in folders):
        return False
    if all(map(_is_pair, folders)):
        return False
    return all(len(_pictures(folder, IMAGES)) <= 1 for folder in folders)


def _is_pair(folder: Path) -> bool:
    """Whether a folder holds one image, and one mask of its name."""
    images, masks = ([path.stem for path in _pictures(folder, kind)] for kind in (IMAGES, MASKS))
    return len(images) == 1 and images == masks


def find_object_images(root: Path) -> list[tuple[str, Path]]:
    """Name and image of each folder in `root` if each holds an image and its masks; else an empty list."""
    images: list[tuple[str, Path]] = []
    for folder in _image_folders(root) if _is_set(root) else ():
        pictures = _pictures(folder, IMAGES)
        if len(pictures) != 1:
            return []
        images.append((folder.name, pictures[0]))
    return images


def _image_folders(root: Path) -> list[Path]:
    """The folders in `root`, in the natural order of their names."""
    return sorted(children(root).values(), key=lambda path: natural_sort_key(path.name))


def _pictures(folder: Path, kind: str) -> list[Path]:
    """The pictures in the folder of a kind, in the natural order of their names; none if there is no such folder."""
    below = children(folder).get(kind)
    if below is None:
        return []
    return [below / name for name in natural_order(files_in(below, IMAGE_SUFFIXES))]


def open_records(root: Path, allow_unpaired: bool, are_one_class: bool = False) -> Records:
    """The records of all folders in `root`; an image may have no masks, but must have a folder of them."""
    rows: list[FileRow] = []
    unpaired: list[str] = []
    for folder in _image_folders(root):
        images = _pictures(folder, IMAGES)
        masks = children(folder).get(MASKS)
        if len(images) > 1:
            raise DataError(f"{images[0].parent}: holds {len(images)} images, expected the one that masks/ belongs to")
        if images and masks:
            files = [str(path.relative_to(root)) for path in (*images, masks, *_pictures(folder, MASKS))]
            rows.append(FileRow(folder.name + images[0].suffix, (files[0],), tuple(files[1:])))
        else:
            unpaired.append(f"{folder.name}: has no {MASKS if images else 'image'}")
    sources = partial(one_object_sources, are_one_class=are_one_class)
    metadata = Metadata(((0, BACKGROUND), (1, "object"))) if are_one_class else Metadata(task=TASK)
    return open_rows((root, root), rows, unpaired, metadata, allow_unpaired, sources)
