"""How long a folder of many images takes to open, and what it costs each process.

python benchmarks/many_images.py                                (a million pairs; takes some minutes)
python benchmarks/many_images.py --images 10000 --processes 1

train.py's own functions list and match the files on the main process and send the table to the others. No image is
decoded: the pairs are hard links to a few files.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from runtime.distributed import on_main

ROOT = Path(__file__).resolve().parent.parent
MOST_LINKS = 60_000  # to one file: ext4 allows 65,000


def write_pairs(folder: Path, count: int) -> None:
    """A data set of `count` pairs of images and masks of 16 x 16 pixels."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            file = folder / kind / f"{number:08}.png"
            if number % MOST_LINKS == 0:
                source = file
                Image.fromarray(np.eye(16, dtype=np.uint8)).save(source)
            else:
                os.link(source, file)


def worker(folder: str) -> None:
    """One process of an opening: print its seconds and its peak memory."""
    accelerator = Accelerator(cpu=True)
    accelerator.wait_for_everyone()
    start = time.perf_counter()
    train, val = on_main(accelerator, lambda: load_records(DataConfig(folder)))
    seconds = time.perf_counter() - start
    images = len(train) + len(val)
    memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"process {accelerator.process_index}: {images:,} images in {seconds:.1f} s, {memory / 1e9:.2f} GB", flush=True
    )
    accelerator.end_training()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10**6)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.processes)]
    with tempfile.TemporaryDirectory() as folder:
        write_pairs(Path(folder), args.images)
        for start in ("first", "second"):
            print(f"{start} start", flush=True)
            subprocess.run(
                [sys.executable, *launcher, __file__, "--worker", folder],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                check=True,
            )


if __name__ == "__main__":
    main()
