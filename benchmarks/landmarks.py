"""Landmarks: what their targets cost, how exactly maps are read, and other losses.

python benchmarks/landmarks.py cost                              of a target in a training step
python benchmarks/landmarks.py decoding                          errors of two ways to read drawn Gaussians
python benchmarks/landmarks.py decoding MODEL DATA --fold 1/5    the same of a model's maps of validation images
python benchmarks/landmarks.py train mse DATA --fold 1/5 --max-steps 1000 --output-dir runs/mse    another of LOSSES

The loss never draws a map: it multiplies the logits by a Gaussian's vector along each axis. `cost` sets beside it maps
that are drawn whole, and small cubes that are written into empty maps one after another, multiplied by the same logits.
The step is the forward and backward pass of a network on one volume (--size 128 128 128 --points 20). On a CPU seconds
are processor time; on a GPU, if there is one, those of the clock until the GPU has done its work.

`train` is train.py with another loss, and takes its flags. Only `cross-entropy`, its own, learns presence.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import train
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.targets.points import PointReader
from inference import Predictor
from inference.decoding.landmarks import LandmarkDecoder
from runtime import cli
from runtime.device import wait_for
from tasks.landmarks import Landmarks
from tasks.points import PRESENT, PointTarget
from unet import UNet, UNetConfig

SIGMA = 2.0
RADIUS = 8  # voxels of a cube that is written in place
WORST = 0.2  # of the pixels of a map
RADII = (2, 4)  # pixels of the window in which a center of mass is taken
NOISES = (0.0, 0.1, 0.3)  # standard deviations of what is added to drawn logits


def drawn_maps(points: Tensor, size: list[int], sigma: float = SIGMA) -> Tensor:
    """(..., *size), a Gaussian at each of the points (..., n), all pixels of it."""
    axes = len(size)
    maps = points.new_zeros(*points.shape[:-1], *size)
    for axis, side in enumerate(size):
        others = [1] * axes
        others[axis] = side
        positions = torch.arange(side, dtype=points.dtype, device=points.device).view(others)
        distances = positions - points[..., axis].reshape(*points.shape[:-1], *[1] * axes)
        maps = maps - 0.5 * (distances / sigma) ** 2
    return maps.exp()


def cubes_in_place(points: Tensor, size: list[int]) -> Tensor:
    """The same of points (K, n), within a cube around each."""
    maps = points.new_zeros(len(points), *size)
    for number, point in enumerate(points.tolist()):
        spans = []
        for place, side in zip(point, size, strict=True):
            middle = round(place)
            spans.append(slice(max(0, middle - RADIUS), min(side, middle + RADIUS + 1)))
        sides = [torch.arange(span.start, span.stop, device=points.device) for span in spans]
        grids = torch.meshgrid(*sides, indexing="ij")
        distance = sum((grid - place) ** 2 for grid, place in zip(grids, point, strict=True))
        maps[(number, *spans)] = (-0.5 * distance / SIGMA**2).exp()
    return maps


def along_axes(points: Tensor, logits: Tensor) -> Tensor:
    """(K,), the logits (K, *size) times the Gaussians at points (K, n), without a map of these."""
    pull = logits
    for axis in reversed(range(points.shape[1])):
        positions = torch.arange(logits.shape[1 + axis], device=points.device)
        distances = (positions - points[:, axis, None]) / SIGMA
        profile = (-0.5 * distances.square()).exp()
        pull = (pull * profile.view(len(points), *[1] * axis, -1)).sum(dim=-1)
    return pull


def seconds(work: Callable[[], object], rounds: int, device: torch.device) -> float:
    """Seconds of a call, the median over the rounds after a first one."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times = []
    for _ in range(rounds + 1):
        wait_for(device)
        start = clock()
        work()
        wait_for(device)
        times.append(clock() - start)
    return statistics.median(times[1:])


def task_of(count: int, size: list[int]) -> Landmarks:
    """A task of so many points without partners."""
    names = tuple(map(str, range(count)))
    return Landmarks(names, SIGMA, round(math.log(math.prod(size)), 2), partners=tuple(range(count)))


