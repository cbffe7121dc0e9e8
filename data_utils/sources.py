"""Where images and masks come from: generated shapes, folders, parquet files, saved data sets, the Hub.

A split is a sequence of records {"image": source, "mask": source, "name": str}; a source is anything that holds one
picture: a path, bytes, a `datasets` dict, a PIL image or an array.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Subset

from data_utils.decoding import image_size_of
from data_utils.errors import DataError
from data_utils.folders import find_splits, pair
from data_utils.shapes import VAL_FIRST, Shapes

if TYPE_CHECKING:
    from datasets import Dataset

SHAPES_LENGTHS = (240, 48)
TRAIN_SPLITS = ("train", "training")
VAL_SPLITS = ("val", "validation", "valid")
IMAGE_COLUMNS = ("image",)
MASK_COLUMNS = ("mask", "label", "annotation")
PROBLEMS = 3  # in a message


def load(
    dataset: str,
    *,
    seed: int,
    val_fraction: float,
    train_split: str | None,
    val_split: str | None,
    mask_suffix: str | None,
    image_column: str | None,
    mask_column: str | None,
    dataset_config: str | None,
    allow_unpaired: bool,
) -> tuple[Sequence[dict], Sequence[dict]]:
    """Training and validation split of `shapes`, a folder, a .parquet file or a Hub id; flags as in train.py.

    Without a validation split, a share `val_fraction` of the training images, drawn by `seed`, becomes one: the same on
    every file system. Raises DataError for what is missing, unpaired or ambiguous.
    """
    if dataset == "shapes":
        return Shapes(SHAPES_LENGTHS[0]), Shapes(SHAPES_LENGTHS[1], first=VAL_FIRST)
    path = Path(dataset).expanduser()
    if path.is_dir() and not _holds_tables(path):
        folders = find_splits(path, [name for name in (train_split, val_split) if name])
        splits = {name: partial(pair, *both, mask_suffix, allow_unpaired) for name, both in folders.items()}
    else:
        tables = _load_tables(dataset, path, dataset_config)
        splits = {name: partial(Rows, table, image_column, mask_column) for name, table in tables.items()}
    train_name, val_name = _choose(splits, train_split, val_split, dataset)
    train = splits[train_name]()
    return hold_out(train, val_fraction, seed) if val_name is None else (train, splits[val_name]())


def _choose(
    splits: Iterable[str], train_split: str | None, val_split: str | None, dataset: str
) -> tuple[str, str | None]:
    """Names of the training and the validation split, None where there is none."""

    def find(asked: str | None, flag: str, usual: Iterable[str]) -> str | None:
        # folders are found in any case
        found = [name for name in splits if name in ((asked, asked.lower()) if asked else usual)]
        if asked and not found:
            raise DataError(f"{dataset} has no split {asked}, only {', '.join(splits)}")
        if len(found) > 1:
            raise DataError(f"{dataset} has the splits {' and '.join(found)}; choose one with {flag}")
        return found[0] if found else None

    train = find(train_split, "--train-split", TRAIN_SPLITS)
    if train is None:
        raise DataError(f"{dataset} has no split train, only {', '.join(splits)}; choose one with --train-split")
    return train, find(val_split, "--val-split", [name for name in VAL_SPLITS if name != train])


def hold_out(records: Sequence[dict], fraction: float, seed: int) -> tuple[Sequence[dict], Sequence[dict]]:
    """Training and validation part in the order of `records`; at least one record in each."""
    if len(records) < 2:
        raise DataError(f"{len(records)} image; at least 2 are needed, one to train on and one to validate")
    count = min(max(1, round(len(records) * fraction)), len(records) - 1)
    order = np.random.default_rng(seed).permutation(len(records))
    train, val = (sorted(part.tolist()) for part in (order[count:], order[:count]))
    return Subset(records, train), Subset(records, val)


class Rows(Sequence):
    """Rows of a `datasets.Dataset` as records whose pictures are still encoded.

    Columns that are not named are found by convention. Raises DataError where there is none that holds pictures.
    """

    def __init__(self, dataset: "Dataset", image_column: str | None, mask_column: str | None) -> None:
        from datasets import Image

        self.columns = {
            "image": _find_column(dataset, image_column, "--image-column", IMAGE_COLUMNS),
            "mask": _find_column(dataset, mask_column, "--mask-column", MASK_COLUMNS),
        }
        self.dataset = dataset.select_columns(list(dict.fromkeys(self.columns.values())))
        for column in self.dataset.column_names:
            self.dataset = self.dataset.cast_column(column, Image(decode=False))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict:
        row = self.dataset[i]
        record = {key: row[column] for key, column in self.columns.items()}
        path = (record["image"] or {}).get("path")
        return record | {"name": PurePath(path).name if path else f"row {i}"}


def _find_column(dataset: "Dataset", asked: str | None, flag: str, usual: tuple[str, ...]) -> str:
    pictures = [name for name, feature in dataset.features.items() if _holds_pictures(feature)]
    found = [name for name in ([asked] if asked else usual) if name in pictures]
    if not found:
        columns = ", ".join(f"{name} ({getattr(f, 'dtype', f)})" for name, f in dataset.features.items())
        raise DataError(f"no column {asked or '|'.join(usual)} with pictures, only {columns}; choose one with {flag}")
    return found[0]


def _holds_pictures(feature: object) -> bool:
    """Whether a `datasets` column can be cast to pictures: it is one, or a picture's struct, bytes or path."""
    if isinstance(feature, Mapping):
        return {"bytes", "path"} <= feature.keys()
    return getattr(feature, "dtype", None) in ("PIL.Image.Image", "binary", "large_binary", "string", "large_string")


