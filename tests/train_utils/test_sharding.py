"""Training whose weights and optimizer state are spread over the processes: the same losses, resumed on any number.

accelerate shards on GPUs only. tests/programs/fsdp_on_cpu.py and deepspeed_on_cpu.py have its own FSDP2 and DeepSpeed
code run on CPUs, on gloo.
"""

import copy
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from conftest import PROGRAMS, TINY, launch, losses, records, write_folder
from safetensors.torch import load_file

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import LaunchError
from train_utils.sharding import prepare_sharding
from unet import UNet, UNetConfig

FLAGS = ["--log-every", "1", "--tracker", "none", "--batch-size", "8", "--checkpoint-every", "4", "--ema-decay", "0.9"]
FLAGS += ["--depth", "3"]  # the least at which deep supervision has heads


def resumed_at_4(output: Path, folder: Path) -> Path:
    """A copy of a run of 8 steps that has lost its last checkpoint."""
    shutil.copytree(output, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000008")
    return folder


def run_fsdp(folder: Path, output: Path, processes: int, *flags: str, precision: str = "no") -> None:
    """8 steps; one process trains without FSDP."""
    profile, script = ("cpu", []) if processes == 1 else ("fsdp", [PROGRAMS / "fsdp_on_cpu.py"])
    options = ["--mixed_precision", precision, "--num_processes", str(processes)]
    options += ["--main_process_port", "0"] if processes > 1 else []
    arguments = ["train.py", "--dataset", folder, "--output-dir", output, *TINY, *FLAGS, *flags]
    arguments += ["--max-steps", "8", "--optimizer", "sgd"]
    result = launch(*script, *arguments, profile=profile, options=options, env={"ACCELERATE_USE_CPU": "true"})
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr


@pytest.fixture(scope="module")
def sharded(tiny_folder, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("fsdp") / "sharded"
    run_fsdp(tiny_folder, output, 2, "--micro-batch-size", "2")
    return output


def test_fsdp_gives_the_same_losses_and_the_same_files(tiny_folder, sharded, tmp_path):
    plain = tmp_path / "plain"
    run_fsdp(tiny_folder, plain, 1)
    assert losses(sharded) == pytest.approx(losses(plain), abs=1e-5)  # the documented promise, of SGD in fp32
    for kind in ("model", "average", "optimizer"):
        name = f"checkpoints/step-00000008/{kind}.safetensors"
        torch.testing.assert_close(
            load_file(sharded / name), load_file(plain / name), atol=3e-4, rtol=0
        )  # measured 7e-5


@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_fsdp_resumes_on_another_number_of_processes(tiny_folder, sharded, tmp_path, processes):
    output = resumed_at_4(sharded, tmp_path / "run")
    run_fsdp(tiny_folder, output, processes, "--resume", "auto")
    assert losses(output) == pytest.approx(losses(sharded), abs=1e-5)  # the documented promise, of SGD in fp32


@pytest.mark.slow
def test_fsdp_gives_the_same_losses_with_an_encoder(tiny_folder, tmp_path):
    from encoders import write_encoder  # transformers takes seconds to import

    torch.manual_seed(0)
    encoder = ["--encoder", write_encoder(tmp_path / "resnet"), "--depth", "5"]
    run_fsdp(tiny_folder, tmp_path / "plain", 1, *encoder)
    run_fsdp(tiny_folder, tmp_path / "sharded", 2, *encoder)
    assert losses(tmp_path / "sharded") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)  # as promised


@pytest.fixture
def in_bf16() -> Iterator[Accelerator]:
    """What `prepare_sharding` sees under FSDP in bf16, in this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:  # a test's own is undone before the state is reset below
        patch.setenv("FSDP_VERSION", "2")
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        AcceleratorState._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
    for state in (PartialState, AcceleratorState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    yield accelerator
    AcceleratorState._reset_state(reset_partial_state=True)


def test_fsdp_in_bf16_computes_in_bf16_and_returns_float32(in_bf16):
    images = torch.rand(2, 3, 40, 56)
    network = UNet(UNetConfig(base_channels=4, depth=2, norm="group"))
    exact = network(images)
    prepare_sharding(in_bf16, network, BatchSplit(2, 1, 2, 1), 1.0)
    for rounded in (network(images), copy.deepcopy(network)(images)):
        assert rounded.dtype == torch.float32
        assert 1e-5 < (rounded - exact).abs().max() < 0.1
        assert torch.equal(rounded, rounded.bfloat16().float())


SMALL_TILES = """
import inference.tiling.planning
import train

for name in ("WHOLE_MEMORY", "TILE_MEMORY", "LARGE_TILE_MEMORY", "STRIP_MEMORY"):
    setattr(inference.tiling.planning, name, 0)
train.main()
"""


def test_fsdp_evaluates_in_tiles_though_processes_have_different_numbers_of_them(tmp_path):
    write_folder(tmp_path / "train", 4, seed=0, size=(32, 48))
    write_folder(tmp_path / "val", 1, seed=1, size=(32, 48))
    write_folder(tmp_path / "large", 1, seed=2, size=(100, 64))
    for kind in ("images", "masks"):
        (file,) = (tmp_path / "large" / kind).iterdir()
        file.rename(tmp_path / "val" / kind / "large.png")
    script = tmp_path / "small_tiles.py"
    script.write_text(SMALL_TILES)
    evaluations = []
    for profile, processes, scripts in (("cpu", 1, ["train.py"]), ("fsdp", 2, [PROGRAMS / "fsdp_on_cpu.py", script])):
        output = tmp_path / profile
        arguments = [*scripts, "--dataset", tmp_path, "--output-dir", output, "--plan", "none", "--base-channels", "2"]
        arguments += [
            "--depth",
            "1",
            "--num-workers",
            "0",
            "--tracker",
            "none",
            "--batch-size",
            "2",
            "--max-steps",
            "2",
        ]
        arguments += ["--eval-every", "1", "--optimizer", "sgd", "--augment", "none"]
        options = ["--num_processes", str(processes)]
        options += ["--main_process_port", "0"] if processes > 1 else []
        result = launch(*arguments, profile=profile, options=options, env={"ACCELERATE_USE_CPU": "true"})
        assert result.returncode == 0, result.stderr
        evaluations.append([record for record in records(output) if "eval/loss" in record])
    whole, tiled = evaluations
    assert len(whole) == len(tiled) == 2
    for ours, theirs in zip(tiled, whole, strict=True):
        assert ours["eval/loss"] == pytest.approx(theirs["eval/loss"], abs=1e-4)
        assert ours["eval/mean_iou"] == pytest.approx(theirs["eval/mean_iou"], abs=1e-3)


def test_fsdp_in_fp16_is_refused(in_bf16, monkeypatch):
    monkeypatch.setitem(AcceleratorState._shared_state, "_mixed_precision", "fp16")
    with pytest.raises(LaunchError, match="FSDP does not work with fp16"):
        prepare_sharding(in_bf16, UNet(UNetConfig(base_channels=4, depth=2)), BatchSplit(2, 1, 2, 1), 1.0)


@pytest.mark.slow
def test_fsdp_in_bf16_has_other_losses_than_float32_but_near(tiny_folder, sharded, tmp_path):
    run_fsdp(tiny_folder, tmp_path / "bf16", 2, "--micro-batch-size", "2", precision="bf16")
    assert losses(tmp_path / "bf16") != pytest.approx(losses(sharded), abs=1e-5)
    assert losses(tmp_path / "bf16") == pytest.approx(losses(sharded), abs=0.05)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed and transformers")
def test_zero_gives_the_same_losses_and_resumes_on_as_many_processes_only(tiny_folder, tmp_path):
    common = ["train.py", "--dataset", tiny_folder, *TINY, *FLAGS, "--max-steps", "8", "--micro-batch-size", "1"]

    def run(output: Path, *flags: str, options: tuple = ()):
        options = ["--main_process_port", "29517", *options]
        env = {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "false"}
        arguments = [PROGRAMS / "deepspeed_on_cpu.py", *common, "--output-dir", output, *flags]
        return launch(*arguments, profile="deepspeed_zero2", options=options, env=env, forked=False)

    plain, sharded = tmp_path / "plain", tmp_path / "sharded"
    assert launch(*common, "--output-dir", plain, "--optimizer", "sgd").returncode == 0
    result = run(sharded, "--optimizer", "sgd")
    assert result.returncode == 0, result.stderr
    assert "distributed_type DEEPSPEED" in result.stdout
    assert losses(sharded) == pytest.approx(losses(plain), abs=1e-5)
    again = resumed_at_4(sharded, tmp_path / "again")
    result = run(again, "--optimizer", "sgd", "--resume", "auto")
    assert result.returncode == 0, result.stderr
    assert losses(again) == losses(sharded)
    three = resumed_at_4(sharded, tmp_path / "three")
    result = run(three, "--optimizer", "sgd", "--resume", "auto", options=("--num_processes", "3"))
    assert result.returncode == 1
    assert "ZeRO's optimizer state is from 2 processes, but this run has 3; resume on 2" in result.stderr
    result = run(tmp_path / "bf16", options=("--mixed_precision", "bf16"))
    assert result.returncode == 0, result.stderr
    assert losses(tmp_path / "bf16") == pytest.approx(losses(plain), abs=0.3)
