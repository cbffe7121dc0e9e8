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
from support.clocks import Clock
from support.in_process import parsed, process_state_kept

from runtime.errors import SettingsError
from train_utils.checkpoints import save
from train_utils.checkpoints.save import Checkpoints
from train_utils.monitoring import rehearsal
from train_utils.monitoring.rehearsal import MeasuredSeconds, Rehearsal, rehearsed_steps, steps_that_fit
from train_utils.schedule import Schedule
from unet import UNet, UNetConfig


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


class Sampler:
    """The order of an epoch of ten steps, whose images are of ten widths."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def batches(self, epoch: int) -> list[SimpleNamespace]:
        widths = (80, 10, 40, 20, 70, 60, 30, 50, 5, 90)
        return [SimpleNamespace(shape=(8, width)) for width in widths]


NETWORK = UNet(UNetConfig(base_channels=1, depth=1))
SHAPES = SimpleNamespace(train="shapes of training")
FLAGS = ["--dataset", "shapes", "--plan", "none", "--seed", "7", "--num-workers", "2"]


class Surroundings:
    """What a rehearsal finds: an accelerator, a data set of 40 images, and loaders; and what it does with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.samplers: list[Sampler] = []
        self.loader_arguments: tuple = ()
        self.loader_options: dict = {}
        self.info = mock.MagicMock()
        self.info.train.__len__.return_value = 40
        self.accelerator = SimpleNamespace(
            device=torch.device("cpu"),
            scaler=None,
            mixed_precision="no",
            distributed_type="NO",
            num_processes=1,
            is_main_process=True,
            gather=lambda values: values,
            free_memory=lambda: self.calls.append("free memory"),
        )
        monkeypatch.setattr(rehearsal, "exit_on_sigterm", lambda: self.calls.append("ends by SIGTERM"))
        monkeypatch.setattr(rehearsal, "TrainingSampler", self.new_sampler)
        monkeypatch.setattr(rehearsal, "first_on_each_machine", self.one_at_a_time)
        monkeypatch.setattr(rehearsal, "build_loaders", self.build_loaders)
        monkeypatch.setattr(rehearsal, "compiles", lambda accelerator: False)
        monkeypatch.setattr(rehearsal, "has_bf16_instructions", lambda device: True)

    def new_sampler(self, *arguments: object) -> Sampler:
        self.samplers.append(Sampler(*arguments))
        return self.samplers[-1]

    @contextmanager
    def one_at_a_time(self, accelerator: SimpleNamespace) -> Iterator[None]:
        self.calls.append("begin")
        yield
        self.calls.append("end")

    def build_loaders(self, *arguments: object, **options: object) -> str:
        self.calls.append("loaders")
        self.loader_arguments = arguments
        self.loader_options = options
        return "loaders"

    def rehearsal(self, minutes: float, folder: Path = Path("run"), *flags: str) -> Rehearsal:
        arguments = parsed(*FLAGS, "--max-minutes", str(minutes), *flags)
        return Rehearsal(
            self.accelerator,
            arguments,
            NETWORK,
            info=self.info,
            shapes=SHAPES,
            batch_split="split",
            output_dir=folder,
        )


@pytest.fixture
def surroundings(monkeypatch) -> Surroundings:
    return Surroundings(monkeypatch)


@pytest.fixture
def ten_minutes(surroundings) -> Rehearsal:
    """A rehearsal of a run of ten minutes, 18 seconds of which are for measuring."""
    return surroundings.rehearsal(10)


def test_a_rehearsal_trains_a_copy_of_the_model(surroundings):
    copy = surroundings.rehearsal(10).model
    for weight, copied_weight in zip(NETWORK.state_dict().values(), copy.state_dict().values(), strict=True):
        assert torch.equal(weight, copied_weight)
        assert weight.data_ptr() != copied_weight.data_ptr()


