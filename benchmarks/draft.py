"""What --draft saves: processor time to decode and resize a photograph, whole, drafted, and whole with block averages.

python benchmarks/draft.py PHOTOGRAPH.jpg [...]
"""

import argparse
import os
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import sys

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from data_utils.image_io.resize import resize_image
from data_utils.loading.image_input import ImageInput
from unet import Preprocess

SCALES = (0.5, 0.33, 0.25, 0.125)
REPEATS = 5  # of which the fastest counts: other programs only take time away


def whole(file: Path, scale: float) -> None:
    ImageInput.read(file, Preprocess(scale=scale, draft=False), 3).whole()


def drafted(file: Path, scale: float) -> None:
    ImageInput.read(file, Preprocess(scale=scale, draft=True), 3).whole()


def averaged(file: Path, scale: float) -> None:
    """Blocks of whole pixels become one before the rest is resized."""
    with Image.open(file) as picture:
        size = Preprocess(scale=scale).input_size(picture.height, picture.width)
        resize_image(np.asarray(picture.convert("RGB").reduce(int(1 / scale))), size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, nargs="+")
    files = parser.parse_args().photographs
    for scale in SCALES:
        texts = []
        for way in (whole, drafted, averaged):
            seconds = []
            for _ in range(REPEATS):
                start = time.process_time()
                for file in files:
                    way(file, scale)
                seconds.append((time.process_time() - start) / len(files))
            texts.append(f"{way.__name__} {1000 * min(seconds):.1f} ms")
        print(f"scale {scale}: {', '.join(texts)}")


if __name__ == "__main__":
    main()
