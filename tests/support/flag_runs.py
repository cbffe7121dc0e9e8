"""Runs of train.py on a small folder, in which what a flag changes stands alone."""

from pathlib import Path
from unittest import mock

import torch

import train
from data_utils.config import DataConfig
from support.folders import write_folder
from support.in_process import Run, parsed, run_train

# a whole epoch of 8 images in one step, nothing random, nothing scheduled: what a flag changes stands alone
PLAIN = ["--base-channels", "2", "--depth", "1", "--norm", "group", "--num-workers", "0", "--augment", "none"]
PLAIN += ["--plan", "none"]
PLAIN += ["--batch-size", "8", "--max-steps", "1", "--log-every", "1", "--schedule", "constant", "--warmup-steps", "0"]
PLAIN += ["--max-grad-norm", "0", "--optimizer", "sgd", "--learning-rate", "0.1", "--weight-decay", "0"]
PLAIN += ["--loss", "ce+dice", "--no-deep-supervision"]  # one level, a loss that the reference below computes
PLAIN += ["--tracker", "none", "--keep-checkpoints", "9", "--checkpoint-every", "1"]


class Trainer:
    """Runs train.py in this process on a small folder; a run with the same flags is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        write_folder(self.data / "train", 8, seed=0, size=(16, 24))
        write_folder(self.data / "val", 3, seed=1, size=(16, 24))
        self.runs: dict[tuple[str, ...], Run] = {}

    def __call__(self, *flags: str | Path) -> Run:
        key = tuple(map(str, flags))
        if key not in self.runs:
            self.runs[key] = self.fresh(*flags)
        return self.runs[key]

    def fresh(self, *flags: str | Path, output: Path | None = None) -> Run:
        """A run that is made anew."""
        output = output or self.folder / "runs" / str(len([*self.folder.glob("runs/*")]))
        with mock.patch.object(train.RunLog, "write_results"):  # pictures and report, which no flag changes
            return run_train(output, "--dataset", self.data, *PLAIN, *flags)


def config(*flags: str | Path) -> DataConfig:
    """The data settings of these flags."""
    return parsed(*flags)


def moved(run: Run, step: int = 1) -> torch.Tensor:
    """How far each weight went in a step."""
    before, after = run.weights(step - 1), run.weights(step)
    return torch.cat([(after[name] - before[name]).flatten() for name in before])
