"""Muon: orthogonal steps of convolutions, steps of AdamW for all else.

Modules: train_utils/muon.py, train_utils/optim.py.
"""

import pytest
import torch
from accelerate.utils import DistributedType

from runtime.errors import SettingsError
from train_utils.muon import Muon, orthogonalized
from train_utils.optim import build_optimizer
from train_utils.settings import lite0
from unet import UNet, UNetConfig
from unet.model import DeeplySupervisedUNet


def by_the_paper(matrix: torch.Tensor) -> torch.Tensor:
    """Five iterations as Jordan et al. write them, on the matrix itself."""
    x = matrix / matrix.norm()
    if len(x) > x.shape[1]:
        x = x.T
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if len(matrix) > matrix.shape[1] else x


@pytest.mark.parametrize("shape", [(5, 27), (27, 5), (16, 16), (1, 9)])
def test_a_step_has_the_singular_vectors_of_the_gradient_and_values_near_1(shape):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(0))
    result = orthogonalized(matrix)
    torch.testing.assert_close(result, by_the_paper(matrix), rtol=1e-9, atol=1e-9)
    vectors, _, right_vectors = torch.linalg.svd(matrix, full_matrices=False)
    turned = vectors.T @ result @ right_vectors.T
    values = turned.diagonal()
    assert values.min() > 0.6
    assert values.max() < 1.25
    assert (turned - values.diag()).abs().max() < 1e-9
    torch.testing.assert_close(orthogonalized(1e-20 * matrix.float()).double(), result, rtol=1e-3, atol=1e-3)


def test_a_gradient_of_zeros_makes_no_step():
    assert orthogonalized(torch.zeros(3, 4)).tolist() == torch.zeros(3, 4).tolist()


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


def test_each_group_has_its_own_learning_rate_and_weight_decay():
    gradient = torch.randn(4, 6, generator=torch.manual_seed(0))
    settings = [(0.1, 0.5), (0.3, 0.2)]
    weights = [torch.nn.Parameter(torch.ones(4, 6)) for _ in settings]
    groups = []
    for weight, (learning_rate, decay) in zip(weights, settings, strict=True):
        weight.grad = gradient.clone()
        groups.append({"params": [weight], "orthogonal": True, "lr": learning_rate, "weight_decay": decay})
    Muon(groups).step()
    first, second = (
        (weight.detach() - (1 - rate * decay)) / rate for weight, (rate, decay) in zip(weights, settings, strict=True)
    )
    torch.testing.assert_close(first, second)


def new_network() -> DeeplySupervisedUNet:
    torch.manual_seed(0)
    return DeeplySupervisedUNet(UNetConfig(base_channels=4, depth=3, num_classes=3))


def test_muon_steps_are_orthogonal_for_hidden_convolutions_alone():
    network = new_network()
    optimizer = build_optimizer(network, "muon", 0.1, 0.01)
    names = {parameter: name for name, parameter in network.named_parameters()}
    orthogonal = set()
    for group in optimizer.param_groups:
        if group.get("orthogonal"):
            assert group["weight_decay"] == 0.01
            orthogonal |= {names[parameter] for parameter in group["params"]}
    kernels = {name for name, parameter in network.named_parameters() if parameter.ndim == 4}
    heads = {"head.conv.weight", "heads.0.conv.weight"}
    assert heads < kernels
    assert orthogonal == kernels - heads
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)
    assert not any(group["orthogonal"] for group in build_optimizer(torch.nn.Linear(2, 2), "muon", 0.1, 0).param_groups)


def test_an_encoder_is_left_to_adamw():
    network = UNet(UNetConfig(base_channels=4, encoder=lite0.CONFIG))
    for group in build_optimizer(network, "muon", 0.1, 0.01).param_groups:
        assert not (group["of_encoder"] and group.get("orthogonal"))


def test_weights_without_orthogonal_steps_move_as_with_adamw():
    networks = [new_network(), new_network()]
    optimizers = [
        build_optimizer(network, name, 0.1, 0.01) for network, name in zip(networks, ("muon", "adamw"), strict=True)
    ]
    for network, optimizer in zip(networks, optimizers, strict=True):
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.step()
    muon, adamw = [dict(network.named_parameters()) for network in networks]
    for name in ("head.conv.weight", "heads.0.conv.weight", "stem.norm1.weight", "ups.0.up.bias"):
        assert torch.equal(muon[name], adamw[name])
    assert not torch.equal(muon["stem.conv1.weight"], adamw["stem.conv1.weight"])


def test_a_refused_step_changes_neither_weights_nor_momentum():
    network = new_network()
    optimizer = build_optimizer(network, "muon", 0.1, 0.01)
    for gradient, refused in ((1.0, 0.0), (float("nan"), 1.0)):
        before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        momentum = [state.get("momentum_buffer", torch.zeros(())).clone() for state in optimizer.state.values()]
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.found_inf = torch.tensor(refused)
        optimizer.step()
        moved = [name for name, parameter in network.named_parameters() if not torch.equal(parameter, before[name])]
        assert bool(moved) == (refused == 0)
    after = [state.get("momentum_buffer", torch.zeros(())) for state in optimizer.state.values()]
    assert all(map(torch.equal, after, momentum))


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_a_profile_that_spreads_weights_is_refused_in_a_line(kind):
    with pytest.raises(SettingsError, match="--optimizer muon: needs whole weights"):
        build_optimizer(new_network(), "muon", 0.1, 0.01, kind)


def test_a_weight_without_a_gradient_stays_and_the_closures_loss_is_returned():
    network = new_network()
    optimizer = build_optimizer(network, "muon", 0.1, 0.01)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    network.stem.conv2.weight.grad = None
    before = network.stem.conv2.weight.detach().clone()
    groups = list(optimizer.param_groups)
    assert optimizer.step(lambda: 2.5) == 2.5
    assert torch.equal(network.stem.conv2.weight, before)
    assert optimizer.param_groups == groups

    def fails() -> float:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        optimizer.step(fails)
    assert optimizer.param_groups == groups
