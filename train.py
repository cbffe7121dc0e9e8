"""Train a U-Net for semantic segmentation of images or volumes.

The flags say what is computed. Options of `accelerate launch`, or a profile (a file of them), say on which devices.

A laptop:        accelerate launch --config_file accelerate_configs/cpu.yaml train.py --dataset DATA --max-minutes 10
One GPU:         accelerate launch train.py --dataset DATA --output-dir runs/cells
All GPUs, bf16:  accelerate launch --multi_gpu --mixed_precision bf16 train.py --dataset DATA --output-dir runs/cells
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import end_at_interrupt

    end_at_interrupt()


from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import Tensor
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import build_loaders, network_shapes
from inference.decoding import new_decoder
from inference.decoding.views import predict_strips
from runtime.console import say, track
from runtime.device import download
from runtime.distributed import first_on_each_machine, on_main, seed_step
from runtime.errors import WriteError
from runtime.launch import (
    check_launch,
    configure_process,
    describe_profile,
    distributed_options,
    say_profile,
    set_launch_environment,
)
from runtime.memory import grow_segments
from runtime.mesh import Mesh
from runtime.script import run_script
from tasks.calibration import no_counts
from tasks.step_loss import StepLoss
from train_utils.checkpoints.save import Checkpoints
from train_utils.clock import Clock
from train_utils.compilation import compile_blocks, compile_loss, compile_recolor, eager, not_compiled_whole
from train_utils.ema import WeightAverage
from train_utils.evaluation import Evaluation, read_strips
from train_utils.gradient_buckets import rebuild_buckets
from train_utils.kernel_tuning import tune_kernels
from train_utils.memory.step_memory import StepMemory
from train_utils.memory.trial import MemoryTrial, largest_evaluation
from train_utils.micro_batches import MicroBatch, split_from_args, steps_ahead
from train_utils.monitoring.run_log import RunLog
from train_utils.monitoring.tracker import available_tracker
from train_utils.opened_run import open_run
from train_utils.optim import build_optimizer
from train_utils.publisher import Publisher, finish_run
from train_utils.reporting.data_report import report_data
from train_utils.reporting.hub import check_token
from train_utils.reporting.samples import PICTURES, evaluation_pictures
from train_utils.reporting.sections import new_section
from train_utils.schedule import Schedule
from train_utils.settings.data_checks import check_scale
from train_utils.settings.flags import parse_args
from train_utils.settings.record import resolve_settings
from train_utils.settings.starting_point import starting_point
from train_utils.settings.train_settings import TrainSettings
from train_utils.sharding import gather_tensor, gathered_weights, prepare_sharding, share_statistics
from train_utils.slab_layers import split_network
from train_utils.slabs import Slabs, check_slabs, new_step_loss
from train_utils.step_guard import StepGuard
from train_utils.sync_batchnorm import leave_out_of_batch_norm, synchronize_batchnorm


def add_gradients(
    accelerator: Accelerator,
    model: torch.nn.Module,
    criterion: StepLoss,
    micro_batches: list[MicroBatch],
    counts: Tensor,
    *,
    reduction: dist.Work | None,
) -> Tensor:
    """Add the gradients of this process's micro-batches, and return their share of the step's loss, a scalar.

    The list is emptied, so that the memory of a micro-batch is free when the next one is computed.

    Args:
        counts: the counts of the whole step, by which the terms of the loss are divided.
        reduction: the exchange that adds up the counts over the processes; None for one process.
    """
    loss = torch.zeros((), device=accelerator.device)
    while micro_batches:
        images, targets, is_filler = micro_batches.pop(0)
        leave_out_of_batch_norm(model, is_filler)
        is_last = not micro_batches
        accelerator.sync_gradients = is_last
        with nullcontext() if is_last else accelerator.no_sync(model):
            logits = model(images)
            if reduction is not None:
                # here the counts are needed for the first time; their exchange has overlapped with the forward pass
                reduction.wait()  # the device waits, or the host with gloo
                reduction = None
            share = criterion(logits, targets, counts)
            # `backward` divides by the steps of DeepSpeed, 1 elsewhere; the processes' gradients are averaged
            accelerator.backward(share * accelerator.num_processes * accelerator.gradient_accumulation_steps)
        loss = loss + share.detach()
    return loss


def train_step(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: StepLoss,
    micro_batches: list[MicroBatch],
    *,
    max_grad_norm: float,
    guard: StepGuard,
    memory: StepMemory,
) -> Tensor:
    """Make one optimizer step on this process's micro-batches, which are taken from the list and queued for the device.

    Args:
        memory: if the only GPU of a run has too little memory, the step is made again in smaller micro-batches.

    Returns:
        Whether the step is made, a bool on the device.
    """
    # The loss is divided by the counts of all micro-batches on all processes, so that it does not depend on their
    # number. The same exchange tells all processes whether one of them was asked to stop, and what time it is.
    own_counts = sum(criterion.counts(micro_batch.targets) for micro_batch in micro_batches)
    exchanged = torch.cat([own_counts, guard.message(like=own_counts)])
    # these are views, which contain the sums when the exchange is over
    counts, message = exchanged.split([len(own_counts), len(exchanged) - len(own_counts)])
    reduction = dist.all_reduce(exchanged, async_op=True) if accelerator.num_processes > 1 else None
    guard.begin_step()
    while True:  # a single pass, unless memory runs out
        try:
            smaller_batches = memory.cut(micro_batches)
            loss = add_gradients(accelerator, model, criterion, smaller_batches, counts, reduction=reduction)
            break
        except (MemoryError, RuntimeError) as error:
            memory.halve_or_raise(error, guard)
    micro_batches.clear()
    loss = accelerator.reduce(loss, "sum")
    grad_norm = accelerator.clip_grad_norm_(model.parameters(), max_grad_norm or torch.inf)
    grad_norm = gather_tensor(torch.as_tensor(grad_norm, device=accelerator.device))  # DeepSpeed's is a Python number
    is_made = guard.judge(loss, grad_norm, message)
    optimizer.step()
    optimizer.zero_grad()
    return is_made


@torch.inference_mode()
def evaluate(
    accelerator: Accelerator, model: torch.nn.Module, loader: DataLoader, criterion: StepLoss, step: int
) -> Evaluation:
    """Evaluate the model: scores and loss at the targets' own sizes, exact on any number of processes."""
    model.eval()
    share_statistics(accelerator, model)
    task = criterion.task
    config = accelerator.unwrap_model(model).config
    device = accelerator.device
    scores = task.new_scores(len(loader.dataset), device)
    decoder = new_decoder(task)
    sums = torch.zeros(task.terms, device=device)
    counts = torch.zeros(task.terms, device=device)
    reliability = no_counts(device)
    unreadable = torch.zeros(len(loader.dataset), device=device)
    with gathered_weights(accelerator, model):
        for batch in track(loader, len(loader), "evaluating", unit="batch"):
            sizes = [target.shape for target in batch["targets"]]
            images = predict_strips(model, batch["images"], sizes, config, decoder)
            for strips, target, index in zip(images, batch["targets"], batch["indices"], strict=True):
                target = target.as_batch()
                prediction, image_sums, is_finite = read_strips(task, decoder, strips, target, reliability)
                scores.add(prediction, target, index)
                unreadable[index] = ~is_finite
                counts = counts + task.counts(target)
                sums = sums + image_sums.to(counts.dtype)
    model.train()
    sums = accelerator.reduce(sums, "sum")
    counts = accelerator.reduce(counts, "sum")
    scores.sums = accelerator.reduce(scores.sums, "sum")
    scores.by_image = accelerator.reduce(scores.by_image, "sum")
    reliability = accelerator.reduce(reliability, "sum")
    unreadable = accelerator.reduce(unreadable, "sum")
    loss = (sums / torch.where(counts > 0, counts, 1)).sum()
    results = download([scores.sums, scores.by_image, reliability, loss, unreadable])  # one wait for the device
    scores.sums, scores.by_image, scores.reliability, loss, unreadable = results
    return Evaluation(step, loss.item(), scores, unreadable.nonzero().flatten().tolist())


