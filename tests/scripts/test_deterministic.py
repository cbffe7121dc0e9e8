"""--deterministic on CUDA: training, evaluation and prediction call no operator that torch then refuses to run there.

No GPU is needed: the operators of a run on the CPU are recorded and compared with torch's list of those that raise on
CUDA. Where Python code chooses by a tensor's device, it is told that this is CUDA.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from support.class_loss import ClassLoss
from support.in_process import process_state_kept, run_train
from support.launches import TINY
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import train
from inference import Predictor
from tasks import confusion as metrics
from tasks.classes.target import ClassTarget
from tasks.step_loss import StepLoss
from unet import UNet, UNetConfig
from unet.blocks import DoubleConv, Up


def always(*arguments, **options) -> bool:
    return True


def by_dim(values: Tensor, dim: object = None, keepdim: bool = False) -> bool:
    return dim is not None


def floating(values: Tensor, *arguments, **options) -> bool:
    return values.is_floating_point()


# torch's list (`torch.use_deterministic_algorithms.__doc__`), and of each entry the operators, and when they raise
RAISES: dict[str, dict[str, Callable[..., bool]]] = {
    "torch.nn.AvgPool3d": {"avg_pool3d_backward": always},
    "torch.nn.AdaptiveAvgPool2d": {"_adaptive_avg_pool2d_backward": always},
    "torch.nn.AdaptiveAvgPool3d": {"_adaptive_avg_pool3d_backward": always},
    "torch.nn.AdaptiveMaxPool2d": {"adaptive_max_pool2d_backward": always},
    "torch.nn.FractionalMaxPool2d": {"fractional_max_pool2d_backward": always},
    "torch.nn.FractionalMaxPool3d": {"fractional_max_pool3d_backward": always},
    "torch.nn.MaxUnpool1d": {"max_unpool2d": always},
    "torch.nn.MaxUnpool2d": {"max_unpool2d": always},
    "torch.nn.MaxUnpool3d": {"max_unpool3d": always},
    "torch.nn.functional.interpolate": {
        "upsample_linear1d_backward": always,
        "upsample_bilinear2d_backward": always,
        "_upsample_bilinear2d_aa_backward": always,
        "upsample_bicubic2d_backward": always,
        "_upsample_bicubic2d_aa_backward": always,
        "upsample_trilinear3d_backward": always,
    },
    "torch.nn.ReflectionPad1d": {"reflection_pad1d_backward": always},
    "torch.nn.ReflectionPad2d": {"reflection_pad2d_backward": always},
    "torch.nn.ReflectionPad3d": {"reflection_pad3d_backward": always},
    # in two dimensions, where it adds up: 0 is `none`
    "torch.nn.NLLLoss": {"nll_loss2d_forward": lambda logits, masks, weight, reduction, ignored: reduction != 0},
    "torch.nn.CTCLoss": {"_ctc_loss_backward": always},
    "torch.nn.EmbeddingBag": {"_embedding_bag_dense_backward": lambda *arguments: arguments[7] == 2},  # 2 is `max`
    "torch.Tensor.put_": {"put_": always, "put": always},
    "torch.histc": {"histc": always},
    "torch.bincount": {"bincount": lambda values, weights=None, minlength=0: weights is not None},
    "torch.median": {"median": by_dim, "nanmedian": by_dim},
    "torch.nn.functional.grid_sample": {"grid_sampler_2d_backward": always, "grid_sampler_3d_backward": always},
    "torch.cumsum": {"cumsum": floating, "cumsum_": floating},
    "torch.Tensor.scatter_reduce": {
        "scatter_reduce": lambda values, dim, index, source, reduce, **options: reduce == "prod",
        "scatter_reduce_": lambda values, dim, index, source, reduce, **options: reduce == "prod",
    },
    "torch.Tensor.resize_": {"resize_": lambda values, *arguments, **options: values.is_quantized},
}
CONDITIONS = {name: condition for operators in RAISES.values() for name, condition in operators.items()}


class Recorder(TorchDispatchMode):
    """The names of the operators that are called within, and of those that would raise."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()
        self.refused: set[str] = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # which hands on whole what is made of other operators
            with self:
                output = operator.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        name = operator.overloadpacket.__name__
        self.called.add(name)
        if name in CONDITIONS and CONDITIONS[name](*args, **kwargs):
            self.refused.add(name)
        return operator(*args, **kwargs)


@contextmanager
def told_cuda() -> Iterator[None]:
    """Within, each tensor says that it lies on CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "is_cuda", True)
        patch.setattr(Tensor, "is_cpu", False)
        yield


def on_cuda(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A `forward` that chooses as on CUDA; on the meta device a network is only measured."""

    def told(self: nn.Module, *inputs: Tensor) -> Tensor:
        with nullcontext() if inputs[0].is_meta else told_cuda():
            return forward(self, *inputs)

    return told


