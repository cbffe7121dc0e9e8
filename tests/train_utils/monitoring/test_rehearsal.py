"""--max-minutes: a number of steps is measured before the first one, and from there on the run is that many steps."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from PIL import Image
from support.folders import write_folder, write_splits
from support.in_process import Run, parsed, run_train
from support.launches import ROOT, launch
from support.run_equality import different_tensors, without_times

import train
from train_utils import opened_run as opened_run_module
from train_utils.monitoring import pace, rehearsal
from train_utils.monitoring.rehearsal import (
    WARM_UP_STEPS,
    MeasuredSeconds,
    rehearsed_steps,
    steps_that_fit,
)
from train_utils.schedule import Schedule

SMALL = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--norm", "group", "--num-workers", "0"]
SMALL += ["--tracker", "none"]
FLAGS = [*SMALL, "--batch-size", "4", "--micro-batch-size", "2", "--dropout", "0.1", "--ema-decay", "0.9"]
FLAGS += ["--eval-every", "3", "--log-every", "1", "--checkpoint-every", "2"]


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """A rehearsal in this process times two steps."""
    with mock.patch.object(rehearsal, "MOST_STEPS", 0):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 training and 3 validation images."""
    folder = tmp_path_factory.mktemp("data")
    return write_splits(folder, 8, 3, size=(16, 24))


def schedule(*flags: str, images: int = 100) -> Schedule:
    """The schedule of a run on so many images, ten in a step."""
    return Schedule.from_args(parsed("--plan", "none", "--batch-size", "10", *flags), images, 1)


def test_the_steps_that_fit_fill_the_time():
    assert steps_that_fit(4 + 10.1, MeasuredSeconds(step=0.5), schedule(), 8) == 20


def test_no_step_fits_into_less_time_than_the_end_of_a_run_takes():
    assert steps_that_fit(1, MeasuredSeconds(step=0.5), schedule(), 8) < 1


@pytest.mark.parametrize(("eval_every", "checkpoints_of_the_best", "pictures"), [(20, 0, 8), (21, 1, 8), (20, 0, 2)])
def test_the_steps_that_fit_leave_time_for_evaluations_saves_report(eval_every, checkpoints_of_the_best, pictures):
    times = MeasuredSeconds(step=0.5, evaluation=4.0, image=0.2, save=3.0)
    flags = ["--eval-every", str(eval_every), "--checkpoint-every", "5"]
    steps = steps_that_fit(600, times, schedule(*flags), pictures)
    evaluation = 4.0 + pictures * 0.2 + 3.0 / 3 + checkpoints_of_the_best * 3.0

    def seconds(steps: int) -> float:
        return steps * 0.5 + (steps / eval_every + 1) * evaluation + (steps / 5 + 1) * 3.0 + 3 * 8 * 0.2 + 4

    assert seconds(steps) <= 600 < seconds(steps + 1)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """A run of seven steps that were measured, and one of seven that were typed."""
    folder = tmp_path_factory.mktemp("runs")
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=7):
        measured = run_train(folder / "measured", "--dataset", data, *FLAGS, "--max-minutes", "1")
    typed_run = run_train(folder / "typed", "--dataset", data, *FLAGS, "--max-steps", "7")
    assert measured.exit_code == 0, measured.output
    assert typed_run.exit_code == 0, typed_run.output
    return measured, typed_run


def test_a_measured_run_says_how_many_steps_fit(runs):
    measured, _ = runs
    assert re.search(r"time: a step takes .* s, .*: time for 7 steps \(the same as --max-steps 7\)\n", measured.output)
    assert re.search(
        r"time: below 500 steps the masks are often poor; 1,000 steps take at least \d+ minutes? here\n",
        measured.output,
    )


@pytest.mark.parametrize("kind", ["model", "optimizer", "average"])
def test_a_measured_run_saves_the_checkpoint_of_one_of_as_many_steps(runs, kind):
    measured, typed_run = runs
    assert measured.checkpoints() == typed_run.checkpoints()
    assert measured.checkpoints()[-1] == 7
    assert different_tensors(measured.tensors(7, kind), typed_run.tensors(7, kind)) == []


def test_a_measured_run_has_the_best_model_of_one_of_as_many_steps(runs):
    measured, typed_run = runs
    assert different_tensors(measured.model, typed_run.model) == []


def test_a_measured_run_has_the_metrics_of_one_of_as_many_steps(runs):
    measured, typed_run = runs
    assert without_times(measured.records) == without_times(typed_run.records)
    assert measured.values("train/lr")[-1] < 1e-4  # the schedule came to its end


