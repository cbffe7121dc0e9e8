"""Files beside an encoder's weights, in its folder or on the Hub: the normalisation of images, and the licence."""

import json
from pathlib import Path

from huggingface_hub import hf_hub_download, metadata_load
from huggingface_hub.errors import HfHubHTTPError

from runtime.errors import ModelError, one_line
from unet.config import Preprocess

# mean and standard deviation of channels in 0..1, where there is no preprocessor_config.json: ImageNet's, but for BiT
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALVES = [0.5] * 3, [0.5] * 3


def read_normalization(source: str, family: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images in 0..255."""
    mean, std = HALVES if family == "bit" else IMAGENET
    file = _file(source, "preprocessor_config.json")
    try:
        settings = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
        mean, std = settings.get("image_mean") or mean, settings.get("image_std") or std
        if settings.get("do_normalize") is False:  # RT-DETR's wants images in 0..1
            mean, std = [0.0] * len(mean), [1.0] * len(std)
        values = Preprocess(mean=tuple(255 * value for value in mean), std=tuple(255 * value for value in std))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"--encoder {source}: preprocessor_config.json cannot be used: {one_line(error)}") from error
    return values.mean, values.std


def read_license(source: str) -> str | None:
    """The licence that the model card states, if there is a card."""
    file = _file(source, "README.md")
    try:
        license = None if file is None else (metadata_load(file) or {}).get("license")
    except Exception:  # of YAML: a card that cannot be read says nothing
        return None
    return license if isinstance(license, str) else None


def _file(source: str, name: str) -> Path | None:
    """A file of a model folder or of the Hub, if it is there."""
    if Path(source).is_dir():
        return Path(source) / name if (Path(source) / name).is_file() else None
    try:
        return Path(hf_hub_download(source, name))
    except (HfHubHTTPError, OSError):
        return None
