"""Train a U-Net for semantic segmentation; the launch profile says where, the flags say what.

A laptop:        accelerate launch --config_file accelerate_configs/cpu.yaml train.py --base-channels 8
One GPU:         accelerate launch train.py --dataset DATA
All GPUs:        accelerate launch --multi_gpu train.py --dataset DATA
Half precision:  accelerate launch --config_file accelerate_configs/bf16.yaml train.py --dataset DATA
Many nodes:      accelerate launch --config_file accelerate_configs/multi_node.yaml --machine_rank N train.py
"""

import argparse
import math
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.utils import gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader

from data_utils.augment import STRENGTHS, augment
from data_utils.batching import padded_shapes
from data_utils.check import check_data
from data_utils.errors import DataError
from data_utils.loaders import evaluation_loader, training_loader
from data_utils.pictures import sample_panels, save_pictures
from data_utils.survey import load_data
from train_utils.arguments import (
    Arguments,
    auto_or,
    count,
    fraction,
    non_negative_float,
    positive_float,
    positive_int,
    run_script,
)
from train_utils.checkpoints import replaced_folder
from train_utils.launch import LaunchError, check_launch, check_processes, describe_profile
from train_utils.memory import split_batch
from train_utils.meter import Meter
from train_utils.optimization import SCHEDULES, build_optimizer, class_weight_tensor, learning_rate
from train_utils.processes import on_main
from train_utils.progress import progress_bar, say, track
from train_utils.tracking import RunLog, default_workers, describe_run, evaluation_record, new_output_dir
from unet import ImageError, Predictor, Preprocess, UNet, UNetConfig
from unet.blocks import NORMS
from unet.inference import batch_size_of, resize_logits
from unet.losses import LOSSES, SegmentationLoss
from unet.metrics import confusion_matrix, format_table, scores, summary_line
from unet.preprocess import read_image

USER_ERRORS = (DataError, ImageError, LaunchError)
DATA_OPTIONS = ["train_split", "val_split", "val_fraction", "val_group", "image_column", "mask_column", "mask_suffix"]
DATA_OPTIONS += ["dataset_config", "allow_unpaired", "classes", "ignore_index", "seed", "streaming"]
PICTURES = 8  # validation images shown at each evaluation and written at the end


