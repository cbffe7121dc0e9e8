"""How long a rehearsal measures and how many steps it plans, with a clock that only the test turns.

Modules: train_utils/monitoring/rehearsal.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from in_process import parsed, process_state_kept

from runtime.errors import SettingsError
from train_utils.checkpoints import save
from train_utils.checkpoints.save import Checkpoints
from train_utils.monitoring import rehearsal
from train_utils.monitoring.rehearsal import MeasuredSeconds, Pace, Rehearsal
from train_utils.run_state import RunState
from unet import UNet, UNetConfig


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(rehearsal.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(rehearsal, "PROCESS_START", 1000.0)

    def takes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def new_rehearsal(minutes: float) -> Rehearsal:
    rehearsed = object.__new__(Rehearsal)
    rehearsed.accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda values: values, num_processes=1)
    rehearsed.seconds = 60 * minutes
    rehearsed.times = MeasuredSeconds()
    rehearsed._warm_up = 3
    rehearsed._timed_steps = 0
    rehearsed._bf16_step = None
    return rehearsed


def test_a_rehearsal_reads_the_images_that_the_run_would_read_first(monkeypatch):
    calls = []

    def new_sampler(*arguments: object) -> SimpleNamespace:
        calls.append(arguments)
        widths = (80, 10, 40, 20, 70, 60, 30, 50, 5, 90)
        return SimpleNamespace(batches=lambda epoch: [SimpleNamespace(shape=(8, width)) for width in widths])

    @contextmanager
    def one_at_a_time(accelerator: SimpleNamespace) -> Iterator[None]:
        calls.append("begin")
        yield
        calls.append("end")

    def build(*arguments: object, **options: object) -> str:
        calls.append((arguments, options))
        return "loaders"

    monkeypatch.setattr(rehearsal, "exit_on_sigterm", lambda: calls.append("ends by SIGTERM"))
    monkeypatch.setattr(rehearsal, "TrainingSampler", new_sampler)
    monkeypatch.setattr(rehearsal, "first_on_each_machine", one_at_a_time)
    monkeypatch.setattr(rehearsal, "build_loaders", build)
    monkeypatch.setattr(rehearsal, "compiles", lambda accelerator: False)
    monkeypatch.setattr(rehearsal, "has_bf16_instructions", lambda device: True)
    device = torch.device("cpu")
    scaler = SimpleNamespace(state_dict=lambda: {"scale": 8.0})
    accelerator = SimpleNamespace(device=device, scaler=scaler, mixed_precision="bf16", distributed_type="NO")
    flags = ["--dataset", "shapes", "--plan", "none", "--max-minutes", "3", "--seed", "7", "--num-workers", "2"]
    info = mock.MagicMock()
    info.train.__len__.return_value = 40
    network = UNet(UNetConfig(base_channels=1, depth=1))
    rehearsed = Rehearsal(
        accelerator,
        parsed(*flags),
        network,
        info=info,
        shapes=SimpleNamespace(train="shapes of training"),
        batch_split="split",
        output_dir=Path("run"),
    )
    first, sampler, begin, (arguments, options), end = calls
    assert first == "ends by SIGTERM"  # with nothing to save
    assert sampler == ("shapes of training", "split", 7, range(0), info.train.records.group_sizes)
    assert begin == "begin"  # one process of a machine decodes for --cache
    assert end == "end"
    *further_arguments, steps = arguments
    assert further_arguments == [info, network.config, SimpleNamespace(train="shapes of training"), "split"]
    assert steps[:8] == [7, 1, 4, 6, 9, 7, 3, 0]
    assert options == {"num_workers": 2, "device": device}
    assert rehearsed.loaders == "loaders"
    assert rehearsed.seconds == 180
    assert rehearsed._scaler_state == {"scale": 8.0}
    assert rehearsed.schedule.peak == 0
    assert rehearsed.schedule.eval_every == 10
    assert rehearsed.folder == Path("run/checkpoints/.rehearsal")
    assert rehearsed.model is not network
    assert not rehearsed.tries_bf16  # all steps are in bf16


def test_a_rehearsal_with_deepspeed_is_refused():
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    named = dict.fromkeys(("info", "shapes", "batch_split", "output_dir"))
    with pytest.raises(SettingsError, match="--max-minutes does not work with DeepSpeed; give --max-steps"):
        Rehearsal(accelerator, parsed("--max-minutes", "3"), None, **named)


@pytest.mark.parametrize(
    ("minutes", "seconds", "timed", "again"),
    [(10, 1.0, 2 + 18, 10), (10, 0.1, 2 + 40, 21), (10, 100.0, 2, 1), (1, 0.5, 2 + 3, 2)],
)
def test_steps_are_timed_for_three_hundredths_of_the_time_and_forty_at_most(clock, minutes, seconds, timed, again):
    rehearsed = new_rehearsal(minutes)
    steps = iter(range(1000))
    calls = []

    def make_step(step: int) -> None:
        calls.append(step)
        clock.takes(seconds if len(calls) > 3 else 999)

    rehearsed.time_steps(make_step, steps)
    assert calls == list(range(3 + timed))
    assert rehearsed.times.step == pytest.approx(seconds)
    made_again = []

    def make_slow_step(step: int) -> None:
        made_again.append(step)
        clock.takes(2 * seconds)

    rehearsed.time_steps_again(make_slow_step, steps)
    assert made_again == list(range(3 + timed, 3 + timed + again))
    assert rehearsed.times.step == pytest.approx((timed * seconds + again * 2 * seconds) / (timed + again))


def test_a_timed_step_ends_with_its_queue_on_the_slowest_process(clock, monkeypatch):
    rehearsed = new_rehearsal(10)
    rehearsed.accelerator.gather = lambda values: torch.cat([values / 2, 2 * values, values])
    queued = []

    def wait(device: torch.device) -> None:
        clock.takes(len(queued))
        queued.clear()

    monkeypatch.setattr(rehearsal, "wait_for", wait)
    steps = iter(range(1000))
    rehearsed.time_steps(queued.append, steps)
    assert rehearsed.times.step == 2.0  # eighteen seconds
    assert rehearsed._timed_steps == 2 + 9
    rehearsed.time_steps_again(queued.append, steps)
    assert rehearsed.times.step == 2.0
    assert next(steps) == 3 + 11 + 5
    rehearsed.time_bf16_steps(queued.append, steps)
    assert rehearsed._bf16_step == 2.0

    def evaluate(loader) -> None:
        list(loader)
        clock.takes(6)

    rehearsed.time_evaluation(evaluate, Batches(9))
    assert rehearsed.times.evaluation == 36.0
    assert rehearsed.times.image == 2.0


def test_without_validation_images_there_is_nothing_to_time(clock):
    rehearsed = new_rehearsal(10)
    rehearsed.time_evaluation(list, Batches(0))
    assert rehearsed.times == MeasuredSeconds()


@pytest.mark.parametrize(
    ("device", "is_compiled", "is_slow"), [("cpu", False, False), ("cpu", True, True), ("cuda", False, True)]
)
def test_a_shape_is_slow_at_first_on_a_gpu_and_where_it_is_compiled(monkeypatch, device, is_compiled, is_slow):
    monkeypatch.setattr(rehearsal, "compiles", lambda accelerator: is_compiled)
    assert rehearsal.is_slow_at_first(SimpleNamespace(device=torch.device(device))) is is_slow


@pytest.mark.parametrize(("can", "step", "tries"), [(True, 3.0, True), (True, 3.01, False), (False, 1.0, False)])
def test_steps_are_timed_in_bf16_where_six_fit_into_the_time_for_measuring(can, step, tries):
    rehearsed = new_rehearsal(10)  # 18 seconds for measuring
    rehearsed._can_use_bf16 = can
    rehearsed.times.step = step
    assert rehearsed.tries_bf16 is tries


def test_three_steps_are_timed_in_bf16_behind_one_that_is_not(clock):
    rehearsed = new_rehearsal(10)
    calls = []

    def make_step(step: int) -> None:
        calls.append(step)
        clock.takes(50 if len(calls) == 1 else 0.5)

    rehearsed.time_bf16_steps(make_step, iter(range(9)))
    assert calls == list(range(1 + 3))
    assert rehearsed._bf16_step == 0.5


class Batches:
    """A loader of so many batches of two images."""

    dataset = None

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        return iter([{"indices": [0, 1]}] * self.count)


@pytest.mark.parametrize(("batches", "evaluation"), [(31, 6.0 * 31 / 3), (2, 6.0)])
def test_an_evaluation_takes_as_long_as_three_of_its_batches_say(clock, batches, evaluation):
    rehearsed = new_rehearsal(10)
    seconds = iter([100.0, 6.0])  # the first time warms up

    def evaluate(loader) -> None:
        assert len(list(loader)) == min(3, batches)
        clock.takes(next(seconds))

    rehearsed.time_evaluation(evaluate, Batches(batches))
    assert rehearsed.times.evaluation == evaluation
    assert rehearsed.times.image == 6.0 / (2 * min(3, batches))
    with pytest.raises(StopIteration):
        next(seconds)


def test_a_save_is_timed_until_it_is_on_disk_with_the_average_and_leaves_nothing(tmp_path, clock, monkeypatch):
    write = Checkpoints._write
    kinds = []

    def write_slowly(checkpoints: Checkpoints, state: object, tensors: dict) -> bool:
        kinds.append(sorted(tensors))
        assert list(checkpoints.folder.iterdir()) == []  # what a killed run has left is gone
        clock.takes(5)
        return write(checkpoints, state, tensors)

    def submit(function: Callable, *arguments: object) -> SimpleNamespace:
        return SimpleNamespace(result=partial(function, *arguments))  # a thread that works when it is waited for

    monkeypatch.setattr(Checkpoints, "_write", write_slowly)
    monkeypatch.setattr(save, "ThreadPoolExecutor", lambda workers: SimpleNamespace(submit=submit))
    rehearsed = new_rehearsal(10)
    rehearsed.folder = tmp_path / ".rehearsal"
    (rehearsed.folder / "checkpoints" / "step-00000000").mkdir(parents=True)  # of a run that was killed here
    rehearsed.args = SimpleNamespace(ema_decay=0.9)
    rehearsed.state = RunState()
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with process_state_kept():
        rehearsed.accelerator = Accelerator(cpu=True)
        rehearsed.time_save(network, optimizer)
    assert rehearsed.times.save == 5
    assert kinds == [["average", "model", "optimizer"]]
    assert list(tmp_path.iterdir()) == []


def test_nine_tenths_of_the_time_that_is_left_are_planned(clock, monkeypatch, capsys):
    left = []

    def count(seconds, times, schedule, pictures) -> int:
        left.append(seconds)
        return 499

    monkeypatch.setattr(rehearsal, "steps_that_fit", count)
    monkeypatch.setattr(rehearsal, "pictures_of_an_evaluation", lambda info: 8)
    monkeypatch.setattr(rehearsal, "on_main", lambda accelerator, function: function())
    rehearsed = new_rehearsal(10)
    freed = []
    rehearsed.accelerator.free_memory = lambda: freed.append("the copy")
    rehearsed.model = rehearsed.loaders = rehearsed._scaler_state = rehearsed.info = rehearsed.schedule = None
    rehearsed.times = MeasuredSeconds(0.5, 2.5, 0.25, 3.125)
    rehearsed.accelerator.num_processes = 3
    monkeypatch.setattr(rehearsal, "bf16_launch_line", lambda processes: f"{processes} in bf16")
    rehearsed._bf16_step = 0.39
    clock.takes(52)
    assert rehearsed.finish() == 499
    assert left == [0.92 * 600 - 52]
    assert freed == ["the copy"]
    assert capsys.readouterr().out.splitlines() == [
        "time: a step takes 0.5 s, an evaluation 2.5 s, a save 3.12 s: 499 steps fit (the same as --max-steps 499)",
        "precision: in bf16 a step takes 0.39 s; the next run is faster with 3 in bf16",
        "time: 499 steps are few and may give poor masks; 1,000 steps take at least 10 minutes here",
    ]
    rehearsed.model = rehearsed.loaders = None
    rehearsed._scaler_state = {"scale": 8.0}
    scales = []
    rehearsed.accelerator.scaler = SimpleNamespace(load_state_dict=scales.append)
    rehearsed._bf16_step = 0.4
    monkeypatch.setattr(rehearsal, "steps_that_fit", lambda *arguments: 500)
    assert rehearsed.finish() == 500
    said = capsys.readouterr().out
    assert "are few" not in said
    assert "bf16" not in said
    assert scales == [{"scale": 8.0}]  # that of fp16, as the run found it
    rehearsed.model = rehearsed.loaders = None
    monkeypatch.setattr(rehearsal, "steps_that_fit", lambda *arguments: -3)
    assert rehearsed.finish() == 1  # however little time is left


@pytest.mark.parametrize(
    ("steps", "step", "seconds", "is_said"),
    [
        (100, 19, 1000, False),  # the pace is known after twenty steps
        (100, 20, 1000, True),
        (1000, 99, 1000, False),  # and a tenth of all
        (1000, 100, 1000, True),
        (100, 50, 313, False),  # 2 x 313 + 4 seconds are 105% of ten minutes
        (100, 50, 313.2, True),
    ],
)
def test_a_run_is_late_where_it_takes_a_twentieth_more(clock, capsys, steps, step, seconds, is_said):
    pace = Pace(10, range(0, steps))
    clock.takes(seconds)
    for _ in range(2):
        pace.check(step)
    assert capsys.readouterr().out.count("steps are slower than in the rehearsal") == is_said


def test_the_pace_of_a_resumed_run_is_that_of_its_own_steps(clock, capsys):
    pace = Pace(10, range(900, 1000))
    clock.takes(100)
    pace.check(950)  # 100 seconds are left
    assert capsys.readouterr().out == ""
    pace.check(920)  # 400 seconds and more
    assert capsys.readouterr().out == ""
    clock.takes(100)
    pace.check(920)
    assert "will end after 16.7 minutes instead of 10" in capsys.readouterr().out
