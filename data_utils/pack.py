"""A folder of images with masks or annotations as parquet shards, for the Hub, an object store, or fewer files.

python -m data_utils.pack FOLDER OUT writes OUT/data/<split>-00000-of-00004.parquet, the files' bytes as they are;
pages of a TIFF become files of their own; masks are rendered from annotations, whose names go to OUT/classes.json, and
where they lie on another grid than their image.
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import end_at_interrupt

    end_at_interrupt()


import json
import os
import shlex
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from data_utils.analysis.inspectors import choose_inspector, inspect_split
from data_utils.analysis.problems import raise_problems
from data_utils.config import DataConfig
from data_utils.image_io.formats import (
    EmbeddedImage,
    ImageSource,
    RenderedMask,
    image_errors,
    page_file,
    source_files,
)
from data_utils.image_io.rasters import page_as_file
from data_utils.image_io.writers import write_pages
from data_utils.mask_values import value_text
from data_utils.sources.label_files import read_label_files
from data_utils.sources.load import open_folder
from data_utils.sources.placed import with_places
from data_utils.sources.records import Records
from runtime.cli import Arguments, empty_folder
from runtime.console import counted, say
from runtime.errors import DataError
from runtime.script import run_script
from runtime.settings import reader
from runtime.values import Positive
from tasks.classes import Classes

SHARD_MB = 256.0
# limits of a group of rows: a stream holds several groups of each image of a batch in memory
GROUP_ROWS = 32
GROUP_BYTES = 4 << 20


def pack(records: Records, out: Path, split: str, shard_mb: float = SHARD_MB) -> list[Path]:
    """Write the shards of a split, of about `shard_mb` megabytes each. Returns their paths."""
    from datasets import Features
    from datasets import Image as Picture
    from pyarrow import Table
    from pyarrow.parquet import ParquetWriter

    schema = Features({"image": Picture(), "mask": Picture()}).arrow_schema  # `datasets` finds its types in there
    pages: Counter[str] = Counter()  # pictures in each file
    for record in records:
        pages.update((*source_files(record["image"]), *source_files(record["target"])))
    sizes = np.array([_size(record["image"], pages) + _size(record["target"], pages) for record in records])
    # a record belongs to the shard in whose share of all bytes it begins, so that all shards have about one size
    count = min(max(1, round(sizes.sum() / (shard_mb * 2**20))), len(records))
    shard_numbers = (np.cumsum(sizes) - sizes) * count // sizes.sum()
    shards = [np.flatnonzero(shard_numbers == shard) for shard in range(count)]
    shards = [indices for indices in shards if len(indices)]
    rows = max(1, min(GROUP_ROWS, int(GROUP_BYTES // max(1, sizes.mean()))))
    files = [out / "data" / f"{split}-{i:05}-of-{len(shards):05}.parquet" for i in range(len(shards))]
    for file, indices in zip(files, shards, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        # pictures are compressed already
        with ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer:
            for start in range(0, len(indices), rows):
                group = [records[int(i)] for i in indices[start : start + rows]]
                columns = {
                    "image": [_stored_picture(record["image"], record["name"]) for record in group],
                    "mask": [_stored_picture(record["target"], record["name"]) for record in group],
                }
                writer.write_table(Table.from_pydict(columns, schema=schema), row_group_size=rows)
    return files


def _size(source: ImageSource, pages: Counter[str]) -> int:
    """The number of bytes of a picture; a page has its share of the file, and a rendered mask counts as nothing."""
    file = page_file(source)
    if file is not None:
        return os.path.getsize(file.path) // pages[str(file.path)]
    if isinstance(source, EmbeddedImage):
        source = source.read()
    return len(source) if isinstance(source, bytes) else 0


def _stored_picture(source: ImageSource, name: str) -> dict:
    """A picture as `datasets` stores it: bytes, and the name that messages give."""
    if isinstance(source, EmbeddedImage):
        source = source.read()
    if isinstance(source, bytes):
        return {"bytes": source, "path": name}
    if isinstance(source, RenderedMask):
        return _stored_values(source.render(), name)
    file = page_file(source)
    assert file is not None
    path = Path(file.path)
    if file.page is None:
        content = path.read_bytes()
    else:
        with image_errors(name):
            content = page_as_file(path, file.page)
    return {"bytes": content, "path": str(Path(name).with_suffix(path.suffix))}


def _stored_values(mask: np.ndarray, name: str) -> dict:
    """A mask (H, W) as PNG; as TIFF if it has numbers above 65,535."""
    buffer = BytesIO()
    suffix = ".png"
    if mask.dtype.itemsize <= 2:
        Image.fromarray(mask).save(buffer, "PNG")
    else:
        suffix = ".tif"
        write_pages(buffer, [mask])
    return {"bytes": buffer.getvalue(), "path": str(Path(name).with_suffix(suffix))}


def main() -> None:
    parser = Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="images and masks or annotations, in splits or not")
    parser.add_argument("out", type=empty_folder, help="folder to write, absent or empty")
    parser.add_argument(
        "--shard-mb",
        type=reader(Positive),
        default=SHARD_MB,
        help="size of a shard in megabytes (default: %(default)s)",
    )
    parser.add_argument("--mask-suffix", help="masks are named <stem><suffix>.<ext>; default: detected")
    parser.add_argument("--allow-unpaired", action="store_true", help="leave out images and masks without partner")
    args = parser.parse_args()
    pairing = {"mask_suffix": args.mask_suffix, "allow_unpaired": args.allow_unpaired}
    config = DataConfig(str(args.folder), task=Classes.name, **pairing)
    folders = open_folder(args.folder, ["test"], config, points={})
    splits = {name: with_places(open_split()) for name, open_split in folders.items()}
    if any(records.metadata.bands for records in splits.values()):
        raise DataError(f"{args.folder}: bands are files here, and shards hold one file for each image; join them")
    for records in read_label_files([*splits.values()], args.folder):
        if records.metadata.label_sets:
            location = next(iter(records.metadata.label_sets.values()))
            raise DataError(f"{location}: shards cannot say which classes an image is labeled for; train on the folder")
    for records in splits.values():
        raise_problems(inspect_split(records, "checking files", choose_inspector(records)), len(records))
    for split, records in splits.items():
        files = pack(records, args.out, split, args.shard_mb)
        say(f"{split}: {counted(len(records), 'pair')} in {counted(len(files), 'file')}, {files[0].parent}")
    classes = {}
    for records in splits.values():
        for value, name in records.metadata.classes:
            classes[value_text(value)] = name
    if classes:
        file = args.out / "classes.json"
        file.write_text(json.dumps(classes, indent=2), encoding="utf-8")
        say(f"{len(classes)} classes; train with --classes {shlex.quote(str(file))}")


if __name__ == "__main__":
    run_script(main)
