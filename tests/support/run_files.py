"""What a run has written: its records, losses and checkpoints."""

import json
from pathlib import Path


def records(output: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def last_checkpoint(output: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((output / "checkpoints").glob("step-*"))


def losses(output: Path) -> list[float]:
    """The training losses that a run has logged."""
    return [record["train/loss"] for record in records(output) if "train/loss" in record]
