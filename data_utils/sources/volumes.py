"""Folders of volumes -> cases: the layouts of the Medical Segmentation Decathlon, of nnU-Net, images/ beside masks/."""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from data_utils.config import DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, VolumeFile
from data_utils.image_io.volume_formats import STACK_SUFFIXES, VOLUME_SUFFIXES, Spacing
from data_utils.image_io.volumes import volume_stem
from data_utils.sources.folder import NAMED, children, detect_suffix, find_splits, natural
from data_utils.sources.records import Record, Records
from runtime.cache import digest_of_files
from runtime.errors import DataError

DESCRIPTION, SPACING = "dataset.json", "spacing.json"


class Case(NamedTuple):
    """The files of a volume: its name, its image or one image for each channel, its mask."""

    name: str
    images: tuple[str, ...]
    mask: str


class Description(NamedTuple):
    """What a dataset.json says: classes, modality, how many files of one channel each image has, cases to train on."""

    classes: tuple[tuple[int, str], ...] = ()
    modality: str | None = None
    channels: int | None = None
    cases: tuple[str, ...] | None = None


class VolumeRecords(Records):
    """Records {"image": VolumeFile, "target": VolumeFile, "name": name of the case}, the same in every layout.

    Args:
        spacing: (z, y, x) in mm of files that hold none.
        unpaired: what has been left out, a line for each file.
    """

    dims = 3

    def __init__(
        self, cases: Sequence[Case], spacing: Spacing | None, description: Description, unpaired: Iterable[str] = ()
    ) -> None:
        self.cases, self.spacing, self.unpaired = list(cases), spacing, tuple(unpaired)
        self.classes, self.modality = description.classes, description.modality

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, i: int) -> Record:
        name, images, mask = self.cases[i]
        return {"image": self._file(images), "target": self._file((mask,)), "name": name}

    def _file(self, paths: tuple[str, ...]) -> VolumeFile:
        return VolumeFile(paths, self.spacing if paths[0].lower().endswith(STACK_SUFFIXES) else None)

    @cached_property
    def digest(self) -> str:  # type: ignore[override]  # computed once it is asked for
        """Key of names, sizes and times of all files."""
        paths = [path for case in self.cases for path in (*case.images, case.mask)]
        return digest_of_files(paths, repr((self.cases, self.spacing)).encode())


def open_volumes(root: Path, named: Sequence[str], config: DataConfig) -> dict[str, Callable[[], VolumeRecords]]:
    """Split -> what opens it, of a folder that holds volumes; nothing of others.

    `.npy` files and TIFFs of many pages are volumes where a spacing is given, by flag or file, or `--dims 3`.
    """
    folders = children(root)
    stacks = config.dims == 3 or config.spacing is not None or _spacing_file(root, *folders.values()) is not None
    suffixes = (*VOLUME_SUFFIXES, *STACK_SUFFIXES) if stacks else VOLUME_SUFFIXES
    if {"imagestr", "labelstr"} <= folders.keys():
        splits = {"train": (folders["imagestr"], folders["labelstr"])}
    elif any(_holds(folder, suffixes) for folder in folders.values()):
        splits = find_splits(root, named)
    else:
        return {}
    return {name: partial(open_cases, *both, suffixes, config) for name, both in splits.items()}


