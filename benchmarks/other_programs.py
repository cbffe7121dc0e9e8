"""How long Cellpose and StarDist take for an image of numbered objects, for docs/objects.md.

Neither brings its trained network in its package, so nothing is downloaded: the network has random weights, which take
as long as trained ones, and what tells objects apart is given the answers of a perfect network, drawn from the truth.

python benchmarks/other_programs.py cellpose IMAGE LABELS    # needs cellpose 3
python benchmarks/other_programs.py stardist IMAGE LABELS    # needs stardist and tensorflow

IMAGE and LABELS are TIFFs, such as those that `benchmarks/objects.py train FOLDER` writes to FOLDER/large/. `--side`
takes a part of them. Cellpose is told that objects have the size that it was trained for, so that the image is not
enlarged; StarDist answers for every other pixel, as its own network for nuclei does.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

RAYS = 32
GRID = (2, 2)
TILE = 1024  # pixels, of StarDist
PERCENTILES = (1, 99.8)  # of StarDist's examples
CELLPOSE_WIDTHS = [2, 32, 64, 128, 256]


def timed(name: str, function: Callable[[], Any]) -> Any:
    """What a function returns; its seconds are printed."""
    start = time.monotonic(), time.process_time()
    value = function()
    seconds, processor = time.monotonic() - start[0], time.process_time() - start[1]
    print(f"{name}: {seconds:,.1f} s, {processor:,.1f} s of the processor", flush=True)
    return value


def measure_cellpose(image: np.ndarray, ids: np.ndarray) -> np.ndarray:
    import torch
    from cellpose.core import run_net
    from cellpose.dynamics import resize_and_compute_masks
    from cellpose.resnet_torch import CPnet
    from cellpose.transforms import convert_image, normalize_img

    torch.set_num_threads(1)
    network = CPnet(CELLPOSE_WIDTHS, nout=3, sz=3).eval()

    def answer() -> np.ndarray:
        pixels = normalize_img(convert_image(image, channels=[0, 0]))
        with torch.no_grad():
            return run_net(network, pixels[None])[0]

    timed("cellpose: network", answer)
    flows = in_own_process(true_flows, ids)
    is_cell = np.where(ids > 0, 6, -6).astype(np.float32)
    return timed("cellpose: masks from true flows", lambda: resize_and_compute_masks(flows, is_cell, niter=200))


def true_flows(ids: np.ndarray, file: Path) -> None:
    """Write what a perfect network of Cellpose would answer, (2, H, W)."""
    import torch
    from cellpose.dynamics import labels_to_flows

    np.save(file, 5 * labels_to_flows([ids], device=torch.device("cpu"))[0][2:4])


def in_own_process(function: Callable[[np.ndarray, Path], None], ids: np.ndarray) -> np.ndarray:
    """What a function writes, without its memory."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.npy"
        process = multiprocessing.get_context("spawn").Process(target=function, args=(ids, file))
        process.start()
        process.join()
        return np.load(file)


def measure_stardist(image: np.ndarray, ids: np.ndarray) -> np.ndarray:
    import tensorflow
    from csbdeep.utils import normalize
    from stardist.models import Config2D, StarDist2D

    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    model = StarDist2D(Config2D(n_rays=RAYS, grid=GRID, n_channel_in=1), name=None, basedir=None)
    tiles = tuple(-(-side // TILE) for side in image.shape)

    def answer() -> tuple[np.ndarray, ...]:
        return model.predict(normalize(image, *PERCENTILES), n_tiles=tiles, show_tile_progress=False)

    timed("stardist: network", answer)
    answers = in_own_process(true_distances, ids)
    thresholds = {"prob_thresh": 0.5, "nms_thresh": 0.4}

    def instances() -> np.ndarray:
        return model._instances_from_prediction(ids.shape, answers[..., 0], answers[..., 1:], **thresholds)[0]

    return timed("stardist: masks from true distances", instances)


def true_distances(ids: np.ndarray, file: Path) -> None:
    """Write what a perfect network of StarDist would answer, (H / 2, W / 2, 1 + RAYS): probability and distances."""
    from stardist.geometry import star_dist
    from stardist.utils import edt_prob

    probability = edt_prob(ids)[:: GRID[0], :: GRID[1], None]
    np.save(file, np.concatenate([probability, star_dist(ids, RAYS, grid=GRID)], axis=2))


PROGRAMS = {"cellpose": measure_cellpose, "stardist": measure_stardist}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("image", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--side", type=int)
    arguments = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    image = tifffile.imread(arguments.image)[: arguments.side, : arguments.side]
    ids = tifffile.imread(arguments.labels)[: arguments.side, : arguments.side].astype(np.int32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    numbers = PROGRAMS[arguments.program](image, ids).astype(np.int64)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{arguments.program}: {memory * 1024 / 1e9:.2f} GB at most, {before * 1024 / 1e9:.2f} before it began")

    from benchmarks.objects import score  # what it loads is no memory of the program
    from tasks.matching import pack_labels

    values = score(pack_labels(numbers, numbers > 0), ids).values
    print(f"{values['found']:,.0f} of {values['objects']:,.0f} found, {values['predicted']:,.0f} predicted")