def test_rehearsal_ends_by_sigterm_before_anything_can_be_saved(surroundings):
    surroundings.rehearsal(3)
    assert surroundings.calls[0] == "ends by SIGTERM"


def test_rehearsal_decodes_for_the_cache_in_one_process_of_a_machine(surroundings):
    surroundings.rehearsal(3)
    assert surroundings.calls[1:] == ["begin", "loaders", "end"]


def test_rehearsal_reads_the_images_that_the_run_would_read_first(surroundings):
    surroundings.rehearsal(3)
    (sampler,) = surroundings.samplers
    records = surroundings.info.train.records
    assert sampler.arguments == ("shapes of training", "split", 7, range(0), records.group_sizes)
    *arguments, steps = surroundings.loader_arguments
    assert arguments == [surroundings.info, NETWORK.config, SHAPES, "split"]
    assert steps[:8] == [7, 1, 4, 6, 9, 7, 3, 0]


def test_rehearsal_loads_with_the_processes_of_the_run(surroundings):
    rehearsed = surroundings.rehearsal(3)
    assert surroundings.loader_options == {"num_workers": 2, "device": torch.device("cpu")}
    assert rehearsed.loaders == "loaders"


def test_rehearsal_learns_nothing(ten_minutes):
    assert ten_minutes.model is not NETWORK
    assert ten_minutes.schedule.peak == 0
    assert ten_minutes.schedule.eval_every == 10


def test_rehearsal_saves_beside_the_checkpoints_of_the_run(ten_minutes):
    assert ten_minutes.folder == Path("run/checkpoints/.rehearsal")


@pytest.mark.parametrize(("minutes", "seconds"), [(3, 180), (2.5, 150)])
def test_a_minute_of_a_rehearsal_has_60_seconds(surroundings, minutes, seconds):
    assert surroundings.rehearsal(minutes).seconds == seconds


def test_a_rehearsal_with_deepspeed_is_refused():
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    named = dict.fromkeys(("info", "shapes", "batch_split", "output_dir"))
    with pytest.raises(SettingsError, match="--max-minutes does not work with DeepSpeed; give --max-steps"):
        Rehearsal(accelerator, parsed("--max-minutes", "3"), None, **named)


def test_first_step_of_each_shape_is_not_timed_where_it_is_slow(surroundings, clock, monkeypatch):
    monkeypatch.setattr(rehearsal, "compiles", lambda accelerator: True)
    rehearsed = surroundings.rehearsal(10)
    made_steps = []

    def make_step(step: int) -> None:
        made_steps.append(step)
        clock.takes(1 if len(made_steps) > 3 + 10 else 999)  # the sampler has ten shapes

    rehearsed.time_steps(make_step, iter(range(1000)))
    assert rehearsed.times.step == 1


timed_steps = pytest.mark.parametrize(
    ("minutes", "seconds", "timed", "again"),
    [(10, 1.0, 2 + 18, 10), (10, 0.1, 2 + 40, 21), (10, 100.0, 2, 1), (1, 0.5, 2 + 3, 2)],
    ids=["three hundredths of the time", "forty more at most", "two at least", "three hundredths of a minute"],
)


@timed_steps
def test_first_steps_are_timed_behind_three_that_are_not(surroundings, clock, minutes, seconds, timed, again):
    rehearsed = surroundings.rehearsal(minutes)
    made_steps = []

    def make_step(step: int) -> None:
        made_steps.append(step)
        clock.takes(seconds if len(made_steps) > 3 else 999)

    rehearsed.time_steps(make_step, iter(range(1000)))
    assert made_steps == list(range(3 + timed))
    assert rehearsed.times.step == pytest.approx(seconds)


