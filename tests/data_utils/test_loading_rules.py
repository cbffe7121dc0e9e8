"""Small rules of loading: how images are padded and batched, what is drawn, and what a loader process is told.

Modules: data_utils/loading/batch_sampler.py, data_utils/loading/loaders.py, data_utils/loading/samples.py,
data_utils/loading/draws.py, data_utils/loading/augment.py, data_utils/loading/image_input.py,
data_utils/loading/volume_input.py, data_utils/loading/decoded_cache.py, data_utils/loading/dataset.py.
"""

import hashlib
import pickle
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import load_info, write_folder

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.volumes import VolumeHeader
from data_utils.image_io.windowed import WindowedArray
from data_utils.loading import loaders
from data_utils.loading.augment import _apply_gamma, augment, recolored
from data_utils.loading.batch_sampler import BatchSplit, EvaluationSampler, Slot, padded_shapes, pixels_per_batch
from data_utils.loading.crop import crop_around, crop_window
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.decoded_cache import DecodedSplit, decode_once
from data_utils.loading.draws import Draw, draw, pack_draws
from data_utils.loading.image_input import ImageInput
from data_utils.loading.loaders import NetworkShapes, build_loaders, network_shapes
from data_utils.loading.noise import unit_noise
from data_utils.loading.samples import VolumeSamples
from data_utils.loading.volume_input import SliceInput, VolumeInput
from data_utils.sources.records import StreamRecords
from runtime import signals
from runtime.errors import DataError
from tasks.classes import ClassTarget
from unet.config import Preprocess, UNetConfig


def test_sixteen_sizes_stay_and_of_more_those_that_pad_least_become_one():
    sizes = np.array([(10 * number, 7) for number in range(1, 17)])
    assert (padded_shapes(sizes) == sizes).all()
    more = np.vstack([sizes, [(165, 7)]])
    shapes = padded_shapes(more)
    assert len(np.unique(shapes, axis=0)) == 16 and shapes[15].tolist() == shapes[16].tolist() == [165, 7]
    assert (shapes[:15] == sizes[:15]).all()


def test_padding_counts_for_each_image_that_is_padded():
    sizes = np.array([(10, 10)] * 100 + [(10, 11), (20, 20), (20, 25)])
    shapes = padded_shapes(sizes, max_shapes=3)
    assert np.unique(shapes, axis=0).tolist() == [[10, 10], [10, 11], [20, 25]]
    # a merged shape has the images of both: (4, 4) has become one of many (4, 5), which (4, 6) would pad
    sizes = np.array([(4, 4)] + [(4, 5)] * 500 + [(4, 6)] * 40 + [(6, 10)] * 30 + [(6, 12)])
    assert np.unique(padded_shapes(sizes, max_shapes=3), axis=0).tolist() == [[4, 5], [4, 6], [6, 12]]


def test_very_many_sizes_are_rounded_up_to_multiples_of_eight_first():
    sizes = np.array([(row, column) for row in range(33, 50) for column in range(33, 50)])  # 289
    shapes = padded_shapes(sizes)
    assert np.unique(shapes, axis=0).tolist() == [[row, column] for row in (40, 48, 56) for column in (40, 48, 56)]


def test_so_many_pixels_share_a_forward_pass_on_each_kind_of_device():
    assert [pixels_per_batch(torch.device(kind)) for kind in ("cpu", "cuda", "mps")] == [131072, 524288, 524288]


def test_processes_that_share_a_volume_get_its_micro_batch_one_after_the_other():
    split = BatchSplit(4, groups=2, micro_batch_size=1, accumulation=2, processes_per_volume=3)
    assert (split.world_size, split.group_words, split.idle) == (6, "groups of 3 processes", 0)
    assert split._replace(batch_size=1, accumulation=1).idle == 1
    assert "x 2 groups of 3 processes x 2 accumulation steps" in str(split)


def test_the_last_round_of_micro_batches_ends_a_step_for_every_process():
    shapes = np.array([(8, 8)] * 4)
    split = BatchSplit(4, groups=2, micro_batch_size=1, accumulation=2)
    batches = list(loaders.TrainingSampler(shapes, split, 0, range(1)))
    assert [batch[0].ends_step for batch in batches] == [False, False, True, True]
    shared = split._replace(groups=1, processes_per_volume=2)
    batches = list(loaders.TrainingSampler(shapes, shared, 0, range(1)))
    assert [batch[0].ends_step for batch in batches] == [False, False, True, True]
    assert batches[0] == batches[1] and batches[2] == batches[3] and batches[0] != batches[2]


