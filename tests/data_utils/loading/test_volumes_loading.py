"""Volumes on their way from the file to the batch: patches to train on, whole volumes to validate on, their cache.

Modules: data_utils/loading/volume_input.py, runtime/cache.py.
"""

import math
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.loading.augmentation import augment
from data_utils.loading.batch_sampler import BatchSplit, Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.loaders import build_loaders, network_shapes
from data_utils.sources.records import ListRows, Metadata, Records
from runtime.cache import cache_folder, digest
from runtime.errors import DataError
from tasks.classes.reader import ClassReader
from unet import Preprocess, UNetConfig

CUBIC = (1.0, 1.0, 1.0)
STANDARDIZED = Preprocess(spacing=CUBIC, standardize=True)
LARGE = [(20, 24, 28)] * 3


def write_volumes(folder: Path, sizes: list[tuple[int, int, int]], spacing=CUBIC, **settings) -> DatasetInfo:
    """Noise in NIfTI files with a label 1 in one half and a single voxel of 2; what is known of them."""
    rng, records, locations = np.random.default_rng(0), [], {}
    for i, size in enumerate(sizes):
        label = np.zeros(size, np.uint8)
        label[: size[0] // 2] = 1
        label[-2, 1, -3] = 2
        affine = np.diag([*spacing[::-1], 1.0])
        files = []
        for kind, values in (("image", rng.normal(100, 20, size).astype(np.float32)), ("label", label)):
            files.append(folder / f"{kind}{i}.nii")
            nibabel.save(nibabel.Nifti1Image(values.transpose(2, 1, 0), affine), files[-1])
        image, mask = (VolumeFile((str(file),)) for file in files)
        records.append({"image": image, "target": mask, "name": f"volume {i}"})
        locations[i] = [np.argwhere(label == value) for value in range(3)]
    records_with_spacing = Records(ListRows(records), Metadata(dims=3))
    records_with_spacing.digest = digest(str(folder))
    split = Split(records_with_spacing, np.array(sizes), {}, locations, np.tile(spacing, (len(sizes), 1)))
    config = DataConfig(str(folder), **settings)
    reader = ClassReader(ClassMap(("background", "half", "speck"), (0, 1, 2), None), class_pixels=(1, 1, 1))
    return DatasetInfo(config, split, split, reader, Normalization((0.0,), (1.0,), ("float32",)))


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """A data set of large volumes and patches, which are not augmented; and its images, read anew and from a cache."""
    folder = tmp_path_factory.mktemp("patches")
    info = write_volumes(folder, LARGE, crop_size=(8, 12, 16), augment="none")
    decoded, cached = (TrainingDataset(info.train, info, STANDARDIZED) for _ in range(2))
    cached.cache()
    return decoded, cached


def corner_of(patch: torch.Tensor, whole: np.ndarray) -> tuple[int, ...]:
    """The place of a patch's first voxel in its volume, no two voxels of which are the same."""
    (corner,) = np.argwhere(whole == patch[0, 0, 0].item()).tolist()
    return tuple(corner)


@pytest.mark.parametrize("epoch", range(4))
def test_a_patch_is_a_part_of_the_volume_with_its_mask(patches, epoch):
    decoded, cached = patches
    (whole,), target = decoded.load(1)
    assert whole.shape == (20, 24, 28)
    assert target.mask.shape == (20, 24, 28)
    (image,), patch_target, augmentation, _, problem = cached[Slot(1, epoch, (8, 12, 16))]
    part = tuple(slice(at, at + side) for at, side in zip(corner_of(image, whole), (8, 12, 16), strict=True))
    assert (whole[part] == image.numpy()).all()
    assert (target.mask[part] == patch_target.mask.numpy()).all()
    assert augmentation.is_identity
    assert problem is None
    expected, expected_target, *_ = decoded[Slot(1, epoch, (8, 12, 16))]
    assert torch.equal(image, expected[0])
    assert torch.equal(patch_target.mask, expected_target.mask)


@pytest.mark.parametrize("width", [28, 32])
def test_a_volume_smaller_than_the_patch_is_padded_with_the_mean_and_ignored_there(tmp_path, width):
    info = write_volumes(tmp_path, [(6, 24, width)], crop_size=(8, 12, 32))
    image, target, *_ = TrainingDataset(info.train, info, STANDARDIZED)[Slot(0, 0, (8, 12, 32))]
    assert image.shape == (1, 8, 12, 32)
    assert image.dtype == torch.float32
    outside = torch.ones(8, 12, 32, dtype=torch.bool)
    outside[:6, :, :width] = False
    assert ((target.mask == 255) == outside).all()
    assert (image[0][outside] == 0).all()
    assert (image[0][~outside] != 0).all()


def test_classes_of_a_resampled_volume_are_found_where_they_went(tmp_path):
    info = write_volumes(tmp_path, [(20, 40, 40)], (2.0, 1.0, 1.0), crop_size=(8, 8, 8))
    dataset = TrainingDataset(info.train, info, STANDARDIZED)
    dataset.cache()
    assert dataset.decoded[0][1].mask.shape == (40, 40, 40)
    patches_with_class = sum(bool((dataset[Slot(0, epoch, (8, 8, 8))][1].mask == 2).any()) for epoch in range(180))
    assert 9 <= patches_with_class <= 33


def volume_loaders(info: DatasetInfo, config: UNetConfig, batch_split: BatchSplit, steps: int = 1, workers: int = 0):
    """The loaders of a network for so many training steps, and for evaluation."""
    shapes, device = network_shapes(info, config), torch.device("cpu")
    return build_loaders(info, config, shapes, batch_split, range(steps), num_workers=workers, device=device)


ONE_PROCESS = BatchSplit(2, groups=1, micro_batch_size=2, accumulation=1)


def test_evaluation_sees_whole_volumes_at_the_networks_size_and_masks_at_their_own(tmp_path):
    info = write_volumes(tmp_path, [(10, 24, 28), (12, 24, 28), (10, 24, 28)], (2.0, 1.0, 1.0), crop_size=(8, 8, 8))
    config = UNetConfig(1, 3, dims=3, depth=2, preprocess=STANDARDIZED)
    sizes = network_shapes(info, config).val
    assert sizes.tolist() == [[20, 24, 28], [24, 24, 28], [20, 24, 28]]
    _, loader = volume_loaders(info, config, ONE_PROCESS)
    for batch in loader:
        for index, image, target in zip(batch["indices"], batch["images"], batch["targets"], strict=True):
            assert image.shape == (1, *sizes[index])
            assert target.mask.shape == tuple(info.val.sizes[index])
            assert abs(image.mean()) < 0.02


def test_patches_are_no_smaller_than_two_values_at_the_lowest_level(tmp_path):
    info = write_volumes(tmp_path, LARGE, crop_size=(6, 12, 32))
    config = UNetConfig(1, 3, dims=3, depth=3, strides=((1, 2, 2), (2, 2, 2), (1, 2, 2)), preprocess=STANDARDIZED)
    shapes = network_shapes(info, config)
    assert shapes.train.tolist() == [[6, 16, 32]] * 3
    assert shapes.largest == (6, 16, 32)


def augmented_steps(info: DatasetInfo, batch_split: BatchSplit, workers: int = 0) -> list[torch.Tensor]:
    """The augmented images of four training steps, as all processes of a launch together see them."""
    config = UNetConfig(1, 3, dims=3, depth=2, preprocess=STANDARDIZED)
    loader, _ = volume_loaders(info, config, batch_split, steps=4, workers=workers)
    statistics = {"fill": torch.zeros(1), "std": torch.ones(1)}
    images = []
    for batch in loader:
        if not batch["slots"][0].is_filler:
            numbers = batch["augmentations"], batch["packed_augmentations"]
            images.append(augment(batch["images"], batch["targets"], *numbers, **statistics)[0])
    return list(torch.cat(images).split(batch_split.batch_size))


@pytest.mark.parametrize(("processes", "micro_batch", "workers"), [(2, 2, 0), (1, 2, 2), (3, 1, 0)])
def test_batches_of_volumes_hold_the_same_on_any_number_of_processes(tmp_path, processes, micro_batch, workers):
    info = write_volumes(tmp_path, [(20, 24, 28), (16, 24, 24), (12, 30, 20), (20, 20, 20)], crop_size=(8, 12, 16))
    alone = augmented_steps(info, BatchSplit(4, 1, 4, 1))
    together = augmented_steps(
        info, BatchSplit(4, processes, micro_batch, math.ceil(4 / processes / micro_batch)), workers
    )
    assert len(alone) == 4
    assert alone[0].shape == (4, 1, 8, 12, 16)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def count_decoded_splits(info: DatasetInfo, preprocess: Preprocess) -> int:
    """How many splits lie in the cache after loaders with this preprocessing were built."""
    volume_loaders(info, UNetConfig(1, 3, dims=3, depth=2, preprocess=preprocess), ONE_PROCESS)
    return len(list(cache_folder().glob("*.arrow")))


@pytest.mark.parametrize(
    "changes", [{"spacing": (1.0, 1.0, 2.0)}, {"clip": (80.0, 120.0)}, {"standardize": False}], ids=str
)
def test_volumes_are_decoded_once_without_a_flag_and_again_for_another_preprocessing(tmp_path, monkeypatch, changes):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    info = write_volumes(tmp_path, LARGE, crop_size=(8, 8, 8))
    for _ in range(2):
        assert count_decoded_splits(info, STANDARDIZED) == 2  # training and validation
    assert count_decoded_splits(info, replace(STANDARDIZED, **changes)) == 4


def test_a_label_of_another_size_is_refused_by_name_and_sizes_or_makes_an_empty_sample(tmp_path):
    info = write_volumes(tmp_path, [(6, 7, 8), (6, 8, 8)])
    records = info.train.records
    records.rows.records[1]["target"] = records[0]["target"]
    line = "volume 1: image is 6 x 8 x 8, its label 6 x 7 x 8"
    with pytest.raises(DataError, match=line):
        EvaluationDataset(info.val, info, STANDARDIZED)[Slot(1, 0, (6, 8, 8))]
    skipping = replace(info, config=replace(info.config, on_bad_sample="skip"))
    image, target, _, problem = EvaluationDataset(skipping.val, skipping, STANDARDIZED)[Slot(1, 0, (6, 8, 8))]
    assert problem.startswith(line)
    assert image.shape == (1, 6, 8, 8)
    assert (image == 0).all()
    assert (target.mask == 255).all()
