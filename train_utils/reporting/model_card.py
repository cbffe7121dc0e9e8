"""The README.md of a trained model: what it is, what was measured, how to use it."""

import os
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from train_utils.evaluation import Evaluation
from train_utils.reporting.rendering import render
from train_utils.settings.starting_point import OF_ENCODER

TRAINING = (
    *("epochs", "max_steps", "batch_size", "image_size", "scale", "crop_size", "augment", "loss", "class_weights"),
    *("optimizer", "learning_rate", "weight_decay", "schedule", "warmup_steps", "max_grad_norm", "seed"),
    *("init_from", "base_channels", "depth", "norm", "upsample", "dropout"),
)
MEANS = {"mean_iou": "Mean IoU", "mean_dice": "Mean Dice", "pixel_accuracy": "Pixel accuracy"}
METRICS = ("iou", "dice", "precision", "recall")


def model_card(settings: dict, best: Evaluation) -> str:
    """Markdown with the front matter that the Hub reads; `settings` as in run.json."""
    flags = settings["flags"]
    dataset = _without_path(flags["dataset"])
    title = f"U-Net on {dataset}"
    left_out = {"epochs"} if flags.get("max_steps") else set()  # which stands for them
    training = {
        name.replace("_", " "): _without_path(flags[name])
        for name in TRAINING + OF_ENCODER * bool(settings.get("encoder"))
        if flags.get(name) is not None and name not in left_out
    }
    classes = [
        {"name": name, "scores": [best.scores[metric][index] for metric in METRICS], "pixels": int(row.sum())}
        for index, (name, row) in enumerate(zip(best.class_names, best.matrix, strict=True))
    ]
    return render(
        "model_card.md.jinja",
        card_data=_front_matter(title, dataset, best).to_yaml(),
        title=title,
        names=best.class_names,
        means={label: best.scores[key] for key, label in MEANS.items()},
        encoder=settings.get("encoder"),
        volumes=settings["identity"]["dims"] == 3,
        classes=classes,
        step=best.step,
        total_steps=settings["total_steps"],
        run=settings["run"],
        profile=settings["profile"],
        training=training,
    )


def _front_matter(title: str, dataset: str, best: Evaluation) -> ModelCardData:
    results = [
        EvalResult(
            task_type="image-segmentation",
            task_name="Semantic segmentation",
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split="validation",
            metric_type=key,
            metric_name=label,
            metric_value=round(best.scores[key], 6),
        )
        for key, label in MEANS.items()
        if best.scores[key] is not None
    ]
    return ModelCardData(
        library_name="unet-accelerate",
        pipeline_tag="image-segmentation",
        tags=["unet", "semantic-segmentation", "image-segmentation"],
        model_name=title if results else None,
        eval_results=results or None,
    )


def _without_path(value: object) -> str:
    """A local file or folder by its name alone: a card is published, and where things lay is nobody's business.

    Local is what exists, and what begins with a folder that does: a pattern of files is no file.
    """
    if isinstance(value, list | tuple):
        return " ".join(map(_without_path, value))
    text = str(value).removeprefix("file://")
    path = Path(text).expanduser()
    if os.path.exists(path):
        return path.resolve().name
    above = (folder for folder in path.parents if folder != Path("."))
    return path.name if any(map(os.path.exists, above)) else str(value)
