"""The precision of a launch that names none: bf16 where the device has instructions for it, else float32."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.utils import parse_flag_from_env

from runtime.console import say
from runtime.launch import launcher_words

VARIABLE = "ACCELERATE_MIXED_PRECISION"
SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # their profiles say more of the precision


def default_precision(recorded: str | None = None, *, suits_cpus: bool = True) -> str | None:
    """The precision for an Accelerator; None where the launch names one, by an option, a profile or a variable.

    A line says that a run computes in bf16 without having been asked to, and how it does not.

    Args:
        recorded: the precision of the run that is resumed or repeated; one in float32 stays so.
        suits_cpus: whether the network is faster in bf16 on CPUs too.
    """
    if any(map(parse_flag_from_env, SHARDING)) or launch_names(VARIABLE, "--mixed", ["mixed_precision"]):
        return None
    if recorded == "no" or not _device_has_bf16(suits_cpus):
        return "no"
    option = "accelerate launch --mixed_precision no"
    say(f"precision: bf16, for which this device has instructions; for float32 start with {option}")
    return "bf16"


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
    content = _read_profile(_profile(words))
    return any(content.get(key) not in (None, {}) for key in keys)


def _profile(words: list[str]) -> Path:
    """The profile of a launcher's command line: a file of options."""
    for position, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--config_file", "--config-file"):
            if not equals:
                value = words[position + 1]
            return Path(value)
    from accelerate.commands.config.config_args import default_config_file  # of launchers, which take a while

    return Path(default_config_file)


def _read_profile(profile: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def _device_has_bf16(suits_cpus: bool) -> bool:
    """Whether this process's device has instructions for bf16: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if torch.accelerator.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return suits_cpus and bool(has.get("avx512_bf16") or has.get("amx_bf16"))
