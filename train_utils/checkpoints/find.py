"""The checkpoint to resume from: complete, undamaged, and of the same run."""

from pathlib import Path
from typing import NamedTuple

from runtime.console import counted
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import CheckpointError, one_line
from runtime.files import checksum
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.run_state import RunState
from train_utils.settings.record import CONTENT_ENTRY, RunSettings
from train_utils.settings.train_settings import NOT_COMPARED
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


def compare_settings(saved: RunSettings, current: RunSettings) -> list[str]:
    """A line for each setting that changed since the checkpoint; CheckpointError if the runs differ in `identity`."""
    for key, value in current.identity.items():
        before = saved.identity.get(key)
        if key == CONTENT_ENTRY and before is None:
            continue
        if before != value:
            changed = ""
            if saved.flags.get("seed") != current.flags.get("seed"):  # it chooses the validation images too
                changed = f" (--seed was {saved.flags.get('seed')} and is {current.flags.get('seed')})"
            raise CheckpointError(
                f"--resume: the checkpoint's {key} is {before}, this run's is {value}{changed}; give the same flags"
                " and data, or start a new run with --init-from"
            )
    notes = []
    if saved.total_steps and current.total_steps and saved.total_steps != current.total_steps:
        notes.append(
            f"the run is now {counted(current.total_steps, 'step')} long instead of {saved.total_steps}:"
            " the learning rate follows the schedule of the new length"
        )
    for key, value in current.flags.items():
        before = saved.flags.get(key)
        is_longer = key == "max_minutes" and value and before and value > before
        has_no_effect = key == "max_minutes" and saved.total_steps and value not in (None, before) and not is_longer
        if has_no_effect:
            steps = counted(current.total_steps, "step")
            notes.append(f"--max-minutes has no effect on a resumed run, which keeps its {steps}")
        elif before != value and key not in NOT_COMPARED:
            notes.append(f"{key} was {before} and is now {value}")
    return notes


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
