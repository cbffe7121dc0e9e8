"""Images per second beside Pytorch-UNet, and peak memory on large images.

python benchmarks/predict.py --pytorch-unet CHECKOUT     (of https://github.com/milesial/Pytorch-UNet)
accelerate launch --mixed_precision bf16 benchmarks/predict.py --pytorch-unet CHECKOUT
python benchmarks/predict.py --memory 2000 8000 20000

Both programs get the same weights, files, scale and threads and run in turn, start-up and writing included; the profile
holds for ours alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import tifffile
import torch
from PIL import Image, ImageFilter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from inference.models import load_model
from unet import UNet, UNetConfig

ROOT = Path(__file__).resolve().parent.parent

SCALE = 0.5
REPEATS = 2  # the faster one counts
FOLDERS = {"480 x 360": (360, 480, 48), "1918 x 1280": (1280, 1918, 6)}  # height, width, images
GPU_TIMES = 20  # as many images where a GPU computes


def write_photographs(folder: Path, height: int, width: int, count: int) -> list[Path]:
    """JPEGs with the smooth regions and edges of photographs."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    files = [folder / f"{number:03}.jpg" for number in range(count)]
    for file in files:
        coarse = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        picture = Image.blend(picture, noise.filter(ImageFilter.GaussianBlur(2)), 0.3)
        picture.save(file, quality=90)
    return files


def write_models(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """Their .pth and our model folder: the same random weights, with batch norms that have seen images."""
    build = """
import sys, torch
from unet import UNet
torch.manual_seed(0)
model = UNet(3, 2)
images = torch.nn.functional.interpolate(torch.rand(4, 3, 9, 12), (120, 160), mode="bicubic").clamp(0, 1)
images = images * 0.7 + torch.rand_like(images) * 0.3
for module in model.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        module.momentum = None  # the mean over what it sees
with torch.no_grad():
    model(images)
    model.outc.conv.bias -= model.eval()(images).mean(dim=(0, 2, 3))  # so that neither class has all the pixels
torch.save({**model.state_dict(), "mask_values": [0, 255]}, sys.argv[1])
"""
    theirs, ours = folder / "model.pth", folder / "model"
    subprocess.run([sys.executable, "-c", build, theirs], cwd=checkout, env=environment(folder), check=True)
    load_model(theirs, SCALE).save_pretrained(ours)
    return theirs, ours


def environment(folder: Path) -> dict[str, str]:
    """Of both programs; an empty module stands in for what Pytorch-UNet imports but does not use to predict."""
    for name in ("torchvision/__init__", "torchvision/transforms", "matplotlib/__init__", "matplotlib/pyplot"):
        if find_spec(name.partition("/")[0]) is None:
            (folder / "stand_ins" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "stand_ins" / f"{name}.py").touch()
    return {**os.environ, "PYTHONPATH": str(folder / "stand_ins"), "OMP_NUM_THREADS": str(torch.get_num_threads())}


def timed(command: list, cwd: Path, env: dict[str, str]) -> tuple[float, str]:
    """Seconds of wall time of a process, from its start to its end, and what it said."""
    start = time.perf_counter()
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{result.stderr}\nfailed: {' '.join(map(str, command))}")
    return time.perf_counter() - start, result.stdout


def compare(checkout: Path, folder: Path) -> Iterator[dict]:
    """One row for each folder of images."""
    theirs, ours = write_models(checkout, folder)
    env = environment(folder)
    for name, (height, width, count) in FOLDERS.items():
        count *= GPU_TIMES if torch.cuda.is_available() else 1
        images = write_photographs(folder / name, height, width, count)
        expected = [folder / f"{name} theirs" / f"{image.stem}.png" for image in images]
        expected[0].parent.mkdir()
        out = folder / f"{name} ours"
        theirs_command = [sys.executable, "predict.py", "--model", theirs, "--scale", SCALE, "--input", *images]
        theirs_command += ["--output", *expected]
        ours_command = [sys.executable, "predict.py", "--model", ours, "--input", folder / name, "--output", out]
        times = [  # in turn, so that what else the machine does hits both
            (timed(theirs_command, checkout, env)[0], timed([*ours_command, "--overwrite"], ROOT, env)[0])
            for _ in range(REPEATS)
        ]
        their_seconds, our_seconds = (min(column) for column in zip(*times, strict=True))
        masks = [(np.asarray(Image.open(file)), np.asarray(Image.open(out / file.name))) for file in expected]
        yield {
            "images": f"{count} of {name}",
            "theirs_images_per_second": count / their_seconds,
            "ours_images_per_second": count / our_seconds,
            "ratio": their_seconds / our_seconds,
            "equal_pixels": float(np.mean([np.mean(one == other) for one, other in masks])),
        }


def memory(side: int, folder: Path) -> dict:
    """Seconds and peak memory of a side x side RGB TIFF, of a small network with two classes."""
    torch.manual_seed(0)
    UNet(UNetConfig(base_channels=4, depth=3)).save_pretrained(folder / "small")
    tile = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    tiles = (np.roll(tile, index, axis=1) for index in range((-(-side // 512)) ** 2))
    image = folder / f"{side}.tif"
    tifffile.imwrite(
        image, tiles, shape=(side, side, 3), dtype=np.uint8, tile=(512, 512), photometric="rgb", bigtiff=True
    )
    command = [sys.executable, ROOT / "tests" / "programs" / "print_peak_memory.py", ROOT / "predict.py"]
    command += ["--model", folder / "small", "--input", image, "--output", folder / "out"]
    seconds, output = timed(command, ROOT, {**os.environ, "PYTHONPATH": str(ROOT)})
    peak = int(output.split("VmHWM:")[1].split()[0]) * 1024 / 1e9
    image.unlink()
    return {"side": side, "seconds": seconds, "peak_gb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pytorch-unet", type=Path, metavar="CHECKOUT", help="compare with this checkout")
    parser.add_argument("--memory", type=int, nargs="+", default=[], metavar="SIDE", help="sides of square TIFFs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.pytorch_unet:
            for row in compare(args.pytorch_unet.resolve(), Path(folder)):
                print(json.dumps(row), flush=True)
        for side in args.memory:
            print(json.dumps(memory(side, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
