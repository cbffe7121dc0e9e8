"""Checkpoints that are complete or absent: written beside, checked, renamed, and only then are older ones removed."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from train_utils.ema import WeightAverage
from runtime.files import WRITE_ERRORS, sync
from runtime.errors import LaunchError
from runtime.console import say
from train_utils.sharding import optimizer_tensors, restore_optimizer, shard_like, whole_copies

MANIFEST = "manifest.json"  # sizes and checksums; without it a checkpoint is not complete
STATE = "state.json"  # where the run stands


@dataclass
class RunState:
    """Where a run stands after `step` optimizer steps; part of every checkpoint.

    Args:
        best: mean IoU of the best evaluation, -1 before the first; its step, confusion matrix and each image's IoU.
        window: the loss that has not been logged yet, as in LossWindow.
        skipped: how many steps had a gradient that was not finite.
    """

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    best_matrix: list[list[int]] = field(default_factory=list)
    best_images: list[float] = field(default_factory=list)
    evaluations_since_best: int = 0
    window: dict = field(default_factory=lambda: {"sums": [], "steps": 0})
    skipped: int = 0


class Checkpoints:
    """The folder `checkpoints/` of a run.

    `save` copies the state and returns: the main process writes the copy in the background. A full disk, or one that
    is gone, ends no training: the failure is said, what was half written is removed, the older checkpoints stay.

    Args:
        folder: must exist. Should it vanish, it is not made again: it may be a mount point.
        keep: how many of the newest stay, beside the one with the best score.
        network: the model, not wrapped.
        settings: kept with every checkpoint, for `compare_settings`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: Path,
        keep: int,
        network: nn.Module,
        optimizer: Optimizer,
        average: WeightAverage,
        settings: dict,
    ) -> None:
        self.accelerator = accelerator
        self.folder = folder
        self.keep = keep
        self.network = network
        self.optimizer = optimizer
        self.average = average
        self.settings = settings
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future | None = None
        self._is_saved = True

    def save(self, run: RunState, score: float | None) -> None:
        """Save the run as it stands, with the score that it had at this step, if any; every process must call it."""
        self.wait()  # one at a time, and memory for one copy
        tensors: dict[str, Iterable[tuple[str, Tensor]]] = {
            "model": self.network.state_dict().items(),
            "optimizer": optimizer_tensors(self.accelerator, self.network, self.optimizer),
        }
        if self.average.tensors:
            tensors["average"] = self.average.tensors.items()
        copies = {kind: whole_copies(self.accelerator, group) for kind, group in tensors.items()}
        if not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None
        state = self.settings | {"run": asdict(run), "score": score, "scaler": scaler}
        self._pending = self._writer.submit(self._write, state, copies)

    def restore(self, path: Path, state: dict) -> None:
        """Put the model, its optimizer, averages and scaler back to where they were; every process does."""
        live = self.network.state_dict()
        weights = load_file(path / "model.safetensors")
        self.network.load_state_dict({name: shard_like(value, live[name]) for name, value in weights.items()})
        saved = load_file(path / "optimizer.safetensors")
        restore_optimizer(self.accelerator, self.network, self.optimizer, saved)
        if self.accelerator.is_main_process:
            self._set_aside_newer(path)
        self.average.restore(path)
        if self.accelerator.scaler is not None and state["scaler"]:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _set_aside_newer(self, path: Path) -> None:
        """Newer ones are damaged, or of a run that is now left for another; they must not pass for this run's."""
        for newer in [folder for folder in _newest_first(self.folder) if folder.name > path.name]:
            aside = newer.with_name(f"set-aside-{newer.name}")
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)
            say(f"{newer} is set aside as {aside.name}")

    def wait(self) -> bool:
        """Until the last save is on disk, or has failed and said so; whether it is on disk."""
        if self._pending is not None:
            self._is_saved = self._pending.result()
            self._pending = None
        return self._is_saved

    def _write(self, state: dict, tensors: dict[str, dict[str, Tensor]]) -> bool:
        final = self.folder / f"step-{state['run']['step']:08}"
        temporary = final.with_name(f".{final.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for kind, group in tensors.items():
                save_file(group, temporary / f"{kind}.safetensors")
            (temporary / STATE).write_text(json.dumps(state))
            manifest = {file.name: _fingerprint(file) for file in sorted(temporary.iterdir())}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1))
            for path in (*temporary.iterdir(), temporary):
                sync(path)
            shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step, which the run has just repeated
            temporary.rename(final)
            sync(self.folder)
            self._prune()
        except WRITE_ERRORS as error:
            say(f"checkpoint {final.name} could not be written ({error}); training goes on without it")
            shutil.rmtree(temporary, ignore_errors=True)
            return False
        return True

    def _prune(self) -> None:
        complete = [path for path in _newest_first(self.folder) if (path / MANIFEST).exists()]
        scores = {path: score for path in complete if (score := _peek(path).get("score")) is not None}
        best = max(scores, key=scores.__getitem__, default=None)
        for path in complete[self.keep :]:
            if path != best:
                shutil.rmtree(path, ignore_errors=True)


