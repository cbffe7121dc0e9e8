"""Runs before their first step: their settings and their folder."""

from pathlib import Path

from inference.models import load_model
from support.in_process import parsed
from train_utils.checkpoints import Checkpoint
from train_utils.settings.train_settings import TrainSettings
from train_utils.start import OpenedRun


def unplanned(*flags: str | Path) -> TrainSettings:
    """The settings of a run without a plan on the data set "data", four images a step."""
    return parsed("--dataset", "data", "--plan", "none", "--batch-size", "4", *map(str, flags))


def opened_run(folder: Path, flags: TrainSettings, checkpoint: Checkpoint | None = None) -> OpenedRun:
    """A run in a folder, new or resumed from a checkpoint."""
    model = None
    if flags.init_from is not None and checkpoint is None:
        model = load_model(flags.init_from)
    return OpenedRun(folder, checkpoint, model, None, flags)