def test_fillers_make_the_batches_of_an_evaluation_a_multiple_of_the_processes():
    for processes, fillers in ((1, 0), (2, 1), (3, 0), (4, 1), (5, 2)):
        sampler = EvaluationSampler(np.array([(8, 8)] * 3), 64, processes)
        assert (len(sampler), sum(slots[0].filler for slots in sampler)) == (3 + fillers, fillers)


def test_shapes_of_both_splits_are_known_by_their_sides():
    shapes = NetworkShapes(np.array([(4, 9), (6, 5)]), np.array([(6, 5)]))
    assert (shapes.largest, shapes.shortest_first_side, shapes.mean_pixels) == ((6, 9), 4, 33)
    assert shapes.differ
    same = np.array([(6, 5)] * 2)
    assert not NetworkShapes(same, same).differ and NetworkShapes(same, np.array([(6, 4)])).differ


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    folder = write_folder(tmp_path_factory.mktemp("data"), 6, seed=0, size=(16, 24))
    return load_info(folder, crop_size=(8, 8), augment="strong", val_fraction=0.4)


def test_a_crop_is_drawn_by_the_seed_the_epoch_and_the_image_and_apart_from_the_augmentation(info):
    crops = {}
    for seed in (0, 1):
        dataset = TrainingDataset(info.train, replace(info, config=replace(info.config, seed=seed)), Preprocess())
        for epoch in (0, 1):
            for index in (0, 1):
                rng = np.random.default_rng([seed, epoch, index, 1])
                image, target = dataset.samples.load(index)
                window = dataset.samples.choose_window(index, target, (8, 8), rng)
                slot = Slot(index, epoch, (8, 8))
                cut, _ = dataset.sample(slot)
                sides = tuple(slice(*side) for side in window)
                assert (cut == image[(slice(None), *sides)]).all()
                drawn = dataset[slot][2]
                expected = draw((epoch, index), strength="strong", seed=seed, size=(8, 8), channels=3)
                assert (drawn.matrix == expected.matrix).all() and drawn.noise_seed == expected.noise_seed
                crops[seed, epoch, index] = cut.tobytes()
    assert len(set(crops.values())) == len(crops)


def test_images_are_mirrored_only_where_the_reader_allows_it(info):
    for mirrors in (True, False):
        dataset = TrainingDataset(info.train, info, Preprocess())
        dataset.reader = SimpleNamespace(mirrors=mirrors, mirrored=lambda target: target)
        dataset.read = lambda slot: (np.zeros((3, 8, 8), np.uint8), ClassTarget(np.zeros((8, 8), np.uint8)), None)
        draws = [dataset[Slot(0, epoch, (8, 8))][2] for epoch in range(12)]
        assert any(drawn.is_mirrored for drawn in draws) is mirrors


