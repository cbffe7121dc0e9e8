"""Checks and settings around `Accelerator()`, which silently runs some launches in another way than requested."""

import logging
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.utils import (
    DDPCommunicationHookType,
    DistributedType,
    DynamoBackend,
    KwargsHandler,
    parse_flag_from_env,
)
from torch import nn
from torch.distributed import PrefixStore, Store, register_rendezvous_handler, rendezvous

from runtime.console import say
from runtime.distributed import COLLECTIVE_TIMEOUT, keep_process_groups
from runtime.errors import LaunchError, UserError, one_line
from runtime.machine import keep_freed_memory
from runtime.redact import redact

SHARDING = (DistributedType.FSDP, DistributedType.DEEPSPEED)  # these spread a model's state over all processes
LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun")
# `accelerate launch` of several processes sets one of these; users of torchrun name a precision, but none of these
LAUNCH_VARIABLES = {"ACCELERATE_DYNAMO_MODE", "ACCELERATE_USE_DEEPSPEED"}
LAUNCHER_MODULES = ("accelerate.commands", "torch.distributed")
COMM_HOOKS = {
    "none": DDPCommunicationHookType.NO,
    "fp16": DDPCommunicationHookType.FP16,
    "bf16": DDPCommunicationHookType.BF16,
}
MOST_GRAPHS = 1024  # compiled graphs: all blocks of a class share their code, and each block may get 16 shapes


@contextmanager
def explained_launch() -> Iterator[None]:
    """In this context, an error about what launchers put into the environment, or do not, becomes a LaunchError."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, ImportError) as error:  # of numbers, and of packages such as DeepSpeed
        raise LaunchError(
            f"the environment of this launch cannot be used: {one_line(error)}; start by accelerate launch or torchrun,"
            " which set WORLD_SIZE, RANK and the others, or unset them"
        ) from error


def check_launch(deterministic: bool = False) -> None:
    """Set what a launcher leaves out, and raise LaunchError for launches that do not fit this machine.

    Call it before `Accelerator()`, which without a GPU neither fails nor warns (accelerate 1.15): processes started for
    GPUs each train alone, a one-GPU profile trains on the CPU, and fp16 becomes fp32.

    Args:
        deterministic: whether to use deterministic kernels; cuBLAS needs an environment variable for them.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Otherwise accelerate uses the local rank as the GPU's number, which is wrong if a process sees only its own GPU.
    os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")
    processes = int(os.environ.get("WORLD_SIZE", 1))
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    is_accelerate = not LAUNCH_VARIABLES.isdisjoint(os.environ)
    if processes > 1 and not is_accelerate and torch.accelerator.device_count() == 0:
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # plain torchrun does not choose a device
    use_cpu = parse_flag_from_env("ACCELERATE_USE_CPU")
    gpus = 0 if use_cpu else torch.accelerator.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # a profile's gpu_ids sets it too

    if gpus == 0 and not use_cpu:
        if processes > 1:
            raise LaunchError(
                f"{processes} processes were started for GPUs, but torch sees none; "
                f"to use the CPU: {_launch_line('multi_cpu')}"
            )
        if re.match(r"\s*(\d|GPU-|MIG-)", visible):
            raise LaunchError(
                f"the launch asks for GPU {visible} (gpu_ids or CUDA_VISIBLE_DEVICES), but torch sees none; "
                f"to use the CPU: {_launch_line('cpu')}"
            )

    # torchrun's workers all see the GPUs of their machine; other launchers may show each process its own.
    sharing_processes = 1
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sharing_processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if 0 < gpus < sharing_processes:
        remedy = f"--num_processes {gpus} for each machine"
        if gpus == 1:
            remedy = _launch_line("single_gpu")
        raise LaunchError(f"{sharing_processes} processes were started on a machine with {gpus} GPU(s); use {remedy}")

    if gpus == 0 and precision in ("fp16", "fp8"):
        raise LaunchError(
            f"mixed precision {precision} needs a GPU (on the CPU it would silently be fp32); "
            "use --mixed_precision bf16 or --mixed_precision no"
        )


