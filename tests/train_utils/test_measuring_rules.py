"""Small rules of what a run measures, saves and says: with clocks that we turn and disks that refuse.

Modules: train_utils/monitoring/rehearsal.py, train_utils/monitoring/compile_gain.py, train_utils/monitoring/monitor.py,
train_utils/monitoring/profiler.py, train_utils/monitoring/tracking.py, train_utils/checkpoints/best_model.py,
train_utils/checkpoints/save.py, train_utils/checkpoints/find.py, train_utils/preflight.py.
"""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from in_process import process_state_kept
from torch.autograd import DeviceType

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import SettingsError
from train_utils import preflight as memory
from train_utils.checkpoints.best_model import BestModel
from train_utils.checkpoints.find import compare_settings
from train_utils.checkpoints.save import Checkpoints
from train_utils.monitoring import compile_gain, profiler, rehearsal
from train_utils.monitoring.compile_gain import CompileGain
from train_utils.monitoring.monitor import Monitor
from train_utils.monitoring.rehearsal import Pace, Rehearsal, Times
from train_utils.monitoring.tracking import RunLog
from train_utils.preflight import Copies, EvaluationSize
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet import UNet, UNetConfig


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(rehearsal.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(rehearsal, "STARTED", 0.0)

    def takes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def new_rehearsal(minutes: float) -> Rehearsal:
    rehearsed = object.__new__(Rehearsal)
    rehearsed.accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda values: values, num_processes=1)
    rehearsed.seconds = 60 * minutes
    rehearsed.times = Times()
    rehearsed._warm_up = 3
    rehearsed._timed_steps = 0
    rehearsed._bf16_step = None
    return rehearsed


@pytest.mark.parametrize(
    ("minutes", "seconds", "timed", "again"),
    [(10, 1.0, 2 + 18, 10), (10, 0.1, 2 + 40, 21), (10, 100.0, 2, 1), (1, 0.5, 2 + 3, 2)],
)
def test_steps_are_timed_for_three_hundredths_of_the_time_and_forty_at_most(clock, minutes, seconds, timed, again):
    rehearsed = new_rehearsal(minutes)
    steps = iter(range(1000))
    made = 0
    for _ in rehearsed.timed(steps):
        made += 1
        clock.takes(seconds if made > 3 else 999)
    assert made == 3 + timed
    assert rehearsed.times.step == pytest.approx(seconds)
    made_again = 0
    for _ in rehearsed.timed_again(steps):
        made_again += 1
        clock.takes(2 * seconds)
    assert made_again == again
    assert rehearsed.times.step == pytest.approx((timed * seconds + again * 2 * seconds) / (timed + again))


@pytest.mark.parametrize(("can", "step", "tries"), [(True, 1.0, True), (True, 3.01, False), (False, 1.0, False)])
def test_steps_are_timed_in_bf16_where_six_fit_into_the_time_for_measuring(can, step, tries):
    rehearsed = new_rehearsal(10)  # 18 seconds for measuring
    rehearsed._can_use_bf16 = can
    rehearsed.times.step = step
    assert rehearsed.tries_bf16 is tries


def test_three_steps_are_timed_in_bf16_behind_one_that_is_not(clock):
    rehearsed = new_rehearsal(10)
    count = 0
    for _ in rehearsed.timed_in_bf16(iter(range(9))):
        count += 1
        clock.takes(50 if count == 1 else 0.5)
    assert count == 1 + 3 and rehearsed._bf16_step == 0.5


class Batches:
    """A loader of so many batches of two images."""

    dataset = None

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        return iter([{"indices": [0, 1]}] * self.count)


@pytest.mark.parametrize(("batches", "evaluation"), [(30, 6.0 * 10), (2, 6.0)])
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
        clock.takes(5)
        return write(checkpoints, state, tensors)

    monkeypatch.setattr(Checkpoints, "_write", write_slowly)
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
    assert rehearsed.times.save == 5 and kinds == [["average", "model", "optimizer"]]
    assert list(tmp_path.iterdir()) == []


