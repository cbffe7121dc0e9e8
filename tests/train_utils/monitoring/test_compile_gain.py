"""What compiling gains or loses over all passes of a run.

Modules: train_utils/monitoring/compile_gain.py.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

from train_utils.monitoring import compile_gain
from train_utils.monitoring.compile_gain import CompileGain
from unet import UNet, UNetConfig


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 500.0

    def perf_counter(self) -> float:
        return self.now


class Compiler:
    """A compiler that says when it begins and when it ends, to those who listen."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.begin_listeners: list[Callable] = []
        self.end_listeners: list[Callable] = []
        self.register_start_callback = self.begin_listeners.append
        self.remove_start_callback = self.begin_listeners.remove
        self.register_end_callback = self.end_listeners.append
        self.remove_end_callback = self.end_listeners.remove

    def work(self, seconds: float) -> None:
        for listener in self.begin_listeners:
            listener(None)
        self.clock.now += seconds
        for listener in self.end_listeners:
            listener(None)


class Criterion:
    """A loss that takes some seconds, and remembers what it was given."""

    def __init__(self, take: Callable[[], None]) -> None:
        self.take = take
        self.task = SimpleNamespace(zero_targets=lambda shape, device: shape)
        self.arguments: list[tuple] = []
        self.needs_gradient: list[bool] = []

    def counts(self, targets: tuple[int, ...]) -> str:
        return f"counts of {targets}"

    def __call__(self, logits: torch.Tensor, targets: tuple[int, ...], counts: str) -> torch.Tensor:
        self.arguments.append((logits.shape[0], targets, counts))
        self.needs_gradient.append(logits.requires_grad)
        self.take()
        return logits.sum()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(compile_gain, "time", clock)
    return clock


@pytest.fixture
def compiler(clock, monkeypatch) -> Compiler:
    compiler = Compiler(clock)
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace(callback_handler=compiler))
    return compiler


def new_gain(backend: str, *shapes: tuple[int, ...]) -> CompileGain:
    """The gain of a run that compiles with this backend and has made a pass of each shape."""
    accelerator = SimpleNamespace(
        state=SimpleNamespace(dynamo_plugin=SimpleNamespace(backend=backend)),
        device=torch.device("cpu"),
        distributed_type=DistributedType.NO,
    )
    gain = CompileGain(accelerator)
    gain.passes = Counter(shapes)
    return gain


@pytest.fixture
def gain(compiler) -> CompileGain:
    """The gain of a run that has compiled for 12.345 seconds and made a step."""
    gain = new_gain("INDUCTOR")
    compiler.work(12.345)
    gain.add_step([SimpleNamespace(images=torch.zeros(1, 3, 4, 4))])
    return gain


@pytest.fixture
def modes(monkeypatch) -> list[str]:
    """How passes compute: within, the mode of the pass stands in the list alone."""
    modes: list[str] = []

    @contextmanager
    def in_mode(name: str) -> Iterator[None]:
        modes.append(name)
        yield
        modes.clear()

    monkeypatch.setattr(compile_gain, "eager", lambda accelerator: in_mode("eager"))
    monkeypatch.setattr(torch.compiler, "set_stance", in_mode)
    return modes


@pytest.fixture
def compiled(monkeypatch) -> list[UNet]:
    """The networks that were compiled."""
    compiled: list[UNet] = []
    monkeypatch.setattr(compile_gain, "compile_blocks", lambda accelerator, network: compiled.append(network))
    return compiled


@pytest.fixture
def network() -> UNet:
    return UNet(UNetConfig(base_channels=1, depth=1)).eval()


def test_seconds_of_a_pass_are_the_median_without_the_first_pair(monkeypatch, clock, modes, compiled, network):
    seconds = iter([90.0, 80.0, 0.3, 0.1, 0.5, 0.2, 0.4, 0.3, 2.0, 2.0, 9.0, 9.0])  # not compiled, compiled, and so on
    queued: list[float] = []  # seconds that the device will take
    modes_of_passes: list[str] = []

    def queue() -> None:
        modes_of_passes.extend(modes)
        queued.append(next(seconds))

    def wait(device: torch.device) -> None:
        clock.now += sum(queued)
        queued.clear()

    monkeypatch.setattr(compile_gain, "wait_for", wait)
    monkeypatch.setattr(compile_gain, "MEASURED_SECONDS", 173)
    gain = new_gain("NO", (1, 3, 4, 6))
    assert gain.pass_seconds(network, Criterion(queue)) == pytest.approx((0.45, 0.25))
    assert modes_of_passes == ["eager", "fail_on_recompile"] * 5


def passes_of(seconds: float, clock: Clock) -> Criterion:
    """A criterion whose passes take so many seconds each."""

    def take() -> None:
        clock.now += seconds

    return Criterion(take)


@pytest.mark.parametrize("size", [(4, 6), (2, 4, 6)], ids=["images", "volumes"])
def test_passes_are_timed_on_images_of_the_most_frequent_shape(clock, modes, compiled, size):
    criterion = passes_of(3.0, clock)
    network = UNet(UNetConfig(base_channels=1, depth=1, dims=len(size)))
    new_gain("NO", (1, 3, *size), (2, 3, *size), (2, 3, *size)).pass_seconds(network, criterion)
    assert set(criterion.arguments) == {(2, (2, *size), f"counts of {(2, *size)}")}


