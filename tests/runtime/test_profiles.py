"""The launch profiles as accelerate reads them, and the guards around launches that do not fit the machine.

Modules: runtime/launch.py, runtime/launch_profile.py.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate import Accelerator
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin
from support.forks import launch_forked
from support.in_process import process_state_kept
from support.launches import PROGRAMS, ROOT

from runtime.errors import LaunchError
from runtime.launch import (
    check_launch,
    check_processes,
    command_line,
    compile_networks,
    configure_process,
    describe_profile,
    launcher_options,
    say_profile,
    set_launch_environment,
)
from runtime.launch_profile import LaunchProfile

PROFILES = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
HAS_GPU = torch.accelerator.is_available()
LAUNCH_VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")

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


# Profiles


def test_every_promised_profile_is_there():
    promised = {"cpu", "multi_cpu", "single_gpu", "multi_gpu", "multi_node", "fp16", "bf16", "fsdp", "deepspeed_zero2"}
    assert promised <= {path.stem for path in PROFILES}


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_has_a_few_keys_that_accelerate_knows(path):
    load_config_from_file(str(path))
    assert unknown_keys(path) == []
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 20


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_states_its_precision(path):
    precision = load_config_from_file(str(path)).mixed_precision
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


def launch_error() -> str:
    with pytest.raises(LaunchError) as caught:
        check_launch()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("processes", ["2", "3"])
def test_gpu_processes_without_a_gpu_are_told_the_cpu_line(launched, processes):
    launched(gpus=0, WORLD_SIZE=processes, ACCELERATE_MIXED_PRECISION="no")
    set_launch_environment()
    message = launch_error()
    assert message.startswith(f"{processes} processes")
    assert message.endswith(MULTI_CPU_LINE)


@pytest.mark.parametrize("flag", ["true", "True", "1"])
def test_cpu_processes_pass(launched, flag):
    launched(gpus=0, WORLD_SIZE="3", ACCELERATE_MIXED_PRECISION="bf16", ACCELERATE_USE_CPU=flag)
    check_launch()


@pytest.mark.parametrize("visible", ["", "0,1"])
def test_torchrun_without_a_gpu_uses_the_cpu(launched, visible):
    launched(gpus=0, WORLD_SIZE="2", CUDA_VISIBLE_DEVICES=visible)
    set_launch_environment()
    check_launch()
    assert os.environ["ACCELERATE_USE_CPU"] == "true"


def test_torchrun_with_gpus_uses_them(launched):
    launched(gpus=2, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    set_launch_environment()
    check_launch()
    assert "ACCELERATE_USE_CPU" not in os.environ


def test_fp16_on_a_gpu_passes(launched):
    launched(gpus=1, ACCELERATE_MIXED_PRECISION="fp16", CUDA_VISIBLE_DEVICES="0")
    check_launch()


@pytest.mark.parametrize("visible", ["0", "3,1", "GPU-8f2e"])
def test_one_gpu_that_is_not_there_is_told_the_cpu_line(launched, visible):
    launched(gpus=0, CUDA_VISIBLE_DEVICES=visible)
    message = launch_error()
    assert visible in message
    assert message.endswith(CPU_LINE)


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_one_process_that_asks_for_no_gpu_runs_on_the_cpu(launched, visible):
    launched(gpus=0, CUDA_VISIBLE_DEVICES=visible, ACCELERATE_MIXED_PRECISION="no")
    check_launch()


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
@pytest.mark.parametrize(("gpus", "use_cpu"), [(0, "false"), (1, "true")])
def test_a_precision_that_the_cpu_lacks_is_refused(launched, precision, gpus, use_cpu):
    launched(gpus, ACCELERATE_MIXED_PRECISION=precision, ACCELERATE_USE_CPU=use_cpu)
    assert launch_error().startswith(f"mixed precision {precision} needs a GPU")


@pytest.mark.parametrize(
    ("gpus", "remedy"), [(1, "single_gpu.yaml train.py"), (3, "--num_processes 3 for each machine")]
)
def test_more_processes_than_gpus_are_refused(launched, gpus, remedy):
    launched(gpus, WORLD_SIZE="8", LOCAL_WORLD_SIZE="4", TORCHELASTIC_RUN_ID="none")
    message = launch_error()
    assert message.startswith(f"4 processes were started on a machine with {gpus} GPU(s); use ")
    assert message.endswith(remedy)
    assert gpus > 1 or "accelerate launch --config_file" in message


def test_processes_that_see_one_gpu_each_pass(launched):
    launched(gpus=1, WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")  # as a batch system may start them, without torchrun
    check_launch()


def test_processes_that_did_not_find_each_other_are_refused(launched):
    launched(gpus=0, WORLD_SIZE="2")
    with pytest.raises(LaunchError, match=r"^2 processes were started, but accelerate connected only 1;"):
        check_processes(SimpleNamespace(num_processes=1))
    check_processes(SimpleNamespace(num_processes=2))


SPREADING = [
    ({"ACCELERATE_USE_FSDP": "true"}, DistributedType.FSDP, ""),
    (
        {"ACCELERATE_USE_FSDP": "false", "ACCELERATE_USE_DEEPSPEED": "true"},
        DistributedType.DEEPSPEED,
        ".* use ACCELERATE_USE_CPU=true",
    ),
]


@pytest.mark.parametrize(("variables", "kind", "remedy"), SPREADING, ids=["FSDP", "DeepSpeed"])
def test_a_profile_that_spreads_a_network_passes_where_it_is_spread(launched, variables, kind, remedy):
    launched(gpus=0, WORLD_SIZE="2", **variables)
    check_processes(SimpleNamespace(num_processes=2, distributed_type=kind))


@pytest.mark.parametrize(("variables", "kind", "remedy"), SPREADING, ids=["FSDP", "DeepSpeed"])
def test_a_profile_that_spreads_a_network_is_refused_where_it_is_not(launched, variables, kind, remedy):
    launched(gpus=0, WORLD_SIZE="2", **variables)
    line = rf"^the launch profile asks for {kind.value}, which accelerate silently ignores on the CPU{remedy}"
    with pytest.raises(LaunchError, match=line):
        check_processes(SimpleNamespace(num_processes=2, distributed_type=DistributedType.MULTI_CPU))


@pytest.mark.parametrize(
    ("kind", "hook", "line"),
    [
        (DistributedType.FSDP, "fp16", r"the launch profile asks for .*FSDP"),
        (DistributedType.MULTI_CPU, "bf16", "bf16 needs GPUs"),
    ],
)
def test_compressed_gradients_are_refused_where_nothing_would_compress_them(launched, kind, hook, line):
    launched(gpus=0, WORLD_SIZE="2")
    with pytest.raises(LaunchError, match=line):
        check_processes(SimpleNamespace(num_processes=2, distributed_type=kind), hook)


def test_compressed_gradients_are_refused_with_deepspeed(launched):
    launched(gpus=0, WORLD_SIZE="1")
    spread = accelerator_like("cpu")
    spread.distributed_type = DistributedType.DEEPSPEED
    with pytest.raises(LaunchError, match="works with DDP only, but the launch profile asks for DEEPSPEED; leave"):
        configure_process(spread, "fp16")


class NoWrapper(torch.nn.Module):
    """Stands in for DistributedDataParallel and keeps the options that it is made with."""

    def __init__(self, module: torch.nn.Module, **options) -> None:
        super().__init__()
        self.options = options


def test_a_process_that_sees_only_its_own_gpu_does_not_name_it_by_its_rank(launched, monkeypatch):
    """accelerate's own `prepare_model` for process 1 of several GPUs, whose own GPU is number 0."""
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", NoWrapper)
    with process_state_kept():
        accelerator = Accelerator(cpu=True)
        monkeypatch.setattr(Accelerator, "multi_device", True)
        monkeypatch.setattr(Accelerator, "local_process_index", 1)
        launched(gpus=1, WORLD_SIZE="2", LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="1")
        assert prepared_options(accelerator) == {"device_ids": [1], "output_device": 1}  # there is no GPU 1
        set_launch_environment()
        assert prepared_options(accelerator) == {"device_ids": None, "output_device": None}


