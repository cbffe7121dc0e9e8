"""Learning rate, optimizer groups and class weights.

Modules: train_utils/optim.py, train_utils/schedule.py, train_utils/ema.py, data_utils/targets/classes.py.
"""

import pytest
import torch
from accelerate.utils import DistributedType
from torch.utils._python_dispatch import TorchDispatchMode

from data_utils.class_map import ClassMap
from data_utils.targets.classes import class_weight_tensor, count_classes
from runtime.errors import SettingsError
from train_utils.ema import WeightAverage, move_towards
from train_utils.optim import build_optimizer
from train_utils.schedule import learning_rate
from train_utils.settings.train_settings import SCHEDULES


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_warms_up_to_its_peak_and_ends_low(schedule):
    rates = [learning_rate(step, 100, peak=0.5, warmup_steps=10, schedule=schedule) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)], rel=1e-12)  # float64
    assert max(rates) == rates[10] == 0.5
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == 0.5 if schedule == "constant" else 0 < rates[-1] < 0.02


def test_an_average_starts_with_a_low_decay_that_lets_early_weights_fade():
    model = torch.nn.Linear(1, 1, bias=False).double()
    average = WeightAverage(model, decay=0.5)
    expected = model.weight.item()
    for step in range(1, 13):
        with torch.no_grad():
            model.weight.fill_(float(step))
        average.update(step, torch.tensor(True))
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        assert average.tensors["weight"].item() == pytest.approx(expected, rel=1e-6)  # the weight of a step is float32


def test_the_weights_of_training_are_back_after_an_evaluation_that_failed_too():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    average = WeightAverage(model, decay=0.5)
    torch.nn.init.constant_(model.weight, 5.0)
    with pytest.raises(RuntimeError, match="no memory"), average.applied():
        assert model.weight.item() == 2.0
        raise RuntimeError("no memory")
    assert model.weight.item() == 5.0


def test_sgd_has_nesterov_momentum():
    optimizer = build_optimizer(torch.nn.Linear(2, 2), "sgd", 0.1, 0.01)
    assert (optimizer.defaults["momentum"], optimizer.defaults["nesterov"]) == (0.9, True)


class NumberOfGPU(torch.Tensor):
    """A number that says it is on a GPU."""

    device = torch.device("cuda")


class Operators(TorchDispatchMode):
    """Collects the names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_an_average_on_a_gpu_is_moved_by_three_operators_however_many_tensors_it_has(share):
    averages = [torch.randn(3, 4), torch.randn(5)]
    targets = [torch.randn(3, 4), torch.randn(5)]
    expected = [average + share * (target - average) for average, target in zip(averages, targets, strict=True)]
    weight = torch.tensor(share).as_subclass(NumberOfGPU)
    with Operators() as operators:
        move_towards(averages, targets, weight)
    for average, value in zip(averages, expected, strict=True):
        torch.testing.assert_close(average, value, rtol=1e-6, atol=1e-6)
    names = [name for name in operators.names if "foreach" in name]
    assert names == ["aten._foreach_sub.List", "aten._foreach_mul_.Tensor", "aten._foreach_add_.List"]


def test_an_average_on_a_cpu_is_moved_once():
    average = torch.tensor([1.0, 3.0])
    move_towards([average], [torch.tensor([2.0, 7.0])], torch.tensor(0.25))
    assert average.tolist() == [1.25, 4.0]


def test_weight_decay_spares_norms_and_biases():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    for name in ("adamw", "sgd"):
        decayed, spared = build_optimizer(model, name, 0.1, 0.01).param_groups
        assert [parameter.ndim for parameter in decayed["params"]] == [4]
        assert len(spared["params"]) == 3
        assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0)


def test_automatic_class_weights_are_the_root_of_the_inverse_frequencies():
    weights = class_weight_tensor(["auto"], [900, 90, 10])
    # float32: measured 9e-8
    torch.testing.assert_close(weights**2 * torch.tensor([900, 90, 10]), torch.full((3,), 1000 / 3), rtol=5e-7, atol=0)


def test_a_class_without_pixels_weighs_1():
    assert class_weight_tensor(["auto"], [30, 0, 10])[1] == 1
    assert class_weight_tensor(["auto"], [0, 0]).tolist() == [1, 1]


def test_black_of_a_mask_without_colors_counts_for_the_class_that_is_black():
    class_map = ClassMap(("ground", "car", "road"), ((0, 0, 0), (255, 0, 0), (9, 9, 9)), None)
    assert count_classes({(255, 0, 0): 4, 0: 6, (9, 9, 9): 5}, class_map) == (6, 4, 5)


def test_class_weights_must_be_one_for_each_class():
    assert class_weight_tensor([1.0, 2.0], [10, 10]).tolist() == [1.0, 2.0]
    assert class_weight_tensor(["none"], [10, 10]) is None
    with pytest.raises(SettingsError, match="3 values for 2 classes"):
        class_weight_tensor([1.0, 2.0, 3.0], [10, 10])
    for word in ("auto", "none"):
        with pytest.raises(SettingsError, match="2 values for 2 classes"):
            class_weight_tensor([word, 1.0], [10, 10])


@pytest.mark.parametrize(
    ("name", "kind", "is_fused"),
    [
        ("adamw", DistributedType.MULTI_GPU, True),
        ("sgd", DistributedType.MULTI_CPU, True),
        ("muon", DistributedType.NO, True),
        ("adamw", DistributedType.FSDP, True),
        ("sgd", DistributedType.FSDP, False),
        ("adamw", DistributedType.DEEPSPEED, False),
        ("sgd", DistributedType.DEEPSPEED, False),
    ],
)
def test_an_optimizer_updates_all_weights_in_one_kernel_where_that_can_be(name, kind, is_fused):
    optimizer = build_optimizer(torch.nn.Linear(2, 2), name, 0.25, 0.01, kind)
    assert bool(optimizer.defaults["fused"]) is is_fused
    assert optimizer.defaults["lr"] == 0.25