def default_precision(recorded: str | None = None, *, suits_cpus: bool = True) -> str | None:
    """The precision for an Accelerator; None where the launch names one, by an option, a profile or a variable.

    It is bf16 where the device has instructions for it, else float32. A line says that a run computes in bf16 without
    having been asked to, and how it does not.

    Args:
        recorded: the precision of the run that is resumed or repeated, or of an exported model; float32 stays so.
        suits_cpus: whether the network is faster in bf16 on CPUs too.
    """
    shards = parse_flag_from_env("ACCELERATE_USE_FSDP") or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED")
    if shards or launch_names("ACCELERATE_MIXED_PRECISION", "--mixed", ["mixed_precision"]):
        return None
    if recorded == "no" or not _device_has_bf16(suits_cpus):
        return "no"
    option = "accelerate launch --mixed_precision no"
    say(f"precision: bf16, for which this device has instructions; for float32 start with {option}")
    return "bf16"


def _device_has_bf16(suits_cpus: bool) -> bool:
    """Whether this process's device has instructions for bf16: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if torch.accelerator.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return suits_cpus and bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def launch_names(variable: str, option: str, keys: Sequence[str]) -> bool:
    """Whether someone has named a setting for this launch.

    Args:
        variable: the setting's variable, which accelerate's launcher sets even if nobody has named the setting.
        option: how the options of the launcher for it begin.
        keys: its names in a profile.
    """
    if variable not in os.environ:
        return False
    words = launcher_words()
    if not any(Path(word).name.startswith("accelerate") for word in words[:3]):
        return True  # the user has set the variable, or the launcher is not here to be asked
    if any(word.startswith(option) for word in words):
        return True
    content = _read_profile(words)
    return any(content.get(key) not in (None, {}) for key in keys)


def _read_profile(words: list[str]) -> dict[str, Any]:
    """The profile of a launcher's command line, a file of options; an empty one if there is none."""
    profile = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in ("--config_file", "--config-file"):
            profile = value if equals else following
    if profile is None:
        from accelerate.commands.config.config_args import default_config_file  # of launchers, which take a while

        profile = default_config_file
    try:
        content = yaml.safe_load(Path(profile).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def configure_process(accelerator: Accelerator, comm_hook: str = "none") -> None:
    """Check the launch, and set up memory and compiler. Call it after `Accelerator()`.

    Raises LaunchError unless all processes are connected, FSDP or DeepSpeed is active if the profile sets it, and
    something compresses gradients by `comm_hook`.
    """
    started = int(os.environ.get("WORLD_SIZE", 1))
    if accelerator.num_processes != started:
        raise LaunchError(
            f"{started} processes were started, but accelerate connected only {accelerator.num_processes}; "
            f"launch with a profile from accelerate_configs, on the CPU: {_launch_line('multi_cpu')}"
        )
    kind = accelerator.distributed_type
    for name in ("FSDP", "DEEPSPEED"):
        if parse_flag_from_env(f"ACCELERATE_USE_{name}") and kind != name:
            raise LaunchError(
                f"the launch profile asks for {name}, which accelerate silently ignores on the CPU;"
                f" use {_launch_line('multi_cpu')}"
            )
    if comm_hook != "none" and kind in SHARDING:
        raise LaunchError(
            f"--ddp-comm-hook works with DDP only, but the launch profile asks for {kind.value}; leave the flag out"
        )
    if comm_hook == "bf16" and kind == DistributedType.MULTI_CPU:
        raise LaunchError("--ddp-comm-hook bf16 needs GPUs; on CPUs use --ddp-comm-hook fp16")
    keep_process_groups()
    keep_freed_memory(accelerator.device)
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        allow_graphs()
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # linear layers, as in encoders, round like convolutions


def allow_graphs(falls_back: bool = False) -> None:
    """Let torch compile for as many shapes as a run has; beyond its own limits, 8 and 256, it would stop.

    Args:
        falls_back: whether what cannot be compiled runs as it is; else it is an error.
    """
    from torch._dynamo import config  # takes a second
    from torch._functorch import config as gradient_config

    config.cache_size_limit = MOST_GRAPHS  # the name by which all versions know recompile_limit
    config.accumulated_cache_size_limit = MOST_GRAPHS
    config.suppress_errors = falls_back
    if falls_back:
        gradient_config.force_non_lazy_backward_lowering = True  # else errors of backward passes come too late
        torch._logging.set_logs(dynamo=logging.ERROR)  # else each shape of each block warns in some hundred lines


def compile_networks(accelerator: Accelerator, networks: Iterable[nn.Module]) -> None:
    """Compile the networks in place if the profile sets a `dynamo_backend`; training compiles blocks instead."""
    plugin = accelerator.state.dynamo_plugin
    if plugin.backend != DynamoBackend.NO:
        for network in networks:
            network.compile(**plugin.to_kwargs())


def distributed_options(comm_hook: str) -> list[KwargsHandler]:
    """The options of the process group and of DDP, which exchanges gradients compressed by `comm_hook`.

    DDP's static graph stays off: it forbids `no_sync`, and would only save the search for unused parameters, which is
    off anyway. Buffers are shared before evaluation and saving (`share_statistics`), not in each step.
    """
    # torch 2.13 has renamed the option, but accelerate 1.15 cannot pass on the new name
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    # volumes' weights of size 1 fit two memory formats, and the kernel chooses the format of their gradients
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    ddp = DistributedDataParallelKwargs(
        broadcast_buffers=False, gradient_as_bucket_view=True, comm_hook=COMM_HOOKS[comm_hook]
    )
    return [ddp, process_group_options()]


def process_group_options() -> InitProcessGroupKwargs:
    """The options by which processes find each other, also after a launcher with `max_restarts` has restarted them.

    The launcher's store outlives the processes, so restarted processes would read the addresses of the ended ones
    (torch 2.13). Therefore each restart has its own prefix in the store. With several machines torch's default is kept,
    since each machine counts its own restarts.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    machines = os.environ.get("GROUP_WORLD_SIZE")
    if restarts in (None, "0") or machines != "1":
        return InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)

    def meet(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        store, rank, world_size = next(rendezvous("env://", **options))
        yield PrefixStore(f"restart {restarts}", store), rank, world_size

    register_rendezvous_handler("restarted", meet)
    return InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT, init_method="restarted://")


def describe_profile(accelerator: Accelerator) -> dict[str, Any]:
    """The settings that come from the launch, as a run prints and records them.

    `gradient_accumulation_steps` are there if the launch sets more than one, and `dynamo_backend` if something is
    compiled.
    """
    profile: dict[str, Any] = {
        "processes": accelerator.num_processes,
        "machines": int(os.environ.get("GROUP_WORLD_SIZE", 1)),  # torchrun calls machines groups
        "distributed_type": accelerator.distributed_type.value,
        "device": accelerator.device.type,
        "mixed_precision": accelerator.mixed_precision,
    }
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    if accelerator.state.deepspeed_plugin is not None:
        steps = accelerator.state.deepspeed_plugin.deepspeed_config.get("gradient_accumulation_steps")
    if str(steps).isdigit() and int(str(steps)) > 1:  # DeepSpeed may have "auto" here, and 1 is no accumulation
        profile["gradient_accumulation_steps"] = int(str(steps))
    backend = accelerator.state.dynamo_plugin.backend
    if backend != DynamoBackend.NO:
        profile["dynamo_backend"] = backend.value.lower()
    return profile


def say_profile(profile: dict[str, Any]) -> None:
    """Print the launch settings, and how many GPUs of this machine the launch leaves idle."""
    texts = [f"{name} {value}" for name, value in profile.items()]
    say("profile: " + ", ".join(texts))
    if profile["device"] == "cuda":
        gpus = torch.cuda.device_count()
        idle = gpus - profile["processes"] // profile["machines"]
        if idle > 0:
            remedy = (
                f"accelerate launch --multi_gpu --num_processes {gpus * profile['machines']} {shlex.quote(sys.argv[0])}"
            )
            say(f"launch: {idle} of the {gpus} GPUs of this machine idle; to use all of them: {remedy}")


def command_line(added: Sequence[str] = ()) -> str:
    """The command that started this program, with its launcher and further flags, redacted and quoted for a shell."""
    words = launcher_words() or sys.orig_argv
    if len(words) > 1 and shutil.which(Path(words[1]).name) == words[1]:  # python /usr/bin/accelerate
        words = [Path(words[1]).name, *words[2:]]
    return shlex.join([*map(redact, words), *added])


def launcher_words() -> list[str]:
    """The command of the parent process if that is a launcher; else no words."""
    words: list[str] = []
    with suppress(psutil.Error):
        words = psutil.Process(os.getppid()).cmdline()
    for word in words[:3]:  # python /usr/bin/accelerate launch ..., python -m accelerate.commands.launch ...
        if Path(word).name in LAUNCHERS or word.startswith(LAUNCHER_MODULES):
            return words
    return []


def _launch_line(profile: str) -> str:
    """The command that starts this script with one of the repository's profiles."""
    script = shlex.quote(sys.argv[0])
    command = f"accelerate launch --config_file accelerate_configs/{profile}.yaml {script}"
    if profile == "multi_cpu":
        return f"ACCELERATE_USE_CPU=true {command}"
    return command
