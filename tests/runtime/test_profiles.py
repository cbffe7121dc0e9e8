"""The launch profiles as accelerate reads them, and the guards around launches that do not fit the machine.

Modules: runtime/launch.py.
"""

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin
from support.forks import launch_forked
from support.launches import PROGRAMS, ROOT

from runtime.errors import LaunchError
from runtime.launch import (
    COMM_HOOKS,
    check_launch,
    command_line,
    compile_networks,
    configure_process,
    describe_profile,
    distributed_options,
    say_profile,
)

PROFILES = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
HAS_GPU = torch.accelerator.is_available()
LAUNCH_VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_")
LAUNCH_VARIABLES += ("GROUP_WORLD_SIZE",)

SET_HERE = ("ACCELERATE_USE_CPU", "ACCELERATE_BYPASS_DEVICE_MAP", "CUBLAS_WORKSPACE_CONFIG")

MULTI_CPU_LINE = (
    "CPU: ACCELERATE_USE_CPU=true accelerate launch --config_file accelerate_configs/multi_cpu.yaml train.py"
)
CPU_LINE = "CPU: accelerate launch --config_file accelerate_configs/cpu.yaml train.py"


def unknown_keys(path: Path) -> list[str]:
    """Keys that accelerate would reject, and the nested ones that it would silently ignore."""
    options = {action.dest for action in launch_command_parser()._actions}
    unknown = []
    for key, value in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        if key not in ClusterConfig.__dataclass_fields__:
            unknown.append(key)
        elif isinstance(value, dict):
            prefix = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}.get(key, "")
            unknown += [f"{key}.{name}" for name in value if not {name, prefix + name} & options]
    return unknown


def is_launch_variable(name: str) -> bool:
    return name.startswith(LAUNCH_VARIABLES)


def test_every_promised_profile_is_there():
    promised = {"cpu", "multi_cpu", "single_gpu", "multi_gpu", "multi_node", "fp16", "bf16", "fsdp", "deepspeed_zero2"}
    assert {path.stem for path in PROFILES} >= promised


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_has_a_few_keys_that_accelerate_knows_and_states_its_precision(path):
    precision = load_config_from_file(str(path)).mixed_precision
    assert unknown_keys(path) == []
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 20
    assert precision == (path.stem if path.stem in ("fp16", "bf16") else "no")


@pytest.fixture
def launched(monkeypatch):
    """Set what a launcher sets: `launched(gpus, VARIABLE=value, ...)`."""
    for name in filter(is_launch_variable, list(os.environ)):
        monkeypatch.delenv(name)
    for name in SET_HERE:
        monkeypatch.setenv(name, "")  # so that what is set by the tested code is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def launched(gpus: int, **variables: str) -> None:
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launched


