"""Small volumes for tests, in any orientation, and folders of them in several layouts."""

import json
from pathlib import Path

import nibabel
import numpy as np

from data_utils.config import DataConfig
from data_utils.sources.load import find_in_folder
from data_utils.sources.records import Records

# voxel (x, y, z) -> mm of a file's own axes
RAS = np.diag([1.0, 1.0, 1.0, 1.0]) + np.array([[0, 0, 0, -7.0], [0, 0, 0, 5.0], [0, 0, 0, 3.0], [0, 0, 0, 0]])
LPS = RAS @ np.diag([-1.0, -1.0, 1.0, 1.0])
ANISOTROPIC = RAS @ np.diag([0.5, 0.75, 4.0, 1.0])
TURNED = RAS[:, [2, 0, 1, 3]] @ np.diag([2.0, -1.0, 1.0, 1.0])  # its first axis is z, the second -x


CASE_NAMES = [f"brain_{number:03}" for number in (1, 2, 4, 10)]
MSD = {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "liver", "2": "tumour"}}
NNUNET = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "tumour": 2}, "file_ending": ".nii.gz"}


def oblique(degrees: float = 20.0) -> np.ndarray:
    """An affine turned about the axis x, with spacings 1, 1.5 and 2 mm."""
    turn = np.eye(4)
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn[1:3, 1:3] = [[cosine, -sine], [sine, cosine]]
    return RAS @ turn @ np.diag([1.0, 1.5, 2.0, 1.0])


CORONAL = np.array([[-1.0, 0, 0, 11], [0, 0, 1.5, -3], [0, 2, 0, 5], [0, 0, 0, 1]])  # its second axis is z, the third y
AFFINES = {"RAS": RAS, "LPS": LPS, "anisotropic": ANISOTROPIC, "turned": TURNED, "oblique": oblique()}
AFFINES["coronal"] = CORONAL


def write_nifti(path: Path, voxels: np.ndarray, affine: np.ndarray = RAS) -> Path:
    """Voxels (x, y, z) or (x, y, z, c) in the file's own axes, with `affine` as qform and sform."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    image.set_qform(affine, 1)
    nibabel.save(image, path)
    return path


def case(seed: int, shape: tuple[int, ...] = (12, 10, 8), kind: type = np.int16) -> tuple[np.ndarray, np.ndarray]:
    """A noisy image (x, y, z) with two bright boxes, and its label of the values 0, 1 and 2."""
    rng = np.random.default_rng(seed)
    image, label = rng.integers(0, 100, shape), np.zeros(shape, np.uint8)
    for value in (1, 2):
        corner = rng.integers(0, [side // 2 for side in shape])
        box = tuple(slice(at, at + side // 3) for at, side in zip(corner, shape, strict=True))
        label[box] = value
        image[box] += 200 * value
    return image.astype(kind), label


def write_msd(folder: Path, cases: int, shape: tuple[int, ...] = (20, 24, 16)) -> Path:
    """A data set in the layout of the Medical Segmentation Decathlon, with the classes front and back."""
    training = []
    for seed in range(cases):
        for kind, voxels in zip(("imagesTr", "labelsTr"), case(seed, shape), strict=True):
            write_nifti(folder / kind / f"scan_{seed:02}.nii.gz", voxels)
        names = {"image": f"./imagesTr/scan_{seed:02}.nii.gz", "label": f"./labelsTr/scan_{seed:02}.nii.gz"}
        training.append(names)
    labels = {"0": "background", "1": "front", "2": "back"}
    content = {"name": "Scans", "modality": {"0": "MRI"}, "labels": labels, "training": training}
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def write_volume(file: Path, values: np.ndarray, spacing: tuple[float, float, float] = (2.0, 1.0, 1.0)) -> Path:
    """A volume given as (z, y, x)."""
    z, y, x = spacing
    return write_nifti(file, values.T, np.diag((x, y, z, 1.0)))


def write_decathlon(root: Path, channels: int = 1, affine: np.ndarray = LPS, description: dict | None = None) -> Path:
    """Four cases with their list; the channels lie in one file."""
    for seed, name in enumerate(CASE_NAMES):
        images = [case(seed + 10 * channel)[0] for channel in range(channels)]
        image = images[0] if channels == 1 else np.stack(images, axis=3)
        write_nifti(root / "imagesTr" / f"{name}.nii.gz", image, affine)
        write_nifti(root / "labelsTr" / f"{name}.nii.gz", case(seed)[1], affine)
    (root / "imagesTr" / f"._{CASE_NAMES[0]}.nii.gz").write_bytes(b"macOS")
    files = [{"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in CASE_NAMES]
    content = (description or MSD) | {"training": files}
    if channels > 1:
        content["modality"] = {str(channel): f"T{channel}" for channel in range(channels)}
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def write_nnunet(root: Path, channels: int = 1, affine: np.ndarray = LPS) -> Path:
    """The same cases with a file for each channel."""
    for seed, name in enumerate(CASE_NAMES):
        for channel in range(channels):
            image = case(seed + 10 * channel)[0]
            write_nifti(root / "imagesTr" / f"{name}_{channel:04}.nii.gz", image, affine)
        write_nifti(root / "labelsTr" / f"{name}.nii.gz", case(seed)[1], affine)
    content = dict(NNUNET)
    if channels > 1:
        content["channel_names"] = {str(channel): f"T{channel}" for channel in range(channels)}
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def write_pairs(root: Path, affine: np.ndarray = LPS) -> Path:
    """The same cases as images beside masks, without a list."""
    for seed, name in enumerate(CASE_NAMES):
        image, label = case(seed)
        write_nifti(root / "images" / f"{name}.nii.gz", image, affine)
        write_nifti(root / "masks" / f"{name}.nii.gz", label, affine)
    return root


def volume_config(root: Path, **settings) -> DataConfig:
    """A data set in a folder, of which a quarter is validated on."""
    return DataConfig(str(root), **({"val_fraction": 0.25} | settings))


def training_volumes(root: Path, **settings) -> Records:
    """The records of the training split of a folder of volumes, before any is held out."""
    config = volume_config(root, **settings)
    return find_in_folder(root, (), config)["train"]()
