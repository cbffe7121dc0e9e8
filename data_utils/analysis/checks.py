"""Likely mistakes in a data set that is valid, a line each, for training and for --check-data alike.

A check is a function of what was found that gives its lines. `CHECKS` lists those of all data sets, and each reader
those of its task.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data_utils.analysis.findings import USES, Check, Findings, labeled_indices
from data_utils.image_io.formats import ImageSource, SceneWindow, source_files
from data_utils.image_io.places import PlacedMask
from data_utils.image_io.text_headers import read_segments
from data_utils.sources.folder import USUAL_FOLDERS, children, is_readable, names_in
from data_utils.sources.records import FileRows
from runtime.console import counted, listing
from unet.config import IGNORE_INDEX

FEW_IMAGES = 4  # fewer images, of both splits, are hardly a data set
CONSEQUENCES = ("which will not be learned", "which cannot be scored")  # of a class that a split lacks
DEEP_MODES = ("I", "F", "uint16", "uint32", "int", "float")  # how modes of more than 8 bits begin
SPECK = 4  # the most pixels of an object whose coordinates are taken for much smaller ones: the corner of the image
SAMPLED_MASKS = 128  # masks whose grids are compared with those of their images
MIN_NOTABLE_SHIFT = 0.01  # pixels: a smaller shift is rounding
# the coordinates that each format of annotations has
COORDINATES = {
    "COCO": "pixels from the upper left corner",
    "labelme": "pixels from the upper left corner",
    "YOLO": "shares of width and height, 0 to 1",
    "GeoJSON": "longitude, then latitude, unless the file names its crs",
    "GeoPackage": "the units of its CRS",
}


def find_warnings(findings: Findings) -> tuple[str, ...]:
    """The lines of all checks; none of a sample of a stream, and none if the meaning of the masks is unclear."""
    is_sample = findings.data.train not in findings.records
    if findings.reader is None or is_sample:
        return ()
    lines: list[str] = []
    for check in (*CHECKS, findings.reader.check):
        lines += check(findings)
    return tuple(lines)


def crowds(findings: Findings) -> Iterator[str]:
    """Objects of annotation files that are ignored."""
    splits = [split for split in findings.splits if split.records.metadata.annotations == "COCO"]
    count = sum(split.objects[IGNORE_INDEX] for split in splits)
    if count:
        total = sum(split.objects.total() for split in splits)
        yield (
            f"{count} of {total} annotated objects are crowds (iscrowd 1), and their pixels count neither in the loss"
            " nor in the scores; some tools write what was painted with a brush as crowds: set iscrowd to 0 there"
        )


def objects_without_pixels(findings: Findings) -> Iterator[str]:
    """Annotated objects that lie outside of their images, or in a corner: their coordinates have another unit."""
    splits = findings.splits
    kind = findings.records[0].metadata.annotations
    if kind is None or any(split.problems for split in splits):
        return
    objects = sum(split.objects.total() - split.objects[IGNORE_INDEX] for split in splits)
    covered = sum(count for value, count in findings.pixels.items() if value)
    texts: list[str] = []
    # of masks of several classes, only the chosen ones are drawn
    are_all_drawn = findings.records[0].metadata.task is None or not findings.data.config.classes
    if are_all_drawn and covered <= SPECK * objects > 0:
        texts.append(f"the {objects} annotated objects cover {covered} pixels in all")
    annotated = sum(split.annotated for split in splits)
    blank = annotated
    for split in splits:
        for content, _, members in split.used_contents():
            if any(content.values):
                blank -= len(members)
    if blank > 0:
        texts.append(f"the masks of {blank} of {annotated} images with objects are empty")
    if texts:
        yield f"{listing(texts)}; coordinates of {kind} are {COORDINATES.get(kind, 'in pixels')}: are these?"


def nothing_labeled(findings: Findings) -> Iterator[str]:
    """Masks without any object, as of annotations that were exported before they were made."""
    if findings.pixels and not any(split.annotated for split in findings.splits):
        images = counted(sum(map(len, findings.records)), "image has", "images have")
        kind = findings.records[0].metadata.annotations
        unit = f", with coordinates in {COORDINATES[kind]}" if kind in COORDINATES else ""
        yield f"{images} no object at all, so that nothing can be learned; were all annotations exported{unit}?"


def resized_masks(findings: Findings) -> Iterator[str]:
    """Masks of another size than their images."""
    count = sum(split.resized_masks for split in findings.splits)
    if count:
        yield (
            f"{count} of {sum(map(len, findings.records))} masks have another size than their images but the same"
            " proportions: training resizes them, and scores use their own size"
        )


def mixed_depths(findings: Findings) -> Iterator[str]:
    """Images of 8 bits beside images of more bits, whose values differ as much as their ranges.

    There is no such warning on volumes: the type of their voxels says little of their values, and most are standardized
    one by one.
    """
    if any(records.dims == 3 for records in findings.records):
        return
    modes = sum((split.modes for split in findings.splits), Counter())
    deep_modes = {mode for mode in modes if mode.startswith(DEEP_MODES)}
    if deep_modes and deep_modes < modes.keys():
        mode_list = ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())
        yield f"images of 8 bits and of more bits are mixed ({mode_list}): store all with the same type"


def few_images(findings: Findings) -> Iterator[str]:
    """Splits of so few images or volumes that nothing can be learned or scored."""
    lengths = list(map(len, findings.records))
    kind = findings.records[0].image_kind
    if findings.class_map is not None and 0 < sum(lengths) < FEW_IMAGES:
        counts = " and ".join(f"{length} for {use}" for length, use in zip(lengths, USES, strict=False))
        images = counted(sum(lengths), f"{kind} is", f"{kind}s are")
        yield (
            f"{images} very few ({counts}): the score will be luck; ten to thirty that look alike are a start"
            " (docs/preparing-masks.md#how-many-images)"
        )
    elif kind == "volume" and lengths[1:] == [1]:
        yield (
            "the score will be that of a single validation volume, much of it luck: --fold 1/5 to --fold 5/5 measure"
            " all, if all are in one split (docs/data.md, Validation images)"
        )


def unlisted_images(findings: Findings) -> Iterator[str]:
    """Images that a `classes.csv` does not list."""
    names: list[str] = []
    for records in findings.records:
        names += records.unlisted
    if names:
        images = counted(len(names), "image has", "images have")
        yield f"{images} no row in classes.csv, which means labeled for all classes: {listing(names)}"


def unlabeled_images(findings: Findings) -> Iterator[str]:
    """Images that are labeled for no class."""
    names: list[str] = []
    for split in findings.splits:
        for content, _, members in split.used_contents():
            if content.labeled_for is not None and not labeled_indices(findings.known_reader, content.labeled_for):
                names += map(split.records.name, members.tolist())
    if names:
        images = counted(len(names), "image is", "images are")
        yield f"{images} labeled for no class, useless for training and scores: {listing(names)}"


def never_labeled(findings: Findings) -> Iterator[str]:
    """Classes that no training image, or no validation image, is labeled for."""
    reader = findings.known_reader
    has_labels = any(records.metadata.label_sets for records in findings.records)
    if len(findings.splits) < 2 or not has_labels:
        return
    for split, use, consequence in zip(findings.splits, USES, CONSEQUENCES, strict=True):
        labeled: set[int] = set()
        for content, _, _ in split.used_contents():
            labeled.update(labeled_indices(reader, content.labeled_for))
        missing = []
        for index, name in enumerate(reader.class_names):
            if index not in labeled and index != reader.background:
                missing.append(name)
        if missing:
            yield f"no {use} image is labeled for {listing(missing)}, {consequence}"


def fields_of_view(findings: Findings) -> Iterator[str]:
    """Masks in mask/ beside a folder of as many other files: mask/ of DRIVE and HRF is the field of view."""
    for records in findings.records:
        folder = Path(records.rows.folders[1]) if isinstance(records.rows, FileRows) else None
        if folder is None or folder.name.lower() != "mask":
            continue
        count = sum(map(is_readable, names_in(folder)))
        for name, other in children(folder.parent).items():
            if name not in USUAL_FOLDERS and sum(map(is_readable, names_in(other))) == count:
                yield (
                    f"the masks are those of {folder}; {other.name}/ beside it holds as many files, which are not read:"
                    f" if these are the masks, move {folder.name}/ away and rename {other.name}/ to masks/"
                )
                return


def differing_segments(findings: Findings) -> Iterator[str]:
    """Segments of 3D Slicer that have another value in another file, since its segments stand in another order."""
    paths: list[str] = []
    for records in findings.records:
        if records.dims == 3:
            for record in records:
                paths += source_files(record["target"])
    first_by_name: dict[str, tuple[tuple[str, str], str]] = {}
    for path in paths:
        segments = read_segments(path) if path.lower().endswith((".nrrd", ".nhdr")) else {}
        for name, place in segments.items():
            first_place, first_path = first_by_name.setdefault(name, (place, path))
            if place != first_place:
                texts = [f"the value {value} in layer {layer}" for layer, value in (first_place, place)]
                yield (
                    f"the segment {name} of 3D Slicer has {texts[0]} of {first_path}, and {texts[1]} of {path}; the"
                    " values are learned, whatever their names: give all files the same order of segments"
                )
                return


def shifted_masks(findings: Findings) -> Iterator[str]:
    """Masks that are shifted against their images by a part of a pixel."""
    shifted: list[tuple[str, tuple[float, float]]] = []
    for records in findings.records:
        for i in range(0 if records.is_stream else min(len(records), SAMPLED_MASKS)):
            shift = _shift(records[i]["target"])
            if max(map(abs, shift)) >= MIN_NOTABLE_SHIFT:
                shifted.append((records.name(i), shift))
    if shifted:
        name, (right, down) = shifted[0]
        masks = counted(len(shifted), "mask is shifted against its image", "masks are shifted against their images")
        yield (
            f"{masks} by a part of a pixel, {name} by {right:+.2f} to the"
            f" right and {down:+.2f} down: they count where their coordinates say; if both were made for one grid,"
            " correct the place of one of them"
        )


def _shift(mask: ImageSource) -> tuple[float, float]:
    """By which part of a pixel (right, down) a mask is shifted whose pixels are as large as those of its image."""
    if isinstance(mask, SceneWindow):
        mask = mask.source
    if not isinstance(mask, PlacedMask):
        return 0, 0
    image_place = mask.image_grid.place
    mask_place = mask.mask_grid.place
    if not image_place.has_same_pixels(mask_place, mask.image_grid.size):
        return 0, 0
    column, row = image_place.to_pixels(*mask_place.to_world(0, 0))
    return column - round(column), row - round(row)


CHECKS: tuple[Check, ...] = (
    crowds,
    objects_without_pixels,
    nothing_labeled,
    resized_masks,
    mixed_depths,
    few_images,
    unlisted_images,
    unlabeled_images,
    never_labeled,
    fields_of_view,
    differing_segments,
    shifted_masks,
)
