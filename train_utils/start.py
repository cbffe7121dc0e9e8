"""What a run prepares before its first step, in the order of `main`: launch, folder, data, network, loaders."""

import atexit
import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import gather_object, set_seed

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes, network_shapes
from data_utils.sources.hf_datasets import HFRows
from inference.models import load_model
from runtime.console import counted, say
from runtime.distributed import barrier_without_timeout, first_on_each_machine, on_main
from runtime.errors import CheckpointError, LaunchError, SettingsError
from runtime.files import lock_folder, remove_leftovers, user_text
from runtime.launch import (
    check_launch,
    command_line,
    configure_process,
    default_precision,
    describe_profile,
    distributed_options,
    explained_launch,
    say_profile,
)
from runtime.machine import IdleCores
from runtime.redact import redact_all
from runtime.settings import as_flags
from runtime.values import checked
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.check_data import check_data
from train_utils.checkpoints import MANIFEST, Checkpoint, find_checkpoint
from train_utils.compilation import compile_long_run, compile_training, tune_kernels
from train_utils.dataset import load_dataset_info
from train_utils.memory import MemoryTrial, check_image_fits, reports_shortage, say_split, wanted_split
from train_utils.metrics_log import read_image_scores
from train_utils.reporting.samples import report_share
from train_utils.run_state import RunState
from train_utils.schedule import Clock, Schedule
from train_utils.settings.plan import check_axes, check_scale, fill, patch_size, plan_run, run_length
from train_utils.settings.record import RunSettings
from train_utils.settings.starting_point import architecture, new_network
from train_utils.settings.train_settings import NO_ENCODER, RUNS, UNPLANNED, TrainSettings
from train_utils.sharding import prepare_sharding
from train_utils.slabs import Slabs, check_slabs, split_volumes
from train_utils.sync_batchnorm import synchronize_batchnorm
from train_utils.tracker import available_tracker, takes_pictures
from unet.config import UNetConfig
from unet.model import UNet


