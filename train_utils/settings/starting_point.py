"""Start of training: architecture, normalization and weights from another model, an encoder or a checkpoint."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from runtime.console import say
from runtime.errors import ModelError, SettingsError
from runtime.settings import as_flags, flag_of
from tasks.task import Task
from train_utils.settings.encoder import PretrainedEncoder, load_encoder, with_channels
from train_utils.settings.train_settings import TrainSettings
from unet.backbone import encoder_name
from unet.config import NetworkAxes, Preprocess, UNetConfig
from unet.model import UNet

ARCHITECTURE = ("base_channels", "depth", "norm", "block", "upsample", "dropout", "output_stride")
ENCODER_FLAGS = ("encoder_weights", "freeze_encoder", "encoder_lr_factor")
BASE_CHANNELS = 16  # an encoder's network: with 64, full resolution alone would take more computing than a ResNet-50


def architecture(
    settings: TrainSettings, axes: NetworkAxes, trained: UNetConfig | None, *, is_copied: bool
) -> tuple[UNetConfig, PretrainedEncoder | None]:
    """The architecture to train, and the encoder that a new network starts from, if any.

    Args:
        axes: the kernels and strides that suit the data; a model to start from has its own, which take precedence.
        trained: config of the model to start from, or of the run to resume; the architecture keeps its preprocessing.
            Then no encoder is read: it may have changed or been deleted since.
        is_copied: whether it is a model to start from, whose weights are copied.

    Raises ModelError if trained weights would not fit the flags, SettingsError for an encoder's flags without an
    encoder. Dropout and the corners of bilinear upsampling have no weights and may differ.
    """
    backbone = settings.encoder_source
    model_name = settings.init_from
    if backbone and model_name:
        raise ModelError(f"--encoder {backbone}: --init-from {model_name} has its own architecture; give one of them")
    owner = f"--encoder {backbone}" if backbone else model_name or "the checkpoint"
    encoder = None
    config = trained or UNetConfig()
    if trained is None and backbone:
        encoder = load_encoder(backbone, pretrained=settings.encoder_weights != "random")
        config = UNetConfig(base_channels=BASE_CHANNELS, depth=encoder.depth, encoder=encoder.config)
    values = _architecture(settings, config, owner, is_copied=is_copied)
    if settings.freeze_encoder and backbone and settings.encoder_weights == "random":
        raise ModelError(
            f"--freeze-encoder: the random weights of {backbone} would never be trained;"
            " leave out --freeze-encoder or --encoder-weights random"
        )
    if not backbone:
        _refuse_flags_without_use(owner, settings, config)
    is_new = trained is None and encoder is None
    axes = _axes(settings, axes, config, None if is_new else owner)
    if axes.strides:
        values["depth"] = len(axes.strides)
    try:
        return replace(config, **values, **axes._asdict()), encoder
    except ValueError as error:
        raise ModelError(f"the network's {error}") from error


def new_network(
    config: UNetConfig,
    settings: TrainSettings,
    in_channels: int,
    task: Task,
    preprocess: Preprocess,
    *,
    model: UNet | None = None,
    encoder: PretrainedEncoder | None = None,
) -> UNet:
    """The network to train, in channels-last layout, with the weights that fit; prints what was copied.

    Args:
        config: the `architecture`.
        preprocess: that of the trained weights or, without any, with mean and deviation of the training images.
        model, encoder: what to take weights from, if anything; those of a checkpoint are loaded later.
    """
    own_encoder = config.encoder
    if own_encoder is not None:
        own_encoder, preprocess = _fit_encoder(config, encoder, in_channels, preprocess)
    config = replace(
        config,
        in_channels=in_channels,
        num_classes=task.outputs,
        preprocess=preprocess,
        task=task.to_config(),
        encoder=own_encoder,
        temperature=1.0,
    )
    network = UNet(config, deep_supervision=settings.deep_supervision)
    if model is not None:
        if network.encoder is not None and model.encoder is not None:
            network.encoder.take(model.encoder.backbone.state_dict())
        say(f"start: {settings.init_from}, {copy_weights(model, network)}")
    if network.encoder is not None:
        if encoder is not None and encoder.weights is not None:
            network.encoder.take(encoder.weights)
        if settings.freeze_encoder:
            network.encoder.freeze()
    network.to(memory_format=network.memory_format)
    say(f"model: {_description(network)}")
    return network


def _fit_encoder(
    config: UNetConfig, loaded: PretrainedEncoder | None, in_channels: int, preprocess: Preprocess
) -> tuple[dict[str, Any], Preprocess]:
    """The encoder's config and the preprocessing, fitted to the images and to the encoder's normalization.

    Grey and RGB images of 8 bits are normalized like the encoder's own training images, others by the statistics
    of the data set. Grey is repeated for each channel; for other numbers of channels the encoder is changed.
    """
    assert config.encoder is not None
    encoder = config.encoder
    channels = encoder.get("num_channels", 3)
    if in_channels not in (1, channels):
        encoder = with_channels(encoder, in_channels)
        say(
            f"encoder: its first filters, for {channels} channels, are repeated for {in_channels} channels and rescaled"
        )
    mean = preprocess.mean
    std = preprocess.std
    if len(mean) == 1:
        mean = mean * channels
        std = std * channels
    trained_on: PretrainedEncoder | Preprocess = loaded or config.preprocess
    has_bytes = loaded is not None or config.preprocess.pixel_types == ("uint8",)
    if has_bytes and preprocess.pixel_types == ("uint8",) and len(mean) == len(trained_on.mean):
        mean = trained_on.mean
        std = trained_on.std
    return encoder, replace(preprocess, mean=mean, std=std)


def _architecture(settings: TrainSettings, config: UNetConfig, owner: str, *, is_copied: bool) -> dict[str, Any]:
    """The values of ARCHITECTURE: from the flags or, if a flag is open, from the config to start from.

    Raises ModelError for a flag that the weights of this config would not fit.

    Args:
        owner: the name of the config's model or run, for messages.
        is_copied: whether all weights of the model are copied.
    """
    values: dict[str, Any] = {}
    for name in ARCHITECTURE:
        value = getattr(settings, name)
        own_value = getattr(config, name)
        interpolates = name == "upsample" and "transpose" not in (value, own_value)
        has_weights = name != "dropout" and not interpolates
        belongs_to_encoder = config.encoder is not None and name == "depth"
        is_fixed = (is_copied and has_weights) or belongs_to_encoder
        if is_fixed and value not in (None, own_value):
            raise ModelError(
                f"{flag_of(name)} {value}: {owner} has {own_value}; leave the flag out, or start from another model"
            )
        values[name] = own_value if value is None else value
    return values


def _axes(settings: TrainSettings, axes: NetworkAxes, config: UNetConfig, owner: str | None) -> NetworkAxes:
    """The axes of the config if it has an owner to start from, else the axes that suit the data."""
    if owner is not None:
        if axes.dims != config.dims:
            kinds = {2: "images", 3: "volumes"}
            raise ModelError(
                f"{owner}: takes {kinds[config.dims]}, but the data are {kinds[axes.dims]};"
                f" start from another model, or give --dims {config.dims}"
            )
        axes = NetworkAxes(config.dims, config.kernels, config.strides)
    if axes.dims == 3 and settings.upsample == "bilinear_aligned":
        raise ModelError("--upsample bilinear_aligned works for images only; for volumes give transpose or bilinear")
    depth = len(axes.strides)
    if depth and settings.depth not in (None, depth):
        raise ModelError(
            f"--depth {settings.depth}: patches of this size and spacing allow a depth of {depth}; leave the flag out,"
            " or raise --crop-size"
        )
    return axes


def _refuse_flags_without_use(owner: str, settings: TrainSettings, config: UNetConfig) -> None:
    """Raise SettingsError for encoder flags if the network has no encoder, or an encoder with weights already."""
    for name in ENCODER_FLAGS:
        value = getattr(settings, name)
        if value and (config.encoder is None or name == "encoder_weights"):
            problem = "this network has no encoder" if config.encoder is None else f"{owner} has weights already"
            typed = as_flags({name: value})
            raise SettingsError(f"{typed}: {problem}; leave the flag out, or name an encoder with --encoder")


def copy_weights(source: UNet, model: UNet) -> str:
    """Copy the weights whose shapes agree; return a text on the others (classes, input channels), which stay random.

    The head of another task has another meaning and is not copied. Apart from that both models have the same
    architecture, as `architecture` has checked; but the shortcut of a first block has weights only where the block
    changes the number of channels.
    """
    weights = source.state_dict()
    target = model.state_dict()
    is_other_task = source.config.task != model.config.task
    copied = {}
    fresh = []
    for name, own in target.items():
        weight = weights.get(name)
        if weight is None:
            if not name.startswith("heads."):  # models hold no heads of deep supervision
                fresh.append(f"{name} (not there)")
        elif is_other_task and name.startswith("head."):
            fresh.append(f"{name} (of another task)")
        elif weight.shape == own.shape:
            copied[name] = weight
        elif not name.startswith("encoder."):  # the encoder's filters have been repeated
            fresh.append(f"{name} ({_shape(own)} here, {_shape(weight)} there)")
    model.load_state_dict(target | copied)
    random = f"; random start for {', '.join(fresh)}" if fresh else ""
    return f"{len(copied)} of {len(weights)} weights copied{random}"


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _description(network: UNet) -> str:
    encoder = network.config.encoder
    kind = {2: "U-Net", 3: "3-D U-Net"}[network.config.dims]
    if encoder is not None:
        kind = f"U-Net with encoder {encoder_name(encoder)}"
    count = sum(parameter.numel() for parameter in network.parameters())
    frozen = sum(parameter.numel() for parameter in network.parameters() if not parameter.requires_grad)
    frozen_part = f", {frozen:,} of them frozen" if frozen else ""
    return f"{kind}, {count:,} parameters{frozen_part}"
