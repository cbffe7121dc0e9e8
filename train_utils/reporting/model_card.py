"""The README.md of a trained model: its description, its scores, and how to use it."""

import os
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from runtime.files import user_path
from tasks.section import Section
from tasks.tables import as_markdown
from tasks.task import Scores
from train_utils.evaluation import Evaluation
from train_utils.reporting.pages import render
from train_utils.settings.encoder import LITE0_CONFIG
from train_utils.settings.record import RunSettings
from train_utils.settings.starting_point import ARCHITECTURE, ENCODER_FLAGS
from unet.backbone import encoder_name

DATA_FLAGS = ("epochs", "max_steps", "max_minutes", "batch_size", "image_size", "scale", "crop_size", "augment")
OPTIMIZER_FLAGS = ("optimizer", "learning_rate", "weight_decay", "schedule", "warmup_steps", "max_grad_norm", "seed")
NETWORK_FLAGS = ("init_from", *ARCHITECTURE)


def model_card(settings: RunSettings, best: Evaluation, section: Section) -> str:
    """Markdown with the front matter that the Hub reads."""
    flags = settings.flags
    dataset = _remove_path(flags["dataset"])
    title = f"U-Net on {dataset}"
    names = [*DATA_FLAGS, *section.flags, *OPTIMIZER_FLAGS, *NETWORK_FLAGS]
    if settings.encoder:
        names.extend(ENCODER_FLAGS)
    training = {}
    for name in names:
        if flags.get(name) is not None:
            training[name.replace("_", " ")] = _remove_path(flags[name])
    volumes = settings.identity["dims"] == 3
    example = "scan.nii.gz" if volumes else "image.png"
    if not volumes and settings.identity["in_channels"] not in (1, 3):  # PNG holds no bands
        example = "image.tif"
    return render(
        "model_card.md.jinja",
        card_data=_front_matter(title, dataset, section, best.scores).to_yaml(),
        title=title,
        section=section,
        summary=best.scores.summary(),
        tables=[as_markdown(table) for table in best.scores.score_tables()],
        encoder=settings.encoder,
        is_lite0=settings.encoder == encoder_name(LITE0_CONFIG),
        volumes=volumes,
        example=example,
        step=best.step,
        total_steps=settings.total_steps,
        run=settings.run,
        profile=settings.profile,
        training=training,
    )


def _front_matter(title: str, dataset: str, section: Section, scores: Scores) -> ModelCardData:
    results = []
    values = scores.values
    for key, name, _ in scores.headline:
        if values[key] is not None:
            result = EvalResult(
                task_type=section.pipeline_tag,
                task_name=section.task_name,
                dataset_type=dataset,
                dataset_name=dataset,
                dataset_split="validation",
                metric_type=key,
                metric_name=name[:1].upper() + name[1:],
                metric_value=round(values[key], 6),
            )
            results.append(result)
    return ModelCardData(
        library_name="unet-accelerate",  # and no pipeline_tag: no pipeline opens a model folder
        tags=["unet", section.task_name.lower().replace(" ", "-"), section.pipeline_tag],
        model_name=title if results else None,
        eval_results=results or None,
    )


def _remove_path(value: object) -> str:
    """A value, or only the last name of a local path: a card is published, and shall not disclose local folders.

    A path is local if it exists, or if one of its parent folders does: a pattern of files does not exist itself.
    """
    if isinstance(value, list | tuple):
        return " ".join(map(_remove_path, value))
    text = str(value).removeprefix("file://")
    path = user_path(text)
    if os.path.exists(path):
        return path.resolve().name
    is_local = any(os.path.exists(folder) for folder in path.parents if folder != Path("."))
    return path.name if is_local else str(value)
