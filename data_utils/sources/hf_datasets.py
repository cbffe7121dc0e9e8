"""Rows of `datasets`: data sets saved to disk, parquet files and the Hub, with pictures still encoded."""

import pickle
import platform
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from data_utils.image_io.formats import format_remedy
from data_utils.sources.folder import names_in
from data_utils.sources.records import Record, Records, Rows, SplitOpeners, split_openers
from data_utils.sources.streams.remote import file_errors
from runtime.cache import digest
from runtime.documents import check_regular
from runtime.errors import DataError, one_line
from runtime.files import user_path

if TYPE_CHECKING:
    from datasets import Dataset, Features

IMAGE_COLUMNS = ("image",)
MASK_COLUMNS = ("mask", "label", "annotation")
TABLE_SUFFIXES = (".parquet", ".arrow", ".json")  # of the files that `datasets` writes
TEXT_TYPES = ("string", "large_string")
PACK_REMEDY = "`python -m data_utils.pack FOLDER OUT` writes pictures into parquet files"
HUB_SECONDS = 10  # how long the Hub may take to answer


class TableName(NamedTuple):
    """The name by which `load_tables` finds a table: a path or Hub id, the configuration of a Hub data set, a split."""

    dataset: str
    config: str | None
    split: str


class HFRows(Rows):
    """Rows of a `datasets.Dataset`, whose pictures are still encoded.

    A process that receives them, pickled, and lacks the Arrow files of their rows must call `open_here` before
    it reads any.

    Args:
        table: the rows.
        name: finds the table again.
        image_column, mask_column: the columns; found by convention if None. Raises DataError if no column holds
            pictures.
    """

    def __init__(self, table: "Dataset", name: TableName, image_column: str | None, mask_column: str | None) -> None:
        self.table_name = name
        self.columns = find_columns(table.features, image_column, mask_column)
        self.fingerprint = table._fingerprint
        self.digest = digest(self.fingerprint, self.columns)
        self.length = len(table)
        self.rows: Dataset | None = self._cast_pictures(table)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Record:
        assert self.rows is not None, "call open_here first"
        row = self.rows[i]
        image = row[self.columns["image"]]
        mask = row[self.columns["mask"]]
        path = (image or {}).get("path")
        name = PurePath(path).name if path else f"row {i}"
        return {"image": self._picture(image, name), "target": self._picture(mask, f"{name}: mask"), "name": name}

    def _picture(self, cell: dict[str, Any] | None, name: str) -> Any:
        """The bytes of a picture; its file where a data set of the Hub is a folder of pictures."""
        if cell is not None and cell["bytes"] is None and not user_path(self.table_name.dataset).exists():
            import datasets
            from huggingface_hub.constants import HF_HUB_CACHE

            for folder in (datasets.config.DOWNLOADED_DATASETS_PATH, HF_HUB_CACHE):
                if cell["path"] and Path(cell["path"]).resolve().is_relative_to(Path(folder).resolve()):
                    return cell["path"]
        return stored_picture(cell, name)

    def __getstate__(self) -> dict[str, Any]:
        """Rows are pickled as the paths of their Arrow files, which lie in a cache that machines may not share."""
        assert self.rows is not None
        files = [file["filename"] for file in self.rows.cache_files]
        return self.__dict__ | {"rows": pickle.dumps(self.rows), "files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state.pop("rows")
        files = state.pop("files")
        self.__dict__ |= state
        are_here = all(Path(file).exists() for file in files)
        self.rows = pickle.loads(rows) if are_here else None

    def open_here(self) -> None:
        """Load the table if its Arrow files are not on this machine. Raises DataError if the table differs here."""
        if self.rows is not None:
            return
        dataset, config, split = self.table_name
        table = load_tables(dataset, config).get(split)
        # the digest of files holds the times of their last changes, which copies may not have
        is_copy = table is not None and (user_path(dataset).exists() or table._fingerprint == self.fingerprint)
        if table is None or len(table) != self.length or not is_copy:
            raise DataError(
                f"--dataset {dataset} is another version on machine {platform.node()}"
                " than where the run started; copy it, or share HF_HOME"
            )
        self.rows = self._cast_pictures(table)

    def _cast_pictures(self, table: "Dataset") -> "Dataset":
        from datasets import Image

        rows = table.select_columns(list(dict.fromkeys(self.columns.values())))
        for column in rows.column_names:
            rows = rows.cast_column(column, Image(decode=False))
        return rows


def stored_picture(cell: object, name: str) -> Any:
    """The picture in a cell of a table: bytes, or a struct of `bytes` and maybe a `path`; None if it is empty.

    Raises DataError, with `name`, for a path or a text: it may name any file of this machine.
    """
    picture = cell if isinstance(cell, dict) else {"bytes": cell}
    content = picture.get("bytes")
    if content is None and not picture.get("path"):
        return None
    if not isinstance(content, bytes):
        raise DataError(f"{name} is a path or a text in its table, not the bytes of a picture; {PACK_REMEDY}")
    return content


def find_columns(features: "Features", image_column: str | None, mask_column: str | None) -> dict[str, str]:
    """{"image": column, "mask": column}, as named or by convention; raises DataError if none holds pictures."""
    found: dict[str, str] = {}
    for kind, column, usual_names in (("image", image_column, IMAGE_COLUMNS), ("mask", mask_column, MASK_COLUMNS)):
        names = (column,) if column else usual_names
        matches = [name for name in names if name in features and _holds_pictures(features[name])]
        if not matches:
            columns: list[str] = []
            remedy = ""
            for name, feature in features.items():
                kind_of_values = getattr(feature, "dtype", feature)
                columns.append(f"{name} ({kind_of_values})")
                if name in usual_names or kind_of_values in TEXT_TYPES:
                    remedy = f"; columns hold the bytes of pictures, not their paths or arrays: {PACK_REMEDY}"
            raise DataError(
                f"no column {'|'.join(names)} with pictures, only {', '.join(columns)}; choose one with"
                f" --{kind}-column{remedy}"
            )
        found[kind] = matches[0]
    return found


def _holds_pictures(feature: object) -> bool:
    """Whether a `datasets` column can be cast to pictures: it is one, or a picture's struct or bytes."""
    if isinstance(feature, Mapping):
        return {"bytes", "path"} <= feature.keys()
    return getattr(feature, "dtype", None) in ("PIL.Image.Image", "binary", "large_binary")


def is_saved(folder: Path) -> bool:
    """Whether `datasets` wrote the folder by save_to_disk."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def is_hub_id(dataset: str) -> bool:
    """Whether `dataset` is owner/name, and not a mistyped path."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", dataset)) and not Path(dataset).parent.is_dir()