def parse_args() -> argparse.Namespace:
    """One line for each flag. Precision, device and number of processes belong to the launch profile alone."""
    parser = Arguments(description=__doc__.splitlines()[0])
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", default="shapes", help="`shapes` (generated), a folder, parquet files, a Hub id")
    data.add_argument("--dataset-config", help="configuration name of a Hub data set")
    data.add_argument("--train-split", help="default: train")
    data.add_argument("--val-split", help="default: val or validation, else --val-fraction of the training images")
    data.add_argument("--val-fraction", type=fraction, default=0.1, help="share of the training images held out")
    data.add_argument(
        "--val-group", metavar="REGEX", help="hold out whole groups: names that agree in its first bracket"
    )
    data.add_argument("--image-column", help="default: image")
    data.add_argument("--mask-column", help="default: mask, label or annotation")
    data.add_argument("--mask-suffix", help="masks are named <stem><suffix>.<ext>; default: detected")
    data.add_argument("--allow-unpaired", action="store_true", help="leave out images and masks without partner")
    data.add_argument("--streaming", action="store_true", help="read parquet files as they come; always from a URL")
    data.add_argument("--cache", action="store_true", help="keep decoded, resized images on disk")
    data.add_argument("--check-data", action="store_true", help="read every file, report all problems, exit")
    data.add_argument("--on-bad-sample", choices=("error", "skip"), default="error", help="skip: list it and go on")
    data.add_argument("--classes", help="JSON file, or 0=background,255=car, or #804080=road,...; default: found")
    data.add_argument("--ignore-index", help="mask value or colour that counts nowhere; default: 255 if it is no class")
    data.add_argument("--scale", type=positive_float, default=1.0, help="resize factor")
    data.add_argument("--image-size", type=positive_int, nargs=2, metavar=("H", "W"), help="fixed size of all images")
    data.add_argument("--crop-size", type=positive_int, nargs=2, metavar=("H", "W"), help="random training crop")
    data.add_argument("--augment", choices=STRENGTHS, default="basic", help="training augmentation")
    data.add_argument("--num-workers", type=count, help="loader processes; default: this process's share of the CPUs")

    model = parser.add_argument_group("model (the defaults are the original U-Net)")
    model.add_argument("--base-channels", type=positive_int, default=64, help="width of the first level")
    model.add_argument("--depth", type=positive_int, default=4, help="number of poolings")
    model.add_argument("--norm", choices=NORMS, default="batch", help="normalisation")
    model.add_argument("--upsample", choices=("transpose", "bilinear"), default="transpose", help="way up")
    model.add_argument("--dropout", type=fraction, default=0.0, help="at the end of the contracting path")
    model.add_argument("--sync-batchnorm", choices=("auto", "on", "off"), default="auto", help="on several GPUs")

    optim = parser.add_argument_group("optimization")
    optim.add_argument(
        "--batch-size", type=positive_int, default=4, help="images in one optimizer step, all processes together"
    )
    optim.add_argument(
        "--micro-batch-size", type=positive_int, help="images in one forward pass; default: what the batch gives"
    )
    optim.add_argument("--gradient-accumulation-steps", type=positive_int, help="default: the profile's, else derived")
    optim.add_argument("--epochs", type=positive_int, default=10, help="passes over the training images")
    optim.add_argument("--max-steps", type=positive_int, help="optimizer steps, instead of --epochs")
    optim.add_argument("--patience", type=positive_int, help="stop after so many evaluations without a better mean IoU")
    optim.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="SGD has momentum 0.9")
    optim.add_argument("--learning-rate", type=positive_float, default=1e-3, help="peak learning rate")
    optim.add_argument("--weight-decay", type=non_negative_float, default=1e-2, help="on convolution weights only")
    optim.add_argument("--schedule", choices=SCHEDULES, default="cosine", help="of the learning rate")
    optim.add_argument("--warmup-steps", type=count, help="linear warm-up; default: 5%% of the run")
    optim.add_argument("--max-grad-norm", type=non_negative_float, default=1.0, help="gradient clipping; 0 is off")
    optim.add_argument("--loss", choices=LOSSES, default="ce+dice", help="training loss")
    optim.add_argument(
        "--class-weights",
        type=auto_or(positive_float),
        nargs="+",
        help="`auto` (inverse frequency) or one number for each class",
    )

    run = parser.add_argument_group("run")
    run.add_argument("--output-dir", type=Path, help="default: runs/<time>")
    run.add_argument("--eval-every", type=count, default=0, metavar="STEPS", help="0: each epoch")
    run.add_argument("--log-every", type=count, default=10, metavar="STEPS", help="0: each epoch")
    run.add_argument("--tracker", default="tensorboard", help="any tracker that accelerate knows, or none")
    run.add_argument("--seed", type=count, default=0, help="of weights, order and augmentation")
    run.add_argument("--deterministic", action="store_true", help="deterministic kernels, slower on GPUs")
    args = parser.parse_args()
    if args.image_size and args.scale != 1:
        parser.error("--image-size and --scale both set the size; give one of them")
    return args


@torch.inference_mode()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader, criterion: SegmentationLoss) -> tuple:
    """Confusion matrix and loss over the whole validation set, at the masks' own sizes, exact on any world size."""
    model.eval()
    classes = criterion.num_classes
    matrix = torch.zeros(classes, classes, dtype=torch.int64, device=accelerator.device)
    sums = counts = torch.zeros(2, device=accelerator.device)
    for batch in track(loader, len(loader), "evaluating", unit="batch", show=accelerator.is_main_process):
        for logits, mask in zip(model(batch["images"]), batch["masks"], strict=True):
            logits, mask = resize_logits(logits[None], mask.shape), mask[None].long()
            matrix += confusion_matrix(logits.argmax(dim=1), mask, classes, criterion.ignore_index)
            counts = counts + criterion.counts(mask)
            sums = sums + criterion.sums(logits, mask).to(counts.dtype)
    model.train()
    matrix, sums, counts = (accelerator.reduce(value, "sum") for value in (matrix, sums, counts))
    return matrix.cpu(), (sums / counts.clamp_min(1)).sum().item()


