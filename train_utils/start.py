"""The start of training on the devices, processes and precision of the launch profile."""

from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed

from data_utils.config import DataConfig
from runtime.console import say
from runtime.distributed import on_main
from runtime.launch import (
    check_launch,
    configure_process,
    describe_profile,
    distributed_options,
    say_profile,
)
from train_utils.monitoring.tracker import available_tracker
from train_utils.opened_run import OpenedRun, open_run
from train_utils.reporting.data_report import report_data
from train_utils.reporting.hub import check_token
from train_utils.settings.train_settings import TrainSettings
from train_utils.slabs.mesh import Mesh


def launch(flags: TrainSettings) -> Accelerator:
    """The accelerator of this process; raises LaunchError if the machine cannot do what the launch profile says."""
    check_token(flags.push_to_hub)
    check_launch(flags.deterministic)
    tracker = available_tracker(flags.tracker)
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        log_with=None if tracker == "none" else tracker,
        project_dir=".",  # `start_run` names it: all processes must agree on it
        kwargs_handlers=distributed_options(flags.ddp_comm_hook),
    )
    configure_process(accelerator, flags.ddp_comm_hook)
    # `describe_profile` reads the launch's value: `backward` would divide by it, but the loss counts all micro-batches
    accelerator.gradient_accumulation_steps = 1
    new_mesh(accelerator, flags)  # an error now, if the processes cannot share volumes
    set_seed(flags.seed, deterministic=flags.deterministic)
    return accelerator


def new_mesh(accelerator: Accelerator, args: TrainSettings) -> Mesh:
    """The position of this process among those that share a volume."""
    return Mesh.from_process(accelerator.process_index, accelerator.num_processes, args.processes_per_volume)


def start_run(accelerator: Accelerator, flags: TrainSettings) -> OpenedRun | None:
    """The folder and the checkpoint of the run, found by one process; None, and a line, if nothing is left to do.

    With --check-data the script ends here, with a report on the data.
    """
    if flags.check_data:
        report_data(accelerator, DataConfig.from_args(flags))
    run = on_main(accelerator, lambda: open_run(flags))
    if run.finished_line:
        say(run.finished_line)
        return None
    accelerator.project_configuration.logging_dir = str(run.output_dir)
    say_profile(describe_profile(accelerator))
    return run
