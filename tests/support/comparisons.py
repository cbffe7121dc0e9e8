"""Folders of runs whose settings and scores are written out, and what compare.py says of them."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import compare
from support.in_process import run_main
from train_utils.comparison.recipes import Recipes, group_runs, read_runs

FLAGS = {"dataset": "photos", "plan": "none", "learning_rate": 0.001, "epochs": 3, "fold": None, "num_workers": 2}
IDENTITY = {"task": "classes", "classes": ["a", "b"], "data set": "40 + 10 images (abc)"}
RUN = {"command": "train.py", "torch": "2.13.0", "git_commit": "abc"}
HARD = [0.1, 0.7, 0.5, 0.6]  # how well any run does on each of four images


def write_run(
    folder: Path,
    scores: list[float] | dict[str, float] = HARD,
    *,
    task: str = "classes",
    finished: bool = True,
    command: str = "train.py",
    precision: str = "no",
    identity: dict | None = None,
    **flags,
) -> Path:
    """The folder of a run with these flags, which scores so on its images."""
    folder.mkdir(parents=True)
    if not isinstance(scores, dict):
        scores = {f"i{index}": score for index, score in enumerate(scores)}
    record = {
        "flags": FLAGS | {"seed": 0, "output_dir": str(folder)} | flags,
        "identity": IDENTITY | {"task": task} | (identity or {}),
        "profile": {"processes": 1, "mixed_precision": precision},
        "total_steps": 40,
        "run": RUN | {"command": command},
    }
    (folder / "run.json").write_text(json.dumps(record))
    key = {"classes": "eval/mean_iou", "landmarks": "eval/closeness"}[task]
    mean = float(np.mean([*scores.values()])) if scores else 0.5
    lines = [{"step": step, "train/loss": 4 / step} for step in range(1, 41)]
    lines += [{"step": 20, "eval/loss": 0.7, key: mean - 0.1}, {"step": 40, "eval/loss": 0.5, key: mean}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if scores:
        rows = "".join(f"{name},{score}\n" for name, score in scores.items())
        (folder / "images.csv").write_text(f"image,mean IoU\n{rows}", encoding="utf-8")
    if finished:
        (folder / "finished.json").write_text("{}")
    return folder


def write_seeds(folder: Path, name: str, gains: list[float], **flags) -> list[Path]:
    """Runs of one recipe, with seeds from 0 on, which score by so much more than HARD."""
    runs = []
    for seed, gain in enumerate(gains):
        runs.append(write_run(folder / f"{name}-{seed}", [score + gain for score in HARD], seed=seed, **flags))
    return runs


def recipes_of(folders: list[Path]) -> Recipes:
    """The recipes of runs by label, the best first."""
    runs, _ = read_runs(folders)
    return group_runs(runs)


def run_compare(folders: list[Path], output: Path, *flags: str) -> SimpleNamespace:
    """What compare.py prints of the folders, and the page that it writes."""
    result = run_main(compare.main, "compare.py", *folders, "--output", output, *flags)
    page = output.read_text() if output.exists() else ""
    lines = result.stdout.splitlines()
    return SimpleNamespace(code=result.returncode, lines=lines, text=result.stdout, errors=result.stderr, page=page)
