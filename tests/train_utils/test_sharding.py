"""Training whose weights and optimizer state are spread over the processes: the same losses, resumed on any number.

accelerate shards on GPUs only. tests/programs/fsdp_on_cpu.py and tests/programs/deepspeed_on_cpu.py have its own
FSDP2 and DeepSpeed code run on CPUs, on gloo.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from support.folders import write_folder
from support.in_process import Run, run_train
from support.launches import PROGRAMS, TINY, launch
from support.run_files import losses, records

import inference.tiling.planning
from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import CheckpointError, LaunchError
from train_utils.sharding import (
    optimizer_tensors,
    prepare_sharding,
    restore_optimizer,
)
from unet import UNet, UNetConfig

STEPS = 4
FLAGS = ["--max-steps", str(STEPS), "--log-every", "1", "--tracker", "none", "--batch-size", "8"]
FLAGS += ["--checkpoint-every", "2", "--ema-decay", "0.9", "--optimizer", "sgd"]
FLAGS += ["--depth", "3"]  # the least at which deep supervision has heads


SMALL_TILES = """
import inference.tiling.planning
import train

for name in ("WHOLE_MEMORY", "TILE_MEMORY", "LARGE_TILE_MEMORY"):
    setattr(inference.tiling.planning, name, 0)
train.main()
"""


def half_of(output: Path, folder: Path) -> Path:
    """A copy of a run that has lost its last checkpoint."""
    shutil.copytree(output, folder)
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:08}")
    return folder


def run_plain(folder: Path, output: Path, *flags: str | Path) -> Run:
    """A run on one process that evaluates in small tiles."""
    limits = dict.fromkeys(("WHOLE_MEMORY", "TILE_MEMORY", "LARGE_TILE_MEMORY"), 0)
    with mock.patch.multiple(inference.tiling.planning, **limits):
        run = run_train(output, "--dataset", folder, *TINY, *FLAGS, *flags)
    assert run.exit_code == 0, run.output
    return run


def run_fsdp(folder: Path, output: Path, processes: int, *flags: str | Path, precision: str = "no") -> None:
    """The same on several processes, with FSDP."""
    options = ["--mixed_precision", precision, "--num_processes", str(processes), "--main_process_port", "0"]
    script = output.parent / "small_tiles.py"
    script.write_text(SMALL_TILES)
    arguments = [PROGRAMS / "fsdp_on_cpu.py", script, "--dataset", folder, "--output-dir", output, *TINY, *FLAGS]
    result = launch(*arguments, *flags, profile="fsdp", options=options, env={"ACCELERATE_USE_CPU": "true"})
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr


@pytest.fixture(scope="module")
def data(tiny_folder, tmp_path_factory) -> Path:
    """Images of which two processes have different numbers of tiles in an evaluation."""
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "train").symlink_to(tiny_folder / "train")
    write_folder(folder / "val", 1, seed=1, size=(32, 48))
    write_folder(folder / "large", 1, seed=2, size=(100, 64))
    for kind in ("images", "masks"):
        (file,) = (folder / "large" / kind).iterdir()
        file.rename(folder / "val" / kind / "large.png")
    shutil.rmtree(folder / "large")
    return folder


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory) -> Path:
    return run_plain(data, tmp_path_factory.mktemp("fsdp") / "plain").folder


@pytest.fixture(scope="module")
def sharded(data, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("fsdp") / "sharded"
    run_fsdp(data, output, 2, "--micro-batch-size", "2")
    return output


def test_fsdp_takes_residual_blocks_and_an_encoder_that_has_the_finest_level(data, tmp_path):
    flags = ["--dataset", data, "--output-dir", tmp_path / "run", "--plan", "none", "--max-steps", "1"]
    flags += ["--block", "residual", "--encoder", "lite0", "--encoder-weights", "random", "--output-stride", "2"]
    options = ["--mixed_precision", "no", "--num_processes", "2", "--main_process_port", "0"]
    arguments = [PROGRAMS / "fsdp_on_cpu.py", "train.py", *flags, "--base-channels", "2", "--tracker", "none"]
    result = launch(*arguments, profile="fsdp", options=options, env={"ACCELERATE_USE_CPU": "true"})
    assert result.returncode == 0, result.stderr


def test_fsdp_gives_the_same_losses_scores_and_tensors(plain, sharded):
    """The two processes evaluate different numbers of tiles."""
    assert losses(sharded) == pytest.approx(losses(plain), abs=1e-5)  # the documented promise, of SGD in fp32
    of_one, of_two = ([line for line in records(run) if "eval/loss" in line] for run in (plain, sharded))
    assert len(of_one) == 2
    for ours, theirs in zip(of_two, of_one, strict=True):
        assert ours["eval/loss"] == pytest.approx(theirs["eval/loss"], abs=1e-4)
        assert ours["eval/mean_iou"] == pytest.approx(theirs["eval/mean_iou"], abs=1e-3)
    for kind in ("model", "average", "optimizer"):
        name = f"checkpoints/step-{STEPS:08}/{kind}.safetensors"
        torch.testing.assert_close(
            load_file(sharded / name), load_file(plain / name), atol=3e-4, rtol=0
        )  # 7e-5 is known


def test_fsdp_resumes_on_one_process(data, sharded, tmp_path):
    output = half_of(sharded, tmp_path / "run")
    run_plain(data, output, "--resume", "auto")
    assert losses(output) == pytest.approx(losses(sharded), abs=1e-5)  # the documented promise, of SGD in fp32


@pytest.mark.slow
def test_fsdp_gives_the_same_losses_with_an_encoder(tiny_folder, tmp_path):
    from support.encoders import write_encoder

    torch.manual_seed(0)
    encoder = ["--encoder", write_encoder(tmp_path / "resnet"), "--depth", "5"]
    run_plain(tiny_folder, tmp_path / "plain", *encoder)
    run_fsdp(tiny_folder, tmp_path / "sharded", 2, *encoder)
    assert losses(tmp_path / "sharded") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)  # as promised


@pytest.mark.slow
def test_fsdp_in_bf16_has_other_losses_than_float32_but_near(data, sharded, tmp_path):
    run_fsdp(data, tmp_path / "bf16", 2, "--micro-batch-size", "2", precision="bf16")
    assert losses(tmp_path / "bf16") != pytest.approx(losses(sharded), abs=1e-5)
    assert losses(tmp_path / "bf16") == pytest.approx(losses(sharded), abs=0.05)


ZERO_FLAGS = [*TINY, *FLAGS, "--micro-batch-size", "1"]
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed and transformers"
)


def run_zero(folder: Path, output: Path, *flags: str, options: tuple = ()) -> subprocess.CompletedProcess:
    """A run on two processes with DeepSpeed; `options` of `accelerate launch`."""
    arguments = ["train.py", "--dataset", folder, *ZERO_FLAGS, "--output-dir", output, *flags]
    return launch(
        PROGRAMS / "deepspeed_on_cpu.py",
        *arguments,
        profile="deepspeed_zero2",
        options=["--main_process_port", "29517", *options],
        env={"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "false"},
        forked=False,
    )


@pytest.fixture(scope="module")
def without_zero(tiny_folder, tmp_path_factory) -> Path:
    """The run with the flags of ZeRO, but on one process."""
    output = tmp_path_factory.mktemp("zero") / "plain"
    result = launch("train.py", "--dataset", tiny_folder, *ZERO_FLAGS, "--output-dir", output)
    assert result.returncode == 0, result.stderr
    return output


@pytest.fixture(scope="module")
def with_zero(tiny_folder, tmp_path_factory) -> Path:
    """The same run with ZeRO."""
    output = tmp_path_factory.mktemp("zero") / "sharded"
    result = run_zero(tiny_folder, output)
    assert result.returncode == 0, result.stderr
    assert "distributed_type DEEPSPEED" in result.stdout
    return output


@pytest.mark.slow
@needs_deepspeed
def test_zero_gives_the_same_losses(without_zero, with_zero):
    assert losses(with_zero) == pytest.approx(losses(without_zero), abs=1e-5)


@pytest.mark.slow
@needs_deepspeed
def test_zero_resumes_on_as_many_processes(tiny_folder, with_zero, tmp_path):
    output = half_of(with_zero, tmp_path / "run")
    result = run_zero(tiny_folder, output, "--resume", "auto")
    assert result.returncode == 0, result.stderr
    assert losses(output) == losses(with_zero)


@pytest.mark.slow
@needs_deepspeed
def test_zero_in_bf16_has_losses_near_those_in_float32(tiny_folder, without_zero, tmp_path):
    options = ("--mixed_precision", "bf16")
    result = run_zero(tiny_folder, tmp_path / "run", "--optimizer", "adamw", options=options)
    assert result.returncode == 0, result.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(without_zero), abs=0.3)


def launched_by(kind: DistributedType, precision: str = "no", *, stage: int = 2, version: int = 2) -> SimpleNamespace:
    """Stand in for the Accelerator of a profile of FSDP or DeepSpeed."""
    deepspeed = SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": stage}})
    state = SimpleNamespace(deepspeed_plugin=deepspeed)
    return SimpleNamespace(distributed_type=kind, mixed_precision=precision, is_fsdp2=version == 2, state=state)


FSDP, DEEPSPEED = DistributedType.FSDP, DistributedType.DEEPSPEED


@pytest.mark.parametrize(
    ("accelerator", "line"),
    [
        (launched_by(DEEPSPEED, stage=3), "the launch profile asks for ZeRO stage 3; use stage 2, or fsdp.yaml"),
        (launched_by(DEEPSPEED, "fp16"), "DeepSpeed does not work with fp16 here; use bf16, or fp16 with multi_gpu"),
        (launched_by(FSDP, version=1), "the launch profile asks for FSDP 1; set fsdp_version: 2, as"),
        (launched_by(FSDP, "fp16"), "FSDP does not work with fp16 here; use bf16, or fp16 with multi_gpu.yaml"),
    ],
)
def test_a_profile_that_cannot_shard_is_refused(accelerator, line):
    network = UNet(UNetConfig(base_channels=2, depth=1)).to(memory_format=torch.channels_last)
    with pytest.raises(LaunchError, match=f"^{line}"):
        prepare_sharding(accelerator, network, BatchSplit(12, 2, 2, 3), 1.0)


class ZeRO:
    """Two parameter groups of an optimizer under DeepSpeed, as one of two processes has them."""

    def __init__(self, process: int, processes: int = 2) -> None:
        self.weights = [torch.zeros(3), torch.zeros(2)]
        self.state = {weights: {"exp_avg": weights + process, "step": torch.tensor(5.0)} for weights in self.weights}
        groups = [{"params": [weights]} for weights in self.weights]
        own = SimpleNamespace(param_groups=groups, state=self.state)
        self.optimizer = SimpleNamespace(optimizer=SimpleNamespace(optimizer=own))
        self.accelerator = SimpleNamespace(
            distributed_type=DEEPSPEED,
            device=torch.device("cpu"),
            num_processes=processes,
            process_index=process,
            gather=lambda part: torch.cat([part, part + 1]),
        )


def test_optimizer_state_of_zero_comes_back_to_as_many_processes_of_zero():
    first, second, third = ZeRO(0), ZeRO(1), ZeRO(0, processes=3)
    network = torch.nn.Module()
    saved = dict(optimizer_tensors(first.accelerator, network, first.optimizer))
    restore_optimizer(second.accelerator, network, second.optimizer, saved)
    for weights in second.weights:
        assert weights.tolist() == [1] * len(weights)
        assert second.state[weights]["exp_avg"].tolist() == [1] * len(weights)
        assert second.state[weights]["step"].item() == 6
    line = "--resume: ZeRO's optimizer state is from 2 processes, but this run has 3; resume on 2"
    with pytest.raises(CheckpointError, match=line):
        restore_optimizer(third.accelerator, network, third.optimizer, saved)
    plain = SimpleNamespace(distributed_type=DistributedType.NO)
    with pytest.raises(CheckpointError, match="--resume: DeepSpeed and other launches cannot exchange"):
        restore_optimizer(plain, network, first.optimizer, saved)