def count_as_on_cuda(cells: Tensor, size: int) -> Tensor:
    """How many pixels each cell has, counted as on a GPU."""
    return metrics.replicated_sums(cells, size, torch.ones_like(cells))


@pytest.fixture
def as_on_cuda(monkeypatch) -> None:
    """The network, the memory check and the count of pixels choose as on CUDA."""
    for module in (UNet, DoubleConv, Up):  # blocks run again in the backward pass
        monkeypatch.setattr(module, "forward", on_cuda(module.forward))
    monkeypatch.setattr(metrics, "sums_by_cell", count_as_on_cuda)
    monkeypatch.setattr(train.RunLog, "write_results", lambda *arguments: None)  # pictures and report


KINDS = [  # each norm, upsampling and loss
    ("batch", "transpose", "ce+dice"),
    ("group", "bilinear", "ce"),
    ("instance", "bilinear_aligned", "dice"),
    ("group", "transpose", "focal+dice"),
    ("batch", "transpose", "ce+logdice"),
]


def run(folder, dataset, norm: str, upsample: str, loss: str):
    """Two steps, a memory trial and an evaluation."""
    flags = ["--norm", norm, "--upsample", upsample, "--loss", loss, "--augment", "strong", "--dropout", "0.1"]
    flags += ["--depth", "3", "--block", "residual"]
    flags += ["--max-steps", "2", "--activation-checkpointing", "--deterministic", "--tracker", "none"]
    return run_train(folder, "--dataset", dataset, *TINY, *flags)


@pytest.mark.parametrize(
    ("norm", "upsample", "loss"), [KINDS[0], *[pytest.param(*kind, marks=pytest.mark.slow) for kind in KINDS[1:]]]
)
def test_nothing_that_is_called_raises(norm, upsample, loss, tiny_folder, tmp_path, as_on_cuda):
    with Recorder() as recorder:
        result = run(tmp_path / "run", tiny_folder, norm, upsample, loss)
        assert result.exit_code == 0, result.output
        with process_state_kept():
            torch.use_deterministic_algorithms(True)
            predictor = Predictor(tmp_path / "run" / "model", tile_size=32, tta=True)
            predictor(next((tiny_folder / "val" / "images").iterdir()))
    assert recorder.refused == set()
    # augmentation, forward and backward pass, count of pixels: all were seen
    assert {"grid_sampler_2d", "convolution", "convolution_backward", "scatter_add_"} <= recorder.called


def operators_of_a_step(network: UNet, criterion: ClassLoss, size: tuple[int, ...]) -> Recorder:
    """What a forward and backward pass on images or volumes of a size calls."""
    images, masks = torch.rand(2, network.config.in_channels, *size), torch.randint(0, 2, (2, *size))
    with process_state_kept(), Recorder() as recorder:
        torch.use_deterministic_algorithms(True)
        criterion(network(images), masks, criterion.step_counts(masks)).backward()
    return recorder


@pytest.mark.parametrize(("norm", "upsample", "loss"), KINDS)
def test_no_operator_of_a_network_with_its_loss_raises(norm, upsample, loss, as_on_cuda):
    network = UNet(UNetConfig(3, 2, 4, 3, norm, upsample, dropout=0.1, block="residual"), deep_supervision=True).train()
    network.activation_checkpointing = True
    recorder = operators_of_a_step(network, ClassLoss(2, loss, strides=network.head_strides), (40, 56))
    assert recorder.refused == set()
    assert {"convolution", "convolution_backward"} <= recorder.called


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
def test_nothing_that_is_called_for_volumes_raises(upsample, as_on_cuda):
    network = UNet(UNetConfig(1, 2, base_channels=2, depth=3, dims=3, upsample=upsample), deep_supervision=True).train()
    recorder = operators_of_a_step(network, ClassLoss(2, strides=network.head_strides), (9, 17, 20))
    assert recorder.refused == set()
    assert {"convolution_backward", "max_pool3d_with_indices_backward"} <= recorder.called


def test_a_loss_that_cuda_refuses_is_found(tiny_folder, tmp_path, as_on_cuda, monkeypatch):
    def summed(self: StepLoss, logits: Tensor, targets: ClassTarget) -> Tensor:
        loss = F.cross_entropy(logits, targets.mask.long(), ignore_index=255, reduction="sum")
        return torch.stack([loss, loss.new_zeros(())])

    monkeypatch.setattr(StepLoss, "sums", summed)
    with Recorder() as recorder:
        assert run(tmp_path / "run", tiny_folder, *KINDS[0]).exit_code == 0
    assert recorder.refused == {"nll_loss2d_forward"}


def test_operators_that_raise_are_those_of_this_torch():
    text = torch.use_deterministic_algorithms.__doc__
    section = text.partition("operations will throw a")[2].partition("In addition, several operations")[0]
    assert set(re.findall(r"\* :\w+:`([\w.]+)`", section)) == set(RAISES)
