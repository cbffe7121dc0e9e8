"""What the built-in encoder is worth: the plan's own settings with it and without, after equal minutes of one core.

python benchmarks/photographs.py RESULTS SET [SET ...] --minutes 3 --seeds 0
python benchmarks/photographs.py RESULTS camvid --flags "--ignore-index 11"

A set is a folder that train.py reads. For each kind a trial measures how much of one core's time a step takes in
float32; as many steps as fit into the minutes are then trained, with the precision of accelerate's environment
variables. So other programs on the machine change no number. RESULTS/photographs.jsonl gets a line for each run.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from train_utils.settings.flags import parse_args
from train_utils.settings.plan import plan_run
from train_utils.settings.train_settings import as_flags

KINDS = {"scratch": ["--encoder", "none"], "lite0": []}
LIKE = ["--plan", "none", "--tracker", "none", "--num-workers", "0"]
SELDOM = ["--eval-every", "1000000", "--checkpoint-every", "1000000"]
TRIAL_STEPS = 20  # of which the median counts


def planned_flags(data: Path, flags: list[str], minutes: float) -> list[str]:
    """The settings that the plan chooses beside `flags`, as they are typed, without those of the run's length."""
    sys.argv = ["train.py", "--dataset", str(data), "--max-minutes", str(minutes), *flags]
    settings = parse_args("")
    info = load_dataset_info(DataConfig.from_args(settings))
    values = plan_run(info, settings).decide(settings)
    for name in ("epochs", "eval_every", "checkpoint_every"):
        values.pop(name, None)
    return as_flags(values).split()


def trained(output: Path, flags: list[str]) -> tuple[dict, float]:
    """The last record of a run of train.py in a process of its own, and a step's processor time in seconds."""
    command = [sys.executable, __file__, "train", *flags, *LIKE, *SELDOM, "--output-dir", str(output)]
    process = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    record = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return record, float(process.stdout.splitlines()[-1])


def measure(args: argparse.Namespace, data: Path) -> None:
    """A line for each kind and seed on one set."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    more = shlex.split(args.flags)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        flags = {}
        seconds = {}
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
        for kind, own in KINDS.items():  # one right after the other: the machine is as busy for both
            flags[kind] = ["--dataset", str(data), *more, *own, *planned_flags(data, [*more, *own], args.minutes)]
            trial = [*flags[kind], "--max-steps", str(TRIAL_STEPS)]
            seconds[kind] = trained(folder / f"{kind}-trial", trial)[1]
        os.environ["ACCELERATE_MIXED_PRECISION"] = precision
        for seed in args.seeds:
            for kind in args.kinds:
                steps = max(1, round(60 * args.minutes / seconds[kind]))
                last = ["--max-steps", str(steps), "--seed", str(seed)]
                record, _ = trained(folder / f"{kind}-{seed}", [*flags[kind], *last])
                scores = {key: value for key, value in record.items() if key.startswith(("eval/mean", "eval/iou"))}
                line = {"set": data.name, "kind": kind, "minutes": args.minutes, "seed": seed, "steps": steps}
                line |= {"step_seconds": round(seconds[kind], 4), "plan": " ".join(flags[kind][2:])} | scores
                print(json.dumps(line), flush=True)
                with (args.results / "photographs.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")


def main() -> None:
    """The measurement above, and `train`, which is a timed train.py."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.argv[1:2] == ["train"]:
        from recipe import train_timed

        sys.argv = ["train.py", *sys.argv[2:]]
        train_timed()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--flags", default="", help="more flags of train.py for both kinds")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    for data in args.sets:
        measure(args, data)


if __name__ == "__main__":
    main()
