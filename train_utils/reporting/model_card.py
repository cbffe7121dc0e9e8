"""The README.md of a trained model: what it is, what was measured, how to use it."""

import os
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from train_utils.evaluation import Evaluation
from train_utils.reporting.rendering import render
from train_utils.reporting.section import Metric, Section
from train_utils.settings.record import RunSettings
from train_utils.settings.starting_point import OF_ENCODER

DATA_FLAGS = ("epochs", "max_steps", "batch_size", "image_size", "scale", "crop_size", "augment")
TRAINING = (
    *("optimizer", "learning_rate", "weight_decay", "schedule", "warmup_steps", "max_grad_norm", "seed"),
    *("init_from", "base_channels", "depth", "norm", "upsample", "dropout"),
)


def model_card(settings: RunSettings, best: Evaluation, section: Section) -> str:
    """Markdown with the front matter that the Hub reads."""
    flags = settings.flags
    dataset = _without_path(flags["dataset"])
    title = f"U-Net on {dataset}"
    left_out = {"epochs"} if flags.get("max_steps") else set()  # which stands for them
    training = {
        name.replace("_", " "): _without_path(flags[name])
        for name in (*DATA_FLAGS, *section.flags, *TRAINING, *OF_ENCODER * bool(settings.encoder))
        if flags.get(name) is not None and name not in left_out
    }
    return render(
        "model_card.md.jinja",
        card_data=_front_matter(title, dataset, section, section.metrics(best.scores)).to_yaml(),
        title=title,
        description=section.description(),
        mask_values=section.mask_values,
        measured=section.markdown(best.scores).rstrip(),
        encoder=settings.encoder,
        volumes=settings.identity["dims"] == 3,
        step=best.step,
        total_steps=settings.total_steps,
        run=settings.run,
        profile=settings.profile,
        training=training,
    )


def _front_matter(title: str, dataset: str, section: Section, metrics: Sequence[Metric]) -> ModelCardData:
    results = [
        EvalResult(
            task_type="image-segmentation",
            task_name=section.task_name,
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split="validation",
            metric_type=metric.key,
            metric_name=metric.label,
            metric_value=round(metric.value, 6),
        )
        for metric in metrics
        if metric.value is not None
    ]
    return ModelCardData(
        library_name="unet-accelerate",
        pipeline_tag="image-segmentation",
        tags=["unet", *section.tags, "image-segmentation"],
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
