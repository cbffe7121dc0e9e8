"""Batch norm over several processes is that of one process on all their images: a layer, and a whole run.

Modules: train_utils/sync_batchnorm.py.
"""

import copy
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from support.class_loss import ClassLoss
from support.folders import write_folder, write_splits
from support.forks import call_in_processes
from support.in_process import in_float64, run_train
from support.launches import PROGRAMS, launch
from support.run_equality import check_same_columns
from support.run_files import records
from torch import Tensor, nn

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import counted
from train_utils.sync_batchnorm import SynchronizedBatchNorm, leave_out_of_batch_norm, synchronize_batchnorm
from unet import UNet, UNetConfig
from unet.blocks import channels_last

FLAGS = ["--plan", "none", "--base-channels", "2", "--depth", "1", "--num-workers", "0", "--tracker", "none"]
FLAGS += ["--max-steps", "4", "--log-every", "1", "--learning-rate", "0.01", "--augment", "strong"]
FLAGS += ["--ema-decay", "0.9"]
SHARES = {2: (4, 4), 3: (4, 3, 1), 4: (3, 3, 2, 0)}  # how many of eight images each process has


def layer_in_one_of_several(rank: int, processes: int, folder: Path) -> None:
    """The layer on this process's share of what the file `input` holds; writes what comes out.

    A process without an image has the first one again, whose output moves no loss.
    """
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    given = torch.load(folder / "input", weights_only=False)
    outputs = {}
    for name, (norm, x, grad) in given.items():
        norm = nn.Sequential(SynchronizedBatchNorm.from_norm(norm))
        x, grad = (channels_last(whole.split(SHARES[processes])[rank]) for whole in (x, grad))
        is_filler = len(x) == 0
        if is_filler:
            x, grad = given[name][1][:1].clone(), torch.zeros_like(given[name][2][:1])
        leave_out_of_batch_norm(norm, is_filler)
        outputs[name] = passed(norm[0], x, grad)
        if is_filler:
            assert not outputs[name]["x"].any()  # no other process's loss moves what is only repeated
            outputs[name] |= {key: outputs[name][key][:0] for key in ("x", "y")}
    torch.save(outputs, folder / f"output-{rank}")
    dist.destroy_process_group()


