"""The settings of a data set: its path, its splits, and the preprocessing of its images."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from data_utils.class_names import BACKGROUND, holds_names
from runtime.errors import DataError

NORMALIZATIONS = ("z-score", "ct")  # the ways to normalize volumes


@dataclass(frozen=True)
class DataConfig:
    """The data flags of train.py, under their names; `train.py --help` explains each.

    Args:
        fold: (k, n), the k-th of n validation parts, from 1; None for a single part of size `val_fraction`.
        val_blocks: pixels of a side of the blocks of scenes that are held out, 0 to choose it by the scenes; None if
            whole images are held out.
        image_size, crop_size: (H, W), None if images keep their size and are not cropped; crops of
            volumes (D, H, W).
        ignore_index: mask values, with commas between them.
        dims: 2 for images, 3 for volumes, None to decide by the files.
        spacing: (z, y, x) in mm of volumes whose files hold none.
        normalization: `z-score` or `ct` for volumes; None to decide by their modality.
        absent: the meaning of an empty cell in a table of points, `unknown` or `not-there`.
        swap: names of points or overlapping classes that change places in the mirror: left=right, with commas between.
        label_column: the column with the class of polygons in the world; None if all have one class.
        exclude: a file with the names of images that are left out.
        bands: names or numbers of the bands of rasters that are read, in this order; None for all.
        place: whether TIFFs with a place in the world are read as rasters; else as pictures, wherever they lie.
        regions: unions of mask values, as `data_utils.targets.regions` reads them.
        task: the task that the network learns; None until the data have been inspected.
    """

    dataset: str = "shapes"
    dataset_config: str | None = None
    train_split: str | None = None
    val_split: str | None = None
    val_fraction: float = 0.1
    val_group: str | None = None
    val_blocks: int | None = None
    fold: tuple[int, int] | None = None
    image_column: str | None = None
    mask_column: str | None = None
    mask_suffix: str | None = None
    allow_unpaired: bool = False
    streaming: bool = False
    cache: bool = False
    on_bad_sample: str = "error"
    classes: str | None = None
    ignore_index: str | None = None
    outside: str | None = None
    scale: float = 1.0
    image_size: tuple[int, int] | None = None
    crop_size: tuple[int, ...] | None = None
    augment: str = "basic"
    draft: bool = False
    plan: str = "none"
    seed: int = 0
    dims: int | None = None
    spacing: tuple[float, float, float] | None = None
    normalization: str | None = None
    task: str | None = None
    absent: str | None = None
    swap: str | None = None
    regions: str | None = None
    bands: tuple[str, ...] | None = None
    place: bool = True
    label_column: str | None = None
    exclude: str | None = None

    @classmethod
    def from_args(cls, args: Any) -> "DataConfig":
        """The settings among the flags of a script, attributes of `args`; None stands for a setting not decided yet."""
        return cls.from_flags(vars(args))

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> "DataConfig":
        """The settings among flags by their names; a setting that is None or absent is not decided yet."""
        values: dict[str, Any] = {field.name: flags.get(field.name) for field in fields(cls)}
        for name in ("image_size", "crop_size", "spacing", "bands"):
            if values[name]:
                values[name] = tuple(values[name])
        if values["fold"]:
            values["fold"] = tuple(map(int, values["fold"].split("/")))
        decided = {name: value for name, value in values.items() if value is not None}
        return cls(**decided)

    @property
    def may_crop(self) -> bool:
        """Whether training may see crops of images, so that very large images need not be read whole."""
        return self.crop_size is not None or self.plan == "auto"

    @property
    def outside_rule(self) -> str | None:
        """The meaning of mask values that `classes` leaves out: one of `OUTSIDE`; None if they are mistakes."""
        if self.outside is None and holds_names(self.classes):
            return BACKGROUND
        return self.outside

    @property
    def skipped_errors(self) -> tuple[type[Exception], ...]:
        """Errors in reading a sample that make it a filler instead of ending the run."""
        return (DataError,) if self.on_bad_sample == "skip" else ()