def ask_hub(dataset: str, copy: Path | None = None) -> None:
    """Raises DataError if the Hub has no such data set, or cannot be reached and there is no local `copy`.

    This request is answered at once, while loading a mistyped name would try for minutes.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, RepositoryNotFoundError

    try:
        HfApi().dataset_info(dataset, timeout=HUB_SECONDS)
    except RepositoryNotFoundError as error:
        raise DataError(
            f"--dataset {dataset} is no folder here, and the Hub has no data set of that name that you can access"
        ) from error
    except (OSError, ValueError, HTTPError) as error:
        if copy is None or not copy.is_dir():
            raise DataError(
                f"--dataset {dataset} is no folder here, and the Hub cannot be reached ({one_line(error)})"
            ) from error


def open_tables(dataset: str, config: str | None, image_column: str | None, mask_column: str | None) -> SplitOpeners:
    """Split -> a function that opens its records. Raises DataError as `load_tables` does."""
    tables = load_tables(dataset, config)
    locations = {split: (table, TableName(dataset, config, split)) for split, table in tables.items()}
    return split_openers(locations, _open_table, image_column, mask_column)


def _open_table(table: "Dataset", name: TableName, image_column: str | None, mask_column: str | None) -> Records:
    return Records(HFRows(table, name, image_column, mask_column))


def load_tables(dataset: str, config: str | None) -> Mapping[str, "Dataset"]:
    """Splits of a .parquet file, a folder that `datasets` wrote, or a Hub id. Raises DataError if there is none."""
    from pyarrow.parquet import read_metadata

    path = user_path(dataset)
    for file in (path, *path.rglob("*")):
        if file.suffix in TABLE_SUFFIXES and file.exists() and not file.is_dir():
            with file_errors(str(file)):
                check_regular(file)
                if file.suffix == ".parquet" and read_metadata(file).num_rows == 0:
                    raise DataError(f"{file} has no rows; take it out")
    is_parquet_file = path.is_file() and path.suffix == ".parquet"
    if not (path.is_dir() or is_parquet_file or is_hub_id(dataset)):
        state = "is a file, not .parquet"
        remedy = format_remedy([path.name])
        if not path.is_file():
            state = "is not there"
            for name in get_close_matches(path.name, names_in(path.parent), n=1):
                remedy = f"; did you mean {path.with_name(name)}?"
        raise DataError(
            f"--dataset {dataset} {state}; expected `shapes`, a folder, a .parquet or .tar file, or a Hub id"
            f" owner/name{remedy}"
        )
    import datasets  # the import takes seconds, which other sources need not wait

    failures = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
    try:
        dataset_splits = _load(dataset, path, config)
    except DataError:
        raise
    except failures as error:
        hint = "" if path.exists() else " is no folder here, and as a Hub id it"
        reason = one_line(error.__cause__ or error)
        raise DataError(f"--dataset {dataset}{hint} cannot be loaded ({reason})") from error
    if isinstance(dataset_splits, Mapping):
        return dataset_splits
    return {"train": dataset_splits}


def _load(dataset: str, path: Path, config: str | None) -> Any:
    """A table, or split -> table, as `datasets` finds them."""
    import datasets
    from datasets.naming import camelcase_to_snakecase

    if path.is_file():
        return datasets.load_dataset("parquet", data_files=str(path))
    if path.is_dir():
        if is_saved(path):
            try:
                return datasets.load_from_disk(str(path))
            except (AttributeError, LookupError, TypeError) as error:  # JSON that lacks something
                files = "state.json or dataset_info.json"
                raise DataError(f"--dataset {dataset}: its {files} is damaged; save the table again") from error
        return datasets.load_dataset("parquet", data_dir=str(path))
    owner, name = dataset.split("/")
    copy = f"{owner}___{camelcase_to_snakecase(name)}"  # `datasets` names its folder so
    ask_hub(dataset, Path(datasets.config.HF_DATASETS_CACHE) / copy)
    return datasets.load_dataset(dataset, config)
