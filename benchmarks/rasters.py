"""Speed and memory of TIFFs with a place: prediction of large scenes, and the decoding of patches of many bands.

python benchmarks/rasters.py --speed 6000       (a scene of that side with and without a place, in turn)
python benchmarks/rasters.py --memory 20000     (a scene of 8 bands)
python benchmarks/rasters.py --polygons 20000   (the polygons of a mask)
python benchmarks/rasters.py --patches          (random patches of 13 and of 3 bands)

Times are processor time of the whole process, all of its threads, so that other work on the machine counts little.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from scipy.ndimage import gaussian_filter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.class_map import ClassMap
from data_utils.image_io.places import Crs, Place
from data_utils.image_io.windowed import open_windowed_file
from inference.decoding import new_decoder
from inference.outputs.classes import ClassFormat
from inference.outputs.polygons import GeoJsonFile, PolygonSink
from tasks.classes import Classes
from unet import Preprocess, UNet, UNetConfig

ROOT = Path(__file__).resolve().parent.parent
TILE = 512
DISTINCT = 16  # tiles; a scene repeats them
NOISE = 4  # brightest, where areas have 40 to 200
REPEATS = 3  # the fastest one counts
PATCHES = 50
PATCH = 512
STRIP = 64  # rows of a prediction that come together
# EPSG:32633, pixels of 10 m; GDAL's nodata
PLACE = [
    (33550, "d", 3, (10.0, 10.0, 0.0)),
    (33922, "d", 6, (0.0, 0.0, 0.0, 500_000.0, 5_000_000.0, 0.0)),
    (34735, "H", 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633)),
]
NODATA = [(42113, "s", 2, "0")]


def encoded_tiles(channels: int, dtype: str) -> list[bytes]:
    """Compressed tiles with large areas and noise, as satellites see the ground; interleaved."""
    rng = np.random.default_rng(0)
    tiles = []
    for _ in range(DISTINCT):
        coarse = rng.integers(40, 200, (TILE // 64, TILE // 64, channels))
        tile = np.kron(coarse, np.ones((64, 64, 1), int)) + rng.integers(0, NOISE, (TILE, TILE, channels))
        tiles.append(zlib.compress(np.ascontiguousarray(tile, dtype).data, 6))
    return tiles


def write_scene(path: Path, side: int, channels: int, dtype: str, *, has_place: bool) -> None:
    """Write a tiled, compressed scene."""
    tiles = encoded_tiles(channels, dtype)
    count = (-(-side // TILE)) ** 2
    options: dict[str, Any] = {"photometric": "rgb"} if channels == 3 else {"photometric": "minisblack"}
    if channels > 3:
        options["extrasamples"] = ["unspecified"] * (channels - 1)
    tifffile.imwrite(
        path,
        (tiles[number % DISTINCT] for number in range(count)),
        shape=(side, side, channels),
        dtype=dtype,
        tile=(TILE, TILE),
        planarconfig="contig",
        compression="zlib",
        metadata=None,
        bigtiff=True,
        extratags=PLACE + NODATA if has_place else [],
        **options,
    )


def write_model(folder: Path, channels: int, dtype: str) -> Path:
    """A small network of two classes."""
    torch.manual_seed(0)
    preprocess = Preprocess(mean=(120.0,) * channels, std=(45.0,) * channels, pixel_types=(dtype,), draft=False)
    model = UNet(UNetConfig(channels, 2, base_channels=4, depth=3, norm="batch", preprocess=preprocess)).eval()
    pixels = np.frombuffer(zlib.decompress(encoded_tiles(channels, dtype)[0]), dtype).reshape(TILE, TILE, channels)
    with torch.inference_mode():
        logits = model(torch.tensor(np.moveaxis(pixels, 2, 0)[None].astype(np.float32)))
        model.head.conv.bias -= logits.mean(dim=(0, 2, 3))  # so that neither class has all the pixels
    model.save_pretrained(folder)
    return folder


def predicted(model: Path, image: Path, output: Path, *flags: str) -> tuple[float, float, float]:
    """Processor seconds, wall seconds and peak memory in GB of a prediction."""
    command = [sys.executable, ROOT / "tests" / "programs" / "print_peak_memory.py", ROOT / "predict.py"]
    command += ["--model", model, "--input", image, "--output", output, "--overwrite", *flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{result.stderr}\nfailed: {' '.join(map(str, command))}")
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return processor, wall, int(result.stdout.split("VmHWM:")[1].split()[0]) * 1024 / 1e9


def speed(side: int, folder: Path) -> Iterator[dict]:
    """Rows on scenes with a place beside the same pixels without one."""
    for channels, dtype in ((3, "uint8"), (8, "uint16")):
        model = write_model(folder / f"model{channels}", channels, dtype)
        images = {}
        for name in ("place", "plain"):
            images[name] = folder / f"{name}{channels}.tif"
            write_scene(images[name], side, channels, dtype, has_place=name == "place")
        seconds: dict[str, list[float]] = {name: [] for name in images}
        for _ in range(REPEATS):  # in turn, so that what else the machine does hits both
            for name, image in images.items():
                seconds[name].append(predicted(model, image, folder / f"out-{name}")[0])
        place, plain = min(seconds["place"]), min(seconds["plain"])
        row = {"side": side, "bands": channels, "type": dtype, "place_seconds": place, "plain_seconds": plain}
        yield {**row, "speed": plain / place}


def memory(side: int, folder: Path) -> dict:
    """A scene of 8 bands of 16 bits."""
    model = write_model(folder / "model", 8, "uint16")
    image = folder / "scene.tif"
    write_scene(image, side, 8, "uint16", has_place=True)
    processor, wall, peak = predicted(model, image, folder / "out")
    return {"side": side, "processor_seconds": processor, "seconds": wall, "peak_gb": peak}


def polygons(side: int, file: Path) -> dict:
    """A mask of round areas about 50 pixels wide, as polygons; the peak is that of this process."""
    rng = np.random.default_rng(0)
    field = gaussian_filter(rng.standard_normal((4 * TILE, 4 * TILE)), 20, mode="wrap")
    rows = np.tile(field > 0, (1, -(-side // field.shape[1])))[:, :side].astype(np.uint8)
    place = Place((10.0, 0.0, 500_000.0, 0.0, -10.0, 5_000_000.0), Crs(32633, ()), ())
    output_format = ClassFormat(ClassMap(("background", "field"), (0, 1), None))
    count = 0
    start = time.process_time()
    with file.open("wb") as stream, GeoJsonFile(stream, place) as polygon_file:
        sink = PolygonSink(polygon_file, output_format, new_decoder(Classes(output_format.names)), place, side)
        for top in range(0, side, STRIP):
            sink.add(rows.take(range(top, min(top + STRIP, side)), axis=0, mode="wrap"), None)
        sink.finish()
    seconds = time.process_time() - start
    with file.open("rb") as stream:
        count = sum(1 for _ in stream) - 2  # a line for each, and two around them
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024 / 1e9
    megabytes = file.stat().st_size / 1e6
    return {"side": side, "polygons": count, "megabytes": megabytes, "processor_seconds": seconds, "peak_gb": peak}


def patches(folder: Path) -> Iterator[dict]:
    """Rows on what a byte of a patch costs to decode, of 13 bands and of three."""
    side = 4 * PATCH
    rng = np.random.default_rng(0)
    corners = rng.integers(0, side - PATCH, (PATCHES, 2)).tolist()
    for layout in ("together", "in planes", "not compressed"):
        nanoseconds = {}
        for channels in (3, 13):
            file = folder / f"{channels}.tif"
            write_layout(file, side, channels, layout)
            times = []
            for _ in range(REPEATS):
                start = time.process_time()
                for top, left in corners:
                    with open_windowed_file(file) as picture:
                        picture.read(top, top + PATCH, left, left + PATCH)
                times.append(time.process_time() - start)
            nanoseconds[channels] = min(times) * 1e9 / (PATCHES * PATCH * PATCH * channels * 2)
        row = {"layout": layout, "ns_per_byte_of_3": nanoseconds[3], "ns_per_byte_of_13": nanoseconds[13]}
        yield {**row, "ratio": nanoseconds[13] / nanoseconds[3]}


def write_layout(file: Path, side: int, channels: int, layout: str) -> None:
    """A scene with a place whose bands of 16 bits are stored in one of three ways."""
    if layout == "together":
        write_scene(file, side, channels, "uint16", has_place=True)
        return
    rng = np.random.default_rng(0)
    pixels = rng.integers(40, 56, (channels, side, side)).astype(np.uint16)
    options: dict[str, Any] = {"photometric": "minisblack", "metadata": None, "extratags": PLACE + NODATA}
    if channels > 1:
        options["extrasamples"] = ["unspecified"] * (channels - 1)
    if layout == "in planes":
        tifffile.imwrite(file, pixels, planarconfig="separate", tile=(TILE, TILE), compression="zlib", **options)
        return
    tifffile.imwrite(file, np.moveaxis(pixels, 0, 2), planarconfig="contig", **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", type=int, nargs="+", default=[], metavar="SIDE", help="sides of scenes")
    parser.add_argument("--memory", type=int, nargs="+", default=[], metavar="SIDE", help="sides of scenes")
    parser.add_argument("--polygons", type=int, nargs="+", default=[], metavar="SIDE", help="sides of masks")
    parser.add_argument("--patches", action="store_true", help="decode patches")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.patches:
            for row in patches(Path(folder)):
                print(json.dumps(row), flush=True)
        for side in args.speed:
            for row in speed(side, Path(folder)):
                print(json.dumps(row), flush=True)
        for side in args.memory:
            print(json.dumps(memory(side, Path(folder))), flush=True)
        for side in args.polygons:
            print(json.dumps(polygons(side, Path(folder) / "areas.geojson")), flush=True)


if __name__ == "__main__":
    main()
