"""The base class of a format for other programs: a model is written only with proof that it answers as ours."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from inference.export.graph import prepares_images
from inference.export.proof import MESSAGE, TOLERANCE, Answer, check_answers, expected_logits, proof_images
from runtime.errors import ModelError, SettingsError, one_line
from runtime.files import replace_path
from tasks import new_decoder, task_of_model
from unet.config import UNetConfig
from unet.model import UNet

FLAGS = ("license", "author")  # the fields of `Options` that are flags


class Options(NamedTuple):
    """The options of an export, beside its format.

    Args:
        license: the SPDX identifier of the model's license.
        author: the names of the model's authors.
        folder: the folder of the model, which may lie in the folder of its run.
    """

    license: str | None = None
    author: Sequence[str] | None = None
    folder: Path | None = None


class ExportFormat(ABC):
    """A format for other programs.

    Attributes:
        runtime: the library that opens it, as messages call it.
        suffix: how the name of its file must end.
        flags: which of FLAGS it takes.
        proof: a text on the check that the runtime has passed.
    """

    runtime: ClassVar[str]
    suffix: ClassVar[str] = ""
    flags: ClassVar[tuple[str, ...]] = ()
    proof: ClassVar[str] = f"its logits agree with torch's to {TOLERANCE:g}"

    @abstractmethod
    def write(self, model: UNet, path: Path, options: Options) -> None:
        """Write the model, which is in evaluation mode, on the CPU and of float32. ModelError if it fails."""

    @abstractmethod
    def open(self, path: Path) -> Sequence[Answer]:
        """Open a written model in its own runtime, which may raise anything; all ways to compute it have to agree."""

    def problem(self, config: UNetConfig) -> str | None:
        """Why models of this config cannot be written, in words that follow "the model"; None if they can."""
        return None

    def hint(self, config: UNetConfig) -> str:
        """The addition to a message that the runtime gives other answers, or none."""
        return ""

    def expected_answers(self, model: UNet, batches: Sequence[np.ndarray]) -> list[Tensor]:
        """The answers to batches of images that the runtime has to give."""
        return expected_logits(model, batches)

    @property
    def name(self) -> str:
        """The format's name, and that of its module."""
        return type(self).__name__.lower()

    def description(self, config: UNetConfig) -> dict[str, str]:
        """Texts by name for whoever opens the file."""
        images = "(batch, channels, height, width), pixel values as they are in image files"
        if config.dims == 3:
            images = "(batch, channels, depth, height, width), voxels clipped, standardized and resampled"
            images += " as `preprocess` in the config says"
        decoder = new_decoder(task_of_model(config))
        logits = "of the size of the images"
        if prepares_images(config) and not decoder.at_image_size:
            logits = "of the size at which the network sees the images"
        return {"images": images, "logits": logits, "decoding": decoder.reading}


def export_proved(export_format: ExportFormat, model: UNet, path: Path, options: Options) -> None:
    """Write `model` for other programs; ModelError, and no file, if their answers differ from `Predictor`'s."""
    if not path.name.endswith(export_format.suffix):
        raise SettingsError(f"{path}: the name must end in {export_format.suffix}")
    for name in FLAGS:
        if getattr(options, name) is not None and name not in export_format.flags:
            raise SettingsError(f"--{name} is not for --to {export_format.name}")
    problem = export_format.problem(model.config)
    if problem is not None:
        raise ModelError(f"the model {problem}")
    if path.is_dir():
        raise SettingsError(f"{path}: is a folder, and --to {export_format.name} writes a file")
    model = model.cpu().float().eval()
    with replace_path(path) as temporary:
        export_format.write(model, temporary, options)
        try:
            batches = proof_images(model.config)
            expected = export_format.expected_answers(model, batches)
            for answer in _open(export_format, temporary):
                check_answers(answer, export_format.runtime, batches, expected)
        except ModelError as error:
            hint = export_format.hint(model.config)
            if not hint:
                raise
            raise ModelError(f"{error}; {hint}") from error


def _open(export_format: ExportFormat, path: Path) -> Sequence[Answer]:
    """Functions that compute a written model. Raises ModelError if its runtime cannot open it."""
    try:
        return export_format.open(path)
    except Exception as error:  # a runtime may raise anything
        raise ModelError(f"{export_format.runtime} cannot open the model: {one_line(error, MESSAGE)}") from error


def import_package(package: str, install: str) -> ModuleType:
    """A library that a format needs; ModelError that names the command to `install` it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModelError(f"{package} is not installed: {install}") from error