def prepared_options(accelerator: Accelerator) -> dict:
    return accelerator.prepare_model(torch.nn.Linear(1, 1)).options


def accelerator_like(device: str, precision: str = "no", dynamo: DynamoBackend = DynamoBackend.NO) -> SimpleNamespace:
    """What is asked of an Accelerator of one process; no GPU in the test machine."""
    plugin = TorchDynamoPlugin(backend=dynamo.value, dynamic=False)  # as every `accelerate launch` asks for
    return SimpleNamespace(
        num_processes=1,
        distributed_type=DistributedType.NO,
        device=torch.device(device),
        mixed_precision=precision,
        state=SimpleNamespace(deepspeed_plugin=None, dynamo_plugin=plugin),
    )


@pytest.mark.parametrize(
    ("device", "precision", "native", "warned"),
    [
        ("cuda", "bf16", False, True),
        ("cuda", "bf16", True, False),
        ("cuda", "fp16", False, False),
        ("cpu", "bf16", False, False),
    ],
)
def test_a_gpu_that_only_emulates_bf16_is_said_to(launched, monkeypatch, capsys, device, precision, native, warned):
    launched(gpus=1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    configure_process(accelerator_like(device, precision))
    said = capsys.readouterr().out.splitlines()
    assert len(said) == warned
    assert all("only emulates bf16" in line and "--mixed_precision fp16" in line for line in said)


@pytest.mark.parametrize(
    ("precision", "native", "advised"),
    [("no", True, True), ("no", False, False), ("bf16", True, False), ("fp16", True, False)],
)
def test_a_run_in_float32_is_told_of_a_gpu_that_knows_bf16(launched, monkeypatch, capsys, precision, native, advised):
    launched(gpus=1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    say_profile(LaunchProfile(1, 1, "NO", "cuda", precision))
    settings, *advice = capsys.readouterr().out.splitlines()
    line = "profile: processes 1, machines 1, distributed_type NO, device cuda, mixed_precision"
    assert settings == f"{line} {precision}"
    assert len(advice) == advised
    assert all("this GPU computes in bf16" in line and "--mixed_precision bf16" in line for line in advice)


def idle_advice(monkeypatch, capsys, gpus: int, processes: int, machines: int) -> list[str]:
    """What a run says after the line that describes its profile."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    say_profile(LaunchProfile(processes, machines, "MULTI_GPU", "cuda", "bf16"))
    return capsys.readouterr().out.splitlines()[1:]


@pytest.mark.parametrize(
    ("gpus", "processes", "machines", "idle", "remedy"),
    [(4, 1, 1, 3, "--num_processes 4 "), (8, 8, 2, 4, "--num_processes 16 ")],
    ids=["one machine", "two machines"],
)
def test_gpus_that_idle_are_named(launched, monkeypatch, capsys, gpus, processes, machines, idle, remedy):
    launched(gpus=gpus)
    (line,) = idle_advice(monkeypatch, capsys, gpus, processes, machines)
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
    flags = ["--dataset", "s3://me:secret@host/my data"]
    monkeypatch.setattr("sys.argv", ["train.py", "--dataset", "s3://host/my data"])  # redacted
    monkeypatch.setattr("sys.orig_argv", [*own.replace("BIN", str(tmp_path)).split(), *flags])
    if parent:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
        launcher = SimpleNamespace(cmdline=lambda: [*parent.replace("BIN", str(tmp_path)).split(), *flags])
        monkeypatch.setattr("psutil.Process", lambda number: launcher)
    if parent == "bash":
        flags.clear()
    assert command_line(["--resume", "auto"]) == f"{line} --dataset 's3://host/my data' --resume auto"


@pytest.mark.parametrize(
    ("threads", "processes", "busy", "available", "line"),
    [
        (4, 1, 0, 4, None),
        (4, 1, 80, 4, "about 1 of 4 processors are free for it; with OMP_NUM_THREADS=1 "),
        (4, 1, 0, 2, "about 2 of 4 processors are free for it; with OMP_NUM_THREADS=2 "),
        (2, 2, 0, 4, None),
        (2, 2, 50, 4, "about 2 of 4 processors are free for it; with OMP_NUM_THREADS=1 "),
        (1, 1, 100, 4, None),
    ],
)
def test_threads_beyond_the_free_processors_are_a_line(monkeypatch, capsys, threads, processes, busy, available, line):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    monkeypatch.setattr("psutil.cpu_percent", lambda seconds: busy)
    monkeypatch.setattr("runtime.launch.available_cpus", lambda: available)
    say_profile(LaunchProfile(processes, 1, "MULTI_CPU", "cpu", "no"))
    printed = capsys.readouterr().out
    assert (line or "\n") in printed
    assert ("processors: " in printed) is (line is not None)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    say_profile(LaunchProfile(processes, 1, "MULTI_CPU", "cpu", "no"))
    assert "processors: " not in capsys.readouterr().out  # the user has chosen


def test_the_options_of_the_launcher_are_known_by_each_of_their_names():
    assert {"-m", "--module", "--num_processes", "--config_file"} <= launcher_options()


@pytest.mark.parametrize(
    ("device", "precision", "variable", "supported", "set_to", "said"),
    [
        ("cuda", "no", None, True, "tf32", "TF32"),
        ("cuda", "no", "0", True, "tf32", "float32"),
        ("cuda", "no", "1", True, "tf32", "TF32"),
        ("cuda", "no", None, False, "tf32", "float32"),  # before Ampere
        ("cuda", "no", None, True, "ieee", "float32"),
        ("cuda", "bf16", None, True, "tf32", None),
        ("cpu", "no", None, True, "tf32", None),
    ],
    ids=["default", "switched off", "switched on", "older GPU", "set by torch", "bf16", "CPU"],
)
def test_the_profile_says_in_what_a_gpu_convolves(
    launched, monkeypatch, device, precision, variable, supported, set_to, said
):
    launched(gpus=1, **({} if variable is None else {"NVIDIA_TF32_OVERRIDE": variable}))
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: supported)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: supported)
    products = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", products.append)
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = set_to
    try:
        accelerator = accelerator_like(device, precision)
        configure_process(accelerator)
        profile = describe_profile(accelerator)
        assert profile.float32_convolutions == said
        # linear layers compute as convolutions do
        assert products == (["high"] if device == "cuda" and said != "float32" else [])
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


@pytest.mark.parametrize("given", [None, ":16:8"])
def test_deterministic_kernels_tell_cublas_unless_the_user_has(launched, given):
    launched(gpus=1, **({"CUBLAS_WORKSPACE_CONFIG": given} if given else {}))
    set_launch_environment(False)
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == given
    set_launch_environment(True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (given or ":4096:8")


class Scaled(torch.nn.Module):
    """Stands in for a network: something to compile."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * 2 if self.training else images * 3


class CountingBackend:
    """A backend of torch.compile that notes how often it is asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list) -> Callable:
        self.count += 1
        return graph.forward


def run_shapes(network: torch.nn.Module, factor: int) -> None:
    """Five shapes, which the network multiplies by a factor."""
    for width in range(1, 6):
        assert network(torch.ones(1, 3, 8, width)).sum() == 24 * width * factor


@pytest.mark.parametrize(
    ("prepare", "count"),
    [(configure_process, 10), (lambda accelerator: None, 3)],
    ids=["the limit of a run", "the limit of torch"],
)
def test_a_network_is_compiled_for_every_shape(launched, monkeypatch, prepare, count):
    """Without the raised limit torch stops at so many shapes, and the network stays as it is for all others."""
    from torch._dynamo import config, reset  # takes seconds

    launched(gpus=0)
    accelerator, backend = accelerator_like("cpu", dynamo=DynamoBackend.EAGER), CountingBackend()
    monkeypatch.setattr(TorchDynamoPlugin, "to_kwargs", lambda plugin: {"backend": backend, "dynamic": plugin.dynamic})
    network = Scaled()
    reset()
    with config.patch(recompile_limit=3, accumulated_recompile_limit=256):
        prepare(accelerator)
        compile_networks(accelerator, [network])
        run_shapes(network.train(), 2)
        run_shapes(network.eval(), 3)
    reset()
    assert backend.count == count


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
    assert describe_profile(accelerator).to_json() == {
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


def test_the_multi_cpu_profile_runs_two_processes_that_know_each_other(launch):
    process = launch("multi_cpu", ACCELERATE_USE_CPU="true")
    assert description(process) == on_cpu(2)
    assert not json.loads(process.stdout)["has_compiler"], "it takes seconds to import, and nobody has asked for it"


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
def test_torchrun_runs_two_cpu_processes_that_know_each_other(launch):
    assert description(launch(None, "--nproc-per-node", "2")) == on_cpu(2)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
@pytest.mark.parametrize("profile", ["single_gpu", "fp16", "bf16"])
def test_a_one_gpu_profile_without_a_gpu_ends_in_the_cpu_line(launch, profile):
    process = launch(profile, "--forked")
    assert process.returncode == 1
    lines = [line for line in process.stderr.splitlines() if line.startswith("LaunchError: ")]
    assert len(lines) == 1
    assert lines[0].startswith("LaunchError: the launch asks for GPU 0")
    assert lines[0].endswith(CPU_LINE)


@pytest.mark.skipif(HAS_GPU, reason="has a GPU")
def test_separate_runs_are_found_even_without_the_first_guard(launch):
    process = launch("multi_gpu", "--forked", "--unguarded")
    assert process.returncode == 1
    assert "LaunchError: 2 processes were started, but accelerate connected only 1;" in process.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("profile", "precision"), [("single_gpu", "no"), ("fp16", "fp16"), ("bf16", "bf16")])
def test_a_one_gpu_profile_runs_on_the_gpu(launch, profile, precision):
    described = description(launch(profile))
    convolutions = described.pop("float32_convolutions", None)
    assert described == on_cpu(1, precision) | {"device": "cuda"}
    assert (convolutions in ("TF32", "float32")) == (precision == "no")
