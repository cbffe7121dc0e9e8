"""What a commit computes, reads, needs and takes, recorded in a folder: the net under a change of the code.

python benchmarks/record_net.py ba862b18                       into runs/net/ba862b18.../
python benchmarks/record_net.py .. --beside ba862b18           a checkout; its speed as a ratio to another one's

numbers.json    of benchmarks/same_numbers.py
rows.json       of benchmarks/same_rows.py
memory.jsonl    peak memory of prediction, of benchmarks/predict.py --memory
speed.json      processor seconds of a training and a prediction, start included, and images a second and core that
                benchmarks/data.py loads; medians of three rounds, in which both checkouts take turns

The cases are those of this checkout, the programs and the benchmarks of memory and loading those of the one that is
recorded. A later checkout is compared by `same_numbers.py compare runs/net/COMMIT/numbers.json`, and rows likewise.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import same_numbers, same_rows, tiny_sets
from benchmarks.recorded import ROOT

SIDES = ("2000", "8000")  # pixels of the square images whose prediction needs memory
ROUNDS = 3
TRAIN = "--tracker none --plan none --base-channels 16 --depth 3 --batch-size 4 --num-workers 0 --max-steps 30 --seed 1"
PARTS = ("numbers", "rows", "memory", "speed")


def git(checkout: Path, *words: str) -> str:
    """What git says in a checkout."""
    return subprocess.run(["git", *words], cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def checkout_of(name: str) -> Iterator[Path]:
    """The folder of a checkout, which a commit gets for as long as it is used."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        checkout = Path(temporary) / "checkout"
        git(ROOT, "worktree", "add", "--detach", str(checkout), name)
        try:
            yield checkout
        finally:
            git(ROOT, "worktree", "remove", "--force", str(checkout))


def commit_of(checkout: Path) -> str:
    """The hash of a checkout's commit, with `-changed` if its files are not those of the commit."""
    return git(checkout, "rev-parse", "HEAD") + ("-changed" if git(checkout, "status", "--porcelain") else "")


def run(checkout: Path, folder: Path, *words: str) -> tuple[float, str]:
    """Processor seconds of a script of a checkout, and what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(checkout)}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "ACCELERATE_MIXED_PRECISION": "no"}
    script, *flags = words
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        [sys.executable, str(checkout / script), *flags], cwd=folder, env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise SystemExit(f"{checkout}: {' '.join(words)} ended with {process.returncode}:\n{process.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, process.stdout


def speeds(checkout: Path, folder: Path, data: Path) -> dict[str, float]:
    """One round: seconds of training and prediction, images a second of loading."""
    folder.mkdir()
    training, _ = run(checkout, folder, "train.py", "--dataset", str(data), "--output-dir", "run", *TRAIN.split())
    inputs = ("--input", str(data / "train" / "images"), "--output", "masks")
    prediction, _ = run(checkout, folder, "predict.py", "--model", "run/model", *inputs)
    _, printed = run(checkout, folder, "benchmarks/data.py", "--only", "images")
    loading = json.loads(printed.splitlines()[-1])["images"]["ours"]
    return {"training": training, "prediction": prediction, "loading": float(loading.split()[0])}


def compare_speeds(checkouts: dict[str, Path]) -> dict[str, dict[str, float]]:
    """Name -> the speeds of its checkout, and of two checkouts how often the first is as fast as the second."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        tiny_sets.write_images(data / "train", 40, (256, 320), seed=0)
        tiny_sets.write_images(data / "val", 4, (256, 320), seed=1)
        for number in range(ROUNDS):
            for name, checkout in checkouts.items():
                rounds[name].append(speeds(checkout, Path(temporary) / f"{name}-{number}", data))
    medians = {}
    for name, results in rounds.items():
        medians[name] = {key: statistics.median(result[key] for result in results) for key in results[0]}
    if len(medians) == 2:
        here, there = medians.values()
        ratios = {key: there[key] / here[key] for key in ("training", "prediction")}
        medians["ratio"] = ratios | {"loading": here["loading"] / there["loading"]}
    return medians


def record(checkout: Path, folder: Path, part: str, beside: Path | None) -> None:
    """Write one part of the net into a folder."""
    if part == "memory":
        _, lines = run(checkout, folder, "benchmarks/predict.py", "--memory", *SIDES)
        (folder / "memory.jsonl").write_text(lines)
        return
    if part == "speed":
        checkouts = {"here": checkout} | ({"beside": beside} if beside else {})
        values: object = compare_speeds(checkouts)
    else:
        values = (same_numbers if part == "numbers" else same_rows).measure(checkout, [])
    (folder / f"{part}.json").write_text(json.dumps(values, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", help="the folder of a checkout, or a commit")
    parser.add_argument("--beside", metavar="CHECKOUT", help="whose speed the ratio is to")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "net")
    args = parser.parse_args()
    with checkout_of(args.checkout) as checkout, checkout_of(args.beside or args.checkout) as beside:
        folder = args.output.resolve() / commit_of(checkout)
        folder.mkdir(parents=True, exist_ok=True)
        for part in args.only:
            start = time.monotonic()
            record(checkout, folder, part, beside if args.beside else None)
            print(f"{part}: {time.monotonic() - start:.0f} s, in {folder}", flush=True)


if __name__ == "__main__":
    main()
