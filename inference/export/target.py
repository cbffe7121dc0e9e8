"""What a format for other programs is, and how a model is written in one: only with proof that it answers as ours."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from inference.decoding import new_decoder
from inference.export.graph import prepares_images
from inference.export.proof import check_answers
from runtime.errors import ModelError, SettingsError
from runtime.files import complete_folder, replaced_path
from tasks import task_of_model
from unet.config import UNetConfig
from unet.model import UNet


class Options(NamedTuple):
    """What one asks of an export."""


class Target(ABC):
    """A format for other programs.

    Attributes:
        runtime: the library that opens it, as messages call it.
        unable: what to add to a message that the runtime cannot compute an image.
        is_folder: whether it is a folder; else it is a file.
        suffix: how the name of its file must end.
    """

    runtime: ClassVar[str]
    unable: ClassVar[str] = ""
    is_folder: ClassVar[bool] = False
    suffix: ClassVar[str] = ""

    @abstractmethod
    def write(self, model: UNet, path: Path, options: Options) -> None:
        """Write the model, which is in evaluation mode, on the CPU and of float32. ModelError where that cannot be."""

    def problem(self, config: UNetConfig) -> str | None:
        """Why models of this config cannot be written, in words that follow "the model"; None if they can."""
        return None

    @property
    def name(self) -> str:
        """The format's name in `opener.py`, and that of its module."""
        return type(self).__name__.lower()

    def description(self, config: UNetConfig) -> dict[str, str]:
        """What whoever opens it should know, as texts by name."""
        images = "(batch, channels, height, width), pixel values as they are in image files"
        if config.dims == 3:
            images = "(batch, channels, depth, height, width), voxels clipped, standardized and resampled"
            images += " as `preprocess` in the config says"
        decoder = new_decoder(task_of_model(config))
        logits = "of the size of the images"
        if prepares_images(config) and not decoder.at_image_size:
            logits = "of the size at which the network sees the images"
        return {"images": images, "logits": logits, "decoding": decoder.reading}


def export_proved(target: Target, model: UNet, path: Path, options: Options) -> None:
    """Write `model` for other programs; ModelError, and no file, where their answers are not those of `Predictor`."""
    if not path.name.endswith(target.suffix):
        raise SettingsError(f"{path}: the name must end in {target.suffix}")
    problem = target.problem(model.config)
    if problem is not None:
        raise ModelError(f"the model {problem}")
    model = model.cpu().float().eval()
    place = complete_folder if target.is_folder else replaced_path
    with place(path) as temporary:
        target.write(model, temporary, options)
        check_answers(target.name, target.runtime, target.unable, model, temporary)