def test_nine_tenths_of_the_time_are_planned_less_what_has_passed_and_few_steps_are_said(clock, monkeypatch, capsys):
    left = []

    def count(seconds, times, schedule, pictures) -> int:
        left.append(seconds)
        return 499

    monkeypatch.setattr(rehearsal, "count_steps", count)
    monkeypatch.setattr(rehearsal, "pictures_of_an_evaluation", lambda info: 8)
    monkeypatch.setattr(rehearsal, "on_main", lambda accelerator, function: function())
    rehearsed = new_rehearsal(10)
    rehearsed.accelerator.free_memory = lambda: None
    rehearsed.model = rehearsed.loaders = rehearsed._scaler_state = rehearsed.info = rehearsed.schedule = None
    rehearsed.times.step = 1.0
    rehearsed._bf16_step = 0.79
    clock.takes(52)
    assert rehearsed.count_steps() == 499
    assert left == [0.92 * 600 - 52]
    said = capsys.readouterr().out
    assert "499 steps are few and may give poor masks; 1,000 steps take at least 19 minutes here" in said
    assert "precision: in bf16 a step takes 0.79 s" in said
    rehearsed.model = rehearsed.loaders = None
    rehearsed._scaler_state = {"scale": 8.0}
    scales = []
    rehearsed.accelerator.scaler = SimpleNamespace(load_state_dict=scales.append)
    rehearsed._bf16_step = 0.8
    monkeypatch.setattr(rehearsal, "count_steps", lambda *arguments: 500)
    assert rehearsed.count_steps() == 500
    said = capsys.readouterr().out
    assert "are few" not in said and "bf16" not in said
    assert scales == [{"scale": 8.0}]  # that of fp16, as the run found it
    rehearsed.model = rehearsed.loaders = None
    monkeypatch.setattr(rehearsal, "count_steps", lambda *arguments: -3)
    assert rehearsed.count_steps() == 1  # however little time is left


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


def test_compiling_pays_by_all_passes_of_a_run():
    gain = object.__new__(CompileGain)
    gain.seconds = 0.0
    gain.passes = Counter({(2, 3, 8, 8): 60, (1, 3, 8, 8): 40})
    gain.steps = 50
    for seconds in (20, 40):
        gain._note_begin(None)
        gain._begin -= seconds
        gain._note_end(None)
    assert gain.seconds == pytest.approx(60, abs=0.1)
    gain.seconds = 60.0
    text = "forward and backward pass take 1 s compiled, {} s not compiled: 50 steps {}"
    assert gain._balance(2.0, 1.0) == text.format("2", "gained 0.67 minutes")
    assert gain._balance(1.5, 1.0) == text.format("1.5", "lost 0.17 minutes; it pays from about 60 steps on")
    assert gain._balance(1.0, 1.0).endswith("lost 1 minutes; without dynamo_backend this run is faster")


def test_the_seconds_of_a_pass_are_the_median_without_the_first_pair(monkeypatch):
    seconds = iter([90.0, 80.0, 0.3, 0.1, 0.5, 0.2, 0.4, 0.3, 2.0, 2.0, 9.0, 9.0])  # not compiled, compiled, and so on
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)

    def criterion(logits, targets, counts):
        clock.now += next(seconds)
        return logits.sum()

    criterion.task = SimpleNamespace(zero_targets=lambda shape, device: None)
    criterion.counts = lambda targets: None
    monkeypatch.setattr(compile_gain, "time", clock)
    monkeypatch.setattr(compile_gain, "compile_blocks", lambda accelerator, network: None)
    monkeypatch.setattr(compile_gain, "eager", lambda accelerator: nullcontext())
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: nullcontext())
    monkeypatch.setattr(compile_gain, "MEASURED_SECONDS", 173)
    gain = object.__new__(CompileGain)
    gain.accelerator = SimpleNamespace(device=torch.device("cpu"))
    gain.passes = Counter({(1, 3, 4, 4): 1, (2, 3, 4, 4): 2})
    network = UNet(UNetConfig(base_channels=1, depth=1))
    assert gain._pass_seconds(network, criterion) == pytest.approx((0.45, 0.25))


