"""The files of a model, its configuration and its weights: where they are, and whether they are whole."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime.documents import read_json
from runtime.errors import ModelError
from unet.config import UNetConfig

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
LAYER_WORDS = ("depth", "layer", "block")  # words in the names of an encoder's entries that count layers


def check_source(name: str) -> None:
    """Raises ModelError unless `name` is a folder with the files of a model, or may be a Hub id."""
    folder = Path(name)
    if not folder.is_dir():
        # `owner/name` is a Hub id, unless there is a folder `owner` here: then it is a mistyped path
        if name.count("/") == 1 and not folder.parent.exists():
            return
        raise ModelError(f"{name}: is not a folder with config.json and {WEIGHTS_NAME}, as train.py writes RUN/model")
    for file in (CONFIG_NAME, WEIGHTS_NAME):
        if not (folder / file).is_file():
            remedy = "give the folder RUN/model that train.py writes"
            for model in (folder / "model", folder.parent.parent / "model"):  # the folder is a run, or a checkpoint
                if (model / file).is_file():
                    remedy = f"the best model of this run is {model}"
            raise ModelError(f"{name}: has no {file}; {remedy}")


def read_config(file: Path) -> UNetConfig:
    """The config in a file. Raises ValueError if the file is damaged, or no config of this version."""
    try:
        content = read_json(file)
    except ValueError as error:
        raise ValueError(f"{CONFIG_NAME} is damaged ({error})") from error
    return UNetConfig.from_json(content)


def read_weights(file: Path) -> dict[str, Tensor]:
    """The weights in a file. Raises ValueError if the file is damaged, or holds values that are no numbers."""
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{WEIGHTS_NAME} is damaged ({error})") from error
    check_numbers(weights)
    return weights


def write_weights(weights: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write contiguous tensors into a new file, which those may read who may read other new files.

    Raises OSError if the disk does not take them.
    """
    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(weights, file, metadata)  # which no other user may read
    except SafetensorError as error:
        raise OSError(str(error)) from error
    with suppress(OSError):  # of a file system without modes
        file.chmod(mode)


def check_numbers(weights: dict[str, Tensor]) -> None:
    """Raises ValueError for values that are not finite, as a run that diverged leaves them."""
    names = [name for name, values in weights.items() if not bool(values.isfinite().all())]
    if names:
        raise ValueError(f"is damaged: {len(names)} weights are no finite numbers, such as {names[0]}")


def layer_counts(encoder: dict[str, Any]) -> list[int]:
    """The whole numbers in an encoder's config that count layers."""
    counts = [0]
    for name, value in encoder.items():
        if any(word in name for word in LAYER_WORDS):
            values = value if isinstance(value, list) else [value]
            counts += [number for number in values if isinstance(number, int)]
    return counts