def test_a_measured_run_records_its_steps_beside_its_minutes(runs):
    measured, typed_run = runs
    assert measured.settings["total_steps"] == 7
    assert typed_run.settings["total_steps"] == 7
    assert measured.settings["flags"]["max_minutes"] == 1


def test_a_measured_run_leaves_nothing_of_its_rehearsal(runs):
    files, files_of_typed_run = ({path.name for path in run.folder.iterdir()} for run in runs)
    assert files == files_of_typed_run


def test_a_resumed_run_never_measures_again(data, runs, tmp_path):
    measured, typed_run = runs
    folder = tmp_path / "run"
    shutil.copytree(measured.folder, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000007")
    (folder / "finished.json").unlink()
    with mock.patch.object(rehearsal, "steps_that_fit", side_effect=AssertionError):
        flags = ["--max-minutes", "0.5", "--resume", "auto"]
        again = run_train(folder, "--dataset", data, *FLAGS, *flags)
    assert again.exit_code == 0, again.output
    assert "--max-minutes has no effect on a resumed run, which keeps its 7 steps" in again.output
    assert "time: measuring" not in again.output
    assert without_times(again.records) == without_times(typed_run.records)
    assert different_tensors(again.weights(7), typed_run.weights(7)) == []


def test_a_finished_run_is_not_measured_again_for_the_same_minutes(data, runs, tmp_path):
    measured, _ = runs
    shutil.copytree(measured.folder, tmp_path / "run")
    same = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "1", "--resume", "auto")
    assert "the run has finished, at step 7 of 7; to continue it, give more" in same.output


@pytest.fixture(scope="module")
def prolonged(data, runs, tmp_path_factory) -> tuple[Run, float]:
    """The measured run, continued after its one minute with --max-minutes 3, and the seconds that it is to fill."""
    measured, _ = runs
    folder = tmp_path_factory.mktemp("prolonged") / "run"
    shutil.copytree(measured.folder, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "PROCESS_START", time.monotonic())  # this process runs other tests too
        count = mock.Mock(return_value=3)
        patch.setattr(rehearsal, "steps_that_fit", count)
        run = run_train(folder, "--dataset", data, *FLAGS, "--max-minutes", "3", "--resume", "auto")
    assert run.exit_code == 0, run.output
    seconds, *_ = count.call_args.args
    return run, seconds


def test_a_finished_run_fills_the_minutes_that_are_added(prolonged):
    run, seconds = prolonged
    assert 60 < seconds <= rehearsal.PLANNED_SHARE * 120
    assert "time: measuring some steps, to fill --max-minutes 2" in run.output


def test_a_finished_run_goes_on_for_the_steps_that_fit(prolonged):
    run, _ = prolonged
    assert "the run is now 10 steps long instead of 7" in run.output
    assert "no effect" not in run.output
    assert run.settings["total_steps"] == 10
    assert run.checkpoints()[-1] == 10


STEPS_IN_FLOAT32 = 3 + 2 + 1 + 1  # to warm up, timed, timed again, and the step of the run
BF16_HELPS = 1e9  # a step in bf16 may take as long as it will
BF16_DOES_NOT_HELP = 0.0


@pytest.fixture
def rehearsed(data, tmp_path, monkeypatch) -> Callable[..., SimpleNamespace]:
    """A function that makes a measured run on a processor: the `run`, its `advice`, and which `steps` are in bf16."""

    def run(*, has_bf16: bool, faster: float) -> SimpleNamespace:
        monkeypatch.setattr(rehearsal, "has_bf16_instructions", lambda device: has_bf16)
        monkeypatch.setattr(rehearsal, "BF16_FASTER", faster)
        steps_in_bf16 = []
        step = train.train_step

        def noted_step(*arguments, **options) -> torch.Tensor:
            steps_in_bf16.append(torch.is_autocast_enabled("cpu"))
            return step(*arguments, **options)

        monkeypatch.setattr(train, "train_step", noted_step)
        with mock.patch.object(rehearsal, "steps_that_fit", return_value=1):
            run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "9")
        assert run.exit_code == 0, run.output
        advice = [line for line in run.output.splitlines() if line.startswith("precision: ")]
        return SimpleNamespace(run=run, advice=advice, steps=steps_in_bf16)

    return run


def test_bf16_is_advised_where_a_step_in_it_is_faster(rehearsed, data):
    result = rehearsed(has_bf16=True, faster=BF16_HELPS)
    (line,) = result.advice
    command = f"accelerate launch --mixed_precision bf16 train.py --output-dir {result.run.folder} --dataset {data}"
    assert command in line
    assert result.steps.count(True) == 4
    assert result.steps.count(False) == STEPS_IN_FLOAT32