def target_of(points: Tensor, size: list[int]) -> PointTarget:
    """A batch of present points (B, K, n)."""
    count, names, axes = points.shape
    return PointTarget(
        points=points.double(),
        states=torch.full((count, names), PRESENT, device=points.device),
        size=torch.tensor([size] * count),
        unit=torch.ones(count, axes, dtype=torch.float64, device=points.device),
    )


def measure_cost(size: list[int], count: int, base_channels: int, rounds: int) -> None:
    """Print the seconds of a step, and of each way to its targets."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task = task_of(count, size)
    network = UNet(UNetConfig(in_channels=1, num_classes=count, base_channels=base_channels, dims=len(size)))
    network.to(device)
    images = torch.rand(1, 1, *size, device=device)
    points = (torch.rand(count, len(size)) * (torch.tensor(size) - 1)).to(device)
    targets = target_of(points[None], size)
    logits = torch.randn(count, *size, device=device)

    def step() -> None:
        task.finish(task.partial(network(images), targets)).sum().backward()

    whole = seconds(step, rounds, device)
    ways: dict[str, Callable[[], object]] = {
        "a vector along each axis": lambda: along_axes(points, logits),
        "cubes in place": lambda: (logits * cubes_in_place(points, size)).flatten(1).sum(dim=1),
        "maps drawn whole": lambda: (logits * drawn_maps(points, size)).flatten(1).sum(dim=1),
    }
    costs = {name: seconds(work, rounds, device) for name, work in ways.items()}
    first = min(costs.values())
    print(f"a step of {' x '.join(map(str, size))} with {count} points on {device.type}: {whole:.4f} s")
    for name, cost in costs.items():
        print(f"{name}: {cost:.5f} s, {100 * cost / whole:.2f}% of a step, {cost / first:.1f} times the cheapest")


def center_of_mass(logits: Tensor, radius: int) -> Tensor:
    """(K, n) the mean place of the weights exp(logits) (K, *size) around the highest pixel of each map."""
    axes = logits.ndim - 1
    places = torch.stack(torch.unravel_index(logits.flatten(1).argmax(dim=1), logits.shape[1:]), dim=1)
    centers = []
    for pixels, place in zip(logits, places.tolist(), strict=True):
        window = [slice(max(0, side - radius), side + radius + 1) for side in place]
        weights = pixels[tuple(window)].flatten().softmax(dim=0).view_as(pixels[tuple(window)])
        grids = torch.meshgrid(*(torch.arange(span) for span in weights.shape), indexing="ij")
        starts = [side.start for side in window]
        centers.append(torch.stack([(grids[axis] * weights).sum() + starts[axis] for axis in range(axes)]))
    return torch.stack(centers)


def readings(logits: Tensor, task: Landmarks) -> dict[str, Tensor]:
    """Places (K, n) from maps (K, *size): by the parabola of predictions, and by mass."""
    decoder = LandmarkDecoder(task)
    decoder.add_on_device(logits[None])
    prediction = decoder.finish_on_device(())[0]
    size = torch.tensor(logits.shape[1:])
    places = {"parabola": prediction[:, : len(size)] * size - 0.5}
    for radius in RADII:
        places[f"mass within {radius} pixels"] = center_of_mass(logits, radius)
    return places


def read_drawn_maps(size: list[int], count: int) -> None:
    """Print the errors of places in drawn Gaussians."""
    torch.manual_seed(0)
    points = torch.rand(count, len(size), dtype=torch.float64) * (torch.tensor(size) - 1)
    print(f"{count} Gaussians of sigma {SIGMA:g} in {' x '.join(map(str, size))}: mean and largest error in pixels")
    for noise in NOISES:
        logits = drawn_maps(points, size).clamp_min(math.exp(-9)).log()
        logits = logits + noise * torch.randn_like(logits)
        for name, places in readings(logits, task_of(count, size)).items():
            errors = (places - points).norm(dim=1)
            print(f"noise {noise:g}, {name}: {errors.mean():.4f}, {errors.max():.4f}")


def read_maps_of_model(model: str, dataset: str, fold: str) -> None:
    """Print the errors of places in a model's maps of the validation images of a fold K/N, in pixels of these."""
    number, folds = map(int, fold.split("/"))
    info = load_dataset_info(DataConfig(dataset=dataset, fold=(number, folds)))
    predictor = Predictor.from_pretrained(model)
    assert isinstance(predictor.task, Landmarks)
    errors: dict[str, list[Tensor]] = {}
    for record in info.val.records:
        inputs = predictor.inputs(record["image"], record["name"])
        target = info.reader.read(record, inputs.size)
        is_present = torch.from_numpy(target.states == PRESENT)
        (logits,) = predictor.logits_of_batch([inputs.tensors], [inputs.size])
        for name, places in readings(logits.double(), predictor.task).items():
            own = (places + 0.5) * torch.tensor(inputs.size) / torch.tensor(logits.shape[1:]) - 0.5
            distances = (own - torch.from_numpy(target.points)).norm(dim=1)
            errors.setdefault(name, []).append(distances[is_present])
    for name, parts in errors.items():
        distances = torch.cat(parts)
        print(f"{name}: mean {distances.mean():.3f}, median {distances.median():.3f} of {len(distances)} points")


