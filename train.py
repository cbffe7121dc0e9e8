"""Train a U-Net for semantic segmentation of images or volumes.

The flags say what is computed. Options of `accelerate launch`, or a profile (a file of them), say on which devices;
without them one GPU is used where there is one, else the CPU.

Check the data:  python train.py --dataset DATA --check-data
CPU or one GPU:  python train.py --dataset DATA --output-dir runs/cells --max-minutes 10
All GPUs:        accelerate launch --multi_gpu train.py --dataset DATA --output-dir runs/cells
By a profile:    accelerate launch --config_file accelerate_configs/fp16.yaml train.py --dataset DATA
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from data_utils.loading.loaders import build_loaders
from runtime.distributed import first_on_each_machine
from runtime.script import run_script
from tasks.step_loss import StepLoss
from train_utils.checkpoints import Checkpoints
from train_utils.compilation import not_compiled_whole
from train_utils.ema import WeightAverage
from train_utils.evaluation import evaluate
from train_utils.memory import shortage_recorded
from train_utils.optim import build_optimizer
from train_utils.run_log import RunLog
from train_utils.schedule import Schedule
from train_utils.settings.flags import parse_args
from train_utils.settings.record import record_settings
from train_utils.settings.train_settings import TrainSettings
from train_utils.start import build_network, fit_batch, launch, load_data, prepare_network, start_run
from train_utils.step import train_step, training_steps
from train_utils.step_guard import StepGuard


def main() -> None:
    """Prepare a run, train, and write its results."""
    flags = parse_args(__doc__)
    accelerator = launch(flags)  # devices, processes and precision come from the launch profile
    run = start_run(accelerator, flags)  # its folder, and the checkpoint to go on from

    # One process reads the data, however many train; `args` are the flags and what the plan chooses from the data
    args, data = load_data(accelerator, run)

    # The network is fresh, from --init-from or an encoder, or as the checkpoint has it; it normalizes by itself
    network, task = build_network(accelerator, run, args, data)

    # Every step has the same images on any launch; here they are cut into micro-batches that fit into memory
    batch_split, shapes = fit_batch(accelerator, run, args, data, network, task)

    # Batch norm over all processes, slabs, sharding and compiled blocks, as the profile asks
    criterion = prepare_network(accelerator, args, network, task, batch_split)
    optimizer = build_optimizer(
        network, args.planned_optimizer, args.learning_rate, args.weight_decay, accelerator.distributed_type
    )
    state = run.state()
    schedule = run.schedule(args, data, accelerator.num_processes, accelerator.device)
    steps = schedule.remaining_steps(state.step)
    with first_on_each_machine(accelerator):  # one process of a machine decodes for --cache
        loaders = build_loaders(
            data, network.config, shapes, batch_split, steps, num_workers=args.num_workers, device=accelerator.device
        )
    with not_compiled_whole(accelerator):
        model, optimizer, train_loader, val_loader = accelerator.prepare(network, optimizer, *loaders)
    network = accelerator.unwrap_model(model)
    average = WeightAverage(network, args.ema_decay)

    # A run that resumes must be the same one; then weights, optimizer, average and scaler are those of its checkpoint
    settings = record_settings(
        accelerator,
        args,
        data,
        network.config,
        output_dir=run.output_dir,
        batch_split=batch_split,
        total_steps=schedule.total_steps,
        num_workers=train_loader.num_workers,
    )
    checkpoints = Checkpoints(
        accelerator, run.output_dir, network, optimizer, average, settings, keep=args.keep_checkpoints
    )
    if not checkpoints.resume(run.checkpoint, state, model, is_over=schedule.is_over(state)):  # it has finished before
        return accelerator.end_training()

    log = RunLog(accelerator, network, checkpoints, schedule, state, data, task)
    with shortage_recorded(run.output_dir, settings, network, batch_split, state):
        fit(
            accelerator,
            model,
            optimizer,
            criterion,
            train_loader,
            val_loader,
            args=args,
            schedule=schedule,
            guard=StepGuard(accelerator, network, optimizer, schedule, state, data.train.records),
            average=average,
            checkpoints=checkpoints,
            log=log,
        )
    log.finish(run)


def fit(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: StepLoss,
    train_loader: DataLoader,
    val_loader: DataLoader,
    *,
    args: TrainSettings,
    schedule: Schedule,
    guard: StepGuard,
    average: WeightAverage,
    checkpoints: Checkpoints,
    log: RunLog,
) -> None:
    """Make step after step until the schedule, the clock or a signal ends the run.

    Args:
        schedule: the learning rate of each step, and after which steps the run logs, evaluates, saves and ends.
        guard: refuses a step whose loss is not finite, and learns on all processes whether one was asked to stop.
        average: the average of the weights, which is evaluated.
        log: records steps, publishes each evaluation, and saves the network if it is the best one so far.
    """
    state = log.state  # where the run stands, part of each checkpoint
    clock = schedule.clock  # of a run with --max-minutes
    images_per_step = len(train_loader.dataset) / schedule.steps_per_epoch  # the last step of an epoch may have fewer
    model.train()
    for micro_batches, indices in training_steps(accelerator, train_loader, log.data_ready):  # one optimizer step
        if guard.run_ends:
            break
        learning_rate = schedule.set_learning_rate(optimizer, state.step)
        is_made = train_step(accelerator, model, optimizer, criterion, micro_batches, args=args, guard=guard)
        state.step += 1
        average.update(state.step, is_made)
        # a GPU still computes this step: the guard keeps its result, and the log gets those of steps that have ended
        log.end_step(images_per_step)
        guard.end_step(indices)
        log.step(guard.results(), learning_rate)

        is_best = False
        if schedule.is_evaluation_step(state.step):
            with log.meter.pause(), clock.evaluating(accelerator), average.average_weights():
                evaluation = evaluate(accelerator, model, val_loader, criterion, state.step)
                is_best = log.publish(evaluation)
        if schedule.is_checkpoint_step(state.step) or is_best or guard.run_ends:
            with log.meter.pause(), clock.saving(state):
                checkpoints.save(state, waits=clock.measures_save)


if __name__ == "__main__":
    run_script(main)