def test_bf16_is_not_advised_where_a_step_in_it_is_not_faster(rehearsed):
    result = rehearsed(has_bf16=True, faster=BF16_DOES_NOT_HELP)
    assert result.advice == []
    assert result.steps.count(True) == 4
    assert result.steps.count(False) == STEPS_IN_FLOAT32


def test_bf16_is_not_tried_where_the_processor_lacks_its_instructions(rehearsed):
    result = rehearsed(has_bf16=False, faster=BF16_HELPS)
    assert result.advice == []
    assert result.steps == [False] * STEPS_IN_FLOAT32


@pytest.mark.slow
def test_all_processes_agree_on_the_steps(data, tmp_path):
    """The times are real; that the processes exchange gradients at all shows that they have as many steps."""
    flags = ["--max-minutes", "0.12", "--eval-every", "100", "--checkpoint-every", "100", "--log-every", "0"]
    command = ["train.py", "--dataset", data, "--output-dir", tmp_path / "run", *FLAGS, *flags]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    said = int(re.search(r"the same as --max-steps (\d+)", result.stdout).group(1))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["total_steps"] == said
    state = tmp_path / "run" / "checkpoints" / f"step-{said:08}"
    assert json.loads((state / "state.json").read_text())["total_steps"] == said


def test_minutes_beside_steps_are_refused(tmp_path):
    refused = run_train(tmp_path / "run", "--max-minutes", "3", "--max-steps", "5")
    (line,) = [line for line in refused.output.splitlines() if "error: " in line]
    assert "--max-minutes and --max-steps both say how long the run is; give one of them" in line
    assert refused.exit_code == 2


def test_no_learning_rate_is_too_high_for_a_rehearsal(data, tmp_path):
    flags = ["--learning-rate", "1e12", "--optimizer", "sgd", "--warmup-steps", "100000000"]
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1):
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, *flags, "--max-minutes", "1")
    assert run.exit_code == 0
    assert "not finite" not in run.output


def test_a_clock_that_is_set_back_does_not_change_the_plan(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "PROCESS_START", time.monotonic() - 40)
    begin, clock = time.time(), time.time
    monkeypatch.setattr(time, "time", lambda: 2 * begin - clock() - 86_400)  # a day ago, and running backwards
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1) as count:
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "1000")
    assert run.exit_code == 0, run.output
    seconds, *_ = count.call_args.args
    assert 55_200 - 40 - 500 < seconds < 55_200 - 40  # 92% of the minutes, less what has passed


def test_the_time_of_the_imports_counts_also_where_they_wait():
    waiting = "import time; time.sleep(3); from train_utils.monitoring import pace; print(pace.seconds_since_start())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begin = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", waiting], env=environment, stdout=-1, check=True).stdout)
    assert 3 < age < time.monotonic() - begin + 1  # the system tells the start of a process to a second


