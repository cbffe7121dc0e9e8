"""The settings of a data set: its path, its splits, and the preprocessing of its images.

They are the flags of train.py on data: the first part of its table of settings.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from data_utils.class_names import BACKGROUND, OUTSIDE_MEANINGS, holds_names
from data_utils.point_states import ABSENCES
from runtime.errors import DataError
from runtime.settings import setting
from runtime.values import Count, FractionAbove0, Limit, Natural, OneOf, Positive, Seed, Source

LANDMARKS = "landmarks"  # the tasks that the layout of a data set may tell
OVERLAPPING = "overlapping"
NORMALIZATIONS = ("z-score", "ct")  # the ways to normalize volumes
STRENGTHS = ("none", "mirror", "basic", "strong")  # of augmentation
GROUPS = (  # of flags, as the help of train.py shows them
    "the ten flags to start with",
    "advanced: data",
    "advanced: volumes",
    "advanced: network",
    "advanced: optimization",
    "advanced: batch, memory and processes",
    "advanced: the run and its files",
)
FIRST, DATA, VOLUMES, NETWORK, OPTIMIZATION, BATCH, RUN = GROUPS


def _is_fold(text: str) -> bool:
    number, slash, folds = text.partition("/")
    are_numbers = bool(slash) and number.isdecimal() and folds.isdecimal()
    return are_numbers and 1 <= int(number) <= int(folds) and int(folds) >= 2


Fold = Annotated[str, Limit(_is_fold, "K/N, such as 2/5 for the second of five folds")]
Scale = Annotated[float, Limit(lambda number: 0 < number <= 1000, "a number above 0, at most 1000")]

_first = partial(setting, group=FIRST)
_data = partial(setting, group=DATA)
_volumes = partial(setting, group=VOLUMES)


@dataclass(frozen=True)
class DataConfig:
    """The settings of a data set, under the names of their flags; None stands for a value that is not decided yet."""

    dataset: str = _first(
        "folder of images and masks, annotations or volumes; parquet or tar files; Hub id; shapes: generated",
        default="shapes",
        metavar="DATA",
    )
    classes: str | None = _first(
        "names of mask values: 0=background,3=person,7=person; #804080=road,...; a .json file; or the classes to use,"
        " of those that the data set names: person,dog (default: all)",
        metavar="NAMES",
    )
    scale: Scale | None = _first("resize images; 0.5 halves each side", metavar="FACTOR", unplanned=1.0)
    crop_size: tuple[Natural, ...] | None = _first(
        "train on random crops of H W pixels, or D H W voxels", metavar="SIDE", unplanned=None
    )
    augment: Annotated[str, OneOf(STRENGTHS)] | None = _first(
        "mirror: left-right; basic: also tilt, zoom, contrast; strong: also turn, flip, noise", unplanned="basic"
    )
    task: str | None = _data("what the network learns of an image (default: found in the data)")
    regions: str | None = _data(
        "learn unions of mask values, 'whole=1+2+3;core=2+3;active=3', and write a mask of their first values",
        metavar="REGIONS",
    )
    dataset_config: str | None = _data("configuration of a Hub data set", metavar="NAME")
    train_split: str | None = _data("split to train on (default: train)", metavar="NAME")
    val_split: str | None = _data(
        "split to evaluate on (default: val or validation; without one, a share of the training images)", metavar="NAME"
    )
    val_fraction: FractionAbove0 = _data(
        "share of the training images held out for validation", default=0.1, metavar="SHARE"
    )
    val_group: str | None = _data(
        r"hold out whole groups of images: '^(donor\d+)_' groups them by the part of the name in brackets",
        metavar="REGEX",
    )
    val_blocks: Count | None = _data(
        "hold out blocks of scenes with a place, of so many pixels a side (default: about 40 blocks in all)",
        metavar="PIXELS",
        const=0,
    )
    fold: Fold | None = _data("cross-validation: hold out the K-th of N disjoint parts", metavar="K/N")
    image_column: str | None = _data("column of the images (default: image)", metavar="NAME")
    mask_column: str | None = _data("column of the masks (default: mask, label or annotation)", metavar="NAME")
    mask_suffix: str | None = _data(
        "masks are named <image><suffix>.<ext> (default: detected)", metavar="SUFFIX", may_be_empty=True
    )
    exclude: Source | None = _data("leave out the images of a list, a name on each line", metavar="FILE")
    allow_unpaired: bool = _data("leave out images or masks without a counterpart", default=False)
    streaming: bool = _data("read parquet or tar files piece by piece; URLs always are", default=False)
    cache: bool = _data("keep decoded, resized images on disk", default=False, has_effect=False)
    on_bad_sample: Annotated[str, OneOf(("error", "skip"))] = _data(
        "skip: train without unreadable images, and list them", default="error"
    )
    ignore_index: str | None = _data(
        "mask values, such as 11 or 0,255, that count in neither loss nor scores (default: 255, unless it is a class)",
        metavar="VALUES",
    )
    outside: Annotated[str, OneOf(OUTSIDE_MEANINGS)] | None = _data(
        "what becomes of classes that --classes leaves out; without --classes, of the data set's background"
        " (default: background; an error where --classes has values)"
    )
    bands: tuple[str, ...] | None = _data(
        "names or numbers of the bands of TIFF files to train on, such as B08 B04 B03, or 8 4 3 (default: all)",
        metavar="BAND",
    )
    place: bool | None = _data(
        "read TIFFs with a place in the world with all bands, and leave out pixels without data (default: on)"
    )
    label_column: str | None = _data(
        "column of polygons in the world (GeoJSON) that says their class (default: all are of one)", metavar="NAME"
    )
    absent: Annotated[str, OneOf(ABSENCES)] | None = _data(
        "landmarks: what an empty cell in a table of points means (default: unknown)"
    )
    swap: str | None = _data(
        "points or overlapping classes that change places in the mirror, left=right,... (default: by their names)",
        metavar="PAIRS",
        may_be_empty=True,
    )
    image_size: tuple[Natural, Natural] | None = _data("resize all images to one size", metavar=("H", "W"))
    draft: bool = _data(
        "decode JPEG files at a reduced size: faster, but pixels differ by a few grey levels",
        default=False,
    )
    dims: Annotated[int, OneOf((2, 3))] | None = _volumes(
        "2: train on slices of volumes (default: what the files hold)"
    )
    spacing: tuple[Positive, Positive, Positive] | None = _volumes(
        "voxel size in mm, for formats that hold none (.npy, TIFF)", metavar=("Z", "Y", "X")
    )
    normalization: Annotated[str, OneOf(NORMALIZATIONS)] | None = _volumes(
        "z-score: each volume by its own mean; ct: clipped, by the mean of all (default: by the modality)"
    )
    seed: Seed = setting("of weights, order of the images and augmentation", group=RUN, default=0)

    @property
    def may_crop(self) -> bool:
        """Whether training may see crops of images, so that very large images need not be read whole."""
        return self.crop_size is not None

    @property
    def reads_places(self) -> bool:
        """Whether TIFFs with a place in the world are read as rasters; else as pictures, wherever they lie."""
        return self.place is not False

    @property
    def chosen_fold(self) -> tuple[int, int] | None:
        """(k, n), the k-th of n validation parts, from 1; None for a single part of size `val_fraction`."""
        if self.fold is None:
            return None
        number, folds = self.fold.split("/")
        return int(number), int(folds)

    @property
    def outside_rule(self) -> str | None:
        """The meaning of mask values that `classes` leaves out; None if they are mistakes."""
        if self.outside is None and holds_names(self.classes):
            return BACKGROUND
        return self.outside

    @property
    def skipped_errors(self) -> tuple[type[Exception], ...]:
        """Errors in reading a sample that make it a filler instead of ending the run."""
        return (DataError,) if self.on_bad_sample == "skip" else ()
