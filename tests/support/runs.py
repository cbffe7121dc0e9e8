"""Runs before their first step: their settings, and what a checkpoint holds of the run before."""

from pathlib import Path
from typing import Any

from inference.models import load_model
from support.in_process import parsed
from train_utils.checkpoints import Checkpoint
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from train_utils.settings.train_settings import TrainSettings
from train_utils.start import OpenedRun
from unet import UNetConfig

SMALL_MODEL = UNetConfig(base_channels=2, depth=1)


def unplanned(*flags: str | Path) -> TrainSettings:
    """The settings of a run without a plan on the data set "data", four images a step."""
    return parsed("--dataset", "data", "--plan", "none", "--batch-size", "4", *map(str, flags))


def checkpoint_of(config: UNetConfig = SMALL_MODEL, **recorded: Any) -> Checkpoint:
    """A checkpoint at step 4 of a run with these records; there is no folder of it."""
    return Checkpoint(Path("step-00000004"), RunSettings(**{"flags": {}} | recorded), config, RunState(step=4), None)


def opened_run(folder: Path, flags: TrainSettings, checkpoint: Checkpoint | None = None) -> OpenedRun:
    """A run in a folder, new or resumed from a checkpoint."""
    model = None
    if flags.init_from is not None and checkpoint is None:
        model = load_model(flags.init_from)
    return OpenedRun(folder, checkpoint, model, None, flags)