@timed_steps
def test_half_as_many_steps_are_timed_again(surroundings, clock, minutes, seconds, timed, again):
    rehearsed = surroundings.rehearsal(minutes)
    steps = iter(range(1000))
    made_steps = []

    def make_slow_step(step: int) -> None:
        made_steps.append(step)
        clock.takes(2 * seconds)

    rehearsed.time_steps(lambda step: clock.takes(seconds), steps)
    rehearsed.time_steps_again(make_slow_step, steps)
    assert made_steps == list(range(3 + timed, 3 + timed + again))
    assert rehearsed.times.step == pytest.approx((timed * seconds + again * 2 * seconds) / (timed + again))


class Queue:
    """A device that works a second on each step, once it is waited for."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps: list[int] = []

    def make_step(self, step: int) -> None:
        self.steps.append(step)

    def wait(self, device: torch.device) -> None:
        self.clock.takes(len(self.steps))
        self.steps.clear()


@pytest.fixture
def queue(clock, monkeypatch) -> Queue:
    queue = Queue(clock)
    monkeypatch.setattr(rehearsal, "wait_for", queue.wait)
    return queue


@pytest.fixture
def of_three_processes(ten_minutes) -> Rehearsal:
    """A rehearsal on three processes, one of which is twice as slow and one twice as fast."""
    ten_minutes.accelerator.gather = lambda values: torch.cat([values / 2, 2 * values, values])
    return ten_minutes


def test_timed_step_ends_with_its_queue_on_the_slowest_process(of_three_processes, queue):
    steps = iter(range(1000))
    of_three_processes.time_steps(queue.make_step, steps)
    assert of_three_processes.times.step == 2.0
    assert next(steps) == 3 + 2 + 9  # two are timed, then as many as 18 seconds have


def test_step_that_is_timed_again_ends_with_its_queue_on_the_slowest_process(of_three_processes, queue):
    steps = iter(range(1000))
    of_three_processes.time_steps(queue.make_step, steps)
    of_three_processes.time_steps_again(queue.make_step, steps)
    assert of_three_processes.times.step == 2.0
    assert next(steps) == 3 + 11 + 5


def test_step_in_bf16_ends_with_its_queue_on_the_slowest_process(of_three_processes, queue):
    of_three_processes.time_bf16_steps(queue.make_step, iter(range(1000)))
    assert of_three_processes._bf16_step == 2.0


def test_evaluation_takes_as_long_as_on_the_slowest_process(of_three_processes, clock):
    def evaluate(loader) -> None:
        list(loader)
        clock.takes(6)

    of_three_processes.time_evaluation(evaluate, Batches(9))
    assert of_three_processes.times.evaluation == 36.0
    assert of_three_processes.times.image == 2.0


def test_evaluation_without_images_takes_no_time(ten_minutes, clock):
    ten_minutes.time_evaluation(list, Batches(0))
    assert ten_minutes.times == MeasuredSeconds()


@pytest.mark.parametrize(
    ("device", "is_compiled", "is_slow"), [("cpu", False, False), ("cpu", True, True), ("cuda", False, True)]
)
def test_a_shape_is_slow_at_first_on_a_gpu_and_where_it_is_compiled(monkeypatch, device, is_compiled, is_slow):
    monkeypatch.setattr(rehearsal, "compiles", lambda accelerator: is_compiled)
    assert rehearsal.is_slow_at_first(SimpleNamespace(device=torch.device(device))) is is_slow


@pytest.mark.parametrize(("step", "tries"), [(3.0, True), (3.01, False)])
def test_bf16_is_tried_where_six_steps_fit_into_the_time_for_measuring(ten_minutes, step, tries):
    ten_minutes.times.step = step
    assert ten_minutes.tries_bf16 is tries


def test_bf16_is_not_tried_by_a_processor_without_its_instructions(surroundings, monkeypatch):
    monkeypatch.setattr(rehearsal, "has_bf16_instructions", lambda device: False)
    rehearsed = surroundings.rehearsal(10)
    rehearsed.times.step = 1.0
    assert not rehearsed.tries_bf16


def test_bf16_is_not_tried_by_a_run_that_computes_in_it(surroundings):
    surroundings.accelerator.mixed_precision = "bf16"
    rehearsed = surroundings.rehearsal(10)
    rehearsed.times.step = 1.0
    assert not rehearsed.tries_bf16


def test_three_steps_are_timed_in_bf16_behind_one_that_is_not(ten_minutes, clock):
    made_steps = []

    def make_step(step: int) -> None:
        made_steps.append(step)
        clock.takes(50 if len(made_steps) == 1 else 0.5)

    ten_minutes.time_bf16_steps(make_step, iter(range(9)))
    assert made_steps == list(range(1 + 3))
    assert ten_minutes._bf16_step == 0.5


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
def test_evaluation_takes_as_long_as_three_of_its_batches_say(ten_minutes, clock, batches, evaluation):
    seconds = iter([100.0, 6.0])  # the first time warms up

    def evaluate(loader) -> None:
        assert len(list(loader)) == min(3, batches)
        clock.takes(next(seconds))

    ten_minutes.time_evaluation(evaluate, Batches(batches))
    assert ten_minutes.times.evaluation == evaluation
    assert ten_minutes.times.image == 6.0 / (2 * min(3, batches))
    with pytest.raises(StopIteration):
        next(seconds)


@pytest.fixture
def saves(surroundings, tmp_path, clock, monkeypatch) -> list[tuple]:
    """What a rehearsal with an average saves, which takes five seconds: the files before, the tensors, the seconds."""
    write = Checkpoints._write
    saves = []

    def write_slowly(checkpoints: Checkpoints, state: object, tensors: dict) -> bool:
        saves.append((list(checkpoints.folder.iterdir()), sorted(tensors)))
        clock.takes(5)
        return write(checkpoints, state, tensors)

    def submit(function: Callable, *arguments: object) -> SimpleNamespace:
        return SimpleNamespace(result=partial(function, *arguments))  # a thread that works when it is waited for

    monkeypatch.setattr(Checkpoints, "_write", write_slowly)
    monkeypatch.setattr(save, "ThreadPoolExecutor", lambda workers: SimpleNamespace(submit=submit))
    rehearsed = surroundings.rehearsal(10, tmp_path, "--ema-decay", "0.9")
    with process_state_kept():
        rehearsed.accelerator = Accelerator(cpu=True)
        (rehearsed.folder / "checkpoints" / "step-00000000").mkdir(parents=True)  # of a run that was killed here
        rehearsed.time_save(NETWORK, torch.optim.SGD(NETWORK.parameters(), lr=0.1))
    return [*saves, rehearsed.times.save]


def test_save_is_timed_until_it_is_on_disk(saves):
    assert saves[-1] == 5


def test_save_that_is_timed_holds_the_average_too(saves):
    _, tensors = saves[0]
    assert tensors == ["average", "model", "optimizer"]


def test_save_that_is_timed_removes_what_a_killed_run_has_left(saves):
    files_before, _ = saves[0]
    assert files_before == []


def test_save_that_is_timed_leaves_nothing(saves, tmp_path):
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.fixture
def measured(surroundings, clock, monkeypatch) -> Rehearsal:
    """A rehearsal on three processes that has measured all, after 52 seconds."""
    monkeypatch.setattr(rehearsal, "steps_that_fit", lambda *arguments: 499)
    monkeypatch.setattr(rehearsal, "evaluation_pictures", lambda info: 8)
    monkeypatch.setattr(rehearsal, "on_main", lambda accelerator, function: function())
    monkeypatch.setattr(rehearsal, "bf16_launch_line", lambda processes: f"{processes} in bf16")
    surroundings.accelerator.num_processes = 3
    rehearsed = surroundings.rehearsal(10)
    rehearsed.times = MeasuredSeconds(0.5, 2.5, 0.25, 3.125)
    clock.takes(52)
    return rehearsed


def test_steps_are_planned_for_nine_tenths_of_the_time_that_is_left(measured, monkeypatch):
    seconds_left = []

    def count(seconds: float, *arguments: object) -> int:
        seconds_left.append(seconds)
        return 499

    monkeypatch.setattr(rehearsal, "steps_that_fit", count)
    assert measured.finish() == 499
    assert seconds_left == [0.92 * 600 - 52]


def test_all_processes_make_the_steps_that_the_main_one_has_planned(measured, monkeypatch):
    monkeypatch.setattr(rehearsal, "on_main", lambda accelerator, count_steps: 12)
    assert measured.finish() == 12


def test_one_step_is_planned_however_little_time_is_left(measured, monkeypatch):
    monkeypatch.setattr(rehearsal, "steps_that_fit", lambda *arguments: -3)
    assert measured.finish() == 1


def test_copy_is_freed_at_the_end(measured, surroundings):
    measured.finish()
    assert surroundings.calls[-1] == "free memory"
    assert not hasattr(measured, "model")
    assert not hasattr(measured, "loaders")


def test_times_are_reported_with_the_steps_that_fit(measured, capsys):
    measured.finish()
    assert (
        "time: a step takes 0.5 s, an evaluation 2.5 s, a save 3.12 s: time for 499 steps (the same as --max-steps 499)"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "is_said"), [(499, True), (500, False)])
def test_few_steps_are_reported_with_the_minutes_of_enough(measured, monkeypatch, capsys, steps, is_said):
    monkeypatch.setattr(rehearsal, "steps_that_fit", lambda *arguments: steps)
    assert measured.finish() == steps
    line = "are often poor; 1,000 steps take at least 10 minutes here\n"
    assert (line in capsys.readouterr().out) is is_said


@pytest.mark.parametrize(("seconds", "is_said"), [(0.39, True), (0.4, False)])
def test_bf16_is_recommended_where_a_step_takes_four_fifths_at_most(measured, clock, capsys, seconds, is_said):
    measured.time_bf16_steps(lambda step: clock.takes(seconds), iter(range(4)))
    measured.finish()
    line = f"precision: in bf16 a step takes {seconds} s; the next run is faster with 3 in bf16\n"
    assert (line in capsys.readouterr().out) is is_said


def test_scale_of_fp16_is_as_the_run_found_it(measured, surroundings):
    scales = [8.0]
    surroundings.accelerator.scaler = SimpleNamespace(
        state_dict=lambda: {"scale": scales[-1]}, load_state_dict=lambda state: scales.append(state["scale"])
    )
    rehearsed = surroundings.rehearsal(10)
    scales.append(4.0)  # after a step of the rehearsal
    rehearsed.finish()
    assert scales[-1] == 8.0


def test_steps_of_one_shape_warm_up_for_three():
    warm_up, _ = rehearsed_steps([(8, 8)] * 500, False)
    assert warm_up == [0, 1, 2]


def test_steps_of_one_shape_are_timed_in_their_order():
    """Forty-two, half as many again, and four in bf16."""
    _, timed = rehearsed_steps([(8, 8)] * 500, False)
    assert timed == list(range(3, 70))


def test_intervals_of_evaluations_differ_from_those_of_saves():
    plan = Schedule.from_args(parsed(*FLAGS, "--eval-every", "10", "--checkpoint-every", "5"), 100, None)
    times = MeasuredSeconds(step=1.0, evaluation=5.0, image=0.5, save=3.0)
    # an evaluation: 5 + 2 pictures of 0.5 + a best model of 1; the end: one more, a save, 24 pictures and the report
    end = 7 + 3 + 12 + 4
    seconds_of_a_step = 1 + 7 / 10 + 3 / 5
    assert steps_that_fit(end + 100 * seconds_of_a_step + 0.1, times, plan, 2) == 100
    assert steps_that_fit(end + 100 * seconds_of_a_step - 0.1, times, plan, 2) == 99