def test_everything_is_decoded_before_the_steps_are_counted(data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--cache", "--max-minutes", "0.001")
    assert run.exit_code == 0, run.output
    before, after = run.output.split("time: measuring")
    assert before.count("decoding for the cache: 100%") == 2
    assert "decoding" not in after
    assert "time for 1 step (the same as --max-steps 1)" in after
    assert run.settings["total_steps"] == 1


def test_a_run_stopped_in_its_rehearsal_leaves_nothing(data, tmp_path, monkeypatch):
    """So that the same command can be given again."""

    def stopped_step(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    ends: list[Callable[[], None]] = []

    def register(function: Callable, *arguments: object) -> None:
        ends.append(partial(function, *arguments))

    monkeypatch.setattr(opened_run_module, "atexit", SimpleNamespace(register=register))
    monkeypatch.setattr(train, "train_step", stopped_step)
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that ends no run
    try:
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "9")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert "time: measuring" in run.output
    assert run.exit_code == 128 + signal.SIGTERM
    for end in ends:  # of the process
        end()
    assert not run.folder.exists()


MIXED_SHAPES = [([(8, 8)] * 60 + [(16, 8)] * 30 + [(64, 64)] * 10)[step * 37 % 100] for step in range(100)]


@pytest.mark.parametrize("meets_all", [False, True])
@pytest.mark.parametrize(("shape", "share"), [((8, 8), 0.6), ((16, 8), 0.3), ((64, 64), 0.1)])
@pytest.mark.parametrize("count", [10, 20, 42])
def test_shapes_are_timed_as_often_as_they_occur(monkeypatch, meets_all, shape, share, count):
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    _, timed = rehearsed_steps(MIXED_SHAPES, meets_all)
    shapes = [MIXED_SHAPES[step] for step in timed[:count]]
    assert abs(shapes.count(shape) - share * count) <= 1.5


def test_all_shapes_are_met_before_steps_are_timed(monkeypatch):
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    warm_up, _ = rehearsed_steps(MIXED_SHAPES, True)
    assert len(warm_up) == WARM_UP_STEPS + 3
    assert {MIXED_SHAPES[step] for step in warm_up} == set(MIXED_SHAPES)


def test_three_steps_warm_up_where_no_shape_is_slow_at_first(monkeypatch):
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    warm_up, _ = rehearsed_steps(MIXED_SHAPES, False)
    assert len(warm_up) == WARM_UP_STEPS


@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_timed_steps_are_spread_over_the_sizes(axis):
    shapes = [(side, 8) if axis == 0 else (8, side) for side in (80, 10, 40, 20, 70, 60, 30, 50, 0, 90)]
    warm_up, timed = rehearsed_steps(shapes, False)
    assert [shapes[step][axis] for step in [*warm_up, *timed[:5]]] == [50, 10, 70, 30, 90, 50, 20, 80]


def test_the_size_of_a_volume_is_that_of_all_its_sides():
    widths = (90, 20, 60, 40, 80, 10, 50, 70, 30, 100)
    shapes = [(1000 - width, 8, width)[:: 1 if width % 20 else -1] for width in widths]
    warm_up, timed = rehearsed_steps(shapes, False)
    assert [widths[step] for step in [*warm_up, *timed[:5]]] == [60, 20, 80, 40, 100, 60, 30, 90]


def test_steps_of_two_shapes_are_mixed_wherever_they_lie_in_the_epoch():
    _, timed = rehearsed_steps([(16, 8)] * 50 + [(8, 8)] * 50, False)
    is_of_first_shape = [step < 50 for step in timed[:4]]
    assert any(is_of_first_shape)
    assert not all(is_of_first_shape)


def test_steps_of_one_shape_are_rehearsed_in_the_order_of_a_stream():
    warm_up, timed = rehearsed_steps([(8, 8)] * 5, True)
    assert [*warm_up, *timed] == list(range(WARM_UP_STEPS + len(timed)))


class SlowAtFirst:
    """Steps that take half a second more where their shape is new, as on a GPU."""

    def __init__(self, train_step: Callable) -> None:
        self.train_step = train_step
        self.shapes: set[torch.Size] = set()

    def __call__(self, accelerator, model, optimizer, criterion, micro_batches, *arguments, **options):
        shape = micro_batches[0].images.shape
        if shape not in self.shapes:
            self.shapes.add(shape)
            time.sleep(0.5)
        return self.train_step(accelerator, model, optimizer, criterion, micro_batches, *arguments, **options)


def test_steps_are_timed_without_what_a_new_shape_costs(tmp_path, monkeypatch):
    """cuDNN times its kernels, and a compiler compiles, when a shape is met for the first time."""
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    monkeypatch.setattr(train, "train_step", SlowAtFirst(train.train_step))
    for kind in ("train", "val"):
        write_folder(tmp_path / "data" / kind, 10, seed=0, size=(48, 24))
        for file in (tmp_path / "data" / kind).glob("*/*.png"):
            with Image.open(file) as image:
                smaller = image.crop((0, 0, 16 + 8 * (int(file.stem[-1]) // 2), 24))  # five shapes
            smaller.save(file)
    monkeypatch.setattr(rehearsal, "is_slow_at_first", lambda accelerator: True)
    flags = [*SMALL, "--batch-size", "2", "--max-minutes", "0.05"]
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1) as count:
        run = run_train(tmp_path / "run", "--dataset", tmp_path / "data", *flags)
    assert run.exit_code == 0, run.output
    assert len(train.train_step.shapes) == 5
    assert count.call_args.args[1].step < 0.25


def test_nothing_of_the_rehearsal_stays_in_memory(data, tmp_path, monkeypatch):
    """In bf16 the network would be in a cycle of references."""
    copies = []
    freed = []
    prepare = train.prepare

    def prepare_noted(accelerator, args, model, *arguments):
        freed.extend(copy() is None for copy in copies)
        copies.append(weakref.ref(model))
        return prepare(accelerator, args, model, *arguments)

    monkeypatch.setattr(train, "prepare", prepare_noted)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setattr(rehearsal, "has_bf16_instructions", lambda device: True)
    monkeypatch.setattr(rehearsal, "BF16_FASTER", 1e9)
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1):
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "1")
    assert run.exit_code == 0, run.output
    assert "in bf16 a step takes" not in run.output  # all of them are
    assert freed == [True]
