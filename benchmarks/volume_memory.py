"""Peak memory of predicting volumes with a random 3-D network, beyond the volume and its mask.

python benchmarks/volume_memory.py --size 512 --depths 128 256

Each volume is predicted by a process of its own with one thread, as predict.py does it: read, computed in tiles, and
the mask written on the volume's own grid. From the peak resident memory of the process the bytes of the volume and of
its mask are taken off.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nibabel
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from inference import Predictor
from inference.inputs import find_jobs
from inference.outputs import new_format
from inference.outputs.jobs import MASK
from inference.outputs.requested_outputs import RequestedOutputs
from inference.pipeline import PredictionPipeline
from unet import Preprocess, UNet, UNetConfig


def write_volume(path: Path, shape: tuple[int, int, int]) -> None:
    """Noise as float32 (x, y, z), plane by plane."""
    header = nibabel.Nifti1Image(np.zeros((1, 1, 1), np.float32), np.eye(4)).header
    header.set_data_shape(shape)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        header.write_to(file)
        file.write(bytes(int(header["vox_offset"]) - file.tell()))
        for _ in range(shape[2]):
            file.write(rng.standard_normal(shape[:2], np.float32).tobytes())


def predict(path: Path, args: argparse.Namespace) -> str:
    """A row of the table: how it was computed, seconds, and MB beyond the volume and its mask."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    preprocess = Preprocess(standardize=True)
    config = UNetConfig(1, args.classes, args.base_channels, args.levels, args.norm, dims=3, preprocess=preprocess)
    predictor = Predictor(UNet(config).to(memory_format=torch.channels_last_3d))
    writer = RequestedOutputs(new_format(config), predictor.task, (MASK,))
    (job,) = find_jobs([str(path)], path.parent / "out", [MASK])
    begin = time.perf_counter()
    ((_, error),) = PredictionPipeline(predictor, writer, set()).run([[job]])
    assert error is None, error
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    beyond = peak - job.pixels * (4 + 1)
    assert job.size is not None
    tiling = predictor.tilings(job.size, job.spacing)[0]
    size = " x ".join(map(str, job.size))
    return f"| {size} | {tiling or 'whole'} | {seconds:.0f} s | {peak / 1e6:,.0f} MB | {beyond / 1e6:,.0f} MB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="height and width")
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128], help="numbers of slices")
    parser.add_argument("--base-channels", type=int, default=8)
    parser.add_argument("--levels", type=int, default=4, help="depth of the network")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--norm", default="batch", choices=("batch", "group", "instance"))
    parser.add_argument("--volume", type=Path, help="one volume, in this process")
    args = parser.parse_args()
    if args.volume:
        print(predict(args.volume, args))
        return
    print("| volume | computed in | time | peak | beyond volume and mask |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for depth in args.depths:
            path = Path(folder) / f"{depth}.nii"
            write_volume(path, (args.size, args.size, depth))
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--volume", str(path)], check=True)


if __name__ == "__main__":
    main()
