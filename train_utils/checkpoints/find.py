"""The checkpoint to resume from: complete, undamaged, and of the same run."""

from pathlib import Path
from typing import NamedTuple

from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import CheckpointError, one_line
from runtime.files import checksum
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.run_state import RunState
from unet.config import UNetConfig

MANIFEST = "manifest.json"  # sizes and checksums; without it a checkpoint is not complete
STATE = "state.json"  # where the run stands
CHECKPOINT_FILES = {"model.safetensors", "optimizer.safetensors", STATE}  # the files of every checkpoint


class FoundCheckpoint(NamedTuple):
    """A checkpoint to resume from, the content of its state.json, and the reasons why newer ones were passed over.

    Path and state are None if there is no checkpoint.
    """

    path: Path | None
    state: CheckpointState | None
    passed_over: list[str]

    def run_state(self) -> RunState:
        """The state of the run; its initial state if there is no checkpoint."""
        return RunState() if self.state is None else self.state.run_state

    def model_config(self) -> UNetConfig | None:
        """Architecture and preprocessing of the run's model; None if there is no checkpoint."""
        return None if self.state is None else self.state.config


def find_checkpoint(resume: str | None, folder: Path) -> FoundCheckpoint:
    """The checkpoint that `resume` names; for `auto` the newest complete one in `folder`, if it has checkpoints.

    Raises CheckpointError if there are checkpoints but none is complete.
    """
    paths: list[Path] = []
    if resume is not None:
        paths = newest_first(folder) if resume == "auto" else [Path(resume)]
    passed_over: list[str] = []
    for path in paths:
        try:
            return FoundCheckpoint(path, read_state(path), passed_over)
        except CheckpointError as error:
            passed_over.append(str(error))
    if passed_over:
        raise CheckpointError(f"no checkpoint to resume from: {'; '.join(passed_over)}")
    return FoundCheckpoint(None, None, [])


def best_step(path: Path) -> int:
    """The step of the best evaluation that a checkpoint knows of; 0 if it is damaged."""
    try:
        return CheckpointState.from_json(read_json(path / STATE, most_bytes=MOST_BYTES_OF_DATA)).run_state.best_step
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


def read_state(path: Path) -> CheckpointState:
    """The state of a checkpoint; CheckpointError with the reason if a file is not as it was written."""
    try:
        manifest = read_json(path / MANIFEST)
        lists_others = any(Path(name).name != name for name in manifest)
        if CHECKPOINT_FILES - manifest.keys() or lists_others:
            raise ValueError(f"{MANIFEST} is damaged: it lists other files than a checkpoint has")
        for name, expected in manifest.items():
            if fingerprint(path / name) != expected:
                raise ValueError(f"{name} is damaged: its size or checksum differs from the manifest")
        return CheckpointState.from_json(read_json(path / STATE, most_bytes=MOST_BYTES_OF_DATA))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {Path(error.filename).name} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {one_line(error)}") from error
