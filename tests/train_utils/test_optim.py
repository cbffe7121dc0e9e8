"""The optimizers: which weights decay, and how they are updated; the orthogonal steps of Muon.

Module: train_utils/optim.py.
"""

import pytest
import torch
from accelerate.utils import DistributedType

from runtime.errors import SettingsError
from train_utils.optim import Muon, build_optimizer, orthogonalize
from train_utils.settings import encoder
from unet import UNet, UNetConfig


@pytest.mark.parametrize(
    ("name", "kind", "is_fused"),
    [
        ("adamw", DistributedType.MULTI_GPU, True),
        ("muon", DistributedType.NO, True),
        ("adamw", DistributedType.FSDP, True),
        ("sgd", DistributedType.FSDP, False),
        ("adamw", DistributedType.DEEPSPEED, False),
    ],
)
def test_an_optimizer_updates_all_weights_in_one_kernel_where_that_can_be(name, kind, is_fused):
    optimizer = build_optimizer(torch.nn.Linear(2, 2), name, 0.25, 0.01, kind)
    assert bool(optimizer.defaults["fused"]) is is_fused
    assert optimizer.defaults["lr"] == 0.25


def by_the_paper(matrix: torch.Tensor) -> torch.Tensor:
    """Five iterations as Jordan et al. write them, on the matrix itself."""
    x = matrix / matrix.norm()
    if len(x) > x.shape[1]:
        x = x.T
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if len(matrix) > matrix.shape[1] else x


@pytest.fixture(params=[(5, 27), (27, 5), (16, 16), (1, 9)], ids=str)
def matrix(request) -> torch.Tensor:
    return torch.randn(request.param, dtype=torch.float64, generator=torch.manual_seed(0))


def test_a_step_is_that_of_the_paper(matrix):
    torch.testing.assert_close(orthogonalize(matrix), by_the_paper(matrix), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "matrix", "longer"), [((4, 2, 3, 3), (4, 18), 18), ((20, 2, 1, 1), (20, 2), 20)], ids=["wide", "tall"]
)
def test_steps_are_those_of_the_papers(shape, matrix, longer):
    weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(1)))
    optimizer = Muon([{"params": [weight], "orthogonal": True}], lr=0.1, weight_decay=0.5, fused=True)
    expected, momentum = weight.detach().clone(), torch.zeros_like(weight)
    for step in range(3):
        gradient = torch.randn(weight.shape, dtype=torch.float64, generator=torch.manual_seed(step))
        weight.grad = gradient.clone()
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        direction = 0.05 * gradient + 0.95 * momentum
        update = by_the_paper(direction.reshape(matrix)).reshape(weight.shape)
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * 0.2 * longer**0.5 * update
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=0)


def new_network(dims: int = 2) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(base_channels=4, depth=3, num_classes=3, dims=dims), deep_supervision=True)


@pytest.mark.parametrize("dims", [2, 3])
def test_muon_steps_are_orthogonal_for_hidden_convolutions_alone(dims):
    network = new_network(dims)
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = [group for group in build_optimizer(network, "muon", 0.1, 0.01).param_groups if group.get("orthogonal")]
    orthogonal = {names[parameter] for group in groups for parameter in group["params"]}
    kernels = {name for name, parameter in network.named_parameters() if parameter.ndim == 2 + dims}
    heads = {"head.conv.weight", "heads.0.conv.weight"}
    assert heads < kernels
    assert orthogonal == kernels - heads
    assert [group["weight_decay"] for group in groups] == [0.01] * len(groups)


def test_an_encoder_is_left_to_adamw():
    network = UNet(UNetConfig(base_channels=4, encoder=encoder.LITE0_CONFIG))
    for group in build_optimizer(network, "muon", 0.1, 0.01).param_groups:
        assert not (group["of_encoder"] and group.get("orthogonal"))


def weights_after_two_steps(name: str) -> dict[str, torch.Tensor]:
    """The weights of a network that an optimizer has moved by gradients of ones."""
    network = new_network()
    optimizer = build_optimizer(network, name, 0.1, 0.01)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.step()
    return dict(network.named_parameters())


@pytest.mark.parametrize("name", ["head.conv.weight", "heads.0.conv.weight", "stem.norm1.weight"])
def test_weights_without_orthogonal_steps_move_as_with_adamw(name):
    assert torch.equal(weights_after_two_steps("muon")[name], weights_after_two_steps("adamw")[name])


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_a_profile_that_spreads_weights_is_refused_in_a_line(kind):
    with pytest.raises(SettingsError, match="--optimizer muon: needs whole weights"):
        build_optimizer(new_network(), "muon", 0.1, 0.01, kind)