@dataclass(frozen=True)
class OpenedRun:
    """A run before its first step: its folder, its starting point, and its record so far.

    Args:
        checkpoint: the checkpoint that the run resumes from, if any.
        model: the model that a new run starts from, if any. A resumed run has none: the model may have changed or been
            deleted since.
        record: that of the run that is resumed or repeated, if any.
        flags: the flags as they were typed.
    """

    output_dir: Path
    checkpoint: Checkpoint | None
    model: UNet | None
    record: RunSettings | None
    flags: TrainSettings

    @property
    def trained_config(self) -> UNetConfig | None:
        """The config of the network that the run goes on with or starts from, if any."""
        if self.checkpoint is not None:
            return self.checkpoint.config
        return None if self.model is None else self.model.config

    def state(self) -> RunState:
        """Where the run stands before its first step here."""
        return RunState() if self.checkpoint is None else self.checkpoint.state

    def schedule(self, args: TrainSettings, info: DatasetInfo, processes: int, device: torch.device) -> Schedule:
        """The schedule by the steps of the run or, with --max-minutes, by the clock.

        A resumed run whose steps were counted keeps them, unless --epochs gives others.
        """
        max_steps = args.max_steps
        if args.max_minutes and self.checkpoint is not None and not (args.epochs or self.state().elapsed):
            max_steps = self.checkpoint.settings.total_steps or None  # 0 if the clock decides
            if max_steps:
                say(f"--max-minutes has no effect on a resumed run, which keeps its {counted(max_steps, 'step')}")
        clock = Clock(
            None if max_steps else args.max_minutes,
            self.state().elapsed / 60_000,
            report_share=report_share(info, processes, takes_pictures=takes_pictures(args.tracker)),
            spaces_evaluations=self.flags.eval_every is None,
            cores=IdleCores() if device.type == "cpu" else None,
        )
        steps_per_epoch = math.ceil(len(info.train) / args.planned_batch_size)
        total_steps = max_steps or (args.epochs or 0) * steps_per_epoch
        if total_steps:  # no run is shorter than the steps that it has made
            total_steps = max(total_steps, self.state().step)
        assert total_steps or clock.budget, "the plan decides the epochs"
        return Schedule(args, steps_per_epoch, total_steps, clock)

    @property
    def reads_places(self) -> bool:
        """Whether TIFFs with a place are read as rasters: the flag decides or, without it, the earlier run or model."""
        flags = self.flags
        if flags.place is not None:
            return flags.place
        config = self.trained_config
        needs_places = bool(flags.bands or flags.label_column) or flags.val_blocks is not None
        return config is None or config.preprocess.place or needs_places

    def settings(self, info: DatasetInfo) -> TrainSettings:
        """The flags, with values for those that are open: from the data, and from the checkpoint or the plan.

        The plan of a new run is printed.
        """
        args = replace(self.flags, task=info.config.task, place=info.config.reads_places)
        if self.checkpoint is not None:
            args = _with_recorded_plan(args, self.checkpoint.settings.flags)
            first = self.checkpoint.settings.flags.get("init_from")  # what a run has started from stays
            if self.flags.init_from not in (None, first):
                say(f"--init-from {self.flags.init_from} has no effect on a resumed run, whose weights are its own")
            args = replace(args, init_from=first, plan="none" if first else args.plan)
            if self.record is not None and self.record.flags.get("activation_checkpointing"):  # memory was short
                args = replace(args, activation_checkpointing=True)
        elif args.plan == "auto":
            args = plan_run(info, args)
            _say_choices("plan", self.flags, args, UNPLANNED)
        elif info.train.records.dims == 3 and not args.crop_size:  # no default suits volumes
            trained = self.trained_config
            preprocess = None if trained is None else trained.preprocess
            args = replace(args, crop_size=patch_size(info, run_length(args.max_minutes), preprocess))
            _say_choices("patches", self.flags, args, ["crop_size"])
        check_axes(info, args)
        return args

    def seen_images(self, info: DatasetInfo) -> list[str]:
        """A line if the model to start from may have trained on validation images, as its run held out others."""
        if self.model is None:
            return []
        earlier = Path(self.flags.init_from or "").parent
        try:
            datasets = (RunSettings.read(earlier).flags.get("dataset"), redact_all(self.flags.dataset))
            if len({os.path.realpath(user_text(str(dataset))) for dataset in datasets}) > 1:
                return []
            held_out = read_image_scores(earlier)
        except (OSError, ValueError):  # the model of no run
            return []
        usable = [index for index in range(len(info.val)) if index not in info.val.bad]
        seen = [index for index in usable if info.val.records.shown_name(index) not in held_out]
        if not seen:
            return []
        kind = f"validation {info.val.records.image_kind}"
        return [
            f"{len(seen)} of {counted(len(usable), kind)} were not held out by the run of --init-from: if its model has"
            " trained on them, the scores are too good (docs/faq.md)"
        ]

    def resume_line(self) -> str:
        """The command that goes on with this run, quoted for a shell."""
        added = [] if self.flags.output_dir else ["--output-dir", str(self.output_dir)]
        if self.flags.resume != "auto":
            added += ["--resume", "auto"]
        return command_line(added)


def _with_recorded_plan(args: TrainSettings, recorded: dict[str, Any]) -> TrainSettings:
    """The settings, with the recorded values of the planned ones that are open."""
    planned = {name: recorded[name] for name in UNPLANNED if recorded.get(name) is not None}
    values = UNPLANNED | checked(TrainSettings, planned)
    if args.encoder == NO_ENCODER:  # if the run has an encoder, a later check of --resume refuses this
        values |= {"encoder_weights": None, "freeze_encoder": None}
    return fill(args, values)


def _say_choices(kind: str, flags: TrainSettings, args: TrainSettings, names: Iterable[str]) -> None:
    """Print the settings of these names that the flags have left open."""
    chosen = {name: getattr(args, name) for name in names if getattr(flags, name) is None}
    say(f"{kind}: {as_flags(chosen)}")


