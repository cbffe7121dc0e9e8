"""The README.md of a trained model: what it is, what was measured, how to use it."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

TRAINING = (
    *("epochs", "max_steps", "batch_size", "image_size", "scale", "crop_size", "augment", "loss", "class_weights"),
    *("optimizer", "learning_rate", "weight_decay", "schedule", "warmup_steps", "max_grad_norm", "seed"),
    *("init_from", "base_channels", "depth", "norm", "upsample", "dropout"),
)
METRICS = {"mean_iou": "Mean IoU", "mean_dice": "Mean Dice", "pixel_accuracy": "Pixel accuracy"}


def model_card(settings: dict, *, step: int, names: Sequence[str], matrix: torch.Tensor, result: dict) -> str:
    """Markdown with the front matter that the Hub reads; `settings` as in run.json.

    Args:
        step: the optimizer step of these weights.
        matrix, result: as for `report.write_report`.
    """
    flags = settings["flags"]
    dataset = _without_path(flags["dataset"])
    title = f"U-Net on {dataset}"
    scores = {key: label for key, label in METRICS.items() if result[key] is not None}
    # values are JSON, which YAML contains: no name needs quoting rules of its own
    measured = "".join(
        f"    - type: {key}\n      name: {label}\n      value: {result[key]:.6f}\n" for key, label in scores.items()
    )
    table = "".join(
        f"| {_cell(name)} | "
        + " | ".join(_score(result[metric][index]) for metric in ("iou", "dice", "precision", "recall"))
        + f" | {int(matrix[index].sum()):,} |\n"
        for index, name in enumerate(names)
    )
    training = "".join(
        f"| {name.replace('_', ' ')} | {_cell(_without_path(flags[name]))} |\n"
        for name in TRAINING
        if flags.get(name) is not None and not (name == "epochs" and flags.get("max_steps"))  # which stands for them
    )
    run, profile = settings["run"], settings["profile"]
    return f"""---
library_name: unet-accelerate
pipeline_tag: image-segmentation
tags:
- unet
- semantic-segmentation
- image-segmentation
model-index:
- name: {json.dumps(title)}
  results:
  - task:
      type: image-segmentation
      name: Semantic segmentation
    dataset:
      type: {json.dumps(dataset)}
      name: {json.dumps(dataset)}
      split: validation
    metrics:
{measured}---

# {_cell(title)}

Semantic segmentation into {len(names)} classes: {", ".join(map(_cell, names))}. The preprocessing is part of the
model's `config.json`: images go in as they are, and masks come back at their size.

## Use

```python
from unet import Predictor  # of unet-accelerate

predictor = Predictor.from_pretrained("path or Hub id of this model")
mask = predictor.mask("image.png")  # (H, W) class indices
```

For files and folders: `python predict.py --model MODEL --input IMAGES --output MASKS`.

## Measured on the validation images

{", ".join(f"{label} {result[key]:.4f}" for key, label in scores.items())}, from one confusion matrix over all of them,
at the masks' own sizes.

| class | IoU | Dice | precision | recall | pixels |
|---|---:|---:|---:|---:|---:|
{table}
## Training

Weights of optimizer step {step:,} of {settings["total_steps"]:,}; torch {run["torch"]}, accelerate
{run["accelerate"]}, processes: {profile["processes"]}, mixed precision: {profile["mixed_precision"]}.

| setting | value |
|---|---|
{training}"""


def _without_path(value: object) -> str:
    """A local file or folder by its name alone: a card is published, and where things lay is nobody's business."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    text = str(value)
    return Path(text).resolve().name if Path(text).exists() else text


def _cell(text: str) -> str:
    """Text that neither ends a table's cell nor becomes markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _score(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"
