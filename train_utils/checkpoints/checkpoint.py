"""A checkpoint: its files, which are complete or absent, and the newest one to resume from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.console import say
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import CheckpointError, one_line
from runtime.files import checksum
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet.config import UNetConfig

MANIFEST = "manifest.json"  # sizes and checksums; without it a checkpoint is not complete
STATE = "state.json"
CHECKPOINT_FILES = {"model.safetensors", "optimizer.safetensors", STATE}  # the files of every checkpoint
OBJECTS = ("flags", "identity", "model", "run")  # the entries of every state.json


@dataclass(frozen=True)
class Checkpoint:
    """A run at a step, without its tensors: a folder, and the content of its state.json.

    Args:
        config: architecture and preprocessing of the run's model.
        state: the entry `run` of state.json; in run.json, the entry of this name is another.
        scaler: the state of the gradient scaler of fp16.
    """

    path: Path
    settings: RunSettings
    config: UNetConfig
    state: RunState
    scaler: dict[str, Any] | None

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """The content of a state.json. Raises OSError, and ValueError for content that no checkpoint has."""
        entries = read_json(path / STATE, most_bytes=MOST_BYTES_OF_DATA)
        for name in OBJECTS:
            if not isinstance(entries.get(name), dict):
                raise ValueError(f"its {name} is no object")
        entries.pop("score", None)  # which earlier versions wrote
        config = UNetConfig.from_json(entries.pop("model"))
        state = RunState.from_json(entries.pop("run"))
        scaler = entries.pop("scaler", None)
        return cls(path, RunSettings.from_json(entries), config, state, scaler)

    def write(self, folder: Path) -> None:
        """Write state.json, and then the manifest of all files, into a folder that is renamed to `path` afterwards."""
        entries = {"model": self.config.to_json(), "run": asdict(self.state), "scaler": self.scaler}
        (folder / STATE).write_text(json.dumps(self.settings.to_json() | entries))
        manifest = {file.name: fingerprint(file) for file in sorted(folder.iterdir())}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def find_checkpoint(resume: str | None, folder: Path) -> Checkpoint | None:
    """The checkpoint that `resume` names; for `auto` the newest complete one in `folder`, if it has checkpoints.

    Prints a line for each that it passes over. Raises CheckpointError if there are checkpoints but none is complete.
    """
    paths: list[Path] = []
    if resume is not None:
        paths = newest_first(folder) if resume == "auto" else [Path(resume)]
    problems = []
    for path in paths:
        try:
            checkpoint = read_undamaged(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(problem)
        return checkpoint
    if problems:
        raise CheckpointError(f"no checkpoint to resume from: {'; '.join(problems)}")
    return None


def read_undamaged(path: Path) -> Checkpoint:
    """The checkpoint in a folder; CheckpointError with the reason if a file is not as it was written."""
    try:
        manifest = read_json(path / MANIFEST)
        lists_others = any(Path(name).name != name for name in manifest)
        if CHECKPOINT_FILES - manifest.keys() or lists_others:
            raise ValueError(f"{MANIFEST} is damaged: it lists other files than a checkpoint has")
        for name, expected in manifest.items():
            if fingerprint(path / name) != expected:
                raise ValueError(f"{name} is damaged: its size or checksum differs from the manifest")
        return Checkpoint.read(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {Path(error.filename).name} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {one_line(error)}") from error


def best_step(path: Path) -> int:
    """The step of the best evaluation that a checkpoint knows of; 0 if it is damaged."""
    try:
        return Checkpoint.read(path).state.best_step
    except (OSError, ValueError):
        return 0


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The path of the checkpoint of a step in `folder`."""
    return folder / f"step-{step:08}"


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder, complete or not, the newest first."""
    return sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []


def fingerprint(file: Path) -> dict[str, int | str]:
    """Size and checksum, as the manifest holds them."""
    return {"bytes": file.stat().st_size, "sha256": checksum(file)}
