"""Volumes on their way from the file to the batch: one code with images, with a third axis and a spacing.

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
from data_utils.loading.augment import augment
from data_utils.loading.augmentation import STRENGTHS, Augmentation, pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import BatchSplit, Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.loaders import build_loaders, network_shapes
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.classes import ClassReader
from runtime.cache import cache_folder, digest
from runtime.errors import DataError
from tasks.classes import ClassTarget
from unet import Preprocess, UNetConfig

KEYS = [(0, 3), (0, 4), (1, 3), (2, 9), (7, 0), (9, 123456)]
SIZE = (12, 20, 16)
CUBIC = (1.0, 1.0, 1.0)
THICK = (5.0, 1.0, 1.0)  # (z, y, x) in mm


def batch(size=SIZE, channels=2, count=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, channels, *size, generator=generator).to(dtype)
    choice = torch.randint(3, (count, *size), generator=generator)
    return images, torch.tensor([0, 3, 255], dtype=torch.uint8)[choice]


def volume_augmentation(key, strength="strong", spacing=CUBIC, size=SIZE, channels=2, seed=0) -> Augmentation:
    return sample_augmentation(key, strength=strength, seed=seed, size=size, channels=channels, spacing=spacing)


def apply(images, masks, augmentations, fill=0.0, std=1.0):
    numbers = pack_augmentations(augmentations, images.shape[1], images.dtype)
    statistics = {"fill": torch.full((images.shape[1],), fill), "std": torch.full((images.shape[1],), std)}
    new_images, targets = augment(images, ClassTarget(masks), augmentations, numbers, **statistics)
    return new_images, targets.mask


def ball(size, radius, spacing=CUBIC) -> torch.Tensor:
    """(1, *size) int64: 1 within `radius` mm of the center."""
    axes = [(torch.arange(n) - (n - 1) / 2) * mm for n, mm in zip(size, spacing, strict=True)]
    return (sum(axis**2 for axis in torch.meshgrid(*axes, indexing="ij")) < radius**2).long()[None]


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("spacing", [CUBIC, THICK])
def test_a_volume_does_not_depend_on_its_batch(strength, spacing):
    images, masks = batch()
    augmentations = [volume_augmentation(key, strength, spacing) for key in KEYS]
    together = apply(images, masks, augmentations)
    for i, key in enumerate(KEYS):
        alone = apply(images[i : i + 1], masks[i : i + 1], [volume_augmentation(key, strength, spacing)])
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])
    assert set(together[1].unique().tolist()) <= {0, 3, 255}
    assert together[0].isfinite().all()
    assert torch.equal(together[0], images) == (strength == "none")


def test_a_volume_whose_augmentation_is_the_identity_comes_back_exactly():
    images, masks = batch(count=2)
    turned = replace(volume_augmentation((0, 1)), blur=1.0, noise=1.0, resolution=(0.5, 0.5, 0.5))
    new_images, new_masks = apply(images, masks, [Augmentation(np.eye(3)), turned])
    assert torch.equal(new_images[0], images[0])
    assert torch.equal(new_masks[0], masks[0].long())
    assert not torch.equal(new_images[1], images[1])


@pytest.mark.parametrize(("axis", "dim"), [(0, -1), (1, -2), (2, -3)])
def test_mirrors_move_voxels_without_mixing_them(axis, dim):
    images, masks = batch(dtype=torch.float64)
    matrix = np.eye(3)
    matrix[axis, axis] = -1.0
    new_images, new_masks = apply(images, masks, [Augmentation(matrix)] * len(images))
    # float64 rounding of the coordinates, times differences of up to 8 between neighbors: measured 6e-15
    assert torch.allclose(new_images, images.flip(dim), rtol=0, atol=1e-12)
    assert torch.equal(new_masks, masks.long().flip(dim))


@pytest.mark.parametrize(
    ("spacing", "mixed"),
    [
        (CUBIC, {(0, 1), (0, 2), (1, 2)}),
        (THICK, {(0, 1)}),
        ((1.0, 1.0, 5.0), {(1, 2)}),
        ((1.0, 5.0, 1.0), {(0, 2)}),
        ((1.0, 3.0, 9.0), set()),
        ((2.0, 1.0, 1.0), {(0, 1), (0, 2), (1, 2)}),
    ],
)
@pytest.mark.parametrize(("strength", "degrees"), [("basic", 15), ("strong", 30)])
def test_volumes_turn_only_between_axes_of_alike_spacings_and_rigidly_in_mm(spacing, mixed, strength, degrees):
    turned_axes, tilts, zooms = set(), [], []
    mm = np.array(spacing[::-1])
    for i in range(200):
        matrix = volume_augmentation((0, i), strength, spacing).matrix
        turned_axes |= {(a, b) for a in range(3) for b in range(a + 1, 3) if matrix[a, b] or matrix[b, a]}
        rigid = mm[:, None] * matrix / mm
        zooms.append(abs(np.linalg.det(rigid)) ** (-1 / 3))
        rigid = rigid * zooms[-1]
        np.testing.assert_allclose(rigid @ rigid.T, np.eye(3), atol=1e-12)
        tilts.append(math.degrees(math.acos(min(1.0, np.abs(rigid.diagonal()).max()))))
    assert turned_axes == mixed
    assert 0.8 <= min(zooms) < 0.82
    assert 1.22 < max(zooms) <= 1.25
    if len(mixed) == 1:  # about one axis, which stays where it is
        assert max(tilts) < 1e-5
        (pair,) = mixed
        angles = [
            math.degrees(math.asin(abs(zoom * volume_augmentation((0, i), strength, spacing).matrix[pair])))
            for i, zoom in enumerate(zooms)
        ]
        assert 0.95 * degrees < max(angles) <= degrees


def test_a_ball_in_mm_stays_a_ball():
    size, spacing = (24, 48, 48), (2.0, 1.0, 1.0)
    mask = ball(size, 18, spacing)
    turned = volume_augmentation((0, 5), "strong", spacing, size)
    rigid = turned.matrix * abs(np.linalg.det(turned.matrix)) ** (-1 / 3)
    assert np.abs(rigid - np.diag(rigid.diagonal())).max() > 0.2
    _, new_mask = apply(torch.zeros(1, 1, *size), mask, [Augmentation(rigid)])
    assert not new_mask[mask == 1].eq(255).any()
    # of 12,312 voxels those on the rim may fall either way: measured 692; of a turn in voxels 4,334
    assert ((new_mask == 1) != (mask == 1)).sum() < 900


@pytest.mark.parametrize("spacing", [CUBIC, THICK])
def test_a_volume_and_its_mask_stay_aligned(spacing):
    size = (24, 32, 40)
    off_center = torch.roll(ball(size, 8), (3, -4, 5), dims=(1, 2, 3))
    image = off_center[:, None].double()
    for i in range(8):
        moved = Augmentation(volume_augmentation((1, i), spacing=spacing).matrix)
        new_image, new_mask = apply(image, off_center, [moved], fill=9.0)
        inside = new_mask != 255
        assert (new_image[:, 0][~inside] == 9.0).all()
        # trilinear and nearest sampling differ on the rim only: measured 0.993
        assert ((new_image[:, 0] > 0.5) == (new_mask == 1))[inside].float().mean() > 0.99
        assert 1000 < (new_mask == 1).sum() < 4500


def test_effects_that_only_volumes_have_come_at_their_rates_and_in_their_ranges():
    augmentations = [volume_augmentation((0, i), "basic") for i in range(400)]
    gammas, coarse = [d.gamma for d in augmentations], [d.resolution for d in augmentations if d.resolution]
    assert 0.7 <= min(gammas) < 0.71
    assert 1.48 < max(gammas) <= 1.5
    assert 0.16 < len(coarse) / 400 < 0.34  # one in four: four standard deviations of 400 draws
    assert 0.5 <= np.min(coarse) < 0.52
    assert 0.98 < np.max(coarse) <= 1
    assert not any(d.blur or d.noise or d.elastic is not None for d in augmentations)
    signs = np.sign([np.diag(d.matrix) for d in augmentations])  # turns are small
    assert (signs[:, 1:] == 1).all()
    assert 0.4 < (signs[:, 0] == -1).mean() < 0.6
    thick = [volume_augmentation((0, i), spacing=THICK) for i in range(400)]
    assert {d.resolution[0] for d in thick if d.resolution} == {1.0}
    assert all(0.4 < share < 0.6 for share in (np.sign([np.diag(d.matrix) for d in thick]) == -1).mean(axis=0))
    assert any(d.blur for d in thick)
    assert any(d.noise for d in thick)
    assert all(d.elastic is None for d in thick)


@pytest.mark.parametrize("effect", [{"gamma": 0.7}, {"gamma": 1.5}, {"resolution": (0.5, 0.6, 0.9)}, {"blur": 1.0}])
def test_what_changes_values_leaves_masks_and_flat_volumes_alone(effect):
    images, masks = batch()
    new_images, new_masks = apply(images, masks, [Augmentation(np.eye(3), **effect)] * len(images))
    assert torch.equal(new_masks, masks.long())
    assert not torch.equal(new_images, images)
    flat = torch.full_like(images, 3.0)
    assert torch.allclose(
        apply(flat, masks, [Augmentation(np.eye(3), **effect)] * len(flat))[0], flat, rtol=1e-6
    )  # float32


@pytest.mark.parametrize("gamma", [0.7, 1.5])
def test_gamma_bends_each_channels_own_range_about_the_datas_mean(gamma):
    values = torch.linspace(-2.0, 6.0, 9, dtype=torch.float64)
    image = torch.stack([values, 10 * values]).view(1, 2, 1, 3, 3)
    bent, _ = apply(image, torch.zeros(1, 1, 3, 3), [Augmentation(np.eye(3), gamma=gamma)])
    low, high = bent[0].flatten(1)[:, 0], bent[0].flatten(1)[:, -1]
    assert torch.allclose(high - low, torch.tensor([8.0, 80.0], dtype=torch.float64))
    assert torch.allclose(bent[0, 1], 10 * bent[0, 0])
    curve = 8 * ((values + 2) / 8) ** gamma
    assert torch.allclose(bent[0, 0].flatten(), curve - curve[2])  # values[2] = 0, the mean


def test_a_low_resolution_has_as_few_values_along_an_axis_as_were_kept():
    image = torch.arange(16.0).expand(1, 1, 4, 4, 16)
    coarse, _ = apply(image, torch.zeros(1, 4, 4, 16), [Augmentation(np.eye(3), resolution=(1.0, 1.0, 0.25))])
    assert coarse[0, 0, 0, 0].tolist() == [2, 2, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14, 14]


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
    records_with_spacing = ListRecords(records, Metadata(dims=3))
    records_with_spacing.digest = digest(str(folder))
    split = Split(records_with_spacing, np.array(sizes), {}, locations, np.tile(spacing, (len(sizes), 1)))
    config = DataConfig(str(folder), **settings)
    reader = ClassReader(ClassMap(("background", "half", "speck"), (0, 1, 2), None), (1, 1, 1))
    return DatasetInfo(config, split, split, reader, Normalization((0.0,), (1.0,), ("float32",)))


STANDARDIZED = Preprocess(spacing=CUBIC, standardize=True)
LARGE = [(20, 24, 28)] * 3


def test_a_patch_is_a_part_of_the_volume_with_its_mask_and_another_in_each_epoch(tmp_path):
    info = write_volumes(tmp_path, LARGE, crop_size=(8, 12, 16), augment="none")
    decoded, cached = (TrainingDataset(info.train, info, STANDARDIZED) for _ in range(2))
    cached.cache()
    whole, target = decoded.samples.load(1)
    classes = target.mask
    assert whole.shape == (1, 20, 24, 28)
    assert classes.shape == (20, 24, 28)
    patches = set()
    for epoch in range(12):
        slot = Slot(1, epoch, (8, 12, 16))
        image, target, augmentation, _, problem = cached[slot]
        expected, expected_target, *_ = decoded[slot]
        assert problem is None
        assert augmentation.is_identity
        assert torch.equal(image, expected)
        assert torch.equal(target.mask, expected_target.mask)
        (corner,) = np.argwhere(whole[0] == image[0, 0, 0, 0].item()).tolist()
        part = tuple(slice(at, at + side) for at, side in zip(corner, slot.shape, strict=True))
        assert (whole[0][part] == image[0].numpy()).all()
        assert (classes[part] == target.mask.numpy()).all()
        patches.add(tuple(corner))
    assert len(patches) > 6


def test_of_the_cache_no_more_is_copied_than_the_patch(tmp_path):
    info = write_volumes(tmp_path, LARGE, crop_size=(8, 12, 16))
    dataset = TrainingDataset(info.train, info, STANDARDIZED)
    dataset.cache()
    image, target, _ = dataset.read(Slot(0, 0, (8, 12, 16)))
    assert image.shape == (1, 8, 12, 16)
    whole, whole_target = dataset.samples.decoded[0]
    assert np.shares_memory(image, whole)
    assert np.shares_memory(target.mask, whole_target.mask)


def test_a_volume_smaller_than_the_patch_is_padded_with_the_mean_and_ignored_there(tmp_path):
    info = write_volumes(tmp_path, [(6, 24, 28)], crop_size=(8, 12, 32))
    image, target, *_ = TrainingDataset(info.train, info, STANDARDIZED)[Slot(0, 0, (8, 12, 32))]
    assert image.shape == (1, 8, 12, 32)
    assert image.dtype == torch.float32
    outside = torch.ones(8, 12, 32, dtype=torch.bool)
    outside[:6, :, :28] = False
    assert ((target.mask == 255) == outside).all()
    assert (image[0][outside] == 0).all()
    assert (image[0][~outside] != 0).all()


def test_patches_favor_classes(tmp_path):
    info = write_volumes(tmp_path, [(40, 40, 40)], crop_size=(8, 8, 8))
    dataset = TrainingDataset(info.train, info, STANDARDIZED)
    dataset.cache()
    patches_with_class = sum(bool((dataset[Slot(0, epoch, (8, 8, 8))][1].mask == 2).any()) for epoch in range(180))
    # a third of the patches are around one of three classes: a ninth of 180, by chance alone one
    assert 9 <= patches_with_class <= 33


def test_classes_of_a_resampled_volume_are_found_where_they_went(tmp_path):
    info = write_volumes(tmp_path, [(20, 40, 40)], (2.0, 1.0, 1.0), crop_size=(8, 8, 8))
    dataset = TrainingDataset(info.train, info, STANDARDIZED)
    dataset.cache()
    assert dataset.samples.decoded[0][1].mask.shape == (40, 40, 40)
    patches_with_class = sum(bool((dataset[Slot(0, epoch, (8, 8, 8))][1].mask == 2).any()) for epoch in range(180))
    assert 9 <= patches_with_class <= 33


def test_turns_of_a_patch_follow_the_spacing_of_the_network(tmp_path):
    info = write_volumes(tmp_path, LARGE, THICK, augment="strong", crop_size=(8, 12, 16))
    for preprocess, tilted in ((Preprocess(standardize=True), False), (STANDARDIZED, True)):
        dataset = TrainingDataset(info.train, info, preprocess)
        matrices = np.array([dataset[Slot(0, epoch, (8, 12, 16))][2].matrix for epoch in range(4)])
        assert matrices[:, 0, 1].any()
        assert matrices[:, 2, :2].any() == tilted


def test_evaluation_sees_whole_volumes_at_the_networks_size_and_masks_at_their_own(tmp_path):
    info = write_volumes(tmp_path, [(10, 24, 28), (12, 24, 28), (10, 24, 28)], (2.0, 1.0, 1.0), crop_size=(8, 8, 8))
    config = UNetConfig(1, 3, dims=3, depth=2, preprocess=STANDARDIZED)
    shapes = network_shapes(info, config)
    assert shapes.val.tolist() == [[20, 24, 28], [24, 24, 28], [20, 24, 28]]
    batch_split = BatchSplit(2, groups=1, micro_batch_size=2, accumulation=1)
    _, loader = build_loaders(info, config, shapes, batch_split, range(1), num_workers=0, device=torch.device("cpu"))
    batches = list(loader)
    assert [batch["indices"] for batch in batches] == [[0], [2], [1]]
    for found in batches:
        for index, image, target in zip(found["indices"], found["images"], found["targets"], strict=True):
            assert image.shape == (1, *shapes.val[index])
            assert target.mask.shape == tuple(info.val.sizes[index])
            assert abs(image.mean()) < 0.02


def test_patches_are_no_smaller_than_two_values_at_the_lowest_level(tmp_path):
    info = write_volumes(tmp_path, LARGE, crop_size=(6, 12, 32))
    config = UNetConfig(1, 3, dims=3, depth=3, strides=((1, 2, 2), (2, 2, 2), (1, 2, 2)), preprocess=STANDARDIZED)
    shapes = network_shapes(info, config)
    assert shapes.train.tolist() == [[6, 16, 32]] * 3
    assert shapes.largest == (6, 16, 32)
    without_crops = replace(info, config=replace(info.config, crop_size=None))
    assert network_shapes(without_crops, config).train.tolist() == [[20, 24, 28]] * 3


@pytest.mark.parametrize(("processes", "micro_batch", "workers"), [(2, 2, 0), (1, 2, 2), (3, 1, 0)])
def test_batches_of_volumes_hold_the_same_on_any_number_of_processes(tmp_path, processes, micro_batch, workers):
    info = write_volumes(tmp_path, [(20, 24, 28), (16, 24, 24), (12, 30, 20), (20, 20, 20)], crop_size=(8, 12, 16))
    config = UNetConfig(1, 3, dims=3, depth=2, preprocess=STANDARDIZED)

    def images_of_steps(batch_split: BatchSplit, workers: int) -> list[torch.Tensor]:
        shapes, device = network_shapes(info, config), torch.device("cpu")
        loader, _ = build_loaders(info, config, shapes, batch_split, range(4), num_workers=workers, device=device)
        fill, std = torch.zeros(1), torch.ones(1)
        images = []
        for batch in loader:
            if not batch["slots"][0].filler:
                given = batch["images"], batch["targets"], batch["augmentations"], batch["packed_augmentations"]
                images.append(augment(*given, fill=fill, std=std)[0])
        return list(torch.cat(images).split(batch_split.batch_size))

    alone = images_of_steps(BatchSplit(4, 1, 4, 1), 0)
    batch_split = BatchSplit(4, processes, micro_batch, math.ceil(4 / processes / micro_batch))
    assert len(alone) == 4
    assert alone[0].shape == (4, 1, 8, 12, 16)
    assert all(torch.equal(a, b) for a, b in zip(alone, images_of_steps(batch_split, workers), strict=True))


def test_volumes_are_decoded_once_unasked_and_again_for_another_preprocessing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    info = write_volumes(tmp_path, LARGE, crop_size=(8, 8, 8))
    batch_split = BatchSplit(2, groups=1, micro_batch_size=2, accumulation=1)
    preprocessings = [
        STANDARDIZED,
        STANDARDIZED,
        *(
            replace(STANDARDIZED, **other)
            for other in ({"spacing": (1.0, 1.0, 2.0)}, {"clip": (80.0, 120.0)}, {"standardize": False})
        ),
    ]
    counts = []
    for preprocess in preprocessings:
        config = UNetConfig(1, 3, dims=3, depth=2, preprocess=preprocess)
        build_loaders(
            info, config, network_shapes(info, config), batch_split, range(1), num_workers=0, device=torch.device("cpu")
        )
        counts.append(len(list(cache_folder().glob("*.arrow"))))
    assert counts == [2, 2, 4, 6, 8]  # training and validation


def test_a_label_of_another_size_is_refused_by_name_and_sizes(tmp_path):
    info = write_volumes(tmp_path, [(6, 7, 8), (6, 8, 8)])
    records = info.train.records
    records.records[1]["target"] = records[0]["target"]
    line = "volume 1: image is 6 x 8 x 8, its label 6 x 7 x 8"
    with pytest.raises(DataError, match=line):
        EvaluationDataset(info.val, info, STANDARDIZED)[Slot(1, 0, (6, 8, 8))]
    skipping = replace(info, config=replace(info.config, on_bad_sample="skip"))
    image, target, _, problem = EvaluationDataset(info.val, skipping, STANDARDIZED)[Slot(1, 0, (6, 8, 8))]
    assert problem.startswith(line)
    assert image.shape == (1, 6, 8, 8)
    assert (image == 0).all()
    assert (target.mask == 255).all()
