"""A clock that only the test turns."""

import pytest

from train_utils.monitoring import pace


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(pace.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(pace, "PROCESS_START", 1000.0)

    def takes(self, seconds: float) -> None:
        self.now += seconds
