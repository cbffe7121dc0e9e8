"""Group and instance norm as CUDA computes them: torch's values and gradients, in the input's type and memory format.

The formula is called directly: on a CPU the layers leave it to torch. Batch norm of volumes is torch's of images.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unet import UNet, UNetConfig
from unet.blocks import NORMS
from unet.norms import group_norm

EPS = 1e-5
IMAGE = (9, 7)
LAYOUTS = [
    (IMAGE, torch.contiguous_format),
    (IMAGE, torch.channels_last),
    ((3, 9, 7), torch.contiguous_format),
    ((3, 9, 7), torch.channels_last_3d),
]


def sample(
    offset: float = 0.5, dtype: torch.dtype = torch.float64, size: tuple[int, ...] = IMAGE
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x and a gradient (2, 12, *size), weight and bias (12,), of which x and the gradient are rounded to `dtype`."""
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, 2, 12, *size, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    return (2 * x + offset).to(dtype), grad.to(dtype), weight + 1, bias


def results(norm, groups: int, x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The output, and the gradients of x, weight and bias."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    output = norm(leaves[0], groups, *leaves[1:], EPS)
    output.backward(grad)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (2, 1), (6, 1), (48, 8), (64, 32), (256, 32)])
def test_groups_are_at_most_thirty_two_of_two_channels_or_more(channels, groups):
    assert NORMS["group"](channels, 2).num_groups == groups


@pytest.mark.parametrize(("size", "layout"), LAYOUTS)
@pytest.mark.parametrize("groups", [1, 4, 12])
def test_values_with_gradients_are_torchs(groups, size, layout):
    x, *others = sample(size=size)
    x = x.contiguous(memory_format=layout)
    ours, theirs = results(group_norm, groups, x, *others), results(F.group_norm, groups, x, *others)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # measured 6e-15


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 2**-24), (torch.bfloat16, 2**-9), (torch.float16, 2**-12)]
)
@pytest.mark.parametrize("offset", [0.0, 4.0])
def test_a_type_costs_no_more_than_its_own_rounding(dtype, rounding, offset):
    x, grad, weight, bias = sample(offset, dtype)
    exact = results(F.group_norm, 4, x.double(), grad.double(), weight, bias)
    for ours, expected in zip(results(group_norm, 4, x, grad, weight.float(), bias.float()), exact, strict=True):
        # rounded once as a result, once between: measured at most 2.2 times
        assert (ours.double() - expected).abs().max() < 4 * rounding * expected.abs().max()


def test_slabs_of_a_volume_have_its_values_with_their_own_gradients():
    x, grad, weight, bias = sample()

    def norm_of_slab(*arguments) -> Tensor:
        return group_norm(*arguments, lambda sums: 2 * sums)  # the other slab is the same

    ours = results(norm_of_slab, 4, x, grad, weight, bias)
    theirs = results(F.group_norm, 4, torch.cat([x, x], dim=2), torch.cat([grad, grad], dim=2), weight, bias)
    for values, expected in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(values, expected[:, :, :9], rtol=1e-12, atol=1e-12)
    for values, expected in zip(ours[2:], theirs[2:], strict=True):
        torch.testing.assert_close(2 * values, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sum_slabs", [None, torch.clone])  # of a single slab, the whole
def test_float32_far_from_zero_loses_nothing_to_cancellation(sum_slabs):
    x, _, weight, bias = sample(300.0, torch.float32)
    exact = F.group_norm(x.double(), 4, weight, bias, EPS)
    difference = group_norm(x, 4, weight.float(), bias.float(), EPS, sum_slabs).double() - exact
    assert difference.abs().max() < 5e-4  # of 7: measured 5e-5; from the mean of squares it would be 5e-3


@pytest.mark.parametrize("value", [77.7, 300.3, 1000.7])  # the rounded mean of squares is below the mean's square
def test_a_constant_channel_of_16_bits_is_its_bias(value):
    x = torch.full((1, 4, 9, 7), value, dtype=torch.float16)
    bias = torch.tensor([0.0, 1.0, -2.0, 3.0])
    output = group_norm(x, 4, torch.ones(4), bias, EPS)
    assert output.isfinite().all()
    assert (output.mean((0, 2, 3)) - bias).abs().max() < 0.1


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("size", "layout"), LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_output_has_the_type_with_memory_format_of_the_input(dtype, size, layout, autocast):
    x, grad, weight, bias = sample(dtype=dtype, size=size)
    x = x.contiguous(memory_format=layout).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = group_norm(x, 4, weight.float(), bias.float(), EPS)
    output.backward(grad)
    assert output.dtype == x.grad.dtype == dtype
    assert output.is_contiguous(memory_format=layout)
    assert x.grad.is_contiguous(memory_format=layout)


class LargeTypes(TorchDispatchMode):
    """The types of everything computed within that is as large as `numel`."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.types = numel, set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        output = operator(*args, **(kwargs or {}))
        self.types |= {x.dtype for x in tree_leaves(output) if isinstance(x, Tensor) and x.numel() >= self.numel}
        return output


def test_nothing_as_large_as_the_input_is_float32():
    x, grad, weight, bias = sample(dtype=torch.bfloat16)
    with LargeTypes(x.numel()) as seen:
        results(group_norm, 4, x, grad, weight.float(), bias.float())
    assert seen.types == {torch.bfloat16}


def test_the_formula_is_compiled_in_one_graph():
    x, grad, weight, bias = sample(dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(group_norm, backend="eager", fullgraph=True)
    inputs = (4, x, grad, weight.float(), bias.float())
    for ours, expected in zip(results(compiled, *inputs), results(group_norm, *inputs), strict=True):
        assert torch.equal(ours, expected)
        assert ours.stride() == expected.stride()


@pytest.mark.parametrize("norm", ["group", "instance"])
def test_a_network_is_the_same_on_cuda(norm, monkeypatch):
    torch.manual_seed(0)
    model = UNet(UNetConfig(base_channels=4, depth=2, norm=norm)).double()
    images = torch.rand(2, 3, 17, 24, dtype=torch.float64)
    found = []
    for is_cuda in (False, True):
        monkeypatch.setattr(torch.Tensor, "is_cuda", is_cuda)
        model.zero_grad()
        output = model(images)
        output.square().sum().backward()
        found.append([output.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("volumes", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_volumes_is_torchs(volumes, layout, dtype, training):
    torch.manual_seed(0)
    x, grad = torch.randn(2, volumes, 6, 3, 5, 4)
    found = []
    for layer in (nn.BatchNorm3d(6), NORMS["batch"](6, dims=3)):
        layer.train(training)
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
        leaf = x.to(dtype).contiguous(memory_format=layout).requires_grad_()
        y = layer(leaf)
        y.backward(grad.to(dtype).contiguous(memory_format=layout))
        found.append([y.detach(), leaf.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var])
    for theirs, ours in zip(*found, strict=True):
        assert torch.equal(theirs, ours)
        assert theirs.stride() == ours.stride()
