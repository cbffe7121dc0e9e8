"""A folder of images with masks or annotations as parquet shards, for the Hub, an object store, or fewer files.

python -m data_utils.pack FOLDER OUT writes OUT/data/<split>-00000-of-00004.parquet, the files' bytes as they are;
pages of a TIFF become files of their own; masks are rendered from annotations, whose names go to OUT/classes.json, and
where they lie on another grid than their image.
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import json
import shlex
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import inspect_split
from data_utils.config import DataConfig
from data_utils.image_io.formats import EmbeddedImage, ImageSource, page_file
from data_utils.image_io.places import with_ignored
from data_utils.image_io.reader import read_image, read_mask
from data_utils.mask_values import value_text
from data_utils.sources.label_files import read_label_files
from data_utils.sources.load import find_in_folder
from data_utils.sources.places import read_places
from data_utils.sources.records import Records
from runtime.cli import Arguments, empty_folder
from runtime.console import counted, say
from runtime.errors import DataError
from runtime.script import run_script
from runtime.settings import reader
from runtime.values import Positive

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

    # `datasets` finds its types in there
    schema = Features({"image": Picture(), "mask": Picture()}).arrow_schema
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    shard_bytes = 0.0
    writer = None
    for rows, row_bytes in _row_groups(records, min(GROUP_BYTES, int(shard_mb * 2**20))):
        if writer is None or shard_bytes + row_bytes > shard_mb * 2**20:
            if writer is not None:
                writer.close()
            files.append(folder / f"{split}-{len(files):05}.parquet")
            # pictures are compressed already
            writer = ParquetWriter(files[-1], schema, compression="none", use_dictionary=False)
            shard_bytes = 0
        writer.write_table(Table.from_pylist(rows, schema=schema), row_group_size=len(rows))
        shard_bytes += row_bytes
    if writer is not None:
        writer.close()
    return [file.rename(file.with_stem(f"{file.stem}-of-{len(files):05}")) for file in files]


def _row_groups(records: Records, limit: int) -> Iterator[tuple[list[dict], int]]:
    """The rows of each group, and how many bytes their pictures have: up to a `limit`, but for a single row."""
    rows: list[dict] = []
    group_bytes = 0
    for record in records:
        image = _stored_picture(record["image"], record["name"])
        mask = _stored_picture(record["target"], record["name"], is_mask=True)
        row_bytes = len(image["bytes"]) + len(mask["bytes"])
        if rows and (len(rows) == GROUP_ROWS or group_bytes + row_bytes > limit):
            yield rows, group_bytes
            rows = []
            group_bytes = 0
        rows.append({"image": image, "mask": mask})
        group_bytes += row_bytes
    if rows:
        yield rows, group_bytes


def _stored_picture(source: ImageSource, name: str, *, is_mask: bool = False) -> dict:
    """A picture as `datasets` stores it: bytes, and the name that messages give; a page as a file of its pixels."""
    source = with_ignored(source)
    if isinstance(source, EmbeddedImage):
        source = source.render()
    if isinstance(source, bytes):
        return {"bytes": source, "path": name}
    if isinstance(source, np.ndarray):
        return _stored_values(source, name)
    file = page_file(source)
    assert file is not None
    if file.page is not None:
        return _stored_values(read_mask(file, name) if is_mask else read_image(file, name), name)
    path = Path(str(file.path))
    return {"bytes": path.read_bytes(), "path": str(Path(name).with_suffix(path.suffix))}


def _stored_values(values: np.ndarray, name: str) -> dict:
    """Grey (H, W) as PNG; colors and bands (H, W, C), and grey of numbers above 65,535, as TIFF."""
    if values.shape[2:] == (1,):
        values = values[:, :, 0]
    buffer = BytesIO()
    suffix = ".png"
    if values.ndim == 2 and values.dtype.itemsize <= 2:
        Image.fromarray(values).save(buffer, "PNG")
    else:
        suffix = ".tif"
        photometric = "rgb" if values.shape[2:] == (3,) and values.dtype == np.uint8 else "minisblack"
        tifffile.imwrite(buffer, values, photometric=photometric, planarconfig="contig", compression="zlib")
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
    config = DataConfig(str(args.folder), task="objects", **pairing)
    folders = find_in_folder(args.folder, ["test"], config)
    splits = {name: read_places(open_split(), config) for name, open_split in folders.items()}
    if any(records.dims == 3 for records in splits.values()):
        raise DataError(f"{args.folder} holds volumes, and shards hold images; train on the folder")
    if any(records.metadata.bands for records in splits.values()):
        raise DataError(f"{args.folder}: bands are files here, and shards hold one file for each image; join them")
    for records in read_label_files([*splits.values()], args.folder):
        if records.metadata.label_sets:
            location = next(iter(records.metadata.label_sets.values()))
            raise DataError(f"{location}: shards cannot say which classes an image is labeled for; train on the folder")
    for records in splits.values():
        inspect_split(records, "checking files", Rules()).raise_problems()
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