def passed(norm: nn.BatchNorm2d, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """What two forward and backward passes give; the second sees the statistics that the first has left."""
    x = x.requires_grad_()
    for _ in range(2):
        y = norm(x)
        y.backward(grad)
    statistics = {"mean": norm.running_mean, "var": norm.running_var, "batches": norm.num_batches_tracked}
    return {"y": y.detach(), "x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad, **statistics}


Inputs = dict[str, tuple[nn.Module, Tensor, Tensor]]  # a norm, its inputs and the gradients of its outputs, by a name
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 1 / 32}  # of x of size 10 in bfloat16 1/32 is known


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Eight images and eight volumes in each precision."""
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for kind, size in ((nn.BatchNorm2d, (7, 9)), (nn.BatchNorm3d, (3, 7, 9))):
            exact = torch.float32 if dtype == torch.bfloat16 else dtype
            norm = kind(5, eps=0.01, momentum=0.3, dtype=exact)  # as an encoder may have them
            nn.init.normal_(norm.weight, generator=generator)
            x, grad = (torch.randn(8, 5, *size, generator=generator, dtype=torch.float64) for _ in range(2))
            inputs[f"{str(dtype)[6:]} {len(size)}"] = norm, (3 * x + 10).to(dtype), grad.to(dtype)
    return inputs


@pytest.mark.parametrize("processes", [4, *[pytest.param(count, marks=pytest.mark.slow) for count in (2, 3)]])
def test_layer_is_batch_norm_on_the_joined_batch(inputs, processes, tmp_path):
    torch.save(inputs, tmp_path / "input")
    call_in_processes(layer_in_one_of_several, processes, tmp_path)
    outputs = [torch.load(tmp_path / f"output-{rank}", weights_only=False) for rank in range(processes)]
    for name, (norm, x, grad) in inputs.items():
        exact = norm.weight.dtype
        expected = passed(copy.deepcopy(norm), x.to(exact, copy=True), grad.to(exact))
        tolerance = TOLERANCES[name.split()[0]]
        for key in ("y", "x"):
            shares = [of_rank[name][key] for of_rank in outputs]
            assert torch.cat(shares).dtype == x.dtype
            torch.testing.assert_close(torch.cat(shares).to(exact), expected[key], atol=tolerance, rtol=0)
            assert channels_last(shares[0]).stride() == shares[0].stride()
        rtol = 1e-12 if exact == torch.float64 else 1e-5
        for key in ("weight", "bias"):  # DistributedDataParallel adds the gradients up
            gradient = sum(of_rank[name][key] for of_rank in outputs)
            torch.testing.assert_close(gradient, expected[key], rtol=rtol, atol=10 * rtol)
        for key in ("mean", "var", "batches"):
            assert all(torch.equal(of_rank[name][key], outputs[0][name][key]) for of_rank in outputs)
            torch.testing.assert_close(outputs[0][name][key], expected[key])


@pytest.mark.parametrize(
    ("images", "batch_size", "processes", "line"),
    [
        pytest.param(24, 8, 4, "8 in a step = 2 in a micro-batch x 4 processes", marks=pytest.mark.slow),
        # each epoch ends with a step of two images
        pytest.param(
            10, 4, 8, "4 of 8 processes have no image in a step, and compute a repeated one", marks=pytest.mark.slow
        ),
        (4, 1, 2, "1 of 2 processes have no image in a step, and compute a repeated one"),
    ],
)
def test_run_with_batch_norm_is_the_same_on_several_processes(tmp_path, images, batch_size, processes, line):
    write_folder(tmp_path / "train", images, seed=0, size=(16, 24))
    write_folder(tmp_path / "val", 3, seed=1, size=(16, 24))
    flags = ["--dataset", tmp_path, *FLAGS, "--batch-size", str(batch_size)]
    arguments = ["train.py", *flags, "--output-dir", tmp_path / "several"]
    options = ["--num_processes", str(processes)]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu", options=options)
    assert result.returncode == 0, result.stderr
    assert line in result.stdout
    assert "batch norm sees" not in result.stdout
    with in_float64():
        one = run_train(tmp_path / "one", *flags)
    assert one.exit_code == 0
    columns = ("train/loss", "train/grad_norm", "eval/loss", "eval/mean_iou")
    check_same_columns(records(tmp_path / "several"), one.records, columns)
    assert len(one.values("train/loss")) == 4


@pytest.mark.parametrize(
    ("dims", "processes", "mode", "seen"),
    [(2, 2, "auto", 8), (3, 2, "auto", 8), (2, 2, "off", 4), (2, 1, "on", 4), (2, 8, "off", 1)],
)
def test_images_that_batch_norm_sees_are_reported_where_they_are_not_those_of_a_step(
    capsys, dims, processes, mode, seen
):
    network = UNet(UNetConfig(base_channels=2, depth=1, dims=dims))
    keys = list(network.state_dict())
    # eight images a step, at most four of them in a micro-batch; on one process in two passes
    split = BatchSplit(8, processes, min(4, math.ceil(8 / processes)), 1 if processes > 1 else 2)
    synchronize_batchnorm(SimpleNamespace(num_processes=processes), network, mode, split)
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(isinstance(norm, SynchronizedBatchNorm) == (seen == 8) for norm in norms)
    assert list(network.state_dict()) == keys
    line = f"batch norm sees {counted(seen, 'image')} at a time, not the 8 of a step"
    assert capsys.readouterr().out.count(line) == (seen < 8)


def test_evaluation_needs_no_other_process():
    norm = nn.BatchNorm2d(3, eps=0.1)
    norm(torch.rand(4, 3, 5, 5))
    x = torch.rand(1, 3, 2, 2)
    assert torch.equal(SynchronizedBatchNorm.from_norm(norm).eval()(x), norm.eval()(x))


def test_processes_with_statistics_of_their_own_evaluate_the_model_that_is_saved(tmp_path):
    """Without synchronisation each measures its own images; scores are those of the first one's, which is saved."""
    write_splits(tmp_path, 8, 4)
    for number in range(4):  # of shapes of their own, so that both processes have batches
        for kind in ("images", "masks"):
            file = tmp_path / "val" / kind / f"cell_{number:02}.png"
            Image.open(file).crop((0, 0, 56 - 4 * number, 40)).save(file)
    flags = ["--base-channels", "4", "--depth", "2", "--num-workers", "0", "--tracker", "none", "--augment", "none"]
    flags += ["--plan", "none"]
    flags += ["--batch-size", "4", "--max-steps", "4", "--eval-every", "4", "--learning-rate", "0.01"]
    output = tmp_path / "run"
    command = ["train.py", "--dataset", tmp_path, "--output-dir", output, *flags, "--sync-batchnorm", "off"]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    model, criterion = UNet.from_pretrained(output / "model"), ClassLoss(2, "ce+logdice", None)
    sums, counts = torch.zeros(2), torch.zeros(2)
    for file in sorted((tmp_path / "val" / "images").iterdir()):
        mask = torch.tensor(np.array(Image.open(tmp_path / "val" / "masks" / file.name)) // 255)[None].long()
        with torch.no_grad():
            logits = model(torch.tensor(np.array(Image.open(file))).permute(2, 0, 1)[None])
        sums, counts = sums + criterion.sums(logits, mask), counts + criterion.counts(mask)
    assert records(output)[-1]["eval/loss"] == pytest.approx((sums / counts).sum().item(), rel=1e-5)
