"""Which recipe scores best after equal minutes: the defaults of train.py against one change at a time.

python benchmarks/recipe.py rates DATA RESULTS
python benchmarks/recipe.py run DATA RESULTS --minutes 3 --seeds 0 1 2
python benchmarks/recipe.py table RESULTS

DATA holds the folders `camvid` and `isbi2012`; benchmarks/sets.py names more sets for `--sets`. Cracks in pavement are
drawn into RESULTS; train.py's own shapes are learned in a minute (`--minutes 1 --sets shapes`). `rates` measures how
many steps each candidate makes in a minute of one core's time. `run` trains each candidate for as many steps as fit
into the minutes, whatever else the machine does meanwhile, in the precision of accelerate's environment variables;
whose rate was not measured, for it costs what the recipe does, has the recipe's. What stands in RESULTS/scores.jsonl is
not trained again. `table` prints the means over the seeds, mean and standard deviation of the paired differences to the
recipe, and the number of seeds. What each candidate changes is in benchmarks/candidates.py; `--candidates "a + b"`
makes both changes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import train
from benchmarks.candidates import CANDIDATES, changes
from benchmarks.sets import SETS, prepare

TRIAL = 25  # steps, of which the median counts
RARELY = "1000000"
COMMON = ["--plan", "none", "--tracker", "none", "--num-workers", "0", "--eval-every", RARELY]
COMMON += ["--checkpoint-every", RARELY, "--log-every", RARELY]
RECIPE = ["--loss", "ce+logdice", "--deep-supervision", "--block", "residual", "--batch-size", "2"]
RECIPE += ["--base-channels", "16"]


def settings(args: argparse.Namespace) -> dict[str, list[str]]:
    """The flags of the recipe on each set."""
    folders = prepare(args.data, args.results, set(args.sets) - {"shapes"})
    return {name: ["--dataset", str(folders.get(name, name)), *RECIPE, *SETS[name]] for name in args.sets}


def trained(flags: list[str], candidate: str, steps: int, seed: int) -> tuple[dict, float]:
    """The last record of a run of train.py in a process of its own, and the processor time of a step, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        flags = [*flags, *changes(candidate)[0], *COMMON, "--output-dir", str(output)]
        command = [sys.executable, __file__, "train", candidate, *flags, "--max-steps", str(steps), "--seed", str(seed)]
        process = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        record = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return record, float(process.stdout.splitlines()[-1])


def rates(args: argparse.Namespace) -> None:
    """Steps a minute of each candidate in float32, into RESULTS/rates.json."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    file = args.results / "rates.json"
    speeds = json.loads(file.read_text()) if file.exists() else {}
    for name, flags in settings(args).items():
        for candidate in args.candidates:
            if candidate not in speeds.setdefault(name, {}):
                speeds[name][candidate] = 60 / trained(flags, candidate, TRIAL, seed=0)[1]
                print(f"{name}, {candidate}: {speeds[name][candidate]:.0f} steps a minute", flush=True)
                file.write_text(json.dumps(speeds, indent=2))


def run(args: argparse.Namespace) -> None:
    """Scores of each candidate, set and seed, a line each in RESULTS/scores.jsonl."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sets, speeds = settings(args), json.loads((args.results / "rates.json").read_text())
    file = args.results / "scores.jsonl"
    for seed in args.seeds:
        for candidate in args.candidates:
            for name in args.sets:
                key = {"set": name, "candidate": candidate, "seed": seed, "minutes": args.minutes}
                lines = file.read_text().splitlines() if file.exists() else []
                if any(json.loads(line).items() >= key.items() for line in lines):
                    continue
                rate = min(speeds[name].get(part, speeds[name]["recipe"]) for part in candidate.split(" + "))
                steps = round(args.minutes * rate)
                record, _ = trained(sets[name], candidate, steps, seed)
                scores = {tag: value for tag, value in record.items() if tag.startswith("eval/")}
                with file.open("a") as out:
                    out.write(json.dumps(key | {"steps": steps} | scores) + "\n")
                print(f"{name}, {candidate}, seed {seed}: {record['eval/mean_iou']:.3f}", flush=True)


def table(args: argparse.Namespace) -> None:
    """Mean IoU over the seeds (the paired difference to the recipe, its standard deviation; the number of seeds)."""
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for line in (args.results / "scores.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["minutes"] != args.minutes:
            continue
        scores.setdefault((record["candidate"], record["set"]), {})[record["seed"]] = record["eval/mean_iou"]
    sets = [name for name in SETS if any(name == other for _, other in scores)]
    print("| change | " + " | ".join(sets) + " |\n" + "|---" * (len(sets) + 1) + "|")
    for candidate in dict.fromkeys([*CANDIDATES, *(candidate for candidate, _ in scores)]):
        cells = [cell(scores.get((candidate, name), {}), scores.get(("recipe", name), {})) for name in sets]
        if any(cells):
            print(f"| {candidate} | " + " | ".join(cells) + " |")


def cell(mine: dict[int, float], recipe: dict[int, float]) -> str:
    """Of the table, from the scores of each seed."""
    if not mine:
        return ""
    pairs = [mine[seed] - recipe[seed] for seed in mine if seed in recipe]
    spread = f" ± {statistics.stdev(pairs):.3f}" if len(pairs) > 1 else ""
    paired = f"{statistics.mean(pairs):+.3f}{spread}; " if pairs and mine is not recipe else ""
    return f"{statistics.mean(mine.values()):.3f} ({paired}{len(mine)})"


def train_timed() -> None:
    """train.py without its report; the last line it prints is the processor time of its median step, in seconds."""
    make_step, starts = train.train_step, []

    def train_step(*args, **options):
        starts.append(time.process_time())  # of which other programs take none
        return make_step(*args, **options)

    train.train_step = train_step
    train.Publisher.write_results = lambda *_: None
    train.main()
    print(statistics.median(np.diff(starts)))


def main() -> None:
    """The subcommands above, and `train CANDIDATE`, which is train.py with that change."""
    if sys.argv[1:2] == ["train"]:
        patches = changes(sys.argv[2])[1]
        sys.argv = ["train.py", *sys.argv[3:]]
        for patch in patches:
            patch()
        train_timed()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for work in (rates, run, table):
        command = commands.add_parser(work.__name__)
        if work is not table:
            command.add_argument("data", type=Path)
            command.add_argument("--candidates", nargs="+", default=list(CANDIDATES))
            command.add_argument("--sets", nargs="+", choices=SETS, default=["camvid", "isbi", "cracks", "shapes"])
        command.add_argument("results", type=Path)
        if work is not rates:
            command.add_argument("--minutes", type=float, default=3)
        if work is run:
            command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        command.set_defaults(run=work)
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    args.run(args)


if __name__ == "__main__":
    main()