ALONE = "mixed precision {} needs a GPU"
SHARED = "4 processes were started on a machine with {} GPU(s); use "
TORCHRUN = {"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("gpus", "variables", "start", "end"),
    [
        (0, {"WORLD_SIZE": "2", "ACCELERATE_DYNAMO_MODE": "default"}, "2 processes", MULTI_CPU_LINE),
        (0, {"WORLD_SIZE": "2", "ACCELERATE_USE_DEEPSPEED": "true"}, "2 processes", MULTI_CPU_LINE),
        (0, {"CUDA_VISIBLE_DEVICES": "0"}, "the launch asks for GPU 0 ", CPU_LINE),
        (0, {"CUDA_VISIBLE_DEVICES": "3,1"}, "the launch asks for GPU 3,1 ", CPU_LINE),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-8f2e"}, "the launch asks for GPU GPU-8f2e ", CPU_LINE),
        (0, {"ACCELERATE_MIXED_PRECISION": "fp16"}, ALONE.format("fp16"), "--mixed_precision no"),
        (1, {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_USE_CPU": "true"}, ALONE.format("fp8"), "no"),
        (1, {"WORLD_SIZE": "8", **TORCHRUN}, SHARED.format(1), "accelerate_configs/single_gpu.yaml train.py"),
        (3, {"WORLD_SIZE": "8", **TORCHRUN}, SHARED.format(3), "--num_processes 3 for each machine"),
    ],
)
def test_a_launch_that_does_not_fit_the_machine_is_one_line_with_the_remedy(launched, gpus, variables, start, end):
    launched(gpus, **variables)
    with pytest.raises(LaunchError) as caught:
        check_launch()
    line = str(caught.value)
    assert line.startswith(start)
    assert line.endswith(end)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("gpus", "variables", "uses_cpu"),
    [
        (0, {"WORLD_SIZE": "3", "ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}, "true"),
        (0, {"WORLD_SIZE": "3", "ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "1"}, "1"),
        (0, {"WORLD_SIZE": "2"}, "true"),  # by torchrun
        (0, {"WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no"}, "true"),
        (0, {"WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, "true"),
        (2, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, None),
        (1, {"ACCELERATE_MIXED_PRECISION": "fp16", "CUDA_VISIBLE_DEVICES": "0"}, None),
        (0, {"ACCELERATE_MIXED_PRECISION": "no", "CUDA_VISIBLE_DEVICES": "-1"}, None),
        (0, {"ACCELERATE_MIXED_PRECISION": "no", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None),
        (1, {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, None),  # a batch system shows each process its own GPU
    ],
)
def test_a_launch_that_fits_the_machine_passes(launched, gpus, variables, uses_cpu):
    launched(gpus, **variables)
    check_launch()
    assert os.environ.get("ACCELERATE_USE_CPU") == uses_cpu
    assert os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] == "true"  # a process may see only its own GPU, as number 0


def processes_like(count: int, kind: DistributedType = DistributedType.NO) -> SimpleNamespace:
    """What is asked of an Accelerator of `count` processes."""
    return SimpleNamespace(num_processes=count, distributed_type=kind)


ALONE_AGAIN = r"^2 processes were started, but accelerate connected only 1;"
IGNORED = "^the launch profile asks for {}, which accelerate silently ignores on the CPU; use ACCELERATE_"
OTHER = "works with DDP only, but the launch profile asks for {}; leave"


@pytest.mark.parametrize(
    ("asked", "accelerator", "hook", "line"),
    [
        (None, processes_like(1), "none", ALONE_AGAIN),
        ("FSDP", processes_like(2, DistributedType.MULTI_CPU), "none", IGNORED.format("FSDP")),
        ("DEEPSPEED", processes_like(2, DistributedType.MULTI_CPU), "none", IGNORED.format("DEEPSPEED")),
        ("FSDP", processes_like(2, DistributedType.FSDP), "fp16", OTHER.format("FSDP")),
        ("DEEPSPEED", processes_like(2, DistributedType.DEEPSPEED), "fp16", OTHER.format("DEEPSPEED")),
        (None, processes_like(2, DistributedType.MULTI_CPU), "bf16", "bf16 needs GPUs"),
    ],
)
def test_processes_that_are_connected_in_another_way_are_refused(launched, asked, accelerator, hook, line):
    launched(gpus=0, WORLD_SIZE="2", **({f"ACCELERATE_USE_{asked}": "true"} if asked else {}))
    with pytest.raises(LaunchError, match=line):
        configure_process(accelerator, hook)


@pytest.mark.parametrize(
    ("gpus", "processes", "machines", "idle", "remedy"),
    [(4, 1, 1, 3, "--num_processes 4 "), (8, 8, 2, 4, "--num_processes 16 ")],
    ids=["one machine", "two machines"],
)
def test_gpus_that_idle_are_named(launched, monkeypatch, capsys, gpus, processes, machines, idle, remedy):
    launched(gpus=gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    say_profile({"processes": processes, "machines": machines, "device": "cuda"})
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"launch: {idle} of the {gpus} GPUs of this machine idle; to use all of them: ")
    assert f"accelerate launch --multi_gpu {remedy}" in line


@pytest.mark.parametrize(
    ("own", "parent", "line"),
    [
        ("python train.py", None, "python train.py"),
        ("/other/python -m unet_accelerate.train", None, "/other/python -m unet_accelerate.train"),
        ("/bin/python BIN/unet-train", None, "unet-train"),
        ("python -u train.py", "python BIN/accelerate launch --cpu train.py", "accelerate launch --cpu train.py"),
        ("python train.py", "bash", "python train.py"),
    ],
)
def test_a_run_knows_the_command_that_started_it(monkeypatch, tmp_path, own, parent, line):
    for name in ("accelerate", "unet-train"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    flags = ["--dataset", "s3://host/data?key=secret", "--output-dir", "my run"]
    monkeypatch.setattr("sys.argv", ["train.py", "--dataset", "s3://host/data", "--output-dir", "my run"])  # redacted
    monkeypatch.setattr("sys.orig_argv", [*own.replace("BIN", str(tmp_path)).split(), *flags])
    if parent:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
        launcher = SimpleNamespace(cmdline=lambda: [*parent.replace("BIN", str(tmp_path)).split(), *flags])
        monkeypatch.setattr("psutil.Process", lambda number: launcher)
    if parent == "bash":
        flags.clear()
    assert command_line(["--resume", "auto"]) == f"{line} --dataset s3://host/data --output-dir 'my run' --resume auto"


class Doubled(torch.nn.Module):
    """Something to compile."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * 2


def test_a_network_is_compiled_for_every_shape(launched, monkeypatch):
    """Without the raised limit torch stops at so many shapes, and the network stays as it is for all others."""
    from torch._dynamo import config, reset  # takes seconds

    launched(gpus=0)
    compiled = []
    backend = {"backend": lambda graph, inputs: compiled.append(1) or graph.forward, "dynamic": False}
    monkeypatch.setattr(TorchDynamoPlugin, "to_kwargs", lambda plugin: backend)
    plugin = TorchDynamoPlugin(backend="eager", dynamic=False)  # as every `accelerate launch` asks for
    accelerator, network = processes_like(1), Doubled()
    accelerator.device, accelerator.state = torch.device("cpu"), SimpleNamespace(dynamo_plugin=plugin)
    reset()
    with config.patch(recompile_limit=3, accumulated_recompile_limit=256):
        configure_process(accelerator)
        compile_networks(accelerator, [network])
        for width in range(1, 6):
            network(torch.ones(1, 3, 8, width))
    reset()
    assert len(compiled) == 5


def test_gradients_are_exchanged_as_the_flag_says(launched):
    launched(gpus=0)
    for flag, hook in COMM_HOOKS.items():
        ddp, group = distributed_options(flag)
        assert ddp.comm_hook == hook
        assert not ddp.broadcast_buffers
        assert group.timeout == timedelta(minutes=10)
        assert group.init_method is None


@pytest.mark.parametrize(
    ("variables", "deepspeed", "dynamo", "extra"),
    [
        ({}, None, DynamoBackend.NO, {}),
        (
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"},
            None,
            DynamoBackend.INDUCTOR,
            {"gradient_accumulation_steps": 2, "dynamo_backend": "inductor"},
        ),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}, 8, DynamoBackend.NO, {"gradient_accumulation_steps": 8}),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}, "auto", DynamoBackend.NO, {}),
    ],
    ids=["none", "compiled", "DeepSpeed of 8 steps", "DeepSpeed of any steps"],
)
def test_a_description_has_what_the_profile_decides(launched, variables, deepspeed, dynamo, extra):
    launched(gpus=2, GROUP_WORLD_SIZE="2", **variables)
    plugin = deepspeed and SimpleNamespace(deepspeed_config={"gradient_accumulation_steps": deepspeed})
    accelerator = SimpleNamespace(
        num_processes=4,
        distributed_type=DistributedType.MULTI_GPU,
        device=torch.device("cuda", 1),
        mixed_precision="bf16",
        state=SimpleNamespace(deepspeed_plugin=plugin, dynamo_plugin=SimpleNamespace(backend=dynamo)),
    )
    assert describe_profile(accelerator) == {
        "processes": 4,
        "machines": 2,
        "distributed_type": "MULTI_GPU",
        "device": "cuda",
        "mixed_precision": "bf16",
        **extra,
    }


@pytest.fixture
def launch(tmp_path):
    """Launch tests/programs/describe_launch.py.

    `launch("cpu", *options, **variables)` with a profile, `launch(None, ...)` by torchrun; with "--forked" the profile
    is resolved in this process and the launcher's own is spared.
    """
    script = shutil.copy(PROGRAMS / "describe_launch.py", tmp_path / "train.py")  # the name that messages repeat
    clean = {name: value for name, value in os.environ.items() if not is_launch_variable(name)}
    # HF_HOME: no default profile of the user's; PYTHONPATH: the copy lies outside the repository.
    clean |= {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def launch(profile: str | None, *args: str, **variables: str) -> subprocess.CompletedProcess:
        if profile is None:
            launcher = ["torch.distributed.run", "--standalone"]
        else:
            config = str(ROOT / "accelerate_configs" / f"{profile}.yaml")
            launcher = ["accelerate.commands.launch", "--config_file", config, "--main_process_port", "0"]
        options = [arg for arg in args if arg not in ("--unguarded", "--forked")]
        flags = ["--unguarded"] if "--unguarded" in args else []
        if "--forked" in args:
            return launch_forked([script.name, *flags], [*launcher[1:], *options], clean | variables, tmp_path)
        command = [sys.executable, "-m", *launcher, *options, script.name, *flags]
        return subprocess.run(command, cwd=tmp_path, env=clean | variables, capture_output=True, text=True, timeout=180)

    return launch


def description(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["profile"]  # so there is exactly one


def on_cpu(processes: int, precision: str = "no") -> dict:
    return {
        "processes": processes,
        "machines": 1,
        "distributed_type": "MULTI_CPU" if processes > 1 else "NO",
        "device": "cpu",
        "mixed_precision": precision,
    }


def test_the_cpu_profile_runs_on_the_cpu_everywhere(launch):
    assert description(launch("cpu", "--forked", CUDA_VISIBLE_DEVICES="0")) == on_cpu(1)


@pytest.mark.slow
def test_the_multi_cpu_profile_runs_two_processes_that_know_each_other(launch):
    process = launch("multi_cpu", ACCELERATE_USE_CPU="true")
    assert description(process) == on_cpu(2)
    assert not json.loads(process.stdout)["has_compiler"], "it takes seconds to import, and nobody has asked for it"


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
def test_torchrun_runs_two_cpu_processes_that_know_each_other(launch):
    assert description(launch(None, "--nproc-per-node", "2")) == on_cpu(2)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
def test_separate_runs_are_found_even_without_the_first_guard(launch):
    process = launch("multi_gpu", "--forked", "--unguarded")
    assert process.returncode == 1
    assert "LaunchError: 2 processes were started, but accelerate connected only 1;" in process.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("profile", "precision"), [("single_gpu", "no"), ("fp16", "fp16"), ("bf16", "bf16")])
def test_a_one_gpu_profile_runs_on_the_gpu(launch, profile, precision):
    assert description(launch(profile)) == on_cpu(1, precision) | {"device": "cuda"}
