"""The content of a checkpoint's state.json."""

from dataclasses import asdict, dataclass
from typing import Any

from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet.config import UNetConfig

OBJECTS = ("flags", "identity", "model", "run")  # the entries that every checkpoint has


@dataclass(frozen=True)
class CheckpointState:
    """The state of a run at a step, without its tensors.

    Args:
        run_state: the entry `run` of state.json; in run.json, the entry of this name is another.
        scaler: the state of the gradient scaler of fp16.
    """

    settings: RunSettings
    config: UNetConfig
    run_state: RunState
    scaler: dict[str, Any] | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "CheckpointState":
        """The state from the content of state.json; ValueError for content that no checkpoint has."""
        for name in OBJECTS:
            if not isinstance(value.get(name), dict):
                raise ValueError(f"its {name} is no object")
        entries = dict(value)
        entries.pop("score", None)  # which earlier versions wrote
        config = UNetConfig.from_json(entries.pop("model"))
        run_state = RunState.from_json(entries.pop("run"))
        scaler = entries.pop("scaler", None)
        return cls(RunSettings.from_json(entries), config, run_state, scaler)

    def to_json(self) -> dict[str, Any]:
        """The content of state.json."""
        entries = {"model": self.config.to_json(), "run": asdict(self.run_state), "scaler": self.scaler}
        return self.settings.to_json() | entries