def _holds(folder: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether any file with one of these endings lies beside the first images."""
    for _, _, names in os.walk(folder, followlinks=True):
        known = [name.lower() for name in names if name.lower().endswith((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES))]
        if known:
            return any(name.endswith(suffixes) and not name.startswith(".") for name in known)
    return False


def open_cases(images: Path, masks: Path, suffixes: tuple[str, ...], config: DataConfig) -> VolumeRecords:
    """The cases of two folders, in natural order; those that a dataset.json lists, where there is one.

    An image is CASE.ext, with its channels in the file, or CASE_0000.ext, CASE_0001.ext, ... with one channel each.
    Raises DataError for doubles and missing channels and, unless allowed, for files without partner.
    """
    described = masks.name.lower() == "labelstr" and (masks.parent / DESCRIPTION).exists()
    description = read_description(masks.parent / DESCRIPTION) if described else Description()
    image_files, mask_files = _files_by_stem(images, "images", suffixes), _files_by_stem(masks, "masks", suffixes)
    suffix = config.mask_suffix
    if suffix is None:
        suffix = "" if described else detect_suffix(image_files, mask_files)
    mask_of = {stem.removesuffix(suffix): path for stem, path in mask_files.items() if stem.endswith(suffix)}
    images_of: dict[str, tuple[str, ...]] = {stem: (path,) for stem, path in image_files.items()}
    if description.channels is not None or not mask_of.keys() & images_of.keys():
        images_of = _by_channel(image_files, description.channels)
    listed = images_of if description.cases is None else description.cases
    names = sorted((name for name in listed if name in images_of and name in mask_of), key=natural)
    if description.cases is None:
        unpaired = [
            f"{path}: image without mask" for name in images_of if name not in mask_of for path in images_of[name]
        ]
        used = {mask_of[name] for name in names}
        unpaired += [f"{path}: mask without image" for path in mask_files.values() if path not in used]
    else:
        unpaired = [f"{images}: no image {name}, which {DESCRIPTION} lists" for name in listed if name not in images_of]
        unpaired += [f"{masks}: no label {name}, which {DESCRIPTION} lists" for name in listed if name not in mask_of]
    if unpaired and not (config.allow_unpaired and names):
        shown = "; ".join(unpaired[:NAMED] + ["..."] * (len(unpaired) > NAMED))
        remedy = " (--allow-unpaired leaves them out)" if names else ""
        raise DataError(f"{len(unpaired)} volumes have no partner: {shown}{remedy}")
    cases = [Case(name, images_of[name], mask_of[name]) for name in names]
    return VolumeRecords(cases, config.spacing or spacing_of(images), description, unpaired)


def _files_by_stem(folder: Path, what: str, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Path below the folder without extension -> path, of all files that may be volumes."""
    stems: dict[str, str] = {}
    for path in sorted(folder.rglob("*"), key=lambda path: natural(str(path))):
        below = path.relative_to(folder)
        if any(part.startswith(".") for part in below.parts) or not path.name.lower().endswith(suffixes):
            continue
        stem = volume_stem(below.as_posix())
        if stem in stems:
            raise DataError(
                f"two {what} with the same name in {folder}: {os.path.basename(stems[stem])} and {path.name}; keep one"
            )
        stems[stem] = str(path)
    if not stems:
        hint = "" if ".npy" in suffixes else " (and, with a spacing, for TIFF and .npy)"
        found = ", ".join(sorted({path.suffix or path.name for path in folder.rglob("*")})[:NAMED]) or "nothing"
        raise DataError(f"no volumes in {folder}; found {found}, looked for {', '.join(suffixes)}{hint}")
    return stems


def _by_channel(files: dict[str, str], count: int | None) -> dict[str, tuple[str, ...]]:
    """Case -> its files CASE_0000, CASE_0001, ...; DataError where one has no number or is missing."""
    cases: dict[str, dict[int, str]] = {}
    for stem, path in files.items():
        numbered = re.fullmatch("(.+)_([0-9]{4})", stem)
        if not numbered:
            raise DataError(
                f"{path} has no mask of its name, and its name does not end in a channel number such as _0000"
            )
        cases.setdefault(numbered[1], {})[int(numbered[2])] = path
    expected = count or max(map(len, cases.values()))
    for name, channels in cases.items():
        missing = [f"{name}_{number:04}" for number in range(expected) if number not in channels]
        if missing or len(channels) > expected:
            seen = ", ".join(f"{number:04}" for number in sorted(channels))
            raise DataError(
                f"{next(iter(channels.values()))}: its case has the channels {seen}, but needs {expected}, from 0000 on"
            )
    return {name: tuple(channels[number] for number in sorted(channels)) for name, channels in cases.items()}


def read_description(file: Path) -> Description:
    """A dataset.json of the Decathlon ("modality", labels {"0": name}) or of nnU-Net ("channel_names", {name: 0})."""
    content = _read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("labels"), dict):
        raise DataError(f'{file} has no "labels": {{"0": "background", ...}}, as a data set of volumes has')
    labels = content["labels"]
    if all(isinstance(name, str) for name in labels.values()):
        labels = {name: value for value, name in labels.items()}
    classes = []
    for name, value in labels.items():
        if isinstance(value, list):
            raise DataError(
                f"{file}: the label {name} is a region, {value}; regions are not supported, give one number"
            )
        if not re.fullmatch("[0-9]+", str(value)):
            raise DataError(f"{file}: the label {name} is {value!r}, expected a whole number")
        if name != "ignore":  # nnU-Net's word for what --ignore-index names
            classes.append((int(value), name))
    modalities = content.get("channel_names", content.get("modality"))
    names = [str(name) for name in modalities.values()] if isinstance(modalities, dict) else []
    channels = len(names) if "channel_names" in content else None
    training = content.get("training")
    cases = None
    if isinstance(training, list):
        try:
            cases = tuple(volume_stem(Path(entry["label"]).name) for entry in training)
        except (TypeError, KeyError) as error:
            raise DataError(f'{file}: "training" lists something else than {{"image": ..., "label": ...}}') from error
    return Description(tuple(sorted(classes)), ", ".join(dict.fromkeys(names)) or None, channels, cases)


def _spacing_file(*folders: Path) -> Path | None:
    return next((folder / SPACING for folder in folders if (folder / SPACING).exists()), None)


def spacing_of(images: Path) -> Spacing | None:
    """Of the spacing.json nearest to the images: beside them, or above."""
    file = _spacing_file(images, images.parent, images.parent.parent)
    if file is None:
        return None
    spacing = _read_json(file)
    good = isinstance(spacing, list) and len(spacing) == 3
    if not good or not all(isinstance(side, int | float) and side > 0 for side in spacing):
        raise DataError(f"{file} holds {str(spacing)[:80]}, expected [z, y, x] in mm")
    z, y, x = map(float, spacing)
    return z, y, x


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error})") from error
