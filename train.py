"""Train a U-Net for semantic segmentation; the launch profile says where, the flags say what.

A laptop:        accelerate launch --config_file accelerate_configs/cpu.yaml train.py --base-channels 8
One GPU:         accelerate launch train.py --dataset DATA
All GPUs:        accelerate launch --multi_gpu train.py --dataset DATA
Half precision:  accelerate launch --config_file accelerate_configs/bf16.yaml train.py --dataset DATA
Many nodes:      accelerate launch --config_file accelerate_configs/multi_node.yaml --machine_rank N train.py
"""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

from data_utils.augment import augment
from data_utils.batching import EvaluationSampler, TrainingSampler
from data_utils.check import check_data
from runtime.errors import DataError
from data_utils.large import Crops
from data_utils.loaders import build_loaders
from data_utils.pictures import class_colors, sample_panels, save_pictures, worst_and_best
from data_utils.survey import Data, load_data
from train_flags import parse_args
from runtime.memory import keep_freed_memory
from runtime.cli import run_script
from train_utils.batchnorm import synchronized
from train_utils.best_model import BestModel
from train_utils.charts import matrix_picture
from train_utils.checkpoints import Checkpoints, RunState, compare_settings, find_checkpoint
from train_utils.ema import WeightAverage
from runtime.files import WriteError, tolerated
from train_utils.flops import peak_teraflops, training_flops
from train_utils.guard import StepGuard, report_skipped
from train_utils.hub import check_token, push_to_hub
from runtime.errors import LaunchError
from runtime.launch import check_launch, check_processes, describe_profile, distributed_options
from train_utils.memory import preflight, split_batch
from train_utils.meter import LossWindow, Meter, brief
from train_utils.model_card import model_card
from train_utils.optimization import build_optimizer, class_weight_tensor, learning_rate
from runtime.distributed import first_on_each_machine, on_main, seed_step
from runtime.console import progress_bar, say, track
from train_utils.report import write_report
from train_utils.sharding import gradient_norm, prepare_sharding, share_statistics, whole_network
from train_utils.shortage import MemoryShortage, memory_limit, shortage_recorded
from runtime.signals import StopRequest
from train_utils.trace import StepTrace
from train_utils.tracking import RunLog, available_tracker, default_workers, describe_run, evaluation_record, run_dir
from unet import ImageError, ModelError, Predictor, Preprocess, UNet, UNetConfig
from unet.convert import ARCHITECTURE, copy_weights, input_values, starting_point
from unet.inference import batch_sizes
from unet.logits import most_likely, resize_logits
from unet.losses import SegmentationLoss
from unet.metrics import confusion_matrix, format_table, image_iou, scores, summary_line
from unet.preprocess import read_image
from unet.windows import network_crop, open_rows

USER_ERRORS = (DataError, ImageError, LaunchError, MemoryShortage, ModelError, WriteError)
DATA_OPTIONS = ["train_split", "val_split", "val_fraction", "val_group", "image_column", "mask_column", "mask_suffix"]
DATA_OPTIONS += ["dataset_config", "allow_unpaired", "classes", "ignore_index", "seed", "streaming"]
PICTURES = 8  # validation images shown at each evaluation and written at the end


@torch.inference_mode()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader, criterion: SegmentationLoss) -> tuple:
    """Confusion matrix, loss and each image's IoU, at the masks' own sizes, exact on any world size."""
    model.eval()
    share_statistics(accelerator, model)
    classes = criterion.num_classes
    matrix = torch.zeros(classes, classes, dtype=torch.int64, device=accelerator.device)
    sums = counts = torch.zeros(2, device=accelerator.device)
    image_scores = torch.zeros(len(loader.dataset), device=accelerator.device)
    for batch in track(loader, len(loader), "evaluating", unit="batch"):
        for logits, mask, index in zip(model(batch["images"]), batch["masks"], batch["indices"], strict=True):
            logits, mask = resize_logits(logits[None], mask.shape), mask[None].long()
            counted = confusion_matrix(most_likely(logits, dim=1), mask, classes, criterion.ignore_index)
            matrix += counted
            image_scores[index] += image_iou(counted)  # nothing from a filler
            counts = counts + criterion.counts(mask)
            sums = sums + criterion.sums(logits, mask).to(counts.dtype)
    model.train()
    matrix, sums, counts, image_scores = (accelerator.reduce(x, "sum") for x in (matrix, sums, counts, image_scores))
    return matrix.cpu(), (sums / counts.clamp_min(1)).sum().item(), image_scores.tolist()


