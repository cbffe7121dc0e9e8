"""Checkpoints of a tiny network: how they are saved, and which of them are there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator

from support.in_process import process_state_kept
from tasks.classes.loss import Classes
from tasks.classes.scores import ClassScores
from train_utils.checkpoints import Checkpoints
from train_utils.ema import WeightAverage
from train_utils.evaluation import Evaluation
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet import UNet, UNetConfig

TASK = Classes(("a", "b"))
SETTINGS = RunSettings(flags={}, total_steps=9, micro_batch_size=1)


def evaluation(step: int, mean_iou: float) -> Evaluation:
    """An evaluation with this mean IoU for both of its classes."""
    # Of 100 pixels in the union of a class, `hits` are in the intersection.
    hits, misses = round(100 * mean_iou), 100 - round(100 * mean_iou)
    matrix = torch.tensor([[2 * hits, misses], [misses, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(TASK.names, matrix, torch.tensor([[mean_iou]])))


def new_checkpoints(folder: Path, network: UNet) -> Checkpoints:
    """The checkpoints of a run that starts in a folder, or goes on in it; the two newest are kept."""
    average = WeightAverage(network, 0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return Checkpoints(Accelerator(cpu=True), folder, network, optimizer, average, SETTINGS, keep=2)


@contextmanager
def first_checkpoints(folder: Path) -> Iterator[Checkpoints]:
    """The checkpoints of a run of a tiny network that starts in a folder."""
    (folder / "checkpoints").mkdir()
    with process_state_kept():
        yield new_checkpoints(folder, UNet(UNetConfig(base_channels=2, depth=1)))


def save_all(checkpoints: Checkpoints, *scores: tuple[int, float | None], run: RunState | None = None) -> RunState:
    """Save a checkpoint of each step of a run, which has an evaluation with this score there, unless it is None."""
    run = run or RunState()
    for step, score in scores:
        run.step = step
        if score is not None:
            result = evaluation(step, score)
            run.update(result, result.scores.comparison > run.best)
        checkpoints.save(run)
        assert checkpoints.wait()
    return run


def steps(checkpoints: Checkpoints) -> list[int]:
    """The steps of the checkpoints that are there."""
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.glob("step-*"))
