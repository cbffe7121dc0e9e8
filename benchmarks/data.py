"""Loading data, side by side with milesial/Pytorch-UNet where a checkout of it is given: on the same files, in one run.

python benchmarks/data.py [--pytorch-unet CHECKOUT] [--only images start]

Everything is generated in a temporary folder; large sets are hard links to a few files, so that only folders grow.
Times are of the processor, of all threads and child processes, but for starts, which are by the clock.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot, padded_shapes
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources.pictures import open_pictures
from tasks.classes.reader import ClassReader
from train_utils.dataset import load_dataset_info
from unet import Preprocess

LARGE, SMALL = (1280, 1918), (360, 480)  # (H, W): Carvana's photographs, CamVid's
TURN = 12  # calls
CASES = ("images", "start")


def write_pairs(folder: Path, count: int, size: tuple[int, int], distinct: int) -> Path:
    """`count` JPEG photographs with _mask.gif, hard links to `distinct` generated ones."""
    sources = []
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    y, x = np.mgrid[: size[0], : size[1]] / size[0]
    for i in range(min(distinct, count)):
        rng = np.random.default_rng(i)
        waves = [128 + 60 * np.sin(40 * x + k + i) + 40 * np.cos(60 * y / (k + 1)) for k in range(3)]
        image = np.stack(waves, axis=2) + rng.normal(0, 2, (*size, 1))
        mask = (x - 0.7) ** 2 + (y - 0.5) ** 2 < rng.uniform(0.02, 0.1)
        image[mask] = 255 - image[mask]
        sources.append((folder / "images" / f"{i:07}.jpg", folder / "masks" / f"{i:07}_mask.gif"))
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(sources[-1][0], quality=85)
        Image.fromarray((mask * 255).astype(np.uint8)).convert("1").save(sources[-1][1])
    for i in range(len(sources), count):
        for file in sources[i % len(sources)]:
            os.link(file, file.with_name(f"{i:07}{file.name[7:]}"))
    return folder


def seconds_of_each(functions: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of one call. The functions take turns, so that all see the same machine.

    A turn is several calls, as a loader's process makes them; the first one finds the others' data in the processor's
    caches and does not count.
    """
    times = {name: [] for name in functions}
    for start in range(0, rounds, TURN):
        for name, function in functions.items():
            for i in range(start, min(start + TURN, rounds)):
                begin = time.process_time()
                function(i)
                if i > start:
                    times[name].append(time.process_time() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def ours(folder: Path, scale: float, cached: bool = False) -> Callable[[int], object]:
    """What a loader's worker does for one sample of a folder."""
    records = open_pictures(folder / "images", folder / "masks", DataConfig(mask_suffix="_mask"))
    preprocess, reader = Preprocess(scale=scale), ClassReader(ClassMap(("background", "foreground"), (0, 255), None))
    split = Split(records, np.zeros((len(records), 2), np.int64))
    normalization = Normalization((0.0,) * 3, (1.0,) * 3, ("uint8",))
    info = DatasetInfo(DataConfig(str(folder), scale=scale), split, split, reader, normalization)
    dataset = TrainingDataset(split, info, preprocess)
    if cached:
        dataset.cache()
    order = np.random.default_rng(0).permutation(len(records)).tolist()
    shape = preprocess.input_size(*Image.open(records[0]["image"]).size[::-1])
    return lambda i: dataset[Slot(order[i % len(order)], epoch=0, shape=shape)]


def theirs(folder: Path, scale: float, count: int) -> Callable[[int], object]:
    """Pytorch-UNet's sample; its start, which lists the folder for each file, is left out."""
    from utils.data_loading import BasicDataset

    dataset = BasicDataset.__new__(BasicDataset)
    dataset.images_dir, dataset.mask_dir = folder / "images", folder / "masks"
    dataset.mask_suffix, dataset.scale, dataset.mask_values = "_mask", scale, [0, 255]
    dataset.ids = [f"{i:07}" for i in range(count)]
    order = np.random.default_rng(0).permutation(count)
    return lambda i: dataset[int(order[i % count])]


def bench_images(work: Path, theirs_too: bool) -> dict:
    """Images per second and core at half size."""
    folder = write_pairs(work / "large", 12, LARGE, 12)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    functions = {"ours": ours(folder, 0.5), "ours with --cache": ours(folder, 0.5, cached=True)}
    if theirs_too:
        functions["theirs"] = theirs(folder, 0.5, 12)
    seconds = seconds_of_each(functions, 48)
    return {name: f"{1 / value:.1f} images/s per core" for name, value in seconds.items()} | ratio(seconds)


def bench_start(work: Path, theirs_too: bool, pairs: int = 20_000) -> dict:
    """Clock seconds until the first batch could be asked for, without imports."""
    folder = write_pairs(work / "start", pairs, SMALL, 400)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    seconds = {}
    for name in ("cold", "warm"):
        start = time.perf_counter()
        info = load_dataset_info(DataConfig(str(folder)))
        padded_shapes(info.train.sizes)
        seconds[name] = time.perf_counter() - start
    values = {name: f"{value:.1f} s" for name, value in seconds.items()}
    if theirs_too:
        from utils.data_loading import BasicDataset

        start = time.perf_counter()
        BasicDataset(str(folder / "images"), str(folder / "masks"), 1.0, mask_suffix="_mask")
        their_seconds = time.perf_counter() - start
        values |= {"theirs": f"{their_seconds:.1f} s", "ratio": f"{their_seconds / seconds['cold']:.1f}"}
    return values


def ratio(seconds: dict[str, float]) -> dict[str, str]:
    return {"ratio": f"{seconds['theirs'] / seconds['ours']:.2f}"} if "theirs" in seconds else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pytorch-unet", type=Path, help="a checkout of milesial/Pytorch-UNet")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--pairs", type=int, default=20_000, help="for the start")
    args = parser.parse_args()
    if args.pytorch_unet:
        sys.path.append(str(args.pytorch_unet))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as work:
        for case in args.only:
            options = {"pairs": args.pairs} if case == "start" else {}
            values = globals()[f"bench_{case}"](Path(work), args.pytorch_unet is not None, **options)
            print(json.dumps({case: values}), flush=True)


if __name__ == "__main__":
    main()