@pytest.mark.parametrize(("seconds", "passes"), [(3.0, 2 * 2), (0.6, 2 * 2), (0.3, 2 * 4), (0.01, 2 * 6)])
def test_pairs_of_passes_are_timed_for_two_seconds_or_six_at_most(clock, modes, compiled, network, seconds, passes):
    criterion = passes_of(seconds, clock)
    assert new_gain("NO", (1, 3, 4, 4)).pass_seconds(network, criterion) == pytest.approx((seconds, seconds))
    assert criterion.needs_gradient == [True] * passes


@pytest.fixture
def measured_networks(clock, modes, compiled, network) -> list[UNet]:
    """The network of each pass that is timed; each pass trains and begins without gradients."""
    networks = []

    def note(module: UNet, arguments: tuple[torch.Tensor]) -> None:
        assert module.training
        assert arguments[0].is_contiguous(memory_format=torch.channels_last)
        assert all(parameter.grad is None for parameter in module.parameters())
        networks.append(module)

    network.register_forward_pre_hook(note)
    new_gain("NO", (1, 3, 4, 4)).pass_seconds(network, passes_of(3.0, clock))
    return networks


def test_passes_are_timed_on_one_compiled_network(measured_networks, compiled):
    assert len(measured_networks) == 4
    assert len(compiled) == 1
    assert all(measured is compiled[0] for measured in measured_networks)


def test_passes_are_timed_on_a_copy_of_the_network(measured_networks, network):
    assert measured_networks[0] is not network
    assert not network.training
    assert all(parameter.grad is None for parameter in network.parameters())


def test_run_that_does_not_compile_has_no_gain():
    gain = new_gain("NO")
    assert not gain.compiles
    assert gain.sentence(None, None) is None


def test_steps_are_counted_with_the_shapes_of_their_passes():
    gain = new_gain("NO")
    gain.add_step([SimpleNamespace(images=torch.zeros(shape)) for shape in ((2, 3, 4, 4), (2, 3, 4, 4), (1, 3, 4, 4))])
    gain.add_step([SimpleNamespace(images=torch.zeros(1, 3, 4, 4))])
    assert gain.steps == 2
    assert gain.passes == Counter({(2, 3, 4, 4): 2, (1, 3, 4, 4): 2})


def test_seconds_of_compiling_are_those_in_which_the_compiler_works(compiler, clock):
    gain = new_gain("INDUCTOR")
    for seconds in (3.0, 4.0):
        compiler.work(seconds)
        clock.now += 50  # in which nothing is compiled
    assert gain.seconds == 7


def test_run_listens_to_the_compiler_until_its_end(compiler):
    gain = new_gain("INDUCTOR")
    assert len(compiler.begin_listeners) == 1
    assert len(compiler.end_listeners) == 1
    assert gain.sentence(None, None) is None  # no step was made
    assert compiler.begin_listeners == []
    assert compiler.end_listeners == []


def test_cost_of_compiling_is_reported_with_its_gain(gain):
    gain.pass_seconds = lambda network, criterion: (60.0, 30.0)
    assert gain.sentence(None, None) == f"compiling took 12.3 s; {gain.balance_text(60.0, 30.0)}"


def test_gain_of_compiling_is_not_measured_on_several_processes(gain):
    gain.accelerator.distributed_type = DistributedType.MULTI_CPU
    sentence = gain.sentence(None, None)
    assert sentence.startswith("compiling took 12.3 s on the main process;")
    assert sentence.endswith("measured in runs of one process only")


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_gain_of_compiling_that_cannot_be_measured_is_reported_with_the_reason(gain, error):
    def fail(*arguments: object) -> None:
        raise error("out of\nmemory")

    gain.pass_seconds = fail
    assert gain.sentence(None, None) == "compiling took 12.3 s; what it gains could not be measured (out of memory)"


@pytest.mark.parametrize(
    ("compiling", "steps", "plain", "outcome"),
    [
        (60.0, 50, 2.0, "50 steps gained 0.67 minutes"),
        (60.0, 50, 1.5, "50 steps lost 0.17 minutes; it pays from about 60 steps on"),
        (50.0, 50, 1.5, "50 steps lost 0 minutes; it pays from about 50 steps on"),
        (60.0, 12_000, 1.5, "12,000 steps lost 0.17 minutes; it pays from about 14,400 steps on"),
        (60.0, 50, 1.0, "50 steps lost 1 minutes; without dynamo_backend this run is faster"),
    ],
    ids=["gains", "loses", "breaks even", "loses in many steps", "is slower compiled"],
)
def test_compiling_pays_by_all_passes_of_a_run(compiling, steps, plain, outcome):
    gain = new_gain("NO")
    gain.passes = Counter({(2, 3, 8, 8): 60, (1, 3, 8, 8): 40})
    gain.seconds = compiling
    gain.steps = steps
    text = f"forward and backward pass take 1 s compiled, {plain:g} s not compiled: {outcome}"
    assert gain.balance_text(plain, 1.0) == text