def _holds_tables(folder: Path) -> bool:
    """Whether `datasets` wrote the folder: by save_to_disk, or as parquet files."""
    saved = any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    return saved or any(True for pattern in ("*.parquet", "*/*.parquet") for _ in folder.glob(pattern))


def _load_tables(dataset: str, path: Path, config: str | None) -> Mapping[str, "Dataset"]:
    """Splits of a .parquet file, a folder that `datasets` wrote, or a Hub id."""
    is_hub_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", dataset) and not Path(dataset).parent.is_dir()
    if not (path.is_dir() or (path.is_file() and path.suffix == ".parquet") or is_hub_id):
        seen = "is a file, not .parquet" if path.is_file() else "is not there"
        raise DataError(
            f"--dataset {dataset} {seen}; expected `shapes`, a folder, a .parquet file or a Hub id owner/name"
        )
    import datasets  # seconds, which other sources need not wait

    failures = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
    try:
        if path.is_file():
            loaded = datasets.load_dataset("parquet", data_files=str(path))
        elif not path.is_dir():
            loaded = datasets.load_dataset(dataset, config)
        elif (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(str(path))
        else:
            loaded = datasets.load_dataset("parquet", data_dir=str(path))
    except failures as error:
        what = "" if path.exists() else " is no folder here, and as a Hub id it"
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(f"--dataset {dataset}{what} cannot be loaded ({reason})") from error
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}


def check_sizes(
    split: Sequence[dict], progress: Callable[[Iterable, int], Iterable] = lambda items, total: items
) -> np.ndarray:
    """(N, 2) int64 of image sizes (H, W), from the headers of all images and masks, read in threads.

    Raises one DataError that names the first few files that are unreadable or whose mask has another size.
    """
    if isinstance(split, Shapes):
        return split.sizes
    with ThreadPoolExecutor() as pool, closing(pool.map(lambda i: _size_of_pair(split[i]), range(len(split)))) as read:
        sizes = list(progress(read, len(split)))
    problems = [size for size in sizes if isinstance(size, str)]
    if problems:
        shown = "; ".join(problems[:PROBLEMS] + ["..."] * (len(problems) > PROBLEMS))
        raise DataError(f"{len(problems)} of {len(split)} pairs cannot be used: {shown}")
    return np.array(sizes, np.int64).reshape(-1, 2)


def _size_of_pair(record: dict) -> tuple[int, int] | str:
    """(H, W), or what is wrong."""
    name = record["name"]
    try:
        image = image_size_of(record["image"], f"{name}: image")
        mask = image_size_of(record["mask"], f"{name}: mask")
    except DataError as error:
        return str(error)
    if image != mask:
        return f"{name}: image is {image[0]} x {image[1]}, its mask {mask[0]} x {mask[1]} (height x width)"
    return image
