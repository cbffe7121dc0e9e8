"""Flags that people type by habit from other programs, and the flags of train.py to type instead.

Names that resemble one of ours need no line: the parser finds them by itself.
"""

from runtime.cli import LAUNCH_HINTS

HABITS = {  # flags of other programs, without their dashes -> the text to type here
    "data root images masks": "did you mean --dataset DATA, a folder that holds images/ and masks/?",
    "name exp-name": "did you mean --output-dir runs/NAME?",
    "config cfg": "settings are flags; --like RUN.json repeats a recorded run",
    "model arch": "the network is a U-Net: --encoder, --base-channels and --depth choose its kind and size",
    "pretrained backbone": "--encoder lite0 is a pretrained encoder, --init-from a model to start from",
    "num-classes n-classes": "it is found in the data; see --classes for the names of classes",
    "weights checkpoint load": "--init-from MODEL starts from a model, --resume auto continues the run in --output-dir",
    "imgsz img-size": "did you mean --image-size H W, --scale FACTOR or --crop-size H W?",
    "lr": "did you mean --learning-rate?",
    "e": "did you mean --epochs?",
    "b": "did you mean --batch-size?",
    "steps iterations": "did you mean --max-steps?",
    "wandb": "did you mean --tracker wandb?",
    "tta overlay ensemble boundary truth": "predict.py has this flag, with a trained model",
}
HINTS = dict(LAUNCH_HINTS)
for flags, hint in HABITS.items():
    HINTS |= dict.fromkeys(flags.split(), hint)
