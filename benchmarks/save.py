"""What a checkpoint costs the training: how long the step waits for it, and how much slower steps are meanwhile.

python benchmarks/save.py --base-channels 16 64
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from accelerate import Accelerator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train_utils.checkpoints.save import Checkpoints
from train_utils.ema import WeightAverage
from train_utils.run_state import RunState
from unet import UNet, UNetConfig

STEPS, SIDE, IMAGES = 8, 256, 1


def measure(base_channels: int, folder: Path) -> dict[str, float]:
    """Milliseconds of a step alone, of the wait for a save, and of a step while one is being written."""
    accelerator = Accelerator()
    model = UNet(UNetConfig(base_channels=base_channels)).to(memory_format=torch.channels_last)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    images = torch.rand(IMAGES, 3, SIDE, SIDE, device=accelerator.device)
    average = WeightAverage(accelerator.unwrap_model(model), 0.0)
    (folder / "checkpoints").mkdir()
    checkpoints = Checkpoints(accelerator, folder, accelerator.unwrap_model(model), optimizer, average, {}, keep=2)

    def step() -> float:
        start = time.perf_counter()
        accelerator.backward(model(images).mean())
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    step()  # the first one makes the optimizer's state
    alone = [step() for _ in range(STEPS)]
    waits, beside, written = [], [], []
    for number in range(STEPS):
        start = time.perf_counter()
        checkpoints.save(RunState(step=number), None)
        waits.append(time.perf_counter() - start)
        beside.append(step())
        checkpoints.wait()
        written.append(time.perf_counter() - start)
    times = {"step": alone, "wait": waits, "step_beside_writing": beside, "until_on_disk": written}
    size = sum(file.stat().st_size for file in max(checkpoints.folder.iterdir()).iterdir())
    return {"base_channels": base_channels, "checkpoint_mb": round(size / 1e6, 1)} | {
        f"{name}_ms": round(1000 * median(values), 1) for name, values in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-channels", type=int, nargs="+", default=[16, 64])
    for base_channels in parser.parse_args().base_channels:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(base_channels, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