class Stream(StreamRecords):
    """Records of a stream that reads the pictures of a folder."""

    def __init__(self, records) -> None:
        self.records = records
        self.group_sizes = np.array([len(records)])
        self.open_groups = 0
        self.is_scattered = False

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> dict:
        return self.records[i]

    def part(self, chosen: np.ndarray) -> "Stream":
        raise AssertionError

    def _read_group(self, group: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(("asked", "processes", "threads"), [(0, 0, 1), (1, 1, 1), (3, 2, 1), (7, 4, 1), (8, 4, 2)])
def test_a_stream_has_as_many_processes_as_share_no_group_and_threads_for_the_rest(
    info, monkeypatch, asked, processes, threads
):
    raised = []
    monkeypatch.setattr(loaders, "raise_open_file_limit", lambda: raised.append(True))
    train, val = Stream(info.train.records), Stream(info.val.records)
    streamed = replace(info, train=replace(info.train, records=train), val=replace(info.val, records=val))
    model = UNetConfig(base_channels=2, depth=1)
    split = BatchSplit(4, groups=1, micro_batch_size=2, accumulation=2)
    device = torch.device("cpu")
    built = build_loaders(
        streamed, model, network_shapes(info, model), split, range(2), num_workers=asked, device=device
    )
    for loader in built:
        assert (loader.num_workers, loader.dataset.threads) == (processes, threads)
        assert loader.persistent_workers is (processes > 0)
    assert len(raised) == (processes > 0)  # each tensor on its way is an open file
    # the lanes of a step, each with four groups side by side
    assert (train.open_groups, train.is_scattered, val.is_scattered) == (16, False, True)


def test_a_loader_process_outlasts_signals_to_stop(info, monkeypatch):
    monkeypatch.setattr(signals.ctypes, "CDLL", Mock())  # this process is not to end with its parent
    model = UNetConfig(base_channels=2, depth=1)
    split = BatchSplit(4, groups=2, micro_batch_size=2, accumulation=1, processes_per_volume=2)
    shapes = network_shapes(info, model)
    train, val = build_loaders(info, model, shapes, split, range(2), num_workers=0, device=torch.device("cpu"))
    assert len(val.batch_sampler) % 4 == 0  # a batch for each process of the launch
    handlers = {number: signal.getsignal(number) for number in signals.stop_signals()}
    try:
        for loader in (train, val):
            loader.worker_init_fn(0)
            for number, handler in handlers.items():
                assert signal.getsignal(number) == signal.SIG_IGN
                signal.signal(number, handler)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_volumes_are_evaluated_one_by_one_and_decoded_for_both_splits(info, monkeypatch):
    decoded = []
    for dataset in (TrainingDataset, EvaluationDataset):
        monkeypatch.setattr(dataset, "cache", lambda self: decoded.append(type(self).__name__))
    monkeypatch.setattr("data_utils.loading.samples.ImageSamples.share_batches", False)
    monkeypatch.setattr("data_utils.loading.samples.ImageSamples.are_cached", True)
    model = UNetConfig(base_channels=2, depth=1)
    split = BatchSplit(4, groups=1, micro_batch_size=4, accumulation=1)
    _, val = build_loaders(
        info, model, network_shapes(info, model), split, range(2), num_workers=0, device=torch.device("cpu")
    )
    assert decoded == ["TrainingDataset", "EvaluationDataset"]
    assert len(val.batch_sampler) == len(info.val)
    assert not VolumeSamples.share_batches and VolumeSamples.are_cached


def test_training_images_are_as_large_as_crops_and_twice_the_divisors(info):
    shapes = network_shapes(info, UNetConfig(base_channels=2, depth=1))
    assert shapes.train.tolist() == [[8, 8]] * len(info.train)
    assert network_shapes(info, UNetConfig(base_channels=2, depth=3)).train[0].tolist() == [16, 16]
    large = replace(info, config=replace(info.config, crop_size=(40, 8)))
    assert network_shapes(large, UNetConfig(base_channels=2, depth=1)).train[0].tolist() == [40, 8]


def test_a_volume_has_the_spacing_of_the_network_or_its_own():
    samples = object.__new__(VolumeSamples)
    samples.split = SimpleNamespace(spacings=np.array([(1.0, 1.0, 1.0), (5.0, 2.0, 1.5)]))
    for spacing, expected in ((None, (5.0, 2.0, 1.5)), ((3.0, 3.0, 3.0), (3.0, 3.0, 3.0))):
        samples.preprocess = Preprocess(spacing=spacing)
        assert samples.spacing(1) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 1.1},
        {"resolution": (1.0, 0.5, 1.0)},
        {"blur": 1.0},
        {"noise": 0.1},
        {"gain": np.array([1.0, 1.1])},
        {"shift": np.array([0.0, 0.1])},
        {"elastic": np.zeros((2, 3, 3))},
        {"matrix": np.diag([1.0, -1.0])},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_draw_that_does_anything_is_not_the_identity(settings):
    assert Draw().is_identity and Draw(np.eye(3)).is_identity
    assert not Draw(**settings).is_identity
    assert Draw(**settings).moves is ("elastic" in settings or "matrix" in settings)


