"""The launch profiles as accelerate reads them, and the guards around launches that do not fit the machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, DynamoBackend
from conftest import PROGRAMS, ROOT

from runtime.errors import LaunchError
from runtime.launch import check_launch, check_processes, describe_profile

PROFILES = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
HAS_GPU = torch.accelerator.is_available()
LAUNCH_VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")

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


# Profiles


def test_every_promised_profile_is_there():
    promised = {"cpu", "multi_cpu", "single_gpu", "multi_gpu", "multi_node", "fp16", "bf16", "fsdp", "deepspeed_zero2"}
    assert promised <= {path.stem for path in PROFILES}


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_is_short_and_accelerate_knows_every_key(path):
    load_config_from_file(str(path))
    assert unknown_keys(path) == []
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 20


def test_an_unknown_key_is_found_at_any_level(tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nbatch_size: 3\ndeepspeed_config: {zero_stage: 2, zero_stages: 2}\n"
        "fsdp_config: {fsdp_version: 2, version: 2, fsdp_versoin: 2}\ndynamo_config: {dynamo_backend: INDUCTOR}\n"
    )
    assert unknown_keys(path) == ["batch_size", "deepspeed_config.zero_stages", "fsdp_config.fsdp_versoin"]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_states_its_precision(path):
    precision = load_config_from_file(str(path)).mixed_precision
    assert precision == (path.stem if path.stem in ("fp16", "bf16") else "no")


# check_launch, check_processes, describe_profile


@pytest.fixture
def launched(monkeypatch):
    """Set what a launcher sets: `launched(gpus, VARIABLE=value, ...)`."""
    for name in filter(is_launch_variable, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "")  # so that what check_launch sets is taken back
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def launched(gpus: int, **variables: str) -> None:
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launched


def launch_error() -> str:
    with pytest.raises(LaunchError) as caught:
        check_launch()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_gpu_processes_without_a_gpu_are_told_the_cpu_line(launched):
    launched(gpus=0, WORLD_SIZE="3", ACCELERATE_MIXED_PRECISION="no")
    message = launch_error()
    assert message.startswith("3 processes") and message.endswith(MULTI_CPU_LINE)


@pytest.mark.parametrize("flag", ["true", "True", "1"])
def test_cpu_processes_pass(launched, flag):
    launched(gpus=0, WORLD_SIZE="3", ACCELERATE_MIXED_PRECISION="bf16", ACCELERATE_USE_CPU=flag)
    check_launch()


@pytest.mark.parametrize("visible", ["", "0,1"])
def test_torchrun_without_a_gpu_uses_the_cpu(launched, visible):
    launched(gpus=0, WORLD_SIZE="2", CUDA_VISIBLE_DEVICES=visible)
    check_launch()
    assert os.environ["ACCELERATE_USE_CPU"] == "true"


def test_torchrun_with_gpus_uses_them(launched):
    launched(gpus=2, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    check_launch()
    assert "ACCELERATE_USE_CPU" not in os.environ


@pytest.mark.parametrize("visible", ["0", "3,1", " 0", "GPU-8f2e", "MIG-1a"])
def test_one_gpu_that_is_not_there_is_told_the_cpu_line(launched, visible):
    launched(gpus=0, CUDA_VISIBLE_DEVICES=visible)
    message = launch_error()
    assert visible in message and message.endswith(CPU_LINE)


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_one_process_that_asks_for_no_gpu_runs_on_the_cpu(launched, visible):
    launched(gpus=0, CUDA_VISIBLE_DEVICES=visible, ACCELERATE_MIXED_PRECISION="no")
    check_launch()


def test_the_cpu_profile_passes_where_a_gpu_is_named(launched):
    launched(gpus=0, CUDA_VISIBLE_DEVICES="0", ACCELERATE_USE_CPU="True", ACCELERATE_MIXED_PRECISION="no")
    check_launch()


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
@pytest.mark.parametrize(("gpus", "use_cpu"), [(0, "false"), (1, "true")])
def test_a_precision_that_the_cpu_lacks_is_refused(launched, precision, gpus, use_cpu):
    launched(gpus, ACCELERATE_MIXED_PRECISION=precision, ACCELERATE_USE_CPU=use_cpu)
    assert launch_error().startswith(f"mixed precision {precision} needs a GPU")


def test_fp16_on_a_gpu_passes(launched):
    launched(gpus=1, ACCELERATE_MIXED_PRECISION="fp16", CUDA_VISIBLE_DEVICES="0")
    check_launch()


@pytest.mark.parametrize(("gpus", "remedy"), [(1, "single_gpu.yaml"), (3, "--num_processes 3")])
def test_more_processes_than_gpus_are_refused(launched, gpus, remedy):
    launched(gpus, WORLD_SIZE="8", LOCAL_WORLD_SIZE="4", TORCHELASTIC_RUN_ID="none")
    message = launch_error()
    assert message.startswith(f"4 processes were started on a machine with {gpus} GPU(s)") and remedy in message


def test_processes_that_see_one_gpu_each_pass(launched):
    launched(gpus=1, WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")  # as a batch system may start them, without torchrun
    check_launch()


def test_processes_that_did_not_find_each_other_are_refused(launched):
    launched(gpus=0, WORLD_SIZE="2")
    with pytest.raises(LaunchError, match=r"^2 processes were started, but accelerate joined 1;"):
        check_processes(SimpleNamespace(num_processes=1))
    check_processes(SimpleNamespace(num_processes=2))
    launched(gpus=0, WORLD_SIZE="2", ACCELERATE_USE_FSDP="true")
    check_processes(SimpleNamespace(num_processes=2, distributed_type=DistributedType.FSDP))
    with pytest.raises(LaunchError, match=r"^the profile asks for FSDP, which accelerate leaves out on the CPU"):
        check_processes(SimpleNamespace(num_processes=2, distributed_type=DistributedType.MULTI_CPU))


def test_compressed_gradients_are_refused_where_nothing_would_compress_them(launched):
    launched(gpus=0, WORLD_SIZE="2")
    with pytest.raises(LaunchError, match=r"the profile asks for .*FSDP"):
        check_processes(SimpleNamespace(num_processes=2, distributed_type=DistributedType.FSDP), "fp16")
    on_cpu = SimpleNamespace(num_processes=2, distributed_type=DistributedType.MULTI_CPU)
    with pytest.raises(LaunchError, match="bf16 needs GPUs"):
        check_processes(on_cpu, "bf16")
    check_processes(on_cpu, "fp16")


@pytest.mark.parametrize(
    ("variable", "deepspeed", "dynamo", "extra"),
    [
        (None, None, DynamoBackend.NO, {}),
        ("4", None, DynamoBackend.INDUCTOR, {"gradient_accumulation_steps": 4, "dynamo_backend": "inductor"}),
        ("1", {"gradient_accumulation_steps": 8}, DynamoBackend.NO, {"gradient_accumulation_steps": 8}),
        ("1", {"gradient_accumulation_steps": "auto"}, DynamoBackend.NO, {}),
    ],
)
def test_the_profile_is_described_with_what_it_decides(launched, variable, deepspeed, dynamo, extra):
    launched(gpus=2, GROUP_WORLD_SIZE="2")
    if variable is not None:
        launched(gpus=2, ACCELERATE_GRADIENT_ACCUMULATION_STEPS=variable)
    accelerator = SimpleNamespace(
        num_processes=4,
        distributed_type=DistributedType.MULTI_GPU,
        device=torch.device("cuda", 1),
        mixed_precision="bf16",
        state=SimpleNamespace(
            deepspeed_plugin=deepspeed and SimpleNamespace(deepspeed_config=deepspeed),
            dynamo_plugin=SimpleNamespace(backend=dynamo),
        ),
    )
    assert describe_profile(accelerator) == {
        "processes": 4,
        "machines": 2,
        "distributed_type": "MULTI_GPU",
        "device": "cuda",
        "mixed_precision": "bf16",
        **extra,
    }


# Real launches


@pytest.fixture
def launch(tmp_path):
    """Launch tests/programs/describe_launch.py.

    `launch("cpu", *options, **variables)` with a profile, `launch(None, ...)` by torchrun.
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
        options = [arg for arg in args if arg != "--unguarded"]
        command = [sys.executable, "-m", *launcher, *options, script.name, *(set(args) - set(options))]
        return subprocess.run(command, cwd=tmp_path, env=clean | variables, capture_output=True, text=True, timeout=180)

    return launch