def test_a_score_of_zero_is_shown_and_a_run_that_ends_anyway_is_not_called_impatient(capsys):
    monitor = object.__new__(Monitor)
    texts = []
    monitor.bar = SimpleNamespace(
        set_postfix_str=lambda text, refresh: texts.append(text), update=lambda: None, close=lambda: None
    )
    monitor.compared_by = "mean IoU"
    monitor._brief = "loss 1.000"
    monitor.problems = set()
    monitor.trace = SimpleNamespace(close=lambda: None)
    for best in (-1.0, 0.0):
        monitor.state = RunState(step=7, best=best)
        monitor.show()
    assert texts == ["loss 1.000", "loss 1.000, best mean IoU 0.000"]
    for is_last in (True, False):
        monitor.schedule = SimpleNamespace(
            is_out_of_patience=lambda s: True, is_last=lambda s, last=is_last: last, patience=3
        )
        monitor.close()
        said = capsys.readouterr().out
        assert said == ("" if is_last else "no better mean IoU in 3 evaluations, stopping at step 7\n")


def test_twelve_operators_are_listed_with_their_share_of_all():
    rows = []
    for number in range(15):
        rows.append(
            SimpleNamespace(
                key=f"operator {number}",
                count=1,
                device_type=DeviceType.CPU,
                self_device_time_total=0,
                self_cpu_time_total=1000 * (number + 1),
            )
        )
    step = SimpleNamespace(**vars(rows[0]) | {"key": "ProfilerStep#3", "self_cpu_time_total": 10**9})
    table = profiler.top_operators(SimpleNamespace(key_averages=lambda: [*rows, step]))
    _, *lines = table.splitlines()
    assert [line.split()[1] for line in lines] == [str(number) for number in range(14, 2, -1)]
    assert lines[0].split()[-2:] == ["15.0", "12.5%"]


class Disk:
    """A file of a disk that takes a part of what is written, once."""

    def __init__(self, path: Path, room: int) -> None:
        self.path = path
        self.room = room

    def open(self, mode: str, buffering: int):
        file = self.path.open(mode, buffering=buffering)
        write = file.write
        disk = self

        class Limited:
            def __enter__(self):
                return self

            def __exit__(self, *error) -> None:
                file.close()

            seek, truncate = file.seek, file.truncate

            def write(self, content: bytes) -> int:
                written = write(content[: disk.room])
                disk.room = 10**6
                return written

        return Limited()

    def __str__(self) -> str:
        return "metrics.jsonl"


def test_a_line_that_was_written_in_part_is_cut_off_and_written_with_the_next_one(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"first\n")
    log = object.__new__(RunLog)
    log.path = Disk(path, room=3)
    log._refused = b""
    log._append("second\n")
    assert path.read_bytes() == b"first\n" and log._refused == b"second\n"
    log.path.room = 2
    assert not log.is_saved() and path.read_bytes() == b"first\n"
    log._append("third\n")
    assert path.read_bytes() == b"first\nsecond\nthird\n" and log.is_saved()
    assert capsys.readouterr().out.count("metrics.jsonl could not be written") == 1


def test_a_best_model_that_the_disk_refused_is_kept_as_it_was(tmp_path, capsys):
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    best = BestModel(tmp_path / "gone" / "model")
    assert not best.save(network, "card") and not best.is_saved()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    (tmp_path / "gone").mkdir()
    assert best.is_saved() and best.is_saved()
    written = UNet.from_pretrained(tmp_path / "gone" / "model").state_dict()
    assert all(value.equal(before[name]) for name, value in written.items())
    assert (tmp_path / "gone" / "model" / "README.md").read_text() == "card"
    assert "training goes on, and tries again at every checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize("model_is_saved", [True, False])