def find_checkpoint(resume: str | None, folder: Path) -> tuple[Path | None, dict, list[str]]:
    """(path, state, why newer ones were passed over): for `auto` the newest complete checkpoint, else the one given.

    The path is None where there has been no checkpoint yet. LaunchError where there were some, and none is complete.
    """
    if resume is None:
        return None, {}, []
    if resume != "auto":
        return Path(resume), _with_its_best(Path(resume)), []
    passed_over: list[str] = []
    for path in _newest_first(folder):
        try:
            return path, _with_its_best(path), passed_over
        except LaunchError as error:
            passed_over.append(str(error))
    if passed_over:
        raise LaunchError(f"no checkpoint to resume from: {'; '.join(passed_over)}")
    return None, {}, []


def compare_settings(saved: dict, now: dict) -> list[str]:
    """What changed since the checkpoint, a line each; LaunchError for what makes its state meaningless (`identity`)."""
    for key, value in now["identity"].items():
        if saved["identity"][key] != value:
            raise LaunchError(f"--resume: the checkpoint's {key} is {saved['identity'][key]}, this run's {value}")
    notes = []
    if saved["total_steps"] != now["total_steps"]:
        notes.append(
            f"the run is now {now['total_steps']} steps long instead of {saved['total_steps']}:"
            " the learning rate goes on along the schedule of the new length"
        )
    for key, value in now["flags"].items():
        before = saved["flags"].get(key)
        if before != value and key not in ("epochs", "max_steps", "resume", "output_dir"):
            notes.append(f"{key} was {before} and is now {value}")
    return notes


def _with_its_best(path: Path) -> dict:
    """The state of a checkpoint; its best model is yet to come if a newer one, now left, has replaced it since."""
    state = _read_state(path)
    for newer in _newest_first(path.parent):
        if newer.name > path.name and _peek(newer).get("run", {}).get("best_step", 0) > state["run"]["step"]:
            state["run"] |= {"best": -1.0, "evaluations_since_best": 0}
    return state


def _peek(path: Path) -> dict:
    """What state.json says, if anything: an old checkpoint may have been damaged later."""
    try:
        return json.loads((path / STATE).read_text())
    except (OSError, ValueError):
        return {}


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []


def _fingerprint(file: Path) -> dict[str, int | str]:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _read_state(path: Path) -> dict:
    """state.json of a checkpoint whose files are all as they were written; a LaunchError says why not."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        for name, expected in manifest.items():
            if _fingerprint(path / name) != expected:
                raise LaunchError(f"{path}: {name} is damaged, its size or checksum is not that of the manifest")
        return json.loads((path / STATE).read_text())
    except FileNotFoundError as error:
        raise LaunchError(f"{path}: {Path(error.filename).name} is missing") from error
    except (OSError, ValueError) as error:
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(f"{path}: cannot be read ({error})") from error
