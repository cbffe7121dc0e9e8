"""The average of the weights that training has passed.

Module: train_utils/ema.py.
"""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from train_utils.ema import WeightAverage, move_towards


def test_the_weights_of_training_are_back_after_an_evaluation_that_failed_too():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    average = WeightAverage(model, decay=0.5)
    torch.nn.init.constant_(model.weight, 5.0)
    with pytest.raises(RuntimeError, match="no memory"), average.average_weights():
        assert model.weight.item() == 2.0
        raise RuntimeError("no memory")
    assert model.weight.item() == 5.0


class NumberOfGPU(torch.Tensor):
    """A number that says it is on a GPU."""

    device = torch.device("cuda")


@pytest.mark.parametrize("kind", [torch.Tensor, NumberOfGPU])
def test_an_average_is_moved_by_a_share_on_any_device(kind):
    averages = [torch.randn(3, 4), torch.randn(5)]
    targets = [torch.randn(3, 4), torch.randn(5)]
    expected = [average + 0.3 * (target - average) for average, target in zip(averages, targets, strict=True)]
    move_towards(averages, targets, torch.tensor(0.3).as_subclass(kind))
    for average, value in zip(averages, expected, strict=True):
        torch.testing.assert_close(average, value, rtol=1e-6, atol=1e-6)


def test_an_average_goes_on_from_its_file(tmp_path):
    average = WeightAverage(nn.Linear(2, 1, bias=False), 0.9)
    save_file({"weight": torch.tensor([[7.0, 8.0]])}, tmp_path / "average.safetensors")
    average.restore(tmp_path)
    assert average.tensors["weight"].tolist() == [[7, 8]]


def test_a_run_without_averages_goes_on_from_its_weights(tmp_path):
    network = nn.Linear(2, 1, bias=False)
    average = WeightAverage(network, 0.9)
    with torch.no_grad():
        network.weight.fill_(5)
    average.restore(tmp_path)
    assert average.tensors["weight"].tolist() == [[5, 5]]
