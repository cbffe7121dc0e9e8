"""Whether two checkouts read the same data sets: names, order, splits, identity, inspection, warnings and errors.

python benchmarks/same_rows.py record rows.json                  writes what this checkout reads
python benchmarks/same_rows.py compare rows.json                 this checkout against what was recorded
python benchmarks/same_rows.py compare ../other-checkout         this checkout against another one

Each layout of benchmarks/layouts.py is read three times: by `train.py --check-data`, whose report counts line by line;
by a training step, of which the identity in run.json, the preprocessing in the model's config.json, the losses and the
names of the validation images count; and by a question for the names of all rows (`print_row_names`). Where train.py
ends with an error, that line counts. A comparison prints what differs and ends with exit code 1 if anything does.
"""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.recorded import Numbers, record_or_compare

STEP = (
    "--plan none --max-steps 1 --base-channels 4 --depth 1 --batch-size 2 --num-workers 0 --tracker none --log-every 1"
)
IDENTITY = ("task", "dims", "classes", "in_channels", "data set", "content of the data set")
PREPROCESSING = (
    "mean",
    "std",
    "pixel_types",
    "spacing",
    "bands",
    "place",
    "class_names",
    "class_values",
    "ignore_value",
)


def measure(checkout: Path, names: list[str]) -> Numbers:
    """What a checkout reads of the named layouts: layout -> what was asked -> the answer."""
    layouts = [layout for layout in LAYOUTS if not names or layout.name in names]
    processes = min(os.cpu_count() or 1, len(layouts))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for layout in layouts:
            layout.write(folder / layout.folder)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
        environment |= {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder / "cache")}
        environment["ACCELERATE_MIXED_PRECISION"] = "no"

        def ask(share: int) -> Numbers:
            shared_names = [layout.name for layout in layouts[share::processes]]
            command = [sys.executable, __file__, "answer", str(checkout), *shared_names]
            process = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            return json.loads(process.stdout)

        with ThreadPoolExecutor(processes) as pool:
            answers = {name: answer for part in pool.map(ask, range(processes)) for name, answer in part.items()}
    return {layout.name: answers[layout.name] for layout in layouts}


def answers_of(layout: Layout, checkout: Path) -> dict[str, str]:
    """All that is asked of a layout; the modules of the checkout have been imported."""
    run = Path(f"{layout.folder}.run")
    flags = f"--dataset {layout.folder} {layout.flags}".format(data=layout.folder).split()
    step = [*flags, *STEP.split(), "--output-dir", str(run)]
    answers = {}
    answers |= script_answers("check", checkout / "train.py", [*flags, "--check-data"])
    answers |= script_answers("train", checkout / "train.py", step)
    if (run / "run.json").is_file():
        answers |= run_answers(run)
        answers |= json.loads(in_a_fork(print_row_names, [str(run)])[1])
    return answers


def script_answers(name: str, script: Path, words: list[str]) -> dict[str, str]:
    """How a script ended, and each line that it printed; of an error the last line."""
    exit_code, printed, errors = in_a_fork(run_script, [str(script), *words])
    lines = printed.splitlines()
    if name == "train":  # the files of the run say the rest
        lines = [line for line in lines if line.startswith("data: ")]
    answers = {f"{name}: exit code": str(exit_code)}
    for line in errors.splitlines():
        if ": error: " in line:
            answers[f"{name}: error"] = line
    for line, count in Counter(lines).items():
        answers[f"{name}: {line}"] = f"printed {count} times"
    return answers


def run_answers(run: Path) -> dict[str, str]:
    """Identity, preprocessing, losses and names of the validation images of a finished run."""
    identity = json.loads((run / "run.json").read_text())["identity"]
    answers = {f"identity: {name}": json.dumps(identity.get(name)) for name in IDENTITY}
    preprocess = json.loads((run / "model" / "config.json").read_text())["preprocess"]
    preprocess["bands"] = preprocess.get("bands") or None  # configs of before have no entry where all bands are read
    answers |= {f"preprocessing: {name}": json.dumps(preprocess.get(name)) for name in PREPROCESSING}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        answers |= {key: repr(record[key]) for key in ("train/loss", "eval/loss") if key in record}
    scores = (run / "images.csv").read_text().splitlines()
    answers["images.csv"] = " ".join(line.rpartition(",")[0] for line in scores)
    return answers


def print_row_names(run: list[str]) -> None:
    """The names of the rows of both splits, in their order, as JSON: the only question that no script answers."""
    from data_utils.config import DataConfig
    from data_utils.sources.load import load_records

    flags = json.loads(Path(*run, "run.json").read_text())["flags"]
    if hasattr(DataConfig, "from_flags"):  # in checkouts before 48b0ce50
        config = DataConfig.from_flags(flags)
    else:
        from runtime.values import checked

        config = DataConfig(**checked(DataConfig, flags))
    splits = load_records(config)
    names = {}
    for split, records in zip(("training", "validation"), splits, strict=True):
        names[f"rows: {split}"] = " ".join(records.name(index) for index in range(len(records)))
    print(json.dumps(names))


def run_script(words: list[str]) -> None:
    """A script, as if Python had been started with these words."""
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def in_a_fork(function: Callable[[list[str]], None], words: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a function in a forked process, which need import nothing."""
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:

        def call() -> None:
            os.dup2(printed.fileno(), sys.stdout.fileno())
            os.dup2(errors.fileno(), sys.stderr.fileno())
            function(words)

        process = multiprocessing.get_context("fork").Process(target=call)
        process.start()
        process.join()
        printed.seek(0)
        errors.seek(0)
        return process.exitcode or 0, printed.read(), errors.read()


def answer(checkout: Path, names: list[str]) -> None:
    """Print what a checkout reads of the named layouts, which are written in this folder, as JSON."""
    sys.path.insert(0, str(checkout))
    import train  # noqa: F401  # once, for all forks

    layouts = [layout for layout in LAYOUTS if layout.name in names]
    print(json.dumps({layout.name: answers_of(layout, checkout) for layout in layouts}))


def main() -> None:
    record_or_compare(__doc__, measure, [layout.name for layout in LAYOUTS])


if __name__ == "__main__":
    if sys.argv[1:2] == ["answer"]:
        answer(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