def sample_pictures(accelerator: Accelerator, network: UNet, data: Data) -> dict[str, np.ndarray]:
    """image | truth | prediction | errors of some validation images, by name; leaves the network in evaluation mode."""
    with accelerator.autocast():
        return sample_panels(data, read_image, Predictor(network).mask, PICTURES)


def main() -> None:
    args = parse_args(__doc__.splitlines()[0])
    check_launch()
    args.tracker = available_tracker(args.tracker)
    check_token(args.push_to_hub)
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        log_with=None if args.tracker == "none" else args.tracker,
        project_dir=".",  # named below: all processes must agree on it
        kwargs_handlers=distributed_options(args.ddp_comm_hook),
    )
    check_processes(accelerator, args.ddp_comm_hook)
    keep_freed_memory(accelerator.device)
    profile = describe_profile(accelerator)
    accelerator.gradient_accumulation_steps = 1  # noted above; `backward` would divide by it, the loss already counts
    set_seed(args.seed, deterministic=args.deterministic)
    world_size, is_main = accelerator.num_processes, accelerator.is_main_process
    options = {name: getattr(args, name) for name in DATA_OPTIONS} | {"errors": (DataError, ImageError)}
    options["open_rows"] = open_rows if args.crop_size else None  # what is too large to be decoded whole for a crop
    if args.check_data:
        look = partial(check_data, args.dataset, read_image, track, **options)
        report, problems = on_main(accelerator, look, *USER_ERRORS)
        accelerator.print(report)
        accelerator.wait_for_everyone()  # a launcher ends all processes when one has ended
        accelerator.end_training()
        raise SystemExit(problems > 0)
    args.output_dir = on_main(accelerator, lambda: run_dir(args.output_dir, args.resume), *USER_ERRORS)
    accelerator.project_configuration.logging_dir = str(args.output_dir)
    search = partial(find_checkpoint, args.resume, args.output_dir / "checkpoints")
    checkpoint, saved, passed_over = on_main(accelerator, search, *USER_ERRORS)
    asked = {"micro_batch_size": None if args.micro_batch_size == "auto" else args.micro_batch_size}
    asked["accumulation"] = args.gradient_accumulation_steps
    asked["profile_accumulation"] = profile.get("gradient_accumulation_steps")
    learnt, recompute = on_main(accelerator, lambda: memory_limit(args.output_dir))
    saved_size = learnt or saved.get("micro_batch_size")
    split = split_batch(args.batch_size, world_size, **asked, saved_size=saved_size)
    accelerator.print("profile: " + ", ".join(f"{key} {value}" for key, value in profile.items()))

    flags = {name: getattr(args, name) for name in ARCHITECTURE}
    pretrained, architecture = on_main(accelerator, lambda: starting_point(args.init_from, **flags), *USER_ERRORS)
    vars(args).update(architecture)
    options |= {name: getattr(args, name) for name in ("on_bad_sample", "image_size", "crop_size")}
    # one process reads, however many train
    data = on_main(accelerator, lambda: load_data(args.dataset, read_image, track, **options), *USER_ERRORS)
    names, num_classes = data.classes.names, len(data.classes.names)
    accelerator.print("\n".join([f"data: {data}", *data.doubts]))
    values = input_values(pretrained, data.channels) or Preprocess(
        mean=data.mean, std=data.std, pixel_types=data.pixel_types
    )
    meaning = dict(zip(("class_names", "class_values", "ignore_value"), vars(data.classes).values(), strict=True))
    preprocess = replace(values, image_size=args.image_size, scale=args.scale, **meaning)
    # a smaller image would leave a single value at the lowest level, which batch norm cannot normalise in training
    train_shapes, val_shapes = data.shapes(preprocess.target_size, args.crop_size, smallest=2 ** (args.depth + 1))

    model = UNet(UNetConfig(data.channels, num_classes, **architecture, preprocess=preprocess))
    if pretrained is not None:
        accelerator.print(f"start: {copy_weights(pretrained, model)} from {args.init_from}")
    model.to(memory_format=torch.channels_last)
    accelerator.print(f"model: U-Net, {sum(p.numel() for p in model.parameters()):,} parameters")
    weights = class_weight_tensor(args.class_weights, data.class_pixels)
    criterion = SegmentationLoss(num_classes, args.loss, weights).to(accelerator.device)
    model.activation_checkpointing = args.activation_checkpointing or recompute
    height, width = train_shapes.max(axis=0).tolist()
    copies = {"adamw": 3, "sgd": 2}[args.optimizer] + (args.ema_decay > 0)  # gradients, moments, average
    flops = training_flops(model, data.channels) * train_shapes.prod(axis=1).mean()
    shape, fixed = (data.channels, height, width), any(asked.values())
    split = preflight(accelerator, model, criterion, shape, split, copies, fixed)
    accelerator.print(f"batch: {split}")
    model = synchronized(accelerator, model, args.sync_batchnorm, split.micro_batch_size, args.batch_size)
    prepare_sharding(accelerator, model, split, args.max_grad_norm)
    optimizer = build_optimizer(model, args.optimizer, args.learning_rate, args.weight_decay)

    steps_per_epoch = math.ceil(len(data.train) / args.batch_size)
    total_steps = args.max_steps or args.epochs * steps_per_epoch
    warmup_steps = total_steps // 20 if args.warmup_steps is None else args.warmup_steps
    rhythm = (args.eval_every, args.log_every, args.checkpoint_every)
    eval_every, log_every, checkpoint_every = (steps or steps_per_epoch for steps in rhythm)
    state = RunState(**saved.get("run", {}))
    workers = default_workers(accelerator.device) if args.num_workers is None else args.num_workers

    def read(source: Any, name: str) -> np.ndarray:
        return preprocess.image(source, data.channels, name)

    steps = range(state.step, total_steps)
    sampler = TrainingSampler(train_shapes, *split, args.seed, steps, data.order)
    val_sampler = EvaluationSampler(val_shapes, batch_sizes(accelerator.device), world_size)
    seen = (preprocess.image_size, preprocess.scale, preprocess.detect_unit_range, preprocess.draft, data.channels)
    cache = (str(seen), track) if args.cache else None
    read_crop = partial(network_crop, preprocess=preprocess, channels=data.channels)
    crops = Crops(open_rows, preprocess.target_size, read_crop)
    with first_on_each_machine(accelerator):  # one process of a machine decodes for --cache
        loaders = build_loaders(data, read, sampler, val_sampler, args.crop_size, workers, cache, crops)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, *loaders)

    network = accelerator.unwrap_model(model, keep_torch_compile=False)
    average = WeightAverage(network, args.ema_decay)
    identity: dict[str, Any] = {"classes": [*map(str, data.classes.values)], "in_channels": data.channels}
    identity |= architecture
    identity |= {"data set": data.fingerprint(), "batch size": args.batch_size, "seed": args.seed}
    identity["optimizer"] = args.optimizer  # its state is of no use to another
    settings = {"flags": json.loads(json.dumps(vars(args), default=str)), "profile": profile, "identity": identity}
    settings |= dict(total_steps=total_steps, micro_batch_size=split.micro_batch_size, accumulation=split.accumulation)
    settings |= {"num_workers": workers, "run": describe_run()}

    # --resume: 1. what gives the saved state its meaning must be the same, other flags that changed are named;
    # 2. weights, optimizer, averages and fp16 scaler are loaded. Learning rate, order of the images, augmentation and
    # dropout are functions of the step: there is nothing of them to load. 3. Log and tracker go on behind that step.
    folder = args.output_dir / "checkpoints"
    checkpoints = Checkpoints(accelerator, folder, args.keep_checkpoints, network, optimizer, average, settings)
    if checkpoint:
        for note in [*passed_over, *compare_settings(saved, settings)]:
            say(note)
        checkpoints.restore(checkpoint, saved)
        if not (args.output_dir / "model").exists():  # resumed into another folder: the best of this one is yet to come
            state.best, state.evaluations_since_best = -1.0, 0
        say(f"resumed from {checkpoint}, at step {state.step} of {total_steps}")
    else:
        checkpoints.save(state, None)
    best_model = BestModel(args.output_dir / "model")
    run_log = RunLog(accelerator, args.output_dir, args.tracker, settings, state.step)

    stop, guard = StopRequest(accelerator), StepGuard(accelerator, network, state.skipped)
    skipped: set[str] = set()
    meter = Meter(accelerator, model, flops, peak_teraflops(accelerator, str(profile["mixed_precision"])))
    window = LossWindow(accelerator, **state.window)
    trace = StepTrace(accelerator, args.output_dir / "traces", args.trace_steps)
    fill, std = torch.tensor([data.mean, data.std], device=accelerator.device)
    model.train()
    batches = iter(train_loader)
    bar = progress_bar(total_steps, "training", "step", initial=state.step)
    progress, bottleneck, stopping = "", None, stop.agreed()
    while state.step < total_steps and not stopping:
        if args.patience and state.evaluations_since_best >= args.patience:
            say(f"no better mean IoU in {args.patience} evaluations, stopping at step {state.step}")
            break
        meter.start_step()
        lr = learning_rate(state.step, total_steps, args.learning_rate, warmup_steps, args.schedule)
        for group in optimizer.param_groups:
            group["lr"] = lr
        # the whole step's micro-batches first: the loss divides by what is in all of them, on all processes
        raw = [next(batches) for _ in range(split.accumulation)]
        skipped.update(problem for batch in raw for problem in batch.pop("problems"))
        meter.data_ready()
        with shortage_recorded(args.output_dir, network, split, fixed, state.step + 1):
            micro_batches = [
                augment(**batch, strength=args.augment, seed=args.seed, fill=fill, std=std) for batch in raw
            ]
            counts = sum(criterion.counts(masks) for _, masks in micro_batches)
            with meter.communicating():
                counts = accelerator.reduce(counts, "sum")
            guard.begin_step()
            seed_step(args.seed, state.step, accelerator.process_index)  # for dropout
            step_loss = 0.0
            for number, (images, masks) in enumerate(micro_batches, start=1):
                accelerator.sync_gradients = number == split.accumulation
                with nullcontext() if accelerator.sync_gradients else accelerator.no_sync(model):
                    loss = criterion(model(images.contiguous(memory_format=torch.channels_last)), masks, counts)
                    # `backward` divides by the steps of DeepSpeed, 1 elsewhere; the processes' gradients are averaged
                    accelerator.backward(loss * world_size * accelerator.gradient_accumulation_steps)
                step_loss += loss.detach()
            # a sync point with the device: the host must know whether to make the step
            grad_norm = gradient_norm(accelerator, model, args.max_grad_norm or math.inf)
            state.step += 1
            if guard.accepts(grad_norm):
                optimizer.step()
                average.update(state.step)
                window.add(step_loss)
            else:
                guard.refuse(state.step, [data.train[index]["name"] for batch in raw for _, index in batch["keys"]])
        optimizer.zero_grad()
        meter.end_step(len(data.train) / steps_per_epoch)
        trace.step()

        epoch = state.step / steps_per_epoch
        if state.step % log_every == 0 or state.step == total_steps:
            record = {"train/loss": window.mean(), "train/lr": lr, "train/grad_norm": grad_norm}
            record |= meter.summary() | {"train/skipped_steps": guard.skipped}
            run_log.scalars(state.step, epoch, record)
            progress = f"epoch {epoch:.1f}, {brief(record)}"
            if bottleneck is None and (bottleneck := meter.bottleneck(workers, args.cache)):
                say(bottleneck)

        score, improved = None, False
        if state.step % eval_every == 0 or state.step == total_steps:
            with average.applied():
                matrix, eval_loss, image_scores = evaluate(accelerator, model, val_loader, criterion)
                result = scores(matrix)
                run_log.scalars(state.step, epoch, evaluation_record(result, eval_loss, names))
                score = result["mean_iou"] or 0.0
                improved, state.evaluations_since_best = score > state.best, state.evaluations_since_best + 1
                if improved:
                    state.best, state.best_step, state.evaluations_since_best = score, state.step, 0
                    state.best_matrix, state.best_images = matrix.tolist(), image_scores
                whole = whole_network(accelerator, network, lambda: UNet(network.config))
                if is_main:
                    samples = sample_pictures(accelerator, whole, data)
                    shown = {f"pictures/{name}": picture for name, picture in samples.items()}
                    shown["eval/confusion_matrix"] = matrix_picture(matrix.numpy(), names)
                    run_log.pictures(state.step, shown)
                    mark = ""
                    if improved:
                        measured = {"step": state.step, "names": names, "matrix": matrix, "result": result}
                        is_saved = best_model.save(whole, model_card(settings, **measured))
                        mark = " (best so far, saved)" if is_saved else " (best so far)"
                    say(f"step {state.step}: {summary_line(result, names)}{mark}")
            model.train()
        bar.set_postfix_str(progress + (f", best IoU {state.best:.3f}" if state.best >= 0 else ""), refresh=False)
        bar.update()
        stopping = stop.agreed()
        if state.step % checkpoint_every == 0 or state.step == total_steps or improved or stopping:
            state.window, state.skipped = window.saved(), guard.skipped
            # a best model that the disk refuses is tried again, before a checkpoint tells of it
            checkpoints.save(state if best_model.is_saved() else replace(state, best=-1.0), score)
    bar.close()
    trace.close()
    all_saved = all((best_model.is_saved(), checkpoints.wait(), run_log.is_saved()))
    report_skipped(accelerator, skipped)

    if is_main:
        bottleneck = meter.bottleneck(workers, args.cache)
        about: dict[str, Any] = {"names": names, "colors": class_colors(data.classes.values), "bottleneck": bottleneck}
        if state.best >= 0 and best_model.is_saved():
            best = UNet.from_pretrained(args.output_dir / "model").to(accelerator.device)
            with tolerated("predictions/"):
                save_pictures(args.output_dir / "predictions", sample_pictures(accelerator, best, data))
            with accelerator.autocast():
                views = worst_and_best(data, state.best_images, read_image, Predictor(best).mask, PICTURES)
            matrix = torch.tensor(state.best_matrix)
            about |= {"step": state.best_step, "matrix": matrix, "result": scores(matrix), "pictures": views}
            print(format_table(matrix, names))
            print(f"best model in {args.output_dir / 'model'}, report in {args.output_dir / 'report.html'}")
        with tolerated("report.html"):
            write_report(args.output_dir, **about)
        if bottleneck:
            print(bottleneck)
        if stopping and state.step < total_steps:
            rest = "all is saved, go on" if all_saved else "what is saved goes on"
            print(f"stopped after step {state.step} of {total_steps}; {rest} with --resume auto")
        elif args.push_to_hub and best_model.is_saved():
            push_to_hub(args.output_dir / "model", args.push_to_hub)
    run_log.finish()
    if not all_saved:
        raise WriteError(f"not all of this run is in {args.output_dir}: see above what could not be written")


if __name__ == "__main__":
    run_script(main, *USER_ERRORS)