@explained_launch()
def launch(flags: TrainSettings) -> Accelerator:
    """The accelerator of this process; raises LaunchError if the machine cannot do what the launch profile says."""
    if flags.push_to_hub and huggingface_hub.get_token() is None:
        raise SettingsError(f"--push-to-hub {flags.push_to_hub} needs a token: run `hf auth login`, or set HF_TOKEN")
    check_launch(flags.deterministic)
    tracker = available_tracker(flags.tracker)
    precision: str | None = "no"
    if not flags.check_data:  # which computes nothing, so the line on bf16 would be out of place
        record = find_record(flags)
        profile: dict[str, Any] = {} if record is None else record.profile
        # with group norm a step of a narrow network takes up to 1.7 times as long in bf16 on a CPU (torch 2.13)
        precision = default_precision(profile.get("mixed_precision"), suits_cpus=flags.norm != "group")
    accelerator = Accelerator(
        mixed_precision=precision,
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


def find_record(flags: TrainSettings) -> RunSettings | None:
    """The record of the run that is resumed or repeated; None without one, and on a machine without its folder."""
    resumed = flags.output_dir if flags.resume == "auto" else None
    if flags.resume and flags.resume != "auto":
        resumed = Path(flags.resume).resolve().parent.parent
    for run in filter(None, (resumed, flags.like)):
        with suppress(OSError, ValueError):  # what is damaged is named when the run is opened
            return RunSettings.read(run)
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


def open_folder(path: Path | None, resume: str | None) -> Path:
    """Make and lock the folder of a run, by default runs/<time>; one that is not empty is refused without `resume`.

    A run resumed from a checkpoint continues in the folder of the checkpoint, unless another is given. Folders that are
    still empty at the end are removed, so that a run that failed at its start can use its folder again.
    """
    if resume and resume != "auto":
        if not (Path(resume) / MANIFEST).is_file():
            raise CheckpointError(
                f"--resume {resume} is not a checkpoint; give a step-... folder, or auto with --output-dir"
            )
        path = path or Path(resume).resolve().parent.parent
    path = path or RUNS / time.strftime("%Y-%m-%d-%H%M%S")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not resume)):
        raise SettingsError(
            f"--output-dir {path} is not an empty folder; choose another, or continue its run with --resume auto"
        )
    new_folders = [folder for folder in (path / "checkpoints", path) if not folder.exists()]
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--output-dir {path} cannot be made: {error.strerror}") from error
    atexit.register(_remove_empty, new_folders)
    lock_folder(path)
    remove_leftovers(path, seconds=0)
    remove_leftovers(path / "checkpoints", seconds=0)
    return path


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()


def open_run(flags: TrainSettings) -> OpenedRun:
    """Make or find the folder of a run, lock it, and read its checkpoint and its record; call it on one process."""
    folder = open_folder(flags.output_dir, flags.resume)
    checkpoint = find_checkpoint(flags.resume, folder / "checkpoints")
    model = None
    if flags.init_from is not None and checkpoint is None:
        model = load_model(flags.init_from)
    return OpenedRun(folder, checkpoint, model, find_record(flags), flags)


def start_run(accelerator: Accelerator, flags: TrainSettings) -> OpenedRun:
    """The folder and the checkpoint of the run, found by one process.

    With --check-data the script ends here, with a report on the data, and with exit code 1 if that lists problems.
    """
    if flags.check_data:
        report, problems = on_main(accelerator, lambda: check_data(flags))
        say(report)
        barrier_without_timeout(accelerator)  # a launcher ends all processes when one has ended
        accelerator.end_training()
        raise SystemExit(problems > 0)
    run = on_main(accelerator, lambda: open_run(flags))
    accelerator.project_configuration.logging_dir = str(run.output_dir)
    say_profile(describe_profile(accelerator))
    return run


