"""From a record to what the network gets: padding, fillers, crops and masks that follow their images.

Modules: data_utils/target.py, data_utils/loading/dataset.py, data_utils/loading/decoded_cache.py,
data_utils/loading/loaders.py.
"""

import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.analysis.normalization import Normalization
from data_utils.image_io.resize import resize_mask
from data_utils.loading.augmentation import augment, pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import BatchSplit, Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset, collate_evaluation, collate_training
from data_utils.loading.decoded_cache import room_for
from data_utils.loading.loaders import NetworkShapes, build_loaders, network_shapes
from runtime.errors import ImageError
from tasks.classes.target import ClassTarget
from tasks.overlapping.reader import OverlapReader
from tasks.overlapping.target import OverlapTarget
from unet import Preprocess, UNetConfig

IGNORED = 255


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("data"), 6, seed=0, size=(16, 24))


@pytest.fixture(scope="module")
def info(folder: Path) -> DatasetInfo:
    return load_info(folder, crop_size=(8, 8), augment="strong", val_fraction=0.4)


def training(folder: Path, preprocess: Preprocess | None = None, **settings) -> TrainingDataset:
    info = load_info(folder, **settings)
    return TrainingDataset(info.train, info, preprocess or Preprocess())


def stored(dataset: TrainingDataset, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Image (C, H, W) and class indices (H, W) of a record's files."""
    record = dataset.split.records[index]
    image = np.asarray(Image.open(record["image"])).transpose(2, 0, 1)
    return image, np.asarray(Image.open(record["target"])) // 255


def test_a_sample_is_padded_with_the_mean_that_counts_nowhere(folder):
    dataset = training(folder)
    image, target, _, slot, problem = dataset[Slot(1, 3, (20, 32))]
    pixels, classes = stored(dataset, 1)
    assert (image[:, :16, :24].numpy() == pixels).all()
    assert (target.mask[:16, :24].numpy() == classes).all()
    assert (target.mask[16:] == IGNORED).all()
    assert (target.mask[:, 24:] == IGNORED).all()
    mean = torch.tensor(dataset.fill).round().to(torch.uint8)[:, None]
    assert image.shape == (3, 20, 32)
    assert (image[:, 16:].flatten(1) == mean).all()
    assert (image[:, :, 24:].flatten(1) == mean).all()
    assert (slot.index, slot.epoch, problem) == (1, 3, None)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_brings_what_augmentation_needs_of_it(folder, workers):
    """Drawn by each image's key for the padded size, and by nothing else."""
    info = load_info(folder, augment="strong", seed=3, val_fraction=0.2)
    shapes = NetworkShapes(np.tile((20, 32), (len(info.train), 1)), info.val.sizes)
    batch_split = BatchSplit(4, groups=1, micro_batch_size=2, accumulation=2)
    loader, _ = build_loaders(
        info, UNetConfig(), shapes, batch_split, range(4), num_workers=workers, device=torch.device("cpu")
    )
    statistic, seen = torch.full((3,), 50.0), Counter()
    for batch in loader:
        settings = {"strength": "strong", "seed": 3, "size": (20, 32), "channels": 3}
        keys = [(slot.epoch, slot.index) for slot in batch["slots"]]
        expected = [sample_augmentation(key, **settings) for key in keys]
        numbers = pack_augmentations(expected, 3)
        assert torch.equal(batch["packed_augmentations"], numbers)
        assert batch["packed_augmentations"].dtype == torch.float32
        given = (batch["images"], batch["targets"])
        images, targets = augment(
            *given, batch["augmentations"], batch["packed_augmentations"], fill=statistic, std=statistic
        )
        wanted_images, wanted_targets = augment(*given, expected, numbers, fill=statistic, std=statistic)
        assert torch.equal(images, wanted_images)
        assert torch.equal(targets.mask, wanted_targets.mask)
        assert not any(augmentation.is_identity for augmentation in batch["augmentations"])
        seen.update(keys)
    assert len(seen) == 2 * len(info.train)  # epochs


@pytest.mark.parametrize(("depth", "shortest"), [(2, 8), (4, 32)])
def test_training_images_leave_two_values_at_the_lowest_level(folder, depth, shortest):
    info = load_info(folder)
    shapes = network_shapes(info, UNetConfig(depth=depth))
    assert shapes.train.tolist() == np.maximum(info.train.sizes, shortest).tolist()
    assert info.train.sizes.min() < 32


def test_a_filler_of_training_is_a_real_image_that_counts_nowhere(folder):
    dataset = training(folder)
    image, target, *_ = dataset[Slot(2, 0, (16, 24), is_filler=True)]
    assert (image.numpy() == stored(dataset, 2)[0]).all()
    assert (target.mask == IGNORED).all()
    assert dataset[Slot(2, 0, (20, 32), is_filler=True)][0].shape == (3, 20, 32)


def test_a_crop_is_a_part_of_the_image_with_its_mask(folder):
    dataset = training(folder, crop_size=(8, 12))
    pixels, classes = stored(dataset, 0)
    whole = np.concatenate([pixels, classes[None]])
    crops = set()
    for epoch in range(12):
        image, target, *_ = dataset[Slot(0, epoch, (8, 12))]
        crop = np.concatenate([image.numpy(), target.mask[None].numpy()])
        places = [(y, x) for y in range(9) for x in range(13) if (whole[:, y : y + 8, x : x + 12] == crop).all()]
        assert len(places) == 1
        crops.update(places)
    assert len(crops) > 6  # of 12 epochs


def test_crops_around_a_rare_class_find_it(tmp_path):
    write_folder(tmp_path, 3, seed=0, size=(64, 64))
    for file in (tmp_path / "masks").iterdir():
        mask = np.zeros((64, 64), np.uint8)
        mask[5, 60] = 255
        Image.fromarray(mask).save(file)
    dataset = training(tmp_path, crop_size=(8, 8), classes="0=background,255=speck")
    crops_with_class = sum(bool((dataset[Slot(0, epoch, (8, 8))][1].mask == 1).any()) for epoch in range(90))
    # one crop in three looks for a class, one of the two in the mask: a sixth of 90, by chance alone one or two
    assert 7 <= crops_with_class <= 25


@pytest.mark.parametrize(
    ("size", "target"), [((16, 24), (8, 12)), ((16, 24), (5, 7)), ((5, 7), (16, 24)), ((9, 9), (9, 4))]
)
def test_a_resized_mask_has_the_value_under_each_pixels_center(size, target):
    mask = np.arange(size[0] * size[1]).reshape(size)
    rows, columns = (
        [min(int((i + 0.5) * have / want), have - 1) for i in range(want)]
        for have, want in zip(size, target, strict=True)
    )
    assert (resize_mask(mask, target) == mask[np.ix_(rows, columns)]).all()


def test_a_resized_mask_lies_where_its_resized_image_does(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    bright = np.zeros((40, 40), bool)
    bright[10:30, 4:24] = True  # on the edges of target pixels
    for name in "ab":
        Image.fromarray((bright * 255).astype(np.uint8)).save(tmp_path / "images" / f"{name}.png")
        Image.fromarray(bright.astype(np.uint8)).save(tmp_path / "masks" / f"{name}.png")
    image, target, *_ = training(tmp_path, Preprocess(scale=0.5), scale=0.5)[Slot(0, 0, (20, 20))]
    assert ((image[0] > 127).numpy() == target.mask.numpy()).all()


def test_samples_that_threads_decode_are_those_of_one_thread_in_its_order(folder):
    slots = [Slot(index, 0, (20, 32)) for index in (3, 0, 2, 1)]
    alone, together = training(folder), training(folder)
    together.threads = 3
    for one, other in zip(alone.__getitems__(slots), together.__getitems__(slots), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1].mask, other[1].mask)
        assert one[3] == other[3]


def test_a_sample_that_is_kept_is_not_decoded_again_while_there_is_room(tmp_path):
    samples = training(write_folder(tmp_path, 6, seed=0, size=(16, 24)))
    samples.room = 2 * 16 * 24 * 4  # bytes: two images with their masks
    slots = [Slot(index, 0, (16, 24)) for index in range(3)]
    first = samples.__getitems__(slots)
    for file in tmp_path.rglob("*.png"):
        file.unlink()
    for before, again in zip(first, samples.__getitems__(slots[:2]), strict=False):
        assert torch.equal(before[0], again[0])
        assert torch.equal(before[1].mask, again[1].mask)
    with pytest.raises(ImageError):
        samples[slots[2]]


@pytest.mark.parametrize(("pixels", "processes", "is_kept"), [(10**6, 0, True), (10**6, 8, True), (10**10, 1, False)])
def test_only_data_sets_that_fit_are_kept_in_memory(pixels, processes, is_kept):
    assert (room_for(pixels, 3, processes) > 0) is is_kept


@pytest.fixture(
    params=itertools.product((TrainingDataset, EvaluationDataset), (False, True)),
    ids=["training", "training, cached", "evaluation", "evaluation, cached"],
)
def one_bad(request, info, tmp_path, monkeypatch) -> TrainingDataset | EvaluationDataset:
    """A data set that knows its second sample to be bad."""
    dataset_type, is_cached = request.param
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    skipping = replace(info, config=replace(info.config, on_bad_sample="skip", crop_size=None))
    dataset = dataset_type(replace(info.train, bad={1: "b.png: is damaged"}), skipping, Preprocess())
    if is_cached:
        dataset.cache()
    return dataset


def test_a_sample_that_is_known_to_be_bad_is_a_filler_and_its_problem_goes_along_with_its_batch(one_bad):
    collate = collate_training if isinstance(one_bad, TrainingDataset) else collate_evaluation
    samples = one_bad.__getitems__([Slot(index, 0, (16, 24)) for index in (2, 1)])
    assert collate(samples)["problems"] == ["b.png: is damaged"]
    (_, known, *_), (image, unknown, *_) = samples
    assert (known.mask != IGNORED).all()
    assert (unknown.mask == IGNORED).all()
    assert torch.allclose(image.float().mean((1, 2)), torch.tensor(one_bad.fill), atol=0.6)


SEEDS_OF_CLASSES = [seed for seed in range(12) if np.random.default_rng(seed).random() < 1 / 3]  # crops about a class


@pytest.mark.parametrize("seed", SEEDS_OF_CLASSES[:2])
def test_a_crop_around_a_class_that_may_overlap_lies_around_a_pixel_of_one(info, seed):
    reader = OverlapReader(("a", "b"))
    samples = TrainingDataset(info.train, replace(info, reader=reader), Preprocess())
    truth = np.zeros((16, 24), np.int32)
    truth[15, 3] = 2
    target = OverlapTarget(truth, np.full_like(truth, 3))
    rows, columns = samples.choose_window(0, target, (2, 2), np.random.default_rng(seed))
    assert rows == (14, 16)
    assert columns[0] <= 3 < columns[1]


def test_an_image_of_other_channels_is_named(info):
    two_channels = replace(info, normalization=Normalization((0.0, 0.0), (1.0, 1.0), ()))
    split = replace(info.train, class_locations={1: [np.zeros((1, 2), int)]})
    samples = TrainingDataset(split, two_channels, Preprocess())
    message = f"^{re.escape(split.records.name(1))}: has 3 channels, the model takes 2"
    with pytest.raises(ImageError, match=message):
        samples.load(1)
    with pytest.raises(ImageError, match=message):
        samples.load_crop(1, (8, 6), np.random.default_rng(0))


def test_arrays_that_are_mapped_from_a_file_are_not_written_to(info):
    image, mask = np.zeros((3, 2, 2), np.uint8), np.zeros((2, 2), np.uint8)
    image.flags.writeable = mask.flags.writeable = False
    dataset = EvaluationDataset(info.val, info, Preprocess())
    dataset.read = lambda slot: (image, ClassTarget(mask), None)
    tensor, target, *_ = dataset[Slot(0, 0, (2, 2))]
    tensor += 1
    target.mask.add_(1)
    assert (tensor == 1).all()
    assert (target.mask == 1).all()
    assert not image.any()
    assert not mask.any()


@pytest.mark.parametrize("mirrors", [True, False])
def test_images_are_mirrored_only_where_the_reader_allows_it(info, mirrors):
    dataset = TrainingDataset(info.train, info, Preprocess())
    dataset.reader = SimpleNamespace(mirrors=mirrors, mirror=lambda target: target)
    dataset.read = lambda slot: (np.zeros((3, 8, 8), np.uint8), ClassTarget(np.zeros((8, 8), np.uint8)), None)
    augmentations = [dataset[Slot(0, epoch, (8, 8))][2] for epoch in range(12)]
    assert any(augmentation.is_mirrored for augmentation in augmentations) is mirrors


def crop_loaders(info: DatasetInfo, batch_split: BatchSplit, steps: int, num_workers: int = 0) -> tuple:
    """The loaders of a small network on the CPU, for so many training steps and for evaluation."""
    config = UNetConfig(base_channels=2, depth=1)
    shapes = network_shapes(info, config)
    device = torch.device("cpu")
    return build_loaders(info, config, shapes, batch_split, range(steps), num_workers=num_workers, device=device)


def test_the_order_of_training_follows_the_seed_of_the_data(info):
    orders = []
    for seed in (0, 0, 1):
        seeded = replace(info, config=replace(info.config, seed=seed))
        train, _ = crop_loaders(seeded, BatchSplit(3, groups=1, micro_batch_size=3, accumulation=1), steps=4)
        orders.append([[slot.index for slot in slots] for slots in train.batch_sampler])
    assert orders[0] == orders[1] != orders[2]


def test_no_process_is_started_that_would_have_no_batch(info):
    batch_split = BatchSplit(4, groups=1, micro_batch_size=2, accumulation=2)
    loaders = crop_loaders(info, batch_split, steps=3, num_workers=5000)
    assert [loader.num_workers for loader in loaders] == [6, 6]