def main() -> None:
    args = parse_args()
    check_launch()
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        log_with=None if args.tracker == "none" else args.tracker,
        project_dir=".",  # named below: all processes must agree on it
        kwargs_handlers=[
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),
            InitProcessGroupKwargs(timeout=timedelta(hours=1)),  # the main process alone reads a large data set
        ],
    )
    check_processes(accelerator)
    profile = describe_profile(accelerator)
    accelerator.gradient_accumulation_steps = 1  # noted above; `backward` would divide by it, the loss already counts
    set_seed(args.seed, deterministic=args.deterministic)
    world_size, is_main = accelerator.num_processes, accelerator.is_main_process
    micro_batch_size, accumulation = split_batch(
        args.batch_size,
        world_size,
        args.micro_batch_size,
        args.gradient_accumulation_steps,
        profile.get("gradient_accumulation_steps"),
    )
    accelerator.print("profile: " + ", ".join(f"{key} {value}" for key, value in profile.items()))
    accelerator.print(
        f"batch: {args.batch_size} images a step = {micro_batch_size} in a micro-batch x {world_size} processes"
        f" x {accumulation} accumulation steps"
    )
    options = {name: getattr(args, name) for name in DATA_OPTIONS} | {"errors": (DataError, ImageError)}
    if args.check_data:
        report, problems = on_main(
            accelerator, lambda: check_data(args.dataset, read_image, track, **options), DataError
        )
        accelerator.print(report)
        accelerator.wait_for_everyone()  # a launcher ends all processes when one has ended
        accelerator.end_training()
        raise SystemExit(problems > 0)
    args.output_dir = on_main(accelerator, lambda: new_output_dir(args.output_dir), *USER_ERRORS)
    accelerator.project_configuration.logging_dir = str(args.output_dir)

    options |= {name: getattr(args, name) for name in ("on_bad_sample", "image_size", "crop_size")}
    # one process reads, however many train
    data = on_main(accelerator, lambda: load_data(args.dataset, read_image, track, **options), *USER_ERRORS)
    num_classes = len(data.classes.names)
    accelerator.print(f"data: {data}")
    preprocess = Preprocess(
        image_size=args.image_size,
        scale=args.scale,
        mean=data.mean,
        std=data.std,
        class_names=data.classes.names,
        class_values=data.classes.values,
        ignore_value=data.classes.ignore_value,
    )
    train_shapes, val_shapes = (
        np.array([preprocess.target_size(*size) for size in sizes.tolist()])
        for sizes in (data.train_sizes, data.val_sizes)
    )
    if args.crop_size:
        train_shapes[:] = args.crop_size
    # a smaller image would leave a single value at the lowest level, which batch norm cannot normalise in training
    train_shapes = np.maximum(padded_shapes(train_shapes), 2 ** (args.depth + 1))

    architecture = (args.base_channels, args.depth, args.norm, args.upsample, args.dropout)
    model = UNet(UNetConfig(data.channels, num_classes, *architecture, preprocess)).to(
        memory_format=torch.channels_last
    )
    if args.sync_batchnorm == "on" or (args.sync_batchnorm == "auto" and world_size > 1 and torch.cuda.is_available()):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    accelerator.print(f"model: U-Net, {sum(p.numel() for p in model.parameters()):,} parameters")
    weights = class_weight_tensor(args.class_weights, data.class_pixels)
    criterion = SegmentationLoss(num_classes, args.loss, weights).to(accelerator.device)
    optimizer = build_optimizer(model, args.optimizer, args.learning_rate, args.weight_decay)

    steps_per_epoch = math.ceil(len(data.train) / args.batch_size)
    total_steps = args.max_steps or args.epochs * steps_per_epoch
    warmup_steps = total_steps // 20 if args.warmup_steps is None else args.warmup_steps
    eval_every, log_every = args.eval_every or steps_per_epoch, args.log_every or steps_per_epoch
    workers = default_workers(accelerator.device) if args.num_workers is None else args.num_workers

    def read(source: object, name: str) -> np.ndarray:
        return preprocess.image(source, data.channels, name)

    size_key = str((preprocess.image_size, preprocess.scale, data.channels))
    common = {"world_size": world_size, "num_workers": workers, "cache": (size_key, track) if args.cache else None}
    with accelerator.local_main_process_first():  # one process of a machine decodes for --cache
        train_loader = training_loader(
            data,
            read,
            train_shapes,
            batch_size=args.batch_size,
            micro_batch_size=micro_batch_size,
            crop_size=args.crop_size,
            seed=args.seed,
            steps=range(total_steps),
            **common,
        )
        val_loader = evaluation_loader(data, read, val_shapes, batch_size_of=batch_size_of, **common)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    settings = {"flags": vars(args), "profile": profile, "micro_batch_size": micro_batch_size} | {
        "gradient_accumulation_steps": accumulation,
        "total_steps": total_steps,
        "num_workers": workers,
        "run": describe_run(),
    }
    run_log = RunLog(accelerator, args.output_dir, args.tracker, settings)
    fill, std = torch.tensor([data.mean, data.std], device=accelerator.device)
    best, best_matrix, evaluations_since_best = -1.0, None, 0
    skipped: set[str] = set()  # bad samples, with --on-bad-sample skip
    meter, running_loss, loss_steps = Meter(), torch.zeros((), device=accelerator.device), 0
    model.train()
    batches = iter(train_loader)
    bar = progress_bar(total_steps, "training", "step", show=is_main)
    for step in range(1, total_steps + 1):
        meter.start_step()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                step - 1, total_steps, peak=args.learning_rate, warmup_steps=warmup_steps, schedule=args.schedule
            )
        # the whole step's micro-batches first: the loss divides by what is in all of them, on all processes
        raw = [next(batches) for _ in range(accumulation)]
        skipped.update(problem for batch in raw for problem in batch.pop("problems"))
        meter.data_ready()
        micro_batches = [augment(**batch, strength=args.augment, seed=args.seed, fill=fill, std=std) for batch in raw]
        counts = accelerator.reduce(sum(criterion.counts(masks) for _, masks in micro_batches), "sum")
        for number, (images, masks) in enumerate(micro_batches, start=1):
            with nullcontext() if number == accumulation else accelerator.no_sync(model):
                loss = criterion(model(images.contiguous(memory_format=torch.channels_last)), masks, counts)
                accelerator.backward(loss * world_size)  # DDP averages over the processes, the loss is their sum
            running_loss += loss.detach()
        grad_norm = accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        loss_steps += 1
        meter.end_step(len(data.train) / steps_per_epoch)
        bar.update()

        if step % log_every == 0 or step == total_steps:
            # reading the loss is a sync point with the device
            values = {"train/loss": accelerator.reduce(running_loss, "sum").item() / loss_steps}
            values |= {"train/lr": optimizer.param_groups[0]["lr"], "train/grad_norm": float(grad_norm)}
            values |= meter.summary()
            run_log.scalars(step, step / steps_per_epoch, values)
            running_loss.zero_()
            loss_steps = 0
            speed = values.get("perf/images_per_second", 0)
            bar.set_postfix_str(f"loss {values['train/loss']:.3f}, best IoU {max(best, 0):.3f}, {speed:.1f} images/s")

        if step % eval_every == 0 or step == total_steps:
            matrix, eval_loss = evaluate(accelerator, model, val_loader, criterion)
            result = scores(matrix)
            run_log.scalars(step, step / steps_per_epoch, evaluation_record(result, eval_loss, data.classes.names))
            improved = (result["mean_iou"] or 0.0) > best
            evaluations_since_best = 0 if improved else evaluations_since_best + 1
            if improved:
                best, best_matrix = result["mean_iou"] or 0.0, matrix
            if is_main:
                network = accelerator.unwrap_model(model, keep_torch_compile=False).eval()
                with accelerator.autocast():
                    predict = Predictor(network).mask
                    run_log.pictures(step, sample_panels(data, read_image, predict, PICTURES))
                if improved:
                    with replaced_folder(args.output_dir / "model") as folder:
                        network.save_pretrained(folder)
                network.train()
                saved = " (best so far, saved)" if improved else ""
                say(f"step {step}: {summary_line(result, data.classes.names)}{saved}")
            if args.patience and evaluations_since_best >= args.patience:
                say(f"step {step}: no better mean IoU in {args.patience} evaluations, stopping", show=is_main)
                break
    bar.close()
    run_log.close()
    skipped.update(gather_object(sorted(skipped)))
    if skipped:
        accelerator.print(f"{len(skipped)} bad samples were skipped in training: {'; '.join(sorted(skipped)[:20])}")

    if is_main:
        predictor = Predictor.from_pretrained(str(args.output_dir / "model"), accelerator.device)
        with accelerator.autocast():
            panels = sample_panels(data, read_image, predictor.mask, PICTURES)
        save_pictures(args.output_dir / "predictions", panels)
        print(format_table(best_matrix, data.classes.names))
        print(f"best model in {args.output_dir / 'model'}, pictures in {args.output_dir / 'predictions'}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    run_script(main, *USER_ERRORS)