def load_data(accelerator: Accelerator, run: OpenedRun) -> tuple[TrainSettings, DatasetInfo]:
    """The settings of the run, which are the flags and what the plan chooses from the data, and its data set.

    One process reads, the others receive.
    """

    def read() -> tuple[DatasetInfo, TrainSettings]:
        info = load_dataset_info(replace(run.flags, place=run.reads_places))
        say("\n".join([f"data: {info}", *info.warnings, *run.seen_images(info)]))
        return info, run.settings(info)

    info, args = on_main(accelerator, read)
    info = replace(info, config=args)
    with first_on_each_machine(accelerator):  # one process of a machine fills the cache of `datasets` there
        for split in (info.train, info.val):
            if isinstance(split.records.rows, HFRows):
                split.records.rows.open_here()
    return args, info


def build_network(
    accelerator: Accelerator, run: OpenedRun, args: TrainSettings, info: DatasetInfo
) -> tuple[UNet, Task]:
    """The network and its task: fresh, from --init-from or an encoder, or as the checkpoint has it."""
    axes, trained = info.axes(args.depth), run.trained_config
    config, encoder = on_main(accelerator, lambda: architecture(args, axes, trained, is_copied=run.model is not None))
    trained_preprocess = None
    if trained is not None and trained.in_channels == info.channels:
        trained_preprocess = trained.preprocess
    preprocess = info.preprocess(trained_preprocess)
    reader = info.reader.at_size(info.usual_size(preprocess))
    task = reader.task(args.loss, args.class_weights).to(accelerator.device)
    if args.plan == "auto":
        task = task.with_variants()
    network = new_network(config, args, info.channels, task, preprocess, model=run.model, encoder=encoder)
    check_scale(info, run.flags.scale, network.config)
    network.activation_checkpointing = args.activation_checkpointing
    return network, task


def fit_batch(
    accelerator: Accelerator, run: OpenedRun, args: TrainSettings, info: DatasetInfo, network: UNet, task: Task
) -> tuple[BatchSplit, NetworkShapes]:
    """The split of each batch into micro-batches that fit on every process, and the shapes that it was fitted to.

    The batch itself stays as the flags ask.
    The network's `activation_checkpointing` is switched on if nothing else helps. Raises SettingsError if nothing fits.
    """
    slabs = new_slabs(accelerator, args, network.config.divisors[0])
    shapes = network_shapes(info, network.config)
    check_slabs(accelerator, network, slabs, int(shapes.train[:, 0].min()), args.sync_batchnorm)
    tune_kernels(args, accelerator.device, shapes)
    fitting_size = None  # of a step that has fitted, or may
    if run.checkpoint is not None:
        fitting_size = (run.record or run.checkpoint.settings).micro_batch_size
    batch_split = wanted_split(args, describe_profile(accelerator), fitting_size)
    largest_shape = (info.channels, slabs.largest(shapes.largest[0]), *shapes.largest[1:])
    check_image_fits(*largest_shape)
    if reports_shortage(accelerator.device):
        batch_split = MemoryTrial(accelerator, network, task, args, largest_shape).fit(batch_split)
    say_split(batch_split)
    compile_long_run(accelerator, args, network, batch_split, shapes)
    return batch_split, shapes


def prepare_network(
    accelerator: Accelerator, args: TrainSettings, network: UNet, task: Task, batch_split: BatchSplit
) -> StepLoss:
    """Change the network in place as the profile asks, and return the loss that goes with it.

    These are batch norm over all processes, slabs of volumes, sharding and compiled blocks. The accelerator's `prepare`
    comes afterwards.
    """
    synchronize_batchnorm(accelerator, network, args.sync_batchnorm, batch_split)
    network.to(accelerator.device)
    criterion = split_volumes(network, task, new_slabs(accelerator, args, network.config.divisors[0]))
    prepare_sharding(accelerator, network, batch_split, args.max_grad_norm)
    compile_training(accelerator, network, criterion)
    return criterion
