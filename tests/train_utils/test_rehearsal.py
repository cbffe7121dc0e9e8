"""--max-minutes: a number of steps is measured before the first one, and from there on the run is that many steps."""

import importlib.util
import json
import re
import shutil
import signal
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
from conftest import launch, write_folder, write_splits
from in_process import parsed, run_train
from PIL import Image

import train
from train_utils import run_dir
from train_utils.monitoring import rehearsal
from train_utils.monitoring.rehearsal import (
    FIRST_STEPS,
    WARM_UP_STEPS,
    MeasuredSeconds,
    Rehearsal,
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
    return Schedule.from_args(parsed("--plan", "none", "--batch-size", "10", *flags), images, None)


def test_the_steps_that_fit_fill_the_time():
    assert steps_that_fit(4 + 10.1, MeasuredSeconds(step=0.5), schedule(), 8) == 20


def test_no_step_fits_into_less_time_than_the_end_of_a_run_takes():
    assert steps_that_fit(1, MeasuredSeconds(step=0.5), schedule(), 8) < 1


@pytest.mark.parametrize(("eval_every", "checkpoints_of_the_best", "pictures"), [(20, 0, 8), (21, 1, 8), (20, 0, 2)])
def test_the_steps_that_fit_leave_time_for_evaluations_saves_and_the_report(
    eval_every, checkpoints_of_the_best, pictures
):
    times = MeasuredSeconds(step=0.5, evaluation=4.0, image=0.2, save=3.0)
    flags = ["--eval-every", str(eval_every), "--checkpoint-every", "5"]
    steps = steps_that_fit(600, times, schedule(*flags), pictures)
    evaluation = 4.0 + pictures * 0.2 + 3.0 / 3 + checkpoints_of_the_best * 3.0
    needed = [
        n * 0.5 + (n / eval_every + 1) * evaluation + (n / 5 + 1) * 3.0 + 3 * 8 * 0.2 + 4 for n in (steps, steps + 1)
    ]
    assert needed[0] <= 600 < needed[1]


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Seven steps that were measured, and seven that were asked for."""
    folder = tmp_path_factory.mktemp("runs")
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=7):
        measured = run_train(folder / "measured", "--dataset", data, *FLAGS, "--max-minutes", "1")
    result = run_train(folder / "asked", "--dataset", data, *FLAGS, "--max-steps", "7")
    assert measured.exit_code == result.exit_code == 0, measured.output
    return measured, result


def without_times(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if not key.startswith("perf/")} for record in records]


def test_a_measured_run_equals_one_of_as_many_steps_bit_for_bit(runs):
    measured, typed_run = runs
    assert re.search(r"time: a step takes .* s, .*: 7 steps fit \(the same as --max-steps 7\)\n", measured.output)
    assert re.search(r"time: 7 steps are few .*; 1,000 steps take at least \d+ minutes here\n", measured.output)
    assert measured.checkpoints() == typed_run.checkpoints()
    assert measured.checkpoints()[-1] == 7
    for kind in ("model", "optimizer", "average"):
        ours, theirs = measured.tensors(7, kind), typed_run.tensors(7, kind)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert without_times(measured.records) == without_times(typed_run.records)
    assert all(torch.equal(value, typed_run.model[key]) for key, value in measured.model.items())
    assert measured.values("train/lr")[-1] == typed_run.values("train/lr")[-1] < 1e-4  # the schedule came to its end
    assert measured.settings["total_steps"] == typed_run.settings["total_steps"] == 7
    assert measured.settings["flags"]["max_minutes"] == 1
    left = {path.name for path in measured.folder.iterdir()}
    assert left == {path.name for path in typed_run.folder.iterdir()}  # nothing of the rehearsal


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
    assert all(torch.equal(value, typed_run.weights(7)[key]) for key, value in again.weights(7).items())


def test_a_finished_run_goes_on_for_the_minutes_that_are_added(data, runs, tmp_path, monkeypatch):
    measured, _ = runs
    monkeypatch.setattr(rehearsal, "PROCESS_START", time.monotonic())  # this process runs other tests too
    folder = tmp_path / "run"
    shutil.copytree(measured.folder, folder)
    same = run_train(folder, "--dataset", data, *FLAGS, "--max-minutes", "1", "--resume", "auto")
    assert "the run has finished, at step 7 of 7; to continue it, give more" in same.output
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=3) as count:
        longer = run_train(folder, "--dataset", data, *FLAGS, "--max-minutes", "3", "--resume", "auto")
    assert longer.exit_code == 0, longer.output
    seconds, *_ = count.call_args.args
    assert 60 < seconds <= rehearsal.PLANNED_SHARE * 120  # two minutes more
    assert "time: measuring some steps, to fill 2 minutes" in longer.output
    assert "the run is now 10 steps long instead of 7" in longer.output
    assert "no effect" not in longer.output
    assert longer.settings["total_steps"] == 10
    assert longer.checkpoints()[-1] == 10


def test_a_run_says_early_and_once_that_it_will_be_late(monkeypatch, capsys):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(rehearsal, "PROCESS_START", 990.0)
    pace = rehearsal.Pace(2.0, range(50, 350))
    for step in range(51, 200):
        clock[0] += 0.35  # 300 steps in 105 s: in time
        pace.check(step)
    assert capsys.readouterr().out == ""
    pace = rehearsal.Pace(2.0, range(50, 350))
    for step in range(51, 200):
        clock[0] += 0.7
        pace.check(step)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("time: steps are slower than in the rehearsal, so the run will end after")
    assert "minutes instead of 2;" in line
    pace = rehearsal.Pace(None, range(0, 300))  # nobody has set a time
    clock[0] += 9999
    pace.check(200)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("knows", "share", "advised"), [(True, 0.5, 1), (True, 0.9, 0), (False, 0.5, 0)])
def test_bf16_is_advised_where_the_rehearsal_has_shown_that_it_helps(
    data, tmp_path, monkeypatch, knows, share, advised
):
    monkeypatch.setattr(rehearsal, "has_bf16_instructions", lambda device: knows)
    monkeypatch.setattr(rehearsal, "BF16_FASTER", 1e9 if share < 0.8 else 0.0)
    computes_in_bf16 = []
    step = train.train_step

    def noted_step(*arguments, **options) -> torch.Tensor:
        computes_in_bf16.append(torch.is_autocast_enabled("cpu"))
        return step(*arguments, **options)

    monkeypatch.setattr(train, "train_step", noted_step)
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1):
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "9")
    assert run.exit_code == 0, run.output
    lines = [line for line in run.output.splitlines() if line.startswith("precision: ")]
    assert len(lines) == advised
    assert sum(computes_in_bf16) == (4 if knows else 0)
    in_float32 = len(computes_in_bf16) - sum(computes_in_bf16)
    assert in_float32 == 3 + 2 + 1 + 1  # to warm up, timed, timed again, and the step of the run
    command = f"accelerate launch --mixed_precision bf16 train.py --output-dir {run.folder} --dataset {data}"
    assert all(command in line for line in lines)


def test_the_slowest_process_decides_how_many_steps_all_make(monkeypatch):
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    seconds_of_others = torch.tensor([0.8, 0.1])  # seconds that a step takes in two other processes
    rehearsed = object.__new__(Rehearsal)
    rehearsed.accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        gather=lambda seconds: torch.cat([seconds, seconds_of_others]),
        free_memory=lambda: None,
    )
    rehearsed.times, rehearsed.seconds, rehearsed._warm_up = MeasuredSeconds(), 60.0, WARM_UP_STEPS
    steps_made: list[int] = []
    rehearsed.time_steps(steps_made.append, iter(range(100)))
    assert len(steps_made) == WARM_UP_STEPS + FIRST_STEPS + 2  # 3% of a minute hold two steps of 0.8 s
    assert rehearsed.times.step == pytest.approx(0.8)
    rehearsed.model = rehearsed.loaders = rehearsed._scaler_state = rehearsed._bf16_step = None
    monkeypatch.setattr(rehearsal, "on_main", lambda accelerator, count_steps: 12)
    assert rehearsed.finish() == 12


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


def test_a_rehearsal_learns_nothing_so_that_no_learning_rate_is_too_high_for_it(data, tmp_path):
    flags = ["--learning-rate", "1e12", "--optimizer", "sgd", "--warmup-steps", "100000000"]
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1):
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, *flags, "--max-minutes", "1")
    assert run.exit_code == 0
    assert "not finite" not in run.output


def test_a_clock_that_is_set_back_does_not_change_the_plan(data, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "PROCESS_START", time.monotonic() - 40)
    begin, clock = time.time(), time.time
    monkeypatch.setattr(time, "time", lambda: 2 * begin - clock() - 86_400)  # a day ago, and running backwards
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1) as count:
        run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-minutes", "1000")
    assert run.exit_code == 0, run.output
    seconds, *_ = count.call_args.args
    assert 55_200 - 40 - 500 < seconds < 55_200 - 40  # 92% of the minutes, less what has passed


def test_the_time_of_the_imports_counts():
    specification = importlib.util.find_spec("train_utils.monitoring.rehearsal")
    fresh = importlib.util.module_from_spec(specification)
    with mock.patch.dict(sys.modules, {specification.name: fresh}):
        specification.loader.exec_module(fresh)
    age = time.monotonic() - fresh.PROCESS_START
    assert age > 0.5  # torch alone takes longer


def test_everything_is_decoded_before_the_steps_are_counted(data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--cache", "--max-minutes", "0.001")
    assert run.exit_code == 0, run.output
    before, after = run.output.split("time: measuring")
    assert before.count("decoding for the cache: 100%") == 2
    assert "decoding" not in after
    assert "time: 1 steps are few" in after
    assert run.settings["total_steps"] == 1


def test_a_run_stopped_in_its_rehearsal_leaves_nothing(data, tmp_path, monkeypatch):
    """So that the same command can be given again."""

    def stopped_step(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    ends: list[Callable[[], None]] = []

    def register(function: Callable, *arguments: object) -> None:
        ends.append(partial(function, *arguments))

    monkeypatch.setattr(run_dir, "atexit", SimpleNamespace(register=register))
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


@pytest.mark.parametrize("meets_all", [False, True])
def test_shapes_are_timed_as_often_as_they_occur(monkeypatch, meets_all):
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    shapes = [(8, 8)] * 60 + [(16, 8)] * 30 + [(64, 64)] * 10
    shapes = [shapes[step * 37 % 100] for step in range(100)]  # mixed
    warm_up, timed = rehearsed_steps(shapes, meets_all)
    assert len(warm_up) == WARM_UP_STEPS + 3 * meets_all
    for count in (10, 20, 42):
        rehearsed = [shapes[step] for step in timed[:count]]
        for shape, share in (((8, 8), 0.6), ((16, 8), 0.3), ((64, 64), 0.1)):
            assert abs(rehearsed.count(shape) - share * count) <= 1.5
    if meets_all:
        assert {shapes[step] for step in warm_up} == set(shapes)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_timed_steps_are_spread_over_the_sizes(axis):
    shapes = [(side, 8) if axis == 0 else (8, side) for side in (80, 10, 40, 20, 70, 60, 30, 50, 0, 90)]
    warm_up, timed = rehearsed_steps(shapes, False)
    assert [shapes[step][axis] for step in [*warm_up, *timed[:5]]] == [50, 10, 70, 30, 90, 50, 20, 80]


def test_the_size_of_a_volume_is_that_of_all_its_sides():
    widths = (90, 20, 60, 40, 80, 10, 50, 70, 30, 100)
    warm_up, timed = rehearsed_steps([(200 - width, 8, width**2) for width in widths], False)
    assert [widths[step] for step in [*warm_up, *timed[:5]]] == [60, 20, 80, 40, 100, 60, 30, 90]


def test_steps_of_two_shapes_are_mixed_wherever_they_lie_in_the_epoch():
    _, timed = rehearsed_steps([(16, 8)] * 50 + [(8, 8)] * 50, False)
    assert {step < 50 for step in timed[:4]} == {True, False}


def test_steps_of_one_shape_are_rehearsed_in_the_order_in_which_a_stream_is_read():
    warm_up, timed = rehearsed_steps([(8, 8)] * 5, True)
    assert [*warm_up, *timed] == list(range(WARM_UP_STEPS + len(timed)))


def test_a_device_that_is_slow_at_each_new_shape_is_timed_without_that(tmp_path, monkeypatch):
    """cuDNN times its kernels, and a compiler compiles, when a shape is met for the first time."""
    monkeypatch.setattr(rehearsal, "MOST_STEPS", 40)
    for kind in ("train", "val"):
        write_folder(tmp_path / "data" / kind, 10, seed=0, size=(48, 24))
        for file in (tmp_path / "data" / kind).glob("*/*.png"):
            with Image.open(file) as image:
                smaller = image.crop((0, 0, 16 + 8 * (int(file.stem[-1]) // 2), 24))  # five shapes
            smaller.save(file)
    shapes, train_step = set(), train.train_step

    def slow_at_first(accelerator, model, optimizer, criterion, micro_batches, *arguments, **options):
        shape = micro_batches[0][0].shape
        if shape not in shapes:
            shapes.add(shape)
            time.sleep(0.5)
        return train_step(accelerator, model, optimizer, criterion, micro_batches, *arguments, **options)

    monkeypatch.setattr(train, "train_step", slow_at_first)
    monkeypatch.setattr(rehearsal, "is_slow_at_first", lambda accelerator: True)
    flags = [*SMALL, "--batch-size", "2", "--max-minutes", "0.05"]
    with mock.patch.object(rehearsal, "steps_that_fit", return_value=1) as count:
        run = run_train(tmp_path / "run", "--dataset", tmp_path / "data", *flags)
    assert run.exit_code == 0, run.output
    assert len(shapes) == 5
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
