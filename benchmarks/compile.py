"""Training steps with compiled blocks and loss beside eager ones, in one run: what the first step costs, and the ratio.

python benchmarks/compile.py                   (--whole, --norm, --base-channels, --depth, --classes, --image-size, ...)
python benchmarks/compile.py --steps 200 --image-size 1024 1024 --batch-size 16 --mixed_precision bf16     (on a GPU)

Two copies of one network take turns with the same images, and so do two losses. What is compiled is what `train.py`
compiles of them where the launch profile sets `dynamo_backend: INDUCTOR`; with --whole it is the network in one, and no
loss. On a CPU seconds are processor time, that of the C++ compiler included, so that it does not matter what else the
machine does; on a GPU they are of the clock. Nothing that an earlier run has compiled is used.
"""

import argparse
import copy
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.device import wait_for
from runtime.launch import check_launch, configure_process, set_launch_environment
from tasks.classes import Classes, ClassTarget
from tasks.step_loss import StepLoss
from train_utils.compilation import compile_blocks, compile_loss
from unet import UNet, UNetConfig
from unet.blocks import channels_last


def now(device: torch.device) -> float:
    """Seconds when the device has done what was queued."""
    wait_for(device)
    if device.type != "cpu":
        return time.perf_counter()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(device: torch.device, function: Callable[[], None]) -> float:
    """The seconds of a call."""
    begin = now(device)
    function()
    return now(device) - begin


def compare(device: torch.device, eager: Callable[[], None], compiled: Callable[[], None], count: int) -> None:
    """Print what the first calls take, the median of later ones, and how many of them pay for the first."""
    first_eager = timed(device, eager)
    first = timed(device, compiled)
    timed(device, compiled)
    pairs = [(timed(device, eager), timed(device, compiled)) for _ in range(count)]
    seconds = [statistics.median(side) for side in zip(*pairs, strict=True)]
    ratio = statistics.median(other / own for other, own in pairs)
    gain = seconds[0] - seconds[1]
    pays = f"pays from {(first - first_eager) / gain:.0f} on" if gain > 0 else "never pays"
    print(
        f"first step {first_eager:.2f} s eager, {first:.2f} s compiled; later {1e3 * seconds[0]:.1f} ms and"
        f" {1e3 * seconds[1]:.1f} ms, compiled is {ratio:.2f} times as fast: {pays}"
    )


def measure(args: argparse.Namespace) -> None:
    """Build both networks, and compare them."""
    torch.manual_seed(0)
    set_launch_environment()
    check_launch()
    accelerator = Accelerator(mixed_precision=args.mixed_precision, dynamo_plugin=TorchDynamoPlugin(backend="inductor"))
    configure_process(accelerator)
    device = accelerator.device
    config = UNetConfig(num_classes=args.classes, base_channels=args.base_channels, depth=args.depth, norm=args.norm)
    networks = [UNet(config).to(device).train()]
    networks.append(copy.deepcopy(networks[0]))
    if args.whole:
        networks[1].compile(backend="inductor", dynamic=False)
    else:
        compile_blocks(accelerator, networks[1])
    task = Classes(tuple(map(str, range(args.classes))), "ce+logdice").to(device)
    losses = [StepLoss(task), StepLoss(task)]
    if not args.whole:
        compile_loss(accelerator, losses[1])
    images = channels_last(torch.rand(args.batch_size, 3, *args.image_size, device=device) * 255)
    truth = torch.randint(0, args.classes, (args.batch_size, *args.image_size), device=device)
    targets = ClassTarget(truth)

    def step(side: int) -> Callable[[], None]:
        def make() -> None:
            with accelerator.autocast():
                logits = networks[side](images)
            criterion = losses[side]
            criterion(logits, targets, criterion.counts(targets)).backward()
            networks[side].zero_grad()

        return make

    print(f"torch {torch.__version__}, {device.type}, {torch.get_num_threads()} threads, {config.norm} norm")
    compare(device, step(0), step(1), args.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-channels", type=int, default=16)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--whole", action="store_true", help="compile the network in one, and no loss")
    parser.add_argument("--norm", choices=("batch", "group", "instance"), default="batch")
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--image-size", type=int, nargs=2, default=(128, 192), metavar=("H", "W"))
    parser.add_argument("--steps", type=int, default=6, help="that are timed after the first ones")
    parser.add_argument("--mixed_precision", choices=("no", "bf16", "fp16"), default="no")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else processes compile whose time is not known
        measure(args)


if __name__ == "__main__":
    main()
