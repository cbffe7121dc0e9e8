"""Flags that other programs have, and what to type here instead."""

from runtime.cli import LAUNCH_HINTS

DATA = "did you mean --dataset DATA, a folder that holds images/ and masks/?"
NAME = "did you mean --output-dir runs/NAME?"
NETWORK = "the network is a U-Net: --encoder chooses a pretrained encoder, --base-channels and --depth its size"
PRETRAINED = "--encoder lite0 is a pretrained encoder (docs/encoders.md), --init-from a model to start from"
FOUND = "it is found in the data; see --classes for the names of classes"
WEIGHTS = "--init-from MODEL starts from a model, --resume auto continues the run in --output-dir"
SIZE = "did you mean --image-size H W, --scale FACTOR or --crop-size H W?"


def _did_you_mean(flag: str) -> str:
    return f"did you mean {flag}?"


HINTS: dict[str, str] = {**LAUNCH_HINTS}
HINTS |= dict.fromkeys(("data", "data-dir", "data-path", "data-root", "dataset-dir", "root", "path", "source"), DATA)
HINTS |= dict.fromkeys(
    ("images", "masks", "image-dir", "mask-dir", "img-dir", "images-dir", "masks-dir", "labels"), DATA
)
HINTS |= dict.fromkeys(("train-dir", "train-data", "val-dir", "input", "i"), DATA)
HINTS |= dict.fromkeys(("name", "run-name", "exp-name", "exp", "experiment", "experiment-name"), NAME)
HINTS |= dict.fromkeys(("config", "cfg", "hyp", "yaml"), "settings are flags; --like RUN.json repeats a recorded run")
HINTS |= dict.fromkeys(("model", "arch", "architecture", "net", "network", "model-name"), NETWORK)
HINTS |= dict.fromkeys(("pretrained", "imagenet", "backbone", "encoder-name"), PRETRAINED)
HINTS |= dict.fromkeys(("num-classes", "n-classes", "nc", "in-channels", "channels", "num-channels"), FOUND)
HINTS |= dict.fromkeys(("weights", "checkpoint", "ckpt", "load", "f", "model-path"), WEIGHTS)
HINTS |= dict.fromkeys(("imgsz", "img-size", "img", "size", "input-size", "resize", "resolution", "width"), SIZE)
HINTS |= {name: _did_you_mean("--learning-rate") for name in ("lr", "l", "lr0", "base-lr", "initial-lr")}
HINTS |= {name: _did_you_mean("--epochs") for name in ("e", "num-epochs", "n-epochs", "max-epochs", "num-train-epochs")}
HINTS |= {name: _did_you_mean("--max-steps") for name in ("steps", "iterations", "max-iter", "iters", "max-iters")}
HINTS |= {name: _did_you_mean("--max-minutes") for name in ("time", "minutes", "max-time", "hours")}
HINTS |= {name: _did_you_mean("--batch-size") for name in ("b", "bs", "batch", "train-batch-size")}
HINTS |= {name: _did_you_mean("--num-workers") for name in ("workers", "j", "n-workers", "num-threads")}
HINTS |= {name: _did_you_mean("--weight-decay") for name in ("wd", "l2")}
HINTS |= {
    name: _did_you_mean("--output-dir") for name in ("o", "output", "out", "out-dir", "save-dir", "project", "logdir")
}
HINTS |= {name: _did_you_mean("--val-fraction") for name in ("v", "validation", "val", "val-split-size", "val-percent")}
HINTS |= {name: _did_you_mean("--augment") for name in ("aug", "augmentation", "augmentations", "no-augment", "flip")}
HINTS |= {name: _did_you_mean("--optimizer") for name in ("optim", "opt")}
HINTS |= {name: _did_you_mean("--schedule") for name in ("scheduler", "lr-scheduler", "lr-schedule")}
HINTS |= {name: _did_you_mean("--loss") for name in ("criterion", "dice", "loss-fn", "loss-function")}
HINTS |= {name: _did_you_mean("--patience") for name in ("early-stopping", "early-stop")}
HINTS |= {name: _did_you_mean("--crop-size") for name in ("crop", "patch-size", "tile-size", "patch")}
HINTS |= {name: _did_you_mean("--tracker wandb") for name in ("wandb", "use-wandb", "log-wandb")}
HINTS |= {name: _did_you_mean("--micro-batch-size") for name in ("grad-accum", "accumulate", "accumulation-steps")}
HINTS |= {name: _did_you_mean("--class-weights auto") for name in ("class-weight", "weighted", "weight")}
HINTS |= {name: _did_you_mean("--seed") for name in ("random-seed", "manual-seed")}
HINTS |= {name: _did_you_mean("--norm") for name in ("batch-norm", "batchnorm", "normalization-layer")}
HINTS |= dict.fromkeys(
    ("tta", "overlay", "ensemble", "boundary", "truth"), "predict.py has this flag, with a trained model"
)
