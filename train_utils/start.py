"""The start of training on the devices, processes and precision of the launch profile."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import gather_object, set_seed

from runtime.distributed import on_main
from runtime.errors import LaunchError
from runtime.launch import (
    check_launch,
    configure_process,
    describe_profile,
    distributed_options,
    say_profile,
)
from runtime.precision import default_precision
from train_utils.monitoring.tracker import available_tracker
from train_utils.opened_run import OpenedRun, open_run
from train_utils.reporting.data_report import report_data
from train_utils.reporting.hub import check_token
from train_utils.settings.record import RunSettings
from train_utils.settings.train_settings import TrainSettings
from train_utils.slabs.slabs import Slabs


def launch(flags: TrainSettings) -> Accelerator:
    """The accelerator of this process; raises LaunchError if the machine cannot do what the launch profile says."""
    check_token(flags.push_to_hub)
    check_launch(flags.deterministic)
    tracker = available_tracker(flags.tracker)
    profile = recorded_profile(flags) or {}
    # with group norm a step of a narrow network takes up to 1.7 times as long in bf16 on a CPU (torch 2.13)
    accelerator = Accelerator(
        mixed_precision=default_precision(profile.get("mixed_precision"), suits_cpus=flags.norm != "group"),
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        log_with=None if tracker == "none" else tracker,
        project_dir=".",  # `start_run` names it: all processes must agree on it
        kwargs_handlers=distributed_options(flags.ddp_comm_hook),
    )
    check_precision(accelerator)
    configure_process(accelerator, flags.ddp_comm_hook)
    # `describe_profile` reads the launch's value: `backward` would divide by it, but the loss counts all micro-batches
    accelerator.gradient_accumulation_steps = 1
    new_slabs(accelerator, flags)  # an error now, if the processes cannot share volumes
    set_seed(flags.seed, deterministic=flags.deterministic)
    return accelerator


def recorded_profile(flags: TrainSettings) -> dict[str, Any] | None:
    """The launch of the run that is resumed or repeated; None without one, and on a machine without its folder."""
    resumed = flags.output_dir if flags.resume == "auto" else None
    if flags.resume and flags.resume != "auto":
        resumed = Path(flags.resume).resolve().parent.parent
    for run in filter(None, (resumed, flags.like)):
        with suppress(OSError, ValueError):  # what is damaged is named when the run is opened
            return RunSettings.read(run).profile
    return None


def check_precision(accelerator: Accelerator) -> None:
    """Raise LaunchError if the machines of a launch that names no precision would choose different ones."""
    precisions = sorted(set(gather_object([accelerator.mixed_precision])))
    if len(precisions) > 1:
        raise LaunchError(
            f"the processes would compute in {' and '.join(precisions)}; name one: accelerate launch --mixed_precision"
            f" {precisions[0]}"
        )


def new_slabs(accelerator: Accelerator, args: TrainSettings, divisor: int = 1) -> Slabs:
    """The slabs of volumes of this process, one of those that share a volume; `divisor` is the network's."""
    return Slabs.of_process(accelerator.process_index, accelerator.num_processes, args.processes_per_volume, divisor)


def start_run(accelerator: Accelerator, flags: TrainSettings) -> OpenedRun | None:
    """The folder and the checkpoint of the run, found by one process; None, and a line, if nothing is left to do.

    With --check-data the script ends here, with a report on the data.
    """
    if flags.check_data:
        report_data(accelerator, flags)
    run = on_main(accelerator, lambda: open_run(flags))
    if run is None:
        return None
    accelerator.project_configuration.logging_dir = str(run.output_dir)
    say_profile(describe_profile(accelerator))
    return run
