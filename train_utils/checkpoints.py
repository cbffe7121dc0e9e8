"""The checkpoints of a run, which are complete or absent, and its best model.

A checkpoint is written to a temporary folder, then renamed; then old ones are removed. Its manifest has the checksums
of all files: a checkpoint that differs from it is passed over.
"""

import json
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from huggingface_hub import PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.console import counted, say
from runtime.distributed import barrier_without_timeout, on_main
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import CheckpointError, WriteError, one_line
from runtime.files import checksum, complete_folder, replace_files
from train_utils.ema import WeightAverage
from train_utils.run_state import RunState
from train_utils.settings.record import FINISHED_FILE, RunSettings, compare_settings
from train_utils.sharding import (
    optimizer_tensors,
    rebuild_buckets,
    restore_optimizer,
    shard_like,
    share_statistics,
    whole_copies,
)
from unet.config import UNetConfig
from unet.model import UNet
from unet.model_files import write_weights

MANIFEST = "manifest.json"  # sizes and checksums; without it a checkpoint is not complete
STATE = "state.json"
CHECKPOINT_FILES = {"model.safetensors", "optimizer.safetensors", STATE}  # the files of every checkpoint


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
        entries.pop("score", None)  # which earlier versions wrote
        config = UNetConfig.from_json(entries.pop("model", None))
        state = RunState.from_json(entries.pop("run", None))
        scaler = entries.pop("scaler", None)
        return cls(path, RunSettings.from_json(entries), config, state, scaler)

    def write(self, folder: Path) -> None:
        """Write state.json, and then the manifest of all files, into a folder that is renamed to `path` afterwards."""
        entries = {"model": self.config.to_json(), "run": asdict(self.state), "scaler": self.scaler}
        (folder / STATE).write_text(json.dumps(asdict(self.settings) | entries))
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


