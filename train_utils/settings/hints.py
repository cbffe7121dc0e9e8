"""Flags of other programs, and the flags of train.py to type instead."""

from runtime.cli import LAUNCH_HINTS

HABITS = {  # the text to type here -> flags of other programs with this meaning, without their dashes
    "did you mean --dataset DATA, a folder that holds images/ and masks/?": (
        "data data-dir data-path data-root dataset-dir root path source images masks image-dir mask-dir img-dir"
        " images-dir masks-dir labels train-dir train-data val-dir input i"
    ),
    "did you mean --output-dir runs/NAME?": "name run-name exp-name exp experiment experiment-name",
    "settings are flags; --like RUN.json repeats a recorded run": "config cfg hyp yaml",
    "the network is a U-Net: --encoder chooses a pretrained encoder, --base-channels and --depth its size": (
        "model arch architecture net network model-name"
    ),
    "--encoder lite0 is a pretrained encoder (docs/encoders.md), --init-from a model to start from": (
        "pretrained imagenet backbone encoder-name"
    ),
    "it is found in the data; see --classes for the names of classes": (
        "num-classes n-classes nc in-channels channels num-channels"
    ),
    "--init-from MODEL starts from a model, --resume auto continues the run in --output-dir": (
        "weights checkpoint ckpt load f model-path"
    ),
    "did you mean --image-size H W, --scale FACTOR or --crop-size H W?": (
        "imgsz img-size img size input-size resize resolution width"
    ),
    "did you mean --learning-rate?": "lr l lr0 base-lr initial-lr",
    "did you mean --epochs?": "e num-epochs n-epochs max-epochs num-train-epochs",
    "did you mean --max-steps?": "steps iterations max-iter iters max-iters",
    "did you mean --max-minutes?": "time minutes max-time hours",
    "did you mean --batch-size?": "b bs batch train-batch-size",
    "did you mean --num-workers?": "workers j n-workers num-threads",
    "did you mean --weight-decay?": "wd l2",
    "did you mean --output-dir?": "o output out out-dir save-dir project logdir",
    "did you mean --val-fraction?": "v validation val val-split-size val-percent",
    "did you mean --augment?": "aug augmentation augmentations no-augment flip",
    "did you mean --optimizer?": "optim opt",
    "did you mean --schedule?": "scheduler lr-scheduler lr-schedule",
    "did you mean --loss?": "criterion dice loss-fn loss-function",
    "did you mean --patience?": "early-stopping early-stop",
    "did you mean --crop-size?": "crop patch-size tile-size patch",
    "did you mean --tracker wandb?": "wandb use-wandb log-wandb",
    "did you mean --micro-batch-size?": "grad-accum accumulate accumulation-steps",
    "did you mean --class-weights auto?": "class-weight weighted weight",
    "did you mean --seed?": "random-seed manual-seed",
    "did you mean --norm?": "batch-norm batchnorm normalization-layer",
    "predict.py has this flag, with a trained model": "tta overlay ensemble boundary truth",
}
HINTS = dict(LAUNCH_HINTS)
for hint, flags in HABITS.items():
    HINTS |= dict.fromkeys(flags.split(), hint)