@pytest.mark.parametrize(
    ("strength", "size", "channels", "spacing", "may_mirror", "expected"),
    [
        ("mirror", (20, 30), 3, None, True, "006b8a04050f8b3a"),
        ("basic", (20, 30), 3, None, True, "ab8732798b38e104"),
        ("basic", (20, 30), 1, None, False, "55ef847c9365d99b"),
        ("strong", (320, 340), 3, None, True, "ee35a0610211feee"),
        ("strong", (40, 40), 1, None, True, "0ee4e16a408716c4"),
        ("basic", (8, 9, 10), 1, (3.0, 1.0, 1.5), True, "6f977ddb75758f0a"),
        ("strong", (8, 9, 10), 2, (3.0, 1.0, 1.5), True, "634cd2322bc9ec63"),
        ("strong", (8, 9, 10), 1, (1.0, 1.0, 1.0), False, "d2c9a39db8a2d5c9"),
    ],
)
def test_draws_are_those_that_older_runs_had(strength, size, channels, spacing, may_mirror, expected):
    rows = []
    for index in range(24):
        options = {"size": size, "channels": channels, "spacing": spacing, "may_mirror": may_mirror}
        drawn = draw((index // 5, index), strength=strength, seed=7, **options)
        elastic = () if drawn.elastic is None else drawn.elastic.ravel()
        numbers = [*drawn.matrix.ravel(), *elastic, *np.atleast_1d(drawn.gain), *np.atleast_1d(drawn.shift)]
        numbers += [drawn.blur, drawn.noise, drawn.gamma, *(drawn.resolution or ())]
        rows.append(([round(float(number), 7) + 0.0 for number in numbers], drawn.noise_seed))  # -0.0 is 0
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == expected


def test_crops_and_noise_are_those_that_older_runs_had():
    mask = np.zeros((12, 14), np.uint8)
    mask[3, 5] = 1
    mask[9:, 11:] = 255
    locations = [np.array([[3, 5]]), np.array([[9, 11], [1, 1]])]
    crops = []
    for seed in (1, 2, 3, 5, 8):
        crops.append(crop_window(mask, 255, (4, 5), np.random.default_rng(seed)))
    assert crops == [((7, 11), (9, 14)), ((7, 11), (0, 5)), ((8, 12), (0, 5)), ((5, 9), (2, 7)), ((0, 4), (4, 9))]
    crops = []
    for seed in (1, 2, 3, 5, 8):
        crops.append(crop_around(locations, (24, 28), (12, 14), (4, 5), np.random.default_rng(seed)))
    assert crops == [((7, 11), (9, 14)), ((0, 4), (0, 5)), ((1, 5), (0, 5)), ((5, 9), (2, 7)), ((1, 5), (4, 9))]
    noise = [*unit_noise((6,), 5, torch.device("cpu")).tolist(), *unit_noise((3,), 2**62, torch.device("cpu")).tolist()]
    expected = [-1.4073, 0.0338, -0.2774, 1.3058, 0.1083, 0.3383, -0.4668, 1.617, 0.1286]
    assert noise == pytest.approx(expected, abs=1e-4)


def test_a_half_turn_is_no_mirror_image():
    assert not Draw(-np.eye(2)).is_mirrored
    assert Draw(np.diag([1.0, -1.0])).is_mirrored and Draw(-np.eye(3)).is_mirrored


def volume_draws(spacing: tuple[float, float, float]) -> list[Draw]:
    options = {"strength": "strong", "seed": 0, "size": (8, 9, 10), "channels": 1, "spacing": spacing}
    return [draw((0, index), **options) for index in range(80)]


def test_axes_are_alike_up_to_twice_the_spacing():
    for coarse, is_turned in ((2.0, True), (2.01, False)):
        draws = volume_draws((coarse, 1.0, 1.0))
        assert any(drawn.matrix[2, 0] for drawn in draws) is is_turned
        assert any(drawn.resolution and drawn.resolution[0] < 1 for drawn in draws) is is_turned


def test_nothing_of_a_volume_is_mirrored_where_that_has_no_answer():
    for strength in ("basic", "strong"):
        options = {"strength": strength, "seed": 0, "size": (8, 9, 10), "channels": 1, "spacing": (1.0, 1.0, 1.0)}
        draws = [draw((0, index), may_mirror=False, **options) for index in range(30)]
        assert all(np.linalg.det(drawn.matrix) > 0 for drawn in draws)


def test_colors_change_about_the_mean_of_the_data():
    images, fill, std = torch.tensor([[[10.0]], [[20.0]]]), torch.tensor([[[12.0]], [[20.0]]]), torch.tensor([[[3.0]]])
    changed = recolored(images, torch.tensor(1.5), torch.tensor(0.5), fill, std)
    assert changed.flatten().tolist() == [12 - 1.5 * 2 + 1.5, 21.5]


def test_noise_has_the_seed_of_its_own_draw_whatever_its_place_in_the_batch():
    images = torch.full((2, 1, 8, 8), 5.0)
    noisy = Draw(noise=0.5, noise_seed=123)
    batch = {"fill": torch.zeros(1), "std": torch.full((1,), 2.0)}
    results = []
    for draws in ([noisy, Draw()], [Draw(), noisy]):
        target = ClassTarget(torch.zeros(2, 8, 8, dtype=torch.uint8))
        results.append(augment(images, target, draws, pack_draws(draws, 1), **batch)[0])
    assert results[0][0].equal(results[1][1]) and results[0][1].equal(images[1])
    assert 0.7 < (results[0][0] - 5).std() < 1.3  # half of a standard deviation of 2


def test_gamma_keeps_the_mean_also_where_it_lies_outside_of_a_channel():
    image = torch.linspace(10, 20, 25).view(1, 5, 5)
    assert _apply_gamma(image, 2.0, torch.tensor([[[15.0]]])).flatten()[12] == 15
    above = _apply_gamma(image, 2.0, torch.tensor([[[99.0]]]))
    assert (above.min(), above.max()) == (10, 20)


def test_pixels_of_each_type_that_training_has_seen_are_welcome():
    preprocess = Preprocess(pixel_types=("uint8", "uint16"))
    for kind in ("uint8", "uint16", "float32"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ImageInput(WindowedArray(np.ones((4, 4, 1), kind)), preprocess, 1).whole()
        assert [str(warning.message)[:65] for warning in said] == [
            "images hold float32 pixels, but the model was trained on uint8 an"
        ] * (kind == "float32")


def header(size: tuple[int, int, int], spacing: tuple[float, float, float], channels: int = 1) -> VolumeHeader:
    return VolumeHeader(size, spacing, channels, "float32", np.eye(4), ((0, 1), (1, 1), (2, 1)))


def test_an_axis_is_resampled_linearly_beyond_three_times_the_finest_spacing():
    step = np.zeros((8, 8, 8, 1), np.float32)
    step[4:] = 100
    rings = {}
    for spacing in (3.0, 3.1):
        for axis in range(3):
            sides = [1.0, 1.0, 1.0]
            sides[axis] = spacing
            wanted = [1.0, 1.0, 1.0]
            wanted[axis] = spacing / 2
            volume = VolumeInput(
                np.moveaxis(step, 0, axis), header((8, 8, 8), tuple(sides)), Preprocess(spacing=tuple(wanted)), 1
            )
            rings[spacing, axis] = bool(volume.whole().max() > 101)
    assert rings == {(spacing, axis): spacing == 3.0 for spacing in (3.0, 3.1) for axis in range(3)}


def test_a_volume_far_from_zero_is_standardized_by_what_is_left_after_clipping():
    voxels = np.random.default_rng(0).normal(1e6, 3, (20, 30, 30, 2)).astype(np.float32)
    voxels[0, 0, 0] = -1e9
    voxels[..., 1] = 7
    clipped = voxels[..., 0].clip(999_990, 1_000_010).astype(np.float64)
    preprocess = Preprocess(clip=(999_990, 1_000_010), standardize=True)
    volume = VolumeInput(voxels, header((20, 30, 30), (1.0, 1.0, 1.0), 2), preprocess, 2)
    assert volume.mean[0] == pytest.approx(clipped.mean(), abs=0.07)  # float32 has steps of 1/16 there
    assert volume.std.tolist() == pytest.approx([clipped.std(), 1.0], rel=1e-3)
    with pytest.raises(DataError, match="a: has 2 channels, the model takes 3"):
        VolumeInput(voxels, header((20, 30, 30), (1.0, 1.0, 1.0), 2), preprocess, 3, "a")


def test_slices_of_a_volume_have_the_size_that_a_network_of_images_wants():
    voxels = np.zeros((3, 8, 10, 1), np.float32)
    slices = SliceInput(VolumeInput(voxels, header((3, 8, 10), (1.0, 1.0, 1.0)), Preprocess(scale=0.5), 1))
    assert slices.size == (3, 4, 5) and slices.strip(1, 3).shape == (1, 2, 4, 5)


def samples_of(value: int):
    return lambda index: (np.full((1, 2, 2), value, np.uint8), ClassTarget(np.full((2, 2), value, np.uint8)))


@pytest.mark.parametrize(("rank", "local_rank", "is_mended"), [("2", "0", True), ("2", "1", False)])
def test_the_first_process_of_each_machine_compares_the_cache_with_its_checksum(
    tmp_path, monkeypatch, rank, local_rank, is_mended
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = decode_once(samples_of(1), 2, ClassTarget, "key", ())
    first.file.with_suffix(".sha256").write_text("another")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    again = decode_once(samples_of(2), 2, ClassTarget, "key", ())
    assert again[0][1].mask.max() == (2 if is_mended else 1)


def test_a_cache_is_made_once_and_its_samples_know_their_target_in_other_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    decode_once(samples_of(1), 2, ClassTarget, "key", ())
    once = decode_once(samples_of(2), 2, ClassTarget, "key", ())
    other = decode_once(samples_of(3), 2, ClassTarget, "another key", ())
    sent: DecodedSplit = pickle.loads(pickle.dumps(once))
    assert isinstance(sent[1][1], ClassTarget) and sent[1][0].max() == 1 and other[1][0].max() == 3
    assert not [path for path in Path(tmp_path).rglob("*.tmp")]