@pytest.mark.parametrize("checkpoint_is_saved", [True, False])
def test_all_is_saved_where_model_and_checkpoint_are(model_is_saved, checkpoint_is_saved):
    checkpoints = object.__new__(Checkpoints)
    checkpoints.best_model = SimpleNamespace(is_saved=lambda: model_is_saved)
    checkpoints._pending = SimpleNamespace(result=lambda: checkpoint_is_saved)
    checkpoints._is_saved = True
    assert checkpoints.is_saved() is (model_is_saved and checkpoint_is_saved)
    assert checkpoints.wait() is checkpoint_is_saved  # also when it is asked for again


def test_the_length_and_the_place_of_a_run_may_change_without_a_word():
    names = ("epochs", "max_steps", "resume", "output_dir", "like", "processes_per_volume")
    before = RunSettings(flags=dict.fromkeys(names, 1))
    after = RunSettings(flags=dict.fromkeys(names, 2) | {"tracker": "none"})
    assert compare_settings(before, after) == ["tracker was None and is now none"]


@pytest.mark.parametrize(("optimizer", "trained"), [("adamw", 3), ("sgd", 2)])
def test_a_step_needs_a_gradient_and_moments_and_an_evaluation_no_gradient(monkeypatch, optimizer, trained):
    seen = []
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda values: values)
    split = BatchSplit(4, 1, 4, 1)
    for averages in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(memory, "_estimate_fits", lambda *arguments: seen.append(arguments[-1]) or True)
            copies = Copies.of_training(optimizer, averages=averages)
            memory.preflight(accelerator, network, None, (1, 8, 8), split, copies)
    assert seen == [Copies(trained, 0), Copies(trained, 1)]
    weights = sum(parameter.nbytes for parameter in network.parameters())
    size = EvaluationSize((8, 8), (8, 8), 1)
    needed = size.bytes_for(network.config) + (1 + trained - 1 + 1) * weights
    for free, fits in ((needed, False), (needed + 1, True)):
        monkeypatch.setattr(memory, "available_bytes", lambda free=free: free)
        with nullcontext() if fits else pytest.raises(SettingsError, match="no memory to evaluate a validation image"):
            memory.check_evaluation(accelerator, network, None, 1, size, copies)


def test_a_trial_is_hopeless_beyond_three_times_the_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "_free_bytes", lambda accelerator: 1000)
    for needed, is_hopeless in ((3000, False), (3001, True)):
        monkeypatch.setattr(memory, "step_bytes", lambda *arguments, needed=needed: needed)
        assert memory._is_hopeless(None, None, (1,)) is is_hopeless
    assert memory.MOST_ELEMENTS == 2_147_483_647  # what 32 bits count


def test_a_pixel_on_the_device_takes_what_it_was_loaded_and_augmented_as():
    split = BatchSplit(8, 1, 2, accumulation=3)
    images = 2 * 3 * 2  # of this step and of the next one
    assert memory.input_bytes((3, 4, 5), split) == images * 20 * (3 + 1 + 12 + 8)
    assert memory.input_bytes((1, 2, 4, 5), split) == images * 40 * (4 + 1 + 4 + 8)


def test_the_largest_evaluation_has_as_many_images_as_there_are_and_targets_that_are_known():
    config = UNetConfig(in_channels=1, base_channels=2, depth=1)
    inputs = np.array([(8, 8), (8, 8), (4, 4)])
    largest = memory.largest_evaluation(config, inputs, np.zeros_like(inputs), pixels=10**6)
    assert largest == EvaluationSize((8, 8), (8, 8), 2)
    targets = np.array([(8, 8), (0, 0), (400, 400)])
    assert memory.largest_evaluation(config, inputs, targets, 10**6) == EvaluationSize((4, 4), (400, 400), 1)
