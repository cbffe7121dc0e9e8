"""Images with a place whose masks may lie on other grids."""

from collections.abc import Iterable

from data_utils.image_io.placed_masks import PlacedMask, on_grid, read_source_grid
from data_utils.image_io.scene_windows import SceneWindow
from data_utils.sources.records import Record, Records, change
from runtime.console import counted

SAMPLED_MASKS = 128  # masks whose grids are compared with those of their images
MIN_NOTABLE_SHIFT = 0.01  # pixels: a smaller shift is rounding


def with_places(records: Records) -> Records:
    """The records; each mask is laid on the grid of its image if images have a place."""
    if not len(records) or records.dims == 3 or records.is_stream:
        return records
    return change(records, "placed", _place) if read_source_grid(records[0]["image"]) else records


def _place(record: Record) -> Record:
    grid = read_source_grid(record["image"])
    if grid is None:
        return record
    return {**record, "target": on_grid(record["target"], grid, record["name"])}


def place_warnings(splits: Iterable[Records]) -> tuple[str, ...]:
    """A line if masks are shifted against their images by a part of a pixel."""
    shifted: list[tuple[str, float, float]] = []
    for records in splits:
        if records.is_stream:
            continue
        for i in range(min(len(records), SAMPLED_MASKS)):
            shift = _shift(records[i])
            if shift is not None:
                shifted.append((records.name(i), *shift))
    if not shifted:
        return ()
    name, right, down = shifted[0]
    masks = counted(len(shifted), "mask is shifted against its image", "masks are shifted against their images")
    return (
        f"{masks} by a part of a pixel, {name} by {right:+.2f} to the"
        f" right and {down:+.2f} down: they count where their coordinates say; if both were made for one grid, correct"
        " the place of one of them",
    )


def _shift(record: Record) -> tuple[float, float] | None:
    """The shift (right, down) of a mask whose pixels have the image's size and lie less than one away; else None."""
    mask = record["target"]
    if isinstance(mask, SceneWindow):
        mask = mask.source
    if not isinstance(mask, PlacedMask):
        return None
    image_place = mask.image_grid.place
    mask_place = mask.mask_grid.place
    if not image_place.has_same_pixels(mask_place, mask.image_grid.size):
        return None
    column, row = image_place.offset_to(mask_place)
    right = column - round(column)
    down = row - round(row)
    if max(abs(right), abs(down)) < MIN_NOTABLE_SHIFT:
        return None
    return right, down