def fingerprint(file: Path) -> dict[str, int | str]:
    """Size and checksum, as the manifest holds them."""
    return {"bytes": file.stat().st_size, "sha256": checksum(file)}


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The path of the checkpoint of a step in `folder`."""
    return folder / f"step-{step:08}"


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder, complete or not, the newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


@dataclass
class Checkpoints:
    """The folders `checkpoints/` and `model/` of a run.

    `save` copies the state and returns: the main process writes the copy in the background. A full or missing disk
    does not end training: a line is printed, half-written files are removed, and the older checkpoints stay.

    Args:
        output_dir: the folder of both. If it vanishes, it is not made again: it may be a mount point.
        network: the model, not wrapped.
        settings: the settings to keep with every checkpoint, for `compare_settings`.
        keep: how many of the newest checkpoints stay, beside the best one.

    Attributes:
        model_folder: the best model, never the last one.
    """

    accelerator: Accelerator
    output_dir: Path
    network: UNet
    optimizer: Optimizer
    average: WeightAverage
    settings: RunSettings
    keep: int

    def __post_init__(self) -> None:
        self.folder = self.output_dir / "checkpoints"
        self.model_folder = self.output_dir / "model"
        self._writer = ThreadPoolExecutor(1)
        self._last_save: Future[bool] | None = None
        self._model_is_saved = True

    def save_model(self, network: PyTorchModelHubMixin, card: str) -> bool:
        """Write the best network so far and its model card, each file atomically; call it on the main process.

        Returns whether they are on disk; prints a line if not, and the best model before stays.
        """
        try:
            with replace_files(self.model_folder) as folder:
                network.save_pretrained(folder)
                (folder / "README.md").write_text(card, encoding="utf-8", errors="backslashreplace")
            self._model_is_saved = True
        except OSError as error:
            say(f"{self.model_folder} could not be written ({error}); training goes on without this model")
            self._model_is_saved = False
        return self._model_is_saved

    def save(self, run: RunState, *, waits: bool = False) -> None:
        """Save the run as it stands; every process must call it. If it `waits`, all is on disk when it returns."""
        self.wait()  # one at a time, and memory for one copy
        barrier_without_timeout(self.accelerator)  # the main process may have waited long for a slow disk
        share_statistics(self.accelerator, self.network)
        tensors: dict[str, Iterable[tuple[str, Tensor]]] = {
            "model": self.network.state_dict().items(),
            "optimizer": optimizer_tensors(self.accelerator, self.network, self.optimizer),
        }
        if self.average.tensors:
            tensors["average"] = self.average.tensors.items()
        files = whole_copies(self.accelerator, tensors)
        if not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler
        checkpoint = Checkpoint(
            checkpoint_folder(self.folder, run.step),
            self.settings,
            self.network.config,
            state=deepcopy(run),  # training goes on while it is written
            scaler=None if scaler is None else scaler.state_dict(),
        )
        self._last_save = self._writer.submit(self._write, checkpoint, files)
        if waits:
            self.wait()

    def wait(self) -> bool:
        """Wait until the last save is on disk, or has failed; whether it and the best model are on disk."""
        is_saved = self._last_save is None or self._last_save.result()
        return is_saved and self._model_is_saved

    def _write(self, checkpoint: Checkpoint, tensors: dict[str, dict[str, Tensor]]) -> bool:
        """Write a checkpoint and remove old ones; returns whether it is on disk, and prints a line if not."""
        try:
            with complete_folder(checkpoint.path) as folder:
                for kind, group in tensors.items():
                    write_weights(group, folder / f"{kind}.safetensors")
                checkpoint.write(folder)
            self._prune(checkpoint.state)
        except OSError as error:
            say(f"checkpoint {checkpoint.path.name} could not be written ({error}); training goes on without it")
            return False
        return True

    def _prune(self, run: RunState) -> None:
        """Remove all complete checkpoints but the newest and that of the best evaluation."""
        complete = [path for path in newest_first(self.folder) if (path / MANIFEST).exists()]
        best = checkpoint_folder(self.folder, run.best_step) if run.has_best else None
        for path in complete[self.keep :]:
            if path != best:
                shutil.rmtree(path, ignore_errors=True)

    def resume(self, checkpoint: Checkpoint | None, run: RunState, model: nn.Module, *, is_over: bool) -> bool:
        """Go on from the checkpoint, or save the start of a new run if there is none; every process must call it.

        Args:
            model: the network as accelerate has prepared it.
            is_over: whether the flags ask for no more steps than the run has made.

        Returns:
            Whether anything is left to do; if not, a line says how the run would go on.

        Raises CheckpointError if the checkpoint belongs to another run, or if a run that was stopped has no step left:
        it would end without an evaluation of its last step.
        """
        if checkpoint is None:
            self.save(run)
            return True
        changes = compare_settings(checkpoint.settings, self.settings)
        if on_main(self.accelerator, lambda: self._has_finished(checkpoint, is_over)):
            total_steps = self.settings.total_steps or run.step
            remedy = "more --epochs, --max-steps or --max-minutes"
            patience = self.settings.flags.get("patience") or checkpoint.settings.flags.get("patience")
            if run.step < total_steps and patience:
                remedy = "a larger --patience"
            line = f"the run has finished, at step {run.step} of {total_steps}; to continue it, give {remedy}"
            say(f"{self.output_dir}: {line}")
            return False
        ends = (checkpoint.settings.total_steps, run.best_step)  # both have been evaluated
        if self.settings.total_steps == run.step and run.step not in ends:
            raise CheckpointError(
                f"--resume: the run was stopped after {counted(run.step, 'step')}, and has none left with this length;"
                " give more --epochs or --max-steps"
            )
        for change in changes:
            say(change)
        self._restore(checkpoint)
        # one process looks: machines may not share the folder, and all must agree on the best score
        if not on_main(self.accelerator, lambda: self._go_on_behind(checkpoint.path)):
            run.best = -1.0
            run.evaluations_since_best = 0
        planned = ""
        if self.settings.total_steps:  # else the clock decides
            planned = f" of {self.settings.total_steps}"
        say(f"resumed from {checkpoint.path}, at step {run.step}{planned}")
        if run.step > 0:
            rebuild_buckets(model, self.network)
        return True

    def _has_finished(self, checkpoint: Checkpoint, is_over: bool) -> bool:
        """Whether the run in this folder ended with this checkpoint, and the flags that are given ask nothing more."""
        try:
            finished = read_json(self.output_dir / FINISHED_FILE)
        except (OSError, ValueError):
            return False
        if finished.get("step") != checkpoint.state.step:
            return False
        saved = checkpoint.settings
        given = {name: value for name, value in self.settings.flags.items() if value is not None}
        if is_over:  # other flags have no effect any more
            return given.get("push_to_hub") in (None, saved.flags.get("push_to_hub"))
        return not compare_settings(saved, replace(self.settings, flags=given))

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore the model, its optimizer, averages and scaler; every process must call it."""
        path = checkpoint.path
        live = self.network.state_dict()
        try:
            weights = load_file(path / "model.safetensors")
            if {name: value.shape for name, value in weights.items()} != {name: live[name].shape for name in live}:
                raise ValueError("its weights are those of another network")
            self.network.load_state_dict({name: shard_like(value, live[name]) for name, value in weights.items()})
            saved = load_file(path / "optimizer.safetensors")
            restore_optimizer(self.accelerator, self.network, self.optimizer, saved)
            self.average.restore(path)
        except CheckpointError:
            raise
        except (SafetensorError, LookupError, ValueError) as error:  # the manifest agrees, but may be forged
            raise CheckpointError(f"{path}: is damaged ({one_line(error)})") from error
        if self.accelerator.scaler is not None and checkpoint.scaler:
            self.accelerator.scaler.load_state_dict(checkpoint.scaler)

    def _go_on_behind(self, path: Path) -> bool:
        """Prepare the folder of the run to go on from a checkpoint; returns whether its best model is in `model/`.

        Newer checkpoints are renamed so that none is used: they are damaged, or from steps that are made again. If one
        of these steps had a better model, it is the one in `model/`.
        """
        has_best = self.model_folder.exists()  # a run may go on in another folder
        for newer in newest_first(self.folder):
            if newer.name <= path.name:
                break
            with suppress(OSError, ValueError):  # a damaged checkpoint knows of no model
                best_step = Checkpoint.read(newer).state.best_step
                has_best = has_best and checkpoint_folder(self.folder, best_step).name <= path.name
            aside = newer.with_name(f"set-aside-{newer.name}")
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)
            say(f"{newer} is newer than the checkpoint to resume from; it is renamed to {aside.name}")
        finished = self.output_dir / FINISHED_FILE
        try:
            finished.unlink(missing_ok=True)  # a finished run may go on
        except OSError as error:
            raise WriteError(f"{finished} cannot be removed ({error.strerror}); move it away") from error
        return has_best
