"""Start of training: architecture, normalisation and weights from another model, an encoder or a checkpoint."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from torch import Tensor

from inference.models import load_model
from runtime.console import say
from runtime.errors import ModelError, SettingsError
from tasks.task import Task
from train_utils.settings.encoder import PretrainedEncoder, load_encoder, with_channels
from train_utils.settings.train_settings import TrainSettings
from unet.axes import NetworkAxes
from unet.backbone import encoder_name
from unet.config import Preprocess, UNetConfig
from unet.model import DeeplySupervisedUNet, UNet

ARCHITECTURE = ("base_channels", "depth", "norm", "block", "upsample", "dropout")
OF_ENCODER = ("encoder_weights", "freeze_encoder", "encoder_lr_factor")
BASE_CHANNELS = 16  # beside an encoder: at 64, full resolution alone would take more computing than a ResNet-50


@dataclass(frozen=True)
class NetworkSettings:
    """The flags of the network, under their names.

    None takes the value of the model that training starts from, without one UNetConfig's default.
    """

    init_from: str | None = None
    encoder: str | None = None
    encoder_weights: str | None = None
    freeze_encoder: bool | None = None
    encoder_lr_factor: float | None = None
    base_channels: int | None = None
    depth: int | None = None
    norm: str | None = None
    block: str | None = None
    upsample: str | None = None
    dropout: float | None = None
    deep_supervision: bool = False

    @classmethod
    def from_args(cls, args: TrainSettings) -> "NetworkSettings":
        """As the flags say."""
        return cls(**{known.name: getattr(args, known.name) for known in fields(cls)})


class StartingPoint(NamedTuple):
    """What training starts from: the architecture to train, and the model or encoder to take weights from, if any.

    Args:
        trained: config of the model, or of the checkpoint that a run goes on from, whose weights are loaded later.
    """

    architecture: UNetConfig
    trained: UNetConfig | None = None
    source: str | None = None
    model: UNet | None = None
    encoder: PretrainedEncoder | None = None
    freezes_encoder: bool = False
    deep_supervision: bool = False

    def source_preprocess(self, channels: int) -> Preprocess | None:
        """The preprocessing that the trained weights expect; None if they take another number of channels."""
        if self.trained is None or self.trained.in_channels != channels:
            return None
        return self.trained.preprocess

    def build(self, in_channels: int, task: Task, preprocess: Preprocess) -> UNet:
        """The network to train, in channels-last layout, with the weights that fit; prints what was copied.

        `preprocess` is `source_preprocess`; if that is None, it has the mean and deviation of the training images.
        """
        values: dict[str, Any] = {"in_channels": in_channels, "num_classes": task.outputs, "preprocess": preprocess}
        values["task"] = task.to_config()
        if self.architecture.encoder is not None:
            values |= self._fit_encoder(self.architecture.encoder, in_channels, preprocess)
        kind = DeeplySupervisedUNet if self.deep_supervision else UNet
        network = kind(replace(self.architecture, **values))
        if self.model is not None:
            if network.encoder is not None and self.model.encoder is not None:
                network.encoder.take(self.model.encoder.backbone.state_dict())
            say(f"start: {self.source}, {copy_weights(self.model, network)}")
        if network.encoder is not None:
            if self.encoder is not None and self.encoder.weights is not None:
                network.encoder.take(self.encoder.weights)
            if self.freezes_encoder:
                network.encoder.freeze()
        network.to(memory_format=network.memory_format)
        say(f"model: {_description(network)}")
        return network

    def _fit_encoder(self, encoder: dict[str, Any], in_channels: int, preprocess: Preprocess) -> dict[str, Any]:
        """The encoder, and how images are prepared for it.

        Grey and RGB images of 8 bits are normalised like the encoder's own training images, others by the statistics
        of the data set. Grey is repeated for each channel; for other numbers of channels the encoder is changed.
        """
        own, mean, std = encoder.get("num_channels", 3), preprocess.mean, preprocess.std
        if in_channels not in (1, own):
            encoder = with_channels(encoder, in_channels)
            say(f"encoder: its first filters, for {own} channels, are repeated for {in_channels} channels and rescaled")
        if len(mean) == 1:
            mean, std = mean * own, std * own
        trained_on: PretrainedEncoder | Preprocess | None = self.encoder
        if self.trained is not None and self.trained.preprocess.pixel_types == ("uint8",):
            trained_on = self.trained.preprocess
        if trained_on is not None and preprocess.pixel_types == ("uint8",) and len(mean) == len(trained_on.mean):
            mean, std = trained_on.mean, trained_on.std
        return {"encoder": encoder, "preprocess": replace(preprocess, mean=mean, std=std)}


def starting_point(
    settings: NetworkSettings, axes: NetworkAxes | None = None, checkpoint: UNetConfig | None = None
) -> StartingPoint:
    """Where training starts: fresh without `--init-from`, encoder and checkpoint.

    Args:
        axes: what suits the data; kernels and strides are always those of the model to start from, if there is one.
        checkpoint: config of the run to resume. Then neither the model to start from nor the encoder is read: they may
            have changed or been deleted since.

    Raises ModelError where flags and source differ so that the weights would not fit, SettingsError for flags of an
    encoder without one. Dropout and the corners of bilinear upsampling have no weights and may differ.
    """
    backbone, source = settings.encoder, settings.init_from
    if backbone and source:
        raise ModelError(f"--encoder {backbone}: --init-from {source} has its own architecture; give one of them")
    model, encoder, trained = None, None, checkpoint
    if checkpoint is None and source is not None:
        model = load_model(source)
        trained = model.config
    config = trained or UNetConfig()
    if checkpoint is None and backbone:
        encoder = load_encoder(backbone, pretrained=settings.encoder_weights != "random")
        config = UNetConfig(base_channels=BASE_CHANNELS, depth=encoder.depth, encoder=encoder.config)
    given: dict[str, Any] = {name: getattr(settings, name) for name in ARCHITECTURE}
    for name, value in given.items():
        has = getattr(config, name)
        weightless = name == "dropout" or (name == "upsample" and "transpose" not in (value, has))
        is_fixed = (model is not None and not weightless) or (config.encoder is not None and name == "depth")
        if is_fixed and value not in (None, has):
            flag = "--" + name.replace("_", "-")
            owner = source or backbone or "the checkpoint"
            raise ModelError(f"{flag} {value}: {owner} has {has}; leave the flag out, or start from another model")
    if settings.freeze_encoder and backbone and settings.encoder_weights == "random":
        raise ModelError(
            f"--freeze-encoder: the random weights of {backbone} would never be trained;"
            " leave out --freeze-encoder or --encoder-weights random"
        )
    if not backbone:
        _refuse_flags_without_use(source or "the checkpoint", settings, config)
    values = {name: getattr(config, name) if value is None else value for name, value in given.items()}
    axes = _axes(settings, axes, config, source or backbone or (None if checkpoint is None else "the checkpoint"))
    if axes.strides:
        values["depth"] = len(axes.strides)
    architecture = UNetConfig(**values, **axes._asdict(), encoder=config.encoder)
    freezes_encoder = bool(settings.freeze_encoder)
    return StartingPoint(architecture, trained, source, model, encoder, freezes_encoder, settings.deep_supervision)


def _axes(settings: NetworkSettings, axes: NetworkAxes | None, config: UNetConfig, source: str | None) -> NetworkAxes:
    """The axes of the source if there is one, else those that suit the data."""
    own = NetworkAxes(config.dims, config.kernels, config.strides)
    axes = own if axes is None else axes
    if source is not None:
        kinds = {2: "images", 3: "volumes"}
        if axes.dims != own.dims:
            raise ModelError(
                f"{source}: takes {kinds[own.dims]}, but the data are {kinds[axes.dims]};"
                f" start from another model, or give --dims {own.dims}"
            )
        axes = own
    if axes.dims == 3 and settings.upsample == "bilinear_aligned":
        raise ModelError("--upsample bilinear_aligned works for images only; for volumes give transpose or bilinear")
    steps = len(axes.strides)
    if steps and settings.depth not in (None, steps):
        raise ModelError(
            f"--depth {settings.depth}: patches of this size and spacing allow a depth of {steps}; leave the flag out,"
            " or raise --crop-size"
        )
    return axes


def _refuse_flags_without_use(source: str, settings: NetworkSettings, config: UNetConfig) -> None:
    """SettingsError for encoder flags where the network has no encoder, or one that has weights already."""
    for name in OF_ENCODER:
        flag, value = "--" + name.replace("_", "-"), getattr(settings, name)
        given = flag if value is True else f"{flag} {value}"
        if value and config.encoder is None:
            raise SettingsError(f"{given}: this network has no encoder; leave the flag out, or name one with --encoder")
        if value and name == "encoder_weights":
            raise SettingsError(f"{given}: the encoder of {source} already has weights; leave the flag out")


def copy_weights(source: UNet, model: UNet) -> str:
    """Copy the weights whose shapes agree; the text names the others (classes, input channels), which stay random.

    The head of another task means something else: it is left out. Else both have the same architecture, as
    `starting_point` has checked.
    """
    weights, target = source.state_dict(), model.state_dict()
    left_out = "head." if source.config.task != model.config.task else ()
    fits = {
        name: weight
        for name, weight in weights.items()
        if weight.shape == target[name].shape and not name.startswith(left_out)
    }
    model.load_state_dict(target | fits)
    fresh = []
    for name, weight in weights.items():
        if name.startswith(left_out):
            fresh.append(f"{name} (of another task)")
        elif name not in fits and not name.startswith("encoder."):  # whose filters have been repeated
            fresh.append(f"{name} ({_shape(target[name])} here, {_shape(weight)} there)")
    random = f"; random start for {', '.join(fresh)}" if fresh else ""
    return f"{len(fits)} of {len(weights)} weights copied{random}"


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _description(network: UNet) -> str:
    encoder = network.config.encoder
    unet = {2: "U-Net", 3: "3-D U-Net"}[network.config.dims]
    kind = unet if encoder is None else f"U-Net with encoder {encoder_name(encoder)}"
    frozen = sum(p.numel() for p in network.parameters() if not p.requires_grad)
    kept = f", {frozen:,} of them frozen" if frozen else ""
    return f"{kind}, {sum(p.numel() for p in network.parameters()):,} parameters{kept}"
