"""A folder of images and masks as parquet shards, for the Hub, an object store, or fewer files.

python -m data_utils.pack FOLDER OUT writes OUT/data/<split>-00000-of-00004.parquet, the files' bytes as they are;
pages of a TIFF become files of their own.
"""

import os
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from data_utils.analysis.inspect import inspect_split, raise_problems
from data_utils.image_io.formats import ImageSource
from data_utils.sources.folder import find_splits, pair_files
from data_utils.sources.records import Records
from runtime import cli
from runtime.console import say

SHARD_MB = 256.0
GROUP_ROWS, GROUP_BYTES = 32, 4 << 20  # a stream holds several groups of each image of a batch in memory


def pack(records: Records, out: Path, split: str, shard_mb: float = SHARD_MB) -> list[Path]:
    """Write the shards of a split, of about `shard_mb` megabytes each; their paths."""
    from datasets import Features
    from datasets import Image as Picture
    from pyarrow import Table
    from pyarrow.parquet import ParquetWriter

    schema = Features({"image": Picture(), "mask": Picture()}).arrow_schema  # `datasets` finds its types in there
    sources = [(_path(record["image"]), _path(record["mask"])) for record in records]
    pages = Counter(file for both in sources for file in both)
    sizes = np.array([sum(os.path.getsize(file) // pages[file] for file in both) for both in sources])
    # where a shard of its own share of bytes begins, so that all are about as large
    count = min(max(1, round(sizes.sum() / (shard_mb * 2**20))), len(records))
    shard_of = np.minimum((np.cumsum(sizes) - sizes) * count // sizes.sum(), count - 1)
    shards = [np.flatnonzero(shard_of == shard) for shard in range(count)]
    shards = [indices for indices in shards if len(indices)]
    rows = max(1, min(GROUP_ROWS, int(GROUP_BYTES // max(1, sizes.mean()))))
    files = [out / "data" / f"{split}-{i:05}-of-{len(shards):05}.parquet" for i in range(len(shards))]
    for file, indices in zip(files, shards, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        # pictures are compressed already
        with ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer:
            for start in range(0, len(indices), rows):
                chosen = [records[int(i)] for i in indices[start : start + rows]]
                columns = {
                    "image": [_stored(record["image"], record["name"]) for record in chosen],
                    "mask": [_stored(record["mask"], record["name"]) for record in chosen],
                }
                writer.write_table(Table.from_pydict(columns, schema=schema), row_group_size=rows)
    return files


def _path(source: ImageSource) -> str:
    return source["path"] if isinstance(source, dict) else str(source)


def _stored(source: ImageSource, name: str) -> dict:
    """A picture as `datasets` stores it: bytes, and the name that messages give."""
    path, buffer = Path(_path(source)), BytesIO()
    if isinstance(source, dict):  # a page becomes a file
        with Image.open(path) as picture:
            picture.seek(source["page"])
            picture.save(buffer, "TIFF", compression="tiff_adobe_deflate")
    return {"bytes": buffer.getvalue() or path.read_bytes(), "path": str(Path(name).with_suffix(path.suffix))}


def main() -> None:
    parser = cli.Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="images/ and masks/, in train/ and val/ or not")
    parser.add_argument("out", type=cli.empty_folder, help="folder to write, absent or empty")
    parser.add_argument("--shard-mb", type=cli.positive, default=SHARD_MB, help="size of a shard in megabytes")
    parser.add_argument("--mask-suffix", help="masks are named <stem><suffix>.<ext>; default: detected")
    parser.add_argument("--allow-unpaired", action="store_true", help="leave out images and masks without partner")
    args = parser.parse_args()
    folders = find_splits(args.folder, ["test"])
    splits = {name: pair_files(*both, args.mask_suffix, args.allow_unpaired) for name, both in folders.items()}
    for records in splits.values():
        raise_problems(inspect_split(records, "checking files"), len(records))
    for split, records in splits.items():
        files = pack(records, args.out, split, args.shard_mb)
        say(f"{split}: {len(records)} pairs in {len(files)} files, {files[0].parent}")


if __name__ == "__main__":
    cli.run_script(main)