def description(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # so there is exactly one


def on_cpu(processes: int, precision: str = "no") -> dict:
    return {
        "processes": processes,
        "machines": 1,
        "distributed_type": "MULTI_CPU" if processes > 1 else "NO",
        "device": "cpu",
        "mixed_precision": precision,
    }


def test_the_cpu_profile_runs_on_the_cpu_everywhere(launch):
    assert description(launch("cpu", CUDA_VISIBLE_DEVICES="0")) == on_cpu(1)


def test_the_cpu_profile_takes_bf16_from_the_command_line(launch):
    assert description(launch("cpu", "--mixed_precision", "bf16")) == on_cpu(1, "bf16")


def test_the_multi_cpu_profile_runs_two_processes_that_know_each_other(launch):
    assert description(launch("multi_cpu", ACCELERATE_USE_CPU="true")) == on_cpu(2)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
def test_torchrun_runs_two_cpu_processes_that_know_each_other(launch):
    assert description(launch(None, "--nproc-per-node", "2")) == on_cpu(2)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
@pytest.mark.parametrize("profile", ["single_gpu", "fp16", "bf16"])
def test_a_one_gpu_profile_without_a_gpu_ends_in_the_cpu_line(launch, profile):
    done = launch(profile)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("LaunchError: ")]
    assert len(lines) == 1
    assert lines[0].startswith("LaunchError: the launch asks for GPU 0") and lines[0].endswith(CPU_LINE)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
@pytest.mark.parametrize("profile", ["multi_gpu", "multi_cpu"])
def test_gpu_processes_without_a_gpu_end_in_the_cpu_line(launch, profile):
    done = launch(profile)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("LaunchError: 2 processes were started")]
    assert lines and all(line.endswith(MULTI_CPU_LINE) for line in lines)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
def test_separate_runs_are_found_even_without_the_first_guard(launch):
    done = launch("multi_gpu", "--unguarded")
    assert done.returncode == 1
    assert "LaunchError: 2 processes were started, but accelerate joined 1;" in done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("profile", "precision"), [("single_gpu", "no"), ("fp16", "fp16"), ("bf16", "bf16")])
def test_a_one_gpu_profile_runs_on_the_gpu(launch, profile, precision):
    assert description(launch(profile)) == on_cpu(1, precision) | {"device": "cuda"}
