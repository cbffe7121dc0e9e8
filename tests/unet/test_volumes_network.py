"""The network on images (B, C, H, W) and volumes (B, C, D, H, W), which share their code.

Modules: unet/config.py.
"""

import pytest
import torch
import torch.nn.functional as F
from support.class_loss import ClassLoss
from support.networks import randomized
from torch import Tensor, nn

from inference.export.onnx import write_onnx
from inference.models import OnnxNetwork
from unet import Preprocess, UNet, UNetConfig
from unet.blocks import BLOCKS, LAYERS, NORMS, channels_last, fold_batch_norm
from unet.config import level_axes

ISOTROPIC = {"dims": 3}
FLAT = {"dims": 3, "kernels": ((1, 3, 3), (1, 3, 3), (3, 3, 3)), "strides": ((1, 2, 2), (2, 2, 2))}
SLICED = {"dims": 3, "kernels": ((1, 3, 3),) * 3, "strides": ((1, 2, 2),) * 2}


def network(deep_supervision: bool = False, **settings) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(1, 3, **({"base_channels": 4, "depth": 2} | settings)), deep_supervision)


def reference(weights: list[Tensor], x: Tensor, config: UNetConfig) -> Tensor:
    """Pytorch-UNet's forward written out with functions, taking the tensors of its state_dict in order."""
    queue = iter(weights)
    conv, transposed_conv, max_pool = F.conv2d, F.conv_transpose2d, F.max_pool2d
    if config.dims == 3:
        conv, transposed_conv, max_pool = F.conv3d, F.conv_transpose3d, F.max_pool3d

    def double_conv(x: Tensor, kernel: tuple[int, ...]) -> Tensor:
        for _ in range(2):
            x = conv(x, next(queue), padding=tuple(size // 2 for size in kernel))
            scale, shift, mean, variance, _ = (next(queue) for _ in range(5))
            x = F.relu(F.batch_norm(x, mean, variance, scale, shift))
        return x

    kernels, strides = config.level_kernels, config.level_strides
    skips = [double_conv(x, kernels[0])]
    for kernel, stride in zip(kernels[1:], strides, strict=True):
        skips.append(double_conv(max_pool(skips[-1], stride), kernel))
    x = skips.pop()
    for kernel, stride in zip(kernels[-2::-1], strides[::-1], strict=True):
        x, skip = transposed_conv(x, next(queue), next(queue), stride=stride), skips.pop()
        pads = []
        for wanted, side in zip(reversed(skip.shape[2:]), reversed(x.shape[2:]), strict=True):
            pads += [(wanted - side) // 2, wanted - side - (wanted - side) // 2]
        x = double_conv(torch.cat([skip, F.pad(x, pads)], dim=1), kernel)
    return conv(x, next(queue), next(queue))


@pytest.mark.parametrize(
    ("axes", "size"),
    [
        *[({"depth": 4}, size) for size in ((16, 16), (17, 23), (31, 64), (33, 100))],
        *[(axes, size) for axes in (ISOTROPIC, FLAT) for size in ((7, 35, 50), (4, 8, 9))],
    ],
)
def test_network_equals_the_reference_from_its_least_size_on(axes, size):
    model = randomized(network(**axes))
    x = torch.randn(2, 1, *size, dtype=torch.float64)
    expected = reference(list(model.state_dict().values()), x, model.config)
    assert expected.flatten(2).std(dim=2).min() > 1e-4  # the logits differ from pixel to pixel
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-13)  # float64: measured 4e-16


@pytest.mark.parametrize("slices", [1, 2, 3, 8])
@pytest.mark.parametrize(("inputs", "kernel"), [(1, (3, 3, 3)), (16, (3, 3, 3)), (16, (3, 1, 1)), (16, (1, 3, 3))])
def test_the_gradient_of_a_convolution_in_bf16_is_that_in_float32(slices, inputs, kernel):
    torch.manual_seed(0)
    layer = LAYERS[3].conv(inputs, 32, kernel, padding=tuple(side // 2 for side in kernel), bias=False)
    x = channels_last(torch.randn(1, inputs, slices, 9, 7))
    weights = torch.randn(1, 32, slices, 9, 7)
    exact, rounded = [], []
    for is_bf16, gradients in ((False, exact), (True, rounded)):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            loss = (layer(x) * weights).sum()
        gradients += torch.autograd.grad(loss, list(layer.parameters()))
    difference = torch.linalg.vector_norm(rounded[0] - exact[0])
    assert difference < 0.02 * torch.linalg.vector_norm(exact[0])  # measured 0.003


@pytest.mark.parametrize(
    ("channels", "upsample", "lowest"), [(64, "transpose", 320), (384, "transpose", 384), (64, "bilinear", 320 // 2)]
)
def test_levels_of_volumes_have_320_channels_at_most_or_those_of_the_first(channels, upsample, lowest):
    with torch.device("meta"):
        model = UNet(UNetConfig(1, 3, channels, depth=3, upsample=upsample, dims=3)).eval()
        assert model(torch.empty(1, 1, 8, 8, 8)).shape == (1, 3, 8, 8, 8)
    assert model.stem.conv2.out_channels == channels
    assert model.downs[-1].conv.conv2.out_channels == lowest


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_network_that_never_looks_along_an_axis_sees_slices_as_images(upsample, block):
    flat = randomized(network(upsample=upsample, block=block))
    volumes = network(upsample=upsample, block=block, **SLICED).double().eval()
    state = volumes.state_dict()
    volumes.load_state_dict({name: value.view(state[name].shape) for name, value in flat.state_dict().items()})
    x = torch.rand(2, 1, 3, 21, 18, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([flat(plane) for plane in x.unbind(dim=2)], dim=2)
        torch.testing.assert_close(volumes(x), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        ({"depth": 4}, ((1, 1), (1, 40), (15, 16), (16, 16), (31, 7), (33, 47))),
        (ISOTROPIC, ((7, 35, 50), (1, 1, 1), (1, 30, 3), (3, 4, 5))),
        (FLAT, ((7, 35, 50), (1, 1, 1), (1, 30, 3), (3, 4, 5))),
    ],
    ids=["images", "isotropic", "flat"],
)
def test_any_size_comes_back_at_its_own_size(norm, block, upsample, axes, sizes):
    model = network(norm=norm, block=block, upsample=upsample, **axes)
    model = model.to(memory_format=model.memory_format).eval()
    for size in sizes:
        with torch.no_grad():
            logits = model(torch.randint(0, 256, (1, 1, *size), dtype=torch.uint8))
        assert logits.shape == (1, 3, *size)
        assert logits.isfinite().all(), size


def test_a_side_shorter_than_its_own_divisor_is_padded_with_its_border():
    model = randomized(network(**FLAT))  # divisors 2, 4, 4
    x = torch.randn(1, 1, 1, 9, 3, dtype=torch.float64)
    padded = F.pad(x, (0, 5, 0, 0, 0, 3), mode="replicate")
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(padded)[:, :, :1, :, :3], rtol=0, atol=1e-13)
        long_enough = torch.randn(1, 1, 2, 4, 4, dtype=torch.float64)
        assert torch.equal(model._pad(long_enough), long_enough)


DEEP = {"dims": 3, "depth": 3}
DEEP_FLAT = DEEP | {"kernels": ((1, 3, 3), *FLAT["kernels"]), "strides": ((1, 2, 2), *FLAT["strides"])}


@pytest.mark.parametrize(
    ("axes", "size", "coarser"),
    [
        (DEEP, (9, 35, 50), (4, 17, 25)),
        (DEEP, (7, 35, 50), (8, 17, 25)),  # padded to 16
        (DEEP_FLAT, (7, 35, 50), (7, 17, 25)),
    ],
)
def test_coarser_levels_predict_in_training(axes, size, coarser):
    model = network(True, norm="group", **axes).train()
    logits = model(torch.rand(2, 1, *size))
    assert [tuple(x.shape) for x in logits] == [(2, 3, *size), (2, 3, *coarser)]
    masks = torch.randint(0, 3, (2, *size))
    criterion = ClassLoss(3, "ce+logdice", strides=model.head_strides)
    criterion(logits, masks, criterion.step_counts(masks)).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("norm", NORMS)
def test_a_saved_model_comes_back_with_its_axes(norm, tmp_path):
    preprocess = Preprocess(spacing=(5.0, 0.7, 0.7), clip=(-100.0, 240.0), standardize=True)
    model = network(True, norm=norm, block="residual", preprocess=preprocess, **FLAT)
    model = model.to(memory_format=model.memory_format).eval()
    model.save_pretrained(tmp_path)
    loaded = UNet.from_pretrained(tmp_path)
    assert loaded.config == model.config
    loaded.to(memory_format=loaded.memory_format)
    x = torch.rand(1, 1, 7, 35, 50)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_batch_norm_is_folded_into_convolutions():
    model = randomized(network(block="residual", **FLAT))
    x = torch.rand(1, 1, 7, 18, 21, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(fold_batch_norm(model)(x), expected, rtol=1e-12, atol=1e-12)
    assert not any(isinstance(module, nn.BatchNorm3d) for module in model.modules())


@pytest.mark.parametrize(
    ("spacing", "patch", "kernels", "strides"),
    [
        ((1, 1, 1), (40, 56, 40), [(3, 3, 3)] * 4, [(2, 2, 2)] * 3),
        ((50, 4, 4), (16, 192, 192), [(1, 3, 3)] * 3 + [(3, 3, 3)] * 3, [(1, 2, 2)] * 3 + [(2, 2, 2)] * 2),
        (
            (5, 0.7, 0.7),
            (20, 256, 224),
            [(1, 3, 3)] * 2 + [(3, 3, 3)] * 4,
            [(1, 2, 2)] * 2 + [(2, 2, 2)] * 2 + [(1, 2, 2)],
        ),
        ((1, 1), (256, 256), [(3, 3)] * 6, [(2, 2)] * 5),
        ((0.5, 1, 1), (8, 64, 64), [(3, 1, 1)] + [(3, 3, 3)] * 5, [(2, 1, 1)] + [(1, 2, 2)] * 4),
        ((1, 1, 1), (6, 7, 5), [(3, 3, 3)] * 2, [(2, 2, 2)]),
    ],
    ids=["isotropic", "electron microscopy", "thick slices", "images", "a short finest axis", "too small"],
)
def test_axes_are_pooled_until_they_are_alike_or_short(spacing, patch, kernels, strides):
    assert level_axes(spacing, patch) == (tuple(kernels), tuple(strides))
    UNetConfig(dims=len(patch), depth=len(strides), kernels=tuple(kernels), strides=tuple(strides))
    assert level_axes(spacing, patch, depth=1) == (tuple(kernels[:2]), tuple(strides[:1]))


def test_an_exported_network_has_torchs_logits(tmp_path):
    model = network(norm="instance", **FLAT).eval()
    write_onnx(model, tmp_path / "model.onnx")
    exported = OnnxNetwork(tmp_path / "model.onnx")
    assert exported.config == model.config
    for shape in ((1, 7, 35, 50), (2, 1, 3, 40), (1, 2, 2, 2)):
        images = torch.rand(shape[0], 1, *shape[1:])
        with torch.inference_mode():
            torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=5e-5)