class SquaredError(Landmarks):
    """The mean squared difference of a map, as probabilities, from the Gaussian, times the pixels."""

    def partial(self, logits: Tensor, targets: PointTarget) -> tuple[Tensor, ...]:
        maps = drawn_maps(targets.points.to(logits.dtype), list(logits.shape[2:]), self.sigma)
        losses = (logits.sigmoid() - maps).square().flatten(2).sum(dim=2)
        return losses, (targets.states == PRESENT).to(logits.dtype)

    def finish(self, partial: tuple[Tensor, ...]) -> Tensor:
        losses, present = partial
        place = (losses * (present > 0)).sum()
        return torch.stack([place, torch.zeros_like(place)])


class WorstPixels(SquaredError):
    """Binary cross-entropy with the Gaussian, over the worst pixels of each map."""

    def partial(self, logits: Tensor, targets: PointTarget) -> tuple[Tensor, ...]:
        maps = drawn_maps(targets.points.to(logits.dtype), list(logits.shape[2:]), self.sigma)
        losses = F.binary_cross_entropy_with_logits(logits, maps, reduction="none").flatten(2)
        worst = losses.topk(max(1, int(WORST * losses.shape[2])), dim=2).values
        return worst.sum(dim=2), (targets.states == PRESENT).to(logits.dtype)


LOSSES: dict[str, type[Landmarks]] = {
    "cross-entropy": Landmarks,
    "mse": SquaredError,
    "worst": WorstPixels,
}


def train_with(loss: str, words: list[str]) -> None:
    """Run train.py with another loss."""
    own_task = PointReader.task

    def task(reader: PointReader, name: str, class_weights: object) -> Landmarks:
        own = own_task(reader, name, None)
        return LOSSES[loss](**{field.name: getattr(own, field.name) for field in fields(own)})

    PointReader.task = task  # type: ignore[method-assign,assignment]  # train.py asks it for the task
    sys.argv = ["train.py", *words]
    train.main()


def main() -> None:
    if sys.argv[1:2] == ["train"] and sys.argv[2:3] and sys.argv[2] in LOSSES:
        train_with(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "decoding"))
    parser.add_argument("model", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--fold", type=cli.fold_text, default="1/5")
    parser.add_argument("--size", type=int, nargs="+")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--base-channels", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "cost":
        measure_cost(args.size or [128, 128, 128], args.points, args.base_channels, args.rounds)
    elif args.data:
        read_maps_of_model(args.model, args.data, args.fold)
    else:
        read_drawn_maps(args.size or [64, 64], args.points)


if __name__ == "__main__":
    main()
