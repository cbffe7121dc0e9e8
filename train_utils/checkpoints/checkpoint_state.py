"""The content of a checkpoint's state.json."""

from dataclasses import asdict, dataclass
from typing import Any

from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet.config import NEWER_VERSION, UNetConfig

OBJECTS = {"model", "run", "flags", "identity"}  # the entries that every checkpoint has
OWN_ENTRIES = {"model", "run", "score", "scaler"}  # the entries that are no settings


@dataclass(frozen=True)
class CheckpointState:
    """The state of a run at a step, without its tensors.

    Args:
        run_state: the entry `run` of state.json; in run.json, the entry of this name is the environment.
        score: the score of the evaluation at this step; None if there was none.
        scaler: the state of the gradient scaler of fp16.
    """

    settings: RunSettings
    config: UNetConfig
    run_state: RunState
    score: float | None
    scaler: dict[str, Any] | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "CheckpointState":
        """The state from the content of state.json; ValueError if entries of a checkpoint are missing."""
        lacking = OBJECTS - value.keys()
        if lacking:
            raise ValueError(f"lacks {', '.join(sorted(lacking))}")
        for name in sorted(OBJECTS):
            if not isinstance(value[name], dict):
                raise ValueError(f"its {name} is no object")
        known_entries = OWN_ENTRIES | set(RunSettings.entries().values())
        unknown = sorted(value.keys() - known_entries)
        if unknown:
            raise ValueError(f"holds {', '.join(unknown)}, {NEWER_VERSION}")
        config = UNetConfig.from_json(value["model"])
        run_state = RunState.from_json(value["run"])
        # in run.json this entry is the environment, which a checkpoint does not hold
        entries = {key: entry for key, entry in value.items() if key != "run"}
        settings = RunSettings.from_json(entries)
        return cls(settings, config, run_state, value.get("score"), value.get("scaler"))

    def to_json(self) -> dict[str, Any]:
        """The content of state.json."""
        entries = {
            "model": self.config.to_json(),
            "run": asdict(self.run_state),
            "score": self.score,
            "scaler": self.scaler,
        }
        return self.settings.to_json() | entries
