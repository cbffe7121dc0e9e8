"""The content of a checkpoint's state.json."""

from dataclasses import asdict, dataclass
from typing import Any

from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet.config import NEWER_VERSION, UNetConfig

OBJECTS = ("flags", "identity", "model", "run")  # the entries that every checkpoint has
OWN_ENTRIES = {"model", "run", "scaler", "score"}  # the entries that are no settings; earlier versions had a score


@dataclass(frozen=True)
class CheckpointState:
    """The state of a run at a step, without its tensors.

    Args:
        run_state: the entry `run` of state.json; in run.json, the entry of this name is the environment.
        scaler: the state of the gradient scaler of fp16.
    """

    settings: RunSettings
    config: UNetConfig
    run_state: RunState
    scaler: dict[str, Any] | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "CheckpointState":
        """The state from the content of state.json; ValueError if entries of a checkpoint are missing."""
        for name in OBJECTS:
            if not isinstance(value.get(name), dict):
                raise ValueError(f"its {name} is no object")
        unknown = sorted(value.keys() - OWN_ENTRIES - set(RunSettings.entries().values()))
        if unknown:
            raise ValueError(f"holds {', '.join(unknown)}, {NEWER_VERSION}")
        config = UNetConfig.from_json(value["model"])
        run_state = RunState.from_json(value["run"])
        # in run.json this entry is the environment, which a checkpoint does not hold
        entries = {key: entry for key, entry in value.items() if key != "run"}
        settings = RunSettings.from_json(entries)
        return cls(settings, config, run_state, value.get("scaler"))

    def to_json(self) -> dict[str, Any]:
        """The content of state.json."""
        entries = {"model": self.config.to_json(), "run": asdict(self.run_state), "scaler": self.scaler}
        return self.settings.to_json() | entries
