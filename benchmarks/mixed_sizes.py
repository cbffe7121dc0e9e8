"""Photographs of many sizes for benchmarks/scaling.py: what pads them, and what several processes lose on them."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler
from data_utils.loading.loaders import network_shapes
from unet import UNetConfig

ROOT = Path(__file__).resolve().parent.parent

SIZES, COPIES = 100, 10  # files of each size


def write_photographs(folder: Path, side: int) -> None:
    """Pictures of shapes resized to SIZES sizes, height and width each between a half and one and a half of `side`."""
    write = [sys.executable, "-m", "data_utils.shapes", str(folder), "--train", str(SIZES), "--val", "4"]
    subprocess.run(write, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    lengths = np.arange(side // 2, side // 2 + side + 1)
    positions = np.random.default_rng(0).choice(len(lengths) ** 2, SIZES, replace=False)
    heights, widths = lengths[positions // len(lengths)], lengths[positions % len(lengths)]
    for kind, resampling in (("images", Image.Resampling.BICUBIC), ("masks", Image.Resampling.NEAREST)):
        files = sorted((folder / "train" / kind).iterdir())
        for file, width, height in zip(files, widths.tolist(), heights.tolist(), strict=True):
            Image.open(file).resize((width, height), resampling).save(file)
            for copy in range(1, COPIES):
                os.link(file, file.with_stem(f"{file.stem}-{copy}"))


def seen_images(data: Path, steps: range, processes: int, batch_size: int) -> dict[str, float]:
    """What the network sees in `steps` of a run with default flags.

    `padding`: percent of the pixels that are of no image; `relative_size`: of an image, over the mean of all images.
    """
    info = load_dataset_info(DataConfig(str(data)))
    shapes = network_shapes(info, UNetConfig(preprocess=info.preprocess())).train
    split = BatchSplit(batch_size, processes, math.ceil(batch_size / processes), accumulation=1)
    slots = [slot for micro_batch in TrainingSampler(shapes, split, info.config.seed, steps) for slot in micro_batch]
    pixels = info.train.sizes.prod(axis=1)
    image_pixels = sum(pixels[slot.index] for slot in slots if not slot.is_filler)
    images = len(steps) * len(pixels) / math.ceil(len(pixels) / batch_size)  # as train.py counts them
    padding = 1 - image_pixels / sum(math.prod(slot.shape) for slot in slots)
    return {"padding": 100 * padding, "relative_size": image_pixels / images / pixels.mean()}


def losses(values: dict[str, float], alone: dict[str, float], efficiency: float) -> dict[str, float]:
    """Percent of the speed alone that each process loses to what, from medians as `seen_images` and train.py have them.

    Communication includes the wait for the slower process. The rest slows the computing itself: cores share caches and
    memory, gloo's threads need a core, a part of a batch keeps a device less busy than a whole one.
    """
    causes = {
        "padding": 100 * (1 - (100 - values["padding"]) / (100 - alone["padding"])),
        "data wait": values["data_wait"] - alone["data_wait"],
        "communication": values["communication"] - alone["communication"],
    }
    return causes | {"the rest": 100 * (1 - efficiency) - sum(causes.values())}