def prepare(
    accelerator: Accelerator,
    args: TrainSettings,
    model: torch.nn.Module,
    batch_split: BatchSplit,
    slabs: Slabs,
    loaders: tuple[DataLoader, DataLoader],
) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader, DataLoader]:
    """Set up batch norm over all processes, slabs, sharding, compiled blocks and the optimizer, as the profile asks."""
    synchronize_batchnorm(accelerator, model, args.sync_batchnorm, batch_split)
    model.to(accelerator.device)
    split_network(model, slabs)
    prepare_sharding(accelerator, model, batch_split, args.max_grad_norm)
    kind = accelerator.distributed_type
    optimizer = build_optimizer(model, args.planned_optimizer, args.learning_rate, args.weight_decay, kind)
    compile_blocks(accelerator, model)
    with not_compiled_whole(accelerator):
        return accelerator.prepare(model, optimizer, *loaders)


def main() -> None:
    flags = parse_args(__doc__)
    flags = replace(flags, tracker=available_tracker(flags.tracker))
    check_token(flags.push_to_hub)

    # 1. Launch: devices, processes and precision come from the launch profile
    set_launch_environment(flags.deterministic)
    check_launch()
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        log_with=None if flags.tracker == "none" else flags.tracker,
        project_dir=".",  # named below: all processes must agree on it
        kwargs_handlers=distributed_options(flags.ddp_comm_hook),
    )
    device = accelerator.device
    configure_process(accelerator, flags.ddp_comm_hook)
    profile = describe_profile(accelerator)
    mesh = Mesh.from_process(accelerator.process_index, accelerator.num_processes, flags.processes_per_volume)
    # `profile` keeps the launch's value: `backward` would divide by it, but the loss already counts all micro-batches
    accelerator.gradient_accumulation_steps = 1
    set_seed(flags.seed, deterministic=flags.deterministic)
    if flags.check_data:
        report_data(accelerator, DataConfig.from_args(flags))
    run = on_main(accelerator, lambda: open_run(flags))
    if run.finished_line:
        say(run.finished_line)
        return accelerator.end_training()
    accelerator.project_configuration.logging_dir = str(run.output_dir)
    say_profile(profile)

    # 2. Data: one process reads, however many train; `args` are the flags and what the plan chooses from the data
    reads_places = on_main(accelerator, lambda: run.reads_places(flags))
    data_config = replace(DataConfig.from_args(flags), place=reads_places)
    info = on_main(accelerator, lambda: load_dataset_info(data_config))
    say("\n".join([f"data: {info}", *info.warnings]))
    args = on_main(accelerator, lambda: run.with_plan(flags, info))
    info = replace(info, config=DataConfig.from_args(args))
    with first_on_each_machine(accelerator):  # one process of a machine fills the cache of `datasets` there
        info.open_here()
    batch_split = split_from_args(args, profile, run.largest_micro_batch)

    # 3. Model and task: fresh, from --init-from, or as the checkpoint has it; the model normalizes by itself
    axes = info.axes(args.depth)
    checkpoint_config = run.checkpoint.model_config()
    origin = on_main(
        accelerator,
        lambda: starting_point(args, axes, model=run.initial_model, checkpoint=checkpoint_config),
    )
    preprocess = info.preprocess(origin.trained_preprocess(info.channels))
    reader = info.reader.at_size(info.usual_size(preprocess))
    task = reader.task(args.loss, args.class_weights).to(device)
    model = origin.build(info.channels, task, preprocess)
    check_scale(info, flags.scale, model.config)
    model.activation_checkpointing = args.activation_checkpointing or run.memory_limit.activation_checkpointing

    # 4. Batch: the same images in every step, cut so that they fit into memory
    shapes = network_shapes(info, model.config)
    slabs = Slabs(mesh, model.config.divisors[0])
    check_slabs(accelerator, model, mesh, shapes.shortest_first_side, args.sync_batchnorm)
    largest_shape = (info.channels, slabs.largest(shapes.largest[0]), *shapes.largest[1:])
    trial = MemoryTrial(accelerator, model, task, args)
    if shapes.differ:
        grow_segments(device)
    tune_kernels(args, device, shapes)
    batch_split = trial.fit(largest_shape, batch_split)
    trial.check_evaluation(largest_evaluation(info, shapes, device))
    memory = StepMemory(accelerator, run.output_dir, model, batch_split)

    # 5. Prepare: batch norm over all processes, sharding, compiled regions, optimizer, loaders
    criterion = new_step_loss(task, model.head_strides, slabs)
    compile_loss(accelerator, criterion)
    state = run.checkpoint.run_state()
    max_steps = run.max_steps(args)
    minutes = None if max_steps else args.max_minutes
    clock = Clock(accelerator, minutes, run.minutes_used(), report_images=3 * PICTURES)
    schedule = Schedule.from_args(args, len(info.train), max_steps, clock)
    with first_on_each_machine(accelerator):  # one process of a machine decodes for --cache
        loaders = build_loaders(
            info,
            model.config,
            shapes,
            batch_split,
            steps=schedule.remaining_steps(state),
            num_workers=args.num_workers,
            device=device,
        )
    model, optimizer, train_loader, val_loader = prepare(accelerator, args, model, batch_split, slabs, loaders)
    network = accelerator.unwrap_model(model)
    average = WeightAverage(network, args.ema_decay)

    # 6. Resume: identity must match -> weights, optimizer, average, scaler -> the log goes on behind that step
    settings = on_main(
        accelerator,
        lambda: resolve_settings(
            args,
            info,
            network.config,
            output_dir=run.output_dir,
            profile=profile,
            batch_split=batch_split,
            total_steps=schedule.total_steps,
            num_workers=train_loader.num_workers,
        ),
    )
    checkpoints = Checkpoints(
        accelerator, run.output_dir, network, optimizer, average, settings, keep=args.keep_checkpoints
    )
    checkpoints.resume(run.checkpoint, state)
    state.best_evaluation(task)  # scores that are damaged end the run now, and not when its report is written
    section = new_section(info)
    log = RunLog(accelerator, run.output_dir, settings, schedule, state, task.compared_by)

    # 7. Train: step; log; evaluate and keep the best; save
    guard = StepGuard(accelerator, network, optimizer, state, clock, info.train.records)
    publisher = Publisher(accelerator, network, checkpoints, log, info, task, section)
    model.train()
    if state.step > 0:
        rebuild_buckets(model, network)
    steps = steps_ahead(train_loader, compile_recolor(accelerator), log.data_ready)
    micro_batches, indices = next(steps, ([], []))
    clock.start()
    predictions = len(val_loader.dataset) // accelerator.num_processes + evaluation_pictures(info)
    while not (guard.stopping or schedule.is_over(state)):
        learning_rate = schedule.set_learning_rate(optimizer, state.step)
        with memory.shortage_recorded(state.step + 1):
            seed_step(args.seed, state.step, mesh.group)  # for dropout
            is_made = train_step(
                accelerator,
                model,
                optimizer,
                criterion,
                micro_batches,
                max_grad_norm=args.max_grad_norm,
                guard=guard,
                memory=memory,
            )
            state.step += 1
            average.update(state.step, is_made)
            log.end_step(len(info.train) / schedule.steps_per_epoch)
            guard.end_step(indices)
            micro_batches, indices = next(steps, ([], []))  # while the device computes
        results = guard.settle(everything=device.type == "cpu")
        clock.note(results, state.step)
        if schedule.needs_results(state.step):
            results += guard.settle(everything=True)
        log.step(results, learning_rate)
        improved = False
        if schedule.is_evaluation_step(state.step):
            is_first = not clock.has_evaluated
            with log.pause(), clock.evaluating(predictions), average.average_weights(), eager(accelerator):
                evaluation = evaluate(accelerator, model, val_loader, criterion, state.step)
                evaluation.check(info.val.records, state.best_step)
                improved = publisher.publish(evaluation, state)
            model.train()
            if is_first:
                clock.say_forecast(state.step, schedule.eval_every)
        if schedule.is_checkpoint_step(state.step) or schedule.is_over(state) or improved or guard.stopping:
            with log.pause(), clock.saving():
                state.elapsed = clock.elapsed
                checkpoints.save(state)
                if clock.measures_save:
                    checkpoints.wait()

    # 8. Finish: report, card, Hub; a line for each file that could not be written
    log.close()
    checkpoints_saved = checkpoints.wait_until_saved()
    log_saved = log.is_saved()
    all_saved = checkpoints_saved and log_saved
    if accelerator.is_main_process:
        resume = None if schedule.is_over(state) else run.resume_line(flags)
        if clock.budget and not resume:
            log.record_length()
        publisher.write_results(state, schedule, resume, [log.bottleneck()])
        finish_run(args, run.output_dir, schedule, state, resume=resume, all_saved=all_saved)
    log.tracker.finish()
    if not all_saved:
        raise WriteError(f"{run.output_dir} is incomplete: files could not be written, see the lines above")


if __name__ == "__main__":
    run_script(main)
